//! A hazard record: the place that its owner uses now.
//!
//! ```text
//!   128 bytes   owner      the thread id of the lease's owner, 0: free
//!               place      the key of the place that is pinned, 0: none
//!               since      0, NOTING, or when the pin was first known, in nanoseconds
//!               swapped    the clock at the last claim of a lease that pins places by a swap
//!               long_use   1: its owner reads no other place now, it uses the one that is pinned
//! ```
//!
//! - I1. Only the owner writes `place`, `swapped` and `long_use`. A scan reads; its exchanges
//!   change no value.
//! - I2. A record with `owner` 0 has `place` 0.
//! - I3. `since` is set to 0 before `place` is set, so a thread that sees a pin sees no time of an
//!   earlier one.
//! - E1. unpin → scan: Release → Acquire on `place`. Loom:
//!   `loom_a_pin_never_sees_a_value_that_was_given_back`.
//! - E2. give back → claim: Release → Acquire on `owner`. Loom:
//!   `loom_a_record_has_one_lease_at_a_time`.
//! - E3. claim ↔ withdrawal: a fence on each side. Either the withdrawal sees the record claimed,
//!   or the pins of the lease see the place empty. Loom: that of E1.
//! - E4. pin ↔ withdrawal: a store and the withdrawal's barrier, or exchanges of `place` on both
//!   sides. Loom: that of E1.
//! - E5. unpin ↔ wait: as E4, so either the scan sees the place left, or the leaving thread sees
//!   that another one waits. Loom: `loom_a_detached_value_runs_once_and_after_the_last_pin`.
//! - E6. long use ↔ withdrawal: a fence on each side, after the end of the long use and after the
//!   place was emptied. A withdrawal that sees a record in long use sees its pin, and later reads
//!   of that record's owner find the place empty. Loom: `loom_a_walk_after_a_long_use_..`.

use core::cell::Cell;
use core::sync::atomic::compiler_fence;

use crate::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use crate::grace::epoch::{self, Epoch, SWAP};
use crate::grace::{Evidence, registry};
use crate::mutation::{Mutation, active};
use crate::{interleave, ticks};

/// In `since`: a thread is about to note the time.
const NOTING: u64 = 1;

