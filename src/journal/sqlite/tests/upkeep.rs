//! What moves, what goes, and what stays small.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::child::Player;
use super::{Begun, Folder, LEASE, SqliteJournal, begin, beside, close, id, is_taken, phase_of, record};
use crate::journal::{Acquired, Journal as _};
use crate::operation::{AfterSave, Durability, Phase};
use crate::testing::ManualClock;

fn count(folder: &Folder, table: &str) -> i64 {
    let connection = Connection::open(folder.journal()).unwrap();
    connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn what_is_finished_leaves_the_small_table_and_is_still_found() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let finished = [Phase::Completed, Phase::Rejected, Phase::NotSent, Phase::Abandoned];
    let stays = [Phase::Failed, Phase::Expired];
    for phase in finished.iter().chain(&stays) {
        let (begun, lease) = begin(&journal, phase.as_str()).await;
        close(&journal, &begun, lease, *phase).await;
    }
    begin(&journal, "sending").await;
    journal.settle().await.unwrap();
    // What waits for a person stays where what is unfinished is.
    assert_eq!((count(&folder, "idempotency_operation"), count(&folder, "idempotency_finished")), (3, 4));
    for phase in finished.iter().chain(&stays) {
        assert_eq!(phase_of(&journal, phase.as_str()).await, Some(*phase));
        let again = journal.begin(record(phase.as_str()), LEASE).await.unwrap();
        assert!(matches!(again, Begun::Known(known) if known.phase == *phase));
    }
    assert_eq!(count(&folder, "idempotency_operations"), 7, "the view shows both");
}

#[tokio::test]
async fn a_finished_operation_under_a_lease_does_not_move_and_one_that_moved_comes_back_for_its_lease() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let (begun, lease) = begin(&journal, "order-42").await;
    close(&journal, &begun, lease, Phase::NotSent).await;
    journal.settle().await.unwrap();
    assert_eq!(count(&folder, "idempotency_finished"), 1);

    let acquired = journal.acquire(id("order-42"), LEASE).await.unwrap();
    let Acquired::Taken { lease, .. } = acquired else { panic!("{acquired:?}") };
    assert_eq!(lease.token, 2, "the token goes on where it was");
    journal.settle().await.unwrap();
    assert_eq!((count(&folder, "idempotency_operation"), count(&folder, "idempotency_finished")), (1, 0));
    close(&journal, &begun, lease, Phase::Completed).await;
    journal.settle().await.unwrap();
    assert_eq!((count(&folder, "idempotency_operation"), count(&folder, "idempotency_finished")), (0, 1));
}

#[tokio::test]
async fn the_newest_lease_can_still_save_after_its_end_and_after_the_move() {
    let folder = Folder::new();
    let clock = ManualClock::new();
    let journal = SqliteJournal::builder().clock(Arc::new(clock.clone())).open(folder.journal()).await.unwrap();
    let (begun, lease) = begin(&journal, "order-42").await;
    let kept = super::closed(&begun, Phase::Rejected);
    journal.save(kept.clone(), lease.clone(), AfterSave::KeepLease, Durability::Now).await.unwrap();
    clock.advance(LEASE);
    journal.settle().await.unwrap();
    assert_eq!(count(&folder, "idempotency_finished"), 1);
    // Nobody took a newer lease, so this one is still the newest.
    journal.save(kept, lease, AfterSave::ReleaseLease, Durability::Now).await.unwrap();
    assert_eq!(count(&folder, "idempotency_operation") + count(&folder, "idempotency_finished"), 1);
}

#[tokio::test]
async fn j10_what_is_past_its_time_goes_by_itself_and_what_is_unsettled_never_does() {
    let folder = Folder::new();
    let clock = ManualClock::new();
    let day = Duration::from_secs(24 * 60 * 60);
    let builder = SqliteJournal::builder().clock(Arc::new(clock.clone()));
    let journal = builder.clone().open(folder.journal()).await.unwrap();
    for phase in [Phase::Completed, Phase::Failed, Phase::Expired] {
        let (begun, lease) = begin(&journal, phase.as_str()).await;
        close(&journal, &begun, lease, phase).await;
    }
    // A window longer than the retention.
    let mut long = record("long");
    long.wire.window = day * 30;
    let Begun::New { record: begun, lease, .. } = journal.begin(long, LEASE).await.unwrap() else { panic!() };
    close(&journal, &begun, lease, Phase::Completed).await;
    begin(&journal, "sending").await;
    journal.settle().await.unwrap();

    clock.advance(day * 7 - Duration::from_millis(1));
    journal.settle().await.unwrap();
    assert_eq!(phase_of(&journal, "completed").await, Some(Phase::Completed));
    clock.advance(Duration::from_millis(1));
    journal.settle().await.unwrap();
    assert_eq!(phase_of(&journal, "completed").await, None);
    assert_eq!(phase_of(&journal, "long").await, Some(Phase::Completed));
    clock.advance(day * 365);
    journal.settle().await.unwrap();
    assert_eq!(phase_of(&journal, "long").await, None);
    for (operation, phase) in [("failed", Phase::Failed), ("expired", Phase::Expired), ("sending", Phase::Sending)] {
        assert_eq!(phase_of(&journal, operation).await, Some(phase));
    }
    let purged = journal.purge(Duration::ZERO).await.unwrap();
    assert_eq!((purged.dropped, purged.pending, purged.for_a_person, purged.recent), (0, 1, 2, 0));
}

