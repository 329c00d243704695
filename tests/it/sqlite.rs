//! Files of every released version, which must be read for ever.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest_idempotency::journal::{Acquired, Begun, Journal};
use reqwest_idempotency::testing::ManualClock;
use reqwest_idempotency::{OperationId, Phase, Record, SqliteJournal, Timestamp};

use crate::support::Folder;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn id(text: &str) -> OperationId {
    OperationId::parse(text).unwrap()
}

/// What is in both fixtures under `order-42`.
#[track_caller]
fn is_order_42(record: &Record) {
    assert_eq!(record.operation.as_str(), "order-42");
    assert!(record.named);
    assert_eq!(record.key.as_str(), "0d3b5c7e-2a4f-4b6d-8e9f-a1b2c3d4e5f6");
    assert_eq!(record.phase, Phase::Sending);
    assert_eq!((record.wire.contract.as_str(), record.wire.header.as_str()), ("default", "idempotency-key"));
    assert_eq!(record.wire.window, Duration::from_secs(86_400));
    assert_eq!(record.method, "POST");
    assert_eq!(record.url.as_str(), "https://api.example.com/orders?dry=0");
    assert_eq!(record.credential_scope.as_deref(), Some("shop-1"));
    assert_eq!(record.fingerprint.unwrap().as_bytes(), &[0xa5; 32]);
    let request = record.request.as_ref().unwrap();
    assert_eq!(&request.body[..], b"{\"amount\":4200,\"note\":\"\xc3\xa9\"}\n\0\xff");
    assert_eq!(request.headers["content-type"], "application/json");
    assert_eq!(request.headers["x-bytes"].as_bytes(), b"\xff\xfe");
    assert!(request.needs_headers);
    assert_eq!(record.attempts, 3);
    assert_eq!(record.next_attempt_at, Some(Timestamp::from_millis(1_767_225_900_000)));
    assert!(record.closing.is_none());
}

/// What is in both fixtures under `order-41`.
#[track_caller]
fn is_order_41(record: &Record) {
    assert_eq!(record.operation.as_str(), "order-41");
    assert_eq!(record.phase, Phase::Rejected);
    assert!(record.request.is_none() && record.fingerprint.is_none() && record.credential_scope.is_none());
    let closing = record.closing.as_ref().unwrap();
    assert_eq!(closing.status.unwrap(), 409);
    assert!(closing.after_unknown && !closing.in_front && !closing.resolved);
    let reply = closing.reply.as_ref().unwrap();
    assert_eq!(reply.headers["content-type"], "application/problem+json");
    assert_eq!(&reply.body[..], b"{\"type\":\"conflict\"}");
}

#[test]
fn a_record_of_version_1_is_read() {
    is_order_42(&Record::from_bytes(&std::fs::read(fixture("record-v1-sending.bin")).unwrap()).unwrap());
    is_order_41(&Record::from_bytes(&std::fs::read(fixture("record-v1-rejected.bin")).unwrap()).unwrap());
}

#[tokio::test]
async fn a_journal_file_of_version_1_is_read_and_goes_on() {
    let folder = Folder::new();
    let path = folder.path("orders.journal");
    std::fs::copy(fixture("journal-v1.sqlite"), &path).unwrap();
    // Ten minutes after it was written, so that nothing in it is past its time.
    let clock = ManualClock::new();
    let journal = SqliteJournal::builder().clock(Arc::new(clock)).open(&path).await.unwrap();
    assert_eq!(journal.salt(), b"salt of 16 bytes");
    assert_eq!(journal.pending(None, 10).await.unwrap(), [id("order-42"), id("order-43")]);
    // One in the small table, under a lease whose owner is long gone, and one in the large.
    is_order_42(&journal.get(id("order-42")).await.unwrap().unwrap());
    is_order_41(&journal.get(id("order-41")).await.unwrap().unwrap());
    assert_eq!(journal.get(id("order-43")).await.unwrap().unwrap().phase, Phase::Prepared);
    assert_eq!(journal.get(id("order-40")).await.unwrap().unwrap().phase, Phase::Failed);

    let acquired = journal.acquire(id("order-42"), Duration::from_secs(90)).await.unwrap();
    let Acquired::Taken { record, lease, .. } = acquired else { panic!("{acquired:?}") };
    is_order_42(&record);
    assert_eq!(lease.token, 6);
    let begun = journal.begin(*record, Duration::from_secs(90)).await.unwrap();
    assert!(matches!(begun, Begun::Known(_)), "{begun:?}");
}
