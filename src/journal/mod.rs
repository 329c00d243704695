//! The journal: the client's write-ahead store of records.
//!
//! # The contract of a journal
//!
//! Whoever implements [`Journal`] promises this; the rest of the crate relies on nothing else.
//!
//! 1. **Begin is insert-if-absent** by operation id, and takes the lease in the same write. When it returns, the record
//!    is durable: it survives the death of the process, and of the machine if the store promises that. Nothing is sent
//!    before.
//! 2. **Every later write is a compare-and-set on the lease's token.** A writer whose token is not the newest changes
//!    nothing and is told [`JournalErrorKind::LeaseLost`].
//! 3. **A closing other than `completed` is durable before `save` returns**: a caller who is told "rejected" or "not
//!    sent" may act on it, so nothing may send that operation later by itself. A `completed` may reach the disk late
//!    ([`Durability::Late`]), because losing it costs one harmless replay.
//! 4. **A failed write says whether it may be there all the same** ([`JournalError::may_be_saved`]), and a failed begin
//!    whether the operation is certainly unknown ([`JournalError::is_absent`]): without that, an earlier call may have sent it.
//! 5. **Leases** end by themselves after the time that was asked for; then any worker may take the record over, with a
//!    higher token. A journal that can tell that an owner is dead may hand its records out at once.
//! 6. **Pending records are never dropped.** Finished ones are kept at least for their dedup window.
//! 7. **Time** is the journal's own, so that all who share it count the window on one clock: it stamps what it stores,
//!    and hands its `now` out with each lease.

mod memory;
#[cfg(feature = "_sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
mod sqlite;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use memory::MemoryJournal;
#[cfg(feature = "_sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use sqlite::{SqliteJournal, SqliteJournalBuilder, rusqlite};

use crate::clock::{BoxFuture, Timestamp};
use crate::operation::{AfterSave, Durability, OperationId, Record};

/// A store of records. The [module's documentation](self) has what an implementation promises.
///
/// # Cancel safety
///
/// Every future may be dropped at any point. A write may then have happened or not; a lease that it took ends by itself.
pub trait Journal: Send + Sync + fmt::Debug + 'static {
    /// Inserts a record if its operation is unknown, and takes the lease on it for `lease`.
    ///
    /// The journal stamps the record with its own time: `begun_at`, `updated_at`, and `first_sent_at` if the record says
    /// [`Sending`](crate::Phase::Sending). It hands the stamped record back.
    fn begin(&self, record: Record, lease: Duration) -> BoxFuture<'_, Result<Begun, JournalError>>;

    /// Takes the lease on a known operation, if nobody has it. On a record that may have been sent this is refused with
    /// [`JournalErrorKind::ClockBehind`] while the journal's clock is behind the newest time that it has stored.
    fn acquire(&self, operation: OperationId, lease: Duration) -> BoxFuture<'_, Result<Acquired, JournalError>>;

    /// Replaces a record, if the lease's token is still the newest. The journal stamps `updated_at`.
    fn save(
        &self,
        record: Record,
        lease: Lease,
        then: AfterSave,
        durability: Durability,
    ) -> BoxFuture<'_, Result<(), JournalError>>;

    /// Looks an operation up.
    fn get(&self, operation: OperationId) -> BoxFuture<'_, Result<Option<Record>, JournalError>>;

    /// The ids of pending operations in a stable order, at most `limit` of them, beginning after `after`.
    fn pending(
        &self,
        after: Option<OperationId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<OperationId>, JournalError>>;

    /// Drops finished records that were closed longer ago than `older_than`, but never one whose dedup window may still be
    /// open, nor one that is pending, failed or expired. Says what was kept, and why.
    fn purge(&self, older_than: Duration) -> BoxFuture<'_, Result<Purged, JournalError>>;

    /// Gives a lease back without waiting, as well as that can be done: it is called when a future is dropped.
    fn relinquish(&self, lease: Lease);

    /// Whether records outlive the process, so that the operating system's crash or ours loses nothing.
    fn is_durable(&self) -> bool;

    /// The secret that fingerprints in this journal are made with.
    fn salt(&self) -> &[u8];
}

/// A worker's time-limited right to drive a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// Whose record it is.
    pub operation: OperationId,
    /// The fencing token: grows with every lease on the record.
    pub token: u64,
    /// When it ends by itself, on the journal's clock.
    pub until: Timestamp,
}

impl Lease {
    /// A lease, as a journal hands it out.
    #[must_use]
    pub fn new(operation: OperationId, token: u64, until: Timestamp) -> Self {
        Self { operation, token, until }
    }
}

/// What [`Journal::begin`] found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Begun {
    /// The operation was unknown; its record is durable now, and the lease is the caller's. `now` is the journal's time.
    #[expect(missing_docs, reason = "the names say it")]
    New { record: Box<Record>, lease: Lease, now: Timestamp },
    /// The operation is known already. Nothing was changed.
    Known(Box<Record>),
}

/// What [`Journal::acquire`] found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Acquired {
    /// The lease is the caller's, this is the record as it stands, and `now` is the journal's time.
    #[expect(missing_docs, reason = "the names say it")]
    Taken { record: Box<Record>, lease: Lease, now: Timestamp },
    /// Someone else drives it, until then at the latest.
    #[expect(missing_docs, reason = "the names say it")]
    Held { until: Timestamp },
    /// There is no such operation.
    Unknown,
}

/// What [`Journal::purge`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// Records dropped.
    pub dropped: u64,
    /// Kept because they are pending.
    pub pending: u64,
    /// Kept because a person has to settle them: failed or expired.
    pub for_a_person: u64,
    /// Kept because they were closed too recently, or their dedup window may still be open.
    pub recent: u64,
}

/// A journal could not do what it was asked to.
#[derive(Clone, Debug)]
pub struct JournalError {
    kind: JournalErrorKind,
    message: String,
    may_be_saved: bool,
    is_absent: bool,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// What kept a journal from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JournalErrorKind {
    /// The store cannot be reached, read or written.
    Unavailable,
    /// The journal is full of records that may not be dropped.
    Full,
    /// Another worker has taken the record over.
    LeaseLost,
    /// What is stored cannot be read, or is not a journal of this crate's.
    Corrupt,
    /// The clock is behind the newest time in the journal, so nobody can say how old a sent record is.
    ClockBehind,
}

impl JournalError {
    /// An error of this kind; the message names what was refused, the limit, and the remedy.
    #[must_use]
    pub fn new(kind: JournalErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), may_be_saved: false, is_absent: false, source: None }
    }

    /// Adds the store's own account. It must not contain credentials.
    #[must_use]
    pub fn caused_by(mut self, source: Arc<dyn std::error::Error + Send + Sync>) -> Self {
        self.source = Some(source);
        self
    }

    /// Marks a write that failed, but may be on disk all the same.
    #[must_use]
    pub fn unconfirmed(mut self) -> Self {
        self.may_be_saved = true;
        self
    }

    /// Marks a [begin](Journal::begin) that failed after the journal had made sure that it does not know the operation. A
    /// caller may then be told that nothing was ever sent; otherwise an earlier call may have.
    #[must_use]
    pub fn absent(mut self) -> Self {
        self.is_absent = true;
        self
    }

    /// Whether the journal made sure that it does not know the operation.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.is_absent
    }

    /// What kept the journal from it.
    #[must_use]
    pub fn kind(&self) -> JournalErrorKind {
        self.kind
    }

    /// Whether the write may be on disk all the same.
    #[must_use]
    pub fn may_be_saved(&self) -> bool {
        self.may_be_saved
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for JournalError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}
