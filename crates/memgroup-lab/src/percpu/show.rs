//! The tables of the script: how much our groups kept, by stage, mode and page size, what that took, and the goals.

use super::groups::Mode;
use super::script::{Played, Stage};
use super::seed;
use crate::Error;
use crate::harness::Lab;
use crate::harness::report::{Check, Params, params};
use crate::harness::table::{Table, count, figure, figure_or_dash};

/// The variant whose removals leave all maintenance for later.
const LATER: &str = "relocation, later";
/// Goal for the peak over its records, and of what is allowed for them later.
const OVER_NEEDED_MOST: f64 = 1.1;
/// Pages that maintenance may touch in one hold of a lock.
const PAGES_HELD_MOST: f64 = 64.0;

/// What words mean that every table uses.
pub(super) fn words(lab: &mut Lab<'_>) -> Result<(), Error> {
    for text in [
        "stages: start, nothing is made; created, all groups are there; removed, only those that stay are; maintained, empty memory went back (the seed and the kernel: seconds later; ours: by maintenance); all removed, no group is left; at rest, maintained again",
        "needed: the records of the groups that are there, on every slot (a slot has one CPU's copy of each record); x needed: the memory over that",
        "one hold of a lock: maintenance takes the lock that creations and removals need too, for so many pages at a time",
    ] {
        lab.paragraph(text)?;
    }
    Ok(())
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
                look.over_needed_cell(one.plan),
                count(look.chunks as u64),
            ]);
        }
    }
    table.note("the books may differ by a hundredth and a page a slot, else the run fails; live: what the engine counts as taken; needed: the records, as the script counts them, with the stock words of the root and the parent; x needed: a dash where less than a page a slot is needed; chunks: of kinds of records that there are");
    let looks = || played.iter().flat_map(|one| Stage::ALL.map(|stage| one.at(stage)));
    if looks().any(|look| look.os_bytes < look.own_live_bytes) {
        table.note(
            "live may be more than the system's: a page of a record that was never written has no memory",
        );
    }
    let beside = played.iter().map(|one| one.bytes_beside).max().unwrap_or(0);
    table.note(format!(
        "beside all this each group has {} bytes on the heap, on no slot: its statistics as they were last flushed, and what is added while it has no record; places of removed groups keep them for the next until maintenance comes by",
        count(beside as u64)
    ));
    lab.report.add_count("every mode", params([]), "beside the records, a group", "bytes", beside as f64);
    lab.print(&table)
}

/// What maintenance did after the removal, and in `deferred`, where removals left all of it to that.
pub(super) fn upkeep(lab: &mut Lab<'_>, played: &[Played], deferred: &Played) -> Result<(), Error> {
    let columns =
        ["from removed to maintained", "ms", "waited", "passes", "back kB", "moved kB", "folded", "held"];
    let mut table = Table::new("what maintenance did", columns);
    let columns = ["us a removal", "first, mean", "longest", "the rest, mean", "longest"];
    let mut removals = Table::new("what a removal took, with the maintenance that it does itself", columns);
    let names = played.iter().map(|one| one.plan.mode.name()).chain([LATER]);
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
        ]);
        let times = [first.mean_us, first.longest_us, rest.mean_us, rest.longest_us].map(figure);
        removals.row(std::iter::once(variant.to_owned()).chain(times).collect());
        for (metric, unit, value) in [
            ("maintenance", "ms", upkeep.took.as_secs_f64() * 1e3),
            ("given back", "bytes", one.given_back_bytes() as f64),
            ("moved", "bytes", upkeep.moved_bytes as f64),
            ("moved in all", "bytes", moved_in_all as f64),
            ("moved records", "count", upkeep.moved_records as f64),
            ("folded groups", "count", upkeep.demoted_groups as f64),
            ("pages in one hold of a lock", "count", held as f64),
            ("removal of most groups, mean", "us", first.mean_us),
            ("removal of the rest, mean", "us", rest.mean_us),
            ("removal, the longest", "us", longest_us),
        ] {
            lab.report.add_count(variant, played_params(one), metric, unit, value);
        }
    }
    table.note("ms: until a pass found nothing more; waited: of it for grace periods, with no lock held; back: what the pass gave back, by the system's books; moved: in all, by removals too; folded: groups; held: the most pages that one hold of a lock worked on, from start to rest");
    let later = format!("{LATER}: with removals that leave all of it to maintenance");
    table.note(later.as_str());
    removals.note("first: those that go from created to removed; the rest: those that go after that was maintained; a few wait for a grace period each, as the longest show");
    removals.note(later);
    let held = played.iter().chain([deferred]).map(|one| one.at(Stage::AtRest).pages_held_max).max();
    lab.report.checks.push(Check::at_most(
        "pages in one hold of a lock, the most",
        held.map(|pages| pages as f64),
        PAGES_HELD_MOST,
        "pages",
    ));
    lab.print(&table)?;
    lab.print(&removals)
}

