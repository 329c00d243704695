//! The durable journal in one SQLite file, shared by the processes of one host.

mod doubt;
mod file;
mod group;
mod keeper;
mod locks;
mod message;
mod outbox;
mod row;
mod schema;
#[cfg(test)]
mod tests;
mod transitions;
mod trouble;
mod upkeep;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::TryRng as _;
use rand::rngs::SysRng;
pub use rusqlite;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use self::keeper::Keeper;
use self::locks::Locks;
use self::message::{Answer, Leased, Message, Offer};
use self::schema::Place;
use self::trouble::Subject;
use self::upkeep::Upkeep;
use self::writer::{Flush, Writer};
use super::{Acquired, Begun, Journal, JournalError, JournalErrorKind, Lease, Purged};
use crate::clock::{BoxFuture, Clock, SystemClock};
use crate::operation::{AfterSave, Durability, OperationId, Record};

/// The durable journal: one SQLite file, which all processes of one host may share.
///
/// A begin is on the disk before it returns. Operations that are begun at the same time share one flush. A process that
/// dies frees its operations at once: each open handle keeps a lock on a file of its own, which the operating system drops.
///
/// Beside `orders.journal` there are `orders.journal-wal` and `orders.journal-shm`, which are SQLite's and hold data that
/// is not yet in the file, and the folder `orders.journal-locks`. Copy or move all of them together, while nobody has the
/// journal open; or copy with `sqlite3 orders.journal ".backup COPY"`. All are made with mode 0600, for they contain keys
/// and requests.
///
/// A journal that is restored from a backup knows nothing of what was begun after it: asked for again, such an operation gets
/// a new key and may be executed twice. Reconcile by hand what lies between the backup and now before anything is sent.
///
/// The tables are described in the source, in `src/journal/sqlite/schema.rs`, and can be read with the `sqlite3` shell.
/// For people there is a view:
///
/// ```text
/// SELECT * FROM idempotency_operations WHERE operation = 'order-42';
/// ```
///
/// SQLite protects its pages against crashes, but not against a disk that changes bytes. The journal notices a changed
/// column of a record before it is sent, and a changed index of what is pending when it is opened. It cannot notice a
/// changed index of what is finished.
///
/// The handle is cheap to clone. When the last clone is dropped, what is queued is written and the file is closed; the
/// drop waits for that.
#[derive(Clone)]
pub struct SqliteJournal(Arc<Handle>);

struct Handle {
    subject: Subject,
    clock: Arc<dyn Clock>,
    salt: Vec<u8>,
    messages: Sender<Message>,
    flushes: Arc<AtomicU64>,
    writer: Option<JoinHandle<()>>,
}

/// How a [`SqliteJournal`] is opened.
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `open`"]
pub struct SqliteJournalBuilder {
    clock: Arc<dyn Clock>,
    retention: Duration,
    busy_timeout: Duration,
    place: Place,
    network: Network,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Refused,
    Allowed,
}

impl SqliteJournal {
    /// Opens the journal in a file, which is made if it is not there. Its folder must exist.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](JournalErrorKind::Unavailable) if the file cannot be opened, written or locked, or is on a network
    /// file system; [`Corrupt`](JournalErrorKind::Corrupt) if it is no journal, is damaged, or is of a later version.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the journal is closed again; an empty file may be left.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, JournalError> {
        Self::builder().open(path).await
    }

    /// Sets up a journal before it is opened.
    pub fn builder() -> SqliteJournalBuilder {
        SqliteJournalBuilder {
            clock: Arc::new(SystemClock),
            retention: SqliteJournalBuilder::DEFAULT_RETENTION,
            busy_timeout: SqliteJournalBuilder::DEFAULT_BUSY_TIMEOUT,
            place: Place::OwnFile,
            network: Network::Refused,
        }
    }

    /// The file, as an absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.subject.path
    }

    /// How often this handle has waited for the disk, to see how well operations share their flushes.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.0.flushes.load(Ordering::Relaxed)
    }

    async fn ask<T>(&self, message: impl FnOnce(Answer<T>) -> Message) -> Result<T, JournalError> {
        let (answer, answered) = oneshot::channel();
        self.0.messages.send(message(answer)).map_err(|_| self.0.subject.closed())?;
        // The writer answers all that it takes; if it ended in the middle, what it did is not known.
        answered.await.map_err(|_| self.0.subject.closed().unconfirmed())?
    }

    async fn ask_for_lease<T: Leased>(
        &self,
        message: impl FnOnce(Answer<Offer<T>>) -> Message,
    ) -> Result<T, JournalError> {
        self.ask(message).await?.take().ok_or_else(|| self.0.subject.closed().unconfirmed())
    }

    /// Does all upkeep that is due.
    #[cfg(test)]
    pub(super) async fn settle(&self) -> Result<(), JournalError> {
        self.ask(Message::Settle).await
    }
}

