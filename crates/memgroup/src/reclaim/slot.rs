//! Slot: the state of one shrinker in one group.
//!
//! ```text
//!   occupy ──▶ free ◀── seize · release ──▶ seized by one thread ──▶ handed over to the next in the queue
//!                └───────── vacate, give up ──────────┴──▶ LEFT: returned to the group by the last owner
//! ```
//!
//! - I1. `class` tells where the slot is marked. A mark in another class is stale: the walk that
//!   finds it takes it, and checks again whether that is the slot's class by now. Loom:
//!   `marks_the_slot_in_its_class`.
//! - I2. A slot that was given up is returned once. The thread that gave it up returns it, or the
//!   owner of a scan that runs then. The handle on the group goes with it. So a group is held as
//!   long as a slot of it is seized.
//! - I3. A seized slot belongs to one thread until that releases it: two threads never scan one
//!   cache of a group at the same time.
//! - I4. `WAITED` is set under the lock of the queue (`queue`), and a slot with it is released
//!   under that lock.
//! - I5. Deferred bytes are in one place: in the slot, or with the owner that asks for them now.
//!   Once the slot is returned they are in the shrinker's next slot above. So they are neither
//!   lost nor asked for twice. Loom: `asks_for_deferred_bytes_once`.
//! - B1. Bytes that a visit defers while the slot is given up are lost, or count for the shrinker
//!   that takes the slot next.
//! - E1. give up ↔ release: RMWs of one word, `owner`. The later one sees the earlier one, and
//!   returns the slot. Loom: `returns_a_slot_once_when_it_is_given_up`.

use memgroup_sync::AtomicRef;
use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::hazard::Place;

use crate::base::mutation::{self, Mutation};
use crate::reclaim::backoff::Backoff;
use crate::reclaim::entry::ShrinkerEntry;

/// In `owner`: the slot was given up.
const LEFT: u64 = 1 << 63;
/// In `owner`: the call has lasted too long, and its shrinker's entry counts it.
const NOTED: u64 = 1 << 62;
/// In `owner`: a thread waits for the slot (`queue`).
const WAITED: u64 = 1 << 61;
/// In `owner`: the callback may wait for locks, which a waiting thread may hold.
const MAY_WAIT: u64 = 1 << 60;
/// In `owner`: the rest.
const SINCE: u64 = MAY_WAIT - 1;

/// The duties of the thread that releases a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a slot that was given up must be returned"]
pub(crate) struct Ended {
    /// The slot was given up during the scan, and the thread must return it.
    pub(crate) is_given_up: bool,
    /// The call that has ended was noted as one that took too long.
    pub(crate) was_noted: bool,
}

impl Ended {
    fn of(owner: u64) -> Ended {
        Ended { is_given_up: owner & LEFT != 0, was_noted: owner & NOTED != 0 }
    }
}

/// The result of a try to wait for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The slot was free, and now is the caller's.
    Seized,
    /// Another thread has it, and will hand it over.
    Noted,
    /// The slot was given up, or a call of its shrinker lasts too long or may wait for locks.
    Refused,
}

/// See the module. All fields but `shrinker` and `owner` are hints, and may be a moment old.
pub(crate) struct SlotState {
    shrinker: AtomicRef<Place<ShrinkerEntry>>,
    /// The shrinker that has given the slot up last.
    left_by: AtomicRef<Place<ShrinkerEntry>>,
    class: AtomicU32,
    pub(crate) backoff: Backoff,
    /// The name that the shrinker has for the group.
    token: AtomicU64,
    /// Bytes that were due and were not asked for.
    deferred_bytes: AtomicU64,
    /// The begin of the running call on the hierarchy's clock, with marks; 0: no thread has the
    /// slot. Both are one word. So an earlier call is not taken for a later one, and the end of a
    /// call finds whether it was noted.
    owner: AtomicU64,
}

impl SlotState {
    pub(crate) fn new() -> SlotState {
        SlotState {
            shrinker: AtomicRef::none(),
            left_by: AtomicRef::none(),
            class: AtomicU32::new(0),
            backoff: Backoff::new(),
            token: AtomicU64::new(0),
            deferred_bytes: AtomicU64::new(0),
            owner: AtomicU64::new(0),
        }
    }

