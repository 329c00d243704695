//! How an operation's attempts end: what is saved, what the caller hears, and in which words.
//!
//! A caller who is told "rejected" or "not sent" may act on it. So those closings are saved before they are told, and if
//! the save fails, the caller is told that instead.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::repeat::delivery_of;
use super::{Attempts, Ending, State, Step};
use crate::clock::Now;
use crate::error::{Error, ErrorKind};
use crate::history::{Attempt, Delivery, Outcome};
use crate::operation::{AfterSave, Closing, Durability, Keep, Phase, StoredReply};
use crate::reply::Verdict;
use crate::response::{Response, Story};

/// What one attempt's verdict says about the operation at the server, and in words.
pub(super) fn told(verdict: Verdict) -> (Delivery, &'static str) {
    match verdict {
        Verdict::Success => (Delivery::Answered, "done"),
        Verdict::Executed => (Delivery::Answered, "done, and the reply cannot be had again"),
        Verdict::Rejected => (Delivery::Answered, "refused"),
        // Says nothing about earlier attempts, and this one was not executed.
        Verdict::InFront(_) => (Delivery::NotSent, "refused in front of the operation"),
        Verdict::KeyRefused(_) => (Delivery::NotSent, "the key was not taken"),
        Verdict::InProgress { .. } => (Delivery::Unknown, "still in progress"),
        Verdict::KeyReused => (Delivery::Unknown, "the key belongs to another payload"),
        Verdict::Transient { .. } => (Delivery::Unknown, "a passing failure"),
        Verdict::StoredFailure => (Delivery::Unknown, "a failure that is stored under the key"),
        Verdict::Unsupported => (Delivery::Unknown, "no retry changes that"),
        Verdict::Redirected => (Delivery::Unknown, "a redirect is no answer"),
        Verdict::ReplyLost => (Delivery::Unknown, "the reply was lost, it may have been executed"),
        Verdict::NotSent { .. } => (Delivery::NotSent, "not sent"),
        Verdict::Unknown => (Delivery::Unknown, "it may have been executed"),
    }
}

impl Attempts {
    /// A final answer: a success, or a definite refusal.
    pub(super) fn answered(&mut self, verdict: Verdict) -> Step {
        let phase = if verdict == Verdict::Success { Phase::Completed } else { Phase::Rejected };
        if self.settled && phase == Phase::Rejected {
            return self.reply_unavailable();
        }
        // What was unknown before is settled by this; whether it was is still worth telling.
        let response = self.response(phase);
        self.close(phase, false, response)
    }

    /// Refused in front of the idempotency layer. That settles an operation none of whose attempts can have arrived; a
    /// request without a key has no operation to settle.
    pub(super) fn refused_in_front(&mut self) -> Step {
        if self.settled {
            return self.reply_unavailable();
        }
        if !self.unknown || self.record.is_none() {
            let response = self.response(Phase::Rejected);
            return self.close(Phase::Rejected, true, response);
        }
        let status = self.last_status();
        let message = format!(
            "the server answered {status} in front of the operation, and an earlier attempt may have been executed"
        );
        let error = self.error(ErrorKind::RejectedAfterUnknown, message, Delivery::Unknown, Phase::Sending);
        self.put_down(error)
    }

    /// The operation was completed before, and the server does not repeat its reply.
    fn reply_unavailable(&mut self) -> Step {
        let message = format!(
            "it was completed before, and asked for its reply the server answered {}; read the result from the server",
            self.last_status()
        );
        let error = self.error(ErrorKind::ReplyUnavailable, message, Delivery::Answered, Phase::Completed);
        self.put_down(error)
    }

