//! Which fault which attempt meets. Pure.

use std::collections::{HashMap, VecDeque};

use super::fault::Fault;

/// Faults in attempt order: one default script that every key goes through by itself, and scripts for single keys.
#[derive(Debug, Default)]
pub(super) struct Script {
    steps: Vec<Step>,
    /// The default script: its n-th step meets the n-th attempt of each key that has no script of its own.
    for_all: Vec<StepId>,
    /// What is left of each key's own script.
    by_key: HashMap<String, VecDeque<StepId>>,
    attempts: HashMap<Subject, usize>,
    /// The n-th step meets the n-th connection.
    connections: Vec<StepId>,
    connected: usize,
}

#[derive(Debug)]
struct Step {
    fault: Fault,
    used: bool,
}

/// A step of a script, to say later that its fault has struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepId(usize);

/// Whose attempts are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Key(String),
    /// A request without a key: all that share its method and path.
    Keyless(String),
}

/// What one attempt meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Encounter {
    /// Counted from 1.
    pub(super) attempt: usize,
    pub(super) fault: Fault,
    pub(super) step: Option<StepId>,
}

impl Script {
    pub(super) fn new(for_all: impl IntoIterator<Item = Fault>, connections: impl IntoIterator<Item = Fault>) -> Self {
        let mut script = Self::default();
        script.connections = connections.into_iter().map(|fault| script.push(fault)).collect();
        script.for_all = for_all.into_iter().map(|fault| script.push(fault)).collect();
        script
    }

    /// Gives a key a script of its own, from its next attempt on, or makes the one it has longer.
    pub(super) fn extend(&mut self, key: &str, faults: impl IntoIterator<Item = Fault>) {
        let steps: Vec<StepId> = faults.into_iter().map(|fault| self.push(fault)).collect();
        self.by_key.entry(key.to_owned()).or_default().extend(steps);
    }

    /// Counts an attempt and says what it meets.
    pub(super) fn meet(&mut self, subject: &Subject) -> Encounter {
        let attempts = self.attempts.entry(subject.clone()).or_default();
        let earlier = *attempts;
        *attempts += 1;
        let own = match subject {
            Subject::Key(key) => self.by_key.get_mut(key),
            Subject::Keyless(_) => None,
        };
        let step = match own {
            Some(left) => left.pop_front(),
            None => self.for_all.get(earlier).copied(),
        };
        Encounter { attempt: earlier + 1, fault: self.fault_of(step), step }
    }

    /// Counts a connection and says what it meets. The encounter's attempt is the connection's number.
    pub(super) fn connect(&mut self) -> Encounter {
        let step = self.connections.get(self.connected).copied();
        self.connected += 1;
        Encounter { attempt: self.connected, fault: self.fault_of(step), step }
    }

    /// Notes that a step's fault has struck.
    pub(super) fn used(&mut self, StepId(index): StepId) {
        if let Some(step) = self.steps.get_mut(index) {
            step.used = true;
        }
    }

    /// The faults that have struck nobody, in the order in which they were scripted.
    pub(super) fn unused(&self) -> Vec<Fault> {
        let idle = |step: &&Step| !step.used && step.fault != Fault::none();
        self.steps.iter().filter(idle).map(|step| step.fault.clone()).collect()
    }

    fn fault_of(&self, step: Option<StepId>) -> Fault {
        step.and_then(|StepId(index)| self.steps.get(index)).map_or_else(Fault::none, |step| step.fault.clone())
    }

    fn push(&mut self, fault: Fault) -> StepId {
        self.steps.push(Step { fault, used: false });
        StepId(self.steps.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::At;

    fn key(key: &str) -> Subject {
        Subject::Key(key.to_owned())
    }

    fn faults(script: &mut Script, subject: &Subject, attempts: usize) -> Vec<Fault> {
        (0..attempts).map(|_| script.meet(subject).fault).collect()
    }

    #[test]
    fn every_key_goes_through_the_default_script_by_itself() {
        let mut script = Script::new([Fault::status(503), Fault::reply_lost()], []);
        let expected = [Fault::status(503), Fault::reply_lost(), Fault::none()];
        assert_eq!(faults(&mut script, &key("a"), 3), expected);
        assert_eq!(faults(&mut script, &key("b"), 3), expected);
    }

    #[test]
    fn attempts_are_counted_from_one_for_each_key() {
        let mut script = Script::default();
        let attempts: Vec<usize> = ["a", "a", "b", "a"].map(|k| script.meet(&key(k)).attempt).to_vec();
        assert_eq!(attempts, [1, 2, 1, 3]);
    }

    #[test]
    fn a_key_with_a_script_of_its_own_does_not_meet_the_default_one() {
        let mut script = Script::new([Fault::status(503), Fault::status(503)], []);
        script.extend("a", [Fault::reply_lost()]);
        assert_eq!(faults(&mut script, &key("a"), 2), [Fault::reply_lost(), Fault::none()]);
        assert_eq!(faults(&mut script, &key("b"), 1), [Fault::status(503)]);
    }

    #[test]
    fn a_script_given_later_starts_with_the_next_attempt() {
        let mut script = Script::default();
        assert_eq!(faults(&mut script, &key("a"), 2), [Fault::none(), Fault::none()]);
        script.extend("a", [Fault::status(500)]);
        script.extend("a", [Fault::status(502)]);
        assert_eq!(faults(&mut script, &key("a"), 3), [Fault::status(500), Fault::status(502), Fault::none()]);
    }

    #[test]
    fn requests_without_a_key_are_counted_by_method_and_path() {
        let mut script = Script::new([Fault::status(503)], []);
        let get = Subject::Keyless("GET /orders".to_owned());
        let post = Subject::Keyless("POST /orders".to_owned());
        assert_eq!(faults(&mut script, &get, 2), [Fault::status(503), Fault::none()]);
        assert_eq!(faults(&mut script, &post, 1), [Fault::status(503)]);
    }

    #[test]
    fn connections_go_through_a_script_of_their_own() {
        let mut script = Script::new([], [Fault::close(At::Connect), Fault::none()]);
        let met: Vec<(usize, Fault)> =
            (0..3).map(|_| script.connect()).map(|Encounter { attempt, fault, .. }| (attempt, fault)).collect();
        assert_eq!(met, [(1, Fault::close(At::Connect)), (2, Fault::none()), (3, Fault::none())]);
        assert_eq!(script.unused(), [Fault::close(At::Connect)]);
    }

    #[test]
    fn a_fault_counts_as_used_when_it_has_struck_and_not_when_it_was_met() {
        let mut script = Script::new([Fault::status(503), Fault::none(), Fault::reply_lost()], []);
        script.extend("a", [Fault::status(500)]);
        let encounter = script.meet(&key("b"));
        assert_eq!(script.unused(), [Fault::status(503), Fault::reply_lost(), Fault::status(500)]);
        script.used(encounter.step.unwrap());
        assert_eq!(script.unused(), [Fault::reply_lost(), Fault::status(500)]);
    }
}
