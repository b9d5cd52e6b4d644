//! The tables and the chart of the script: who kept how much, by stage, mode and page size.

use super::bars::{self, Bar};
use super::groups::Mode;
use super::kernel::Anchor;
use super::script::{Played, Script, Stage};
use super::seed;
use crate::Error;
use crate::harness::Lab;
use crate::harness::report::{Check, Params, params};
use crate::harness::table::{Table, count, counted, figure, figure_or_dash};

/// Pages that maintenance may touch in one hold of a lock.
const PAGES_HELD_MOST: f64 = 64.0;

/// Everybody's memory beside each other, in kB.
pub(super) fn systems(lab: &mut Lab<'_>, played: &[Played], anchor: Option<&Anchor>) -> Result<(), Error> {
    let (script, plan) = (played[0].script, played[0].plan);
    let columns = [
        "per-CPU memory, kB",
        "start",
        "created",
        "removed",
        "later",
        "all gone",
        "% of peak",
        "% net",
        "x needed",
    ];
    let title = format!(
        "the seed's script: {} groups created, {} left; ours on {}, pages of {}, {} bytes a group and slot",
        count(script.groups() as u64),
        script.share(),
        counted(plan.slots.slots() as u64, "slot"),
        plan.page.name(),
        count(plan.record_bytes())
    );
    let mut table = Table::new(title, columns);
    let dash = || "-".to_owned();
    let percents = |start: f64, created: f64, later: f64| {
        [100.0 * later / created, 100.0 * (later - start) / (created - start)].map(figure)
    };
    for letter in seed::letters() {
        let [gross, net] = percents(letter.start, letter.created, letter.later);
        table.row(vec![
            letter.name.to_owned(),
            figure(letter.start),
            figure(letter.created),
            dash(),
            figure(letter.later),
            dash(),
            gross,
            net,
            dash(),
        ]);
    }
    if let Some(anchor) = anchor {
        let later = anchor.waited.last().map_or(anchor.removed, |&(_, kb)| kb);
        let [gross, net] = percents(anchor.start.min(anchor.at_rest), anchor.created, later);
        table.row(vec![
            format!("Linux {}", anchor.release),
            figure(anchor.start),
            figure(anchor.created),
            figure(anchor.removed),
            figure(later),
            figure(anchor.at_rest),
            gross,
            net,
            dash(),
        ]);
    }
    for one in played {
        let kb = |stage| kib(one.at(stage).os_bytes);
        table.row(vec![
            one.plan.mode.name().to_owned(),
            kb(Stage::Start),
            kb(Stage::Created),
            kb(Stage::Removed),
            kb(Stage::Maintained),
            kb(Stage::AtRest),
            figure(one.percent_of_peak(Stage::Maintained)),
            figure(one.percent_of_peak(Stage::Maintained)),
            figure(one.at(Stage::Maintained).over_needed()),
        ]);
    }
    table.note(format!(
        "later: the seed and the kernel after seconds of sleep, ours after maintenance; % of peak: later over created, at least {} while every group keeps a record on each slot; net: both without what was there at the start, or at rest where that was less; needed: the records of the groups left",
        figure(script.limit_percent())
    ));
    table.note("ours: what the system has backed of the arenas' mappings (/proc/self/smaps); the kernel's: Percpu: of /proc/meminfo, with all else that is per-CPU there");
    table.note("no depopulation is the control: nobody maintains it, and nothing goes back");
    if anchor.is_none() {
        table.note("--kernel adds the running kernel");
    }
    lab.print(&table)
}

/// The stages of the modes as bars.
pub(super) fn chart(lab: &mut Lab<'_>, played: &[Played]) -> Result<(), Error> {
    let stages = [Stage::Created, Stage::Removed, Stage::Maintained, Stage::AtRest];
    let groups: Vec<(&str, Vec<Bar>)> = stages
        .into_iter()
        .map(|stage| {
            let bar = |one: &Played| Bar { name: one.plan.mode.name(), percent: one.percent_of_peak(stage) };
            (stage.name(), played.iter().map(bar).collect())
        })
        .collect();
    let title = format!("populated, percent of each mode's own peak ({} left)", played[0].script.share());
    lab.say(&format!("\n{}", bars::chart(&title, &groups).trim_end()))
}

