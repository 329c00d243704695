//! The versioned encoding of a record, for stores that keep it as bytes.
//!
//! One line of JSON, a line feed, then the request's body and the reply's body, each as many bytes as the JSON says:
//!
//! ```text
//! {"v":1,"operation":"order-42",…,"request":{"headers":[["accept","*/*"]],…,"body_bytes":16},…}
//! {"amount":4200}…
//! ```
//!
//! Bodies stay as they are, so they cost no escaping, and a person can read the rest. A header is a pair of name and
//! value; a value that is not UTF-8 is an array of its bytes. Times are milliseconds since 1970. What a release does not
//! know is refused: a record that is understood by half could be sent twice.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::Url;

use super::{Closing, OperationId, Phase, Record, StoredReply, StoredRequest, Wire};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::key::{IdempotencyKey, Serialisation};

/// The version that this release writes.
const VERSION: u64 = 1;

impl Record {
    /// The record as bytes, for a journal that stores it so. They contain the key and, if it is kept, the request.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let request = self.request.as_ref().map_or(&[][..], |request| &request.body);
        let reply =
            self.closing.as_ref().and_then(|closing| closing.reply.as_ref()).map_or(&[][..], |reply| &reply.body);
        // A map of strings, numbers and booleans cannot fail to be written to memory.
        let mut bytes = serde_json::to_vec(&RecordV1::from(self)).unwrap_or_default();
        bytes.reserve_exact(1 + request.len() + reply.len());
        bytes.push(b'\n');
        bytes.extend_from_slice(request);
        bytes.extend_from_slice(reply);
        bytes
    }

    /// The record that [`to_bytes`](Self::to_bytes) wrote, in this release or an earlier one.
    ///
    /// # Errors
    ///
    /// The bytes are no record, are damaged, or come from a later release. The message never contains the key.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(RecordError::NotARecord)?;
        let (head, bodies) = bytes.split_at_checked(end).ok_or(RecordError::NotARecord)?;
        let bodies = bodies.get(1..).unwrap_or_default();
        let AnyVersion { v } = serde_json::from_slice(head).map_err(|_| RecordError::NotARecord)?;
        if v != VERSION {
            return Err(RecordError::Version { found: v });
        }
        let record: RecordV1<'_> = serde_json::from_slice(head).map_err(|_| RecordError::Damaged("the JSON line"))?;
        record.with_bodies(bodies)
    }
}

/// Why stored bytes are not a record that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Something else than a record.
    #[error("these bytes are no record of this crate's; was another value stored under the operation's name?")]
    NotARecord,
    /// Written by a later release.
    #[error(
        "the record has the encoding version {found} and this release reads version {VERSION}; use the release that \
         wrote it, or a later one"
    )]
    #[expect(missing_docs, reason = "the variant says it")]
    Version { found: u64 },
    /// A part of it cannot be read.
    #[error("{0} of the stored record cannot be read; restore it from a backup, or settle the operation by hand")]
    Damaged(&'static str),
}

#[derive(Deserialize)]
struct AnyVersion {
    v: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordV1<'a> {
    v: u64,
    operation: Cow<'a, str>,
    named: bool,
    key: Cow<'a, str>,
    phase: Cow<'a, str>,
    contract: Cow<'a, str>,
    header: Cow<'a, str>,
    serialisation: Cow<'a, str>,
    window_ms: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    window_ns: u32,
    method: Cow<'a, str>,
    url: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    credential_scope: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<Cow<'a, str>>,
    begun_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_sent_at: Option<u64>,
    updated_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_attempt_at: Option<u64>,
    attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<RequestV1<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    closing: Option<ClosingV1<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestV1<'a> {
    headers: Headers<'a>,
    needs_headers: bool,
    body_bytes: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClosingV1<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    in_front: bool,
    after_unknown: bool,
    resolved: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply: Option<ReplyV1<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplyV1<'a> {
    headers: Headers<'a>,
    body_bytes: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl<'a> From<&'a Record> for RecordV1<'a> {
    fn from(record: &'a Record) -> Self {
        let (window_ms, window_ns) = split_window(record.wire.window);
        let closing = record.closing.as_ref();
        Self {
            v: VERSION,
            operation: record.operation.as_str().into(),
            named: record.named,
            key: record.key.as_str().into(),
            phase: record.phase.as_str().into(),
            contract: record.wire.contract.as_str().into(),
            header: record.wire.header.as_str().into(),
            serialisation: serialisation_word(record.wire.serialisation).into(),
            window_ms,
            window_ns,
            method: record.method.as_str().into(),
            url: record.url.as_str().into(),
            credential_scope: record.credential_scope.as_deref().map(Cow::from),
            fingerprint: record.fingerprint.as_ref().map(|fingerprint| hex(fingerprint.as_bytes()).into()),
            begun_at: record.begun_at.as_millis(),
            first_sent_at: record.first_sent_at.map(Timestamp::as_millis),
            updated_at: record.updated_at.as_millis(),
            next_attempt_at: record.next_attempt_at.map(Timestamp::as_millis),
            attempts: record.attempts,
            request: record.request.as_ref().map(|request| RequestV1 {
                headers: Headers(Cow::Borrowed(&request.headers)),
                needs_headers: request.needs_headers,
                body_bytes: request.body.len(),
            }),
            closing: closing.map(|closing| ClosingV1 {
                status: closing.status.map(|status| status.as_u16()),
                in_front: closing.in_front,
                after_unknown: closing.after_unknown,
                resolved: closing.resolved,
                reply: closing.reply.as_ref().map(|reply| ReplyV1 {
                    headers: Headers(Cow::Borrowed(&reply.headers)),
                    body_bytes: reply.body.len(),
                }),
            }),
        }
    }
}

