//! How many attempts a client may add to its traffic.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many attempts after the first all calls together may make. Clones share one budget.
///
/// A maximum per call does not protect a server. If it fails every request, then five attempts per call are five times
/// the traffic, at the moment when it can take least; and where a service that does so calls another one that does so,
/// that is twenty-five times. A budget is a bound on the sum: attempts after the first are at most a share of the calls
/// made in the last few seconds, plus a small constant so that a client with little traffic can try again at all. While
/// failures are few it is never felt. When everything fails, most calls end after one attempt, and say so.
///
/// ```
/// use std::time::Duration;
/// use reqwest_idempotency::retry::RetryBudget;
///
/// // One attempt more for every ten calls, plus two a second, counted over a minute.
/// let budget = RetryBudget::new(10, 2, Duration::from_secs(60));
/// assert_eq!(budget.balance(Duration::ZERO), 120);
/// ```
///
/// The period moves on in tenths: a call, or an attempt charged, is forgotten when between nine tenths and the whole
/// of it has passed.
#[derive(Clone)]
pub struct RetryBudget(Option<Arc<Account>>);

/// What the clones share.
struct Account {
    percent: u32,
    /// Attempts granted in any period without a call to earn them.
    reserve: u64,
    over: Duration,
    period: Mutex<Period>,
}

/// The slots of the last period, the current one apart so that there always is one.
#[derive(Default)]
struct Period {
    current: Slot,
    earlier: VecDeque<Slot>,
}

/// What happened in a tenth of the period; `number` counts tenths from the clock's origin.
#[derive(Clone, Copy, Default)]
struct Slot {
    number: u128,
    deposits: u64,
    withdrawals: u64,
}

impl Default for RetryBudget {
    /// 20 % of the traffic plus 10 a second, over 10 s.
    fn default() -> Self {
        Self::new(20, 10, Duration::from_secs(10))
    }
}

impl RetryBudget {
    /// A budget of `percent` of the calls plus `per_second` attempts a second, both counted over the last `over`.
    ///
    /// With 0 and 0 no call gets a second attempt. `over` must not be zero; from 1 s to 1 minute is sensible: a shorter
    /// period forgets an outage while it lasts, a longer one lets saved-up attempts out in one burst.
    #[must_use]
    pub fn new(percent: u32, per_second: u32, over: Duration) -> Self {
        // Rounded up, so that a rate above nothing never comes to nothing. The product fits: 2^32 times 2^94 ns.
        let reserve = (u128::from(per_second) * over.as_nanos()).div_ceil(NANOS_PER_SECOND);
        let reserve = u64::try_from(reserve).unwrap_or(u64::MAX);
        Self(Some(Arc::new(Account { percent, reserve, over, period: Mutex::default() })))
    }

    /// No bound on the sum; each call is bounded by its own attempts and deadline.
    #[must_use]
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// How many attempts after the first may start now; `u64::MAX` if there is no bound.
    ///
    /// `now` is the monotonic time of the clock that the client was given ([`Now::monotonic`](crate::Now::monotonic)).
    /// Clients that share a budget must share that clock, too.
    #[must_use]
    pub fn balance(&self, now: Duration) -> u64 {
        self.0.as_ref().map_or(u64::MAX, |account| account.balance(&account.period_at(now)))
    }

    /// Counts a call, at its first attempt.
    pub(crate) fn deposit(&self, now: Duration) {
        if let Some(account) = &self.0 {
            let mut period = account.period_at(now);
            period.current.deposits = period.current.deposits.saturating_add(1);
        }
    }

    /// Takes one attempt out, if there is one. False means that the attempt must not start.
    #[must_use = "if this is false the attempt must not start"]
    pub(crate) fn withdraw(&self, now: Duration) -> bool {
        let Some(account) = &self.0 else { return true };
        let mut period = account.period_at(now);
        let granted = account.balance(&period) > 0;
        if granted {
            period.current.withdrawals = period.current.withdrawals.saturating_add(1);
        }
        granted
    }

