//! What a fault does.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::At;
use crate::testing::answer::Answer;

/// What happens there. Faults of a connection end every HTTP/2 stream on it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// The connection is closed in good order (FIN). At any position.
    Fin,
    /// The connection is reset (RST). At any position.
    Rst,
    /// Nothing more is sent, and the connection stays open. At any position.
    Stall,
    /// It goes on after this much time by the server's clock ([`Clock::timer`](crate::Clock::timer): a
    /// [`ManualClock`](crate::testing::ManualClock) must be advanced). At `Connect`, from `BeforeClaim` to `AfterCommit`,
    /// and at `BodyBytes`.
    Delay(Duration),
    /// This is answered instead. From `BeforeClaim` to `AfterCommit`.
    Status(CannedReply),
    /// These bytes are sent, and the connection is closed: no HTTP, or a piece of it in the wrong place. At any position
    /// but `RequestBytes`. They go out at once or not at all, so no more than a socket takes, some kilobytes.
    Garbage(Bytes),
    /// The rest of the body comes in small pieces with pauses between them. At `BodyBytes`.
    Dribble {
        /// The size of a piece; at least 1.
        bytes: usize,
        /// The time between two, by the server's clock.
        pause: Duration,
    },
    /// The body ends here, in good order and under a `Content-Length` that agrees: nothing but its content tells. At
    /// `BodyBytes`.
    Truncate,
    /// `Content-Length` announces this many bytes, and the body has as many as it has. Over HTTP/1.1 what is announced and
    /// missing never comes, and what is not announced is not sent. At `AfterCommit`.
    BadContentLength(usize),
    /// This HTTP/2 stream is reset with this error code, such as 7 for REFUSED_STREAM or 8 for CANCEL. The code may lie:
    /// after the claim, REFUSED_STREAM is one that a proxy put there. Over HTTP/1.1 the connection is reset. From
    /// `BeforeClaim` to `AfterCommit`, and at `BodyBytes`.
    H2Reset(u32),
    /// The HTTP/2 connection ends with a GOAWAY that says that no stream was processed, which after the claim is a lie.
    /// Over HTTP/1.1 the connection is closed. From `BeforeClaim` to `AfterCommit`.
    H2GoAway,
    /// The process that serves the request dies: the connection is closed and what would follow does not happen. A claim
    /// is left to its lease. At any position from `BeforeClaim` on.
    CrashOwner,
    /// The store of keys cannot be reached. At `BeforeClaim`: 503, and nothing is executed. At `AfterEffect`: the outcome is
    /// answered and not stored, so the key stays in progress.
    StoreDown,
    /// The network delivers the request twice; nobody reads the reply to the second delivery. It comes right behind the
    /// first one (`BeforeClaim`) or when that is done (`AfterCommit`).
    DuplicateDelivery,
    /// The network holds the request back until the server has answered a later attempt with the same key. It then arrives,
    /// whether or not its client is still there. At `BeforeClaim`.
    HoldAndReorder,
}

/// The reply that a fault gives in the operation's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CannedReply(pub(in crate::testing) Answer);

impl CannedReply {
    /// Its status code.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }
}

impl How {
    /// Whether it can happen at this position.
    pub(super) fn fits(&self, at: At) -> bool {
        match self {
            Self::Fin | Self::Rst | Self::Stall => true,
            Self::Delay(_) => at == At::Connect || at.is_of_execution() || matches!(at, At::BodyBytes(_)),
            Self::Status(_) | Self::H2GoAway => at.is_of_execution(),
            Self::Garbage(_) => !matches!(at, At::RequestBytes(_)),
            Self::Dribble { bytes, .. } => *bytes > 0 && matches!(at, At::BodyBytes(_)),
            Self::Truncate => matches!(at, At::BodyBytes(_)),
            Self::BadContentLength(_) => at == At::AfterCommit,
            Self::H2Reset(_) => at.is_of_execution() || matches!(at, At::BodyBytes(_)),
            Self::CrashOwner => !at.is_of_connection(),
            Self::StoreDown => matches!(at, At::BeforeClaim | At::AfterEffect),
            Self::DuplicateDelivery => matches!(at, At::BeforeClaim | At::AfterCommit),
            Self::HoldAndReorder => at == At::BeforeClaim,
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fin => f.write_str("connection closed"),
            Self::Rst => f.write_str("connection reset"),
            Self::Stall => f.write_str("stalled"),
            Self::Delay(duration) => write!(f, "delayed by {duration:?}"),
            Self::Status(reply) => write!(f, "answered {}", reply.status().as_u16()),
            Self::Garbage(bytes) => write!(f, "{} bytes of garbage sent", bytes.len()),
            Self::Dribble { bytes, pause } => write!(f, "dribbled, {bytes} bytes each {pause:?},"),
            Self::Truncate => f.write_str("body ended"),
            Self::BadContentLength(bytes) => write!(f, "{bytes} bytes announced"),
            Self::H2Reset(code) => write!(f, "stream reset with code {code}"),
            Self::H2GoAway => f.write_str("GOAWAY sent"),
            Self::CrashOwner => f.write_str("owner crashed"),
            Self::StoreDown => f.write_str("store down"),
            Self::DuplicateDelivery => f.write_str("delivered twice"),
            Self::HoldAndReorder => f.write_str("held back behind a later attempt"),
        }
    }
}
