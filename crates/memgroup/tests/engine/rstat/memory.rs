//! The subsystem `memory`: exact counts of charges and stocks, for whole subtrees.

use std::time::Duration;

use memgroup::stats::memory::{
    CHARGES, FORCED, REFUSALS, STOCK_DRAINED, STOCK_DRAINS, STOCK_MISSES, STOCK_REFILLS, STOCK_RETURNS,
};
use memgroup::{Config, Freshness, Group, Hierarchy, Maintenance, Reach, SlotSource};
use memgroup_percpu::pin_virtual;

use super::{HITS, fixture, local, nth, subtree};

fn charges(hierarchy: &Hierarchy, group: &Group) -> i64 {
    subtree(&hierarchy.memory(), group, CHARGES)
}

#[test]
fn counts_every_charge_in_the_next_fresh_read() {
    let (hierarchy, _) = fixture(3);
    let parent = hierarchy.create("/parent").unwrap();
    let leaves = ["a", "b"].map(|name| parent.create(name).unwrap());
    let mut made = 0;
    for round in 0..300 {
        let _pin = pin_virtual(round % 3);
        let leaf = &leaves[round / 7 % 2];
        drop(leaf.try_charge(64).unwrap());
        made += 1;
        if round % 5 == 0 {
            assert_eq!(charges(&hierarchy, &parent), made, "round {round}");
        }
    }
    let own: i64 = leaves.iter().map(|leaf| charges(&hierarchy, leaf)).sum();
    assert_eq!((own, charges(&hierarchy, &hierarchy.root())), (300, 300));
    let misses = subtree(&hierarchy.memory(), &parent, STOCK_MISSES);
    assert!((6..30).contains(&misses), "{misses}: one on each slot of each, and a few as the caps grow");
    let by_group: u64 = leaves.iter().map(|leaf| leaf.stock().misses).sum();
    assert_eq!(by_group as i64, misses);
    assert_eq!(leaves.iter().map(|leaf| leaf.stock().hits).sum::<u64>() as i64, 300 - misses);
}

#[test]
fn counts_all_attempts_when_their_field_is_full() {
    let (hierarchy, _) = fixture(1);
    let group = hierarchy.create("/group").unwrap();
    const CALLS: i64 = 300_000;
    for _ in 0..CALLS {
        drop(group.try_charge(8).unwrap());
    }
    assert_eq!(charges(&hierarchy, &hierarchy.root()), CALLS);
}

#[test]
fn counts_refusals_forced_charges_and_drains_at_each_level() {
    let (hierarchy, _) = fixture(2);
    let parent = hierarchy.create("/parent").unwrap();
    let leaf = parent.create("leaf").unwrap();
    let memory = hierarchy.memory();
    parent.set_max(10_000).unwrap();
    assert!(leaf.try_charge(20_000).is_err());
    assert_eq!((local(&memory, &parent, REFUSALS), local(&memory, &leaf, REFUSALS)), (1, 0));
    assert_eq!(subtree(&memory, &hierarchy.root(), REFUSALS), 1);
    drop(leaf.charge_forced(20_000).unwrap());
    assert_eq!((local(&memory, &leaf, FORCED), subtree(&memory, &hierarchy.root(), FORCED)), (1, 1));
    parent.set_max(None).unwrap();
    // The first charges after a limit was near are exact.
    (0..10).for_each(|_| drop(leaf.try_charge(100).unwrap()));
    let charge = leaf.try_charge(100).unwrap();
    let drained = leaf.drain();
    assert!(drained > 0);
    let mut values = [0; STOCK_DRAINED.index() + 1];
    memory.read(&hierarchy.root(), Reach::Subtree, Freshness::Fresh, &mut values);
    assert_eq!((values[STOCK_DRAINS.index()], values[STOCK_DRAINED.index()]), (1, drained as i64));
    assert!(values[STOCK_REFILLS.index()] >= 1, "{values:?}");
    drop(charge);
    let many: Vec<_> = (0..4000).map(|_| leaf.try_charge(1 << 10).unwrap()).collect();
    drop(many);
    assert!(subtree(&memory, &parent, STOCK_RETURNS) > 0, "frees overflow the stock");
}

#[test]
fn counts_forced_and_refused_charges_of_a_removed_group() {
    let (hierarchy, _) = fixture(1);
    let (group, memory) = (hierarchy.create("/group").unwrap(), hierarchy.memory());
    group.remove().unwrap();
    let mut forced = group.charge_forced(100).unwrap();
    forced.grow_forced(100).unwrap();
    assert_eq!((local(&memory, &group, FORCED), subtree(&memory, &hierarchy.root(), FORCED)), (2, 2));
    assert!(group.try_charge(100).is_err());
    assert_eq!((local(&memory, &group, REFUSALS), group.refusals()), (1, 1));
    drop(forced);
    drop(group);
    assert_eq!(subtree(&memory, &hierarchy.root(), FORCED), 2);
}

#[test]
fn keeps_values_of_a_removed_group_once_in_its_ancestors() {
    let (hierarchy, cache) = fixture(2);
    let parent = hierarchy.create("/parent").unwrap();
    for round in 1..=50 {
        let leaf = parent.create("leaf").unwrap();
        let kept = leaf.try_charge(100).unwrap();
        drop(leaf.try_charge(100).unwrap());
        super::add_on(round % 2, &cache, &leaf, nth(&cache, 0), 10);
        if round % 2 == 0 {
            assert_eq!(subtree(&cache, &leaf, HITS), 10);
        }
        leaf.remove().unwrap();
        cache.add(&leaf, HITS, 1);
        if round % 3 == 0 {
            // The last byte returns after the last handle.
            drop(leaf);
            drop(kept);
        }
        let round = round as i64;
        assert_eq!(subtree(&cache, &parent, HITS), 11 * round);
        assert_eq!(charges(&hierarchy, &parent), 2 * round);
    }
    assert_eq!((local(&cache, &parent, HITS), subtree(&cache, &hierarchy.root(), nth(&cache, 0))), (0, 550));
    assert_eq!(hierarchy.groups().len(), 2);
}

#[test]
fn counts_charges_when_drains_and_flushes_take_attempts() {
    const ROUNDS: u64 = 300;
    let config = Config::with_slots(SlotSource::virtual_slots(1).unwrap())
        .stock_budget_bytes(1024)
        .demote_after(Some(Duration::ZERO));
    let hierarchy = Hierarchy::new(config).unwrap();
    let groups: Vec<_> = (0..5).map(|n| hierarchy.create(&format!("/g{n}")).unwrap()).collect();
    for round in 0..ROUNDS {
        // More stocks than the budget has room for, of which some were used since the clock came
        // by.
        groups.iter().for_each(|group| drop(group.try_charge(100).unwrap()));
        drop(groups[round as usize % 5].try_charge(100).unwrap());
        if round % 50 == 49 {
            hierarchy.maintain(Maintenance::new().all().expedited());
        }
    }
    for group in &groups {
        let stock = group.stock();
        assert_eq!(stock.hits + stock.misses, ROUNDS + ROUNDS / 5, "{stock:?}");
    }
    assert_eq!(charges(&hierarchy, &hierarchy.root()) as u64, 6 * ROUNDS);
    assert_eq!(hierarchy.root().stock().misses, 0, "the root's own");
}
