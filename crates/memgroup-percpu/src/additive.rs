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
//! - E2. take → add: `take` is an RMW whatever it finds. An addition that it misses is later in the order of the word, and its thread
//!   finds what the taker did before: that a mark was cleared, for one. Loom:
//!   `loom_an_addition_is_taken_or_finds_what_the_taker_did_before`.

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

/// Takes a live value down to zero, and returns it. Zero from a dead word, which stays dead.
///
/// A value that is zero is taken as well: who adds later finds what the caller did before (E2), and this is what orders the two.
#[must_use = "the value is to be credited elsewhere"]
#[inline]
pub fn take(word: &AtomicU64) -> i64 {
    if active(Mutation::TakeBySwap) {
        // ORDERING: AcqRel, as below; the fault is that it takes a tombstone away.
        return live(word.swap(0, Ordering::AcqRel));
    }
    // ORDERING: Relaxed; a guess, which the exchange checks. A tombstone is final, and no guess.
    let mut value = word.load(Ordering::Relaxed);
    while value as i64 > LIVE_ABOVE && !(value == 0 && active(Mutation::TakeSkipsZero)) {
        interleave::point();
        // ORDERING: AcqRel; Acquire for what was done before the additions that are taken, Release for those that come later
        // (E2). An exchange, because a swap would take a tombstone away. Relaxed on failure, which is another guess.
        match word.compare_exchange_weak(value, 0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return value as i64,
            Err(now) => value = now,
        }
    }
    0
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
