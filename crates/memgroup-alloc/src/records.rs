//! Records: the slots of all threads. They outlive their threads.
//!
//! - I1. A record is never freed and never leaves the list. So the engine still finds the bytes in
//!   the slots of a thread that has ended, and the next thread that claims the record uses them.
//!   Loom: `loom_a_thread_that_ends_loses_no_bytes`.
//! - I2. A record is claimed by one thread at a time: by a compare-and-swap that sets CLAIMED.
//! - I3. The owner of a record changes a word of it by a store only while the record is *busy*, and
//!   its state is just CLAIMED. Another thread changes words by compare-and-swap, as the owner does
//!   outside of a busy stretch, and only if the owner stores nothing: it *is* the owner; or it has
//!   stopped the record, and that had no owner then; or it has stopped the record, made the
//!   barrier, and waited until the record is not busy; or the owner has proven that it saw CEASED.
//!   Loom: `loom_a_free_beside_a_refusal_loses_no_unit`,
//!   `loom_a_refusal_without_the_barrier_loses_no_unit`.
//! - I4. A mark (DUE) is set after a word of the record was found that should change. The owner
//!   takes the mark before it reads the words. So either it finds the reason for the mark, or the
//!   mark is set again. Loom: `loom_a_marked_record_is_settled_by_its_thread`.
//! - E1. enter ↔ stop: the owner marks the record busy, fences, and reads the state. The other
//!   thread stops the record, fences, and checks whether it is busy. One sees the other. The
//!   owner's fence only affects the compiler, because the other thread's fence is a barrier on all
//!   processors (`membarrier`). If the system has no such barrier, each record is made with CEASED.
//!   If the barrier is lost later, each record gets CEASED and DUE at that time, and its owner
//!   proves that it has seen them when it settles the record. Loom:
//!   `loom_a_thread_without_small_blocks_keeps_no_unit`.
//! - E2. give back ↔ mark: both are RMWs of the state. Either the ending thread sees the mark and
//!   settles the record, or the marking thread sees no owner and takes the bytes itself. Loom:
//!   `loom_a_removal_beside_the_end_of_a_thread_leaves_nothing`.
//! - P1. A thread that stops a record waits for a few instructions of its owner, or until the
//!   system lets it run.
//! - P2. The child of a fork has one thread. No record there is busy because of, or stopped by, a
//!   thread that the child lacks, and none has bytes (`begin_child`).

#![allow(unsafe_code)]

use core::ptr::null_mut;

use memgroup_sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use memgroup_sync::spin::Wait;

use crate::mutation::{self, Mutation};
use crate::slots::{Answer, Key, SLOTS, Slot, Slots, UNITS_MOST};

/// The units that a slot charges ahead, from its first miss on: 1 KiB.
const AHEAD_FIRST: u32 = 64;

/// The most units that it charges ahead: 32 KiB.
const AHEAD_MOST: u32 = 2048;

/// Bits of a record's state: a thread owns it.
const CLAIMED: u32 = 1 << 31;

/// The owner should check its slots as soon as it is outside the engine.
const DUE: u32 = 1 << 30;

/// The owner must never make stores again, because there is no barrier that could stop them.
const CEASED: u32 = 1 << 29;

// The bits below count the threads that have stopped the record.

/// The slots of one thread, and what it needs on slow paths.
pub(crate) struct Record {
    pub(crate) slots: Slots,
    /// The units that each slot charges ahead next.
    ahead: [AtomicU32; SLOTS],
    /// The most units that each slot holds back.
    mosts: [AtomicU32; SLOTS],
    /// The slot that gets another owner next.
    turn: AtomicU32,
    pub(crate) is_busy: AtomicBool,
    /// Whether the owner has seen CEASED, so that it makes no more stores.
    is_proven: AtomicBool,
    state: AtomicU32,
    /// The index of the slot that was used last, and the most units that it holds back.
    last: AtomicU32,
    most: AtomicU32,
    next: AtomicPtr<Record>,
}

