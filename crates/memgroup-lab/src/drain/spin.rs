//! The seed's own design, as a control: a stock for each slot behind a spin lock, which any thread takes to drain it.
//!
//! ```text
//!   consume, refill:  lock the thread's own slot ─▶ is it this group's? ─▶ change the bytes ─▶ unlock
//!   drain:            the same for every slot, from one thread
//! ```
//!
//! As in the kernel a slot holds bytes of one group, and a batch is 64 pages.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memgroup_percpu::SlotSource;

use super::PAGE_BYTES;

const BATCH_BYTES: u64 = 64 * PAGE_BYTES;
/// The only group here; 0 is none.
const GROUP: u64 = 1;

/// The stocks of one group, and the counter that they buy from.
pub(super) struct SpinStocks {
    slots: Vec<Slot>,
    source: SlotSource,
    usage: AtomicU64,
    misses: AtomicU64,
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
    fn locked<T>(&self, change: impl FnOnce(&mut u64) -> T) -> T {
        // ORDERING: Acquire; pairs with the Release below, so a holder sees the bytes of the one before.
        while self.is_locked.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
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
        SpinStocks { slots, source, usage: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// Charges `bytes`, from the stock of this thread's slot if it has them.
    #[inline]
    pub(super) fn consume(&self, bytes: u64) {
        let slot = &self.slots[self.source.current()];
        let is_hit = slot.locked(|stock| {
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
        let back = slot.locked(|stock| {
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
        let bytes = self.slots.iter().map(|slot| slot.locked(std::mem::take)).sum();
        // ORDERING: Relaxed; a sum.
        self.usage.fetch_sub(bytes, Ordering::Relaxed);
        bytes
    }

    pub(super) fn misses(&self) -> u64 {
        // ORDERING: Relaxed; a count.
        self.misses.load(Ordering::Relaxed)
    }

    /// Charged and stocked bytes.
    pub(super) fn usage(&self) -> u64 {
        // ORDERING: Relaxed; a sum.
        self.usage.load(Ordering::Relaxed)
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
            stocks.consume(PAGE_BYTES);
            stocks.consume(PAGE_BYTES);
            stocks.refill(PAGE_BYTES);
        }
        assert_eq!((stocks.misses(), stocks.usage()), (3, 3 * BATCH_BYTES));
        assert_eq!(stocks.drain(), 3 * (BATCH_BYTES - PAGE_BYTES));
        assert_eq!(stocks.usage(), 3 * PAGE_BYTES, "a page in each slot is charged");
    }

    #[test]
    fn empties_a_slot_with_more_than_a_batch() {
        let stocks = SpinStocks::new(SlotSource::virtual_slots(1).unwrap());
        stocks.consume(2 * BATCH_BYTES);
        stocks.refill(BATCH_BYTES);
        stocks.refill(BATCH_BYTES);
        assert_eq!((stocks.usage(), stocks.drain()), (0, 0));
    }
}
