//! Counter: the usage and the limit of one group.
//!
//! ```text
//!   word   63 ............. 15   14 ... 4   3         2        1      0
//!          usage in bytes, signed   epoch      COOLING   FROZEN   OVER   OFFLINE
//!          one atomic; every change of usage is an RMW on it
//!   max[0], max[1]          the limit in force is max[epoch & 1]
//! ```
//!
//! Usage, the choice of the limit and the offline mark share one word. So a charge that succeeds
//! by compare-and-swap has checked, in the same instant, the limit in force and that the group is
//! online. The kernel's `page_counter` adds first and compares afterwards, so charger and setter
//! must notice each other. Here the setter writes the limit that no thread reads yet, and then
//! changes the epoch.
//!
//! - I1. Usage never *rises* above the limit in force, not even for a moment, except by
//!   `charge_forced`.
//! - I2. Once OFFLINE is set, `try_charge` never succeeds again; only `reset` clears it, for a new
//!   group.
//! - I3. `peak` moves only for charges that succeeded at every level.
//! - I4. OVER means that usage was found above the limit, which was lowered or passed by force, or
//!   that a charge waits for headroom here. While it is set, no stock of the subtree is open. It
//!   changes under the level's lock. An uncharging thread serves waiters, and checks whether OVER
//!   can be cleared.
//! - I5. A limit that is a dry run (`control::dry_run`) refuses like any other, except for charges
//!   that come while OVER is set: those pass.
//! - I6. While OFFLINE, OVER, FROZEN or COOLING is set, no grant passes (`stock::grant`), so no
//!   stock below is opened. FROZEN means that a thread decides on a refusal, or drains. COOLING
//!   means that stocks were drained for a charge; it is cleared after a number of charges
//!   (`cool`).
//! - I7. The prepaid bytes below, together with those on their way to or from a stock, are at most
//!   `granted` minus `returned`, because bytes are charged after the grant, and a grant is
//!   returned after they left. Both sums only grow.
//! - B1. Usage exceeds live charges by the bytes prepaid in the subtree's stocks and by charges in
//!   flight.
//! - I8. No arithmetic on usage reaches the marks or the epoch, because usage has the highest
//!   bits. If a caller of `raw` breaks its contract, more bytes may be taken back than were
//!   charged. Usage is then below zero for a moment, which every reader takes for zero, and the
//!   thread that took too much adds the difference. So a wrong number makes the figures of its
//!   group and of those above it inexact, but makes no later call panic.
//! - B2. A charger that is suspended between two instructions while the limit changes exactly
//!   2,048 times could apply a limit that is no longer in force, once.
//! - E1. `set_max` (Release on the word) → `try_charge` (Acquire on the word): the charger that
//!   sees the epoch sees its limit. Loom: `a_charge_never_rises_above_the_limit_in_force`.

use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use memgroup_sync::erasable;

use crate::base::limit::{self, BYTES_MAX, UNLIMITED};
use crate::base::mutation::{self, Mutation};
pub(crate) use crate::state::counter::reading::Reading;
use crate::state::peak::Peak;

const OFFLINE: u64 = 1;
const OVER: u64 = 1 << 1;
const FROZEN: u64 = 1 << 2;
const COOLING: u64 = 1 << 3;
/// The lowest bit of the epoch, and all of them.
const EPOCH: u64 = 1 << 4;
const EPOCHS: u64 = ONE_BYTE - EPOCH;
/// One byte of usage. Usage has one bit more than [`BYTES_MAX`] needs, for the sign.
const ONE_BYTE: u64 = 1 << 15;

/// Returns the usage in a word, which may be below zero (I8).
#[inline(always)]
fn signed_usage(word: u64) -> i64 {
    word.cast_signed() >> ONE_BYTE.trailing_zeros()
}

#[inline(always)]
fn usage_of(word: u64) -> u64 {
    signed_usage(word).max(0).cast_unsigned()
}

/// Returns the number that adds `bytes` to a word, capped at the most that a counter holds.
#[inline(always)]
fn of_bytes(bytes: u64) -> u64 {
    bytes.min(BYTES_MAX) * ONE_BYTE
}

/// The marks that let no grant pass.
const BARS: u64 = OFFLINE | OVER | FROZEN | COOLING;

