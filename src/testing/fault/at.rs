//! Where a fault strikes.

use std::fmt;

/// Where in the exchange a fault strikes.
///
/// An exchange goes: the client connects, the request is read and recorded, checked, claims its key, is executed, is
/// committed, and is answered. A fault whose position an attempt does not come to, because the attempt is replayed or
/// refused before, stays unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum At {
    /// The connection is accepted, and not a byte of it read. No key is known yet: see
    /// [`connection_faults`](crate::testing::TestServerBuilder::connection_faults).
    Connect,
    /// This many bytes were read from the connection: fewer than the request has, or the request is executed. No key is
    /// known yet, as with `Connect`.
    RequestBytes(usize),
    /// All checks passed, the key is not claimed. Nothing is executed.
    BeforeClaim,
    /// The key is claimed and the handler not called yet. Execution goes on without the connection.
    AfterClaim,
    /// The handler has answered, and its answer is not stored yet. The commit goes on without the connection.
    AfterEffect,
    /// The answer is stored, or found stored, and not a byte of it is on the wire.
    AfterCommit,
    /// This many bytes of the reply are on the wire, counted from its status line. Over HTTP/2, this many bytes of what
    /// the connection sends next.
    HeadBytes(usize),
    /// The head of the reply and this many bytes of its body are on the wire. `Content-Length` announces all of it.
    BodyBytes(usize),
    /// The whole reply is on the wire. The client has its answer; what fails is the connection that it may use again.
    AfterResponse,
}

impl At {
    /// Whether it comes before a request, and with it a key, is known.
    pub(in crate::testing) fn is_of_connection(self) -> bool {
        matches!(self, Self::Connect | Self::RequestBytes(_))
    }

    /// Whether it lies between the checks and the reply's first byte.
    pub(in crate::testing) fn is_of_execution(self) -> bool {
        matches!(self, Self::BeforeClaim | Self::AfterClaim | Self::AfterEffect | Self::AfterCommit)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("at the connect"),
            Self::RequestBytes(bytes) => write!(f, "after {bytes} bytes of the request"),
            Self::BeforeClaim => f.write_str("before the claim"),
            Self::AfterClaim => f.write_str("after the claim"),
            Self::AfterEffect => f.write_str("after the effect"),
            Self::AfterCommit => f.write_str("after the commit"),
            Self::HeadBytes(bytes) => write!(f, "after {bytes} bytes of the head"),
            Self::BodyBytes(bytes) => write!(f, "after {bytes} bytes of the body"),
            Self::AfterResponse => f.write_str("after the response"),
        }
    }
}
