//! The tables of the script: the memory by stage, mode and page size, beside the seed's machines and the running kernel, and the goals.

use serde_json::Value;

use super::groups::Mode;
use super::kernel::Kernel;
use super::script::{Played, Script, Stage};
use super::{Letter, SEED_SCRIPT, letters, seed_kept_percent};
use crate::harness::prelude::*;

/// The variant with removals that leave all maintenance for later.
const LATER: &str = "relocation, later";
/// Goal for the peak over its records, and for the memory that is allowed later.
const OVER_NEEDED_MOST: f64 = 1.1;
/// Pages that maintenance may touch in one hold of a lock.
const PAGES_HELD_MOST: f64 = 64.0;

/// Explains the words of every table.
pub(super) fn words(lab: &mut Lab<'_>) -> Result<()> {
    for text in [
        "stages: start, before any group; created, all groups are there; removed, only those that stay are; maintained, empty memory went back (the seed and the kernel: seconds later; ours: by maintenance); all removed, no group is left; at rest, maintained again",
        "needed: the records of the groups that are there, on every slot (a slot has one CPU's copy of each record); x needed: the memory over that",
        "one hold of a lock: maintenance takes the lock that creations and removals need too, for so many pages at a time",
    ] {
        lab.paragraph(text)?;
    }
    Ok(())
}

/// The memory of the seed's machines, the running kernel and our modes, in kB.
pub(super) fn systems(lab: &mut Lab<'_>, played: &[Played], kernel: Option<&Kernel>) -> Result<()> {
    let (script, plan) = (played[0].script, played[0].plan);
    let (groups, left, bytes) = (count(script.groups() as u64), script.share(), count(plan.record_bytes()));
    let (slots, page) = (counted(plan.slots.slots() as u64, "slot"), plan.page.name());
    let title = format!(
        "the seed's script: {groups} groups created, {left} left; ours on {slots}, pages of {page}, {bytes} bytes a group and slot"
    );
    let columns =
        ["kB", "start", "created", "removed", "maintained", "at rest", "% of peak", "% net", "x needed"];
    let mut table = Table::new(title, columns);
    let shares = |start: f64, created: f64, maintained: f64| {
        let net = (maintained - start) / (created - start);
        [maintained / created, net].map(|share| figure(100.0 * share))
    };
    for Letter { name, start, created, maintained } in letters() {
        let [kept, net] = shares(start, created, maintained);
        let [start, created, maintained] = [start, created, maintained].map(figure);
        table.row(name, [start, created, dash(), maintained, dash(), kept, net, dash()]);
    }
    if let Some(kernel) = kernel {
        let Kernel { start, created, removed, at_rest, .. } = *kernel;
        let kept = figure(100.0 * kernel.maintained() / created);
        let [_, net] = shares(start.min(at_rest), created, kernel.maintained());
        let cells = [start, created, removed, kernel.maintained(), at_rest].map(figure);
        let kept = [kept, net, dash()];
        table.row(format!("Linux {}", kernel.release), cells.into_iter().chain(kept));
    }
    for one in played {
        let [stages @ .., kept, needed] = stage_cells(one);
        table.row(one.plan.mode.name(), stages.into_iter().chain([kept.clone(), kept, needed]));
    }
    table.note(format!(
        "% of peak: maintained over created, at least {} while every group keeps a record on each slot; net: both less the memory at the start, or at rest where that was less; x needed: when maintained",
        figure(script.limit_percent())
    ));
    table.note("ours: the backed pages of the arenas' mappings (/proc/self/pagemap); the kernel's: Percpu: of /proc/meminfo, with all other per-CPU memory there");
    table.note("no depopulation is the control: it is never maintained, and nothing goes back");
    if script != SEED_SCRIPT {
        table.note("the seed's rows are of its own script: 11,000 groups created, 1 of 11 left");
    }
    if kernel.is_none() {
        table.note("--kernel adds the running kernel");
    }
    lab.print(&table)
}

/// The kept memory as bars; the control once, as nothing changes in it.
pub(super) fn chart(lab: &mut Lab<'_>, played: &[Played], kernel: Option<&Kernel>) -> Result<()> {
    let script = played[0].script;
    let limit = script.limit_percent();
    let marked = figure(limit);
    let mut table = Table::new(
        format!(
            "populated, % of each one's own peak; {MARK} marks {marked} %: the records left, on all slots (folded: none)"
        ),
        ["", "", "", "%"],
    );
    let mut bar = |stage: &str, name: &str, percent: f64| {
        let name = format!("{name:<22}");
        table.row(stage, [name, bar(percent, limit), figure(percent)]);
    };
    for one in played.iter().filter(|one| one.plan.mode != Mode::Kept) {
        bar("removed", one.plan.mode.name(), one.percent_of_peak(Stage::Removed));
    }
    if script == SEED_SCRIPT {
        for letter in letters().into_iter().filter(|letter| letter.name.ends_with(", patched")) {
            bar("maintained", &letter.name, 100.0 * letter.maintained / letter.created);
        }
    }
    if let Some(kernel) = kernel {
        bar("maintained", "the running kernel", 100.0 * kernel.maintained() / kernel.created);
    }
    for one in played {
        bar("maintained", one.plan.mode.name(), one.percent_of_peak(Stage::Maintained));
    }
    lab.print(&table)
}

