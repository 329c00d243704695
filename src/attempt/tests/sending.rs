//! One attempt after the other: which number, how long, and what ends it.

use std::time::Duration;

use super::{
    Delivery, ErrorKind, FailureKind, Phase, SAFE_WINDOW, Scenario, Sent, answer, ms, record, rejected_in_front, secs,
};
use crate::retry::{Backoff, RetryPolicy};

#[test]
fn k01_three_lost_attempts_and_a_fourth_are_one_operation_with_one_key() {
    let played = Scenario::new().dropped().dropped().dropped().answered(201).run();
    assert_eq!(played.numbers(), [1, 2, 3, 4]);
    let saved = played.saved();
    assert_eq!((saved.attempts, saved.key.as_str()), (4, super::KEY));
    assert_eq!(played.ok().key().unwrap().as_str(), super::KEY);
}

#[test]
fn k08_r23_no_answer_makes_a_new_key() {
    for status in [429, 500, 503] {
        let played = Scenario::new().policy(RetryPolicy::retry_rejections).answered(status).answered(200).run();
        assert_eq!(played.saved().key.as_str(), super::KEY);
    }
}

#[test]
fn k12_an_outage_on_every_attempt_leaves_the_caller_all_that_it_needs() {
    let played = Scenario::new().answered(504).for_ever().run();
    played.assert_pending(ErrorKind::AttemptsExhausted);
    let error = played.err();
    assert_eq!(error.operation().unwrap().as_str(), "order-42");
    assert_eq!(error.key().unwrap().as_str(), super::KEY);
    assert_eq!(error.attempts().len(), 5);
    assert_eq!(error.first_sent_at(), Some(super::START.wall));
    assert_eq!(error.last_response().unwrap().status(), 504);
}

#[test]
fn t01_t04_t06_what_kind_of_failure_it_was_does_not_matter_once_it_may_have_arrived() {
    use FailureKind::{Canceled, Connect, Connection, Dns, Refused, Timeout};
    for kind in [Dns, Connect, Canceled, Refused] {
        let played = Scenario::new().failed(kind, Sent::No).answered(201).run();
        assert!(!played.ok().after_unknown(), "{kind:?}");
    }
    for kind in [Canceled, Refused, Timeout, Connection] {
        let played = Scenario::new().failed(kind, Sent::Perhaps).answered(201).run();
        assert!(played.ok().after_unknown(), "{kind:?}");
    }
}

#[test]
fn t02_a_lost_reply_is_replayed_and_not_repeated_under_another_key() {
    let played = Scenario::new().answered(answer(200).body("0123456789").cut()).answered(answer(200).replayed()).run();
    assert!(played.ok().replayed() && played.ok().after_unknown());
}

#[test]
fn t07_an_attempt_that_runs_out_of_its_own_time_is_tried_again() {
    let played = Scenario::new().policy(|policy| policy.attempt_timeout(secs(1))).hanging().answered(201).run();
    assert!(played.ok().after_unknown());
    assert_eq!(played.limits(), [secs(1), secs(1)]);
}

#[test]
fn t08_an_attempt_is_cut_at_whichever_ends_first_attempt_deadline_or_window() {
    let limit = |scenario: Scenario| scenario.answered(201).run().limits()[0];
    assert_eq!(limit(Scenario::new()), secs(30));
    assert_eq!(limit(Scenario::new().policy(|policy| policy.deadline(secs(3)))), secs(3));
    assert_eq!(limit(Scenario::new().policy(|policy| policy.attempt_timeout(secs(2)).deadline(secs(3)))), secs(2));
    assert_eq!(limit(Scenario::resumed().aged(SAFE_WINDOW - secs(1))), secs(1));
    // A window of 10 s is safe for 9.
    assert_eq!(limit(Scenario::new().contract(|contract| contract.window(secs(10)))), secs(9));
}

#[test]
fn t08_attempts_that_hang_end_with_the_deadline_and_none_starts_with_no_time_left() {
    for seed in 0..200 {
        let policy = |policy: RetryPolicy| policy.attempt_timeout(secs(1)).deadline(secs(3));
        let played = Scenario::new().policy(policy).seed(seed).hanging().for_ever().run();
        played.err();
        assert!(played.took <= secs(3), "seed {seed}: {:?}", played.took);
        assert!(played.limits().iter().all(|limit| *limit >= ms(10)), "seed {seed}: {:?}", played.limits());
    }
    // 5 ms are left after the first attempt: another could only hang.
    let at_once = Backoff::default().base(Duration::ZERO);
    let policy = |policy: RetryPolicy| policy.attempt_timeout(secs(1)).deadline(ms(1_005)).backoff(at_once);
    let played = Scenario::new().policy(policy).hanging().run();
    played.assert_pending(ErrorKind::DeadlineExceeded);
    assert_eq!(played.sends().len(), 1);
}

#[test]
fn r10_r11_one_attempt_is_exactly_one_exchange() {
    let one = || Scenario::new().policy(|policy| policy.max_attempts(1));
    for scenario in [
        one().dropped(),
        one().unsent(),
        one().answered(500),
        one().answered(answer(200).cut()),
        one().answered(429).policy(RetryPolicy::retry_rejections),
        one().answered(425).policy(RetryPolicy::retry_rejections),
        one().answered(401).plan(|plan| plan.refresh_on_401 = true),
        one().answered(201),
    ] {
        assert_eq!(scenario.run().numbers(), [1]);
    }
}

