//! Per-CPU memory that goes back (seed 001): the script that makes eleven thousand groups and removes ten of eleven.

mod churn;
mod costs;
mod groups;
mod kernel;
mod resident;
mod script;
mod tables;

use std::fs;
use std::io::Write;
use std::time::Duration;

use memgroup_percpu::SlotSource;

use self::groups::{Mode, Plan};
use self::kernel::Kernel;
use self::script::{Played, Script, play};
use crate::harness::prelude::*;
use crate::{Args, Page};

/// Each machine ran the script without the patches and with them, and read the size of all per-CPU memory three times: at the start,
/// after 11,000 groups were created, and ten seconds after ten of eleven were removed.
const SEED: Seed = Seed {
    name: "001",
    title: "percpu: partial chunk depopulation, 2021",
    machine: "Gushchin's x86 server; Sampat's guests of 4 CPUs, Intel and POWER9 with pages of 64 KiB",
    source: "its cover letter's and a tester's reply's",
    address: Some("first version: https://lwn.net/Articles/850508/"),
    figures: &[
        SeedFigure::new("x86: at the start", "kB", 7_488.0, 7_488.0),
        SeedFigure::new("x86: 11,000 groups", "kB", 481_152.0, 481_408.0),
        SeedFigure::new("x86: 10 of 11 removed", "kB", 481_152.0, 135_552.0),
        SeedFigure::new("Intel guest: at the start", "kB", 1_952.0, 2_080.0),
        SeedFigure::new("Intel guest: 11,000 groups", "kB", 219_648.0, 219_712.0),
        SeedFigure::new("Intel guest: 10 of 11 removed", "kB", 219_648.0, 72_672.0),
        SeedFigure::new("POWER9: at the start", "kB", 5_888.0, 6_144.0),
        SeedFigure::new("POWER9: 11,000 groups", "kB", 118_272.0, 119_040.0),
        SeedFigure::new("POWER9: 10 of 11 removed", "kB", 118_272.0, 119_040.0),
    ],
};

/// The script of the seed's machines.
const SEED_SCRIPT: Script = Script { outer: 1_000, inner: 10 };

/// One run of the script in the cover letter or a reply to it, in kB.
#[derive(Debug, Clone, PartialEq)]
struct Letter {
    name: String,
    start: f64,
    created: f64,
    /// Ten seconds after the removal, in which the kernel gave back its empty pages.
    maintained: f64,
}

/// The six runs, each machine without the patches and with them.
fn letters() -> Vec<Letter> {
    let mut letters = Vec::new();
    for (machine, figures) in ["x86", "Intel", "POWER9"].into_iter().zip(SEED.figures.chunks_exact(3)) {
        let [before, after] = [|figure: &SeedFigure| figure.before, |figure: &SeedFigure| figure.after];
        for (side, of) in [("unpatched", before), ("patched", after)] {
            if let [Some(start), Some(created), Some(maintained)] = [0, 1, 2].map(|at| of(&figures[at])) {
                letters.push(Letter { name: format!("seed, {machine}, {side}"), start, created, maintained });
            }
        }
    }
    letters
}

/// The kernel's share of its peak with one group of `1 + inner` left, where the seed's thread gives it, by bytes of a page.
fn seed_kept_percent(inner: usize, page_bytes: u64) -> Option<f64> {
    match (inner, page_bytes >> 10) {
        (10, 4) => Some(100.0 * 135_552.0 / 481_408.0),
        (10, 64) => Some(100.0),
        // From the discussion of the fourth version.
        (50, 64) => Some(100.0 * 278_784.0 / 532_736.0),
        _ => None,
    }
}

/// As many slots as the machine of the seed's author had CPUs.
const SLOTS_DEFAULT_MAX: usize = 16;
/// Groups beside each that stays in the thread's other run of the script, in which POWER9 gave some memory back.
const INNER_MANY: usize = 50;

/// Calls that were timed one by one: beside the usual figures the mean and the longest, in which a few slow calls show.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Calls {
    us: Summary,
    mean_us: f64,
    longest_us: f64,
}

impl Calls {
    const COLUMNS: [&str; 7] = ["us", "median", "min", "p90", "mean", "longest", "calls"];

