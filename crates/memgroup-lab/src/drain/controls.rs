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
//! must.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup_percpu::SlotSource;
use memgroup_sync::CachePadded;

use super::{PAGE, Stocks};
use crate::harness::prelude::*;

const BATCH_BYTES: u64 = 64 * PAGE;
/// The only group here; 0 is none.
const GROUP: u64 = 1;

/// The stocks of one group, and the counter that they buy from.
pub(super) struct SpinStocks {
    slots: Vec<Slot>,
    source: SlotSource,
    usage: AtomicU64,
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
        // ORDERING: Acquire; pairs with the Release below, so a holder sees the bytes of the one
        // before.
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
        SpinStocks { slots, source, usage: AtomicU64::new(0), contended: AtomicU64::new(0) }
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
        // ORDERING: Relaxed; a sum that publishes nothing.
        self.usage.fetch_add(bytes.max(BATCH_BYTES), Ordering::Relaxed);
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

/// A thread for each slot, which sleeps until it is called and returns its slot's bytes.
pub(super) struct Owners {
    shared: Arc<Shared>,
    calls: Vec<SyncSender<()>>,
    done: Mutex<Receiver<()>>,
}

/// The bytes of each slot, the counter, and the owners that are not done.
struct Shared {
    words: Vec<CachePadded<AtomicU64>>,
    usage: AtomicU64,
    outstanding: AtomicUsize,
}

impl Owners {
    pub(super) fn start(slots: usize) -> Result<Owners> {
        let words = (0..slots).map(|_| CachePadded::default()).collect();
        let shared = Arc::new(Shared { words, usage: AtomicU64::new(0), outstanding: AtomicUsize::new(0) });
        let (last, done) = channel();
        let start = |slot| {
            let (shared, last) = (Arc::clone(&shared), last.clone());
            sleeper(slot, move || {
                // ORDERING: Relaxed, both; `outstanding` publishes the changes.
                let bytes = shared.words[slot].swap(0, Ordering::Relaxed);
                shared.usage.fetch_sub(bytes, Ordering::Relaxed);
                // ORDERING: AcqRel; the chain of changes carries all owners' to the last, whose
                // message hands them to the drainer.
                if shared.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
                    // The drainer waits, or the measurement is over.
                    let _ = last.send(());
                }
            })
        };
        let calls = (0..slots).map(start).collect::<Result<_>>()?;
        Ok(Owners { calls, shared, done: Mutex::new(done) })
    }
}

impl Stocks for Owners {
    fn put(&self, slot: usize) -> Result<()> {
        if slot == 0 {
            // Lets the owners fall asleep: a call to a thread that is awake wakes no thread.
            std::thread::sleep(Duration::from_micros(200));
        }
        // ORDERING: Relaxed, both; the calls publish them to the owners.
        self.shared.words[slot].store(PAGE, Ordering::Relaxed);
        self.shared.usage.fetch_add(PAGE, Ordering::Relaxed);
        Ok(())
    }

    fn stocked(&self) -> u64 {
        // ORDERING: Relaxed; read by the thread that filled the slots, or after the last owner's
        // message.
        self.shared.usage.load(Ordering::Relaxed)
    }

    /// Wakes every owner and waits for the last.
    fn drain(&self) -> u64 {
        let before = self.stocked();
        // ORDERING: Relaxed; the calls publish it.
        self.shared.outstanding.store(self.calls.len(), Ordering::Relaxed);
        // An owner receives until its sender is dropped, so neither can fail while `self` lives.
        self.calls.iter().for_each(|call| _ = call.send(()));
        let _ = lock(&self.done).recv();
        before - self.stocked()
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
        assert_eq!(stocks.usage(), 3 * BATCH_BYTES);
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
}
