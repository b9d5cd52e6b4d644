//! The seed's script, played with our groups.
//!
//!   cg_1  cg_1_1 .. cg_1_10  cg_2  cg_2_1 .. cg_2_10  ...     created in this order
//!   cg_1                     cg_2                     ...     left after the removal
//!
//! - I1. Every group is used on every slot: its statistics are added to and a charge is made, so its records are backed there.
//! - I2. The sums and the charge of a group that stays are compared after maintenance moved its records, and once
//!   more after it was added to there.
//! - I3. Memory is measured from the system's books; the engine's own figures must agree with them within a page a slot
//!   and a hundredth.

use std::time::Instant;

use super::Calls;
use super::groups::{Groups, Member, Mode, Plan, Upkeep};
use super::resident::resident_bytes;
use crate::harness::prelude::*;

/// The groups of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Script {
    /// Groups that stay.
    pub(super) outer: usize,
    /// Groups beside each, that are removed.
    pub(super) inner: usize,
}

impl Script {
    pub(super) fn groups(self) -> usize {
        self.outer * (1 + self.inner)
    }

    /// All names in order of creation, and whether the group stays until the end; the others are removed first, in the same order.
    pub(super) fn names(self) -> impl Iterator<Item = (String, bool)> {
        let beside = move |outer| (1..=self.inner).map(move |inner| (format!("cg_{outer}_{inner}"), false));
        (1..=self.outer)
            .flat_map(move |outer| [(format!("cg_{outer}"), true)].into_iter().chain(beside(outer)))
    }

    /// "1 of 11".
    pub(super) fn share(self) -> String {
        format!("1 of {}", 1 + self.inner)
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
    AllRemoved,
    AtRest,
}

impl Stage {
    pub(super) const ALL: [(Stage, &str); 6] = [
        (Stage::Start, "start"),
        (Stage::Created, "created"),
        (Stage::Removed, "removed"),
        (Stage::Maintained, "maintained"),
        (Stage::AllRemoved, "all removed"),
        (Stage::AtRest, "at rest"),
    ];
}

/// The groups' per-CPU memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footprint {
    /// Backed, by the system's books.
    pub(super) os_bytes: u64,
    /// Backed, by the engine's.
    pub(super) own_bytes: u64,
    /// Bytes of the groups' records on all slots, as the script counts them.
    pub(super) needed_bytes: u64,
    /// The same by the engine.
    pub(super) own_live_bytes: u64,
    /// Slots that were used, and so have memory.
    pub(super) slots: usize,
    /// Without the chunks of kinds of which there is no record.
    pub(super) chunks: usize,
    /// Bytes of records that were moved until then, by removals too.
    pub(super) moved_bytes: u64,
    /// The most pages that one hold of a lock worked on until then.
    pub(super) pages_held_max: u64,
}

impl Footprint {
    /// Looks at the memory of `groups` while `members` groups are there beside the root and the parent.
    pub(super) fn look(groups: &Groups, members: usize) -> Result<Footprint> {
        let (memory, so_far) = (groups.hierarchy.percpu(), groups.hierarchy.maintained());
        let footprint = Footprint {
            os_bytes: resident_bytes(&groups.hierarchy.percpu_ranges())?,
            own_bytes: memory.populated_bytes,
            needed_bytes: groups.plan.needed_bytes(members, memory.slots),
            own_live_bytes: memory.live_bytes,
            slots: memory.slots,
            chunks: memory.chunks.saturating_sub(groups.plan.kinds_unused(members)),
            moved_bytes: so_far.moved_bytes,
            pages_held_max: so_far.pages_held_max,
        };
        footprint.check(groups.plan)?;
        Ok(footprint)
    }

    /// Both books agree (I3), and the memory in use is backed unless slots were folded.
    fn check(&self, plan: Plan) -> Result<()> {
        let tolerance = self.os_bytes / 100 + plan.page.bytes() * plan.slots.slots() as u64;
        let Footprint { own_bytes: ours, os_bytes: systems, slots, chunks, .. } = *self;
        ensure(systems.abs_diff(ours) <= tolerance, || {
            format!(
                "{ours} bytes of per-CPU memory are backed by the engine's books, {systems} by the system's, on {slots} slots in {chunks} chunks; they may differ by {tolerance}"
            )
        })?;
        let (live, needed) = (self.own_live_bytes, self.needed_bytes);
        ensure(plan.mode == Mode::Demoted || live >= needed, || {
            format!("the engine counts {live} live bytes of per-CPU memory, the records take {needed}")
        })
    }

    pub(super) fn over_needed(&self) -> f64 {
        self.os_bytes as f64 / self.needed_bytes.max(1) as f64
    }

