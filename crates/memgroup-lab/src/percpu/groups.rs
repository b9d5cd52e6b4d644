//! The groups of the script: how they are made, used, compared and removed, and how their memory is
//! maintained.
//!
//! A group's records are its stock word and the statistics that the script registers, with a copy
//! on each slot. Each kind of record has an arena of its own.
//!
//! - I1. A group that is used has a number, and adds amounts to some of its statistics on every
//!   slot that follow from the number, the slot and the statistic. So a sum that was lost, counted
//!   twice or mixed up with another's is noticed.
//! - I2. The statistics that are added to lie less than a page of any size apart, so every page of
//!   a record is written.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memgroup::tuning::{PageSize, Tuning};
use memgroup::{
    Charge, Config, Freshness, Group, Hierarchy, Maintenance, Reach, Stat, StatKey, Statistics, Subsystem,
};
use memgroup_percpu::{SlotSource, pin_virtual};

use crate::harness::prelude::*;

/// Statistics that are registered: 2,704 bytes on each slot with the stock word. The letter names
/// no size. Its 11,000 groups took 474 MB, which is 2,700 bytes on each CPU if its machine had 16,
/// as we infer.
const STATISTICS: usize = 337;
/// The distance of the statistics that are added to (I2).
const STATISTIC_STEP: usize = 56;
const WORD_BYTES: u64 = 8;
/// What a group that stays holds.
const HELD_BYTES: u64 = 4096;
/// Groups that an experiment makes beside the script's.
const SPARE_GROUPS: usize = 1024;
/// How long a group must be unused to be folded, in the mode that folds groups.
const IDLE: Duration = Duration::from_secs(1);
/// The most passes of one round of maintenance. A round ends earlier, with the first pass that
/// finds nothing.
const PASSES_MAX: u64 = 1000;
/// The most rounds, in the mode in which one can make work for the next.
const ROUNDS_MAX: u32 = 10;

/// What maintenance may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// Nothing: the control. Neither the script nor removals maintain.
    Kept,
    /// Give empty pages back.
    Depopulated,
    /// Also move records together.
    Relocated,
    /// Also fold the slots of idle groups.
    Demoted,
}

impl Mode {
    pub(super) const ALL: [(Mode, &str); 4] = [
        (Mode::Kept, "no depopulation"),
        (Mode::Depopulated, "depopulation"),
        (Mode::Relocated, "with relocation"),
        (Mode::Demoted, "with cold demotion"),
    ];

    pub(super) fn name(self) -> &'static str {
        Mode::ALL[self as usize].1
    }
}

/// The name of a page size in tables and in the JSON.
pub(super) fn page_name(page: PageSize) -> String {
    match page.bytes() >> 10 {
        kib @ 0..1024 => format!("{kib}k"),
        kib => format!("{}m", kib >> 10),
    }
}

/// The kind of groups, and how their memory is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) page: PageSize,
    pub(super) slots: SlotSource,
    /// The most groups there will be at one time.
    pub(super) groups: usize,
}

impl Plan {
    /// Bytes of a used group's records on one slot.
    pub(super) const RECORD_BYTES: u64 = WORD_BYTES * (1 + STATISTICS) as u64;

    /// Bytes of the records of so many groups on all slots, with the stock words of the root and
    /// the parent, to which no thread charges or adds.
    pub(super) fn needed_bytes(self, members: usize) -> u64 {
        (members as u64 * Plan::RECORD_BYTES + 2 * WORD_BYTES) * self.slots.slots() as u64
    }

    fn config(self) -> Config {
        Config::new()
            .slots(self.slots)
            .groups_max((self.groups + SPARE_GROUPS) as u32)
            .page_size(self.page)
            .maintain_on_removal(self.mode != Mode::Kept)
            .relocate(self.mode >= Mode::Relocated)
            .demote_after((self.mode >= Mode::Demoted).then_some(IDLE))
    }
}

/// A hierarchy with one parent of all the script's groups.
pub(super) struct Groups {
    pub(super) plan: Plan,
    pub(super) hierarchy: Hierarchy,
    statistics: Statistics,
    parent: Group,
    made: AtomicU64,
}

/// The groups' memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footprint {
    /// Backed, on all slots.
    pub(super) populated_bytes: u64,
    /// Those of the stock words, which never move.
    pub(super) stock_bytes: u64,
    /// The records of the groups that are there, as the script counts them.
    needed_bytes: u64,
    /// Flushed values and base words beside the slots.
    pub(super) beside_bytes: u64,
    /// Records that were moved until then, by removals too.
    pub(super) moved_bytes: u64,
}

impl Footprint {
    pub(super) fn over_needed(self) -> f64 {
        self.populated_bytes as f64 / self.needed_bytes.max(1) as f64
    }
}

