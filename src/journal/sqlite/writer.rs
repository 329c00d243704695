//! The one thread that writes: it takes what is queued, commits it as one group, and answers.
//!
//! A group is whatever is waiting when the last one is done; no timer holds it back. So one caller at a time pays for one
//! flush, and many share one. What need not be on the disk before it is answered is committed without a flush: it
//! survives the death of the process at once, and the machine's with the next flush.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::doubt::Doubt;
use super::group::Work;
use super::locks::Locks;
use super::message::{Message, Outcome};
use super::transitions::{Refusal, Transitions};
use super::trouble::{Subject, wants_reopening};
use super::upkeep::Upkeep;
use crate::clock::{Clock, Timestamp};
use crate::journal::JournalError;

/// A group ends at so many messages or bytes, so that those who come first need not wait for all.
const GROUP_MESSAGES: usize = 512;
const GROUP_BYTES: usize = 8 << 20;

/// How long what nobody waits for may wait for company.
const LINGER: Duration = Duration::from_millis(2);

pub(super) struct Writer {
    pub(super) subject: Subject,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) locks: Locks,
    pub(super) back: Sender<Message>,
    pub(super) upkeep: Upkeep,
    pub(super) flushes: Arc<AtomicU64>,
    pub(super) connect: Box<dyn Fn() -> Result<Connection, JournalError> + Send>,
    /// What the keeper found. Nothing is begun or taken up after that: what cannot be found would be sent once more.
    pub(super) damage: Option<JournalError>,
    /// What the connection is set to.
    pub(super) flush: Flush,
    /// Whether it was told to end; a write that fails on the way does not change that.
    pub(super) closing: bool,
}

/// Whether a commit waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    Yes,
    No,
}

/// Why a connection is served no longer.
enum Exit {
    /// The journal was closed.
    Closed,
    /// It may be in a bad state. What it failed to commit, if it did, may be on the disk.
    Reopen(Option<Doubt>),
}

/// How a group went.
enum Went {
    Well,
    /// It was answered, but the connection is of no more use.
    Badly,
    Doubtful(Doubt),
}

impl Writer {
    /// Serves until the journal is closed.
    pub(super) fn run(mut self, connection: Connection, messages: &Receiver<Message>) {
        let subject = self.subject.clone();
        let mut connection = Some(connection);
        let mut doubt = None;
        loop {
            let opened = match connection.take() {
                Some(connection) => Ok(connection),
                None => (self.connect)(),
            };
            self.flush = Flush::Yes;
            let failed = match &opened {
                Ok(opened) => match Transitions::new(opened, &subject) {
                    Ok(mut transitions) => {
                        if let Some(doubt) = doubt.take() {
                            self.settle(&mut transitions, doubt);
                        }
                        match self.serve(&mut transitions, messages) {
                            Exit::Closed => break,
                            Exit::Reopen(left) => doubt = left,
                        }
                        continue;
                    }
                    Err(error) => subject.sqlite("be opened again", error),
                },
                Err(error) => error.clone(),
            };
            if let Some(doubt) = doubt.take() {
                self.refuse(doubt.group, &failed.clone().unconfirmed());
            }
            if self.closing {
                break;
            }
            // Whoever asks next is told, and asking is what makes it try again.
            match messages.recv() {
                Ok(Message::Close) | Err(_) => break,
                Ok(message) => message.answer(Err(failed), &self.back),
            }
        }
        self.upkeep.close();
    }

