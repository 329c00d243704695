//! Builds a client: a journal, by name, and whatever else is to differ from the defaults.

use std::sync::Arc;
use std::time::Duration;

use super::settings::{Settings, setters};
use super::{IdempotentClient, Inner};
use crate::clock::{Clock, SystemClock};
use crate::driver::BoxError;
use crate::error::{Error, ErrorKind};
use crate::journal::{Journal, MemoryJournal};
use crate::key::IdempotencyKey;
use crate::retry::RetryBudget;

/// Where generated keys come from.
pub(super) type KeySource = Arc<dyn Fn() -> Result<IdempotencyKey, BoxError> + Send + Sync>;

/// Builds an [`IdempotentClient`]. Everything has a default but the journal: no client forgets keys without having been
/// told to.
#[must_use = "a builder does nothing until it is built"]
pub struct ClientBuilder {
    http: Option<reqwest::ClientBuilder>,
    journal: Option<JournalChoice>,
    clock: Option<Arc<dyn Clock>>,
    budget: RetryBudget,
    key_source: Option<KeySource>,
    settings: Settings,
}

enum JournalChoice {
    Given(Arc<dyn Journal>),
    InMemory,
}

impl ClientBuilder {
    pub(super) fn new() -> Self {
        Self {
            http: None,
            journal: None,
            clock: None,
            budget: RetryBudget::default(),
            key_source: None,
            settings: Settings::default(),
        }
    }

    setters!();

    /// Takes a reqwest builder to finish: for its proxies, default headers, TLS and timeouts. Redirects and reqwest's own
    /// retries are turned off, HTTP/2 keep-alive pings on. Without this call the connect timeout is 3 seconds; a builder
    /// of the caller's has its own.
    pub fn http(mut self, builder: reqwest::ClientBuilder) -> Self {
        self.http = Some(builder);
        self
    }

    /// Sets the journal.
    pub fn journal(mut self, journal: impl Journal) -> Self {
        self.journal = Some(JournalChoice::Given(Arc::new(journal)));
        self
    }

    /// Sets a journal that other clients use, too.
    pub fn shared_journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.journal = Some(JournalChoice::Given(journal));
        self
    }

    /// Keeps keys in memory only: an operation that is under way when the process dies is forgotten, and doing it again
    /// may execute it twice.
    pub fn in_memory(mut self) -> Self {
        self.journal = Some(JournalChoice::InMemory);
        self
    }

    /// Sets the retry budget, shared by all clones of the client. 20 % of the traffic and 10 retries a second unless set.
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the clock: a manual one lets a test live through hours in milliseconds.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Sets where keys come from, instead of a UUID v4 from the operating system's randomness. If it fails, nothing is
    /// sent: a request without its key is never an alternative. A source that gives the same key twice makes one operation of
    /// two at the server, and both callers are told of its success.
    pub fn key_source<F>(mut self, source: F) -> Self
    where
        F: Fn() -> Result<IdempotencyKey, BoxError> + Send + Sync + 'static,
    {
        self.key_source = Some(Arc::new(source));
        self
    }

    /// Builds the client.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`] if no journal was chosen, a setting makes no sense, or reqwest cannot build its client.
    pub fn build(self) -> Result<IdempotentClient, Error> {
        const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
        let Self { http, journal, clock, budget, key_source, settings } = self;
        let configuration = |problem: String| Error::new(ErrorKind::Configuration, problem);
        // Contradictions show when the client is built, not in the first request of a night.
        Settings::default().over(&settings)?;
        budget.check().map_err(configuration)?;
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock));
        let journal = match journal {
            Some(JournalChoice::Given(journal)) => journal,
            Some(JournalChoice::InMemory) => {
                Arc::new(MemoryJournal::with(Arc::clone(&clock), MemoryJournal::DEFAULT_CAPACITY))
            }
            None => {
                return Err(configuration(
                    "no journal was chosen; call `journal(…)`, or `in_memory()` if keys may die with the process"
                        .to_owned(),
                ));
            }
        };
        let http = http.unwrap_or_else(|| reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT));
        let http = guarded(http).build().map_err(|error| {
            Error::new(ErrorKind::Configuration, "reqwest could not build its client")
                .caused_by(Arc::new(error.without_url()))
        })?;
        Ok(IdempotentClient::with(Inner::new(http, journal, clock, budget, key_source, settings)?))
    }
}

/// Turns off what would send a request again, or elsewhere, behind the machine's back.
fn guarded(builder: reqwest::ClientBuilder) -> reqwest::ClientBuilder {
    let builder =
        builder.redirect(reqwest::redirect::Policy::none()).retry(reqwest::retry::never().max_retries_per_request(0));
    #[cfg(feature = "http2")]
    let builder = builder
        .http2_keep_alive_interval(Duration::from_secs(20))
        .http2_keep_alive_timeout(Duration::from_secs(10))
        .http2_keep_alive_while_idle(false);
    builder
}

impl std::fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
