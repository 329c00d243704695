//! What the server saw, what it did, and which faults struck: what a test asks about, and what a failed one prints.

use std::fmt;

use http::StatusCode;

use super::chaos::Chaos;
use super::fault::Fault;
use super::script::{Encounter, Script, StepId};
use super::seen::SeenRequest;

/// A fault that has struck.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InjectedFault {
    /// The key of the attempt that it struck. `None` if there was no key, or none was read yet.
    pub key: Option<String>,
    /// Which attempt for that key, counted from 1. For a fault at [`At::Connect`](super::At::Connect) or
    /// [`At::RequestBytes`](super::At::RequestBytes), the number of the connection.
    pub attempt: usize,
    /// What it was.
    pub fault: Fault,
}

/// Chooses the fault of an attempt that no script has one for.
pub(super) enum Chooser {
    By(Box<dyn Fn(&SeenRequest) -> Fault + Send + Sync>),
    Chaos(Chaos),
}

impl Chooser {
    fn choose(&self, request: &SeenRequest) -> Fault {
        match self {
            Self::By(choose) => choose(request),
            Self::Chaos(chaos) => chaos.fault(request),
        }
    }
}

impl fmt::Debug for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(_) => f.write_str("By(…)"),
            Self::Chaos(chaos) => chaos.fmt(f),
        }
    }
}

/// All requests in order of arrival, with what became of each, and the script that they go through. Counting an attempt
/// and recording it are one step, so that the two agree under any concurrency.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) script: Script,
    chooser: Option<Chooser>,
    exchanges: Vec<Exchange>,
    /// What became of connections that were struck before a request was known.
    struck_connections: Vec<String>,
    injected: Vec<InjectedFault>,
    /// How many of them were reported to the test.
    reported: usize,
}

#[derive(Debug)]
struct Exchange {
    request: SeenRequest,
    notes: Vec<String>,
    answered: Option<Answered>,
}

/// How an exchange was answered. Whether the answer arrived is another matter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) replayed: bool,
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
        if let (None, Some(chooser)) = (encounter.step, &self.chooser) {
            encounter.fault = chooser.choose(request);
        }
        (self.record(request, Vec::new()), encounter)
    }

    /// Records the second delivery of a request. It is no attempt of its own, and meets no fault.
    pub(super) fn arrive_again(&mut self, request: &SeenRequest) -> ExchangeId {
        self.record(request, vec!["second delivery".to_owned()])
    }

    fn record(&mut self, request: &SeenRequest, notes: Vec<String>) -> ExchangeId {
        self.exchanges.push(Exchange { request: request.clone(), notes, answered: None });
        ExchangeId(self.exchanges.len() - 1)
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

    /// A fault strikes a connection of which no request is known.
    pub(super) fn inject_on_connection(&mut self, encounter: &Encounter) {
        if let Some(step) = encounter.step {
            self.script.used(step);
        }
        let Encounter { attempt, fault, .. } = encounter;
        self.struck_connections.push(format!("connection {attempt}: fault: {fault}"));
        self.injected.push(InjectedFault { key: None, attempt: *attempt, fault: fault.clone() });
    }

    pub(super) fn answered(&mut self, ExchangeId(index): ExchangeId, answered: Answered) {
        if let Some(exchange) = self.exchanges.get_mut(index) {
            exchange.answered = Some(answered);
        }
    }

    /// Whether a later attempt of the same operation was answered.
    pub(super) fn was_overtaken(&self, ExchangeId(index): ExchangeId) -> bool {
        let Some(held) = self.exchanges.get(index).map(|exchange| &exchange.request) else { return true };
        let overtakes = |other: &Exchange| {
            let Exchange { request, answered, .. } = other;
            answered.is_some() && request.attempt > held.attempt && request.subject() == held.subject()
        };
        self.exchanges.iter().any(overtakes)
    }

    /// How many attempts with this key were answered by a replay.
    pub(super) fn replays_of(&self, key: &str) -> usize {
        let is_replay = |exchange: &&Exchange| {
            exchange.request.key() == Some(key) && exchange.answered.is_some_and(|answered| answered.replayed)
        };
        self.exchanges.iter().filter(is_replay).count()
    }

    /// The seed, and the faults that struck as a script for each key.
    pub(super) fn repro(&self) -> String {
        let mut repro = String::new();
        match &self.chooser {
            Some(Chooser::Chaos(Chaos { rate, seed })) => {
                repro += &format!("// TestServer::builder().chaos({rate:?}, {seed}), or attempt by attempt:\n");
            }
            Some(Chooser::By(_)) => repro += "// Faults were chosen by a function. Attempt by attempt:\n",
            None => {}
        }
        let of_connections: Vec<&InjectedFault> = self
            .injected
            .iter()
            .filter(|injected| injected.fault.at().is_some_and(|at| at.is_of_connection()))
            .collect();
        if !of_connections.is_empty() {
            repro += &format!(".connection_faults([{}])\n", in_order(&of_connections));
        }
        let mut keys: Vec<&str> = Vec::new();
        for key in self.injected.iter().filter_map(|injected| injected.key.as_deref()) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        for key in keys {
            let of_key: Vec<&InjectedFault> =
                self.injected.iter().filter(|injected| injected.key.as_deref() == Some(key)).collect();
            repro += &format!("server.faults_for({key:?}, [{}]);\n", in_order(&of_key));
        }
        repro
    }

    /// One line on an exchange that is over, without its key.
    pub(super) fn log_line(&self, ExchangeId(index): ExchangeId) -> Option<String> {
        let Exchange { request, notes, answered } = self.exchanges.get(index)?;
        let SeenRequest { method, attempt, .. } = request;
        let status = answered.map_or_else(|| "---".to_owned(), |answered| answered.status.as_u16().to_string());
        Some(format!("{method} {} {status} attempt {attempt}: {}", request.path(), notes.join(", ")))
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
        for struck in &self.struck_connections {
            writeln!(f, "  {struck}")?;
        }
        if self.exchanges.is_empty() {
            return f.write_str("  (no request came)\n");
        }
        for (number, Exchange { request, notes, .. }) in (1..).zip(&self.exchanges) {
            let SeenRequest { method, target, version, attempt, key, .. } = request;
            let key = key.as_deref().unwrap_or("none");
            let outcome = if notes.is_empty() { "no outcome yet".to_owned() } else { notes.join(", ") };
            writeln!(f, "  {number}. {method} {target} ({version:?}), key {key}, attempt {attempt}: {outcome}")?;
        }
        Ok(())
    }
}

/// The faults with none in the gaps, as the elements of an array.
fn in_order(injected: &[&InjectedFault]) -> String {
    let last = injected.iter().map(|injected| injected.attempt).max().unwrap_or_default();
    let at = |attempt| injected.iter().find(|injected| injected.attempt == attempt);
    let faults = (1..=last).map(|attempt| at(attempt).map_or_else(Fault::none, |injected| injected.fault.clone()));
    faults.map(|fault| fault.source()).collect::<Vec<_>>().join(", ")
}
