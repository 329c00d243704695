//! Why there is no trustworthy answer, and what is known all the same.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::history::{Attempt, Delivery, Report};
use crate::key::IdempotencyKey;
use crate::operation::{OperationId, Phase};
use crate::reply::Reply;

/// There is no trustworthy answer. Cheap to clone.
///
/// Three questions matter to the caller, and each has a method: whose move is it ([`kind`](Self::kind)), what is known of
/// the operation at the server ([`delivery`](Self::delivery)), and is it still pending ([`is_pending`](Self::is_pending)).
/// [`report`](Self::report) prints the attempts for a person.
///
/// `Display` is one line, without query string, body, credential or whole key. `source()` gives the layer below.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    operation: Option<OperationId>,
    key: Option<IdempotencyKey>,
    delivery: Delivery,
    phase: Option<Phase>,
    attempts: Vec<Attempt>,
    first_sent_at: Option<Timestamp>,
    next_attempt_at: Option<Timestamp>,
    last_response: Option<Reply>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Whose move it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "there are four parties to an operation, and callers may match them all")]
pub enum Party {
    /// The caller: fixable by reading or changing the calling code, or by a decision that only the caller can take.
    Caller,
    /// The server, or the way it is configured.
    Server,
    /// The network, or time: trying again later can help.
    Network,
    /// The journal.
    Journal,
}

/// What went wrong, grouped by whose move it is ([`party`](Self::party)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    // The caller's move.
    /// A setting of the client or of the request makes no sense.
    Configuration,
    /// The request could not be built.
    Request,
    /// The body can be sent only once (a stream, a multipart form, a file). Nothing was begun.
    BodyNotReplayable,
    /// The key or the operation id cannot be used.
    InvalidKey,
    /// The operation was begun with another payload, or under other terms. Nothing was sent.
    PayloadMismatch,
    /// The `prepare` hook failed, so the attempt was not made.
    Prepare,
    /// The operation is closed, and only a person can say what should happen to it.
    Closed,
    /// The journal knows no operation of this id.
    UnknownOperation,
    /// The reply arrived and is not what the caller tried to read it as.
    Decode,
    /// A reply was asked to be a success and is not (`error_for_status`).
    Status,
    /// A bug in this crate. Please report it.
    Internal,

    // The server's move.
    /// The server says that the key was used for another payload.
    KeyReused,
    /// The server could not read the key, or saw none: header or format do not fit it.
    KeyRefused,
    /// Refused in front of the idempotency layer (401, 429 …) after an attempt with unknown outcome. Still pending.
    RejectedAfterUnknown,
    /// The server executed the operation, and its reply cannot be had again.
    ReplyUnavailable,
    /// The server stored a failure under the key and can only repeat it.
    StoredFailure,
    /// A status that no retry changes (501, 505, or outside 200 to 599).
    UnsupportedStatus,
    /// The answer was a redirect, or a redirect was followed on the way to it.
    Redirected,

    // The network's move: time.
    /// No attempt is left. `source()` has the last failure.
    AttemptsExhausted,
    /// The deadline came, or would come before the next attempt may start.
    DeadlineExceeded,
    /// The server asks for a longer wait than the policy allows. [`Error::next_attempt_at`] says until when.
    RetryAfterTooLong,
    /// The client's retry budget is spent: too much of its traffic is retries already.
    BudgetExhausted,
    /// No attempt can help: the certificate is not trusted, or the scheme is not supported.
    Unreachable,

    // The journal's move.
    /// The journal could not be read or written. `source()` says why.
    Journal,
    /// The operation is being driven elsewhere.
    Locked,
    /// Another worker took the operation over while this one drove it.
    LeaseLost,
    /// The server may have forgotten the key: a retry could execute twice. A person must reconcile.
    WindowExpired,
}

impl ErrorKind {
    /// Whose move it is.
    #[must_use]
    pub const fn party(self) -> Party {
        match self {
            Self::Configuration
            | Self::Request
            | Self::BodyNotReplayable
            | Self::InvalidKey
            | Self::PayloadMismatch
            | Self::Prepare
            | Self::Closed
            | Self::UnknownOperation
            | Self::Decode
            | Self::Status
            | Self::Internal => Party::Caller,
            Self::KeyReused
            | Self::KeyRefused
            | Self::RejectedAfterUnknown
            | Self::ReplyUnavailable
            | Self::StoredFailure
            | Self::UnsupportedStatus
            | Self::Redirected => Party::Server,
            Self::AttemptsExhausted
            | Self::DeadlineExceeded
            | Self::RetryAfterTooLong
            | Self::BudgetExhausted
            | Self::Unreachable => Party::Network,
            Self::Journal | Self::Locked | Self::LeaseLost | Self::WindowExpired => Party::Journal,
        }
    }
}