impl Groups {
    pub(super) fn new(plan: Plan) -> Result<Groups> {
        let hierarchy = fixture::hierarchy(plan.config())?;
        let statistics = register(&hierarchy)?;
        let parent = child(&hierarchy.root(), "percpu_test")?;
        for group in [&hierarchy.root(), &parent] {
            limit(group, FAR_BYTES)?;
        }
        Ok(Groups { plan, hierarchy, statistics, parent, made: AtomicU64::new(1) })
    }

    /// Makes a group.
    pub(super) fn create(&self, name: &str) -> Result<Member> {
        let (group, statistics) = (child(&self.parent, name)?, self.statistics.clone());
        // ORDERING: Relaxed; a number by itself.
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Member { plan: self.plan, group, statistics, held: None, number, times: 0 })
    }

    /// Makes a group and uses it on all slots.
    pub(super) fn create_used(&self, name: &str) -> Result<Member> {
        let mut member = self.create(name)?;
        member.use_on_all_slots()?;
        Ok(member)
    }

    /// Measures the memory with this many members beside the root and the parent.
    pub(super) fn footprint(&self, members: usize) -> Result<Footprint> {
        let (memory, needed_bytes) = (self.hierarchy.percpu(), self.plan.needed_bytes(members));
        let (live, folds) = (memory.live_bytes, self.plan.mode == Mode::Demoted);
        // The root and the parent use no slot, so the first group makes the slots known.
        ensure(folds || members == 0 || live >= needed_bytes, || {
            format!("the engine counts {live} live bytes of per-CPU memory, the records take {needed_bytes}")
        })?;
        // What they take at most, whatever the number of slots.
        let builtin = [self.hierarchy.memory(), self.hierarchy.cpu(), self.hierarchy.io()];
        let all = builtin.iter().chain([&self.statistics]).map(Statistics::footprint);
        Ok(Footprint {
            populated_bytes: memory.populated_bytes,
            stock_bytes: memory.stock_bytes,
            needed_bytes,
            beside_bytes: all.map(|one| (one.group_bytes * one.groups) as u64).sum(),
            moved_bytes: self.hierarchy.maintained().moved_bytes,
        })
    }

    /// Maintains until no more memory goes back; in the control, not at all.
    ///
    /// Where idle groups are folded, a round notes how much the groups have worked so far. Later
    /// rounds get a later clock, and fold the groups that have not worked since.
    pub(super) fn maintain(&self) {
        let rounds = match self.plan.mode {
            Mode::Kept => return,
            Mode::Demoted => ROUNDS_MAX,
            _ => 0,
        };
        let (begin, work) = (Instant::now(), || {
            let done = self.hierarchy.maintained();
            [done.depopulated_bytes, done.moved_bytes, done.demoted_groups]
        });
        for round in 0..=rounds {
            let before = work();
            self.round(begin + round * 2 * IDLE);
            if round > 0 && work() == before {
                break;
            }
        }
    }

    fn round(&self, now: Instant) {
        for _ in 0..PASSES_MAX {
            let done = self.hierarchy.maintain(Maintenance::new().all().at(now));
            if !done.more || done.moved_bytes + done.depopulated_bytes == 0 {
                return;
            }
        }
    }

    /// Checks that no group is left except the root, and that nothing is charged. Then the memory
    /// goes back, the control's too, which would otherwise stay for the next hierarchy of its
    /// kind.
    pub(super) fn check_gone(self) -> Result<()> {
        self.parent.remove().or_wrong("the script's parent stays")?;
        let (groups, dying) = (self.hierarchy.groups().len(), self.hierarchy.dying().len());
        expect("online groups, and removed ones that hold bytes", (groups, dying), (1, 0))?;
        check_empty(&self.hierarchy)?;
        self.round(Instant::now());
        Ok(())
    }
}

fn register(hierarchy: &Hierarchy) -> Result<Statistics> {
    // Once in a process, because the names of statistics are never freed.
    static STATS: OnceLock<Vec<Stat>> = OnceLock::new();
    let name = |number| &*format!("stat{number}").leak();
    let stats = STATS.get_or_init(|| (0..STATISTICS).map(|number| Stat::gauge(name(number))).collect());
    hierarchy.register(Subsystem { name: "script", stats }).set_up("the script's statistics")
}

/// One group of the script.
pub(super) struct Member {
    plan: Plan,
    pub(super) group: Group,
    pub(super) statistics: Statistics,
    held: Option<Charge>,
    number: u64,
    /// How often it was used on all slots.
    times: i64,
}

impl Member {
    /// Adds to statistics and makes a charge on every slot. The slots must be virtual.
    pub(super) fn use_on_all_slots(&mut self) -> Result<()> {
        for slot in 0..self.plan.slots.slots() {
            let _on_it = pin_virtual(slot);
            for key in self.used() {
                self.statistics.add(&self.group, key, self.amount(slot, key.index()));
            }
            self.pair()?;
        }
        self.times += 1;
        Ok(())
    }