impl RecordV1<'_> {
    fn with_bodies(self, bodies: &[u8]) -> Result<Record, RecordError> {
        let request_bytes = self.request.as_ref().map_or(0, |request| request.body_bytes);
        let reply = self.closing.as_ref().and_then(|closing| closing.reply.as_ref());
        let reply_bytes = reply.map_or(0, |reply| reply.body_bytes);
        if request_bytes.checked_add(reply_bytes) != Some(bodies.len()) {
            return Err(RecordError::Damaged("a body"));
        }
        let (request_body, reply_body) =
            bodies.split_at_checked(request_bytes).ok_or(RecordError::Damaged("a body"))?;
        Ok(Record {
            operation: operation(&self.operation)?,
            named: self.named,
            key: key(&self.key)?,
            phase: phase(&self.phase)?,
            wire: Wire {
                contract: self.contract.into_owned(),
                header: self.header.into_owned(),
                serialisation: serialisation(&self.serialisation)?,
                window: join_window(self.window_ms, self.window_ns),
            },
            method: method(&self.method)?,
            url: url(&self.url)?,
            credential_scope: self.credential_scope.map(Cow::into_owned),
            fingerprint: self.fingerprint.as_deref().map(fingerprint).transpose()?,
            request: self.request.map(|request| StoredRequest {
                headers: request.headers.0.into_owned(),
                body: Bytes::copy_from_slice(request_body),
                needs_headers: request.needs_headers,
            }),
            begun_at: Timestamp::from_millis(self.begun_at),
            first_sent_at: self.first_sent_at.map(Timestamp::from_millis),
            updated_at: Timestamp::from_millis(self.updated_at),
            next_attempt_at: self.next_attempt_at.map(Timestamp::from_millis),
            attempts: self.attempts,
            closing: match self.closing {
                None => None,
                Some(closing) => Some(Closing {
                    status: closing.status.map(status).transpose()?,
                    in_front: closing.in_front,
                    after_unknown: closing.after_unknown,
                    resolved: closing.resolved,
                    reply: closing.reply.map(|reply| StoredReply {
                        headers: reply.headers.0.into_owned(),
                        body: Bytes::copy_from_slice(reply_body),
                    }),
                }),
            },
        })
    }
}

/// A window in whole milliseconds and the nanoseconds beyond, so that it compares equal after a restart. One that is too
/// long to count stands for "for ever".
pub(crate) fn split_window(window: Duration) -> (u64, u32) {
    match u64::try_from(window.as_millis()) {
        Ok(millis) => (millis, window.subsec_nanos() % 1_000_000),
        Err(_) => (u64::MAX, 0),
    }
}

pub(crate) fn join_window(millis: u64, nanos: u32) -> Duration {
    if millis == u64::MAX {
        return Duration::MAX;
    }
    Duration::from_millis(millis).saturating_add(Duration::from_nanos(nanos.into()))
}

pub(crate) const fn serialisation_word(serialisation: Serialisation) -> &'static str {
    match serialisation {
        Serialisation::Raw => "raw",
        Serialisation::StructuredField => "structured_field",
    }
}

pub(crate) fn serialisation(word: &str) -> Result<Serialisation, RecordError> {
    [Serialisation::Raw, Serialisation::StructuredField]
        .into_iter()
        .find(|serialisation| serialisation_word(*serialisation) == word)
        .ok_or(RecordError::Damaged("the key's serialisation"))
}

pub(crate) fn phase(word: &str) -> Result<Phase, RecordError> {
    use Phase::{Abandoned, Completed, Expired, Failed, NotSent, Prepared, Rejected, Sending};
    [Prepared, Sending, Completed, Rejected, NotSent, Failed, Expired, Abandoned]
        .into_iter()
        .find(|phase| phase.as_str() == word)
        .ok_or(RecordError::Damaged("the phase"))
}

