//! Deliberate faults that the loom models must catch.

use memgroup_sync::atomic::Ordering;

memgroup_sync::mutations! {
    /// A claim of a recent page loads it instead of swapping it out.
    ClaimByLoad,
    /// A page becomes recent without publishing the bytes written to it.
    OfferRelaxed,
    /// A cache's lock is taken without seeing the changes of its last holder.
    LockRelaxed,
    /// A cache's lock is released without publishing the holder's changes.
    UnlockRelaxed,
    /// A killed run ends without waiting for the thread that interrupts it.
    KilledEndsUnlocked,
}

/// `ordering`, or `Relaxed` while the fault is active.
#[inline(always)]
pub(crate) fn weakened(fault: Mutation, ordering: Ordering) -> Ordering {
    // ORDERING: Relaxed only while the fault is active, which a model must catch.
    if active(fault) { Ordering::Relaxed } else { ordering }
}
