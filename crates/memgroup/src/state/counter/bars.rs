//! Bars: the grants of a counter, and the marks in its word that let none pass.

use memgroup_sync::atomic::{AtomicU32, Ordering};

use crate::state::counter::{BARS, COOLING, COOLING_CHARGES, Counter, FROZEN, Purpose};

impl Counter {
    /// From here on no grant passes, until `thaw`. The caller holds the level's lock.
    pub(crate) fn freeze(&self) {
        // ORDERING: AcqRel RMW; a grant that passed before is seen with all its marks, a later one finds FROZEN.
        self.word.fetch_or(FROZEN, Ordering::AcqRel);
    }

    pub(crate) fn thaw(&self) {
        // ORDERING: AcqRel, as in `freeze`.
        self.word.fetch_and(!FROZEN, Ordering::AcqRel);
    }

    /// Charges that still come here because the group's stock was evicted (`Node::back_off`).
    pub(crate) fn backing_off(&self) -> &AtomicU32 {
        &self.limits.backing_off
    }

    /// Whether a grant would not pass now; a hint.
    pub(crate) fn is_barred(&self) -> bool {
        // ORDERING: Relaxed; a grant passes by an RMW.
        self.word.load(Ordering::Relaxed) & BARS != 0
    }

    /// Whether a grant passes for bytes that are charged here already.
    pub(crate) fn passes(&self) -> bool {
        // ORDERING: AcqRel RMW that changes nothing; ordered with the one in `freeze`, and with those that set the other bars.
        self.word.fetch_add(0, Ordering::AcqRel) & Purpose::Grant.bars() == 0
    }

    /// Grants `bytes` to a stock below. The caller then passes the counter by an RMW, or returns them.
    pub(crate) fn grant(&self, bytes: u64) {
        // ORDERING: AcqRel; Release with the RMW of the word that follows (I7). As an RMW it precedes the look in `holders::list`.
        self.granted.fetch_add(bytes, Ordering::AcqRel);
    }

    /// A stock below has given a grant back, and its bytes have left the usage.
    pub(crate) fn return_grant(&self, bytes: u64) {
        // ORDERING: AcqRel; Release: a thread that sees it finds the usage without the bytes (I7).
        self.returned.fetch_add(bytes, Ordering::AcqRel);
    }

    /// The most bytes that are prepaid below now.
    pub(crate) fn prepaid_most(&self) -> u64 {
        // ORDERING: Acquire, both; `returned` first (I7).
        let returned = self.returned.load(Ordering::Acquire);
        // ORDERING: as above.
        self.granted.load(Ordering::Acquire).wrapping_sub(returned)
    }

    /// So many stocks were drained for a charge. None is opened until some charges came.
    pub(crate) fn cool(&self, stocks: u64) {
        if stocks > 0 {
            // ORDERING: Relaxed; a measure for speed alone.
            self.cooling.store(stocks.saturating_mul(COOLING_CHARGES), Ordering::Relaxed);
            // ORDERING: AcqRel, as every change of the word.
            self.word.fetch_or(COOLING, Ordering::AcqRel);
        }
    }

    #[cold]
    pub(super) fn cooled(&self) {
        // ORDERING: Relaxed; as in `cool`.
        if self.cooling.fetch_sub(1, Ordering::Relaxed) as i64 <= 1 {
            // ORDERING: AcqRel, as every change of the word.
            self.word.fetch_and(!COOLING, Ordering::AcqRel);
        }
    }
}
