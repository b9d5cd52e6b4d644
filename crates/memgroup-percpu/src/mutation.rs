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
