//! Mutations: deliberate faults that the loom models must catch.
//!
//! Each model of grace periods has a twin that runs it with one fault switched on and must fail. Outside loom builds
//! `active` is a constant `false` and the faults do not exist.

/// One deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(memgroup_loom), allow(dead_code))]
pub(crate) enum Mutation {
    /// A section is entered by a store although no barrier stands on the writer's side.
    EnterByStore,
    /// A scan reads the records by loads although no barrier was made.
    ScanByLoads,
    /// A section leaves without publishing what it did.
    LeaveRelaxed,
    /// A nested section takes the newer epoch.
    NestedTakesNewEpoch,
    /// The end of a nested section ends the outer one.
    NestedLeaveIsLast,
    /// A brief section that is extended takes the newer epoch.
    ExtendTakesNewEpoch,
    /// A brief section that is extended leaves its word before it is in the other.
    ExtendLeavesFirst,
    /// A scan looks for an extended section where it goes to before it looks where it comes from.
    ScanLooksAtWordFirst,
    /// The tag of a retired item is read by a load.
    TagByLoad,
    /// A grace period counts as completed from the bump on, before the scan.
    CompletedBeforeScan,
    /// Who waited behind another takes that one's grace period for its own.
    FollowerTakesAnyGracePeriod,
    /// A free record is claimed by a load and a store.
    ClaimByStore,
    /// A record is given back without publishing what its owner did.
    GiveBackRelaxed,
    /// After the barrier is lost, a record without a section needs no proof.
    LostBarrierNeedsNoProof,
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
