//! Registration of subsystems: early, late, twice, too many, invalid.

use std::time::Duration;

use memgroup::tuning::Tuning;
use memgroup::{
    Config, Freshness, Hierarchy, Maintenance, Reach, SUBSYSTEMS_MAX, SlotSource, Stat, Subsystem, stats,
};

use super::{CACHE, HELD, HITS, add_on, fixture, nth, panic_of, subtree};

const THINGS: &[Stat] = &[Stat::count("things")];
const WIDE: Subsystem =
    Subsystem { name: "wide", stats: &[Stat::count("x"), Stat::count("y"), Stat::gauge("z")] };

fn one(name: &'static str) -> Subsystem {
    Subsystem { name, stats: THINGS }
}

#[test]
fn registers_a_late_subsystem_in_every_group() {
    let (hierarchy, cache) = fixture(2);
    let old: Vec<_> = (0..200).map(|n| hierarchy.create(&format!("/old{n}")).unwrap()).collect();
    cache.add(&old[0], HITS, 1);
    old[199].remove().unwrap();
    let late = hierarchy.register(one("late")).unwrap();
    let new: Vec<_> = (0..200).map(|n| old[n % 199].create(&format!("new{n}")).unwrap()).collect();
    for (n, group) in old.iter().chain(&new).enumerate() {
        add_on(n % 2, &late, group, nth(&late, 0), 1);
    }
    assert_eq!(subtree(&late, &hierarchy.root(), nth(&late, 0)), 400);
    assert_eq!(subtree(&late, &old[0], nth(&late, 0)), 3, "its own, new0's and new199's");
    assert_eq!(subtree(&cache, &hierarchy.root(), HITS), 1);
    drop((old, new));
    assert_eq!(subtree(&late, &hierarchy.root(), nth(&late, 0)), 400);
}

#[test]
fn finds_the_same_subsystem_and_refuses_another_definition() {
    let (hierarchy, cache) = fixture(1);
    let again = hierarchy.register(CACHE).unwrap();
    again.add(&hierarchy.root(), HITS, 2);
    assert_eq!(subtree(&cache, &hierarchy.root(), HITS), 2);
    assert_eq!(hierarchy.statistics("cache").unwrap().stats(), CACHE.stats);
    assert_eq!(hierarchy.subsystems(), ["memory", "cpu", "io", "cache"]);
    assert!(hierarchy.statistics("cash").is_none());
    let error = hierarchy.register(one("cache")).unwrap_err().to_string();
    assert_eq!(
        error,
        "failed to register the subsystem \"cache\": a subsystem of this name has other statistics"
    );
    let error = hierarchy.register(one("memory")).unwrap_err().to_string();
    assert!(error.contains("\"memory\": a subsystem of this name"), "{error}");
}

#[test]
fn refuses_one_subsystem_more_than_the_maximum() {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let (hierarchy, cache) = fixture(2);
    let group = hierarchy.create("/group").unwrap();
    let room = SUBSYSTEMS_MAX - hierarchy.subsystems().len();
    let more: Vec<_> = NAMES[..room].iter().map(|name| hierarchy.register(one(name)).unwrap()).collect();
    let error = hierarchy.register(one(NAMES[room])).unwrap_err().to_string();
    assert!(
        error.ends_with("the hierarchy has all the 8 subsystems it can have, the built-in ones included"),
        "{error}"
    );
    assert_eq!(hierarchy.subsystems().len(), SUBSYSTEMS_MAX);
    for (n, statistics) in more.iter().enumerate() {
        statistics.add(&group, nth(statistics, 0), 10 + n as i64);
    }
    cache.add(&group, HITS, 5);
    for (n, statistics) in more.iter().enumerate() {
        assert_eq!(
            subtree(statistics, &hierarchy.root(), nth(statistics, 0)),
            10 + n as i64,
            "{statistics:?}"
        );
    }
    assert_eq!(subtree(&cache, &group, HITS), 5);
}

#[test]
fn begins_a_reused_hierarchy_at_zero_without_subsystems() {
    // A configuration of its own, so that no other test takes the hierarchy in between.
    let config = || Config::with_slots(SlotSource::virtual_slots(3).unwrap()).groups_max(77);
    for round in 0..20 {
        let hierarchy = Hierarchy::new(config()).unwrap();
        assert_eq!(hierarchy.subsystems(), ["memory", "cpu", "io"], "round {round}");
        // Larger and smaller ones take turns in the stores there are.
        let statistics = hierarchy.register(if round % 2 == 0 { WIDE } else { one("narrow") }).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let last = statistics.stats().len() - 1;
        assert_eq!(subtree(&statistics, &hierarchy.root(), nth(&statistics, last)), 0, "round {round}");
        assert_eq!(subtree(&hierarchy.memory(), &hierarchy.root(), memgroup::stats::memory::CHARGES), 0);
        for slot in 0..3 {
            add_on(slot, &statistics, &group, nth(&statistics, last), 1);
            add_on(slot, &statistics, &hierarchy.root(), nth(&statistics, last), 1);
        }
        drop(group.try_charge(100).unwrap());
        if round % 3 == 0 {
            assert_eq!(subtree(&statistics, &hierarchy.root(), nth(&statistics, last)), 6);
        }
        let text = panic_of(|| statistics.add(&group, HITS, 1));
        assert!(text.starts_with("failed to use the key hits of the subsystem cache with"), "{text}");
    }
}

