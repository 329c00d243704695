//! A wall clock that is set back: nobody can say how old a sent record is until it has caught up.

use std::sync::Arc;

use super::{Folder, LEASE, SqliteJournal, begin, beside, close, id, is_taken, phase_of, record};
use crate::journal::{Acquired, Journal as _, JournalErrorKind};
use crate::operation::Phase;
use crate::testing::ManualClock;

async fn open(folder: &Folder, clock: &ManualClock) -> SqliteJournal {
    SqliteJournal::builder().clock(Arc::new(clock.clone())).open(folder.journal()).await.unwrap()
}

/// Begins an operation and gives it back.
async fn left_sending(journal: &SqliteJournal, operation: &str) {
    let (_, lease) = begin(journal, operation).await;
    journal.relinquish(lease);
}

async fn is_refused(journal: &SqliteJournal, operation: &str) {
    let acquired = journal.acquire(id(operation), LEASE).await;
    let kind = acquired.as_ref().err().map(crate::journal::JournalError::kind);
    assert_eq!(kind, Some(JournalErrorKind::ClockBehind), "{acquired:?}");
}

#[tokio::test]
async fn a_clock_that_went_backwards_is_named_with_both_times() {
    let folder = Folder::new();
    let clock = ManualClock::new();
    let open = || SqliteJournal::builder().clock(Arc::new(clock.clone())).open(folder.journal());
    let journal = open().await.unwrap();
    let (begun, lease) = begin(&journal, "order-42").await;
    journal.relinquish(lease);
    drop(journal);
    clock.step_wall(-86_400_000);
    let journal = open().await.unwrap();
    let error: crate::journal::JournalError = journal.acquire(id("order-42"), LEASE).await.unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::ClockBehind);
    for word in ["Wed, 31 Dec 2025 00:00:00 GMT", "Thu, 01 Jan 2026 00:00:00 GMT", "order-42", "set the clock right"] {
        assert!(error.to_string().contains(word), "{word:?} is not in {error}");
    }
    clock.step_wall(86_400_000);
    assert!(is_taken(&journal.acquire(begun.operation, LEASE).await));
}

#[tokio::test]
async fn an_operation_begun_while_the_clock_is_behind_does_not_hide_that_it_is() {
    let folder = Folder::new();
    let clock = ManualClock::new();
    let journal = open(&folder, &clock).await;
    left_sending(&journal, "early").await;
    clock.step_wall(1_000);
    // The newest time, and nothing but its own row says so: it was begun while the first was given back already.
    assert_eq!(phase_of(&journal, "early").await, Some(Phase::Sending));
    let (_, lease) = begin(&journal, "newest").await;
    clock.step_wall(-500);
    is_refused(&journal, "early").await;
    let (_, behind) = begin(&journal, "behind").await;
    is_refused(&journal, "early").await;
    drop((lease, behind));
    drop(journal);
    let journal = open(&folder, &clock).await;
    is_refused(&journal, "early").await;
    clock.step_wall(500);
    assert!(is_taken(&journal.acquire(id("early"), LEASE).await));
}

#[tokio::test]
async fn the_newest_operation_leaves_its_time_behind_when_it_moves_or_is_purged() {
    for purged in [false, true] {
        let folder = Folder::new();
        let clock = ManualClock::new();
        let journal = open(&folder, &clock).await;
        let mut brief = record("newest");
        brief.wire.window = std::time::Duration::ZERO;
        left_sending(&journal, "early").await;
        clock.step_wall(1_000);
        let begun = journal.begin(brief, LEASE).await.unwrap();
        let crate::journal::Begun::New { record: begun, lease, .. } = begun else { panic!("{begun:?}") };
        clock.step_wall(-1_000);
        // Saved by the clock as it was before, so only the row's begin has the newest time.
        close(&journal, &begun, lease, Phase::Completed).await;
        clock.step_wall(999);
        if purged {
            assert_eq!(journal.purge(std::time::Duration::ZERO).await.unwrap().dropped, 1);
        } else {
            journal.settle().await.unwrap();
        }
        is_refused(&journal, "early").await;
        clock.step_wall(1);
        assert!(is_taken(&journal.acquire(id("early"), LEASE).await));
    }
}

#[tokio::test]
async fn a_finished_operation_that_is_taken_up_again_does_not_hide_the_newest_time() {
    let folder = Folder::new();
    let clock = ManualClock::new();
    let journal = open(&folder, &clock).await;
    left_sending(&journal, "early").await;
    let (begun, lease) = begin(&journal, "finished").await;
    close(&journal, &begun, lease, Phase::NotSent).await;
    journal.settle().await.unwrap();
    clock.step_wall(1_000);
    // In one group: its begin, and the other's return to the end of the table. They queue behind one that has to wait.
    let turn = std::fs::File::open(beside(&folder.journal(), "-locks").join("turn")).unwrap();
    fs4::FileExt::lock(&turn).unwrap();
    let first = journal.begin(record("first"), LEASE);
    let (first, begun, acquired, _) =
        tokio::join!(first, journal.begin(record("newest"), LEASE), journal.acquire(id("finished"), LEASE), async {
            fs4::FileExt::unlock(&turn).unwrap()
        },);
    assert!(first.is_ok() && begun.is_ok());
    assert!(matches!(acquired, Ok(Acquired::Taken { .. })), "{acquired:?}");
    clock.step_wall(-1);
    is_refused(&journal, "early").await;
}

#[tokio::test]
async fn an_operation_begun_in_a_transaction_does_not_hide_the_newest_time() {
    let folder = Folder::new();
    let clock = ManualClock::new();
    let journal = open(&folder, &clock).await;
    left_sending(&journal, "early").await;
    assert_eq!(phase_of(&journal, "early").await, Some(Phase::Sending));
    clock.step_wall(1_000);
    begin(&journal, "newest").await;
    clock.step_wall(-1_000);
    let mut connection = rusqlite::Connection::open(folder.journal()).unwrap();
    let transaction = connection.transaction().unwrap();
    assert!(journal.insert_in(&transaction, record("behind")).unwrap().is_none());
    transaction.commit().unwrap();
    is_refused(&journal, "early").await;
}
