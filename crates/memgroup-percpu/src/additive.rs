//! Additive words: adding to a word that may be moved at the same time.
//!
//! A mover swaps a *tombstone* into a word, and adds the value it got to the word that takes its
//! place. An addition that finds the tombstone is made again, at the place that the handle names
//! by then. Its bytes in the dead word are ignored.
//!
//! - I1. A live value is above -2^61. A value below is a tombstone, with the additions that came
//!   too late. Those are few, at most one of each read section that was under way, and small:
//!   together less than 2^61.
//! - E1. add → take_final: RMWs on one word. Each addition is in the value that `take_final`
//!   returns, or finds the tombstone. Loom: `loom_an_addition_is_moved_or_made_again`.
//! - E2. take → add: `take` is an RMW whatever it finds. An addition that it misses is later in
//!   the order of the word. Its thread finds the writes that the taker made before, for example a
//!   cleared mark. Loom: `loom_an_addition_is_taken_or_finds_the_takers_writes`.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::interleave;

use crate::mutation::{Mutation, active};

#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

const TOMBSTONE: i64 = i64::MIN / 2;
const LIVE_ABOVE: i64 = i64::MIN / 4;

/// Adds `delta`; `false` if the word is dead, and the caller has to make the addition elsewhere.
#[inline(always)]
#[must_use = "an addition to a dead word is to be made again"]
pub fn add(word: &AtomicU64, delta: i64) -> bool {
    // ORDERING: AcqRel; Release: a thread that takes or reads the sum sees the writes before the
    // addition. As an RMW it is in the value that `take_final` returns, or finds the tombstone
    // (E1).
    let before = word.fetch_add(delta as u64, Ordering::AcqRel) as i64;
    before > LIVE_ABOVE || active(Mutation::AddIgnoresTombstone)
}

/// Takes the value out for good, and leaves a tombstone: [`add`] returns `false` from now on.
#[must_use = "the value is to be credited elsewhere"]
pub fn take_final(word: &AtomicU64) -> i64 {
    interleave::point();
    if active(Mutation::TakeFinalByStore) {
        // ORDERING: Acquire and Release; the fault is that an addition may come between the two.
        return (read(word), word.store(TOMBSTONE as u64, Ordering::Release)).0;
    }
    // ORDERING: AcqRel; Acquire for the writes before the additions, Release for additions that
    // find the tombstone.
    live(word.swap(TOMBSTONE as u64, Ordering::AcqRel))
}

/// Takes a live value down to zero, and returns it. Returns zero for a dead word, which stays
/// dead.
///
/// It takes a value of zero as well: a thread that adds later then finds the caller's earlier
/// writes (E2).
#[must_use = "the value is to be credited elsewhere"]
#[inline]
pub fn take(word: &AtomicU64) -> i64 {
    if active(Mutation::TakeBySwap) {
        // ORDERING: AcqRel, as below; the fault is that it removes a tombstone.
        return live(word.swap(0, Ordering::AcqRel));
    }
    // ORDERING: Relaxed; a guess, which the exchange checks. A tombstone is final, and no guess.
    let mut value = word.load(Ordering::Relaxed);
    while value as i64 > LIVE_ABOVE && !(value == 0 && active(Mutation::TakeSkipsZero)) {
        interleave::point();
        // ORDERING: AcqRel; Acquire for the writes before the additions that are taken, Release for
        // additions that come later (E2). An exchange, because a swap would remove a tombstone.
        // Relaxed on failure, which is another guess.
        match word.compare_exchange_weak(value, 0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return value as i64,
            Err(now) => value = now,
        }
    }
    0
}

/// The value now; zero for a dead word.
pub fn read(word: &AtomicU64) -> i64 {
    // ORDERING: Acquire; pairs with the Release in `add`.
    live(word.load(Ordering::Acquire))
}

fn live(value: u64) -> i64 {
    if value as i64 > LIVE_ABOVE { value as i64 } else { 0 }
}
