//! What survives the death of a process.

use std::path::Path;

use super::child::{Player, say};
use super::{Begun, Folder, LEASE, SqliteJournal, begin, id, is_taken, phase_of, record};
use crate::journal::{Acquired, Journal as _};
use crate::operation::Phase;

#[tokio::test]
async fn j01_a_process_killed_before_its_begin_leaves_nothing_behind() {
    let folder = Folder::new();
    let mut other = Player::start("opens", &folder.journal());
    other.hears("opened");
    other.kill();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    assert!(journal.pending(None, 10).await.unwrap().is_empty());
    begin(&journal, "order-42").await;
}

#[tokio::test]
async fn j02_k13_a_killed_process_leaves_its_operation_with_its_key_and_free_at_once() {
    let folder = Folder::new();
    let mut other = Player::start("begins", &folder.journal());
    let key = other.hears("begun");
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    // Alive, it is left alone.
    let acquired = journal.acquire(id("order-42"), LEASE).await.unwrap();
    assert!(matches!(acquired, Acquired::Held { .. }), "{acquired:?}");

    other.kill();
    assert_eq!(journal.pending(None, 10).await.unwrap(), [id("order-42")]);
    let Begun::Known(known) = journal.begin(record("order-42"), LEASE).await.unwrap() else { panic!("begun anew") };
    assert_eq!(known.key.as_str(), key);
    assert_eq!(known.phase, Phase::Sending);
    assert!(known.first_sent_at.is_some());
    // Its lease has most of an hour to go.
    let Acquired::Taken { record, lease, .. } = journal.acquire(id("order-42"), LEASE).await.unwrap() else {
        panic!("the dead still hold it")
    };
    assert_eq!((record.key.as_str(), lease.token), (&*key, 2));
}

#[tokio::test]
async fn j15_the_last_process_killed_leaves_the_operation_for_the_next_to_open_the_journal() {
    let folder = Folder::new();
    let mut other = Player::start("begins", &folder.journal());
    other.hears("begun");
    other.kill();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    assert_eq!(phase_of(&journal, "order-42").await, Some(Phase::Sending));
    assert!(is_taken(&journal.acquire(id("order-42"), LEASE).await));
}

#[tokio::test]
async fn without_the_locks_folder_a_lease_is_only_over_at_its_end() {
    let folder = Folder::new();
    let mut other = Player::start("begins", &folder.journal());
    other.hears("begun");
    other.kill();
    let copy = folder.copied();
    let journal = SqliteJournal::open(copy.journal()).await.unwrap();
    let acquired = journal.acquire(id("order-42"), LEASE).await.unwrap();
    assert!(matches!(acquired, Acquired::Held { .. }), "nobody knows whether its owner is alive: {acquired:?}");
}

#[tokio::test]
async fn what_was_told_to_be_rejected_is_so_after_a_kill() {
    let folder = Folder::new();
    let mut other = Player::start("rejects", &folder.journal());
    other.hears("rejected");
    other.kill();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    assert_eq!(phase_of(&journal, "order-42").await, Some(Phase::Rejected));
}

#[tokio::test]
async fn j04_a_late_completion_reaches_the_file_by_itself_when_nothing_else_is_written() {
    let folder = Folder::new();
    let mut other = Player::start("completes late", &folder.journal());
    other.hears("completed");
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    // Each look asks the file. The other process writes nothing else, so only its idle writer can bring it there.
    let mut looks = 0;
    while phase_of(&journal, "order-42").await != Some(Phase::Completed) {
        looks += 1;
        assert!(looks < 1_000_000, "it never came");
    }
    other.kill();
    assert_eq!(phase_of(&journal, "order-42").await, Some(Phase::Completed));
}

/// The child's part: one operation after the other, each told when it is durable.
pub(super) async fn begin_without_end(file: &Path) {
    let journal = SqliteJournal::open(file).await.unwrap();
    for number in 0.. {
        let operation = format!("order-{number}");
        begin(&journal, &operation).await;
        say("begun", &operation);
    }
}

#[tokio::test]
async fn whatever_was_told_to_be_begun_is_there_after_a_kill_at_any_moment() {
    for told in [1, 10, 100, 1_000] {
        let folder = Folder::new();
        let mut other = Player::start("begins without end", &folder.journal());
        // Killed wherever it is then: most likely in the middle of the next write.
        let begun: Vec<String> = (0..told).map(|_| other.hears("begun")).collect();
        other.kill();
        let journal = SqliteJournal::open(folder.journal()).await.unwrap();
        for operation in begun {
            assert_eq!(phase_of(&journal, &operation).await, Some(Phase::Sending), "{operation}");
            assert!(is_taken(&journal.acquire(id(&operation), LEASE).await), "{operation}");
        }
    }
}
