//! "The order's row is written" and "the operation will be delivered" commit or roll back together.

use reqwest_idempotency::journal::rusqlite::Connection;
use reqwest_idempotency::testing::{ManualClock, TestServer};
use reqwest_idempotency::{Delivery, ErrorKind, IdempotentClient, Keep, Phase, ResumedItem, SqliteJournal};

use crate::support::{self, Folder};

/// An application with a database of its own, in which the journal lives, too.
struct Shop {
    server: TestServer,
    folder: Folder,
    database: Connection,
    journal: SqliteJournal,
    client: IdempotentClient,
}

impl Shop {
    async fn open() -> Self {
        let server = TestServer::start().await.unwrap();
        let folder = Folder::new();
        let database = Connection::open(folder.path("shop.db")).unwrap();
        database.execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY)").unwrap();
        let journal = SqliteJournal::builder().in_application_database().open(folder.path("shop.db")).await.unwrap();
        let client = client(&journal);
        Self { server, folder, database, journal, client }
    }

    fn request(&self) -> reqwest_idempotency::RequestBuilder {
        self.client.post(self.server.url("/orders")).body(r#"{"item":"teapot"}"#).operation("order-42")
    }

    fn orders(&self) -> u32 {
        self.database.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap()
    }
}

fn client(journal: &SqliteJournal) -> IdempotentClient {
    support::client(&ManualClock::new(), |builder| {
        builder.journal(journal.clone()).clock(reqwest_idempotency::SystemClock)
    })
}

#[tokio::test]
async fn what_is_committed_together_is_sent_after_the_commit() {
    let mut shop = Shop::open().await;
    let request = shop.request();
    let transaction = shop.database.transaction().unwrap();
    transaction.execute("INSERT INTO orders VALUES ('order-42')", []).unwrap();
    let pending = shop.journal.begin_in(&transaction, request).unwrap();
    assert!(shop.client.operation("order-42").await.unwrap().is_none(), "nobody sees it before the commit");
    transaction.commit().unwrap();
    let record = shop.client.operation("order-42").await.unwrap().unwrap();
    assert_eq!((record.phase, record.first_sent_at), (Phase::Prepared, None));
    let response = pending.send().await.unwrap();
    assert_eq!(response.status(), 201);
    assert!(!response.after_unknown(), "prepared was not sent before");
    assert_eq!(response.key(), Some(&record.key));
    assert_eq!((shop.orders(), shop.server.executions()), (1, 1));
}

#[tokio::test]
async fn what_is_rolled_back_is_never_sent() {
    let mut shop = Shop::open().await;
    let request = shop.request();
    let transaction = shop.database.transaction().unwrap();
    transaction.execute("INSERT INTO orders VALUES ('order-42')", []).unwrap();
    let pending = shop.journal.begin_in(&transaction, request).unwrap();
    transaction.rollback().unwrap();
    let error = pending.send().await.unwrap_err();
    // For all that this call knows, the transaction may still be committed.
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::UnknownOperation, Delivery::Unknown));
    assert!(shop.client.resume().next().await.is_none());
    assert_eq!((shop.orders(), shop.server.requests().len()), (0, 0));
}

#[tokio::test]
async fn what_nobody_sent_after_the_commit_is_sent_by_a_resume() {
    let mut shop = Shop::open().await;
    let request = shop.request();
    let transaction = shop.database.transaction().unwrap();
    drop(shop.journal.begin_in(&transaction, request).unwrap());
    transaction.commit().unwrap();
    let mut resume = shop.client.resume();
    let Some(ResumedItem::Done(operation, Ok(response))) = resume.next().await else { panic!("it was not sent") };
    assert_eq!((operation.as_str(), response.status().as_u16()), ("order-42", 201));
    assert_eq!(shop.server.executions(), 1);
}

#[tokio::test]
async fn begun_again_it_is_the_same_operation_and_another_payload_is_refused() {
    let mut shop = Shop::open().await;
    let (first, again) = (shop.request(), shop.request());
    let other = shop.request().body("other");
    let transaction = shop.database.transaction().unwrap();
    drop(shop.journal.begin_in(&transaction, first).unwrap());
    let pending = shop.journal.begin_in(&transaction, again).unwrap();
    assert_eq!(shop.journal.begin_in(&transaction, other).unwrap_err().kind(), ErrorKind::PayloadMismatch);
    transaction.commit().unwrap();
    assert_eq!(pending.send().await.unwrap().status(), 201);
    assert_eq!(shop.server.executions(), 1);
}

#[tokio::test]
async fn what_cannot_be_sent_later_is_refused_and_the_transaction_goes_on() {
    let mut shop = Shop::open().await;
    let unnamed = shop.client.post(shop.server.url("/orders")).body("{}");
    let without_body = shop.request().keep(Keep::Key);
    let keyless = shop.client.get(shop.server.url("/orders/1")).operation("order-42");
    let transaction = shop.database.transaction().unwrap();
    for request in [unnamed, without_body, keyless] {
        assert_eq!(shop.journal.begin_in(&transaction, request).unwrap_err().kind(), ErrorKind::Configuration);
    }
    transaction.execute("INSERT INTO orders VALUES ('order-42')", []).unwrap();
    transaction.commit().unwrap();
    assert_eq!(shop.orders(), 1);
}

#[tokio::test]
async fn a_transaction_on_another_database_is_refused() {
    let shop = Shop::open().await;
    let mut elsewhere = Connection::open(shop.folder.path("other.db")).unwrap();
    let transaction = elsewhere.transaction().unwrap();
    let error = shop.journal.begin_in(&transaction, shop.request()).unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Journal, Delivery::NotSent));
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("other.db") && source.contains("shop.db"), "{source}");
}

#[tokio::test]
async fn another_key_under_the_same_id_is_refused_and_not_replaced() {
    use reqwest_idempotency::IdempotencyKey;
    let mut shop = Shop::open().await;
    let key = |text: &str| IdempotencyKey::parse(text).unwrap();
    let (first, again) = (shop.request().key(key("first-key")), shop.request().key(key("second-key")));
    let transaction = shop.database.transaction().unwrap();
    drop(shop.journal.begin_in(&transaction, first).unwrap());
    assert_eq!(shop.journal.begin_in(&transaction, again).unwrap_err().kind(), ErrorKind::PayloadMismatch);
    transaction.commit().unwrap();
}

#[tokio::test]
async fn a_request_of_a_client_with_another_journal_is_refused() {
    let mut shop = Shop::open().await;
    let stranger = IdempotentClient::in_memory().unwrap();
    let request = stranger.post(shop.server.url("/orders")).body("{}").operation("order-42");
    let transaction = shop.database.transaction().unwrap();
    assert_eq!(shop.journal.begin_in(&transaction, request).unwrap_err().kind(), ErrorKind::Configuration);
}