/// Both books of every mode, stage by stage, and what maintenance did.
pub(super) fn books(lab: &mut Lab<'_>, played: &[Played]) -> Result<(), Error> {
    let columns = ["kB", "stage", "the system's", "the engine's", "live", "needed", "x needed", "chunks"];
    let mut table = Table::new("the same by both books: the system's and the engine's own", columns);
    for one in played {
        for stage in Stage::ALL {
            let look = one.at(stage);
            table.row(vec![
                if stage == Stage::Start { one.plan.mode.name().to_owned() } else { String::new() },
                stage.name().to_owned(),
                kib(look.os_bytes),
                kib(look.own_bytes),
                kib(look.own_live_bytes),
                kib(look.needed_bytes),
                figure(look.over_needed()),
                count(look.chunks as u64),
            ]);
        }
    }
    table.note("the books may differ by a hundredth and a page a slot, else the run fails; live: what the engine counts as taken; needed: the records, as the script counts them, with the root's and the parent's");
    lab.print(&table)
}

/// What maintenance did after the removal, and in `deferred`, where removals left all of it to that.
pub(super) fn upkeep(lab: &mut Lab<'_>, played: &[Played], deferred: &Played) -> Result<(), Error> {
    let columns = [
        "after the removal",
        "ms",
        "waited",
        "passes",
        "back kB",
        "moved kB",
        "folded",
        "held",
        "us each",
        "the rest",
        "longest ms",
    ];
    let mut table = Table::new("what maintenance did to get there", columns);
    let names = played.iter().map(|one| one.plan.mode.name()).chain(["relocation, later"]);
    for (variant, one) in names.zip(played.iter().chain([deferred])) {
        let (upkeep, [first, rest]) = (one.upkeep, one.removals);
        let moved_in_all = one.at(Stage::Maintained).moved_bytes;
        let held = one.at(Stage::AtRest).pages_held_max;
        let longest_us = first.longest_us.max(rest.longest_us);
        table.row(vec![
            variant.to_owned(),
            figure(upkeep.took.as_secs_f64() * 1e3),
            figure(upkeep.waited.as_secs_f64() * 1e3),
            count(upkeep.passes),
            kib(one.given_back_bytes()),
            kib(moved_in_all),
            count(upkeep.demoted_groups),
            count(held),
            figure(first.mean_us),
            figure(rest.mean_us),
            figure(longest_us / 1e3),
        ]);
        for (metric, unit, value) in [
            ("maintenance", "ms", upkeep.took.as_secs_f64() * 1e3),
            ("given back", "bytes", one.given_back_bytes() as f64),
            ("moved", "bytes", upkeep.moved_bytes as f64),
            ("moved in all", "bytes", moved_in_all as f64),
            ("moved groups", "count", upkeep.moved_groups as f64),
            ("folded groups", "count", upkeep.demoted_groups as f64),
            ("pages in one hold of a lock", "count", held as f64),
            ("removal of most groups, mean", "us", first.mean_us),
            ("removal of the rest, mean", "us", rest.mean_us),
            ("removal, the longest", "us", longest_us),
        ] {
            lab.report.add_count(variant, played_params(one), metric, unit, value);
        }
    }
    table.note("ms: until a pass found nothing more; waited: of it for grace periods, with no lock held; back: what the pass gave back, by the system's books; moved: in all, by removals too; folded: groups; held: the most pages that one hold of a lock worked on; us each: the mean of a removal over the groups that went first, and over the rest, with the maintenance that removals do themselves: a few of them wait for a grace period each, as the longest shows; relocation, later: with removals that leave all of it to maintenance");
    let held = played.iter().chain([deferred]).map(|one| one.at(Stage::AtRest).pages_held_max).max();
    lab.report.checks.push(Check::at_most(
        "pages in one hold of a lock, the most",
        held.map(|pages| pages as f64),
        PAGES_HELD_MOST,
        "pages",
    ));
    lab.print(&table)
}

