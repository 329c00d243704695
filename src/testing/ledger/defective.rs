//! What a ledger does wrong when it is told to. A sound one comes to none of this.

use super::{Claim, Id, Ledger, LedgerConfig, Record, Scope, State, Token};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::testing::defect::Defect;

impl Ledger {
    /// [`Defect::GetThenSet`], first half: whether the key looks free.
    pub(in crate::testing) fn looks_free(&self, scope: Scope, key: &str, now: Timestamp) -> bool {
        let id = Id { scope, key: key.to_owned() };
        self.records.get(&id).is_none_or(|record| record.has_expired(&self.config, now))
    }

    /// [`Defect::GetThenSet`], second half: takes the key, whatever has happened since.
    pub(in crate::testing) fn seize(
        &mut self,
        scope: Scope,
        key: &str,
        fingerprint: Fingerprint,
        now: Timestamp,
    ) -> Claim {
        let id = Id { scope, key: key.to_owned() };
        self.remove(&id);
        Claim::Acquired(self.insert(id, fingerprint, now))
    }

    /// [`Defect::ProceedWhenRecordVanished`]: a token that no record knows.
    pub(in crate::testing) fn trespass(&self, scope: Scope, key: &str) -> Token {
        Token { id: Id { scope, key: key.to_owned() }, fence: 0 }
    }

    /// [`Defect::DeleteByNonOwner`].
    pub(in crate::testing) fn delete(&mut self, scope: Scope, key: &str) {
        self.remove(&Id { scope, key: key.to_owned() });
    }

    /// [`Defect::DeleteWhenCompleteFails`].
    pub(in crate::testing) fn delete_claim(&mut self, token: &Token) {
        self.remove(&token.id);
    }

    /// [`Defect::OverwriteOnClaim`].
    pub(super) fn overwritten_if_defective(&mut self, id: &Id, fingerprint: Fingerprint) {
        if self.config.has(Defect::OverwriteOnClaim)
            && let Some(record) = self.records.get_mut(id)
        {
            record.fingerprint = fingerprint;
        }
    }

    /// [`Defect::EvictionOfLiveKeys`].
    pub(super) fn evict_if_defective(&mut self, bytes: usize) {
        while self.config.has(Defect::EvictionOfLiveKeys) && !self.has_room_for(bytes) {
            let Some(oldest) = self.records.iter().min_by_key(|(_, record)| record.fence) else { return };
            let id = oldest.0.clone();
            self.remove(&id);
        }
    }
}

impl Record {
    /// [`Defect::FingerprintLostAtComplete`].
    pub(super) fn is_forgetful(&self, config: &LedgerConfig) -> bool {
        config.has(Defect::FingerprintLostAtComplete) && !matches!(self.state, State::Running { .. })
    }
}

impl LedgerConfig {
    /// [`Defect::NoLock`] and [`Defect::LeaseZeroReadAsNone`].
    pub(super) fn holds_nobody_off(&self) -> bool {
        self.has(Defect::NoLock) || (self.has(Defect::LeaseZeroReadAsNone) && self.lease.is_zero())
    }
}