impl Record {
    /// A record without owners, claimed by its maker.
    #[cfg(not(memgroup_loom))]
    pub(crate) const fn new(allows_stores: bool) -> Record {
        Record {
            slots: Slots::new(),
            ahead: [const { AtomicU32::new(AHEAD_FIRST) }; SLOTS],
            mosts: [const { AtomicU32::new(UNITS_MOST as u32) }; SLOTS],
            turn: AtomicU32::new(0),
            is_busy: AtomicBool::new(false),
            is_proven: AtomicBool::new(!allows_stores),
            state: AtomicU32::new(if allows_stores { CLAIMED } else { CLAIMED | CEASED }),
            last: AtomicU32::new(0),
            most: AtomicU32::new(UNITS_MOST as u32),
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// A record without owners, claimed by its maker.
    #[cfg(memgroup_loom)]
    pub(crate) fn new(allows_stores: bool) -> Record {
        Record {
            slots: Slots::new(),
            ahead: core::array::from_fn(|_| AtomicU32::new(AHEAD_FIRST)),
            mosts: core::array::from_fn(|_| AtomicU32::new(UNITS_MOST as u32)),
            turn: AtomicU32::new(0),
            is_busy: AtomicBool::new(false),
            is_proven: AtomicBool::new(!allows_stores),
            state: AtomicU32::new(if allows_stores { CLAIMED } else { CLAIMED | CEASED }),
            last: AtomicU32::new(0),
            most: AtomicU32::new(UNITS_MOST as u32),
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// Takes `units` out of the slot that was used last, if it belongs to `key` and the record is
    /// not stopped.
    #[inline(always)]
    pub(crate) fn take(&self, key: Key, units: u64) -> bool {
        if units > UNITS_MOST || !self.enter() {
            return false;
        }
        let is_taken = self.last().take_alone(key, units);
        self.leave();
        is_taken
    }

    /// Puts `units` into the slot that was used last, if it belongs to `key` and has room, and the
    /// record is not stopped.
    #[inline(always)]
    pub(crate) fn put(&self, key: Key, units: u64) -> bool {
        if units > UNITS_MOST || !self.enter() {
            return false;
        }
        // ORDERING: Relaxed, because only the owning thread uses it.
        let most = self.most.load(Ordering::Relaxed);
        let is_put = self.last().put_alone(key, units, u64::from(most));
        self.leave();
        is_put
    }

    #[inline(always)]
    fn last(&self) -> &Slot {
        // ORDERING: Relaxed, because only the owning thread uses it.
        self.slots.at(self.last.load(Ordering::Relaxed) as usize)
    }

    /// Returns the slot of `key`, or one without an owner, and the most units that it holds back.
    /// It becomes the last one used.
    pub(crate) fn find(&self, key: Key) -> Option<(&Slot, u64)> {
        let at = self.slots.find(key)?;
        // ORDERING: Relaxed, all, because only the owning thread uses them.
        let most = self.mosts[at].load(Ordering::Relaxed);
        self.last.store(at as u32, Ordering::Relaxed);
        self.most.store(most, Ordering::Relaxed);
        Some((self.slots.at(at), u64::from(most)))
    }

    /// The most units that slot `at` holds back.
    pub(crate) fn most(&self, at: usize) -> u64 {
        // ORDERING: Relaxed, because only the owning thread uses it.
        u64::from(self.mosts[at].load(Ordering::Relaxed))
    }

    /// Makes slot `at` hold back at most `most` units from now on.
    pub(crate) fn set_most(&self, at: usize, units: u64) {
        // ORDERING: Relaxed, all, because only the owning thread uses them.
        self.mosts[at].store(units as u32, Ordering::Relaxed);
        if self.last.load(Ordering::Relaxed) as usize == at {
            self.most.store(units as u32, Ordering::Relaxed);
        }
    }

    /// Starts changing a slot by stores. Returns `false` if the record's state forbids stores.
    #[inline(always)]
    pub(crate) fn enter(&self) -> bool {
        // ORDERING: Relaxed, because the fence orders it before the read of the state (E1).
        self.is_busy.store(true, Ordering::Relaxed);
        if !mutation::active(Mutation::StoresWithoutFence) {
            light();
        }
        // ORDERING: Acquire; pairs with the Release in `go_on`: the changes of the thread that
        // stopped the record are seen.
        if self.state.load(Ordering::Acquire) == CLAIMED {
            return true;
        }
        self.leave();
        false
    }

    #[inline(always)]
    pub(crate) fn leave(&self) {
        // ORDERING: Release; pairs with the Acquire in `wait_idle`: the stores are seen.
        self.is_busy.store(false, Ordering::Release);
    }

    /// Stops stores. This is in effect once the barrier was made and the record is idle.
    pub(crate) fn stop(&self) {
        // ORDERING: Relaxed, because the barrier orders it before the read of `is_busy` (E1).
        self.state.fetch_add(1, Ordering::Relaxed);
    }

    /// Stops a record that no thread owns. Returns `false` if one owns it. A thread that claims it
    /// later makes no stores before `go_on`.
    fn stop_without_owner(&self) -> bool {
        // ORDERING: Relaxed, because the RMW decides.
        if self.state.load(Ordering::Relaxed) & CLAIMED != 0 {
            return false;
        }
        // ORDERING: Acquire; pairs with the Release in `give_back`: the stores of the owner before
        // are seen. A claim is an RMW too, so it comes before this one, which sees it, or after,
        // and sees the stop.
        if self.state.fetch_add(1, Ordering::Acquire) & CLAIMED == 0 {
            return true;
        }
        self.go_on();
        false
    }

    /// Waits until the owner is not between two stores.
    fn wait_idle(&self) {
        let mut wait = Wait::new();
        // ORDERING: Acquire; pairs with the Release in `leave`.
        while self.is_busy.load(Ordering::Acquire) {
            wait.wait();
        }
    }

    /// Ends a stop.
    pub(crate) fn go_on(&self) {
        // ORDERING: Release; pairs with the Acquire in `enter`.
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// Makes the owner check its slots (`settle`) at its next block. Returns whether there is an
    /// owner.
    pub(crate) fn mark_due(&self) -> bool {
        // ORDERING: AcqRel; Release pairs with the Acquire in `settle`: the owner finds the reason
        // for the mark. Acquire pairs with the Release in `give_back`: the stores of the owner that
        // left.
        self.state.fetch_or(DUE, Ordering::AcqRel) & CLAIMED != 0
    }

    /// Forbids stores for ever, because the barrier is lost. The owner proves that it has seen this
    /// when it settles the record. Calling this once is enough, because the record stays due until
    /// then.
    fn cease(&self) {
        // ORDERING: Relaxed, because CEASED is never cleared.
        if self.state.load(Ordering::Relaxed) & CEASED == 0 {
            // ORDERING: AcqRel, as in `mark_due`.
            self.state.fetch_or(CEASED | DUE, Ordering::AcqRel);
        }
    }

    /// Returns whether the owner should settle the record.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        // ORDERING: Relaxed, because the RMW in `settle` orders.
        self.state.load(Ordering::Relaxed) & DUE != 0
    }

    /// Checks the slots if that is due, and proves that CEASED was seen. The caller must own the
    /// record, and must not be between two stores.
    pub(crate) fn settle(&self, ask: impl FnMut(Key, u64) -> Answer, taken: impl FnMut(Key, u64)) {
        if !self.is_due() {
            return;
        }
        let takes_mark = || {
            // ORDERING: AcqRel; Acquire pairs with the Release in `mark_due` (I4). Release, as in
            // `go_on`.
            let state = self.state.fetch_and(!DUE, Ordering::AcqRel);
            if state & CEASED != 0 && !mutation::active(Mutation::SettlesWithoutProof) {
                // ORDERING: Release; pairs with the Acquire in `is_still`: the stores before are
                // seen, and no other follows (I3).
                self.is_proven.store(true, Ordering::Release);
            }
        };
        if mutation::active(Mutation::LooksBeforeTheMark) {
            self.slots.visit(ask, taken);
            takes_mark();
        } else {
            takes_mark();
            self.slots.visit(ask, taken);
        }
    }

    /// Returns whether the owner makes no stores now or later, so that the caller may change words
    /// by compare-and-swap (I3).
    fn is_still(&self, is_own: bool) -> bool {
        // ORDERING: Relaxed; of this thread, if it is the owner.
        let is_between = self.is_busy.load(Ordering::Relaxed);
        // ORDERING: Acquire; pairs with the Release in `settle`.
        is_own && !is_between || self.is_proven.load(Ordering::Acquire)
    }

    /// Resets the record in the child of a fork. The threads that were between two stores or had
    /// stopped the record do not exist there, and the bytes belong to groups that the child does
    /// not charge.
    #[cfg(not(memgroup_loom))]
    pub(crate) fn begin_child(&self, allows_stores: bool) {
        // ORDERING: Relaxed, all, because the child has one thread, and starting any other thread
        // orders them.
        self.is_busy.store(false, Ordering::Relaxed);
        self.is_proven.store(!allows_stores, Ordering::Relaxed);
        let claimed = self.state.load(Ordering::Relaxed) & CLAIMED;
        self.state.store(claimed | if allows_stores { 0 } else { CEASED }, Ordering::Relaxed);
        self.slots.visit(|_, _| Answer::Close, |_, _| ());
    }

    /// The record that was added before this one.
    pub(crate) fn after(&self) -> Option<&'static Record> {
        // ORDERING: Relaxed; published with this record, which the first load of the list acquired:
        // it is in the release sequence.
        let next = self.next.load(Ordering::Relaxed);
        // SAFETY: null, or out of a `&'static Record` (`Records::claim`).
        unsafe { next.as_ref() }
    }

    /// The slot that gets another owner next.
    pub(crate) fn victim(&self) -> usize {
        // ORDERING: Relaxed, because only the owning thread uses it.
        self.turn.fetch_add(1, Ordering::Relaxed) as usize % SLOTS
    }

    /// Returns the units to charge ahead for slot `at`, which double each time until another owner
    /// gets the slot.
    pub(crate) fn next_ahead(&self, at: usize) -> u64 {
        // ORDERING: Relaxed, both, because only the owning thread uses them.
        let ahead = self.ahead[at].load(Ordering::Relaxed);
        self.ahead[at].store((2 * ahead).min(AHEAD_MOST), Ordering::Relaxed);
        u64::from(ahead)
    }

    /// Resets slot `at` for another owner.
    pub(crate) fn begin_again(&self, at: usize) {
        // ORDERING: Relaxed, because only the owning thread uses it.
        self.ahead[at].store(AHEAD_FIRST, Ordering::Relaxed);
    }

    #[cfg(all(test, not(any(memgroup_loom, miri))))]
    pub(crate) fn has_owner(&self) -> bool {
        // ORDERING: Relaxed, because this is only a hint.
        self.state.load(Ordering::Relaxed) & CLAIMED != 0
    }

    fn claim(&self) -> bool {
        // ORDERING: Relaxed, because the compare-and-swap decides.
        let mut state = self.state.load(Ordering::Relaxed);
        while state & CLAIMED == 0 {
            // ORDERING: Acquire; pairs with the Release in `give_back`: the words and the numbers
            // of the owner before are seen. Failure Relaxed; nothing is read.
            match self.state.compare_exchange_weak(
                state,
                state | CLAIMED,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    if mutation::active(Mutation::ClaimErases) {
                        self.slots.visit(|_, _| Answer::Close, |_, _| ());
                    }
                    return true;
                }
                Err(newer) => state = newer,
            }
        }
        false
    }

    /// Returns the record, with the bytes in it, at the end of the thread. Another thread may then
    /// have it. Returns `false` if the record is due: in that case the caller is still its owner,
    /// and must settle it and call this again (E2).
    pub(crate) fn give_back(&self) -> bool {
        // ORDERING: Relaxed, because the compare-and-swap decides.
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & DUE != 0 && !mutation::active(Mutation::EndsWhileDue) {
                return false;
            }
            // ORDERING: Release; pairs with the Acquire in `claim` and `mark_due`. Failure Relaxed;
            // nothing is read.
            match self.state.compare_exchange_weak(
                state,
                state & !CLAIMED,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(newer) => state = newer,
            }
        }
    }

    /// Does the same if the record cannot be settled. The next owner or a collecting thread settles
    /// it.
    pub(crate) fn give_back_due(&self) {
        // ORDERING: Release; pairs with the Acquire in `claim` and `mark_due`.
        self.state.fetch_and(!CLAIMED, Ordering::Release);
    }
}

/// The owner's side of the barrier (E1). It makes the compiler keep the order, and the other side
/// makes the processor keep it.
#[inline(always)]
fn light() {
    #[cfg(not(memgroup_loom))]
    // ORDERING: SeqCst, for the compiler only; the other side's barrier covers the processor.
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(memgroup_loom)]
    // ORDERING: SeqCst fence; a model has no barrier on all processors.
    memgroup_sync::atomic::fence(Ordering::SeqCst);
}

