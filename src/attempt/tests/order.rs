//! Events in any order: an error that users can report, never a panic, and never a send after the end.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use super::{
    Attempts, Carrying, Delivery, Durability, ErrorKind, Event, FailureKind, Now, Phase, START, Scenario, Sent, Step,
    answer, broken, failure, ms, record, rejected_in_front, secs,
};
use crate::clock::Timestamp;

const EVENTS: usize = 8;

fn event(number: usize) -> Event {
    match number {
        0 => Event::Saved,
        1 => Event::SaveFailed { source: broken("disk full"), may_be_saved: false },
        2 => Event::SaveFailed { source: broken("disk full"), may_be_saved: true },
        3 => Event::PrepareFailed(broken("no token")),
        4 => Event::Answered(answer(200).0),
        5 => Event::Failed(failure(FailureKind::Connection, Sent::Perhaps)),
        6 => Event::Awake,
        _ => Event::LeaseLost,
    }
}

/// A machine in each of its states, with the events that fit there.
fn machine(state: &str) -> (Attempts, &'static [usize]) {
    let start = |scenario: Scenario| {
        let Scenario { plan, record, after_unknown, journal_now, seed, .. } = scenario;
        Attempts::start(plan, record, after_unknown, journal_now, START, seed).0
    };
    let mut sending = start(Scenario::new());
    match state {
        "opening" => (start(Scenario::of(record(Phase::Prepared))), &[0, 1, 2, 7]),
        "sending" => (sending, &[3, 4, 5, 7]),
        "waiting" => {
            let step = sending.on(event(5), START);
            assert!(matches!(step, Step::Sleep(_)));
            (sending, &[6, 7])
        }
        "ending" => {
            let step = sending.on(Event::Answered(answer(402).0), START);
            assert!(matches!(step, Step::Save(..)));
            (sending, &[0, 1, 2, 7])
        }
        _ => {
            sending.on(event(7), START);
            (sending, &[])
        }
    }
}

#[test]
fn every_event_in_every_state_is_taken_or_is_an_internal_error() {
    for state in ["opening", "sending", "waiting", "ending", "done"] {
        for number in 0..EVENTS {
            let (mut machine, fitting) = machine(state);
            let step = machine.on(event(number), START);
            let internal = matches!(&step, Step::Done(Err(error)) if error.kind() == ErrorKind::Internal);
            assert_eq!(internal, !fitting.contains(&number), "{state}, {:?}: {step:?}", event(number));
            if let (true, Step::Done(Err(error))) = (internal, &step) {
                assert_eq!(error.delivery(), Delivery::Unknown);
                assert!(error.to_string().contains("please report it"));
                // Nothing was closed on disk, so nothing may be told as closed.
                assert!(error.is_pending(), "{state}: {error:?}");
            }
        }
    }
}

#[test]
fn after_the_end_nothing_is_sent_saved_or_waited_for() {
    for number in 0..EVENTS {
        let (mut machine, _) = machine("done");
        for _ in 0..3 {
            assert!(matches!(machine.on(event(number), START), Step::Done(Err(_))));
        }
    }
}

fn some_answer(random: &mut Xoshiro256PlusPlus) -> Event {
    let types = ["in-progress", "idempotency-key-reuse", "response-not-replayable", "idempotency-key-missing", "other"];
    let waits = ["0", "1", "59", "61", "-1", "18446744073709551615", "Thu, 27 Aug 2026 11:10:55 GMT"];
    let common = [200, 201, 302, 400, 401, 402, 404, 408, 409, 421, 422, 423, 425, 429, 500, 501, 503, 504];
    let status = if random.random_ratio(1, 8) {
        random.random_range(100..=999)
    } else {
        common[random.random_range(0..common.len())]
    };
    let mut reply = answer(status);
    if random.random_ratio(1, 3) {
        reply = reply.problem(types[random.random_range(0..types.len())]);
    }
    if random.random_ratio(1, 3) {
        reply = reply.retry_after(waits[random.random_range(0..waits.len())]);
    }
    if random.random_ratio(1, 8) {
        reply = reply.replayed();
    }
    if random.random_ratio(1, 8) {
        reply = reply.cut();
    }
    if random.random_ratio(1, 16) {
        reply = reply.redirected();
    }
    Event::Answered(reply.0)
}