/// Stands in place of a bar's cell, or of the space behind it.
const MARK: char = '│';
const BAR_COLUMNS: usize = 50;
/// A column in eighths, from none on.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// A bar of so many percent of the longest, with a mark in the column in which a bar of `mark_percent` would end.
fn bar(percent: f64, mark_percent: f64) -> String {
    let eighths = (percent.clamp(0.0, 100.0) / 100.0 * (BAR_COLUMNS * 8) as f64).round() as usize;
    // A small figure is drawn as the least that can be seen.
    let eighths = if percent > 0.0 { eighths.max(1) } else { 0 };
    let drawn = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
    let at = ((mark_percent / 100.0 * BAR_COLUMNS as f64) as usize).min(BAR_COLUMNS - 1);
    let cells = drawn.chars().chain(std::iter::repeat(' ')).take(BAR_COLUMNS).enumerate();
    cells.map(|(column, cell)| if column == at { MARK } else { cell }).collect()
}

/// The script against the running kernel, by stage.
pub(super) fn kernel(lab: &mut Lab<'_>, script: Script, kernel: &Kernel) -> Result<()> {
    let title = format!(
        "the script against Linux {}, cgroup {}: {} groups created, {} left",
        kernel.release,
        kernel.interface,
        count(script.groups() as u64),
        script.share()
    );
    let mut table = Table::new(title, ["Percpu:", "kB", "% of peak"]);
    let named = |(name, kb): (&str, f64)| (name.to_owned(), kb);
    let Kernel { start, created, removed, all_removed, at_rest, .. } = *kernel;
    let mut stages = [("start", start), ("created", created), ("removed", removed)].map(named).to_vec();
    stages.extend(kernel.waited.iter().map(|(seconds, kb)| (format!("maintained, after {seconds} s"), *kb)));
    stages.extend([("all removed", all_removed), ("at rest", at_rest)].map(named));
    for (name, kb) in stages {
        let params = json!({"stage": name, "groups": script.groups()});
        lab.record("kernel", params).value("populated", "bytes", Some(kb * 1024.0));
        table.row(name, [figure(kb), figure(100.0 * kb / kernel.created)]);
    }
    table.note(format!(
        "mkdir {} us, rmdir {} us each (medians); more of both below, beside ours",
        figure(kernel.mkdir.us.median),
        figure(kernel.rmdir.us.median)
    ));
    lab.print(&table)
}

/// Both books of every mode, stage by stage.
pub(super) fn books(lab: &mut Lab<'_>, played: &[Played]) -> Result<()> {
    let columns = ["kB", "stage", "the system's", "the engine's", "live", "needed", "x needed", "chunks"];
    let mut table = Table::new("the same by both books: the system's and the engine's own", columns);
    for one in played {
        for (stage, name) in Stage::ALL {
            let look = one.at(stage);
            let bytes = [look.os_bytes, look.own_bytes, look.own_live_bytes, look.needed_bytes].map(kib);
            let cells = [name.to_owned()].into_iter().chain(bytes);
            let mode = if stage == Stage::Start { one.plan.mode.name() } else { "" };
            table.row(mode, cells.chain([look.over_needed_cell(one.plan), count(look.chunks as u64)]));
        }
    }
    table.note("the books may differ by a hundredth and a page a slot, else the run fails; live: bytes that the engine counts as taken; needed: the records, as the script counts them, with the stock words of the root and the parent; x needed: a dash where less than a page a slot is needed; chunks: of kinds of records that there are");
    let mut looks = played.iter().flat_map(|one| Stage::ALL.map(|(stage, _)| one.at(stage)));
    if looks.any(|look| look.os_bytes < look.own_live_bytes) {
        table.note(
            "live may be more than the system's: a page of a record that was never written has no memory",
        );
    }
    let beside = played.iter().map(|one| one.bytes_beside as u64).max().unwrap_or(0);
    let shown = lab.record("every mode", json!({})).count("beside the records, a group", "bytes", beside);
    table.note(format!(
        "beside all this each group has {shown} bytes on the heap, on no slot: its statistics as they were last flushed, and additions while it has no record; places of removed groups keep them for the next until maintenance runs"
    ));
    lab.print(&table)
}

