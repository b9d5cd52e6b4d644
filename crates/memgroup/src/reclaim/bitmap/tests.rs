//! Tests of summary bitmaps.

use crate::reclaim::bitmap::*;

fn bitmap(numbers: &[u32]) -> SummaryBitmap<u32> {
    let bitmap = SummaryBitmap::new();
    for &number in numbers {
        bitmap.extend(number, || 0);
    }
    bitmap
}

fn marked(bitmap: &'static SummaryBitmap<u32>, class: usize, from: u32) -> Vec<u32> {
    let mut found = Vec::new();
    bitmap.each_marked(class, from..u32::MAX, |number, _| {
        found.push(number);
        true
    });
    found
}

#[test]
fn gives_every_number_a_position_of_its_own() {
    let mut next = (0, 0);
    for number in 0..10_000 {
        let position = Position::of(number);
        assert_eq!((position.chunk, position.index), next, "number {number}");
        let is_last = position.index + 1 == (FIRST as usize) << position.chunk;
        next = if is_last { (position.chunk + 1, 0) } else { (position.chunk, position.index + 1) };
    }
    assert_eq!(Position::of(NUMBERS - 1).chunk, CHUNKS - 1);
    assert_eq!(Position::of(NUMBERS - 1).index, (FIRST as usize) * (1 << (CHUNKS - 1)) - 1);
}

#[test]
fn finds_the_marks_that_a_set_has() {
    let mut state = 1u64;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32 % below
    };
    for below in [8, 100, 3_000, 200_000] {
        let bitmap: &'static SummaryBitmap<u32> = memgroup_sync::keep(Box::new(SummaryBitmap::new()));
        let mut sets = [const { std::collections::BTreeSet::new() }; CLASSES];
        for step in 0..4_000 {
            let (number, class) = (random(below), random(CLASSES as u32) as usize);
            bitmap.extend(number, || number);
            if random(3) > 0 {
                bitmap.mark(number, class);
                sets[class].insert(number);
            } else if sets[class].remove(&number) {
                let expected = if sets[class].is_empty() { Unmarked::NoneLeft } else { Unmarked::OthersLeft };
                assert_eq!(bitmap.unmark(number, class), expected);
            }
            if step % 50 == 0 {
                let from = random(below);
                assert_eq!(
                    marked(bitmap, class, from),
                    sets[class].range(from..).copied().collect::<Vec<_>>()
                );
                // As a walk does that stops at an item and comes back for the next one.
                let first = |from| {
                    let mut found = None;
                    bitmap.each_marked(class, from..u32::MAX, |number, _| {
                        found = Some(number);
                        false
                    });
                    found
                };
                let one_by_one = std::iter::successors(first(from), |&number| first(number + 1));
                assert!(one_by_one.eq(sets[class].range(from..).copied()));
                assert_eq!(bitmap.is_any(class), !sets[class].is_empty());
            }
        }
    }
}

#[test]
fn keeps_the_address_of_items_when_it_grows() {
    let bitmap = bitmap(&[0]);
    let first = std::ptr::from_ref(bitmap.get(0).unwrap());
    for number in (0..100_000).step_by(1000) {
        bitmap.extend(number, || number);
    }
    assert!(std::ptr::eq(first, bitmap.get(0).unwrap()));
    assert!(bitmap.get(99_000).is_some() && bitmap.get(500_000).is_none());
}
