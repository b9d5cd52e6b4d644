//! Additive words, as one thread sees them.

use memgroup_sync::atomic::AtomicU64;

use super::{add, read, take, take_final};

fn is_dead(word: &AtomicU64) -> bool {
    !add(word, 0)
}

#[test]
fn buries_the_sum_of_all_additions() {
    let word = AtomicU64::new(0);
    for delta in [5, -12, 1 << 60, -(1 << 60)] {
        assert!(add(&word, delta));
    }
    assert_eq!(read(&word), -7);
    assert_eq!(take_final(&word), -7);
}

#[test]
fn refuses_additions_to_a_dead_word() {
    let word = AtomicU64::new(0);
    assert!(!is_dead(&word));
    assert_eq!(take_final(&word), 0);
    for delta in [1, -1, 1 << 40, -(1 << 40)] {
        assert!(!add(&word, delta), "{delta} is added in vain");
        assert_eq!((read(&word), is_dead(&word)), (0, true));
    }
    assert_eq!(take_final(&word), 0, "late additions are not taken out again");
}

#[test]
fn keeps_values_up_to_the_bounds_of_both_signs() {
    for value in [i64::MIN / 4 + 1, i64::MAX] {
        let word = AtomicU64::new(0);
        assert!(add(&word, value));
        assert_eq!((read(&word), is_dead(&word)), (value, false));
    }
}

#[test]
fn takes_the_additions_since_it_last_took() {
    let word = AtomicU64::new(0);
    for value in [0, 5, -12, i64::MAX, i64::MIN / 4 + 1] {
        assert!(add(&word, value));
        assert_eq!((take(&word), read(&word)), (value, 0));
    }
    assert!(add(&word, 1), "a word that was taken from lives");
}

#[test]
fn takes_nothing_from_a_dead_word_which_stays_dead() {
    let word = AtomicU64::new(7);
    assert_eq!(take_final(&word), 7);
    for delta in [0, 9, -9] {
        assert!(!add(&word, delta));
        assert_eq!((take(&word), is_dead(&word)), (0, true));
    }
}