/// The same script with records of a stock word only.
pub(super) fn bare_records(lab: &mut Lab<'_>, played: &[Played]) -> Result<(), Error> {
    let columns = ["kB", "created", "removed", "maintained", "at rest", "% of peak", "x needed", "chunks"];
    let title = format!(
        "the script with the engine's bare record: {} bytes a group and slot, a stock word",
        played[0].plan.record_bytes()
    );
    let mut table = Table::new(title, columns);
    for one in played {
        let look = one.at(Stage::Maintained);
        table.row(vec![
            one.plan.mode.name().to_owned(),
            kib(one.at(Stage::Created).os_bytes),
            kib(one.at(Stage::Removed).os_bytes),
            kib(look.os_bytes),
            kib(one.at(Stage::AtRest).os_bytes),
            figure(one.percent_of_peak(Stage::Maintained)),
            figure(look.over_needed()),
            count(look.chunks as u64),
        ]);
    }
    lab.print(&table)
}

/// What is left of the peak for every page size, one script in one table.
pub(super) fn pages(lab: &mut Lab<'_>, by_page: &[Vec<Played>]) -> Result<(), Error> {
    let script = by_page[0][0].script;
    let columns =
        ["% of peak", "kernel", "control", "depopulation", "relocation", "demotion", "x needed", "moved kB"];
    let title = format!(
        "{} left, by page size: {} groups created; what is kept of the peak",
        script.share(),
        count(script.groups() as u64)
    );
    let mut table = Table::new(title, columns);
    for played in by_page {
        let page = played[0].plan.page;
        let relocated = played.iter().find(|one| one.plan.mode == Mode::Relocated);
        let mut cells = vec![
            format!("pages of {}", page.name()),
            figure_or_dash(seed::kept_percent(script.inner, page.bytes())),
        ];
        cells.extend(played.iter().map(|one| figure(one.percent_of_peak(Stage::Maintained))));
        cells.push(figure_or_dash(relocated.map(|one| one.at(Stage::Maintained).over_needed())));
        cells
            .push(relocated.map_or_else(|| "-".to_owned(), |one| kib(one.at(Stage::Maintained).moved_bytes)));
        table.row(cells);
    }
    table.note(format!(
        "at least {} while every group keeps a record on each slot; kernel: as measured in the letters, with patches; x needed and moved (in all): with relocation",
        figure(script.limit_percent())
    ));
    for one in
        by_page.iter().flatten().filter(|one| one.plan.mode == Mode::Demoted && !can_go_below_limit(one))
    {
        table.note(format!(
            "no goal for demotion at {}: one copy of the records on whole pages is not less than {} %",
            one.plan.page.name(),
            figure(script.limit_percent())
        ));
    }
    lab.print(&table)
}

/// The kernel's own script, by stage.
pub(super) fn kernel(lab: &mut Lab<'_>, script: Script, anchor: &Anchor) -> Result<(), Error> {
    let columns = ["Percpu:", "kB", "% of peak"];
    let title = format!(
        "the script against Linux {}, cgroup {}: {} groups created, {} left",
        anchor.release,
        anchor.interface,
        count(script.groups() as u64),
        script.share()
    );
    let mut table = Table::new(title, columns);
    let mut stages = vec![
        ("start".to_owned(), anchor.start),
        ("created".to_owned(), anchor.created),
        ("removed".to_owned(), anchor.removed),
    ];
    stages.extend(anchor.waited.iter().map(|(seconds, kb)| (format!("{seconds} s later"), *kb)));
    stages.push(("all removed".to_owned(), anchor.all_removed));
    stages.push(("at rest".to_owned(), anchor.at_rest));
    for (name, kb) in stages {
        table.row(vec![name.clone(), figure(kb), figure(100.0 * kb / anchor.created)]);
        let params = params([("stage", name.into()), ("groups", script.groups().into())]);
        lab.report.add_count("kernel", params, "populated", "bytes", kb * 1024.0);
    }
    table.note(format!(
        "mkdir {} us, rmdir {} us each (medians); more of both below, beside ours",
        figure(anchor.mkdir.us.median),
        figure(anchor.rmdir.us.median)
    ));
    lab.print(&table)
}