#[tokio::test]
async fn times_at_the_end_of_what_can_be_counted_do_not_stop_the_upkeep() {
    let folder = Folder::new();
    let journal = SqliteJournal::builder().retention(Duration::MAX).open(folder.journal()).await.unwrap();
    let mut forever = record("forever");
    forever.wire.window = Duration::MAX;
    forever.next_attempt_at = Some(crate::clock::Timestamp::from_millis(u64::MAX));
    let Begun::New { record: begun, lease, .. } = journal.begin(forever, Duration::MAX).await.unwrap() else {
        panic!()
    };
    assert_eq!(lease.until.as_millis(), u64::MAX);
    close(&journal, &begun, lease, Phase::Completed).await;
    journal.settle().await.unwrap();
    assert_eq!(count(&folder, "idempotency_finished"), 1);
    let found = journal.get(id("forever")).await.unwrap().unwrap();
    assert_eq!((found.wire.window, found.next_attempt_at), (Duration::MAX, begun.next_attempt_at));
    assert_eq!(journal.purge(Duration::ZERO).await.unwrap().recent, 1);
    assert_eq!(journal.purge(Duration::MAX).await.unwrap().recent, 1);
}

#[tokio::test]
async fn the_files_of_dead_owners_go_once_no_lease_refers_to_them() {
    let folder = Folder::new();
    let mut other = Player::start("begins", &folder.journal());
    other.hears("begun");
    other.kill();
    let owners = || {
        let names = std::fs::read_dir(beside(&folder.journal(), "-locks")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).filter(|name| name.len() == 16).count()
    };
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    assert_eq!(owners(), 2);
    journal.settle().await.unwrap();
    assert_eq!(owners(), 2, "the dead one still has a lease, and its file says that it is dead");
    assert!(is_taken(&journal.acquire(id("order-42"), LEASE).await));
    journal.settle().await.unwrap();
    assert_eq!(owners(), 1);
}

#[tokio::test]
async fn the_log_does_not_grow_without_end_while_operations_follow_each_other() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let body = vec![b'x'; 64 * 1024];
    let mut largest = 0;
    // 128 MiB of bodies.
    for number in 0..2_000 {
        let mut large = record(&format!("order-{number}"));
        large.request.as_mut().unwrap().body = body.clone().into();
        let Begun::New { record, lease, .. } = journal.begin(large, LEASE).await.unwrap() else { panic!() };
        let completed = super::closed(&record, Phase::Completed);
        journal.save(completed, lease, AfterSave::ReleaseLease, Durability::Late).await.unwrap();
        largest = largest.max(std::fs::metadata(beside(&folder.journal(), "-wal")).unwrap().len());
    }
    assert!(largest < 48 << 20, "the log grew to {} MiB", largest >> 20);
}

#[tokio::test]
async fn nothing_that_is_asked_for_often_reads_a_whole_table() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let connection = Connection::open(folder.journal()).unwrap();
    let plans = |sql: &str| -> Vec<String> {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let plans = statement.query_map([], |row| row.get::<_, String>(3)).unwrap();
        plans.map(Result::unwrap).collect()
    };
    for sql in [
        "SELECT operation, id FROM idempotency_operation WHERE operation > 'a' AND phase IN ('prepared', 'sending')
         ORDER BY operation LIMIT 10",
        "SELECT 1 FROM idempotency_finished WHERE operation = 'a'",
        "SELECT id FROM idempotency_finished WHERE keep_until <= 1 ORDER BY keep_until LIMIT 10",
        "SELECT keep_until, updated_at, window_ms, id FROM idempotency_finished
         WHERE (keep_until, updated_at, window_ms, id) > (1, 2, 3, 4)
         ORDER BY keep_until, updated_at, window_ms, id LIMIT 10",
    ] {
        for plan in plans(sql) {
            assert!(plan.starts_with("SEARCH") && plan.contains("INDEX"), "{sql}: {plan}");
        }
    }
    drop(journal);
}
