//! The first step: what is on disk before the first byte leaves, and what a record read back leads to.

use super::{
    AfterSave, Delivery, Durability, ErrorKind, FailureKind, Phase, SAFE_WINDOW, START, Scenario, Sent, answer, ms,
    record, rejected_in_front, secs,
};

#[test]
fn an_operation_just_begun_is_on_disk_already_and_is_sent_without_another_write() {
    let played = Scenario::new().answered(201).run();
    assert_eq!(played.story(), "send 1, save completed");
    assert_eq!(played.saved().first_sent_at, Some(START.wall));
}

/// Each record that is not marked as sending, an hour after it was begun.
fn unmarked() -> [(Box<super::Record>, &'static str); 3] {
    [(record(Phase::Prepared), "prepared"), (record(Phase::NotSent), "not_sent"), (rejected_in_front(), "rejected")]
}

#[test]
fn t16_r26_prepared_and_reopened_operations_are_marked_before_the_first_byte() {
    for (record, what) in unmarked() {
        let key = record.key.clone();
        let played = Scenario::of(record).aged(secs(3_600)).answered(201).run();
        assert_eq!(played.story(), "save sending, send 1, save completed", "{what}");
        assert_eq!(played.saves()[0], (Phase::Sending, AfterSave::KeepLease, Durability::Now), "{what}");
        let marked = played.saved();
        // The window counts from this send: nothing that was sent before can have been executed.
        assert_eq!(marked.first_sent_at, Some(START.wall.plus(secs(3_600))), "{what}");
        assert_eq!(marked.key, key, "{what}");
    }
}

#[test]
fn a_reopened_operation_is_marked_as_open_in_that_first_save() {
    let played = Scenario::of(rejected_in_front()).answered(201).run();
    let Some(super::playing::Did::Save(marked, ..)) = played.did.first() else { panic!("{played:?}") };
    assert!(marked.closing.is_none());
    assert_eq!(marked.phase, Phase::Sending);
}

#[test]
fn a_reopened_operation_has_a_whole_window_again() {
    let long_ago = SAFE_WINDOW + secs(1);
    for (record, what) in unmarked() {
        let played = Scenario::of(record).aged(long_ago).answered(503).answered(201).run();
        assert_eq!(played.ok().status(), 201, "{what}");
    }
}

#[test]
fn j07_what_cannot_be_marked_is_not_sent() {
    for (record, what) in unmarked() {
        let before = record.phase;
        let played = Scenario::of(record).save_fails(1).run();
        assert_eq!(played.story(), "save sending", "{what}");
        let error = played.err();
        // What is told is the record's own delivery: a refusal in front was an answer.
        let delivery = if before == Phase::Rejected { Delivery::Answered } else { Delivery::NotSent };
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::Journal, delivery), "{what}");
        assert_eq!(error.phase(), Some(before), "the record stands as before");
    }
}

#[test]
fn a_mark_that_may_be_on_disk_says_pending_and_unknown() {
    for (record, what) in unmarked() {
        let played = Scenario::of(record).save_unconfirmed(1).run();
        assert_eq!(played.story(), "save sending", "{what}");
        let error = played.err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::Journal, Delivery::Unknown), "{what}");
        assert!(error.is_pending(), "{what}");
    }
}

#[test]
fn a_lease_lost_while_marking_sends_and_writes_nothing() {
    let played = Scenario::of(record(Phase::Prepared)).lease_lost_at_save(1).run();
    assert_eq!(played.story(), "save sending");
    assert_eq!((played.err().kind(), played.err().is_pending()), (ErrorKind::LeaseLost, true));
}

#[test]
fn a_journal_slower_than_the_deadline_leaves_nothing_sent() {
    let scenario = Scenario::of(record(Phase::Prepared)).policy(|policy| policy.deadline(secs(1))).saves_take(secs(1));
    let played = scenario.run();
    played.assert_closed(ErrorKind::DeadlineExceeded, Phase::NotSent, Delivery::NotSent);
    assert_eq!(played.story(), "save sending, save not_sent");
}