    /// An error when there was no call.
    fn of(times_us: &[f64]) -> Result<Calls> {
        let us = Summary::of(times_us).ok_or("there was none").or_wrong("the timed calls")?;
        let mean_us = times_us.iter().sum::<f64>() / times_us.len() as f64;
        let longest_us = times_us.iter().copied().fold(us.p90, f64::max);
        Ok(Calls { us, mean_us, longest_us })
    }

    /// Cells of a table with [`Calls::COLUMNS`].
    fn cells(&self) -> impl Iterator<Item = String> {
        let Calls { us, mean_us, longest_us } = *self;
        let times = [us.median, us.min, us.p90, mean_us, longest_us].map(figure);
        times.into_iter().chain([count(us.count as u64)])
    }
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let machine = SlotSource::detect();
    let script = Script { outer: args.outer(), inner: args.inner() };
    let fewer = args.pick(script.outer.div_ceil(5), script.outer.div_ceil(5), script.outer);
    let many = Script { outer: fewer, inner: INNER_MANY };
    // The script visits every slot, which only virtual ones allow.
    let slots = virtual_slots(args.slots.unwrap_or_else(|| machine.slots().min(SLOTS_DEFAULT_MAX)))?;
    let plan = Plan::new(Mode::Kept, args.page.unwrap_or(Page::K4), slots, script.groups());
    let others = [Page::K16, Page::K64, Page::M2].map(|page| Plan { page, ..plan });
    let others = if args.page.is_some() { &[][..] } else { &others[..] };
    refuse_what_does_not_fit(plan, others, script, many)?;

    let mut lab = Lab::open(args, Some(SEED), None, out)?;
    tables::words(&mut lab)?;
    let kernel = against_kernel(&mut lab, script)?;
    let (played, running) = (play_all(&mut lab, script, plan)?, kernel.as_ref());
    tables::systems(&mut lab, &played, running)?;
    tables::chart(&mut lab, &played, running)?;
    tables::books(&mut lab, &played)?;
    let deferred = play(script, Plan { mode: Mode::Relocated, on_removal: false, ..plan })?;
    tables::upkeep(&mut lab, &played, &deferred)?;
    let bare = play_all(&mut lab, script, Plan { statistics: 0, ..plan })?;
    tables::bare_records(&mut lab, &bare)?;
    by_page(&mut lab, played, others)?;
    if script.inner != INNER_MANY {
        let played = play_all(&mut lab, many, Plan { groups: many.groups(), ..plan })?;
        by_page(&mut lab, played, others)?;
    }
    churn::run(&mut lab, script, plan)?;
    // The page size at which the kernel's rules lose their gain.
    if let Some(&plan) = others.iter().find(|plan| plan.page == Page::K16) {
        churn::run(&mut lab, script, plan)?;
    }
    costs::groups(&mut lab, script, plan, kernel.as_ref())?;
    costs::accesses(&mut lab, plan)?;
    lab.close()
}

/// Plays the other page sizes too, holds all to the goals and shows them in one table.
fn by_page(lab: &mut Lab<'_>, played: Vec<Played>, others: &[Plan]) -> Result<()> {
    let (script, groups) = (played[0].script, played[0].plan.groups);
    let mut pages = vec![played];
    for &plan in others {
        pages.push(play_all(lab, script, Plan { groups, ..plan })?);
    }
    pages.iter().flatten().for_each(|one| tables::add_goals(lab, one));
    tables::pages(lab, &pages)
}

/// The script in every mode, the control first.
fn play_all(lab: &mut Lab<'_>, script: Script, plan: Plan) -> Result<Vec<Played>> {
    let all = Mode::ALL.into_iter().map(|(mode, _)| play(script, Plan { mode, ..plan }));
    let all = all.collect::<Result<Vec<_>>>()?;
    all.iter().for_each(|played| tables::add_rows(lab, played));
    Ok(all)
}

/// The script against the running kernel, if that was asked for and is possible.
fn against_kernel(lab: &mut Lab<'_>, script: Script) -> Result<Option<Kernel>> {
    if !lab.args.kernel {
        return Ok(None);
    }
    let waits: &[u64] = lab.pick(&[0], &[2], &[2, 10]);
    let waits: Vec<Duration> = waits.iter().copied().map(Duration::from_secs).collect();
    let kernel = kernel::run(script, &waits)?;
    match &kernel {
        Ok(kernel) => tables::kernel(lab, script, kernel)?,
        Err(why) => lab.say(&format!("\nnote: the kernel's figures are missing: {why}"))?,
    }
    Ok(kernel.ok())
}

