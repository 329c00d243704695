use bytes::Bytes;
use http::StatusCode;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_secs(60);
const START: Timestamp = Timestamp::from_millis(1_000_000);

/// A ledger, and the moment that it is in.
struct Scenario {
    ledger: Ledger,
    now: Timestamp,
}

impl Scenario {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut LedgerConfig)) -> Self {
        let mut config = LedgerConfig { window: WINDOW, lease: LEASE, ..LedgerConfig::default() };
        change(&mut config);
        Self { ledger: Ledger::new(config), now: START }
    }

    fn later(&mut self, duration: Duration) -> &mut Self {
        self.now = self.now.plus(duration);
        self
    }

    fn claim(&mut self, key: &str, payload: u8) -> Claim {
        self.claim_as("ann", "POST /orders", key, payload)
    }

    fn claim_as(&mut self, principal: &str, endpoint: &str, key: &str, payload: u8) -> Claim {
        let scope = Scope { principal: principal.to_owned(), endpoint: endpoint.to_owned() };
        self.ledger.claim(scope, key, Fingerprint::from_bytes([payload; 32]), self.now)
    }

    #[track_caller]
    fn acquire(&mut self, key: &str) -> Token {
        match self.claim(key, 1) {
            Claim::Acquired(token) => token,
            other => panic!("the key is not free: {other:?}"),
        }
    }

    fn complete(&mut self, token: &Token, body: &'static [u8]) -> Result<Kept, Stale> {
        self.ledger.complete(token, answer(body), self.now)
    }

    fn release(&mut self, token: &Token) -> Result<(), Stale> {
        self.ledger.release(token, self.now)
    }

    /// A claim that was executed and completed.
    fn execute(&mut self, key: &str, body: &'static [u8]) -> Token {
        let token = self.acquire(key);
        self.ledger.begin(&token);
        self.complete(&token, body).unwrap();
        token
    }
}

fn answer(body: &'static [u8]) -> Answer {
    Answer { body: Bytes::from_static(body), ..Answer::bare(StatusCode::CREATED) }
}

fn is_acquired(claim: &Claim) -> bool {
    matches!(claim, Claim::Acquired(_))
}

fn is_in_progress(claim: &Claim) -> bool {
    matches!(claim, Claim::InProgress { .. })
}

#[test]
fn c32_c33_a_completed_operation_is_replayed_byte_for_byte() {
    let mut scenario = Scenario::new();
    scenario.execute("k", b"one");
    assert_eq!(scenario.claim("k", 1), Claim::Replay(answer(b"one")));
    assert_eq!(scenario.ledger.executions_of("k"), 1);
}

#[test]
fn c27_while_one_runs_nobody_else_may() {
    let mut scenario = Scenario::new();
    let token = scenario.acquire("k");
    for _ in 0..200 {
        assert!(is_in_progress(&scenario.claim("k", 1)));
    }
    // C-30: nor did asking change the record.
    assert_eq!(scenario.complete(&token, b"one"), Ok(Kept::Answer));
}

#[test]
fn c20_another_payload_is_a_mismatch_even_while_the_first_still_runs() {
    let mut scenario = Scenario::new();
    let token = scenario.acquire("k");
    assert_eq!(scenario.claim("k", 2), Claim::Mismatch);
    scenario.complete(&token, b"one").unwrap();
    assert_eq!(scenario.claim("k", 1), Claim::Replay(answer(b"one")));
}

#[test]
fn c19_another_payload_afterwards_is_a_mismatch_and_leaves_the_record_alone() {
    let mut scenario = Scenario::new();
    scenario.execute("k", b"one");
    assert_eq!(scenario.claim("k", 2), Claim::Mismatch);
    assert_eq!(scenario.claim("k", 1), Claim::Replay(answer(b"one")));
}

#[test]
fn c10_keys_that_differ_in_case_are_two() {
    let mut scenario = Scenario::new();
    scenario.acquire("key");
    assert!(is_acquired(&scenario.claim("KEY", 1)));
}

#[test]
fn c15_c17_the_same_key_elsewhere_is_another_operation_with_any_payload() {
    let mut scenario = Scenario::new();
    scenario.execute("k", b"one");
    assert!(is_acquired(&scenario.claim_as("bob", "POST /orders", "k", 2)));
    assert!(is_acquired(&scenario.claim_as("ann", "PATCH /orders/1", "k", 2)));
    assert!(is_acquired(&scenario.claim_as("ann", "PATCH /orders/2", "k", 2)));
}

