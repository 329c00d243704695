//! SQLite's and the operating system's errors in this crate's words: what was refused, the limit, and the remedy.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::ErrorCode;

use crate::journal::{JournalError, JournalErrorKind};
use crate::operation::OperationId;
use crate::operation::encoding::RecordError;

/// What the messages are about.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) path: Arc<Path>,
    pub(super) busy_timeout: Duration,
}

impl Subject {
    /// SQLite could not do `what`.
    pub(super) fn sqlite(&self, what: &str, error: rusqlite::Error) -> JournalError {
        let path = self.path.display();
        let (kind, remedy) = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => {
                (JournalErrorKind::Unavailable, "the disk or the quota is full; make room, or purge".to_owned())
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => (
                JournalErrorKind::Unavailable,
                "it cannot be written; give this user write access to the file, to its folder, and to the files beside \
                 it whose names begin with its own"
                    .to_owned(),
            ),
            Some(ErrorCode::CannotOpen) => (
                JournalErrorKind::Unavailable,
                "it cannot be opened; check that its folder exists and that this user may write there".to_owned(),
            ),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => {
                return self.locked(what).caused_by(Arc::new(error));
            }
            Some(ErrorCode::DatabaseCorrupt) => (
                JournalErrorKind::Corrupt,
                "it is damaged; copy it and the files beside it aside, save what can be with `sqlite3 FILE .recover`, \
                 and check the disk"
                    .to_owned(),
            ),
            Some(ErrorCode::NotADatabase) => (
                JournalErrorKind::Corrupt,
                "it is no SQLite file, or its head is damaged; name another file, or restore it from a backup".to_owned(),
            ),
            Some(ErrorCode::SystemIoFailure) => {
                (JournalErrorKind::Unavailable, "the disk failed to read or write; see the system's log".to_owned())
            }
            Some(ErrorCode::TooBig) => (
                JournalErrorKind::Unavailable,
                "the record is too large for SQLite; keep less of it, with `Keep::Key`".to_owned(),
            ),
            _ => (JournalErrorKind::Unavailable, "SQLite refused, and its own account follows".to_owned()),
        };
        JournalError::new(kind, format!("the journal {path} could not {what}: {remedy}")).caused_by(Arc::new(error))
    }

    /// Another process did not let go of the file.
    pub(super) fn locked(&self, what: &str) -> JournalError {
        JournalError::new(
            JournalErrorKind::Unavailable,
            format!(
                "the journal {} could not {what}: another process has kept it locked for longer than the busy timeout \
                 of {:?}; end that process's transaction, or raise the timeout",
                self.path.display(),
                self.busy_timeout
            ),
        )
    }

    /// The operating system refused a file or folder of the journal's.
    pub(super) fn io(&self, what: &str, path: &Path, error: io::Error) -> JournalError {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => "its folder does not exist; create it first",
            io::ErrorKind::PermissionDenied => "this user may not; give it write access there",
            io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only; name a file elsewhere",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "the disk or the quota is full; make room",
            io::ErrorKind::NotADirectory => "a part of its path is no folder; correct the path",
            _ => "the operating system refused, and its own account follows",
        };
        let message = format!("could not {what} {} for the journal: {remedy}", path.display());
        JournalError::new(JournalErrorKind::Unavailable, message).caused_by(Arc::new(error))
    }

    /// A row of the journal's tables makes no sense.
    pub(super) fn unreadable(&self, operation: &OperationId, error: RecordError) -> JournalError {
        JournalError::new(
            JournalErrorKind::Corrupt,
            format!(
                "operation {operation} in the journal {} is damaged, so it is not sent: restore the file from a backup, \
                 or find out at the server what happened and correct the row with sqlite3",
                self.path.display()
            ),
        )
        .caused_by(Arc::new(error))
    }

    /// A write that came before in the same group left the file in doubt.
    pub(super) fn after_another(&self) -> JournalError {
        JournalError::new(
            JournalErrorKind::Unavailable,
            format!(
                "the journal {} was not written, because a write just before failed; see its error",
                self.path.display()
            ),
        )
    }

    /// The writer is gone, or went while it was working on it.
    pub(super) fn closed(&self) -> JournalError {
        JournalError::new(
            JournalErrorKind::Unavailable,
            format!("the journal {} is closed; open it again", self.path.display()),
        )
    }
}

/// Whether the file may be fine again after it is opened anew, and must not be written before that.
pub(super) fn wants_reopening(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::SystemIoFailure
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
        )
    )
}
