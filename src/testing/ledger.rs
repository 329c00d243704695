//! The contract as a value: who may execute, who gets the stored answer, who has to wait.
//!
//! A [`Ledger`] does no IO and reads no clock, so every edge of the contract is a plain test. Whoever owns it makes a
//! claim atomic by holding a lock around the one call.
//!
//! A record goes from running to stored, or to a tombstone when its answer cannot be kept. Two times govern it: the
//! *lease* says how long the owner of a claim is believed to be alive, the *window* how long the key is remembered, from
//! the completion on. Both are judged by the time that is passed in, never by when someone last swept.

mod config;
mod defective;
mod entry;

use std::collections::HashMap;
use std::time::Duration;

pub(super) use config::{LedgerConfig, OnLeaseExpiry};
pub use entry::{EntryState, LedgerEntry};

use super::answer::Answer;
use super::defect::Defect;
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;

/// The keys that the server remembers and the executions that it counted.
#[derive(Debug)]
pub(super) struct Ledger {
    config: LedgerConfig,
    records: HashMap<Id, Record>,
    tallies: HashMap<Id, Tally>,
    keyless_executions: usize,
    /// The sum of what the records take.
    bytes: usize,
    /// Grows with every claim, so that no two claims share a token.
    fence: u64,
}

/// Whose key it is and for what: the same key elsewhere is another operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scope {
    /// Who is calling, not the bytes of their credential, which may rotate between attempts.
    pub(super) principal: String,
    /// Method and path.
    pub(super) endpoint: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Id {
    scope: Scope,
    key: String,
}

/// What is counted for a key. It outlives the record.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    attempts: usize,
    executions: usize,
}

#[derive(Debug)]
struct Record {
    fingerprint: Fingerprint,
    fence: u64,
    claimed_at: Timestamp,
    state: State,
    bytes: usize,
}

#[derive(Debug)]
enum State {
    Running {
        lease_ends: Timestamp,
        executing: Executing,
    },
    Stored {
        answer: Answer,
        completed_at: Timestamp,
    },
    /// It failed, and the next attempt with its payload executes again.
    Failed {
        completed_at: Timestamp,
    },
    Tombstone {
        completed_at: Timestamp,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executing {
    NotYet,
    Counted,
}

/// The right to complete or release one claim. A later claim on the same key makes it stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    id: Id,
    fence: u64,
}

/// What a request with a key may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// Execute, and then complete or release the token.
    Acquired(Token),
    /// The operation was executed, and this was its answer.
    Replay(Answer),
    /// Another request with this key is running. `lease_left` is zero when its owner has passed its lease.
    InProgress { retry_after: Duration, lease_left: Duration },
    /// The key belongs to another payload.
    Mismatch,
    /// The operation was executed and its answer is not to be had again.
    Tombstone,
    /// There is no room for a new key.
    Full,
}

/// How a completed claim is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Answer,
    Tombstone,
}

/// The token's claim is no longer the current one: the ledger did not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the claim is over: its record was completed, released, taken over, or has left the window")]
pub(super) struct Stale;

impl Ledger {
    pub(super) fn new(config: LedgerConfig) -> Self {
        Self { config, records: HashMap::new(), tallies: HashMap::new(), keyless_executions: 0, bytes: 0, fence: 0 }
    }

    /// Decides what a request may do, and takes the key for it if it may execute.
    pub(super) fn claim(&mut self, scope: Scope, key: &str, fingerprint: Fingerprint, now: Timestamp) -> Claim {
        let id = Id { scope, key: key.to_owned() };
        let config = &self.config;
        if let Some(record) = self.records.get(&id).filter(|record| !record.has_expired(config, now)) {
            // Another payload is never told that it is in progress: waiting would not make it right.
            if record.fingerprint != fingerprint && !record.is_forgetful(config) {
                self.overwritten_if_defective(&id, fingerprint);
                return Claim::Mismatch;
            }
            match &record.state {
                State::Stored { answer, .. } => return Claim::Replay(answer.clone()),
                State::Tombstone { .. } => return Claim::Tombstone,
                State::Failed { .. } => {}
                State::Running { lease_ends, .. } => {
                    let may_take_over = config.on_lease_expiry == OnLeaseExpiry::TakeOver && now >= *lease_ends;
                    if !may_take_over && !config.holds_nobody_off() {
                        let retry_after = config.wait_for(*lease_ends, now);
                        return Claim::InProgress { retry_after, lease_left: lease_ends.since(now) };
                    }
                }
            }
        }
        self.remove(&id);
        if !self.make_room_for(id.bytes(), now) {
            return Claim::Full;
        }
        Claim::Acquired(self.insert(id, fingerprint, now))
    }

    fn insert(&mut self, id: Id, fingerprint: Fingerprint, now: Timestamp) -> Token {
        self.fence += 1;
        let lease_ends = now.plus(self.config.lease);
        let record = Record {
            fingerprint,
            fence: self.fence,
            claimed_at: now,
            state: State::Running { lease_ends, executing: Executing::NotYet },
            bytes: id.bytes(),
        };
        self.bytes += record.bytes;
        self.records.insert(id.clone(), record);
        Token { id, fence: self.fence }
    }