    /// The server's answer ends the attempts, and is no answer to the operation.
    pub(super) fn stopped(&mut self, verdict: Verdict) -> Step {
        let status = self.last_status();
        let header = self.plan.contract.key_header();
        let (kind, phase, message): (_, _, Cow<'static, str>) = match verdict {
            Verdict::Executed => (
                ErrorKind::ReplyUnavailable,
                Phase::Completed,
                "the server executed the operation and cannot repeat its reply; read the result from the server".into(),
            ),
            Verdict::KeyReused => (
                ErrorKind::KeyReused,
                Phase::Failed,
                "the server says that the key was used for another payload; find out which, and begin a new operation"
                    .into(),
            ),
            Verdict::StoredFailure => (
                ErrorKind::StoredFailure,
                Phase::Failed,
                format!("the server stored its failure ({status}) under the key and can only repeat it").into(),
            ),
            Verdict::Redirected => (
                ErrorKind::Redirected,
                Phase::Failed,
                "the request was redirected, and a redirect is no answer to it; correct the URL".into(),
            ),
            Verdict::KeyRefused(_) => {
                let serialisation = self.plan.contract.key_serialisation();
                let message = format!(
                    "the server did not take the key ({status}), sent in `{header}` as {serialisation:?}; set the \
                     contract that it speaks, and ask under a new id"
                );
                // Like any answer in front of the operation: it says nothing about earlier attempts.
                let delivery = self.delivery();
                if self.unknown {
                    let error = self.error(ErrorKind::KeyRefused, message, delivery, Phase::Sending);
                    return self.put_down(error);
                }
                let error = self.error(ErrorKind::KeyRefused, message, delivery, Phase::Rejected);
                return self.close(Phase::Rejected, true, Err(error));
            }
            _ => (
                ErrorKind::UnsupportedStatus,
                Phase::Failed,
                format!("the server answered {status}, which no retry changes").into(),
            ),
        };
        let delivery = if phase == Phase::Completed { Delivery::Answered } else { Delivery::Unknown };
        let error = self.error(kind, message, delivery, phase);
        self.close(phase, false, Err(error))
    }

    /// A limit forbids another attempt. `asked` is the wait that the server asked for last.
    pub(super) fn limit_reached(&mut self, kind: ErrorKind, asked: Option<Duration>, now: Now) -> Step {
        // The last word of the server stands if it was one: a 429 that was retried in vain is a 429.
        self.ask_again_after(asked, now);
        if matches!(self.last_verdict, Some(Verdict::InFront(_))) {
            return self.refused_in_front();
        }
        let message = self.limit_message(kind, asked);
        let delivery = self.delivery();
        if self.unknown {
            let error = self.error(kind, message, delivery, Phase::Sending);
            return self.put_down(error);
        }
        let error = self.error(kind, message, delivery, Phase::NotSent);
        self.close(Phase::NotSent, false, Err(error))
    }

    /// The server asked for more time than this call has. The record stays as it is.
    pub(super) fn too_early(&mut self, kind: ErrorKind, asked: Option<Duration>) -> Step {
        self.state = State::Done;
        let message = self.limit_message(kind, asked);
        let known = self.record.as_ref().map(|record| (delivery_of(record), record.phase));
        let (delivery, phase) = known.unwrap_or((self.delivery(), Phase::Sending));
        Step::Done(Err(self.error(kind, message, delivery, phase)))
    }

    /// Sent in the future, by this clock: nobody can say how long ago that was. The record stays as it is.
    pub(super) fn age_unknown(&mut self) -> Step {
        self.state = State::Done;
        let message = "its first attempt lies in the future by this clock, so nobody can say whether the server still knows \
                       the key; correct the clock and ask again, or find out at the server";
        Step::Done(Err(self.error(ErrorKind::WindowExpired, message, Delivery::Unknown, Phase::Sending)))
    }

    /// Whoever takes the operation up next must not come earlier than the server asked.
    pub(super) fn ask_again_after(&mut self, asked: Option<Duration>, now: Now) {
        let next_attempt_at = asked.map(|asked| self.journal_now(now).plus(asked));
        if let Some(record) = &mut self.record {
            record.next_attempt_at = next_attempt_at;
        }
    }

