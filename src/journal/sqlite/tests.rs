use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use url::Url;

use super::SqliteJournal;
use crate::clock::Timestamp;
use crate::contract::Contract;
use crate::journal::{Acquired, Begun, Journal as _};
use crate::key::IdempotencyKey;
use crate::operation::{OperationId, Phase, Record, StoredRequest, Wire};

pub(super) fn record(id: &str) -> Record {
    Record {
        operation: OperationId::parse(id).unwrap(),
        named: true,
        key: IdempotencyKey::generate().unwrap(),
        phase: Phase::Sending,
        wire: Wire::from(&Contract::default()),
        method: Method::POST,
        url: Url::parse("https://api.example.com/orders?x=1").unwrap(),
        credential_scope: None,
        fingerprint: None,
        request: Some(StoredRequest {
            headers: HeaderMap::from_iter([(http::header::ACCEPT, HeaderValue::from_static("*/*"))]),
            body: Bytes::from_static(b"{\"amount\":4200}"),
            needs_headers: false,
        }),
        begun_at: Timestamp::default(),
        first_sent_at: None,
        updated_at: Timestamp::default(),
        next_attempt_at: None,
        attempts: 0,
        closing: None,
    }
}

/// A folder of its own, removed with everything in it.
pub(super) struct Folder(std::path::PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        let name = format!("reqwest-idempotency-{}", OperationId::generate().unwrap());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn journal(&self) -> std::path::PathBuf {
        self.0.join("orders.journal")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const LEASE: Duration = Duration::from_secs(90);

#[tokio::test]
async fn smoke() {
    let folder = Folder::new();
    let path = folder.journal();
    let journal = SqliteJournal::open(&path).await.unwrap();
    let journal = Arc::new(journal);
    let begun = journal.begin(record("order-1"), LEASE).await.unwrap();
    let Begun::New { lease, .. } = begun else { panic!() };
    assert_eq!(lease.token, 1);
    let known = journal.begin(record("order-1"), LEASE).await.unwrap();
    assert!(matches!(known, Begun::Known(_)));
    let other = SqliteJournal::open(&path).await.unwrap();
    assert!(matches!(other.acquire(lease.operation.clone(), LEASE).await.unwrap(), Acquired::Held { .. }));
    drop(journal);
    assert!(matches!(other.acquire(lease.operation.clone(), LEASE).await.unwrap(), Acquired::Taken { .. }));
    println!("{:?}", other.pending(None, 10).await.unwrap());
    other.settle().await.unwrap();
}
