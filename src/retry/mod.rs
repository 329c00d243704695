//! When to try again: how often, how far apart, and for how long.
//!
//! A key makes another attempt safe for the operation. It does not make it harmless for the server: one that comes back
//! from an outage meets every client's repeated attempts at once, in step, on top of the usual traffic. Hence four
//! limits, each of which covers a case that the others let through:
//!
//! | limit | default | against |
//! |---|---|---|
//! | attempts ([`RetryPolicy::max_attempts`]) | 5 | one call that keeps hammering |
//! | deadline ([`RetryPolicy::deadline`]) | 60 s | one call that keeps its caller waiting |
//! | backoff ([`Backoff`]) | 200 ms, doubled up to 20 s, full jitter | many calls that try again in step |
//! | budget ([`RetryBudget`]) | 20 % of traffic plus 10 a second, over 10 s | many calls, each within its own limits |
//!
//! One attempt gets 30 s ([`RetryPolicy::attempt_timeout`]), and never runs past the deadline. What the server asks for
//! in `Retry-After` is never undercut: it is waited for up to 60 s ([`RetryPolicy::retry_after_cap`]), and a longer
//! wish ends the call at once, with the time at which the next attempt may start. A reply that says *in progress* is
//! waited on for at least 100 ms ([`RetryPolicy::in_progress_min`]); such waits are bounded by the deadline, not by the
//! number of attempts, and the budget is not charged for them.
//!
//! Nothing here waits, reads a clock or draws randomness. Time and seed are arguments, so a test can try a whole outage
//! in no time.

mod backoff;
mod budget;
mod policy;
mod retry_after;

pub use backoff::{Backoff, Delays, Jitter};
pub use budget::RetryBudget;
pub use policy::RetryPolicy;
pub(crate) use retry_after::retry_after;
