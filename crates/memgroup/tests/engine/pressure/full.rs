//! `full`: a group is full while a thread in it is stalled and none in a scope of it is at work.

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use memgroup::{Group, scope};

use super::{MILLI, busy, full_us, hierarchy, some_us, us};

/// Another thread is stalled in `group` while `act` runs.
fn while_stalled(group: &Group, act: impl FnOnce()) {
    thread::scope(|threads| {
        // Dropped with this closure, however it ends.
        let (_held, hold) = mpsc::channel::<()>();
        let (stalled, is_stalled) = mpsc::channel();
        threads.spawn(move || {
            let _stall = group.stall();
            stalled.send(()).unwrap();
            let _ = hold.recv();
        });
        is_stalled.recv().unwrap();
        act();
    });
}

/// By how much `full` grew over `act`, in microseconds, and how long that took. A read looks for
/// threads at work, so only `act` makes changes in between.
fn full_over(group: &Group, act: impl FnOnce()) -> (u64, u64) {
    let begin = Instant::now();
    let before = full_us(group);
    act();
    let full = full_us(group) - before;
    (full, us(begin.elapsed()) + 1)
}

fn runs_full(group: &Group) {
    let (full, elapsed) = full_over(group, || busy(2 * MILLI));
    assert!((1990..=elapsed).contains(&full), "{full} of {elapsed} us");
}

fn runs_not_full(group: &Group) {
    let some = some_us(group);
    assert_eq!(full_over(group, || busy(2 * MILLI)).0, 0);
    assert!(some_us(group) >= some + 2000);
}

#[test]
fn is_not_full_while_a_thread_is_in_a_scope_there_or_below() {
    let hierarchy = hierarchy();
    let above = hierarchy.create("/above").unwrap();
    let (stalled, other) = (above.create("stalled").unwrap(), above.create("other").unwrap());
    let below = stalled.create("below").unwrap();
    let root = hierarchy.root();
    while_stalled(&stalled, || {
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
            let _left = scope::leave();
            [&stalled, &above, &root].into_iter().for_each(runs_full);
        }
        {
            let _scope = scope::enter(&above);
            runs_full(&stalled);
            [&above, &root].into_iter().for_each(runs_not_full);
        }
        [&stalled, &above, &root].into_iter().for_each(runs_full);
    });
    assert_eq!(full_over(&root, || busy(MILLI)).0, 0, "nothing is stalled");
}

#[test]
fn is_at_work_in_no_group_while_it_is_stalled() {
    let hierarchy = hierarchy();
    let (group, other) = (hierarchy.create("/group").unwrap(), hierarchy.create("/other").unwrap());
    while_stalled(&group, || {
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
    });
}

/// The effect of each change on the group in which another thread is stalled, without a read:
/// `before`, then 3 ms, then `after`.
fn assert_change<G>(group: &Group, before: impl FnOnce() -> G, is_full: bool, after: impl FnOnce(G)) {
    let (full, elapsed) = full_over(group, || {
        let held = before();
        busy(3 * MILLI);
        after(held);
    });
    if is_full {
        assert!((2990..=elapsed).contains(&full), "{full} of {elapsed} us");
    } else {
        assert!(full + 2990 <= elapsed, "{full} of {elapsed} us");
    }
}

#[test]
fn counts_every_change_from_its_moment_without_a_read() {
    let hierarchy = hierarchy();
    let (group, other) = (hierarchy.create("/group").unwrap(), hierarchy.create("/other").unwrap());
    let below = group.create("below").unwrap();
    while_stalled(&group, || {
        for level in [&group, &hierarchy.root()] {
            assert_change(level, || scope::enter(&below), false, drop);
            let _scope = scope::enter(&below);
            assert_change(level, || group.stall(), true, drop);
            assert_change(level, || other.stall(), true, drop);
        }
        let _scope = scope::enter(&below);
        assert_change(&group, || scope::enter(&other), true, drop);
        for elsewhere in [&group, &other] {
            let stalled = elsewhere.stall();
            // At work again in the middle.
            assert_change(&group, || drop(stalled), false, |()| ());
        }
    });
}

#[test]
fn a_thread_that_ends_in_a_scope_is_at_work_no_more() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let _stall = group.stall();
    thread::scope(|threads| {
        let (held, hold) = mpsc::channel::<()>();
        let (entered, has_entered) = mpsc::channel();
        let group = &group;
        let worker = threads.spawn(move || {
            std::mem::forget(scope::enter(group));
            entered.send(()).unwrap();
            let _ = hold.recv();
        });
        has_entered.recv().unwrap();
        runs_not_full(group);
        let end = || {
            drop(held);
            worker.join().unwrap();
        };
        assert_change(group, end, true, |()| ());
    });
}

