//! The controls of the drain: the seed's own design, and the design that it replaced.
//!
//! **Spin locks** are the seed's design: a stock for each slot behind a lock, which any thread
//! takes to drain it.
//!
//! ```text
//!   consume, refill:  lock the thread's own slot ─▶ is it this group's? ─▶ change the bytes ─▶ unlock
//!   drain:            the same for every slot, from one thread
//! ```
//!
//! As in the kernel a slot holds bytes of one group, and a batch is 64 pages.
//!
//! **Owners** are what the seed replaced: each stock is returned by waking the thread that owns it,
//! on its own CPU. The kernel did not wait for that work. A drain that is complete when it returns
//! must, so both times are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;

use memgroup_percpu::SlotSource;
use memgroup_sync::CachePadded;

use super::PAGE;
use crate::harness::prelude::*;

const BATCH_BYTES: u64 = 64 * PAGE;
/// The only group here; 0 is none.
const GROUP: u64 = 1;

/// The stocks of one group, and the counter that they buy from.
pub(super) struct SpinStocks {
    slots: Vec<Slot>,
    source: SlotSource,
    usage: AtomicU64,
    misses: AtomicU64,
    /// Calls that found a lock taken: what the seed counted.
    contended: AtomicU64,
}

/// On lines of its own, as the kernel's.
#[repr(align(128))]
#[derive(Default)]
struct Slot {
    is_locked: AtomicBool,
    group: AtomicU64,
    bytes: AtomicU64,
}

impl Slot {
    /// Runs `change` on the slot's bytes if it is the group's, else on 0, under the lock.
    #[inline(always)]
    fn locked<T>(&self, contended: &AtomicU64, change: impl FnOnce(&mut u64) -> T) -> T {
        // ORDERING: Acquire; pairs with the Release below, so a holder sees the bytes of the one before.
        if self.is_locked.swap(true, Ordering::Acquire) {
            // ORDERING: Relaxed; a count.
            contended.fetch_add(1, Ordering::Relaxed);
            while self.is_locked.swap(true, Ordering::Acquire) {
                std::hint::spin_loop();
            }
        }
        // ORDERING: Relaxed, here and below; the lock orders them.
        let is_own = self.group.load(Ordering::Relaxed) == GROUP;
        let mut bytes = if is_own { self.bytes.load(Ordering::Relaxed) } else { 0 };
        let result = change(&mut bytes);
        if !is_own {
            // ORDERING: Relaxed, as above.
            self.group.store(GROUP, Ordering::Relaxed);
        }
        // ORDERING: Relaxed, as above.
        self.bytes.store(bytes, Ordering::Relaxed);
        // ORDERING: Release; pairs with the Acquire above.
        self.is_locked.store(false, Ordering::Release);
        result
    }
}

impl SpinStocks {
    pub(super) fn new(source: SlotSource) -> SpinStocks {
        let slots = (0..source.slots()).map(|_| Slot::default()).collect();
        let [usage, misses, contended] = [0; 3].map(AtomicU64::new);
        SpinStocks { slots, source, usage, misses, contended }
    }

    /// Charges `bytes`, from the stock of this thread's slot if it has them.
    #[inline]
    pub(super) fn consume(&self, bytes: u64) {
        let slot = &self.slots[self.source.current()];
        let is_hit = slot.locked(&self.contended, |stock| {
            let is_hit = *stock >= bytes;
            *stock -= if is_hit { bytes } else { 0 };
            is_hit
        });
        if !is_hit {
            self.buy(bytes);
        }
    }

    #[cold]
    fn buy(&self, bytes: u64) {
        // ORDERING: Relaxed, both; sums that publish nothing.
        self.usage.fetch_add(bytes.max(BATCH_BYTES), Ordering::Relaxed);
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.refill(bytes.max(BATCH_BYTES) - bytes);
    }

    /// Puts `bytes` into the stock of this thread's slot. One with more than a batch is emptied.
    #[inline]
    pub(super) fn refill(&self, bytes: u64) {
        let slot = &self.slots[self.source.current()];
        let back = slot.locked(&self.contended, |stock| {
            *stock += bytes;
            if *stock > BATCH_BYTES { std::mem::take(stock) } else { 0 }
        });
        if back > 0 {
            // ORDERING: Relaxed; a sum.
            self.usage.fetch_sub(back, Ordering::Relaxed);
        }
    }

    /// Empties all slots from this thread; the bytes that were in them.
    pub(super) fn drain(&self) -> u64 {
        let bytes = self.slots.iter().map(|slot| slot.locked(&self.contended, std::mem::take)).sum();
        // ORDERING: Relaxed; a sum.
        self.usage.fetch_sub(bytes, Ordering::Relaxed);
        bytes
    }

    pub(super) fn misses(&self) -> u64 {
        // ORDERING: Relaxed; a count.
        self.misses.load(Ordering::Relaxed)
    }

    pub(super) fn contended(&self) -> u64 {
        // ORDERING: Relaxed; a count.
        self.contended.load(Ordering::Relaxed)
    }

