//! How a test server is set up.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, Method, Response};
use tokio::net::TcpListener;

use super::answer::SAFE_HEADERS;
use super::chaos::Chaos;
use super::defect::Defect;
use super::fault::Fault;
use super::ledger::{Ledger, LedgerConfig, OnLeaseExpiry};
use super::observed::{Chooser, Observed};
use super::policies::Policies;
use super::policy::{BodyForm, KeyPolicy, KeyScope, Payload, ServerErrors, WhileRunning};
use super::routes::{Pattern, Routes, handler};
use super::script::Script;
use super::seen::SeenRequest;
use super::server::{Log, Parts, Principal, Shared};
use super::{TestServer, UnusedFaults, orders};
use crate::clock::{Clock, SystemClock};
use crate::contract::Contract;

/// Sets up a [`TestServer`].
#[must_use = "no server runs until it is started"]
pub struct TestServerBuilder {
    contract: Contract,
    clock: Arc<dyn Clock>,
    principal: Principal,
    policies: Policies,
    body_limit: usize,
    replay_headers: Vec<HeaderName>,
    routes: Routes,
    ledger: LedgerConfig,
    faults: Vec<Fault>,
    connection_faults: Vec<Fault>,
    chooser: Option<Chooser>,
    unused_faults: UnusedFaults,
    log: Option<Log>,
}

impl TestServerBuilder {
    pub(super) fn new() -> Self {
        Self {
            contract: Contract::default(),
            clock: Arc::new(SystemClock),
            principal: Arc::new(bearer_token_or_anonymous),
            policies: Policies::default(),
            body_limit: 2 * 1024 * 1024,
            replay_headers: SAFE_HEADERS.to_vec(),
            routes: Routes::default(),
            ledger: LedgerConfig::default(),
            faults: Vec::new(),
            connection_faults: Vec::new(),
            chooser: None,
            unused_faults: UnusedFaults::Allow,
            log: None,
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
        self.policies.key = KeyPolicy::Optional;
        self
    }

    /// The same for one endpoint, whose path is written as for [`route`](Self::route).
    pub fn optional_key_at(mut self, method: Method, path: &str) -> Self {
        self.policies.key_at.push((method, Pattern::parse(path), KeyPolicy::Optional));
        self
    }

    /// Refuses an operation without a key at this endpoint, where the key is optional elsewhere.
    pub fn required_key_at(mut self, method: Method, path: &str) -> Self {
        self.policies.key_at.push((method, Pattern::parse(path), KeyPolicy::Required));
        self
    }

    /// What a key belongs to, besides its caller.
    pub fn key_scope(mut self, scope: KeyScope) -> Self {
        self.policies.scope = scope;
        self
    }

    /// What a repeat must have in common with the first request.
    pub fn payload(mut self, payload: Payload) -> Self {
        self.policies.payload = payload;
        self
    }

    /// When two bodies are the same.
    pub fn body_form(mut self, form: BodyForm) -> Self {
        self.policies.body_form = form;
        self
    }

    /// What becomes of an operation whose handler answers 5xx.
    pub fn server_errors(mut self, server_errors: ServerErrors) -> Self {
        self.policies.server_errors = server_errors;
        self
    }

    /// What an attempt meets while another one with its key is running.
    pub fn while_running(mut self, while_running: WhileRunning) -> Self {
        self.policies.while_running = while_running;
        self
    }

    /// The headers of an answer that are kept for replays, instead of those that describe its body or the resource
    /// (`Content-Type`, `Location`, `ETag` and the like).
    pub fn replay_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.replay_headers = names.into_iter().collect();
        self
    }

    /// Makes this mistake. Unless set, none.
    pub fn defect(mut self, defect: Defect) -> Self {
        self.policies.defect = Some(defect);
        self.ledger.defect = Some(defect);
        self
    }

