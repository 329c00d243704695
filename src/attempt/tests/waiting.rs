//! Between two attempts: how long, and which limit forbids the next one.

use std::time::Duration;

use super::{Contract, Delivery, ErrorKind, Phase, SAFE_WINDOW, START, Scenario, answer, ms, secs};
use crate::contract::RetryAfterUnit;
use crate::retry::{Backoff, RetryBudget, RetryPolicy};

#[test]
fn the_schedule_without_jitter_is_200_400_800_1600() {
    let played = Scenario::new().steady().dropped().for_ever().run();
    assert_eq!(played.sleeps(), [ms(200), ms(400), ms(800), ms(1_600)]);
}

#[test]
fn full_jitter_stays_within_each_step_and_spreads_over_it() {
    let ceilings = [ms(200), ms(400), ms(800), ms(1_600)];
    let mut longest = [Duration::ZERO; 4];
    for seed in 0..500 {
        let waits = Scenario::new().seed(seed).dropped().for_ever().run().sleeps();
        assert_eq!(waits.len(), 4);
        for ((wait, ceiling), longest) in waits.into_iter().zip(ceilings).zip(&mut longest) {
            assert!(wait <= ceiling, "seed {seed}: {wait:?} > {ceiling:?}");
            *longest = wait.max(*longest);
        }
    }
    // The longest of 500 even draws is below nine tenths with a chance of 0.9^500.
    assert!(longest.iter().zip(ceilings).all(|(longest, ceiling)| *longest > ceiling * 9 / 10), "{longest:?}");
}

#[test]
fn the_largest_settings_overflow_nowhere() {
    for asked in ["0", "18446744073709551615", "99999999999999999999999"] {
        for status in [409, 503] {
            let played = Scenario::new()
                .policy(|policy| {
                    let backoff = Backoff::default().base(Duration::MAX).cap(Duration::MAX).factor(u32::MAX);
                    let policy = policy.max_attempts(u32::MAX).deadline(Duration::MAX).attempt_timeout(Duration::MAX);
                    policy.retry_after_cap(Duration::MAX).in_progress_min(Duration::MAX).backoff(backoff)
                })
                .contract(|contract| contract.window(Duration::MAX))
                .answered(answer(status).retry_after(asked))
                .for_ever()
                .run();
            assert!(played.result.is_err());
        }
    }
}

#[test]
fn r01_the_wait_for_our_own_first_attempt_is_as_the_server_asks_and_ends_in_the_replay() {
    let played =
        Scenario::new().dropped().answered(answer(409).retry_after("1")).answered(answer(200).replayed()).run();
    assert_eq!(played.sleeps()[1], secs(1));
    assert!(played.ok().replayed());
    let wait = played.ok().attempts()[1].wait.unwrap();
    assert_eq!((wait.duration, wait.asked_by_server), (secs(1), true));
}

#[test]
fn r05_an_endless_409_ends_at_the_deadline_and_not_at_the_attempt_count_and_costs_no_budget() {
    let budget = RetryBudget::new(0, 0, secs(10));
    let played = Scenario::new().budget(&budget).answered(answer(409).retry_after("1")).for_ever().run();
    played.assert_pending(ErrorKind::DeadlineExceeded);
    // 60 s, each second and its exchange of 10 ms once; the wait that would end later is not begun.
    assert_eq!(played.sends().len(), 60);
    assert!(played.took <= secs(60));
    assert_eq!(played.saved().key.as_str(), super::KEY);
    assert!(played.saved().request.is_some());
}

#[test]
fn a01_a_date_two_minutes_ahead_is_waited_for_or_stops() {
    let date = "Thu, 27 Aug 2026 11:12:53 GMT";
    let patient = |policy: RetryPolicy| policy.retry_after_cap(secs(300)).deadline(secs(600));
    let dated = answer(503).header("date", "Thu, 27 Aug 2026 11:10:53 GMT").retry_after(date);
    let played = Scenario::new().policy(patient).answered(dated.clone()).answered(200).run();
    assert_eq!(played.sleeps(), [secs(120)]);
    let played = Scenario::new().answered(dated).run();
    played.assert_pending(ErrorKind::RetryAfterTooLong);
}

#[test]
fn a02_a11_a_wish_over_the_cap_stops_at_once_and_its_time_is_on_disk() {
    for asked in [61, 3_600, 86_400] {
        for status in [409, 503] {
            let played = Scenario::new().answered(answer(status).retry_after(&asked.to_string())).run();
            played.assert_pending(ErrorKind::RetryAfterTooLong);
            assert_eq!(played.story(), "send 1, save sending");
            // The exchange took 10 ms.
            let until = START.wall.plus(ms(10)).plus(secs(asked));
            assert_eq!(played.err().next_attempt_at(), Some(until));
            assert_eq!(played.saved().next_attempt_at, Some(until));
        }
    }
}

