//! Deliberate faults that the loom models must catch.

memgroup_sync::mutations! {
    /// A chunk can be allocated from while its pages go.
    IsolatedChunkIsVisible,
    /// A chunk can be unmapped while its pages go.
    ChunkInFlightIsUnmapped,
    /// A block is linked without publishing what was written into it.
    LinkPublishesNothing,
    /// A record that is unlinked lets accesses through.
    UnlinkLeavesDoorsOpen,
    /// A block that is retired is free at once.
    RetiredIsFreeAtOnce,
    /// A slot is open before its copies are prepared.
    SlotOpensBeforePrepare,
    /// A slot is opened without publishing what its copies were prepared with.
    SlotOpensPublishingNothing,
    /// Who prepares a slot sees that a record has memory, and not which.
    PrepareSeesDoorsAlone,
    /// A word is buried by a load and a store.
    BuryByStore,
    /// An addition to a dead word counts as made.
    AddIgnoresTombstone,
    /// A value that is zero is not taken.
    TakeSkipsZero,
    /// A value is taken by a swap, whatever it is.
    TakeBySwap,
    /// An addition looks at the generation before it looks for the record.
    GenerationBeforeRecord,
    /// A set's generation changes only when its place has the next record.
    GenerationAfterNextRecord,
    /// A sum is taken while sets move.
    SumIgnoresMoves,
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
    /// What a collection leaves has no upper bits.
    LeftIsNotSetAgain,
    /// What looks clean is not asked again whether it is collected.
    CleanWithoutSecondLook,
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

    /// Runs `model` while what looks clean is not asked again whether it is collected.
    pub fn clean_is_asked_once(model: impl FnOnce()) {
        with(Mutation::CleanWithoutSecondLook, model);
    }
}