#[test]
fn refuses_invalid_additions_by_name() {
    let (hierarchy, cache) = fixture(2);
    let (other, _) = fixture(2);
    let (group, foreign) = (hierarchy.create("/group").unwrap(), other.create("/foreign").unwrap());
    let refused = |stat, delta| panic_of(|| cache.add(&group, stat, delta));
    assert_eq!(refused(HITS, -1), "failed to add -1 to hits of cache: it only grows");
    assert_eq!(
        refused(HELD, i64::MIN),
        "failed to add -9223372036854775808 to held of cache: one addition is 2^48 at the most, up or down"
    );
    assert!(refused(HELD, (1 << 48) + 1).contains("at the most, up or down"));
    let text = "failed to use the key rbytes of the subsystem io with the statistics of cache";
    assert_eq!(refused(stats::io::RBYTES, 1), text);
    assert_eq!(panic_of(|| _ = cache.get(&group, stats::io::RBYTES, Reach::Local, Freshness::Fresh)), text);
    const OTHER: Subsystem = Subsystem { name: "cache", stats: &[Stat::count("hits")] };
    assert_eq!(
        refused(OTHER.key("hits"), 1),
        "failed to use the key hits of the subsystem cache with the statistics of cache, which is defined otherwise here"
    );
    let text = panic_of(|| cache.add(&foreign, HITS, 1));
    assert_eq!(
        text,
        "failed to find cache of the group /foreign: the statistics are those of another hierarchy"
    );
    let text = panic_of(|| cache.add_time(&group, HELD, std::time::Duration::from_micros(1)));
    assert_eq!(text, "failed to add 1µs to held of cache: it is not a time");
    assert_eq!(cache.text(&hierarchy.root(), memgroup::Freshness::Fresh), "hits 0\nheld 0\nbuild_usec 0\n");
    cache.add(&group, HELD, 1 << 48);
    cache.add(&group, HELD, -(1 << 48));
    assert_eq!(subtree(&cache, &group, HELD), 0);
}

#[test]
fn panics_when_a_slot_leaves_its_range_between_flushes() {
    let (hierarchy, cache) = fixture(1);
    let group = hierarchy.create("/group").unwrap();
    // The base word takes an addition that finds the tree's lock taken, so the number varies.
    let until_panic = |key, delta| panic_of(|| (0..1 << 17).for_each(|_| cache.add(&group, key, delta)));
    let text = until_panic(HELD, -(1 << 48));
    assert_eq!(text, "held of cache has changed by more than 2^61 on one slot since it was last flushed");
    cache.add(&group, HITS, 1);
    assert_eq!(subtree(&cache, &group, HITS), 1, "others go on");
    let text = until_panic(HITS, 1 << 48);
    assert_eq!(text, "hits of cache has changed by more than 2^61 on one slot since it was last flushed");
    assert!(subtree(&cache, &group, HITS) < 1 << 60, "additions on the slot are lost");
}

#[test]
fn wraps_flushed_sums_at_64_bits() {
    let (hierarchy, cache) = fixture(1);
    let group = hierarchy.create("/group").unwrap();
    let raised: Vec<_> = (0..2)
        .map(|_| {
            (0..1 << 14).for_each(|_| cache.add(&group, HELD, 1 << 48));
            subtree(&cache, &hierarchy.root(), HELD)
        })
        .collect();
    assert_eq!(raised, [1 << 62, i64::MIN]);
    cache.add(&group, HELD, -1);
    assert_eq!(subtree(&cache, &hierarchy.root(), HELD), i64::MAX, "and back");
}

#[test]
fn gives_older_groups_words_on_the_slots() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).groups_max(333);
    let hierarchy = Hierarchy::new(config).unwrap();
    // The memory may have belonged to another hierarchy, whose groups' records are in it.
    hierarchy.maintain(Maintenance::new().all().expedited());
    let groups: Vec<_> = (0..300).map(|n| hierarchy.create(&format!("/g{n}")).unwrap()).collect();
    let late = hierarchy.register(one("late")).unwrap();
    let before = hierarchy.percpu().live_bytes;
    groups.iter().chain([&hierarchy.root()]).for_each(|group| late.add(group, nth(&late, 0), 1));
    let each = late.footprint().slot_bytes as u64;
    let after = hierarchy.percpu().live_bytes;
    assert!(after >= before + 300 * each, "the root may have had its own: {before} {each} {after}");
}

#[test]
fn counts_for_no_group_after_a_forgotten_scope_ends() {
    let (hierarchy, _) = fixture(1);
    let gone = hierarchy.create("/gone").unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::mem::forget(memgroup::scope::enter(&gone));
            gone.remove().unwrap();
            let root = hierarchy.root();
            drop(gone);
            assert!(!hierarchy.io().add_current(stats::io::RBYTES, 1), "the group is gone");
            let next = hierarchy.create("/next").unwrap();
            drop(memgroup::scope::enter(&root));
            assert_eq!(subtree(&hierarchy.io(), &next, stats::io::RBYTES), 0);
            assert_eq!(subtree(&hierarchy.cpu(), &next, stats::cpu::SCOPE_USEC), 0);
        });
    });
}

