//! Fixed values: written before other threads get to a cell, and then only read, until the cell is
//! erased.
//!
//! They are the standard library's atomics in every build, because a model has nothing to explore
//! in them.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ptr::{from_ref, null_mut, with_exposed_provenance};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::Erasable;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($atomic:ident, $number:ident);)+) => {$(
        $(#[$doc])*
        #[derive(Default)]
        pub struct $name($atomic);

        impl $name {
            /// A number that is set already.
            pub const fn new(number: $number) -> Self {
                Self($atomic::new(number))
            }

            /// The number; 0 once it is erased.
            #[inline(always)]
            pub fn get(&self) -> $number {
                // ORDERING: Relaxed; published with the cell.
                self.0.load(Ordering::Relaxed)
            }

            /// Sets it, before other threads get to the cell.
            #[inline]
            pub fn set(&self, number: $number) {
                // ORDERING: Relaxed; published with the cell.
                self.0.store(number, Ordering::Relaxed);
            }
        }

        // SAFETY: one atomic, for which zero is a value.
        unsafe impl Erasable for $name {
            fn zero() -> Self {
                Self::new(0)
            }

            unsafe fn erase(&self) {
                self.set(0);
            }
        }
    )+};
}

numbers! {
    /// A fixed `u32` of an [`Erasable`] cell; 0 until it is set.
    FixedU32(AtomicU32, u32);
    /// A fixed `u64` of an [`Erasable`] cell; 0 until it is set.
    FixedU64(AtomicU64, u64);
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
        // ORDERING: Acquire; pairs with the Release in `set`: a thread that finds the reference
        // finds its value.
        let pointer = self.pointer.load(Ordering::Acquire);
        // SAFETY: null, or out of a `&'static T`.
        unsafe { pointer.as_ref() }
    }

    /// Returns whether it refers to this very value.
    #[inline(always)]
    pub fn is(&self, value: &'static T) -> bool {
        // ORDERING: Relaxed; the caller has the value already.
        core::ptr::eq(self.pointer.load(Ordering::Relaxed), value)
    }

    /// Makes it refer to `to`, before other threads get to the cell.
    pub fn set(&self, to: &'static T) {
        // ORDERING: Release; as in `get`.
        self.pointer.store(from_ref(to).cast_mut(), Ordering::Release);
    }
}

// SAFETY: one atomic pointer, for which null is a value.
unsafe impl<T: Sync> Erasable for FixedRef<T> {
    fn zero() -> Self {
        FixedRef::none()
    }

    unsafe fn erase(&self) {
        // ORDERING: Relaxed; the owner of the cells orders their next use.
        self.pointer.store(null_mut(), Ordering::Relaxed);
    }
}

/// A fixed `&'static [T]` of an [`Erasable`] cell, with up to 65,535 items, in one word; empty
/// until it is set.
///
/// It's invariant in `T`, because it can be set through a shared reference. A slice of functions
/// that take any `&str` can't be set by way of a type whose functions take `&'static str` only:
///
/// ```compile_fail
/// # use memgroup_sync::FixedSlice;
/// fn narrow<'a>(any: &'a FixedSlice<for<'s> fn(&'s str)>) -> &'a FixedSlice<fn(&'static str)> {
///     any
/// }
/// ```
pub struct FixedSlice<T: 'static> {
    /// The address in the lower 48 bits, the length above.
    word: AtomicU64,
    of: PhantomData<&'static [T]>,
    is_invariant: PhantomData<AtomicPtr<T>>,
}

const ADDRESS_BITS: u32 = 48;

impl<T> FixedSlice<T> {
    /// A slice without items.
    pub const fn empty() -> Self {
        FixedSlice { word: AtomicU64::new(0), of: PhantomData, is_invariant: PhantomData }
    }

    /// The slice; empty once it is erased.
    #[inline(always)]
    pub fn get(&self) -> &'static [T] {
        // ORDERING: Acquire; pairs with the Release in `set`: a thread that finds the slice finds
        // its items.
        let word = self.word.load(Ordering::Acquire);
        let address = (word & ((1 << ADDRESS_BITS) - 1)) as usize;
        if word == 0 {
            return &[];
        }
        // SAFETY: address and length are of a `&'static [T]`, and were written as one word. Its
        // address was exposed.
        unsafe {
            core::slice::from_raw_parts(with_exposed_provenance(address), (word >> ADDRESS_BITS) as usize)
        }
    }

    /// One item; `None` beyond the end.
    #[inline(always)]
    pub fn item(&self, index: usize) -> Option<&'static T> {
        // ORDERING: Acquire; as in `get`.
        let word = self.word.load(Ordering::Acquire);
        if index as u64 >= word >> ADDRESS_BITS {
            return None;
        }
        let first = with_exposed_provenance::<T>((word & ((1 << ADDRESS_BITS) - 1)) as usize);
        // SAFETY: the index is below the length.
        let item = unsafe { first.add(index) };
        // SAFETY: as in `get`.
        Some(unsafe { &*item })
    }

    /// Makes it refer to `to`, before other threads get to the cell.
    ///
    /// # Panics
    /// If `to` has more than 65,535 items, or lies beyond the first 2<sup>48</sup> bytes.
    pub fn set(&self, to: &'static [T]) {
        let (address, length) = (to.as_ptr().expose_provenance() as u64, to.len() as u64);
        assert!(length < 1 << 16, "a fixed slice has up to 65,535 items, not {length}");
        assert!(address < 1 << ADDRESS_BITS, "a fixed slice lies below 2^48, not at {address:#x}");
        // ORDERING: Release; as in `get`.
        self.word.store(length << ADDRESS_BITS | address, Ordering::Release);
    }
}

// SAFETY: one atomic, for which zero is a value.
unsafe impl<T: Sync> Erasable for FixedSlice<T> {
    fn zero() -> Self {
        FixedSlice::empty()
    }

    unsafe fn erase(&self) {
        // ORDERING: Relaxed; the owner of the cells orders their next use.
        self.word.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn are_zero_until_they_are_set_and_when_they_are_erased() {
        static NUMBERS: [u32; 3] = [5, 6, 7];
        let (slice, reference) = (FixedSlice::zero(), FixedRef::zero());
        assert!(slice.get().is_empty() && reference.get().is_none());
        slice.set(&NUMBERS);
        reference.set(&NUMBERS[1]);
        assert_eq!((slice.get(), reference.get()), (&NUMBERS[..], Some(&6)));
        assert_eq!((slice.item(2), slice.item(3)), (Some(&7), None));
        assert!(reference.is(&NUMBERS[1]) && !reference.is(&NUMBERS[0]));
        // SAFETY: no other thread knows them.
        unsafe { slice.erase() };
        // SAFETY: as above.
        unsafe { reference.erase() };
        assert!(slice.get().is_empty() && reference.get().is_none());
    }
}
