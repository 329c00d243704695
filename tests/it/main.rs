//! All integration tests, in one binary: real sockets on this machine, and time that is handed in.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "in a test, a panic is how a failure is told; clippy knows that of test functions only"
)]

mod answers;
mod bodies;
mod keys;
mod leaks;
mod limits;
mod outbox;
mod repeats;
mod resume;
mod review;
mod sqlite;
mod support;
mod testing;