/// Meets another thread when it is dropped, also by a panic.
struct MeetsAtItsEnd<'a>(&'a Barrier);

impl Drop for MeetsAtItsEnd<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

#[test]
fn ignores_a_scope_forgotten_in_a_released_group() {
    let hierarchy = hierarchy();
    let parent = hierarchy.create("/parent").unwrap();
    let gone = parent.create("gone").unwrap();
    let place = gone.id().node();
    // The thread allocates nothing while the group is in force: a charging allocator would keep it.
    let (entered, ends) = (&Barrier::new(2), &Barrier::new(2));
    thread::scope(|threads| {
        let handle = gone.clone();
        threads.spawn(move || {
            std::mem::forget(scope::enter(&handle));
            drop(handle);
            entered.wait();
            ends.wait();
        });
        entered.wait();
        let _end = MeetsAtItsEnd(ends);
        gone.remove().unwrap();
        drop(gone);
        let new = parent.create("new").unwrap();
        assert_eq!(new.id().node(), place);
        let _stall = new.stall();
        [&new, &parent].into_iter().for_each(runs_full);
    });
}

#[test]
fn scopes_that_end_in_disorder_are_no_work_in_either_group() {
    let hierarchy = hierarchy();
    let (a, b) = (hierarchy.create("/a").unwrap(), hierarchy.create("/b").unwrap());
    while_stalled(&b, || {
        let outer = scope::enter(&a);
        let inner = scope::enter(&b);
        runs_not_full(&b);
        drop(outer);
        runs_full(&b);
        drop(inner);
    });
}

/// Threads enter and leave scopes all the time; whenever they rest, the group is full exactly if
/// none is inside.
#[test]
fn knows_the_threads_at_work_after_a_storm_of_scopes() {
    const THREADS: usize = 3;
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let below = group.create("below").unwrap();
    let _stall = group.stall();
    thread::scope(|threads| {
        let (group, below) = (&group, &below);
        let (rests, rest) = mpsc::channel();
        let goes: Vec<_> = (0..THREADS)
            .map(|_| {
                let (go, goes) = mpsc::channel::<bool>();
                let rests = rests.clone();
                threads.spawn(move || {
                    // Whether it stays inside after this storm; the end of the channel is the end.
                    while let Ok(stays) = goes.recv() {
                        for turn in 0..200 {
                            let _outer = scope::enter(if turn % 2 == 0 { group } else { below });
                            let _inner = scope::enter(below);
                        }
                        let stays = stays.then(|| scope::enter(below));
                        rests.send(()).unwrap();
                        let _ = goes.recv();
                        drop(stays);
                    }
                });
                go
            })
            .collect();
        for round in 0..64 {
            let tell_all = |of: &dyn Fn(usize) -> bool| {
                goes.iter().enumerate().for_each(|(number, go)| go.send(of(number)).unwrap());
            };
            tell_all(&|number| round >> number & 1 == 1);
            (0..THREADS).for_each(|_| rest.recv_timeout(Duration::from_secs(60)).unwrap());
            if round % (1 << THREADS) == 0 {
                let (full, elapsed) = full_over(group, || busy(MILLI));
                assert!((990..=elapsed).contains(&full), "round {round}: {full} us, and no thread is inside");
            } else {
                let (full, _) = full_over(group, || busy(MILLI));
                assert_eq!(full, 0, "round {round}: a thread is inside");
            }
            tell_all(&|_| true);
        }
    });
}

#[test]
fn counts_each_stalled_task_and_no_thread() {
    let hierarchy = hierarchy();
    let (group, other) = (hierarchy.create("/group").unwrap(), hierarchy.create("/other").unwrap());
    let tasks = [group.stall_task(), group.stall_task()];
    runs_full(&group);
    {
        let _scope = scope::enter(&group);
        runs_not_full(&group);
        let _other = scope::enter(&other);
        runs_full(&group);
    }
    let [first, second] = tasks;
    drop(first);
    runs_full(&group);
    thread::spawn(move || drop(second)).join().unwrap();
    let some = some_us(&group);
    busy(2 * MILLI);
    assert_eq!((some_us(&group), full_us(&other)), (some, 0));
}
