//! An atomic pointer that owns the boxed value behind it.
//!
//! - I1. The pointer is null, or out of a `Box`, and this owns its value.
//! - I2. A pointer leaves by an exchange, so for one caller, which then owns the value.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ptr::{NonNull, null_mut};

use crate::atomic::{AtomicPtr, Ordering};
use crate::keep::model_failed;

/// An `Option<Box<T>>` that threads share.
pub(crate) struct AtomicBox<T> {
    pointer: AtomicPtr<T>,
    // Without it this would be `Send` and `Sync` for every `T`.
    owned: PhantomData<*mut T>,
    /// The pointer once more, for a drop after the execution of the model, when loom's atomics are
    /// gone.
    #[cfg(memgroup_loom)]
    shadow: std::sync::atomic::AtomicPtr<T>,
}

// SAFETY: a box that is sent takes its value along; no other thread has a reference to that, or
// this would be borrowed.
unsafe impl<T: Send> Send for AtomicBox<T> {}
// SAFETY: through `&AtomicBox<T>` threads get `&T`, hence `Sync`, and take values out of each
// other, hence `Send`.
unsafe impl<T: Send + Sync> Sync for AtomicBox<T> {}

impl<T> AtomicBox<T> {
    #[cfg(not(memgroup_loom))]
    pub(crate) const fn empty() -> Self {
        Self { pointer: AtomicPtr::new(null_mut()), owned: PhantomData }
    }

    #[cfg(memgroup_loom)]
    pub(crate) fn empty() -> Self {
        let shadow = std::sync::atomic::AtomicPtr::new(null_mut());
        Self { pointer: AtomicPtr::new(null_mut()), owned: PhantomData, shadow }
    }

    #[inline(always)]
    pub(crate) fn load(&self, order: Ordering) -> Option<NonNull<T>> {
        // ORDERING: the caller's, which explains it.
        NonNull::new(self.pointer.load(order))
    }

    /// Puts a value in where the pointer is null, which the caller knows.
    pub(crate) fn store(&self, value: Box<T>, order: Ordering) {
        let value = Box::into_raw(value);
        // ORDERING: Relaxed; threads of a model take turns.
        #[cfg(memgroup_loom)]
        self.shadow.store(value, Ordering::Relaxed);
        // ORDERING: the caller's, which explains it.
        self.pointer.store(value, order);
    }

    /// Exchanges the value; the caller owns the one that was there (I2).
    pub(crate) fn swap(&self, value: Option<Box<T>>, order: Ordering) -> Option<NonNull<T>> {
        let value = value.map_or(null_mut(), Box::into_raw);
        // ORDERING: the caller's, which explains it.
        let old = self.pointer.swap(value, order);
        // ORDERING: Relaxed; threads of a model take turns.
        #[cfg(memgroup_loom)]
        self.shadow.store(value, Ordering::Relaxed);
        NonNull::new(old)
    }
}

impl<T> Drop for AtomicBox<T> {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        // ORDERING: Relaxed; the thread that gave this to the caller alone has ordered the earlier
        // exchanges.
        #[cfg(memgroup_loom)]
        let value = match crate::keep::is_over() {
            true => NonNull::new(self.shadow.load(Ordering::Relaxed)),
            false => self.load(Ordering::Relaxed),
        };
        // ORDERING: Relaxed, as above.
        #[cfg(not(memgroup_loom))]
        let value = self.load(Ordering::Relaxed);
        if let Some(value) = value {
            // SAFETY: out of a box, and this one's (I1); it is not borrowed, so no thread reads the
            // value.
            drop(unsafe { Box::from_raw(value.as_ptr()) });
        }
    }
}