    /// Injects these faults: the first one on the first attempt of each key, the second on the second, and so on.
    /// [`TestServer::faults_for`] gives a key a script of its own.
    pub fn faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.faults.extend(faults);
        self
    }

    /// Injects these faults into connections: the first one into the first connection, and so on. They strike at
    /// [`At::Connect`](super::At::Connect) or [`At::RequestBytes`](super::At::RequestBytes), where no key is known yet.
    ///
    /// # Panics
    ///
    /// When the server is started, if one strikes elsewhere.
    pub fn connection_faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.connection_faults.extend(faults);
        self
    }

    /// Chooses the fault of each attempt by the request itself, which knows its [`attempt`](SeenRequest::attempt); a script
    /// goes before it. A choice that depends on nothing else, such as a hash of a seed and the request, is the same
    /// whatever the order of arrival.
    pub fn fault_by(mut self, choose: impl Fn(&SeenRequest) -> Fault + Send + Sync + 'static) -> Self {
        self.chooser = Some(Chooser::By(Box::new(choose)));
        self
    }

    /// Injects faults by chance, into this share of all attempts: 0 for none, 1 for all. What an attempt meets depends on
    /// the seed, the request (not its key, which is drawn anew in each run) and the number of the attempt alone, so the
    /// same seed gives the same faults whatever the order of arrival. No fault of it stalls. A script goes before it, and
    /// [`TestServer::repro`] prints what struck.
    pub fn chaos(mut self, rate: f64, seed: u64) -> Self {
        self.chooser = Some(Chooser::Chaos(Chaos { rate, seed }));
        self
    }

    /// Fails the test when the server is dropped and a scripted fault has struck nobody: a script says what a test is about.
    /// The drop panics, unless a panic is under way already. [`TestServer::assert_no_unused_faults`] asks earlier.
    pub fn fail_on_unused_faults(mut self) -> Self {
        self.unused_faults = UnusedFaults::Fail;
        self
    }

    /// Tells one line for each exchange that is over: method, path, status, attempt, and what became of it. It has no key,
    /// query, header or body.
    pub fn log(mut self, log: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.log = Some(Arc::new(log));
        self
    }

    /// Serves the built-in `/orders` beside the routes that are added.
    pub fn orders(mut self) -> Self {
        self.routes.extend(orders::routes());
        self
    }

    /// Serves requests by this handler. `{name}` in the path stands for any one segment, see [`SeenRequest::param`]. Once
    /// there is a route of your own, the built-in `/orders` is gone, unless [`orders`](Self::orders) asks for it.
    ///
    /// An answer of 5xx, 401, 403, 408, 425 or 429 declares that nothing happened: the key is released
    /// ([`server_errors`](Self::server_errors) changes that for 5xx). Any other one is stored and replayed. A handler that panics has done nobody knows what: its key stays locked.
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
    /// # Panics
    ///
    /// A fault is in the wrong script: `faults` takes those of a request, `connection_faults` those of a connection.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future starts nothing.
    pub async fn start(self) -> io::Result<TestServer> {
        self.start_on(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// As [`start`](Self::start), on this address.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    ///
    /// # Panics
    ///
    /// As for `start`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future starts nothing.
    pub async fn start_on(self, addr: SocketAddr) -> io::Result<TestServer> {
        assert_scripted(self.faults.iter().all(|fault| !fault.is_of_connection()), "faults", "connection_faults");
        let of_connections =
            self.connection_faults.iter().all(|fault| fault.at().is_none() || fault.is_of_connection());
        assert_scripted(of_connections, "connection_faults", "faults");
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let parts = Parts {
            contract: self.contract,
            clock: self.clock,
            principal: self.principal,
            policies: self.policies,
            body_limit: self.body_limit,
            replay_headers: self.replay_headers,
            routes: if self.routes.is_empty() { orders::routes() } else { self.routes },
            log: self.log,
        };
        let script = Script::new(self.faults, self.connection_faults);
        let shared = Shared::new(parts, Ledger::new(self.ledger), Observed::new(script, self.chooser));
        shared.tasks.spawn(Arc::clone(&shared).accept(listener));
        Ok(TestServer { addr, shared, unused_faults: self.unused_faults })
    }
}

#[expect(clippy::panic, reason = "a test that scripts a fault that cannot be must fail where it says so")]
fn assert_scripted(holds: bool, here: &str, instead: &str) {
    if !holds {
        panic!("{here} has a fault at a position that belongs into {instead}");
    }
}

impl fmt::Debug for TestServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestServerBuilder")
            .field("contract", &self.contract)
            .field("clock", &self.clock)
            .field("policies", &self.policies)
            .field("ledger", &self.ledger)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

pub(super) fn bearer_token_or_anonymous(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let token = match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
        _ => "",
    };
    Some(token.to_owned())
}
