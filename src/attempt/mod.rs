//! The attempt machine: which step comes next for one operation.
//!
//! It does no IO and reads no clock. A driver performs one [`Step`] after the other and tells the machine, with an
//! [`Event`], how it went:
//!
//! ```text
//!   Save ──► Send ──► Sleep ──► Send ──► … ──► Save ──► Done
//! ```
//!
//! A restart is the same machine, started from a record read back; there is no second code path.

mod classify;
mod ending;
mod repeat;
mod step;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

pub(crate) use classify::Classifier;
use classify::Reading;
pub(crate) use repeat::{Again as AskedAgain, Asked, again, refusal};
pub(crate) use step::{Carrying, Event, Plan, Step, ToSend};

use crate::clock::{Now, Timestamp};
use crate::error::{Error, ErrorKind};
use crate::history::{Attempt, Delivery, Outcome, Wait};
use crate::operation::{AfterSave, Durability, Phase, Record};
use crate::reply::{Again, Failure, InFront, Reply, Verdict};
use crate::response::Response;
use crate::retry::{Delays, retry_after};

/// The machine.
pub(crate) struct Attempts {
    plan: Plan,
    /// `None` for a request without a key: there is nothing to remember.
    record: Option<Box<Record>>,
    started: Now,
    /// The journal's time at the start.
    journal_start: Timestamp,
    state: State,
    /// Whether any attempt so far, in any process, had an unknown outcome.
    unknown: bool,
    /// Whether the operation was completed before, and is only asked for its reply: nothing changes that.
    settled: bool,
    number: u32,
    /// Attempts that count against the maximum: all but those answered "in progress".
    charged: u32,
    delays: Delays,
    in_progress_delays: Delays,
    once: Once,
    history: Vec<Attempt>,
    last_verdict: Option<Verdict>,
    last_reply: Option<Reply>,
    last_failure: Option<Failure>,
}

#[derive(Debug)]
enum State {
    /// The record is being marked as sending, before the first byte.
    Opening {
        before: Phase,
        first_sent_at: Option<Timestamp>,
    },
    Sending {
        sending: ToSend,
        began: Duration,
    },
    Waiting {
        unauthorized: bool,
    },
    /// The server asked not to be asked so soon.
    Holding,
    /// The result is known, and the record is being closed or put down.
    Ending(Box<Ending>),
    Done,
}

/// What the caller will hear, once it is saved.
#[derive(Debug)]
struct Ending {
    result: Result<Response, Error>,
    /// Whether the caller may only hear it if it is on disk.
    must_be_saved: bool,
}

/// What happens once for an operation and no more.
#[derive(Clone, Copy, Debug, Default)]
struct Once {
    refreshed: bool,
    asked_again: bool,
}

/// Why an attempt is to be repeated.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    in_progress: bool,
    retry_after: Option<Duration>,
    unauthorized: bool,
}

impl Attempts {
    /// A machine for a request, and its first step.
    ///
    /// `record` is as the journal holds it: just begun, taken over, or about to be opened again. `after_unknown` says
    /// whether an earlier attempt of it may have arrived, `journal_now` is the journal's time at `now`.
    pub(crate) fn start(
        plan: Plan,
        record: Option<Box<Record>>,
        after_unknown: bool,
        journal_now: Timestamp,
        now: Now,
        seed: u64,
    ) -> (Self, Step) {
        let delays = plan.policy.backoff.delays(seed);
        let in_progress_delays = plan.policy.backoff.delays(seed.rotate_left(32) ^ 1);
        plan.budget.deposit(now.monotonic);
        let mut machine = Self {
            settled: record.as_ref().is_some_and(|record| record.phase == Phase::Completed),
            number: record.as_ref().map_or(0, |record| record.attempts),
            plan,
            record,
            started: now,
            journal_start: journal_now,
            state: State::Done,
            unknown: after_unknown,
            charged: 0,
            delays,
            in_progress_delays,
            once: Once::default(),
            history: Vec::new(),
            last_verdict: None,
            last_reply: None,
            last_failure: None,
        };
        let step = machine.begin(now);
        (machine, step)
    }

