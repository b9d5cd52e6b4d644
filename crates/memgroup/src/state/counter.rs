//! Counter: the usage and the limit of one group.
//!
//! ```text
//!   word   63 ............. 15 | 14 ... 4 | 3       | 2      | 1    | 0
//!          usage in bytes, signed | epoch    | COOLING | FROZEN | OVER | OFFLINE     one atomic; every change of usage is an RMW on it
//!   max[0], max[1]          the limit in force is max[epoch & 1]
//! ```
//!
//! Usage, the choice of the limit and the offline mark share one word. So a charge that succeeds by
//! compare-and-swap has checked, in the same instant, the limit in force and that the group was online.
//! The kernel's `page_counter` adds first and compares after. There charger and setter must notice each
//! other. Here the setter writes the limit that no thread reads yet, and then turns the epoch.
//!
//! - I1. usage never *rises* above the limit in force, not for a moment, except by `charge_forced`.
//! - I2. once OFFLINE is set, `try_charge` never succeeds again; only `mark_online` clears it.
//! - I3. `peak` only moves for charges that succeeded at every level.
//! - I4. OVER says that usage was found above the limit (lowered, or passed by force), or that a charge waits for room here. No stock of the
//!   subtree is open while it is set. It changes under the level's lock. An uncharging thread serves waiters and looks whether it can go.
//! - I5. A limit that is a dry run (`control::dry_run`) refuses like any other, but for charges that come while OVER is set: those pass.
//! - I6. While OFFLINE, OVER, FROZEN or COOLING is set, no grant passes (`stock::grant`): no stock below is opened. FROZEN: a thread decides
//!   on a refusal, or drains. COOLING: stocks were drained for a charge; it goes after some charges (`cool`).
//! - I7. Prepaid bytes below, and those on their way to or from a stock, are at most `granted` less `returned`: bytes are charged after the
//!   grant, and a grant is returned after they left. Both sums only grow.
//! - B1. usage exceeds live charges by the bytes prepaid in the subtree's stocks and by charges in flight.
//! - I8. No arithmetic on usage reaches the marks or the epoch: usage has the highest bits. More bytes may be taken back than were charged where a caller
//!   of `raw` breaks its contract. Then usage is below zero for a moment, which every reader takes for zero, and the thread that took too much adds the
//!   difference. So a wrong number costs its group, and those above it, exact figures, and makes no later call panic.
//! - B2. A charger that is suspended between two instructions while the limit changes exactly 2,048 times
//!   could once apply a limit that is out of force.
//! - E1. `set_max` (Release on the word) → `try_charge` (Acquire on the word): the charger that sees the epoch
//!   sees its limit. Loom: `a_charge_never_rises_above_the_limit_in_force`.

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
/// A byte of usage. Above it is one bit more than [`BYTES_MAX`] needs, for the sign.
const ONE_BYTE: u64 = 1 << 15;

/// Usage in a word, which may be below zero (I8).
#[inline(always)]
fn signed_usage(word: u64) -> i64 {
    word.cast_signed() >> ONE_BYTE.trailing_zeros()
}

#[inline(always)]
fn usage_of(word: u64) -> u64 {
    signed_usage(word).max(0).cast_unsigned()
}

/// Returns what `bytes` add to a word, capped at the most that a counter holds.
#[inline(always)]
fn of_bytes(bytes: u64) -> u64 {
    bytes.min(BYTES_MAX) * ONE_BYTE
}

/// Each of these keeps grants from passing.
const BARS: u64 = OFFLINE | OVER | FROZEN | COOLING;

/// How many charges a level sees for each stock that was drained, before stocks are opened there again: to drain and open a stock takes
/// about as long as so many charges gain by it.
const COOLING_CHARGES: u64 = 16;

/// The outcome of a charge that has no room.
enum Outcome {
    /// The limit is a dry run, and is passed.
    Passes,
    /// The word is another by now.
    Changed(u64),
    Refused(Reading),
}

/// A counter after bytes were taken back.
#[derive(Clone, Copy)]
pub(crate) struct Left(u64);

