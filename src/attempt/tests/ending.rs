//! The last save, and what the caller hears after it.

use std::error::Error as _;

use super::{
    AfterSave, BODY, Delivery, Durability, ErrorKind, FailureKind, KEY, Keep, Phase, Scenario, Sent, answer, record,
    secs,
};

const LATE: (Phase, AfterSave, Durability) = (Phase::Completed, AfterSave::ReleaseLease, Durability::Late);

/// One scenario for each closing that must be on disk before it is told, without its ending.
fn closings() -> Vec<(Phase, Scenario)> {
    vec![
        (Phase::Rejected, Scenario::new().answered(answer(402).body("too poor"))),
        (Phase::Rejected, Scenario::new().answered(answer(429))),
        (Phase::Rejected, Scenario::new().answered(answer(400).problem("idempotency-key-malformed"))),
        (Phase::Failed, Scenario::new().answered(answer(422).problem("idempotency-key-reuse"))),
        (Phase::Failed, Scenario::new().answered(answer(500).replayed())),
        (Phase::Failed, Scenario::new().answered(501)),
        (Phase::Failed, Scenario::new().answered(302)),
        (Phase::NotSent, Scenario::new().unsent().for_ever()),
        (Phase::NotSent, Scenario::new().failed(FailureKind::Certificate, Sent::No)),
        (Phase::NotSent, Scenario::new().prepare_fails()),
        (Phase::Expired, Scenario::resumed().aged(secs(86_400))),
    ]
}

#[test]
fn every_closing_but_completed_is_waited_for_before_it_is_told() {
    for (phase, scenario) in closings() {
        let played = scenario.run();
        assert_eq!(played.saves(), [(phase, AfterSave::ReleaseLease, Durability::Now)]);
        assert!(played.story().ends_with(&format!("save {phase}")));
    }
}

#[test]
fn a_closing_that_cannot_be_written_is_told_as_pending_and_unknown_with_the_answer_attached() {
    for unconfirmed in [false, true] {
        for (phase, scenario) in closings() {
            let played = if unconfirmed { scenario.save_unconfirmed(1) } else { scenario.save_fails(1) }.run();
            let error = played.err();
            let told = (error.kind(), error.delivery(), error.phase());
            assert_eq!(told, (ErrorKind::Journal, Delivery::Unknown, Some(Phase::Sending)), "{phase}");
            assert_eq!(error.source().unwrap().to_string(), "disk full");
            let answered = matches!(phase, Phase::Rejected | Phase::Failed);
            assert_eq!(error.last_response().is_some(), answered, "{phase}");
        }
    }
    let played = Scenario::new().answered(answer(402).body("too poor")).save_fails(1).run();
    assert_eq!(&played.err().last_response().unwrap().body()[..], b"too poor");
}

#[test]
fn a_lease_lost_at_a_closing_tells_of_that_and_keeps_the_answer() {
    for (phase, scenario) in closings() {
        let played = scenario.lease_lost_at_save(1).run();
        let error = played.err();
        let told = (error.kind(), error.delivery(), error.phase());
        assert_eq!(told, (ErrorKind::LeaseLost, Delivery::Unknown, Some(Phase::Sending)), "{phase}");
        assert_eq!(error.last_response().is_some(), matches!(phase, Phase::Rejected | Phase::Failed), "{phase}");
    }
}

#[test]
fn completed_is_written_late_and_told_whatever_becomes_of_the_write() {
    let success = || Scenario::new().answered(answer(201).body("done"));
    for scenario in [success(), success().save_fails(1), success().save_unconfirmed(1), success().lease_lost_at_save(1)]
    {
        let played = scenario.run();
        assert_eq!(played.saves(), [LATE]);
        assert_eq!((played.ok().status().as_u16(), &played.ok().body()[..]), (201, &b"done"[..]));
    }
}

#[test]
fn an_executed_operation_whose_reply_is_gone_is_completed_whatever_becomes_of_the_write() {
    let gone = || Scenario::new().answered(answer(409).problem("response-not-replayable"));
    for scenario in [gone(), gone().save_fails(1), gone().lease_lost_at_save(1)] {
        let played = scenario.run();
        assert_eq!(played.saves(), [LATE]);
        let error = played.err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::ReplyUnavailable, Delivery::Answered));
        assert_eq!(error.phase(), Some(Phase::Completed));
    }
}

#[test]
fn t09_what_stays_pending_is_put_down_with_its_lease_and_told_even_if_that_fails() {
    let outage = || Scenario::new().answered(503).for_ever();
    outage().run().assert_pending(ErrorKind::AttemptsExhausted);
    for scenario in [outage().save_fails(1), outage().save_unconfirmed(1)] {
        scenario.run().assert_pending(ErrorKind::AttemptsExhausted);
    }
}

