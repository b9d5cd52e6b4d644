//! Fixed values: written before other threads get to a cell, and then only read, until the cell is erased.
//!
//! They are the standard library's atomics in every build, because a model has nothing to explore in them.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ptr::{from_ref, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::Erasable;

macro_rules! fixed_numbers {
    ($($name:ident: $atomic:ty, $number:ty, $text:literal;)*) => {$(
        #[doc = concat!("A fixed `", $text, "` of an [`Erasable`] cell; 0 until it is set.")]
        #[derive(Default)]
        pub struct $name($atomic);

        impl $name {
            #[doc = "A number that is set already."]
            pub const fn new(number: $number) -> Self {
                Self(<$atomic>::new(number))
            }

            #[doc = "The number; 0 once it is erased."]
            #[inline(always)]
            pub fn get(&self) -> $number {
                // ORDERING: Relaxed; published by what gave this thread the cell.
                self.0.load(Ordering::Relaxed)
            }

            #[doc = "Sets it, before other threads get to the cell."]
            #[inline]
            pub fn set(&self, number: $number) {
                // ORDERING: Relaxed; as in `get`.
                self.0.store(number, Ordering::Relaxed);
            }
        }

        // SAFETY: one atomic, for which zero is a value.
        unsafe impl Erasable for $name {
            fn zero() -> Self {
                Self::new(0)
            }

            fn erase(&self) {
                self.set(0);
            }
        }
    )*};
}

fixed_numbers! {
    FixedU32: AtomicU32, u32, "u32";
    FixedU64: AtomicU64, u64, "u64";
}

/// A fixed `&'static T` of an [`Erasable`] cell; `None` until it is set.
pub struct FixedRef<T: 'static> {
    pointer: AtomicPtr<T>,
    of: PhantomData<&'static T>,
}

impl<T> FixedRef<T> {
    /// A reference to nothing.
    pub const fn none() -> Self {
        FixedRef { pointer: AtomicPtr::new(null_mut()), of: PhantomData }
    }

    /// The value that it refers to; `None` once it is erased.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        // ORDERING: Acquire; pairs with the Release in `set`: a thread that finds the reference finds its value.
        let pointer = self.pointer.load(Ordering::Acquire);
        // SAFETY: null, or out of a `&'static T`.
        unsafe { pointer.as_ref() }
    }

    /// Makes it refer to `to`, before other threads get to the cell.
    pub fn set(&self, to: &'static T) {
        // ORDERING: Release; as in `get`.
        self.pointer.store(from_ref(to).cast_mut(), Ordering::Release);
    }

    /// As [`set`](Self::set), if it refers to nothing. Else the value that it refers to.
    pub fn set_first(&self, to: &'static T) -> Option<&'static T> {
        // ORDERING: AcqRel; Release as in `set`, Acquire as in `get`.
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        match self.pointer.compare_exchange(null_mut(), from_ref(to).cast_mut(), order, failed) {
            Ok(_) => None,
            // SAFETY: as in `get`.
            Err(before) => unsafe { before.as_ref() },
        }
    }
}

// SAFETY: one atomic pointer, for which null is a value.
unsafe impl<T: Sync> Erasable for FixedRef<T> {
    fn zero() -> Self {
        FixedRef::none()
    }

    fn erase(&self) {
        // ORDERING: Relaxed; the owner of the cells orders their next use.
        self.pointer.store(null_mut(), Ordering::Relaxed);
    }
}
