//! Deliberate faults that the loom models must catch.

memgroup_sync::mutations! {
    /// A thread that takes a slot's bytes for the engine reads them, and then stores 0.
    CollectsByStore,
    /// A thread that puts bytes into its slot reads the word, and then stores the sum.
    PutsByStore,
    /// A thread that opens a slot looks before whether the group may have one.
    OpensWithoutALook,
    /// A thread begins to change its slots by stores without the fence.
    StoresWithoutFence,
    /// A thread that claims a record erases the words of the thread before.
    ClaimErases,
}
