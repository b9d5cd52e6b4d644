//! Per-CPU memory that goes back (seed 001): the script that makes eleven thousand groups and removes ten of eleven.

mod bars;
mod beside;
mod calls;
mod cgroup;
mod churn;
mod costs;
mod groups;
mod kernel;
mod resident;
mod script;
mod seed;
mod show;

use std::fs;
use std::io::Write;
use std::time::Duration;

use memgroup_percpu::SlotSource;

use self::groups::{Mode, Plan};
use self::kernel::{Anchor, Outcome};
use self::script::{Played, Script, play};
use crate::harness::Lab;
use crate::harness::machine::virtual_slots;
use crate::harness::table::counted;
use crate::{Args, Error, Page};

/// As many as the machine of the seed's author had.
const SLOTS_DEFAULT_MAX: usize = 16;
/// Groups beside each that stays in the thread's other run of the script, in which POWER9 gave something back.
const INNER_MANY: usize = 50;

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let machine = SlotSource::detect();
    let script = Script { outer: args.outer(), inner: args.inner() };
    let many =
        Script { outer: if args.quick { script.outer.div_ceil(5) } else { script.outer }, inner: INNER_MANY };
    // The script visits every slot, which only virtual ones allow.
    let slots = virtual_slots(args.slots.unwrap_or_else(|| machine.slots().min(SLOTS_DEFAULT_MAX)))?;
    let page = args.page.unwrap_or(Page::K4);
    let plan = Plan::new(Mode::Kept, page, slots, script.groups());
    let others = [Page::K16, Page::K64, Page::M2].map(|page| Plan { page, ..plan });
    let others = if args.page.is_some() { &[][..] } else { &others[..] };
    refuse_what_does_not_fit(plan, others, script, many)?;

    let mut lab = Lab::open(args, seed::SEED, machine, out)?;
    show::words(&mut lab)?;
    let anchor = anchor(&mut lab, script)?;
    script_in_full(&mut lab, script, plan, others, anchor.as_ref())?;
    if script.inner != INNER_MANY {
        let plan = Plan { groups: many.groups(), ..plan };
        let played = play_all(&mut lab, many, plan)?;
        by_page(&mut lab, played, others)?;
    }
    churn::run(&mut lab, script, plan)?;
    // The page size at which the kernel's rules lose their gain.
    if let Some(&plan) = others.iter().find(|plan| plan.page == Page::K16) {
        churn::run(&mut lab, script, plan)?;
    }
    costs::groups(&mut lab, script, plan, anchor.as_ref())?;
    costs::accesses(&mut lab, plan)?;
    lab.close()
}

/// The seed's script with all its tables, then in short for the other page sizes.
fn script_in_full(
    lab: &mut Lab<'_>,
    script: Script,
    plan: Plan,
    others: &[Plan],
    anchor: Option<&Anchor>,
) -> Result<(), Error> {
    let played = play_all(lab, script, plan)?;
    beside::systems(lab, &played, anchor)?;
    beside::chart(lab, &played, anchor)?;
    show::books(lab, &played)?;
    let deferred = play(script, Plan { mode: Mode::Relocated, on_removal: false, ..plan })?;
    show::upkeep(lab, &played, &deferred)?;
    let bare = play_all(lab, script, Plan { statistics: 0, ..plan })?;
    show::bare_records(lab, &bare)?;
    by_page(lab, played, others)
}

/// Adds the other page sizes to what was played, holds all to the goals and shows them in one table.
fn by_page(lab: &mut Lab<'_>, played: Vec<Played>, others: &[Plan]) -> Result<(), Error> {
    let (script, groups) = (played[0].script, played[0].plan.groups);
    let mut pages = vec![played];
    for &plan in others {
        pages.push(play_all(lab, script, Plan { groups, ..plan })?);
    }
    for played in &pages {
        show::check(lab, played);
    }
    show::pages(lab, &pages)
}