#[test]
fn one_attempt_waits_for_what_is_in_progress_all_the_same() {
    let in_progress = answer(409).retry_after("1");
    let played = Scenario::new()
        .policy(|policy| policy.max_attempts(1))
        .answered(in_progress.clone())
        .answered(in_progress)
        .answered(503)
        .run();
    assert_eq!(played.numbers(), [1, 2, 3]);
    played.assert_pending(ErrorKind::AttemptsExhausted);
    // Of two attempts the waits take none away: the 503 after them is still the first.
    let waits = answer(409).problem("in-progress").retry_after("1");
    let two = Scenario::new().policy(|policy| policy.max_attempts(2));
    let played = two.answered(waits.clone()).answered(waits.clone()).answered(waits).answered(503).answered(201).run();
    assert_eq!((played.ok().status().as_u16(), played.sends().len()), (201, 5));
}

#[test]
fn t14_a_certificate_that_is_not_trusted_is_one_attempt_and_not_sent() {
    for kind in [FailureKind::Certificate, FailureKind::Request] {
        let played = Scenario::new().failed(kind, Sent::No).run();
        played.assert_closed(ErrorKind::Unreachable, Phase::NotSent, Delivery::NotSent);
        assert_eq!(played.sends().len(), 1);
    }
}

#[test]
fn t16_only_if_every_attempt_was_not_sent_is_the_operation_not_sent() {
    for kind in [FailureKind::Dns, FailureKind::Connect] {
        let played = Scenario::new().failed(kind, Sent::No).for_ever().run();
        played.assert_closed(ErrorKind::AttemptsExhausted, Phase::NotSent, Delivery::NotSent);
        assert_eq!(played.sends().len(), 5);
        assert_eq!(played.saved().attempts, 5);
    }
}

#[test]
fn a_hook_that_fails_keeps_the_attempt_from_being_made() {
    let played = Scenario::new().prepare_fails().run();
    played.assert_closed(ErrorKind::Prepare, Phase::NotSent, Delivery::NotSent);
    assert_eq!(played.saved().attempts, 0);
    assert!(played.err().attempts().is_empty());
    assert_eq!(std::error::Error::source(played.err()).unwrap().to_string(), "no token");
}

#[test]
fn a_hook_that_fails_after_an_unknown_attempt_leaves_it_pending() {
    let played = Scenario::new().dropped().prepare_fails().run();
    played.assert_pending(ErrorKind::Prepare);
    assert_eq!(played.saved().attempts, 1);
    // Not after one in front: that one was not executed.
    let played = Scenario::new().plan(|plan| plan.refresh_on_401 = true).answered(401).prepare_fails().run();
    played.assert_closed(ErrorKind::Prepare, Phase::NotSent, Delivery::NotSent);
}

#[test]
fn a_401_fetches_credentials_once_and_at_once_if_the_caller_asks_for_it() {
    let asked = || Scenario::new().plan(|plan| plan.refresh_on_401 = true);
    let played = asked().answered(401).answered(201).run();
    assert_eq!(played.story(), "send 1, send 2, save completed");
    let unauthorized: Vec<bool> = played.sends().iter().map(|sending| sending.unauthorized).collect();
    assert_eq!(unauthorized, [false, true]);
    assert!(!played.ok().after_unknown());

    let played = asked().answered(401).answered(401).run();
    assert_eq!((played.ok().status().as_u16(), played.sends().len()), (401, 2));
    let played = asked().answered(401).dropped().answered(401).run();
    played.assert_pending(ErrorKind::RejectedAfterUnknown);
    let played = Scenario::new().answered(401).run();
    assert_eq!((played.ok().status().as_u16(), played.sends().len()), (401, 1));
    // A 403 is not about stale credentials, and a replayed 401 is the stored answer.
    assert_eq!(asked().answered(403).run().sends().len(), 1);
    assert_eq!(asked().answered(answer(401).replayed()).run().sends().len(), 1);
}

#[test]
fn r16_r17_a_421_and_a_425_are_tried_again_once_and_a_429_as_often_as_any() {
    let on = || Scenario::new().policy(RetryPolicy::retry_rejections);
    for status in [421, 425] {
        let played = on().answered(status).answered(200).run();
        assert_eq!((played.sends().len(), played.ok().after_unknown()), (2, false));
        let played = on().answered(status).answered(status).run();
        assert_eq!((played.ok().status().as_u16(), played.sends().len()), (status, 2));
    }
    for status in [408, 429] {
        assert_eq!(on().answered(status).for_ever().run().sends().len(), 5);
    }
}

#[test]
fn r21_a_feature_that_is_not_there_is_one_attempt() {
    for status in [501, 505] {
        let played = Scenario::new().answered(status).run();
        played.assert_closed(ErrorKind::UnsupportedStatus, Phase::Failed, Delivery::Unknown);
    }
}

#[test]
fn r26_the_same_operation_goes_through_after_the_credentials_are_fixed() {
    let refused = Scenario::new().answered(401).run();
    assert!(refused.saved().closing.as_ref().unwrap().in_front);
    let mut reopened = rejected_in_front();
    reopened.attempts = 1;
    let played = Scenario::of(reopened).answered(200).run();
    assert_eq!((played.numbers(), played.saved().key.as_str()), (vec![2], super::KEY));
}

#[test]
fn a_lease_lost_during_an_attempt_ends_it_without_a_write() {
    let played = Scenario::new().dropped().lease_lost().run();
    assert_eq!(played.story(), "send 1, sleep, send 2");
    let error = played.err();
    assert_eq!((error.kind(), error.delivery(), error.is_pending()), (ErrorKind::LeaseLost, Delivery::Unknown, true));
}

#[test]
fn numbers_do_not_overflow() {
    let mut old = record(Phase::Sending);
    old.attempts = u32::MAX;
    let played = Scenario::of(old).after_unknown().dropped().answered(201).run();
    assert_eq!(played.numbers(), [u32::MAX, u32::MAX]);
}
