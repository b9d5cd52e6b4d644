//! Property: whatever is done to a tree, it agrees with a ledger that a single thread can keep.

use std::collections::BTreeMap;

use memgroup::{Charge, Config, Group, Hierarchy, SlotSource};
use memgroup_percpu::pin_virtual;
use proptest::prelude::*;

/// The engine, done plainly: live bytes by group, limits, no stock.
#[derive(Default)]
struct Ledger {
    /// Parent, limit and live bytes of the group itself.
    groups: BTreeMap<usize, (Option<usize>, Option<u64>, u64)>,
}

impl Ledger {
    fn usage(&self, id: usize) -> u64 {
        let below = self.groups.iter().filter(|(_, group)| group.0 == Some(id));
        self.groups[&id].2 + below.map(|(&child, _)| self.usage(child)).sum::<u64>()
    }

    /// Groups from `id` to the root, except those from `above` on.
    fn path(&self, id: usize, above: Option<usize>) -> Vec<usize> {
        let up = std::iter::successors(Some(id), |at| self.groups[at].0);
        up.take_while(|&at| Some(at) != above).collect()
    }

    fn fits(&self, id: usize, above: Option<usize>, bytes: u64) -> bool {
        let mut levels = self.path(id, above).into_iter();
        levels.all(|at| self.groups[&at].1.is_none_or(|max| self.usage(at) + bytes <= max))
    }

    fn common(&self, a: usize, b: usize) -> usize {
        let of_b = self.path(b, None);
        *self.path(a, None).iter().find(|at| of_b.contains(at)).unwrap()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create { parent: usize },
    Remove { group: usize },
    Charge { group: usize, slot: usize, bytes: u64 },
    Force { group: usize, slot: usize, bytes: u64 },
    Drop { charge: usize, slot: usize },
    Grow { charge: usize, slot: usize, bytes: u64 },
    Shrink { charge: usize, slot: usize, part: u64 },
    Split { charge: usize, part: u64 },
    Merge { charge: usize, other: usize },
    Move { charge: usize, group: usize },
    SetMax { group: usize, max: Option<u64> },
    Drain { group: usize },
}

fn bytes() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![0..10u64, 1..5000u64, 1..200_000u64, 1..3_000_000u64]
}

fn step() -> impl Strategy<Value = Step> {
    let (any, slot) = (0..1000usize, 0..8usize);
    let many = (any.clone(), slot.clone(), bytes());
    prop_oneof![
        2 => any.clone().prop_map(|parent| Step::Create { parent }),
        1 => any.clone().prop_map(|group| Step::Remove { group }),
        8 => many.clone().prop_map(|(group, slot, bytes)| Step::Charge { group, slot, bytes }),
        1 => many.clone().prop_map(|(group, slot, bytes)| Step::Force { group, slot, bytes }),
        6 => (any.clone(), slot.clone()).prop_map(|(charge, slot)| Step::Drop { charge, slot }),
        3 => many.clone().prop_map(|(charge, slot, bytes)| Step::Grow { charge, slot, bytes }),
        3 => many.prop_map(|(charge, slot, part)| Step::Shrink { charge, slot, part }),
        1 => (any.clone(), bytes()).prop_map(|(charge, part)| Step::Split { charge, part }),
        1 => (any.clone(), any.clone()).prop_map(|(charge, other)| Step::Merge { charge, other }),
        2 => (any.clone(), any.clone()).prop_map(|(charge, group)| Step::Move { charge, group }),
        2 => (any.clone(), prop_oneof![bytes().prop_map(Some), Just(None)]).prop_map(|(group, max)| Step::SetMax { group, max }),
        1 => any.prop_map(|group| Step::Drain { group }),
    ]
}

/// Engine and ledger side by side.
struct Both {
    hierarchy: Hierarchy,
    ledger: Ledger,
    /// Online and removed groups alike; a removed one keeps its number.
    groups: Vec<Group>,
    charges: Vec<(usize, Charge)>,
}

impl Both {
    fn new(config: Config) -> Both {
        let hierarchy = Hierarchy::new(config).unwrap();
        let ledger = Ledger { groups: BTreeMap::from([(0, (None, None, 0))]) };
        Both { groups: vec![hierarchy.root()], hierarchy, ledger, charges: Vec::new() }
    }

    fn take(&mut self, pick: usize) -> Option<(usize, Charge)> {
        (!self.charges.is_empty()).then(|| self.charges.swap_remove(pick % self.charges.len()))
    }

    fn live(&mut self, group: usize) -> &mut u64 {
        &mut self.ledger.groups.get_mut(&group).unwrap().2
    }

