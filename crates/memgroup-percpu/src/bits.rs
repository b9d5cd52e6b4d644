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

/// Calls `each` with the index of every word that `start..end` touches, and the mask of its bits within.
#[inline]
fn words(start: u32, end: u32, mut each: impl FnMut(usize, u64)) {
    if start >= end {
        return;
    }
    let (first, last) = (start / 64, (end - 1) / 64);
    for word in first..=last {
        let low = if word == first { u64::MAX << (start % 64) } else { u64::MAX };
        let high = if word == last { u64::MAX >> (63 - (end - 1) % 64) } else { u64::MAX };
        each(word as usize, low & high);
    }
}

pub(crate) fn set(bits: &mut [u64], start: u32, end: u32) {
    words(start, end, |word, mask| bits[word] |= mask);
}

pub(crate) fn clear(bits: &mut [u64], start: u32, end: u32) {
    words(start, end, |word, mask| bits[word] &= !mask);
}

/// How many bits of the range are set.
pub(crate) fn count(bits: &[u64], start: u32, end: u32) -> u32 {
    let mut sum = 0;
    words(start, end, |word, mask| sum += (bits[word] & mask).count_ones());
    sum
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

/// The end of the last set bit of `start..from`, or `start`: the bits between it and `from` are clear.
pub(crate) fn end_of_previous_set(bits: &[u64], start: u32, from: u32) -> u32 {
    end_of_previous(bits, 0, start, from)
}

/// The end of the last clear bit of `start..from`, or `start`: the bits between it and `from` are set.
pub(crate) fn end_of_previous_clear(bits: &[u64], start: u32, from: u32) -> u32 {
    end_of_previous(bits, u64::MAX, start, from)
}

/// Whether `word` has `length` set bits in a row, 1 to 64.
fn has_run(mut word: u64, length: u32) -> bool {
    let mut reached = 1;
    while reached < length {
        let step = reached.min(length - reached);
        word &= word >> step;
        reached += step;
    }
    word != 0
}

/// The clear runs of a few words: at the left edge, at the right edge, and the longest.
pub(crate) fn clear_runs(words: &[u64]) -> (u32, u32, u32) {
    let (mut left, mut run, mut longest) = (None, 0, 0);
    for &word in words {
        let free = !word;
        if free == u64::MAX {
            run += 64;
            continue;
        }
        run += free.trailing_ones();
        left.get_or_insert(run);
        longest = longest.max(run);
        while longest < 64 && has_run(free, longest + 1) {
            longest += 1;
        }
        run = free.leading_ones();
    }
    (left.unwrap_or(run), run, longest.max(run))
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    /// The clear runs, bit by bit.
    fn runs_bit_by_bit(words: &[u64]) -> (u32, u32, u32) {
        let bits: Vec<bool> = (0..words.len() as u32 * 64).map(|at| is_set(words, at)).collect();
        let runs: Vec<usize> = bits.split(|&set| set).map(<[bool]>::len).collect();
        let longest = runs.iter().copied().max().unwrap_or(0);
        (runs[0] as u32, runs[runs.len() - 1] as u32, longest as u32)
    }

    proptest! {
        #[test]
        fn runs_and_searches_agree_with_a_walk_bit_by_bit(
            words in proptest::array::uniform4(any::<(u64, u64, u64)>()), from in 0_u32..256, end in 0_u32..=256,
        ) {
            let words = words.map(|(a, b, c)| if c % 5 == 0 { 0 } else if c % 3 == 0 { a & b } else { a | b });
            prop_assert_eq!(clear_runs(&words), runs_bit_by_bit(&words));
            let end = end.max(from);
            let set_from = (from..end).find(|&at| is_set(&words, at)).unwrap_or(end);
            prop_assert_eq!(next_set(&words, from, end), set_from);
            let clear_from = (from..end).find(|&at| !is_set(&words, at)).unwrap_or(end);
            prop_assert_eq!(next_clear(&words, from, end), clear_from);
            let before = (from..end).rev().find(|&at| is_set(&words, at)).map_or(from, |at| at + 1);
            prop_assert_eq!(end_of_previous_set(&words, from, end), before);
            let hole = (from..end).rev().find(|&at| !is_set(&words, at)).map_or(from, |at| at + 1);
            prop_assert_eq!(end_of_previous_clear(&words, from, end), hole);
            let counted = (from..end).filter(|&at| is_set(&words, at)).count() as u32;
            prop_assert_eq!(count(&words, from, end), counted);
            let (mut all, mut none) = (words, words);
            set(&mut all, from, end);
            clear(&mut none, from, end);
            for at in 0..256 {
                let within = (from..end).contains(&at);
                prop_assert_eq!(is_set(&all, at), within || is_set(&words, at));
                prop_assert_eq!(is_set(&none, at), !within && is_set(&words, at));
            }
        }
    }
}