crate::thread_local! {
    // Without a destructor, so that leases can be taken at any time in a thread's life. 0: not read
    // yet.
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
pub(super) enum PinBy {
    /// By a store; the withdrawal makes the barrier.
    Store,
    /// By a swap.
    Swap,
}

/// The answer of a scan about one record and one place.
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
#[derive(Debug)]
#[cfg_attr(memgroup_loom, derive(Default))]
#[repr(align(128))]
pub(super) struct Record {
    owner: AtomicU32,
    place: AtomicUsize,
    since: AtomicU64,
    swapped: AtomicU64,
    long_use: AtomicU32,
}

impl Record {
    #[cfg(not(memgroup_loom))]
    pub(super) const fn new() -> Self {
        Self {
            owner: AtomicU32::new(0),
            place: AtomicUsize::new(0),
            since: AtomicU64::new(0),
            swapped: AtomicU64::new(0),
            long_use: AtomicU32::new(0),
        }
    }

    /// Claims the record for the thread `owner`, if it is free.
    pub(super) fn claim(&self, owner: u32) -> Option<PinBy> {
        // ORDERING: Relaxed; a hint, the exchange decides.
        if self.owner.load(Ordering::Relaxed) != 0 {
            return None;
        }
        interleave::point();
        if active(Mutation::LeaseClaimsByStore) {
            // ORDERING: Release; the fault is that two threads can both have seen it free.
            self.owner.store(owner, Ordering::Release);
        } else {
            // ORDERING: AcqRel, Relaxed; Acquire pairs with `give_back` (E2), without it two
            // owners' writes could be mixed, and with the exchange of a scan for proofs, after
            // which the clock has SWAP. Release continues that chain.
            self.owner.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        }
        if !active(Mutation::LeaseClaimsWithoutFence) {
            // ORDERING: SeqCst; pairs with the fence in `Place::withdraw` (E3): claim then read a
            // place here, empty the place then read the claims there. Without it both could miss.
            fence(Ordering::SeqCst);
        }
        let clock = epoch::now();
        if clock & SWAP == 0 {
            return Some(PinBy::Store);
        }
        // ORDERING: Release; pairs with the Acquire in `is_proven`: a scan that finds it (lost
        // barrier) knows that the leases before this one are over. Weaker, a processor could show
        // it before the last pin by a store. No model shows that: loom has the stores of `place` in
        // the order in which they ran, so the scan's exchange finds the last one, and acquires its
        // writes.
        self.swapped.store(clock, Ordering::Release);
        Some(PinBy::Swap)
    }

    /// Gives the record back; it has no pin any more.
    pub(super) fn give_back(&self) {
        if active(Mutation::LeaseEndsByStore) {
            // ORDERING: Release; the fault is that a scan for proofs and the read that follows here
            // can miss each other.
            return self.owner.store(0, Ordering::Release);
        }
        let relaxed = active(Mutation::LeaseEndsRelaxed);
        // ORDERING: AcqRel; Release pairs with `claim` (E2) and `is_claimed`: uses under the lease
        // come before. Acquire pairs with the exchange in `is_proven` (`domain` E2): a scan that
        // found the lease in force came before, and so did the entry in the list of departures that
        // wait for its end.
        self.owner.swap(0, if relaxed { Ordering::Relaxed } else { Ordering::AcqRel });
    }

    pub(super) fn is_claimed(&self) -> bool {
        // ORDERING: Acquire; pairs with `give_back`: the uses of a lease that is over come before.
        // The fences make sure that no new lease is missed (E3).
        self.owner.load(Ordering::Acquire) != 0
    }

    /// Returns whether it is claimed, and may be about to read places: only a barrier orders those
    /// reads.
    pub(super) fn may_pin(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `begin_long_use` (E6): the pin before it is
        // seen.
        self.is_claimed() && self.long_use.load(Ordering::Acquire) == 0
    }

    /// Until `end_long_use` its owner reads no other place.
    #[inline]
    pub(super) fn begin_long_use(&self) {
        let relaxed = active(Mutation::LongUseRelaxed);
        // ORDERING: Release; pairs with `may_pin` (E6). Weaker, the pin could be missed.
        self.long_use.store(1, if relaxed { Ordering::Relaxed } else { Ordering::Release });
        interleave::point();
    }

    /// Its owner may read other places again.
    #[inline]
    pub(super) fn end_long_use(&self) {
        interleave::point();
        // ORDERING: Relaxed; the fence that follows (E6).
        self.long_use.store(0, Ordering::Relaxed);
        if !active(Mutation::LongUseEndsWithoutFence) {
            // ORDERING: SeqCst; pairs with the fence in `Place::withdraw` (E6). Without it the
            // owner could still find the value of a place that was emptied during the long use, and
            // without a barrier because of it.
            fence(Ordering::SeqCst);
        }
    }

    /// From now on the place with this key is in use, if it turns out to have a value.
    #[inline(always)]
    pub(super) fn pin(&self, key: usize, by: PinBy) {
        // ORDERING: Relaxed; seen with the pin (I3).
        self.since.store(0, Ordering::Relaxed);
        interleave::point();
        if by == PinBy::Swap && !active(Mutation::PinByStore) {
            self.pin_by_swap(key);
        } else {
            let relaxed = active(Mutation::NextPinRelaxed);
            // ORDERING: Release; pairs with the scan's Acquire: a scan that sees this pin knows
            // that the one before it on this record is over. Loom:
            // `loom_a_pin_by_a_store_ends_the_one_before`. The withdrawal's barrier makes the pin
            // visible before the place is read (E4).
            self.place.store(key, if relaxed { Ordering::Relaxed } else { Ordering::Release });
            // The barrier orders the processor; this orders the compiler.
            compiler_fence(Ordering::SeqCst);
        }
        interleave::point();
    }

    #[cold]
    #[inline(never)]
    fn pin_by_swap(&self, key: usize) {
        // ORDERING: AcqRel; pairs with the scan's exchange of this word (E4). One of the two is
        // first: either the scan sees this pin, or this pin sees the place empty. Weaker, both
        // could miss.
        self.place.swap(key, Ordering::AcqRel);
    }

    /// The pinned value is not used any more. The caller then checks whether another thread waits
    /// for that (E5).
    #[inline(always)]
    pub(super) fn unpin(&self, by: PinBy) {
        interleave::point();
        let order = if active(Mutation::UnpinRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        if by == PinBy::Swap && !active(Mutation::UnpinByStore) {
            self.unpin_by_swap(order);
        } else {
            // ORDERING: Release; pairs with the scan's Acquire (E1). Weaker, the value could be
            // given back before its last use.
            #[cfg(not(memgroup_loom))]
            self.place.store(0, order);
            // ORDERING: that of the store. To loom a store and another thread's exchange that the
            // storing thread did not see have no order, so the exchange could outlast the store: a
            // model exchanges.
            #[cfg(memgroup_loom)]
            self.place.swap(0, order);
            // As in `pin`; here for the check that follows.
            compiler_fence(Ordering::SeqCst);
        }
        interleave::point();
    }

    #[cold]
    #[inline(never)]
    fn unpin_by_swap(&self, release: Ordering) {
        // ORDERING: AcqRel; Release as in `unpin` (E1). Acquire pairs with the scan's exchange
        // (E5): a scan that found the place in use came before, and so did the LEAVING of the
        // thread that waits.
        let order = if release == Ordering::Release { Ordering::AcqRel } else { Ordering::Acquire };
        self.place.swap(0, order);
    }

    /// The key of the pinned place, 0 for none, and whether no other place can be pinned
    /// invisibly. The scan is by the thread `me` and uses `evidence`.
    pub(super) fn scan(&self, evidence: Evidence, me: u32) -> (usize, bool) {
        // The proof first, the word after it: a pin by a store before the proof is over by then.
        let proven = match evidence {
            Evidence::Proofs { since } => {
                self.is_proven(since, me) || active(Mutation::LostBarrierNeedsNoProof)
            }
            Evidence::Loads | Evidence::Exchanges => true,
        };
        interleave::point();
        let place = if evidence == Evidence::Loads || active(Mutation::PinsAreScannedByLoads) {
            // ORDERING: Acquire; pairs with the Release in `unpin` (E1). That no pin hides is the
            // barrier's work.
            self.place.load(Ordering::Acquire)
        } else {
            // ORDERING: AcqRel; pairs with the swaps in `pin` and `unpin` (E4, E5). By a load this
            // and a pin could miss each other.
            self.place.fetch_or(0, Ordering::AcqRel)
        };
        (place, proven)
    }

    /// Returns whether the place with this key may be in use on this record, by a `scan`.
    pub(super) fn scan_for(&self, key: usize, evidence: Evidence, me: u32) -> Found {
        match self.scan(evidence, me) {
            (place, _) if place == key => Found::Pin,
            // It may name any other place: the owner may have left that one for this.
            (_, false) => Found::Unproven,
            _ => Found::Nothing,
        }
    }

    /// Returns whether every pin by a store before the barrier was lost is over, or visible to the
    /// thread `me`.
    fn is_proven(&self, since: Epoch, me: u32) -> bool {
        // ORDERING: Acquire; pairs with the Release in `claim`: the leases before this one are
        // over.
        if self.swapped.load(Ordering::Acquire) >= since.0 {
            return true;
        }
        // ORDERING: AcqRel; Acquire pairs with `give_back`: the last owner's pins are over. Release
        // pairs with `claim`: a thread that claims after this sees the clock, and swaps; and with
        // `give_back`: a lease that ends after this sees that a departure waits for that. By a load
        // either could slip between. A thread sees its own pins.
        let owner = self.owner.fetch_or(0, Ordering::AcqRel);
        owner == 0 || owner == me
    }

    /// Returns whether a place is pinned; asked by the lease's owner.
    #[inline(always)]
    pub(super) fn is_used(&self) -> bool {
        // ORDERING: Relaxed; the owner's own word (I1).
        self.place.load(Ordering::Relaxed) != 0
    }

    /// Returns whether the calling thread's lease is on this record and has the place pinned.
    pub(super) fn is_used_by(&self, key: usize, me: u32) -> bool {
        // ORDERING: Relaxed, both; the values that make it true are this thread's own writes.
        self.owner.load(Ordering::Relaxed) == me && self.place.load(Ordering::Relaxed) == key
    }

    /// The key of the pinned place; for reports.
    pub(super) fn pinned(&self) -> usize {
        // ORDERING: Acquire; a thread that reads the owner next reads the one that pinned, or a
        // later one.
        self.place.load(Ordering::Acquire)
    }

    /// The owner's thread id; for reports.
    pub(super) fn owner(&self) -> u32 {
        // ORDERING: Relaxed; a number for reports.
        self.owner.load(Ordering::Relaxed)
    }

    /// Notes that the pin is in force now; called by the owner.
    pub(super) fn stamp(&self) {
        // ORDERING: Relaxed; a time for reports. It overwrites any earlier note, which makes the
        // time shorter.
        self.since.store(now(), Ordering::Relaxed);
    }

    /// For how long, in nanoseconds, the pin is known to be in force; the first call for a pin
    /// notes the time.
    pub(super) fn known_for(&self) -> u64 {
        // ORDERING: Relaxed, this and the next: the exchanges of one word are in one order. A pin
        // that begins in between sets it to 0, so the second exchange succeeds only if the clock
        // was read during the pin.
        let seen = match self.since.compare_exchange(0, NOTING, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => NOTING,
            Err(seen) => seen,
        };
        let now = now();
        if seen != NOTING {
            return now.saturating_sub(seen);
        }
        // ORDERING: Relaxed, as above. It fails if this pin is over, or another thread has noted it
        // just now.
        let _ = self.since.compare_exchange(NOTING, now, Ordering::Relaxed, Ordering::Relaxed);
        0
    }
}

/// The monotonic clock, plus 2: above the values of `since` that are no time.
fn now() -> u64 {
    ticks::monotonic() + 2
}
