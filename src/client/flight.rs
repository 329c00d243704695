//! One flight per operation: tasks that ask for the same operation at the same time share its attempts.
//!
//! Whoever comes first leads. The others wait for the same result. If the leader is dropped, the next in line leads: no
//! one is stranded, and the key stays the same because the record has it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind};
use crate::fingerprint::Fingerprint;
use crate::key::IdempotencyKey;
use crate::operation::{OperationId, Wire};
use crate::response::Response;

#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<OperationId, Arc<Flight>>>);

/// What all who share a flight must have in common: to the server, anything else is another operation.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) fingerprint: Fingerprint,
    pub(super) wire: Wire,
    pub(super) credential_scope: Option<String>,
    /// The caller's own key, if it brought one.
    pub(super) key: Option<IdempotencyKey>,
}

impl Manifest {
    fn allows(&self, other: &Self) -> bool {
        let one_key = match (&self.key, &other.key) {
            (Some(ours), Some(theirs)) => ours == theirs,
            // The record has the key, and says more when the follower comes to lead.
            (None, None) => true,
            _ => false,
        };
        one_key
            && self.fingerprint == other.fingerprint
            && self.wire == other.wire
            && self.credential_scope == other.credential_scope
    }
}

#[derive(Debug)]
struct Flight {
    manifest: Manifest,
    /// Locked by the leader; has the result once there is one, for those who wait for the lock.
    landed: Arc<tokio::sync::Mutex<Option<Landed>>>,
}

type Landed = Result<Response, Error>;

/// What joining a flight led to.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
pub(super) enum Joined<'a> {
    /// This task drives the operation.
    Leads(Seat<'a>),
    /// Another did, and this is its result.
    Landed(Landed),
    /// The same id is in flight with something else.
    OtherManifest,
}

/// The leader's seat. Dropping it without [`land`](Seat::land) lets the next in line lead.
pub(super) struct Seat<'a> {
    landed: tokio::sync::OwnedMutexGuard<Option<Landed>>,
    ticket: Ticket<'a>,
}

struct OtherManifest;

/// A share in a flight; the last one takes the flight off the list.
struct Ticket<'a> {
    flights: &'a Flights,
    operation: OperationId,
    flight: Arc<Flight>,
}

impl Flights {
    /// Waits until this task leads the operation's flight, or another has landed it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the place in the line up.
    pub(super) async fn join(&self, operation: &OperationId, manifest: Manifest) -> Joined<'_> {
        let Ok(ticket) = self.ticket(operation, manifest) else { return Joined::OtherManifest };
        let landed = Arc::clone(&ticket.flight.landed).lock_owned().await;
        match landed.as_ref().and_then(share) {
            Some(result) => Joined::Landed(result),
            None => Joined::Leads(Seat { landed, ticket }),
        }
    }

    fn ticket(&self, operation: &OperationId, manifest: Manifest) -> Result<Ticket<'_>, OtherManifest> {
        let mut list = self.list();
        let flight = match list.entry(operation.clone()) {
            Entry::Occupied(flight) if !flight.get().manifest.allows(&manifest) => return Err(OtherManifest),
            Entry::Occupied(flight) => Arc::clone(flight.get()),
            Entry::Vacant(free) => Arc::clone(free.insert(Arc::new(Flight { manifest, landed: Arc::default() }))),
        };
        Ok(Ticket { flights: self, operation: operation.clone(), flight })
    }

    fn list(&self) -> MutexGuard<'_, HashMap<OperationId, Arc<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat<'_> {
    /// Hands the result to all who wait. Who comes after that finds the operation in the journal.
    pub(super) fn land(mut self, result: Landed) -> Landed {
        self.ticket.take_off();
        // One share is ours; the list's is gone.
        if Arc::strong_count(&self.ticket.flight) > 1 {
            *self.landed = share(&result);
        }
        result
    }
}

impl Ticket<'_> {
    fn take_off(&self) {
        let mut list = self.flights.list();
        if list.get(&self.operation).is_some_and(|listed| Arc::ptr_eq(listed, &self.flight)) {
            list.remove(&self.operation);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut list = self.flights.list();
        // The list's share and ours: nobody else waits. Shares are only made under this lock.
        let last = Arc::strong_count(&self.flight) <= 2;
        if last && list.get(&self.operation).is_some_and(|listed| Arc::ptr_eq(listed, &self.flight)) {
            list.remove(&self.operation);
        }
    }
}

/// A copy for another caller. A body that still streams has one reader, so whoever waits asks the server for a replay; and
/// that the leader's time is up is no reason for those who have more.
fn share(landed: &Landed) -> Option<Landed> {
    match landed {
        Ok(response) => response.share().map(Ok),
        Err(error) if error.kind() == ErrorKind::DeadlineExceeded => None,
        Err(error) => Some(Err(error.clone())),
    }
}
