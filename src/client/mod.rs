//! The client: what callers hold, and how one call becomes one operation.

mod builder;
mod caller_key;
mod flight;
mod freeze;
mod job;
#[cfg(feature = "_sqlite")]
mod outbox;
mod request;
mod resume;
mod settings;
mod settle;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use builder::ClientBuilder;
use flight::Flights;
use freeze::Frozen;
use http::Method;
use job::Job;
#[cfg(feature = "_sqlite")]
pub use outbox::Pending;
use rand::TryRng as _;
use rand::rngs::SysRng;
pub use request::RequestBuilder;
use reqwest::IntoUrl;
pub use resume::{NeedsRequest, Resume, ResumedItem};
use settings::Settings;
pub use settle::Resolution;
use tracing::warn;

use self::builder::KeySource;
use crate::attempt::Carrying;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::journal::Journal;
use crate::key::IdempotencyKey;
use crate::operation::OperationId;
use crate::response::Response;
use crate::retry::RetryBudget;

/// Sends requests as operations: each happens at most once at a server that honours the contract, however often it has to
/// be sent.
///
/// It is cheap to clone, and its clones share connections, journal and retry budget.
#[derive(Clone)]
pub struct IdempotentClient(Arc<Inner>);

struct Inner {
    http: reqwest::Client,
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    budget: RetryBudget,
    key_source: Option<KeySource>,
    settings: Settings,
    flights: Flights,
    /// Drawn once; each operation's jitter is seeded from it and a count.
    seed: u64,
    /// How the guarded client describes itself, to know it when a request comes with it.
    http_described: String,
    operations: AtomicU64,
    warned: std::sync::Once,
}

impl Inner {
    fn new(
        http: reqwest::Client,
        journal: Arc<dyn Journal>,
        clock: Arc<dyn Clock>,
        budget: RetryBudget,
        key_source: Option<KeySource>,
        settings: Settings,
    ) -> Result<Self, Error> {
        let mut seed = [0_u8; 8];
        SysRng.try_fill_bytes(&mut seed).map_err(|error| {
            Error::new(ErrorKind::Configuration, format!("the operating system gave no randomness: {error}"))
        })?;
        Ok(Self {
            http_described: format!("{http:?}"),
            http,
            journal,
            clock,
            budget,
            key_source,
            settings,
            flights: Flights::default(),
            seed: u64::from_ne_bytes(seed),
            operations: AtomicU64::new(0),
            warned: std::sync::Once::new(),
        })
    }

    /// Whether a client is ours, or set up just like it: reqwest tells a client from another in no other way, and what matters
    /// here, redirects and default headers, is in its description. (It leaves a retry policy out, which cannot repeat a
    /// body that is wrapped.)
    fn is_guarded(&self, http: &reqwest::Client) -> bool {
        format!("{http:?}") == self.http_described
    }