#[test]
fn c30_the_wait_is_whole_seconds_at_least_one_and_not_past_the_lease() {
    let mut scenario = Scenario::with(|config| config.retry_after = Duration::from_secs(10));
    scenario.acquire("k");
    // 60 s of lease are left, then 10, then 9.5, then half a second, then none.
    for (later, expected) in [(0, 10), (50_000, 10), (500, 9), (9_000, 1), (500, 1), (1_000, 1)] {
        scenario.later(Duration::from_millis(later));
        let expected = Duration::from_secs(expected);
        let Claim::InProgress { retry_after, .. } = scenario.claim("k", 1) else { panic!("not in progress") };
        assert_eq!(retry_after, expected, "at {:?}", scenario.now.since(START));
    }
}

#[test]
fn c57_the_window_ends_at_its_last_millisecond_whether_or_not_anyone_swept() {
    let millisecond = Duration::from_millis(1);
    for (age, is_new) in [(WINDOW - millisecond, false), (WINDOW, true), (WINDOW + millisecond, true)] {
        let mut scenario = Scenario::new();
        scenario.execute("k", b"one");
        let claim = scenario.later(age).claim("k", 1);
        assert_eq!(is_acquired(&claim), is_new, "after {age:?}: {claim:?}");
    }
}

#[test]
fn c58_the_window_counts_from_the_completion() {
    let mut scenario = Scenario::new();
    let token = scenario.acquire("k");
    scenario.later(WINDOW / 2);
    scenario.complete(&token, b"one").unwrap();
    assert_eq!(scenario.later(WINDOW - SECOND).claim("k", 1), Claim::Replay(answer(b"one")));
    assert!(is_acquired(&scenario.later(SECOND).claim("k", 1)));
}

#[test]
fn c61_another_payload_after_the_window_is_a_new_request() {
    let mut scenario = Scenario::new();
    scenario.execute("k", b"one");
    assert!(is_acquired(&scenario.later(WINDOW).claim("k", 2)));
}

#[test]
fn a_wall_clock_that_steps_back_forgets_nothing() {
    let mut scenario = Scenario::new();
    scenario.execute("k", b"one");
    scenario.now = START.minus(WINDOW);
    assert_eq!(scenario.claim("k", 1), Claim::Replay(answer(b"one")));
}

#[test]
fn s06_a_lease_that_ran_out_stays_locked_until_the_window_ends() {
    let mut scenario = Scenario::new();
    scenario.acquire("k");
    assert!(is_in_progress(&scenario.later(LEASE).claim("k", 1)));
    assert!(is_in_progress(&scenario.later(WINDOW - LEASE - SECOND).claim("k", 1)));
    assert!(is_acquired(&scenario.later(SECOND).claim("k", 1)));
}

#[test]
fn c46_without_a_lease_the_lock_holds_until_the_window_ends() {
    let mut scenario = Scenario::with(|config| config.lease = Duration::ZERO);
    scenario.acquire("k");
    assert!(is_in_progress(&scenario.claim("k", 1)));
    assert!(is_in_progress(&scenario.later(WINDOW - SECOND).claim("k", 1)));
}

#[test]
fn a_lease_longer_than_the_window_holds() {
    let mut scenario = Scenario::with(|config| config.lease = 2 * WINDOW);
    let token = scenario.acquire("k");
    assert!(is_in_progress(&scenario.later(WINDOW + SECOND).claim("k", 1)));
    assert_eq!(scenario.complete(&token, b"one"), Ok(Kept::Answer));
}

#[test]
fn c43_where_it_is_set_one_attempt_takes_over_at_the_end_of_the_lease() {
    let mut scenario = Scenario::with(|config| config.on_lease_expiry = OnLeaseExpiry::TakeOver);
    scenario.acquire("k");
    assert!(is_in_progress(&scenario.later(LEASE - SECOND).claim("k", 1)));
    assert_eq!(scenario.later(SECOND).claim("k", 2), Claim::Mismatch);
    assert!(is_acquired(&scenario.claim("k", 1)));
    assert!(is_in_progress(&scenario.claim("k", 1)));
}

#[test]
fn c47_a_slow_owner_that_was_taken_over_is_stale_and_both_executions_count() {
    let mut scenario = Scenario::with(|config| config.on_lease_expiry = OnLeaseExpiry::TakeOver);
    let slow = scenario.acquire("k");
    scenario.ledger.begin(&slow);
    scenario.later(LEASE);
    let second = scenario.acquire("k");
    scenario.ledger.begin(&second);

    assert_eq!(scenario.complete(&slow, b"slow"), Err(Stale));
    assert_eq!(scenario.release(&slow), Err(Stale));
    assert_eq!(scenario.complete(&second, b"second"), Ok(Kept::Answer));
    assert_eq!(scenario.claim("k", 1), Claim::Replay(answer(b"second")));
    assert_eq!(scenario.ledger.executions_of("k"), 2);
}

