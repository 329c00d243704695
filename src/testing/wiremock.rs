//! The contract as a responder for `wiremock`, for tests that have their mocks there already.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use bytes::Bytes;
//! use reqwest_idempotency::testing::wiremock::ContractResponder;
//! use wiremock::matchers::{method, path};
//! use wiremock::{Mock, MockServer};
//!
//! let server = MockServer::start().await;
//! let orders = ContractResponder::new(|_| http::Response::new(Bytes::from_static(b"made")));
//! let post = || Mock::given(method("POST")).and(path("/orders"));
//! // The first attempt is executed and its reply is lost; the others are answered.
//! post().respond_with_err(orders.reply_lost()).up_to_n_times(1).mount(&server).await;
//! post().respond_with(orders.clone()).mount(&server).await;
//!
//! let http = reqwest_idempotency::reqwest::Client::new();
//! let url = format!("{}/orders", server.uri());
//! let attempt = || http.post(&url).header("Idempotency-Key", "order-42").body("{}").send();
//! assert!(attempt().await.is_err());
//! assert_eq!(attempt().await?.headers()["idempotent-replayed"], "true");
//! assert_eq!(orders.executions_of("order-42"), 1);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # What wiremock can express
//!
//! - Everything that the contract answers to requests that come one after the other: missing, malformed and reused keys,
//!   replays, callers and endpoints of their own, the window, the tombstone.
//! - A canned answer in the place of an attempt: mount a `ResponseTemplate` before the responder with `up_to_n_times`. A
//!   503, a 409 in progress, HTML, a delay (`set_delay`, in real time).
//! - "Executed, then the reply was lost": [`ContractResponder::reply_lost`].
//!
//! # What it cannot
//!
//! It calls a responder under a lock and gets the whole response from one call that cannot wait. So there is
//!
//! - no operation in progress, and no race: one attempt is over before the next one is looked at (a canned 409 can play
//!   it, but nothing runs meanwhile);
//! - no fault within a response: no cut or reset after so many bytes of head or body, no wrong `Content-Length`, no
//!   garbage, nothing that stalls half way, nothing slow but by its delay;
//! - no fault of a connection: nothing before the request is read, nothing after the response, no RST, no HTTP/2 stream
//!   reset and no GOAWAY;
//! - no execution that outlives its client, no crash of its owner, no lease, no late original and no second delivery;
//! - no manual clock for its delays.
//!
//! [`TestServer`](super::TestServer) has all of them.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, Version};
use wiremock::{Request, Respond, ResponseTemplate};

use super::answer::{Answer, Disposition, SAFE_HEADERS};
use super::builder::bearer_token_or_anonymous;
use super::exchange::REPLAYED;
use super::key_header::read_key;
use super::ledger::{Claim, Ledger, LedgerConfig};
use super::policies::Policies;
use super::seen::SeenRequest;
use crate::clock::{Clock, SystemClock};
use crate::contract::Contract;

/// Answers as the contract wants it, by the same ledger as a [`TestServer`](super::TestServer). Clones share what they
/// remember.
#[derive(Clone)]
pub struct ContractResponder {
    contract: Contract,
    clock: Arc<dyn Clock>,
    handle: Handle,
    policies: Policies,
    ledger: Arc<Mutex<Ledger>>,
}

type Handle = Arc<dyn Fn(&Request) -> Response<Bytes> + Send + Sync>;

impl ContractResponder {
    /// Executes operations by this function. What its answers say about the operation, and all settings, are those of a
    /// `TestServer`: the bearer token names the caller, and a key is remembered for 7 days.
    pub fn new(handle: impl Fn(&Request) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        Self {
            contract: Contract::default(),
            clock: Arc::new(SystemClock),
            handle: Arc::new(handle),
            policies: Policies::default(),
            ledger: Arc::new(Mutex::new(Ledger::new(LedgerConfig::default()))),
        }
    }

    /// Speaks this contract, with its window. Forgets all keys.
    #[must_use]
    pub fn contract(self, contract: Contract) -> Self {
        let window = contract.dedup_window();
        Self { contract, ..self }.window(window)
    }

