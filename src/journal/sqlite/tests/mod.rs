mod child;
mod clock;
mod damage;
mod durability;
mod errors;
mod files;
mod groups;
mod outbox;
mod processes;
mod suite;
mod upkeep;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use url::Url;

use super::SqliteJournal;
use crate::clock::Timestamp;
use crate::contract::Contract;
use crate::journal::{Acquired, Begun, Journal as _, JournalError, Lease};
use crate::key::IdempotencyKey;
use crate::operation::{AfterSave, Closing, Durability, OperationId, Phase, Record, StoredRequest, Wire};

/// Longer than any test takes.
const LEASE: Duration = Duration::from_secs(60 * 60);

fn id(text: &str) -> OperationId {
    OperationId::parse(text).unwrap()
}

fn record(operation: &str) -> Record {
    Record {
        operation: id(operation),
        named: true,
        key: IdempotencyKey::generate().unwrap(),
        phase: Phase::Sending,
        wire: Wire::from(&Contract::default()),
        method: Method::POST,
        url: Url::parse("https://api.example.com/orders").unwrap(),
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

fn closed(record: &Record, phase: Phase) -> Record {
    let closing = Closing {
        status: Some(StatusCode::CREATED),
        in_front: false,
        after_unknown: false,
        resolved: false,
        reply: None,
    };
    Record { phase, request: None, closing: Some(closing), ..record.clone() }
}

async fn begin(journal: &SqliteJournal, operation: &str) -> (Record, Lease) {
    match journal.begin(record(operation), LEASE).await.unwrap() {
        Begun::New { record, lease, .. } => (*record, lease),
        Begun::Known(known) => panic!("{operation} is known as {}", known.phase),
    }
}

async fn close(journal: &SqliteJournal, record: &Record, lease: Lease, phase: Phase) {
    journal.save(closed(record, phase), lease, AfterSave::ReleaseLease, Durability::Now).await.unwrap();
}

async fn phase_of(journal: &SqliteJournal, operation: &str) -> Option<Phase> {
    journal.get(id(operation)).await.unwrap().map(|record| record.phase)
}

fn is_taken(acquired: &Result<Acquired, JournalError>) -> bool {
    matches!(acquired, Ok(Acquired::Taken { .. }))
}

/// A folder of its own, removed with everything in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// In memory, where there is such a place: for tests that open thousands of files and need no disk.
    fn fast() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::below(memory) } else { Self::new() }
    }

    fn below(folder: &Path) -> Self {
        let path = folder.join(format!("reqwest-idempotency-{}", OperationId::generate().unwrap()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn journal(&self) -> PathBuf {
        self.path("orders.journal")
    }

    /// A copy of a journal's files, without its locks. Nobody may have them open.
    fn copied(&self) -> Self {
        let copy = Self::fast();
        for suffix in ["", "-wal"] {
            let (from, to) = (beside(&self.journal(), suffix), beside(&copy.journal(), suffix));
            if from.exists() {
                std::fs::copy(from, to).unwrap();
            }
        }
        copy
    }
}

/// The file beside another whose name goes on like this.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
