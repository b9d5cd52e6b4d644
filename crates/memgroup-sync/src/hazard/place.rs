//! A place: where a value is found, pinned and withdrawn, and used again for another.
//!
//! ```text
//!   VACANT ── put ──▶ FULL ── withdraw ──▶ LEAVING ── no record names the place any more, and the Withdrawn ends ──▶ VACANT
//! ```
//!
//! - I1. `value` is null, or a pointer out of a `Box` whose value is the place's. It is set in FULL only, by who made it so, and taken
//!   by an exchange, so by one caller, who makes it LEAVING.
//! - I2. A place belongs to one domain for ever, and is pinned through records of that one.
//! - I3. A value that was taken is given back or dropped only after a scan, begun after it was taken and after the barrier, that found
//!   the place in use on no record. Who found the value pinned the place before, so that scan came after its last use.
//! - I4. LEAVING is set before the barrier, and `departure` after it: who finds a departure may scan.
//! - E1. put → pin: Release → Acquire on `value`. Loom: `loom_a_place_that_is_used_again_shows_the_whole_of_the_new_value`.
//! - E2. put → withdraw: Release → exchange and fence on `value`. Loom: `loom_who_withdraws_a_value_sees_the_whole_of_it`.
//! - E3. The end of a departure → put: Release → Acquire on `state`.

#![allow(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::ptr::{NonNull, from_ref, null_mut, with_exposed_provenance};

use super::domain::{Domain, Leases};
use super::withdrawn::{Departure, Taken, Withdrawn};
use crate::Mutex;
use crate::atomic::{AtomicPtr, AtomicU32, Ordering, fence};
use crate::grace::section::model_failed;
use crate::grace::{Evidence, Form, barrier};
use crate::interleave;
use crate::mutation::{Mutation, active};

/// Nothing is in the place, and nobody uses what was.
const VACANT: u32 = 0;
/// A value is in the place, or about to be put there or taken out.
const FULL: u32 = 1;
/// The value was taken out and is not given back yet.
const LEAVING: u32 = 2;

/// What a place is to records: the same for values of all types. Its address is the place's key.
pub(super) struct Anchor {
    domain: &'static Domain,
    state: AtomicU32,
    departure: Mutex<Option<Departure>>,
}

impl Anchor {
    #[inline(always)]
    pub(super) fn domain(&self) -> &'static Domain {
        self.domain
    }

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
        // SAFETY: the address of a place (`key` exposes it) that lives for ever, as the caller knows.
        unsafe { &*with_exposed_provenance(key) }
    }

    /// After an unpin: ends the departure if this was the last one.
    #[inline(always)]
    pub(super) fn left(&'static self) {
        // ORDERING: Relaxed; the unpin before this, with the barrier of the withdrawal or the exchange of the scan, orders it
        // (`record` E5). The departure is found under a lock.
        if self.state.load(Ordering::Relaxed) == LEAVING {
            self.settle_here();
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_here(&'static self) {
        if let Some(departure) = self.take_if_over() {
            departure.end_containing_panics();
        }
    }

    /// The departure, if there is one and nobody is in the place any more. The look is made under the lock, so of those who leave at
    /// one time the last one sees that all others have left.
    pub(super) fn take_if_over(&'static self) -> Option<Departure> {
        interleave::point();
        let mut departure = self.departure.lock();
        let evidence = departure.as_ref()?.evidence();
        let in_use = self.domain.uses(self.key(), evidence) && !active(Mutation::DepartureIgnoresOthers);
        if in_use { None } else { departure.take() }
    }

    /// From now on the last one who leaves the place ends this departure; the place may be empty by then already.
    pub(super) fn depart(&'static self, departure: Departure) {
        *self.departure.lock() = Some(departure);
    }

    /// There is no departure any more, if there was one.
    pub(super) fn cancel(&self) {
        *self.departure.lock() = None;
    }

    pub(super) fn has_departure(&self) -> bool {
        self.departure.lock().is_some()
    }

    /// Nobody is in the place any more, and what was in it is given back.
    pub(super) fn vacate(&self) {
        // ORDERING: Release; pairs with `Place::put` (E3). Weaker, the next value could be put before the place is emptied of this one,
        // and be lost.
        self.state.store(VACANT, Ordering::Release);
    }
}

/// A place for a boxed value that walkers pin, and that can be withdrawn while they do.
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
    value: AtomicPtr<T>,
    anchor: Anchor,
    // Without it a place would be `Send` and `Sync` whatever is in it.
    owned: PhantomData<*mut T>,
    /// `value` once more, for a drop after the execution of the model, when nothing that is modelled is there any more.
    #[cfg(memgroup_loom)]
    shadow: std::sync::atomic::AtomicPtr<T>,
}

// SAFETY: a place that is sent takes its value along; nobody else has a reference to that, or the place would be borrowed.
unsafe impl<T: Send> Send for Place<T> {}
// SAFETY: through `&Place<T>` threads get `&T`, hence `Sync`, and take out values of each other, hence `Send`.
unsafe impl<T: Send + Sync> Sync for Place<T> {}

/// What a place with nothing in it is.
macro_rules! empty {
    ($domain:ident) => {
        Self {
            value: AtomicPtr::new(null_mut()),
            anchor: Anchor { domain: $domain, state: AtomicU32::new(VACANT), departure: Mutex::new(None) },
            owned: PhantomData,
            #[cfg(memgroup_loom)]
            shadow: std::sync::atomic::AtomicPtr::new(null_mut()),
        }
    };
}

impl<T> Place<T> {
    /// A place with nothing in it, to be pinned under leases of `domain`.
    #[cfg(not(memgroup_loom))]
    #[must_use]
    pub const fn empty(domain: &'static Domain) -> Self {
        empty!(domain)
    }

