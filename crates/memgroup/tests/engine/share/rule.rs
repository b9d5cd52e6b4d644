//! The bytes that a child may charge, by the rule.

use memgroup::{Charge, Config, Group, Hierarchy, SHARE_MAX, SlotSource};
use memgroup_percpu::pin_virtual;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A parent with a limit, which its children share with the factor 8. Charges are exact unless
/// `stock` is on.
fn sharing(max: u64, stock: bool) -> (Hierarchy, Group) {
    let config = if stock { Config::new() } else { Config::new().stock_cap_bytes(0) };
    let hierarchy = Hierarchy::new(config).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(max).unwrap();
    parent.set_share(8).unwrap();
    (hierarchy, parent)
}

/// Charges by `bytes` until one is refused.
fn fill(group: &Group, bytes: u64) -> Vec<Charge> {
    std::iter::from_fn(|| group.try_charge(bytes).ok()).collect()
}

fn held(charges: &[Charge]) -> u64 {
    charges.iter().map(Charge::bytes).sum()
}

#[test]
fn one_child_alone_gets_eight_ninths() {
    for stock in [false, true] {
        let (_hierarchy, parent) = sharing(90 * MIB, stock);
        let runaway = parent.create("runaway").unwrap();
        let charges = fill(&runaway, 4 * KIB);
        let error = runaway.try_charge(4 * KIB).unwrap_err();
        assert!(error.is_by_share() && error.path().as_deref() == Some("/parent/runaway"), "{error}");
        assert!(error.to_string().contains(", its fair share is "), "{error}");
        let got = held(&charges);
        assert!((80 * MIB - 64 * KIB..=80 * MIB + 90 * MIB / 64).contains(&got), "{got}");
        if !stock {
            assert_eq!(got, 80 * MIB, "to the byte where nothing is prepaid");
        }
        let share = runaway.fair_share().unwrap();
        assert_eq!((share.bytes, share.even), (80 * MIB, 80 * MIB));
    }
}

#[test]
fn a_runaway_leaves_room_for_small_ones_in_every_order() {
    for stock in [false, true] {
        for first in [false, true] {
            let (_hierarchy, parent) = sharing(96 * MIB, stock);
            let runaway = parent.create("runaway").unwrap();
            let small: Vec<_> = (0..24).map(|number| parent.create(&format!("s{number}")).unwrap()).collect();
            // Together less than a child alone leaves free, also where some bytes are prepaid.
            let demand = 96 * MIB / 9 / 28;
            let before = if first { fill(&runaway, 64 * KIB) } else { Vec::new() };
            let charges: Vec<_> = small
                .iter()
                .map(|group| group.try_charge(demand).unwrap_or_else(|error| panic!("{error}")))
                .collect();
            let after = fill(&runaway, 64 * KIB);
            assert!(held(&before) + held(&after) > 60 * MIB);
            for group in &small {
                drop(group.try_charge(demand / 2).unwrap_or_else(|error| panic!("{error}")));
            }
            drop(charges);
        }
    }
}

#[test]
fn weights_say_how_much_each_child_has() {
    let (_hierarchy, parent) = sharing(90 * MIB, false);
    let (heavy, light) = (parent.create("heavy").unwrap(), parent.create("light").unwrap());
    heavy.set_weight(300).unwrap();
    let (_a, _b) = (heavy.try_charge(KIB).unwrap(), light.try_charge(KIB).unwrap());
    let (heavy, light) = (heavy.fair_share().unwrap(), light.fair_share().unwrap());
    let even = |weight: u64| 90 * MIB * 8 * weight / (100 + 8 * 400);
    assert_eq!((heavy.even, light.even), (even(300), even(100)));
}

#[test]
fn shares_are_turned_on_and_off_for_children_that_there_are_and_new_ones() {
    let (hierarchy, parent) = sharing(9 * MIB, false);
    let before = parent.create("before").unwrap();
    parent.set_share(None).unwrap();
    assert_eq!((parent.share(), before.fair_share()), (None, None));
    let during = parent.create("during").unwrap();
    let all = during.try_charge(9 * MIB).unwrap();
    drop(all);
    parent.set_share(4).unwrap();
    let after = parent.create("after").unwrap();
    assert_eq!(parent.share(), Some(4));
    for group in [&before, &during, &after] {
        assert!(group.try_charge(8 * MIB).unwrap_err().is_by_share());
        assert_eq!(group.fair_share().unwrap().bytes, 9 * MIB * 4 / 5);
    }
    let unlimited = hierarchy.create("/unlimited").unwrap();
    unlimited.set_share(8).unwrap();
    let child = unlimited.create("child").unwrap();
    assert!(child.fair_share().is_none() && child.try_charge(64 * MIB).is_ok(), "there is no limit to share");
}

#[test]
fn refuses_bad_factors_with_a_reason() {
    let (hierarchy, parent) = sharing(MIB, false);
    for factor in [0, SHARE_MAX + 1] {
        let error = parent.set_share(factor).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "set share of group /parent to {factor}: allowed are 1 to 1024; None turns it off, as 0 in memory.share does"
            )
        );
    }
    assert_eq!(parent.share(), Some(8), "the factor before stays");
    let unaccounted = Hierarchy::new(Config::new().account_root(false)).unwrap();
    assert!(unaccounted.root().set_share(8).unwrap_err().to_string().contains("account_root"));
    assert!(hierarchy.root().set_share(8).is_ok());
}