    fn run(&mut self, step: Step) {
        let pick = |n: usize| n % self.groups.len();
        match step {
            Step::Create { parent } => {
                let parent = pick(parent);
                let number = self.groups.len();
                if let Ok(group) = self.groups[parent].create(&format!("g{number}")) {
                    self.groups.push(group);
                    self.ledger.groups.insert(number, (Some(parent), None, 0));
                }
            }
            Step::Remove { group } => {
                let group = pick(group);
                let children = self.groups[group].children().len();
                let may = group != 0 && self.groups[group].is_online() && children == 0;
                assert_eq!(self.groups[group].remove().is_ok(), may);
            }
            Step::Charge { group, slot, bytes } => {
                let (group, _pin) = (pick(group), pin_virtual(slot));
                let may =
                    self.groups[group].is_online() && (bytes == 0 || self.ledger.fits(group, None, bytes));
                let charge = self.groups[group].try_charge(bytes);
                assert_eq!(charge.is_ok(), may, "{bytes} to {:?}: {charge:?}", self.groups[group]);
                if let Ok(charge) = charge {
                    *self.live(group) += bytes;
                    self.charges.push((group, charge));
                }
            }
            Step::Force { group, slot, bytes } => {
                let (group, _pin) = (pick(group), pin_virtual(slot));
                let charge = self.groups[group].charge_forced(bytes).unwrap();
                *self.live(group) += bytes;
                self.charges.push((group, charge));
            }
            Step::Drop { charge, slot } => {
                let _pin = pin_virtual(slot);
                if let Some((group, charge)) = self.take(charge) {
                    *self.live(group) -= charge.bytes();
                }
            }
            Step::Grow { charge, slot, bytes } => {
                let _pin = pin_virtual(slot);
                if let Some((group, mut charge)) = self.take(charge) {
                    let may = bytes == 0
                        || (self.groups[group].is_online() && self.ledger.fits(group, None, bytes));
                    assert_eq!(charge.try_grow(bytes).is_ok(), may);
                    *self.live(group) += if may { bytes } else { 0 };
                    self.charges.push((group, charge));
                }
            }
            Step::Shrink { charge, slot, part } => {
                let _pin = pin_virtual(slot);
                if let Some((group, mut charge)) = self.take(charge) {
                    let part = part.min(charge.bytes());
                    charge.shrink(part);
                    *self.live(group) -= part;
                    self.charges.push((group, charge));
                }
            }
            Step::Split { charge, part } => {
                if let Some((group, mut charge)) = self.take(charge) {
                    let part = charge.split(part.min(charge.bytes()));
                    self.charges.extend([(group, charge), (group, part)]);
                }
            }
            Step::Merge { charge, other } => {
                if self.charges.len() < 2 {
                    return;
                }
                if let (Some((group, mut charge)), Some((of, other))) = (self.take(charge), self.take(other))
                {
                    match charge.merge(other) {
                        Ok(()) => assert_eq!(group, of),
                        Err(back) => {
                            assert_ne!(group, of);
                            self.charges.push((of, back));
                        }
                    }
                    self.charges.push((group, charge));
                }
            }
            Step::Move { charge, group } => {
                let target = pick(group);
                if let Some((group, mut charge)) = self.take(charge) {
                    let (bytes, common) = (charge.bytes(), self.ledger.common(group, target));
                    let online = self.groups[target].is_online();
                    let fits = bytes == 0 || self.ledger.fits(target, Some(common), bytes);
                    let may = group == target || (online && fits);
                    assert_eq!(charge.try_move_to(&self.groups[target]).is_ok(), may);
                    if may {
                        *self.live(group) -= bytes;
                        *self.live(target) += bytes;
                    }
                    self.charges.push((if may { target } else { group }, charge));
                }
            }
            Step::SetMax { group, max } => {
                let group = pick(group);
                self.groups[group].set_max(max).unwrap();
                self.ledger.groups.get_mut(&group).unwrap().1 = max;
            }
            Step::Drain { group } => {
                let group = &self.groups[pick(group)];
                group.drain();
                assert_eq!(group.usage(), group.usage_exact());
            }
        }
    }

    fn agree(&self) {
        for (number, group) in self.groups.iter().enumerate() {
            let usage = self.ledger.usage(number);
            // A removed group keeps no stock, but its ancestors count the stocks of their other
            // children.
            assert_eq!(group.usage_exact(), usage, "group {number}: {group:?}");
            assert!(group.usage() >= usage && group.peak() >= usage);
            assert_eq!(group.max(), self.ledger.groups[&number].1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_step_agrees_with_the_ledger(
        steps in prop::collection::vec(step(), 1..150),
        slots in prop_oneof![Just(1usize), Just(2), Just(8)],
        cap in prop_oneof![Just(0u64), Just(8192), Just(256 << 10), Just(4 << 20)],
        budget in prop_oneof![Just(16u64 << 10), Just(8 << 20)],
    ) {
        let source = SlotSource::virtual_slots(slots).unwrap();
        let mut both =
            Both::new(Config::with_slots(source).stock_cap_bytes(cap).stock_budget_bytes(budget).depth_max(6));
        for step in steps {
            both.run(step);
            both.agree();
        }
        both.charges.clear();
        for group in &both.groups {
            prop_assert_eq!(group.usage_exact(), 0);
        }
        both.hierarchy.root().drain();
        prop_assert_eq!(both.hierarchy.root().usage(), 0);
        prop_assert!(both.hierarchy.dying().is_empty());
    }
}
