//! The tables, and how a file is recognised as a journal.
//!
//! Everything is in tables whose names begin with `idempotency_`, so that they can also live in an application's own
//! database ([`begin_in`](super::SqliteJournal::begin_in)). With the `sqlite3` shell:
//!
//! ```text
//! sqlite> .mode line
//! sqlite> SELECT * FROM idempotency_operations WHERE operation = 'order-42';
//! ```
//!
//! | name | what it holds |
//! |---|---|
//! | `idempotency_operations` | a view of all operations, for people: times as ISO 8601, no more of a key than its tail |
//! | `idempotency_operation` | what is pending (`prepared`, `sending`) or waits for a person (`failed`, `expired`), and for a short while what has just been finished; small, so that a begin is fast |
//! | `idempotency_finished` | the rest, until `keep_until` |
//! | `idempotency_journal` | one row: version, salt of the fingerprints, newest time ever stored, how many commits had to be looked after because they failed |
//!
//! Times are milliseconds since 1970. `checksum` is over the columns of the operation itself (not `id`, `token` and the
//! lease), so that a damaged row is noticed before it is sent. Whoever corrects a row by hand sets it to NULL.

use rusqlite::{Connection, OptionalExtension as _};

use super::trouble::Subject;
use crate::journal::{JournalError, JournalErrorKind};

/// The version of the tables that this release writes; in `user_version` where the file is the journal's own.
pub(super) const VERSION: i64 = 1;

/// `rqij` in ASCII: reqwest-idempotency journal.
pub(super) const APPLICATION_ID: i64 = 0x7271_696a;

/// The first SQLite with STRICT tables.
const OLDEST_SQLITE: i32 = 3_037_000;

/// The columns of an operation, in the order in which they are stored, bound and read.
macro_rules! columns {
    () => {
        "operation, phase, attempts, begun_at, updated_at, first_sent_at, next_attempt_at, named, idempotency_key, \
         method, url, contract, header, serialisation, window_ms, window_ns, credential_scope, fingerprint, \
         closing_status, closing_in_front, closing_after_unknown, closing_resolved, request_needs_headers, \
         request_headers, reply_headers, checksum, request_body, reply_body"
    };
}
pub(super) use columns;

/// Bodies stand last, so that what stands before them is read without them.
macro_rules! table {
    ($name:literal, $more:literal) => {
        concat!(
            "CREATE TABLE ",
            $name,
            " (
    id INTEGER PRIMARY KEY,
    operation TEXT NOT NULL UNIQUE,
    phase TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    begun_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    first_sent_at INTEGER,
    next_attempt_at INTEGER,
    named INTEGER NOT NULL,
    idempotency_key TEXT NOT NULL,
    method TEXT NOT NULL,
    url TEXT NOT NULL,
    contract TEXT NOT NULL,
    header TEXT NOT NULL,
    serialisation TEXT NOT NULL,
    window_ms INTEGER NOT NULL,
    window_ns INTEGER NOT NULL,
    credential_scope TEXT,
    fingerprint BLOB,
    closing_status INTEGER,
    closing_in_front INTEGER,
    closing_after_unknown INTEGER,
    closing_resolved INTEGER,
    request_needs_headers INTEGER,
    request_headers TEXT,
    reply_headers TEXT,
    checksum INTEGER,
    token INTEGER NOT NULL,
",
            $more,
            "
    request_body BLOB,
    reply_body BLOB
) STRICT;
"
        )
    };
}