#[test]
fn a_removed_group_gives_no_shares_and_its_place_neither() {
    let (hierarchy, parent) = sharing(MIB, false);
    let gone = hierarchy.create("/gone").unwrap();
    gone.set_share(8).unwrap();
    gone.remove().unwrap();
    let error = gone.set_share(8).unwrap_err().to_string();
    assert!(error.contains("/gone: it was removed"), "{error}");
    assert_eq!(gone.share(), None);
    drop(gone);
    let next = parent.create("next").unwrap();
    assert_eq!(next.share(), None, "the place is used again");
}

#[test]
fn shares_reach_more_children_than_one_step_takes() {
    let (_hierarchy, parent) = sharing(MIB, false);
    parent.set_share(None).unwrap();
    let children: Vec<_> = (0..300).map(|number| parent.create(&format!("{number}")).unwrap()).collect();
    parent.set_share(8).unwrap();
    assert!(children.iter().all(|child| child.fair_share().is_some()));
    parent.set_share(None).unwrap();
    assert!(children.iter().all(|child| child.fair_share().is_none()));
}

/// Numbers of a simple generator, from a seed.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(3_037_000_493);
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// The rule of the guide, from the children's usages: the most that a child may hold after a
/// charge of `bytes`.
fn may_hold(max: u64, usages: &[u64], weights: &[u64], at: usize, bytes: u64) -> u64 {
    let (max, used) = (u128::from(max), usages.iter().sum::<u64>());
    let all: u64 =
        (0..usages.len()).filter(|&child| child == at || usages[child] > 0).map(|child| weights[child]).sum();
    let slope = u128::from(8 * weights[at]);
    let even = max * slope / u128::from(100 + 8 * all);
    let free = max.saturating_sub(u128::from(used + bytes));
    u64::try_from(even.max(free * slope / 100)).unwrap()
}

#[test]
fn charges_pass_exactly_as_the_rule_says() {
    for seed in 0..20 {
        let mut random = random(seed);
        let max = 64 * MIB;
        let (_hierarchy, parent) = sharing(max, false);
        let count = 2 + random(9) as usize;
        let groups: Vec<_> = (0..count).map(|number| parent.create(&format!("g{number}")).unwrap()).collect();
        let weights: Vec<u64> = (0..count).map(|_| [50, 100, 300][random(3) as usize]).collect();
        for (group, &weight) in groups.iter().zip(&weights) {
            group.set_weight(weight as u32).unwrap();
        }
        let mut held: Vec<Vec<Charge>> = groups.iter().map(|_| Vec::new()).collect();
        let mut usages = vec![0; count];
        for _ in 0..2000 {
            let at = random(count as u64) as usize;
            if random(5) == 0 {
                if let Some(charge) = held[at].pop() {
                    usages[at] -= charge.bytes();
                }
                continue;
            }
            let bytes = 1 + random(2 * MIB);
            let fits = usages.iter().sum::<u64>() + bytes <= max;
            let is_within = usages[at] + bytes <= may_hold(max, &usages, &weights, at, bytes);
            match groups[at].try_charge(bytes) {
                Ok(charge) => {
                    assert!(fits && is_within, "seed {seed}: {bytes} bytes more than {usages:?} at {at}");
                    usages[at] += bytes;
                    held[at].push(charge);
                }
                Err(error) => {
                    assert!(!fits || !is_within, "seed {seed}: {error}, with {usages:?} at {at}");
                    assert_eq!(error.is_by_share(), !is_within, "seed {seed}: {error}");
                }
            }
        }
        for (group, &usage) in groups.iter().zip(&usages) {
            assert_eq!(group.usage_exact(), usage);
        }
    }
}

#[test]
fn a_dry_run_counts_the_charges_that_shares_would_refuse() {
    for stock in [false, true] {
        let (_hierarchy, parent) = sharing(90 * MIB, stock);
        parent.set_enforced(false);
        let (runaway, small) = (parent.create("runaway").unwrap(), parent.create("small").unwrap());
        let _held = small.try_charge(MIB).unwrap();
        let _charges: Vec<_> = (0..85).map(|_| runaway.try_charge(MIB).unwrap()).collect();
        // Of the 89 MiB that are left to it the runaway may have 8/9, 79.1 MiB.
        assert_eq!(parent.would_refuse(), 6, "stock {stock}");
        let _more = small.try_charge(MIB).unwrap();
        assert_eq!((parent.would_refuse(), parent.over_bytes_max()), (6, 0));
        parent.set_enforced(true);
        assert!(runaway.try_charge(MIB).unwrap_err().is_by_share());
    }
}

#[test]
fn stocks_below_a_sharing_parent_hold_little() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(32).unwrap())).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(128 * MIB).unwrap();
    let small: Vec<_> = (0..8).map(|number| parent.create(&format!("s{number}")).unwrap()).collect();
    let work = || {
        for slot in 0..32 {
            let _pin = pin_virtual(slot);
            for group in &small {
                let burst: Vec<_> = (0..32).map(|_| group.try_charge(4 * KIB).unwrap()).collect();
                drop(burst);
            }
        }
        parent.usage() - parent.usage_exact()
    };
    let before = work();
    assert!(before > 16 * MIB, "{before}: there is something to bound");
    parent.set_share(8).unwrap();
    // A 4a-th is 4 MiB. A grant has room for two caps, and so the bytes are half of it.
    for _ in 0..3 {
        let prepaid = work();
        assert!((64 * KIB..=2 * MIB).contains(&prepaid), "{prepaid}");
    }
    let _pin = pin_virtual(0);
    let runaway = parent.create("runaway").unwrap();
    let got = held(&fill(&runaway, 4 * KIB));
    let right = 128 * MIB * 8 / 9;
    assert!((right - MIB..=right + MIB).contains(&got), "{got}, should be {right}");
    for group in &small {
        assert!(group.try_charge(MIB).is_ok());
    }
}
