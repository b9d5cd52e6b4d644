//! Bars: the grants of a counter, and the marks in its word that let no grant pass.

use memgroup_sync::atomic::{AtomicU32, Ordering};

use crate::state::counter::{BARS, COOLING, COOLING_CHARGES, Counter, FROZEN, Purpose};

impl Counter {
    /// Lets no grant pass from here on, until `thaw`. The caller must hold the level's lock.
    pub(crate) fn freeze(&self) {
        // ORDERING: AcqRel RMW: a grant that passed before is seen with all its marks, and a later
        // one finds FROZEN. In `thaw`, the same RMW publishes what was done while the level was
        // frozen.
        self.word.fetch_or(FROZEN, Ordering::AcqRel);
    }

    pub(crate) fn thaw(&self) {
        self.word.fetch_and(!FROZEN, Ordering::AcqRel);
    }

    /// Returns the number of charges that still come here because the group's stock was evicted
    /// (`Node::back_off`).
    pub(crate) fn backing_off(&self) -> &AtomicU32 {
        &self.limits.backing_off
    }

    /// Returns whether a grant would not pass now. This is a hint.
    pub(crate) fn is_barred(&self) -> bool {
        // ORDERING: Relaxed, because a grant passes by an RMW.
        self.word.load(Ordering::Relaxed) & BARS != 0
    }

    /// Returns whether a grant passes, for bytes that are charged here already.
    pub(crate) fn passes(&self) -> bool {
        // ORDERING: AcqRel RMW that changes nothing. It is ordered with the RMW in `freeze`, and
        // with those that set the other bars: either this one finds the bar, or the thread that
        // sets it finds the grant.
        self.word.fetch_add(0, Ordering::AcqRel) & Purpose::Grant.bars() == 0
    }

    /// Grants `bytes` to a stock below. The caller must then pass the counter by an RMW, or return
    /// them.
    pub(crate) fn grant(&self, bytes: u64) {
        // ORDERING: AcqRel. Release, together with the RMW of the word that follows, pairs with the
        // Acquire of a thread that reads `granted`. Weaker, it could take prepaid bytes for live
        // ones (I7). As an RMW this precedes the check in `holders::list`.
        self.granted.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Returns the grant of a stock below, whose bytes have left the usage.
    pub(crate) fn return_grant(&self, bytes: u64) {
        // ORDERING: AcqRel. Release pairs with the Acquire of a thread that reads `returned`.
        // Weaker, it could see the return while the bytes are still in the usage (I7).
        self.returned.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Returns the most bytes that are prepaid below now.
    pub(crate) fn prepaid_most(&self) -> u64 {
        // ORDERING: Acquire, both, and `returned` first, so that the difference is never too small
        // (I7).
        let returned = self.returned.load(Ordering::Acquire);
        self.granted.load(Ordering::Acquire).wrapping_sub(returned)
    }

    /// Lets no stock be opened until a number of charges have come, because `stocks` of them were
    /// drained for a charge.
    pub(crate) fn cool(&self, stocks: u64) {
        if stocks > 0 {
            // ORDERING: Relaxed for the number, here and in `cooled`, because it only serves speed;
            // AcqRel for the word, as for every change of it.
            self.cooling.store(stocks.saturating_mul(COOLING_CHARGES), Ordering::Relaxed);
            self.word.fetch_or(COOLING, Ordering::AcqRel);
        }
    }

    #[cold]
    pub(super) fn cooled(&self) {
        if self.cooling.fetch_sub(1, Ordering::Relaxed) as i64 <= 1 {
            self.word.fetch_and(!COOLING, Ordering::AcqRel);
        }
    }
}
