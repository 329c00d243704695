//! What the server saw, what it did, and which faults struck: what a test asks about, and what a failed one prints.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, Method, Version};

use super::fault::Fault;
use super::script::{Encounter, Script, StepId, Subject};

/// One request, as the server read it. Handlers get it, and tests ask for it.
#[derive(Clone)]
pub struct SeenRequest {
    pub(super) method: Method,
    /// Path and query, as they were sent.
    pub(super) target: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) key: Option<String>,
    pub(super) version: Version,
    pub(super) attempt: usize,
    pub(super) params: Vec<(String, String)>,
}

impl SeenRequest {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Path and query, as they were sent.
    #[must_use]
    pub fn path_and_query(&self) -> &str {
        &self.target
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The query, without its question mark.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.target.split_once('?').map(|(_, query)| query)
    }

    /// A parameter of the route's path: `id` for `/orders/{id}`.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body, up to the server's limit.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The idempotency key, decoded. `None` if it is absent or malformed, or if requests of this method carry none.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The version of HTTP that it came by.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Which attempt it is for its key, counted from 1. Requests without a key are counted by method and path.
    #[must_use]
    pub fn attempt(&self) -> usize {
        self.attempt
    }

    pub(super) fn subject(&self) -> Subject {
        match &self.key {
            Some(key) => Subject::Key(key.clone()),
            None => Subject::Keyless(self.endpoint()),
        }
    }

    /// Method and path: what a key is scoped to, besides the principal.
    pub(super) fn endpoint(&self) -> String {
        format!("{} {}", self.method, self.path())
    }
}

impl fmt::Debug for SeenRequest {
    /// Without headers and body, which may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeenRequest")
            .field("method", &self.method)
            .field("path", &self.path())
            .field("version", &self.version)
            .field("attempt", &self.attempt)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// A fault that has struck.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InjectedFault {
    /// The key of the attempt that it struck.
    pub key: Option<String>,
    /// Which attempt for that key, counted from 1.
    pub attempt: usize,
    /// What it was.
    pub fault: Fault,
}

/// Chooses the fault of an attempt that no script has one for.
pub(super) struct Chooser(pub(super) Box<dyn Fn(&SeenRequest) -> Fault + Send + Sync>);

impl fmt::Debug for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chooser")
    }
}

/// All requests in order of arrival, with what became of each, and the script that they go through. Counting an attempt
/// and recording it are one step, so that the two agree under any concurrency.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) script: Script,
    chooser: Option<Chooser>,
    exchanges: Vec<Exchange>,
    injected: Vec<InjectedFault>,
    /// How many of them were reported to the test.
    reported: usize,
}

#[derive(Debug)]
struct Exchange {
    request: SeenRequest,
    notes: Vec<String>,
}

/// A recorded request, to note later what became of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExchangeId(usize);

impl Observed {
    pub(super) fn new(script: Script, chooser: Option<Chooser>) -> Self {
        Self { script, chooser, ..Self::default() }
    }

    /// Records a request that was just read, and says which attempt it is and what it meets.
    pub(super) fn arrive(&mut self, request: &mut SeenRequest) -> (ExchangeId, Encounter) {
        let mut encounter = self.script.meet(&request.subject());
        request.attempt = encounter.attempt;
        if let (None, Some(Chooser(choose))) = (encounter.step, &self.chooser) {
            encounter.fault = choose(request);
        }
        self.exchanges.push(Exchange { request: request.clone(), notes: Vec::new() });
        (ExchangeId(self.exchanges.len() - 1), encounter)
    }

    pub(super) fn note(&mut self, ExchangeId(index): ExchangeId, note: impl Into<String>) {
        if let Some(exchange) = self.exchanges.get_mut(index) {
            exchange.notes.push(note.into());
        }
    }

    /// A fault strikes.
    pub(super) fn inject(&mut self, ExchangeId(index): ExchangeId, step: Option<StepId>, fault: &Fault) {
        if let Some(step) = step {
            self.script.used(step);
        }
        if let Some(exchange) = self.exchanges.get_mut(index) {
            exchange.notes.push(format!("fault: {fault}"));
            let SeenRequest { key, attempt, .. } = &exchange.request;
            self.injected.push(InjectedFault { key: key.clone(), attempt: *attempt, fault: fault.clone() });
        }
    }

    /// The next fault that was not reported yet.
    pub(super) fn report(&mut self) -> Option<InjectedFault> {
        let next = self.injected.get(self.reported)?.clone();
        self.reported += 1;
        Some(next)
    }

    pub(super) fn requests(&self) -> Vec<SeenRequest> {
        self.exchanges.iter().map(|exchange| exchange.request.clone()).collect()
    }
}

impl fmt::Display for Observed {
    /// One line for each request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.exchanges.is_empty() {
            return f.write_str("  (no request came)\n");
        }
        for (number, Exchange { request, notes }) in (1..).zip(&self.exchanges) {
            let SeenRequest { method, target, version, attempt, key, .. } = request;
            let key = key.as_deref().unwrap_or("none");
            let outcome = if notes.is_empty() { "no outcome yet".to_owned() } else { notes.join(", ") };
            writeln!(f, "  {number}. {method} {target} ({version:?}), key {key}, attempt {attempt}: {outcome}")?;
        }
        Ok(())
    }
}
