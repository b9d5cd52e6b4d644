//! Sums: after threads charge, uncharge, set and remove at once, they equal those of a ledger.

use std::sync::Mutex;
use std::thread;

use memgroup::{BYTES_MAX, Charge, Config, Group, Hierarchy, SlotSource};
use proptest::prelude::*;

use super::super::random::Random;

const KIB: u64 = 1 << 10;

/// The steps of one thread, drawn from its seed: charges and uncharges in groups, settings,
/// removals.
fn act(parents: &[Group], shared: &Mutex<Vec<Group>>, seed: u64, steps: u64) -> Vec<Charge> {
    let mut random = Random(seed | 1);
    let mut held: Vec<Charge> = Vec::new();
    for step in 0..steps {
        let pick = {
            let groups = shared.lock().unwrap();
            groups[random.below(groups.len() as u64) as usize].clone()
        };
        match random.below(16) {
            0..=6 => held.extend(pick.try_charge(random.bytes(18))),
            7..=11 if !held.is_empty() => {
                let at = random.below(held.len() as u64) as usize;
                drop(held.swap_remove(at));
            }
            12 => drop(pick.set_min(if random.below(8) == 0 { BYTES_MAX } else { random.bytes(20) - 1 })),
            13 => drop(pick.set_low(if random.below(2) == 0 { 0 } else { random.bytes(20) })),
            14 => {
                let mut groups = shared.lock().unwrap();
                let at = random.below(groups.len() as u64) as usize;
                let parent = &parents[random.below(parents.len() as u64) as usize];
                let removed =
                    std::mem::replace(&mut groups[at], parent.create(&format!("{seed}-{step}")).unwrap());
                drop(groups);
                removed.remove().unwrap();
            }
            _ => drop(pick.drain()),
        }
    }
    held
}

/// Checks the protected bytes of the children of `parent`, and the reserve there, against sums of
/// their settings and usages.
fn assert_right(parent: &Group, reserve: u64) {
    let children = parent.children();
    let used = |of: fn(&Group) -> u64| children.iter().map(|child| child.usage().min(of(child))).sum::<u64>();
    let (min, low) = (used(Group::min), used(Group::low));
    let grandparent = parent.parent().unwrap();
    // Protected with exactly its usage: each child's share tells the sum.
    let usage = parent.usage();
    for child in &children {
        let seen = child.protection_within(&grandparent);
        let share = |setting: u64, siblings: u64, above: u64| {
            let own = child.usage().min(setting);
            if siblings > above {
                (u128::from(above) * u128::from(own) / u128::from(siblings)) as u64
            } else if usage > siblings {
                let rest = u128::from(above - siblings) * u128::from(child.usage() - own);
                (own + (rest / u128::from(usage - siblings)) as u64).min(above)
            } else {
                own
            }
        };
        assert_eq!(seen.min, share(child.min(), min, parent.min()), "min of {}", child.path());
        assert_eq!(seen.low, share(child.low(), low, parent.low()), "low of {}", child.path());
    }
    let unfilled: u128 = children
        .iter()
        .map(|child| u128::from(child.min().max(child.low()).saturating_sub(child.usage())))
        .sum();
    let max = parent.max().unwrap();
    let kept = u128::from(reserve.min(max / 8)).min(unfilled) as u64;
    assert_eq!(parent.headroom(), max - usage - kept, "{unfilled} are not filled");
}

fn many_threads(seed: u64, slots: usize, cap: u64, steps: u64) {
    let reserve = 600 * KIB;
    let config = Config::with_slots(SlotSource::virtual_slots(slots).unwrap())
        .stock_cap_bytes(cap)
        .protected_reserve_bytes(reserve);
    let hierarchy = Hierarchy::new(config).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    let parents = ["a", "b"].map(|name| tenants.create(name).unwrap());
    for parent in &parents {
        parent.set_max(1 << 30).unwrap();
        parent.set_min(1 << 20).unwrap();
        parent.set_low(300 * KIB).unwrap();
    }
    let groups = (0..6).map(|number| parents[number % 2].create(&number.to_string()).unwrap()).collect();
    let shared = Mutex::new(groups);
    let held: Vec<Charge> = thread::scope(|scope| {
        let act = |number: u64| {
            let seed = seed.wrapping_mul(31).wrapping_add(number);
            act(&parents, &shared, seed, steps)
        };
        let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || act(number))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    parents.iter().for_each(|parent| assert_right(parent, reserve));
    drop(held);
    hierarchy.root().drain();
    parents.iter().for_each(|parent| assert_right(parent, reserve));
    for group in shared.into_inner().unwrap() {
        group.set_min(0).unwrap();
        group.remove().unwrap();
    }
    assert!(hierarchy.dying().is_empty());
    for parent in &parents {
        assert_eq!((parent.usage(), parent.headroom()), (0, 1 << 30));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn has_right_sums_at_rest(seed: u64, slots in 1usize..5, cap in 0u32..3) {
        many_threads(seed, slots, [0, 16 * KIB, 256 * KIB][cap as usize], 1500);
    }
}
