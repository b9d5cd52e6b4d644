//! Erasable: types with values that may turn to zero while threads use them.
//!
//! [`Chunk`](crate::Chunk) needs them: its cells turn to zero in the end, also under the eyes of a
//! thread that still refers to them.

#![allow(unsafe_code)]

use crate::CachePadded;
use crate::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A type with a value that may turn to zero while threads use it. [`erasable!`](crate::erasable)
/// declares such types.
///
/// # Safety
///
/// All bytes zero are a value. Every byte is part of an atomic, or padding. After
/// [`retire`](Self::retire) and a grace period, any of its atomics may turn to zero at any moment,
/// and stay so for another grace period: the type stays sound. It has no drop code that anything
/// depends on.
pub unsafe trait Erasable: Sync + 'static {
    /// The value that is all zero.
    fn zero() -> Self
    where
        Self: Sized;

    /// Prepares for the erasure. Sections that begin from now on use the value only in ways that
    /// are sound beside it.
    ///
    /// # Safety
    ///
    /// Called once, by the only owner.
    unsafe fn retire(&self) {}

    /// Sets it to zero, by atomic stores.
    ///
    /// # Safety
    ///
    /// It was retired, and a grace period has passed since.
    unsafe fn erase(&self);
}

macro_rules! erasable_atomics {
    ($($atomic:ty: $zero:expr),* $(,)?) => {$(
        // SAFETY: one atomic, for which zero is a value.
        unsafe impl Erasable for $atomic {
            fn zero() -> Self {
                Self::new($zero)
            }

            unsafe fn erase(&self) {
                // In a model only fixed values turn to zero: so many stores would have too many
                // orders.
                if !cfg!(memgroup_loom) {
                    // ORDERING: Relaxed; the owner of the cells orders their next use.
                    self.store($zero, Ordering::Relaxed);
                }
            }
        }
    )*};
}

erasable_atomics! { AtomicBool: false, AtomicU32: 0, AtomicU64: 0, AtomicUsize: 0 }

// SAFETY: one atomic, for which null is a value.
unsafe impl<T: 'static> Erasable for AtomicPtr<T> {
    fn zero() -> Self {
        AtomicPtr::new(core::ptr::null_mut())
    }

    unsafe fn erase(&self) {
        // ORDERING: Relaxed; the owner of the cells orders their next use.
        self.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

// SAFETY: nothing but values of an erasable type.
unsafe impl<T: Erasable, const N: usize> Erasable for [T; N] {
    fn zero() -> Self {
        core::array::from_fn(|_| T::zero())
    }

    unsafe fn retire(&self) {
        // SAFETY: the caller's promise.
        self.iter().for_each(|item| unsafe { item.retire() });
    }

    unsafe fn erase(&self) {
        // SAFETY: the caller's promise.
        self.iter().for_each(|item| unsafe { item.erase() });
    }
}

// SAFETY: a value of an erasable type, and padding.
unsafe impl<T: Erasable> Erasable for CachePadded<T> {
    fn zero() -> Self {
        CachePadded::new(T::zero())
    }

    unsafe fn retire(&self) {
        // SAFETY: the caller's promise.
        unsafe { T::retire(self) }
    }

    unsafe fn erase(&self) {
        // SAFETY: the caller's promise.
        unsafe { T::erase(self) }
    }
}

/// Declares structs of [`Erasable`](crate::Erasable) fields, which are then erasable themselves.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::atomic::{AtomicU64, Ordering};
/// use memgroup_sync::{Erasable, erasable};
///
/// erasable! {
///     /// The usage of one group.
///     struct Usage {
///         bytes: AtomicU64,
///         peak: AtomicU64,
///     }
/// }
/// let usage = Usage::zero();
/// assert_eq!(usage.bytes.load(Ordering::Relaxed) + usage.peak.load(Ordering::Relaxed), 0);
/// # }
/// ```
///
/// A field that is no atomic is refused:
///
/// ```compile_fail,E0277
/// memgroup_sync::erasable! {
///     struct Usage { bytes: u64 }
/// }
/// ```
#[macro_export]
macro_rules! erasable {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)?
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type),*
        }

        // SAFETY: every field is erasable, and there is no other.
        unsafe impl $crate::Erasable for $name
        where
            $($type: $crate::Erasable),*
        {
            fn zero() -> Self {
                Self { $($field: $crate::Erasable::zero()),* }
            }

            unsafe fn retire(&self) {
                // SAFETY: the caller's promise, for each field.
                $(unsafe { $crate::Erasable::retire(&self.$field) };)*
            }

            unsafe fn erase(&self) {
                // SAFETY: the caller's promise, for each field.
                $(unsafe { $crate::Erasable::erase(&self.$field) };)*
            }
        }
    };
}
