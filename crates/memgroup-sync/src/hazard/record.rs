//! A hazard record: which place its owner uses now.
//!
//! ```text
//!   128 bytes   owner      the thread id of who holds the lease, 0: free
//!               place      the key of the place that is pinned, 0: none
//!               since      0, SETTLING, or when the pin was first known, in nanoseconds
//!               swapped    the clock at the last claim of a lease whose places are pinned by a swap
//!               dwells     1: its owner does not look at places now, it is in the one that is pinned
//! ```
//!
//! - I1. `place`, `swapped` and `dwells` are written by the owner alone. A scan reads, and where it exchanges it exchanges nothing.
//! - I2. A record whose `owner` is 0 has `place` 0.
//! - I3. `since` is set to 0 before `place` is set, so who sees a pin sees no time of an earlier one.
//! - E1. unpin → scan: Release → Acquire on `place`. Loom: `loom_a_pin_never_sees_a_value_that_was_given_back`.
//! - E2. give back → claim: Release → Acquire on `owner`. Loom: `loom_a_record_has_one_lease_at_a_time`.
//! - E3. claim ↔ withdrawal: a fence on each side. Either the withdrawal sees the record claimed, or the pins of the lease see
//!   the place empty. Loom: that of E1.
//! - E4. pin ↔ withdrawal: a store and the withdrawal's barrier, or exchanges of `place` on both sides. Loom: that of E1.
//! - E5. unpin ↔ who waits: as E4, so either the scan sees the place left, or who leaves sees that it is waited for.
//!   Loom: `loom_what_is_detached_runs_once_and_after_the_last_pin`.
//! - E6. dwell ↔ withdrawal: a fence on each side, after the end of the dwelling and after the place was emptied. Who sees a record dwell
//!   sees what is pinned on it, and whatever it looks at afterwards finds the place empty. Loom: `loom_a_walk_that_dwelt_..`.

use core::cell::Cell;
use core::sync::atomic::compiler_fence;

use super::occupant;
use crate::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use crate::grace::Evidence;
use crate::grace::epoch::{self, Epoch, SWAP};
use crate::grace::registry;
use crate::interleave;
use crate::mutation::{Mutation, active};

/// In `since`: somebody is about to note the time.
const SETTLING: u64 = 1;

crate::thread_local! {
    // Without a destructor, so that leases can be taken at any time in a thread's life. 0: not asked for yet.
    static THREAD_ID: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread's number, never 0.
pub(super) fn thread_id() -> u32 {
    THREAD_ID.with(|id| {
        if id.get() == 0 {
            id.set(registry::thread_id());
        }
        id.get()
    })
}

/// How places are pinned under a lease, from its claim to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// By a store; who withdraws makes the barrier.
    Store,
    /// By a swap.
    Swap,
}

/// What a scan found in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The place is not used on it.
    Nothing,
    /// The place is pinned.
    Pin,
    /// The barrier is lost, and the place may be pinned invisibly.
    Unproven,
}

/// One lease's record, in lines of its own.
#[repr(align(128))]
pub(super) struct Record {
    owner: AtomicU32,
    place: AtomicUsize,
    since: AtomicU64,
    swapped: AtomicU64,
    dwells: AtomicU32,
}

/// Words that are all zero: what a fresh record is.
macro_rules! fresh {
    () => {
        Self {
            owner: AtomicU32::new(0),
            place: AtomicUsize::new(0),
            since: AtomicU64::new(0),
            swapped: AtomicU64::new(0),
            dwells: AtomicU32::new(0),
        }
    };
}

impl Record {
    #[cfg(not(memgroup_loom))]
    pub(super) const fn new() -> Self {
        fresh!()
    }

    #[cfg(memgroup_loom)]
    pub(super) fn new() -> Self {
        fresh!()
    }

    /// Takes the record for the thread `owner`, if it is free.
    pub(super) fn claim(&self, owner: u32) -> Option<Entry> {
        // ORDERING: Relaxed; a hint, the exchange decides.
        if self.owner.load(Ordering::Relaxed) != 0 {
            return None;
        }
        interleave::point();
        if active(Mutation::LeaseClaimsByStore) {
            // ORDERING: Release; the fault is that two threads can both have seen it free.
            self.owner.store(owner, Ordering::Release);
        } else {
            // ORDERING: AcqRel, Relaxed; Acquire pairs with `give_back` (E2), without it two owners' writes could be mixed, and with
            // the exchange of a scan for proofs, after which the clock says swap. Release continues that chain.
            self.owner.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        }
        if !active(Mutation::LeaseClaimsWithoutFence) {
            // ORDERING: SeqCst; pairs with the fence in `Place::withdraw` (E3): claim then look at a place here, empty the place
            // then look at the claims there. Without it both could miss.
            fence(Ordering::SeqCst);
        }
        let clock = epoch::now();
        if clock & SWAP == 0 {
            return Some(Entry::Store);
        }
        // ORDERING: Release; a scan that finds it (lost barrier) knows that the leases before this one are over.
        self.swapped.store(clock, Ordering::Release);
        Some(Entry::Swap)
    }