    /// The same as text. A dash where less than a page a slot is needed, as with the root and the parent alone: the figure would be the
    /// size of a page.
    pub(super) fn over_needed_cell(&self, plan: Plan) -> String {
        let is_much = self.needed_bytes >= plan.page.bytes() * plan.slots.slots() as u64;
        figure_or_dash(is_much.then(|| self.over_needed()))
    }

    /// The same if the records lay on the fewest pages they can lie on.
    pub(super) fn whole_pages_over_needed(&self, plan: Plan) -> f64 {
        let slots = plan.slots.slots() as u64;
        let pages = (self.needed_bytes / slots).div_ceil(plan.page.bytes()) * slots;
        (pages * plan.page.bytes()) as f64 / self.needed_bytes.max(1) as f64
    }

    /// The design's goal for this memory: a tenth more than is needed, and a page a slot and chunk.
    pub(super) fn allowed_bytes(&self, plan: Plan) -> f64 {
        1.1 * self.needed_bytes as f64
            + (plan.page.bytes() * (plan.slots.slots() * self.chunks) as u64) as f64
    }
}

/// One script played in one mode.
pub(super) struct Played {
    pub(super) plan: Plan,
    pub(super) script: Script,
    /// Bytes of each group on the heap beside its records.
    pub(super) bytes_beside: usize,
    footprints: [Footprint; Stage::ALL.len()],
    /// The maintenance after the removal.
    pub(super) upkeep: Upkeep,
    /// Removals, with the maintenance that they do themselves: of those first removed, and of the rest.
    pub(super) removals: [Calls; 2],
}

impl Played {
    /// Bytes that went back after the removal, by the system's books.
    pub(super) fn given_back_bytes(&self) -> u64 {
        self.at(Stage::Removed).os_bytes.saturating_sub(self.at(Stage::Maintained).os_bytes)
    }

    pub(super) fn at(&self, stage: Stage) -> Footprint {
        self.footprints[stage as usize]
    }

    /// Maintenance did the work of the mode's name, and no other.
    fn check_mode(&self) -> Result<()> {
        let (mode, done) = (self.plan.mode, self.upkeep);
        let (peak, at_rest, folded) = (self.at(Stage::Created), self.at(Stage::AtRest), done.demoted_groups);
        let live = self.at(Stage::Maintained).own_live_bytes;
        let right = match mode {
            Mode::Kept => at_rest.os_bytes >= peak.os_bytes,
            Mode::Depopulated => at_rest.moved_bytes + folded == 0,
            Mode::Relocated => folded == 0,
            // A removal's pass may have folded a group too. Folded, it has no record.
            Mode::Demoted => live == 0,
        };
        let (name, moved, of, left) = (mode.name(), at_rest.moved_bytes, peak.os_bytes, at_rest.os_bytes);
        ensure(right, || {
            format!(
                "the variant \"{name}\" moved {moved} bytes, folded {folded} groups, left {live} live, and of {of} backed bytes {left}"
            )
        })
    }

    /// Of the memory with all groups there.
    pub(super) fn percent_of_peak(&self, stage: Stage) -> f64 {
        100.0 * self.at(stage).os_bytes as f64 / self.at(Stage::Created).os_bytes.max(1) as f64
    }
}

/// Plays the script; everything it made is gone when it returns.
pub(super) fn play(script: Script, plan: Plan) -> Result<Played> {
    let mut groups = Groups::new(plan)?;
    let start = Footprint::look(&groups, 0)?;
    let (mut long_lived, short_lived) = create(&mut groups, script)?;
    let created = Footprint::look(&groups, script.groups())?;
    check_slots(plan, created.slots)?;
    let first = remove_all(short_lived)?;
    let removed = Footprint::look(&groups, script.outer)?;
    let upkeep = groups.maintain();
    let maintained = Footprint::look(&groups, script.outer)?;
    for member in &mut long_lived {
        member.check()?;
        member.use_on_all_slots()?;
        member.check()?;
    }
    let rest = remove_all(long_lived)?;
    let all_removed = Footprint::look(&groups, 0)?;
    groups.maintain();
    let at_rest = Footprint::look(&groups, 0)?;
    let bytes_beside = groups.bytes_beside();
    groups.check_gone()?;
    let footprints = [start, created, removed, maintained, all_removed, at_rest];
    let played = Played { plan, script, bytes_beside, footprints, upkeep, removals: [first, rest] };
    played.check_mode()?;
    Ok(played)
}

/// All slots were used (I1). The needed bytes are those of the used slots, so a slot that is left out would make every figure
/// smaller and break no goal.
fn check_slots(plan: Plan, used: usize) -> Result<()> {
    expect("slots with memory after every group was used on all", used, plan.slots.slots())
}

