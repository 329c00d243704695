//! Files that were cut off, or changed, by something else than SQLite.

use std::path::Path;

use super::child::Player;
use super::{Begun, Folder, LEASE, Record, SqliteJournal, begin, beside, close, id, record};
use crate::journal::{Journal as _, JournalErrorKind};
use crate::operation::Phase;

/// A journal with three operations in its log, left by a killed process.
fn three_in_the_log() -> Folder {
    let folder = Folder::new();
    let mut other = Player::start("begins three", &folder.journal());
    other.hears("begun");
    other.kill();
    folder
}

/// How many of the three are there. They must be the first ones.
async fn count(journal: &SqliteJournal) -> usize {
    let there = journal.pending(None, 10).await.unwrap();
    assert_eq!(there, ["order-1", "order-2", "order-3"].map(id)[..there.len()]);
    there.len()
}

#[tokio::test]
async fn a_torn_tail_loses_the_last_operations_and_nothing_else() {
    let folder = three_in_the_log();
    let log = std::fs::read(beside(&folder.journal(), "-wal")).unwrap();
    let mut before = 0;
    for length in (0..=log.len()).step_by(1_000).chain([log.len()]) {
        let copy = folder.copied();
        std::fs::write(beside(&copy.journal(), "-wal"), &log[..length]).unwrap();
        let journal = SqliteJournal::open(copy.journal()).await.unwrap();
        let there = count(&journal).await;
        assert!(there >= before, "a longer log has fewer operations");
        before = there;
        for number in there + 1..=3 {
            begin(&journal, &format!("order-{number}")).await;
        }
        assert_eq!(count(&journal).await, 3);
    }
    assert_eq!(before, 3, "the whole log has all of them");
}

#[tokio::test]
async fn a_changed_byte_in_the_log_is_never_read_as_a_record() {
    let folder = three_in_the_log();
    let log = std::fs::read(beside(&folder.journal(), "-wal")).unwrap();
    for position in (0..log.len()).step_by(997) {
        let copy = folder.copied();
        let mut changed = log.clone();
        changed[position] ^= 0x10;
        std::fs::write(beside(&copy.journal(), "-wal"), changed).unwrap();
        match SqliteJournal::open(copy.journal()).await {
            Ok(journal) => {
                count(&journal).await;
            }
            Err(error) => assert_eq!(error.kind(), JournalErrorKind::Corrupt, "{error}"),
        }
    }
}

/// A journal with one pending operation and one finished one, all in its file.
async fn one_pending() -> (Folder, Record) {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let (pending, _) = begin(&journal, "order-42").await;
    let (finished, lease) = begin(&journal, "order-41").await;
    close(&journal, &finished, lease, Phase::Completed).await;
    journal.settle().await.unwrap();
    drop(journal);
    assert!(!beside(&folder.journal(), "-wal").exists(), "the last to close leaves no log");
    (folder, pending)
}

/// Whatever was done to the file: the operation is not begun a second time, and no other key comes back for it.
async fn is_not_taken_for_new(file: &Path, as_it_was: &Record, what: &str) {
    let journal = match SqliteJournal::open(file).await {
        Ok(journal) => journal,
        Err(error) => {
            assert!(!error.may_be_saved());
            assert!(matches!(error.kind(), JournalErrorKind::Corrupt | JournalErrorKind::Unavailable), "{error}");
            return;
        }
    };
    match journal.begin(record("order-42"), LEASE).await {
        Ok(Begun::New { .. }) => panic!("{what}: begun a second time"),
        Ok(Begun::Known(known)) => {
            assert_eq!(known.key, as_it_was.key, "{what}: another key");
            assert_eq!(known.url, as_it_was.url, "{what}: another URL");
            let body = |record: &Record| record.request.as_ref().map(|request| request.body.clone());
            assert_eq!(body(&known), body(as_it_was), "{what}: another body");
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("orders.journal"), "{what}: {text}");
            assert!(!text.contains(as_it_was.key.as_str()), "{what}: the key is in {text}");
        }
    }
}