/// Refuses scripts with records that would fill the machine, before they are played. One is played at a time and gives its
/// memory back, except some pages that hold the root's records.
fn refuse_what_does_not_fit(plan: Plan, others: &[Plan], script: Script, many: Script) -> Result<()> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let Some(available) = meminfo_kb(&meminfo, "MemAvailable:").map(|kb| kb << 10) else { return Ok(()) };
    let groups = many.groups().max(script.groups());
    let bytes = most_bytes(plan, others, groups) + kept_bytes(others, script, many);
    let allowed = available / 4 * 3;
    if bytes <= allowed {
        return Ok(());
    }
    let fits = (script.outer as u64 * allowed / bytes).max(1);
    let (slots, bytes, available) =
        (counted(plan.slots.slots() as u64, "slot"), bytes >> 20, available >> 20);
    Err(Error::Argument(format!(
        "use {groups} groups on {slots}: their records and statistics, and the places of all that were played, take up to {bytes} MiB, three quarters of the available {available} MiB may be used; --outer {fits} would do, or fewer slots"
    )))
}

/// The most bytes of one script of so many groups: records with half as much again for chunks, statistics on the heap, and the pages that
/// earlier hierarchies keep.
fn most_bytes(plan: Plan, others: &[Plan], groups: usize) -> u64 {
    const HIERARCHIES_A_PAGE_SIZE: u64 = 12;
    let slots = plan.slots.slots();
    let pages: u64 = others.iter().chain([&plan]).map(|plan| plan.page.bytes()).sum();
    let statistics = groups as u64 * plan.bytes_beside();
    plan.needed_bytes(groups, slots) / 2 * 3 + statistics + HIERARCHIES_A_PAGE_SIZE * pages * slots as u64
}

/// Bytes that all scripts leave on the heap: a place for each group of each kind of hierarchy, which the process keeps.
fn kept_bytes(others: &[Plan], script: Script, many: Script) -> u64 {
    const PLACE_BYTES: u64 = 1536;
    let (modes, pages) = (Mode::ALL.len(), 1 + others.len());
    // The script and the one with many beside each, at each page size; the one without maintenance in removals; churn at two page sizes.
    let groups = (modes * pages + 1) * script.groups()
        + modes * pages * many.groups()
        + modes * pages.min(2) * (script.groups() + churn::BURSTS * script.outer);
    groups as u64 * PLACE_BYTES
}

/// kB that a line of the text of `/proc/meminfo` says.
fn meminfo_kb(text: &str, line: &str) -> Option<u64> {
    let line = text.lines().find_map(|one| one.strip_prefix(line))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_records_that_would_fill_the_machine() {
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

    #[test]
    fn shows_one_slow_call_in_the_mean_and_the_longest() {
        let mut times = vec![1.0; 99];
        times.push(10_001.0);
        let calls = Calls::of(&times).unwrap();
        assert_eq!((calls.us.median, calls.us.p90, calls.mean_us), (1.0, 1.0, 101.0));
        assert_eq!(calls.cells().collect::<Vec<_>>(), ["1.00", "1.00", "1.00", "101", "10,001", "100"]);
        assert!(Calls::of(&[]).is_err());
    }

    #[test]
    fn has_the_letters_of_the_seeds_thread() {
        let letters = letters();
        assert_eq!(letters.len(), 6);
        let name = "seed, x86, patched".to_owned();
        assert_eq!(letters[1], Letter { name, start: 7_488.0, created: 481_408.0, maintained: 135_552.0 });
        assert_eq!((letters[4].start, letters[5].maintained), (5_888.0, 119_040.0));
    }

    #[test]
    fn has_the_seeds_shares_of_the_peak() {
        assert_eq!(seed_kept_percent(10, 64 << 10), Some(100.0));
        assert!((seed_kept_percent(10, 4 << 10).unwrap() - 28.2).abs() < 0.05);
        assert!((seed_kept_percent(50, 64 << 10).unwrap() - 52.3).abs() < 0.05);
        assert_eq!(seed_kept_percent(50, 4 << 10), None);
    }
}
