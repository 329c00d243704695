//! Plays a script: performs the machine's steps as a driver would, and keeps them.

use super::{
    AfterSave, Attempts, Beat, Durability, Duration, Ends, Error, ErrorKind, Event, FailureKind, Now, Phase, Record,
    Response, START, SaveEnds, Scenario, Sent, Step, Timestamp, ToSend, broken, failure,
};

/// What the machine did, in order.
#[derive(Debug)]
pub(super) enum Did {
    Save(Box<Record>, AfterSave, Durability),
    Send(ToSend),
    Sleep(Duration),
}

/// A scenario, played to its end.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) did: Vec<Did>,
    pub(super) result: Result<Response, Error>,
    /// From start to end.
    pub(super) took: Duration,
}

impl Scenario {
    pub(super) fn run(mut self) -> Played {
        let mut now = START;
        let keyed = self.record.is_some();
        let (mut machine, mut step) = Attempts::start(
            self.plan.clone(),
            self.record.take(),
            self.after_unknown,
            self.journal_now,
            now,
            self.seed,
        );
        let mut did = Vec::new();
        let mut durable = None;
        let result = loop {
            assert!(did.len() < 10_000, "it does not end");
            let event = match step {
                Step::Save(record, then, durability) => {
                    pass(&mut now, self.save_takes, 0);
                    let phase = record.phase;
                    did.push(Did::Save(record, then, durability));
                    match self.saves.get(&saves(&did)) {
                        None => {
                            durable = (durability == Durability::Now).then_some(phase);
                            Event::Saved
                        }
                        Some(SaveEnds::Failed { may_be_saved }) => {
                            Event::SaveFailed { source: broken("disk full"), may_be_saved: *may_be_saved }
                        }
                        Some(SaveEnds::LeaseLost) => Event::LeaseLost,
                    }
                }
                Step::Send(sending) => {
                    did.push(Did::Send(sending));
                    let mut beat = self.next_beat();
                    if matches!(beat.ends, Ends::Hangs) {
                        beat.takes = sending.limit;
                    }
                    // An exchange that runs past its limit is the driver's to end, so a script must not.
                    assert!(beat.takes <= sending.limit, "{:?} is over the limit {:?}", beat.takes, sending.limit);
                    pass(&mut now, beat.takes, beat.wall_jump);
                    match beat.ends {
                        Ends::Answered(answer) => Event::Answered(answer.0),
                        Ends::Failed(kind, sent) => Event::Failed(failure(kind, sent)),
                        Ends::Hangs => Event::Failed(failure(FailureKind::Timeout, Sent::Perhaps)),
                        Ends::PrepareFails => Event::PrepareFailed(broken("no token")),
                        Ends::LeaseLost => Event::LeaseLost,
                    }
                }
                Step::Sleep(wait) => {
                    did.push(Did::Sleep(wait));
                    pass(&mut now, wait.saturating_add(self.oversleeps), self.wall_jumps_asleep);
                    let waits = did.iter().filter(|did| matches!(did, Did::Sleep(_))).count();
                    if self.lease_lost_at_wait == Some(waits) { Event::LeaseLost } else { Event::Awake }
                }
                Step::Done(result) => break result,
            };
            step = machine.on(event, now);
        };
        told_only_what_is_on_disk(&result, durable, keyed);
        assert!(self.beats.is_empty() || self.for_ever, "{} exchanges never happened: {did:?}", self.beats.len());
        assert_over(&mut machine, now);
        Played { did, result, took: now.monotonic - START.monotonic }
    }

    fn next_beat(&mut self) -> Beat {
        match self.beats.pop_front() {
            Some(beat) if self.for_ever && self.beats.is_empty() => {
                self.beats.push_back(beat.clone());
                beat
            }
            Some(beat) => beat,
            None => panic!("an attempt that the script does not expect"),
        }
    }
}

fn pass(now: &mut Now, time: Duration, wall_jump: i64) {
    now.monotonic = now.monotonic.saturating_add(time);
    let wall = now.wall.plus(time).as_millis();
    now.wall = Timestamp::from_millis(wall.saturating_add_signed(wall_jump));
}

