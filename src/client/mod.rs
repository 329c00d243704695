//! The client: what callers hold, and how one call becomes one operation.

mod builder;
mod flight;
mod freeze;
mod request;
mod settings;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use builder::ClientBuilder;
use flight::{Flights, Joined};
use freeze::Frozen;
use http::{HeaderValue, Method};
use rand::TryRng as _;
use rand::rngs::SysRng;
pub use request::RequestBuilder;
use reqwest::IntoUrl;
use settings::{Settings, Terms};
use tracing::{Instrument as _, debug_span, warn};

use self::builder::KeySource;
use crate::attempt::{Asked, AskedAgain, Attempts, Carrying, Plan, again, refusal};
use crate::clock::{Clock, Timestamp};
use crate::contract::Contract;
use crate::driver::{Custody, Driver};
use crate::error::{Error, ErrorKind};
use crate::fingerprint::{Fingerprint, without_credentials};
use crate::history::Delivery;
use crate::journal::{Acquired, Begun, Journal, Lease};
use crate::key::{IdempotencyKey, KeyError, Serialisation};
use crate::operation::{Keep, OperationId, Phase, Record, Wire};
use crate::response::Response;
use crate::retry::RetryBudget;
use crate::transport::Outgoing;

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
        RequestBuilder::foreign(self.clone(), request).send().await
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
        RequestBuilder::foreign(self.clone(), request).operation(operation).send().await
    }

    fn with(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// What every way of sending leads to.
    async fn perform(&self, call: Call) -> Result<Response, Error> {
        let Call { http, guarded, request, operation, settings } = call;
        let mut terms = settings.over(&self.0.settings)?;
        let carrying = carrying(&terms.contract, &request.method);
        if carrying == Carrying::Nothing {
            terms.retry = terms.retry.max_attempts(1);
        }
        if !guarded && carrying == Carrying::Key {
            self.0.warned.call_once(|| {
                warn!("a keyed request goes through a client that may follow redirects; build it with `client.http()`");
            });
        }
        let job = Job { client: &self.0, http, guarded, terms };
        if carrying == Carrying::Key {
            job.keyed(request, operation).await
        } else {
            job.keyless(request, carrying).await
        }
    }
}

fn carrying(contract: &Contract, method: &Method) -> Carrying {
    if contract.carries_key(method) {
        Carrying::Key
    } else if method.is_idempotent() {
        Carrying::Method
    } else {
        Carrying::Nothing
    }
}

/// One call under decided terms.
struct Job<'a> {
    client: &'a Inner,
    http: reqwest::Client,
    guarded: bool,
    terms: Terms,
}

