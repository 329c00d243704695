//! A server that speaks the whole contract, and faults that no HTTP mock offers.
//!
//! A [`TestServer`] listens on a free port of this machine, remembers keys, executes an operation once and replays its
//! answer. [`Fault`]s break an exchange at a named position: "executed, then the reply was lost" is one of them. With a
//! [`ManualClock`] that client and server share, waits of minutes and windows of days take no time.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use reqwest_idempotency::testing::{Fault, TestServer};
//!
//! // The first attempt of each key is executed, and its reply is lost.
//! let server = TestServer::builder().faults([Fault::reply_lost()]).start().await?;
//!
//! // Any client can be tested with it. This one tries again by hand.
//! let http = reqwest_idempotency::reqwest::Client::new();
//! let attempt = || http.post(server.url("/orders")).header("Idempotency-Key", "order-42").body("{}").send();
//! assert!(attempt().await.is_err());
//! let reply = attempt().await?;
//!
//! assert_eq!(reply.status(), 201);
//! assert_eq!(reply.headers()["idempotent-replayed"], "true");
//! server.assert_executed_once("order-42");
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # What the server does
//!
//! | request | answer |
//! |---|---|
//! | POST or PATCH without a key | 422 `idempotency-key-missing`; executed each time with [`optional_key`](TestServerBuilder::optional_key) |
//! | with a malformed key: empty, twice, too long, badly quoted | 400 `idempotency-key-malformed` |
//! | first with its key | executed once, and stored |
//! | same key, finished | the stored status, headers and bytes, with `Idempotent-Replayed: true` |
//! | same key, still running | 409 `in-progress` and `Retry-After` |
//! | same key, other payload, finished or not | 422 `idempotency-key-reuse` |
//! | same key, after the window | executed |
//! | same key, other caller, other path or other method | executed: it is another operation |
//! | same key, answer too large to keep | 409 `response-not-replayable` |
//! | no room for another key | 503 `store-unavailable`, nothing executed |
//! | other methods | executed; a key is ignored |
//!
//! Errors are problem details (RFC 9457) of the type `/problems/<name>`. The payload is the query, whatever the order of its
//! parameters, and the bytes of the body: JSON with other spaces is another payload. Execution does not depend on the
//! connection: a client that leaves does not stop it. Where servers differ, [`TestServerBuilder`] has a setting:
//! [`KeyScope`], [`Payload`], [`BodyForm`], [`ServerErrors`], [`WhileRunning`] and others.
//!
//! Unless it is given routes, the server has `POST /orders` (201, `Location`, `{"id":"order-1","order":…}` with the body's
//! JSON), `PATCH /orders/{id}` (200), and GET, HEAD, PUT and DELETE to go with them. In any case it has `GET /openapi.json`
//! (its contract as OpenAPI 3.1) and `GET /ledger` (what it knows of each key).
//!
//! # What it can do to a client
//!
//! - A [`Fault`] is something that happens ([`How`]) at a position in the exchange ([`At`]). Scripts give the n-th attempt of
//!   each key, of one key ([`TestServer::faults_for`]), or the n-th connection
//!   ([`TestServerBuilder::connection_faults`]) its fault; [`TestServerBuilder::chaos`] draws them by a seed, and
//!   [`TestServer::repro`] prints how to have the same again.
//! - [`TestServer::hold`] stops attempts at a position, which makes a real "in progress" without sleeping.
//! - A [`Defect`] makes it a server that is wrong, to see whether a test notices.
//! - A [`FlakyProxy`] is a bad network in front of a server of your own.

mod about;
mod answer;
mod assertions;
mod builder;
mod chaos;
mod connection;
mod defect;
mod exchange;
mod execution;
mod fault;
mod hold;
pub mod journal_suite;
mod key_header;
mod ledger;
mod line;
mod manual_clock;
mod observed;
mod openapi;
mod orders;
mod payload;
mod policies;
mod policy;
mod proxy;
mod proxy_fault;
mod reply_body;
mod routes;
mod script;
mod seen;
mod server;
mod tasks;
#[cfg(feature = "wiremock")]
#[cfg_attr(docsrs, doc(cfg(feature = "wiremock")))]
pub mod wiremock;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

pub use builder::TestServerBuilder;
pub use defect::Defect;
pub use fault::{At, CannedReply, Fault, How};
pub use hold::Hold;
pub use ledger::{EntryState, LedgerEntry};
pub use manual_clock::ManualClock;
pub use observed::InjectedFault;
pub use policy::{BodyForm, KeyScope, Payload, ServerErrors, WhileRunning};
pub use proxy::{FlakyProxy, FlakyProxyBuilder};
pub use proxy_fault::ProxyFault;
pub use seen::SeenRequest;
use server::Shared;

/// A server on this machine that speaks the contract, for one test. Dropping it stops it.
#[must_use = "dropping the server stops it"]
pub struct TestServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    unused_faults: UnusedFaults,
}

