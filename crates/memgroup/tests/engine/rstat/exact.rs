//! Random sequences of operations on groups and statistics, against sums of a plain model.

use std::collections::BTreeMap;
use std::time::Duration;

use memgroup::tuning::Tuning;
use memgroup::{
    Charge, Config, Freshness, Group, Hierarchy, Maintenance, Reach, SlotSource, Stat, Statistics, Subsystem,
};
use memgroup_percpu::pin_virtual;
use proptest::prelude::*;

const FIRST: Subsystem =
    Subsystem { name: "first", stats: &[Stat::gauge("a"), Stat::gauge("b"), Stat::gauge("c")] };
const SECOND: Subsystem = Subsystem { name: "second", stats: &[Stat::gauge("x")] };
const SUBSYSTEMS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    /// Adds to a statistic of one of the groups there are, removed ones included.
    Add {
        group: usize,
        slot: usize,
        subsystem: usize,
        stat: usize,
        delta: i64,
    },
    Create {
        parent: usize,
    },
    Remove {
        group: usize,
    },
    /// Drops the handle on a removed group.
    Forget {
        group: usize,
    },
    Charge {
        group: usize,
    },
    Uncharge {
        charge: usize,
    },
    Flush {
        group: usize,
        subsystem: usize,
    },
    Read {
        group: usize,
        subsystem: usize,
    },
    ReadTree {
        group: usize,
        subsystem: usize,
    },
    Maintain,
}

fn step() -> impl Strategy<Value = Step> {
    let (group, slot) = (any::<u16>().prop_map(usize::from), 0..600_usize);
    let subsystem = 0..SUBSYSTEMS;
    prop_oneof![
        8 => (group.clone(), slot, subsystem.clone(), 0..3_usize, -1000..1000_i64)
            .prop_map(|(group, slot, subsystem, stat, delta)| Step::Add { group, slot, subsystem, stat, delta }),
        4 => group.clone().prop_map(|parent| Step::Create { parent }),
        3 => group.clone().prop_map(|group| Step::Remove { group }),
        2 => group.clone().prop_map(|group| Step::Forget { group }),
        2 => group.clone().prop_map(|group| Step::Charge { group }),
        2 => group.clone().prop_map(|charge| Step::Uncharge { charge }),
        2 => (group.clone(), subsystem.clone()).prop_map(|(group, subsystem)| Step::Flush { group, subsystem }),
        4 => (group.clone(), subsystem.clone()).prop_map(|(group, subsystem)| Step::Read { group, subsystem }),
        1 => (group, subsystem).prop_map(|(group, subsystem)| Step::ReadTree { group, subsystem }),
        1 => Just(Step::Maintain),
    ]
}

type Sums = [[i64; 3]; SUBSYSTEMS];

/// A group with a handle.
struct Held {
    group: Group,
    number: usize,
}

/// The sums of every group that ever was; the groups themselves as far as handles are held.
struct Model {
    hierarchy: Hierarchy,
    statistics: Vec<Statistics>,
    held: Vec<Held>,
    parents: Vec<Option<usize>>,
    local: Vec<Sums>,
    charges: Vec<(usize, Charge)>,
    slots: usize,
}

impl Model {
    fn new(slots: usize, unified: bool, demote: bool) -> Model {
        let config = Config::with_slots(SlotSource::virtual_slots(slots).unwrap())
            .separate_trees(!unified)
            .demote_after(demote.then_some(Duration::ZERO))
            .depth_max(5);
        let hierarchy = Hierarchy::new(config).unwrap();
        let statistics = [FIRST, SECOND].map(|subsystem| hierarchy.register(subsystem).unwrap()).to_vec();
        let held = vec![Held { group: hierarchy.root(), number: 0 }];
        Model {
            hierarchy,
            statistics,
            held,
            parents: vec![None],
            local: vec![Sums::default()],
            charges: Vec::new(),
            slots,
        }
    }

    fn pick(&self, group: usize) -> &Held {
        &self.held[group % self.held.len()]
    }

    fn is_within(&self, number: usize, top: usize) -> bool {
        std::iter::successors(Some(number), |&at| self.parents[at]).any(|at| at == top)
    }

