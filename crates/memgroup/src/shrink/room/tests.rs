//! Tests of rooms.

use super::*;

fn room(numbers: &[u32]) -> Room<u32> {
    let room = Room::new();
    for &number in numbers {
        room.extend(number, || 0);
    }
    room
}

fn marked(room: &'static Room<u32>, class: usize, from: u32) -> Vec<u32> {
    let mut found = Vec::new();
    room.each_marked(class, from..u32::MAX, |number, _| {
        found.push(number);
        true
    });
    found
}

#[test]
fn every_number_has_a_place_of_its_own() {
    let mut next = (0, 0);
    for number in 0..10_000 {
        let place = Place::of(number);
        assert_eq!((place.chunk, place.index), next, "number {number}");
        let is_last = place.index + 1 == (FIRST as usize) << place.chunk;
        next = if is_last { (place.chunk + 1, 0) } else { (place.chunk, place.index + 1) };
    }
    assert_eq!(Place::of(NUMBERS - 1).chunk, CHUNKS - 1);
    assert_eq!(Place::of(NUMBERS - 1).index, (FIRST as usize) * (1 << (CHUNKS - 1)) - 1);
}

#[test]
fn marks_of_random_numbers_are_those_of_a_set() {
    let mut state = 1u64;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32 % below
    };
    for below in [8, 100, 3_000, 200_000] {
        let room: &'static Room<u32> = memgroup_sync::keep(Box::new(Room::new()));
        let mut sets = [const { std::collections::BTreeSet::new() }; CLASSES];
        for step in 0..4_000 {
            let (number, class) = (random(below), random(CLASSES as u32) as usize);
            room.extend(number, || number);
            if random(3) > 0 {
                room.mark(number, class);
                sets[class].insert(number);
            } else if sets[class].remove(&number) {
                let expected =
                    if sets[class].is_empty() { Unmarked::LastOfRoom } else { Unmarked::OthersLeft };
                assert_eq!(room.unmark(number, class), expected);
            }
            if step % 50 == 0 {
                let from = random(below);
                assert_eq!(marked(room, class, from), sets[class].range(from..).copied().collect::<Vec<_>>());
                assert_eq!(room.is_any(class), !sets[class].is_empty());
            }
        }
    }
}

#[test]
fn items_keep_their_address_when_the_room_grows() {
    let room = room(&[0]);
    let first = std::ptr::from_ref(room.get(0).unwrap());
    for number in (0..100_000).step_by(1000) {
        room.extend(number, || number);
    }
    assert!(std::ptr::eq(first, room.get(0).unwrap()));
    assert!(room.get(99_000).is_some() && room.get(500_000).is_none());
}
