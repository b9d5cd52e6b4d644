//! Records: the slots of all threads. They outlive their threads.
//!
//! - I1. A record is never freed, and never leaves the list. So bytes in the slots of a thread that has ended stay where the engine finds
//!   them, and the next thread that claims the record uses them. Loom: `loom_a_thread_that_ends_loses_no_bytes`.
//! - I2. A record is claimed by one thread at a time: by a compare-and-swap of `is_claimed`.

#![allow(unsafe_code)]

use core::ptr::null_mut;

use memgroup_sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::mutation::{self, Mutation};
use crate::slots::{Answer, SLOTS, Slots};

/// The units that a slot charges ahead, from its first miss on: 1 KiB.
const AHEAD_FIRST: u32 = 64;

/// The most units that it charges ahead: 32 KiB.
const AHEAD_MOST: u32 = 2048;

/// The slots of one thread, and the things that it needs on slow paths.
pub(crate) struct Record {
    pub(crate) slots: Slots,
    /// The units that each slot charges ahead next.
    ahead: [AtomicU32; SLOTS],
    /// The slot whose owner goes next.
    turn: AtomicU32,
    /// Blocks were freed within the engine: the slots may hold more than they should.
    pub(crate) is_overfull: AtomicBool,
    is_claimed: AtomicBool,
    next: AtomicPtr<Record>,
}

impl Record {
    /// A record without owners, claimed by its maker.
    #[cfg(not(memgroup_loom))]
    pub(crate) const fn new() -> Record {
        Record {
            slots: Slots::new(),
            ahead: [const { AtomicU32::new(AHEAD_FIRST) }; SLOTS],
            turn: AtomicU32::new(0),
            is_overfull: AtomicBool::new(false),
            is_claimed: AtomicBool::new(true),
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// A record without owners, claimed by its maker.
    #[cfg(memgroup_loom)]
    pub(crate) fn new() -> Record {
        Record {
            slots: Slots::new(),
            ahead: core::array::from_fn(|_| AtomicU32::new(AHEAD_FIRST)),
            turn: AtomicU32::new(0),
            is_overfull: AtomicBool::new(false),
            is_claimed: AtomicBool::new(true),
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// The slot whose owner has to go.
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
        core::iter::successors(first, |record| {
            // ORDERING: Relaxed; published with the record before it, which the first load acquired: it is in the release sequence.
            let next = record.next.load(Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { next.as_ref() }
        })
    }
}
