//! The limits of one call.

use std::time::Duration;

use super::backoff::Backoff;

/// How often and for how long one call, or one resumed operation, is attempted.
///
/// ```
/// use std::time::Duration;
/// use reqwest_idempotency::retry::{Backoff, RetryPolicy};
///
/// let patient = RetryPolicy::default()
///     .max_attempts(10)
///     .deadline(Duration::from_secs(10 * 60))
///     .backoff(Backoff::default().cap(Duration::from_secs(60)));
/// # let _ = patient;
/// ```
///
/// Whichever limit is reached first ends the call. The operation is then not lost: unless it is known not to have been
/// sent it stays pending in the journal, and can be resumed with the same key.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    pub(crate) max_attempts: u32,
    pub(crate) deadline: Duration,
    pub(crate) attempt_timeout: Duration,
    pub(crate) retry_after_cap: Duration,
    pub(crate) in_progress_min: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) retry_rejections: bool,
}

impl Default for RetryPolicy {
    /// 5 attempts or 60 s in all, 30 s per attempt, `Retry-After` up to 60 s, and the default [`Backoff`].
    fn default() -> Self {
        Self {
            max_attempts: 5,
            deadline: Duration::from_secs(60),
            attempt_timeout: Duration::from_secs(30),
            retry_after_cap: Duration::from_secs(60),
            in_progress_min: Duration::from_millis(100),
            backoff: Backoff::default(),
            retry_rejections: false,
        }
    }
}

impl RetryPolicy {
    /// One attempt, and no more; the other limits are the default ones.
    #[must_use]
    pub fn never() -> Self {
        Self::default().max_attempts(1)
    }

    /// Sets how many attempts there are, the first included. Default: 5. At least 1, which sends once.
    ///
    /// Attempts that a reply of *in progress* calls for are not counted; the deadline bounds them.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets how long the call may take in all, waits included. Default: 60 s. Not zero; `Duration::MAX` is no deadline.
    ///
    /// A wait that would end later is not begun: the call ends at once and says when the next attempt may start.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets how long one attempt may take, from connecting to the last byte of the body. Default: 30 s. Not zero.
    ///
    /// It is cut at the deadline, and never raises a shorter timeout of the request or of its client. An attempt that
    /// runs out of time may have been executed. If this is less than the server's own time for the work, every attempt
    /// does.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// Sets the longest `Retry-After` that a call waits for. Default: 60 s. Zero means to wait for none.
    ///
    /// No attempt is ever earlier than the server asked: a longer wish ends the call at once, and the error says when
    /// the next attempt may start. A wish shorter than the backoff does not shorten it.
    #[must_use]
    pub fn retry_after_cap(mut self, cap: Duration) -> Self {
        self.retry_after_cap = cap;
        self
    }

    /// Sets the shortest wait after a reply of *in progress*, whatever it asks for. Default: 100 ms. At least 1 ms.
    #[must_use]
    pub fn in_progress_min(mut self, wait: Duration) -> Self {
        self.in_progress_min = wait;
        self
    }

    /// Sets how far apart attempts are. Default: [`Backoff::default`].
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Tries again after a 429, 408, 425 or 421 too, the last two once. Off by default.
    ///
    /// These come from in front of the idempotency layer, so such an attempt was not executed and another is safe. It
    /// is off because a server that says 429 asks for less traffic, which is the caller's to arrange.
    #[must_use]
    pub fn retry_rejections(mut self) -> Self {
        self.retry_rejections = true;
        self
    }

    /// Says what is wrong with the policy, and what to write instead.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { max_attempts, deadline, attempt_timeout, in_progress_min, backoff, .. } = self;
        if *max_attempts == 0 {
            return Err("max_attempts is 0 and the least is 1, the first attempt; use RetryPolicy::never()".to_owned());
        }
        if deadline.is_zero() {
            return Err(
                "the deadline is 0 s, in which nothing can be sent; use 60 s, or another time above 0".to_owned()
            );
        }
        if attempt_timeout.is_zero() {
            return Err("attempt_timeout is 0 s, in which nothing can be answered; use 30 s, or another time above 0"
                .to_owned());
        }
        // The deadline alone bounds these waits, so without a floor a server's `Retry-After: 0` makes a hot loop.
        if *in_progress_min < LEAST_IN_PROGRESS_WAIT {
            return Err(format!(
                "in_progress_min is {in_progress_min:?} and the least is {LEAST_IN_PROGRESS_WAIT:?}; use 100 ms"
            ));
        }
        backoff.check()
    }
}