    /// How long a key is remembered. Forgets all keys.
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        let ledger = Ledger::new(LedgerConfig { window, ..LedgerConfig::default() });
        Self { ledger: Arc::new(Mutex::new(ledger)), ..self }
    }

    /// Reads the time from this clock, for the window.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// The same operations, with every reply lost: the connection is closed without an answer. For
    /// `Mock::respond_with_err`.
    pub fn reply_lost(&self) -> impl Fn(&Request) -> io::Error + Send + Sync + 'static {
        let executes = self.clone();
        move |request| {
            let _ = executes.answer(request);
            io::Error::new(io::ErrorKind::ConnectionAborted, "the reply is lost")
        }
    }

    /// How often the operation with this key was executed, whoever called and whatever endpoint.
    #[must_use]
    pub fn executions_of(&self, key: &str) -> usize {
        self.ledger().executions_of(key)
    }

    fn answer(&self, request: &Request) -> Answer {
        let problem = |status: StatusCode, name: &str, detail: &str| Answer::problem(status, name, detail);
        if request.method.is_safe() || !self.contract.carries_key(&request.method) {
            return (self.handle)(request).into();
        }
        let key = match read_key(&request.headers, &self.contract) {
            Ok(Some(key)) => key,
            Ok(None) => {
                let detail = format!("{} requests need the header {}.", request.method, self.contract.key_header());
                return problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-missing", &detail);
            }
            Err(malformed) => {
                let detail = format!("{}: {malformed}.", self.contract.key_header());
                return problem(StatusCode::BAD_REQUEST, "idempotency-key-malformed", &detail);
            }
        };
        let seen = seen(request, &key);
        let principal = bearer_token_or_anonymous(&request.headers).unwrap_or_default();
        let (scope, fingerprint) = (self.policies.scope(&principal, &seen), self.policies.fingerprint(&seen));
        let now = self.clock.now().wall;
        let claim = self.ledger().claim(scope, &key, fingerprint, now);
        match claim {
            Claim::Acquired(token) => {
                self.ledger().begin(&token);
                // Not under the ledger's lock: the handler is the user's, and may ask for executions.
                let answer: Answer = (self.handle)(request).into();
                // Nobody else can have touched the claim: wiremock serves one request at a time.
                let _ = match answer.disposition(self.policies.server_errors) {
                    Disposition::Store => {
                        self.ledger().complete(&token, answer.for_replay(&SAFE_HEADERS), now).map(drop)
                    }
                    Disposition::Release => self.ledger().release(&token, now),
                    Disposition::ReExecute => self.ledger().fail(&token, now),
                };
                answer
            }
            Claim::Replay(answer) => answer.with(REPLAYED, http::HeaderValue::from_static("true")),
            Claim::InProgress { retry_after, .. } => Answer::in_progress(retry_after.as_secs().into()),
            Claim::Mismatch => Answer::key_reused(),
            Claim::Tombstone => Answer::not_replayable(),
            Claim::Full => Answer::store_unavailable(),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Respond for ContractResponder {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let Answer { status, headers, body } = self.answer(request);
        // The body goes first: it sets a content type of its own, which the headers replace.
        let mut template = ResponseTemplate::new(status.as_u16()).set_body_bytes(body.to_vec());
        for (name, value) in &headers {
            template = template.append_header(name.clone(), value.clone());
        }
        template
    }
}

impl fmt::Debug for ContractResponder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContractResponder").field("contract", &self.contract).finish_non_exhaustive()
    }
}

fn seen(request: &Request, key: &str) -> SeenRequest {
    let target = match request.url.query() {
        Some(query) => format!("{}?{query}", request.url.path()),
        None => request.url.path().to_owned(),
    };
    SeenRequest {
        method: request.method.clone(),
        target,
        headers: request.headers.clone(),
        body: Bytes::copy_from_slice(&request.body),
        key: Some(key.to_owned()),
        version: Version::HTTP_11,
        attempt: 1,
        params: Vec::new(),
    }
}