/// The work of maintenance after the removal, and in `deferred`, where removals left all of it to that.
pub(super) fn upkeep(lab: &mut Lab<'_>, played: &[Played], deferred: &Played) -> Result<()> {
    let columns =
        ["from removed to maintained", "ms", "waited", "passes", "back kB", "moved kB", "folded", "held"];
    let mut table = Table::new("what maintenance did", columns);
    let columns = ["us a removal", "first, mean", "longest", "the rest, mean", "longest"];
    let mut removals = Table::new("what a removal took, with the maintenance that it does itself", columns);
    let names = played.iter().map(|one| one.plan.mode.name()).chain([LATER]);
    let mut most_held = 0;
    for (variant, one) in names.zip(played.iter().chain([deferred])) {
        let (upkeep, [first, rest]) = (one.upkeep, one.removals);
        let (moved, held) = (one.at(Stage::Maintained).moved_bytes, one.at(Stage::AtRest).pages_held_max);
        let (back, waited_ms) = (one.given_back_bytes(), upkeep.waited.as_secs_f64() * 1e3);
        most_held = most_held.max(held);
        let mut row = lab.record(variant, settings(one));
        let took = row.value("maintenance", "ms", Some(upkeep.took.as_secs_f64() * 1e3));
        row.count("given back", "bytes", back);
        row.count("moved", "bytes", upkeep.moved_bytes);
        row.count("moved in all", "bytes", moved);
        row.count("moved records", "count", upkeep.moved_records);
        let folded = row.count("folded groups", "count", upkeep.demoted_groups);
        let held = row.count("pages in one hold of a lock", "count", held);
        row.value("removal, the longest", "us", Some(first.longest_us.max(rest.longest_us)));
        let first_mean = row.value("removal of most groups, mean", "us", Some(first.mean_us));
        let rest_mean = row.value("removal of the rest, mean", "us", Some(rest.mean_us));
        let (waited, passes) = (figure(waited_ms), count(upkeep.passes));
        table.row(variant, [took, waited, passes, kib(back), kib(moved), folded, held]);
        removals.row(variant, [first_mean, figure(first.longest_us), rest_mean, figure(rest.longest_us)]);
    }
    table.note("ms: until a pass found no more work; waited: of it for grace periods, with no lock held; back: bytes that the pass gave back, by the system's books; moved: in all, by removals too; folded: groups; held: the most pages that one hold of a lock worked on, from start to rest");
    let later = format!("{LATER}: with removals that leave all of it to maintenance");
    table.note(later.as_str());
    removals.note("first: those that go from created to removed; the rest: those that go after that was maintained; a few wait for a grace period each, as the longest show");
    removals.note(later);
    let name = "pages in one hold of a lock, the most";
    lab.at_most(name, Some(most_held as f64), PAGES_HELD_MOST, "pages");
    lab.print(&table)?;
    lab.print(&removals)
}

/// The same script with no statistic registered.
pub(super) fn bare_records(lab: &mut Lab<'_>, played: &[Played]) -> Result<()> {
    let title = format!(
        "the script with the engine's bare records: {} bytes a group and slot, a stock word",
        played[0].plan.record_bytes()
    );
    let columns = ["kB", "created", "removed", "maintained", "at rest", "% of peak", "x needed", "chunks"];
    let mut table = Table::new(title, columns);
    for one in played {
        let chunks = count(one.at(Stage::Maintained).chunks as u64);
        table.row(one.plan.mode.name(), stage_cells(one).into_iter().skip(1).chain([chunks]));
    }
    lab.print(&table)
}

/// The memory from start to rest, without the stage of all removed; the part of the peak, and over the needed bytes, both when maintained.
fn stage_cells(one: &Played) -> [String; 7] {
    let stages = [Stage::Start, Stage::Created, Stage::Removed, Stage::Maintained, Stage::AtRest];
    let [start, created, removed, maintained, at_rest] = stages.map(|stage| kib(one.at(stage).os_bytes));
    let kept = figure(one.percent_of_peak(Stage::Maintained));
    let needed = one.at(Stage::Maintained).over_needed_cell(one.plan);
    [start, created, removed, maintained, at_rest, kept, needed]
}

