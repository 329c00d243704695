//! The messages of one group, each done in the group's transaction.

use super::locks::Locks;
use super::message::{Message, Outcome};
use super::transitions::{Begin, Refusal, Transitions};
use crate::clock::Timestamp;
use crate::journal::Acquired;

/// One group at work.
pub(super) struct Work<'w, 'c> {
    pub(super) transitions: &'w mut Transitions<'c>,
    pub(super) locks: &'w Locks,
    pub(super) now: Timestamp,
    pub(super) changed: bool,
    /// Whether an operation was begun.
    pub(super) begun: bool,
    pub(super) bytes: usize,
}

impl Work<'_, '_> {
    pub(super) fn perform(&mut self, message: &mut Message) -> Result<Outcome, Refusal> {
        Ok(match message {
            Message::Begin { record, lease, .. } => {
                match self.transitions.begin(record, *lease, self.now, self.locks.owner())? {
                    Begin::Inserted { lease, now, bytes } => {
                        self.wrote(bytes);
                        self.begun = true;
                        Outcome::Begun { lease, now }
                    }
                    Begin::Known(known) => Outcome::Known(known),
                }
            }
            Message::Acquire { operation, lease, .. } => {
                let acquired = self.transitions.acquire(operation, *lease, self.now, self.locks)?;
                if matches!(acquired, Acquired::Taken { .. }) {
                    self.wrote(0);
                }
                Outcome::Acquired(acquired)
            }
            Message::Save { record, lease, then, .. } => {
                let bytes = self.transitions.save(record, lease, *then, self.now)?;
                self.wrote(bytes);
                Outcome::Done
            }
            Message::Relinquish(lease) => {
                if self.transitions.release(lease)? {
                    self.wrote(0);
                }
                Outcome::Done
            }
            Message::Get { operation, .. } => Outcome::Record(self.transitions.get(operation)?.map(Box::new)),
            Message::Pending { after, limit, .. } => {
                Outcome::Pending(self.transitions.pending(after.as_ref(), *limit)?)
            }
            // These never get into a group.
            Message::Purge { .. } | Message::Checkpointed(_) | Message::Damaged(_) | Message::Close => Outcome::Done,
            #[cfg(test)]
            Message::Settle(_) => Outcome::Done,
        })
    }

    fn wrote(&mut self, bytes: usize) {
        self.changed = true;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}