    fn limit_message(&self, kind: ErrorKind, asked: Option<Duration>) -> Cow<'static, str> {
        let policy = &self.plan.policy;
        let last = self.history.last().map_or_else(String::new, |attempt| format!("; the last: {attempt}"));
        match kind {
            ErrorKind::AttemptsExhausted => {
                let attempts = self.history.len();
                format!("no answer after {attempts} attempt{}{last}", if attempts == 1 { "" } else { "s" }).into()
            }
            ErrorKind::RetryAfterTooLong => format!(
                "the server asks to wait {} s and the limit is {} s; ask for the operation again after that",
                asked.unwrap_or_default().as_secs(),
                policy.retry_after_cap.as_secs()
            )
            .into(),
            ErrorKind::BudgetExhausted => {
                "the retry budget is spent, because too much of the traffic is retries; ask again later".into()
            }
            ErrorKind::WindowExpired => "its dedup window is over and no attempt of it ever left; ask again".into(),
            ErrorKind::Unreachable => "the server cannot be reached this way, and no retry changes that".into(),
            _ => format!("the deadline of {:?} leaves no time for another attempt{last}", policy.deadline).into(),
        }
    }

    /// The server may have forgotten the key, so another send could execute the operation twice.
    pub(super) fn window_is_over(&mut self, now: Now) -> Step {
        if !self.unknown {
            return self.limit_reached(ErrorKind::WindowExpired, None, now);
        }
        let window = self.plan.contract.dedup_window();
        let message = format!(
            "the server remembers a key for {} s and that time is over, so nothing was sent; find out at the server \
             whether the operation was executed",
            window.as_secs()
        );
        let error = self.error(ErrorKind::WindowExpired, message, Delivery::Unknown, Phase::Expired);
        self.close(Phase::Expired, false, Err(error))
    }

    pub(super) fn prepare_failed(&mut self, source: Arc<dyn StdError + Send + Sync>) -> Step {
        let message = "the `prepare` hook failed, so the attempt was not made";
        let delivery = self.delivery();
        if self.unknown {
            let error = self.error(ErrorKind::Prepare, message, delivery, Phase::Sending).caused_by(source);
            return self.put_down(error);
        }
        let error = self.error(ErrorKind::Prepare, message, delivery, Phase::NotSent).caused_by(source);
        self.close(Phase::NotSent, false, Err(error))
    }

    pub(super) fn lease_lost(&mut self) -> Step {
        self.state = State::Done;
        let message = "another worker took the operation over; its outcome is in the journal";
        Step::Done(Err(self.error(ErrorKind::LeaseLost, message, Delivery::Unknown, Phase::Sending)))
    }

    /// The record could not be marked as sending, so nothing was sent. A mark that may be on disk is read as "may have been
    /// sent" by whoever comes next, and then it is that.
    pub(super) fn not_opened(&mut self, source: Arc<dyn StdError + Send + Sync>) -> Step {
        let message = "the journal could not be written, so nothing was sent";
        let known = self.record.as_ref().map(|record| (delivery_of(record), record.phase));
        let (delivery, phase) = known.unwrap_or((Delivery::NotSent, Phase::NotSent));
        Step::Done(Err(self.error(ErrorKind::Journal, message, delivery, phase).caused_by(source)))
    }

    /// The record could not be closed, so what was to be told must not be relied upon.
    pub(super) fn not_closed(&mut self, ending: Ending, source: Arc<dyn StdError + Send + Sync>) -> Step {
        if !ending.must_be_saved {
            return Step::Done(ending.result);
        }
        let message = "the outcome could not be written to the journal, so the operation is still pending";
        Step::Done(Err(self.error(ErrorKind::Journal, message, Delivery::Unknown, Phase::Sending).caused_by(source)))
    }

    /// "Cannot happen" is an error that users can report, not a panic in their process.
    pub(super) fn cannot_happen(&mut self, what: &'static str) -> Step {
        self.state = State::Done;
        // Whatever is on disk: to ask again under the same id is safe, so the error says that and claims no closing.
        Step::Done(Err(self.error(ErrorKind::Internal, please_report(what), Delivery::Unknown, Phase::Sending)))
    }

    /// Closes the record for good, then tells.
    fn close(&mut self, phase: Phase, in_front: bool, result: Result<Response, Error>) -> Step {
        let answered = result.as_ref().ok().map(Response::status);
        let status = answered.or(self.last_reply.as_ref().map(|reply| reply.status));
        let attempts = self.number;
        let Some(record) = &mut self.record else {
            self.state = State::Done;
            return Step::Done(result);
        };
        record.attempts = attempts;
        // What was completed once stays so, whatever the server says to a request for its reply.
        let reply = match (&result, self.plan.keep) {
            (Ok(response), Keep::Exchange) if response.is_complete() => Some(StoredReply::of(response)),
            _ => None,
        };
        if !self.settled || (phase == Phase::Completed && reply.is_some()) {
            record.phase = phase;
            record.request = None;
            if !in_front {
                record.next_attempt_at = None;
            }
            record.closing = Some(Closing { status, in_front, after_unknown: self.unknown, resolved: false, reply });
        }
        // A lost "completed" costs one harmless replay. Any other lost closing would be a lie to the caller.
        let durability = if phase == Phase::Completed { Durability::Late } else { Durability::Now };
        let ending = Ending { result, must_be_saved: durability == Durability::Now };
        let record = record.clone();
        self.state = State::Ending(Box::new(ending));
        Step::Save(record, AfterSave::ReleaseLease, durability)
    }

    /// Leaves the record pending for whoever takes it up next, then tells.
    fn put_down(&mut self, error: Error) -> Step {
        let attempts = self.number;
        let Some(record) = &mut self.record else {
            self.state = State::Done;
            return Step::Done(Err(error));
        };
        record.attempts = attempts;
        let record = record.clone();
        self.state = State::Ending(Box::new(Ending { result: Err(error), must_be_saved: false }));
        Step::Save(record, AfterSave::ReleaseLease, Durability::Now)
    }

    /// The last reply, for the caller. A copy stays for the case that the caller may not have it after all, because the
    /// closing cannot be saved; a success is told in any case.
    fn response(&mut self, phase: Phase) -> Result<Response, Error> {
        let kept = if phase == Phase::Completed { None } else { self.last_reply.clone() };
        let reply =
            std::mem::replace(&mut self.last_reply, kept).ok_or_else(|| bug("a final answer without a reply"))?;
        let story = Story {
            operation: self.record.as_ref().map(|record| (record.operation.clone(), record.key.clone())),
            phase: self.record.as_ref().map(|_| if self.settled { Phase::Completed } else { phase }),
            replayed: self.plan.contract.is_replay(&reply.headers),
            attempts: self.history.clone(),
            after_unknown: self.unknown,
        };
        Ok(Response::new(reply, story))
    }

    fn error(
        &mut self,
        kind: ErrorKind,
        message: impl Into<Cow<'static, str>>,
        delivery: Delivery,
        phase: Phase,
    ) -> Error {
        let failed_last = matches!(self.history.last(), Some(Attempt { outcome: Outcome::Failure(_), .. }));
        let error = Error::new(kind, message).delivered(delivery).tried(self.history.clone(), self.last_reply.clone());
        let error = match &self.last_failure {
            Some(failure) if failed_last => error.caused_by(Arc::new(failure.clone())),
            _ => error,
        };
        let (error, phase) =
            if self.settled { (error.delivered(Delivery::Answered), Phase::Completed) } else { (error, phase) };
        match &self.record {
            Some(record) => error
                .of_operation(record.operation.clone(), record.key.clone(), phase)
                .timed(record.first_sent_at, record.next_attempt_at),
            None => error,
        }
    }

    fn last_status(&self) -> String {
        self.last_reply.as_ref().map_or_else(|| "nothing".to_owned(), |reply| reply.status.to_string())
    }
}

fn bug(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal, please_report(what))
}

fn please_report(what: &'static str) -> String {
    format!("this cannot happen, please report it: {what}")
}
