//! At which group an event is counted.

use std::sync::{Arc, Mutex};

use memgroup::{
    Ask, Charge, Config, Count, Events, Group, Hierarchy, Scan, Shrinker, ShrinkerConfig, SlotSource,
};

const PAGE: u64 = 4096;

fn max_of(groups: &[&Group]) -> Vec<(u64, u64)> {
    groups.iter().map(|group| (group.events_local().max, group.events().max)).collect()
}

fn fixture(config: Config) -> (Hierarchy, Group, Group) {
    let hierarchy = Hierarchy::new(config).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    let child = parent.create("child").unwrap();
    (hierarchy, parent, child)
}

fn configs() -> [Config; 2] {
    let config = Config::with_slots(SlotSource::virtual_slots(8).unwrap());
    [config, config.stock_cap_bytes(0)]
}

#[test]
fn shows_no_more_local_events_than_in_the_subtree() {
    const REFUSALS: u64 = 20_000;
    let (_hierarchy, parent, child) = fixture(configs()[1]);
    child.set_max(0).unwrap();
    std::thread::scope(|scope| {
        let refuse = || (0..REFUSALS).for_each(|_| assert!(child.try_charge(1).is_err()));
        let threads = [scope.spawn(refuse), scope.spawn(refuse)];
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let [(local, subtree)] = max_of(&[&child])[..] else { unreachable!("one group") };
            assert!(local <= subtree, "{local} local events, and {subtree} in the subtree");
        }
    });
    assert_eq!(max_of(&[&child, &parent]), [(2 * REFUSALS, 2 * REFUSALS), (0, 2 * REFUSALS)]);
}

#[test]
fn counts_a_refusal_at_the_group_that_refuses_and_above() {
    for config in configs() {
        let (hierarchy, parent, child) = fixture(config);
        parent.set_max(10_000).unwrap();
        child.set_max(100_000).unwrap();
        assert_eq!(child.try_charge(20_000).unwrap_err().group(), parent.id());
        let held = child.try_charge(9000).unwrap();
        assert_eq!(child.try_charge(2000).unwrap_err().group(), parent.id());
        drop(held);
        assert_eq!(max_of(&[&child, &parent, &hierarchy.root()]), [(0, 0), (2, 2), (0, 2)]);
        child.set_max(0).unwrap();
        child.try_charge(1).unwrap_err();
        assert_eq!(max_of(&[&child, &parent, &hierarchy.root()]), [(1, 1), (2, 3), (0, 3)]);
    }
}

#[test]
fn counts_no_event_for_a_charge_that_fits_after_a_drain() {
    let (hierarchy, parent, child) = fixture(configs()[0]);
    parent.set_max(1 << 20).unwrap();
    for slot in 0..8 {
        let _pin = memgroup_percpu::pin_virtual(slot);
        drop(child.try_charge(4096).unwrap());
    }
    assert!(parent.usage() > 0, "stocks are filled");
    drop(parent.try_charge(1 << 20).unwrap());
    assert_eq!(hierarchy.root().events(), Events::default());
}

/// A parent with room for a byte less than 1,000 pages, and a child with room for 1,000. The
/// child's stock keeps the rest of a batch, so it refuses 999 pages before its parent does.
fn fixture_with_prepaid_child(config: Config) -> (Group, Group, Charge) {
    let (_hierarchy, parent, child) = fixture(config);
    parent.set_max(1000 * PAGE - 1).unwrap();
    child.set_max(1000 * PAGE).unwrap();
    let held = child.try_charge(PAGE).unwrap();
    assert!(child.usage() > PAGE, "the rest of a batch is prepaid");
    (parent, child, held)
}

#[test]
fn counts_at_the_parent_that_refuses_after_a_drain() {
    let (parent, child, _held) = fixture_with_prepaid_child(configs()[0]);
    assert_eq!(child.try_charge(999 * PAGE).unwrap_err().group(), parent.id());
    assert_eq!(max_of(&[&child, &parent]), [(0, 0), (1, 1)], "the child had room when its stock was drained");
}

