//! Cell: what is known of one shrinker in one group.
//!
//! - I1. `class` tells where the seat is marked; a mark in another class is left over, and whoever finds it takes it away, and looks again
//!   whether that is the seat's class by now. Loom: `a_seat_is_marked_where_its_class_says`.
//! - I2. A seat that was given up is given back once: by who gave it up, or, if it was giving back then, by who lets it go. With it
//!   goes the handle that its group was held by, so a group is held for as long as a seat of it is seized for who has it.
//! - I3. A seat that is seized belongs to who seized it, until it is let go: two threads never have one cache give back at the same time.
//! - I4. `WAITED` is set under the lock of the seat's queue (`queue`), and a seat with it is let go under that lock.
//! - I5. What is deferred is in one place: in its seat, with who has seized that and asks for it now, or, when the seat is given back, at the
//!   shrinker's next seat above. So it is neither lost nor asked for twice. Loom: `what_is_deferred_is_asked_for_once`.
//! - B1. What a visit defers of its own share while the seat is given up is nobody's, or that of who sits here next.
//! - E1. give up ↔ let go: RMWs of one word, `turn`. Of the two the later one sees the earlier, and gives the seat back. Loom:
//!   `a_seat_that_is_given_up_is_given_back_once`.

use memgroup_sync::AtomicRef;
use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::hazard::Place;

use super::entry::Entry;
use crate::mutation::{self, Mutation};

/// Nobody has been asked yet.
const UNKNOWN: u64 = u64::MAX;

/// In `asked_from`: at each priority, until it has said what it has.
const ALWAYS: u32 = u32::MAX;

/// In `turn`: the seat was given up.
const LEFT: u64 = 1 << 63;
/// In `turn`: the call has lasted too long, and that was noted with its shrinker.
const NOTED: u64 = 1 << 62;
/// In `turn`: somebody waits for the seat (`queue`).
const WAITED: u64 = 1 << 61;
/// In `turn`: the callback may be waiting for locks, which who waits for the seat may hold.
const MAY_WAIT: u64 = 1 << 60;
/// The rest of `turn`.
const SINCE: u64 = MAY_WAIT - 1;

/// What is to be done by who lets a seat go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a seat that was given up is to be given back"]
pub(crate) struct Ended {
    /// It was given up meanwhile: it is to be given back.
    pub(crate) is_given_up: bool,
    /// The call that ends was noted as one that lasts too long.
    pub(crate) was_noted: bool,
}

impl Ended {
    fn of(turn: u64) -> Ended {
        Ended { is_given_up: turn & LEFT != 0, was_noted: turn & NOTED != 0 }
    }
}

/// What somebody found who wants to wait for a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// Nobody had it, and now it is the caller's.
    Seized,
    /// It is somebody else's, who is going to hand it on.
    Noted,
    /// It was given up, or a call of it lasts too long, or may wait for locks.
    Refused,
}

/// See the module. All but `shrinker` and `turn` are hints, and may be a moment old.
pub(crate) struct Cell {
    /// Where the shrinker is that sits here.
    shrinker: AtomicRef<Place<Entry>>,
    /// And where the one is that sat here last, which has given it up.
    left_by: AtomicRef<Place<Entry>>,
    class: AtomicU32,
    /// The first of a walk's priorities, which go down, at which anything would be asked of it, going by what it said last.
    asked_from: AtomicU32,
    /// What the shrinker knows the group by.
    token: AtomicU64,
    /// Bytes it said it had when it was last asked.
    last_bytes: AtomicU64,
    /// Bytes it was to be asked for and was not.
    deferred_bytes: AtomicU64,
    /// Since when the call lasts that has it give back, on the hierarchy's clock; 0: there is none. And `LEFT`, `NOTED`. One word, so that nobody takes
    /// the beginning of an earlier call for that of the one that lasts, and a call that was noted is told when it ends. And `WAITED`, `MAY_WAIT`.
    turn: AtomicU64,
    /// How often in a row it gave next to nothing.
    poor: AtomicU32,
    /// Visits that are to pass it by because of that.
    rest: AtomicU32,
}

