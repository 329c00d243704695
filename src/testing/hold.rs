//! Gates at which attempts stop until the test lets them go on.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::fault::At;
use super::server::Shared;

/// Attempts stop at a position, and go on when the test says so: a real window of "in progress", without sleeping.
/// [`TestServer::hold`](super::TestServer::hold) makes one. Dropping it lets all go on.
#[must_use = "dropping it lets all attempts go on"]
pub struct Hold {
    gate: Arc<Gate>,
    shared: Arc<Shared>,
}

/// What an attempt passes.
pub(super) struct Gate {
    at: At,
    key: Option<String>,
    /// One permit for each attempt that has stopped and was not waited for yet.
    stopped: Semaphore,
    /// One permit for each attempt that may go on. Closed when all may.
    open: Semaphore,
}

impl Hold {
    #[track_caller]
    #[expect(clippy::panic, reason = "a test that would wait for ever must fail where it says so")]
    pub(super) fn new(shared: &Arc<Shared>, at: At, key: Option<&str>) -> Self {
        if !at.is_of_execution() {
            panic!("attempts can be held before the claim, after it, after the effect and after the commit, not {at}");
        }
        let key = key.map(str::to_owned);
        let gate = Arc::new(Gate { at, key, stopped: Semaphore::new(0), open: Semaphore::new(0) });
        shared.holds().push(Arc::clone(&gate));
        Self { gate, shared: Arc::clone(shared) }
    }

    /// Waits until one more attempt has stopped here.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: the next call resolves for the same attempt.
    pub async fn reached(&self) {
        // It is closed by nobody.
        if let Ok(permit) = self.gate.stopped.acquire().await {
            permit.forget();
        }
    }

    /// Lets one attempt go on, the one that has stopped first, or the next one to come.
    pub fn let_one(&self) {
        self.gate.open.add_permits(1);
    }

    /// Lets all attempts go on, those to come as well.
    pub fn open(self) {
        drop(self);
    }
}

impl Gate {
    /// Whether an attempt with this key stops here.
    pub(super) fn is_for(&self, at: At, key: Option<&str>) -> bool {
        self.at == at && (self.key.is_none() || self.key.as_deref() == key)
    }

    pub(super) async fn pass(&self) {
        self.stopped.add_permits(1);
        if let Ok(permit) = self.open.acquire().await {
            permit.forget();
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.holds().retain(|gate| !Arc::ptr_eq(gate, &self.gate));
        self.gate.open.close();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("at", &self.gate.at).finish_non_exhaustive()
    }
}
