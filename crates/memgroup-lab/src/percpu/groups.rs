//! The groups of the script: how they are made, used, compared and removed, and how their memory is maintained.
//!
//! A group's records are its stock word, the engine's own statistics of memory and those that the script registers, each with a copy on
//! each slot, and each kind in an arena of its own.
//!
//! - I1. A group that is used has a number, and adds to some of its statistics, on every slot, amounts that follow from the number, the
//!   slot and the statistic; so a sum that was mixed up with another's, lost or taken twice is seen.
//! - I2. The statistics that are added to lie less than a page of any size apart, so every page of a record is written.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use memgroup::{
    Charge, Config, Freshness, Group, Hierarchy, Maintenance, Reach, Stat, StatKey, Statistics, Subsystem,
};
use memgroup_percpu::{SlotSource, pin_virtual};

use crate::Page;
use crate::harness::prelude::*;

/// Statistics that are registered: with the stock word 2,704 bytes on each slot. The seed's groups took 2,700.
const SEED_STATISTICS: usize = 337;
/// The engine's own: of memory, of time in scopes, and of input and output.
const BUILTIN_STATISTICS: usize = memgroup::stats::memory::THROTTLED_USEC.index() + 1 + 7;
/// From one statistic that is added to to the next (I2).
const STATISTIC_STEP: usize = 56;
const WORD_BYTES: u64 = 8;
/// Bytes that a group that stays holds.
const HELD_BYTES: u64 = 4096;
/// Groups that the experiment makes beside the script's.
const SPARE_GROUPS: usize = 1024;
/// After how long without use a group is folded, where groups are.
const IDLE: Duration = Duration::from_secs(1);
/// The most passes of one round of maintenance; a round ends before, when a pass finds nothing more.
const PASSES_MAX: u64 = 1000;
/// The most rounds, where one can make work for the next.
const ROUNDS_MAX: u32 = 10;

/// The work that maintenance may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// Nothing: the control. Neither the script nor removals maintain.
    Kept,
    /// Give empty pages back.
    Depopulated,
    /// And move records together.
    Relocated,
    /// And fold the slots of idle groups.
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

/// The kind of groups, and how their memory is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) page: Page,
    pub(super) slots: SlotSource,
    /// How many statistics are registered.
    pub(super) statistics: usize,
    /// The most groups there will be at one time.
    pub(super) groups: usize,
    /// Whether removals maintain too, which is the default, where anything is maintained.
    pub(super) on_removal: bool,
}

impl Plan {
    /// Groups with records of the seed's size.
    pub(super) fn new(mode: Mode, page: Page, slots: SlotSource, groups: usize) -> Plan {
        Plan { mode, page, slots, statistics: SEED_STATISTICS, groups, on_removal: true }
    }

    /// Bytes of a used group's records on one slot.
    pub(super) fn record_bytes(self) -> u64 {
        WORD_BYTES * (1 + self.statistics) as u64
    }

    /// Bytes of the records of so many groups on so many slots, with the stock words of the root and the parent, to which no thread
    /// charges or adds.
    pub(super) fn needed_bytes(self, members: usize, slots: usize) -> u64 {
        (members as u64 * self.record_bytes() + 2 * WORD_BYTES) * slots as u64
    }

    /// Bytes of a group's flushed statistics beside the records: four words each, nearly.
    pub(super) fn bytes_beside(self) -> u64 {
        4 * WORD_BYTES * (BUILTIN_STATISTICS + self.statistics) as u64
    }

    /// Kinds of records that so many groups do not have. The arena of each has one chunk, set aside for the first.
    pub(super) fn kinds_unused(self, members: usize) -> usize {
        // Memory, which is counted in the node as long as a group misses its stock a few times, time in scopes, and input and output.
        let never = 3;
        let registered = usize::from(self.statistics > 0);
        if members > 0 { never } else { never + registered }
    }

    fn config(self) -> Config {
        Config::new()
            .slots(self.slots)
            // A hierarchy with other statistics is of another kind: none is given the arenas of one that was played before.
            .groups_max((self.groups + SPARE_GROUPS + self.statistics) as u32)
            .page_size(self.page.size())
            .maintain_on_removal(self.on_removal && self.mode != Mode::Kept)
            .relocate(self.mode >= Mode::Relocated)
            .demote_after((self.mode >= Mode::Demoted).then_some(IDLE))
    }
}

