//! One logical action that must happen once, and what is remembered of it.

pub(crate) mod encoding;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use rand::TryRng as _;
use rand::rngs::SysRng;
use url::Url;

use crate::clock::Timestamp;
use crate::contract::Contract;
use crate::fingerprint::Fingerprint;
use crate::key::{IdempotencyKey, Serialisation};

/// The caller's name for an operation, such as `order-42`: unique in a journal, and the way to ask for it again.
///
/// It is printed in errors and logs. Take an id that your own records have, not anything about a person. Ids are compared
/// byte by byte: two spellings of the same letters in Unicode are two operations.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(Arc<str>);

impl OperationId {
    /// The longest id, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Takes the caller's own id.
    ///
    /// # Errors
    ///
    /// The id is blank, longer than 255 bytes, or has control characters.
    pub fn parse(text: &str) -> Result<Self, OperationIdError> {
        if text.trim().is_empty() {
            return Err(OperationIdError::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(OperationIdError::TooLong { bytes: text.len() });
        }
        match text.char_indices().find(|(_, c)| c.is_control()) {
            Some((position, character)) => Err(OperationIdError::Character { character, position }),
            None => Ok(Self(Arc::from(text))),
        }
    }

    /// A random id, for an operation that nobody will ask for by name.
    ///
    /// # Errors
    ///
    /// The operating system could not give randomness.
    pub fn generate() -> Result<Self, OperationIdError> {
        let mut bytes = [0_u8; 16];
        SysRng.try_fill_bytes(&mut bytes).map_err(|error| OperationIdError::NoRandomness(error.to_string()))?;
        let mut text = [0_u8; uuid::fmt::Simple::LENGTH];
        let uuid = uuid::Builder::from_random_bytes(bytes).into_uuid();
        Ok(Self(Arc::from(&*uuid.simple().encode_lower(&mut text))))
    }

    /// The id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for OperationId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for OperationId {
    type Err = OperationIdError;

    /// As [`parse`](Self::parse).
    fn from_str(text: &str) -> Result<Self, OperationIdError> {
        Self::parse(text)
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationId({})", self.0)
    }
}

/// Why a text cannot name an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationIdError {
    /// Empty, or nothing but spaces.
    #[error("the operation id is empty; leave it out to have one generated, or pass 1 to 255 bytes")]
    Empty,
    /// Longer than 255 bytes.
    #[error("the operation id has {bytes} bytes and the limit is 255; use a shorter name, such as the order's number")]
    #[expect(missing_docs, reason = "the variant says it")]
    TooLong { bytes: usize },
    /// A control character. `position` counts bytes from 0.
    #[error("the operation id has the control character {character:?} at byte {position}; remove it")]
    #[expect(missing_docs, reason = "the variant says it")]
    Character { character: char, position: usize },
    /// The operating system gave no randomness.
    #[error("no randomness for an operation id: {0}; nothing was sent")]
    NoRandomness(String),
}

/// Where an operation stands. Only `Prepared` and `Sending` are pending; the rest are closed, each for its own reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Begun together with the caller's own data, and not yet sent.
    Prepared,
    /// A request may be on its way, or may have arrived.
    Sending,
    /// The server executed it and said so.
    Completed,
    /// The server refused it for good; an answer in front of the idempotency layer can be asked for again.
    Rejected,
    /// Nothing ever left for the server.
    NotSent,
    /// The server cannot answer for this key any more; a person must find out what happened.
    Failed,
    /// The dedup window ended before an answer came; a person must find out what happened.
    Expired,
    /// The caller gave it up.
    Abandoned,
}

impl Phase {
    /// Whether the operation is still to be driven to an answer.
    #[must_use]
    pub const fn is_pending(self) -> bool {
        matches!(self, Self::Prepared | Self::Sending)
    }

    /// The word that is stored and printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prepared => "prepared",
            Self::Sending => "sending",
            Self::Completed => "completed",
            Self::Rejected => "rejected",
            Self::NotSent => "not_sent",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Abandoned => "abandoned",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the journal stores of an operation.
///
/// `Debug` shows neither the key, nor bodies, nor the query.
#[derive(Clone)]
#[non_exhaustive]
pub struct Record {
    /// The operation's id, unique in its journal.
    pub operation: OperationId,
    /// Whether the caller chose the id. Nobody asks for a generated one by name, so it may be dropped sooner.
    pub named: bool,
    /// The key that every attempt carries.
    pub key: IdempotencyKey,
    /// Where the operation stands.
    pub phase: Phase,
    /// How the key goes over the wire. A repeat under other terms would be another operation to the server.
    pub wire: Wire,
    /// The method of the request.
    pub method: Method,
    /// The absolute URL, without user info and fragment.
    pub url: Url,
    /// The caller's name for the credentials in use, if the caller named them.
    pub credential_scope: Option<String>,
    /// What the request asked for, if it can be compared later.
    pub fingerprint: Option<Fingerprint>,
    /// The request itself, if it is kept.
    pub request: Option<StoredRequest>,
    /// When the operation was begun.
    pub begun_at: Timestamp,
    /// When its first attempt may have left; the dedup window counts from here.
    pub first_sent_at: Option<Timestamp>,
    /// When the record last changed.
    pub updated_at: Timestamp,
    /// Before this nobody should try again.
    pub next_attempt_at: Option<Timestamp>,
    /// Attempts so far, in every process that drove the operation.
    pub attempts: u32,
    /// How the operation was closed.
    pub closing: Option<Closing>,
}

/// How a key goes over the wire, and how long it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wire {
    /// The contract's name.
    pub contract: String,
    /// The header that carries the key.
    pub header: String,
    /// How the key is written into it.
    pub serialisation: Serialisation,
    /// How long the server remembers the key.
    pub window: Duration,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { contract, header, serialisation, window } = self;
        write!(f, "{contract:?} (`{header}`, {serialisation:?}, window {} s)", window.as_secs())
    }
}

