//! Deliberate faults that the loom models must catch.

memgroup_sync::mutations! {
    /// A thread that takes a slot's bytes for the engine reads them, and then stores 0.
    CollectsByStore,
    /// A thread that puts bytes into its slot reads the word, and then stores the sum.
    PutsByStore,
    /// A thread that opens a slot checks too early whether the group may have one.
    OpensWithoutALook,
    /// A thread begins to change its slots by stores without the fence.
    StoresWithoutFence,
    /// A thread that claims a record erases the words of the thread before.
    ClaimErases,
    /// A thread takes bytes out of other threads' records, and makes no barrier.
    CollectsWithoutBarrier,
    /// A thread takes bytes out of a record whose thread is between two stores.
    CollectsWithoutWaiting,
    /// A thread without a barrier takes bytes of a thread that may not have seen that.
    CollectsUnproven,
    /// A thread that settles its record does not prove that it makes no stores.
    SettlesWithoutProof,
    /// A thread checks its slots, and only then takes the mark.
    LooksBeforeTheMark,
    /// A thread ends although it should check its slots.
    EndsWhileDue,
}
