//! How far apart attempts are.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

/// A schedule of delays: each one's ceiling is the last one's times a factor, up to a cap.
///
/// ```
/// use std::time::Duration;
/// use reqwest_idempotency::retry::{Backoff, Jitter};
///
/// let backoff = Backoff::default().base(Duration::from_millis(500)).cap(Duration::from_secs(3)).jitter(Jitter::None);
/// let delays: Vec<u128> = backoff.delays(0).take(5).map(|delay| delay.as_millis()).collect();
/// assert_eq!(delays, [500, 1_000, 2_000, 3_000, 3_000]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    factor: u32,
    cap: Duration,
    jitter: Jitter,
}

/// How much of a delay is left to chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Jitter {
    /// Anything from nothing to the delay's ceiling, evenly. Of the usual choices this spreads the clients that failed
    /// together the furthest apart.
    Full,
    /// The ceiling itself. Clients that failed together come back together.
    None,
}

impl Default for Backoff {
    /// 200 ms, doubled each time up to 20 s, with full jitter.
    fn default() -> Self {
        Self { base: Duration::from_millis(200), factor: 2, cap: Duration::from_secs(20), jitter: Jitter::Full }
    }
}

impl Backoff {
    /// Sets the ceiling of the first delay. Default: 200 ms. At most the [`cap`](Self::cap); zero means not to wait.
    #[must_use]
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// Sets what each ceiling is multiplied by to give the next. Default: 2. At least 1, which keeps it constant.
    #[must_use]
    pub fn factor(mut self, factor: u32) -> Self {
        self.factor = factor;
        self
    }

    /// Sets the longest delay, jitter included. Default: 20 s. At least the [`base`](Self::base).
    #[must_use]
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Sets how much of a delay is left to chance. Default: [`Jitter::Full`].
    #[must_use]
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// The delays of one call, without end. The first one stands between the first attempt and the second.
    ///
    /// The same seed gives the same delays, in the same release of this crate. Seeds should differ between calls and
    /// between processes, or their attempts fall in step.
    pub fn delays(&self, seed: u64) -> Delays {
        Delays {
            ceiling: self.base.min(self.cap),
            factor: self.factor,
            cap: self.cap,
            jitter: self.jitter,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    /// Says what is wrong with the schedule, and what to write instead.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.factor == 0 {
            return Err(
                "the backoff factor is 0 and the least is 1; use 2 to double each delay, 1 to keep it".to_owned()
            );
        }
        if self.base > self.cap {
            let Self { base, cap, .. } = self;
            return Err(format!(
                "the backoff base is {base:?} and the cap is {cap:?}; lower the base or raise the cap"
            ));
        }
        Ok(())
    }
}