impl SqliteJournalBuilder {
    /// How long finished operations are kept unless told otherwise.
    pub const DEFAULT_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

    /// How long another process may keep the file locked unless told otherwise.
    pub const DEFAULT_BUSY_TIMEOUT: Duration = Duration::from_secs(5);

    /// Where the journal takes the time from.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// How long finished operations are kept: 7 days by default, and never less than their dedup window. It holds for those
    /// that are finished from now on; [`purge`](Journal::purge) drops earlier ones.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long another process may keep the file locked before a write fails: 5 s by default.
    pub fn busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
        self
    }

    /// Keeps the journal's tables inside an application's own SQLite database, so that an operation can be begun in the
    /// application's transaction ([`begin_in`](SqliteJournal::begin_in)). The names of the tables begin with
    /// `idempotency_`. The database is switched to write-ahead logging, and stays so.
    pub fn in_application_database(mut self) -> Self {
        self.place = Place::ApplicationDatabase;
        self
    }

    /// Opens the file even if it is on a network file system. It is safe only while one host at a time opens it, and if
    /// that file system does what it is told to when it flushes and locks.
    pub fn allow_network_file_system(mut self) -> Self {
        self.network = Network::Allowed;
        self
    }

    /// Opens the journal in a file, which is made if it is not there. Its folder must exist.
    ///
    /// # Errors
    ///
    /// As [`SqliteJournal::open`].
    ///
    /// # Cancel safety
    ///
    /// As [`SqliteJournal::open`].
    pub async fn open(self, path: impl AsRef<Path>) -> Result<SqliteJournal, JournalError> {
        let path = path.as_ref();
        let given = Subject { path: path.into(), busy_timeout: self.busy_timeout };
        let resolved = file::resolve(path).map_err(|error| given.io("find", path, error))?;
        let subject = Subject { path: resolved, busy_timeout: self.busy_timeout };
        let (messages, queue) = channel();
        let (answer, opened) = oneshot::channel();
        let no_thread = |error| subject.io("start the thread that writes", &subject.path, error);
        let (clock, flushes) = (Arc::clone(&self.clock), Arc::new(AtomicU64::new(0)));
        let writer = std::thread::Builder::new()
            .name("journal-writer".to_owned())
            .spawn({
                let (subject, messages, flushes) = (subject.clone(), messages.clone(), Arc::clone(&flushes));
                move || self.serve(subject, messages, &queue, flushes, answer)
            })
            .map_err(no_thread)?;
        let mut handle = Handle { subject, clock, salt: Vec::new(), messages, flushes, writer: Some(writer) };
        // From here on a dropped future drops the handle, which ends the thread.
        handle.salt = opened.await.map_err(|_| handle.subject.closed())??;
        Ok(SqliteJournal(Arc::new(handle)))
    }

    /// The writer's thread.
    fn serve(
        self,
        subject: Subject,
        messages: Sender<Message>,
        queue: &Receiver<Message>,
        flushes: Arc<AtomicU64>,
        answer: Answer<Vec<u8>>,
    ) {
        match self.set_up(&subject, &messages, flushes) {
            Ok((writer, connection, salt)) => {
                let _ = answer.send(Ok(salt));
                writer.run(connection, queue);
            }
            Err(error) => drop(answer.send(Err(error))),
        }
    }

    fn set_up(
        self,
        subject: &Subject,
        messages: &Sender<Message>,
        flushes: Arc<AtomicU64>,
    ) -> Result<(Writer, Connection, Vec<u8>), JournalError> {
        if self.network == Network::Refused {
            file::refuse_network(subject)?;
        }
        file::make(subject)?;
        let locks = Locks::open(subject)?;
        let turn = locks.turn(subject.busy_timeout).map_err(|error| subject.io("lock", &subject.path, error))?;
        let turn = turn.ok_or_else(|| subject.locked("be opened"))?;
        let connection = connect(subject)?;
        let mut salt = [0_u8; 16];
        SysRng.try_fill_bytes(&mut salt).map_err(|error| {
            let message = format!("no randomness for the journal's salt: {error}; nothing was opened");
            JournalError::new(JournalErrorKind::Unavailable, message)
        })?;
        let now = self.clock.now();
        let salt = schema::prepare(&connection, subject, self.place, row::integer(now.wall.as_millis()), salt)?;
        drop(turn);
        let large = schema::pending_rows(&connection, subject)? > CHECKED_AT_ONCE;
        if !large {
            schema::check(&connection, subject)?;
        }
        let again = {
            let subject = subject.clone();
            move || connect(&subject)
        };
        let keeper = Keeper::spawn(subject.clone(), Box::new(again.clone()), messages.clone())
            .map_err(|error| subject.io("start the thread that makes checkpoints for", &subject.path, error))?;
        let upkeep = Upkeep::new(self.retention, keeper, now);
        if large {
            upkeep.check();
        }
        let writer = Writer {
            subject: subject.clone(),
            clock: self.clock,
            locks,
            back: messages.clone(),
            upkeep,
            damage: None,
            flushes,
            connect: Box::new(again),
            flush: Flush::Yes,
            closing: false,
        };
        Ok((writer, connection, salt))
    }
}

