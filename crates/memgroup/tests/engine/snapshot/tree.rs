//! The groups of a snapshot, and their figures.

use std::time::{Duration, Instant};

use memgroup::tuning::Tuning;
use memgroup::{Config, GroupSnapshot, Hierarchy, Reach, Snapshot, Stat, Subsystem, stats};

use super::{cache, hierarchy, hierarchy_of, paths};

#[test]
fn lists_groups_behind_their_parents_by_name() {
    let h = hierarchy();
    for path in ["/b", "/a", "/a/z", "/a/y", "/b/x", "/a/y/w"] {
        h.create(path).unwrap();
    }
    let snapshot = h.snapshot();
    assert_eq!(paths(&snapshot), ["/", "/a", "/a/y", "/a/y/w", "/a/z", "/b", "/b/x"]);
    let parents: Vec<_> = snapshot.groups.iter().map(|group| group.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(2), Some(1), Some(0), Some(5)]);
    let descendants: Vec<_> = snapshot.groups.iter().map(|group| group.descendants).collect();
    assert_eq!(descendants, [6, 3, 1, 0, 0, 1, 0]);
    let names = |number| snapshot.children(number).map(|group| group.name.as_str()).collect::<Vec<_>>();
    assert_eq!((names(0), names(1), names(4)), (vec!["a", "b"], vec!["y", "z"], vec![]));
    assert_eq!(names(99), [""; 0]);
    let a = &snapshot.groups[1];
    assert_eq!((a.name.as_str(), a.depth, a.online, a.dying), ("a", 1, true, None));
    assert_eq!(h.group(a.id).unwrap().path(), "/a");
    assert_eq!(snapshot.group("/a/y/w").unwrap().depth, 3);
    assert!(snapshot.group("/c").is_none() && snapshot.groups[0].name.is_empty());
}

#[test]
fn begins_a_part_of_the_tree_with_its_top() {
    let h = hierarchy();
    for path in ["/a", "/a/b", "/a/b/c", "/a/d", "/e"] {
        h.create(path).unwrap();
    }
    let snapshot = h.lookup("/a/b").unwrap().snapshot();
    assert_eq!(paths(&snapshot), ["/a/b", "/a/b/c"]);
    let top = &snapshot.groups[0];
    assert_eq!((top.parent, top.depth, top.name.as_str(), top.descendants), (None, 2, "b", 1));
    let gone = h.lookup("/e").unwrap();
    gone.remove().unwrap();
    let snapshot = gone.snapshot();
    assert_eq!(paths(&snapshot), ["/e"]);
    assert!(!snapshot.groups[0].online && snapshot.groups[0].dying.is_some());
}

#[test]
fn lists_more_children_than_one_step_takes() {
    // As many as a step of the lock has room for, and one more and less.
    for children in [126, 127, 128, 129, 255, 256, 257, 1000] {
        let h = hierarchy();
        for parent in ["/a", "/b"] {
            h.create(parent).unwrap();
            for child in 0..children {
                h.create(&format!("{parent}/{child:04}")).unwrap();
            }
        }
        let snapshot = h.snapshot();
        let mut expected = vec!["/".to_owned()];
        for parent in ["/a", "/b"] {
            expected.push(parent.to_owned());
            expected.extend((0..children).map(|child| format!("{parent}/{child:04}")));
        }
        assert_eq!(paths(&snapshot), expected, "{children} children");
        assert_eq!(snapshot.groups[0].descendants, 2 + 2 * children);
    }
}

#[test]
fn copies_names_of_all_lengths_and_letters() {
    let h = hierarchy();
    let names = ["x".repeat(255), "ä".repeat(127), "a b".to_owned(), "日本".to_owned()];
    let mut sorted = names.to_vec();
    sorted.sort();
    for name in &names {
        h.root().create(name).unwrap();
    }
    let snapshot = h.snapshot();
    let found: Vec<_> = snapshot.children(0).map(|group| group.name.clone()).collect();
    assert_eq!(found, sorted);
}

#[test]
fn lists_a_removed_group_until_it_is_released() {
    let h = hierarchy();
    let parent = h.create("/parent").unwrap();
    let old = parent.create("child").unwrap();
    let below = old.create("below").unwrap();
    let charges = (old.try_charge(1000).unwrap(), below.try_charge(500).unwrap());
    below.remove().unwrap();
    old.remove().unwrap();
    let new = parent.create("child").unwrap();
    drop((old, below));

    let snapshot = h.snapshot();
    assert_eq!(paths(&snapshot), ["/", "/parent", "/parent/child", "/parent/child", "/parent/child/below"]);
    assert_eq!(snapshot.group("/parent/child").unwrap().id, new.id(), "the online one is found");
    let [old, below] = [&snapshot.groups[3], &snapshot.groups[4]];
    assert!(!old.online && !below.online && old.dying.unwrap().age <= below.dying.unwrap().age);
    assert_eq!((old.dying.unwrap().usage_bytes, below.dying.unwrap().usage_bytes), (1500, 500));
    assert_eq!(snapshot.dying().count(), 2);
    let numbers = |group: &GroupSnapshot| (group.descendants, group.dying_descendants);
    let all: Vec<_> = snapshot.groups.iter().map(numbers).collect();
    assert_eq!(all, [(2, 2), (1, 2), (0, 0), (0, 1), (0, 0)]);
    assert_eq!(snapshot.children(1).count(), 2);

    drop(charges);
    assert_eq!(paths(&h.snapshot()), ["/", "/parent", "/parent/child"]);
}

