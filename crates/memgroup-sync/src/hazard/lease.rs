//! A walk's right to pin places, one at a time, and what it has pinned.
//!
//! - I1. A lease is made where its record was claimed, and nowhere else: dropping it gives the record back.
//! - I2. A [`Pinned`] borrows its lease, so there is one at a time, and what the record names when the lease is used again or dropped
//!   was pinned by one that was forgotten.

#![allow(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

use super::domain::Domain;
use super::place::{Anchor, Place};
use super::record::{Entry, Record};
use crate::grace::section::model_failed;

/// The right of a walk on this thread to pin places of a [`Domain`], one at a time.
///
/// It belongs to the thread that took it. A lease that is forgotten (`mem::forget`) keeps its record for ever, and the place that was
/// pinned with it in use.
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
#[must_use = "a lease is over when it is dropped"]
pub struct Lease {
    domain: &'static Domain,
    record: &'static Record,
    entry: Entry,
    on_this_thread: PhantomData<*const ()>,
}

impl Lease {
    #[inline(always)]
    pub(super) fn new(domain: &'static Domain, (record, entry): (&'static Record, Entry)) -> Self {
        Self { domain, record, entry, on_this_thread: PhantomData }
    }

    /// What is in the place, which is not given back to who withdraws it before the `Pinned` is dropped; `None` if the place is
    /// empty.
    ///
    /// Where somebody has detached a withdrawn value, and this is what looks last, what was to be done with the value is done here.
    ///
    /// # Panics
    ///
    /// If the place is of another domain: its withdrawals look for pins there.
    #[inline(always)]
    pub fn pin<'l, T>(&'l mut self, place: &'static Place<T>) -> Option<Pinned<'l, T>> {
        if !core::ptr::eq(place.anchor().domain(), self.domain) {
            of_another_domain(place.key());
        }
        if self.record.is_used() {
            end_forgotten(self.record, self.entry);
        }
        // A place that is seen empty is not pinned: it may be one whose last users never come back.
        place.value()?;
        self.record.pin(place.key(), self.entry);
        match place.value() {
            Some(value) => Some(Pinned { lease: self, place, value }),
            None => {
                leave(self.record, self.entry, place.anchor());
                None
            }
        }
    }
}

/// The record names no place any more.
#[inline(always)]
fn leave(record: &'static Record, entry: Entry, anchor: &'static Anchor) {
    record.unpin(entry);
    anchor.left();
}

/// The record names no place any more, which one it may have been. These and what else is cold take what is in a lease, not a reference
/// to it, so that a lease is in registers while it is used.
#[cold]
#[inline(never)]
fn end_forgotten(record: &'static Record, entry: Entry) {
    if let Some((_, key)) = record.occupied() {
        // SAFETY: this thread has pinned it, so it is the key of a place that lives for ever.
        leave(record, entry, unsafe { Anchor::of(key) });
    }
}

#[inline(never)]
fn end(domain: &'static Domain, record: &'static Record, entry: Entry) {
    end_forgotten(record, entry);
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
            end(self.domain, self.record, self.entry);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}

/// A value that stays as it is while this lives, whoever withdraws it meanwhile.
///
/// Dropping it may do what somebody wanted [done with the value](super::Withdrawn::detach) after the last use. One that is forgotten
/// lasts until its lease is used again or dropped.
#[must_use = "a pin is over when it is dropped"]
pub struct Pinned<'l, T: 'static> {
    lease: &'l mut Lease,
    place: &'static Place<T>,
    value: NonNull<T>,
}

impl<T> Pinned<'_, T> {
    /// Says that the pin is in force now: from this moment on [`Occupant::held`](super::Occupant::held) counts. For who is about to do
    /// something that may take long; it reads a clock.
    pub fn stamp(&self) {
        self.lease.record.stamp();
    }
}

impl<T> Pinned<'_, T> {
    /// Does what may take long with the value: withdrawals of other places need no barrier because of this lease meanwhile. It costs a
    /// fence.
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
    /// let seven = callback.dwell(|callback| {
    ///     drop(PLACES[1].withdraw()); // interrupts nobody
    ///     callback()
    /// });
    /// assert_eq!(seven, 7);
    /// # }
    /// ```
    #[inline]
    pub fn dwell<R>(&self, long: impl FnOnce(&T) -> R) -> R {
        struct Dwelling<'r>(&'r Record);
        impl Drop for Dwelling<'_> {
            fn drop(&mut self) {
                self.0.walk_on();
            }
        }
        self.lease.record.dwell();
        // Ends with this call, also in a panic: a walk that went on under it would not be seen.
        let _dwelling = Dwelling(self.lease.record);
        long(self)
    }
}

impl<T> Deref for Pinned<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: out of a box, and found in the place after the record named it, so nobody gives it back or drops it
        // before the record names it no more (`place` I3); that is when this is dropped or, if it is forgotten, later.
        unsafe { self.value.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Pinned<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned").field(&**self).finish()
    }
}

impl<T> Drop for Pinned<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if !model_failed() {
            leave(self.lease.record, self.lease.entry, self.place.anchor());
        }
    }
}