    /// Counts an attempt, whatever becomes of it.
    pub(super) fn attempted(&mut self, scope: Scope, key: &str) {
        self.tallies.entry(Id { scope, key: key.to_owned() }).or_default().attempts += 1;
    }

    /// Counts an execution that is about to start. It counts even for a token that has become stale in the meantime:
    /// what happens, happens.
    pub(super) fn begin(&mut self, token: &Token) {
        self.tallies.entry(token.id.clone()).or_default().executions += 1;
        if let Some(Record { state: State::Running { executing, .. }, fence, .. }) = self.records.get_mut(&token.id)
            && *fence == token.fence
        {
            *executing = Executing::Counted;
        }
    }

    /// Counts an execution that no key protects.
    pub(super) fn begin_keyless(&mut self) {
        self.keyless_executions += 1;
    }

    /// Takes back an execution that no key protected, because its handler declares that nothing happened.
    pub(super) fn void_keyless(&mut self) {
        self.keyless_executions = self.keyless_executions.saturating_sub(1);
    }

    /// Stores the outcome. The window starts now. An answer that there is no room for leaves a tombstone, because the
    /// operation was executed all the same.
    pub(super) fn complete(&mut self, token: &Token, answer: Answer, now: Timestamp) -> Result<Kept, Stale> {
        let size = answer.size();
        let fits = size <= self.config.max_answer_bytes && self.bytes.saturating_add(size) <= self.config.max_bytes;
        let forgets_large = self.config.has(Defect::LargeResponsesNotStored);
        let record = self.current(token, now)?;
        if !fits && forgets_large {
            self.remove(&token.id);
            return Ok(Kept::Tombstone);
        }
        if !fits {
            record.state = State::Tombstone { completed_at: now };
            return Ok(Kept::Tombstone);
        }
        record.state = State::Stored { answer, completed_at: now };
        record.bytes += size;
        self.bytes += size;
        Ok(Kept::Answer)
    }

    /// Gives the key back, because nothing happened: the next attempt executes. An execution begun under the token is
    /// taken back.
    pub(super) fn release(&mut self, token: &Token, now: Timestamp) -> Result<(), Stale> {
        let record = self.current(token, now)?;
        let counted = matches!(record.state, State::Running { executing: Executing::Counted, .. });
        self.remove(&token.id);
        if counted && let Some(tally) = self.tallies.get_mut(&token.id) {
            tally.executions -= 1;
        }
        Ok(())
    }

    /// Notes that the execution failed after it may have had an effect: it counts, and the next attempt with the same payload
    /// executes. The window starts now.
    pub(super) fn fail(&mut self, token: &Token, now: Timestamp) -> Result<(), Stale> {
        self.current(token, now)?.state = State::Failed { completed_at: now };
        Ok(())
    }

    /// Forgets what has left the window. Nothing depends on when, or whether, this is called.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        let config = &self.config;
        let mut freed = 0;
        self.records.retain(|_, record| {
            let keep = !record.has_expired(config, now);
            freed += if keep { 0 } else { record.bytes };
            keep
        });
        self.bytes -= freed;
    }

    pub(super) fn window(&self) -> Duration {
        self.config.window
    }

    /// All executions, less those whose handler declared that nothing happened.
    pub(super) fn executions(&self) -> usize {
        self.keyless_executions + self.tallies.values().map(|tally| tally.executions).sum::<usize>()
    }

    /// The executions for this key, whoever called and whatever endpoint.
    pub(super) fn executions_of(&self, key: &str) -> usize {
        self.tallies.iter().filter(|(id, _)| id.key == key).map(|(_, tally)| tally.executions).sum()
    }

    fn current(&mut self, token: &Token, now: Timestamp) -> Result<&mut Record, Stale> {
        let config = &self.config;
        self.records
            .get_mut(&token.id)
            .filter(|record| {
                let is_current = record.fence == token.fence && matches!(record.state, State::Running { .. });
                is_current || config.has(Defect::NoFencing)
            })
            .filter(|record| !record.has_expired(config, now))
            .ok_or(Stale)
    }

    fn remove(&mut self, id: &Id) {
        if let Some(record) = self.records.remove(id) {
            self.bytes -= record.bytes;
        }
    }

    /// Whether one more record fits. Only what has left the window makes way for it.
    fn make_room_for(&mut self, bytes: usize, now: Timestamp) -> bool {
        if !self.has_room_for(bytes) {
            self.sweep(now);
            self.evict_if_defective(bytes);
        }
        self.has_room_for(bytes)
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.records.len() < self.config.max_records && self.bytes.saturating_add(bytes) <= self.config.max_bytes
    }
}

impl Id {
    fn bytes(&self) -> usize {
        self.scope.principal.len() + self.scope.endpoint.len() + self.key.len()
    }
}

impl Record {
    /// A completed record leaves with the window. A running one is held for a window, too, counted from its claim, and
    /// never less than its lease.
    fn has_expired(&self, config: &LedgerConfig, now: Timestamp) -> bool {
        let expires_at = match &self.state {
            State::Running { lease_ends, .. } => self.claimed_at.plus(config.window).max(*lease_ends),
            State::Stored { completed_at, .. } | State::Tombstone { completed_at } | State::Failed { completed_at } => {
                completed_at.plus(config.window)
            }
        };
        now >= expires_at
    }
}

#[cfg(test)]
mod tests;
