//! Deliberate faults that the loom models must catch.

memgroup_sync::mutations! {
    /// A chunk can be allocated from while its pages go.
    IsolatedChunkIsVisible,
    /// A chunk can be unmapped while its pages go.
    ChunkInFlightIsUnmapped,
    /// A block is linked by a relaxed exchange.
    LinkPublishesNothing,
    /// A record that is unlinked lets accesses through.
    UnlinkLeavesSlotsEnabled,
    /// A record is retired with the flags of its slots.
    RetireLeavesSlotsEnabled,
    /// An access compares its index with the number of words before its section begins.
    LengthIsReadOutsideTheSection,
    /// A thread that links checks the records before it is the only one to link.
    LinkChecksRecordsFirst,
    /// A block that is retired is free at once.
    RetiredIsFreeAtOnce,
    /// A slot is enabled by a relaxed store.
    SlotIsEnabledRelaxed,
    /// A cell still leads to its word when it is retired.
    RetireLeavesTheWord,
    /// A word's last value is taken by a load and a store.
    TakeFinalByStore,
    /// An addition to a dead word counts as made.
    AddIgnoresTombstone,
    /// A value that is zero is not taken.
    TakeSkipsZero,
    /// A value is taken by a swap, a tombstone too.
    TakeBySwap,
    /// A mark's leaf bit is set before its upper bits.
    LeafBeforeUpperBits,
    /// A collector ignores markers under way.
    MarkersAreNotCounted,
    /// Markers are counted before the summary is cleared.
    MarkersAreReadEarly,
    /// Markers are not counted when the head is cleared.
    MarkersAreReadLate,
    /// Markers are counted by a load.
    MarkersAreReadByLoad,
    /// A leaf bit is cleared after its counters were taken.
    LeafIsClearedLate,
    /// Marks that a collection leaves have no upper bits.
    LeftIsNotRestored,
    /// Words that a piece of a collection leaves have no upper bits.
    PieceForgetsWords,
    /// Chunks that a piece of a collection leaves have no upper bits.
    PieceForgetsChunks,
    /// Whether a collection is under way is read once.
    CleanIsReadOnce,
}

/// Faults of this crate for the models of crates that build on it.
#[cfg(memgroup_loom)]
pub mod faults {
    use super::{Mutation, with};

    /// Runs `model` while a value that is zero is not taken.
    pub fn zeros_are_not_taken(model: impl FnOnce()) {
        with(Mutation::TakeSkipsZero, model);
    }

    /// Runs `model` while leaf bits of marks are cleared after their counters were taken.
    pub fn marks_are_cleared_late(model: impl FnOnce()) {
        with(Mutation::LeafIsClearedLate, model);
    }

    /// Runs `model` while marks are set from the leaf up.
    pub fn marks_are_set_from_below(model: impl FnOnce()) {
        with(Mutation::LeafBeforeUpperBits, model);
    }

    /// Runs `model` while it is read once whether a collection is under way.
    pub fn clean_is_asked_once(model: impl FnOnce()) {
        with(Mutation::CleanIsReadOnce, model);
    }
}