    /// Charged and stocked bytes.
    pub(super) fn usage(&self) -> u64 {
        // ORDERING: Relaxed; a sum.
        self.usage.load(Ordering::Relaxed)
    }
}

/// Shared by owners and drainer: the bytes of each slot, the counter, and the owners that are not
/// done.
struct Shared {
    words: Vec<CachePadded<AtomicU64>>,
    usage: AtomicU64,
    outstanding: AtomicUsize,
}

/// A thread for each slot, which sleeps until it is called and returns its slot's bytes.
pub(super) struct Owners {
    shared: Arc<Shared>,
    threads: Vec<Sleeper>,
}

impl Owners {
    /// The calling thread is the drainer.
    pub(super) fn start(slots: usize) -> Result<Owners> {
        let words = (0..slots).map(|_| CachePadded::default()).collect();
        let shared = Arc::new(Shared { words, usage: AtomicU64::new(0), outstanding: AtomicUsize::new(0) });
        let start = |slot| {
            let (shared, drainer) = (Arc::clone(&shared), std::thread::current());
            Sleeper::start(&format!("owner-{slot}"), slot, move || shared.give_back(slot, &drainer))
        };
        Ok(Owners { threads: (0..slots).map(start).collect::<Result<_>>()?, shared })
    }

    /// Stocks every slot, wakes every owner and waits for the last; nanoseconds until all were
    /// called, and until all were done.
    pub(super) fn drain(&self, clock: Clock) -> Result<[f64; 2]> {
        let shared = &self.shared;
        // ORDERING: Relaxed, here and below: the call publishes all of it to the owners.
        shared.words.iter().for_each(|word| word.store(PAGE, Ordering::Relaxed));
        shared.usage.store(PAGE * self.threads.len() as u64, Ordering::Relaxed);
        shared.outstanding.store(self.threads.len(), Ordering::Relaxed);
        let begin = clock::now_ordered();
        self.threads.iter().for_each(Sleeper::call);
        let called = clock::now_ordered();
        // ORDERING: Acquire; pairs with the AcqRel of each owner, so that its change of the counter is
        // seen.
        while shared.outstanding.load(Ordering::Acquire) > 0 {
            std::thread::park();
        }
        let done = clock::now_ordered();
        expect("bytes that the owners left", shared.usage.load(Ordering::Relaxed), 0)?;
        Ok([called, done].map(|end| clock.ns((end - begin) as f64)))
    }
}

impl Shared {
    fn give_back(&self, slot: usize, drainer: &Thread) {
        // ORDERING: Relaxed, both; `outstanding` publishes the changes.
        let bytes = self.words[slot].swap(0, Ordering::Relaxed);
        self.usage.fetch_sub(bytes, Ordering::Relaxed);
        // ORDERING: AcqRel; Release pairs with the drainer's Acquire, and the chain of changes carries all
        // owners.
        if self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
            drainer.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use memgroup_percpu::pin_virtual;

    use super::*;

    #[test]
    fn keeps_every_byte_in_a_slot_or_charged() {
        let stocks = SpinStocks::new(SlotSource::virtual_slots(3).unwrap());
        for slot in 0..3 {
            let _pin = pin_virtual(slot);
            stocks.consume(PAGE);
            stocks.consume(PAGE);
            stocks.refill(PAGE);
        }
        assert_eq!((stocks.misses(), stocks.usage()), (3, 3 * BATCH_BYTES));
        assert_eq!(stocks.drain(), 3 * (BATCH_BYTES - PAGE));
        assert_eq!(stocks.usage(), 3 * PAGE, "a page in each slot is charged");
    }

    #[test]
    fn empties_a_slot_with_more_than_a_batch() {
        let stocks = SpinStocks::new(SlotSource::virtual_slots(1).unwrap());
        stocks.consume(2 * BATCH_BYTES);
        stocks.refill(BATCH_BYTES);
        stocks.refill(BATCH_BYTES);
        assert_eq!((stocks.usage(), stocks.drain()), (0, 0));
    }

    #[test]
    fn counts_a_lock_that_is_found_taken() {
        let stocks = SpinStocks::new(SlotSource::virtual_slots(1).unwrap());
        stocks.consume(PAGE);
        assert_eq!(stocks.contended(), 0);
        // ORDERING: Relaxed; one thread at a time, then a wait for the other.
        stocks.slots[0].is_locked.store(true, Ordering::Relaxed);
        std::thread::scope(|threads| {
            threads.spawn(|| stocks.drain());
            spin_until(|| (stocks.contended() == 1).then_some(()));
            stocks.slots[0].is_locked.store(false, Ordering::Release);
        });
        assert_eq!(stocks.contended(), 1);
    }

    #[test]
    fn returns_every_owners_stock() {
        let owners = Owners::start(5).unwrap();
        for _ in 0..4 {
            let [called, done] = owners.drain(Clock::calibrate(std::time::Duration::from_millis(1))).unwrap();
            assert!(called <= done);
        }
    }
}
