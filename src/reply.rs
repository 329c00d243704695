//! What came back on an attempt, and what it means, in this crate's own words.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version};
use serde::Deserialize;
use url::Url;

use crate::contract::Meaning;

/// One answer from the server: what came back on an attempt.
///
/// `Debug` shows neither values of headers, nor the body, nor the URL: any of them may hold what is nobody's business.
#[derive(Clone)]
pub struct Reply {
    /// The status line's code.
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    /// Where the answer came from; it differs from the target when a redirect was followed.
    pub(crate) url: Url,
    pub(crate) body: ReplyBody,
    /// Whether a redirect was followed on the way here.
    pub(crate) redirected: bool,
}

/// How much of a reply's body arrived.
#[derive(Clone)]
pub(crate) enum ReplyBody {
    /// All of it.
    Whole(Bytes),
    /// The head arrived, then the body broke off: this much of it, and what went wrong.
    Incomplete(Bytes, Failure),
    /// More than the limit for a buffered body. The rest is still to be read from the connection, by whoever has it.
    TooLong(Bytes),
}

impl fmt::Debug for ReplyBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "Whole({} bytes)", bytes.len()),
            Self::Incomplete(bytes, failure) => write!(f, "Incomplete({} bytes, {failure})", bytes.len()),
            Self::TooLong(bytes) => write!(f, "TooLong(more than {} bytes)", bytes.len()),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("status", &self.status)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("body", &self.body)
            .field("redirected", &self.redirected)
            .finish_non_exhaustive()
    }
}

impl Reply {
    /// The status code.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The response headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body as far as it was read: all of it if [`is_complete`](Self::is_complete).
    #[must_use]
    pub fn body(&self) -> &Bytes {
        match &self.body {
            ReplyBody::Whole(bytes) | ReplyBody::Incomplete(bytes, _) | ReplyBody::TooLong(bytes) => bytes,
        }
    }

    /// Whether the whole body was read. It was not if the connection broke, or if the body is over the limit.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.body, ReplyBody::Whole(_))
    }

    /// The problem details of the body (RFC 9457), if it is a JSON object at all. Every field is optional there.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        Problem::parse(&self.headers, self.body())
    }
}

/// Problem details, RFC 9457 section 3.1.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Problem {
    /// A URI reference that identifies the kind of problem.
    #[serde(rename = "type", default, deserialize_with = "lenient")]
    pub type_: Option<String>,
    /// The kind of problem, for people.
    #[serde(default, deserialize_with = "lenient")]
    pub title: Option<String>,
    /// The status code that the origin server set.
    #[serde(default, deserialize_with = "lenient")]
    pub status: Option<u16>,
    /// This occurrence of the problem, for people.
    #[serde(default, deserialize_with = "lenient")]
    pub detail: Option<String>,
    /// A URI reference that identifies this occurrence.
    #[serde(default, deserialize_with = "lenient")]
    pub instance: Option<String>,
    /// All other members.
    #[serde(flatten)]
    pub extensions: serde_json::Map<String, serde_json::Value>,
}

impl Problem {
    /// Reads a body as problem details: only if it is declared as problem+json, as the RFC has it.
    pub(crate) fn parse(headers: &HeaderMap, body: &[u8]) -> Option<Self> {
        let declared = headers.get(http::header::CONTENT_TYPE)?.to_str().ok()?;
        let essence = declared.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/problem+json") {
            return None;
        }
        serde_json::from_slice(body).ok()
    }
}

/// A member of the wrong type counts as absent (RFC 9457 section 3.1: "consumers MUST ignore").
fn lenient<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// No trustworthy answer: what happened on an attempt instead of a reply.
#[derive(Clone, Debug)]
pub struct Failure {
    pub(crate) kind: FailureKind,
    /// What this failure by itself says about the request at the server.
    pub(crate) sent: Sent,
    /// The transport's own account, without the URL.
    pub(crate) source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Whether the request can have reached the server on this attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sent {
    /// Certainly not: the transport never asked for the body, or nothing was ready to take it.
    No,
    /// It may have.
    Perhaps,
}

/// The kinds of failure on the network, told apart as well as the transport allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The request cannot be built: a wrong URL or scheme. Trying again changes nothing.
    Request,
    /// The host's name was not resolved.
    Dns,
    /// No connection: refused, unreachable, or set-up failed on the way (TLS, a proxy).
    Connect,
    /// The server's certificate is not trusted. Trying again changes nothing.
    Certificate,
    /// The connection was found dead before the request was written to it.
    Canceled,
    /// The server says that it has not processed the request: HTTP/2 REFUSED_STREAM, or GOAWAY below our stream.
    Refused,
    /// The attempt's time limit was reached.
    Timeout,
    /// The connection ended without a whole answer: reset, closed, or not HTTP.
    Connection,
    /// The head of the reply arrived and its body did not.
    ReplyLost,
    /// A client of the caller's followed a redirect, and got lost.
    Redirected,
}

impl Failure {
    /// What kind of failure it was.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            FailureKind::Request => "the request could not be built",
            FailureKind::Dns => "the host name was not resolved",
            FailureKind::Connect => "no connection could be made",
            FailureKind::Certificate => "the server's certificate was not accepted",
            FailureKind::Canceled => "the connection closed before the request was written",
            FailureKind::Refused => "the server refused to process the request",
            FailureKind::Timeout => "no answer within the time limit",
            FailureKind::Connection => "the connection ended without an answer",
            FailureKind::ReplyLost => "the reply broke off after its head",
            FailureKind::Redirected => "a redirect was followed and led nowhere",
        })
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

/// What an answer, or the lack of one, means for the operation. One per row of the classification table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// 2xx with its whole body: done.
    Success,
    /// The server executed the operation, and its reply is gone or is not to be had again.
    Executed,
    /// A definite refusal by the operation itself.
    Rejected,
    /// Refused in front of the idempotency layer: says nothing about earlier attempts.
    InFront(InFront),
    /// The first request for this key is still running.
    InProgress { retry_after: Option<Duration> },
    /// The key belongs to another payload.
    KeyReused,
    /// The server did not take the key as sent.
    KeyRefused(Meaning),
    /// Passing: 5xx, or what the contract calls so.
    Transient { retry_after: Option<Duration> },
    /// A failure that the server stored under this key: it can only repeat it.
    StoredFailure,
    /// A status that no retry changes: 501, 505, or one outside 200 to 599.
    Unsupported,
    /// 3xx, or an answer from elsewhere.
    Redirected,
    /// The reply's body was lost, and with it the answer.
    ReplyLost,
    /// No answer, and the attempt certainly did not reach the server.
    NotSent { again: Again },
    /// No answer, and it may have.
    Unknown,
}

/// Whether an answer in front of the idempotency layer may be retried under the caller's switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFront {
    /// Stops.
    Stop,
    /// Retried as often as any failure (429 and 408, switched on).
    Retry { retry_after: Option<Duration> },
    /// Retried once (425 and 421, switched on).
    Once { retry_after: Option<Duration> },
}

/// Whether another attempt can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// It can.
    Yes,
    /// The same would happen again.
    No,
}