/// The script in every mode, the control first.
fn play_all(lab: &mut Lab<'_>, script: Script, plan: Plan) -> Result<Vec<Played>, Error> {
    let mut all = Vec::new();
    for mode in Mode::ALL {
        let played = play(script, Plan { mode, ..plan })?;
        show::add_rows(lab, &played);
        all.push(played);
    }
    Ok(all)
}

/// The script against the running kernel, if that was asked for and may be done.
fn anchor(lab: &mut Lab<'_>, script: Script) -> Result<Option<Anchor>, Error> {
    if !lab.args.kernel {
        return Ok(None);
    }
    let waits: &[u64] = match (lab.args.tiny, lab.args.quick) {
        (true, _) => &[0],
        (_, true) => &[2],
        (_, false) => &[2, 10],
    };
    let waits: Vec<Duration> = waits.iter().copied().map(Duration::from_secs).collect();
    match kernel::run(script, &waits)? {
        Outcome::Measured(anchor) => {
            beside::kernel(lab, script, &anchor)?;
            Ok(Some(*anchor))
        }
        Outcome::NotHere(why) => {
            lab.say(&format!("\nnote: the kernel's figures are missing: {why}"))?;
            Ok(None)
        }
    }
}

/// Scripts whose records would fill the machine are refused before they are played. One is played at a time and gives back
/// what it took, but for some pages that hold the root's records.
fn refuse_what_does_not_fit(plan: Plan, others: &[Plan], script: Script, many: Script) -> Result<(), Error> {
    let Some(available) = available_bytes() else { return Ok(()) };
    let largest = if many.groups() > script.groups() { many } else { script };
    let bytes = most_bytes(plan, others, largest.groups()) + kept_bytes(others, script, many);
    let allowed = available / 4 * 3;
    if bytes <= allowed {
        return Ok(());
    }
    let fits = (script.outer as u64 * allowed / bytes).max(1);
    Err(Error::Argument(format!(
        "use {} groups on {}: their records and statistics, and the places of all that were played, take up to {} MiB, three quarters of the available {} MiB may be used; --outer {fits} would do, or fewer slots",
        largest.groups(),
        counted(plan.slots.slots() as u64, "slot"),
        bytes >> 20,
        available >> 20
    )))
}

/// What one script of so many groups takes at most, with their statistics on the heap and half a chunk's worth of room, beside what all that were
/// played before it keep.
fn most_bytes(plan: Plan, others: &[Plan], groups: usize) -> u64 {
    const HIERARCHIES_A_PAGE_SIZE: u64 = 12;
    let slots = plan.slots.slots();
    let pages: u64 = others.iter().chain([&plan]).map(|plan| plan.page.bytes()).sum();
    let statistics = groups as u64 * plan.bytes_beside();
    plan.needed_bytes(groups, slots) / 2 * 3 + statistics + HIERARCHIES_A_PAGE_SIZE * pages * slots as u64
}

/// What all scripts leave on the heap: a place for each group of each kind of hierarchy, which the process keeps.
fn kept_bytes(others: &[Plan], script: Script, many: Script) -> u64 {
    const PLACE_BYTES: u64 = 1536;
    let (modes, pages) = (Mode::ALL.len(), 1 + others.len());
    // The script and the one with many beside each, at each page size; removals that leave it all for later; churn at two page sizes.
    let groups = (modes * pages + 1) * script.groups()
        + modes * pages * many.groups()
        + modes * pages.min(2) * (script.groups() + churn::BURSTS * script.outer);
    groups as u64 * PLACE_BYTES
}

fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_would_fill_the_machine_are_refused_with_the_figures() {
        let (script, slots) = (Script { outer: 20_000, inner: 49 }, SlotSource::virtual_slots(4096).unwrap());
        let plan = Plan::new(Mode::Kept, Page::K4, slots, script.groups());
        let error = refuse_what_does_not_fit(plan, &[], script, Script { outer: 1, inner: 50 }).unwrap_err();
        assert!(error.is_usage());
        let text = error.to_string();
        assert!(
            text.starts_with("use 1000000 groups on 4,096 slots: their records and statistics, and the places of all that were played, take up to 158")
                && text.contains("--outer "),
            "{text}"
        );
    }
}