/// What a server does when it is dropped and its script was not used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnusedFaults {
    Fail,
    Allow,
}

impl TestServer {
    /// Starts a server with the default contract, the built-in `/orders` and no faults.
    ///
    /// # Errors
    ///
    /// No socket could be bound.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future starts nothing.
    pub async fn start() -> io::Result<Self> {
        Self::builder().start().await
    }

    /// Sets up a server.
    pub fn builder() -> TestServerBuilder {
        TestServerBuilder::new()
    }

    /// The URL of a path on this server.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{}", self.addr, path.trim_start_matches('/'))
    }

    /// The address that it listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Gives a key faults of its own, for its attempts from the next one on. A key that has a script of its own does not
    /// meet the server's default one; called again, the script becomes longer.
    pub fn faults_for(&self, key: &str, faults: impl IntoIterator<Item = Fault>) {
        self.shared.observed().script.extend(key, faults);
    }

    /// Stops attempts at this position until the test lets them go on, whatever their key. The position is
    /// [`At::BeforeClaim`], [`At::AfterClaim`], [`At::AfterEffect`] or [`At::AfterCommit`]. From the claim to the effect an
    /// attempt stops without its connection; before and after, it is gone when its client leaves.
    ///
    /// # Panics
    ///
    /// Attempts cannot be held at this position.
    #[track_caller]
    pub fn hold(&self, at: At) -> Hold {
        Hold::new(&self.shared, at, None)
    }

    /// As [`hold`](Self::hold), for attempts with this key.
    ///
    /// # Panics
    ///
    /// Attempts cannot be held at this position.
    #[track_caller]
    pub fn hold_for(&self, key: &str, at: At) -> Hold {
        Hold::new(&self.shared, at, Some(key))
    }

    /// What is known of every key that came, in the order of principal, endpoint and key.
    #[must_use]
    pub fn ledger(&self) -> Vec<LedgerEntry> {
        let now = self.shared.now();
        self.shared.ledger().entries(now)
    }

    /// The keys that came, each once, in order of arrival.
    #[must_use]
    pub fn keys_seen(&self) -> Vec<String> {
        let mut keys: Vec<String> = Vec::new();
        for request in self.requests() {
            if let Some(key) = request.key().filter(|key| !keys.iter().any(|seen| seen == key)) {
                keys.push(key.to_owned());
            }
        }
        keys
    }

    /// How many attempts with this key came.
    #[must_use]
    pub fn attempts_of(&self, key: &str) -> usize {
        self.requests_of(key).iter().map(SeenRequest::attempt).max().unwrap_or_default()
    }

    /// How many attempts with this key were answered by a replay, whether or not the answer arrived.
    #[must_use]
    pub fn replays_of(&self, key: &str) -> usize {
        self.shared.observed().replays_of(key)
    }

    /// How to run the same again: the seed of [`chaos`](TestServerBuilder::chaos), if there was one, and the faults that have
    /// struck as scripts, in Rust. What struck requests without a key is not in the scripts. Keys are printed in full.
    #[must_use]
    pub fn repro(&self) -> String {
        self.shared.observed().repro()
    }

    /// How many operations were executed, or are being executed, with and without a key. An execution whose handler
    /// answered that nothing happened (5xx, 401, 403, 408, 425, 429) does not count, nor does a request of a method that
    /// carries no key.
    #[must_use]
    pub fn executions(&self) -> usize {
        self.shared.ledger().executions()
    }

    /// As [`executions`](Self::executions), for one key, whoever called and whatever endpoint.
    #[must_use]
    pub fn executions_of(&self, key: &str) -> usize {
        self.shared.ledger().executions_of(key)
    }

    /// All requests in order of arrival. A request is recorded when it was read whole, before any fault.
    #[must_use]
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.shared.observed().requests()
    }

    /// The requests with this key, in order of arrival.
    #[must_use]
    pub fn requests_of(&self, key: &str) -> Vec<SeenRequest> {
        let mut requests = self.requests();
        requests.retain(|request| request.key() == Some(key));
        requests
    }

    /// Waits for the next fault to strike, each one once: when it resolves, the exchange stalls, or its connection is gone,
    /// and the test can go on to let time pass.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no fault: the next call resolves with it.
    pub async fn fault_injected(&self) -> InjectedFault {
        self.shared.next_injected().await
    }

    /// The scripted faults that have struck nobody, in the order in which they were given: the attempt did not come, or
    /// did not come to the fault's position.
    #[must_use]
    pub fn unused_faults(&self) -> Vec<Fault> {
        self.shared.observed().script.unused()
    }

    /// One line for each request, with what became of it. Keys are printed in full.
    #[must_use]
    pub fn history(&self) -> String {
        self.shared.observed().to_string()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shared.tasks.abort();
        if self.unused_faults == UnusedFaults::Fail && !std::thread::panicking() {
            self.assert_no_unused_faults();
        }
    }
}

impl fmt::Debug for TestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestServer").field("addr", &self.addr).finish_non_exhaustive()
    }
}