#[test]
fn a_closed_record_forgets_the_request_and_keeps_how_it_ended() {
    let played = Scenario::new().dropped().answered(answer(402).body("too poor")).run();
    let saved = played.saved();
    assert!(saved.request.is_none() && saved.next_attempt_at.is_none());
    let closing = saved.closing.as_ref().unwrap();
    assert_eq!(closing.status.unwrap(), 402);
    assert!(closing.after_unknown && !closing.in_front && closing.reply.is_none());
}

#[test]
fn the_reply_is_kept_only_if_the_caller_chose_that_and_never_with_its_cookies() {
    for keep in [Keep::Request, Keep::Key, Keep::Exchange] {
        let reply = answer(201).header("set-cookie", "session=cookie-secret").header("etag", "x").body("done");
        let played = Scenario::new().plan(|plan| plan.keep = keep).answered(reply).run();
        let kept = &played.saved().closing.as_ref().unwrap().reply;
        assert_eq!(kept.is_some(), keep == Keep::Exchange, "{keep:?}");
        if let Some(kept) = kept {
            assert_eq!(&kept.body[..], b"done");
            assert!(kept.headers.contains_key("etag") && !kept.headers.contains_key("set-cookie"));
        }
    }
    // Half a reply is none, and neither is one that goes on as a stream.
    for half in [answer(404).body("half").cut(), answer(200).body("first part").too_long()] {
        let played = Scenario::new().plan(|plan| plan.keep = Keep::Exchange).answered(half).run();
        assert!(played.saved().closing.as_ref().unwrap().reply.is_none());
    }
}

#[test]
fn r25_a_definite_refusal_closes_the_operation_under_its_own_status() {
    let played = Scenario::new().answered(answer(402).body(r#"{"status":"FAILED"}"#)).run();
    assert_eq!(played.saves(), [(Phase::Rejected, AfterSave::ReleaseLease, Durability::Now)]);
    assert_eq!(played.saved().closing.as_ref().unwrap().status.unwrap(), 402);
}

#[test]
fn r09_an_html_400_is_one_attempt() {
    let played = Scenario::new().answered(answer(400).header("content-type", "text/html").body("<h1>no</h1>")).run();
    assert_eq!((played.ok().status().as_u16(), played.sends().len()), (400, 1));
}

/// Every kind of error that the machine tells, each with its source and its last answer.
fn every_error() -> Vec<crate::error::Error> {
    let noisy = |status| answer(status).header("set-cookie", "cookie-secret").body(r#"{"detail":"reply-secret"}"#);
    let mut told = Vec::new();
    for (_, scenario) in closings() {
        told.push(scenario.run().result);
    }
    for scenario in [
        Scenario::new().answered(noisy(402)).save_fails(1),
        Scenario::new().answered(noisy(503)).for_ever(),
        Scenario::new().answered(noisy(503).retry_after("3600")),
        Scenario::new().dropped().answered(noisy(401)),
        Scenario::new().dropped().answered(noisy(409)).lease_lost_at_wait(2),
        Scenario::new().dropped().for_ever(),
        Scenario::new().dropped().oversleeping(secs(60)),
        Scenario::new().budget(&crate::retry::RetryBudget::new(0, 0, secs(1))).answered(noisy(503)),
        Scenario::new().answered(noisy(409).problem("response-not-replayable")),
        Scenario::of(record(Phase::Prepared)).save_fails(1),
    ] {
        told.push(scenario.run().result);
    }
    told.into_iter().filter_map(Result::err).collect()
}

#[test]
fn l02_no_error_shows_key_body_query_or_cookie() {
    let errors = every_error();
    let kinds: std::collections::HashSet<ErrorKind> = errors.iter().map(crate::error::Error::kind).collect();
    assert!(kinds.len() >= 14, "{kinds:?}");
    for error in errors {
        let mut shown = format!("{error}\n{error:?}\n{error:#?}\n{}\n{:?}", error.report(), error.report());
        let mut source = error.source();
        while let Some(layer) = source {
            shown += &format!("\n{layer}\n{layer:?}");
            source = layer.source();
        }
        // All the secrets of this test have the word in them.
        assert!(!shown.contains("secret") && !shown.contains(KEY) && !shown.contains(BODY), "{shown}");
        assert!(shown.contains("order-42"), "{shown}");
        assert!(!error.to_string().contains('\n'), "one line: {error}");
    }
}

#[test]
fn the_report_tells_each_attempt_and_what_is_known() {
    let scenario = Scenario::new().steady().dropped().answered(answer(409).retry_after("2")).answered(401);
    let report = scenario.run().err().report().to_string();
    let lines: Vec<&str> = report.lines().collect();
    assert_eq!(lines.len(), 5, "{report}");
    assert!(
        lines[1].contains("attempt 1") && lines[1].contains("it may have been executed; waited 200 ms"),
        "{report}"
    );
    assert!(lines[2].contains("attempt 2") && lines[2].contains("409") && lines[2].contains("as the server asked"));
    assert!(lines[3].contains("attempt 3") && lines[3].contains("401"), "{report}");
    assert!(lines[4].contains("still pending"), "{report}");
}