/// A hierarchy with one parent of all the script's groups.
pub(super) struct Groups {
    pub(super) plan: Plan,
    pub(super) hierarchy: Hierarchy,
    /// Those that are registered, if any are.
    statistics: Option<Statistics>,
    parent: Group,
    made: u64,
}

/// The work of a round of maintenance.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Upkeep {
    pub(super) took: Duration,
    /// Of it, waits for the end of sections.
    pub(super) waited: Duration,
    pub(super) passes: u64,
    pub(super) depopulated_bytes: u64,
    pub(super) moved_bytes: u64,
    pub(super) moved_records: u64,
    pub(super) demoted_groups: u64,
}

impl Groups {
    pub(super) fn new(plan: Plan) -> Result<Groups> {
        let hierarchy = fixture::hierarchy(plan.config())?;
        let statistics = register(&hierarchy, plan.statistics)?;
        let parent = child(&hierarchy.root(), "percpu_test")?;
        for group in [&hierarchy.root(), &parent] {
            limit(group, FAR_BYTES)?;
        }
        Ok(Groups { plan, hierarchy, statistics, parent, made: 0 })
    }

    /// Makes a group.
    pub(super) fn create(&mut self, name: &str) -> Result<Member> {
        let group = child(&self.parent, name)?;
        self.made += 1;
        let statistics = self.statistics.clone();
        Ok(Member { plan: self.plan, group, statistics, held: None, number: self.made, times: 0 })
    }

    /// Makes a group and uses it on all slots.
    pub(super) fn create_used(&mut self, name: &str) -> Result<Member> {
        let mut member = self.create(name)?;
        member.use_on_all_slots()?;
        Ok(member)
    }

    /// Bytes that each group has on the heap beside its records, by the engine: flushed statistics, and those that wait for a flush while it has none.
    pub(super) fn bytes_beside(&self) -> usize {
        let builtin = [self.hierarchy.memory(), self.hierarchy.cpu(), self.hierarchy.io()];
        builtin.iter().chain(&self.statistics).map(|statistics| statistics.footprint().group_bytes).sum()
    }

    /// Maintains until no more memory goes back; in the control, not at all.
    ///
    /// Where idle groups are folded, a round notes the work of the groups so far. Later rounds get a later clock, and fold the groups that
    /// did no more.
    pub(super) fn maintain(&self) -> Upkeep {
        let (begin, mut upkeep) = (Instant::now(), Upkeep::default());
        if self.plan.mode == Mode::Kept {
            return upkeep;
        }
        let rounds = if self.plan.mode >= Mode::Demoted { ROUNDS_MAX } else { 0 };
        for round in 0..=rounds {
            let before = upkeep;
            self.round(begin + round * 2 * IDLE, &mut upkeep);
            let work = |of: &Upkeep| [of.depopulated_bytes, of.moved_bytes, of.demoted_groups];
            if round > 0 && work(&upkeep) == work(&before) {
                break;
            }
        }
        upkeep.took = begin.elapsed();
        upkeep
    }

    fn round(&self, now: Instant, upkeep: &mut Upkeep) {
        for _ in 0..PASSES_MAX {
            let done = self.hierarchy.maintain(Maintenance::new().all().at(now));
            upkeep.passes += 1;
            upkeep.waited += done.grace;
            upkeep.depopulated_bytes += done.depopulated_bytes;
            upkeep.moved_bytes += done.moved_bytes;
            upkeep.moved_records += done.moved_records;
            upkeep.demoted_groups += done.demoted_groups;
            if !done.more || done.moved_bytes + done.depopulated_bytes == 0 {
                return;
            }
        }
    }

    /// All members are removed: no group is left except the root, and nothing is charged. The memory goes back, the control's too,
    /// which would stay for the next hierarchy of its kind otherwise.
    pub(super) fn check_gone(self) -> Result<()> {
        self.parent.remove().or_wrong("the script's parent stays")?;
        let (groups, dying) = (self.hierarchy.groups().len(), self.hierarchy.dying().len());
        expect("online groups, and removed ones that hold bytes", (groups, dying), (1, 0))?;
        check_empty(&self.hierarchy)?;
        self.round(Instant::now(), &mut Upkeep::default());
        Ok(())
    }
}

