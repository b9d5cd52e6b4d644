//! A walk's right to pin places, one at a time, and the pinned value.
//!
//! - I1. A lease is made where its record was claimed, and nowhere else: dropping it gives the
//!   record back.
//! - I2. A [`Pinned`] borrows its lease, so there is one at a time. A pin that the record still
//!   has when the lease is used again or dropped was forgotten.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

use super::domain::Domain;
use super::place::{Anchor, Place};
use super::record::{PinBy, Record};
use crate::keep::model_failed;

/// The right of a walk on this thread to pin places of a [`Domain`], one at a time.
///
/// It belongs to the thread that took it. A lease that is forgotten (`mem::forget`) keeps its
/// record for ever, and the place that was pinned with it in use.
///
/// ```compile_fail,E0499
/// # use memgroup_sync::hazard::{Domain, Place};
/// static DOMAIN: Domain = Domain::new();
/// static ONE: Place<u32> = Place::empty(&DOMAIN);
/// static OTHER: Place<u32> = Place::empty(&DOMAIN);
/// let mut lease = DOMAIN.lease();
/// let one = lease.pin(&ONE);
/// let other = lease.pin(&OTHER);
/// drop(one);
/// ```
///
/// ```compile_fail,E0277
/// # use memgroup_sync::hazard::Domain;
/// static DOMAIN: Domain = Domain::new();
/// let lease = DOMAIN.lease();
/// std::thread::spawn(move || drop(lease));
/// ```
#[derive(Debug)]
#[must_use = "a lease is over when it is dropped"]
pub struct Lease {
    domain: &'static Domain,
    record: &'static Record,
    by: PinBy,
    on_this_thread: PhantomData<*const ()>,
}

impl Domain {
    /// Takes a lease for a walk on this thread: it can pin one place of this domain at a time. A
    /// walk within a walk takes another one.
    ///
    /// It claims a free record, with one compare-and-swap and a fence, and never waits. Where all
    /// records are taken, it allocates memory for more, which is kept for ever.
    #[inline(always)]
    pub fn lease(&'static self) -> Lease {
        let (record, by) = self.claim();
        Lease { domain: self, record, by, on_this_thread: PhantomData }
    }
}

impl Lease {
    /// Pins the value in the place: a withdrawal does not give it back before the `Pinned` is
    /// dropped. `None` if the place is empty.
    ///
    /// Where a withdrawn value was detached, and this is the last thread to leave the place, its
    /// closure runs here.
    ///
    /// # Panics
    ///
    /// If the place is of another domain: its withdrawals scan for pins there.
    #[inline(always)]
    pub fn pin<'l, T>(&'l mut self, place: &'static Place<T>) -> Option<Pinned<'l, T>> {
        if !core::ptr::eq(place.anchor.domain, self.domain) {
            of_another_domain(place.key());
        }
        if self.record.is_used() {
            end_forgotten(self.record, self.by);
        }
        // A place that is seen empty is not pinned: its last users may never come back.
        place.value()?;
        self.record.pin(place.key(), self.by);
        match place.value() {
            Some(value) => Some(Pinned { lease: self, place, value }),
            None => {
                leave(self.record, self.by, &place.anchor);
                None
            }
        }
    }
}

/// Ends the record's pin of a place.
#[inline(always)]
fn leave(record: &'static Record, by: PinBy, anchor: &'static Anchor) {
    record.unpin(by);
    anchor.after_unpin();
}

/// Ends the record's pin of any place. The cold functions take the fields of a lease, not a
/// reference to it, so that a lease stays in registers while it is used.
#[cold]
#[inline(never)]
fn end_forgotten(record: &'static Record, by: PinBy) {
    let key = record.pinned();
    if key != 0 {
        // SAFETY: this thread has pinned it, so it is the key of a place that lives for ever.
        leave(record, by, unsafe { Anchor::of(key) });
    }
}

#[inline(never)]
fn end(domain: &'static Domain, record: &'static Record, by: PinBy) {
    end_forgotten(record, by);
    record.give_back();
    domain.lease_ended();
}

#[cfg(all(test, memgroup_loom))]
impl Lease {
    pub(super) fn is_on(&self, record: &Record) -> bool {
        core::ptr::eq(self.record, record)
    }
}

#[cold]
#[inline(never)]
fn of_another_domain(key: usize) -> ! {
    panic!("failed to pin place {key:#x}: it is of another domain than the lease")
}

impl Drop for Lease {
    #[inline(always)]
    fn drop(&mut self) {
        if !model_failed() {
            end(self.domain, self.record, self.by);
        }
    }
}

/// A value that stays as it is while this lives, also if a thread withdraws it meanwhile.
///
/// Dropping it may run the closure of a [detached](super::Withdrawn::detach) value after its last
/// use. A pin that is forgotten lasts until its lease is used again or dropped.
#[must_use = "a pin is over when it is dropped"]
pub struct Pinned<'l, T: 'static> {
    lease: &'l mut Lease,
    place: &'static Place<T>,
    value: NonNull<T>,
}

impl<T> Pinned<'_, T> {
    /// Notes that the pin is in force now, so that [`Occupant::held`](super::Occupant::held)
    /// counts from here. A caller that is about to begin a long use calls it; it reads a
    /// clock.
    pub fn stamp(&self) {
        self.lease.record.stamp();
    }

    /// Runs a long use of the value. Meanwhile withdrawals of other places need no barrier because
    /// of this lease. It costs a fence.
    ///
    /// ```
    /// # #[cfg(not(memgroup_loom))] {
    /// use memgroup_sync::hazard::{Domain, Place};
    ///
    /// static DOMAIN: Domain = Domain::new();
    /// static PLACES: [Place<fn() -> u64>; 2] = [Place::empty(&DOMAIN), Place::empty(&DOMAIN)];
    /// PLACES[0].put(Box::new(|| 7));
    /// PLACES[1].put(Box::new(|| 8));
    ///
    /// let mut lease = DOMAIN.lease();
    /// let callback = lease.pin(&PLACES[0]).expect("a callback");
    /// let seven = callback.long_use(|callback| {
    ///     drop(PLACES[1].withdraw()); // interrupts no thread
    ///     callback()
    /// });
    /// assert_eq!(seven, 7);
    /// # }
    /// ```
    #[inline]
    pub fn long_use<R>(&self, long: impl FnOnce(&T) -> R) -> R {
        struct LongUse<'r>(&'r Record);
        impl Drop for LongUse<'_> {
            fn drop(&mut self) {
                self.0.end_long_use();
            }
        }
        self.lease.record.begin_long_use();
        // Ends with this call, also in a panic: later pins under it would not be seen.
        let _long_use = LongUse(self.lease.record);
        long(self)
    }
}

impl<T> Deref for Pinned<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: out of a box, and found in the place after the record named it, so it is not
        // given back or dropped before the record names it no more (`place` I3); that is when this
        // is dropped or, if it is forgotten, later.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for Pinned<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if !model_failed() {
            leave(self.lease.record, self.lease.by, &self.place.anchor);
        }
    }
}
