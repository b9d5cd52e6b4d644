//! Steady churn: after the script's removal, bursts of new groups, each followed by the removal of nine tenths as many,
//! drawn from all that are there.
//!
//! The kernel gives pages of a chunk back only while a quarter of it is empty. A simulation of its rules loses most of the
//! gain of the removal within a few bursts with pages of 16 KiB. The figure is the memory after each burst, over
//! the records that are there.

use super::groups::{Groups, Member, Mode, Plan};
use super::script::{Footprint, Script, create, remove_all};
use crate::harness::prelude::*;

pub(super) const BURSTS: usize = 8;
/// Goal for the memory over the records.
const OVER_NEEDED_MOST: f64 = 1.3;

/// Churns in every mode and prints the memory that was kept.
pub(super) fn run(lab: &mut Lab<'_>, script: Script, plan: Plan) -> Result<()> {
    let page = plan.page.name();
    let [new, gone] = [script.outer, script.outer * 9 / 10].map(|groups| count(groups as u64));
    let mut table = Table::new(
        format!(
            "steady churn, pages of {page}: {BURSTS} bursts of {new} groups, {gone} removed at random after each"
        ),
        ["x needed, after burst", "0", "1", "2", "3", "4", "5", "6", "7", "8", "moved kB"],
    );
    let mut relocated = Vec::new();
    for (mode, name) in Mode::ALL {
        let plan = Plan { mode, groups: plan.groups + BURSTS * script.outer, ..plan };
        let looks = churn(script, plan, &mut lab.random)?;
        for (burst, look) in looks.iter().enumerate() {
            let mut row = lab.record(name, json!({"page": page, "burst": burst}));
            row.value("populated over needed in churn", "x", Some(look.over_needed()));
        }
        let moved = kib(looks.last().map_or(0, |look| look.moved_bytes));
        table.row(name, looks.iter().map(|look| look.over_needed_cell(plan)).chain([moved]));
        if mode == Mode::Relocated {
            relocated = looks;
        }
    }
    table.note("populated by the system's books, maintained after each burst; 0: before the first, after the script's removal; moved: in all, by removals too; a dash where less than a page a slot is needed");
    if relocated.iter().all(|look| look.whole_pages_over_needed(plan) <= OVER_NEEDED_MOST) {
        let worst = relocated.iter().map(Footprint::over_needed).reduce(f64::max);
        let name = format!("steady churn, pages of {page}, populated over needed");
        lab.at_most(name, worst, OVER_NEEDED_MOST, "x");
    } else {
        table.note(format!("no goal: whole pages alone take more than {OVER_NEEDED_MOST} times the records"));
    }
    lab.print(&table)
}

/// The memory after the script's removal, then after each burst.
fn churn(script: Script, plan: Plan, random: &mut Random) -> Result<Vec<Footprint>> {
    let mut groups = Groups::new(plan)?;
    let (mut members, short_lived) = create(&mut groups, script)?;
    remove_all(short_lived)?;
    groups.maintain();
    let mut looks = vec![Footprint::look(&groups, members.len())?];
    for burst in 1..=BURSTS {
        for new in 1..=script.outer {
            members.push(groups.create_used(&format!("burst{burst}_{new}"))?);
        }
        for _ in 0..script.outer * 9 / 10 {
            let drawn = (random.next() % members.len() as u64) as usize;
            members.swap_remove(drawn).remove()?;
        }
        groups.maintain();
        looks.push(Footprint::look(&groups, members.len())?);
    }
    members.iter().try_for_each(Member::check)?;
    remove_all(members)?;
    groups.maintain();
    groups.check_gone()?;
    Ok(looks)
}

#[cfg(test)]
mod tests {
    use memgroup_percpu::SlotSource;

    use super::*;
    use crate::Page;

    #[test]
    fn reads_memory_after_the_removal_and_each_burst() {
        let script = Script { outer: 30, inner: 4 };
        let slots = SlotSource::virtual_slots(2).unwrap();
        let plan = Plan::new(Mode::Relocated, Page::K4, slots, script.groups() + BURSTS * script.outer);
        let looks = churn(script, plan, &mut Random::new(1)).unwrap();
        let needed: Vec<u64> = looks.iter().map(|look| look.needed_bytes).collect();
        let expected: Vec<u64> = (0..=BURSTS).map(|burst| plan.needed_bytes(30 + 3 * burst, 2)).collect();
        assert_eq!(needed, expected);
    }
}
