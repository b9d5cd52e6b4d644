//! Additive words: how one is added to while it may be moved.
//!
//! A word is buried by swapping a tombstone into it; the value that came out is credited to the word that takes its place. An
//! addition that lands on a tombstone sees it in the value it found, and is made again where the handle leads by then. What it
//! left in the dead word is nobody's.
//!
//! - I1. A live value is above -2^61; what is below is a tombstone, with additions that came too late. Those are few, at most one of
//!   each read section that was under way, and small: together less than 2^61.
//! - E1. add → bury: RMWs on one word: each addition is in the value that was buried, or finds the tombstone. Loom:
//!   `loom_an_addition_is_moved_or_made_again`.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::interleave;

use crate::mutation::{Mutation, active};

#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

const TOMBSTONE: i64 = i64::MIN / 2;
const LIVE_ABOVE: i64 = i64::MIN / 4;

/// Adds `delta`; `false` if the word is dead, and the addition is to be made elsewhere.
#[inline(always)]
#[must_use = "an addition to a dead word is to be made again"]
pub fn add(word: &AtomicU64, delta: i64) -> bool {
    // ORDERING: AcqRel; Release: who buries or reads the sum sees what was done before the addition. As an RMW it
    // is in what `bury` takes or finds the tombstone (E1).
    let before = word.fetch_add(delta as u64, Ordering::AcqRel) as i64;
    before > LIVE_ABOVE || active(Mutation::AddIgnoresTombstone)
}

/// Takes the value out for good: what is added from now on is added in vain, and told so.
#[must_use = "the value is to be credited elsewhere"]
pub fn bury(word: &AtomicU64) -> i64 {
    interleave::point();
    if active(Mutation::BuryByStore) {
        let value = read(word);
        // ORDERING: Release; the fault is that an addition may come between the two.
        word.store(TOMBSTONE as u64, Ordering::Release);
        return value;
    }
    // ORDERING: AcqRel; Acquire for what was done before the additions, Release for those that find the tombstone.
    live(word.swap(TOMBSTONE as u64, Ordering::AcqRel))
}

/// The value now; zero of a dead word.
#[must_use]
pub fn read(word: &AtomicU64) -> i64 {
    // ORDERING: Acquire; pairs with the Release in `add`.
    live(word.load(Ordering::Acquire))
}

/// Whether what is added to it is added in vain.
pub(crate) fn is_dead(word: &AtomicU64) -> bool {
    // ORDERING: Acquire, as in `read`.
    word.load(Ordering::Acquire) as i64 <= LIVE_ABOVE
}

fn live(value: u64) -> i64 {
    if value as i64 > LIVE_ABOVE { value as i64 } else { 0 }
}