#[test]
fn k13_a_resumed_operation_goes_on_with_its_key_and_its_first_send() {
    let mut found = record(Phase::Sending);
    found.attempts = 2;
    let played = Scenario::of(found).after_unknown().aged(secs(60)).answered(201).run();
    assert_eq!(played.story(), "send 3, save completed");
    let saved = played.saved();
    assert_eq!((saved.attempts, saved.first_sent_at, saved.key.as_str()), (3, Some(START.wall), super::KEY));
    assert!(played.ok().after_unknown());
}

#[test]
fn j08_a_resume_past_the_window_sends_nothing_and_is_closed_on_disk_first() {
    for age in [SAFE_WINDOW, SAFE_WINDOW + ms(1), secs(10 * 365 * 24 * 3_600)] {
        let played = Scenario::resumed().aged(age).run();
        played.assert_closed(ErrorKind::WindowExpired, Phase::Expired, Delivery::Unknown);
        assert_eq!(played.story(), "save expired");
        assert_eq!(played.err().first_sent_at(), Some(START.wall));
    }
}

#[test]
fn j08_an_expiry_that_cannot_be_written_is_not_told_as_closed() {
    let played = Scenario::resumed().aged(SAFE_WINDOW).save_fails(1).run();
    let error = played.err();
    assert_eq!((error.kind(), error.delivery(), error.is_pending()), (ErrorKind::Journal, Delivery::Unknown, true));
}

#[test]
fn a_resume_inside_the_window_may_take_no_longer_than_what_is_left_of_it() {
    let played = Scenario::resumed().aged(SAFE_WINDOW - ms(500)).answered(201).run();
    assert_eq!(played.limits(), [ms(500)]);
}

#[test]
fn k07_a_completed_operation_asked_for_its_reply_is_sent_without_a_write_before() {
    let played = Scenario::of(record(Phase::Completed)).after_unknown().answered(answer(201).replayed()).run();
    assert_eq!(played.story(), "send 1, save completed");
    assert_eq!(played.saves()[0].2, Durability::Late);
}

#[test]
fn k07_what_was_completed_stays_completed_whatever_comes() {
    let asked = || Scenario::of(record(Phase::Completed)).after_unknown();
    let mut tried = Vec::new();
    for status in 100..=999 {
        tried.push(asked().answered(status).for_ever());
        tried.push(asked().answered(answer(status).replayed()).for_ever());
        tried.push(asked().answered(answer(status).body("half").cut()).for_ever());
    }
    for type_ in ["idempotency-key-reuse", "response-not-replayable", "idempotency-key-malformed", "in-progress"] {
        for status in [400, 409, 422, 423] {
            tried.push(asked().answered(answer(status).problem(type_)).for_ever());
        }
    }
    for kind in [FailureKind::Connect, FailureKind::Certificate, FailureKind::Timeout] {
        tried.push(asked().failed(kind, Sent::No).for_ever());
        tried.push(asked().failed(kind, Sent::Perhaps).for_ever());
    }
    tried.push(asked().prepare_fails());
    tried.push(asked().aged(SAFE_WINDOW));
    tried.push(asked().answered(402).save_fails(1));
    tried.push(asked().answered(402).lease_lost_at_save(1));
    tried.push(asked().dropped().for_ever().lease_lost_at_wait(1));
    for scenario in tried {
        let played = scenario.run();
        assert!(played.saves().iter().all(|(phase, ..)| *phase == Phase::Completed), "{played:?}");
        if let Err(error) = &played.result {
            let told = (error.phase(), error.delivery());
            assert_eq!(told, (Some(Phase::Completed), Delivery::Answered), "{played:?}");
        }
    }
}

#[test]
fn whoever_takes_it_up_comes_no_earlier_than_the_server_asked() {
    let mut asked = record(Phase::Sending);
    asked.next_attempt_at = Some(START.wall.plus(secs(20)));
    let played = Scenario::of(asked.clone()).after_unknown().answered(201).run();
    assert_eq!(played.story(), "sleep, send 1, save completed");
    assert_eq!(played.sleeps(), [secs(20)]);
    // Further away than the policy waits for, it is left alone.
    asked.next_attempt_at = Some(START.wall.plus(secs(61)));
    let played = Scenario::of(asked).after_unknown().run();
    assert_eq!(played.story(), "", "the record stays as it is");
    assert_eq!(played.err().kind(), ErrorKind::RetryAfterTooLong);
}
