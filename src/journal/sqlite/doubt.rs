//! A commit that failed, and may be on the disk all the same.

use rusqlite::ErrorCode;

use super::locks::Locks;
use super::message::{Message, Outcome};
use super::transitions::Transitions;
use super::writer::{Flush, Writer, set_flush};
use crate::journal::{Acquired, JournalError, Lease};

/// A group whose commit failed.
pub(super) struct Doubt {
    pub(super) group: Vec<Message>,
    pub(super) outcomes: Vec<Result<Outcome, JournalError>>,
    pub(super) error: rusqlite::Error,
}

impl Writer {
    /// Finds out, on a fresh connection, what became of a group whose commit failed.
    ///
    /// A look is not enough. The log may end with the whole group, not yet visible, and a crash would bring it to light. Only
    /// another commit that reaches the disk writes over it. So without such a commit everything stays unconfirmed; a full
    /// disk is the exception, because there the log lacks the group's last page.
    pub(super) fn settle(&mut self, transitions: &mut Transitions<'_>, doubt: Doubt) {
        let Doubt { group, outcomes, error } = doubt;
        let disk_full = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
        let error = self.subject.sqlite("commit", error);
        let confirmed = self.confirm(transitions, &group, &outcomes);
        if confirmed.is_none() {
            self.roll_back(transitions.connection);
        }
        for (index, (message, outcome)) in group.into_iter().zip(outcomes).enumerate() {
            if !message.writes() {
                self.read(transitions, message);
                continue;
            }
            let there = match &confirmed {
                Some(there) => there.get(index).copied().unwrap_or(true),
                None if disk_full => is_there(transitions, &self.locks, &message, &outcome).unwrap_or(true),
                None => true,
            };
            // What was refused in the group stays refused, whatever became of the rest.
            let answer = match outcome {
                Err(refused) => refused,
                Ok(_) if there => error.clone().unconfirmed(),
                // Nor was it there before: the group had found it absent. What the group found known may be there still.
                Ok(Outcome::Begun { .. }) => error.clone().absent(),
                Ok(_) => error.clone(),
            };
            message.answer(Err(answer), &self.back);
        }
    }

    /// Which messages of a doubtful group are in the journal, durably either way; `None` if that cannot be said.
    fn confirm(
        &mut self,
        transitions: &mut Transitions<'_>,
        group: &[Message],
        outcomes: &[Result<Outcome, JournalError>],
    ) -> Option<Vec<bool>> {
        let _turn = self.locks.turn(self.subject.busy_timeout).ok()??;
        let connection = transitions.connection;
        set_flush(connection, &mut self.flush, Flush::Yes).ok()?;
        connection.execute_batch("BEGIN IMMEDIATE").ok()?;
        let mut there = Vec::with_capacity(group.len());
        for (message, outcome) in group.iter().zip(outcomes) {
            let is_there = is_there(transitions, &self.locks, message, outcome).ok()?;
            there.push(is_there);
            // Its caller is told an error, so nobody drives it: whoever takes it up next need not wait.
            if let (true, Some(lease)) = (is_there, lease_of(outcome)) {
                transitions.release(&lease).ok()?;
            }
        }
        transitions.mark().ok()?;
        connection.execute_batch("COMMIT").ok()?;
        Some(there)
    }
}

/// The lease that a message was to give.
fn lease_of(outcome: &Result<Outcome, JournalError>) -> Option<Lease> {
    match outcome {
        Ok(Outcome::Begun { lease, .. } | Outcome::Acquired(Acquired::Taken { lease, .. })) => Some(lease.clone()),
        _ => None,
    }
}

/// Whether what a message wrote can be seen.
fn is_there(
    transitions: &mut Transitions<'_>,
    locks: &Locks,
    message: &Message,
    outcome: &Result<Outcome, JournalError>,
) -> rusqlite::Result<bool> {
    if let Some(lease) = lease_of(outcome) {
        return transitions.has_lease(&lease, locks.owner());
    }
    match message {
        Message::Save { record, .. } => transitions.has_record(record),
        _ => Ok(false),
    }
}
