//! The cover letter's script, played with our groups.
//!
//!   cg_1  cg_1_1 .. cg_1_10  cg_2  cg_2_1 .. cg_2_10  ...     created in this order
//!   cg_1                     cg_2                     ...     left after the removal
//!
//! - I1. Every group is used on every slot: its statistics are added to and a charge is made, so
//!   its records are backed there.
//! - I2. The sums and the charge of a group that stays are compared after maintenance has moved its
//!   records, and once more after it was used again.
//! - I3. Memory is what the system says about the engine's mappings (`mincore`). A test of memgroup
//!   compares that with the map of pages (`tests/percpu/smaps.rs`).

use std::time::Instant;

use memgroup::PageSize;

use super::groups::{Groups, Member, Mode, Plan, Upkeep};
use crate::harness::prelude::*;

/// The groups of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Script {
    /// Groups that stay.
    pub(super) outer: usize,
    /// Groups beside each that are removed.
    pub(super) inner: usize,
}

impl Script {
    pub(super) fn groups(self) -> usize {
        self.outer * (1 + self.inner)
    }

    /// All names in the order of creation, each with whether the group stays. The others are
    /// removed in the same order.
    pub(super) fn names(self) -> impl Iterator<Item = (String, bool)> {
        let beside = move |outer| (1..=self.inner).map(move |inner| (format!("cg_{outer}_{inner}"), false));
        (1..=self.outer)
            .flat_map(move |outer| [(format!("cg_{outer}"), true)].into_iter().chain(beside(outer)))
    }

    /// The least that can be left, in percent of the peak.
    pub(super) fn limit_percent(self) -> f64 {
        100.0 / (1 + self.inner) as f64
    }
}

/// The moments at which the script reads the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Start,
    Created,
    Removed,
    Maintained,
    AtRest,
}

impl Stage {
    pub(super) const ALL: [(Stage, &str); 5] = [
        (Stage::Start, "start"),
        (Stage::Created, "created"),
        (Stage::Removed, "removed"),
        (Stage::Maintained, "maintained"),
        (Stage::AtRest, "at rest"),
    ];

    pub(super) fn name(self) -> &'static str {
        Stage::ALL[self as usize].1
    }
}

/// The groups' memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footprint {
    /// Backed, on all slots.
    pub(super) populated_bytes: u64,
    /// The records of the groups that are there, as the script counts them.
    pub(super) needed_bytes: u64,
    /// Flushed values and base words beside the slots.
    pub(super) beside_bytes: u64,
    /// Records that were moved until then, by removals too.
    pub(super) moved_bytes: u64,
}

impl Footprint {
    /// Looks at the memory of `groups` while `members` groups are there beside the root and the
    /// parent.
    fn look(groups: &Groups, members: usize) -> Result<Footprint> {
        let (memory, plan) = (groups.hierarchy.percpu(), groups.plan);
        let needed_bytes = plan.needed_bytes(members);
        let (live, folds) = (memory.live_bytes, plan.mode == Mode::Demoted);
        // The root and the parent use no slot, so the first group is what admits them.
        ensure(folds || members == 0 || live >= needed_bytes, || {
            format!("the engine counts {live} live bytes of per-CPU memory, the records take {needed_bytes}")
        })?;
        Ok(Footprint {
            populated_bytes: memory.populated_bytes,
            needed_bytes,
            beside_bytes: groups.beside_bytes(),
            moved_bytes: groups.hierarchy.maintained().moved_bytes,
        })
    }

    pub(super) fn over_needed(&self) -> f64 {
        self.populated_bytes as f64 / self.needed_bytes.max(1) as f64
    }
}

/// One script played in one mode.
pub(super) struct Played {
    pub(super) plan: Plan,
    pub(super) script: Script,
    footprints: [Footprint; Stage::ALL.len()],
    /// The maintenance after the removal.
    pub(super) upkeep: Upkeep,
    /// Nanoseconds of each removal, with the maintenance that it does itself.
    pub(super) removals: Vec<f64>,
}

impl Played {
    pub(super) fn at(&self, stage: Stage) -> Footprint {
        self.footprints[stage as usize]
    }

    /// Of the memory with all groups there.
    pub(super) fn percent_of_peak(&self, stage: Stage) -> f64 {
        let of = |stage| self.at(stage).populated_bytes as f64;
        100.0 * of(stage) / of(Stage::Created).max(1.0)
    }

    /// The same with the bytes beside the slots on both sides.
    pub(super) fn percent_with_beside(&self, stage: Stage) -> f64 {
        let of = |stage| (self.at(stage).populated_bytes + self.at(stage).beside_bytes) as f64;
        100.0 * of(stage) / of(Stage::Created).max(1.0)
    }