/// Changes one bit in each byte of the file that is in use, every `step`th of them.
async fn change_bytes(step: usize) {
    let (folder, pending) = one_pending().await;
    let file = std::fs::read(folder.journal()).unwrap();
    // What is written into the free space of a page is not looked at.
    let in_use = |position: usize| file[position] != 0 || file.get(position + 1).is_some_and(|byte| *byte != 0);
    let positions: Vec<usize> = (0..file.len()).filter(|position| in_use(*position)).step_by(step).collect();
    assert!(positions.len() * step > 5_000, "only {} bytes are in use", positions.len() * step);
    for position in positions {
        let copy = Folder::fast();
        let mut changed = file.clone();
        changed[position] ^= 1 << (position % 8);
        std::fs::write(copy.journal(), changed).unwrap();
        is_not_taken_for_new(&copy.journal(), &pending, &format!("byte {position}")).await;
    }
}

#[tokio::test]
async fn no_changed_byte_makes_a_pending_operation_new_or_gives_it_another_key() {
    change_bytes(11).await;
}

#[tokio::test]
#[ignore = "takes a minute; run it when the schema or its checks change"]
async fn no_changed_byte_at_all_makes_a_pending_operation_new_or_gives_it_another_key() {
    change_bytes(1).await;
}

#[tokio::test]
async fn a_file_cut_short_is_refused_or_complete() {
    let (folder, pending) = one_pending().await;
    let file = std::fs::read(folder.journal()).unwrap();
    for length in (1..file.len()).step_by(509) {
        let copy = Folder::fast();
        std::fs::write(copy.journal(), &file[..length]).unwrap();
        is_not_taken_for_new(&copy.journal(), &pending, &format!("cut to {length} bytes")).await;
    }
}

#[tokio::test]
async fn a_row_edited_by_hand_is_taken_once_its_checksum_is_null() {
    let (folder, _) = one_pending().await;
    let edit = |sql: &str| {
        let connection = rusqlite::Connection::open(folder.journal()).unwrap();
        assert_eq!(connection.execute(sql, []).unwrap(), 1);
    };
    edit("UPDATE idempotency_operation SET attempts = 7");
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let error = journal.get(id("order-42")).await.unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::Corrupt);
    assert!(error.to_string().contains("order-42"), "{error}");
    drop(journal);
    edit("UPDATE idempotency_operation SET checksum = NULL");
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    assert_eq!(journal.get(id("order-42")).await.unwrap().unwrap().attempts, 7);
}

#[tokio::test]
async fn damage_in_a_large_journal_is_found_while_it_is_in_use_and_stops_what_would_be_sent() {
    let folder = Folder::fast();
    drop(SqliteJournal::open(folder.journal()).await.unwrap());
    let connection = rusqlite::Connection::open(folder.journal()).unwrap();
    // 5,000 pending rows; then one byte changes in the index or in the row, whichever comes first.
    connection
        .execute_batch(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
             INSERT INTO idempotency_operation (operation, phase, attempts, begun_at, updated_at, named,
                 idempotency_key, method, url, contract, header, serialisation, window_ms, window_ns, token)
             SELECT 'order-' || i, 'sending', 0, 1, 1, 1, 'key-' || i, 'POST', 'https://a.example/', 'default',
                 'idempotency-key', 'raw', 1000, 0, 1 FROM n;",
        )
        .unwrap();
    drop(connection);
    let mut file = std::fs::read(folder.journal()).unwrap();
    let name = b"order-4242";
    let position = file.windows(name.len()).position(|bytes| bytes == name).unwrap();
    file[position + name.len() - 1] = b'x';
    std::fs::write(folder.journal(), file).unwrap();

    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let mut begins = 0;
    let error = loop {
        match journal.begin(record(&format!("new-{begins}")), LEASE).await {
            Ok(_) => begins += 1,
            Err(error) => break error,
        }
        assert!(begins < 100_000, "the damage was never found");
    };
    assert_eq!(error.kind(), JournalErrorKind::Corrupt, "{error}");
    let error = journal.acquire(id("order-1"), LEASE).await.unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::Corrupt, "{error}");
}