pub(crate) fn operation(text: &str) -> Result<OperationId, RecordError> {
    OperationId::parse(text).map_err(|_| RecordError::Damaged("the operation id"))
}

pub(crate) fn key(text: &str) -> Result<IdempotencyKey, RecordError> {
    IdempotencyKey::parse(text).map_err(|_| RecordError::Damaged("the key"))
}

pub(crate) fn method(text: &str) -> Result<Method, RecordError> {
    Method::from_bytes(text.as_bytes()).map_err(|_| RecordError::Damaged("the method"))
}

pub(crate) fn url(text: &str) -> Result<Url, RecordError> {
    Url::parse(text).map_err(|_| RecordError::Damaged("the URL"))
}

pub(crate) fn status(code: u16) -> Result<StatusCode, RecordError> {
    StatusCode::from_u16(code).map_err(|_| RecordError::Damaged("the status"))
}

fn fingerprint(text: &str) -> Result<Fingerprint, RecordError> {
    const DAMAGED: RecordError = RecordError::Damaged("the fingerprint");
    let digits: Vec<u8> = text
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()).ok_or(DAMAGED))
        .collect::<Result<_, _>>()?;
    let bytes: Vec<u8> = digits
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Ok(high << 4 | low),
            _ => Err(DAMAGED),
        })
        .collect::<Result<_, _>>()?;
    bytes.try_into().map(Fingerprint::from_bytes).map_err(|_| DAMAGED)
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Headers as a JSON array of name and value pairs, in their order.
#[cfg(feature = "_sqlite")]
pub(crate) fn headers_to_json(headers: &HeaderMap) -> String {
    serde_json::to_string(&Headers(Cow::Borrowed(headers))).unwrap_or_default()
}

#[cfg(feature = "_sqlite")]
pub(crate) fn headers_from_json(json: &str) -> Result<HeaderMap, RecordError> {
    let Headers(headers) = serde_json::from_str(json).map_err(|_| RecordError::Damaged("a header"))?;
    Ok(headers.into_owned())
}

struct Headers<'a>(Cow<'a, HeaderMap>);

/// A value as text, where it is UTF-8; the empty array is no text, so the two cannot be confused.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum HeaderText<'a> {
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
}

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut lines = serializer.serialize_seq(Some(self.0.len()))?;
        for (name, value) in self.0.iter() {
            let value = match std::str::from_utf8(value.as_bytes()) {
                Ok(text) => HeaderText::Text(text.into()),
                Err(_) => HeaderText::Bytes(value.as_bytes().into()),
            };
            lines.serialize_element(&(name.as_str(), value))?;
        }
        lines.end()
    }
}