impl Left {
    /// Returns whether the group is offline and holds nothing any more.
    #[inline(always)]
    pub(crate) fn is_done(self) -> bool {
        self.0 & OFFLINE != 0 && signed_usage(self.0) <= 0
    }

    #[inline(always)]
    pub(crate) fn is_over(self) -> bool {
        self.0 & OVER != 0
    }
}

/// The bytes that a charge is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Charge,
    /// A charge, and a grant for a stock that is to be opened.
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
    /// Usage and limit of one group. The word has its cache line almost to itself: every miss of every CPU writes it.
    #[repr(C, align(64))]
    pub(crate) struct Counter {
        word: AtomicU64,
        granted: AtomicU64,
        returned: AtomicU64,
        /// Charges that are still to come until COOLING goes.
        cooling: AtomicU64,
        over_bytes_max: AtomicU64,
        refusals: AtomicU64,
        overdraft_charges: AtomicU64,
        overdraft_bytes: AtomicU64,
        limits: Limits,
    }
}

erasable! {
    /// The limits and peaks, which a miss reads beside the word.
    #[repr(align(64))]
    struct Limits {
        max: [AtomicU64; 2],
        high: AtomicU64,
        peak: Peak,
        /// The limit of a dry run; else none.
        shadow: AtomicU64,
        /// Whether the limit of each epoch is a dry run.
        is_dry_run: [AtomicBool; 2],
        backing_off: AtomicU32,
        /// No charge waits here for fewer bytes; changed under the lock of the queue of waiting charges.
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
        // ORDERING: Relaxed; the Acquire load of `word` that chose the cell made its value visible (E1).
        self.limits.max[usize::from(word & EPOCH != 0)].load(Ordering::Relaxed)
    }

    fn is_dry_run_of(&self, word: u64) -> bool {
        // ORDERING: Relaxed; as in `max_of`.
        self.limits.is_dry_run[usize::from(word & EPOCH != 0)].load(Ordering::Relaxed)
    }

    /// Usage and limit as they were together at one instant.
    pub(crate) fn read(&self) -> Reading {
        // ORDERING: Acquire; pairs with the Release in `set_max` (E1). Weaker, the epoch could be seen
        // before the limit it chose.
        self.read_from(self.word.load(Ordering::Acquire))
    }

    /// `read` by an RMW: the newest usage. A thread that changes it afterwards acquires the steps before this look.
    pub(crate) fn read_now(&self) -> Reading {
        // ORDERING: AcqRel RMW that changes nothing; as in `usage_now`.
        self.read_from(self.word.fetch_add(0, Ordering::AcqRel))
    }

    fn read_from(&self, mut word: u64) -> Reading {
        loop {
            let (max, is_dry_run) = (self.max_of(word), self.is_dry_run_of(word));
            // ORDERING: Acquire, as in `read`: the epoch is compared, and the word serves the next round.
            let again = self.word.load(Ordering::Acquire);
            if again & EPOCHS == word & EPOCHS {
                return Reading { is_dry_run, ..Reading::of(word, max) };
            }
            word = again;
        }
    }

    /// The same, with the prepaid part of the usage.
    pub(crate) fn read_with_prepaid(&self) -> Reading {
        // ORDERING: Acquire, both, in this order (I7).
        let returned = self.returned.load(Ordering::Acquire);
        let seen = self.read();
        // ORDERING: as above.
        let granted = self.granted.load(Ordering::Acquire);
        Reading { prepaid_most: granted.wrapping_sub(returned), ..seen }
    }

    /// Usage alone, a plain load.
    pub(crate) fn usage(&self) -> u64 {
        // ORDERING: Acquire; a reader that sees an uncharge also sees the steps before it.
        usage_of(self.word.load(Ordering::Acquire))
    }

    /// `usage` by an RMW: the newest value. A thread that changes it afterwards acquires the steps before this look (`protect::used` E1,
    /// `peak` E1).
    pub(crate) fn usage_now(&self) -> u64 {
        // ORDERING: AcqRel RMW that changes nothing; a load could be served before earlier stores are seen.
        usage_of(self.word.fetch_add(0, Ordering::AcqRel))
    }

    pub(crate) fn is_offline(&self) -> bool {
        // ORDERING: Acquire; pairs with `mark_offline`.
        self.word.load(Ordering::Acquire) & OFFLINE != 0
    }

    /// `is_offline` by an RMW. One thread gives up its handle and then looks here; another marks the group offline and then looks for
    /// handles. Of the two, the later one sees the earlier.
    pub(crate) fn is_offline_now(&self) -> bool {
        // ORDERING: AcqRel RMW that changes nothing; pairs with the RMW in `mark_offline`. A load could be served before
        // earlier stores are seen.
        self.word.fetch_add(0, Ordering::AcqRel) & OFFLINE != 0
    }

    /// Adds `bytes` if usage stays within the limit in force, and leaves `reserved` bytes below it
    /// free. Returns the new usage. A refusal is decided by an RMW, which sees the newest value.
    pub(crate) fn try_charge(&self, bytes: u64, reserved: u64, purpose: Purpose) -> Result<u64, Reading> {
        let bars = purpose.bars();
        // ORDERING: Acquire; pairs with the Release in `set_max` (E1).
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
                // ORDERING: Acquire, as above (a mutation for the models only).
                self.word.load(Ordering::Acquire)
            } else {
                word
            };
            // ORDERING: AcqRel. Acquire for the next `max_of`; Release so that the thread that uncharges these bytes is
            // ordered after it and usage cannot pass below zero. Failure Acquire, as the first load.
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
                    return Ok(usage_of(expected.wrapping_add(of_bytes(bytes))));
                }
                Err(newer) => word = newer,
            }
        }
    }

    /// Whether a charge that saw `word` has room.
    #[inline(always)]
    fn fits(&self, word: u64, bytes: u64, reserved: u64, bars: u64) -> bool {
        let used = usage_of(word);
        let most = self.max_of(word).min(BYTES_MAX).saturating_sub(reserved);
        word & bars == 0 && used <= most && bytes <= most - used
    }

    /// Returns the outcome of a charge that has no room by `word`.
    #[cold]
    fn refused(&self, word: u64, bytes: u64, reserved: u64, purpose: Purpose) -> Outcome {
        // ORDERING: Acquire; before the RMW below. The bytes of a grant that is seen to be returned have
        // left the usage that the RMW finds (I7).
        let returned = self.returned.load(Ordering::Acquire);
        let is_dry_run = self.is_dry_run_of(word);
        let seen = Reading { reserved, is_dry_run, ..Reading::of(word, self.max_of(word)) };
        if purpose == Purpose::Charge && seen.lets_pass(bytes) {
            return Outcome::Passes;
        }
        // ORDERING: AcqRel RMW that changes nothing; it reads the newest value, so a refusal is never
        // decided on a value from before this call.
        let newest = self.word.fetch_add(0, Ordering::AcqRel);
        if newest != word {
            return Outcome::Changed(newest);
        }
        // ORDERING: Acquire; after the RMW, which acquired the grants of all bytes that it found.
        let granted = self.granted.load(Ordering::Acquire);
        Outcome::Refused(Reading { prepaid_most: granted.wrapping_sub(returned), ..seen })
    }

    /// The usage with `bytes` more if they would have room now, with `reserved` left free: a look, without the exactness of `read`.
    #[inline]
    pub(crate) fn with_room(&self, bytes: u64, reserved: u64) -> Option<u64> {
        // ORDERING: Acquire; pairs with the Release in `set_max` (E1). A limit of two epochs later may be read with it: `try_charge` decides.
        let word = self.word.load(Ordering::Acquire);
        self.fits(word, bytes, reserved, OFFLINE).then(|| usage_of(word) + bytes)
    }

    /// Adds `bytes` if usage stays within `beyond` bytes of the limit: with `u64::MAX`, at any limit. `Err` also if the counter cannot hold
    /// the sum, or if the group is offline and `offline_too` is not set. The caller sets that under the tree lock. Returns the new usage.
    pub(crate) fn charge_forced(&self, bytes: u64, beyond: u64, offline_too: bool) -> Result<u64, Reading> {
        // ORDERING: Acquire; pairs with the Release in `set_max` (E1).
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let is_dry_run = self.is_dry_run_of(word);
            let seen = Reading { is_dry_run, ..Reading::of(word, self.max_of(word)) };
            let most = if is_dry_run { BYTES_MAX } else { seen.max.saturating_add(beyond).min(BYTES_MAX) };
            if bytes > most.saturating_sub(seen.usage) || (seen.offline && !offline_too) {
                return Err(seen);
            }
            // ORDERING: AcqRel, as in `try_charge`.
            let next = word.wrapping_add(of_bytes(bytes));
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(seen.usage + bytes),
                Err(newer) => word = newer,
            }
        }
    }

    /// Records by how much a forced charge of `bytes`, which succeeded at every level, took this one over its limit. Whether it went over one that
    /// refuses.
    pub(crate) fn record_overdraft(&self, usage: u64, bytes: u64) -> bool {
        let with_it = Reading { usage, ..self.read() };
        if with_it.is_dry_run {
            self.raise_over(with_it.usage.saturating_sub(with_it.max));
            return false;
        }
        let over_bytes = with_it.usage.saturating_sub(with_it.max.max(with_it.usage - bytes));
        if over_bytes > 0 {
            // ORDERING: Relaxed; counts for reports only.
            self.overdraft_charges.fetch_add(1, Ordering::Relaxed);
            self.overdraft_bytes.fetch_add(over_bytes, Ordering::Relaxed);
        }
        over_bytes > 0
    }

    /// Takes `bytes` back. Returns the usage left and whether the group is offline. If fewer are charged, which only a broken contract of `raw` can lead to, it takes those
    /// (I8).
    #[inline(always)]
    pub(crate) fn uncharge(&self, bytes: u64) -> Left {
        // ORDERING: AcqRel. Acquire: after the charge it undoes; Release: a reader of zero (`release`) sees
        // everything its last holder did.
        let before = self.word.fetch_sub(of_bytes(bytes), Ordering::AcqRel);
        let after = before.wrapping_sub(of_bytes(bytes));
        if signed_usage(after) < 0 { self.add_missing(before, after) } else { Left(after) }
    }

    /// Adds back the bytes that this call took below zero. Concurrent calls each add back their own part.
    #[cold]
    fn add_missing(&self, before: u64, after: u64) -> Left {
        let missing = (signed_usage(before).min(0) - signed_usage(after)).cast_unsigned();
        // ORDERING: AcqRel, as every change of the word.
        let seen = self.word.fetch_add(of_bytes(missing), Ordering::AcqRel);
        Left(seen.wrapping_add(of_bytes(missing)))
    }

    /// Puts a new limit in force, or has it measure, as the one before; the caller is the only setter (it holds the level's lock).
    pub(crate) fn set_max(&self, max: u64) {
        self.set_limit(max, self.read().is_dry_run);
    }

    /// Puts a new limit in force, or has it measure; the caller is the only setter.
    pub(crate) fn set_limit(&self, max: u64, is_dry_run: bool) {
        // ORDERING: Relaxed; only setters turn the epoch, and they exclude each other.
        let mut word = self.word.load(Ordering::Relaxed);
        let next = usize::from(word & EPOCH == 0);
        // ORDERING: Relaxed, all; published by the Release below (E1). Chargers of the present epoch do not read these cells. A charge that is
        // under way may find the shadow a moment too early, and be counted by it.
        self.limits.max[next].store(max, Ordering::Relaxed);
        // ORDERING: as above.
        self.limits.is_dry_run[next].store(is_dry_run, Ordering::Relaxed);
        // ORDERING: as above.
        self.limits.shadow.store(if is_dry_run { max } else { UNLIMITED }, Ordering::Relaxed);
        // ORDERING: Release; pairs with the Acquire loads of the word (E1). As an RMW it also fails every
        // compare-and-swap that was checked against the old limit. The last epoch is followed by the first, and nothing is carried.
        let turned = |word: u64| word & !EPOCHS | word.wrapping_add(EPOCH) & EPOCHS;
        while let Err(newer) =
            self.word.compare_exchange_weak(word, turned(word), Ordering::AcqRel, Ordering::Relaxed)
        {
            word = newer;
        }
    }

    /// From here on `try_charge` is refused (I2).
    pub(crate) fn mark_offline(&self) {
        // ORDERING: AcqRel RMW on the charged word: no charge can succeed between this and the caller's next look.
        self.word.fetch_or(OFFLINE, Ordering::AcqRel);
    }

    /// Sets or clears the OVER mark; the caller holds the level's lock and sees to the stocks.
    pub(crate) fn mark_over(&self, over: bool) {
        if over {
            // ORDERING: AcqRel; an uncharge that comes later sees the mark, one that came earlier is seen by the caller's
            // next look at the usage.
            self.word.fetch_or(OVER, Ordering::AcqRel);
        } else {
            // ORDERING: AcqRel, as above.
            self.word.fetch_and(!OVER, Ordering::AcqRel);
        }
    }

    /// No charge that waits here asks for fewer bytes. The caller has made an RMW of the word.
    pub(crate) fn least_waiting(&self) -> u64 {
        // ORDERING: Relaxed; acquired by the RMW. A charge that entered the queue since looks at the word itself (`waiters` E1).
        self.limits.least_waiting.load(Ordering::Relaxed)
    }

    /// No charge that waits here asks for fewer bytes than this. The caller holds the lock of the queue.
    pub(crate) fn set_least_waiting(&self, bytes: u64) {
        // ORDERING: Relaxed; published by the RMW of the word that follows (`waiters` E1).
        self.limits.least_waiting.store(bytes, Ordering::Relaxed);
    }

    /// Makes the counter of a released group ready for a new one: online, unlimited, no past.
    pub(crate) fn reset(&self) {
        self.set_limit(UNLIMITED, false);
        self.set_high(UNLIMITED);
        self.set_least_waiting(u64::MAX);
        self.limits.peak.reset();
        for past in [&self.over_bytes_max, &self.refusals, &self.overdraft_charges, &self.overdraft_bytes] {
            // ORDERING: Relaxed; there is no handle yet, the new one is handed out under the tree lock.
            past.store(0, Ordering::Relaxed);
        }
        // ORDERING: AcqRel; the last step of becoming a new group.
        self.word.fetch_and(!BARS, Ordering::AcqRel);
    }

    /// The soft limit, which refuses nothing. It lies beside `max`, in a line that a charging thread has just read.
    pub(crate) fn high(&self) -> u64 {
        // ORDERING: Relaxed; a number by itself. A charge beside a change may miss it (`high` B2).
        self.limits.high.load(Ordering::Relaxed)
    }

    pub(crate) fn set_high(&self, high: u64) {
        // ORDERING: Relaxed; as in `high`.
        self.limits.high.store(high, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn raise_peak(&self, usage: u64) {
        self.limits.peak.raise(usage);
    }

    pub(crate) fn peak(&self) -> &Peak {
        &self.limits.peak
    }

    /// The limit, if it is a dry run.
    #[inline]
    pub(crate) fn dry_run(&self) -> Option<u64> {
        // ORDERING: Relaxed; see `set_limit`.
        limit::given(self.limits.shadow.load(Ordering::Relaxed))
    }

    /// Usage was so many bytes above the limit of a dry run.
    pub(crate) fn raise_over(&self, over_bytes: u64) {
        // ORDERING: Relaxed; a maximum.
        self.over_bytes_max.fetch_max(over_bytes, Ordering::Relaxed);
    }

    /// The most bytes that usage was above such a limit.
    pub(crate) fn over_bytes_max(&self) -> u64 {
        // ORDERING: Relaxed; a report.
        self.over_bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn count_refusal(&self) {
        // ORDERING: Relaxed; a report.
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refusals(&self) -> u64 {
        // ORDERING: Relaxed; a report.
        self.refusals.load(Ordering::Relaxed)
    }

    /// Forced charges that went over the limit, and by how many bytes together.
    pub(crate) fn overdraft(&self) -> (u64, u64) {
        // ORDERING: Relaxed; a report, the two may be a moment apart.
        let charges = self.overdraft_charges.load(Ordering::Relaxed);
        (charges, self.overdraft_bytes.load(Ordering::Relaxed))
    }
}

mod bars;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod reading;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;
