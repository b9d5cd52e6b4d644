//! Deliberate faults that the loom models must catch.

crate::mutations! {
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
    /// A value is published without what was written to it.
    PublishRelaxed,
    /// A section follows a pointer without what was written behind it.
    GetRelaxed,
    /// A published value is taken out without what was written to it.
    TakeRelaxed,
    /// A published value is taken out by a load and a store.
    TakeByStore,
    /// A value that is retired is dropped at once.
    RetireFreesAtOnce,
    /// A place is pinned by a store although no barrier is made by who withdraws.
    PinByStore,
    /// A pin ends by a store although no barrier is made by who waits for it.
    UnpinByStore,
    /// A pin ends without publishing what was done in it.
    UnpinRelaxed,
    /// Pins are looked for by loads although no barrier was made.
    PinsAreScannedByLoads,
    /// A free hazard record is claimed by a load and a store.
    LeaseClaimsByStore,
    /// A lease looks at places without a fence after its claim.
    LeaseClaimsWithoutFence,
    /// A lease ends without publishing what was done under it.
    LeaseEndsRelaxed,
    /// A lease ends by a store, and looks then whether something waits for that.
    LeaseEndsByStore,
    /// Who withdraws looks for leases without a fence.
    WithdrawsWithoutFence,
    /// A walk that dwells in a place says so without what it has pinned.
    DwellRelaxed,
    /// A walk goes on from where it dwelt without a fence.
    DwellEndsWithoutFence,
    /// A value is put into a place without what was written to it.
    PutRelaxed,
    /// A pin follows a pointer without what was written behind it.
    PinFollowsRelaxed,
    /// Who waits for the last use believes that there is none.
    WaitLooksAtNobody,
    /// What is detached is done at once.
    DetachRunsAtOnce,
    /// Who detaches looks for users before the last of them can find what is to be done.
    DetachScansFirst,
    /// Who leaves a place does what was detached although others are in it.
    DepartureIgnoresOthers,
}
