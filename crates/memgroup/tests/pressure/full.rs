//! `full`: a group is full while somebody in it is stalled and nobody in a scope of it gets on.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use memgroup::{Group, scope};

use crate::{MILLI, busy, full_us, hierarchy, some_us, us};

/// Changes of `full` over `act`, in microseconds.
fn full_over(group: &Group, act: impl FnOnce()) -> u64 {
    let before = full_us(group);
    act();
    full_us(group) - before
}

/// What passes while `act` runs is at most so much more than it says, because this thread may lose its processor in between: a reading
/// is taken around it.
fn runs_full(group: &Group) {
    let begin = std::time::Instant::now();
    let full = full_over(group, || busy(2 * MILLI));
    assert!(full >= 1990 && full <= us(begin.elapsed()) + 1, "{full} us");
}

fn runs_not_full(group: &Group) {
    let some = some_us(group);
    assert_eq!(full_over(group, || busy(2 * MILLI)), 0);
    assert!(some_us(group) >= some + 2000);
}

#[test]
fn a_thread_in_a_scope_of_the_group_or_below_keeps_it_from_being_full_and_one_elsewhere_does_not() {
    let hierarchy = hierarchy();
    let above = hierarchy.create("/above").unwrap();
    let (stalled, other) = (above.create("stalled").unwrap(), above.create("other").unwrap());
    let below = stalled.create("below").unwrap();
    let root = hierarchy.root();
    let steps = Barrier::new(2);
    thread::scope(|threads| {
        threads.spawn(|| {
            let _stall = stalled.stall();
            steps.wait();
            steps.wait();
        });
        steps.wait();
        [&stalled, &above, &root].into_iter().for_each(runs_full);
        {
            let _scope = scope::enter(&below);
            [&stalled, &above, &root].into_iter().for_each(runs_not_full);
            {
                let _inner = scope::enter(&other);
                runs_full(&stalled);
                [&above, &root].into_iter().for_each(runs_not_full);
            }
            [&stalled, &above, &root].into_iter().for_each(runs_not_full);
        }
        {
            let _scope = scope::enter(&above);
            runs_full(&stalled);
            [&above, &root].into_iter().for_each(runs_not_full);
        }
        [&stalled, &above, &root].into_iter().for_each(runs_full);
        steps.wait();
    });
    assert_eq!(full_over(&root, || busy(MILLI)), 0, "nothing is stalled");
}

#[test]
fn a_thread_that_is_stalled_itself_gets_on_nowhere_and_does_again_afterwards() {
    let hierarchy = hierarchy();
    let (group, other) = (hierarchy.create("/group").unwrap(), hierarchy.create("/other").unwrap());
    let steps = Barrier::new(2);
    thread::scope(|threads| {
        threads.spawn(|| {
            let _stall = group.stall();
            steps.wait();
            steps.wait();
        });
        steps.wait();
        let _scope = scope::enter(&group);
        runs_not_full(&group);
        let own = group.stall();
        runs_full(&group);
        drop(own);
        runs_not_full(&group);
        // Stalled for another group, it does not get on in its own.
        let elsewhere = other.stall();
        [&group, &other].into_iter().for_each(runs_full);
        drop(elsewhere);
        runs_not_full(&group);
        steps.wait();
    });
}

#[test]
fn a_thread_that_ends_in_a_scope_is_at_work_no_more() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let _stall = group.stall();
    let steps = Barrier::new(2);
    thread::scope(|threads| {
        let worker = threads.spawn(|| {
            std::mem::forget(scope::enter(&group));
            steps.wait();
            steps.wait();
        });
        steps.wait();
        runs_not_full(&group);
        steps.wait();
        worker.join().unwrap();
        runs_full(&group);
    });
}

#[test]
fn a_scope_that_was_forgotten_in_a_group_that_is_gone_is_nobodys_work() {
    let hierarchy = hierarchy();
    let parent = hierarchy.create("/parent").unwrap();
    let gone = parent.create("gone").unwrap();
    let place = gone.id();
    let steps = Barrier::new(2);
    thread::scope(|threads| {
        let gone = gone;
        threads.spawn({
            let gone = gone.clone();
            let steps = &steps;
            move || {
                std::mem::forget(scope::enter(&gone));
                drop(gone);
                steps.wait();
                steps.wait();
            }
        });
        steps.wait();
        gone.remove().unwrap();
        drop(gone);
        let new = parent.create("new").unwrap();
        assert_eq!(new.id(), place);
        let _stall = new.stall();
        [&new, &parent].into_iter().for_each(runs_full);
        steps.wait();
    });
}

#[test]
fn a_scope_left_in_disorder_is_no_work_in_either_group() {
    let hierarchy = hierarchy();
    let (a, b) = (hierarchy.create("/a").unwrap(), hierarchy.create("/b").unwrap());
    let steps = Barrier::new(2);
    thread::scope(|threads| {
        threads.spawn(|| {
            let _stall = a.stall();
            steps.wait();
            steps.wait();
        });
        steps.wait();
        let outer = scope::enter(&a);
        let inner = scope::enter(&b);
        drop(outer);
        runs_full(&a);
        drop(inner);
        steps.wait();
    });
}

/// Threads enter and leave scopes all the time; whenever they rest, the group is full exactly if none is inside.
#[test]
fn after_any_storm_of_scopes_a_stall_that_lasts_knows_who_is_at_work() {
    const THREADS: usize = 3;
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let below = group.create("below").unwrap();
    let (steps, over) = (Barrier::new(THREADS + 1), AtomicBool::new(false));
    let _stall = group.stall();
    thread::scope(|threads| {
        for number in 0..THREADS {
            let (steps, over, group, below) = (&steps, &over, &group, &below);
            threads.spawn(move || {
                for round in 0_usize.. {
                    steps.wait();
                    if over.load(Ordering::Acquire) {
                        break;
                    }
                    for turn in 0..200 {
                        let _outer = scope::enter(if turn % 2 == 0 { group } else { below });
                        let _inner = scope::enter(below);
                    }
                    // In round r the threads of the bits of r stay inside.
                    let stays = (round >> number & 1 == 1).then(|| scope::enter(below));
                    steps.wait();
                    steps.wait();
                    drop(stays);
                }
            });
        }
        for round in 0..64 {
            steps.wait();
            steps.wait();
            // The totals stand still or run, whoever looks.
            let (begin, before) = (std::time::Instant::now(), full_us(&group));
            busy(MILLI);
            let full = full_us(&group) - before;
            if round % (1 << THREADS) == 0 {
                assert!(
                    full >= 990 && full <= us(begin.elapsed()) + 1,
                    "round {round}: {full} us, and nobody is inside"
                );
            } else {
                assert_eq!(full, 0, "round {round}: somebody is inside");
            }
            steps.wait();
        }
        over.store(true, Ordering::Release);
        steps.wait();
    });
}