impl<'de> Deserialize<'de> for Headers<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let lines: Vec<(Cow<'_, str>, HeaderText<'_>)> = Vec::deserialize(deserializer)?;
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let bytes = match &value {
                HeaderText::Text(text) => text.as_bytes(),
                HeaderText::Bytes(bytes) => bytes,
            };
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(D::Error::custom)?;
            let value = HeaderValue::from_bytes(bytes).map_err(D::Error::custom)?;
            headers.try_append(name, value).map_err(D::Error::custom)?;
        }
        Ok(Headers(Cow::Owned(headers)))
    }
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT;

    use super::*;
    use crate::contract::Contract;

    fn record() -> Record {
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, HeaderValue::from_static("a/b"));
        headers.append(ACCEPT, HeaderValue::from_bytes("é".as_bytes()).unwrap());
        headers.append("x-bytes", HeaderValue::from_bytes(b"\xff\xfe").unwrap());
        headers.append("x-empty", HeaderValue::from_static(""));
        Record {
            operation: OperationId::parse("ordre-42 é\u{1f980}").unwrap(),
            named: true,
            key: IdempotencyKey::parse(r#"a "key" with \ in it"#).unwrap(),
            phase: Phase::Rejected,
            wire: Wire { window: Duration::new(86_400, 1_000_001), ..Wire::from(&Contract::default()) },
            method: Method::from_bytes(b"PURGE").unwrap(),
            url: Url::parse("https://api.example.com:8443/ä?q=1").unwrap(),
            credential_scope: Some("scope".to_owned()),
            fingerprint: Some(Fingerprint::from_bytes(std::array::from_fn(|index| {
                u8::try_from(index * 8 + 3).unwrap()
            }))),
            request: Some(StoredRequest {
                headers: headers.clone(),
                body: (0..=u8::MAX).chain(*b"\n{}").collect(),
                needs_headers: true,
            }),
            begun_at: Timestamp::from_millis(1),
            first_sent_at: Some(Timestamp::from_millis(2)),
            updated_at: Timestamp::from_millis(u64::MAX),
            next_attempt_at: Some(Timestamp::from_millis(4)),
            attempts: u32::MAX,
            closing: Some(Closing {
                status: Some(StatusCode::CONFLICT),
                in_front: true,
                after_unknown: false,
                resolved: true,
                reply: Some(StoredReply { headers, body: Bytes::from_static(b"\0reply\n") }),
            }),
        }
    }

    fn bare() -> Record {
        Record {
            credential_scope: None,
            fingerprint: None,
            request: None,
            first_sent_at: None,
            next_attempt_at: None,
            closing: None,
            wire: Wire { window: Duration::MAX, ..Wire::from(&Contract::default()) },
            ..record()
        }
    }

    /// Two records are the same if nothing in them differs; their encoding and their parts say so independently.
    #[track_caller]
    fn assert_same(one: &Record, other: &Record) {
        assert_eq!(one.to_bytes(), other.to_bytes());
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
        assert_eq!(one.wire, other.wire);
        assert_eq!(one.fingerprint, other.fingerprint);
        assert_eq!((&one.key, &one.url, &one.method), (&other.key, &other.url, &other.method));
        assert_eq!(
            (one.begun_at, one.updated_at, one.next_attempt_at),
            (other.begun_at, other.updated_at, other.next_attempt_at)
        );
        let request = |record: &Record| record.request.clone().map(|request| (request.headers, request.body));
        assert_eq!(request(one), request(other));
        let reply = |record: &Record| {
            let reply = record.closing.clone().and_then(|closing| closing.reply);
            reply.map(|reply| (reply.headers, reply.body))
        };
        assert_eq!(reply(one), reply(other));
    }

    #[test]
    fn whatever_is_written_is_read() {
        for record in [record(), bare()] {
            assert_same(&record, &Record::from_bytes(&record.to_bytes()).unwrap());
        }
    }

    #[test]
    fn every_phase_and_serialisation_has_a_word_of_its_own() {
        use Phase::{Abandoned, Completed, Expired, Failed, NotSent, Prepared, Rejected, Sending};
        for all in [Prepared, Sending, Completed, Rejected, NotSent, Failed, Expired, Abandoned] {
            assert_eq!(phase(all.as_str()), Ok(all));
        }
        for all in [Serialisation::Raw, Serialisation::StructuredField] {
            assert_eq!(serialisation(serialisation_word(all)), Ok(all));
        }
    }

    #[test]
    fn a_later_version_is_named_whatever_else_it_has() {
        let later = b"{\"v\":2,\"shape\":[\"of\",\"another\",\"kind\"]}\n";
        let error = Record::from_bytes(later).unwrap_err();
        assert_eq!(error, RecordError::Version { found: 2 });
        let text = error.to_string();
        assert!(text.contains("version 2") && text.contains("version 1") && text.contains("release"), "{text}");
    }

    #[test]
    fn what_this_release_does_not_know_is_refused() {
        let text =
            String::from_utf8(bare().to_bytes()).unwrap().replace("\"attempts\"", "\"never_send\":true,\"attempts\"");
        assert!(matches!(Record::from_bytes(text.as_bytes()), Err(RecordError::Damaged(_))));
    }

    #[test]
    fn bytes_that_are_no_record_are_told_apart_from_a_damaged_one() {
        for bytes in [&b""[..], b"\n", b"{}", b"{}\n", b"null\n", b"\xff\xfe\n", b"PONG"] {
            assert_eq!(Record::from_bytes(bytes).unwrap_err(), RecordError::NotARecord, "{bytes:?}");
        }
    }

    #[test]
    fn a_record_cut_short_or_continued_is_refused() {
        let bytes = record().to_bytes();
        for length in 0..bytes.len() {
            assert!(Record::from_bytes(&bytes[..length]).is_err(), "cut to {length} bytes");
        }
        assert!(Record::from_bytes(&[&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn no_changed_byte_makes_it_panic_and_no_error_shows_the_key() {
        let record = record();
        let bytes = record.to_bytes();
        for position in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[position] ^= 1 << bit;
                if let Err(error) = Record::from_bytes(&changed) {
                    assert!(!error.to_string().contains("with"), "{error}");
                }
            }
        }
    }

    #[test]
    fn lengths_that_do_not_fit_together_are_refused() {
        let text = r#""body_bytes":"#;
        let bytes = record().to_bytes();
        let line = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let head = std::str::from_utf8(&bytes[..line]).unwrap();
        for lie in ["0", "18446744073709551615", "300"] {
            let changed = head.replacen(&format!("{text}259"), &format!("{text}{lie}"), 1);
            assert_ne!(changed, head);
            assert!(Record::from_bytes(&[changed.as_bytes(), &bytes[line..]].concat()).is_err(), "{lie}");
        }
    }
}