/// For each stock that was drained, the number of charges that a level counts before stocks may be
/// opened there again. Draining and opening a stock takes about as long as that many charges gain
/// by it.
const COOLING_CHARGES: u64 = 16;

/// The outcome of a charge that does not fit.
enum Outcome {
    /// The limit is a dry run, so the charge passes.
    Passes,
    /// The word has changed since.
    Changed(u64),
    Refused(Reading),
}

/// The word of a counter after bytes were taken back.
#[derive(Clone, Copy)]
pub(crate) struct Left(u64);

impl Left {
    /// Returns whether the group is offline and has no bytes left.
    #[inline(always)]
    pub(crate) fn is_done(self) -> bool {
        self.0 & OFFLINE != 0 && signed_usage(self.0) <= 0
    }

    #[inline(always)]
    pub(crate) fn is_over(self) -> bool {
        self.0 & OVER != 0
    }
}

/// The purpose of the bytes that are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Charge,
    /// A charge together with a grant for a stock that will be opened.
    Grant,
}

impl Purpose {
    fn bars(self) -> u64 {
        match self {
            Purpose::Grant if mutation::active(Mutation::GrantPassesMarks) => OFFLINE,
            Purpose::Grant => BARS,
            Purpose::Charge => OFFLINE,
        }
    }
}

erasable! {
    /// The usage and the limit of one group. Every miss of every CPU writes the word, so a node
    /// has the limits in one cache line, and the words behind them in the next.
    #[repr(C)]
    pub(crate) struct Counter {
        limits: Limits,
        word: AtomicU64,
        granted: AtomicU64,
        returned: AtomicU64,
        /// The number of charges to come before COOLING is cleared.
        cooling: AtomicU64,
    }
}

erasable! {
    /// The limits and peaks, which a miss reads together with the word.
    struct Limits {
        max: [AtomicU64; 2],
        high: AtomicU64,
        peak: Peak,
        /// The limit, if it is a dry run; else `UNLIMITED`.
        shadow: AtomicU64,
        /// Whether the limit of each epoch is a dry run.
        is_dry_run: [AtomicBool; 2],
        backing_off: AtomicU32,
        /// A bound: no charge that waits here asks for fewer bytes. It changes under the lock of
        /// the queue of waiting charges.
        least_waiting: AtomicU64,
    }
}

impl Counter {
    #[cfg(test)]
    pub(crate) fn new() -> Counter {
        let counter: Counter = memgroup_sync::Erasable::zero();
        counter.reset();
        counter
    }

    fn max_of(&self, word: u64) -> u64 {
        // ORDERING: Relaxed, here and in `is_dry_run_of`, because the Acquire load of `word` that
        // chose the cell made its value visible (E1).
        self.limits.max[usize::from(word & EPOCH != 0)].load(Ordering::Relaxed)
    }

    fn is_dry_run_of(&self, word: u64) -> bool {
        self.limits.is_dry_run[usize::from(word & EPOCH != 0)].load(Ordering::Relaxed)
    }

    /// Returns usage and limit as they were together at one instant.
    pub(crate) fn read(&self) -> Reading {
        // ORDERING: Acquire pairs with the Release in `set_max` (E1). Weaker, the epoch could be
        // seen before the limit that it chose.
        self.read_from(self.word.load(Ordering::Acquire))
    }

    /// Does the same as `read` by an RMW, which sees the newest usage. A thread that changes the
    /// usage afterwards acquires the steps before this call.
    pub(crate) fn read_now(&self) -> Reading {
        // ORDERING: AcqRel RMW that changes nothing, as in `usage_now`.
        self.read_from(self.word.fetch_add(0, Ordering::AcqRel))
    }

    fn read_from(&self, mut word: u64) -> Reading {
        loop {
            let (max, is_dry_run) = (self.max_of(word), self.is_dry_run_of(word));
            // ORDERING: Acquire, as in `read`, because the next round uses this word. The
            // comparison makes sure that the limit belonged to the epoch.
            let again = self.word.load(Ordering::Acquire);
            if again & EPOCHS == word & EPOCHS {
                return Reading { is_dry_run, ..Reading::of(word, max) };
            }
            word = again;
        }
    }