/// Removes all in their order.
pub(super) fn remove_all(members: Vec<Member>) -> Result<Calls> {
    let remove = |member: Member| {
        let begin = Instant::now();
        member.remove().map(|()| begin.elapsed().as_nanos() as f64 / 1e3)
    };
    Calls::of(&members.into_iter().map(remove).collect::<Result<Vec<f64>>>()?)
}

/// Creates all groups in the script's order and uses each; those that stay, and those that do not.
pub(super) fn create(groups: &mut Groups, script: Script) -> Result<(Vec<Member>, Vec<Member>)> {
    let (mut long_lived, mut short_lived) = (Vec::new(), Vec::new());
    for (name, stays) in script.names() {
        let mut member = groups.create_used(&name)?;
        if stays {
            member.hold_a_charge()?;
        }
        if stays { &mut long_lived } else { &mut short_lived }.push(member);
    }
    Ok((long_lived, short_lived))
}

#[cfg(test)]
mod tests {
    use memgroup_percpu::SlotSource;

    use super::*;
    use crate::Error;
    use crate::Page;

    const SCRIPT: Script = Script { outer: 40, inner: 10 };

    fn plan(mode: Mode) -> Plan {
        Plan::new(mode, Page::K4, SlotSource::virtual_slots(2).unwrap(), SCRIPT.groups())
    }

    #[test]
    fn has_the_seeds_names_in_the_seeds_order() {
        let script = Script { outer: 2, inner: 2 };
        let (names, stay): (Vec<String>, Vec<bool>) = script.names().unzip();
        assert_eq!(names, ["cg_1", "cg_1_1", "cg_1_2", "cg_2", "cg_2_1", "cg_2_2"]);
        assert_eq!(stay, [true, false, false, true, false, false]);
        assert_eq!(script.groups(), names.len());
        assert_eq!(
            (SCRIPT.share().as_str(), Script { outer: 1, inner: 50 }.limit_percent() as u32),
            ("1 of 11", 1)
        );
    }

    #[test]
    fn fails_when_the_books_disagree() {
        let plan = plan(Mode::Kept);
        let bytes = 1_000_000;
        let right = Footprint {
            os_bytes: bytes,
            own_bytes: bytes,
            needed_bytes: bytes,
            own_live_bytes: bytes,
            slots: 2,
            chunks: 1,
            moved_bytes: 0,
            pages_held_max: 0,
        };
        right.check(plan).unwrap();
        Footprint { own_bytes: bytes + 10_000 + 8192, ..right }.check(plan).unwrap();
        for wrong in [
            Footprint { own_bytes: bytes + 10_000 + 8193, ..right },
            Footprint { own_bytes: 0, ..right },
            Footprint { own_live_bytes: bytes - 1, ..right },
        ] {
            assert!(matches!(wrong.check(plan), Err(Error::Wrong(_))), "{wrong:?}");
        }
        let folded = Footprint { own_live_bytes: 0, ..right };
        folded.check(Plan { mode: Mode::Demoted, ..plan }).unwrap();
        assert_eq!(right.allowed_bytes(plan), 1_100_000.0 + 8192.0);
        assert_eq!(right.over_needed_cell(plan), "1.00");
        let little = |needed_bytes| Footprint { needed_bytes, ..right }.over_needed_cell(plan);
        let root_and_parent = plan.needed_bytes(0, 2);
        let page_a_slot = ["-", "-", "-", "122"];
        assert_eq!([0, root_and_parent, 8191, 8192].map(little), page_a_slot, "on each of two slots");
    }

    #[test]
    fn fails_when_a_slot_has_no_memory() {
        let plan = plan(Mode::Kept);
        check_slots(plan, 2).unwrap();
        for used in [0, 1, 3] {
            assert!(matches!(check_slots(plan, used), Err(Error::Wrong(_))), "{used}");
        }
    }

    #[test]
    fn gives_back_at_least_as_much_in_each_further_mode() {
        let mut kept = f64::INFINITY;
        for (mode, _) in Mode::ALL {
            let played = play(SCRIPT, plan(mode)).unwrap();
            let peak = played.at(Stage::Created);
            assert!(peak.os_bytes >= peak.needed_bytes, "every record is backed: {peak:?}");
            assert_eq!(peak.own_live_bytes, peak.needed_bytes, "and no record is left out");
            let now = played.percent_of_peak(Stage::Maintained);
            assert!(now <= kept, "{}: {now} % of the peak, {kept} before", mode.name());
            kept = now;
        }
    }
}