    /// The shrinker that has the slot.
    #[inline(always)]
    pub(crate) fn shrinker(&self) -> Option<&'static Place<ShrinkerEntry>> {
        // ORDERING: Acquire; pairs with the Release in `occupy`: the slot's fields for this
        // shrinker are seen.
        self.shrinker.load(Ordering::Acquire)
    }

    /// Returns whether this shrinker has the slot.
    #[inline(always)]
    pub(crate) fn is_of(&self, place: &'static Place<ShrinkerEntry>) -> bool {
        self.shrinker().is_some_and(|shrinker| std::ptr::eq(shrinker, place))
    }

    /// Gives the slot to a shrinker.
    pub(crate) fn occupy(&self, place: &'static Place<ShrinkerEntry>, token: u64, class: usize) {
        // ORDERING: Release; pairs with the Acquire in `seize`: a thread that seizes it for the
        // shrinker before finds that one gone.
        self.owner.store(0, Ordering::Release);
        // ORDERING: Relaxed, all; the Release below publishes them.
        self.token.store(token, Ordering::Relaxed);
        self.class.store(class as u32, Ordering::Relaxed);
        self.deferred_bytes.store(0, Ordering::Relaxed);
        self.backoff.reset();
        // ORDERING: Release; pairs with the Acquire in `shrinker`.
        self.shrinker.store(Some(place), Ordering::Release);
    }

    /// Takes the slot from its shrinker, which gives it up next.
    pub(crate) fn vacate(&self) {
        // ORDERING: Relaxed; read by the thread that returns the slot, which is after `give_up`.
        self.left_by.store(self.shrinker(), Ordering::Relaxed);
        // A walk finds marks that are left behind.
        self.backoff.reset();
        // ORDERING: Release; a thread that finds another shrinker here sees that this one is gone.
        self.shrinker.store(None, Ordering::Release);
    }

    /// The shrinker that has given the slot up. For the thread that returns the slot.
    pub(crate) fn left_by(&self) -> Option<&'static Place<ShrinkerEntry>> {
        // ORDERING: Relaxed; the AcqRel in `give_up` and `release` orders it (E1).
        self.left_by.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn token(&self) -> u64 {
        // ORDERING: Relaxed; after the Acquire in `shrinker`.
        self.token.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn class(&self) -> usize {
        // ORDERING: Relaxed; the fences of the marks order it where it matters (I1).
        self.class.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn set_class(&self, class: usize) {
        // ORDERING: Relaxed, as in `class`.
        self.class.store(class as u32, Ordering::Relaxed);
    }

    /// Has the next visit count the shrinker; until then it is marked in `class`.
    pub(crate) fn forget_size(&self, class: usize) {
        self.backoff.reset();
        self.set_class(class);
    }

    pub(crate) fn deferred(&self) -> u64 {
        // ORDERING: Relaxed; a number by itself.
        self.deferred_bytes.load(Ordering::Relaxed)
    }

    /// Takes the deferred bytes: for the thread that has seized or returns the slot, so that no
    /// other asks for them too (I5).
    pub(crate) fn take_deferred(&self) -> u64 {
        if self.deferred() == 0 || mutation::active(Mutation::DeferredIsOnlyRead) {
            return self.deferred();
        }
        // ORDERING: Relaxed; a number by itself, which the exchange gives to one thread. The chain
        // of RMWs on `owner` shows the bytes that earlier owners deferred.
        self.deferred_bytes.swap(0, Ordering::Relaxed)
    }

    /// Defers `bytes` more, up to `most` in all.
    pub(crate) fn defer(&self, bytes: u64, most: u64) {
        let add =
            |deferred: u64| (bytes > 0 && deferred < most).then(|| deferred.saturating_add(bytes).min(most));
        // ORDERING: Relaxed, both; a number by itself.
        let _ = self.deferred_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Seizes the slot for a scan; `false` if another thread has it, or it was given up.
    pub(crate) fn seize(&self, now: u64, may_wait: bool) -> bool {
        let owner = now.max(1) | if may_wait { MAY_WAIT } else { 0 };
        // ORDERING: AcqRel; Acquire pairs with the Release in `release` and `occupy`: the cache is
        // as the owner before left it. Release: for a thread that gives the slot up meanwhile.
        self.owner.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Seizes the slot, or notes that a thread waits for it. Under the lock of its queue (I4).
    pub(crate) fn await_release(&self, now: u64) -> Awaited {
        if self.seize(now, false) {
            return Awaited::Seized;
        }
        let wait = |owner: u64| {
            (owner & SINCE != 0 && owner & (LEFT | NOTED | MAY_WAIT) == 0).then_some(owner | WAITED)
        };
        // ORDERING: Relaxed, both; the releasing thread reads this word, and the queue's lock
        // orders the rest.
        match self.owner.fetch_update(Ordering::Relaxed, Ordering::Relaxed, wait) {
            Ok(_) => Awaited::Noted,
            Err(0) => self.await_release(now),
            Err(_) => Awaited::Refused,
        }
    }

    /// Begins the owner's next call. Returns whether the one before was noted as one that took too
    /// long.
    pub(crate) fn begin_again(&self, now: u64) -> bool {
        let again = |owner| Some(owner & (LEFT | WAITED | MAY_WAIT) | now.max(1));
        // ORDERING: Relaxed, both; for reports and for patience.
        let before = self.owner.fetch_update(Ordering::Relaxed, Ordering::Relaxed, again);
        before.is_ok_and(|owner| owner & NOTED != 0)
    }

    /// Notes that the call that began at `since` lasts too long. `false` if that was noted
    /// already, or the call has ended.
    pub(crate) fn note(&self, since: u64) -> bool {
        let is_any = mutation::active(Mutation::NoteIsOfAnyCall);
        let noted =
            |owner| (is_any || (owner & NOTED == 0 && owner & SINCE == since)).then_some(owner | NOTED);
        // ORDERING: Relaxed, both; the word alone tells, once, which thread notes it and which ends
        // it.
        self.owner.fetch_update(Ordering::Relaxed, Ordering::Relaxed, noted).is_ok()
    }

    /// Releases the slot. `None` if a thread waits for it: then the caller hands it over under the
    /// lock of its queue.
    pub(crate) fn release(&self) -> Option<Ended> {
        let free = |owner| {
            (owner & WAITED == 0 || mutation::active(Mutation::LetGoIgnoresWaiters)).then_some(owner & LEFT)
        };
        // ORDERING: AcqRel; Release pairs with the Acquire in `seize`, and with `give_up`: the scan
        // precedes all that follows the return of the slot. Acquire: so do the acts of the thread
        // that gave it up (E1). Relaxed where it fails; the queue's lock orders the rest.
        let owner = self.owner.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).ok()?;
        // ORDERING: Acquire; as above (a deliberate fault, for models only).
        let late =
            mutation::active(Mutation::LetGoLooksAfterwards).then(|| self.owner.load(Ordering::Acquire));
        Some(Ended::of(late.unwrap_or(owner)))
    }

    /// Releases a slot that threads wait for. It goes to the next thread, with `next` as the begin
    /// of that call. It goes to none if no thread waits or the slot was given up. Under the lock
    /// of its queue (I4).
    pub(crate) fn hand_over(&self, next: Option<u64>, more_wait: bool) -> Ended {
        let handed = |owner| match next {
            Some(since) if owner & LEFT == 0 => Some(since.max(1) | if more_wait { WAITED } else { 0 }),
            _ => Some(owner & LEFT),
        };
        // ORDERING: AcqRel, as in `release`; Relaxed for a failure that does not occur.
        let owner = self.owner.fetch_update(Ordering::AcqRel, Ordering::Relaxed, handed);
        owner.map_or_else(Ended::of, Ended::of)
    }

    /// Gives the slot up for good, after [`vacate`](SlotState::vacate). Returns whether no thread
    /// has seized it, in which case the caller must return it.
    #[must_use = "a slot that was given up must be returned"]
    pub(crate) fn give_up(&self) -> bool {
        // ORDERING: AcqRel; as in `release`, the other side (E1).
        self.owner.fetch_or(LEFT, Ordering::AcqRel) == 0
    }

    /// Returns whether a thread has seized it, or it was given up.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        // ORDERING: Relaxed; a hint, `seize` decides.
        self.owner.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a thread waits for it.
    #[cfg(all(test, not(memgroup_loom)))]
    pub(crate) fn is_waited_for(&self) -> bool {
        // ORDERING: Relaxed; the caller repeats the read until it is so.
        self.owner.load(Ordering::Relaxed) & WAITED != 0
    }

    /// When the call began that runs now.
    pub(crate) fn busy_since(&self) -> Option<u64> {
        // ORDERING: Relaxed; for reports and for patience.
        Some(self.owner.load(Ordering::Relaxed) & SINCE).filter(|&since| since != 0)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::reclaim::entry::empty_place;
    use crate::reclaim::slot::*;

    fn occupied() -> SlotState {
        let slot = SlotState::new();
        slot.occupy(empty_place(), 0, 0);
        slot
    }

    #[test]
    fn is_returned_once_by_the_last_thread() {
        let slot = occupied();
        assert!(slot.seize(5, false) && !slot.seize(6, false));
        assert_eq!(slot.busy_since(), Some(5));
        assert!(!slot.begin_again(9), "no thread has noted it");
        assert!(!slot.note(5) && slot.note(9) && !slot.note(9));
        assert!(!slot.give_up(), "it is seized");
        assert_eq!(slot.busy_since(), Some(9));
        assert!(slot.begin_again(11), "it was noted");
        let ended = Ended { is_given_up: true, was_noted: false };
        assert_eq!(slot.release(), Some(ended), "the releasing thread is the last");
        assert!(!slot.seize(10, false) && slot.busy_since().is_none());
        slot.occupy(empty_place(), 0, 0);
        assert!(slot.seize(11, true) && slot.note(11));
        assert_eq!(slot.await_release(12), Awaited::Refused, "its callback may wait");
        assert_eq!(slot.release(), Some(Ended { is_given_up: false, was_noted: true }));
        assert!(!slot.note(11) && slot.give_up());
        assert!(!slot.seize(12, false));
    }

    #[test]
    fn refuses_waiters_while_a_call_may_wait_or_lasts_too_long() {
        let slot = occupied();
        assert!(slot.seize(1, true));
        assert!(!slot.begin_again(2));
        assert_eq!(slot.await_release(3), Awaited::Refused, "the next call of the series may wait, too");
        assert!(slot.release().is_some());
        assert!(slot.seize(4, false) && slot.note(4));
        assert_eq!(slot.await_release(5), Awaited::Refused, "it has lasted too long");
        assert!(slot.begin_again(6), "it was noted");
        assert_eq!(slot.await_release(7), Awaited::Noted, "another call has begun");
        assert!(!slot.begin_again(8));
        assert_eq!(slot.release(), None, "a thread still waits");
    }
}
