//! The conformance suite, on files.

use std::sync::Arc;
use std::time::Duration;

use super::Folder;
use crate::clock::BoxFuture;
use crate::journal::{Journal, JournalError, SqliteJournal};
use crate::testing::ManualClock;
use crate::testing::journal_suite::{TestStore, journal_suite};

struct OneFile {
    folder: Folder,
    clock: ManualClock,
    upkeep: Upkeep,
}

/// When finished operations move out of the small table.
#[derive(Clone, Copy)]
enum Upkeep {
    WhenIdle,
    BeforeEachOpen,
}

impl TestStore for OneFile {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Journal>, JournalError>> {
        Box::pin(async {
            // Longer than any check lets pass, so that nothing is dropped but by the purge that is checked.
            let retention = Duration::from_secs(365 * 24 * 60 * 60);
            let builder = SqliteJournal::builder().clock(Arc::new(self.clock.clone())).retention(retention);
            let journal = builder.open(self.folder.journal()).await?;
            if matches!(self.upkeep, Upkeep::BeforeEachOpen) {
                journal.settle().await?;
            }
            Ok(Arc::new(journal) as Arc<dyn Journal>)
        })
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, bool> {
        self.clock.advance(by);
        Box::pin(async {
            if matches!(self.upkeep, Upkeep::BeforeEachOpen) {
                let journal = self.open().await;
                drop(journal);
            }
            true
        })
    }

    fn step_back(&self, by: Duration) -> BoxFuture<'_, bool> {
        self.clock.step_wall(-i64::try_from(by.as_millis()).unwrap());
        Box::pin(std::future::ready(true))
    }
}

async fn suite(upkeep: Upkeep) {
    let made = async || OneFile { folder: Folder::new(), clock: ManualClock::new(), upkeep };
    let report = journal_suite(made).await.unwrap();
    assert!(report.left_out.is_empty(), "{report}");
}

#[tokio::test]
async fn the_sqlite_journal_keeps_its_promises() {
    suite(Upkeep::WhenIdle).await;
}

#[tokio::test]
async fn the_sqlite_journal_keeps_them_while_finished_operations_move() {
    suite(Upkeep::BeforeEachOpen).await;
}
