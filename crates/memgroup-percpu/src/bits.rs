//! Bits of a word, and ranges of bits in an array of words.

/// The places of the set bits of `word`, in ascending order.
#[inline]
pub(crate) fn places(mut word: u64) -> impl Iterator<Item = usize> + Clone {
    core::iter::from_fn(move || {
        let place = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (place < 64).then_some(place)
    })
}

/// Sets one bit.
pub(crate) fn set(bits: &mut [u64], at: u32) {
    bits[(at / 64) as usize] |= 1 << (at % 64);
}

/// Clears one bit; returns whether it was set.
pub(crate) fn take(bits: &mut [u64], at: u32) -> bool {
    let was_set = is_set(bits, at);
    bits[(at / 64) as usize] &= !(1 << (at % 64));
    was_set
}

/// Clears a range of bits. An empty range may lie anywhere.
pub(crate) fn clear(bits: &mut [u64], start: u32, end: u32) {
    if start >= end {
        return;
    }
    for word in start / 64..end.div_ceil(64) {
        let low = u64::MAX << start.saturating_sub(word * 64);
        let high = u64::MAX >> (64 - (end - word * 64).min(64));
        bits[word as usize] &= !(low & high);
    }
}

pub(crate) fn is_set(bits: &[u64], at: u32) -> bool {
    bits[(at / 64) as usize] >> (at % 64) & 1 != 0
}

/// The first bit of `from..end` that is set in `bits ^ flip`, or `end`.
#[inline]
fn next(bits: &[u64], flip: u64, from: u32, end: u32) -> u32 {
    let mut at = from;
    while at < end {
        let rest = (bits[(at / 64) as usize] ^ flip) >> (at % 64);
        if rest != 0 {
            return (at + rest.trailing_zeros()).min(end);
        }
        at = (at / 64 + 1) * 64;
    }
    end
}

/// The first set bit of `from..end`, or `end`.
pub(crate) fn next_set(bits: &[u64], from: u32, end: u32) -> u32 {
    next(bits, 0, from, end)
}

/// The first clear bit of `from..end`, or `end`.
pub(crate) fn next_clear(bits: &[u64], from: u32, end: u32) -> u32 {
    next(bits, u64::MAX, from, end)
}

/// The end of the last bit of `start..from` that is set in `bits ^ flip`, or `start`.
#[inline]
fn end_of_previous(bits: &[u64], flip: u64, start: u32, from: u32) -> u32 {
    let mut at = from;
    while at > start {
        let word = (at - 1) / 64;
        let rest = (bits[word as usize] ^ flip) & (u64::MAX >> (63 - (at - 1) % 64));
        if rest != 0 {
            return (word * 64 + 64 - rest.leading_zeros()).max(start);
        }
        at = word * 64;
    }
    start
}

/// The end of the last set bit of `start..from`, or `start`: the bits between it and `from` are
/// clear.
pub(crate) fn end_of_previous_set(bits: &[u64], start: u32, from: u32) -> u32 {
    end_of_previous(bits, 0, start, from)
}

/// The end of the last clear bit of `start..from`, or `start`: the bits between it and `from` are
/// set.
pub(crate) fn end_of_previous_clear(bits: &[u64], start: u32, from: u32) -> u32 {
    end_of_previous(bits, u64::MAX, start, from)
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn searches_and_changes_agree_with_a_walk_bit_by_bit(
            words in proptest::array::uniform4(any::<(u64, u64, u64)>()), from in 0_u32..256, end in 0_u32..=256,
        ) {
            let words = words.map(|(a, b, c)| if c % 5 == 0 { 0 } else if c % 3 == 0 { a & b } else { a | b });
            let end = end.max(from);
            let set_from = (from..end).find(|&at| is_set(&words, at)).unwrap_or(end);
            prop_assert_eq!(next_set(&words, from, end), set_from);
            let clear_from = (from..end).find(|&at| !is_set(&words, at)).unwrap_or(end);
            prop_assert_eq!(next_clear(&words, from, end), clear_from);
            let before = (from..end).rev().find(|&at| is_set(&words, at)).map_or(from, |at| at + 1);
            prop_assert_eq!(end_of_previous_set(&words, from, end), before);
            let hole = (from..end).rev().find(|&at| !is_set(&words, at)).map_or(from, |at| at + 1);
            prop_assert_eq!(end_of_previous_clear(&words, from, end), hole);
            let (mut one, mut none) = (words, words);
            set(&mut one, from);
            clear(&mut none, from, end);
            for at in 0..256 {
                prop_assert_eq!(is_set(&one, at), at == from || is_set(&words, at));
                prop_assert_eq!(is_set(&none, at), !(from..end).contains(&at) && is_set(&words, at));
            }
            prop_assert_eq!(take(&mut one, from), true);
            prop_assert_eq!(is_set(&one, from), false);
        }
    }

    #[test]
    fn clears_nothing_where_an_empty_range_lies_behind_the_words() {
        let mut words = [u64::MAX; 2];
        for (start, end) in [(128, 128), (129, 129), (7, 7), (300, 5)] {
            clear(&mut words, start, end);
        }
        assert_eq!(words, [u64::MAX; 2]);
    }
}