    /// Does the same as `read`, and adds the prepaid part of the usage.
    pub(crate) fn read_with_prepaid(&self) -> Reading {
        // ORDERING: Acquire, all three, in this order. So the difference is never less than the
        // prepaid part of the usage that is read in between (I7).
        let returned = self.returned.load(Ordering::Acquire);
        let seen = self.read();
        let granted = self.granted.load(Ordering::Acquire);
        Reading { prepaid_most: granted.wrapping_sub(returned), ..seen }
    }

    /// Returns the usage, by a plain load.
    pub(crate) fn usage(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `uncharge`: a reader that sees an uncharge
        // also sees the steps before it.
        usage_of(self.word.load(Ordering::Acquire))
    }

    /// Returns the usage by an RMW, which sees the newest value. A thread that changes it
    /// afterwards acquires the steps before this call (`protect::used` E1, `peak` E1).
    pub(crate) fn usage_now(&self) -> u64 {
        // ORDERING: AcqRel RMW that changes nothing. A load could be served before earlier stores
        // of this thread are visible.
        usage_of(self.word.fetch_add(0, Ordering::AcqRel))
    }

    pub(crate) fn is_offline(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `mark_offline`.
        self.word.load(Ordering::Acquire) & OFFLINE != 0
    }

    /// Does the same as `is_offline` by an RMW. One thread drops its handle and then calls this,
    /// another marks the group offline and then searches for handles. The later of the two sees
    /// what the earlier one did.
    pub(crate) fn is_offline_now(&self) -> bool {
        // ORDERING: AcqRel RMW that changes nothing; it pairs with the RMW in `mark_offline`. A
        // load could be served before earlier stores of this thread are visible, and both threads
        // could miss each other.
        self.word.fetch_add(0, Ordering::AcqRel) & OFFLINE != 0
    }

