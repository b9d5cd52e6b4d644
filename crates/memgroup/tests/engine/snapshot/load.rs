//! Snapshots while groups come and go, are charged, and count.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;

use memgroup::tuning::Tuning;
use memgroup::{Freshness, Group, GroupSnapshot, Hierarchy, Reach, Snapshot, stats};

use super::{hierarchy, hierarchy_of};

/// Checks that hold for every snapshot, also under load.
fn check(snapshot: &Snapshot) {
    let mut seen = HashSet::new();
    for (at, group) in snapshot.groups.iter().enumerate() {
        assert!(seen.insert(group.id), "{} is there twice", group.path);
        assert_eq!(group.parent.is_none(), at == 0, "{}", group.path);
        let Some(parent) = group.parent else { continue };
        assert!(parent < at, "{} stands before its parent", group.path);
        let parent = &snapshot.groups[parent];
        assert_eq!(group.depth, parent.depth + 1);
        let above = if parent.path == "/" { "" } else { &parent.path };
        assert_eq!(group.path, format!("{above}/{}", group.name));
        assert!(parent.online || !group.online, "{} is online below a group that is not", group.path);
        assert_eq!(group.online, group.dying.is_none());
        let rbytes =
            |group: &memgroup::GroupSnapshot| group.statistic(stats::io::RBYTES, Reach::Subtree).unwrap();
        assert!(rbytes(group) <= rbytes(parent), "{}", group.path);
    }
    for (at, group) in snapshot.groups.iter().enumerate() {
        let below = snapshot.groups[at + 1..].iter().take_while(|below| below.depth > group.depth).count();
        assert_eq!(below, group.descendants + group.dying_descendants, "{}", group.path);
    }
}

/// Has the others stop when it is dropped, by a failed assertion too: else their scope would wait
/// for ever.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn churn(h: &Hierarchy, worker: usize, stop: &AtomicBool) {
    let top = h.create(&format!("/{worker}")).unwrap();
    let io = h.io();
    let mut held = Vec::new();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let child = top.create(&format!("child-{}", round % 7)).unwrap();
        let grandchildren: Vec<_> = (0..3).map(|nth| child.create(&format!("{nth}")).unwrap()).collect();
        for group in &grandchildren {
            held.push(group.try_charge(100 + round % 1000).unwrap());
            io.add(group, stats::io::RBYTES, 1);
        }
        grandchildren.iter().for_each(|group| group.remove().unwrap());
        child.remove().unwrap();
        if round % 11 == 0 {
            held.clear();
        }
    }
}

#[test]
fn is_a_tree_under_load_and_adds_up_at_rest() {
    const SNAPSHOTS: usize = 300;
    let h = hierarchy();
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                threads.spawn({
                    let (h, stop) = (&h, &stop);
                    move || churn(h, worker, stop)
                })
            })
            .collect();
        let snapshots = threads.spawn(|| {
            let mut rbytes = 0;
            for _ in 0..SNAPSHOTS {
                let snapshot = h.snapshot();
                check(&snapshot);
                let now = snapshot.groups[0].statistic(stats::io::RBYTES, Reach::Subtree).unwrap();
                assert!(now >= rbytes, "a count ran backwards");
                rbytes = now;
            }
        });
        let ended = snapshots.join();
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        ended.unwrap();
    });
    let snapshot = h.snapshot();
    check(&snapshot);
    assert_eq!(snapshot.groups.len(), 4, "no group was kept by a snapshot");
    for (at, group) in snapshot.groups.iter().enumerate() {
        let below: u64 = snapshot.children(at).map(|child| child.usage_bytes).sum();
        assert!(group.usage_bytes >= below, "{}", group.path);
        assert_eq!(group.usage_exact_bytes, 0, "{}", group.path);
    }
}

fn rbytes(group: &GroupSnapshot, reach: Reach) -> i64 {
    group.statistic(stats::io::RBYTES, reach).unwrap()
}

/// Adds one at a time to some of `groups`, and reads it and all. Counts an addition in `added`
/// after it is made.
fn add_and_read(h: &Hierarchy, groups: &[Group], added: &AtomicI64, stop: &AtomicBool) {
    let (io, key) = (h.io(), stats::io::RBYTES);
    for step in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let group = &groups[step * 7919 % groups.len()];
        io.add(group, key, 1);
        // ORDERING: AcqRel; a thread that finds the count finds the additions.
        let own = added.fetch_add(1, Ordering::AcqRel) + 1;
        match step % 64 {
            0 => assert!(io.get(&h.root(), key, Reach::Subtree, Freshness::Fresh) >= own),
            1..9 => assert!(io.get(group, key, Reach::Local, Freshness::Fresh) > 0),
            _ => {}
        }
    }
}

