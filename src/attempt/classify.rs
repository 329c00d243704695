//! The one table: what an answer means.
//!
//! Status and headers decide first, the body may refine. The rows follow the wire contract's first section; each is a
//! test in `tests/table.rs`.

use std::sync::Arc;

use http::StatusCode;

use super::Carrying;
use crate::clock::Timestamp;
use crate::contract::{Contract, Meaning, codes};
use crate::reply::{Again, Failure, FailureKind, InFront, Reply, ReplyBody, Sent, Verdict};
use crate::retry::retry_after;

/// The caller's own reading of an answer; it goes before the contract's.
pub(crate) type Classifier = Arc<dyn Fn(&Reply) -> Option<Meaning> + Send + Sync>;

/// Under which circumstances an answer is read.
pub(super) struct Reading<'a> {
    pub(super) contract: &'a Contract,
    pub(super) carrying: Carrying,
    pub(super) classifier: Option<&'a Classifier>,
    /// Whether 429, 408, 425 and 421 are retried.
    pub(super) retry_rejections: bool,
    /// Whether an earlier attempt had an unknown outcome.
    pub(super) after_unknown: bool,
    pub(super) now: Timestamp,
}

impl Reading<'_> {
    pub(super) fn of_reply(&self, reply: &Reply) -> Verdict {
        let status = reply.status;
        let keyed = self.carrying == Carrying::Key;
        if keyed && (reply.redirected || status.is_redirection()) {
            return Verdict::Redirected;
        }
        if matches!(reply.body, ReplyBody::Incomplete(..)) && (status.is_success() || is_told_by_the_body(status)) {
            return Verdict::ReplyLost;
        }
        let retry_after = retry_after(self.contract, &reply.headers, self.now);
        let declared = self
            .classifier
            .and_then(|classifier| classifier(reply))
            .or_else(|| self.contract.meaning(status, &reply.headers, reply.body()));
        if let Some(meaning) = declared {
            return self.of_meaning(meaning, reply, retry_after);
        }
        if status.is_success() {
            return Verdict::Success;
        }
        let replay = self.contract.is_replay(&reply.headers);
        match self.contract.should_retry(&reply.headers) {
            // Retried or not, what was refused in front was not executed.
            Some(true) if is_in_front(status) && !replay => return Verdict::InFront(InFront::Retry { retry_after }),
            Some(true) => return Verdict::Transient { retry_after },
            Some(false) if status.is_server_error() => return Verdict::StoredFailure,
            Some(false) if is_in_front(status) && !replay => return Verdict::InFront(InFront::Stop),
            Some(false) | None => {}
        }
        match status.as_u16() {
            501 | 505 if keyed => Verdict::Unsupported,
            500..=599 if replay => Verdict::StoredFailure,
            501 | 505 => Verdict::Rejected,
            500..=599 => Verdict::Transient { retry_after },
            409 | 423 if replay => Verdict::Rejected,
            409 | 423 => self.of_conflict(reply, retry_after),
            _ if is_in_front(status) && !replay => Verdict::InFront(self.in_front(status, retry_after)),
            400..=499 => Verdict::Rejected,
            _ if keyed => Verdict::Unsupported,
            // Without a key nothing can have been executed twice: 3xx and the like are the caller's to read.
            _ => Verdict::Rejected,
        }
    }

    pub(super) fn of_failure(failure: &Failure) -> Verdict {
        match (failure.sent, failure.kind) {
            (_, FailureKind::Redirected) => Verdict::Redirected,
            (Sent::No, FailureKind::Request | FailureKind::Certificate) => Verdict::NotSent { again: Again::No },
            (Sent::No, _) => Verdict::NotSent { again: Again::Yes },
            (Sent::Perhaps, _) => Verdict::Unknown,
        }
    }

    /// A 409 or 423 that no signal explains. With a type of its own it is a definite conflict. Without one, `Retry-After`
    /// makes it "in progress"; a bare one is that only if there can be something in progress.
    fn of_conflict(&self, reply: &Reply, retry_after: Option<std::time::Duration>) -> Verdict {
        let has_own_type = codes(reply.body()).iter().any(|code| !says_only_the_status(code, reply.status));
        let asks_to_wait = self.contract.retry_after_headers().iter().any(|(name, _)| reply.headers.contains_key(name));
        if !has_own_type && (asks_to_wait || self.after_unknown) {
            Verdict::InProgress { retry_after }
        } else {
            Verdict::Rejected
        }
    }

    fn of_meaning(&self, meaning: Meaning, reply: &Reply, retry_after: Option<std::time::Duration>) -> Verdict {
        match meaning {
            Meaning::InProgress => Verdict::InProgress { retry_after },
            Meaning::Transient => Verdict::Transient { retry_after },
            Meaning::StoredFailure => Verdict::StoredFailure,
            Meaning::InFront => Verdict::InFront(self.in_front(reply.status, retry_after)),
            Meaning::Final if reply.status.is_success() => Verdict::Success,
            Meaning::Final => Verdict::Rejected,
            // What is said about a key means nothing to a request that carried none.
            _ if self.carrying != Carrying::Key => Verdict::Rejected,
            Meaning::KeyReused => Verdict::KeyReused,
            Meaning::KeyMalformed | Meaning::KeyMissing => Verdict::KeyRefused(meaning),
            Meaning::Executed => Verdict::Executed,
        }
    }

    fn in_front(&self, status: StatusCode, retry_after: Option<std::time::Duration>) -> InFront {
        match status.as_u16() {
            429 | 408 if self.retry_rejections => InFront::Retry { retry_after },
            425 | 421 if self.retry_rejections => InFront::Once { retry_after },
            _ => InFront::Stop,
        }
    }
}

/// Frameworks put the status into the body once more, as its number or its reason phrase.
fn says_only_the_status(code: &str, status: StatusCode) -> bool {
    let letters = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    let reason = status.canonical_reason().map(letters).unwrap_or_default();
    code == "about:blank" || code == status.as_str() || letters(code) == reason
}

/// Statuses whose meaning is in their body, so that losing the body loses the answer.
fn is_told_by_the_body(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 409 | 422 | 423)
}

/// Statuses that authentication, routing, limits and proxies answer with, before the idempotency layer is asked.
fn is_in_front(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 404 | 405 | 407 | 408 | 411 | 413 | 414 | 415 | 421 | 425 | 426 | 429 | 431)
}