    /// Adds `bytes` if usage stays within the limit in force and leaves `reserved` bytes below it
    /// free. Returns the new usage. A refusal is decided by an RMW, which sees the newest value.
    pub(crate) fn try_charge(&self, bytes: u64, reserved: u64, purpose: Purpose) -> Result<u64, Reading> {
        let bars = purpose.bars();
        // ORDERING: Acquire, also where the exchange below fails, pairs with the Release in
        // `set_max` (E1).
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if !self.fits(word, bytes, reserved, bars) {
                match self.refused(word, bytes, reserved, purpose) {
                    Outcome::Passes => {}
                    Outcome::Changed(newest) => {
                        word = newest;
                        continue;
                    }
                    Outcome::Refused(seen) => return Err(seen),
                }
            }
            let expected = if mutation::active(Mutation::LimitIgnoresEpoch) {
                self.word.load(Ordering::Acquire)
            } else {
                word
            };
            // ORDERING: AcqRel. The Acquire part is for the next `max_of`. The Release part pairs
            // with the Acquire in `uncharge`: the thread that uncharges these bytes comes after
            // this charge, so usage does not fall below zero.
            match self.word.compare_exchange_weak(
                expected,
                expected.wrapping_add(of_bytes(bytes)),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    if expected & COOLING != 0 {
                        self.cooled();
                    }
                    return Ok(usage_of(expected) + bytes);
                }
                Err(newer) => word = newer,
            }
        }
    }

    /// Returns whether a charge that saw `word` fits.
    #[inline(always)]
    fn fits(&self, word: u64, bytes: u64, reserved: u64, bars: u64) -> bool {
        let most = self.max_of(word).min(BYTES_MAX).saturating_sub(reserved);
        word & bars == 0 && bytes <= most.saturating_sub(usage_of(word))
    }

    /// Returns the outcome of a charge that does not fit by `word`.
    #[cold]
    fn refused(&self, word: u64, bytes: u64, reserved: u64, purpose: Purpose) -> Outcome {
        // ORDERING: Acquire, before the RMW below: if a grant is seen as returned, its bytes have
        // left the usage that the RMW finds (I7).
        let returned = self.returned.load(Ordering::Acquire);
        let is_dry_run = self.is_dry_run_of(word);
        let seen = Reading { reserved, is_dry_run, ..Reading::of(word, self.max_of(word)) };
        if purpose == Purpose::Charge && seen.lets_pass(bytes) {
            return Outcome::Passes;
        }
        // ORDERING: AcqRel RMW that changes nothing. It reads the newest value, so a refusal is
        // never decided on a value from before this call. Loom:
        // `a_charge_after_an_uncharge_is_not_refused`.
        let newest = self.word.fetch_add(0, Ordering::AcqRel);
        if newest != word && !mutation::active(Mutation::RefusalIgnoresNewerUsage) {
            return Outcome::Changed(newest);
        }
        // ORDERING: Acquire, after the RMW, which acquired the grants of all bytes that it found
        // (I7).
        let granted = self.granted.load(Ordering::Acquire);
        Outcome::Refused(Reading { prepaid_most: granted.wrapping_sub(returned), ..seen })
    }

    /// Returns the usage with `bytes` added, if they would fit now with `reserved` bytes left
    /// free. This is less exact than `read`.
    #[inline]
    pub(crate) fn with_room(&self, bytes: u64, reserved: u64) -> Option<u64> {
        // ORDERING: Acquire pairs with the Release in `set_max` (E1). The limit that is read may be
        // that of two epochs later, which does no harm, because `try_charge` decides.
        let word = self.word.load(Ordering::Acquire);
        self.fits(word, bytes, reserved, OFFLINE).then(|| usage_of(word) + bytes)
    }

    /// Adds `bytes` if usage stays within `beyond` bytes of the limit; with `u64::MAX`, at any
    /// limit. Returns the new usage. Fails also if the counter cannot hold the sum, or if the
    /// group is offline, unless `offline_too` is set. A caller that sets it must hold the tree
    /// lock.
    pub(crate) fn charge_forced(&self, bytes: u64, beyond: u64, offline_too: bool) -> Result<u64, Reading> {
        // ORDERING: as in `try_charge`: Acquire pairs with the Release in `set_max` (E1), and the
        // Release of the exchange with the Acquire in `uncharge`.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let is_dry_run = self.is_dry_run_of(word);
            let seen = Reading { is_dry_run, ..Reading::of(word, self.max_of(word)) };
            let most = if is_dry_run { BYTES_MAX } else { seen.max.saturating_add(beyond).min(BYTES_MAX) };
            if bytes > most.saturating_sub(seen.usage) || (seen.offline && !offline_too) {
                return Err(seen);
            }
            let next = word.wrapping_add(of_bytes(bytes));
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(seen.usage + bytes),
                Err(newer) => word = newer,
            }
        }
    }

    /// Takes `bytes` back. Returns the usage that is left and whether the group is offline. If
    /// fewer bytes are charged, which happens only if a caller of `raw` breaks its contract, it
    /// takes those (I8).
    #[inline(always)]
    pub(crate) fn uncharge(&self, bytes: u64) -> Left {
        // ORDERING: AcqRel. Acquire pairs with the Release of the charge that this undoes. Release
        // pairs with the Acquire of a reader of zero (`release`), which must see everything that
        // the last holder did before the node gets another group.
        let before = self.word.fetch_sub(of_bytes(bytes), Ordering::AcqRel);
        let after = before.wrapping_sub(of_bytes(bytes));
        if signed_usage(after) < 0 { self.add_missing(before, after) } else { Left(after) }
    }

    /// Adds back the bytes by which this call took usage below zero. Concurrent calls each add
    /// back their own part.
    #[cold]
    fn add_missing(&self, before: u64, after: u64) -> Left {
        let missing = (signed_usage(before).min(0) - signed_usage(after)).cast_unsigned();
        // ORDERING: AcqRel, as in `uncharge`.
        let seen = self.word.fetch_add(of_bytes(missing), Ordering::AcqRel);
        Left(seen.wrapping_add(of_bytes(missing)))
    }

    /// Puts a new limit in force, or makes it a dry run if the previous one is. The caller must
    /// hold the level's lock, so that it is the only setter.
    pub(crate) fn set_max(&self, max: u64) {
        self.set_limit(max, self.read().is_dry_run);
    }

    /// Puts a new limit in force, or makes it a dry run. The caller must be the only setter.
    pub(crate) fn set_limit(&self, max: u64, is_dry_run: bool) {
        // ORDERING: Relaxed, because only setters change the epoch, and they exclude each other.
        let mut word = self.word.load(Ordering::Relaxed);
        let next = usize::from(word & EPOCH == 0);
        // ORDERING: Relaxed, all three, because the Release below publishes them (E1). Chargers of
        // the present epoch do not read the cells of the next. A charge that is under way may read
        // the shadow a moment too early, and be counted by it.
        self.limits.max[next].store(max, Ordering::Relaxed);
        self.limits.is_dry_run[next].store(is_dry_run, Ordering::Relaxed);
        self.limits.shadow.store(if is_dry_run { max } else { UNLIMITED }, Ordering::Relaxed);
        // ORDERING: AcqRel. Release pairs with the Acquire loads of the word (E1): weaker, a
        // charger could choose the next cell before the limit is in it. As an RMW it also makes
        // every compare-and-swap fail that was checked against the old limit. After the last epoch
        // comes the first, without a carry.
        let with_next_epoch = |word: u64| word & !EPOCHS | word.wrapping_add(EPOCH) & EPOCHS;
        while let Err(newer) =
            self.word.compare_exchange_weak(word, with_next_epoch(word), Ordering::AcqRel, Ordering::Relaxed)
        {
            word = newer;
        }
    }

    /// Makes `try_charge` refuse from here on (I2).
    pub(crate) fn mark_offline(&self) {
        // ORDERING: AcqRel RMW on the word that is charged, so no charge can succeed between this
        // and the caller's next read of the counter.
        self.word.fetch_or(OFFLINE, Ordering::AcqRel);
    }

    /// Sets or clears the OVER mark. The caller must hold the level's lock, and is responsible for
    /// the stocks.
    pub(crate) fn mark_over(&self, over: bool) {
        if over {
            // ORDERING: AcqRel RMWs, both: a later uncharge sees the mark, and an earlier one is
            // seen by the caller when it reads the usage next.
            self.word.fetch_or(OVER, Ordering::AcqRel);
        } else {
            self.word.fetch_and(!OVER, Ordering::AcqRel);
        }
    }

    /// Returns a bound: no charge that waits here asks for fewer bytes. The caller must have made
    /// an RMW of the word.
    pub(crate) fn least_waiting(&self) -> u64 {
        // ORDERING: Relaxed, because that RMW acquired it. A charge that entered the queue since
        // reads the word itself (`waiters` E1).
        self.limits.least_waiting.load(Ordering::Relaxed)
    }

    /// Sets the bound: no charge that waits here asks for fewer than `bytes`. The caller must hold
    /// the lock of the queue.
    pub(crate) fn set_least_waiting(&self, bytes: u64) {
        // ORDERING: Relaxed, because the RMW of the word that follows publishes it (`waiters` E1).
        self.limits.least_waiting.store(bytes, Ordering::Relaxed);
    }

    /// Makes the counter of a released group ready for a new one, which is online and
    /// unlimited.
    pub(crate) fn reset(&self) {
        self.set_limit(UNLIMITED, false);
        self.set_high(UNLIMITED);
        self.set_least_waiting(u64::MAX);
        self.limits.peak.reset();
        // ORDERING: AcqRel, because this is the last step of becoming a new group: a thread that
        // sees it online also sees the steps before it.
        self.word.fetch_and(!BARS, Ordering::AcqRel);
    }

    /// Returns the soft limit, which refuses nothing. It lies beside `max`, in a line that a
    /// charging thread has just read.
    pub(crate) fn high(&self) -> u64 {
        // ORDERING: Relaxed, here and in `set_high`, because it is a number by itself. A charge
        // that runs while it changes may miss the new one (`high` B2).
        self.limits.high.load(Ordering::Relaxed)
    }

    pub(crate) fn set_high(&self, high: u64) {
        self.limits.high.store(high, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn raise_peak(&self, usage: u64) {
        self.limits.peak.raise(usage);
    }

    pub(crate) fn peak(&self) -> &Peak {
        &self.limits.peak
    }

    /// Returns the limit, if it is a dry run.
    #[inline]
    pub(crate) fn dry_run(&self) -> Option<u64> {
        // ORDERING: Relaxed, because a charge may read this a moment too early anyway
        // (`set_limit`).
        limit::given(self.limits.shadow.load(Ordering::Relaxed))
    }
}

mod bars;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod reading;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;