#[test]
fn an_owner_past_its_lease_that_nobody_took_over_may_still_complete() {
    let mut scenario = Scenario::new();
    let token = scenario.acquire("k");
    scenario.later(2 * LEASE);
    assert_eq!(scenario.complete(&token, b"one"), Ok(Kept::Answer));
}

#[test]
fn c50_a_token_works_once() {
    let mut scenario = Scenario::new();
    let completed = scenario.execute("k", b"one");
    assert_eq!(scenario.complete(&completed, b"two"), Err(Stale));
    assert_eq!(scenario.release(&completed), Err(Stale));
    assert_eq!(scenario.claim("k", 1), Claim::Replay(answer(b"one")));

    let released = scenario.acquire("other");
    assert_eq!(scenario.release(&released), Ok(()));
    assert_eq!(scenario.release(&released), Err(Stale));
    assert_eq!(scenario.complete(&released, b"two"), Err(Stale));
    let next = scenario.acquire("other");
    assert_eq!(scenario.release(&released), Err(Stale));
    assert_eq!(scenario.complete(&next, b"two"), Ok(Kept::Answer));
}

#[test]
fn c50_a_token_past_the_window_is_stale_whether_or_not_anyone_swept() {
    let mut scenario = Scenario::new();
    let token = scenario.acquire("k");
    scenario.later(WINDOW);
    assert_eq!(scenario.complete(&token, b"late"), Err(Stale));
    assert!(is_acquired(&scenario.claim("k", 1)));
}

#[test]
fn c40_a_released_key_executes_again_and_what_was_declared_void_does_not_count() {
    let mut scenario = Scenario::new();
    let token = scenario.acquire("k");
    scenario.ledger.begin(&token);
    assert_eq!(scenario.ledger.executions_of("k"), 1);
    scenario.release(&token).unwrap();
    assert_eq!(scenario.ledger.executions_of("k"), 0);
    scenario.execute("k", b"one");
    assert_eq!(scenario.ledger.executions_of("k"), 1);
}

#[test]
fn a_release_before_the_execution_takes_back_no_other_execution() {
    let mut scenario = Scenario::new();
    scenario.execute("k", b"one");
    scenario.later(WINDOW);
    let token = scenario.acquire("k");
    scenario.release(&token).unwrap();
    assert_eq!(scenario.ledger.executions_of("k"), 1);
}

#[test]
fn executions_are_summed_over_principals_and_endpoints_and_outlive_the_window() {
    let mut scenario = Scenario::new();
    scenario.execute("k", b"one");
    let Claim::Acquired(token) = scenario.claim_as("bob", "POST /orders", "k", 1) else { panic!("not acquired") };
    scenario.ledger.begin(&token);
    scenario.ledger.begin_keyless();
    scenario.later(2 * WINDOW).execute("k", b"two");
    assert_eq!(scenario.ledger.executions_of("k"), 3);
    assert_eq!(scenario.ledger.executions_of("other"), 0);
    assert_eq!(scenario.ledger.executions(), 4);
    scenario.ledger.void_keyless();
    assert_eq!(scenario.ledger.executions(), 3);
}

#[test]
fn c56_an_answer_over_the_cap_leaves_a_tombstone_and_nothing_executes_again() {
    let mut scenario = Scenario::with(|config| config.max_answer_bytes = 3);
    scenario.execute("small", b"123");
    let token = scenario.acquire("large");
    assert_eq!(scenario.complete(&token, b"1234"), Ok(Kept::Tombstone));
    assert_eq!(scenario.claim("small", 1), Claim::Replay(answer(b"123")));
    assert_eq!(scenario.claim("large", 1), Claim::Tombstone);
    assert_eq!(scenario.claim("large", 2), Claim::Mismatch);
    assert!(is_acquired(&scenario.later(WINDOW).claim("large", 1)));
}