    /// Nothing is pinned any more.
    pub(super) fn give_back(&self) {
        if active(Mutation::LeaseEndsByStore) {
            // ORDERING: Release; the fault is that a scan for proofs and the look that follows here can miss each other.
            return self.owner.store(0, Ordering::Release);
        }
        let order = if active(Mutation::LeaseEndsRelaxed) { Ordering::Relaxed } else { Ordering::AcqRel };
        // ORDERING: AcqRel; Release pairs with `claim` (E2) and `is_claimed`: what was done under the lease is done before. Acquire
        // pairs with the exchange in `is_proven` (`domain` E2): a scan that found the lease in force came before, and so did the list
        // that says what waits for its end.
        self.owner.swap(0, order);
    }

    pub(super) fn is_claimed(&self) -> bool {
        // ORDERING: Acquire; pairs with `give_back`: the uses of a lease that is over were before. That no new one is missed is the
        // fences' work (E3).
        self.owner.load(Ordering::Acquire) != 0
    }

    /// Whether it is claimed, and may be about to look at places: what it finds is to be ordered by a barrier.
    pub(super) fn is_walking(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `dwell` (E6): what was pinned before is seen.
        self.is_claimed() && self.dwells.load(Ordering::Acquire) == 0
    }

    /// Until `walk_on` its owner looks at no place.
    #[inline]
    pub(super) fn dwell(&self) {
        let order = if active(Mutation::DwellRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        // ORDERING: Release; pairs with `is_walking` (E6). Weaker, the pin could be missed.
        self.dwells.store(1, order);
        interleave::point();
    }

    /// Its owner goes on looking at places.
    #[inline]
    pub(super) fn walk_on(&self) {
        interleave::point();
        // ORDERING: Relaxed; the fence that follows (E6).
        self.dwells.store(0, Ordering::Relaxed);
        if !active(Mutation::DwellEndsWithoutFence) {
            // ORDERING: SeqCst; pairs with the fence in `Place::withdraw` (E6). Without it a place that was emptied meanwhile, and without a
            // barrier because this was seen to dwell, could still be found full.
            fence(Ordering::SeqCst);
        }
    }

    /// The place with this key is in use from now on, if it turns out to have a value.
    #[inline(always)]
    pub(super) fn pin(&self, key: usize, entry: Entry) {
        // ORDERING: Relaxed; seen with the pin (I3).
        self.since.store(0, Ordering::Relaxed);
        interleave::point();
        if entry == Entry::Swap && !active(Mutation::PinByStore) {
            self.pin_by_swap(key);
        } else {
            // ORDERING: Release; pairs with the scan's Acquire: who sees this pin knows the one before it on this record to be
            // over. That it is seen before the place is looked at is the work of the withdrawal's barrier (E4).
            self.place.store(key, Ordering::Release);
            // The barrier orders what the processor does; this, what the compiler does.
            compiler_fence(Ordering::SeqCst);
        }
        interleave::point();
    }

    #[cold]
    #[inline(never)]
    fn pin_by_swap(&self, key: usize) {
        // ORDERING: AcqRel; pairs with the scan's exchange of this word (E4). One of the two is first: either the scan sees this
        // pin, or this pin sees the place empty. Weaker, both could miss.
        self.place.swap(key, Ordering::AcqRel);
    }

    /// What was pinned is not used any more. Who calls this looks next whether somebody waits for it (E5).
    #[inline(always)]
    pub(super) fn unpin(&self, entry: Entry) {
        interleave::point();
        let order = if active(Mutation::UnpinRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        if entry == Entry::Swap && !active(Mutation::UnpinByStore) {
            self.unpin_by_swap(order);
        } else {
            // ORDERING: Release; pairs with the scan's Acquire (E1). Weaker, the value could be given back before its last use.
            clear(&self.place, order);
            // As in `pin`; here for the look that follows.
            compiler_fence(Ordering::SeqCst);
        }
        interleave::point();
    }

    #[cold]
    #[inline(never)]
    fn unpin_by_swap(&self, release: Ordering) {
        // ORDERING: AcqRel; Release as in `unpin` (E1). Acquire pairs with the scan's exchange (E5): a scan that found the place in
        // use came before, and so did the word that says that it is waited for.
        let order = if release == Ordering::Release { Ordering::AcqRel } else { Ordering::Acquire };
        self.place.swap(0, order);
    }

    /// Whether the place with this key may be in use on this record, to a scan by the thread `me` that may believe `evidence`.
    pub(super) fn look(&self, key: usize, evidence: Evidence, me: u32) -> Found {
        // The proof first, the word after it: what is pinned by a store before the proof is over by then.
        let proven = match evidence {
            Evidence::Proofs { since } => {
                self.is_proven(since, me) || active(Mutation::LostBarrierNeedsNoProof)
            }
            Evidence::Loads | Evidence::Exchanges => true,
        };
        interleave::point();
        let place = if evidence == Evidence::Loads || active(Mutation::PinsAreScannedByLoads) {
            // ORDERING: Acquire; pairs with the Release in `unpin` (E1). That no pin hides is the barrier's work.
            self.place.load(Ordering::Acquire)
        } else {
            // ORDERING: AcqRel; pairs with the swaps in `pin` and `unpin` (E4, E5). By a load this and a pin could miss each other.
            self.place.fetch_or(0, Ordering::AcqRel)
        };
        match place {
            _ if place == key => Found::Pin,
            // Whatever place is seen: it may have been left for this one.
            _ if !proven => Found::Unproven,
            _ => Found::Nothing,
        }
    }

    /// What is pinned on this record, 0 for nothing, and whether anything else could be, to a scan by the thread `me` that may believe `evidence`.
    pub(super) fn used(&self, evidence: Evidence, me: u32) -> (usize, bool) {
        // The proof first, as in `look`.
        let is_proven = match evidence {
            Evidence::Proofs { since } => self.is_proven(since, me),
            Evidence::Loads | Evidence::Exchanges => true,
        };
        let place = match evidence {
            // ORDERING: Acquire; as in `look`.
            Evidence::Loads => self.place.load(Ordering::Acquire),
            // ORDERING: AcqRel; as in `look`.
            _ => self.place.fetch_or(0, Ordering::AcqRel),
        };
        (place, is_proven)
    }

    /// Whether everything that was pinned by a store before the barrier was lost is over, or visible to the thread `me`.
    fn is_proven(&self, since: Epoch, me: u32) -> bool {
        // ORDERING: Acquire; pairs with the Release in `claim`: the leases before this one are over.
        if self.swapped.load(Ordering::Acquire) >= since.0 {
            return true;
        }
        // ORDERING: AcqRel; Acquire pairs with `give_back`: the last owner's pins are over. Release pairs with `claim`: who claims after
        // this sees the clock, and swaps; and with `give_back`: a lease that ends after this sees that something waits for that. By a
        // load either could slip between. A thread sees its own pins.
        let owner = self.owner.fetch_or(0, Ordering::AcqRel);
        owner == 0 || owner == me
    }

    /// Whether a place is pinned; asked by who has the lease.
    #[inline(always)]
    pub(super) fn is_used(&self) -> bool {
        // ORDERING: Relaxed; the owner's own word (I1).
        self.place.load(Ordering::Relaxed) != 0
    }

    /// Whether the calling thread's lease is on this record and has the place pinned.
    pub(super) fn is_used_by(&self, key: usize, me: u32) -> bool {
        // ORDERING: Relaxed, both; true is only what this thread has written itself.
        self.owner.load(Ordering::Relaxed) == me && self.place.load(Ordering::Relaxed) == key
    }

    /// The owner's thread id and the key of what it has pinned: for people.
    pub(super) fn occupied(&self) -> Option<(u32, usize)> {
        // ORDERING: Acquire; who reads the owner next reads the one that pinned, or a later one.
        let place = self.place.load(Ordering::Acquire);
        // ORDERING: Relaxed; a number for people.
        (place != 0).then(|| (self.owner.load(Ordering::Relaxed), place))
    }

    pub(super) fn owner(&self) -> u32 {
        // ORDERING: Relaxed; a number for people.
        self.owner.load(Ordering::Relaxed)
    }

    /// The owner says that the pin is in force now.
    pub(super) fn stamp(&self) {
        // ORDERING: Relaxed; a time for people. Whatever was noted before is overwritten, which makes the time shorter.
        self.since.store(occupant::now(), Ordering::Relaxed);
    }

    /// For how long, in nanoseconds, the pin that is in force is known to be so; the first call for a pin notes the time.
    pub(super) fn known_for(&self) -> u64 {
        // ORDERING: Relaxed, this and what follows: the exchanges of one word are in one order. A pin that begins in between sets it
        // to 0, so the second exchange succeeds only if the clock was read during the pin.
        let seen = match self.since.compare_exchange(0, SETTLING, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => SETTLING,
            Err(seen) => seen,
        };
        let now = occupant::now();
        if seen != SETTLING {
            return now.saturating_sub(seen);
        }
        // ORDERING: Relaxed, as above. A failure means that it is not this pin any more, or that another has noted it just now.
        let _ = self.since.compare_exchange(SETTLING, now, Ordering::Relaxed, Ordering::Relaxed);
        0
    }
}

/// Stores 0. To loom a store and another thread's exchange that the storing thread did not see have no order, so the exchange could
/// outlast the store: a model exchanges.
#[inline(always)]
fn clear(word: &AtomicUsize, order: Ordering) {
    if cfg!(memgroup_loom) {
        // ORDERING: that of the store below.
        word.swap(0, order);
    } else {
        // ORDERING: the caller's, who says why.
        word.store(0, order);
    }
}
