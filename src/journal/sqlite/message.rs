//! What is asked of the writer, and how it answers.

use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::sync::oneshot;

use super::keeper::Log;
use crate::clock::Timestamp;
use crate::journal::{Acquired, Begun, JournalError, Lease, Purged};
use crate::operation::{AfterSave, OperationId, Phase, Record};

pub(super) type Answer<T> = oneshot::Sender<Result<T, JournalError>>;

pub(super) enum Message {
    Begin {
        record: Box<Record>,
        lease: Duration,
        answer: Answer<Offer<Begun>>,
    },
    Acquire {
        operation: OperationId,
        lease: Duration,
        answer: Answer<Offer<Acquired>>,
    },
    /// Without `answer` nobody waits for it.
    Save {
        record: Box<Record>,
        lease: Lease,
        then: AfterSave,
        answer: Option<Answer<()>>,
    },
    Relinquish(Lease),
    Get {
        operation: OperationId,
        answer: Answer<Option<Record>>,
    },
    Pending {
        after: Option<OperationId>,
        limit: usize,
        answer: Answer<Vec<OperationId>>,
    },
    Purge {
        older_than: Duration,
        answer: Answer<Purged>,
    },
    /// The keeper has made a checkpoint; `None` if it failed.
    Checkpointed(Option<Log>),
    /// The keeper found damage.
    Damaged(JournalError),
    /// All upkeep that is due, at once.
    #[cfg(test)]
    Settle(Answer<()>),
    Close,
}

/// A lease on its way to whoever asked for it. If that future is dropped meanwhile, the lease goes back.
pub(super) struct Offer<T: Leased> {
    value: Option<T>,
    back: Sender<Message>,
}

pub(super) trait Leased {
    fn lease(&self) -> Option<&Lease>;
}

impl Leased for Begun {
    fn lease(&self) -> Option<&Lease> {
        match self {
            Self::New { lease, .. } => Some(lease),
            Self::Known(_) => None,
        }
    }
}

impl Leased for Acquired {
    fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Taken { lease, .. } => Some(lease),
            Self::Held { .. } | Self::Unknown => None,
        }
    }
}

impl<T: Leased> Offer<T> {
    fn new(value: T, back: &Sender<Message>) -> Self {
        Self { value: Some(value), back: back.clone() }
    }

    /// Takes it; the lease is the caller's now.
    pub(super) fn take(mut self) -> Option<T> {
        self.value.take()
    }
}

impl<T: Leased> Drop for Offer<T> {
    fn drop(&mut self) {
        if let Some(lease) = self.value.as_ref().and_then(T::lease) {
            // After the writer's end there is no one to take it, and its owner's lock is gone, too.
            let _ = self.back.send(Message::Relinquish(lease.clone()));
        }
    }
}

/// What a message led to, before it is told.
pub(super) enum Outcome {
    Begun { lease: Lease, now: Timestamp },
    Known(Box<Record>),
    Acquired(Acquired),
    Done,
    Record(Option<Box<Record>>),
    Pending(Vec<OperationId>),
}

impl Message {
    /// Whether it lets an operation be sent.
    pub(super) fn lets_send(&self) -> bool {
        matches!(self, Self::Begin { .. } | Self::Acquire { .. })
    }

    /// Whether it has to be done in a transaction of the writer's.
    pub(super) fn writes(&self) -> bool {
        matches!(self, Self::Begin { .. } | Self::Acquire { .. } | Self::Save { .. } | Self::Relinquish(_))
    }

    /// Whether its commit has to reach the disk before it is answered. A lease has not: after a crash of the machine no
    /// one is left who could hold an older one.
    pub(super) fn wants_flush(&self) -> bool {
        matches!(self, Self::Begin { .. } | Self::Save { answer: Some(_), .. })
    }

    /// Whether nobody waits for it.
    pub(super) fn is_late(&self) -> bool {
        matches!(self, Self::Relinquish(_) | Self::Save { answer: None, .. })
    }

    /// Whether whoever asked has stopped waiting, so that it need not be done.
    pub(super) fn is_forsaken(&self) -> bool {
        match self {
            Self::Begin { answer, .. } => answer.is_closed(),
            Self::Acquire { answer, .. } => answer.is_closed(),
            Self::Get { answer, .. } => answer.is_closed(),
            Self::Pending { answer, .. } => answer.is_closed(),
            _ => false,
        }
    }

    /// Whether it closes an operation for good, so that its row can move.
    pub(super) fn finishes(&self) -> bool {
        matches!(self, Self::Save { record, .. }
            if !record.phase.is_pending() && !matches!(record.phase, Phase::Failed | Phase::Expired))
    }

    /// Tells whoever asked. If nobody listens any more, nothing is lost: an offered lease goes back by itself.
    pub(super) fn answer(self, outcome: Result<Outcome, JournalError>, back: &Sender<Self>) {
        match self {
            Self::Begin { record, answer, .. } => drop(answer.send(match outcome {
                Ok(Outcome::Begun { lease, now }) => Ok(Offer::new(Begun::New { record, lease, now }, back)),
                Ok(Outcome::Known(known)) => Ok(Offer::new(Begun::Known(known), back)),
                other => Err(unfitting(other)),
            })),
            Self::Acquire { answer, .. } => drop(answer.send(match outcome {
                Ok(Outcome::Acquired(acquired)) => Ok(Offer::new(acquired, back)),
                other => Err(unfitting(other)),
            })),
            Self::Save { answer: Some(answer), .. } => drop(answer.send(match outcome {
                Ok(Outcome::Done) => Ok(()),
                other => Err(unfitting(other)),
            })),
            Self::Save { record, answer: None, .. } => {
                if let Err(error) = outcome {
                    tracing::warn!(
                        operation = %record.operation, %error,
                        "a closing could not be written to the journal; it will be asked for again and replayed"
                    );
                }
            }
            Self::Get { answer, .. } => drop(answer.send(match outcome {
                Ok(Outcome::Record(record)) => Ok(record.map(|record| *record)),
                other => Err(unfitting(other)),
            })),
            Self::Pending { answer, .. } => drop(answer.send(match outcome {
                Ok(Outcome::Pending(pending)) => Ok(pending),
                other => Err(unfitting(other)),
            })),
            Self::Purge { answer, .. } => {
                if let Err(error) = outcome {
                    drop(answer.send(Err(error)));
                }
            }
            #[cfg(test)]
            Self::Settle(answer) => drop(answer.send(outcome.map(drop))),
            Self::Relinquish(_) | Self::Checkpointed(_) | Self::Damaged(_) | Self::Close => {}
        }
    }
}

/// "Cannot happen" is an error that users can report, not a panic in their process.
fn unfitting(outcome: Result<Outcome, JournalError>) -> JournalError {
    outcome.err().unwrap_or_else(|| {
        JournalError::new(
            crate::journal::JournalErrorKind::Unavailable,
            "this cannot happen, please report it: the journal's writer answered something else than was asked",
        )
    })
}
