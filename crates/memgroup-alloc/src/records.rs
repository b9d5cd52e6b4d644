//! Records: the slots of all threads. They outlive their threads.
//!
//! - I1. A record is never freed, and never leaves the list. So bytes in the slots of a thread that has ended stay where the engine finds
//!   them, and the next thread that claims the record uses them. Loom: `loom_a_thread_that_ends_loses_no_bytes`.
//! - I2. A record is claimed by one thread at a time: by a compare-and-swap of `is_claimed`.
//! - I3. A thread changes a word of its record by a store only while the record is *busy* and not *stopped*. Another thread stops the record, and waits
//!   until it is not busy. Then it changes words by compare-and-swap, as the owner does meanwhile. Loom: `loom_a_free_beside_a_refusal_loses_no_unit`.
//! - E1. enter ↔ stop: the owner marks the record busy, fences, and looks whether it is stopped. The other thread stops it, fences, and looks whether it is
//!   busy. One sees the other. The owner's fence is one for the compiler alone, because the other's is a barrier on all processors (`membarrier`).
//!   Where the system has no such barrier, each record is stopped for ever.
//! - P1. A thread that stops a record waits for a few instructions of its owner, or until the system lets it run.
//! - P2. The child of a fork has one thread. No record there is busy with, or stopped by, a thread that the child lacks (`begin_child`).

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

/// The slots of one thread, and the things that it needs on slow paths.
pub(crate) struct Record {
    pub(crate) slots: Slots,
    /// The units that each slot charges ahead next.
    ahead: [AtomicU32; SLOTS],
    /// The slot that gets another owner next.
    turn: AtomicU32,
    /// Blocks were freed within the engine: the slots may hold more than they should.
    pub(crate) is_overfull: AtomicBool,
    is_claimed: AtomicBool,
    pub(crate) is_busy: AtomicBool,
    /// How many threads have stopped it; where stores are not allowed, one more.
    stops: AtomicU32,
    /// The index of the slot that was used last.
    last: AtomicU32,
    next: AtomicPtr<Record>,
}

