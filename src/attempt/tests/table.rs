//! What an answer means: every row and every named status of the wire contract's first section.

use http::StatusCode;

use super::super::classify::Reading;
use super::{
    Answer, Carrying, Contract, Delivery, Error, ErrorKind, FailureKind, Meaning, Response, START, Scenario, Sent,
    answer, failure, ms, secs,
};
use crate::reply::{Again, InFront, Verdict};
use Delivery::{Answered, NotSent, Unknown};

/// 401, 403 … as the contract lists them.
const IN_FRONT: [u16; 15] = [401, 403, 404, 405, 407, 408, 411, 413, 414, 415, 421, 425, 426, 429, 431];
/// Every header that servers were seen to mark a replay with.
const REPLAY_HEADERS: [&str; 5] =
    ["idempotent-replayed", "idempotency-replayed", "x-idempotent-replayed", "idempotency-replay", "idempotent-replay"];

/// What the machine does with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The caller gets it.
    Ok,
    /// Another attempt.
    Retry,
    /// An error, and the operation is closed.
    Closed(ErrorKind),
    /// An error, and the operation is still pending.
    Pending(ErrorKind),
}
use Then::{Closed, Pending, Retry};

#[derive(Clone, Copy)]
struct Under {
    carrying: Carrying,
    after_unknown: bool,
    switch: bool,
}

const FIRST: Under = Under { carrying: Carrying::Key, after_unknown: false, switch: false };
const LATER: Under = Under { after_unknown: true, ..FIRST };
const FIRST_ON: Under = Under { switch: true, ..FIRST };
const LATER_ON: Under = Under { switch: true, ..LATER };
const GET: Under = Under { carrying: Carrying::Method, ..FIRST };
const GET_LATER: Under = Under { carrying: Carrying::Method, ..LATER };

type Read = (Verdict, Then, Delivery);

/// The answer's verdict, what the machine does, and what is then known of the operation.
fn read(answer: &Answer, under: Under) -> Read {
    let contract = Contract::default().should_retry_header("x-should-retry");
    let reading = Reading {
        contract: &contract,
        carrying: under.carrying,
        classifier: None,
        retry_rejections: under.switch,
        after_unknown: under.after_unknown,
        now: START.wall,
    };
    let mut scenario = match under.carrying {
        Carrying::Key => Scenario::new(),
        other => Scenario::keyless(other),
    };
    scenario.after_unknown = under.after_unknown;
    // Whatever comes second is final, so that a second attempt shows as such. Without one it is left over.
    scenario = scenario.contract(|_| contract.clone()).answered(answer.clone()).answered(200);
    if under.switch {
        scenario = scenario.policy(crate::retry::RetryPolicy::retry_rejections);
    }
    scenario.for_ever = true;
    let played = scenario.run();
    let (then, delivery) = match &played.result {
        Ok(response) if played.sends().len() == 2 => (Retry, known(under, response)),
        Ok(_) => (Then::Ok, Answered),
        Err(error) if error.is_pending() || (error.phase().is_none() && error.delivery() == Unknown) => {
            (Pending(error.kind()), error.delivery())
        }
        Err(error) => (Closed(error.kind()), error.delivery()),
    };
    (reading.of_reply(&answer.0), then, delivery)
}

/// What was known of the operation before the second attempt.
fn known(under: Under, response: &Response) -> Delivery {
    if under.after_unknown { Unknown } else { response.attempts()[0].delivery }
}

#[track_caller]
fn row(what: &str, answer: &Answer, first: Read, later: Read) {
    assert_eq!(read(answer, FIRST), first, "{what}, first attempt");
    assert_eq!(read(answer, LATER), later, "{what}, after an unknown one");
}

#[track_caller]
fn always(what: &str, answer: &Answer, expected: Read) {
    row(what, answer, expected, expected);
    // The switch is about four statuses and nothing else.
    assert_eq!(read(answer, FIRST_ON), expected, "{what}, switched on");
}

const SUCCESS: Read = (Verdict::Success, Then::Ok, Answered);
const DEFINITE: Read = (Verdict::Rejected, Then::Ok, Answered);
const LOST: Read = (Verdict::ReplyLost, Retry, Unknown);
const IN_PROGRESS: Read = (Verdict::InProgress { retry_after: None }, Retry, Unknown);
const TRANSIENT: Read = (Verdict::Transient { retry_after: None }, Retry, Unknown);
const REUSED: Read = (Verdict::KeyReused, Closed(ErrorKind::KeyReused), Unknown);
const STORED: Read = (Verdict::StoredFailure, Closed(ErrorKind::StoredFailure), Unknown);
const UNSUPPORTED: Read = (Verdict::Unsupported, Closed(ErrorKind::UnsupportedStatus), Unknown);
const REDIRECTED: Read = (Verdict::Redirected, Closed(ErrorKind::Redirected), Unknown);
const EXECUTED: Read = (Verdict::Executed, Closed(ErrorKind::ReplyUnavailable), Answered);
const STOPPED: Read = (Verdict::InFront(InFront::Stop), Then::Ok, Answered);
const STOPPED_LATER: Read = (Verdict::InFront(InFront::Stop), Pending(ErrorKind::RejectedAfterUnknown), Unknown);