    fn serve(&mut self, transitions: &mut Transitions<'_>, messages: &Receiver<Message>) -> Exit {
        while !self.closing {
            let first = match self.upkeep.due_in() {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => messages.recv_timeout(wait),
            };
            let first = match first {
                Ok(message) => message,
                Err(RecvTimeoutError::Disconnected) => return Exit::Closed,
                Err(RecvTimeoutError::Timeout) => {
                    if self.upkeep_slice(transitions) {
                        continue;
                    }
                    return Exit::Reopen(None);
                }
            };
            let mut group = Vec::new();
            let mut bytes = 0_usize;
            let mut next = Some(first);
            while let Some(message) = next {
                if let Message::Begin { record, .. } = &message {
                    bytes = bytes.saturating_add(record.request.as_ref().map_or(0, |request| request.body.len()));
                }
                match message {
                    Message::Close => self.closing = true,
                    Message::Checkpointed(left) => self.upkeep.checkpointed(left),
                    Message::Purge { older_than, answer } => self.upkeep.purge(older_than, answer),
                    #[cfg(test)]
                    Message::Settle(answer) => self.upkeep.settle(answer),
                    Message::Damaged(error) => self.damage = Some(error),
                    message if message.is_forsaken() => {}
                    message if self.damage.is_some() && message.lets_send() => {
                        let error = self.damage.clone().unwrap_or_else(|| self.subject.closed());
                        message.answer(Err(error), &self.back);
                    }
                    message => group.push(message),
                }
                let full = group.len() >= GROUP_MESSAGES || bytes >= GROUP_BYTES;
                if full {
                    break;
                }
                next = match messages.try_recv() {
                    Ok(message) => Some(message),
                    // What nobody waits for rides with what somebody does, if that comes soon.
                    Err(TryRecvError::Empty)
                        if !self.closing && !group.is_empty() && group.iter().all(Message::is_late) =>
                    {
                        messages.recv_timeout(LINGER).ok()
                    }
                    _ => None,
                };
            }
            match self.write(transitions, group) {
                Went::Well => {}
                Went::Badly => return Exit::Reopen(None),
                Went::Doubtful(doubt) => return Exit::Reopen(Some(doubt)),
            }
            if self.upkeep.presses() && !self.upkeep_slice(transitions) {
                return Exit::Reopen(None);
            }
        }
        // Behind the order to close there can only be leases that come back, and they end with the owner.
        Exit::Closed
    }

    /// Commits a group and answers it.
    fn write(&mut self, transitions: &mut Transitions<'_>, group: Vec<Message>) -> Went {
        if !group.iter().any(Message::writes) {
            for message in group {
                self.read(transitions, message);
            }
            return Went::Well;
        }
        let wanted = if group.iter().any(Message::wants_flush) { Flush::Yes } else { Flush::No };
        let mut group = group;
        let attempt = self.attempt(transitions, &mut group, wanted);
        match attempt {
            Ok(outcomes) => {
                for (message, outcome) in group.into_iter().zip(outcomes) {
                    message.answer(outcome, &self.back);
                }
                Went::Well
            }
            Err(Failed::Lock(error)) => {
                self.refuse_writes(transitions, group, &error);
                Went::Well
            }
            Err(Failed::Before(error)) => {
                let reopen = wants_reopening(&error) || !self.roll_back(transitions.connection);
                // One that cannot be done must not take the others with it.
                if group.len() > 1 && !reopen {
                    return self.one_by_one(transitions, group);
                }
                let error = self.subject.sqlite("be written", error);
                self.refuse_writes(transitions, group, &error);
                if reopen { Went::Badly } else { Went::Well }
            }
            Err(Failed::Commit(error, outcomes)) => Went::Doubtful(Doubt { group, outcomes, error }),
        }
    }

    fn one_by_one(&mut self, transitions: &mut Transitions<'_>, group: Vec<Message>) -> Went {
        let mut messages = group.into_iter();
        while let Some(message) = messages.next() {
            match self.write(transitions, vec![message]) {
                Went::Well => {}
                badly => {
                    let error = self.subject.after_another();
                    self.refuse_writes(transitions, messages.collect(), &error);
                    return badly;
                }
            }
        }
        Went::Well
    }