impl Record {
    /// A record without owners, claimed by its maker.
    #[cfg(not(memgroup_loom))]
    pub(crate) const fn new(allows_stores: bool) -> Record {
        Record {
            slots: Slots::new(),
            ahead: [const { AtomicU32::new(AHEAD_FIRST) }; SLOTS],
            turn: AtomicU32::new(0),
            is_overfull: AtomicBool::new(false),
            is_claimed: AtomicBool::new(true),
            is_busy: AtomicBool::new(false),
            stops: AtomicU32::new(!allows_stores as u32),
            last: AtomicU32::new(0),
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// A record without owners, claimed by its maker.
    #[cfg(memgroup_loom)]
    pub(crate) fn new(allows_stores: bool) -> Record {
        Record {
            slots: Slots::new(),
            ahead: core::array::from_fn(|_| AtomicU32::new(AHEAD_FIRST)),
            turn: AtomicU32::new(0),
            is_overfull: AtomicBool::new(false),
            is_claimed: AtomicBool::new(true),
            is_busy: AtomicBool::new(false),
            stops: AtomicU32::new(u32::from(!allows_stores)),
            last: AtomicU32::new(0),
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// Takes `units` out of the slot that was used last, if it is the one of `key`, and the record is not stopped.
    #[inline(always)]
    pub(crate) fn take(&self, key: Key, units: u64) -> bool {
        if units > UNITS_MOST || !self.enter() {
            return false;
        }
        let is_taken = self.last().take_alone(key, units);
        self.leave();
        is_taken
    }

    /// Puts `units` into the slot that was used last, if it is the one of `key`, has room, and the record is not stopped.
    #[inline(always)]
    pub(crate) fn put(&self, key: Key, units: u64) -> bool {
        if units > UNITS_MOST || !self.enter() {
            return false;
        }
        let is_put = self.last().put_alone(key, units, UNITS_MOST);
        self.leave();
        is_put
    }

    #[inline(always)]
    fn last(&self) -> &Slot {
        // ORDERING: Relaxed; of the owning thread alone.
        self.slots.at(self.last.load(Ordering::Relaxed) as usize)
    }

    /// The slot of `key`, or one without an owner. It is the last one from now on.
    pub(crate) fn find(&self, key: Key) -> Option<&Slot> {
        let at = self.slots.find(key)?;
        // ORDERING: Relaxed; of the owning thread alone.
        self.last.store(at as u32, Ordering::Relaxed);
        Some(self.slots.at(at))
    }

    /// Begins to change a slot by stores; `false` if the record is stopped.
    #[inline(always)]
    pub(crate) fn enter(&self) -> bool {
        // ORDERING: Relaxed; the fence puts it before the look (E1).
        self.is_busy.store(true, Ordering::Relaxed);
        if !mutation::active(Mutation::StoresWithoutFence) {
            light();
        }
        // ORDERING: Acquire; pairs with the Release in `go_on`: the changes of the thread that stopped the record are seen.
        if self.stops.load(Ordering::Acquire) == 0 {
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

    /// No stores from now on, once `heavy` was called and the record is idle.
    pub(crate) fn stop(&self) {
        // ORDERING: Relaxed; the barrier puts it before the look (E1).
        self.stops.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the owner is between no two stores.
    pub(crate) fn wait_idle(&self) {
        let mut wait = Wait::new();
        // ORDERING: Acquire; pairs with the Release in `leave`.
        while self.is_busy.load(Ordering::Acquire) {
            wait.wait();
        }
    }

    /// Ends a stop.
    pub(crate) fn go_on(&self) {
        // ORDERING: Release; pairs with the Acquire in `enter`.
        self.stops.fetch_sub(1, Ordering::Release);
    }

    /// In the child of a fork: the threads that were between two stores, or had stopped the record, are not there to go on.
    #[cfg(not(memgroup_loom))]
    pub(crate) fn begin_child(&self, allows_stores: bool) {
        // ORDERING: Relaxed, both; the child has one thread, and the start of each other orders them.
        self.is_busy.store(false, Ordering::Relaxed);
        // ORDERING: as above.
        self.stops.store(u32::from(!allows_stores), Ordering::Relaxed);
    }

    /// The record that was added before this one.
    pub(crate) fn after(&self) -> Option<&'static Record> {
        // ORDERING: Relaxed; published with this record, which the first load of the list acquired: it is in the release sequence.
        let next = self.next.load(Ordering::Relaxed);
        // SAFETY: null, or out of a `&'static Record` (`Records::claim`).
        unsafe { next.as_ref() }
    }

    /// The slot that gets another owner next.
    pub(crate) fn victim(&self) -> usize {
        // ORDERING: Relaxed; of the owning thread alone.
        self.turn.fetch_add(1, Ordering::Relaxed) as usize % SLOTS
    }

    /// The units to charge ahead for slot `at`: twice as many each time, until another owner gets the slot.
    pub(crate) fn next_ahead(&self, at: usize) -> u64 {
        // ORDERING: Relaxed, both; of the owning thread alone.
        let ahead = self.ahead[at].load(Ordering::Relaxed);
        // ORDERING: as above.
        self.ahead[at].store((2 * ahead).min(AHEAD_MOST), Ordering::Relaxed);
        u64::from(ahead)
    }

    /// Another owner gets slot `at`.
    pub(crate) fn begin_again(&self, at: usize) {
        // ORDERING: Relaxed; of the owning thread alone.
        self.ahead[at].store(AHEAD_FIRST, Ordering::Relaxed);
    }

    fn claim(&self) -> bool {
        // ORDERING: Relaxed; a look.
        if self.is_claimed.load(Ordering::Relaxed) {
            return false;
        }
        // ORDERING: Acquire; pairs with the Release in `give_back`: the numbers of the thread before are seen. Failure Relaxed; nothing is read.
        let is_ours =
            self.is_claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_ours && mutation::active(Mutation::ClaimErases) {
            self.slots.visit(|_, _| Answer::Close, |_, _| ());
        }
        is_ours
    }

    /// The thread ends, and another may have the record with the bytes in it.
    pub(crate) fn give_back(&self) {
        // ORDERING: Release; pairs with the Acquire in `claim`.
        self.is_claimed.store(false, Ordering::Release);
    }
}

/// The owner's side of the barrier (E1): the compiler keeps the order, and the other side has the processor keep it.
#[inline(always)]
fn light() {
    #[cfg(not(memgroup_loom))]
    // ORDERING: SeqCst for the compiler; see above.
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

    /// A record for the calling thread: one that a thread gave back, or the one that `make` makes. `None` if it makes none.
    pub(crate) fn claim(&self, make: impl FnOnce() -> Option<&'static Record>) -> Option<&'static Record> {
        if let Some(record) = self.all().find(|record| record.claim()) {
            return Some(record);
        }
        let record = make()?;
        // ORDERING: Relaxed; the compare-and-swap decides.
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            // ORDERING: Relaxed; published by the compare-and-swap.
            record.next.store(first, Ordering::Relaxed);
            let pointer = core::ptr::from_ref(record).cast_mut();
            // ORDERING: Release; pairs with the Acquire in `all`. Failure Relaxed; nothing is read through it.
            match self.first.compare_exchange_weak(first, pointer, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Some(record),
                Err(newer) => first = newer,
            }
        }
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