#[test]
fn counts_a_forced_charge_at_each_level_it_takes_over() {
    for config in configs() {
        let (hierarchy, parent, child) = fixture(config);
        child.set_max(1000).unwrap();
        parent.set_max(2000).unwrap();
        let mut held = child.charge_forced(1000).unwrap();
        assert_eq!(hierarchy.root().events().max, 0);
        held.grow_forced(500).unwrap();
        assert_eq!(max_of(&[&child, &parent]), [(1, 1), (0, 1)]);
        held.grow_forced(1000).unwrap();
        assert_eq!(max_of(&[&child, &parent, &hierarchy.root()]), [(2, 2), (1, 3), (0, 3)]);
    }
}

#[test]
fn counts_refusals_by_a_lowered_limit_not_the_lowering() {
    for config in configs() {
        let (_hierarchy, parent, child) = fixture(config);
        let _held = child.try_charge(5000).unwrap();
        parent.set_max(1000).unwrap();
        assert_eq!(parent.events().max, 0);
        child.try_charge(1).unwrap_err();
        assert_eq!(max_of(&[&child, &parent]), [(0, 0), (1, 1)]);
    }
}

#[test]
fn counts_no_event_for_a_removal_or_a_full_counter() {
    for config in configs() {
        let (hierarchy, parent, child) = fixture(config);
        child.try_charge(1 << 48).unwrap_err();
        let _held = child.try_charge(5000).unwrap();
        child.try_charge((1 << 48) - 5000).unwrap_err();
        child.remove().unwrap();
        child.try_charge(1).unwrap_err();
        assert_eq!((hierarchy.root().events(), parent.events()), (Events::default(), Events::default()));
    }
}

#[test]
fn keeps_the_counts_of_a_removed_group_in_its_ancestors() {
    let (hierarchy, parent, child) = fixture(configs()[0]);
    child.set_max(10).unwrap();
    for _ in 0..5 {
        child.try_charge(11).unwrap_err();
    }
    child.remove().unwrap();
    assert_eq!((child.events().max, parent.events().max), (5, 5));
    let node = child.id().node();
    drop(child);
    let again = parent.create("child").unwrap();
    assert_eq!(
        (again.id().node(), again.events(), again.events_local()),
        (node, Events::default(), Events::default())
    );
    assert_eq!(hierarchy.root().events().max, 5);
}

/// Charges that can be given back.
#[derive(Default)]
struct Cache(Mutex<Vec<Charge>>);

impl Shrinker for Cache {
    fn count(&self, _token: u64) -> Count {
        let held = self.0.lock().unwrap();
        Count::of(held.iter().map(Charge::bytes).sum(), held.len() as u64)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let (mut held, mut bytes) = (self.0.lock().unwrap(), 0);
        while bytes < ask.bytes()
            && let Some(charge) = held.pop()
        {
            bytes += charge.bytes();
        }
        Scan::Freed { bytes }
    }
}

#[test]
fn counts_each_level_that_makes_room_and_the_one_that_refuses() {
    for config in configs() {
        let (hierarchy, parent, child) = fixture(config);
        let cache = Arc::new(Cache::default());
        let registered = child.add_shrinker(ShrinkerConfig::new("cache"), Arc::clone(&cache)).unwrap();
        child.set_max(20_000).unwrap();
        parent.set_max(20_000).unwrap();
        let fill = |charges: u64| {
            for _ in 0..charges {
                let charge = child.try_charge(1000).unwrap();
                cache.0.lock().unwrap().push(charge);
            }
            registered.mark();
        };
        fill(20);
        // The child frees the missing bytes.
        drop(child.try_charge(5000).unwrap());
        assert_eq!(max_of(&[&child, &parent]), [(1, 1), (0, 1)]);
        // The child has room by now, its parent has none for so much, and nothing to give.
        let other = parent.charge_forced(20_000).unwrap();
        let before = parent.events_local().max;
        cache.0.lock().unwrap().clear();
        let error = child.try_charge(15_000).unwrap_err();
        assert_eq!((error.group(), child.events_local().max), (parent.id(), 1));
        assert_eq!(parent.events_local().max, before + 1);
        // The child gives back, and then its parent refuses.
        drop(other);
        fill(18);
        let other = parent.charge_forced(18_000).unwrap();
        let before = max_of(&[&child, &parent]);
        let error = child.try_charge(19_000).unwrap_err();
        let after = max_of(&[&child, &parent]);
        assert_eq!(error.group(), parent.id());
        assert_eq!((after[0].0, after[1].0), (before[0].0 + 1, before[1].0 + 1), "one of each");
        drop((other, registered, hierarchy));
    }
}