const LEAST_IN_PROGRESS_WAIT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::Jitter;

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.max_attempts, 5);
        assert_eq!(policy.deadline, Duration::from_secs(60));
        assert_eq!(policy.attempt_timeout, Duration::from_secs(30));
        assert_eq!(policy.retry_after_cap, Duration::from_secs(60));
        assert_eq!(policy.in_progress_min, Duration::from_millis(100));
        assert_eq!(policy.backoff, Backoff::default());
        assert!(!policy.retry_rejections);
        assert_eq!(policy.check(), Ok(()));
    }

    #[test]
    fn every_setter_sets_its_own_field() {
        let backoff = Backoff::default().jitter(Jitter::None);
        let policy = RetryPolicy::default()
            .max_attempts(1)
            .deadline(Duration::from_secs(2))
            .attempt_timeout(Duration::from_secs(3))
            .retry_after_cap(Duration::from_secs(4))
            .in_progress_min(Duration::from_secs(5))
            .backoff(backoff.clone())
            .retry_rejections();
        assert_eq!(policy.max_attempts, 1);
        assert_eq!(policy.deadline, Duration::from_secs(2));
        assert_eq!(policy.attempt_timeout, Duration::from_secs(3));
        assert_eq!(policy.retry_after_cap, Duration::from_secs(4));
        assert_eq!(policy.in_progress_min, Duration::from_secs(5));
        assert_eq!(policy.backoff, backoff);
        assert!(policy.retry_rejections);
    }

    #[test]
    fn r11_no_attempts_is_a_configuration_error_and_one_is_not() {
        assert_eq!(
            RetryPolicy::default().max_attempts(0).check().unwrap_err(),
            "max_attempts is 0 and the least is 1, the first attempt; use RetryPolicy::never()"
        );
        assert_eq!(RetryPolicy::never().max_attempts, 1);
        assert_eq!(RetryPolicy::never().check(), Ok(()));
    }

    #[test]
    fn a17_a_floor_of_nothing_under_in_progress_waits_is_refused() {
        let policy = |wait| RetryPolicy::default().in_progress_min(wait);
        assert_eq!(
            policy(Duration::from_micros(999)).check().unwrap_err(),
            "in_progress_min is 999µs and the least is 1ms; use 100 ms"
        );
        assert!(policy(Duration::ZERO).check().is_err());
        assert_eq!(policy(Duration::from_millis(1)).check(), Ok(()));
    }

    #[test]
    fn a_time_of_nothing_is_refused_with_value_and_remedy() {
        assert_eq!(
            RetryPolicy::default().deadline(Duration::ZERO).check().unwrap_err(),
            "the deadline is 0 s, in which nothing can be sent; use 60 s, or another time above 0"
        );
        assert_eq!(
            RetryPolicy::default().attempt_timeout(Duration::ZERO).check().unwrap_err(),
            "attempt_timeout is 0 s, in which nothing can be answered; use 30 s, or another time above 0"
        );
        let refused = RetryPolicy::default().backoff(Backoff::default().factor(0)).check();
        assert_eq!(refused, Backoff::default().factor(0).check());
    }

    #[test]
    fn the_largest_values_and_no_wait_for_the_server_are_allowed() {
        let largest = RetryPolicy::default()
            .max_attempts(u32::MAX)
            .deadline(Duration::MAX)
            .attempt_timeout(Duration::MAX)
            .retry_after_cap(Duration::MAX)
            .in_progress_min(Duration::MAX);
        assert_eq!(largest.check(), Ok(()));
        assert_eq!(RetryPolicy::default().retry_after_cap(Duration::ZERO).check(), Ok(()));
    }
}