    fn attempt(
        &mut self,
        transitions: &mut Transitions<'_>,
        group: &mut [Message],
        wanted: Flush,
    ) -> Result<Vec<Result<Outcome, JournalError>>, Failed> {
        let busy = |error: rusqlite::Error, subject: &Subject| match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Failed::Lock(subject.sqlite("be written", error))
            }
            _ => Failed::Before(error),
        };
        let turn = self.locks.turn(self.subject.busy_timeout);
        let turn = turn.map_err(|error| Failed::Lock(self.subject.io("lock", &self.subject.path, error)))?;
        let Some(_turn) = turn else { return Err(Failed::Lock(self.subject.locked("be written"))) };
        let connection = transitions.connection;
        set_flush(connection, &mut self.flush, wanted).map_err(Failed::Before)?;
        transitions.open().map_err(|error| busy(error, &self.subject))?;
        let now = self.clock.now().wall;
        let before = transitions.newest().map_err(Failed::Before)?;
        let mut work = Work { transitions, locks: &self.locks, now, changed: false, begun: false, bytes: 0 };
        let mut outcomes = Vec::with_capacity(group.len());
        for message in group.iter_mut() {
            outcomes.push(match work.perform(message) {
                Ok(outcome) => Ok(outcome),
                Err(Refusal::Journal(error)) => Err(error),
                Err(Refusal::Sqlite(error)) => return Err(Failed::Before(error)),
            });
        }
        let Work { changed, begun, bytes, .. } = work;
        if !changed {
            transitions.undo().map_err(Failed::Before)?;
            return Ok(outcomes);
        }
        transitions.note(before, now, begun).map_err(Failed::Before)?;
        if let Err(error) = transitions.commit() {
            return Err(Failed::Commit(error, outcomes));
        }
        if wanted == Flush::Yes {
            self.flushes.fetch_add(1, Ordering::Relaxed);
        }
        let finished = group.iter().filter(|message| message.finishes()).count();
        self.upkeep.wrote(group.len(), bytes, finished);
        Ok(outcomes)
    }

    /// Answers what only reads.
    pub(super) fn read(&self, transitions: &mut Transitions<'_>, mut message: Message) {
        let mut work =
            Work { transitions, locks: &self.locks, now: Timestamp::default(), changed: false, begun: false, bytes: 0 };
        let outcome = work.perform(&mut message).map_err(|refusal| match refusal {
            Refusal::Journal(error) => error,
            Refusal::Sqlite(error) => self.subject.sqlite("be read", error),
        });
        message.answer(outcome, &self.back);
    }

    fn refuse_writes(&self, transitions: &mut Transitions<'_>, group: Vec<Message>, error: &JournalError) {
        for message in group {
            if let Message::Begin { record, .. } = &message {
                // It was not written. Whether it had been begun before can still be read, as a rule.
                let absent = matches!(transitions.get(&record.operation), Ok(None));
                let error = if absent { error.clone().absent() } else { error.clone() };
                message.answer(Err(error), &self.back);
            } else if message.writes() {
                message.answer(Err(error.clone()), &self.back);
            } else {
                self.read(transitions, message);
            }
        }
    }

    fn refuse(&self, group: Vec<Message>, error: &JournalError) {
        for message in group {
            message.answer(Err(error.clone()), &self.back);
        }
    }

    /// Ends a transaction that failed; whether the connection is of use after that.
    pub(super) fn roll_back(&self, connection: &Connection) -> bool {
        connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok()
    }

    /// A small piece of upkeep; whether the connection is of use after that.
    fn upkeep_slice(&mut self, transitions: &Transitions<'_>) -> bool {
        let Ok(Some(_turn)) = self.locks.turn(self.subject.busy_timeout) else {
            self.upkeep.failed(&self.subject.locked("be tidied up"));
            return true;
        };
        let connection = transitions.connection;
        let now = self.clock.now();
        let done = set_flush(connection, &mut self.flush, Flush::No)
            .and_then(|()| self.upkeep.slice(connection, &self.locks, now));
        match done {
            Ok(()) => true,
            Err(error) => {
                // It changes nothing that is known; it is tried again later.
                let reopen = wants_reopening(&error);
                let error = self.subject.sqlite("be tidied up", error);
                tracing::warn!(%error, "upkeep of the journal failed");
                self.upkeep.failed(&error);
                !reopen && self.roll_back(connection)
            }
        }
    }
}

/// Where a group failed.
enum Failed {
    /// It never had the right to write.
    Lock(JournalError),
    /// Before its commit, so it is certainly not on the disk.
    Before(rusqlite::Error),
    /// At its commit.
    Commit(rusqlite::Error, Vec<Result<Outcome, JournalError>>),
}

/// In the log's mode, SQLite flushes at each commit with FULL, and not at all with NORMAL.
pub(super) fn set_flush(connection: &Connection, set: &mut Flush, wanted: Flush) -> rusqlite::Result<()> {
    if *set != wanted {
        connection.execute_batch(match wanted {
            Flush::Yes => "PRAGMA synchronous = FULL",
            Flush::No => "PRAGMA synchronous = NORMAL",
        })?;
        *set = wanted;
    }
    Ok(())
}

/// How long an idle writer waits before it does upkeep.
pub(super) const IDLE: Duration = Duration::from_millis(50);
