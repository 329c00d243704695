//! Records to store, and how two of them are compared.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use url::Url;

use crate::clock::Timestamp;
use crate::contract::Contract;
use crate::fingerprint::Fingerprint;
use crate::journal::{Acquired, Begun, Journal, Lease};
use crate::key::{IdempotencyKey, Serialisation};
use crate::operation::{AfterSave, Closing, Durability, OperationId, Phase, Record, StoredReply, StoredRequest, Wire};

use super::failed;

/// Long enough to outlast a check.
pub(super) const LEASE: Duration = Duration::from_secs(90);

pub(super) fn id(text: &str) -> Result<OperationId, String> {
    OperationId::parse(text).map_err(|error| error.to_string())
}

/// An operation that is about to be sent, with a key of its own. Its times are nonsense: the journal stamps them.
pub(super) fn record(operation: &str) -> Result<Record, String> {
    Ok(Record {
        operation: id(operation)?,
        named: true,
        key: IdempotencyKey::generate().map_err(|error| error.to_string())?,
        phase: Phase::Sending,
        wire: Wire::from(&Contract::default()),
        method: Method::POST,
        url: Url::parse("https://api.example.com/orders").map_err(|error| error.to_string())?,
        credential_scope: None,
        fingerprint: None,
        request: Some(StoredRequest {
            headers: HeaderMap::new(),
            body: Bytes::from_static(b"{}"),
            needs_headers: false,
        }),
        begun_at: Timestamp::from_millis(1),
        first_sent_at: Some(Timestamp::from_millis(2)),
        updated_at: Timestamp::from_millis(3),
        next_attempt_at: None,
        attempts: 0,
        closing: None,
    })
}

/// An operation that waits to be sent.
pub(super) fn prepared(operation: &str) -> Result<Record, String> {
    Ok(Record { phase: Phase::Prepared, ..record(operation)? })
}

/// A record with something in every field, and nothing that is easy to store.
pub(super) fn full(operation: &str) -> Result<Record, String> {
    let plain = record(operation)?;
    Ok(Record {
        named: false,
        key: IdempotencyKey::parse(&r#"a "key" \ of 1000 ~~"#.repeat(50)).map_err(|error| error.to_string())?,
        wire: Wire {
            contract: "a contract: \"é\"".to_owned(),
            header: "x-key".to_owned(),
            serialisation: Serialisation::StructuredField,
            window: Duration::new(86_400, 1_000_001),
        },
        method: Method::from_bytes(b"PATCH").map_err(|error| error.to_string())?,
        url: Url::parse("https://api.example.com:8443/ä/%2F?q=1&q=%00'").map_err(|error| error.to_string())?,
        credential_scope: Some("scope 'ü'".to_owned()),
        fingerprint: Some(Fingerprint::from_bytes([0xa5; 32])),
        request: Some(StoredRequest { headers: headers(), body: every_byte(), needs_headers: true }),
        next_attempt_at: Some(Timestamp::from_millis(4_102_444_800_123)),
        attempts: u32::MAX,
        ..plain
    })
}

/// Two values under one name, an empty one, and one that is not UTF-8.
pub(super) fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [("accept", &b"a/b"[..]), ("accept", b"*/*"), ("x-empty", b""), ("x-bytes", b"\xff\xfe \"'\\")]
    {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(HeaderName::from_static(name), value);
        }
    }
    headers
}

pub(super) fn every_byte() -> Bytes {
    (0..=u8::MAX).chain(*b"\n\r\0{}").collect()
}

pub(super) fn closing(status: Option<StatusCode>) -> Closing {
    Closing { status, in_front: false, after_unknown: false, resolved: false, reply: None }
}

pub(super) fn reply() -> StoredReply {
    StoredReply { headers: headers(), body: every_byte() }
}

/// The record, closed.
pub(super) fn closed(record: &Record, phase: Phase) -> Record {
    Record { phase, request: None, closing: Some(closing(Some(StatusCode::OK))), ..record.clone() }
}

/// Begins an operation that must be new.
pub(super) async fn begin(journal: &dyn Journal, record: Record) -> Result<(Record, Lease), String> {
    let operation = record.operation.clone();
    match journal.begin(record, LEASE).await.map_err(failed("begin"))? {
        Begun::New { record, lease, .. } => Ok((*record, lease)),
        Begun::Known(_) => Err(format!("{operation} was begun for the first time, and is said to be known")),
    }
}

/// Takes a lease that must be free.
pub(super) async fn acquire(journal: &dyn Journal, operation: &OperationId) -> Result<(Record, Lease), String> {
    match journal.acquire(operation.clone(), LEASE).await.map_err(failed("acquire"))? {
        Acquired::Taken { record, lease, .. } => Ok((*record, lease)),
        Acquired::Held { until } => Err(format!("{operation} is free, and is said to be held until {until}")),
        Acquired::Unknown => Err(format!("{operation} was begun, and is said to be unknown")),
    }
}

pub(super) async fn save(journal: &dyn Journal, record: &Record, lease: &Lease, then: AfterSave) -> Result<(), String> {
    journal.save(record.clone(), lease.clone(), then, Durability::Now).await.map_err(failed("save"))
}

/// Looks up an operation that must be there.
pub(super) async fn get(journal: &dyn Journal, operation: &OperationId) -> Result<Record, String> {
    let found = journal.get(operation.clone()).await.map_err(failed("get"))?;
    found.ok_or_else(|| format!("{operation} was begun, and is not there"))
}

/// The record as it must come back: with the times that the journal gave it.
pub(super) fn stamped(record: &Record, as_found: &Record) -> Record {
    Record {
        begun_at: as_found.begun_at,
        first_sent_at: as_found.first_sent_at,
        updated_at: as_found.updated_at,
        ..record.clone()
    }
}

/// The names of the fields in which two records differ.
pub(super) fn differences(one: &Record, other: &Record) -> Vec<&'static str> {
    let requests =
        |record: &Record| record.request.clone().map(|request| (request.headers, request.body, request.needs_headers));
    let closings = |record: &Record| {
        record.closing.clone().map(|closing| {
            let reply = closing.reply.map(|reply| (reply.headers, reply.body));
            (closing.status, closing.in_front, closing.after_unknown, closing.resolved, reply)
        })
    };
    let fields = [
        ("operation", one.operation == other.operation),
        ("named", one.named == other.named),
        ("key", one.key == other.key),
        ("phase", one.phase == other.phase),
        ("wire", one.wire == other.wire),
        ("method", one.method == other.method),
        ("url", one.url == other.url),
        ("credential_scope", one.credential_scope == other.credential_scope),
        ("fingerprint", one.fingerprint == other.fingerprint),
        ("request", requests(one) == requests(other)),
        ("begun_at", one.begun_at == other.begun_at),
        ("first_sent_at", one.first_sent_at == other.first_sent_at),
        ("updated_at", one.updated_at == other.updated_at),
        ("next_attempt_at", one.next_attempt_at == other.next_attempt_at),
        ("attempts", one.attempts == other.attempts),
        ("closing", closings(one) == closings(other)),
    ];
    fields.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
}