#[test]
fn keeps_no_group_alive() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    let charge = group.try_charge(1).unwrap();
    group.remove().unwrap();
    drop(group);
    let snapshot = h.snapshot();
    drop(charge);
    assert_eq!(snapshot.dying().count(), 1);
    assert_eq!(h.snapshot().groups.len(), 1, "it was released though a snapshot of it is there");
}

#[test]
fn has_the_figures_of_the_group() {
    let h = hierarchy();
    let parent = h.create("/parent").unwrap();
    let group = parent.create("group").unwrap();
    group.set_max(8192).unwrap();
    let charge = group.try_charge(5000).unwrap();
    group.try_charge(5000).unwrap_err();
    let forced = group.charge_forced(4000).unwrap();
    h.io().add(&group, stats::io::RBYTES, 77);
    let snapshot = h.snapshot();
    let (found, above) = (snapshot.group("/parent/group").unwrap(), snapshot.group("/parent").unwrap());
    assert_eq!((found.usage_bytes, found.usage_exact_bytes, found.peak_bytes), (9000, 9000, group.peak()));
    assert_eq!((found.limits.max_bytes, above.limits.max_bytes), (Some(8192), None));
    assert_eq!((found.refusals, above.refusals), (1, 0));
    assert_eq!((found.overdraft, found.overdraft.bytes), (group.overdraft(), 808));
    assert_eq!((found.events, found.events_local), (group.events(), group.events_local()));
    assert_eq!((above.events.max, above.events_local.max), (found.events.max, 0));
    assert!(found.events.max >= 2, "one charge refused, one forced");
    assert_eq!(found.stock, group.stock());
    for reach in [Reach::Local, Reach::Subtree] {
        assert_eq!(found.statistic(stats::io::RBYTES, reach), Some(77));
    }
    assert_eq!(above.statistic(stats::io::RBYTES, Reach::Local), Some(0));
    assert_eq!(above.statistic(stats::io::RBYTES, Reach::Subtree), Some(77));
    const UNREGISTERED: Subsystem = Subsystem { name: "io", stats: &[Stat::count("rbytes")] };
    assert_eq!(above.statistic(UNREGISTERED.key("rbytes"), Reach::Local), None);
    assert!(found.is_populated() && above.is_populated());
    drop((charge, forced));
}

#[test]
fn counts_prepaid_bytes_as_usage_but_not_as_exact_usage() {
    let h = hierarchy();
    let group = h.create("/a").unwrap().create("b").unwrap();
    let charge = group.try_charge(100).unwrap();
    let snapshot = h.snapshot();
    let prepaid = snapshot.group("/a/b").unwrap().stock.prepaid_bytes;
    assert!(prepaid > 0, "a batch was bought");
    for path in ["/", "/a", "/a/b"] {
        let group = snapshot.group(path).unwrap();
        assert_eq!((group.usage_exact_bytes, group.usage_bytes), (100, 100 + prepaid), "{path}");
        assert_eq!(group.usage_exact_bytes, h.lookup(path).unwrap().usage_exact(), "{path}");
    }
    drop(charge);
    let snapshot = h.snapshot();
    assert!(snapshot.groups.iter().all(|group| group.usage_exact_bytes == 0 && !group.is_populated()));
    assert!(snapshot.groups[0].usage_bytes > 0, "and prepaid bytes are still there");
}

#[test]
fn counts_an_unaccounted_root_for_itself() {
    let h = hierarchy_of(|config| config.account_root(false));
    let group = h.create("/a").unwrap();
    let charges = (group.try_charge(100).unwrap(), h.root().try_charge(7).unwrap());
    let snapshot = h.snapshot();
    let exact: Vec<_> = snapshot.groups.iter().map(|group| group.usage_exact_bytes).collect();
    assert_eq!(exact, [7, 100]);
    drop(charges);
}

