//! POST and PATCH that are safe to retry: one idempotency key per operation, the same on every attempt, until the server has
//! answered or it is known exactly what is not known.
//!
//! ```
//! use reqwest_idempotency::IdempotentClient;
//! use reqwest_idempotency::testing::{Fault, TestServer};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A server that executes the first order it gets, and loses the reply.
//! let server = TestServer::builder().faults([Fault::reply_lost()]).start().await?;
//!
//! // `IdempotentClient::open("orders.journal").await?` keeps its keys in a file, and survives a crash.
//! let client = IdempotentClient::in_memory()?;
//! let response = client
//!     .post(server.url("/orders"))
//!     .json(&serde_json::json!({ "item": "teapot" }))
//!     .operation("order-42")
//!     .send()
//!     .await?;
//!
//! assert_eq!(response.status(), 201);
//! assert!(response.replayed());
//! assert_eq!(response.attempts().len(), 2);
//! assert_eq!(server.executions(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # The nouns
//!
//! An **operation** is one logical action that must happen once. The caller names it ([`OperationId`]), or it gets a name. Its
//! **key** ([`IdempotencyKey`]) is what the server sees, the same on every **attempt** ([`Attempt`]). Its **record**
//! ([`Record`]) is written into the **journal** ([`journal::Journal`]) before the first byte leaves. What comes back on an
//! attempt is a **reply** ([`Reply`]); what is known of the operation at the server is its **delivery** ([`Delivery`]). The
//! dialect that a server speaks is its **contract** ([`Contract`]), and how long it remembers a key is its **window**.
//!
//! # What is promised
//!
//! A caller names an operation once. It is executed at most once at a server that honours the contract, tried through lost
//! replies and outages for as long as that is safe, and then the caller is told exactly what is known.
//!
//! - `Ok(response)` is the server's final answer: a success, or a definite refusal (4xx). A success means that the operation
//!   was executed once.
//! - `Err(error)` means that there is no trustworthy answer. [`Error::delivery`] is [`NotSent`](Delivery::NotSent) only if no
//!   attempt can have reached the server, [`Unknown`](Delivery::Unknown) if one may have, and
//!   [`Answered`](Delivery::Answered) if an answer, or a person, has settled the operation: [`Error::phase`] says how.
//! - The same operation with another payload is refused before anything is sent.
//! - An attempt that the server's window no longer protects is not made.
//!
//! # What is not promised
//!
//! - It is not "exactly once" by itself. One key is delivered at least once, and the *server* makes one execution of it. A
//!   server that ignores keys executes every attempt.
//! - Past the window a key means nothing. The operation is then closed as [`Expired`](Phase::Expired), for a person.
//! - With the [`MemoryJournal`] an operation that is under way when the process dies is forgotten.
//! - A reply longer than the limit (8 MiB unless set) is handed on while it streams; if it breaks off then, the caller gets an
//!   error and has to ask for the operation again.
//! - A client of the caller's own that follows redirects is noticed by the URL that the answer comes from, but not if a 303
//!   leads back to the very same URL, and its key goes along to wherever it is led. Build requests with
//!   [`IdempotentClient::http`], and nothing is followed.
//! - An HTTP/2 reply without a `Content-Length` that the server breaks off with the reset code `NO_ERROR` looks whole.
//!
//! # How to
//!
//! **Wrap a call that exists.** [`IdempotentClient::send`] takes a `reqwest::RequestBuilder`,
//! [`send_as`](IdempotentClient::send_as) names the operation, too.
//!
//! **Survive a crash.** [`IdempotentClient::open`] keeps the journal in a file; after a restart
//! [`resume`](IdempotentClient::resume) finishes what was under way.
//!
//! **Keep card data out of the journal.** [`Keep::Key`].
//!
//! **Refresh credentials between attempts.** [`ClientBuilder::prepare`].
//!
//! **Send a stream or a form.** [`RequestBuilder::body_with`] reads it once and repeats the bytes.
//!
//! **Decide when there is no answer.** [`Error::kind`] and [`ErrorKind::party`] say whose move it is, and
//! [`Error::report`] prints the attempts.
//!
//! **Speak a server's dialect.** [`Contract`] has setters for header, key rule, window and signals.
//!
//! **Test your own code on a bad network.** The module `testing`, behind the feature of that name.
//!
//! # Features
//!
//! `sqlite` is the durable journal, on by default; `sqlite-unbundled` links the system's SQLite instead of compiling it in.
//! `json`, `http2` and `default-tls` are reqwest's and on by default. `form`, `query`, `multipart`, `stream`, `charset`,
//! `cookies`, `gzip`, `brotli`, `zstd`, `deflate`, `socks`, `system-proxy`, `hickory-dns`, `rustls` and `rustls-no-provider` are
//! reqwest's, too, and off; its other features can be turned on at `reqwest` itself. `testing` adds the test server and fault injection, `wiremock` the
//! contract as a wiremock responder.

#![cfg_attr(docsrs, feature(doc_cfg))]
// A library does not print; its examples do.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod clock;
mod contract;
mod error;
mod fingerprint;
mod history;
mod key;
mod operation;
mod reply;
mod response;

mod attempt;
pub mod retry;

mod client;
mod driver;
pub mod journal;
mod transport;

#[cfg(feature = "testing")]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;

#[cfg(feature = "_sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use client::Pending;
pub use client::{ClientBuilder, IdempotentClient, NeedsRequest, RequestBuilder, Resolution, Resume, ResumedItem};
pub use clock::{BoxFuture, Clock, Now, SystemClock, Timestamp};
pub use contract::{Contract, KeyRule, Meaning, RetryAfterUnit, Signal};
pub use driver::{AttemptView, BoxError, Prepare};
pub use error::{Error, ErrorKind, Party};
pub use fingerprint::Fingerprint;
pub use history::{Attempt, Delivery, Outcome, Report, Wait};
pub use journal::MemoryJournal;
#[cfg(feature = "_sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use journal::SqliteJournal;
pub use key::{IdempotencyKey, KeyError, Serialisation};
pub use operation::encoding::RecordError;
pub use operation::{
    AfterSave, Closing, Durability, Keep, OperationId, OperationIdError, Phase, Record, StoredReply, StoredRequest,
    Wire,
};
pub use reply::{Failure, FailureKind, Problem, Reply};
pub use reqwest;
pub use response::Response;
