//! The journal as a person sees it: what is pending, what became of an operation, and what was found out by hand.

use std::sync::Arc;
use std::time::Duration;

use super::IdempotentClient;
use crate::attempt::refusal;
use crate::error::{Error, ErrorKind};
use crate::journal::{Acquired, JournalError, Purged};
use crate::operation::{AfterSave, Closing, Durability, OperationId, Phase, Record};

/// What a person found out about an operation that no answer settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "it was executed or it was not")]
pub enum Resolution {
    /// The server has executed it.
    Executed,
    /// The server has not executed it, and never will.
    NotExecuted,
}

impl IdempotentClient {
    /// The ids of all pending operations.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Journal`] if the journal cannot be read.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn pending(&self) -> Result<Vec<OperationId>, Error> {
        let mut all: Vec<OperationId> = Vec::new();
        loop {
            let page = self.0.journal.pending(all.last().cloned(), PAGE).await.map_err(unreadable)?;
            let last = page.len() < PAGE;
            all.extend(page);
            if last {
                return Ok(all);
            }
        }
    }

    /// Looks an operation up in the journal.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`] if that is no operation id, [`ErrorKind::Journal`] if the journal cannot be read.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn operation(&self, id: impl AsRef<str>) -> Result<Option<Record>, Error> {
        self.0.journal.get(parse(id.as_ref())?).await.map_err(unreadable)
    }

    /// Closes an operation by what a person found out at the server. It is never sent again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownOperation`], [`ErrorKind::Locked`] while it is being driven, [`ErrorKind::Closed`] if an answer
    /// has settled it already, and [`ErrorKind::Journal`].
    ///
    /// # Cancel safety
    ///
    /// The decision may be written or not; look it up with [`operation`](Self::operation).
    pub async fn resolve(&self, id: impl AsRef<str>, found: Resolution) -> Result<(), Error> {
        let phase = match found {
            Resolution::Executed => Phase::Completed,
            Resolution::NotExecuted => Phase::Rejected,
        };
        self.decide(parse(id.as_ref())?, phase).await
    }

    /// Gives an operation up, whatever has become of it at the server. It is never sent again.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve).
    ///
    /// # Cancel safety
    ///
    /// As [`resolve`](Self::resolve).
    pub async fn abandon(&self, id: impl AsRef<str>) -> Result<(), Error> {
        self.decide(parse(id.as_ref())?, Phase::Abandoned).await
    }

    /// Drops finished records that were closed longer ago than `older_than`, and says what was kept. A record whose dedup
    /// window may still be open stays, and so does one that is pending, failed or expired.
    ///
    /// An id whose record is gone is a new operation if it is asked for again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Journal`] if the journal cannot be written.
    ///
    /// # Cancel safety
    ///
    /// Part of it may have been dropped.
    pub async fn purge(&self, older_than: Duration) -> Result<Purged, Error> {
        self.0.journal.purge(older_than).await.map_err(unreadable)
    }

    async fn decide(&self, operation: OperationId, phase: Phase) -> Result<(), Error> {
        let journal = &self.0.journal;
        let known = journal.get(operation.clone()).await.map_err(unreadable)?;
        let Some(known) = known else { return Err(unknown(&operation)) };
        match journal.acquire(operation.clone(), DECISION).await.map_err(unreadable)? {
            Acquired::Taken { mut record, lease, .. } => {
                if is_settled(&record) {
                    journal.relinquish(lease);
                    let message = format!("it is {} already, by an answer of the server", record.phase);
                    return Err(refusal(&record, ErrorKind::Closed, message));
                }
                let before = record.clone();
                record.closing = Some(Closing {
                    status: None,
                    in_front: false,
                    after_unknown: record.first_sent_at.is_some(),
                    resolved: true,
                    reply: None,
                });
                record.phase = phase;
                record.request = None;
                let saved = journal.save(*record, lease.clone(), AfterSave::ReleaseLease, Durability::Now).await;
                saved.map_err(|error| {
                    journal.relinquish(lease);
                    let message = "the decision could not be written; look the operation up, and decide again";
                    refusal(&before, ErrorKind::Journal, message.to_owned()).caused_by(Arc::new(error))
                })
            }
            Acquired::Held { until } => Err(refusal(
                &known,
                ErrorKind::Locked,
                format!("it is being driven, until {until} at the latest; decide after that"),
            )),
            Acquired::Unknown => Err(unknown(&operation)),
        }
    }
}

/// How many ids are read from the journal at a time.
pub(super) const PAGE: usize = 100;

/// How long a person's decision may take to be written.
const DECISION: Duration = Duration::from_secs(10);

/// Whether an answer of the server, or a person, has settled the operation.
fn is_settled(record: &Record) -> bool {
    let in_front = record.closing.as_ref().is_some_and(|closing| closing.in_front);
    match record.phase {
        Phase::Completed | Phase::Abandoned => true,
        Phase::Rejected => !in_front,
        Phase::Prepared | Phase::Sending | Phase::NotSent | Phase::Failed | Phase::Expired => false,
    }
}

fn parse(id: &str) -> Result<OperationId, Error> {
    OperationId::parse(id).map_err(|error| Error::new(ErrorKind::InvalidKey, error.to_string()))
}

fn unknown(operation: &OperationId) -> Error {
    Error::new(ErrorKind::UnknownOperation, format!("the journal knows no operation {operation}"))
}

pub(super) fn unreadable(error: JournalError) -> Error {
    Error::new(ErrorKind::Journal, "the journal could not be used").caused_by(Arc::new(error))
}
