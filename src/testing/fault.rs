//! One injected failure, at a named position in the exchange. Pure: the server carries it out.

mod at;
mod how;
mod source;

use std::fmt;
use std::time::Duration;

pub use at::At;
use bytes::Bytes;
pub use how::{CannedReply, How};
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

impl Fault {
    /// A fault of any kind. The other constructors are short forms of it.
    ///
    /// # Panics
    ///
    /// `how` cannot happen at this position: [`How`] says where each can.
    #[must_use]
    #[track_caller]
    pub fn new(at: At, how: How) -> Self {
        if !how.fits(at) {
            misuse(&format!("this cannot happen {at}: {how:?}; the docs of How say where it can"));
        }
        Self(Some((at, how)))
    }

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

    /// Goes on after this much time by the server's clock.
    ///
    /// # Panics
    ///
    /// There is no waiting at this position, see [`How::Delay`].
    #[must_use]
    #[track_caller]
    pub fn delay(at: At, duration: Duration) -> Self {
        Self::new(at, How::Delay(duration))
    }

    /// The network delivers the request twice.
    #[must_use]
    pub fn delivered_twice() -> Self {
        Self(Some((At::BeforeClaim, How::DuplicateDelivery)))
    }

    /// The network holds the request back until a later attempt with its key was answered: a late original.
    #[must_use]
    pub fn late_original() -> Self {
        Self(Some((At::BeforeClaim, How::HoldAndReorder)))
    }

    /// The store of keys is down when the key is to be claimed: 503, and nothing is executed.
    #[must_use]
    pub fn store_down() -> Self {
        Self(Some((At::BeforeClaim, How::StoreDown)))
    }

    /// Lets the process that serves the request die there: nothing that would follow happens, and a claim is left to its
    /// lease.
    ///
    /// # Panics
    ///
    /// The position is before the request is known.
    #[must_use]
    #[track_caller]
    pub fn crash_owner(at: At) -> Self {
        Self::new(at, How::CrashOwner)
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
    pub fn after_commit(self) -> Self {
        if !matches!(self.how(), Some(How::Status(_))) {
            misuse(&format!("only a fault that answers can do so after the commit, and this is: {self}"));
        }
        self.moved_to(At::AfterCommit)
    }

    /// The same at another position.
    ///
    /// # Panics
    ///
    /// It is no fault, or cannot happen there.
    #[must_use]
    #[track_caller]
    pub fn moved_to(self, at: At) -> Self {
        match self.0 {
            Some((_, how)) => Self::new(at, how),
            None => misuse("no fault has no position"),
        }
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

    pub(super) fn is_of_connection(&self) -> bool {
        self.at().is_some_and(At::is_of_connection)
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

impl fmt::Display for Fault {
    /// For the history that a failed assertion prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("no fault"),
            Some((at, how)) => write!(f, "{how} {at}"),
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
    #[should_panic(expected = "this cannot happen at the connect")]
    fn a_fault_that_cannot_happen_there_is_refused() {
        let _ = Fault::new(At::Connect, How::Truncate);
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
