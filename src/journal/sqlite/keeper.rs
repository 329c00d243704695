//! The thread that makes checkpoints, and looks for damage, while the writer goes on writing.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::message::Message;
use super::schema;
use super::trouble::Subject;
use crate::journal::JournalError;

/// Opens another connection to the journal's file.
pub(super) type Connect = Box<dyn Fn() -> Result<Connection, JournalError> + Send>;

/// The writer's end of it.
pub(super) struct Keeper {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    busy: bool,
}

enum Order {
    Checkpoint,
    Check,
}

impl Keeper {
    pub(super) fn spawn(subject: Subject, connect: Connect, report: Sender<Message>) -> std::io::Result<Self> {
        let (orders, queue) = channel();
        let thread = std::thread::Builder::new().name("journal-keeper".to_owned()).spawn(move || {
            while let Ok(order) = queue.recv() {
                // A connection of the moment: it keeps no state that a failure could spoil.
                let connection = connect();
                let message = match order {
                    Order::Checkpoint => {
                        Message::Checkpointed(connection.ok().and_then(|connection| checkpoint(&connection).ok()))
                    }
                    Order::Check => match connection.and_then(|connection| schema::check(&connection, &subject)) {
                        Ok(()) => continue,
                        Err(error) => Message::Damaged(error),
                    },
                };
                if report.send(message).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders: Some(orders), thread: Some(thread), busy: false })
    }

    /// Orders a checkpoint, unless one is under way.
    pub(super) fn checkpoint(&mut self) {
        if let (false, Some(orders)) = (self.busy, &self.orders) {
            self.busy = orders.send(Order::Checkpoint).is_ok();
        }
    }

    /// Orders a look for damage.
    pub(super) fn check(&self) {
        if let Some(orders) = &self.orders {
            // Without the thread nothing can be found; the writer goes on as it would with a sound file.
            let _ = orders.send(Order::Check);
        }
    }

    pub(super) fn is_done(&mut self) {
        self.busy = false;
    }

    /// Waits for a checkpoint that is under way, and ends.
    pub(super) fn close(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, there would be nothing left to end.
            let _ = thread.join();
        }
    }
}

/// How far a checkpoint has got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    /// Pages in the log since it last began anew.
    pub(super) pages: u64,
    /// Of these, how many are not yet in the file. When none is, the next write begins the log anew.
    pub(super) left: u64,
}

/// Writes back what can be without waiting for anyone.
pub(super) fn checkpoint(connection: &Connection) -> rusqlite::Result<Log> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        let (pages, done): (i64, i64) = (row.get(1)?, row.get(2)?);
        let count = |pages: i64| u64::try_from(pages).unwrap_or_default();
        Ok(Log { pages: count(pages), left: count(pages.saturating_sub(done)) })
    })
}
