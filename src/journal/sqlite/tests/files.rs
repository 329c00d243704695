//! The files, who may read them, and what becomes of them at the end.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{Folder, LEASE, SqliteJournal, begin, beside, closed, id, phase_of, record};
use crate::journal::{Begun, Journal as _};
use crate::operation::{AfterSave, Durability, Phase};

#[cfg(unix)]
#[tokio::test]
async fn only_this_user_can_read_what_the_journal_makes() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    begin(&journal, "order-42").await;
    let locks = beside(&folder.journal(), "-locks");
    let mut made: Vec<_> = ["", "-wal", "-shm", "-locks"].map(|suffix| beside(&folder.journal(), suffix)).into();
    made.extend(std::fs::read_dir(&locks).unwrap().map(|entry| entry.unwrap().path()));
    assert_eq!(made.len(), 7, "the file, log, index, folder of locks, queue, turn and one owner: {made:?}");
    for path in made {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
    }
}

#[tokio::test]
async fn one_file_can_be_opened_twice_in_one_process() {
    let folder = Folder::new();
    let one = SqliteJournal::open(folder.journal()).await.unwrap();
    let two = SqliteJournal::open(folder.journal()).await.unwrap();
    let (_, lease) = begin(&one, "order-42").await;
    let held = two.acquire(id("order-42"), LEASE).await.unwrap();
    assert!(matches!(held, crate::journal::Acquired::Held { until } if until == lease.until), "{held:?}");
    begin(&two, "order-43").await;
    // The other's end frees what it had, and takes nothing away from this one.
    drop(one);
    assert!(super::is_taken(&two.acquire(id("order-42"), LEASE).await));
    let three = SqliteJournal::open(folder.journal()).await.unwrap();
    assert!(!super::is_taken(&three.acquire(id("order-43"), LEASE).await));
}

#[test]
fn dropping_the_last_handle_inside_a_runtime_writes_what_is_queued_and_closes_the_file() {
    let folder = Folder::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let journal = SqliteJournal::open(folder.journal()).await.unwrap();
        for number in 0..20 {
            let (begun, lease) = begin(&journal, &format!("order-{number}")).await;
            let completed = closed(&begun, Phase::Completed);
            journal.save(completed, lease, AfterSave::ReleaseLease, Durability::Late).await.unwrap();
        }
        let (_, lease) = begin(&journal, "given back").await;
        journal.relinquish(lease);
        drop(journal);
        assert!(!beside(&folder.journal(), "-wal").exists(), "the file is closed when the drop returns");
    });
    runtime.block_on(async {
        let journal = SqliteJournal::open(folder.journal()).await.unwrap();
        for number in 0..20 {
            assert_eq!(phase_of(&journal, &format!("order-{number}")).await, Some(Phase::Completed));
        }
        assert!(super::is_taken(&journal.acquire(id("given back"), LEASE).await));
    });
}

#[tokio::test]
async fn a_begin_under_way_keeps_the_journal_open() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let other = journal.clone();
    let begun = tokio::spawn(async move { other.begin(record("order-42"), LEASE).await });
    drop(journal);
    assert!(matches!(begun.await.unwrap(), Ok(Begun::New { .. })));
}

/// The simplest executor there is.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let thread = std::thread::current();
    let waker = Waker::from(Arc::new(Unpark(thread)));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn no_runtime_is_needed() {
    let folder = Folder::new();
    let journal = wait_for(SqliteJournal::open(folder.journal())).unwrap();
    let (begun, lease) = wait_for(begin(&journal, "order-42"));
    wait_for(super::close(&journal, &begun, lease, Phase::Rejected));
    assert_eq!(wait_for(phase_of(&journal, "order-42")), Some(Phase::Rejected));
}

#[tokio::test]
async fn a_begin_whose_future_is_dropped_leaves_the_operation_free() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    for (operation, polls, waits) in [("never polled", 0, false), ("queued", 1, false), ("answered", 1, true)] {
        let mut begin = journal.begin(record(operation), LEASE);
        for _ in 0..polls {
            assert!(begin.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        if waits {
            // The writer comes to it meanwhile, so its answer is on the way when the future is dropped.
            journal.get(id("nothing")).await.unwrap();
        }
        drop(begin);
        let free = match journal.begin(record(operation), LEASE).await.unwrap() {
            Begun::New { .. } => true,
            Begun::Known(_) => super::is_taken(&journal.acquire(id(operation), LEASE).await),
        };
        assert!(free, "{operation}");
    }
}

#[tokio::test]
async fn a_link_to_the_file_is_the_file() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let (_, lease) = begin(&journal, "order-42").await;
    #[cfg(unix)]
    {
        let link = folder.path("link.journal");
        std::os::unix::fs::symlink(folder.journal(), &link).unwrap();
        let other = SqliteJournal::open(&link).await.unwrap();
        assert_eq!(other.path(), journal.path());
        let held = other.acquire(lease.operation.clone(), LEASE).await.unwrap();
        assert!(matches!(held, crate::journal::Acquired::Held { .. }), "{held:?}");
    }
}
