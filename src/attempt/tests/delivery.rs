//! What is known of an operation over several attempts: the contract's delivery column.

use super::{Carrying, Delivery, ErrorKind, FailureKind, Meaning, Phase, Scenario, Sent, answer};
use crate::contract::Signal;
use crate::retry::RetryPolicy;

#[test]
fn a_refusal_in_front_settles_nothing_after_an_unknown_attempt() {
    for status in [401, 403, 404, 413, 429] {
        let played = Scenario::new().dropped().answered(status).run();
        played.assert_pending(ErrorKind::RejectedAfterUnknown);
        assert_eq!(played.err().last_response().unwrap().status().as_u16(), status);
    }
}

#[test]
fn r26_a_refusal_in_front_of_every_attempt_is_an_answer_and_may_be_asked_for_again() {
    let played = Scenario::new().unsent().answered(401).run();
    assert_eq!(played.ok().status(), 401);
    assert!(!played.ok().after_unknown());
    let closing = played.saved().closing.as_ref().unwrap();
    assert!(closing.in_front && !closing.after_unknown);
}

#[test]
fn a_definite_refusal_settles_even_what_was_unknown_and_says_that_it_was() {
    let played = Scenario::new().answered(503).answered(402).run();
    assert_eq!((played.ok().status().as_u16(), played.ok().after_unknown()), (402, true));
    let closing = played.saved().closing.as_ref().unwrap();
    assert!(!closing.in_front && closing.after_unknown);
}

#[test]
fn a_bare_conflict_is_definite_if_no_attempt_can_have_arrived() {
    let played = Scenario::new().unsent().answered(409).run();
    assert_eq!((played.ok().status().as_u16(), played.ok().after_unknown()), (409, false));
}

#[test]
fn a_bare_conflict_after_a_dropped_connection_is_our_own_first_attempt_in_progress() {
    for status in [409, 423] {
        let played = Scenario::new().dropped().answered(status).answered(answer(200).replayed()).run();
        assert!(played.ok().replayed() && played.ok().after_unknown());
        assert_eq!(played.ok().attempts()[1].meaning, "still in progress");
    }
}

#[test]
fn r19_a_429_that_was_retried_counts_as_not_sent() {
    // 429 in front, then nobody listens: the server has certainly not executed it.
    let scenario = Scenario::new().policy(|policy| policy.retry_rejections().max_attempts(2));
    let played = scenario.answered(429).unsent().run();
    played.assert_closed(ErrorKind::AttemptsExhausted, Phase::NotSent, Delivery::NotSent);
    // And a bare 409 after it is another's conflict.
    let played = Scenario::new().policy(RetryPolicy::retry_rejections).answered(429).answered(409).run();
    assert_eq!((played.ok().status().as_u16(), played.ok().after_unknown()), (409, false));
}

#[test]
fn r19_a_429_that_was_retried_in_vain_is_a_429() {
    let scenario = Scenario::new().policy(|policy| policy.retry_rejections().max_attempts(3));
    let played = scenario.answered(429).for_ever().run();
    assert_eq!((played.ok().status().as_u16(), played.sends().len()), (429, 3));
    let scenario = Scenario::new().policy(|policy| policy.retry_rejections().max_attempts(3));
    let played = scenario.dropped().answered(429).for_ever().run();
    played.assert_pending(ErrorKind::RejectedAfterUnknown);
}

#[test]
fn one_unknown_attempt_makes_it_unknown_for_good() {
    let scenario = Scenario::new().policy(|policy| policy.max_attempts(4));
    let played = scenario.unsent().dropped().unsent().unsent().run();
    played.assert_pending(ErrorKind::AttemptsExhausted);
    let each: Vec<Delivery> = played.err().attempts().iter().map(|attempt| attempt.delivery).collect();
    use Delivery::{NotSent, Unknown};
    assert_eq!(each, [NotSent, Unknown, NotSent, NotSent]);
}

#[test]
fn what_an_earlier_process_sent_stays_unknown_here() {
    let played = Scenario::resumed().policy(|policy| policy.max_attempts(1)).unsent().run();
    played.assert_pending(ErrorKind::AttemptsExhausted);
    let played = Scenario::resumed().failed(FailureKind::Certificate, Sent::No).run();
    played.assert_pending(ErrorKind::Unreachable);
}

#[test]
fn a_reply_lost_under_409_422_400_and_423_is_asked_for_again() {
    for status in [200, 201, 400, 409, 422, 423] {
        let played = Scenario::new().answered(answer(status).body("{").cut()).answered(answer(201).replayed()).run();
        assert!(played.ok().replayed() && played.ok().after_unknown(), "{status}");
    }
}

#[test]
fn t02_a_success_whose_body_is_lost_each_time_is_unknown_and_not_a_decode_error() {
    let played = Scenario::new().answered(answer(200).body("half").cut()).for_ever().run();
    played.assert_pending(ErrorKind::AttemptsExhausted);
    assert_eq!(played.sends().len(), 5);
}