#[test]
fn c64_a_full_ledger_refuses_new_keys_and_evicts_nothing_that_is_alive() {
    let mut scenario = Scenario::with(|config| config.max_records = 2);
    scenario.execute("done", b"one");
    scenario.later(SECOND);
    let running = scenario.acquire("running");
    assert_eq!(scenario.claim("new", 1), Claim::Full);
    // Those that are known are served as before.
    assert_eq!(scenario.claim("done", 1), Claim::Replay(answer(b"one")));
    assert!(is_in_progress(&scenario.claim("running", 1)));
    scenario.complete(&running, b"two").unwrap();
    // A released or expired key makes room.
    scenario.later(WINDOW - SECOND);
    assert!(is_acquired(&scenario.claim("new", 1)));
    assert_eq!(scenario.claim("newer", 1), Claim::Full);
}

#[test]
fn c64_bytes_are_a_limit_too_and_are_given_back() {
    // "ann", "POST /orders" and a one-letter key take 16 bytes.
    let mut scenario = Scenario::with(|config| config.max_bytes = 2 * 16 + 10);
    scenario.execute("a", b"0123456789");
    let token = scenario.acquire("b");
    assert_eq!(scenario.claim("c", 1), Claim::Full);
    // It was executed, so it is remembered, if not with its answer.
    assert_eq!(scenario.complete(&token, b"x"), Ok(Kept::Tombstone));
    scenario.later(WINDOW);
    scenario.execute("c", b"0123456789");
    let token = scenario.acquire("d");
    scenario.release(&token).unwrap();
    assert!(is_acquired(&scenario.claim("e", 1)));
}

#[test]
fn c63_a_sweep_takes_what_has_left_the_window_and_no_live_lease() {
    let mut scenario = Scenario::with(|config| config.lease = 2 * WINDOW);
    scenario.execute("old", b"one");
    scenario.later(SECOND).execute("young", b"two");
    scenario.acquire("running");
    scenario.later(WINDOW - SECOND);
    scenario.ledger.sweep(scenario.now);
    assert_eq!(scenario.ledger.records.len(), 2);
    assert_eq!(scenario.claim("young", 1), Claim::Replay(answer(b"two")));
    assert!(is_in_progress(&scenario.claim("running", 1)));
}

#[test]
fn s02_a_failure_that_may_have_had_an_effect_counts_and_executes_again_for_the_same_payload_only() {
    let mut scenario = Scenario::new();
    let token = scenario.acquire("k");
    scenario.ledger.begin(&token);
    scenario.ledger.fail(&token, scenario.now).unwrap();
    assert_eq!(scenario.claim("k", 2), Claim::Mismatch);
    scenario.execute("k", b"two");
    assert_eq!(scenario.ledger.executions_of("k"), 2);
    assert_eq!(scenario.ledger.fail(&token, scenario.now), Err(Stale));
    assert_eq!(scenario.claim("k", 1), Claim::Replay(answer(b"two")));
}

#[test]
fn a_failure_is_forgotten_with_the_window() {
    let mut scenario = Scenario::new();
    let token = scenario.acquire("k");
    scenario.ledger.fail(&token, scenario.now).unwrap();
    let claim = scenario.later(WINDOW).claim("k", 2);
    assert!(is_acquired(&claim), "{claim:?}");
}

#[test]
fn the_entries_tell_what_is_remembered_of_every_key_that_came() {
    let mut scenario = Scenario::with(|config| config.max_answer_bytes = 3);
    let scope = Scope { principal: "ann".to_owned(), endpoint: "POST /orders".to_owned() };
    for key in ["absent", "failed", "running", "stored", "tombstone"] {
        scenario.ledger.attempted(scope.clone(), key);
    }
    scenario.ledger.attempted(scope, "stored");
    scenario.execute("stored", b"one");
    scenario.execute("tombstone", b"more");
    scenario.acquire("running");
    let token = scenario.acquire("failed");
    scenario.ledger.begin(&token);
    scenario.ledger.fail(&token, scenario.now).unwrap();
    let states = |scenario: &Scenario| -> Vec<(String, usize, usize, EntryState)> {
        let entries = scenario.ledger.entries(scenario.now).into_iter();
        entries.map(|entry| (entry.key, entry.attempts, entry.executions, entry.state)).collect()
    };
    let is = |key: &str, attempts, executions, state| (key.to_owned(), attempts, executions, state);
    let expected = [
        is("absent", 1, 0, EntryState::Absent),
        is("failed", 1, 1, EntryState::Failed),
        is("running", 1, 0, EntryState::Running),
        is("stored", 2, 1, EntryState::Stored(StatusCode::CREATED)),
        is("tombstone", 1, 1, EntryState::Tombstone),
    ];
    assert_eq!(states(&scenario), expected);
    scenario.later(WINDOW);
    assert!(states(&scenario).iter().all(|(_, _, _, state)| *state == EntryState::Absent));
}
