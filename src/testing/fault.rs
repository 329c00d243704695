//! One injected failure, at a named position in the exchange. Pure: the server carries it out.

use std::fmt;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};

use super::answer::Answer;

/// One failure, for one attempt.
///
/// ```
/// use reqwest_idempotency::testing::{At, Fault};
///
/// let script = [
///     Fault::status(503).retry_after("1"),
///     Fault::reply_lost(),
///     Fault::close(At::BodyBytes(10)),
///     Fault::none(),
/// ];
/// assert_eq!(script[1].to_string(), "connection closed after the commit");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(Option<(At, How)>);

/// Where in the exchange a fault strikes.
///
/// An exchange goes: the request is read and recorded, checked, claims its key, is executed, is committed, and is
/// answered. A fault whose position an attempt does not come to, because the attempt is replayed or refused before,
/// stays unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum At {
    /// All checks passed, the key is not claimed. Nothing is executed.
    BeforeClaim,
    /// The key is claimed and the handler not called yet. Execution goes on without the connection.
    AfterClaim,
    /// The handler has answered, and its answer is not stored yet. The commit goes on without the connection.
    AfterEffect,
    /// The answer is stored, or found stored, and not a byte of it is on the wire.
    AfterCommit,
    /// This many bytes of the reply are on the wire, counted from its status line. Over HTTP/2, this many bytes of what
    /// the connection sends next.
    HeadBytes(usize),
    /// The head of the reply and this many bytes of its body are on the wire. `Content-Length` announces all of it.
    BodyBytes(usize),
}

/// What happens there. Faults of a connection end every HTTP/2 stream on it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// The connection is closed in good order (FIN).
    Fin,
    /// The connection is reset (RST).
    Rst,
    /// Nothing more is sent, and the connection stays open.
    Stall,
    /// This is answered instead.
    Status(CannedReply),
    /// The process that serves the request dies: the connection is closed and what would follow does not happen. A claim
    /// is left to its lease.
    CrashOwner,
}

/// The reply that a fault gives in the operation's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CannedReply(pub(super) Answer);

impl CannedReply {
    /// Its status code.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }
}

impl Fault {
    /// No fault: the attempt goes through.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Answers with this status and an empty body, before the key is claimed: nothing is executed.
    ///
    /// # Panics
    ///
    /// `code` is not between 200 and 999.
    #[must_use]
    #[track_caller]
    pub fn status(code: u16) -> Self {
        // Below 200 a status announces an answer and is none.
        let status = StatusCode::from_u16(code).ok().filter(|status| status.as_u16() >= 200);
        Self::answering(Answer::bare(status.unwrap_or_else(|| misuse(&format!("{code} is no status to answer with")))))
    }

    /// Answers that the first request with this key is still running, as the contract does (409, problem type
    /// `in-progress`), whatever the ledger says. `retry_after` is the header's value.
    ///
    /// # Panics
    ///
    /// `retry_after` has a character that no header can carry.
    #[must_use]
    #[track_caller]
    pub fn in_progress(retry_after: &str) -> Self {
        Self::answering(Answer::in_progress(header_value(retry_after)))
    }

    /// The operation is executed and stored, then the connection is closed without an answer.
    #[must_use]
    pub fn reply_lost() -> Self {
        Self::close(At::AfterCommit)
    }

    /// The operation is executed and stored, then the connection is closed when the head of the reply and `bytes` bytes of
    /// its body are sent.
    #[must_use]
    pub fn reply_cut(bytes: usize) -> Self {
        Self::close(At::BodyBytes(bytes))
    }

    /// The request is read, then the connection is closed without an answer. Nothing is executed.
    #[must_use]
    pub fn refused_before_claim() -> Self {
        Self::close(At::BeforeClaim)
    }

    /// The request is read, and nothing follows.
    #[must_use]
    pub fn stall_before_claim() -> Self {
        Self::stall(At::BeforeClaim)
    }

    /// The operation is executed and stored, and no answer follows.
    #[must_use]
    pub fn stall_after_commit() -> Self {
        Self::stall(At::AfterCommit)
    }

    /// Closes the connection.
    #[must_use]
    pub fn close(at: At) -> Self {
        Self(Some((at, How::Fin)))
    }

    /// Resets the connection. The client may lose bytes that were sent before.
    #[must_use]
    pub fn reset(at: At) -> Self {
        Self(Some((at, How::Rst)))
    }

    /// Sends nothing more, and keeps the connection open.
    #[must_use]
    pub fn stall(at: At) -> Self {
        Self(Some((at, How::Stall)))
    }

    /// Lets the process that serves the request die there: nothing that would follow happens, and a claim is left to its
    /// lease.
    #[must_use]
    pub fn crash_owner(at: At) -> Self {
        Self(Some((at, How::CrashOwner)))
    }

    /// Gives the answer a `Retry-After` header with this value, whatever it is.
    ///
    /// # Panics
    ///
    /// The fault answers nothing, or the value has a character that no header can carry.
    #[must_use]
    #[track_caller]
    pub fn retry_after(mut self, value: &str) -> Self {
        self.answer().headers.insert(RETRY_AFTER, header_value(value));
        self
    }

