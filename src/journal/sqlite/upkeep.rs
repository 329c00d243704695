//! What keeps the journal small and fast, done when nobody waits, or in small pieces between two groups.
//!
//! - Finished operations move out of the small table, in batches sorted by their id, since the large table's index is in
//!   that order.
//! - The write-ahead log goes back into the file. A second thread does the bulk of it while writes go on. What was written
//!   meanwhile is little, and the writer adds it between two groups; only then can the log begin anew.
//! - Finished operations whose time is over are dropped, and the files of dead owners.

use std::time::Duration;

use rusqlite::{Connection, params};

use super::keeper::{Keeper, Log, checkpoint};
use super::locks::Locks;
use super::message::Answer;
use super::row::integer;
use super::schema::columns;
use super::writer::IDLE;
use crate::clock::{Now, Timestamp};
use crate::journal::{JournalError, Purged};

/// Pages of log (4 KiB each) after which a checkpoint is due.
const CHECKPOINT_PAGES: u64 = 1_000;
/// Pages that the writer writes back itself at once: about a millisecond.
const REMAINDER: u64 = 400;
/// Pages in the log (16 MiB) from which the writer writes back whatever is left, so that the log begins anew even if it is
/// filled faster than the keeper can empty it.
const LOG_PAGES: u64 = 4_000;
/// Rows that one piece of upkeep looks at.
const PIECE: i64 = 256;
/// Finished rows in the small table from which moving them no longer waits for an idle moment.
const PRESSING: usize = 8_192;
/// Finished rows for which an idle moment is used at once.
const WORTHWHILE: usize = 64;
/// How long an idle writer leaves a smaller matter.
const SOON: Duration = Duration::from_secs(1);
/// How long it is left after it failed.
const LATER: Duration = Duration::from_secs(60);
/// How often what is past its time is looked for.
const PURGE_EVERY: Duration = Duration::from_secs(60 * 60);
/// No sum with a time reaches past SQLite's integers if neither part is longer than this (30,000 years, in milliseconds).
const FOREVER: i64 = 1_000_000_000_000_000;

/// Closed for good, and with nothing left for a person to find out.
macro_rules! finished {
    () => {
        "phase IN ('completed', 'rejected', 'not_sent', 'abandoned')"
    };
}

pub(super) struct Upkeep {
    retention: i64,
    /// Finished rows in the small table, as far as this handle knows.
    finished: usize,
    /// Where the move has got to, if one is under way.
    moving: Option<i64>,
    /// Pages in the log, by estimate, and the number at which a checkpoint is due.
    pages: u64,
    checkpoint_at: u64,
    /// Whether the keeper has left so little that it is written back at once.
    remainder: bool,
    keeper: Keeper,
    /// On the monotonic clock.
    purge_at: Duration,
    purging: bool,
    purges: Vec<Purge>,
    swept: bool,
    postponed: bool,
    #[cfg(test)]
    settling: Vec<Answer<()>>,
}

/// A purge that somebody asked for.
struct Purge {
    older_than: i64,
    answer: Answer<Purged>,
    purged: Purged,
    /// After which entry of the index of finished operations it goes on; `None` before the small table.
    after: Option<[i64; 4]>,
}

impl Upkeep {
    pub(super) fn new(retention: Duration, keeper: Keeper, now: Now) -> Self {
        Self {
            retention: length(retention),
            // Rows that a process before this one did not get to.
            finished: 1,
            moving: None,
            pages: 0,
            checkpoint_at: CHECKPOINT_PAGES,
            remainder: false,
            keeper,
            purge_at: now.monotonic,
            purging: false,
            purges: Vec::new(),
            swept: false,
            postponed: false,
            #[cfg(test)]
            settling: Vec::new(),
        }
    }

    /// How long the writer may sleep before it comes back for upkeep.
    pub(super) fn due_in(&self) -> Option<Duration> {
        #[cfg(test)]
        if !self.settling.is_empty() {
            return Some(Duration::ZERO);
        }
        if self.postponed {
            return Some(LATER);
        }
        if self.remainder || !self.purges.is_empty() || self.moving.is_some() || self.purging {
            return Some(Duration::ZERO);
        }
        if self.finished >= WORTHWHILE {
            return Some(IDLE);
        }
        if self.finished > 0 || !self.swept { Some(SOON) } else { Some(PURGE_EVERY) }
    }

    /// Whether it must not wait for an idle moment any longer.
    pub(super) fn presses(&self) -> bool {
        if self.postponed {
            return false;
        }
        self.remainder
            || !self.purges.is_empty()
            || self.finished >= PRESSING
            || (self.moving.is_some() && self.finished >= PRESSING / 2)
    }