impl Job<'_> {
    async fn keyless(self, request: Frozen, carrying: Carrying) -> Result<Response, Error> {
        let now = self.client.clock.now();
        let (attempts, step) =
            Attempts::start(self.plan(carrying), None, false, now.wall, now, self.client.next_seed());
        self.driver(request, None, None).run(attempts, step).await
    }

    async fn keyed(self, mut request: Frozen, operation: Option<OperationId>) -> Result<Response, Error> {
        let own_key = self.own_key(&mut request)?;
        let named = operation.is_some();
        let operation = match operation {
            Some(operation) => operation,
            None => OperationId::generate().map_err(|error| Error::new(ErrorKind::InvalidKey, error.to_string()))?,
        };
        if !named {
            return self.operate(request, operation, own_key, None).await;
        }
        let salt = self.client.journal.salt();
        let fingerprint = Fingerprint::of(salt, &request.method, &request.url, &request.body);
        match self.client.flights.join(&operation, fingerprint).await {
            Joined::Landed(result) => result,
            Joined::Leads(seat) => {
                let result = self.operate(request, operation, own_key, Some(fingerprint)).await;
                seat.land(result)
            }
            Joined::OtherPayload => Err(Error::new(
                ErrorKind::PayloadMismatch,
                format!(
                    "operation {operation} is in flight with another method, URL or body; nothing was sent, and a \
                     corrected request needs a new id"
                ),
            )
            .delivered(Delivery::Unknown)),
        }
    }

    /// The key that the caller put into the request, taken out of its headers.
    fn own_key(&self, request: &mut Frozen) -> Result<Option<IdempotencyKey>, Error> {
        let contract = &self.terms.contract;
        let name = contract.key_header();
        let mut values = request.headers.get_all(name).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return match request.headers.get_all(name).iter().count() {
                0 => Ok(None),
                count => Err(Error::new(
                    ErrorKind::InvalidKey,
                    format!(
                        "the request has {count} `{name}` headers; set one, or leave it out to have a key generated"
                    ),
                )),
            };
        };
        let key = read_key(value, contract.key_serialisation())
            .and_then(|key| contract.accepts(&key).map(|()| key))
            .map_err(|error| invalid_key(contract, &error))?;
        request.headers.remove(name);
        Ok(Some(key))
    }

    fn new_key(&self) -> Result<IdempotencyKey, Error> {
        let contract = &self.terms.contract;
        let key = match &self.client.key_source {
            Some(source) => source().map_err(|error| KeyError::Source(error.to_string())),
            None => IdempotencyKey::generate(),
        };
        key.and_then(|key| contract.accepts(&key).map(|()| key)).map_err(|error| invalid_key(contract, &error))
    }

    /// Begins the operation, or takes it up where it stands, and drives it.
    async fn operate(
        self,
        request: Frozen,
        operation: OperationId,
        own_key: Option<IdempotencyKey>,
        fingerprint: Option<Fingerprint>,
    ) -> Result<Response, Error> {
        let key = match &own_key {
            Some(key) => key.clone(),
            None => self.new_key()?,
        };
        let wire = Wire::from(&self.terms.contract);
        let record = self.record(&request, operation.clone(), key, wire.clone(), fingerprint);
        let lease = self.terms.retry.deadline.saturating_add(self.terms.retry.attempt_timeout);
        let journal = &self.client.journal;
        let begun = journal.begin(record, lease).await.map_err(|error| {
            let sent = if error.may_be_saved() { Delivery::Unknown } else { Delivery::NotSent };
            let message = format!("operation {operation} could not be begun in the journal, so nothing was sent");
            let may_be_saved = error.may_be_saved();
            let failed = Error::new(ErrorKind::Journal, message).caused_by(Arc::new(error)).delivered(sent);
            if may_be_saved { failed.pending_as(operation.clone()) } else { failed }
        })?;
        let known = match begun {
            Begun::New { record, lease, now } => return self.drive(request, record, lease, false, now).await,
            Begun::Known(record) => record,
        };
        let now = self.client.clock.now();
        let asked = Asked {
            wire: &wire,
            url: &request.url,
            credential_scope: self.terms.credential_scope.as_deref(),
            fingerprint: fingerprint.as_ref(),
            key: own_key.as_ref(),
            now: now.wall,
            safe_window: self.terms.contract.safe_window(),
        };
        match again(&known, &asked) {
            AskedAgain::Refuse(error) => return Err(*error),
            AskedAgain::Recall => return Ok(Response::recalled(&known)),
            AskedAgain::Drive { .. } => {}
        }
        let acquired = journal.acquire(operation, lease).await.map_err(|error| {
            refusal(&known, ErrorKind::Journal, "the journal could not be read, so nothing was sent".to_owned())
                .caused_by(Arc::new(error))
        })?;
        match acquired {
            Acquired::Taken { record, lease, now } => {
                // It may have changed between the two looks; this one holds, since nobody else may write now.
                match again(&record, &Asked { now, ..asked }) {
                    AskedAgain::Drive { after_unknown } => self.drive(request, record, lease, after_unknown, now).await,
                    other => {
                        journal.relinquish(lease);
                        match other {
                            AskedAgain::Refuse(error) => Err(*error),
                            _ => Ok(Response::recalled(&record)),
                        }
                    }
                }
            }
            Acquired::Held { until } => Err(refusal(
                &known,
                ErrorKind::Locked,
                format!("it is being driven elsewhere, until {until} at the latest; ask again after that"),
            )),
            Acquired::Unknown => Err(refusal(
                &known,
                ErrorKind::Journal,
                "its record vanished from the journal while it was asked for, so nothing was sent".to_owned(),
            )),
        }
    }

    async fn drive(
        self,
        request: Frozen,
        record: Box<Record>,
        lease: Lease,
        after_unknown: bool,
        journal_now: Timestamp,
    ) -> Result<Response, Error> {
        let key = (self.terms.contract.key_header().clone(), self.terms.contract.header_value(&record.key));
        let custody = Custody::new(Arc::clone(&self.client.journal), lease);
        let span = debug_span!("operation", operation = %record.operation, key.tail = record.key.tail());
        let (attempts, step) = Attempts::start(
            self.plan(Carrying::Key),
            Some(record),
            after_unknown,
            journal_now,
            self.client.clock.now(),
            self.client.next_seed(),
        );
        self.driver(request, Some(key), Some(custody)).run(attempts, step).instrument(span).await
    }

    fn record(
        &self,
        request: &Frozen,
        operation: OperationId,
        key: IdempotencyKey,
        wire: Wire,
        fingerprint: Option<Fingerprint>,
    ) -> Record {
        let kept = (self.terms.keep != Keep::Key).then(|| request.stored(self.terms.contract.key_header()));
        Record {
            operation,
            named: fingerprint.is_some(),
            key,
            phase: Phase::Sending,
            wire,
            method: request.method.clone(),
            url: without_credentials(&request.url),
            credential_scope: self.terms.credential_scope.clone(),
            fingerprint,
            request: kept,
            // The journal stamps these with its own time.
            begun_at: Timestamp::default(),
            first_sent_at: None,
            updated_at: Timestamp::default(),
            next_attempt_at: None,
            attempts: 0,
            closing: None,
        }
    }

    fn plan(&self, carrying: Carrying) -> Plan {
        Plan {
            contract: self.terms.contract.clone(),
            policy: self.terms.retry.clone(),
            carrying,
            classifier: self.terms.classifier.clone(),
            budget: self.client.budget.clone(),
            refresh_on_401: self.terms.refresh_on_401,
            keep: self.terms.keep,
        }
    }

    fn driver(self, request: Frozen, key: Option<(http::HeaderName, HeaderValue)>, custody: Option<Custody>) -> Driver {
        let Frozen { method, url, headers, body, version, timeout } = request;
        Driver {
            clock: Arc::clone(&self.client.clock),
            outgoing: Outgoing {
                client: self.http,
                guarded: self.guarded,
                method,
                url,
                headers,
                body,
                version,
                timeout,
            },
            key,
            custody,
            prepare: self.terms.prepare,
            reply_limit: self.terms.reply_limit,
        }
    }
}

fn invalid_key(contract: &Contract, error: &KeyError) -> Error {
    Error::new(ErrorKind::InvalidKey, format!("for the contract {:?}: {error}", contract.name()))
}

/// A key out of the caller's own header. It goes back as it came, so only a well-formed one is taken.
fn read_key(value: &HeaderValue, serialisation: Serialisation) -> Result<IdempotencyKey, KeyError> {
    let text = value.to_str().map_err(|_| {
        let position = value.as_bytes().iter().position(|byte| !matches!(byte, b' '..=b'~')).unwrap_or_default();
        KeyError::Character { character: char::REPLACEMENT_CHARACTER, position }
    })?;
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    match (serialisation, quoted) {
        (Serialisation::StructuredField, Some(quoted)) => {
            let mut plain = String::with_capacity(quoted.len());
            let mut characters = quoted.chars();
            while let Some(character) = characters.next() {
                plain.push(if character == '\\' { characters.next().unwrap_or('\\') } else { character });
            }
            IdempotencyKey::parse(&plain)
        }
        _ => IdempotencyKey::parse(text),
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
