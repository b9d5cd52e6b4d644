//! Cell: what is known of one shrinker in one group.
//!
//! - I1. `class` tells where the seat is marked; a mark in another class is left over, and whoever finds it takes it away.
//! - I2. `shrinker` changes to another's number only when the last call for this seat of the one before has ended, if it was removed.
//! - I3. `is_busy` belongs to whoever set it, until it is done: two threads never have one cache give back at the same time.

use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Nobody has been asked yet.
const UNKNOWN: u64 = u64::MAX;

/// See the module. All but `shrinker` are hints, and may be a moment old.
pub(crate) struct Cell {
    /// The shrinker's address among the places, and 1; 0: nobody sits here.
    shrinker: AtomicU64,
    class: AtomicU32,
    /// What the shrinker knows the group by.
    token: AtomicU64,
    /// Bytes it said it had when it was last asked.
    last_bytes: AtomicU64,
    /// Bytes it was to be asked for and was not.
    deferred_bytes: AtomicU64,
    /// When it was last made to give back, on the hierarchy's clock.
    began: AtomicU64,
    is_busy: AtomicBool,
    /// How often in a row it gave next to nothing.
    poor: AtomicU32,
    /// Visits that are to pass it by because of that.
    rest: AtomicU32,
}

impl Cell {
    pub(crate) fn new() -> Cell {
        Cell {
            shrinker: AtomicU64::new(0),
            class: AtomicU32::new(0),
            token: AtomicU64::new(0),
            last_bytes: AtomicU64::new(UNKNOWN),
            deferred_bytes: AtomicU64::new(0),
            began: AtomicU64::new(0),
            is_busy: AtomicBool::new(false),
            poor: AtomicU32::new(0),
            rest: AtomicU32::new(0),
        }
    }

    /// Who sits here: the address of its place.
    #[inline]
    pub(crate) fn shrinker(&self) -> Option<u64> {
        // ORDERING: Acquire; pairs with the Release in `occupy`: what was stored for it is seen.
        self.shrinker.load(Ordering::Acquire).checked_sub(1)
    }

    /// A shrinker takes the seat.
    pub(crate) fn occupy(&self, shrinker: u64, token: u64, class: usize) {
        // ORDERING: Relaxed, all; the Release below publishes them.
        self.token.store(token, Ordering::Relaxed);
        self.class.store(class as u32, Ordering::Relaxed);
        self.last_bytes.store(UNKNOWN, Ordering::Relaxed);
        self.deferred_bytes.store(0, Ordering::Relaxed);
        self.poor.store(0, Ordering::Relaxed);
        self.rest.store(0, Ordering::Relaxed);
        // ORDERING: Release; pairs with `shrinker`.
        self.shrinker.store(shrinker + 1, Ordering::Release);
    }

    /// The seat is free; what it was still to be asked for.
    pub(crate) fn vacate(&self) -> u64 {
        // ORDERING: Release; whoever finds another shrinker here sees that this one is gone.
        self.shrinker.store(0, Ordering::Release);
        self.take_deferred()
    }

    #[inline]
    pub(crate) fn token(&self) -> u64 {
        // ORDERING: Relaxed; after the Acquire in `shrinker`.
        self.token.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn class(&self) -> usize {
        // ORDERING: Relaxed; the marks' fences order it where it matters (I1).
        self.class.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn set_class(&self, class: usize) {
        // ORDERING: Relaxed, as in `class`.
        self.class.store(class as u32, Ordering::Relaxed);
    }

    /// Bytes it said it had when it was last asked.
    #[inline]
    pub(crate) fn last_bytes(&self) -> Option<u64> {
        // ORDERING: Relaxed; a hint.
        Some(self.last_bytes.load(Ordering::Relaxed)).filter(|&bytes| bytes != UNKNOWN)
    }

    pub(crate) fn set_last_bytes(&self, bytes: u64) {
        // ORDERING: Relaxed, both; a hint, and a line that is not written need not travel.
        if self.last_bytes.load(Ordering::Relaxed) != bytes {
            // ORDERING: as above.
            self.last_bytes.store(bytes.min(UNKNOWN - 1), Ordering::Relaxed);
        }
    }

    /// It is asked for its size before anything is made of it; until then it is marked in `class`.
    pub(crate) fn forget_size(&self, class: usize) {
        // ORDERING: Relaxed; a hint.
        self.last_bytes.store(UNKNOWN, Ordering::Relaxed);
        self.set_class(class);
    }

    pub(crate) fn deferred(&self) -> u64 {
        // ORDERING: Relaxed; a number by itself.
        self.deferred_bytes.load(Ordering::Relaxed)
    }

    /// What it was to be asked for and was not: for one alone, so that others who come do not repeat it.
    pub(crate) fn take_deferred(&self) -> u64 {
        if self.deferred() == 0 {
            return 0;
        }
        // ORDERING: Relaxed; a number by itself, and the exchange gives it to one.
        self.deferred_bytes.swap(0, Ordering::Relaxed)
    }

    /// Defers so much more, up to `most` in all.
    pub(crate) fn defer(&self, bytes: u64, most: u64) {
        let add = |deferred: u64| (deferred < most).then(|| deferred.saturating_add(bytes).min(most));
        // ORDERING: Relaxed, both; a number by itself.
        let _ = self.deferred_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes it for a thread that is going to have it give back; `false` where another does.
    pub(crate) fn seize(&self, now: u64) -> bool {
        // ORDERING: AcqRel; Acquire pairs with the Release in `let_go`: the cache is as the one before left it; Release: who lets go sees that
        // the seat was given up.
        let is_ours = !self.is_busy.swap(true, Ordering::AcqRel);
        if is_ours {
            // ORDERING: Relaxed; for people and for patience.
            self.began.store(now, Ordering::Relaxed);
        }
        is_ours
    }

    pub(crate) fn let_go(&self) {
        // ORDERING: AcqRel; Release pairs with `seize`; Acquire: if somebody gave the seat up and could not seize it, that is seen, and the number
        // is given back by who let go. An exchange, so that it does not pass the look at `shrinker` that follows.
        self.is_busy.swap(false, Ordering::AcqRel);
    }

    /// Whether somebody has it give back.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        // ORDERING: Relaxed; a hint, `seize` decides.
        self.is_busy.load(Ordering::Relaxed)
    }

    /// Since when it has been giving back, if it is.
    pub(crate) fn busy_since(&self) -> Option<u64> {
        // ORDERING: Relaxed; for people and for patience.
        self.is_busy().then(|| self.began.load(Ordering::Relaxed))
    }

    /// Whether this visit is to pass it by, because it gave next to nothing the last times.
    pub(crate) fn is_resting(&self) -> bool {
        // ORDERING: Relaxed, both; a hint, of which some may be lost.
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            // ORDERING: as above.
            self.rest.store(rest - 1, Ordering::Relaxed);
        }
        rest > 0
    }

    /// It gave next to nothing of what it was asked for, or it did give: passes it by twice as often, or not at all.
    pub(crate) fn gave(&self, is_poor: bool) {
        // ORDERING: Relaxed, all; hints.
        let poor = if is_poor { self.poor.load(Ordering::Relaxed).min(POOR_MOST - 1) + 1 } else { 0 };
        // ORDERING: as above.
        if poor > 0 || self.poor.load(Ordering::Relaxed) > 0 {
            // ORDERING: as above.
            self.poor.store(poor, Ordering::Relaxed);
            // ORDERING: as above.
            self.rest.store((1 << poor) - 1, Ordering::Relaxed);
        }
    }
}

/// A cache that gives nothing is asked at one visit in so many powers of two.
const POOR_MOST: u32 = 6;
