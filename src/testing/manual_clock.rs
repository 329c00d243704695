//! A clock that only a test moves.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::{BoxFuture, Clock, Now, Timestamp};

/// A clock for tests, to be shared by client and server: a week passes in no time, and nothing times out that nobody let
/// time out.
///
/// The wall clock starts at 2026-01-01T00:00:00Z. Time passes by [`advance`](Self::advance), and by the waits between
/// attempts, which take their time from the clock and none from the test. A limit around an exchange
/// ([`Clock::timer`]) ends by `advance` alone, however many waits there were.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// use std::time::Duration;
/// use reqwest_idempotency::Clock as _;
/// use reqwest_idempotency::testing::ManualClock;
///
/// let clock = ManualClock::new();
/// let start = clock.now();
/// clock.sleep(Duration::from_secs(60)).await;
/// assert_eq!(clock.now().monotonic - start.monotonic, Duration::from_secs(60));
/// assert_eq!(clock.slept(), [Duration::from_secs(60)]);
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    mode: Mode,
    shared: Arc<Shared>,
}

/// What ends a wait between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The wait itself, by moving the clock to its end.
    Skip,
    /// Only `advance`.
    Hold,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Changes whenever time passes or a wait begins.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    /// All time that has passed.
    monotonic: Duration,
    /// Of that, what the test let pass on purpose.
    advanced: Duration,
    /// Civil time when `monotonic` was `wall_since`.
    wall: Timestamp,
    wall_since: Duration,
    slept: Vec<Duration>,
    /// The waits that are under way.
    asleep: usize,
}