impl From<&Contract> for Wire {
    fn from(contract: &Contract) -> Self {
        Self {
            contract: contract.name().to_owned(),
            header: contract.key_header().as_str().to_owned(),
            serialisation: contract.key_serialisation(),
            window: contract.dedup_window(),
        }
    }
}

/// How much of an operation its record keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keep {
    /// The frozen request while the operation is pending, so that it can be sent again after a crash.
    #[default]
    Request,
    /// No body and no query: the key, a salted fingerprint, method, origin and path, and times. For card data and the like.
    Key,
    /// The request, and after it the reply, so that a repeated call is answered without the network.
    Exchange,
}

/// The frozen request of an operation.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoredRequest {
    /// The headers that may be stored: never a credential.
    pub headers: HeaderMap,
    /// The body, byte for byte.
    pub body: Bytes,
    /// Whether headers were left out, so that the request cannot be sent again as it was.
    pub needs_headers: bool,
}

impl fmt::Debug for StoredRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredRequest")
            .field("headers", &self.headers.len())
            .field("body", &format_args!("{} bytes", self.body.len()))
            .field("needs_headers", &self.needs_headers)
            .finish()
    }
}

/// How an operation was closed.
#[derive(Clone)]
#[non_exhaustive]
pub struct Closing {
    /// The status of the answer that closed it, if one did.
    pub status: Option<StatusCode>,
    /// Whether that answer came from in front of the idempotency layer, so that the operation may be asked for again.
    pub in_front: bool,
    /// Whether an attempt with unknown outcome came before.
    pub after_unknown: bool,
    /// Whether a person closed it, by what was found out at the server. Then it is never sent again.
    pub resolved: bool,
    /// The reply, if it is kept.
    pub reply: Option<StoredReply>,
}

impl fmt::Debug for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closing")
            .field("status", &self.status)
            .field("in_front", &self.in_front)
            .field("after_unknown", &self.after_unknown)
            .field("resolved", &self.resolved)
            .field("reply", &self.reply.as_ref().map(|reply| reply.body.len()))
            .finish()
    }
}

/// A kept reply.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoredReply {
    /// The headers of the reply, without credentials.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl fmt::Debug for StoredReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredReply").field("body", &format_args!("{} bytes", self.body.len())).finish_non_exhaustive()
    }
}

/// What becomes of the lease after a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a lease is kept or it is not")]
pub enum AfterSave {
    /// The caller goes on driving.
    KeepLease,
    /// The caller is done.
    ReleaseLease,
}

/// When a save must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a write is waited for or it is not")]
pub enum Durability {
    /// Before the call returns.
    Now,
    /// With the next write; losing it is harmless.
    Late,
}

impl Record {
    /// Whether a request asks for the same as this record. A record without a fingerprint cannot tell, and says yes.
    #[must_use]
    pub fn asks_the_same(&self, fingerprint: Option<&Fingerprint>) -> bool {
        match (&self.fingerprint, fingerprint) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => true,
        }
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("operation", &self.operation)
            .field("key", &self.key)
            .field("phase", &self.phase)
            .field("method", &self.method)
            .field("origin", &self.url.origin().ascii_serialization())
            .field("path", &self.url.path())
            .field("first_sent_at", &self.first_sent_at)
            .field("attempts", &self.attempts)
            .field("request", &self.request)
            .field("closing", &self.closing)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_printable_and_not_blank_and_at_most_255_bytes() {
        assert_eq!(OperationId::parse("  "), Err(OperationIdError::Empty));
        assert!(OperationId::parse(&"x".repeat(255)).is_ok());
        assert_eq!(OperationId::parse(&"x".repeat(256)), Err(OperationIdError::TooLong { bytes: 256 }));
        assert!(matches!(OperationId::parse("a\nb"), Err(OperationIdError::Character { position: 1, .. })));
        assert_eq!(OperationId::parse("order-42").unwrap().to_string(), "order-42");
    }

    #[test]
    fn only_prepared_and_sending_are_pending() {
        use Phase::{Abandoned, Completed, Expired, Failed, NotSent, Prepared, Rejected, Sending};
        let pending: Vec<Phase> = [Prepared, Sending, Completed, Rejected, NotSent, Failed, Expired, Abandoned]
            .into_iter()
            .filter(|phase| phase.is_pending())
            .collect();
        assert_eq!(pending, [Prepared, Sending]);
    }
}
