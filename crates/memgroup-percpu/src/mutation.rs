//! Mutations: deliberate faults that the loom models must catch.
//!
//! Each model of a protocol has a twin that runs it with one fault switched on and must fail. Outside loom builds `active` is a
//! constant `false` and the faults do not exist.

/// One deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(memgroup_loom), allow(dead_code))]
pub(crate) enum Mutation {
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
    /// An addition looks at the generation before it looks for the record.
    GenerationBeforeRecord,
    /// A set's generation changes only when its place has the next record.
    GenerationAfterNextRecord,
    /// A sum is taken while sets move.
    SumIgnoresMoves,
}

#[cfg(not(memgroup_loom))]
#[inline(always)]
pub(crate) const fn active(_: Mutation) -> bool {
    false
}

#[cfg(memgroup_loom)]
mod switch {
    use super::Mutation;
    use std::cell::Cell;

    // All threads of one loom model run on the OS thread of its test, so this is one switch a test.
    std::thread_local! {
        static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    pub(crate) fn active(mutation: Mutation) -> bool {
        ACTIVE.get() == Some(mutation)
    }

    /// Runs `model` with the fault on.
    #[cfg(test)]
    pub(crate) fn with(mutation: Mutation, model: impl FnOnce()) {
        ACTIVE.set(Some(mutation));
        model();
        ACTIVE.set(None);
    }
}
#[cfg(memgroup_loom)]
pub(crate) use switch::active;
#[cfg(all(test, memgroup_loom))]
pub(crate) use switch::with;
