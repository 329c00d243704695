//! How a ledger is set up.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::testing::defect::Defect;

/// How long and how much a ledger remembers.
#[derive(Clone, Debug)]
pub(in crate::testing) struct LedgerConfig {
    /// How long a key is remembered after its completion.
    pub(in crate::testing) window: Duration,
    /// How long the owner of a claim is believed to be alive.
    pub(in crate::testing) lease: Duration,
    pub(in crate::testing) on_lease_expiry: OnLeaseExpiry,
    /// What an attempt that meets a running one is told to wait, if the lease is not shorter.
    pub(in crate::testing) retry_after: Duration,
    pub(in crate::testing) max_records: usize,
    pub(in crate::testing) max_bytes: usize,
    /// An answer larger than this leaves a tombstone.
    pub(in crate::testing) max_answer_bytes: usize,
    pub(in crate::testing) defect: Option<Defect>,
}

/// What happens to a claim whose owner has passed its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::testing) enum OnLeaseExpiry {
    /// The key stays locked until the window ends: the owner may have executed, and nobody knows.
    FailClosed,
    /// The next attempt executes. A slow owner may then have executed, too.
    TakeOver,
}

impl LedgerConfig {
    pub(super) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Whole seconds, since that is what `Retry-After` can say: at least one, and otherwise not past the lease.
    pub(super) fn wait_for(&self, lease_ends: Timestamp, now: Timestamp) -> Duration {
        let wait = self.retry_after.min(lease_ends.since(now)).as_secs().max(1);
        Duration::from_secs(wait)
    }
}

impl Default for LedgerConfig {
    /// A week, as a production server should remember keys, and a size for tests.
    fn default() -> Self {
        Self {
            window: Duration::from_secs(7 * 24 * 60 * 60),
            lease: Duration::from_secs(60),
            on_lease_expiry: OnLeaseExpiry::FailClosed,
            retry_after: Duration::from_secs(1),
            max_records: 100_000,
            max_bytes: 256 * 1024 * 1024,
            max_answer_bytes: 8 * 1024 * 1024,
            defect: None,
        }
    }
}
