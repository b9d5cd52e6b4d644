//! Reads: freshness, reach, and values of one moment.

use std::time::{Duration, Instant};

use memgroup::{Freshness, Reach, Stat, Subsystem};

use super::{BUILT, HELD, HITS, add_on, fixture, local, panic_of, subtree};

#[test]
fn reads_additions_of_each_slot_at_every_level() {
    for slots in [1, 2, 65, 512] {
        let (hierarchy, cache) = fixture(slots);
        let parent = hierarchy.create("/parent").unwrap();
        let leaf = parent.create("leaf").unwrap();
        let sibling = parent.create("sibling").unwrap();
        let mut sum = 0;
        for slot in 0..slots {
            add_on(slot, &cache, &leaf, HITS, slot as i64 + 1);
            sum += slot as i64 + 1;
            let level = [&leaf, &parent, &hierarchy.root()][slot % 3].clone();
            assert_eq!(subtree(&cache, &level, HITS), sum, "slot {slot} of {slots}, {level:?}");
        }
        assert_eq!((local(&cache, &leaf, HITS), local(&cache, &parent, HITS)), (sum, 0));
        assert_eq!((subtree(&cache, &sibling, HITS), local(&cache, &hierarchy.root(), HITS)), (0, 0));
    }
}

#[test]
fn reads_additions_of_all_slots_at_once() {
    for slots in [2, 65, 128, 512] {
        let (hierarchy, cache) = fixture(slots);
        let parent = hierarchy.create("/parent").unwrap();
        let leaves = ["a", "b"].map(|name| parent.create(name).unwrap());
        for slot in 0..slots {
            leaves.iter().for_each(|leaf| add_on(slot, &cache, leaf, HITS, slot as i64 + 1));
        }
        let sum = (slots * (slots + 1) / 2) as i64;
        assert_eq!(subtree(&cache, &hierarchy.root(), HITS), 2 * sum, "{slots} slots");
        leaves.iter().for_each(|leaf| assert_eq!(local(&cache, leaf, HITS), sum, "{slots} slots"));
    }
}

#[test]
fn flushes_the_most_statistics_to_every_level() {
    for count in [65, 130, 4000] {
        let (hierarchy, cache) = fixture(2);
        let stats: Vec<_> = (0..count).map(|n| Stat::count(format!("s{n}").leak())).collect();
        let wide = hierarchy.register(Subsystem { name: "wide", stats: stats.leak() }).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        let (kept, gone) = (parent.create("kept").unwrap(), parent.create("gone").unwrap());
        for (stat, key) in wide.keys().enumerate() {
            add_on(stat % 2, &wide, &kept, key, stat as i64 + 1);
            add_on(stat % 2, &wide, &gone, key, 2);
        }
        cache.add(&kept, HITS, 1);
        gone.remove().unwrap();
        drop(gone);
        let mut values = vec![0; count];
        for (level, own) in [(&kept, 1), (&parent, 3), (&hierarchy.root(), 3)] {
            wide.read(level, Reach::Subtree, Freshness::Fresh, &mut values);
            assert!((0..).zip(&values).all(|(n, &value)| value == n + own), "{count}: {level:?} {values:?}");
        }
    }
}

#[test]
fn adds_up_a_gauge_over_slots_with_both_signs() {
    let (hierarchy, cache) = fixture(4);
    let group = hierarchy.create("/group").unwrap();
    add_on(0, &cache, &group, HELD, 5000);
    add_on(3, &cache, &group, HELD, -4000);
    assert_eq!(subtree(&cache, &hierarchy.root(), HELD), 1000);
    add_on(1, &cache, &group, HELD, -1000);
    assert_eq!(subtree(&cache, &hierarchy.root(), HELD), 0);
    add_on(1, &cache, &group, HELD, -1);
    assert_eq!(subtree(&cache, &group, HELD), -1, "a level that fell too far is shown, not hidden");
}

#[test]
fn reads_times_in_microseconds_without_losing_a_part() {
    let (hierarchy, cache) = fixture(2);
    let group = hierarchy.create("/group").unwrap();
    for _ in 0..10 {
        cache.add(&group, BUILT, 250);
    }
    assert_eq!(subtree(&cache, &group, BUILT), 2, "ten quarters are two and a half");
    cache.add_time(&group, BUILT, Duration::from_millis(3));
    let mut values = [0; 3];
    cache.read(&group, Reach::Subtree, Freshness::Fresh, &mut values);
    assert_eq!(values, [0, 0, 3002]);
    assert_eq!(cache.text(&group, Freshness::Fresh), "hits 0\nheld 0\nbuild_usec 3002\n");
    let snapshot = hierarchy.snapshot();
    let times: Vec<_> = snapshot
        .groups
        .iter()
        .map(|row| [Reach::Local, Reach::Subtree].map(|reach| row.statistic(BUILT, reach).unwrap()))
        .collect();
    assert_eq!(times, [[0, 3002], [3002, 3002]]);
}