impl Error {
    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What is known of the operation at the server, over all attempts in every process that drove it.
    ///
    /// An error without an [`operation`](Self::operation) is about a request that never became one: this call sent nothing,
    /// and the journal was not asked whether an earlier one did.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        self.0.delivery
    }

    /// Whether the operation is still pending: recorded as unfinished, and to be asked for again under the same id.
    /// False for a closed operation, and for a request that never became one.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.0.phase.is_some_and(Phase::is_pending)
    }

    /// Where the operation stands in the journal; `None` if the request never became an operation.
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        self.0.phase
    }

    /// The operation's id.
    #[must_use]
    pub fn operation(&self) -> Option<&OperationId> {
        self.0.operation.as_ref()
    }

    /// The key that every attempt carried.
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.0.key.as_ref()
    }

    /// The attempts that this call made.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.0.attempts
    }

    /// When the operation's first attempt may have left, in this process or an earlier one.
    #[must_use]
    pub fn first_sent_at(&self) -> Option<Timestamp> {
        self.0.first_sent_at
    }

    /// Before this, nobody should try again: the server asked for it.
    #[must_use]
    pub fn next_attempt_at(&self) -> Option<Timestamp> {
        self.0.next_attempt_at
    }

    /// The last answer that any attempt of this call brought, whatever it was worth.
    #[must_use]
    pub fn last_response(&self) -> Option<&Reply> {
        self.0.last_response.as_ref()
    }

    /// The story of the attempts, for whoever has to decide what to do.
    #[must_use]
    pub fn report(&self) -> Report<'_> {
        Report {
            headline: self,
            attempts: &self.0.attempts,
            next_attempt_at: self.0.next_attempt_at,
            known: self.what_is_known(),
        }
    }

    fn what_is_known(&self) -> &'static str {
        match (self.0.delivery, self.is_pending()) {
            (Delivery::Unknown, false) if self.0.operation.is_none() => "it may have reached the server",
            (Delivery::NotSent, true) => "the server has not seen it; still pending",
            (Delivery::NotSent, false) => "the server has not seen it; it can be dropped or asked for again",
            (Delivery::Unknown, true) => "it may have been executed, once; still pending, ask again under the same id",
            (Delivery::Unknown, false) => "it may have been executed; find out at the server before anything else",
            (Delivery::Answered, _) => match self.0.phase {
                Some(Phase::Completed) => "it was executed",
                Some(Phase::Rejected) => "it was refused, and not executed",
                _ => "the server has answered",
            },
        }
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Inner {
            kind,
            message: message.into(),
            operation: None,
            key: None,
            delivery: Delivery::NotSent,
            phase: None,
            attempts: Vec::new(),
            first_sent_at: None,
            next_attempt_at: None,
            last_response: None,
            source: None,
        }))
    }

    pub(crate) fn caused_by(self, source: Arc<dyn StdError + Send + Sync>) -> Self {
        self.with(|inner| inner.source = Some(source))
    }

    pub(crate) fn of_operation(self, operation: OperationId, key: IdempotencyKey, phase: Phase) -> Self {
        self.with(|inner| {
            inner.operation = Some(operation);
            inner.key = Some(key);
            inner.phase = Some(phase);
        })
    }

    /// An operation of which only the id is sure: its record may be on disk, as sending.
    pub(crate) fn pending_as(self, operation: OperationId) -> Self {
        self.with(|inner| {
            inner.operation = Some(operation);
            inner.phase = Some(Phase::Sending);
        })
    }

    pub(crate) fn delivered(self, delivery: Delivery) -> Self {
        self.with(|inner| inner.delivery = delivery)
    }

    pub(crate) fn tried(self, attempts: Vec<Attempt>, last_response: Option<Reply>) -> Self {
        self.with(|inner| {
            inner.attempts = attempts;
            inner.last_response = last_response;
        })
    }

    pub(crate) fn timed(self, first_sent_at: Option<Timestamp>, next_attempt_at: Option<Timestamp>) -> Self {
        self.with(|inner| {
            inner.first_sent_at = first_sent_at;
            inner.next_attempt_at = next_attempt_at;
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.operation {
            Some(operation) => write!(f, "operation {operation}: {}", self.0.message),
            None => f.write_str(&self.0.message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(operation) = &self.0.operation {
            out.field("operation", operation);
        }
        if let Some(key) = &self.0.key {
            out.field("key", key);
        }
        out.field("delivery", &self.0.delivery).field("phase", &self.0.phase).field("attempts", &self.0.attempts.len());
        if let Some(source) = &self.0.source {
            out.field("source", &source.to_string());
        }
        out.finish_non_exhaustive()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}
