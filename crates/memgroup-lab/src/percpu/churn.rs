//! Steady churn: after the script's removal, bursts of new groups, each followed by the removal of nine tenths as many,
//! drawn from all that are there.
//!
//! The kernel gives pages of a chunk back only while a quarter of it is empty; a simulation of its rules loses most of what
//! the removal gained within a few bursts with pages of 16 KiB. What is read here is the memory after each burst, over
//! the records that are there.

use super::groups::{Groups, Mode, Plan};
use super::script::{Footprint, Script};
use crate::Error;
use crate::harness::Lab;
use crate::harness::random::Random;
use crate::harness::report::{Check, params};
use crate::harness::table::{Table, count};

pub(super) const BURSTS: usize = 8;
/// Goal for the memory over the records.
const OVER_NEEDED_MOST: f64 = 1.3;

/// The churn in one mode: the memory after the removal, then after each burst.
struct Churned {
    mode: Mode,
    looks: Vec<Footprint>,
}

/// Churns in every mode and prints what was kept.
pub(super) fn run(lab: &mut Lab<'_>, script: Script, plan: Plan) -> Result<(), Error> {
    let mut all = Vec::new();
    for mode in Mode::ALL {
        let plan = Plan { mode, groups: plan.groups + BURSTS * script.outer, ..plan };
        all.push(churn(script, plan, &mut lab.random)?);
    }
    show(lab, script, plan, &all)
}

fn churn(script: Script, plan: Plan, random: &mut Random) -> Result<Churned, Error> {
    let mut groups = Groups::new(plan)?;
    let mut members = Vec::new();
    let mut short_lived = Vec::new();
    for (number, name) in script.in_order().enumerate() {
        let stays = number % (1 + script.inner) == 0;
        if stays { &mut members } else { &mut short_lived }.push(groups.create_used(&name)?);
    }
    for member in short_lived {
        member.remove()?;
    }
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
    for member in members {
        member.check()?;
        member.remove()?;
    }
    groups.maintain();
    groups.check_gone()?;
    Ok(Churned { mode: plan.mode, looks })
}

fn show(lab: &mut Lab<'_>, script: Script, plan: Plan, all: &[Churned]) -> Result<(), Error> {
    let bursts: Vec<String> = (1..=BURSTS).map(|burst| burst.to_string()).collect();
    let mut columns = ["x needed, after burst", "0", "", "", "", "", "", "", "", "", "moved kB"];
    for (column, burst) in columns[2..].iter_mut().zip(&bursts) {
        *column = burst;
    }
    let title = format!(
        "steady churn, pages of {}: {BURSTS} bursts of {} groups, {} removed at random after each",
        plan.page.name(),
        count(script.outer as u64),
        count(script.outer as u64 * 9 / 10)
    );
    let mut table = Table::new(title, columns);
    for one in all {
        let mut cells = vec![one.mode.name().to_owned()];
        cells.extend(one.looks.iter().map(|look| look.over_needed_cell(plan)));
        cells.push(count(one.looks.last().map_or(0, |look| look.moved_bytes).div_ceil(1024)));
        table.row(cells);
        for (burst, look) in one.looks.iter().enumerate() {
            let params = params([("page", plan.page.name().into()), ("burst", burst.into())]);
            lab.report.add_count(
                one.mode.name(),
                params,
                "populated over needed in churn",
                "x",
                look.over_needed(),
            );
        }
    }
    table.note("populated by the system's books, maintained after each burst; 0: before the first, as the script's removal left it; moved: in all, by removals too; a dash where less than a page a slot is needed");
    let relocated = || all.iter().filter(|one| one.mode == Mode::Relocated).flat_map(|one| &one.looks);
    let name = format!("steady churn, pages of {}, populated over needed", plan.page.name());
    if relocated().all(|look| look.whole_pages_over_needed(plan) <= OVER_NEEDED_MOST) {
        let worst = relocated().map(Footprint::over_needed).reduce(f64::max);
        lab.report.checks.push(Check::at_most(name, worst, OVER_NEEDED_MOST, "x"));
    } else {
        table.note(format!("no goal: whole pages alone take more than {OVER_NEEDED_MOST} times the records"));
    }
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use memgroup_percpu::SlotSource;

    use super::*;
    use crate::Page;

    #[test]
    fn churn_looks_after_the_removal_and_after_each_burst() {
        let script = Script { outer: 30, inner: 4 };
        let slots = SlotSource::virtual_slots(2).unwrap();
        let plan = Plan::new(Mode::Relocated, Page::K4, slots, script.groups() + BURSTS * script.outer);
        let churned = churn(script, plan, &mut Random::new(1)).unwrap();
        let needed: Vec<u64> = churned.looks.iter().map(|look| look.needed_bytes).collect();
        let expected: Vec<u64> = (0..=BURSTS).map(|burst| plan.needed_bytes(30 + 3 * burst, 2)).collect();
        assert_eq!(needed, expected);
    }
}