#[test]
fn a02_a_429_that_asks_for_more_than_the_cap_is_told_with_its_time() {
    let played =
        Scenario::new().policy(RetryPolicy::retry_rejections).dropped().answered(answer(429).retry_after("3600")).run();
    played.assert_pending(ErrorKind::RejectedAfterUnknown);
    assert!(played.err().next_attempt_at().is_some());
    assert_eq!(played.err().next_attempt_at(), played.saved().next_attempt_at);
}

#[test]
fn a11_a_refusal_that_leaves_the_operation_pending_says_when_to_come_back() {
    // The switch is off, so it stops; whoever resumes it must not come earlier than asked all the same.
    let played = Scenario::new().steady().dropped().answered(answer(429).retry_after("30")).run();
    played.assert_pending(ErrorKind::RejectedAfterUnknown);
    // Two exchanges of 10 ms and a wait of 200 ms.
    assert_eq!(played.saved().next_attempt_at, Some(START.wall.plus(ms(220)).plus(secs(30))));
    assert_eq!(played.err().next_attempt_at(), played.saved().next_attempt_at);
}

#[test]
fn a03_a06_a07_what_is_no_time_ahead_leaves_it_to_the_backoff() {
    for asked in ["soon", "-1", "", "Thu, 27 Aug 2026 11:10:00 GMT", "Thu, 01 Jan 1970 00:00:00 GMT"] {
        let played = Scenario::new().steady().answered(answer(503).retry_after(asked)).answered(200).run();
        assert_eq!(played.sleeps(), [ms(200)], "{asked:?}");
    }
}

#[test]
fn a10_milliseconds_are_read_where_the_contract_lists_them() {
    let millis = answer(409).problem("in-progress").header("retry-after-ms", "250");
    let lists = |contract: Contract| contract.retry_after_header("retry-after-ms", RetryAfterUnit::Milliseconds);
    let played = Scenario::new().contract(lists).answered(millis).answered(200).run();
    assert_eq!(played.sleeps(), [ms(250)]);
}

#[test]
fn a12_no_attempt_is_before_the_date() {
    // The exchange ends at 11:10:53.010; the date is 990 ms later, and the server may have cut its own fraction off.
    let played = Scenario::new().answered(answer(503).retry_after("Thu, 27 Aug 2026 11:10:54 GMT")).answered(200).run();
    assert_eq!(played.sleeps(), [secs(1)]);
}

#[test]
fn a14_a_wish_beyond_the_deadline_returns_at_once() {
    for status in [409, 503] {
        let played =
            Scenario::new().policy(|policy| policy.deadline(secs(5))).answered(answer(status).retry_after("30")).run();
        played.assert_pending(ErrorKind::DeadlineExceeded);
        assert_eq!(played.story(), "send 1, save sending");
        assert_eq!(played.err().next_attempt_at(), Some(START.wall.plus(ms(10)).plus(secs(30))));
        assert_eq!(played.saved().next_attempt_at, played.err().next_attempt_at());
    }
}

#[test]
fn a17_zero_on_every_409_is_waited_for_at_least_100_ms_each_and_not_in_step() {
    let waits = |seed| Scenario::new().seed(seed).answered(answer(409).retry_after("0")).for_ever().run().sleeps();
    for seed in 0..20 {
        let waits = waits(seed);
        assert!(waits.iter().all(|wait| (ms(100)..=ms(200)).contains(wait)), "{waits:?}");
        assert!(waits.len() <= 600, "60 s of at least 100 ms each");
    }
    assert_ne!(waits(1)[..5], waits(2)[..5]);
}

#[test]
fn in_progress_without_a_wish_backs_off_from_100_ms_up() {
    let played = Scenario::new().dropped().answered(409).for_ever().run();
    assert!(played.sleeps()[1..].iter().all(|wait| (ms(100)..=secs(20)).contains(wait)));
    let slow = Scenario::new().policy(|policy| policy.in_progress_min(secs(7))).dropped().answered(409).answered(200);
    assert_eq!(slow.run().sleeps()[1], secs(7));
}

#[test]
fn a18_the_longer_of_wish_and_backoff_counts() {
    let wait = |status, asked: &str| {
        let backoff =
            |policy: RetryPolicy| policy.backoff(Backoff::default().base(secs(3)).jitter(crate::retry::Jitter::None));
        let scenario = Scenario::new().policy(backoff).answered(answer(status).retry_after(asked));
        scenario.answered(200).run().sleeps()[0]
    };
    assert_eq!([wait(503, "1"), wait(503, "5")], [secs(3), secs(5)]);
}