    /// Maintenance did what the mode's name says, and nothing else.
    fn check_mode(&self) -> Result<()> {
        let (mode, folded) = (self.plan.mode, self.upkeep.demoted_groups);
        let (peak, at_rest) = (self.at(Stage::Created), self.at(Stage::AtRest));
        let right = match mode {
            Mode::Kept => at_rest.populated_bytes >= peak.populated_bytes,
            Mode::Depopulated => at_rest.moved_bytes + folded == 0,
            // With large pages, few groups may lie on the fewest pages as they are.
            Mode::Relocated => folded == 0 && (at_rest.moved_bytes > 0 || self.plan.page != PageSize::Kib4),
            // A removal may have folded a group, too.
            Mode::Demoted => folded > 0,
        };
        let (moved, of, left) = (at_rest.moved_bytes, peak.populated_bytes, at_rest.populated_bytes);
        ensure(right, || {
            let name = mode.name();
            format!(
                "the mode \"{name}\" moved {moved} bytes, folded {folded} groups, and kept {left} of {of} backed bytes"
            )
        })
    }
}

/// Plays the script. Everything that it makes is gone when it returns.
pub(super) fn play(script: Script, plan: Plan) -> Result<Played> {
    let mut groups = Groups::new(plan)?;
    let start = Footprint::look(&groups, 0)?;
    let (mut staying, going) = create(&mut groups, script)?;
    let created = Footprint::look(&groups, script.groups())?;
    // Otherwise every figure would be smaller, and no goal missed.
    expect(
        "slots with memory after every group was used on all",
        groups.hierarchy.percpu().slots,
        plan.slots.slots(),
    )?;
    let removals = remove_all(going)?;
    let removed = Footprint::look(&groups, script.outer)?;
    let upkeep = groups.maintain();
    let maintained = Footprint::look(&groups, script.outer)?;
    for member in &mut staying {
        member.check()?;
        member.use_on_all_slots()?;
        member.check()?;
    }
    remove_all(staying)?;
    groups.maintain();
    let at_rest = Footprint::look(&groups, 0)?;
    groups.check_gone()?;
    let footprints = [start, created, removed, maintained, at_rest];
    let played = Played { plan, script, footprints, upkeep, removals };
    played.check_mode()?;
    Ok(played)
}

/// Removes all in their order; the nanoseconds of each removal.
fn remove_all(members: Vec<Member>) -> Result<Vec<f64>> {
    let remove = |member: Member| {
        let begin = Instant::now();
        member.remove().map(|()| begin.elapsed().as_nanos() as f64)
    };
    members.into_iter().map(remove).collect()
}

/// Creates all groups in the script's order and uses each; those that stay, and those that go.
fn create(groups: &mut Groups, script: Script) -> Result<(Vec<Member>, Vec<Member>)> {
    let (mut staying, mut going) = (Vec::new(), Vec::new());
    for (name, stays) in script.names() {
        let mut member = groups.create_used(&name)?;
        if stays {
            member.hold_a_charge()?;
        }
        if stays { &mut staying } else { &mut going }.push(member);
    }
    Ok((staying, going))
}

#[cfg(test)]
mod tests {
    use memgroup_percpu::SlotSource;

    use super::*;

    const SCRIPT: Script = Script { outer: 40, inner: 10 };

    fn plan(mode: Mode) -> Plan {
        Plan {
            mode,
            page: PageSize::Kib4,
            slots: SlotSource::virtual_slots(2).unwrap(),
            groups: SCRIPT.groups(),
        }
    }

    #[test]
    fn has_the_seeds_names_in_the_seeds_order() {
        let script = Script { outer: 2, inner: 2 };
        let (names, stay): (Vec<String>, Vec<bool>) = script.names().unzip();
        assert_eq!(names, ["cg_1", "cg_1_1", "cg_1_2", "cg_2", "cg_2_1", "cg_2_2"]);
        assert_eq!(stay, [true, false, false, true, false, false]);
        assert_eq!(script.groups(), names.len());
        assert_eq!(SCRIPT.limit_percent() as u32, 9);
    }

    #[test]
    fn gives_back_at_least_as_much_in_each_further_mode() {
        let mut kept = f64::INFINITY;
        for (mode, _) in Mode::ALL {
            let played = play(SCRIPT, plan(mode)).unwrap();
            let peak = played.at(Stage::Created);
            assert!(peak.populated_bytes >= peak.needed_bytes, "every record is backed: {peak:?}");
            let now = played.percent_of_peak(Stage::Maintained);
            assert!(now <= kept, "{}: {now} % of the peak, {kept} before", mode.name());
            assert!(now <= played.percent_of_peak(Stage::Removed));
            kept = now;
        }
    }
}