    /// A place with nothing in it, to be pinned under leases of `domain`.
    #[cfg(memgroup_loom)]
    #[must_use]
    pub fn empty(domain: &'static Domain) -> Self {
        empty!(domain)
    }

    /// A number that no other place has: what [`Occupant::place`](super::Occupant::place) names.
    #[inline(always)]
    #[must_use]
    pub fn key(&self) -> usize {
        self.anchor.key()
    }

    /// Whether [`put`](Self::put) would panic now: a value is in the place, or one that was there is not given back yet.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        // ORDERING: Acquire; as in `put`, for a caller who decides by it.
        self.anchor.state.load(Ordering::Acquire) != VACANT
    }

    #[inline(always)]
    pub(super) fn anchor(&self) -> &Anchor {
        &self.anchor
    }

    #[inline(always)]
    pub(super) fn value(&self) -> Option<NonNull<T>> {
        // ORDERING: Acquire; pairs with the Release in `put` (E1). Weaker, the value could be read before it was written.
        let order = if active(Mutation::PinFollowsRelaxed) { Ordering::Relaxed } else { Ordering::Acquire };
        NonNull::new(self.value.load(order))
    }
}

impl<T: Send + Sync + 'static> Place<T> {
    /// Puts `value` into the place, where it is found from now on.
    ///
    /// # Panics
    ///
    /// If there is a value in the place, or one that was [withdrawn](Self::withdraw) is not given back or dropped yet.
    pub fn put(&self, value: Box<T>) {
        // ORDERING: Acquire; pairs with `Anchor::vacate` (E3). Relaxed on failure, which only panics.
        let taken =
            self.anchor.state.compare_exchange(VACANT, FULL, Ordering::Acquire, Ordering::Relaxed).err();
        match taken {
            None => {}
            Some(FULL) => panic!("failed to put a value into place {:#x}: there is one in it", self.key()),
            Some(_) => {
                panic!("failed to put a value into place {:#x}: the last one is still in use", self.key())
            }
        }
        interleave::point();
        // ORDERING: Release; pairs with `value` (E1) and `withdraw` (E2). Weaker, the value could be seen before it was written.
        let order = if active(Mutation::PutRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        self.set(Box::into_raw(value), |place, value| place.store(value, order));
    }

    /// Takes the value out of the place: no pin finds it any more. Those that have found it go on using it, and the
    /// [`Withdrawn`] knows when they have ended. `None` if the place is empty.
    ///
    /// Where leases are held, and not all of them [dwell](super::Pinned::dwell), it makes the expedited barrier of [`grace`](crate::grace); it waits for
    /// nobody who uses the place.
    pub fn withdraw(&'static self) -> Option<Withdrawn<T>> {
        self.take(|| barrier::barrier(Form::Expedited))
    }

    /// As [`withdraw`](Self::withdraw), with this barrier.
    pub(super) fn take(&'static self, barrier: impl FnOnce() -> Evidence) -> Option<Withdrawn<T>> {
        // ORDERING: Relaxed; the fence below makes it an acquire that pairs with the Release in `put` (E2). Null shows nothing; that
        // pins see it in time is the work of the fence and the barrier below.
        let value = NonNull::new(self.set(null_mut(), |place, null| place.swap(null, Ordering::Relaxed)))?;
        // ORDERING: Relaxed; shown to those who leave by the barrier, or the exchanges of a scan (`record` E5).
        self.anchor.state.store(LEAVING, Ordering::Relaxed);
        interleave::point();
        if !active(Mutation::WithdrawsWithoutFence) {
            // ORDERING: SeqCst; pairs with the fence in `Record::claim` (E3 there): the lease that is claimed after the look below
            // finds the place empty. Without it, too, the value could be given back before it was written (E2).
            fence(Ordering::SeqCst);
        }
        let evidence = match self.anchor.domain.leases() {
            Leases::None => None,
            // What they have pinned is seen, and what they look at next finds the place empty (`record` E6).
            Leases::Dwelling => Some(Evidence::Loads),
            Leases::Walking => Some(barrier()),
        };
        interleave::point();
        Some(Withdrawn::new(Taken::new(self, value), evidence))
    }
}

impl<T> Place<T> {
    /// The only way into the place and out of it.
    fn set<R>(&self, value: *mut T, set: impl FnOnce(&AtomicPtr<T>, *mut T) -> R) -> R {
        let result = set(&self.value, value);
        // ORDERING: Relaxed; threads of a model take turns.
        #[cfg(memgroup_loom)]
        self.shadow.store(value, Ordering::Relaxed);
        result
    }

    /// Whether the place is in use, to who may believe `evidence`; without evidence there was no lease when the value was taken.
    pub(super) fn is_used(&self, evidence: Option<Evidence>) -> bool {
        evidence.is_some_and(|evidence| self.anchor.domain.uses(self.key(), evidence))
    }
}

impl<T> fmt::Debug for Place<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

impl<T> Drop for Place<T> {
    /// Only a place that was never borrowed for ever is dropped, so nobody has pinned it.
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        // ORDERING: Relaxed; as below.
        #[cfg(memgroup_loom)]
        let value = if crate::keep::is_over() {
            self.shadow.load(Ordering::Relaxed)
        } else {
            self.value.load(Ordering::Relaxed)
        };
        #[cfg(not(memgroup_loom))]
        // ORDERING: Relaxed; whoever gave the place to the caller alone has ordered what was done to it.
        let value = self.value.load(Ordering::Relaxed);
        if let Some(value) = NonNull::new(value) {
            // SAFETY: out of a box, and the place's (I1); nobody has pinned it.
            drop(unsafe { Box::from_raw(value.as_ptr()) });
        }
    }
}
