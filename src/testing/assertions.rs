//! What a test states about a server. Each prints the history when it fails.

use super::TestServer;

impl TestServer {
    /// Asserts that the operation with this key was executed exactly once.
    ///
    /// # Panics
    ///
    /// It was not; the message has the history.
    #[track_caller]
    pub fn assert_executed_once(&self, key: &str) {
        self.assert_executed(key, 1);
    }

    /// Asserts that no operation with this key was executed.
    ///
    /// # Panics
    ///
    /// One was; the message has the history.
    #[track_caller]
    pub fn assert_never_executed(&self, key: &str) {
        self.assert_executed(key, 0);
    }

    /// Asserts how often the operation with this key was executed.
    ///
    /// # Panics
    ///
    /// It was more or less often; the message has the history.
    #[track_caller]
    pub fn assert_executed(&self, key: &str, times: usize) {
        let executions = self.executions_of(key);
        self.check(executions == times, || {
            format!("key {key:?} was executed {executions} times and should have been {times} times")
        });
    }

    /// Asserts which keys came, each named once, in order of arrival.
    ///
    /// # Panics
    ///
    /// Others came, or in another order; the message has the history.
    #[track_caller]
    pub fn assert_keys_seen(&self, keys: &[&str]) {
        let seen = self.keys_seen();
        self.check(seen == keys, || format!("the keys {seen:?} came and should have been {keys:?}"));
    }

    /// Asserts how many attempts with this key came.
    ///
    /// # Panics
    ///
    /// More or fewer came; the message has the history.
    #[track_caller]
    pub fn assert_attempts(&self, key: &str, attempts: usize) {
        let seen = self.attempts_of(key);
        self.check(seen == attempts, || {
            format!("{seen} attempts with the key {key:?} came and there should have been {attempts}")
        });
    }

    /// Asserts that the operation with this key was executed once, and that an attempt was answered by a replay.
    ///
    /// # Panics
    ///
    /// It was not, or none was; the message has the history.
    #[track_caller]
    pub fn assert_replayed(&self, key: &str) {
        self.assert_executed_once(key);
        self.check(self.replays_of(key) > 0, || format!("no attempt with the key {key:?} was answered by a replay"));
    }

    /// Asserts that every scripted fault has struck. With
    /// [`fail_on_unused_faults`](super::TestServerBuilder::fail_on_unused_faults), dropping the server does the same.
    ///
    /// # Panics
    ///
    /// One has not; the message has the history.
    #[track_caller]
    pub fn assert_no_unused_faults(&self) {
        let unused: Vec<String> = self.unused_faults().iter().map(ToString::to_string).collect();
        self.check(unused.is_empty(), || format!("scripted faults have struck nobody: {}", unused.join(", ")));
    }

    #[track_caller]
    #[expect(clippy::panic, reason = "an assertion, which fails by panicking")]
    fn check(&self, holds: bool, message: impl FnOnce() -> String) {
        if !holds {
            panic!("{}; requests were:\n{}", message(), self.history());
        }
    }
}