    fn subtree(&self, top: usize, subsystem: usize) -> [i64; 3] {
        let mut sum = [0; 3];
        for number in (0..self.local.len()).filter(|&number| self.is_within(number, top)) {
            for (sum, value) in sum.iter_mut().zip(self.local[number][subsystem]) {
                *sum += value;
            }
        }
        sum
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Add { group, slot, subsystem, stat, delta } => {
                let statistics = &self.statistics[subsystem];
                let (stat, number) = (stat % statistics.stats().len(), self.pick(group).number);
                let _pin = pin_virtual(slot % self.slots);
                statistics.add(&self.pick(group).group, super::nth(statistics, stat), delta);
                self.local[number][subsystem][stat] += delta;
            }
            Step::Create { parent } => {
                let parent = self.pick(parent);
                let number = self.parents.len();
                if let Ok(group) = parent.group.create(&format!("g{number}")) {
                    let above = parent.number;
                    self.held.push(Held { group, number });
                    self.parents.push(Some(above));
                    self.local.push(Sums::default());
                }
            }
            Step::Remove { group } => _ = self.pick(group).group.remove(),
            Step::Forget { group } => {
                let index = group % self.held.len();
                if !self.held[index].group.is_online() {
                    self.held.swap_remove(index);
                }
            }
            Step::Charge { group } => {
                let held = self.pick(group);
                if let Ok(charge) = held.group.try_charge(100) {
                    self.charges.push((held.number, charge));
                }
            }
            Step::Uncharge { charge } => {
                if !self.charges.is_empty() {
                    drop(self.charges.swap_remove(charge % self.charges.len()));
                }
            }
            Step::Flush { group, subsystem } => self.statistics[subsystem].flush(&self.pick(group).group),
            Step::Read { group, subsystem } => self.check(self.pick(group), subsystem),
            Step::ReadTree { group, subsystem } => self.check_tree(self.pick(group), subsystem),
            Step::Maintain => _ = self.hierarchy.maintain(Maintenance::new().expedited()),
        }
    }

    fn check(&self, held: &Held, subsystem: usize) {
        let statistics = &self.statistics[subsystem];
        let width = statistics.stats().len();
        let read = |reach| {
            let mut values = vec![0; width];
            statistics.read(&held.group, reach, Freshness::Fresh, &mut values);
            values
        };
        assert_eq!(read(Reach::Local), self.local[held.number][subsystem][..width], "{:?}", held.group);
        assert_eq!(read(Reach::Subtree), self.subtree(held.number, subsystem)[..width], "{:?}", held.group);
    }

    fn check_tree(&self, top: &Held, subsystem: usize) {
        let name = self.statistics[subsystem].name();
        let by_id: BTreeMap<_, _> = self.held.iter().map(|held| (held.group.id(), held.number)).collect();
        for row in top.group.snapshot().groups.iter().filter(|row| row.online) {
            let number = by_id[&row.id];
            let values = row.subsystem(name).unwrap();
            let width = values.local.len();
            assert_eq!(values.local, &self.local[number][subsystem][..width]);
            assert_eq!(values.hierarchical, &self.subtree(number, subsystem)[..width]);
        }
    }

    /// All groups go; the root has the past of all.
    fn end(mut self) {
        for subsystem in 0..SUBSYSTEMS {
            self.held.iter().for_each(|held| self.check(held, subsystem));
        }
        let mut groups = std::mem::take(&mut self.held);
        groups.sort_by_key(|held| std::cmp::Reverse(held.number));
        for held in groups {
            if held.number > 0 {
                let _ = held.group.remove();
            }
        }
        self.charges.clear();
        let root = Held { group: self.hierarchy.root(), number: 0 };
        (0..SUBSYSTEMS).for_each(|subsystem| self.check(&root, subsystem));
        assert_eq!((self.hierarchy.groups().len(), self.hierarchy.dying().len()), (1, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(debug_assertions) { 150 } else { 400 }, ..ProptestConfig::default() })]
    #[test]
    fn sums_all_additions_after_any_steps(
        slots in prop_oneof![Just(1_usize), Just(2), Just(70)],
        unified in any::<bool>(),
        demote in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut model = Model::new(slots, unified, demote);
        steps.into_iter().for_each(|step| model.take(step));
        model.end();
    }
}