#[test]
fn flushes_each_subsystem_once() {
    for separate in [true, false] {
        let h = hierarchy_of(|config| config.separate_trees(separate));
        let group = h.create("/a").unwrap();
        const CACHE: Subsystem =
            Subsystem { name: "cache", stats: &[Stat::count("hits"), Stat::time("spent_usec")] };
        let own = h.register(CACHE).unwrap();
        own.add(&group, CACHE.key("hits"), 3);
        own.add_time(&group, CACHE.key("spent_usec"), std::time::Duration::from_micros(12));
        let before: Vec<_> =
            h.subsystems().iter().map(|name| h.statistics(name).unwrap().flushes()).collect();
        let snapshot = h.snapshot();
        let after: Vec<_> = h.subsystems().iter().map(|name| h.statistics(name).unwrap().flushes()).collect();
        let flushes: Vec<_> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        assert_eq!(flushes, [1; 4], "separate trees: {separate}");
        let names: Vec<_> = snapshot.groups[0].subsystems().map(|subsystem| subsystem.name).collect();
        assert_eq!(names, ["memory", "cpu", "io", "cache"]);
        let cache = snapshot.groups[0].subsystem("cache").unwrap();
        assert_eq!((cache.local, cache.hierarchical), (&[0, 0][..], &[3, 12][..]), "in microseconds");
    }
}

/// A snapshot of all groups, which calls `rest`.
fn all_with(h: &Hierarchy, rest: impl FnMut()) -> Snapshot {
    let mut reader = h.root().snapshot_reader();
    let all: Vec<usize> = (0..reader.groups().len()).collect();
    reader.snapshot(&all, rest)
}

#[test]
fn has_the_groups_and_statistics_of_before_the_first_rest() {
    let h = hierarchy_of(|config| config.stock_cap_bytes(0));
    let groups: Vec<_> = (10..60).map(|number| h.create(&format!("/{number}")).unwrap()).collect();
    let [first, last] = [&groups[0], &groups[49]];
    let (mut charges, mut inner, mut shrinker) = (Vec::new(), None, None);
    let snapshot = all_with(&h, || {
        charges.extend([first, last].map(|group| group.try_charge(100).unwrap()));
        h.io().add(last, stats::io::RIOS, 1);
        if inner.is_none() {
            h.create("/new").unwrap();
            inner = Some(h.snapshot());
        } else {
            last.remove().unwrap();
            shrinker = Some(cache(first, 1, 1));
        }
    });
    assert_eq!(charges.len(), 4, "51 groups have two rests");
    let usage = |path: &str| snapshot.group(path).unwrap().usage_bytes;
    assert_eq!((usage("/10"), usage("/59")), (100, 200), "each is read between its rest and the next");
    let removed = snapshot.group("/59").unwrap();
    assert!(removed.online, "it was when it was found");
    assert_eq!(removed.statistic(stats::io::RIOS, Reach::Local), Some(0));
    assert!(snapshot.group("/new").is_none());
    assert_eq!(snapshot.shrinkers.len(), 1, "they are read at the end");
    assert!(inner.unwrap().group("/new").is_some());
}

#[test]
fn a_rest_that_panics_leaves_no_group_held() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    let rest = || panic!("a rest panics");
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| all_with(&h, rest))).unwrap_err();
    group.remove().unwrap();
    drop(group);
    assert_eq!(paths(&h.snapshot()), ["/"]);
}

#[test]
fn contains_the_reports_of_shrinkers() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    let plans = cache(&group, 3, 100_000);
    let snapshot = h.snapshot();
    assert_eq!(snapshot.shrinkers.len(), 1);
    assert_eq!((snapshot.shrinkers[0].name.as_str(), snapshot.shrinkers[0].scans), ("plans", 0));
    drop(plans);
}

#[test]
fn has_nothing_of_an_earlier_hierarchy() {
    let config = || Config::new().groups_max(33);
    let before = Hierarchy::new(config()).unwrap();
    let group = before.create("/a").unwrap();
    const OLD: Subsystem = Subsystem { name: "old", stats: &[Stat::count("n")] };
    before.register(OLD).unwrap().add(&group, OLD.key("n"), 1);
    before.io().add(&group, stats::io::RIOS, 9);
    drop((before, group));
    let snapshot = Hierarchy::new(config()).unwrap().snapshot();
    assert_eq!(paths(&snapshot), ["/"]);
    assert_eq!(snapshot.groups[0].subsystems().count(), 3);
    assert_eq!(snapshot.groups[0].statistic(stats::io::RIOS, Reach::Subtree), Some(0));
}

