//! The clock: the current epoch, the way in which sections are entered, and the grace periods that
//! are over.
//!
//! ```text
//!   CLOCK      62 bits epoch | SWAP | ACTIVE    moved by read-modify-writes only
//!   a record   62 bits epoch | SWAP | ACTIVE    the clock as the section found it; 0 outside sections
//!   COMPLETED  62 bits epoch | 0    | 0         every grace period up to here is over
//! ```
//!
//! - I1. Every change of the clock is a read-modify-write, so each one is in the release sequence
//!   of all before it: a thread that acquires an epoch sees everything that happened before any
//!   earlier epoch was made.
//! - I2. SWAP is set in the first value. It is cleared once at most, by the start-up detection,
//!   and set again once at most, for ever, when the barrier is lost.
//! - I3. `COMPLETED` never decreases; it reaches `t` only after a scan for an epoch of at least
//!   `t`.
//! - E1. tag (after an unlink) → enter: AcqRel → Acquire on the clock. A section with an epoch of
//!   the tag or later sees the unlink. Loom:
//!   `loom_a_retired_item_waits_for_the_sections_that_may_see_it`.
//! - E2. end of a scan → `is_over`: Release → Acquire on `COMPLETED`. Loom: the same model.

use crate::atomic::{AtomicU64, Ordering};
use crate::mutation::{Mutation, active};
use crate::{CachePadded, interleave};

/// In a record's word: a section is entered. Always set in the clock, so that a section stores the
/// clock as it is.
pub(super) const ACTIVE: u64 = 1;
/// In the clock: sections are entered by a swap.
pub(crate) const SWAP: u64 = 2;
/// One epoch.
const STEP: u64 = 4;

crate::global! {
    static CLOCK: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(STEP | SWAP | ACTIVE));
    static COMPLETED: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));
    /// The epoch from which every section is entered by a swap because the barrier was lost; 0: it
    /// was not.
    static LOST: AtomicU64 = AtomicU64::new(0);
}

/// A moment between unlinking memory and using it again; see [`tag`].
///
/// Epochs are ordered: when a later one [is over](Epoch::is_over), so are all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub(crate) u64);

impl Epoch {
    /// Returns whether every section that was begun before this epoch is over. It never waits; it
    /// becomes true when a thread calls [`synchronize`](super::synchronize) after the epoch was
    /// taken.
    pub fn is_over(self) -> bool {
        completed() >= self
    }
}

/// Draws the epoch of memory that was unlinked *before* this call. Once it [is
/// over](Epoch::is_over), no section sees that memory any more.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::grace;
///
/// let epoch = grace::tag();
/// assert!(!epoch.is_over());
/// grace::synchronize(grace::Form::Quiet);
/// assert!(epoch.is_over());
/// # }
/// ```
#[must_use]
pub fn tag() -> Epoch {
    interleave::point();
    if active(Mutation::TagByLoad) {
        // ORDERING: Acquire; the fault is that a load may find an older epoch than the unlink.
        return Epoch((CLOCK.load(Ordering::Acquire) & !(ACTIVE | SWAP)) + STEP);
    }
    // ORDERING: AcqRel; pairs with the Acquire load in `now` (E1) and with other tags (I1). A load
    // could be satisfied before the unlink is visible: a section of this epoch could still follow
    // the old link. Without Release a section of this epoch might not see the unlink; without
    // Acquire a grace period that covers an earlier tag might not.
    let before = CLOCK.fetch_add(STEP, Ordering::AcqRel);
    Epoch((before & !(ACTIVE | SWAP)) + STEP)
}

/// The clock's word, as a reader enters with it.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // ORDERING: Acquire; pairs with the RMW in `tag` (E1). Weaker, a section of a new epoch could
    // follow an old link.
    CLOCK.load(Ordering::Acquire)
}

/// The newest epoch that is over.
pub(super) fn completed() -> Epoch {
    // ORDERING: Acquire; pairs with the Release of `complete` (E2): the writes of the sections come
    // before.
    Epoch(COMPLETED.load(Ordering::Acquire))
}

/// Notes that a scan for `target` found every section of an earlier epoch over.
pub(super) fn complete(target: Epoch) {
    // ORDERING: AcqRel; Release pairs with the Acquire in `completed` (E2), without it memory could
    // be reused while the last accesses of a section are still to come. The maximum keeps I3 when
    // two scans end in the other order.
    COMPLETED.fetch_max(target.0, Ordering::AcqRel);
}

/// From now on sections are entered by a store. Only for the start-up detection (I2), and models
/// after it.
pub(crate) fn let_readers_store() {
    // ORDERING: AcqRel, a link in the chain of I1. A reader may see it late: a swap serves as well
    // as a store.
    CLOCK.fetch_and(!SWAP, Ordering::AcqRel);
}

/// From now on, and for ever, sections are entered by a swap. Returns the first epoch for which
/// this holds.
pub(crate) fn lose_the_barrier() -> Epoch {
    // ORDERING: AcqRel, a link in the chain of I1: the epoch below is made after it, so a reader of
    // that one swaps.
    CLOCK.fetch_or(SWAP, Ordering::AcqRel);
    let since = tag();
    // ORDERING: AcqRel, Acquire; a reader of the word sees the clock changed. The first caller's
    // epoch stays: any epoch made after the change is right, and one for all keeps the proofs.
    match LOST.compare_exchange(0, since.0, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => since,
        Err(first) => Epoch(first),
    }
}

/// The epoch from which sections are entered by a swap because the barrier was lost.
pub(super) fn barrier_lost() -> Option<Epoch> {
    // ORDERING: Acquire; pairs with the exchange in `lose_the_barrier`.
    match LOST.load(Ordering::Acquire) {
        0 => None,
        since => Some(Epoch(since)),
    }
}