#[test]
fn a20_a_wish_is_obeyed_whatever_the_status_that_is_retried() {
    for status in [409, 423, 429, 500, 502, 503, 504] {
        let scenario = Scenario::new().policy(RetryPolicy::retry_rejections);
        let played = scenario.answered(answer(status).retry_after("2")).answered(200).run();
        assert_eq!(played.sleeps(), [secs(2)], "{status}");
    }
}

#[test]
fn a_budget_is_shared_and_when_it_is_spent_nothing_is_tried_again() {
    // Three a second over 1 s, and nothing for traffic.
    let budget = RetryBudget::new(0, 3, secs(1));
    let fast = |policy: RetryPolicy| policy.backoff(Backoff::default().base(Duration::ZERO));
    let first = Scenario::new().budget(&budget).policy(fast).dropped().dropped().answered(200).run();
    assert_eq!(first.sends().len(), 3);
    let second = Scenario::new().budget(&budget).policy(fast).dropped().dropped().run();
    second.assert_pending(ErrorKind::BudgetExhausted);
    assert_eq!(second.story(), "send 1, send 2, save sending");
    let third = Scenario::new().budget(&budget).unsent().run();
    third.assert_closed(ErrorKind::BudgetExhausted, Phase::NotSent, Delivery::NotSent);
}

#[test]
fn a_spent_budget_keeps_the_time_that_the_server_asked_for() {
    let budget = RetryBudget::new(0, 0, secs(10));
    let played = Scenario::new().budget(&budget).answered(answer(503).retry_after("5")).run();
    played.assert_pending(ErrorKind::BudgetExhausted);
    assert_eq!(played.saved().next_attempt_at, Some(START.wall.plus(ms(10)).plus(secs(5))));
}

#[test]
fn a_wait_that_lasts_past_the_deadline_is_followed_by_no_attempt() {
    let played = Scenario::new().dropped().oversleeping(secs(60)).run();
    played.assert_pending(ErrorKind::DeadlineExceeded);
    assert_eq!(played.story(), "send 1, sleep, save sending");
    let played = Scenario::new().unsent().oversleeping(secs(60)).run();
    played.assert_closed(ErrorKind::DeadlineExceeded, Phase::NotSent, Delivery::NotSent);
}

#[test]
fn j08_a_window_that_ends_meanwhile_closes_the_operation_and_sends_nothing_more() {
    // A window of 10 s is safe for 9; the server asks to wait for 9.
    let played =
        Scenario::new().contract(|contract| contract.window(secs(10))).answered(answer(409).retry_after("9")).run();
    played.assert_closed(ErrorKind::WindowExpired, Phase::Expired, Delivery::Unknown);
    assert_eq!(played.sends().len(), 1);
}

#[test]
fn a_window_that_ends_over_attempts_that_were_never_sent_leaves_nothing_to_reconcile() {
    let unsent = Scenario::new().contract(|contract| contract.window(secs(10))).unsent().taking(secs(4));
    let played = unsent.unsent().taking(ms(4_000)).oversleeping(ms(500)).run();
    played.assert_closed(played.err().kind(), Phase::NotSent, Delivery::NotSent);
    assert_eq!(played.sends().len(), 2);
}

#[test]
fn t13_deadline_and_waits_do_not_follow_the_wall_clock() {
    for hour in [-3_600_000, 3_600_000] {
        let played = Scenario::new().steady().dropped().wall_jumps(hour).dropped().answered(201).run();
        assert_eq!(played.sleeps(), [ms(200), ms(400)], "{hour}");
        // 60 s less an exchange of 10 ms and 200 ms, which is more than the 30 s of an attempt.
        assert_eq!(played.limits(), [secs(30); 3], "{hour}");
    }
}

#[test]
fn t13_a_wall_clock_set_back_does_not_lengthen_the_window() {
    // 9 s are safe. The first attempt takes 5 s, during which the clock is set back an hour.
    let played = Scenario::new()
        .contract(|contract| contract.window(secs(10)))
        .steady()
        .dropped()
        .taking(secs(5))
        .wall_jumps(-3_600_000)
        .answered(201)
        .run();
    assert_eq!(played.limits()[1], ms(3_800));
}

#[test]
fn t13_a_machine_that_slept_while_its_monotonic_clock_stood_still_finds_the_window_over() {
    let day = 24 * 3_600_000;
    let played = Scenario::new().dropped().wall_jumps_asleep(day).run();
    played.assert_closed(ErrorKind::WindowExpired, Phase::Expired, Delivery::Unknown);
    assert!(SAFE_WINDOW < secs(24 * 3_600));
}

#[test]
fn a_lease_lost_while_waiting_ends_it_without_a_write() {
    let played = Scenario::new().dropped().lease_lost_at_wait(1).run();
    assert_eq!(played.story(), "send 1, sleep");
    assert_eq!((played.err().kind(), played.err().is_pending()), (ErrorKind::LeaseLost, true));
}