fn status_row(status: u16) -> (Read, Read) {
    match status {
        200..=299 => (SUCCESS, SUCCESS),
        300..=399 => (REDIRECTED, REDIRECTED),
        409 | 423 => (DEFINITE, IN_PROGRESS),
        _ if IN_FRONT.contains(&status) => (STOPPED, STOPPED_LATER),
        400..=499 => (DEFINITE, DEFINITE),
        501 | 505 => (UNSUPPORTED, UNSUPPORTED),
        500..=599 => (TRANSIENT, TRANSIENT),
        _ => (UNSUPPORTED, UNSUPPORTED),
    }
}

#[test]
fn r09_r21_d02_every_status_decides_by_itself_whatever_the_body_looks_like() {
    for status in 100..=999 {
        let (first, later) = status_row(status);
        row("bare", &answer(status), first, later);
        let html = answer(status).header("content-type", "text/html").body("<h1>Idempotency-Key in-progress</h1>");
        row("HTML", &html, first, later);
        let broken = answer(status).header("content-type", "application/json").body(r#"{"type":"in-progress"#);
        row("broken JSON", &broken, first, later);
        row("JSON of another shape", &answer(status).body(r#"["in-progress"]"#), first, later);
        row("null type", &answer(status).body(r#"{"type":null,"status":5}"#), first, later);
        row("blank type", &answer(status).problem("about:blank"), first, later);
    }
}

#[test]
fn t02_a_cut_body_loses_the_answer_only_where_the_answer_is_in_it() {
    for status in 100..=999 {
        let (first, later) = match status {
            200..=299 | 400 | 409 | 422 | 423 => (LOST, LOST),
            other => status_row(other),
        };
        row("cut", &answer(status).body(r#"{"type":"in-prog"#).cut(), first, later);
    }
    // A replay header does not make half a body whole, and neither does a type that arrived before the cut.
    always("cut replay", &answer(200).replayed().cut(), LOST);
    always("cut conflict", &answer(409).problem("name-taken").cut(), LOST);
    always("cut reuse", &answer(422).problem("idempotency-key-reuse").cut(), LOST);
    always("cut wait", &answer(423).retry_after("1").cut(), LOST);
    always("more than the limit is no cut", &answer(200).body("x").too_long(), SUCCESS);
}

#[test]
fn t02_a_404_with_a_cut_body_is_a_404_and_marked_incomplete() {
    let played = Scenario::new().answered(answer(404).body("not f").cut()).run();
    assert_eq!((played.ok().status().as_u16(), played.ok().is_complete()), (404, false));
}

#[test]
fn s08_a_replay_header_makes_an_answer_final_and_a_5xx_a_stored_failure() {
    for name in REPLAY_HEADERS {
        for value in ["true", "TRUE", "1", "", "?1"] {
            for status in IN_FRONT.into_iter().chain([400, 402, 409, 410, 422, 423, 451]) {
                always(name, &answer(status).header(name, value), DEFINITE);
            }
            for status in [500, 502, 503, 504, 599] {
                always(name, &answer(status).header(name, value), STORED);
            }
            let played = Scenario::new().answered(answer(201).header(name, value)).run();
            assert!(played.ok().replayed(), "{name}: {value}");
        }
        for value in ["false", "False", " false "] {
            for status in [401, 409, 500] {
                let (first, later) = status_row(status);
                row(name, &answer(status).header(name, value), first, later);
            }
            let played = Scenario::new().answered(answer(201).header(name, value)).run();
            assert!(!played.ok().replayed(), "{name}: {value}");
        }
    }
    always("501", &answer(501).replayed(), UNSUPPORTED);
}

#[test]
fn s12_in_progress_is_told_by_type_or_code_under_409_and_423() {
    for status in [409, 423] {
        for type_ in [
            "in-progress",
            "https://errors.example/problems/idempotency-key-in-progress",
            "urn:x:in_progress",
            "IN-PROGRESS",
        ] {
            always(type_, &answer(status).problem(type_), IN_PROGRESS);
        }
        for body in [
            r#"{"code":"idempotency_key_in_use"}"#,
            r#"{"error":{"code":"idempotency_in_flight"}}"#,
            r#"{"errors":[{"code":"in_progress"}]}"#,
            r#"{"error":"in_progress"}"#,
        ] {
            always(body, &answer(status).body(body), IN_PROGRESS);
        }
        let waits = (Verdict::InProgress { retry_after: Some(secs(2)) }, Retry, Unknown);
        always("typed, with a wait", &answer(status).problem("in-progress").retry_after("2"), waits);
        always("untyped, with a wait", &answer(status).retry_after("2"), waits);
        always(
            "only a status in the body",
            &answer(status).body(r#"{"code":409,"type":"about:blank"}"#).retry_after("2"),
            if status == 409 { waits } else { DEFINITE },
        );
        always("a wait that cannot be read", &answer(status).retry_after("soon"), IN_PROGRESS);
    }
    // The words mean nothing under another status.
    always("400", &answer(400).problem("in-progress"), DEFINITE);
    always("200", &answer(200).problem("in-progress"), SUCCESS);
}

#[test]
fn r04_a_conflict_with_a_type_of_its_own_is_definite() {
    for status in [409, 423] {
        always("typed", &answer(status).problem("https://errors.example/name-taken"), DEFINITE);
        always("typed, with a wait", &answer(status).problem("name-taken").retry_after("1"), DEFINITE);
        always("by code", &answer(status).body(r#"{"error":{"code":"name_taken"}}"#).retry_after("1"), DEFINITE);
    }
}

#[test]
fn s12_the_contract_s_own_problem_types() {
    always("executed", &answer(409).problem("response-not-replayable"), EXECUTED);
    for type_ in ["idempotency-key-reuse", "https://x.example/idempotency-key-reuse", "idempotency_conflict"] {
        always(type_, &answer(422).problem(type_), REUSED);
    }
    for (status, type_, meaning) in [
        (400, "idempotency-key-malformed", Meaning::KeyMalformed),
        (400, "idempotency-key-missing", Meaning::KeyMissing),
        (422, "idempotency-key-missing", Meaning::KeyMissing),
        (400, "idempotency_key_required", Meaning::KeyMissing),
    ] {
        let refused = answer(status).problem(type_);
        let verdict = Verdict::KeyRefused(meaning);
        // "As before it": nothing was known, or it was unknown and stays so.
        row(
            type_,
            &refused,
            (verdict, Closed(ErrorKind::KeyRefused), NotSent),
            (verdict, Pending(ErrorKind::KeyRefused), Unknown),
        );
    }
    always("any other 422", &answer(422).problem("validation"), DEFINITE);
    always("any other 400", &answer(400).problem("validation"), DEFINITE);
}

#[test]
fn the_message_of_a_refused_key_names_header_and_format() {
    let played = Scenario::new().answered(answer(400).problem("idempotency-key-malformed")).run();
    let message = played.err().to_string();
    assert!(message.contains("idempotency-key") && message.contains("Raw") && message.contains("400"), "{message}");
}

#[test]
fn r16_r17_r19_four_refusals_are_retried_behind_the_switch_and_count_as_not_sent() {
    for status in [429, 408, 425, 421] {
        let bare = answer(status);
        row("off", &bare, STOPPED, STOPPED_LATER);
        let waits = answer(status).retry_after("2");
        let on = |retry_after| match status {
            429 | 408 => Verdict::InFront(InFront::Retry { retry_after }),
            _ => Verdict::InFront(InFront::Once { retry_after }),
        };
        assert_eq!(read(&bare, FIRST_ON), (on(None), Retry, NotSent), "{status}");
        assert_eq!(read(&bare, LATER_ON), (on(None), Retry, Unknown), "{status}");
        assert_eq!(read(&waits, FIRST_ON), (on(Some(secs(2))), Retry, NotSent), "{status}");
        assert_eq!(read(&bare.replayed(), FIRST_ON), DEFINITE, "{status}");
    }
    for status in IN_FRONT.into_iter().filter(|status| ![429, 408, 425, 421].contains(status)) {
        assert_eq!(read(&answer(status), FIRST_ON), STOPPED, "{status}");
        assert_eq!(read(&answer(status), LATER_ON), STOPPED_LATER, "{status}");
    }
}

#[test]
fn r08_a_server_that_says_not_to_retry_a_5xx_has_stored_it() {
    always("no", &answer(500).header("x-should-retry", "false"), STORED);
    always("No", &answer(503).header("x-should-retry", "FALSE"), STORED);
    always("yes", &answer(500).header("x-should-retry", "true"), TRANSIENT);
    // The server knows better than the status: its yes goes before ours, and what it retries in front is not sent.
    always("yes to a conflict", &answer(409).header("x-should-retry", "true"), TRANSIENT);
    let in_front = Verdict::InFront(InFront::Retry { retry_after: None });
    row(
        "yes in front",
        &answer(429).header("x-should-retry", "true"),
        (in_front, Retry, NotSent),
        (in_front, Retry, Unknown),
    );
}

#[test]
fn a20_a_wait_is_read_on_every_5xx_and_in_all_three_forms_of_a_date() {
    let waits = |seconds| (Verdict::Transient { retry_after: Some(secs(seconds)) }, Retry, Unknown);
    for status in [500, 502, 503, 504] {
        always("seconds", &answer(status).retry_after("2"), waits(2));
        for date in ["Thu, 27 Aug 2026 11:10:55 GMT", "Thursday, 27-Aug-26 11:10:55 GMT", "Thu Aug 27 11:10:55 2026"] {
            always(date, &answer(status).retry_after(date), waits(2));
        }
        always("past", &answer(status).retry_after("Thu, 27 Aug 2026 11:10:00 GMT"), TRANSIENT);
        always("no number", &answer(status).retry_after("-1"), TRANSIENT);
    }
}

#[test]
fn d02_a_redirect_that_was_followed_is_no_success_whatever_came_of_it() {
    for status in [200, 201, 302, 404, 409, 422, 500, 503] {
        always("followed", &answer(status).redirected(), REDIRECTED);
    }
    always("followed, and cut", &answer(200).redirected().cut(), REDIRECTED);
}

#[test]
fn r20_without_a_key_the_same_table_holds_less_what_is_about_keys() {
    let both = |answer: Answer, expected: Read| {
        assert_eq!(read(&answer, GET), expected, "{answer:?}");
        assert_eq!(read(&answer, GET_LATER), expected, "{answer:?}");
    };
    both(answer(200), SUCCESS);
    both(answer(200).cut(), LOST);
    both(answer(503), TRANSIENT);
    both(answer(500).replayed(), (Verdict::StoredFailure, Pending(ErrorKind::StoredFailure), Unknown));
    both(answer(402), DEFINITE);
    both(answer(409).retry_after("1"), (Verdict::InProgress { retry_after: Some(secs(1)) }, Retry, Unknown));
    assert_eq!(read(&answer(409), GET), DEFINITE);
    // Without an operation there is nothing to leave pending, so the caller gets what came.
    for status in [401, 404, 429] {
        both(answer(status), STOPPED);
    }
    for about_keys in ["idempotency-key-reuse", "idempotency-key-missing"] {
        both(answer(422).problem(about_keys), DEFINITE);
    }
    both(answer(409).problem("response-not-replayable"), DEFINITE);
    // As reqwest's users expect: nothing can have been executed twice, so 304 and the like are theirs to read.
    for status in [199, 302, 304, 501, 505, 600] {
        both(answer(status), DEFINITE);
    }
    both(answer(200).redirected(), SUCCESS);
}

#[test]
fn a_failure_is_not_sent_or_unknown_by_what_the_witness_saw_and_not_by_its_kind() {
    use FailureKind::{Canceled, Certificate, Connect, Connection, Dns, Refused, ReplyLost, Request, Timeout};
    for kind in [Request, Dns, Connect, Certificate, Canceled, Refused, Timeout, Connection, ReplyLost] {
        let again = if matches!(kind, Request | Certificate) { Again::No } else { Again::Yes };
        assert_eq!(Reading::of_failure(&failure(kind, Sent::No)), Verdict::NotSent { again }, "{kind:?}");
        assert_eq!(Reading::of_failure(&failure(kind, Sent::Perhaps)), Verdict::Unknown, "{kind:?}");
    }
}

#[test]
fn the_caller_s_own_reading_goes_before_the_contract_s() {
    let told = |meaning, status: u16| -> Result<u16, Error> {
        let scenario =
            Scenario::new().reads(move |reply| (reply.status() == StatusCode::IM_A_TEAPOT).then_some(meaning));
        let played =
            scenario.answered(answer(418).problem("x")).policy(|policy| policy.deadline(ms(50))).answered(status);
        let played = Scenario { for_ever: true, ..played }.run();
        played.result.map(|response| response.status().as_u16())
    };
    assert_eq!(told(Meaning::Final, 200).unwrap(), 418);
    assert_eq!(told(Meaning::InFront, 200).unwrap(), 418);
    for (meaning, kind) in [
        (Meaning::InProgress, ErrorKind::DeadlineExceeded),
        (Meaning::KeyReused, ErrorKind::KeyReused),
        (Meaning::KeyMalformed, ErrorKind::KeyRefused),
        (Meaning::Executed, ErrorKind::ReplyUnavailable),
        (Meaning::StoredFailure, ErrorKind::StoredFailure),
    ] {
        assert_eq!(told(meaning, 200).unwrap_err().kind(), kind, "{meaning:?}");
    }
}