    /// A group was committed.
    pub(super) fn wrote(&mut self, messages: usize, bytes: usize, finished: usize) {
        self.finished = self.finished.saturating_add(finished);
        // Each message may touch a page of the table and one of its index; each group touches the journal's own row.
        let pages = messages.saturating_mul(2).saturating_add(bytes / 4096).saturating_add(1);
        self.pages = self.pages.saturating_add(pages as u64);
        if self.pages >= self.checkpoint_at {
            self.keeper.checkpoint();
        }
    }

    /// The keeper's checkpoint is done.
    pub(super) fn checkpointed(&mut self, log: Option<Log>) {
        self.keeper.is_done();
        match log {
            Some(Log { left, pages }) if left <= REMAINDER || pages >= LOG_PAGES => {
                self.pages = left;
                self.remainder = true;
            }
            // Much was written meanwhile; the next round is shorter.
            Some(Log { left, .. }) => {
                self.pages = left;
                self.keeper.checkpoint();
            }
            // Not before the log has grown again, so that a failing disk is not hammered.
            None => self.checkpoint_at = self.pages.saturating_add(CHECKPOINT_PAGES),
        }
    }

    /// Writes back what is left. If a reader is in the way, it is tried again when the log has grown.
    fn write_back(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.remainder = false;
        let Log { left, .. } = checkpoint(connection)?;
        self.pages = left;
        self.checkpoint_at = left.saturating_add(CHECKPOINT_PAGES);
        Ok(())
    }

    pub(super) fn purge(&mut self, older_than: Duration, answer: Answer<Purged>) {
        let older_than = length(older_than);
        self.postponed = false;
        self.purges.push(Purge { older_than, answer, purged: Purged::default(), after: None });
    }

    #[cfg(test)]
    pub(super) fn settle(&mut self, answer: Answer<()>) {
        self.finished = self.finished.max(WORTHWHILE);
        self.purge_at = Duration::ZERO;
        self.swept = false;
        self.settling.push(answer);
    }

    /// Something was in the way; not again for a while. Whoever waits for a purge is told.
    pub(super) fn failed(&mut self, error: &JournalError) {
        self.postponed = true;
        for purge in self.purges.drain(..) {
            let _ = purge.answer.send(Err(error.clone()));
        }
        #[cfg(test)]
        for answer in self.settling.drain(..) {
            let _ = answer.send(Err(error.clone()));
        }
    }

    /// Looks for damage without anyone waiting for it.
    pub(super) fn check(&self) {
        self.keeper.check();
    }

    pub(super) fn close(&mut self) {
        self.keeper.close();
    }

    /// Does one small piece.
    pub(super) fn slice(&mut self, connection: &Connection, locks: &Locks, now: Now) -> rusqlite::Result<()> {
        self.postponed = false;
        if self.remainder {
            self.write_back(connection)?;
        } else if let Some(purge) = self.purges.first_mut() {
            if transaction(connection, |connection| purge.piece(connection, now.wall))? {
                let purge = self.purges.remove(0);
                // Whoever stopped waiting wanted it done all the same.
                let _ = purge.answer.send(Ok(purge.purged));
            }
        } else if self.moving.is_some() || self.finished > 0 {
            self.move_piece(connection, now.wall)?;
        } else if self.purging || now.monotonic >= self.purge_at {
            let dropped = connection.execute(
                "DELETE FROM idempotency_finished WHERE id IN \
                 (SELECT id FROM idempotency_finished WHERE keep_until <= ?1 ORDER BY keep_until LIMIT ?2)",
                params![integer(now.wall.as_millis()), PIECE],
            )?;
            self.purging = dropped > 0;
            self.purge_at = now.monotonic.saturating_add(PURGE_EVERY);
            self.pages = self.pages.saturating_add(dropped as u64);
        } else if !self.swept {
            let mut owns = connection.prepare("SELECT 1 FROM idempotency_operation WHERE lease_owner = ?1 LIMIT 1")?;
            locks.sweep(|owner| owns.exists([owner]))?;
            self.swept = true;
        } else {
            #[cfg(test)]
            for answer in self.settling.drain(..) {
                let _ = answer.send(Ok(()));
            }
        }
        Ok(())
    }

