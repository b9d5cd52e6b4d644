//! Table: values by their numbers, which are drawn in order and used once.
//!
//! Neighbours lie together in a chunk. A chunk goes when its last value goes, unless the next
//! number is in it: so one value that comes and goes again and again rarely takes memory.

use std::collections::BTreeMap;

/// Values in a chunk.
const CHUNK: u64 = 32;

pub(crate) struct Table<T> {
    chunks: BTreeMap<u64, Box<Chunk<T>>>,
    next: u64,
    len: usize,
}

struct Chunk<T> {
    values: [Option<T>; CHUNK as usize],
    /// A bit for each value.
    used: u32,
}

impl<T> Chunk<T> {
    fn new() -> Box<Chunk<T>> {
        Box::new(Chunk { values: [const { None }; CHUNK as usize], used: 0 })
    }
}

fn place(number: u64) -> (u64, usize) {
    (number / CHUNK, (number % CHUNK) as usize)
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Table<T> {
        Table { chunks: BTreeMap::new(), next: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a value, and returns its number.
    pub(crate) fn add(&mut self, value: T) -> u64 {
        let number = self.next;
        let (chunk, at) = place(number);
        let chunk = self.chunks.entry(chunk).or_insert_with(Chunk::new);
        chunk.values[at] = Some(value);
        chunk.used |= 1 << at;
        self.next += 1;
        self.len += 1;
        number
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let (of, at) = place(number);
        let chunk = self.chunks.get_mut(&of)?;
        let value = chunk.values[at].take()?;
        chunk.used &= !(1 << at);
        self.len -= 1;
        if chunk.used == 0 && of != place(self.next).0 {
            self.chunks.remove(&of);
        }
        Some(value)
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        let (chunk, at) = place(number);
        self.chunks.get(&chunk)?.values[at].as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (chunk, at) = place(number);
        self.chunks.get_mut(&chunk)?.values[at].as_mut()
    }

    /// The number of the first value from `number` on.
    pub(crate) fn first_from(&self, number: u64) -> Option<u64> {
        let (from, at) = place(number);
        self.chunks.range(from..).find_map(|(&of, chunk)| {
            let used = if of == from { chunk.used & u32::MAX << at } else { chunk.used };
            (used != 0).then(|| of * CHUNK + u64::from(used.trailing_zeros()))
        })
    }

    /// The values in the order of their numbers.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.chunks.values().flat_map(|chunk| chunk.values.iter().flatten())
    }

    /// As [`values`](Self::values).
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.values_mut().flat_map(|chunk| chunk.values.iter_mut().flatten())
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use crate::observe::wait::table::*;

    #[test]
    fn keeps_the_memory_of_values_that_there_are_and_not_of_those_that_were() {
        let mut table = Table::new();
        for number in 0..100_000 {
            assert_eq!(table.add(number), number);
        }
        for number in (0..100_000).filter(|number| ![1, 50_000, 99_999].contains(number)) {
            assert_eq!(table.remove(number), Some(number));
        }
        assert_eq!((table.len(), table.values().count(), table.chunks.len()), (3, 3, 3));
        for number in [1, 50_000, 99_999] {
            assert_eq!(table.remove(number), Some(number));
        }
        assert_eq!((table.len(), table.first_from(0), table.chunks.len()), (0, None, 0));
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_map(steps in prop::collection::vec((0_u64..200, 0_u8..3), 1..300)) {
            let (mut table, mut sorted) = (Table::new(), BTreeMap::new());
            for (number, kind) in steps {
                match kind {
                    0 => _ = sorted.insert(table.add(number), number),
                    1 => prop_assert_eq!(table.remove(number), sorted.remove(&number)),
                    _ => {
                        prop_assert_eq!(table.get_mut(number), sorted.get_mut(&number));
                        let first = sorted.range(number..).next().map(|(&number, _)| number);
                        prop_assert_eq!(table.first_from(number), first);
                    }
                }
                prop_assert!(table.values().eq(sorted.values()));
                prop_assert_eq!(table.len(), sorted.len());
            }
        }
    }
}