impl ManualClock {
    /// A clock on which the waits between attempts end by themselves.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Mode::Skip)
    }

    /// A clock on which the waits between attempts end by [`advance`](Self::advance) only.
    #[must_use]
    pub fn held() -> Self {
        Self::with(Mode::Hold)
    }

    /// Lets time pass.
    pub fn advance(&self, duration: Duration) {
        {
            let mut state = self.state();
            state.monotonic = state.monotonic.saturating_add(duration);
            state.advanced = state.advanced.saturating_add(duration);
        }
        self.shared.changed.send_replace(());
    }

    /// Sets the wall clock, either way, as an administrator might. No time passes.
    pub fn set_wall(&self, wall: Timestamp) {
        let mut state = self.state();
        state.wall = wall;
        state.wall_since = state.monotonic;
    }

    /// Steps the wall clock by so many milliseconds, either way. No time passes.
    pub fn step_wall(&self, millis: i64) {
        let step = Duration::from_millis(millis.unsigned_abs());
        let wall = self.now().wall;
        self.set_wall(if millis < 0 { wall.minus(step) } else { wall.plus(step) });
    }

    /// How long each wait between attempts was asked to be, in the order in which they began. A wait that was dropped
    /// before its end is among them.
    #[must_use]
    pub fn slept(&self) -> Vec<Duration> {
        self.state().slept.clone()
    }

    /// Waits until someone waits: with a [`held`](Self::held) clock, what an `advance` is to end must have begun.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn until_asleep(&self) {
        self.shared.until(|state| state.asleep > 0).await;
    }

    fn with(mode: Mode) -> Self {
        let state = State {
            monotonic: Duration::ZERO,
            advanced: Duration::ZERO,
            wall: START,
            wall_since: Duration::ZERO,
            slept: Vec::new(),
            asleep: 0,
        };
        Self { mode, shared: Arc::new(Shared { state: Mutex::new(state), changed: watch::Sender::new(()) }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn until(&self, reached: impl Fn(&State) -> bool) {
        // Subscribed before the first look, so that no change falls between the two.
        let mut changes = self.changed.subscribe();
        while !reached(&self.state()) {
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }
}

/// One wait under way.
struct Asleep(Arc<Shared>);

impl Asleep {
    fn begin(shared: &Arc<Shared>, duration: Duration) -> Self {
        {
            let mut state = shared.state();
            state.slept.push(duration);
            state.asleep += 1;
        }
        shared.changed.send_replace(());
        Self(Arc::clone(shared))
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        self.0.state().asleep -= 1;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        let state = self.state();
        let passed = state.monotonic.saturating_sub(state.wall_since);
        // Whole milliseconds that have passed: a clock shows no time that is still to come.
        let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        Now { monotonic: state.monotonic, wall: state.wall.plus(Duration::from_millis(millis)) }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (mode, shared) = (self.mode, Arc::clone(&self.shared));
        let end = self.state().monotonic.saturating_add(duration);
        Box::pin(async move {
            let _asleep = Asleep::begin(&shared, duration);
            match mode {
                Mode::Skip => {
                    // Whatever races against this wait gets its turn, and may end it before time has passed.
                    tokio::task::yield_now().await;
                    {
                        let mut state = shared.state();
                        state.monotonic = state.monotonic.max(end);
                    }
                    shared.changed.send_replace(());
                }
                Mode::Hold => shared.until(|state| state.monotonic >= end).await,
            }
        })
    }

    fn timer(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let shared = Arc::clone(&self.shared);
        let end = self.state().advanced.saturating_add(duration);
        Box::pin(async move { shared.until(|state| state.advanced >= end).await })
    }
}

/// 2026-01-01T00:00:00Z.
const START: Timestamp = Timestamp::from_millis(1_767_225_600_000);

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Polls often enough for everything that can happen to happen.
    fn is_done(future: impl Future<Output = ()>) -> bool {
        let mut future = pin!(future);
        (0..4).any(|_| future.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(()))
    }

    #[test]
    fn it_starts_in_2026_and_both_clocks_move_together() {
        let clock = ManualClock::new();
        assert_eq!(clock.now().wall.to_string(), "Thu, 01 Jan 2026 00:00:00 GMT");
        clock.advance(Duration::from_millis(1500));
        assert_eq!(clock.now().monotonic, Duration::from_millis(1500));
        assert_eq!(clock.now().wall.since(START), Duration::from_millis(1500));
    }

    #[tokio::test]
    async fn a_wait_moves_the_clock_to_its_end_and_is_recorded() {
        let clock = ManualClock::new();
        clock.sleep(3 * SECOND).await;
        clock.sleep(2 * SECOND).await;
        assert_eq!(clock.now().monotonic, 5 * SECOND);
        assert_eq!(clock.slept(), [3 * SECOND, 2 * SECOND]);
    }

    #[tokio::test]
    async fn two_waits_at_once_take_no_longer_than_the_longer_one() {
        let clock = ManualClock::new();
        tokio::join!(clock.sleep(3 * SECOND), clock.sleep(2 * SECOND));
        assert_eq!(clock.now().monotonic, 3 * SECOND);
    }

    #[tokio::test]
    async fn a_wait_lets_others_have_their_turn_before_time_passes() {
        let clock = ManualClock::new();
        tokio::select! {
            biased;
            () = clock.sleep(SECOND) => panic!("nothing else got a turn"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(clock.now().monotonic, Duration::ZERO);
    }

    #[tokio::test]
    async fn a_timer_is_not_fired_by_a_wait() {
        let clock = ManualClock::new();
        let timer = clock.timer(SECOND);
        clock.sleep(60 * SECOND).await;
        assert!(!is_done(timer));
    }

    #[test]
    fn a_timer_fires_when_the_test_let_its_time_pass_and_not_before() {
        let clock = ManualClock::new();
        let (early, due) = (clock.timer(SECOND), clock.timer(SECOND));
        clock.advance(SECOND - Duration::from_nanos(1));
        assert!(!is_done(early));
        clock.advance(Duration::from_nanos(1));
        assert!(is_done(due));
        // What passed before a timer began does not count for it.
        assert!(!is_done(clock.timer(SECOND)));
    }

    #[tokio::test]
    async fn a_held_clock_lets_no_wait_end_by_itself() {
        let clock = ManualClock::held();
        assert!(!is_done(clock.sleep(SECOND)));
        let sleeper = tokio::spawn(clock.sleep(SECOND));
        clock.until_asleep().await;
        clock.advance(SECOND);
        sleeper.await.unwrap();
        assert_eq!(clock.slept(), [SECOND, SECOND]);
    }

    #[test]
    fn the_wall_clock_steps_either_way_and_no_time_passes() {
        let clock = ManualClock::new();
        clock.advance(SECOND);
        clock.step_wall(-3_600_000);
        assert_eq!(clock.now().wall, START.plus(SECOND).minus(3600 * SECOND));
        clock.step_wall(7_200_000);
        assert_eq!(clock.now().wall, START.plus(3601 * SECOND));
        clock.set_wall(START);
        clock.advance(SECOND);
        assert_eq!(clock.now().wall, START.plus(SECOND));
        assert_eq!(clock.now().monotonic, 2 * SECOND);
    }

    #[test]
    fn clones_share_their_time() {
        let clock = ManualClock::new();
        clock.clone().advance(SECOND);
        assert_eq!(clock.now().monotonic, SECOND);
    }
}
