//! What every journal must pass: the promises of [`crate::journal`], each as a check with the promise for its name.
//!
//! A journal of one's own is held against it in one test:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use reqwest_idempotency::journal::{Journal, JournalError};
//! use reqwest_idempotency::testing::ManualClock;
//! use reqwest_idempotency::testing::journal_suite::{TestStore, journal_suite};
//! use reqwest_idempotency::{BoxFuture, MemoryJournal};
//!
//! struct Memory {
//!     clock: ManualClock,
//!     journal: MemoryJournal,
//! }
//!
//! impl TestStore for Memory {
//!     fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Journal>, JournalError>> {
//!         let journal: Arc<dyn Journal> = Arc::new(self.journal.clone());
//!         Box::pin(std::future::ready(Ok(journal)))
//!     }
//!
//!     fn advance(&self, by: Duration) -> BoxFuture<'_, bool> {
//!         self.clock.advance(by);
//!         Box::pin(std::future::ready(true))
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_multi_thread().build().unwrap().block_on(async {
//! let report = journal_suite(async || {
//!     let clock = ManualClock::new();
//!     let journal = MemoryJournal::with(Arc::new(clock.clone()), 1_000);
//!     Memory { clock, journal }
//! })
//! .await
//! .unwrap();
//! println!("{report}");
//! # });
//! ```

mod begin;
mod lease;
mod list;
mod purge;
mod sample;
#[cfg(test)]
mod tests;
mod whole;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::BoxFuture;
use crate::journal::{Journal, JournalError};

/// One store for the suite to do with as it likes: empty when it is made.
pub trait TestStore: Send + Sync {
    /// Opens a handle on the store. Each call opens another one, as another process would.
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Journal>, JournalError>>;

    /// Lets the journal's time pass; false if that cannot be done. Then what needs it is left out.
    fn advance(&self, by: Duration) -> BoxFuture<'_, bool> {
        let _ = by;
        Box::pin(std::future::ready(false))
    }

    /// Sets the journal's wall clock back, as an operator might; false if that cannot be done. Then what needs it is
    /// left out.
    fn step_back(&self, by: Duration) -> BoxFuture<'_, bool> {
        let _ = by;
        Box::pin(std::future::ready(false))
    }
}

/// Holds a journal against its contract. `make` makes a new, empty store for each check.
///
/// It has to run inside a tokio runtime.
///
/// # Errors
///
/// The promises that were broken, each with what was seen instead.
///
/// # Cancel safety
///
/// Dropping the future ends the suite; stores may be left behind as they are.
pub async fn journal_suite<S: TestStore>(make: impl AsyncFn() -> S) -> Result<SuiteReport, BrokenPromises> {
    let mut report = SuiteReport { kept: Vec::new(), left_out: Vec::new() };
    let mut broken = Vec::new();
    for check in all() {
        let store = make().await;
        match (check.run)(&store).await {
            Ok(Shown::Kept) => report.kept.push(check.promise),
            Ok(Shown::LeftOut(why)) => report.left_out.push((check.promise, why)),
            Err(seen) => broken.push((check.promise, seen)),
        }
    }
    if broken.is_empty() { Ok(report) } else { Err(BrokenPromises(broken)) }
}

/// What the suite showed of a journal that passed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SuiteReport {
    /// The promises that were seen to be kept.
    pub kept: Vec<&'static str>,
    /// Those that could not be tried, and why.
    pub left_out: Vec<(&'static str, &'static str)>,
}

/// What a journal broke: each promise, and what was seen instead.
#[derive(Clone)]
pub struct BrokenPromises(Vec<(&'static str, String)>);

struct Check {
    promise: &'static str,
    run: for<'a> fn(&'a dyn TestStore) -> BoxFuture<'a, Checked>,
}

type Checked = Result<Shown, String>;

enum Shown {
    Kept,
    LeftOut(&'static str),
}

const NEEDS_TIME: Shown = Shown::LeftOut("the store cannot let time pass");
const NEEDS_STEP: Shown = Shown::LeftOut("the store cannot set its clock back");

fn all() -> impl Iterator<Item = Check> {
    [begin::CHECKS, lease::CHECKS, list::CHECKS, purge::CHECKS, whole::CHECKS]
        .into_iter()
        .flatten()
        .map(|&(promise, run)| Check { promise, run })
}

/// A list of checks: name and function.
macro_rules! checks {
    ($($name:ident),+ $(,)?) => {
        pub(super) const CHECKS: &[(&str, for<'a> fn(&'a dyn super::TestStore) -> crate::clock::BoxFuture<'a, super::Checked>)] =
            &[$((stringify!($name), |store| Box::pin($name(store)))),+];
    };
}
use checks;

/// Ends a check with what was seen.
macro_rules! ensure {
    ($held:expr, $($seen:tt)+) => {
        if !$held {
            return Err(format!($($seen)+));
        }
    };
}
use ensure;

async fn open(store: &dyn TestStore) -> Result<Arc<dyn Journal>, String> {
    store.open().await.map_err(failed("open"))
}

/// A call that should have worked did not.
fn failed(what: &'static str) -> impl Fn(JournalError) -> String {
    move |error| format!("`{what}` failed with {:?}: {error}", error.kind())
}

impl fmt::Display for SuiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for promise in &self.kept {
            writeln!(f, "kept     {promise}")?;
        }
        for (promise, why) in &self.left_out {
            writeln!(f, "left out {promise}: {why}")?;
        }
        Ok(())
    }
}

impl BrokenPromises {
    /// The names of the promises.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(promise, _)| *promise)
    }
}

impl fmt::Display for BrokenPromises {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the journal breaks {} of its promises:", self.0.len())?;
        for (promise, seen) in &self.0 {
            write!(f, "\n  {promise}: {seen}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for BrokenPromises {
    /// As `Display`, so that `unwrap` prints something to read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for BrokenPromises {}