const TABLES: &str = concat!(
    table!("idempotency_operation", "    lease_owner TEXT,\n    lease_until INTEGER,"),
    table!("idempotency_finished", "    keep_until INTEGER NOT NULL,"),
    "CREATE INDEX idempotency_finished_keep_until ON idempotency_finished (keep_until, updated_at, window_ms);
CREATE TABLE idempotency_journal (
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    newest INTEGER NOT NULL,
    doubts INTEGER NOT NULL,
    salt BLOB NOT NULL
) STRICT;
CREATE VIEW idempotency_operations AS
    SELECT operation, phase, attempts,
        strftime('%Y-%m-%dT%H:%M:%fZ', begun_at / 1000.0, 'unixepoch') AS begun_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', first_sent_at / 1000.0, 'unixepoch') AS first_sent_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch') AS updated_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', next_attempt_at / 1000.0, 'unixepoch') AS next_attempt_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', lease_until / 1000.0, 'unixepoch') AS leased_until,
        strftime('%Y-%m-%dT%H:%M:%fZ', keep_until / 1000.0, 'unixepoch') AS keep_until,
        method, url, contract, closing_status AS status, credential_scope,
        CASE WHEN length(idempotency_key) < 12 THEN '' ELSE '…' || substr(idempotency_key, -4) END AS key_tail,
        length(request_body) AS request_bytes, length(reply_body) AS reply_bytes
    FROM (
        SELECT *, NULL AS keep_until FROM idempotency_operation
        UNION ALL
        SELECT id, operation, phase, attempts, begun_at, updated_at, first_sent_at, next_attempt_at, named,
            idempotency_key, method, url, contract, header, serialisation, window_ms, window_ns, credential_scope,
            fingerprint, closing_status, closing_in_front, closing_after_unknown, closing_resolved,
            request_needs_headers, request_headers, reply_headers, checksum, token, NULL, NULL, request_body, reply_body, keep_until
        FROM idempotency_finished
    );
"
);

/// Holds the table of what is pending against its index. A damaged index hides an operation, and a hidden operation would be
/// begun, and executed, once more.
pub(super) fn check(connection: &Connection, subject: &Subject) -> Result<(), JournalError> {
    let failed = |error| subject.sqlite("be checked", error);
    let found: String = connection
        .query_row("PRAGMA integrity_check('idempotency_operation')", [], |row| row.get(0))
        .map_err(failed)?;
    if found == "ok" {
        return Ok(());
    }
    Err(JournalError::new(
        JournalErrorKind::Corrupt,
        format!(
            "the journal {} is damaged ({found}); copy it and the files beside it aside, restore a backup or save what \
             can be with `sqlite3 FILE .recover`, and check the disk",
            subject.path.display()
        ),
    ))
}

/// How many rows that check has to look at.
pub(super) fn pending_rows(connection: &Connection, subject: &Subject) -> Result<i64, JournalError> {
    connection
        .query_row("SELECT count(*) FROM idempotency_operation", [], |row| row.get(0))
        .map_err(|error| subject.sqlite("be checked", error))
}

/// What is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// No table at all.
    Nothing,
    /// A journal of this version.
    Journal,
    /// Tables, and none of ours.
    SomethingElse,
}

/// Whose file the journal's tables are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// The journal's own.
    #[default]
    OwnFile,
    /// An application's database.
    ApplicationDatabase,
}

/// Sets a connection up, as each one of the journal's must be.
pub(super) fn configure(connection: &Connection) -> rusqlite::Result<()> {
    // Checkpoints are made where nobody waits for them; see `upkeep`. `fullfsync` matters on Apple's systems, where
    // fsync alone leaves the bytes in the drive.
    connection.execute_batch(
        "PRAGMA wal_autocheckpoint = 0;
         PRAGMA synchronous = FULL;
         PRAGMA fullfsync = ON;
         PRAGMA checkpoint_fullfsync = ON;
         PRAGMA cache_size = -16384;
         PRAGMA temp_store = MEMORY;
         PRAGMA trusted_schema = OFF;",
    )
}

/// Recognises the file or makes a journal of it, and returns the salt.
pub(super) fn prepare(
    connection: &Connection,
    subject: &Subject,
    place: Place,
    now: i64,
    salt: [u8; 16],
) -> Result<Vec<u8>, JournalError> {
    let failed = |error| subject.sqlite("be opened", error);
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(JournalError::new(
            JournalErrorKind::Unavailable,
            format!(
                "this program is linked with SQLite {} and the journal needs 3.37 or later; use the feature `sqlite`, \
                 which brings its own",
                rusqlite::version()
            ),
        ));
    }
    // Before anything is changed: this also reads the head, so it notices what is no database.
    if look(connection, subject, place)? == Found::SomethingElse && place == Place::OwnFile {
        return Err(foreign(connection, subject));
    }
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(failed)?;
    if mode != "wal" {
        return Err(JournalError::new(
            JournalErrorKind::Unavailable,
            format!(
                "the journal {} cannot be opened: its file system has no write-ahead log for SQLite (the journal mode \
                 stayed {mode:?}); name a file on a local disk",
                subject.path.display()
            ),
        ));
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
    let prepared = in_transaction(connection, subject, place, now, salt);
    match prepared {
        Ok(salt) => {
            connection.execute_batch("COMMIT").map_err(failed)?;
            Ok(salt)
        }
        Err(error) => {
            let _ = connection.execute_batch("ROLLBACK");
            Err(error)
        }
    }
}

