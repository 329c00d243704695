//! What a bad network does to one connection. Pure: the proxy carries it out.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// One fault, for one connection through a [`FlakyProxy`](super::FlakyProxy). "Sent" is what the client sends, "received"
/// what it receives. A limit of 0 bytes strikes when there is a first byte to pass on, and keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyFault(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    None,
    Refuse,
    Break { direction: Direction, bytes: usize, breaks: Breaks },
    Latency(Duration),
    Bandwidth { bytes_per_second: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Sent,
    Received,
}

/// How a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breaks {
    Reset,
    Close,
    /// Nothing more passes either way, and the connection stays open.
    Stall,
}

impl ProxyFault {
    /// No fault: the connection works.
    #[must_use]
    pub fn none() -> Self {
        Self(Kind::None)
    }

    /// The connection is reset before a byte of it is read, and the upstream sees nothing of it.
    #[must_use]
    pub fn refuse() -> Self {
        Self(Kind::Refuse)
    }

    /// Both sides are reset when the upstream has got so many bytes.
    #[must_use]
    pub fn reset_after_sent(bytes: usize) -> Self {
        Self(Kind::Break { direction: Direction::Sent, bytes, breaks: Breaks::Reset })
    }

    /// Both sides are reset when the client has got so many bytes.
    #[must_use]
    pub fn reset_after_received(bytes: usize) -> Self {
        Self(Kind::Break { direction: Direction::Received, bytes, breaks: Breaks::Reset })
    }

    /// Both sides are closed in good order when the upstream has got so many bytes.
    #[must_use]
    pub fn close_after_sent(bytes: usize) -> Self {
        Self(Kind::Break { direction: Direction::Sent, bytes, breaks: Breaks::Close })
    }

    /// Both sides are closed in good order when the client has got so many bytes.
    #[must_use]
    pub fn close_after_received(bytes: usize) -> Self {
        Self(Kind::Break { direction: Direction::Received, bytes, breaks: Breaks::Close })
    }

    /// Nothing more passes when the upstream has got so many bytes.
    #[must_use]
    pub fn stall_after_sent(bytes: usize) -> Self {
        Self(Kind::Break { direction: Direction::Sent, bytes, breaks: Breaks::Stall })
    }

    /// Nothing more passes when the client has got so many bytes.
    #[must_use]
    pub fn stall_after_received(bytes: usize) -> Self {
        Self(Kind::Break { direction: Direction::Received, bytes, breaks: Breaks::Stall })
    }

    /// Whatever passes, either way, is late by this much.
    #[must_use]
    pub fn latency(duration: Duration) -> Self {
        Self(Kind::Latency(duration))
    }

    /// No more than this passes in a second, each way. Zero is taken for 1.
    #[must_use]
    pub fn bandwidth(bytes_per_second: usize) -> Self {
        Self(Kind::Bandwidth { bytes_per_second: bytes_per_second.max(1) })
    }

    /// The fault of a connection by chance.
    pub(super) fn drawn(rate: f64, seed: u64, connection: usize) -> Self {
        let mut hash = Sha256::new();
        hash.update(seed.to_be_bytes());
        hash.update((connection as u64).to_be_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let [a, b, c, d, which, bytes, ..] = digest;
        let drawn = f64::from(u32::from_be_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0);
        if drawn >= rate {
            return Self::none();
        }
        // Less than a request or a reply has.
        let bytes = usize::from(bytes & 63);
        match which % 5 {
            0 => Self::refuse(),
            1 => Self::reset_after_sent(bytes),
            2 => Self::reset_after_received(bytes),
            3 => Self::close_after_sent(bytes),
            _ => Self::close_after_received(bytes),
        }
    }

    pub(super) fn refuses(&self) -> bool {
        self.0 == Kind::Refuse
    }

    /// Whether it has struck when the connection is accepted.
    pub(super) fn strikes_at_once(&self) -> bool {
        matches!(self.0, Kind::Refuse | Kind::Latency(_) | Kind::Bandwidth { .. })
    }

    /// How many bytes may pass in this direction, and what happens then.
    pub(super) fn limit(&self, of: Direction) -> Option<(usize, Breaks)> {
        match self.0 {
            Kind::Break { direction, bytes, breaks } if direction == of => Some((bytes, breaks)),
            _ => None,
        }
    }

    /// How many bytes are passed on at a time.
    pub(super) fn piece(&self) -> usize {
        match self.0 {
            // Ten pieces a second, where there is that much.
            Kind::Bandwidth { bytes_per_second } => bytes_per_second.div_ceil(10),
            _ => 16 * 1024,
        }
    }

    /// How long so many bytes take.
    pub(super) fn pause(&self, bytes: usize) -> Duration {
        match self.0 {
            Kind::Latency(duration) => duration,
            Kind::Bandwidth { bytes_per_second } => {
                let nanos = bytes as u128 * 1_000_000_000 / bytes_per_second as u128;
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_bytes_over_time() {
        let fault = ProxyFault::bandwidth(1000);
        assert_eq!((fault.piece(), fault.pause(100)), (100, Duration::from_millis(100)));
        assert_eq!(ProxyFault::bandwidth(0).pause(3), Duration::from_secs(3));
        assert_eq!(ProxyFault::latency(Duration::from_secs(1)).pause(5000), Duration::from_secs(1));
        assert_eq!(ProxyFault::none().pause(5000), Duration::ZERO);
    }

    #[test]
    fn a_limit_is_for_one_direction() {
        let fault = ProxyFault::stall_after_sent(3);
        assert_eq!(fault.limit(Direction::Sent), Some((3, Breaks::Stall)));
        assert_eq!(fault.limit(Direction::Received), None);
    }

    #[test]
    fn what_is_drawn_depends_on_seed_and_connection_and_the_rate_is_a_share() {
        let drawn = |rate, seed| (1..=1000).map(|n| ProxyFault::drawn(rate, seed, n)).collect::<Vec<_>>();
        assert_eq!(drawn(0.5, 7), drawn(0.5, 7));
        assert_ne!(drawn(0.5, 7), drawn(0.5, 8));
        let struck = |rate| drawn(rate, 7).iter().filter(|fault| **fault != ProxyFault::none()).count();
        assert_eq!((struck(0.0), struck(1.0)), (0, 1000));
        // 200 expected; the standard deviation is below 13.
        assert!((140..260).contains(&struck(0.2)), "{}", struck(0.2));
    }
}