/// A list of records that only grows.
pub(crate) struct Records {
    first: AtomicPtr<Record>,
}

impl Records {
    #[cfg(not(memgroup_loom))]
    pub(crate) const fn new() -> Records {
        Records { first: AtomicPtr::new(null_mut()) }
    }

    #[cfg(memgroup_loom)]
    pub(crate) fn new() -> Records {
        Records { first: AtomicPtr::new(null_mut()) }
    }

    /// Returns a record for the calling thread: one that a thread returned, or a new one from
    /// `make`. Returns `None` if `make` returns none.
    pub(crate) fn claim(&self, make: impl FnOnce() -> Option<&'static Record>) -> Option<&'static Record> {
        if let Some(record) = self.all().find(|record| record.claim()) {
            return Some(record);
        }
        let record = make()?;
        // ORDERING: Relaxed, because the compare-and-swap decides.
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            // ORDERING: Relaxed; published by the compare-and-swap.
            record.next.store(first, Ordering::Relaxed);
            let pointer = core::ptr::from_ref(record).cast_mut();
            // ORDERING: Release; pairs with the Acquire in `all`. Failure Relaxed; nothing is read
            // through it.
            match self.first.compare_exchange_weak(first, pointer, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Some(record),
                Err(newer) => first = newer,
            }
        }
    }