/// The same script with nothing registered.
pub(super) fn bare_records(lab: &mut Lab<'_>, played: &[Played]) -> Result<(), Error> {
    let columns = ["kB", "created", "removed", "maintained", "at rest", "% of peak", "x needed", "chunks"];
    let title = format!(
        "the script with the engine's bare records: {} bytes a group and slot, a stock word and its own statistics",
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
            look.over_needed_cell(one.plan),
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
        let over_needed = |one: &Played| one.at(Stage::Maintained).over_needed_cell(one.plan);
        cells.push(relocated.map_or_else(|| "-".to_owned(), over_needed));
        cells
            .push(relocated.map_or_else(|| "-".to_owned(), |one| kib(one.at(Stage::Maintained).moved_bytes)));
        table.row(cells);
    }
    table.note(format!(
        "at least {} while every group keeps a record on each slot; kernel: with the seed's patches, as its thread has them; x needed and moved (in all): with relocation; a dash where less than a page a slot is needed",
        figure(script.limit_percent())
    ));
    for one in by_page.iter().flatten().filter(|one| one.plan.mode == Mode::Relocated) {
        let whole_pages = one.at(Stage::Maintained).whole_pages_over_needed(one.plan);
        if whole_pages > OVER_NEEDED_MOST {
            table.note(format!(
                "pages of {}: whole pages alone are x{} of the records that are left; the goal allows for a page a slot and chunk",
                one.plan.page.name(),
                figure(whole_pages)
            ));
        }
    }
    table.note("with cold demotion a folded group has no record: what its stock held went back to the counters, and what was added to its statistics waits on the heap, where it has room all along");
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
                    OVER_NEEDED_MOST,
                    "x",
                ));
                let allowed = (look.allowed_bytes(one.plan) / 1024.0).floor();
                let name = format!("{share}, {page}: populated, with relocation");
                checks.push(Check::at_most(name, Some(look.os_bytes as f64 / 1024.0), allowed, "kB"));
                let rest = one.at(Stage::AtRest);
                let allowed = (rest.allowed_bytes(one.plan) / 1024.0).floor();
                let name = format!("{share}, {page}: populated, at rest");
                checks.push(Check::at_most(name, Some(rest.os_bytes as f64 / 1024.0), allowed, "kB"));
            }
            Mode::Demoted => {
                let limit = (one.script.limit_percent() * 100.0).floor() / 100.0;
                let left = Some(one.percent_of_peak(Stage::Maintained));
                checks.push(Check::at_most(
                    format!("{share}, {page}: of the peak, with cold demotion"),
                    left,
                    limit,
                    "%",
                ));
            }
            Mode::Kept | Mode::Depopulated => {}
        }
    }
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

/// In whole kB, begun ones too.
pub(super) fn kib(bytes: u64) -> String {
    count(bytes.div_ceil(1024))
}
