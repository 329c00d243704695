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
//! connection: a client that leaves does not stop it.
//!
//! Unless it is given routes, the server has `POST /orders` (201, `Location`, `{"id":"order-1","order":…}` with the body's
//! JSON), `PATCH /orders/{id}` (200), and GET, HEAD, PUT and DELETE to go with them.

mod answer;
mod builder;
mod connection;
mod exchange;
mod fault;
mod key_header;
mod ledger;
mod manual_clock;
mod observed;
mod orders;
mod routes;
mod script;
mod server;
mod tasks;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

pub use builder::TestServerBuilder;
pub use fault::{At, CannedReply, Fault, How};
pub use manual_clock::ManualClock;
pub use observed::{InjectedFault, SeenRequest};

use server::Shared;

/// A server on this machine that speaks the contract, for one test. Dropping it stops it.
#[must_use = "dropping the server stops it"]
pub struct TestServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
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

    /// Asserts that the operation with this key was executed exactly once.
    ///
    /// # Panics
    ///
    /// It was not; the message has the history.
    #[track_caller]
    pub fn assert_executed_once(&self, key: &str) {
        self.assert_executions(key, 1);
    }

    /// Asserts that no operation with this key was executed.
    ///
    /// # Panics
    ///
    /// One was; the message has the history.
    #[track_caller]
    pub fn assert_never_executed(&self, key: &str) {
        self.assert_executions(key, 0);
    }

    #[track_caller]
    #[expect(clippy::panic, reason = "an assertion, which fails by panicking")]
    fn assert_executions(&self, key: &str, expected: usize) {
        let executions = self.executions_of(key);
        if executions != expected {
            let history = self.history();
            panic!(
                "key {key:?} was executed {executions} times and should have been {expected} times; requests were:\n{history}"
            );
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shared.tasks.abort();
    }
}

impl fmt::Debug for TestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestServer").field("addr", &self.addr).finish_non_exhaustive()
    }
}
