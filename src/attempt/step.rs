//! What the machine and its driver say to each other, and what the attempts are made under.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::Classifier;
use crate::contract::Contract;
use crate::error::Error;
use crate::operation::{AfterSave, Durability, Keep, Record};
use crate::reply::{Failure, Reply};
use crate::response::Response;
use crate::retry::{RetryBudget, RetryPolicy};

/// What the driver does next.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and a box would cost every call an allocation")]
pub(crate) enum Step {
    /// Write the record.
    Save(Box<Record>, AfterSave, Durability),
    /// Make one attempt, with at most this much time.
    Send(ToSend),
    /// Wait.
    Sleep(Duration),
    /// Hand the result to the caller.
    Done(Result<Response, Error>),
}

/// One attempt, to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToSend {
    pub(crate) number: u32,
    pub(crate) limit: Duration,
    /// The last attempt was answered 401, so credentials are to be fetched anew.
    pub(crate) unauthorized: bool,
}

/// How the last step went.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and a box would cost every call an allocation")]
pub(crate) enum Event {
    /// The record is saved, as durably as was asked.
    Saved,
    /// It is not, or perhaps not.
    SaveFailed { source: Arc<dyn StdError + Send + Sync>, may_be_saved: bool },
    /// The caller's hook failed, so nothing was sent.
    PrepareFailed(Arc<dyn StdError + Send + Sync>),
    /// The server answered.
    Answered(Reply),
    /// It did not.
    Failed(Failure),
    /// The wait is over.
    Awake,
    /// Another worker drives the operation now.
    LeaseLost,
}

/// What makes a request repeatable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrying {
    /// It carries a key.
    Key,
    /// Its method is idempotent (RFC 9110 section 9.2.2).
    Method,
    /// Nothing does: one attempt.
    Nothing,
}

/// What the attempts of an operation are made under.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) contract: Contract,
    pub(crate) policy: RetryPolicy,
    pub(crate) carrying: Carrying,
    pub(crate) classifier: Option<Classifier>,
    pub(crate) budget: RetryBudget,
    /// Whether a 401 fetches credentials anew, once.
    pub(crate) refresh_on_401: bool,
    pub(crate) keep: Keep,
}