#[test]
fn r02_a_conflict_that_means_reuse_is_one_attempt() {
    let increase = Signal::code("idempotency_key_already_used_error").status(409);
    let played = Scenario::new()
        .contract(|contract| contract.signal(increase, Meaning::KeyReused))
        .answered(answer(409).body(r#"{"type":"idempotency_key_already_used_error","resource_id":"x"}"#))
        .run();
    played.assert_closed(ErrorKind::KeyReused, Phase::Failed, Delivery::Unknown);
    assert_eq!(played.sends().len(), 1);
    assert!(played.err().last_response().unwrap().body().ends_with(br#""resource_id":"x"}"#));
}

#[test]
fn r03_a_conflict_that_means_done_completes_without_another_post() {
    let gocardless = Signal::code("idempotent_creation_conflict").status(409);
    let played = Scenario::new()
        .contract(|contract| contract.signal(gocardless, Meaning::Executed))
        .dropped()
        .answered(answer(409).body(r#"{"errors":[{"reason":"idempotent_creation_conflict","links":{"id":"PM1"}}]}"#))
        .run();
    let error = played.err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::ReplyUnavailable, Delivery::Answered));
    assert_eq!(played.saved().phase, Phase::Completed);
    assert!(error.last_response().is_some());
}

#[test]
fn r04_r06_a_refusal_after_an_unknown_attempt_says_so() {
    for refusal in [
        answer(409).body(r#"{"error":{"type":"name-not-unique"}}"#),
        answer(400).body(r#"{"code":"duplicate_parameter"}"#),
    ] {
        let played = Scenario::new().dropped().answered(refusal).run();
        assert!(played.ok().after_unknown());
        assert_eq!(played.saved().phase, Phase::Rejected);
    }
}

#[test]
fn r07_a_422_is_transient_only_with_the_dialect_s_header() {
    let adyen = |contract: super::Contract| {
        contract.signal(Signal::header("transient-error", "true").status(422), Meaning::Transient)
    };
    for value in ["true", "TRUE"] {
        let transient = answer(422).header("transient-error", value);
        let played = Scenario::new().contract(adyen).answered(transient).answered(200).run();
        assert_eq!(played.sends().len(), 2);
    }
    let played = Scenario::new().contract(adyen).answered(422).run();
    assert_eq!((played.ok().status().as_u16(), played.sends().len()), (422, 1));
}

#[test]
fn r08_a_stored_failure_stops_and_keeps_the_key() {
    let played = Scenario::new().answered(500).answered(answer(500).replayed()).run();
    played.assert_closed(ErrorKind::StoredFailure, Phase::Failed, Delivery::Unknown);
    assert_eq!(played.saved().key.as_str(), super::KEY);
}

#[test]
fn r14_a_gateway_timeout_then_in_progress_until_it_is_done_is_one_operation() {
    let played = Scenario::new()
        .answered(504)
        .answered(answer(409).retry_after("1"))
        .answered(answer(409).retry_after("1"))
        .answered(answer(201).replayed())
        .run();
    assert!(played.ok().replayed());
    assert_eq!(played.numbers(), [1, 2, 3, 4]);
}

#[test]
fn r20_a_get_follows_the_same_rules_without_a_record() {
    let played =
        Scenario::keyless(Carrying::Method).answered(503).answered(answer(409).retry_after("1")).answered(200).run();
    assert_eq!(played.story(), "send 1, sleep, send 2, sleep, send 3");
    let played = Scenario::keyless(Carrying::Method).answered(503).for_ever().run();
    let error = played.err();
    assert_eq!((error.kind(), error.phase(), error.operation()), (ErrorKind::AttemptsExhausted, None, None));
    assert!(!error.is_pending());
}

#[test]
fn k09_without_a_key_a_post_is_sent_once_whatever_comes() {
    for scenario in [
        Scenario::keyless(Carrying::Nothing).answered(503),
        Scenario::keyless(Carrying::Nothing).answered(answer(409).retry_after("1")),
        Scenario::keyless(Carrying::Nothing).answered(answer(200).cut()),
        Scenario::keyless(Carrying::Nothing).dropped(),
        Scenario::keyless(Carrying::Nothing).unsent(),
    ] {
        assert_eq!(scenario.run().story(), "send 1");
    }
}

#[test]
fn r23_an_outage_of_the_idempotency_store_keeps_key_and_record() {
    let unavailable = answer(503).body(r#"{"code":"IDEMPOTENCY_UNAVAILABLE"}"#);
    let played = Scenario::new().answered(unavailable).for_ever().run();
    played.assert_pending(ErrorKind::AttemptsExhausted);
    assert_eq!(played.saved().key.as_str(), super::KEY);
    assert!(played.saved().request.is_some() && played.saved().closing.is_none());
}

#[test]
fn d02_a_redirect_that_a_foreign_client_got_lost_on_is_no_reason_to_send_again() {
    let played = Scenario::new().failed(FailureKind::Redirected, Sent::Perhaps).run();
    played.assert_closed(ErrorKind::Redirected, Phase::Failed, Delivery::Unknown);
    assert_eq!(played.sends().len(), 1);
}
