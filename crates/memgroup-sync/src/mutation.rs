//! Deliberate faults that the loom models must catch.

crate::mutations! {
    /// A section is entered by a store although no barrier stands on the writer's side.
    EnterByStore,
    /// A scan reads the records by loads although no barrier was made.
    ScanByLoads,
    /// A section leaves without publishing its writes.
    LeaveRelaxed,
    /// A nested section takes the newer epoch.
    NestedTakesNewEpoch,
    /// The end of a nested section ends the outer one.
    NestedLeaveIsLast,
    /// The tag of a retired item is read by a load.
    TagByLoad,
    /// A grace period counts as completed from the bump on, before the scan.
    CompletedBeforeScan,
    /// A look at a grace period passes over sections that are in force.
    PollPassesOverSections,
    /// A caller that waited for another's grace period takes it for its own.
    FollowerTakesAnyGracePeriod,
    /// A free record is claimed by a load and a store.
    ClaimByStore,
    /// A record is given back without publishing its owner's writes.
    GiveBackRelaxed,
    /// After the barrier is lost, a record without a section needs no proof.
    LostBarrierNeedsNoProof,
    /// A value is published by a relaxed exchange.
    PublishRelaxed,
    /// A section follows a pointer from a relaxed load.
    GetRelaxed,
    /// A published value is taken out by a relaxed exchange.
    TakeRelaxed,
    /// A published value is taken out by a load and a store.
    TakeByStore,
    /// A value that is retired is dropped at once.
    RetireFreesAtOnce,
    /// A scan finds new blocks of records by a load.
    NextBlockIsLoaded,
    /// A place is vacated without publishing what came before.
    VacateRelaxed,
    /// The users of places are listed without a fence.
    UsersWithoutFence,
    /// A pin by a store publishes nothing of the pin before.
    NextPinRelaxed,
    /// A place is pinned by a store although the withdrawal makes no barrier.
    PinByStore,
    /// A pin ends by a store although the waiting thread makes no barrier.
    UnpinByStore,
    /// A pin ends without publishing the writes before.
    UnpinRelaxed,
    /// Pins are scanned by loads although no barrier was made.
    PinsAreScannedByLoads,
    /// A free hazard record is claimed by a load and a store.
    LeaseClaimsByStore,
    /// A lease reads places without a fence after its claim.
    LeaseClaimsWithoutFence,
    /// A lease ends without publishing the writes under it.
    LeaseEndsRelaxed,
    /// A lease ends by a store, and then checks for deferred departures.
    LeaseEndsByStore,
    /// A withdrawal reads the leases without a fence.
    WithdrawsWithoutFence,
    /// A long use begins without publishing the pin.
    LongUseRelaxed,
    /// A long use ends without a fence.
    LongUseEndsWithoutFence,
    /// A value is put into a place by a relaxed store.
    PutRelaxed,
    /// A pin follows a pointer from a relaxed load.
    PinFollowsRelaxed,
    /// A wait for the last use assumes that there is none.
    WaitAssumesNoUser,
    /// The closure of a detached value runs at once.
    DetachRunsAtOnce,
    /// Detaching scans for users before the last of them can find the departure.
    DetachScansFirst,
    /// A thread that leaves a place ends the departure although others use it.
    DepartureIgnoresOthers,
}
