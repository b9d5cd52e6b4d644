//! The evidence that a scan of records may use.

use super::epoch::Epoch;

/// How a scan reads records, and the proof that it requires of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// Every running thread executed a barrier since the epoch was made: loads.
    Loads,
    /// Readers enter by a swap: exchanges of the words.
    Exchanges,
    /// As `Exchanges`, and each record must prove that its last section entered by a store is
    /// over.
    Proofs {
        /// The epoch from which every section is entered by a swap.
        since: Epoch,
    },
}
