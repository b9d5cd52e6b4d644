//! Keeping apart what different threads write.

use core::ops::{Deref, DerefMut};

/// A `T` alone in its cache lines: aligned to 128 bytes and padded to a multiple of them.
///
/// Lines are 64 bytes on x86_64, but the adjacent-line prefetcher fetches them in pairs, so two words written by two
/// threads must be 128 bytes apart; 128 is the line itself on several aarch64 parts.
///
/// ```
/// use memgroup_sync::CachePadded;
///
/// let pair = [CachePadded::new(1_u64), CachePadded::new(2)];
/// assert_eq!(size_of_val(&pair), 256);
/// assert_eq!(*pair[0] + *pair[1], 3);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(128))]
pub struct CachePadded<T> {
    value: T,
}

impl<T> CachePadded<T> {
    /// `value`, in lines of its own.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { value }
    }

    /// The value without its padding.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for CachePadded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_a_pair_of_lines_apart_and_lines_are_not_shared() {
        let words: [CachePadded<u8>; 3] = Default::default();
        let address = |word: &CachePadded<u8>| core::ptr::from_ref::<u8>(word).addr();
        assert_eq!(address(&words[1]) - address(&words[0]), 128);
        assert_eq!(address(&words[0]) % 128, 0);
        assert_eq!(size_of::<CachePadded<[u8; 129]>>(), 256);
    }

    #[test]
    fn the_value_is_reached_through_the_padding() {
        let mut padded = CachePadded::new(String::from("a"));
        padded.push('b');
        assert_eq!(padded.len(), 2);
        assert_eq!(padded.into_inner(), "ab");
    }
}