    /// Calls `ask` for each slot with an owner, and passes the units that it wants taken out to
    /// `taken`. The caller's own record is `own`.
    ///
    /// If the answer is [`Answer::CloseSoon`], the units of other threads' records stay until those
    /// threads take them out at their next block. For the other answers, `barrier` is called once
    /// if another thread has such units or such a slot. Returns `false` if the barrier was needed
    /// and could not be made; units then stay as well.
    pub(crate) fn collect(
        &self,
        own: Option<&Record>,
        mut ask: impl FnMut(Key, u64) -> Answer,
        mut taken: impl FnMut(Key, u64),
        barrier: impl FnOnce() -> bool,
    ) -> bool {
        let mut needs_barrier = false;
        for record in self.all() {
            let (mut is_wanted, mut is_soon) = (false, false);
            let look = |key, units| {
                match ask(key, units) {
                    Answer::Keep => {}
                    // An empty slot doesn't justify a barrier unless it must be closed.
                    Answer::Empty => is_wanted |= units > 0,
                    Answer::Close => is_wanted = true,
                    Answer::CloseSoon => is_soon = true,
                }
                Answer::Keep
            };
            record.slots.visit(look, |_, _| ());
            if !is_wanted && !is_soon {
                continue;
            }
            let is_own = own.is_some_and(|own| core::ptr::eq(own, record));
            if record.is_still(is_own) {
                record.slots.visit(|key, units| ask(key, units).at_once(units), &mut taken);
            } else if record.stop_without_owner()
                || is_soon && !record.mark_due() && record.stop_without_owner()
            {
                record.slots.visit(|key, units| ask(key, units).at_once(units), &mut taken);
                record.go_on();
            } else {
                needs_barrier |= is_wanted;
            }
        }
        !needs_barrier || self.collect_stopped(ask, taken, barrier)
    }