/// The delays of one call, from [`Backoff::delays`]. It never ends.
#[derive(Clone, Debug)]
#[must_use = "an iterator does nothing until it is asked for a delay"]
pub struct Delays {
    ceiling: Duration,
    factor: u32,
    cap: Duration,
    jitter: Jitter,
    random: Xoshiro256PlusPlus,
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let ceiling = self.ceiling;
        self.ceiling = ceiling.saturating_mul(self.factor).min(self.cap);
        Some(match self.jitter {
            Jitter::Full => self.random.random_range(Duration::ZERO..=ceiling),
            Jitter::None => ceiling,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: std::ops::Range<u64> = 0..1_000;

    fn millis(backoff: &Backoff, count: usize) -> Vec<u128> {
        backoff.delays(0).take(count).map(|delay| delay.as_millis()).collect()
    }

    #[test]
    fn the_default_doubles_from_200_ms_to_a_cap_of_20_s() {
        let ceilings = millis(&Backoff::default().jitter(Jitter::None), 9);
        // 200 ms * 2^6 = 12.8 s is the last one below the cap.
        assert_eq!(ceilings, [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 20_000, 20_000]);
    }

    #[test]
    fn full_jitter_stays_under_the_ceiling_of_its_own_step() {
        let ceilings: Vec<Duration> = Backoff::default().jitter(Jitter::None).delays(0).take(12).collect();
        for seed in SEEDS {
            for (delay, ceiling) in Backoff::default().delays(seed).zip(&ceilings) {
                assert!(delay <= *ceiling, "seed {seed}: {delay:?} > {ceiling:?}");
            }
        }
    }

    #[test]
    fn full_jitter_reaches_both_ends_and_is_even() {
        // Ceiling 3 ns, so each of 0, 1, 2 and 3 is expected 250 times in 1000; 6 standard deviations are 82.
        let backoff = Backoff::default().base(Duration::from_nanos(3)).factor(1);
        let mut seen = [0_u32; 4];
        for seed in SEEDS {
            let delay = backoff.delays(seed).next().unwrap();
            seen[usize::try_from(delay.as_nanos()).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| (168..=332).contains(count)), "{seen:?}");
    }

    #[test]
    fn a_delay_does_not_depend_on_the_luck_of_the_one_before() {
        // Ceilings grow, not the drawn delays: the eighth has 20 s to draw from, so about half of 1000 are above 10 s.
        let long = SEEDS.filter(|seed| Backoff::default().delays(*seed).nth(7).unwrap() > Duration::from_secs(10));
        assert!((400..=600).contains(&long.count()));
    }

    #[test]
    fn the_same_seed_gives_the_same_delays_and_another_seed_others() {
        let delays = |seed| Backoff::default().delays(seed).take(20).collect::<Vec<_>>();
        for seed in SEEDS {
            assert_eq!(delays(seed), delays(seed));
            assert_ne!(delays(seed), delays(seed + 1));
        }
    }

    #[test]
    fn a_clone_goes_on_where_the_original_stood() {
        let mut delays = Backoff::default().delays(7);
        delays.nth(3);
        assert!(delays.clone().take(20).eq(delays.take(20)));
    }

    #[test]
    fn no_schedule_overflows_ends_or_exceeds_its_cap() {
        let durations = [0, 1, 999_999_999, u64::MAX].map(Duration::from_nanos);
        let durations = durations.into_iter().chain([Duration::from_secs(u64::MAX), Duration::MAX]);
        for base in durations.clone() {
            for cap in durations.clone() {
                for factor in [0, 1, 2, u32::MAX] {
                    for jitter in [Jitter::Full, Jitter::None] {
                        // Unchecked on purpose: not even a schedule that check() refuses may panic.
                        let backoff = Backoff::default().base(base).cap(cap).factor(factor).jitter(jitter);
                        for seed in [0, 1, u64::MAX] {
                            let delays: Vec<Duration> = backoff.delays(seed).take(200).collect();
                            assert_eq!(delays.len(), 200, "{backoff:?}");
                            assert!(delays.iter().all(|delay| *delay <= cap), "{backoff:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_endless_count_stays_at_the_cap() {
        assert_eq!(Backoff::default().jitter(Jitter::None).delays(0).nth(1_000_000), Some(Duration::from_secs(20)));
    }

    #[test]
    fn factor_1_keeps_the_delay_and_base_0_does_not_wait() {
        let constant = Backoff::default().factor(1).jitter(Jitter::None);
        assert_eq!(millis(&constant, 3), [200, 200, 200]);
        let none = Backoff::default().base(Duration::ZERO);
        assert_eq!(millis(&none, 3), [0, 0, 0]);
        assert_eq!([constant.check(), none.check()], [Ok(()), Ok(())]);
    }

    #[test]
    fn a_refusal_names_value_limit_and_remedy() {
        assert_eq!(
            Backoff::default().factor(0).check().unwrap_err(),
            "the backoff factor is 0 and the least is 1; use 2 to double each delay, 1 to keep it"
        );
        assert_eq!(
            Backoff::default().cap(Duration::from_millis(199)).check().unwrap_err(),
            "the backoff base is 200ms and the cap is 199ms; lower the base or raise the cap"
        );
        assert_eq!(Backoff::default().cap(Duration::from_millis(200)).check(), Ok(()));
    }
}
