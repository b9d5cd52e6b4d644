//! A walk's right to pin places, one at a time, and what it has pinned.
//!
//! - I1. A lease is made where its record was claimed, and nowhere else: dropping it gives the record back.
//! - I2. `pinned` is the place that the record names. A [`Pinned`] borrows the lease, so there is one at a time, and what is still
//!   pinned when the lease is used again or dropped belongs to one that was forgotten.

#![allow(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::{NonNull, from_ref};

use super::domain::Domain;
use super::place::{Anchor, Place};
use super::record::Record;
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
#[must_use = "a lease is over when it is dropped"]
pub struct Lease {
    domain: &'static Domain,
    record: &'static Record,
    pinned: Option<&'static Anchor>,
    on_this_thread: PhantomData<*const ()>,
}

impl Lease {
    pub(super) fn new(domain: &'static Domain, record: &'static Record) -> Self {
        Self { domain, record, pinned: None, on_this_thread: PhantomData }
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
        if self.pinned.is_some() {
            self.unpin();
        }
        // A place that is seen empty is not pinned: it may be one whose last users never come back.
        place.value()?;
        self.record.pin(place.key());
        self.pinned = Some(place.anchor());
        match place.value() {
            Some(value) => Some(Pinned { lease: self, value }),
            None => {
                self.unpin();
                None
            }
        }
    }

    /// Ends the pin, if there is one.
    #[inline(always)]
    fn unpin(&mut self) {
        if let Some(anchor) = self.pinned.take() {
            self.record.unpin();
            anchor.left();
        }
    }
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
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        self.unpin();
        self.record.give_back();
        self.domain.lease_ended();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("pinned", &self.pinned.map(from_ref)).finish_non_exhaustive()
    }
}

/// A value that stays as it is while this lives, whoever withdraws it meanwhile.
///
/// Dropping it may do what somebody wanted [done with the value](super::Withdrawn::detach) after the last use. One that is forgotten
/// lasts until its lease is used again or dropped.
#[must_use = "a pin is over when it is dropped"]
pub struct Pinned<'l, T> {
    lease: &'l mut Lease,
    value: NonNull<T>,
}

impl<T> Pinned<'_, T> {
    /// Says that the pin is in force now: from this moment on [`Occupant::held`](super::Occupant::held) counts. For who is about to do
    /// something that may take long; it reads a clock.
    pub fn stamp(&self) {
        self.lease.record.stamp();
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
            self.lease.unpin();
        }
    }
}