    /// Takes what happened, and says what to do next.
    pub(crate) fn on(&mut self, event: Event, now: Now) -> Step {
        let state = std::mem::replace(&mut self.state, State::Done);
        match (state, event) {
            (State::Done, _) => self.cannot_happen("an event after the end"),
            // What may be told without being on disk stands, whoever drives the operation now: a success above all.
            (State::Ending(ending), Event::LeaseLost) if !ending.must_be_saved => Step::Done(ending.result),
            (_, Event::LeaseLost) => self.lease_lost(),
            (State::Opening { .. }, Event::Saved) => self.send(now, false),
            (State::Opening { before, first_sent_at }, Event::SaveFailed { source, may_be_saved }) => {
                if let Some(record) = self.record.as_mut().filter(|_| !may_be_saved) {
                    (record.phase, record.first_sent_at) = (before, first_sent_at);
                }
                self.not_opened(source)
            }
            (State::Holding, Event::Awake) => self.open(now),
            (State::Sending { sending, began }, event) => self.attempted(sending, began, event, now),
            (State::Waiting { unauthorized }, Event::Awake) => self.send(now, unauthorized),
            (State::Ending(ending), Event::Saved) => Step::Done(ending.result),
            (State::Ending(ending), Event::SaveFailed { source, .. }) => self.not_closed(*ending, source),
            (state, event) => self.cannot_happen(match (state, event) {
                (State::Opening { .. } | State::Ending(_), _) => "an exchange while saving",
                _ => "a save while waiting",
            }),
        }
    }

    /// Whoever takes an operation up comes no earlier than the server asked, under the limits of any other wait.
    fn begin(&mut self, now: Now) -> Step {
        let journal_now = self.journal_now(now);
        let first_sent_at = self.record.as_ref().and_then(|record| record.first_sent_at);
        if first_sent_at > Some(journal_now) {
            return self.age_unknown();
        }
        let next_attempt_at = self.record.as_ref().and_then(|record| record.next_attempt_at);
        let asked = next_attempt_at.map(|at| at.since(self.journal_now(now))).filter(|asked| *asked > Duration::ZERO);
        match asked {
            None => self.open(now),
            Some(_) if asked > Some(self.plan.policy.retry_after_cap) => {
                self.too_early(ErrorKind::RetryAfterTooLong, asked)
            }
            Some(wait) if self.deadline_left(now) <= wait => self.too_early(ErrorKind::DeadlineExceeded, asked),
            Some(wait) => {
                self.state = State::Holding;
                Step::Sleep(wait)
            }
        }
    }

    /// Before the first byte leaves, the record on disk must say that it may have left.
    fn open(&mut self, now: Now) -> Step {
        let journal_now = self.journal_now(now);
        match &mut self.record {
            Some(record) if !matches!(record.phase, Phase::Sending | Phase::Completed) => {
                let (before, first_sent_at) = (record.phase, record.first_sent_at);
                record.phase = Phase::Sending;
                record.closing = None;
                record.first_sent_at = Some(journal_now);
                let record = record.clone();
                self.state = State::Opening { before, first_sent_at };
                Step::Save(record, AfterSave::KeepLease, Durability::Now)
            }
            _ => self.send(now, false),
        }
    }

    /// The next attempt, if it may start at all.
    fn send(&mut self, now: Now, unauthorized: bool) -> Step {
        if let Some(record) = &mut self.record {
            record.next_attempt_at = None;
        }
        let (window_left, deadline_left) = (self.window_left(now), self.deadline_left(now));
        if window_left < self.least_useful() {
            return self.window_is_over(now);
        }
        if deadline_left < self.least_useful() {
            return self.limit_reached(ErrorKind::DeadlineExceeded, None, now);
        }
        self.number = self.number.saturating_add(1);
        let limit = self.plan.policy.attempt_timeout.min(deadline_left).min(window_left);
        let sending = ToSend { number: self.number, limit, unauthorized };
        self.state = State::Sending { sending, began: now.monotonic };
        Step::Send(sending)
    }

