//! Retired items that may not be used again yet.
//!
//! - I1. Items lie in the order of their epochs, which `tag` draws from one clock, so the items
//!   with a grace period that is over are the first ones.
//! - I2. `bytes` is the sum over the items, and at most `bytes_max`.

use core::mem::ManuallyDrop;
use std::collections::VecDeque;

use super::barrier;
use super::epoch::{self, Epoch};

/// The room that an empty limbo keeps for its next items.
const KEPT: usize = 64;

/// Items of one block.
const BLOCK: usize = 256;

struct Item<T> {
    epoch: Epoch,
    bytes: usize,
    // Dropping could free memory that a section still reads; the caller of `reclaim` decides.
    value: ManuallyDrop<T>,
}

/// Items that were unlinked and wait for the end of their grace period.
///
/// It is bounded in bytes, so that a section that does not end costs no more than that. Above the
/// bound [`retire`](Self::retire) hands the item back. Dropping it leaks the items in it: their
/// grace period may not be over.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::grace::{self, Form, Limbo};
///
/// let mut limbo = Limbo::new(1 << 20);
/// limbo.retire("a page", 4096).unwrap();
/// assert_eq!(limbo.reclaim(|_| unreachable!()), 0, "its grace period has not begun");
/// grace::synchronize(Form::Quiet);
/// assert_eq!(limbo.reclaim(|page| assert_eq!(page, "a page")), 1);
/// # }
/// ```
pub struct Limbo<T> {
    /// The items in blocks of bounded size, none of them empty but the only one: a queue in one
    /// piece would leave holes of all sizes in the heap.
    blocks: VecDeque<VecDeque<Item<T>>>,
    bytes: usize,
    pub(super) bytes_max: usize,
}

impl<T> Limbo<T> {
    /// Makes an empty one that takes up to `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        // A caller that retires will wait for grace periods: from here on sections have their best
        // form.
        barrier::report();
        Self { blocks: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Takes an item that the caller has unlinked *before* this call, with its size.
    ///
    /// # Errors
    ///
    /// The item, if it would bring the total above the bound.
    pub fn retire(&mut self, item: T, bytes: usize) -> Result<(), T> {
        match self.bytes.checked_add(bytes) {
            Some(total) if total <= self.bytes_max => self.bytes = total,
            _ => return Err(item),
        }
        let item = Item { epoch: epoch::tag(), bytes, value: ManuallyDrop::new(item) };
        match self.blocks.back_mut().filter(|block| block.len() < BLOCK) {
            Some(block) => block.push_back(item),
            None => self.blocks.push_back(VecDeque::from([item])),
        }
        Ok(())
    }

    /// Hands every item to `reuse` that has its grace period behind it, the oldest first; returns
    /// how many. It never waits.
    pub fn reclaim(&mut self, reuse: impl FnMut(T)) -> usize {
        self.reclaim_some(usize::MAX, reuse)
    }

    /// Like [`reclaim`](Self::reclaim), for at most so many items.
    pub fn reclaim_some(&mut self, most: usize, mut reuse: impl FnMut(T)) -> usize {
        let completed = epoch::completed();
        let mut reclaimed = 0;
        while reclaimed < most
            && let Some(item) = self.pop_completed(completed)
        {
            self.bytes -= item.bytes;
            reclaimed += 1;
            reuse(ManuallyDrop::into_inner(item.value));
        }
        reclaimed
    }

    /// The oldest item, if its grace period is over.
    fn pop_completed(&mut self, completed: Epoch) -> Option<Item<T>> {
        let is_last = self.blocks.len() == 1;
        let block = self.blocks.front_mut()?;
        let is_over = block.front().is_some_and(|item| item.epoch <= completed);
        let item = if is_over { block.pop_front()? } else { return None };
        if block.is_empty() && is_last {
            block.shrink_to(KEPT);
        } else if block.is_empty() {
            self.blocks.pop_front();
        }
        Some(item)
    }

    /// The bytes in it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of items in it.
    pub fn len(&self) -> usize {
        self.blocks.iter().map(VecDeque::len).sum()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