#[test]
fn frees_values_of_released_groups_in_maintenance() {
    let config =
        Config::with_slots(SlotSource::virtual_slots(2).unwrap()).groups_max(5001).float(0, Duration::ZERO);
    let hierarchy = Hierarchy::new(config).unwrap();
    let statistics = hierarchy.register(WIDE).unwrap();
    // The memory may have belonged to another hierarchy, whose groups' records are in it.
    hierarchy.maintain(Maintenance::new().all().expedited());
    let at_first = statistics.footprint().groups;
    assert_eq!(at_first, 1, "the root");
    for round in 1..=3 {
        let groups: Vec<_> = (0..5000).map(|n| hierarchy.create(&format!("/g{n}")).unwrap()).collect();
        assert_eq!(statistics.footprint().groups, at_first + 5000);
        groups.iter().for_each(|group| statistics.add(group, nth(&statistics, 0), 1));
        groups.into_iter().skip(7).for_each(|group| group.remove().unwrap());
        hierarchy.maintain(Maintenance::new().all().expedited());
        assert_eq!(statistics.footprint().groups, at_first + 7, "round {round}");
        assert_eq!(subtree(&statistics, &hierarchy.root(), nth(&statistics, 0)), 5000 * round);
        (0..7).for_each(|n| hierarchy.lookup(&format!("/g{n}")).unwrap().remove().unwrap());
    }
}

#[test]

fn a_reused_hierarchy_takes_the_same_subsystems_as_a_new_one() {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let config = || Config::with_slots(SlotSource::virtual_slots(2).unwrap()).groups_max(79);
    let first = Hierarchy::new(config()).unwrap();
    NAMES.iter().for_each(|name| _ = first.register(one(name)).unwrap());
    drop(first);
    let second = Hierarchy::new(config()).unwrap();
    assert_eq!(second.register(WIDE).map(|wide| wide.stats().len()), Ok(3));
}

#[test]

fn a_subsystems_memory_does_not_depend_on_earlier_users() {
    let config = || Config::with_slots(SlotSource::virtual_slots(2).unwrap()).groups_max(81);
    let stats: &'static [Stat] =
        (0..4000).map(|n| Stat::count(format!("s{n}").leak())).collect::<Vec<_>>().leak();
    let first = Hierarchy::new(config()).unwrap();
    first.register(Subsystem { name: "vast", stats }).unwrap();
    drop(first);
    let second = Hierarchy::new(config()).unwrap();
    assert_eq!(second.register(one("narrow")).unwrap().footprint().slot_bytes, 8);
}

#[test]

fn a_group_without_a_record_keeps_the_sum_of_its_slots() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).demote_after(Some(Duration::ZERO));
    let hierarchy = Hierarchy::new(config).unwrap();
    let cache = hierarchy.register(CACHE).unwrap();
    let group = hierarchy.create("/group").unwrap();
    for n in 0..2 * 8191 {
        add_on(n % 2, &cache, &group, HELD, -(1 << 48));
    }
    hierarchy.maintain(Maintenance::new().expedited());
    assert_eq!(subtree(&cache, &group, HELD), -2 * 8191 * (1 << 48));
}

#[test]
fn keeps_slots_apart_when_a_record_moves() {
    const NAMES: usize = 500;
    // As much as one slot has room for: together on one they would leave its range.
    const LOW: i64 = 8191;
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap())
        .groups_max(1001)
        .float(0, Duration::ZERO)
        .maintain_on_removal(false);
    let hierarchy = Hierarchy::new(config).unwrap();
    let stats: Vec<_> = (0..NAMES).map(|n| Stat::gauge(format!("s{n}").leak())).collect();
    let vast = hierarchy.register(Subsystem { name: "vast", stats: stats.leak() }).unwrap();
    let groups: Vec<_> = (0..1000).map(|n| hierarchy.create(&format!("/g{n}")).unwrap()).collect();
    groups.iter().for_each(|group| add_on(0, &vast, group, nth(&vast, 0), 1));
    let (stay, go): (Vec<_>, Vec<_>) = groups.into_iter().enumerate().partition(|(n, _)| n % 100 == 99);
    for (_, group) in &stay {
        (0..2 * LOW).for_each(|n| add_on(n as usize % 2, &vast, group, nth(&vast, NAMES - 1), -(1 << 48)));
    }
    go.into_iter().for_each(|(_, group)| group.remove().unwrap());
    let done = hierarchy.maintain(Maintenance::new().all().expedited());
    assert!(
        done.moved_bytes > vast.footprint().slot_bytes as u64 * 2,
        "records of statistics moved: {done:?}"
    );
    for (_, group) in &stay {
        assert_eq!(
            (subtree(&vast, group, nth(&vast, 0)), subtree(&vast, group, nth(&vast, NAMES - 1))),
            (1, -2 * LOW * (1 << 48))
        );
    }
}
