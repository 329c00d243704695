//! POST and PATCH that are safe to retry.
mod attempt;
mod client;
mod clock;
mod contract;
mod driver;
mod error;
mod fingerprint;
mod history;
pub mod journal;
mod key;
mod operation;
mod reply;
mod response;
pub mod retry;
mod transport;

pub use client::{ClientBuilder, IdempotentClient, RequestBuilder};
pub use clock::{BoxFuture, Clock, Now, SystemClock, Timestamp};
pub use contract::{Contract, KeyRule, Meaning, RetryAfterUnit, Signal};
pub use driver::{AttemptView, BoxError, Prepare};
pub use error::{Error, ErrorKind, Party};
pub use fingerprint::Fingerprint;
pub use history::{Attempt, Delivery, Outcome, Report, Wait};
pub use journal::MemoryJournal;
pub use key::{IdempotencyKey, KeyError, Serialisation};
pub use operation::{
    AfterSave, Closing, Durability, Keep, OperationId, OperationIdError, Phase, Record, StoredReply, StoredRequest,
    Wire,
};
pub use reply::{Failure, FailureKind, Problem, Reply};
pub use reqwest;
pub use response::Response;
