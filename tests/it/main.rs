//! All integration tests, in one binary: real sockets on this machine, and time that is handed in.

mod answers;
mod bodies;
mod keys;
mod leaks;
mod limits;
mod repeats;
mod support;
mod testing;