fn some_failure(random: &mut Xoshiro256PlusPlus) -> Event {
    use FailureKind::{Canceled, Certificate, Connect, Connection, Dns, Refused, Timeout};
    let kinds = [Dns, Connect, Canceled, Refused, Timeout, Connection, Certificate];
    let sent = if random.random() { Sent::No } else { Sent::Perhaps };
    Event::Failed(failure(kinds[random.random_range(0..kinds.len())], sent))
}

fn some_scenario(random: &mut Xoshiro256PlusPlus) -> Scenario {
    let scenario = match random.random_range(0..8) {
        0 => Scenario::of(record(Phase::Prepared)),
        1 => Scenario::of(record(Phase::NotSent)),
        2 => Scenario::of(rejected_in_front()),
        3 => Scenario::of(record(Phase::Completed)).after_unknown(),
        4 => Scenario::resumed().aged(secs(random.random_range(0..90_000))),
        5 => Scenario::keyless(Carrying::Method),
        6 => Scenario::keyless(Carrying::Nothing),
        _ => Scenario::new(),
    };
    let (attempts, deadline) = (random.random_range(1..7), ms(random.random_range(1..90_000)));
    let switched_on = random.random();
    let scenario = scenario.plan(|plan| plan.refresh_on_401 = switched_on).policy(|policy| {
        let policy = policy.max_attempts(attempts).deadline(deadline);
        if switched_on { policy.retry_rejections() } else { policy }
    });
    Scenario { seed: random.random(), ..scenario }
}

/// One run: fitting events mostly, any event now and then, and clocks that go as they like.
fn walk(seed: u64, fitting_only: bool) {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let Scenario { plan, record, after_unknown, journal_now, seed: jitter, .. } = some_scenario(&mut random);
    let mut closed_on_disk = record.as_ref().is_none_or(|record| record.phase == Phase::Completed);
    let mut now = START;
    let (mut machine, mut step) = Attempts::start(plan, record, after_unknown, journal_now, now, jitter);
    for taken in 0.. {
        // 90 s of waits of at least 100 ms are 900 exchanges, each with a step on either side.
        assert!(taken < 4_000, "seed {seed}: it does not end");
        let took = match &step {
            Step::Sleep(wait) => *wait,
            _ => ms(random.random_range(0..200)),
        };
        now = Now { monotonic: now.monotonic.saturating_add(took), wall: now.wall.plus(took) };
        if random.random_ratio(1, 10) {
            now.wall = Timestamp::from_millis(
                now.wall.as_millis().saturating_add_signed(random.random_range(-7_200_000..7_200_000)),
            );
        }
        let fitting = match &step {
            Step::Save(..) if random.random_ratio(1, 6) => event(random.random_range(1..3)),
            Step::Save(..) => Event::Saved,
            Step::Send(_) if random.random_ratio(1, 12) => event(3),
            Step::Send(_) if random.random_ratio(1, 3) => some_failure(&mut random),
            Step::Send(_) => some_answer(&mut random),
            Step::Sleep(_) => Event::Awake,
            Step::Done(result) => {
                let told_closed = match result {
                    Ok(response) => !response.status().is_success(),
                    Err(error) => {
                        let phase = error.phase();
                        error.kind() != ErrorKind::Journal
                            && phase.is_some_and(|phase| !phase.is_pending() && phase != Phase::Completed)
                    }
                };
                assert!(!told_closed || closed_on_disk, "seed {seed}: {result:?}");
                break;
            }
        };
        let any = !fitting_only && random.random_ratio(1, 10);
        let event = if any { event(random.random_range(0..EVENTS)) } else { fitting };
        if let (Step::Save(record, _, Durability::Now), Event::Saved) = (&step, &event) {
            closed_on_disk |= !record.phase.is_pending();
        }
        step = machine.on(event, now);
    }
    for number in 0..EVENTS {
        assert!(matches!(machine.on(event(number), now), Step::Done(Err(_))), "seed {seed}: a step after the end");
    }
}

#[test]
fn no_sequence_of_events_panics_or_goes_on_for_ever_or_tells_what_is_not_on_disk() {
    for seed in 0..6_000 {
        walk(seed, true);
    }
}

#[test]
fn no_disorder_of_events_panics_or_goes_on_for_ever() {
    for seed in 0..6_000 {
        walk(seed, false);
    }
}