    /// Moves what is finished among the next rows.
    fn move_piece(&mut self, connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
        if self.moving.is_none() {
            self.moving = Some(i64::MIN);
            self.finished = 0;
        }
        let after = self.moving.unwrap_or(i64::MIN);
        let now = integer(now.as_millis());
        let (to, moved) = transaction(connection, |connection| {
            let to: Option<i64> = connection.query_row(
                "SELECT max(id) FROM (SELECT id FROM idempotency_operation WHERE id > ?1 ORDER BY id LIMIT ?2)",
                params![after, PIECE],
                |row| row.get(0),
            )?;
            let Some(to) = to else { return Ok((None, 0)) };
            let moved = connection.execute(
                concat!(
                    "INSERT INTO idempotency_finished (",
                    columns!(),
                    ", token, keep_until) SELECT ",
                    columns!(),
                    ", token, min(updated_at, ?4) + min(max(window_ms, ?5), ?4) FROM idempotency_operation \
                     WHERE id > ?1 AND id <= ?2 AND ",
                    finished!(),
                    " AND (lease_until IS NULL OR lease_until <= ?3) ORDER BY operation"
                ),
                params![after, to, now, FOREVER, self.retention],
            )?;
            if moved > 0 {
                connection.execute(
                    concat!(
                        "DELETE FROM idempotency_operation WHERE id > ?1 AND id <= ?2 AND ",
                        finished!(),
                        " AND (lease_until IS NULL OR lease_until <= ?3)"
                    ),
                    params![after, to, now],
                )?;
            }
            Ok((Some(to), moved))
        })?;
        self.moving = to;
        self.pages = self.pages.saturating_add((moved as u64).saturating_mul(3));
        Ok(())
    }
}

impl Purge {
    /// Goes through one piece; whether that was the last.
    fn piece(&mut self, connection: &Connection, now: Timestamp) -> rusqlite::Result<bool> {
        let now = integer(now.as_millis()).min(FOREVER);
        let Some([keep_until, updated_at, window_ms, id]) = self.after else {
            self.unfinished(connection, now)?;
            self.after = Some([i64::MIN; 4]);
            return Ok(false);
        };
        let mut old = Vec::new();
        let mut looked_at = 0;
        // The index has all that is asked for, so no row is read.
        let mut look = connection.prepare(
            "SELECT keep_until, updated_at, window_ms, id FROM idempotency_finished \
             WHERE (keep_until, updated_at, window_ms, id) > (?1, ?2, ?3, ?4) \
             ORDER BY keep_until, updated_at, window_ms, id LIMIT ?5",
        )?;
        let mut rows = look.query(params![keep_until, updated_at, window_ms, id, PIECE * 8])?;
        while let Some(row) = rows.next()? {
            looked_at += 1;
            let entry: [i64; 4] = [row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?];
            let [_, updated_at, window_ms, id] = entry;
            let keep_for = window_ms.max(self.older_than).min(FOREVER);
            if updated_at.min(FOREVER).saturating_add(keep_for) <= now {
                old.push(id);
            }
            self.after = Some(entry);
        }
        let mut drop_row = connection.prepare("DELETE FROM idempotency_finished WHERE id = ?1")?;
        for id in &old {
            drop_row.execute([id])?;
        }
        self.purged.dropped = self.purged.dropped.saturating_add(old.len() as u64);
        self.purged.recent = self.purged.recent.saturating_add((looked_at - old.len()) as u64);
        Ok(looked_at == 0)
    }

    /// The small table: what is finished there goes by the same rule, the rest is counted.
    fn unfinished(&mut self, connection: &Connection, now: i64) -> rusqlite::Result<()> {
        let dropped = connection.execute(
            concat!(
                "DELETE FROM idempotency_operation WHERE ",
                finished!(),
                " AND (lease_until IS NULL OR lease_until <= ?1) \
                 AND min(updated_at, ?2) + min(max(window_ms, ?3), ?2) <= ?1"
            ),
            params![now, FOREVER, self.older_than],
        )?;
        let (pending, for_a_person, all) = connection.query_row(
            "SELECT count(CASE WHEN phase IN ('prepared', 'sending') THEN 1 END), \
             count(CASE WHEN phase IN ('failed', 'expired') THEN 1 END), count(*) FROM idempotency_operation",
            [],
            |row| Ok((count(row.get(0)?), count(row.get(1)?), count(row.get(2)?))),
        )?;
        let recent = all.saturating_sub(pending).saturating_sub(for_a_person);
        self.purged = Purged { dropped: dropped as u64, pending, for_a_person, recent };
        Ok(())
    }
}

fn count(rows: i64) -> u64 {
    u64::try_from(rows).unwrap_or_default()
}

fn transaction<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let done = work(connection).and_then(|done| connection.execute_batch("COMMIT").map(|()| done));
    if done.is_err() && !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    done
}

fn length(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX).min(FOREVER)
}