    fn next_seed(&self) -> u64 {
        // Steps by the golden ratio, so that neighbours differ in all bits.
        let count = self.operations.fetch_add(1, Ordering::Relaxed);
        self.seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// One call, before it is an operation.
struct Call {
    http: reqwest::Client,
    guarded: bool,
    request: Frozen,
    operation: Option<OperationId>,
    key: Option<IdempotencyKey>,
    settings: Settings,
}

impl IdempotentClient {
    /// Starts building a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    /// A client whose keys die with the process. Good for tests, and for callers who reconcile after every crash.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`] if reqwest cannot build its client.
    pub fn in_memory() -> Result<Self, Error> {
        Self::builder().in_memory().build()
    }

    /// A client whose journal is a file (SQLite): operations survive a crash of the process and of the machine. The file is
    /// made if it is not there, and may be shared by the processes of one host.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Journal`] if the file cannot be opened, is no journal, or is of a later version;
    /// [`ErrorKind::Configuration`] if reqwest cannot build its client.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the journal is closed again; an empty file may be left.
    #[cfg(feature = "_sqlite")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
    pub async fn open(path: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        let journal = crate::journal::SqliteJournal::open(path).await.map_err(|error| {
            Error::new(ErrorKind::Journal, "the journal could not be opened").caused_by(Arc::new(error))
        })?;
        Self::builder().journal(journal).build()
    }

    /// The guarded reqwest client, to build requests with: it follows no redirects and repeats nothing by itself.
    #[must_use]
    pub fn http(&self) -> &reqwest::Client {
        &self.0.http
    }

    /// Starts a request.
    pub fn request(&self, method: Method, url: impl IntoUrl) -> RequestBuilder {
        RequestBuilder::new(self.clone(), self.0.http.request(method, url))
    }

    /// Starts a GET. It carries no key: it is safe to repeat as it is.
    pub fn get(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    /// Starts a HEAD. It carries no key.
    pub fn head(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::HEAD, url)
    }

    /// Starts a POST, which carries a key.
    pub fn post(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::POST, url)
    }

    /// Starts a PUT. It carries no key unless the contract says so: repeating it changes nothing.
    pub fn put(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::PUT, url)
    }

    /// Starts a PATCH, which carries a key.
    pub fn patch(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::PATCH, url)
    }

    /// Starts a DELETE. It carries no key unless the contract says so: repeating it changes nothing.
    pub fn delete(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::DELETE, url)
    }

    /// Takes a request that was built with reqwest, to name it and to set what it is sent under.
    ///
    /// The client it was built with sends it, as with [`send`](Self::send).
    pub fn wrap(&self, request: reqwest::RequestBuilder) -> RequestBuilder {
        RequestBuilder::new(self.clone(), request)
    }

    /// Sends a request that was built with reqwest, as an operation of its own.
    ///
    /// The client it was built with sends it: its default headers and its pool are used. Build it with [`http`](Self::http).
    /// A client that follows redirects is noticed only by the URL that the answer comes from, which leaves one hole: a 303
    /// back to the very same URL.
    ///
    /// # Errors
    ///
    /// Of the kinds that [`RequestBuilder::send`] lists.
    ///
    /// # Cancel safety
    ///
    /// As [`RequestBuilder::send`].
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Result<Response, Error> {
        self.wrap(request).send().await
    }

    /// Sends a request that was built with reqwest, as the operation that the caller names.
    ///
    /// # Errors
    ///
    /// Of the kinds that [`RequestBuilder::send`] lists.
    ///
    /// # Cancel safety
    ///
    /// As [`RequestBuilder::send`].
    pub async fn send_as(
        &self,
        operation: impl AsRef<str>,
        request: reqwest::RequestBuilder,
    ) -> Result<Response, Error> {
        self.wrap(request).operation(operation).send().await
    }

    fn with(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// What every way of sending leads to.
    async fn perform(&self, call: Call) -> Result<Response, Error> {
        let job = Job::of(self, &call)?;
        let Call { guarded, request, operation, key, .. } = call;
        match job.carrying(&request.method) {
            Carrying::Key => {
                if !guarded {
                    self.warn_of_redirects();
                }
                job.keyed(request, operation, key).await
            }
            _ if operation.is_some() || key.is_some() => Err(Error::new(
                ErrorKind::Configuration,
                format!(
                    "the contract {:?} gives a {} no key, so it cannot be an operation; leave operation id and key out, \
                     or add the method with `Contract::methods`",
                    job.terms.contract.name(),
                    request.method
                ),
            )),
            carrying => job.keyless(request, carrying).await,
        }
    }

    /// Once for a client: more would drown what else is in the log.
    fn warn_of_redirects(&self) {
        self.0.warned.call_once(|| {
            warn!("a keyed request goes through a client that may follow redirects; build it with `client.http()`");
        });
    }
}

impl fmt::Debug for IdempotentClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentClient")
            .field("journal", &self.0.journal)
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}
