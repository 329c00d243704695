//! Asked again: what a request under a known operation id leads to. A table over phases, like the one over answers.

use std::time::Duration;

use url::Url;

use crate::clock::Timestamp;
use crate::error::{Error, ErrorKind};
use crate::fingerprint::Fingerprint;
use crate::history::Delivery;
use crate::key::IdempotencyKey;
use crate::operation::{Phase, Record, Wire};

/// What is asked for under a known id.
pub(crate) struct Asked<'a> {
    pub(crate) wire: &'a Wire,
    pub(crate) url: &'a Url,
    pub(crate) credential_scope: Option<&'a str>,
    pub(crate) fingerprint: Option<&'a Fingerprint>,
    /// The caller's own key, if it brought one.
    pub(crate) key: Option<&'a IdempotencyKey>,
    /// The journal's time, if it is known yet.
    pub(crate) now: Option<Timestamp>,
    pub(crate) safe_window: Duration,
}

/// What it leads to.
#[derive(Debug)]
pub(crate) enum Again {
    /// Attempts, with the record's key. `after_unknown` says whether an earlier one may have arrived.
    Drive { after_unknown: bool },
    /// The answer that closed the operation, from the journal.
    Recall,
    /// An error, and nothing is sent.
    Refuse(Box<Error>),
}

/// Decides what a request under a known operation id leads to.
pub(crate) fn again(record: &Record, asked: &Asked<'_>) -> Again {
    if let Some(difference) = difference(record, asked) {
        return refuse(record, ErrorKind::PayloadMismatch, difference);
    }
    let in_window = match (record.first_sent_at, asked.now) {
        (Some(first), Some(now)) => first <= now && now.since(first) < asked.safe_window,
        // Without the journal's time nobody can say; it is looked at once more with it.
        _ => true,
    };
    let closing = record.closing.as_ref();
    let in_front = closing.is_some_and(|closing| closing.in_front);
    let reply_kept = closing.is_some_and(|closing| closing.reply.is_some());
    if closing.is_some_and(|closing| closing.resolved) && record.phase != Phase::Abandoned {
        let found = if record.phase == Phase::Completed { "executed" } else { "not executed" };
        let message = format!("a person found out that it was {found}, and it is never sent again");
        return refuse(record, ErrorKind::Closed, message);
    }
    match record.phase {
        Phase::Prepared => Again::Drive { after_unknown: false },
        // Found as sending, it may have been sent, whoever began it. Whether the window allows another attempt is for
        // the machine to say.
        Phase::Sending => Again::Drive { after_unknown: true },
        Phase::NotSent => Again::Drive { after_unknown: false },
        Phase::Rejected if in_front => Again::Drive { after_unknown: false },
        Phase::Rejected => Again::Recall,
        Phase::Completed if reply_kept => Again::Recall,
        Phase::Completed if in_window => Again::Drive { after_unknown: true },
        Phase::Completed => refuse(
            record,
            ErrorKind::Closed,
            format!("it was completed at {}, and its reply was not kept", record.updated_at),
        ),
        Phase::Failed => refuse(
            record,
            ErrorKind::Closed,
            "it failed in a way that only a person can settle; find out at the server what happened".to_owned(),
        ),
        Phase::Expired => refuse(
            record,
            ErrorKind::Closed,
            "its dedup window ended before an answer came; find out at the server what happened".to_owned(),
        ),
        Phase::Abandoned => refuse(record, ErrorKind::Closed, "it was abandoned and is never sent again".to_owned()),
    }
}

/// What is known of an operation from its record alone.
pub(crate) fn delivery_of(record: &Record) -> Delivery {
    match record.phase {
        Phase::Prepared | Phase::NotSent => Delivery::NotSent,
        Phase::Completed | Phase::Rejected => Delivery::Answered,
        Phase::Sending | Phase::Failed | Phase::Expired => Delivery::Unknown,
        Phase::Abandoned if record.first_sent_at.is_none() => Delivery::NotSent,
        Phase::Abandoned => Delivery::Unknown,
    }
}

/// An error about an operation that this call did not drive.
pub(crate) fn refusal(record: &Record, kind: ErrorKind, message: String) -> Error {
    Error::new(kind, message)
        .delivered(delivery_of(record))
        .of_operation(record.operation.clone(), record.key.clone(), record.phase)
        .timed(record.first_sent_at, record.next_attempt_at)
}

fn refuse(record: &Record, kind: ErrorKind, message: String) -> Again {
    Again::Refuse(Box::new(refusal(record, kind, message)))
}

/// What keeps this request from being the one that was recorded, with the remedy.
fn difference(record: &Record, asked: &Asked<'_>) -> Option<String> {
    const REMEDY: &str = "nothing was sent; a corrected request is a new operation and needs a new id";
    if record.url.origin() != asked.url.origin() {
        let (then, now) = (record.url.origin().ascii_serialization(), asked.url.origin().ascii_serialization());
        return Some(format!("it was begun at {then} and is now asked for at {now}; {REMEDY}"));
    }
    if !record.asks_the_same(asked.fingerprint) {
        return Some(format!("it was begun with another method, URL or body; {REMEDY}"));
    }
    if record.wire != *asked.wire {
        return Some(format!(
            "it was begun under the contract {} and is now asked for under {}; use the one that it was begun under",
            record.wire, asked.wire
        ));
    }
    if record.credential_scope.as_deref() != asked.credential_scope {
        return Some(format!(
            "it was begun under the credential scope {:?} and is now asked for under {:?}; use the one that it was \
             begun under",
            record.credential_scope.as_deref().unwrap_or("none"),
            asked.credential_scope.unwrap_or("none")
        ));
    }
    if asked.key.is_some_and(|key| *key != record.key) {
        return Some(format!("it was begun with another idempotency key; {REMEDY}"));
    }
    None
}
