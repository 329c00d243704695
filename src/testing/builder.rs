//! How a test server is set up.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Response};
use tokio::net::TcpListener;

use super::TestServer;
use super::fault::Fault;
use super::ledger::{Ledger, LedgerConfig, OnLeaseExpiry};
use super::observed::{Chooser, Observed, SeenRequest};
use super::orders;
use super::routes::{Routes, handler};
use super::script::Script;
use super::server::{KeyPolicy, Parts, Principal, Shared};
use crate::clock::{Clock, SystemClock};
use crate::contract::Contract;

/// Sets up a [`TestServer`].
#[must_use = "no server runs until it is started"]
pub struct TestServerBuilder {
    contract: Contract,
    clock: Arc<dyn Clock>,
    principal: Principal,
    key_policy: KeyPolicy,
    body_limit: usize,
    routes: Routes,
    ledger: LedgerConfig,
    faults: Vec<Fault>,
    chooser: Option<Chooser>,
}

impl TestServerBuilder {
    pub(super) fn new() -> Self {
        Self {
            contract: Contract::default(),
            clock: Arc::new(SystemClock),
            principal: Arc::new(bearer_token_or_anonymous),
            key_policy: KeyPolicy::Required,
            body_limit: 2 * 1024 * 1024,
            routes: Routes::default(),
            ledger: LedgerConfig::default(),
            faults: Vec::new(),
            chooser: None,
        }
    }

    /// Speaks this contract: its header, its serialisation, its rule for keys, its methods. The window becomes the
    /// contract's; to set another, call [`window`](Self::window) afterwards.
    pub fn contract(mut self, contract: Contract) -> Self {
        self.ledger.window = contract.dedup_window();
        self.contract = contract;
        self
    }

    /// Reads the time from this clock, for window and lease. Give it the client's.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// How long a key is remembered after its completion: 7 days unless set. In production a server should remember for at
    /// least 24 hours; less is for tests.
    pub fn window(mut self, window: Duration) -> Self {
        self.ledger.window = window;
        self
    }

    /// How long the owner of a claim is believed to be alive: 60 seconds unless set. When it has passed, the key stays
    /// locked all the same until the window ends, unless [`take_over_expired_leases`](Self::take_over_expired_leases) says
    /// otherwise.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.ledger.lease = lease;
        self
    }

    /// Lets the next attempt execute when the owner of a claim has passed its lease. An owner that was only slow may then
    /// have executed, too: [`TestServer::executions_of`] counts both.
    pub fn take_over_expired_leases(mut self) -> Self {
        self.ledger.on_lease_expiry = OnLeaseExpiry::TakeOver;
        self
    }

    /// How many keys are remembered at most. Further ones are refused with 503.
    pub fn max_keys(mut self, max: usize) -> Self {
        self.ledger.max_records = max;
        self
    }

    /// The largest answer that is kept for replays: 8 MiB unless set. A larger one is given once, and a repeat learns that
    /// the operation was executed and its response is gone.
    pub fn max_replay_bytes(mut self, max: usize) -> Self {
        self.ledger.max_answer_bytes = max;
        self
    }

    /// The largest body of a request: 2 MiB unless set. A larger one is refused with 413.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// Names the caller of a request by its headers; `None` refuses the request with 401. The same key from two callers is
    /// two operations.
    ///
    /// Unless set, the bearer token is the name, and a request without one is anonymous.
    pub fn principal(mut self, name: impl Fn(&HeaderMap) -> Option<String> + Send + Sync + 'static) -> Self {
        self.principal = Arc::new(name);
        self
    }

    /// Executes an operation without a key instead of refusing it, each time anew.
    pub fn optional_key(mut self) -> Self {
        self.key_policy = KeyPolicy::Optional;
        self
    }

    /// Injects these faults: the first one on the first attempt of each key, the second on the second, and so on.
    /// [`TestServer::faults_for`] gives a key a script of its own.
    pub fn faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.faults.extend(faults);
        self
    }

    /// Chooses the fault of each attempt by the request itself, which knows its [`attempt`](SeenRequest::attempt); a script
    /// goes before it. A choice that depends on nothing else, such as a hash of a seed and the request, is the same
    /// whatever the order of arrival.
    pub fn fault_by(mut self, choose: impl Fn(&SeenRequest) -> Fault + Send + Sync + 'static) -> Self {
        self.chooser = Some(Chooser(Box::new(choose)));
        self
    }

    /// Serves requests by this handler. `{name}` in the path stands for any one segment, see [`SeenRequest::param`]. Once
    /// there is a route of your own, the built-in `/orders` is gone.
    ///
    /// An answer of 5xx, 401, 403, 408, 425 or 429 declares that nothing happened: the key is released. Any other one is
    /// stored and replayed. A handler that panics has done nobody knows what: its key stays locked.
    pub fn route<H, F>(mut self, method: Method, path: &str, handle: H) -> Self
    where
        H: Fn(SeenRequest) -> F + Send + Sync + 'static,
        F: Future<Output = Response<Bytes>> + Send + 'static,
    {
        self.routes.add(method, path, handler(handle));
        self
    }

    /// Starts the server on a free port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// No socket could be bound.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future starts nothing.
    pub async fn start(self) -> io::Result<TestServer> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Shared::new(Parts {
            contract: self.contract,
            clock: self.clock,
            principal: self.principal,
            key_policy: self.key_policy,
            body_limit: self.body_limit,
            routes: if self.routes.is_empty() { orders::routes() } else { self.routes },
            ledger: Ledger::new(self.ledger),
            observed: Observed::new(Script::new(self.faults), self.chooser),
        });
        shared.tasks.spawn(Arc::clone(&shared).accept(listener));
        Ok(TestServer { addr, shared })
    }
}

impl fmt::Debug for TestServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestServerBuilder")
            .field("contract", &self.contract)
            .field("clock", &self.clock)
            .field("key_policy", &self.key_policy)
            .field("ledger", &self.ledger)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

fn bearer_token_or_anonymous(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let token = match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
        _ => "",
    };
    Some(token.to_owned())
}