/// Makes groups below `top`, adds one in each, and removes them, so that places are given away all
/// the time.
fn come_and_go(h: &Hierarchy, top: &Group, added: &AtomicI64, stop: &AtomicBool) {
    for step in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let group = top.create(&format!("{}", step % 50)).unwrap();
        h.io().add(&group, stats::io::RBYTES, 1);
        // ORDERING: AcqRel, as above.
        added.fetch_add(1, Ordering::AcqRel);
        group.remove().unwrap();
    }
}

/// Takes snapshots, each of which must have all additions that were counted before it, and in each
/// group those below it.
fn take_and_check(h: &Hierarchy, snapshots: usize, added: &AtomicI64) {
    for _ in 0..snapshots {
        // ORDERING: Acquire; pairs with the Release of the adding threads.
        let before = added.load(Ordering::Acquire);
        let snapshot = h.snapshot();
        // Each thread may have made an addition that it has not counted yet.
        let most = added.load(Ordering::Acquire) + ADDERS;
        let all = rbytes(&snapshot.groups[0], Reach::Subtree);
        assert!((before..=most).contains(&all), "{all} additions, not {before} to {most}");
        for (at, group) in snapshot.groups.iter().enumerate() {
            let below: i64 = snapshot.children(at).map(|child| rbytes(child, Reach::Subtree)).sum();
            let (local, subtree) = (rbytes(group, Reach::Local), rbytes(group, Reach::Subtree));
            assert!(subtree >= local + below, "{}: {subtree} is less than {local} and {below}", group.path);
        }
    }
}

/// Threads that count their additions in `statistics_add_up`.
const ADDERS: i64 = 3;

fn statistics_add_up(h: &Hierarchy) {
    const PARENTS: usize = 6;
    const CHILDREN: usize = 60;
    const SNAPSHOTS: usize = 25;
    let groups: Vec<Group> = (0..PARENTS)
        .flat_map(|parent| (0..CHILDREN).map(move |child| format!("/{parent}/{child}")))
        .map(|path| h.get_or_create(&path).unwrap())
        .collect();
    let top = h.create("/top").unwrap();
    let (added, stop) = (AtomicI64::new(0), AtomicBool::new(false));
    thread::scope(|threads| {
        let _stops = Stops(&stop);
        threads.spawn(|| add_and_read(h, &groups, &added, &stop));
        threads.spawn(|| add_and_read(h, &groups[groups.len() / 2..], &added, &stop));
        threads.spawn(|| come_and_go(h, &top, &added, &stop));
        let second = threads.spawn(|| take_and_check(h, SNAPSHOTS, &added));
        take_and_check(h, SNAPSHOTS, &added);
        second.join().unwrap();
    });
    let all = h.io().get(&h.root(), stats::io::RBYTES, Reach::Subtree, Freshness::Fresh);
    assert_eq!(all, added.into_inner(), "every addition is counted once");
}

/// A conservation oracle for flushes and copies in pieces. The tree has several pieces of marks
/// and of groups.
#[test]
fn statistics_add_up_while_threads_add_and_groups_go() {
    statistics_add_up(&hierarchy());
}

/// The same where each flush writes the values of all subsystems, and a copy is of one.
#[test]
fn statistics_of_one_tree_add_up_while_threads_add_and_groups_go() {
    statistics_add_up(&hierarchy_of(|config| config.separate_trees(false)));
}

#[test]
fn lists_a_whole_subtree_while_others_change() {
    let h = hierarchy();
    let still = h.create("/still").unwrap();
    for child in 0..300 {
        let charge = still.create(&format!("{child:03}")).unwrap().try_charge(1000 + child).unwrap();
        std::mem::forget(charge);
    }
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        let _stops = Stops(&stop);
        threads.spawn(|| churn(&h, 0, &stop));
        for _ in 0..50 {
            let snapshot = still.snapshot();
            assert_eq!((snapshot.groups.len(), snapshot.groups[0].descendants), (301, 300));
            let sum: u64 = snapshot.children(0).map(|child| child.usage_exact_bytes).sum();
            assert_eq!(snapshot.groups[0].usage_exact_bytes, sum);
        }
    });
}
