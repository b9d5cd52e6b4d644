//! Who kept how much of the script's memory: the seed's machines, the running kernel and our modes beside each other.

use super::bars::{self, Bar};
use super::groups::Mode;
use super::kernel::Anchor;
use super::script::{Played, Script, Stage};
use super::seed;
use super::show::kib;
use crate::Error;
use crate::harness::Lab;
use crate::harness::report::params;
use crate::harness::table::{Table, count, counted, figure};

/// Everybody's memory beside each other, in kB.
pub(super) fn systems(lab: &mut Lab<'_>, played: &[Played], anchor: Option<&Anchor>) -> Result<(), Error> {
    let (script, plan) = (played[0].script, played[0].plan);
    let columns = [
        "per-CPU memory, kB",
        "start",
        "created",
        "removed",
        "maintained",
        "at rest",
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
    let net = |start: f64, created: f64, maintained: f64| 100.0 * (maintained - start) / (created - start);
    for letter in seed::letters() {
        table.row(vec![
            letter.name.to_owned(),
            figure(letter.start),
            figure(letter.created),
            dash(),
            figure(letter.maintained),
            dash(),
            figure(letter.kept_percent()),
            figure(net(letter.start, letter.created, letter.maintained)),
            dash(),
        ]);
    }
    if let Some(anchor) = anchor {
        table.row(vec![
            format!("Linux {}", anchor.release),
            figure(anchor.start),
            figure(anchor.created),
            figure(anchor.removed),
            figure(anchor.maintained()),
            figure(anchor.at_rest),
            figure(anchor.kept_percent()),
            figure(net(anchor.start.min(anchor.at_rest), anchor.created, anchor.maintained())),
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
            one.at(Stage::Maintained).over_needed_cell(plan),
        ]);
    }
    table.note(format!(
        "% of peak: maintained over created, at least {} while every group keeps a record on each slot; net: both without what was there at the start, or at rest where that was less; x needed: when maintained",
        figure(script.limit_percent())
    ));
    table.note("ours: what the system has backed of the arenas' mappings (/proc/self/smaps); the kernel's: Percpu: of /proc/meminfo, with all else that is per-CPU there");
    table.note("no depopulation is the control: nobody maintains it, and nothing goes back");
    if !is_seeds(script) {
        table.note("the seed's rows are of its own script: 11,000 groups created, 1 of 11 left");
    }
    if anchor.is_none() {
        table.note("--kernel adds the running kernel");
    }
    lab.print(&table)
}

/// Whether the letters' figures are of this very script.
fn is_seeds(script: Script) -> bool {
    (script.outer, script.inner) == seed::OUTER_INNER
}

/// What each keeps, as bars; the control once, as nothing changes in it.
pub(super) fn chart(lab: &mut Lab<'_>, played: &[Played], anchor: Option<&Anchor>) -> Result<(), Error> {
    let script = played[0].script;
    let bar = |name: &str, percent| Bar { name: name.to_owned(), percent };
    let ours = |stage, one: &Played| bar(one.plan.mode.name(), one.percent_of_peak(stage));
    let not_control = |one: &&Played| one.plan.mode != Mode::Kept;
    let removed = played.iter().filter(not_control).map(|one| ours(Stage::Removed, one)).collect();
    let letters = seed::letters().into_iter().filter(|letter| letter.is_patched() && is_seeds(script));
    let mut maintained: Vec<Bar> = letters.map(|letter| bar(letter.name, letter.kept_percent())).collect();
    maintained.extend(anchor.map(|anchor| bar("the running kernel", anchor.kept_percent())));
    maintained.extend(played.iter().map(|one| ours(Stage::Maintained, one)));
    let groups = [(Stage::Removed.name(), removed), (Stage::Maintained.name(), maintained)];
    let limit = script.limit_percent();
    let title = format!(
        "populated, % of each one's own peak; {} marks {} %: the records left, on all slots (folded: none)",
        bars::MARK,
        figure(limit)
    );
    lab.say(&format!("\n{}", bars::chart(&title, limit, &groups).trim_end()))
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
    stages.extend(anchor.waited.iter().map(|(seconds, kb)| (format!("maintained, after {seconds} s"), *kb)));
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