#[test]
fn reads_values_no_older_than_allowed() {
    let (hierarchy, cache) = fixture(2);
    let parent = hierarchy.create("/parent").unwrap();
    let leaf = parent.create("leaf").unwrap();
    let at = |group: &memgroup::Group, freshness| cache.get(group, HITS, Reach::Subtree, freshness);
    let (hour, moment) = (Freshness::AtMost(Duration::from_secs(3600)), Freshness::AtMost(Duration::ZERO));
    cache.add(&leaf, HITS, 1);
    assert_eq!(at(&leaf, Freshness::Flushed), 0, "no thread has flushed");
    assert_eq!(at(&leaf, hour), 1, "never flushed is older than any age");
    cache.add(&leaf, HITS, 1);
    assert_eq!(at(&leaf, hour), 1, "it was flushed within the hour");
    assert_eq!(at(&parent, Freshness::Flushed), 1, "a flush of the leaf arrives above too");
    assert_eq!(at(&parent, hour), 2, "but that was no flush of the parent");
    cache.add(&leaf, HITS, 1);
    assert_eq!(at(&leaf, hour), 2, "which was one of the leaf");
    let sibling = parent.create("sibling").unwrap();
    cache.add(&sibling, HITS, 1);
    assert_eq!(at(&sibling, hour), 0, "its parent was flushed within the hour");
    assert_eq!(at(&sibling, moment), 1);
    assert_eq!(at(&leaf, moment), 3);
}

#[test]
fn dates_a_flush_by_its_beginning() {
    let (hierarchy, cache) = fixture(2);
    let root = hierarchy.root();
    let groups: Vec<_> = (0..2000).map(|n| hierarchy.create(&format!("/g{n}")).unwrap()).collect();
    let at_most = |age| cache.get(&root, HITS, Reach::Subtree, Freshness::AtMost(age));
    let mut sum = at_most(Duration::ZERO);
    for _ in 0..20 {
        // Many changes, so that the flush lasts.
        groups.iter().for_each(|group| cache.add(group, HITS, 1));
        sum += 2000;
        let flushes = cache.flushes();
        let begun = std::thread::scope(|threads| {
            threads.spawn(|| cache.flush(&root));
            while cache.flushes() == flushes {
                std::hint::spin_loop();
            }
            Instant::now()
        });
        cache.add(&root, HITS, 1);
        sum += 1;
        assert_eq!(at_most(begun.elapsed()), sum, "the flush began before that, whenever it ended");
    }
}

#[test]
fn flushes_a_new_group_in_a_used_place() {
    let (hierarchy, cache) = fixture(1);
    let at = |group: &memgroup::Group| {
        cache.get(group, HITS, Reach::Subtree, Freshness::AtMost(Duration::from_secs(3600)))
    };
    let first = hierarchy.create("/first").unwrap();
    cache.add(&first, HITS, 1);
    assert_eq!(at(&first), 1);
    cache.add(&first, HITS, 1);
    assert_eq!(at(&first), 1, "it was flushed within the hour");
    let id = first.id().node();
    first.remove().unwrap();
    drop(first);
    let next = hierarchy.create("/next").unwrap();
    assert_eq!(next.id().node(), id);
    cache.add(&next, HITS, 5);
    assert_eq!(at(&next), 5, "that was another group");
}

#[test]
fn adds_up_a_subtree_with_its_released_groups() {
    let (hierarchy, cache) = fixture(3);
    let parent = hierarchy.create("/parent").unwrap();
    let leaves: Vec<_> = (0..20).map(|n| parent.create(&format!("leaf{n}")).unwrap()).collect();
    add_on(0, &cache, &parent, HITS, 7);
    for (n, leaf) in (0..).zip(&leaves) {
        add_on(n % 3, &cache, leaf, HITS, 1 << n);
    }
    for leaf in &leaves[10..] {
        leaf.remove().unwrap();
    }
    drop(leaves);
    let snapshot = hierarchy.snapshot();
    let rows: Vec<_> = snapshot.groups.iter().map(|row| row.subsystem(cache.name()).unwrap()).collect();
    assert_eq!(rows.len(), 12, "the root, the parent, ten leaves");
    let local = |at: usize| rows[at].local[HITS.index()];
    let subtree = |at: usize| rows[at].hierarchical[HITS.index()];
    assert_eq!((snapshot.groups[0].id, snapshot.groups[1].id), (hierarchy.root().id(), parent.id()));
    assert_eq!((local(0), subtree(0)), (0, 7 + (1 << 20) - 1));
    assert_eq!((local(1), subtree(1)), (7, 7 + (1 << 20) - 1));
    assert_eq!((2..12).map(subtree).sum::<i64>(), (1 << 10) - 1);
    assert!(rows[2..].iter().all(|row| row.local == row.hierarchical));
}

#[test]
fn reads_the_first_values_and_refuses_too_many() {
    let (hierarchy, cache) = fixture(1);
    let group = hierarchy.create("/group").unwrap();
    cache.add(&group, HITS, 4);
    cache.add(&group, HELD, 5);
    let mut two = [9; 2];
    cache.read(&group, Reach::Local, Freshness::Fresh, &mut two);
    assert_eq!(two, [4, 5]);
    cache.read(&group, Reach::Local, Freshness::Fresh, &mut []);
    let text = panic_of(|| cache.read(&group, Reach::Local, Freshness::Fresh, &mut [0; 4]));
    assert_eq!(text, "failed to read 4 values of cache: it has 3");
}

#[test]
fn writes_io_in_the_form_of_cgroup_v2() {
    let (hierarchy, _) = fixture(1);
    let group = hierarchy.create("/group").unwrap();
    hierarchy.io().add(&group, memgroup::stats::io::WBYTES, 512);
    hierarchy.io().add(&group, memgroup::stats::io::WIOS, 1);
    let text = hierarchy.io().text(&hierarchy.root(), Freshness::Fresh);
    assert_eq!(text, "all rbytes=0 wbytes=512 rios=0 wios=1 syncs=0\n");
    hierarchy.memory().add(&group, memgroup::stats::memory::FILE, 4096);
    let text = hierarchy.memory().text(&group, Freshness::Fresh);
    assert!(text.starts_with("file 4096\nschema 0\n"), "{text}");
}