/// Holds one script in all modes to the goals.
pub(super) fn check(lab: &mut Lab<'_>, played: &[Played]) {
    for one in played {
        let (share, page) = (one.script.share(), one.plan.page.name());
        let look = one.at(Stage::Maintained);
        let checks = &mut lab.report.checks;
        match one.plan.mode {
            Mode::Relocated => {
                let peak = one.at(Stage::Created).over_needed();
                checks.push(Check::at_most(
                    format!("{share}, {page}: peak over needed"),
                    Some(peak),
                    1.1,
                    "x",
                ));
                let allowed = (look.allowed_bytes(one.plan) / 1024.0).floor();
                let name = format!("{share}, {page}: populated, with relocation");
                checks.push(Check::at_most(name, Some(look.os_bytes as f64 / 1024.0), allowed, "kB"));
                let rest = one.at(Stage::AtRest);
                let allowed = (rest.allowed_bytes(one.plan) / 1024.0).floor();
                let name = format!("{share}, {page}: populated, all removed");
                checks.push(Check::at_most(name, Some(rest.os_bytes as f64 / 1024.0), allowed, "kB"));
            }
            Mode::Demoted if can_go_below_limit(one) => {
                let limit = (one.script.limit_percent() * 100.0).floor() / 100.0;
                let left = Some(one.percent_of_peak(Stage::Maintained));
                checks.push(Check::at_most(
                    format!("{share}, {page}: of the peak, with cold demotion"),
                    left,
                    limit,
                    "%",
                ));
            }
            Mode::Kept | Mode::Depopulated | Mode::Demoted => {}
        }
    }
}

/// Whether one copy of the records that are left, on whole pages, is less than all copies of them.
fn can_go_below_limit(demoted: &Played) -> bool {
    let (plan, script) = (demoted.plan, demoted.script);
    let folded = plan.needed_bytes(script.outer, 1).next_multiple_of(plan.page.bytes());
    let limit = demoted.at(Stage::Created).os_bytes as f64 * script.limit_percent() / 100.0;
    plan.slots.slots() > 1 && (folded as f64) < limit
}

/// Adds the memory at every stage to the rows.
pub(super) fn add_rows(lab: &mut Lab<'_>, one: &Played) {
    for stage in Stage::ALL {
        let look = one.at(stage);
        let at_stage = |metric: &'static str, bytes: u64, lab: &mut Lab<'_>| {
            let mut params = played_params(one);
            params.insert("stage", stage.name().into());
            lab.report.add_count(one.plan.mode.name(), params, metric, "bytes", bytes as f64);
        };
        at_stage("populated", look.os_bytes, lab);
        at_stage("populated by the engine's books", look.own_bytes, lab);
        at_stage("needed", look.needed_bytes, lab);
        at_stage("moved so far", look.moved_bytes, lab);
    }
}

fn played_params(one: &Played) -> Params {
    params([
        ("page", one.plan.page.name().into()),
        ("slots", one.plan.slots.slots().into()),
        ("outer", one.script.outer.into()),
        ("inner", one.script.inner.into()),
        ("record_bytes", one.plan.record_bytes().into()),
    ])
}

fn kib(bytes: u64) -> String {
    count(bytes.div_ceil(1024))
}