fn in_transaction(
    connection: &Connection,
    subject: &Subject,
    place: Place,
    now: i64,
    salt: [u8; 16],
) -> Result<Vec<u8>, JournalError> {
    let failed = |error| subject.sqlite("be opened", error);
    match look(connection, subject, place)? {
        Found::Journal => {
            // SQLite opens what it may only read without a word; the first write says so.
            connection.execute("UPDATE idempotency_journal SET newest = newest", []).map_err(failed)?;
            return connection.query_row("SELECT salt FROM idempotency_journal", [], |row| row.get(0)).map_err(failed);
        }
        Found::SomethingElse if place == Place::OwnFile => return Err(foreign(connection, subject)),
        Found::Nothing | Found::SomethingElse => {}
    }
    connection.execute_batch(TABLES).map_err(failed)?;
    connection
        .execute(
            "INSERT INTO idempotency_journal (version, created_at, newest, doubts, salt) VALUES (?1, ?2, 0, 0, ?3)",
            rusqlite::params![VERSION, now, salt],
        )
        .map_err(failed)?;
    if place == Place::OwnFile {
        connection
            .execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"))
            .map_err(failed)?;
    }
    Ok(salt.to_vec())
}

fn look(connection: &Connection, subject: &Subject, place: Place) -> Result<Found, JournalError> {
    let failed = |error| subject.sqlite("be opened", error);
    let number = |sql| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(failed);
    let application = number("PRAGMA application_id")?;
    let ours = number("SELECT count(*) FROM sqlite_schema WHERE name = 'idempotency_journal'")?;
    if ours == 0 {
        if application == APPLICATION_ID {
            // A later version may have renamed even this table.
            refuse_later(subject, number("PRAGMA user_version")?)?;
        }
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        let untouched = tables == 0 && (application == 0 || application == APPLICATION_ID);
        return Ok(if untouched { Found::Nothing } else { Found::SomethingElse });
    }
    if application == APPLICATION_ID && place == Place::OwnFile {
        refuse_later(subject, number("PRAGMA user_version")?)?;
    }
    let version = connection
        .query_row("SELECT version FROM idempotency_journal", [], |row| row.get(0))
        .optional()
        .map_err(failed)?
        .ok_or_else(|| {
            JournalError::new(
                JournalErrorKind::Corrupt,
                format!(
                    "the journal {} has lost the row of its table idempotency_journal, and with it the salt; restore \
                     it from a backup",
                    subject.path.display()
                ),
            )
        })?;
    refuse_later(subject, version)?;
    Ok(Found::Journal)
}

fn refuse_later(subject: &Subject, version: i64) -> Result<(), JournalError> {
    if (1..=VERSION).contains(&version) {
        return Ok(());
    }
    Err(JournalError::new(
        JournalErrorKind::Corrupt,
        format!(
            "the journal {} has the version {version} and this release reads up to version {VERSION}; use the release \
             that wrote it, or a later one",
            subject.path.display()
        ),
    ))
}

fn foreign(connection: &Connection, subject: &Subject) -> JournalError {
    let application = connection.query_row("PRAGMA application_id", [], |row| row.get::<_, i64>(0)).unwrap_or_default();
    JournalError::new(
        JournalErrorKind::Corrupt,
        format!(
            "{} is another application's SQLite file (application id {application:#x}), and was left as it is; name \
             another file, or say `in_application_database` to keep the journal's tables inside it",
            subject.path.display()
        ),
    )
}
