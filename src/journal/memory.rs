//! A journal that dies with the process, for tests and for callers who chose it by name.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Acquired, Begun, Journal, JournalError, JournalErrorKind, Lease, Purged};
use crate::clock::{BoxFuture, Clock, Now, SystemClock, Timestamp};
use crate::operation::{AfterSave, Durability, OperationId, Phase, Record};

/// Records in memory: bounded, fast, and gone with the process.
///
/// It still does what a journal can do inside one process: one key per operation, one flight at a time, and an answer to
/// a repeated call. Finished records are kept for seven days or their dedup window, whichever is longer. When it is full
/// it drops the oldest of what is past that, then finished operations whose id was generated, and then refuses to begin
/// another: it never forgets a pending operation to make room, nor a named one that can still be asked for.
///
/// Its time never runs backwards, whatever the wall clock does: it goes on with the monotonic clock, and jumps ahead with the
/// wall clock.
#[derive(Clone)]
pub struct MemoryJournal(Arc<Shared>);

struct Shared {
    clock: Box<dyn Clock>,
    /// The latest reading, with the wall clock as it would be if it had never gone back.
    latest: Mutex<Now>,
    capacity: usize,
    retention: Duration,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    by_operation: HashMap<OperationId, Slot>,
    /// Finished operations in the order of their finish; entries whose record was reopened meanwhile are stale.
    finished: VecDeque<OperationId>,
    /// Finished operations that may be dropped before their retention, likewise.
    expendable: VecDeque<OperationId>,
}

struct Slot {
    record: Record,
    token: u64,
    leased_until: Option<Timestamp>,
}

impl MemoryJournal {
    /// An empty journal for 100,000 records.
    #[must_use]
    pub fn new() -> Self {
        Self::with(SystemClock, Self::DEFAULT_CAPACITY)
    }

    /// How many records a journal holds unless told otherwise.
    pub const DEFAULT_CAPACITY: usize = 100_000;

    /// An empty journal on a clock of the caller's, for at most `capacity` records.
    #[must_use]
    pub fn with(clock: impl Clock, capacity: usize) -> Self {
        const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);
        let latest = Mutex::new(clock.now());
        Self(Arc::new(Shared {
            clock: Box::new(clock),
            capacity,
            retention: RETENTION,
            latest,
            slots: Mutex::default(),
        }))
    }

    /// How many records it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots().by_operation.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // Every change below is complete before anything can panic, so a poisoned lock guards sound data.
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        let now = self.0.clock.now();
        let mut latest = self.0.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.monotonic.saturating_sub(latest.monotonic);
        // In whole milliseconds, so that many readings add up to no more than the time that passed.
        let passed = Duration::from_millis(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX));
        let wall = latest.wall.plus(passed).max(now.wall);
        *latest = Now { monotonic: latest.monotonic.saturating_add(passed), wall };
        wall
    }

    fn begin_now(&self, mut record: Record, lease: Duration) -> Result<Begun, JournalError> {
        let now = self.now();
        let mut slots = self.slots();
        if let Some(slot) = slots.by_operation.get(&record.operation) {
            return Ok(Begun::Known(Box::new(slot.record.clone())));
        }
        if slots.by_operation.len() >= self.0.capacity && !slots.make_room(now, self.0.retention) {
            return Err(JournalError::new(
                JournalErrorKind::Full,
                format!(
                    "the memory journal is full with {} records, and what is pending, or named and still within its \
                     dedup window, may not be dropped; give it a larger capacity, or use a durable journal",
                    self.0.capacity
                ),
            )
            .absent());
        }
        record.begun_at = now;
        record.updated_at = now;
        record.first_sent_at = (record.phase == Phase::Sending).then_some(now);
        let lease = Lease::new(record.operation.clone(), 1, now.plus(lease));
        let slot = Slot { record: record.clone(), token: 1, leased_until: Some(lease.until) };
        slots.by_operation.insert(record.operation.clone(), slot);
        Ok(Begun::New { record: Box::new(record), lease, now })
    }

    fn acquire_now(&self, operation: OperationId, lease: Duration) -> Acquired {
        let now = self.now();
        let mut slots = self.slots();
        let Some(slot) = slots.by_operation.get_mut(&operation) else { return Acquired::Unknown };
        if let Some(until) = slot.leased_until.filter(|until| *until > now) {
            return Acquired::Held { until };
        }
        slot.token = slot.token.saturating_add(1);
        slot.leased_until = Some(now.plus(lease));
        let lease = Lease::new(operation, slot.token, now.plus(lease));
        Acquired::Taken { record: Box::new(slot.record.clone()), lease, now }
    }

    fn save_now(&self, mut record: Record, lease: &Lease, then: AfterSave) -> Result<(), JournalError> {
        record.updated_at = self.now();
        let mut slots = self.slots();
        let slot = slots.by_operation.get_mut(&lease.operation).filter(|slot| slot.token == lease.token);
        let Some(slot) = slot else {
            return Err(JournalError::new(
                JournalErrorKind::LeaseLost,
                "another worker has taken the operation over; what it finds out is in the journal",
            ));
        };
        if then == AfterSave::ReleaseLease {
            slot.leased_until = None;
        }
        slot.record = record.clone();
        slots.queue(&record, self.0.capacity);
        Ok(())
    }
}

