//! A place: a value that leases pin, and that is withdrawn and replaced.
//!
//! ```text
//!   VACANT ── put ──▶ FULL ── withdraw ──▶ LEAVING ── no record names the place any more, and the Withdrawn ends ──▶ VACANT
//! ```
//!
//! - I1. `value` is null, or owns the place's value (`AtomicBox`). It is set in FULL only, by the
//!   thread that made the place FULL. It is taken by an exchange, so by one caller, which makes
//!   the place LEAVING.
//! - I2. A place belongs to one domain for ever, and is pinned through records of that one.
//! - I3. A value that was taken is given back or dropped only after a scan that found the place in
//!   use on no record. The scan began after the value was taken and after the barrier. A thread
//!   that found the value pinned the place before, so that scan came after its last use.
//! - I4. LEAVING is set before the barrier, and `departure` after it: a thread that finds a
//!   departure may scan.
//! - E1. put → pin: Release → Acquire on `value`. Loom:
//!   `loom_a_place_that_is_used_again_shows_the_whole_new_value`.
//! - E2. put → withdraw: Release → exchange and fence on `value`. Loom:
//!   `loom_a_withdrawn_value_is_seen_whole`.
//! - E3. The end of a departure → put: Release → Acquire on `state`. Loom:
//!   `loom_a_place_found_vacant_shows_the_end_of_the_last_use`.

#![allow(unsafe_code)]

use core::ptr::{NonNull, from_ref, with_exposed_provenance};

use super::domain::Domain;
use super::occupant::Occupant;
use super::withdrawn::{Departure, Withdrawn};
use crate::atomic::{AtomicU32, Ordering, fence};
use crate::atomic_box::AtomicBox;
use crate::grace::{Evidence, Form, barrier};
use crate::mutation::{Mutation, active};
use crate::{Mutex, interleave};

/// The place is empty, and no thread uses its last value.
const VACANT: u32 = 0;
/// A value is in the place, or is about to be put in or taken out.
const FULL: u32 = 1;
/// The value was taken out and is not given back yet.
const LEAVING: u32 = 2;

/// The part of a place that records refer to, which is the same for values of all types. Its
/// address is the place's key.
#[derive(Debug)]
pub(super) struct Anchor {
    pub(super) domain: &'static Domain,
    state: AtomicU32,
    departure: Mutex<Option<Departure>>,
}

impl Anchor {
    #[inline(always)]
    pub(super) fn key(&self) -> usize {
        from_ref(self).expose_provenance()
    }

    /// The place with this key.
    ///
    /// # Safety
    ///
    /// The key is that of a place that lives for ever.
    pub(super) unsafe fn of(key: usize) -> &'static Self {
        // SAFETY: the address of a place (`key` exposes it) that lives for ever, as the caller
        // knows.
        unsafe { &*with_exposed_provenance(key) }
    }

    /// After an unpin: ends the departure if this was the last user.
    #[inline(always)]
    pub(super) fn after_unpin(&'static self) {
        // ORDERING: Relaxed; the unpin before this, with the barrier of the withdrawal or the
        // exchange of the scan, orders it (`record` E5). The departure is found under a lock.
        if self.state.load(Ordering::Relaxed) == LEAVING {
            self.end_departure();
        }
    }

    #[cold]
    #[inline(never)]
    fn end_departure(&'static self) {
        if let Some(departure) = self.take_if_over() {
            departure.end_containing_panics();
        }
    }

    /// Takes the departure, if there is one and no thread uses the place any more. The scan is
    /// made under the lock, so of the threads that leave at one time the last one sees that
    /// all others have left.
    pub(super) fn take_if_over(&'static self) -> Option<Departure> {
        interleave::point();
        let mut departure = self.departure.lock();
        let evidence = departure.as_ref()?.evidence;
        let in_use = self.domain.uses(self.key(), evidence) && !active(Mutation::DepartureIgnoresOthers);
        if in_use { None } else { departure.take() }
    }

    /// From now on the last thread to leave the place ends this departure, or none. The place may
    /// be unused by then already.
    pub(super) fn depart(&self, departure: Option<Departure>) {
        *self.departure.lock() = departure;
    }

    pub(super) fn has_departure(&self) -> bool {
        self.departure.lock().is_some()
    }

    /// Notes that no thread uses the place any more, and that its value is given back.
    pub(super) fn vacate(&self) {
        let relaxed = active(Mutation::VacateRelaxed);
        // ORDERING: Release; pairs with the Acquire in `Place::put` and `is_taken` (E3). Weaker,
        // the next value could be put before the place is emptied of this one, and be lost.
        self.state.store(VACANT, if relaxed { Ordering::Relaxed } else { Ordering::Release });
    }
}

/// A place for a boxed value that leases pin, and that can be withdrawn while they do.
///
/// It lives for ever and can be used again and again. `T` is `Send` and `Sync`.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::hazard::{Domain, Place};
///
/// static DOMAIN: Domain = Domain::new();
/// static PLACE: Place<String> = Place::empty(&DOMAIN);
///
/// PLACE.put(Box::new("old".to_owned()));
/// let withdrawn = PLACE.withdraw().expect("a value");
/// assert!(DOMAIN.lease().pin(&PLACE).is_none());
/// assert_eq!(*withdrawn.wait().unwrap(), "old");
///
/// PLACE.put(Box::new("new".to_owned()));
/// assert_eq!(*DOMAIN.lease().pin(&PLACE).unwrap(), "new");
/// # }
/// ```
pub struct Place<T> {
    value: AtomicBox<T>,
    pub(super) anchor: Anchor,
}