#[test]
fn counts_waiters_in_the_group_and_above() {
    let h = hierarchy();
    let parent = h.create("/parent").unwrap();
    let (one, other) = (parent.create("one").unwrap(), parent.create("other").unwrap());
    parent.set_max(1000).unwrap();
    let held = other.try_charge(1000).unwrap();
    std::thread::scope(|threads| {
        let deadline = Instant::now() + Duration::from_secs(60);
        for bytes in [100, 200] {
            let one = &one;
            threads.spawn(move || drop(one.charge_until(bytes, deadline)));
        }
        while h.root().waiters().now < 2 {
            assert!(Instant::now() < deadline, "they never waited");
            std::thread::yield_now();
        }
        let snapshot = h.snapshot();
        for (path, now, bytes) in
            [("/", 2, 300), ("/parent", 2, 300), ("/parent/one", 2, 300), ("/parent/other", 0, 0)]
        {
            let waiters = snapshot.group(path).unwrap().waiters;
            assert_eq!((waiters.now, waiters.bytes), (now, bytes), "{path}");
            assert_eq!(waiters.longest > Duration::ZERO, now > 0, "{path}");
        }
        drop(held);
    });
    assert_eq!(h.snapshot().groups[0].waiters.now, 0);
}

#[test]
fn contains_debts_and_measured_limits() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    let held = group.try_charge(3000).unwrap();
    group.set_max(4096).unwrap();
    group.set_enforced(false);
    let over = group.try_charge(5000).unwrap();
    group.remove().unwrap();
    let snapshot = h.snapshot();
    let found = snapshot.group("/a").unwrap();
    assert_eq!(found.dying.unwrap().usage_bytes, 8000);
    assert_eq!((found.over_bytes_max, found.events_local.would_refuse), (3904, 1));
    assert_eq!(found.owed_bytes, group.owed());
    drop((held, over));
}

#[test]
fn a_reader_reads_chosen_groups_as_the_whole_snapshot_has_them() {
    let h = hierarchy();
    let mut charges = Vec::new();
    for (path, bytes) in [("/a", 1), ("/a/b", 2), ("/a/b/c", 4), ("/a/d", 8), ("/e", 16), ("/e/f", 32)] {
        let group = h.create(path).unwrap();
        h.io().add(&group, memgroup::stats::io::RIOS, bytes as i64);
        charges.push(group.try_charge(bytes).unwrap());
    }
    let gone = h.create("/a/gone").unwrap();
    charges.push(gone.try_charge(64).unwrap());
    gone.remove().unwrap();
    let whole = h.snapshot();
    let mut reader = h.root().snapshot_reader();
    assert_eq!(reader.groups().len(), whole.groups.len());
    for (at, (group, read)) in reader.groups().zip(&whole.groups).enumerate() {
        assert_eq!(
            (group.id(), reader.parent(at), reader.is_online(at)),
            (read.id, read.parent, read.online)
        );
    }
    // Every choice of them.
    for choice in 0_u32..1 << whole.groups.len() {
        let positions: Vec<usize> = (0..whole.groups.len()).filter(|at| choice >> at & 1 == 1).collect();
        let snapshot = reader.snapshot(&positions, || ());
        assert_eq!(snapshot.left_out, whole.groups.len() - positions.len());
        assert_eq!(snapshot.groups.len(), positions.len());
        for (group, at) in snapshot.groups.iter().zip(&positions) {
            let other = &whole.groups[*at];
            let parent = other.parent.and_then(|above| positions.iter().position(|&one| one == above));
            assert_eq!(
                (&group.path, &group.name, group.id, group.parent),
                (&other.path, &other.name, other.id, parent)
            );
            let figures = |group: &memgroup::GroupSnapshot| {
                let below = (group.descendants, group.dying_descendants);
                let rios = group.statistic(memgroup::stats::io::RIOS, memgroup::Reach::Subtree);
                (
                    below,
                    group.usage_bytes,
                    group.usage_exact_bytes,
                    group.dying.map(|dead| dead.usage_bytes),
                    rios,
                )
            };
            assert_eq!(figures(group), figures(other), "{}", group.path);
        }
        for (number, &at) in positions.iter().enumerate() {
            let children: Vec<_> = snapshot.children(number).map(|child| child.path.clone()).collect();
            let chosen = |child: &&memgroup::GroupSnapshot| snapshot.group(&child.path).is_some();
            let expected: Vec<_> =
                whole.children(at).filter(chosen).map(|child| child.path.clone()).collect();
            assert_eq!(children, expected);
        }
    }
}

#[test]
fn a_reader_counts_the_waiters_of_groups_that_are_left_out() {
    let h = hierarchy();
    let (above, below) = (h.create("/a").unwrap(), h.create("/a/b").unwrap());
    below.set_max(10).unwrap();
    let held = below.try_charge(10).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| below.charge_until(7, memgroup::Deadline::NEVER).map(drop));
        while above.waiters().now == 0 {
            std::thread::yield_now();
        }
        let read = h.root().snapshot_reader().read(&[1], || ());
        assert_eq!((read[0].path.as_str(), read[0].parent), ("/a", None));
        assert_eq!((read[0].waiters.now, read[0].waiters.bytes), (1, 7));
        drop(held);
        waits.join().unwrap().unwrap();
    });
}