    fn attempted(&mut self, sending: ToSend, began: Duration, event: Event, now: Now) -> Step {
        let (verdict, outcome) = match event {
            Event::Answered(reply) => {
                let verdict = self.reading(now).of_reply(&reply);
                let replayed = self.plan.contract.is_replay(&reply.headers);
                let outcome = Outcome::Reply { status: reply.status, replayed };
                self.last_reply = Some(reply);
                (verdict, outcome)
            }
            Event::Failed(failure) => {
                let verdict = Reading::of_failure(&failure);
                let outcome = Outcome::Failure(failure.kind);
                self.last_failure = Some(failure);
                (verdict, outcome)
            }
            Event::PrepareFailed(source) => {
                self.number = self.number.saturating_sub(1);
                return self.prepare_failed(source);
            }
            Event::Saved | Event::SaveFailed { .. } | Event::Awake | Event::LeaseLost => {
                return self.cannot_happen("a save while an attempt is under way");
            }
        };
        let (delivery, meaning) = ending::told(verdict);
        self.unknown |= delivery == Delivery::Unknown;
        self.last_verdict = Some(verdict);
        if !matches!(verdict, Verdict::InProgress { .. }) {
            self.charged = self.charged.saturating_add(1);
        }
        self.history.push(Attempt {
            number: sending.number,
            began: began.saturating_sub(self.started.monotonic),
            took: now.monotonic.saturating_sub(began),
            outcome,
            meaning,
            delivery,
            wait: None,
        });
        self.decide(verdict, now)
    }

    /// What a verdict leads to.
    fn decide(&mut self, verdict: Verdict, now: Now) -> Step {
        let repeat = Repeat { in_progress: false, retry_after: None, unauthorized: false };
        match verdict {
            Verdict::Success | Verdict::Rejected => self.answered(verdict),
            Verdict::InFront(in_front) => self.answered_in_front(in_front, now),
            Verdict::InProgress { retry_after } => {
                self.repeat(Repeat { in_progress: true, retry_after, ..repeat }, now)
            }
            Verdict::Transient { retry_after } => self.repeat(Repeat { retry_after, ..repeat }, now),
            Verdict::ReplyLost | Verdict::Unknown | Verdict::NotSent { again: Again::Yes } => self.repeat(repeat, now),
            Verdict::NotSent { again: Again::No } => self.limit_reached(ErrorKind::Unreachable, None, now),
            Verdict::Executed
            | Verdict::KeyReused
            | Verdict::KeyRefused(_)
            | Verdict::StoredFailure
            | Verdict::Unsupported
            | Verdict::Redirected => self.stopped(verdict),
        }
    }

    fn answered_in_front(&mut self, in_front: InFront, now: Now) -> Step {
        let repeat = Repeat { in_progress: false, retry_after: None, unauthorized: false };
        let unauthorized = self.last_reply.as_ref().is_some_and(|reply| reply.status == http::StatusCode::UNAUTHORIZED);
        if unauthorized && self.plan.refresh_on_401 && !self.once.refreshed {
            self.once.refreshed = true;
            return self.repeat(Repeat { unauthorized: true, ..repeat }, now);
        }
        match in_front {
            InFront::Retry { retry_after } => self.repeat(Repeat { retry_after, ..repeat }, now),
            InFront::Once { retry_after } if !self.once.asked_again => {
                self.once.asked_again = true;
                self.repeat(Repeat { retry_after, ..repeat }, now)
            }
            InFront::Once { .. } | InFront::Stop => {
                let asked = self
                    .last_reply
                    .as_ref()
                    .and_then(|reply| retry_after(&self.plan.contract, &reply.headers, now.wall));
                self.ask_again_after(asked, now);
                self.refused_in_front()
            }
        }
    }