impl<T> Place<T> {
    /// Makes an empty place, for leases of `domain`.
    #[cfg(not(memgroup_loom))]
    pub const fn empty(domain: &'static Domain) -> Self {
        let anchor = Anchor { domain, state: AtomicU32::new(VACANT), departure: Mutex::new(None) };
        Self { value: AtomicBox::empty(), anchor }
    }

    /// Makes an empty place, for leases of `domain`.
    #[cfg(memgroup_loom)]
    pub fn empty(domain: &'static Domain) -> Self {
        let anchor = Anchor { domain, state: AtomicU32::new(VACANT), departure: Mutex::new(None) };
        Self { value: AtomicBox::empty(), anchor }
    }

    /// A number that no other place has, which [`Occupant::place`] returns.
    #[inline(always)]
    pub fn key(&self) -> usize {
        self.anchor.key()
    }

    /// Returns whether [`put`](Self::put) would panic now: a value is in the place, or the last
    /// one is not given back yet.
    pub fn is_taken(&self) -> bool {
        // ORDERING: Acquire; as in `put`, for a caller that decides by it.
        self.anchor.state.load(Ordering::Acquire) != VACANT
    }

    /// Returns whether the calling thread has the place pinned.
    pub fn is_used_here(&self) -> bool {
        self.anchor.domain.uses_here(self.key())
    }

    #[inline(always)]
    pub(super) fn value(&self) -> Option<NonNull<T>> {
        let relaxed = active(Mutation::PinFollowsRelaxed);
        // ORDERING: Acquire; pairs with the Release in `put` (E1). Weaker, the value could be read
        // before it was written.
        self.value.load(if relaxed { Ordering::Relaxed } else { Ordering::Acquire })
    }

    /// Returns whether the place is in use, by a scan with `evidence`. Without evidence there was
    /// no lease when the value was taken.
    pub(super) fn is_used(&self, evidence: Option<Evidence>) -> bool {
        evidence.is_some_and(|evidence| self.anchor.domain.uses(self.key(), evidence))
    }
}

impl<T: Send + Sync + 'static> Place<T> {
    /// Puts `value` into the place, where pins find it from now on.
    ///
    /// # Panics
    ///
    /// If there is a value in the place, or one that was [withdrawn](Self::withdraw) is not given
    /// back or dropped yet.
    pub fn put(&self, value: Box<T>) {
        // ORDERING: Acquire; pairs with `Anchor::vacate` (E3). Relaxed on failure, which only
        // panics.
        let taken =
            self.anchor.state.compare_exchange(VACANT, FULL, Ordering::Acquire, Ordering::Relaxed).err();
        if let Some(state) = taken {
            let why = if state == FULL { "there is one in it" } else { "the last one is still in use" };
            panic!("failed to put a value into place {:#x}: {why}", self.key());
        }
        interleave::point();
        let relaxed = active(Mutation::PutRelaxed);
        // ORDERING: Release; pairs with `value` (E1) and `withdraw` (E2). Weaker, the value could
        // be seen before it was written.
        self.value.store(value, if relaxed { Ordering::Relaxed } else { Ordering::Release });
    }

    /// Takes the value out of the place: no pin finds it any more. Pins that have found it
    /// continue to use it, and the [`Withdrawn`] knows when they have ended. `None` if the
    /// place is empty.
    ///
    /// Where leases are in force, and not all of them are in a [long
    /// use](super::Pinned::long_use), it makes the expedited barrier of
    /// [`grace`](crate::grace). It waits for no user of the place.
    pub fn withdraw(&'static self) -> Option<Withdrawn<T>> {
        self.take(|| barrier::barrier(Form::Expedited))
    }

    /// Like [`withdraw`](Self::withdraw), with this barrier.
    pub(super) fn take(&'static self, barrier: impl FnOnce() -> Evidence) -> Option<Withdrawn<T>> {
        // ORDERING: Relaxed; the fence below makes it an acquire that pairs with the Release in
        // `put` (E2). Null publishes nothing; the fence and the barrier below make pins see it in
        // time.
        let value = self.value.swap(None, Ordering::Relaxed)?;
        // ORDERING: Relaxed; the barrier, or the exchanges of a scan, show it to threads that leave
        // (`record` E5).
        self.anchor.state.store(LEAVING, Ordering::Relaxed);
        interleave::point();
        if !active(Mutation::WithdrawsWithoutFence) {
            // ORDERING: SeqCst; pairs with the fence in `Record::claim` (E3 there): a lease that is
            // claimed after the read below finds the place empty. Without it, too, the value could
            // be given back before it was written (E2).
            fence(Ordering::SeqCst);
        }
        let evidence = self.anchor.domain.evidence(barrier);
        interleave::point();
        Some(Withdrawn::new(self, value, evidence))
    }
}

impl Occupant {
    /// Returns whether the thread uses this place.
    pub fn is_in<T>(&self, place: &Place<T>) -> bool {
        self.place() == place.key()
    }
}
