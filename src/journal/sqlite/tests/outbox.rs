//! An operation that is begun with the caller's own data, or not at all.

use rusqlite::Connection;

use super::{Folder, LEASE, SqliteJournal, begin, closed, id, phase_of, record};
use crate::journal::{Acquired, Begun, Journal as _, JournalErrorKind};
use crate::operation::{AfterSave, Phase};

/// An application's database with the journal inside it, and the application's connection.
async fn application(folder: &Folder) -> (SqliteJournal, Connection) {
    let connection = Connection::open(folder.journal()).unwrap();
    connection
        .execute_batch(
            "PRAGMA user_version = 17; PRAGMA application_id = 42; CREATE TABLE orders (id INTEGER PRIMARY KEY)",
        )
        .unwrap();
    let journal = SqliteJournal::builder().in_application_database().open(folder.journal()).await.unwrap();
    (journal, connection)
}

#[tokio::test]
async fn it_is_begun_if_and_only_if_the_callers_transaction_is_committed() {
    let folder = Folder::new();
    let (journal, mut connection) = application(&folder).await;

    let transaction = connection.transaction().unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)", []).unwrap();
    assert!(journal.insert_in(&transaction, record("order-1")).unwrap().is_none());
    transaction.rollback().unwrap();
    assert_eq!(phase_of(&journal, "order-1").await, None);

    let transaction = connection.transaction().unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)", []).unwrap();
    assert!(journal.insert_in(&transaction, record("order-1")).unwrap().is_none());
    transaction.commit().unwrap();
    let found = journal.get(id("order-1")).await.unwrap().unwrap();
    assert_eq!((found.phase, found.first_sent_at), (Phase::Prepared, None));
    assert!(found.begun_at == found.updated_at && found.begun_at.as_millis() > 0);
    assert_eq!(journal.pending(None, 10).await.unwrap(), [id("order-1")]);

    // Nobody has it, so the first to ask does.
    let acquired = journal.acquire(id("order-1"), LEASE).await.unwrap();
    let Acquired::Taken { record, lease, .. } = acquired else { panic!("{acquired:?}") };
    assert_eq!(lease.token, 1);
    super::close(&journal, &record, lease, Phase::Completed).await;

    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("PRAGMA user_version"), 17, "that is the application's");
    assert_eq!(number("PRAGMA application_id"), 42, "that, too");
    assert_eq!(number("SELECT count(*) FROM orders"), 1);
}

#[tokio::test]
async fn a_known_operation_is_handed_back_and_the_transaction_goes_on() {
    let folder = Folder::new();
    let (journal, mut connection) = application(&folder).await;
    let (pending, _) = begin(&journal, "pending").await;
    let (finished, lease) = begin(&journal, "finished").await;
    super::close(&journal, &finished, lease, Phase::Rejected).await;
    journal.settle().await.unwrap();

    let transaction = connection.transaction().unwrap();
    let known = journal.insert_in(&transaction, record("pending")).unwrap().unwrap();
    assert_eq!((known.key, known.phase), (pending.key, Phase::Sending));
    let known = journal.insert_in(&transaction, record("finished")).unwrap().unwrap();
    assert_eq!((known.key, known.phase), (finished.key, Phase::Rejected));
    assert!(journal.insert_in(&transaction, record("new")).unwrap().is_none());
    transaction.commit().unwrap();
    assert_eq!(phase_of(&journal, "new").await, Some(Phase::Prepared));
    let again = journal.begin(record("new"), LEASE).await.unwrap();
    assert!(matches!(again, Begun::Known(known) if known.phase == Phase::Prepared));
}

#[tokio::test]
async fn a_transaction_on_another_file_is_refused() {
    let folder = Folder::new();
    let (journal, connection) = application(&folder).await;
    drop(connection);
    let mut elsewhere = Connection::open(folder.path("other.db")).unwrap();
    let mut nowhere = Connection::open_in_memory().unwrap();
    for connection in [&mut elsewhere, &mut nowhere] {
        let transaction = connection.transaction().unwrap();
        let error = journal.insert_in(&transaction, record("order-42")).unwrap_err();
        assert_eq!(error.kind(), JournalErrorKind::Unavailable);
        assert!(error.to_string().contains("open both on one file"), "{error}");
    }
    assert_eq!(phase_of(&journal, "order-42").await, None);
}

#[tokio::test]
async fn without_its_request_it_is_refused() {
    let folder = Folder::new();
    let (journal, mut connection) = application(&folder).await;
    let mut without = record("order-42");
    without.request = None;
    let transaction = connection.transaction().unwrap();
    let error = journal.insert_in(&transaction, without).unwrap_err();
    assert!(error.to_string().contains("Keep::Request"), "{error}");
    transaction.commit().unwrap();
    assert_eq!(phase_of(&journal, "order-42").await, None);
}

#[tokio::test]
async fn it_works_on_the_journals_own_file_too() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    let mut connection = Connection::open(folder.journal()).unwrap();
    let transaction = connection.transaction().unwrap();
    assert!(journal.insert_in(&transaction, record("order-42")).unwrap().is_none());
    transaction.commit().unwrap();
    let acquired = journal.acquire(id("order-42"), LEASE).await.unwrap();
    let Acquired::Taken { record, lease, .. } = acquired else { panic!("{acquired:?}") };
    journal
        .save(closed(&record, Phase::Completed), lease, AfterSave::ReleaseLease, crate::operation::Durability::Now)
        .await
        .unwrap();
}
