//! Faults by a seed. Pure: what an attempt meets is a hash, so the order of arrival changes nothing.

use sha2::{Digest as _, Sha256};

use super::fault::{At, Fault};
use super::seen::SeenRequest;

/// A rate and a seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chaos {
    /// How many attempts meet a fault: 0 for none, 1 for all.
    pub(super) rate: f64,
    pub(super) seed: u64,
}

impl Chaos {
    /// The fault of an attempt. It depends on the seed, on what the request asks for and on which attempt it is, but not on
    /// the key: keys are drawn at random, and a run could not be repeated by its seed.
    pub(super) fn fault(self, request: &SeenRequest) -> Fault {
        let mut hash = Sha256::new();
        hash.update(self.seed.to_be_bytes());
        for part in [request.method().as_str().as_bytes(), request.path_and_query().as_bytes(), request.body()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update((request.attempt() as u64).to_be_bytes());
        let [whether, which, much, _] = quarters(hash.finalize().into());
        // 53 bits are what an f64 holds exactly.
        let drawn = (whether >> 11) as f64 / (1_u64 << 53) as f64;
        if drawn < self.rate { pick(which, much) } else { Fault::none() }
    }
}

/// None of these keeps a client waiting for a limit of its own: chaos is to be fast.
fn pick(which: u64, much: u64) -> Fault {
    // 0 to 31 bytes: within the head of any reply, and within the body of most.
    let bytes = usize::try_from(much & 31).unwrap_or_default();
    match which % 10 {
        0 => Fault::refused_before_claim(),
        1 => Fault::reset(At::BeforeClaim),
        2 => Fault::status(503),
        3 => Fault::close(At::AfterClaim),
        4 => Fault::close(At::AfterEffect),
        5 => Fault::reset(At::AfterCommit),
        6 => Fault::reply_lost(),
        7 => Fault::close(At::HeadBytes(bytes)),
        8 => Fault::reply_cut(bytes),
        _ => Fault::status(502).after_commit(),
    }
}

fn quarters(digest: [u8; 32]) -> [u64; 4] {
    let mut quarters = [0; 4];
    for (quarter, bytes) in quarters.iter_mut().zip(digest.chunks_exact(8)) {
        *quarter = bytes.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte));
    }
    quarters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(rate: f64, seed: u64) -> Vec<Fault> {
        let chaos = Chaos { rate, seed };
        (0..1000).map(|n| chaos.fault(&SeenRequest::sample(&format!("{{\"n\":{}}}", n / 4), n % 4 + 1))).collect()
    }

    #[test]
    fn the_rate_is_the_share_of_attempts_that_meet_a_fault() {
        let struck = |rate| faults(rate, 7).iter().filter(|fault| **fault != Fault::none()).count();
        assert_eq!((struck(0.0), struck(1.0)), (0, 1000));
        // 200 expected; the standard deviation is below 13.
        assert!((140..260).contains(&struck(0.2)), "{}", struck(0.2));
    }

    #[test]
    fn the_same_seed_gives_the_same_faults_and_another_one_others() {
        assert_eq!(faults(0.5, 7), faults(0.5, 7));
        assert_ne!(faults(0.5, 7), faults(0.5, 8));
    }

    #[test]
    fn every_kind_of_fault_comes_up() {
        let kinds = |fault: &Fault| {
            fault.to_string().chars().filter(|c| !c.is_ascii_digit()).collect::<String>()
                + if fault.to_string().contains("502") { "!" } else { "" }
        };
        let kinds: std::collections::BTreeSet<String> = faults(1.0, 1).iter().map(kinds).collect();
        assert_eq!(kinds.len(), 10, "{kinds:?}");
    }

    #[test]
    fn the_attempts_of_one_operation_meet_faults_of_their_own() {
        let chaos = Chaos { rate: 1.0, seed: 3 };
        let of: Vec<Fault> = (1..=8).map(|attempt| chaos.fault(&SeenRequest::sample("{}", attempt))).collect();
        assert!(of.iter().any(|fault| *fault != of[0]), "{of:?}");
    }
}
