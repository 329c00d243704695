//! Time, as a value that is handed in.
//!
//! Every decision in this crate takes a [`Now`]. Only this file reads a real clock, so a test can hand a
//! manual one to client and server alike and live through a week in a millisecond.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// A boxed future, as the traits that users implement return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One reading of both clocks.
///
/// Deadlines and waits are counted on the monotonic clock, which never steps. The dedup window is counted on the
/// wall clock, because it has to survive a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two clocks are all there is, and tests build it by hand")]
pub struct Now {
    /// Time since an arbitrary origin of this process.
    pub monotonic: Duration,
    /// Civil time, in whole milliseconds.
    pub wall: Timestamp,
}

/// A point in civil time: whole milliseconds since 1970-01-01T00:00:00Z. All arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// From milliseconds since the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// This point plus a duration, rounded up to a whole millisecond: a wait must never end early.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis_rounded_up(duration)))
    }

    /// This point less a duration, rounded up to a whole millisecond.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis_rounded_up(duration)))
    }

    /// The time that has passed since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

fn millis_rounded_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl From<SystemTime> for Timestamp {
    /// A time before 1970 becomes 1970.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(timestamp: Timestamp) -> Self {
        let since = Duration::from_millis(timestamp.0);
        // Far beyond what any platform's SystemTime holds, the epoch's year 9999 stands for "never".
        SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH + END_OF_9999)
    }
}

impl fmt::Display for Timestamp {
    /// As HTTP writes a date, in GMT.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = Duration::from_millis(self.0).min(END_OF_9999);
        f.write_str(&httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + shown))
    }
}

/// 9999-12-31T23:59:59Z, the last second that an HTTP-date can name.
const END_OF_9999: Duration = Duration::from_secs(253_402_300_799);

/// Where the client, the journals and the test server get the time from, and how they wait.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Both clocks, read together.
    fn now(&self) -> Now;

    /// Waits between attempts.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait and has no other effect.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Limits an exchange that is under way. It differs from [`sleep`](Clock::sleep) only for a manual clock, which
    /// may skip the waits between attempts, but must not time out an exchange that is making progress.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future lifts the limit and has no other effect.
    fn timer(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep(duration)
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Now {
        (**self).now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        (**self).sleep(duration)
    }

    fn timer(&self, duration: Duration) -> BoxFuture<'static, ()> {
        (**self).timer(duration)
    }
}

/// The operating system's clocks and tokio's timer.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing to configure")]
pub struct SystemClock;

/// Where monotonic time starts: once in a process, so that all who share a retry budget read the same time.
static ORIGIN: OnceLock<Instant> = OnceLock::new();

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clocks")]
    fn now(&self) -> Now {
        Now { monotonic: ORIGIN.get_or_init(Instant::now).elapsed(), wall: SystemTime::now().into() }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that waits")]
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_rounded_up_so_that_it_never_ends_early() {
        let start = Timestamp::from_millis(1_000);
        assert_eq!(start.plus(Duration::from_nanos(1)).as_millis(), 1_001);
        assert_eq!(start.minus(Duration::from_nanos(1)).as_millis(), 999);
    }

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Timestamp::from_millis(u64::MAX).plus(Duration::MAX).as_millis(), u64::MAX);
        assert_eq!(Timestamp::from_millis(5).minus(Duration::MAX).as_millis(), 0);
        assert_eq!(Timestamp::from_millis(5).since(Timestamp::from_millis(9)), Duration::ZERO);
    }

    #[test]
    fn the_end_of_time_can_be_converted_and_printed() {
        let end = Timestamp::from_millis(u64::MAX);
        let _: SystemTime = end.into();
        assert_eq!(end.to_string(), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn a_time_before_the_epoch_becomes_the_epoch() {
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Timestamp::from(before).as_millis(), 0);
    }
}
