//! Reading: how fresh, what reaches where, all at one moment.

use std::time::{Duration, Instant};

use memgroup::{Freshness, Reach, Stat, Subsystem, TreeStats};

use crate::{BUILT, HELD, HITS, add_on, house, local, panic_of, subtree};

#[test]
fn what_is_added_on_any_slot_is_in_the_next_fresh_read_of_every_level() {
    for slots in [1, 2, 65, 512] {
        let (hierarchy, cache) = house(slots);
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
fn what_is_added_on_all_slots_is_in_one_fresh_read() {
    for slots in [2, 65, 128, 512] {
        let (hierarchy, cache) = house(slots);
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
fn as_many_statistics_as_there_may_be_arrive_at_every_level() {
    for count in [65, 130, 4000] {
        let (hierarchy, cache) = house(2);
        let stats: Vec<_> = (0..count).map(|n| Stat::count(format!("s{n}").leak())).collect();
        let wide = hierarchy.register(Subsystem { name: "wide", stats: stats.leak() }).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        let (kept, gone) = (parent.create("kept").unwrap(), parent.create("gone").unwrap());
        for stat in 0..count {
            add_on(stat % 2, &wide, &kept, stat, stat as i64 + 1);
            add_on(stat % 2, &wide, &gone, stat, 2);
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
fn a_gauge_that_rises_on_one_slot_and_falls_on_another_is_what_is_left() {
    let (hierarchy, cache) = house(4);
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
fn times_are_fed_in_nanoseconds_and_read_in_microseconds_and_no_part_of_one_is_lost() {
    let (hierarchy, cache) = house(2);
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
    let mut tree = TreeStats::new();
    cache.read_tree(&hierarchy.root(), Freshness::Fresh, &mut tree);
    let times: Vec<_> = tree.iter().map(|row| (row.local[BUILT], row.subtree[BUILT])).collect();
    assert_eq!(times, [(0, 3002), (3002, 3002)]);
}

#[test]
fn a_read_is_as_old_as_it_is_allowed_to_be_and_no_older() {
    let (hierarchy, cache) = house(2);
    let parent = hierarchy.create("/parent").unwrap();
    let leaf = parent.create("leaf").unwrap();
    let at = |group: &memgroup::Group, freshness| cache.get(group, HITS, Reach::Subtree, freshness);
    let (hour, moment) = (Freshness::AtMost(Duration::from_secs(3600)), Freshness::AtMost(Duration::ZERO));
    cache.add(&leaf, HITS, 1);
    assert_eq!(at(&leaf, Freshness::Flushed), 0, "nobody has flushed");
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
fn a_flush_is_as_old_as_its_beginning() {
    let (hierarchy, cache) = house(2);
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
fn a_tree_is_read_as_old_as_it_is_allowed_to_be_and_no_older() {
    let (hierarchy, cache) = house(2);
    let parent = hierarchy.create("/parent").unwrap();
    let leaf = parent.create("leaf").unwrap();
    let mut tree = TreeStats::new();
    let mut at_most = |age| {
        cache.add(&leaf, HITS, 1);
        cache.read_tree(&parent, Freshness::AtMost(age), &mut tree);
        tree.iter().map(|row| row.subtree[HITS]).collect::<Vec<_>>()
    };
    let (hour, moment) = (Duration::from_secs(3600), Duration::ZERO);
    assert_eq!(at_most(hour), [1, 1], "never flushed is older than any age");
    assert_eq!(at_most(hour), [1, 1], "it was flushed within the hour");
    assert_eq!(at_most(moment), [3, 3]);
}

#[test]
fn a_group_in_a_place_that_was_used_before_was_never_flushed() {
    let (hierarchy, cache) = house(1);
    let at = |group: &memgroup::Group| {
        cache.get(group, HITS, Reach::Subtree, Freshness::AtMost(Duration::from_secs(3600)))
    };
    let first = hierarchy.create("/first").unwrap();
    cache.add(&first, HITS, 1);
    assert_eq!(at(&first), 1);
    cache.add(&first, HITS, 1);
    assert_eq!(at(&first), 1, "it was flushed within the hour");
    let id = first.id();
    first.remove().unwrap();
    drop(first);
    let next = hierarchy.create("/next").unwrap();
    assert_eq!(next.id(), id);
    cache.add(&next, HITS, 5);
    assert_eq!(at(&next), 5, "that was another group");
}

#[test]
fn the_values_of_a_subtree_add_up_also_those_of_groups_that_were() {
    let (hierarchy, cache) = house(3);
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
    let mut tree = TreeStats::new();
    assert!(tree.is_empty());
    cache.read_tree(&hierarchy.root(), Freshness::Fresh, &mut tree);
    assert_eq!(tree.len(), 12, "the root, the parent, ten leaves");
    let rows: Vec<_> = tree.iter().collect();
    assert_eq!((rows[0].group, rows[1].group), (hierarchy.root().id(), parent.id()));
    assert_eq!((rows[0].local[HITS], rows[0].subtree[HITS]), (0, 7 + (1 << 20) - 1));
    assert_eq!((rows[1].local[HITS], rows[1].subtree[HITS]), (7, 7 + (1 << 20) - 1));
    let online: i64 = rows[2..].iter().map(|row| row.subtree[HITS]).sum();
    assert_eq!(online, (1 << 10) - 1);
    assert!(rows[2..].iter().all(|row| row.local == row.subtree));

    cache.add(&parent, HITS, 1);
    cache.read_tree(&parent, Freshness::Flushed, &mut tree);
    assert_eq!(tree.iter().next().unwrap().local[HITS], 7, "as the last flush left it");
    cache.read_tree(&parent, Freshness::Fresh, &mut tree);
    assert_eq!((tree.len(), tree.iter().next().unwrap().local[HITS]), (11, 8));
}

#[test]
fn a_part_of_the_values_can_be_read_and_more_than_there_are_cannot() {
    let (hierarchy, cache) = house(1);
    let group = hierarchy.create("/group").unwrap();
    cache.add(&group, HITS, 4);
    cache.add(&group, HELD, 5);
    let mut two = [9; 2];
    cache.read(&group, Reach::Local, Freshness::Fresh, &mut two);
    assert_eq!(two, [4, 5]);
    cache.read(&group, Reach::Local, Freshness::Fresh, &mut []);
    let text = panic_of(|| cache.read(&group, Reach::Local, Freshness::Fresh, &mut [0; 4]));
    assert_eq!(text, "failed to read 4 values of cache: it has 3");
    let text = panic_of(|| _ = cache.get(&group, 3, Reach::Local, Freshness::Fresh));
    assert_eq!(text, "cache has 3 statistics, none of number 3");
}

#[test]
fn the_text_of_io_has_the_form_and_the_keys_of_cgroup_v2() {
    let (hierarchy, _) = house(1);
    let group = hierarchy.create("/group").unwrap();
    hierarchy.io().add(&group, memgroup::stats::io::WBYTES, 512);
    hierarchy.io().add(&group, memgroup::stats::io::WIOS, 1);
    let text = hierarchy.io().text(&hierarchy.root(), Freshness::Fresh);
    assert_eq!(text, "all rbytes=0 wbytes=512 rios=0 wios=1 syncs=0\n");
    hierarchy.memory().add(&group, memgroup::stats::memory::FILE, 4096);
    let text = hierarchy.memory().text(&group, Freshness::Fresh);
    assert!(text.starts_with("file 4096\nschema 0\n"), "{text}");
}
