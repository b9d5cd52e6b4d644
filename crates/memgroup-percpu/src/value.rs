//! Types that may live in per-slot memory.

#![allow(unsafe_code)]

use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

/// A type with copies that can live in per-slot memory. Its value at birth is all zero bytes, it is changed through `&T` from
/// any thread, and it is never dropped.
///
/// Implemented for the atomic words and for arrays of them. A record of several fields is an array of words with
/// named indices.
///
/// # Safety
///
/// - All-zero bytes are a valid value, equal to [`zero`](Self::zero).
/// - It has no padding: every byte of every value is initialised.
/// - It has no drop glue.
pub unsafe trait PerCpuValue: Send + Sync + Sized + 'static {
    /// The value at birth, made one by one where the memory is not bytes (under loom).
    fn zero() -> Self;
}

macro_rules! words {
    ($($word:ident: $zero:expr),* $(,)?) => {$(
        // SAFETY: in a normal build the word has the representation of its integer (for bool, 0 is false). So zero bytes
        // are the value `$zero`, no byte is padding, and there is nothing to drop. Under loom no byte is read or written
        // through this promise: copies are made by `zero` and dropped.
        unsafe impl PerCpuValue for $word {
            fn zero() -> Self {
                $word::new($zero)
            }
        }
    )*};
}

words!(AtomicBool: false, AtomicU32: 0, AtomicU64: 0, AtomicUsize: 0);

// SAFETY: an array is its elements without padding between them, so each promise carries over.
unsafe impl<T: PerCpuValue, const N: usize> PerCpuValue for [T; N] {
    fn zero() -> Self {
        core::array::from_fn(|_| T::zero())
    }
}
