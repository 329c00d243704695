//! The mistakes that servers make with keys, each as a server that makes it. Pure.

/// One mistake, for [`TestServerBuilder::defect`](super::TestServerBuilder::defect): a test suite that does not notice it
/// does not test what it seems to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Defect {
    /// A running operation does not hold off another attempt with its key.
    NoLock,
    /// Whether the key is free is looked up first and written down later: two attempts at once both find it free. Between
    /// the two lies [`At::BeforeClaim`](super::At::BeforeClaim).
    GetThenSet,
    /// A claim that is refused has overwritten the record all the same, with its own payload.
    OverwriteOnClaim,
    /// An attempt that waited for the running one executes without a claim when the record is gone by then. Shows where
    /// attempts [wait](super::WhileRunning::Wait).
    ProceedWhenRecordVanished,
    /// What is stored at completion has lost the payload's fingerprint: any payload gets the answer.
    FingerprintLostAtComplete,
    /// When the outcome cannot be stored, the record is deleted.
    DeleteWhenCompleteFails,
    /// An attempt that was told to wait deletes the record as it leaves.
    DeleteByNonOwner,
    /// An owner that was taken over may still complete: the token is not looked at.
    NoFencing,
    /// An answer over the cap leaves nothing behind, instead of a tombstone.
    LargeResponsesNotStored,
    /// The caller is not part of what a key belongs to.
    UnscopedKey,
    /// The endpoint is not part of what a key belongs to.
    PathNotInScope,
    /// The query is not part of the payload.
    QueryNotInFingerprint,
    /// The handler runs in the connection's future: a client that leaves stops it.
    ExecutionInConnection,
    /// A lease of zero is read as "there is none", and a record without a lease as one without an owner.
    LeaseZeroReadAsNone,
    /// At capacity the oldest key makes way, though its window has not ended.
    EvictionOfLiveKeys,
}

impl Defect {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::NoLock,
        Self::GetThenSet,
        Self::OverwriteOnClaim,
        Self::ProceedWhenRecordVanished,
        Self::FingerprintLostAtComplete,
        Self::DeleteWhenCompleteFails,
        Self::DeleteByNonOwner,
        Self::NoFencing,
        Self::LargeResponsesNotStored,
        Self::UnscopedKey,
        Self::PathNotInScope,
        Self::QueryNotInFingerprint,
        Self::ExecutionInConnection,
        Self::LeaseZeroReadAsNone,
        Self::EvictionOfLiveKeys,
    ];
}
