//! What the ledger tells of a key.

use http::StatusCode;

use super::{Ledger, State};
use crate::clock::Timestamp;

/// What the server knows of one key of one caller at one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerEntry {
    /// Whose it is. Empty for the anonymous caller.
    pub principal: String,
    /// Method and path. Empty where a key belongs to its caller alone.
    pub endpoint: String,
    /// The key.
    pub key: String,
    /// How many attempts came with it.
    pub attempts: usize,
    /// How often it was executed.
    pub executions: usize,
    /// What is remembered of it.
    pub state: EntryState,
}

/// What is remembered of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryState {
    /// Nothing: it was not claimed, was released, or has left the window.
    Absent,
    /// A claim whose owner may be at work.
    Running,
    /// An answer with this status, for replays.
    Stored(StatusCode),
    /// That it was executed, but not the answer.
    Tombstone,
    /// That it failed: the next attempt executes.
    Failed,
}

impl EntryState {
    /// A word for it: `absent`, `running`, `stored`, `tombstone` or `failed`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Running => "running",
            Self::Stored(_) => "stored",
            Self::Tombstone => "tombstone",
            Self::Failed => "failed",
        }
    }
}

impl Ledger {
    /// All keys that ever came, in the order of principal, endpoint and key.
    pub(in crate::testing) fn entries(&self, now: Timestamp) -> Vec<LedgerEntry> {
        let state_of = |id| match self.records.get(id).filter(|record| !record.has_expired(&self.config, now)) {
            None => EntryState::Absent,
            Some(record) => match &record.state {
                State::Running { .. } => EntryState::Running,
                State::Stored { answer, .. } => EntryState::Stored(answer.status),
                State::Tombstone { .. } => EntryState::Tombstone,
                State::Failed { .. } => EntryState::Failed,
            },
        };
        let mut entries: Vec<LedgerEntry> = self
            .tallies
            .iter()
            .map(|(id, tally)| LedgerEntry {
                principal: id.scope.principal.clone(),
                endpoint: id.scope.endpoint.clone(),
                key: id.key.clone(),
                attempts: tally.attempts,
                executions: tally.executions,
                state: state_of(id),
            })
            .collect();
        entries.sort_by(|one, other| {
            (&one.principal, &one.endpoint, &one.key).cmp(&(&other.principal, &other.endpoint, &other.key))
        });
        entries
    }
}
