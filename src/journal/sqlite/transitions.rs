//! What a journal can be asked to do to one operation, each in SQL, all inside the writer's transaction.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, Statement, params_from_iter};

use super::locks::{Locks, Owner};
use super::row::{Row, WIDTH, integer};
use super::schema::columns;
use super::trouble::Subject;
use crate::clock::Timestamp;
use crate::journal::{Acquired, JournalError, JournalErrorKind, Lease};
use crate::operation::encoding::{self, RecordError};
use crate::operation::{AfterSave, OperationId, Phase, Record};

/// Why one operation's transition did not happen.
pub(super) enum Refusal {
    /// This one's fault alone; nothing was changed.
    Journal(JournalError),
    /// SQLite's; the transaction is of no use any more.
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<JournalError> for Refusal {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// What became of a begin.
pub(super) enum Begin {
    Inserted { lease: Lease, now: Timestamp, bytes: usize },
    Known(Box<Record>),
}

/// The newest time that was ever stored: as noted, or that of the last row, whose begin saved itself the note.
///
/// Every other write makes the note. So a row that goes away, for which it has to be closed first, takes nothing with it.
macro_rules! newest {
    () => {
        "SELECT max(newest, ifnull((SELECT begun_at FROM idempotency_operation ORDER BY id DESC LIMIT 1), 0)) \
         FROM idempotency_journal"
    };
}

/// Makes the note, before a row that is not the newest becomes the last one.
pub(super) const NOTE_NEWEST: &str =
    concat!("UPDATE idempotency_journal SET newest = (", newest!(), ") WHERE newest < (", newest!(), ")");

/// The prepared statements of one connection.
pub(super) struct Transitions<'c> {
    pub(super) connection: &'c Connection,
    subject: &'c Subject,
    open: Statement<'c>,
    commit: Statement<'c>,
    undo: Statement<'c>,
    insert: Statement<'c>,
    find: Statement<'c>,
    lease: Statement<'c>,
    thaw: Statement<'c>,
    thawed: Statement<'c>,
    replace: Statement<'c>,
    release: Statement<'c>,
    newest: Statement<'c>,
    note: Statement<'c>,
    /// Whether a finished row came back in this transaction, and is the last one now.
    thawed_any: bool,
    mark: Statement<'c>,
    pending: Statement<'c>,
}

/// An operation as it was found.
struct Found {
    row_id: i64,
    finished: bool,
    token: i64,
    owner: Option<String>,
    until: Option<i64>,
    record: Result<Record, RecordError>,
}

impl<'c> Transitions<'c> {
    pub(super) fn new(connection: &'c Connection, subject: &'c Subject) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            subject,
            open: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            undo: connection.prepare("ROLLBACK")?,
            // Insert-if-absent in both tables, in one statement; the unique index stands guard besides.
            insert: connection.prepare(concat!(
                "INSERT INTO idempotency_operation (",
                columns!(),
                ", token, lease_owner, lease_until) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, \
                 ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31 \
                 WHERE NOT EXISTS (SELECT 1 FROM idempotency_finished WHERE operation = ?1) \
                 ON CONFLICT (operation) DO NOTHING"
            ))?,
            // One statement sees one state, even while another process moves the row from one table to the other.
            find: connection.prepare(concat!(
                "SELECT ",
                columns!(),
                ", id, 0, token, lease_owner, lease_until FROM idempotency_operation WHERE operation = ?1 \
                 UNION ALL SELECT ",
                columns!(),
                ", id, 1, token, NULL, NULL FROM idempotency_finished WHERE operation = ?1"
            ))?,
            lease: connection.prepare(
                "UPDATE idempotency_operation SET token = ?2, lease_owner = ?3, lease_until = ?4 WHERE operation = ?1",
            )?,
            thaw: connection.prepare(concat!(
                "INSERT INTO idempotency_operation (",
                columns!(),
                ", token) SELECT ",
                columns!(),
                ", token FROM idempotency_finished WHERE id = ?1"
            ))?,
            thawed: connection.prepare("DELETE FROM idempotency_finished WHERE id = ?1")?,
            replace: connection.prepare(concat!(
                "UPDATE idempotency_operation SET (",
                columns!(),
                ") = (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, \
                 ?22, ?23, ?24, ?25, ?26, ?27, ?28), lease_owner = CASE ?30 WHEN 0 THEN lease_owner END, \
                 lease_until = CASE ?30 WHEN 0 THEN lease_until END WHERE operation = ?1 AND token = ?29"
            ))?,
            release: connection.prepare(
                "UPDATE idempotency_operation SET lease_owner = NULL, lease_until = NULL \
                 WHERE operation = ?1 AND token = ?2",
            )?,
            newest: connection.prepare(newest!())?,
            note: connection.prepare("UPDATE idempotency_journal SET newest = ?1 WHERE newest < ?1")?,
            thawed_any: false,
            mark: connection.prepare("UPDATE idempotency_journal SET doubts = doubts + 1")?,
            pending: connection.prepare(
                "SELECT operation, id FROM idempotency_operation \
                 WHERE operation > ?1 AND phase IN ('prepared', 'sending') ORDER BY operation LIMIT ?2",
            )?,
        })
    }

    pub(super) fn open(&mut self) -> rusqlite::Result<()> {
        self.thawed_any = false;
        self.open.execute([]).map(drop)
    }

    pub(super) fn commit(&mut self) -> rusqlite::Result<()> {
        self.commit.execute([]).map(drop)
    }

    pub(super) fn undo(&mut self) -> rusqlite::Result<()> {
        self.undo.execute([]).map(drop)
    }

    /// Inserts the record if its operation is unknown. It is stamped in place, so that the group can be tried again.
    pub(super) fn begin(
        &mut self,
        record: &mut Record,
        lease: Duration,
        now: Timestamp,
        owner: &str,
    ) -> Result<Begin, Refusal> {
        record.begun_at = now;
        record.updated_at = now;
        record.first_sent_at = (record.phase == Phase::Sending).then_some(now);
        let lease = Lease::new(record.operation.clone(), 1, now.plus(lease));
        let row = Row::from(&*record);
        let until = integer(lease.until.as_millis());
        let extra: [&dyn rusqlite::ToSql; 3] = [&1_i64, &owner, &until];
        if self.insert.execute(params_from_iter(row.parameters().chain(extra)))? == 1 {
            return Ok(Begin::Inserted { lease, now, bytes: row.bytes() });
        }
        match self.get(&record.operation)? {
            Some(known) => Ok(Begin::Known(Box::new(known))),
            // Neither inserted nor found: only a damaged index does that.
            None => {
                Err(self.subject.unreadable(&record.operation, RecordError::Damaged("the index of operations")).into())
            }
        }
    }

    pub(super) fn acquire(
        &mut self,
        operation: &OperationId,
        lease: Duration,
        now: Timestamp,
        locks: &Locks,
    ) -> Result<Acquired, Refusal> {
        let Some(found) = self.find(operation)? else { return Ok(Acquired::Unknown) };
        let record = found.record.map_err(|error| self.subject.unreadable(operation, error))?;
        let owner = found.owner.as_deref().map_or(Owner::Unknown, |owner| locks.state(owner));
        let until = found.until.filter(|until| *until > integer(now.as_millis()) && owner != Owner::Dead);
        let held = until.map(|until| Acquired::Held { until: Timestamp::from_millis(until.unsigned_abs()) });
        if let (Some(held), Owner::Alive) = (&held, owner) {
            return Ok(held.clone());
        }
        // By a clock that went backwards nobody can say how old a sent record is, nor when its lease ends.
        let newest = self.newest()?;
        if record.first_sent_at.is_some() && now < newest {
            return Err(self.clock_behind(operation, now, newest).into());
        }
        if let Some(held) = held {
            return Ok(held);
        }
        if found.finished {
            self.thaw(found.row_id)?;
        }
        let token = found.token.saturating_add(1);
        let until = now.plus(lease);
        self.lease.execute(rusqlite::params![operation.as_str(), token, locks.owner(), integer(until.as_millis())])?;
        let lease = Lease::new(operation.clone(), token.unsigned_abs(), until);
        Ok(Acquired::Taken { record: Box::new(record), lease, now })
    }

    /// Replaces the record, and says how many bytes that took.
    pub(super) fn save(
        &mut self,
        record: &mut Record,
        lease: &Lease,
        then: AfterSave,
        now: Timestamp,
    ) -> Result<usize, Refusal> {
        record.updated_at = now;
        if record.operation != lease.operation {
            return Err(self.lease_lost(&lease.operation).into());
        }
        let row = Row::from(&*record);
        let token = integer(lease.token);
        let release = i64::from(then == AfterSave::ReleaseLease);
        for attempt in 0..2 {
            let extra: [&dyn rusqlite::ToSql; 2] = [&token, &release];
            if self.replace.execute(params_from_iter(row.parameters().chain(extra)))? == 1 {
                return Ok(row.bytes());
            }
            // Finished, its lease over, and moved meanwhile: still this worker's as long as nobody took a newer lease.
            let moved = match attempt {
                0 => self.find(&lease.operation)?.filter(|found| found.finished && found.token == token),
                _ => None,
            };
            match moved {
                Some(found) => self.thaw(found.row_id)?,
                None => break,
            }
        }
        Err(self.lease_lost(&lease.operation).into())
    }

    /// Gives a lease back, if it is still the newest.
    pub(super) fn release(&mut self, lease: &Lease) -> rusqlite::Result<bool> {
        let token = integer(lease.token);
        self.release.execute(rusqlite::params![lease.operation.as_str(), token]).map(|rows| rows > 0)
    }

    pub(super) fn get(&mut self, operation: &OperationId) -> Result<Option<Record>, Refusal> {
        match self.find(operation)? {
            None => Ok(None),
            Some(found) => found.record.map(Some).map_err(|error| self.subject.unreadable(operation, error).into()),
        }
    }

    pub(super) fn pending(&mut self, after: Option<&OperationId>, limit: usize) -> Result<Vec<OperationId>, Refusal> {
        let after = after.map_or("", OperationId::as_str);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut rows = self.pending.query(rusqlite::params![after, limit])?;
        let mut pending = Vec::new();
        while let Some(row) = rows.next()? {
            let id = row.get_ref(0)?.as_str().ok().and_then(|text| encoding::operation(text).ok());
            let Some(id) = id else {
                let row_id: i64 = row.get(1)?;
                return Err(Refusal::Journal(JournalError::new(
                    JournalErrorKind::Corrupt,
                    format!(
                        "the row with id {row_id} of idempotency_operation in the journal {} has a damaged operation \
                         id; correct it with sqlite3, or restore the file from a backup",
                        self.subject.path.display()
                    ),
                )));
            };
            pending.push(id);
        }
        Ok(pending)
    }

    /// The newest time that was ever stored.
    pub(super) fn newest(&mut self) -> rusqlite::Result<Timestamp> {
        let newest: i64 = self.newest.query_row([], |row| row.get(0))?;
        Ok(Timestamp::from_millis(u64::try_from(newest).unwrap_or_default()))
    }

    /// Notes the newest time: `before` the transaction it was that, and the transaction stored `now`. A begin whose row
    /// is the last one says it by itself, which saves its page.
    pub(super) fn note(&mut self, before: Timestamp, now: Timestamp, begun: bool) -> rusqlite::Result<()> {
        if begun && !self.thawed_any && now >= before {
            return Ok(());
        }
        self.note.execute([integer(before.max(now).as_millis())]).map(drop)
    }

    /// Writes something that differs from what was there, so that a commit has to reach the disk.
    pub(super) fn mark(&mut self) -> rusqlite::Result<()> {
        self.mark.execute([]).map(drop)
    }

    /// Whether exactly this lease is on the operation.
    pub(super) fn has_lease(&mut self, lease: &Lease, owner: &str) -> rusqlite::Result<bool> {
        let found = self.find(&lease.operation)?;
        Ok(found.is_some_and(|found| found.token == integer(lease.token) && found.owner.as_deref() == Some(owner)))
    }

    /// Whether the operation's record is this one.
    pub(super) fn has_record(&mut self, record: &Record) -> rusqlite::Result<bool> {
        let found = self.find(&record.operation)?;
        Ok(found.and_then(|found| found.record.ok()).is_some_and(|found| {
            found.phase == record.phase
                && found.attempts == record.attempts
                && found.closing.is_some() == record.closing.is_some()
        }))
    }

    fn find(&mut self, operation: &OperationId) -> rusqlite::Result<Option<Found>> {
        self.find
            .query_row([operation.as_str()], |row| {
                let record = Row::read(row, 0)?.record().and_then(|record| {
                    if record.operation == *operation {
                        Ok(record)
                    } else {
                        Err(RecordError::Damaged("the operation id"))
                    }
                });
                Ok(Found {
                    row_id: row.get(WIDTH)?,
                    finished: row.get(WIDTH + 1)?,
                    token: row.get(WIDTH + 2)?,
                    owner: row.get(WIDTH + 3)?,
                    until: row.get(WIDTH + 4)?,
                    record,
                })
            })
            .optional()
    }

    /// Brings a finished row back to where it can be changed.
    fn thaw(&mut self, row_id: i64) -> rusqlite::Result<()> {
        self.thawed_any = true;
        self.thaw.execute([row_id])?;
        self.thawed.execute([row_id]).map(drop)
    }

    fn lease_lost(&self, operation: &OperationId) -> JournalError {
        JournalError::new(
            JournalErrorKind::LeaseLost,
            format!("another worker has taken operation {operation} over; what it finds out is in the journal"),
        )
    }

    fn clock_behind(&self, operation: &OperationId, now: Timestamp, newest: Timestamp) -> JournalError {
        JournalError::new(
            JournalErrorKind::ClockBehind,
            format!(
                "the clock says {now} and the journal {} has seen {newest} already, so nobody can say how long ago \
                 operation {operation} was sent; set the clock right, or, if it once was ahead, correct `newest` in \
                 the table idempotency_journal",
                self.subject.path.display()
            ),
        )
    }
}