    /// Adds a header to the answer.
    ///
    /// # Panics
    ///
    /// The fault answers nothing, or this is no header.
    #[must_use]
    #[track_caller]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().unwrap_or_else(|_| misuse(&format!("{name:?} is no header name")));
        self.answer().headers.append(name, header_value(value));
        self
    }

    /// Makes the answer's body problem details of the type `/problems/<name>`.
    ///
    /// # Panics
    ///
    /// The fault answers nothing.
    #[must_use]
    #[track_caller]
    pub fn problem(mut self, name: &str) -> Self {
        let answer = self.answer();
        let Answer { headers, body, .. } = Answer::problem(answer.status, name, "Injected by the test.");
        answer.headers.extend(headers);
        answer.body = body;
        self
    }

    /// Sets the answer's body.
    ///
    /// # Panics
    ///
    /// The fault answers nothing, or the content type has a character that no header can carry.
    #[must_use]
    #[track_caller]
    pub fn body(mut self, content_type: &str, body: impl Into<Bytes>) -> Self {
        let answer = self.answer();
        answer.headers.insert(CONTENT_TYPE, header_value(content_type));
        answer.body = body.into();
        self
    }

    /// Executes and stores the operation first: this answer takes the place of its reply.
    ///
    /// # Panics
    ///
    /// The fault answers nothing.
    #[must_use]
    #[track_caller]
    pub fn after_commit(mut self) -> Self {
        match &mut self.0 {
            Some((at, How::Status(_))) => *at = At::AfterCommit,
            _ => misuse(&format!("only a fault that answers can do so after the commit, and this is: {self}")),
        }
        self
    }

    /// Where it strikes; `None` for no fault.
    #[must_use]
    pub fn at(&self) -> Option<At> {
        self.0.as_ref().map(|(at, _)| *at)
    }

    /// What it does; `None` for no fault.
    #[must_use]
    pub fn how(&self) -> Option<&How> {
        self.0.as_ref().map(|(_, how)| how)
    }

    fn answering(answer: Answer) -> Self {
        Self(Some((At::BeforeClaim, How::Status(CannedReply(answer)))))
    }

    #[track_caller]
    fn answer(&mut self) -> &mut Answer {
        match &mut self.0 {
            Some((_, How::Status(CannedReply(answer)))) => answer,
            _ => misuse("this fault answers nothing, so there is no answer to change; begin with Fault::status"),
        }
    }
}

#[track_caller]
fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| misuse(&format!("{text:?} cannot be sent in a header")))
}

#[track_caller]
#[expect(clippy::panic, reason = "a test that scripts a fault that cannot be must fail where it says so")]
fn misuse(message: &str) -> ! {
    panic!("{message}")
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeforeClaim => f.write_str("before the claim"),
            Self::AfterClaim => f.write_str("after the claim"),
            Self::AfterEffect => f.write_str("after the effect"),
            Self::AfterCommit => f.write_str("after the commit"),
            Self::HeadBytes(bytes) => write!(f, "after {bytes} bytes of the head"),
            Self::BodyBytes(bytes) => write!(f, "after {bytes} bytes of the body"),
        }
    }
}

impl fmt::Display for Fault {
    /// For the history that a failed assertion prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("no fault"),
            Some((at, How::Fin)) => write!(f, "connection closed {at}"),
            Some((at, How::Rst)) => write!(f, "connection reset {at}"),
            Some((at, How::Stall)) => write!(f, "stalled {at}"),
            Some((at, How::Status(reply))) => write!(f, "answered {} {at}", reply.status().as_u16()),
            Some((at, How::CrashOwner)) => write!(f, "owner crashed {at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_answered_before_the_claim_unless_it_says_otherwise() {
        assert_eq!(Fault::status(503).at(), Some(At::BeforeClaim));
        assert_eq!(Fault::status(503).after_commit().at(), Some(At::AfterCommit));
    }

    #[test]
    fn a_bare_status_has_no_body_and_no_type() {
        let Fault(Some((_, How::Status(CannedReply(answer))))) = Fault::status(409) else { panic!("no status") };
        assert!(answer.body.is_empty() && answer.headers.is_empty());
    }

    #[test]
    fn the_setters_change_the_answer() {
        let fault = Fault::status(500).problem("stored-failure").retry_after("soon").header("X-Replay", "true");
        let Fault(Some((_, How::Status(CannedReply(answer))))) = fault else { panic!("no status") };
        assert_eq!(answer.headers[RETRY_AFTER], "soon");
        assert_eq!(answer.headers["x-replay"], "true");
        assert_eq!(answer.headers[CONTENT_TYPE], "application/problem+json");
        assert!(answer.body.starts_with(b"{"));
    }

    #[test]
    #[should_panic(expected = "this fault answers nothing")]
    fn a_setter_on_a_fault_that_answers_nothing_is_refused_and_not_ignored() {
        let _ = Fault::reply_lost().retry_after("1");
    }

    #[test]
    #[should_panic(expected = "100 is no status to answer with")]
    fn an_interim_status_is_refused() {
        let _ = Fault::status(100);
    }

    #[test]
    fn every_fault_says_what_it_is() {
        assert_eq!(Fault::none().to_string(), "no fault");
        assert_eq!(Fault::reply_cut(3).to_string(), "connection closed after 3 bytes of the body");
        assert_eq!(Fault::reset(At::HeadBytes(1)).to_string(), "connection reset after 1 bytes of the head");
        assert_eq!(Fault::in_progress("1").to_string(), "answered 409 before the claim");
        assert_eq!(Fault::crash_owner(At::AfterEffect).to_string(), "owner crashed after the effect");
    }
}