/// Up to so many rows the small table is held against its index before the journal is open: it takes a few milliseconds. A
/// larger one is checked while it is in use already.
const CHECKED_AT_ONCE: i64 = 1_000;

/// Opens the file, which must exist.
fn connect(subject: &Subject) -> Result<Connection, JournalError> {
    // Only one thread uses it at a time, so SQLite need not guard it.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error| subject.sqlite("be opened", error);
    let connection = Connection::open_with_flags(&subject.path, flags).map_err(failed)?;
    connection.busy_timeout(subject.busy_timeout).map_err(failed)?;
    schema::configure(&connection).map_err(failed)?;
    Ok(connection)
}

impl Journal for SqliteJournal {
    fn begin(&self, record: Record, lease: Duration) -> BoxFuture<'_, Result<Begun, JournalError>> {
        let record = Box::new(record);
        Box::pin(self.ask_for_lease(move |answer| Message::Begin { record, lease, answer }))
    }

    fn acquire(&self, operation: OperationId, lease: Duration) -> BoxFuture<'_, Result<Acquired, JournalError>> {
        Box::pin(self.ask_for_lease(move |answer| Message::Acquire { operation, lease, answer }))
    }

    fn save(
        &self,
        record: Record,
        lease: Lease,
        then: AfterSave,
        durability: Durability,
    ) -> BoxFuture<'_, Result<(), JournalError>> {
        let record = Box::new(record);
        match durability {
            Durability::Now => {
                Box::pin(self.ask(move |answer| Message::Save { record, lease, then, answer: Some(answer) }))
            }
            Durability::Late => {
                let queued = self.0.messages.send(Message::Save { record, lease, then, answer: None });
                Box::pin(std::future::ready(queued.map_err(|_| self.0.subject.closed())))
            }
        }
    }

    fn get(&self, operation: OperationId) -> BoxFuture<'_, Result<Option<Record>, JournalError>> {
        Box::pin(self.ask(move |answer| Message::Get { operation, answer }))
    }

    fn pending(
        &self,
        after: Option<OperationId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<OperationId>, JournalError>> {
        Box::pin(self.ask(move |answer| Message::Pending { after, limit, answer }))
    }

    fn purge(&self, older_than: Duration) -> BoxFuture<'_, Result<Purged, JournalError>> {
        Box::pin(self.ask(move |answer| Message::Purge { older_than, answer }))
    }

    fn relinquish(&self, lease: Lease) {
        // After the writer's end its owner's lock is gone, and with it the lease.
        let _ = self.0.messages.send(Message::Relinquish(lease));
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn salt(&self) -> &[u8] {
        &self.0.salt
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.messages.send(Message::Close);
        if let Some(writer) = self.writer.take() {
            // It waits for the disk and for other processes, never for a task of this one.
            let _ = writer.join();
        }
    }
}

impl fmt::Debug for SqliteJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteJournal").field("path", &self.0.subject.path).finish_non_exhaustive()
    }
}
