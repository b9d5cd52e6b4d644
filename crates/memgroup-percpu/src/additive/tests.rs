//! Additive words, as one thread sees them.

use memgroup_sync::atomic::AtomicU64;

use super::{add, bury, is_dead, read, take};

#[test]
fn what_is_buried_is_what_was_added() {
    let word = AtomicU64::new(0);
    for delta in [5, -12, 1 << 60, -(1 << 60)] {
        assert!(add(&word, delta));
    }
    assert_eq!(read(&word), -7);
    assert_eq!(bury(&word), -7);
}

#[test]
fn a_dead_word_refuses_additions_and_holds_nothing() {
    let word = AtomicU64::new(0);
    assert!(!is_dead(&word));
    assert_eq!(bury(&word), 0);
    for delta in [1, -1, 1 << 40, -(1 << 40)] {
        assert!(!add(&word, delta), "{delta} is added in vain");
        assert_eq!((read(&word), is_dead(&word)), (0, true));
    }
    assert_eq!(bury(&word), 0, "what came too late is not taken out again");
}

#[test]
fn values_of_both_signs_live_as_far_as_they_may() {
    for value in [i64::MIN / 4 + 1, i64::MAX] {
        let word = AtomicU64::new(0);
        assert!(add(&word, value));
        assert_eq!((read(&word), is_dead(&word)), (value, false));
    }
}

#[test]
fn what_is_taken_is_what_was_added_since_it_was_taken() {
    let word = AtomicU64::new(0);
    for value in [0, 5, -12, i64::MAX, i64::MIN / 4 + 1] {
        assert!(add(&word, value));
        assert_eq!((take(&word), read(&word)), (value, 0));
    }
    assert!(add(&word, 1), "a word that was taken from lives");
}

#[test]
fn nothing_is_taken_from_a_dead_word_and_it_stays_dead() {
    let word = AtomicU64::new(7);
    assert_eq!(bury(&word), 7);
    for delta in [0, 9, -9] {
        assert!(!add(&word, delta));
        assert_eq!((take(&word), is_dead(&word)), (0, true));
    }
}