/// The part of the peak that is left for every page size, one script in one table.
pub(super) fn pages(lab: &mut Lab<'_>, by_page: &[Vec<Played>]) -> Result<()> {
    let script = by_page[0][0].script;
    let (left, groups) = (script.share(), count(script.groups() as u64));
    let mut table = Table::new(
        format!("{left} left, by page size: {groups} groups created; the part of the peak that is kept"),
        ["% of peak", "kernel", "control", "depopulation", "relocation", "demotion", "x needed", "moved kB"],
    );
    let relocated = |played: &[Played]| {
        let one = played.iter().find(|one| one.plan.mode == Mode::Relocated)?;
        Some((one.at(Stage::Maintained), one.plan))
    };
    for played in by_page {
        let page = played[0].plan.page;
        let mut cells = vec![figure_or_dash(seed_kept_percent(script.inner, page.bytes()))];
        cells.extend(played.iter().map(|one| figure(one.percent_of_peak(Stage::Maintained))));
        if let Some((look, plan)) = relocated(played) {
            cells.extend([look.over_needed_cell(plan), kib(look.moved_bytes)]);
        }
        table.row(format!("pages of {}", page.name()), cells);
    }
    table.note(format!(
        "at least {} while every group keeps a record on each slot; kernel: with the seed's patches, from its thread; x needed and moved (in all): with relocation; a dash where less than a page a slot is needed",
        figure(script.limit_percent())
    ));
    for (look, plan) in by_page.iter().filter_map(|played| relocated(played)) {
        let whole_pages = look.whole_pages_over_needed(plan);
        if whole_pages > OVER_NEEDED_MOST {
            let (page, times) = (plan.page.name(), figure(whole_pages));
            table.note(format!("pages of {page}: whole pages alone are x{times} of the records that are left; the goal allows for a page a slot and chunk"));
        }
    }
    table.note("with cold demotion a folded group has no record: its stock went back to the counters, and additions to its statistics wait on the heap, where they always have room");
    lab.print(&table)
}

/// Holds one script in one mode to the goals.
pub(super) fn add_goals(lab: &mut Lab<'_>, one: &Played) {
    let name = |what: &str| format!("{}, {}: {what}", one.script.share(), one.plan.page.name());
    if one.plan.mode == Mode::Relocated {
        let peak = one.at(Stage::Created).over_needed();
        lab.at_most(name("peak over needed"), Some(peak), OVER_NEEDED_MOST, "x");
        for (stage, of) in [(Stage::Maintained, "with relocation"), (Stage::AtRest, "at rest")] {
            let (look, name) = (one.at(stage), name(&format!("populated, {of}")));
            let [populated, allowed] =
                [look.os_bytes as f64, look.allowed_bytes(one.plan)].map(|of| of / 1024.0);
            lab.at_most(name, Some(populated), allowed.floor(), "kB");
        }
    }
    if one.plan.mode == Mode::Demoted {
        let limit = (one.script.limit_percent() * 100.0).floor() / 100.0;
        let left = one.percent_of_peak(Stage::Maintained);
        lab.at_most(name("of the peak, with cold demotion"), Some(left), limit, "%");
    }
}

/// Records the memory at every stage.
pub(super) fn add_rows(lab: &mut Lab<'_>, one: &Played) {
    for (stage, name) in Stage::ALL {
        let (look, mut params) = (one.at(stage), settings(one));
        params["stage"] = name.into();
        let mut row = lab.record(one.plan.mode.name(), params);
        row.count("populated", "bytes", look.os_bytes);
        row.count("populated by the engine's books", "bytes", look.own_bytes);
        row.count("needed", "bytes", look.needed_bytes);
        row.count("moved so far", "bytes", look.moved_bytes);
    }
}

fn settings(one: &Played) -> Value {
    json!({
        "page": one.plan.page.name(), "slots": one.plan.slots.slots(), "outer": one.script.outer,
        "inner": one.script.inner, "record_bytes": one.plan.record_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_bars_as_long_as_their_figures() {
        let full = |percent| bar(percent, 30.0).matches('█').count();
        assert_eq!([100.0, 50.0, 9.1, 0.0].map(full), [49, 24, 4, 0]);
        assert!(bar(9.1, 30.0).starts_with("████▌"));
        for percent in [0.0, 9.1, 50.0, 100.0, 130.0] {
            assert_eq!(bar(percent, 30.0).chars().count(), BAR_COLUMNS);
        }
    }

    #[test]
    fn marks_the_column_where_the_marks_own_bar_ends() {
        let at = |percent| bar(0.0, percent).chars().position(|cell| cell == MARK);
        assert_eq!([0.0, 9.09, 50.0, 100.0].map(at), [0, 4, 25, 49].map(Some));
        assert_eq!(bar(12.0, 9.09).trim_end(), "████│█");
    }

    #[test]
    fn shows_the_least_figure() {
        assert_eq!(bar(0.01, 50.0).chars().next(), Some('▏'));
        assert_eq!(bar(0.0, 50.0).chars().next(), Some(' '));
    }
}