/// The plan's statistics; none where it has none.
fn register(hierarchy: &Hierarchy, count: usize) -> Result<Option<Statistics>> {
    if count == 0 {
        return Ok(None);
    }
    // Once a process: their names are for ever.
    static STATS: OnceLock<Vec<Stat>> = OnceLock::new();
    let name = |number| &*format!("stat{number}").leak();
    let stats = STATS.get_or_init(|| (0..SEED_STATISTICS).map(|number| Stat::gauge(name(number))).collect());
    let subsystem = Subsystem { name: "script", stats: &stats[..count] };
    hierarchy.register(subsystem).map(Some).set_up("the script's statistics")
}

/// One group of the script.
pub(super) struct Member {
    plan: Plan,
    pub(super) group: Group,
    /// The registered statistics, if there are any.
    pub(super) statistics: Option<Statistics>,
    held: Option<Charge>,
    number: u64,
    /// How often it was used on all slots.
    times: i64,
}

impl Member {
    /// Adds to statistics and makes a charge on every slot, which must be virtual.
    pub(super) fn use_on_all_slots(&mut self) -> Result<()> {
        for slot in 0..self.plan.slots.slots() {
            let _on_it = pin_virtual(slot);
            for (key, statistics) in self.used() {
                statistics.add(&self.group, key, self.amount(slot, key.index()));
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

    /// The sums are the additions, the usage is the held charge.
    pub(super) fn check(&self) -> Result<()> {
        for (key, statistics) in self.used() {
            let slots = 0..self.plan.slots.slots();
            let right: i64 = slots.map(|slot| self.amount(slot, key.index())).sum::<i64>() * self.times;
            let sum = statistics.get(&self.group, key, Reach::Local, Freshness::Fresh);
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
    fn used(&self) -> impl Iterator<Item = (StatKey, &Statistics)> {
        let keys = |statistics: &Statistics| statistics.keys().step_by(STATISTIC_STEP);
        let all = self.statistics.as_ref();
        all.into_iter().flat_map(move |statistics| keys(statistics).map(move |key| (key, statistics)))
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
        Groups::new(Plan::new(mode, Page::K4, slots, 100)).unwrap()
    }

    #[test]
    fn makes_a_record_as_large_as_the_seeds() {
        let groups = groups(Mode::Kept);
        assert_eq!(groups.plan.record_bytes(), 2704);
        assert_eq!(groups.plan.needed_bytes(9, 3), (9 * 2704 + 2 * 8) * 3);
        let (reckoned, told) = (groups.plan.bytes_beside(), groups.bytes_beside() as u64);
        assert!((reckoned..reckoned * 11 / 10).contains(&told), "{reckoned} reckoned, {told} by the engine");
    }

    #[test]
    fn fails_when_a_member_counts_or_holds_other_bytes() {
        for (stat, delta) in [(56, 1), (0, -1)] {
            let mut groups = groups(Mode::Relocated);
            let mut member = groups.create("one").unwrap();
            member.use_on_all_slots().unwrap();
            member.hold_a_charge().unwrap();
            member.check().unwrap();
            let statistics = member.statistics.as_ref().unwrap();
            statistics.add(&member.group, statistics.keys().nth(stat).unwrap(), delta);
            assert!(matches!(member.check(), Err(Error::Wrong(_))));
            member.remove().unwrap();
            groups.check_gone().unwrap();
        }
    }

    #[test]
    fn fails_when_a_group_is_left() {
        let mut groups = groups(Mode::Relocated);
        let _left = groups.create("left").unwrap();
        let error = groups.check_gone().unwrap_err();
        assert!(matches!(&error, Error::Wrong(text) if text.contains("stays")), "{error}");
    }

    #[test]
    fn loses_no_count_or_charge_in_maintenance() {
        for (mode, _) in Mode::ALL {
            let mut groups = groups(mode);
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
            let upkeep = groups.maintain();
            if mode != Mode::Demoted {
                assert_eq!(upkeep.moved_records > 0, mode == Mode::Relocated, "{mode:?}: {upkeep:?}");
            }
            assert_eq!(upkeep.demoted_groups >= 10, mode == Mode::Demoted, "{mode:?}: {upkeep:?}");
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