    /// Waits for another attempt, unless a limit forbids it. The limits are looked at before the wait, not after.
    fn repeat(&mut self, repeat: Repeat, now: Now) -> Step {
        let policy = &self.plan.policy;
        if !repeat.in_progress && self.charged >= policy.max_attempts {
            return self.limit_reached(ErrorKind::AttemptsExhausted, repeat.retry_after, now);
        }
        if self.plan.carrying == Carrying::Nothing {
            return self.limit_reached(ErrorKind::AttemptsExhausted, repeat.retry_after, now);
        }
        if repeat.retry_after.is_some_and(|asked| asked > policy.retry_after_cap) {
            return self.limit_reached(ErrorKind::RetryAfterTooLong, repeat.retry_after, now);
        }
        let wait = self.wait_before(repeat);
        if self.deadline_left(now) < wait.saturating_add(self.least_useful()) {
            return self.limit_reached(ErrorKind::DeadlineExceeded, repeat.retry_after, now);
        }
        if !repeat.in_progress && !self.plan.budget.withdraw(now.monotonic) {
            return self.limit_reached(ErrorKind::BudgetExhausted, repeat.retry_after, now);
        }
        if wait == Duration::ZERO {
            return self.send(now, repeat.unauthorized);
        }
        if let Some(attempt) = self.history.last_mut() {
            let asked_by_server = repeat.retry_after.is_some_and(|asked| asked == wait);
            attempt.wait = Some(Wait { duration: wait, asked_by_server });
        }
        self.state = State::Waiting { unauthorized: repeat.unauthorized };
        Step::Sleep(wait)
    }

    fn wait_before(&mut self, repeat: Repeat) -> Duration {
        if repeat.unauthorized {
            return Duration::ZERO;
        }
        if !repeat.in_progress {
            let scheduled = self.delays.next().unwrap_or_default();
            return scheduled.max(repeat.retry_after.unwrap_or_default());
        }
        let least = self.plan.policy.in_progress_min;
        match repeat.retry_after {
            Some(asked) if asked >= least => asked,
            // A server that says "at once" every time must not be asked in a tight loop, nor by all clients together.
            Some(_) => least.saturating_add(self.in_progress_delays.next().unwrap_or_default().min(least)),
            None => self.in_progress_delays.next().unwrap_or_default().max(least),
        }
    }

    fn reading(&self, now: Now) -> Reading<'_> {
        Reading {
            contract: &self.plan.contract,
            carrying: self.plan.carrying,
            classifier: self.plan.classifier.as_ref(),
            retry_rejections: self.plan.policy.retry_rejections,
            after_unknown: self.unknown,
            now: now.wall,
        }
    }

    /// Time since the start: on whichever clock has run further, because a suspended machine stops the monotonic one.
    fn elapsed(&self, now: Now) -> Duration {
        let monotonic = now.monotonic.saturating_sub(self.started.monotonic);
        monotonic.max(now.wall.since(self.started.wall))
    }

    fn journal_now(&self, now: Now) -> Timestamp {
        self.journal_start.plus(self.elapsed(now))
    }

    /// How long an attempt may still take before the server may have forgotten the key.
    fn window_left(&self, now: Now) -> Duration {
        let first_sent_at = self.record.as_ref().and_then(|record| record.first_sent_at);
        match first_sent_at {
            Some(first) => self.plan.contract.safe_window().saturating_sub(self.journal_now(now).since(first)),
            None => Duration::MAX,
        }
    }

    fn deadline_left(&self, now: Now) -> Duration {
        let spent = now.monotonic.saturating_sub(self.started.monotonic);
        self.plan.policy.deadline.saturating_sub(spent)
    }

    /// No further attempt is started with less time than this: it could do no more than make the outcome unknown.
    fn least_useful(&self) -> Duration {
        const LEAST: Duration = Duration::from_millis(10);
        if self.history.is_empty() { Duration::from_nanos(1) } else { LEAST }
    }

    /// What is known of the operation, if nothing settles it.
    fn delivery(&self) -> Delivery {
        if self.unknown { Delivery::Unknown } else { Delivery::NotSent }
    }
}

impl fmt::Debug for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempts").field("state", &self.state).field("number", &self.number).finish_non_exhaustive()
    }
}
