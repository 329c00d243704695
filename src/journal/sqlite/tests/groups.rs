//! Many operations, one flush.

use tokio::task::JoinSet;

use super::{Begun, Folder, LEASE, SqliteJournal, begin, closed, record};
use crate::journal::Journal as _;
use crate::operation::{AfterSave, Durability, Phase};

#[tokio::test]
async fn operations_begun_at_the_same_time_share_their_flushes() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let mut all = JoinSet::new();
    for number in 0..64 {
        let journal = journal.clone();
        all.spawn(async move { journal.begin(record(&format!("order-{number}")), LEASE).await });
    }
    while let Some(begun) = all.join_next().await {
        assert!(matches!(begun.unwrap(), Ok(Begun::New { .. })));
    }
    // All are queued before the runtime's one thread lets go. The writer may have woken for the first few of them before.
    let flushes = journal.flushes();
    assert!((1..=8).contains(&flushes), "64 begins took {flushes} flushes");
}

#[tokio::test]
async fn one_after_the_other_costs_one_flush_each_and_a_late_completion_none() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    for number in 0..10 {
        let (begun, lease) = begin(&journal, &format!("order-{number}")).await;
        let completed = closed(&begun, Phase::Completed);
        journal.save(completed, lease, AfterSave::ReleaseLease, Durability::Late).await.unwrap();
    }
    let (_, lease) = begin(&journal, "taken").await;
    let before = journal.flushes();
    assert_eq!(before, 11);
    // A lease protects against workers of this machine only, so the machine's crash need not be survived.
    journal.relinquish(lease.clone());
    journal.acquire(lease.operation, LEASE).await.unwrap();
    assert_eq!(journal.flushes(), before);
}

#[tokio::test]
async fn what_changes_nothing_is_not_committed() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    begin(&journal, "order-42").await;
    let before = journal.flushes();
    for _ in 0..5 {
        assert!(matches!(journal.begin(record("order-42"), LEASE).await, Ok(Begun::Known(_))));
    }
    assert_eq!(journal.flushes(), before);
}