    /// Does the same for all threads, which make no stores in the meantime.
    fn collect_stopped(
        &self,
        mut ask: impl FnMut(Key, u64) -> Answer,
        mut taken: impl FnMut(Key, u64),
        barrier: impl FnOnce() -> bool,
    ) -> bool {
        // Resumes exactly the records that were stopped: records added since then come before the
        // first.
        let first = self.all().next();
        let all = || core::iter::successors(first, |record| record.after());
        all().for_each(Record::stop);
        let is_made = mutation::active(Mutation::CollectsWithoutBarrier) || barrier();
        for record in all() {
            if is_made {
                if !mutation::active(Mutation::CollectsWithoutWaiting) {
                    record.wait_idle();
                }
                record.slots.visit(|key, units| ask(key, units).at_once(units), &mut taken);
            } else {
                record.cease();
                if mutation::active(Mutation::CollectsUnproven) || record.is_still(false) {
                    record.slots.visit(|key, units| ask(key, units).at_once(units), &mut taken);
                }
            }
            record.go_on();
        }
        is_made
    }

    /// All records, claimed or not.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Record> {
        // ORDERING: Acquire; pairs with the Release in `claim`: the record is whole.
        let first = self.first.load(Ordering::Acquire);
        // SAFETY: null, or out of a `&'static Record` (`claim`).
        let first: Option<&'static Record> = unsafe { first.as_ref() };
        core::iter::successors(first, |record| record.after())
    }
}