fn saves(did: &[Did]) -> usize {
    did.iter().filter(|did| matches!(did, Did::Save(..))).count()
}

/// Every closing but "completed" is on disk before the caller hears of it.
fn told_only_what_is_on_disk(result: &Result<Response, Error>, durable: Option<Phase>, keyed: bool) {
    match result {
        Ok(response) if keyed && !response.status().is_success() => assert!(durable.is_some(), "{result:?}"),
        Ok(_) => {}
        Err(error) => match error.phase() {
            None | Some(Phase::Sending | Phase::Prepared | Phase::Completed) => {}
            // A closing that stands on disk from before, because nothing could be written since.
            Some(_) if error.kind() == ErrorKind::Journal => assert_eq!(durable, None),
            phase => assert_eq!(durable, phase, "{error:?}"),
        },
    }
}

/// After the end there is nothing but an error.
fn assert_over(machine: &mut Attempts, now: Now) {
    let step = machine.on(Event::Awake, now);
    assert!(matches!(&step, Step::Done(Err(error)) if error.kind() == ErrorKind::Internal), "{step:?}");
}

impl Played {
    pub(super) fn sends(&self) -> Vec<ToSend> {
        self.did.iter().filter_map(|did| if let Did::Send(sending) = did { Some(*sending) } else { None }).collect()
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        self.sends().iter().map(|sending| sending.number).collect()
    }

    pub(super) fn limits(&self) -> Vec<Duration> {
        self.sends().iter().map(|sending| sending.limit).collect()
    }

    pub(super) fn sleeps(&self) -> Vec<Duration> {
        self.did.iter().filter_map(|did| if let Did::Sleep(wait) = did { Some(*wait) } else { None }).collect()
    }

    pub(super) fn saves(&self) -> Vec<(Phase, AfterSave, Durability)> {
        let save = |did: &Did| match did {
            Did::Save(record, then, durability) => Some((record.phase, *then, *durability)),
            _ => None,
        };
        self.did.iter().filter_map(save).collect()
    }

    /// The record as it was saved last.
    pub(super) fn saved(&self) -> &Record {
        let record = |did: &'_ Did| matches!(did, Did::Save(..));
        match self.did.iter().rfind(|did| record(did)) {
            Some(Did::Save(record, ..)) => record,
            _ => panic!("nothing was saved"),
        }
    }

    /// The steps in words: `save sending, send 1, sleep, send 2, save completed`.
    pub(super) fn story(&self) -> String {
        let word = |did: &Did| match did {
            Did::Save(record, ..) => format!("save {}", record.phase),
            Did::Send(sending) => format!("send {}", sending.number),
            Did::Sleep(_) => "sleep".to_owned(),
        };
        self.did.iter().map(word).collect::<Vec<_>>().join(", ")
    }

    #[track_caller]
    pub(super) fn ok(&self) -> &Response {
        self.result.as_ref().unwrap()
    }

    #[track_caller]
    pub(super) fn err(&self) -> &Error {
        self.result.as_ref().unwrap_err()
    }

    /// The error closed the operation in this phase, on disk before it was told.
    #[track_caller]
    pub(super) fn assert_closed(&self, kind: ErrorKind, phase: Phase, delivery: super::Delivery) {
        let error = self.err();
        assert_eq!((error.kind(), error.phase(), error.delivery()), (kind, Some(phase), delivery), "{self:?}");
        assert_eq!(self.saves().last(), Some(&(phase, AfterSave::ReleaseLease, Durability::Now)), "{self:?}");
        assert!(!error.is_pending());
    }

    /// The error left the operation pending, with the lease given back.
    #[track_caller]
    pub(super) fn assert_pending(&self, kind: ErrorKind) {
        let error = self.err();
        let told = (error.kind(), error.phase(), error.delivery());
        assert_eq!(told, (kind, Some(Phase::Sending), super::Delivery::Unknown), "{self:?}");
        assert_eq!(
            self.saves().last().map(|(phase, then, _)| (*phase, *then)),
            Some((Phase::Sending, AfterSave::ReleaseLease))
        );
        assert!(error.is_pending());
    }
}