    /// Charges the bytes that a group that stays holds until it is removed.
    pub(super) fn hold_a_charge(&mut self) -> Result<()> {
        self.held = Some(self.charge()?);
        Ok(())
    }

    /// Checks that the sums are the additions, and that the usage is the held charge.
    pub(super) fn check(&self) -> Result<()> {
        for key in self.used() {
            let slots = 0..self.plan.slots.slots();
            let right: i64 = slots.map(|slot| self.amount(slot, key.index())).sum::<i64>() * self.times;
            let sum = self.statistics.get(&self.group, key, Reach::Local, Freshness::Fresh);
            expect(format_args!("{} of {}", key.stat().name(), self.group.path()), sum, right)?;
        }
        let held = self.held.as_ref().map_or(0, Charge::bytes);
        expect_bytes(&self.group, "usage without stock", self.group.usage_exact(), held)
    }

    pub(super) fn remove(self) -> Result<()> {
        let Member { group, held, .. } = self;
        drop(held);
        group.remove().or_wrong(format_args!("{} cannot be removed", group.path()))
    }

    /// A charge and its uncharge.
    #[inline]
    pub(super) fn pair(&self) -> Result<()> {
        self.charge().map(drop)
    }

    #[inline]
    fn charge(&self) -> Result<Charge> {
        self.group.try_charge(HELD_BYTES).or_wrong("a charge far below every limit was refused")
    }

    /// The statistics that are added to.
    pub(super) fn used(&self) -> impl Iterator<Item = StatKey> {
        self.statistics.keys().step_by(STATISTIC_STEP)
    }

    fn amount(&self, slot: usize, stat: usize) -> i64 {
        (self.number * 1009 + slot as u64 * 31 + stat as u64 + 1) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    fn groups(mode: Mode) -> Groups {
        let slots = SlotSource::virtual_slots(3).unwrap();
        Groups::new(Plan { mode, page: PageSize::Kib4, slots, groups: 100 }).unwrap()
    }

    #[test]
    fn needs_the_records_on_all_slots_and_some_bytes_beside_them() {
        let groups = groups(Mode::Kept);
        assert_eq!(Plan::RECORD_BYTES, 2704);
        assert_eq!(groups.plan.needed_bytes(9), (9 * 2704 + 2 * 8) * 3);
        let before = groups.footprint(0).unwrap().beside_bytes;
        let member = groups.create_used("one").unwrap();
        assert!(
            groups.footprint(1).unwrap().beside_bytes - before >= (STATISTICS * 32) as u64,
            "32 bytes a statistic"
        );
        member.remove().unwrap();
        groups.check_gone().unwrap();
    }

    #[test]
    fn fails_when_a_member_counts_or_holds_other_bytes() {
        for (stat, delta) in [(56, 1), (0, -1)] {
            let groups = groups(Mode::Relocated);
            let mut member = groups.create("one").unwrap();
            member.use_on_all_slots().unwrap();
            member.hold_a_charge().unwrap();
            member.check().unwrap();
            let key = member.statistics.keys().nth(stat).unwrap();
            member.statistics.add(&member.group, key, delta);
            assert!(matches!(member.check(), Err(Error::Wrong(_))));
            member.remove().unwrap();
            groups.check_gone().unwrap();
        }
    }

    #[test]
    fn fails_when_a_group_is_left() {
        let groups = groups(Mode::Relocated);
        let _left = groups.create("left").unwrap();
        let error = groups.check_gone().unwrap_err();
        assert!(matches!(&error, Error::Wrong(text) if text.contains("stays")), "{error}");
    }

    #[test]
    fn loses_no_count_or_charge_in_maintenance() {
        for (mode, _) in Mode::ALL {
            let groups = groups(mode);
            let mut members: Vec<Member> =
                (0..100).map(|number| groups.create(&format!("g{number}")).unwrap()).collect();
            for member in &mut members {
                member.use_on_all_slots().unwrap();
                member.hold_a_charge().unwrap();
            }
            let mut number = 0;
            let (stay, go): (Vec<Member>, Vec<Member>) = members.into_iter().partition(|_| {
                number += 1;
                number % 10 == 0
            });
            go.into_iter().for_each(|member| member.remove().unwrap());
            let before = groups.hierarchy.maintained();
            groups.maintain();
            let after = groups.hierarchy.maintained();
            let moved = after.moved_records - before.moved_records;
            let folded = after.demoted_groups - before.demoted_groups;
            if mode != Mode::Demoted {
                assert_eq!(moved > 0, mode == Mode::Relocated, "{mode:?}: {after:?}");
            }
            assert_eq!(folded >= 10, mode == Mode::Demoted, "{mode:?}: {after:?}");
            for mut member in stay {
                member.check().unwrap();
                member.use_on_all_slots().unwrap();
                member.check().unwrap();
                member.remove().unwrap();
            }
            groups.check_gone().unwrap();
        }
    }
}
