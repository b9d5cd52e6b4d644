//! An atomic reference to a value that lives for ever.
//!
//! - I1. The pointer is null, or out of a `&'static T`.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ptr::{from_ref, null_mut};

use crate::Erasable;
use crate::atomic::{AtomicPtr, Ordering};

/// An `Option<&'static T>` that threads share.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::AtomicRef;
/// use memgroup_sync::atomic::Ordering;
///
/// static ONE: u32 = 1;
/// static FOUND: AtomicRef<u32> = AtomicRef::none();
/// assert_eq!(FOUND.load(Ordering::Acquire), None);
/// FOUND.store(Some(&ONE), Ordering::Release);
/// assert_eq!(FOUND.load(Ordering::Acquire), Some(&1));
/// # }
/// ```
///
/// A `T` that is not `Sync` cannot be shared this way:
///
/// ```compile_fail,E0277
/// # use memgroup_sync::AtomicRef;
/// fn share(_: impl Sync) {}
/// share(AtomicRef::<std::cell::Cell<u32>>::none());
/// ```
pub struct AtomicRef<T: 'static> {
    pointer: AtomicPtr<T>,
    of: PhantomData<&'static T>,
}

impl<T> AtomicRef<T> {
    /// A reference to nothing.
    #[cfg(not(memgroup_loom))]
    pub const fn none() -> AtomicRef<T> {
        AtomicRef { pointer: AtomicPtr::new(null_mut()), of: PhantomData }
    }

    /// A reference to nothing.
    #[cfg(memgroup_loom)]
    pub fn none() -> AtomicRef<T> {
        AtomicRef { pointer: AtomicPtr::new(null_mut()), of: PhantomData }
    }

    /// The value that it refers to.
    ///
    /// # Panics
    /// For an order that a load cannot have.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> Option<&'static T> {
        // ORDERING: the caller's, which explains it.
        let pointer = self.pointer.load(order);
        // SAFETY: I1.
        unsafe { pointer.as_ref() }
    }

    /// Makes it refer to `to`.
    ///
    /// # Panics
    /// For an order that a store cannot have.
    #[inline]
    pub fn store(&self, to: Option<&'static T>, order: Ordering) {
        let pointer = to.map_or(null_mut(), |to| from_ref(to).cast_mut());
        // ORDERING: the caller's, which explains it.
        self.pointer.store(pointer, order);
    }
}

// SAFETY: one atomic pointer, for which null is a value (I1).
unsafe impl<T: Sync> Erasable for AtomicRef<T> {
    fn zero() -> Self {
        AtomicRef::none()
    }

    unsafe fn erase(&self) {
        // ORDERING: Relaxed; the owner of the cells orders their next use.
        self.store(None, Ordering::Relaxed);
    }
}