impl Cell {
    pub(crate) fn new() -> Cell {
        Cell {
            shrinker: AtomicRef::none(),
            left_by: AtomicRef::none(),
            class: AtomicU32::new(0),
            asked_from: AtomicU32::new(ALWAYS),
            token: AtomicU64::new(0),
            last_bytes: AtomicU64::new(UNKNOWN),
            deferred_bytes: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            poor: AtomicU32::new(0),
            rest: AtomicU32::new(0),
        }
    }

    /// Who sits here.
    #[inline(always)]
    pub(crate) fn shrinker(&self) -> Option<&'static Place<Entry>> {
        // ORDERING: Acquire; pairs with the Release in `occupy`: what was stored for it is seen.
        self.shrinker.load(Ordering::Acquire)
    }

    /// Whether this one sits here.
    #[inline(always)]
    pub(crate) fn is_of(&self, shrinker: &'static Place<Entry>) -> bool {
        self.shrinker().is_some_and(|sitting| std::ptr::eq(sitting, shrinker))
    }

    /// A shrinker takes the seat.
    pub(crate) fn occupy(&self, shrinker: &'static Place<Entry>, token: u64, class: usize) {
        // ORDERING: Release; who seizes it and still means the one before finds that one gone.
        self.turn.store(0, Ordering::Release);
        // ORDERING: Relaxed, all; the Release below publishes them.
        self.token.store(token, Ordering::Relaxed);
        self.class.store(class as u32, Ordering::Relaxed);
        self.last_bytes.store(UNKNOWN, Ordering::Relaxed);
        self.asked_from.store(ALWAYS, Ordering::Relaxed);
        self.deferred_bytes.store(0, Ordering::Relaxed);
        self.poor.store(0, Ordering::Relaxed);
        self.rest.store(0, Ordering::Relaxed);
        // ORDERING: Release; pairs with `shrinker`.
        self.shrinker.store(Some(shrinker), Ordering::Release);
    }

    /// Nobody sits here any more.
    pub(crate) fn vacate(&self) {
        // ORDERING: Relaxed; for who gives it back, which is after `give_up`.
        self.left_by.store(self.shrinker(), Ordering::Relaxed);
        // ORDERING: Release; whoever finds another shrinker here sees that this one is gone.
        self.shrinker.store(None, Ordering::Release);
    }

    /// Who has given the seat up. For who gives it back.
    pub(crate) fn left_by(&self) -> Option<&'static Place<Entry>> {
        // ORDERING: Relaxed; the AcqRel in `give_up` and `let_go` orders it (E1).
        self.left_by.load(Ordering::Relaxed)
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
        self.ask_always();
        self.set_class(class);
    }

    /// The first priority at which it is to be asked.
    #[inline(always)]
    pub(crate) fn asked_from(&self) -> u32 {
        // ORDERING: Relaxed; a hint.
        self.asked_from.load(Ordering::Relaxed)
    }

    /// It is asked from this priority on.
    pub(crate) fn ask_from(&self, priority: u32) {
        // ORDERING: Relaxed, both; as in `set_last_bytes`.
        if self.asked_from.load(Ordering::Relaxed) != priority {
            // ORDERING: as above.
            self.asked_from.store(priority, Ordering::Relaxed);
        }
    }

    /// Next time it is asked at each priority.
    pub(crate) fn ask_always(&self) {
        self.ask_from(ALWAYS);
    }

    pub(crate) fn deferred(&self) -> u64 {
        // ORDERING: Relaxed; a number by itself.
        self.deferred_bytes.load(Ordering::Relaxed)
    }

    /// What it was to be asked for and was not: for who has seized it, or gives it back, so that others who come do not repeat it (I5).
    pub(crate) fn take_deferred(&self) -> u64 {
        if self.deferred() == 0 {
            return 0;
        }
        if mutation::active(Mutation::DeferredIsOnlyRead) {
            return self.deferred();
        }
        // ORDERING: Relaxed; a number by itself, and the exchange gives it to one. What was deferred by those who had the seat before is seen by
        // way of `turn`.
        self.deferred_bytes.swap(0, Ordering::Relaxed)
    }

    /// Defers so much more, up to `most` in all.
    pub(crate) fn defer(&self, bytes: u64, most: u64) {
        let add =
            |deferred: u64| (bytes > 0 && deferred < most).then(|| deferred.saturating_add(bytes).min(most));
        // ORDERING: Relaxed, both; a number by itself.
        let _ = self.deferred_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes it for a thread that is going to have it give back; `false` where another does, or where it was given up.
    pub(crate) fn seize(&self, now: u64, may_wait: bool) -> bool {
        let turn = now.max(1) | if may_wait { MAY_WAIT } else { 0 };
        // ORDERING: AcqRel; Acquire pairs with the Release in `let_go`: the cache is as the one before left it, and with that in `occupy`;
        // Release: for who gives the seat up meanwhile.
        self.turn.compare_exchange(0, turn, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Seizes it, or notes that somebody waits for it. Under the lock of its queue (I4).
    pub(crate) fn await_turn(&self, now: u64) -> Awaited {
        if self.seize(now, false) {
            return Awaited::Seized;
        }
        let wait =
            |turn: u64| (turn & SINCE != 0 && turn & (LEFT | NOTED | MAY_WAIT) == 0).then_some(turn | WAITED);
        // ORDERING: Relaxed, both; who lets it go looks at this word, and the queue's lock orders the rest.
        match self.turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, wait) {
            Ok(_) => Awaited::Noted,
            Err(0) => self.await_turn(now),
            Err(_) => Awaited::Refused,
        }
    }

    /// Who has seized it begins another call. Whether the one that ends was noted as one that lasts too long.
    pub(crate) fn begin_again(&self, now: u64) -> bool {
        let again = |turn| Some(turn & (LEFT | WAITED | MAY_WAIT) | now.max(1));
        // ORDERING: Relaxed, both; for people and for patience.
        let before = self.turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, again);
        before.is_ok_and(|turn| turn & NOTED != 0)
    }

    /// Notes that the call that began at `since` lasts too long. `false` where that was noted already, or it has ended.
    pub(crate) fn note(&self, since: u64) -> bool {
        let is_any = mutation::active(Mutation::NoteIsOfAnyCall);
        let noted = |turn| (is_any || (turn & NOTED == 0 && turn & SINCE == since)).then_some(turn | NOTED);
        // ORDERING: Relaxed, both; the word alone tells, once, who notes it and who ends it.
        self.turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, noted).is_ok()
    }

    /// Lets it go. `None` where somebody waits for it: then it is [handed on](Cell::hand_on), under the lock of its queue.
    pub(crate) fn let_go(&self) -> Option<Ended> {
        if mutation::active(Mutation::LetGoLooksAfterwards) {
            // ORDERING: AcqRel and Acquire, as below (a mutation for the models only).
            self.turn.fetch_and(LEFT, Ordering::AcqRel);
            let is_given_up = self.turn.load(Ordering::Acquire) & LEFT != 0;
            return Some(Ended { is_given_up, was_noted: false });
        }
        let free = |turn| {
            (turn & WAITED == 0 || mutation::active(Mutation::LetGoIgnoresWaiters)).then_some(turn & LEFT)
        };
        // ORDERING: AcqRel; Release pairs with `seize`, and with `give_up`: what was done in the group precedes what comes after it is given back;
        // Acquire: what who gave it up has done precedes that too (E1). Relaxed where it fails; the queue's lock orders what follows.
        let turn = self.turn.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).ok()?;
        Some(Ended::of(turn))
    }

    /// Lets a seat go that is waited for: to another at once, from `next` on, whom more may wait behind; or to nobody. Under the lock of its queue (I4).
    /// To nobody also where it was given up, which [`Ended`] tells.
    pub(crate) fn hand_on(&self, next: Option<u64>, more_wait: bool) -> Ended {
        let handed = |turn| match next {
            Some(since) if turn & LEFT == 0 => Some(since.max(1) | if more_wait { WAITED } else { 0 }),
            _ => Some(turn & LEFT),
        };
        // ORDERING: AcqRel, as in `let_go`; Relaxed for a failure that there is none of.
        let turn = self.turn.fetch_update(Ordering::AcqRel, Ordering::Relaxed, handed);
        turn.map_or_else(Ended::of, Ended::of)
    }

    /// Gives it up, for ever, after [`vacate`](Cell::vacate). Whether it is not giving back now: then it is the caller who gives it back.
    #[must_use = "a seat that was given up is to be given back"]
    pub(crate) fn give_up(&self) -> bool {
        // ORDERING: AcqRel; as in `let_go`, the other side (E1).
        self.turn.fetch_or(LEFT, Ordering::AcqRel) == 0
    }

    /// Whether somebody has it give back, or it was given up.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        // ORDERING: Relaxed; a hint, `seize` decides.
        self.turn.load(Ordering::Relaxed) != 0
    }

    /// Whether somebody waits for it.
    #[cfg(all(test, not(memgroup_loom)))]
    pub(crate) fn is_waited_for(&self) -> bool {
        // ORDERING: Relaxed; who looks comes back until it is so.
        self.turn.load(Ordering::Relaxed) & WAITED != 0
    }

    /// Since when the call lasts that has it give back, if there is one.
    pub(crate) fn busy_since(&self) -> Option<u64> {
        // ORDERING: Relaxed; for people and for patience.
        Some(self.turn.load(Ordering::Relaxed) & SINCE).filter(|&since| since != 0)
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

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;
    use crate::shrink::entry::nobody;

    #[test]
    fn a_seat_is_given_back_once_by_whoever_is_the_last() {
        let cell = Cell::new();
        cell.occupy(nobody(), 0, 0);
        assert!(cell.seize(5, false) && !cell.seize(6, false));
        assert_eq!(cell.busy_since(), Some(5));
        assert!(!cell.begin_again(9), "nobody has noted it");
        assert!(!cell.note(5) && cell.note(9) && !cell.note(9));
        assert!(!cell.give_up(), "it is giving back");
        assert_eq!(cell.busy_since(), Some(9));
        assert!(cell.begin_again(11), "it was noted");
        let ended = Ended { is_given_up: true, was_noted: false };
        assert_eq!(cell.let_go(), Some(ended), "who let go is the last");
        assert!(!cell.seize(10, false) && cell.busy_since().is_none());
        cell.occupy(nobody(), 0, 0);
        assert!(cell.seize(11, true) && cell.note(11));
        assert_eq!(cell.await_turn(12), Awaited::Refused, "its callback may wait");
        assert_eq!(cell.let_go(), Some(Ended { is_given_up: false, was_noted: true }));
        assert!(!cell.note(11) && cell.give_up());
        assert!(!cell.seize(12, false));
    }

    #[test]
    fn a_call_that_may_wait_for_locks_or_lasts_too_long_is_waited_for_by_nobody() {
        let cell = Cell::new();
        cell.occupy(nobody(), 0, 0);
        assert!(cell.seize(1, true));
        assert!(!cell.begin_again(2));
        assert_eq!(cell.await_turn(3), Awaited::Refused, "the next call of the series may wait, too");
        assert!(cell.let_go().is_some());
        assert!(cell.seize(4, false) && cell.note(4));
        assert_eq!(cell.await_turn(5), Awaited::Refused, "it has lasted too long");
        assert!(cell.begin_again(6), "it was noted");
        assert_eq!(cell.await_turn(7), Awaited::Noted, "another call has begun");
        assert!(!cell.begin_again(8));
        assert_eq!(cell.let_go(), None, "somebody still waits");
    }
}
