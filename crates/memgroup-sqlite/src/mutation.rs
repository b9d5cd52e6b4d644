//! Deliberate faults that the loom models must catch.

memgroup_sync::mutations! {
    /// A page is pinned again by a load and a store.
    ClaimByStore,
    /// A page is let go without publishing what was written to it.
    OfferRelaxed,
    /// A cache's lock is taken without seeing what its last holder did.
    LockRelaxed,
    /// A cache's lock is released without publishing what was done under it.
    UnlockRelaxed,
    /// A use that was told to stop ends without waiting for who tells it.
    KilledEndsUnlocked,
}
