//! What was tried so far, what is known from it, and the timeline that tells it to a person.

use std::fmt;
use std::time::Duration;

use http::StatusCode;

use crate::clock::Timestamp;
use crate::reply::FailureKind;

/// What is known of an operation at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "these three are all that can be known; callers should match them all")]
pub enum Delivery {
    /// No attempt reached the server: the operation was not executed, and can be dropped safely.
    NotSent,
    /// At least one attempt may have reached the server, and no answer settled it. It may have been executed, once.
    Unknown,
    /// An answer of the server, or a person, has settled it: [`Error::phase`](crate::Error::phase) says whether as
    /// completed or as rejected.
    Answered,
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "not sent",
            Self::Unknown => "unknown",
            Self::Answered => "answered",
        })
    }
}

/// One HTTP exchange for an operation, as it went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// Counted from 1, over every process that drove the operation.
    pub number: u32,
    /// When it began, counted from the start of the call.
    pub began: Duration,
    /// How long it took.
    pub took: Duration,
    /// What came of it.
    pub outcome: Outcome,
    /// What that was taken to mean, in a few words.
    pub meaning: &'static str,
    /// What this attempt by itself says about the operation at the server.
    pub delivery: Delivery,
    /// The wait that followed.
    pub wait: Option<Wait>,
}

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The server answered.
    #[expect(missing_docs, reason = "the fields say it")]
    Reply { status: StatusCode, replayed: bool },
    /// It did not, or not to the end.
    Failure(FailureKind),
}

/// A wait between two attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Wait {
    /// How long.
    pub duration: Duration,
    /// Whether the server asked for it (`Retry-After`), or the schedule did.
    pub asked_by_server: bool,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {} at {}: ", self.number, Shown(self.began))?;
        match self.outcome {
            Outcome::Reply { status, replayed } => {
                write!(f, "{status}{}", if replayed { " (replayed)" } else { "" })?;
            }
            Outcome::Failure(kind) => f.write_str(what_failed(kind))?,
        }
        write!(f, " after {}, {}", Shown(self.took), self.meaning)?;
        match self.wait {
            Some(Wait { duration, asked_by_server: true }) => {
                write!(f, "; waited {}, as the server asked", Shown(duration))
            }
            Some(Wait { duration, asked_by_server: false }) => write!(f, "; waited {}", Shown(duration)),
            None => Ok(()),
        }
    }
}

fn what_failed(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Request => "could not be built",
        FailureKind::Dns => "host name not resolved",
        FailureKind::Connect => "no connection",
        FailureKind::Certificate => "certificate not accepted",
        FailureKind::Canceled => "connection closed before the request was written",
        FailureKind::Refused => "refused unprocessed by the server",
        FailureKind::Timeout => "no answer in time",
        FailureKind::Connection => "connection ended without an answer",
        FailureKind::ReplyLost => "reply broke off after its head",
        FailureKind::Redirected => "redirected to nowhere",
    }
}

/// A duration to three digits, for people.
struct Shown(Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        match millis {
            0 => f.write_str("0 ms"),
            1..10_000 => write!(f, "{millis} ms"),
            10_000..600_000 => write!(f, "{}.{} s", millis / 1000, millis % 1000 / 100),
            _ => write!(f, "{} min", millis / 60_000),
        }
    }
}

/// The story of an operation for whoever has to act on it: one line an attempt, then what is known.
pub struct Report<'a> {
    pub(crate) headline: &'a dyn fmt::Display,
    pub(crate) attempts: &'a [Attempt],
    pub(crate) next_attempt_at: Option<Timestamp>,
    pub(crate) known: &'a str,
}

impl fmt::Debug for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.headline)?;
        for attempt in self.attempts {
            writeln!(f, "  {attempt}")?;
        }
        if let Some(at) = self.next_attempt_at {
            writeln!(f, "  not to be tried again before {at}")?;
        }
        write!(f, "  known: {}", self.known)
    }
}