impl Slots {
    fn purge(&mut self, now: Timestamp, older_than: Duration) -> Purged {
        let mut purged = Purged::default();
        self.by_operation.retain(|_, slot| {
            let keep_for = older_than.max(slot.record.wire.window);
            let (count, kept) = match slot.record.phase {
                phase if phase.is_pending() => (&mut purged.pending, true),
                Phase::Failed | Phase::Expired => (&mut purged.for_a_person, true),
                _ if now.since(slot.record.updated_at) < keep_for => (&mut purged.recent, true),
                _ => (&mut purged.dropped, false),
            };
            *count = count.saturating_add(1);
            kept
        });
        purged
    }

    /// Drops what may be dropped, oldest first; whether anything was.
    fn make_room(&mut self, now: Timestamp, retention: Duration) -> bool {
        let before = self.by_operation.len();
        while let Some(oldest) = self.finished.front() {
            match self.by_operation.get(oldest) {
                Some(slot) if is_finished(&slot.record) => {
                    let keep_for = retention.max(slot.record.wire.window);
                    if now.since(slot.record.updated_at) < keep_for {
                        break;
                    }
                    let oldest = oldest.clone();
                    self.by_operation.remove(&oldest);
                }
                // Reopened since, or waiting for a person: not to be dropped, and queued anew when it is finished.
                Some(_) | None => {}
            }
            self.finished.pop_front();
        }
        while self.by_operation.len() == before {
            let Some(oldest) = self.expendable.pop_front() else { return false };
            if self.by_operation.get(&oldest).is_some_and(|slot| is_expendable(&slot.record)) {
                self.by_operation.remove(&oldest);
            }
        }
        true
    }

    fn queue(&mut self, record: &Record, capacity: usize) {
        if is_finished(record) {
            self.finished.push_back(record.operation.clone());
        }
        if is_expendable(record) {
            self.expendable.push_back(record.operation.clone());
        }
        // One operation that is rejected and asked for again for ever must not grow the queues without end.
        for queue in [&mut self.finished, &mut self.expendable] {
            if queue.len() > capacity.saturating_mul(2) {
                let mut seen = HashSet::new();
                queue.retain(|operation| self.by_operation.contains_key(operation) && seen.insert(operation.clone()));
            }
        }
    }
}

/// Closed, with nothing left for a person to find out.
fn is_finished(record: &Record) -> bool {
    !record.phase.is_pending() && !matches!(record.phase, Phase::Failed | Phase::Expired)
}

fn is_expendable(record: &Record) -> bool {
    !record.named && is_finished(record)
}

impl Default for MemoryJournal {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryJournal").field("len", &self.len()).field("capacity", &self.0.capacity).finish()
    }
}

impl Journal for MemoryJournal {
    fn begin(&self, record: Record, lease: Duration) -> BoxFuture<'_, Result<Begun, JournalError>> {
        let begun = self.begin_now(record, lease);
        Box::pin(std::future::ready(begun))
    }

    fn acquire(&self, operation: OperationId, lease: Duration) -> BoxFuture<'_, Result<Acquired, JournalError>> {
        let acquired = self.acquire_now(operation, lease);
        Box::pin(std::future::ready(Ok(acquired)))
    }

    fn save(
        &self,
        record: Record,
        lease: Lease,
        then: AfterSave,
        _: Durability,
    ) -> BoxFuture<'_, Result<(), JournalError>> {
        let saved = self.save_now(record, &lease, then);
        Box::pin(std::future::ready(saved))
    }

    fn get(&self, operation: OperationId) -> BoxFuture<'_, Result<Option<Record>, JournalError>> {
        let found = self.slots().by_operation.get(&operation).map(|slot| slot.record.clone());
        Box::pin(std::future::ready(Ok(found)))
    }

    fn pending(
        &self,
        after: Option<OperationId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<OperationId>, JournalError>> {
        let slots = self.slots();
        let mut pending: Vec<OperationId> = slots
            .by_operation
            .values()
            .filter(|slot| slot.record.phase.is_pending())
            .map(|slot| &slot.record.operation)
            .filter(|operation| after.as_ref().is_none_or(|after| *operation > after))
            .cloned()
            .collect();
        drop(slots);
        pending.sort_unstable();
        pending.truncate(limit);
        Box::pin(std::future::ready(Ok(pending)))
    }

    fn purge(&self, older_than: Duration) -> BoxFuture<'_, Result<Purged, JournalError>> {
        let purged = self.slots().purge(self.now(), older_than);
        Box::pin(std::future::ready(Ok(purged)))
    }

    fn relinquish(&self, lease: Lease) {
        let mut slots = self.slots();
        if let Some(slot) = slots.by_operation.get_mut(&lease.operation).filter(|slot| slot.token == lease.token) {
            slot.leased_until = None;
        }
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn salt(&self) -> &[u8] {
        // Nobody can read a journal in memory who cannot read the bodies themselves.
        b""
    }
}
