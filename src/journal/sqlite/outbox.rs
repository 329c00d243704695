//! An operation that is begun in the caller's own transaction, together with the caller's own data.

use rusqlite::{OptionalExtension as _, Transaction, params_from_iter};

use super::SqliteJournal;
use super::file;
use super::row::{Row, integer};
use super::schema::columns;
use super::transitions::NOTE_NEWEST;
use crate::journal::{JournalError, JournalErrorKind};
use crate::operation::{Phase, Record};

impl SqliteJournal {
    /// Begins an operation inside the caller's transaction on the same database file: it is recorded as
    /// [`Prepared`](Phase::Prepared) if, and only if, the caller's own changes are. Nobody has a lease on it then; whoever
    /// [acquires](crate::journal::Journal::acquire) it first sends it.
    ///
    /// Returns the record that is there already, if the operation is known; then nothing is changed.
    ///
    /// How durable it is, is the caller's connection's own `synchronous` setting: with FULL, which is SQLite's default, a
    /// commit survives the machine.
    ///
    /// # Errors
    ///
    /// Nothing is changed, and the transaction can go on, if it is on another file than this journal, or if the record
    /// does not have the request: nobody could send it later by itself. Otherwise SQLite failed.
    pub(crate) fn insert_in(
        &self,
        transaction: &Transaction<'_>,
        mut record: Record,
    ) -> Result<Option<Record>, JournalError> {
        let subject = &self.0.subject;
        let theirs = transaction.path().unwrap_or_default();
        if file::resolve(theirs.as_ref()).ok().as_deref() != Some(&*subject.path) {
            return Err(JournalError::new(
                JournalErrorKind::Unavailable,
                format!(
                    "the transaction is on the database {theirs:?} and the journal is {}; open both on one file, with \
                     `in_application_database`",
                    subject.path.display()
                ),
            ));
        }
        if record.request.is_none() {
            return Err(JournalError::new(
                JournalErrorKind::Unavailable,
                format!(
                    "operation {} cannot be begun in a transaction without its request, because it is sent later; keep \
                     the request (`Keep::Request` or `Keep::Exchange`)",
                    record.operation
                ),
            ));
        }
        let now = self.0.clock.now().wall;
        record.phase = Phase::Prepared;
        record.begun_at = now;
        record.updated_at = now;
        record.first_sent_at = None;
        let failed = |error| subject.sqlite("be written in the caller's transaction", error);
        transaction.execute(NOTE_NEWEST, []).map_err(failed)?;
        let inserted = transaction
            .execute(
                concat!(
                    "INSERT INTO idempotency_operation (",
                    columns!(),
                    ", token) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, \
                     ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, 0 \
                     WHERE NOT EXISTS (SELECT 1 FROM idempotency_finished WHERE operation = ?1) \
                     ON CONFLICT (operation) DO NOTHING"
                ),
                params_from_iter(Row::from(&record).parameters()),
            )
            .map_err(failed)?;
        if inserted == 1 {
            let newest = integer(now.as_millis());
            transaction
                .execute("UPDATE idempotency_journal SET newest = ?1 WHERE newest < ?1", [newest])
                .map_err(failed)?;
            return Ok(None);
        }
        let known = transaction
            .query_row(
                concat!(
                    "SELECT ",
                    columns!(),
                    " FROM idempotency_operation WHERE operation = ?1 UNION ALL SELECT ",
                    columns!(),
                    " FROM idempotency_finished WHERE operation = ?1"
                ),
                [record.operation.as_str()],
                |row| Ok(Row::read(row, 0)?.record()),
            )
            .optional()
            .map_err(failed)?;
        match known {
            Some(known) => known.map(Some).map_err(|error| subject.unreadable(&record.operation, error)),
            None => Err(subject.unreadable(
                &record.operation,
                crate::operation::encoding::RecordError::Damaged("the index of operations"),
            )),
        }
    }
}