    /// Says what is wrong with the budget, and what to write instead.
    pub(crate) fn check(&self) -> Result<(), String> {
        match &self.0 {
            Some(account) if account.over.is_zero() => {
                Err("the retry budget counts over 0 s, in which nothing happens; use 10 s, or another time above 0"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl Account {
    /// The period that ends with `now`. A time before the latest one seen counts as that: two threads may read the
    /// clock in one order and get here in the other.
    fn period_at(&self, now: Duration) -> MutexGuard<'_, Period> {
        // Counters are whole after every statement, so a panic elsewhere cannot have left them wrong.
        let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
        let slot_nanos = (self.over.as_nanos() / SLOTS).max(1);
        let number = now.as_nanos() / slot_nanos;
        if number > period.current.number {
            let finished = std::mem::replace(&mut period.current, Slot { number, ..Slot::default() });
            period.earlier.push_back(finished);
            period.earlier.retain(|slot| slot.number + SLOTS > number);
        }
        period
    }

    fn balance(&self, period: &Period) -> u64 {
        let slots = || period.earlier.iter().chain([&period.current]);
        let deposits: u128 = slots().map(|slot| u128::from(slot.deposits)).sum();
        let withdrawals: u128 = slots().map(|slot| u128::from(slot.withdrawals)).sum();
        let earned = deposits * u128::from(self.percent) / 100;
        let left = (earned + u128::from(self.reserve)).saturating_sub(withdrawals);
        u64::try_from(left).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(account) = &self.0 else { return f.write_str("RetryBudget(unlimited)") };
        f.debug_struct("RetryBudget")
            .field("percent", &account.percent)
            .field("reserve", &account.reserve)
            .field("over", &account.over)
            .finish_non_exhaustive()
    }
}

/// The period is forgotten in this many steps.
const SLOTS: u128 = 10;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Takes out what there is, up to `limit`, and says how much that was.
    fn drain(budget: &RetryBudget, now: Duration, limit: u64) -> u64 {
        (0..limit).take_while(|_| budget.withdraw(now)).count().try_into().unwrap()
    }

    #[test]
    fn the_default_is_20_percent_plus_10_a_second_over_10_s() {
        let budget = RetryBudget::default();
        assert_eq!(budget.balance(secs(0)), 100);
        (0..1_000).for_each(|_| budget.deposit(secs(0)));
        // 100 of the reserve, and 20 % of 1000.
        assert_eq!(budget.balance(secs(0)), 300);
        assert_eq!(drain(&budget, secs(0), 1_000), 300);
        assert_eq!(budget.balance(secs(0)), 0);
    }

    #[test]
    fn an_outage_costs_a_fifth_more_traffic_and_not_five_times_as_much() {
        // 1000 calls a second for a minute; all fail, and each would like four more attempts.
        let budget = RetryBudget::default();
        let mut attempts = 0_u64;
        for call in 0..60_000_u64 {
            let now = Duration::from_millis(call);
            budget.deposit(now);
            attempts += 1 + drain(&budget, now, 4);
        }
        // 20 % of 60,000 is 12,000; 10 a second are 600; the edges of the period add at most one reserve.
        assert!((72_000..=72_700).contains(&attempts), "{attempts}");
    }

    #[test]
    fn the_balance_is_what_a_plain_list_of_all_that_happened_gives() {
        for seed in 0..200 {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let (percent, per_second) = (random.random_range(0..=150), random.random_range(0..=3));
            let budget = RetryBudget::new(percent, per_second, secs(10));
            let (mut now, mut latest) = (Duration::ZERO, 0);
            let (mut deposits, mut withdrawals) = (Vec::new(), Vec::new());
            for _ in 0..500 {
                // Mostly on within a second, now and then past the whole period, now and then back.
                now = match random.random_range(0..20) {
                    0 => now + secs(random.random_range(0..30)),
                    1 => now.saturating_sub(Duration::from_millis(random.random_range(0..3_000))),
                    _ => now + Duration::from_millis(random.random_range(0..500)),
                };
                latest = latest.max(now.as_secs());
                let known = |times: &[u64]| times.iter().filter(|time| **time + 10 > latest).count() as u64;
                let granted = known(&deposits) * u64::from(percent) / 100 + u64::from(per_second) * 10;
                let expected = granted.saturating_sub(known(&withdrawals));
                assert_eq!(budget.balance(now), expected, "seed {seed}, {now:?}");
                if random.random() {
                    budget.deposit(now);
                    deposits.push(latest);
                } else if budget.withdraw(now) {
                    assert!(expected > 0);
                    withdrawals.push(latest);
                } else {
                    assert_eq!(expected, 0);
                }
            }
        }
    }

    #[test]
    fn what_was_taken_comes_back_when_the_period_has_passed_and_not_before() {
        let budget = RetryBudget::default();
        assert_eq!(drain(&budget, secs(0), 1_000), 100);
        assert_eq!(budget.balance(Duration::from_millis(9_999)), 0);
        assert_eq!(budget.balance(secs(10)), 100);
    }

    #[test]
    fn what_was_earned_is_forgotten_so_that_no_quiet_night_pays_for_a_burst() {
        let budget = RetryBudget::default();
        for second in 0..3_600 {
            (0..100).for_each(|_| budget.deposit(secs(second)));
        }
        // Ten seconds of 100 calls earn 200, not an hour of them.
        assert_eq!(budget.balance(secs(3_599)), 300);
        assert_eq!(budget.balance(secs(7_200)), 100);
    }

    #[test]
    fn what_was_earned_and_spent_first_leaves_no_debt_and_no_gift() {
        let budget = RetryBudget::new(100, 0, secs(10));
        (0..5).for_each(|_| budget.deposit(secs(0)));
        assert_eq!(drain(&budget, secs(5), 9), 5);
        // The deposits are forgotten and the withdrawals are not: less than nothing is nothing.
        assert_eq!(budget.balance(secs(12)), 0);
        budget.deposit(secs(12));
        assert_eq!(budget.balance(secs(12)), 0);
        assert_eq!(budget.balance(secs(15)), 1);
    }

    #[test]
    fn clones_share_one_budget_and_two_budgets_do_not() {
        let budget = RetryBudget::default();
        assert_eq!(drain(&budget.clone(), secs(0), 60), 60);
        assert_eq!(budget.balance(secs(0)), 40);
        assert_eq!(RetryBudget::default().balance(secs(0)), 100);
    }

    #[test]
    fn threads_take_out_exactly_what_there_is() {
        let budget = RetryBudget::default();
        let granted: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| drain(&budget, secs(3), 100))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(granted, 100);
    }

    #[test]
    fn a_clock_that_goes_backwards_gives_nothing_away() {
        let budget = RetryBudget::default();
        assert_eq!(drain(&budget, secs(100), 1_000), 100);
        for earlier in [99, 50, 0] {
            assert_eq!(budget.balance(secs(earlier)), 0);
            assert!(!budget.withdraw(secs(earlier)));
        }
        (0..5).for_each(|_| budget.deposit(secs(0)));
        assert_eq!(budget.balance(secs(100)), 1);
        assert_eq!(budget.balance(secs(110)), 100);
    }

    #[test]
    fn the_extremes_neither_panic_nor_overflow() {
        for percent in [0, 1, u32::MAX] {
            for per_second in [0, 1, u32::MAX] {
                for over in [Duration::ZERO, Duration::from_nanos(1), secs(10), Duration::MAX] {
                    let budget = RetryBudget::new(percent, per_second, over);
                    for now in [Duration::ZERO, secs(1), Duration::MAX, Duration::from_nanos(1)] {
                        budget.deposit(now);
                        let before = budget.balance(now);
                        assert_eq!(budget.withdraw(now), before > 0, "{budget:?}");
                    }
                }
            }
        }
        assert_eq!(RetryBudget::new(0, u32::MAX, Duration::MAX).balance(secs(0)), u64::MAX);
    }

    #[test]
    fn counters_at_their_end_stay_there() {
        let budget = RetryBudget::new(u32::MAX, 0, secs(10));
        let account = budget.0.as_ref().unwrap();
        account.period_at(secs(0)).current.deposits = u64::MAX;
        account.period_at(secs(1)).current.deposits = u64::MAX;
        budget.deposit(secs(1));
        assert_eq!(budget.balance(secs(1)), u64::MAX);
        account.period_at(secs(1)).current.withdrawals = u64::MAX;
        assert!(budget.withdraw(secs(1)));
        assert_eq!(account.period_at(secs(1)).current.withdrawals, u64::MAX);
    }

    #[test]
    fn nothing_and_no_bound_can_be_asked_for() {
        let never = RetryBudget::new(0, 0, secs(10));
        (0..100).for_each(|_| never.deposit(secs(0)));
        assert!(!never.withdraw(secs(0)));
        let unlimited = RetryBudget::unlimited();
        assert_eq!(drain(&unlimited, secs(0), 10_000), 10_000);
        assert_eq!(unlimited.balance(secs(0)), u64::MAX);
    }

    #[test]
    fn a_small_rate_never_rounds_to_nothing() {
        assert_eq!(RetryBudget::new(0, 1, Duration::from_millis(1)).balance(secs(0)), 1);
    }

    #[test]
    fn a_panic_while_the_lock_is_held_does_not_spread() {
        let budget = RetryBudget::default();
        let other = budget.clone();
        let panicked = std::thread::spawn(move || {
            let _guard = other.0.as_ref().unwrap().period.lock().unwrap();
            panic!("on purpose, to poison the lock");
        });
        assert!(panicked.join().is_err());
        budget.deposit(secs(0));
        assert!(budget.withdraw(secs(0)));
        assert_eq!(budget.balance(secs(0)), 99);
    }

    #[test]
    fn a_refusal_names_value_limit_and_remedy() {
        assert_eq!(
            RetryBudget::new(20, 10, Duration::ZERO).check().unwrap_err(),
            "the retry budget counts over 0 s, in which nothing happens; use 10 s, or another time above 0"
        );
        assert_eq!(RetryBudget::default().check(), Ok(()));
        assert_eq!(RetryBudget::unlimited().check(), Ok(()));
    }
}
