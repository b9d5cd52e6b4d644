//! The page that is made of the figures.

use super::{Figures, Part, value_text};
use crate::harness::prelude::*;

/// The answers to "What does it cost me?", by the ids of their figures.
const COSTS: [(&str, &str); 14] = [
    ("charge.pair.memgroup.1-thread", "a charge of 4 KiB and its uncharge, three levels"),
    (
        "charge.a-pair-over-two-additions-to-one-counter-1-thread",
        "the same over two additions to one counter",
    ),
    ("charge.pair.memgroup.2-threads-same-group", "the same on two threads, in one group"),
    ("drain.whole-drain.memgroup.slots-128", "emptying the stocks of 128 CPU slots"),
    ("drain.an-addition-to-a-statistic.memgroup", "an addition to a statistic"),
    ("limits.a-refusal-by-the-own-limit.memgroup.threads-1", "a refusal by the group's own limit"),
    ("limits.a-life.memgroup.threads-1", "a group that is made, charged and removed"),
    (
        "limits.a-pair-with-every-setting-in-use-1-thread-over-max-alone",
        "a charge with every setting in use, over `max` alone",
    ),
    ("limits.bytes-of-a-live-group", "memory of a group on 2 slots"),
    ("limits.remove-p99-99", "a removal, p99.99 of 100,000"),
    ("alloc.a-poll-in-a-group-pressure-and-sampled-time-1-in-32", "a poll of a task in a group"),
    ("alloc.a-waiting-charge-of-1-000-charges", "memory of a charge that waits as a future"),
    (
        "alloc.json-system-1-thread-over-bare",
        "a program that parses JSON, each block charged, over the same without",
    ),
    (
        "alloc.words-mimalloc-1-thread-over-bare",
        "a program that sorts words, with mimalloc, over the same without",
    ),
];

/// The figures that have the goals of some of these, which have the controls.
const GOALS: [(&str, &str); 4] = [
    ("charge.pair.memgroup.1-thread", "charge.a-pair-1-thread"),
    ("drain.whole-drain.memgroup.slots-128", "drain.a-drain-of-128-slots"),
    ("limits.a-refusal-by-the-own-limit.memgroup.threads-1", "limits.a-refusal-by-a-parent-of-1-group"),
    ("limits.a-life.memgroup.threads-1", "limits.create-charge-and-remove-1-thread"),
];

/// The page of all figures, with the charts of these experiments.
pub(super) fn markdown(all: &Figures, parts: &[Part], charts: &[&str]) -> String {
    let mut text = format!(
        "# Figures\n\nThis page is written by `cargo run --release -p memgroup-lab -- figures`; don't edit it. \
         [How a figure is made](../crates/memgroup-lab/README.md#how-a-figure-is-made).\n\n{}. Commit {}.\n",
        all.machine, all.commit
    );
    if let Some(why) = &all.noisy {
        text += &format!(
            "\n**The machine wasn't quiet: {why}.** Trust the ratios, which were measured in turn, more than the times.\n"
        );
    }
    text += &format!("\n## What does it cost me?\n{}", table_markdown(&costs(all)));
    text += &format!("\n## Where it is slow\n{}", table_markdown(&missed(all)));
    for Part { title, name, report } in parts {
        text += &format!("\n## {title}\n\n`cargo run --release -p memgroup-lab -- {name}`\n");
        if charts.contains(&&**name) {
            text += &format!("\n![{title}](figures/{name}.svg)\n");
        }
        text.extend(report.tables.iter().map(table_markdown));
    }
    text
}

fn costs(all: &Figures) -> Table {
    let mut table = Table::new("In short", ["", "figure", "the same in its controls", "goal"]);
    for (id, what) in COSTS {
        let find = |id: &str| all.figures.iter().find(|figure| figure.id == id);
        let Some(figure) = find(id) else {
            // The memory of groups and some others need a process or a CPU that a short run may
            // lack.
            table.row(what, ["not measured".to_owned(), String::new(), String::new()]);
            continue;
        };
        let of_goal =
            GOALS.iter().find(|(of, _)| *of == id).and_then(|(_, goal)| find(goal)).unwrap_or(figure);
        let missed = if of_goal.met == Some(false) { ", missed" } else { "" };
        let goal = of_goal.goal.as_ref().map_or_else(String::new, |goal| format!("{goal}{missed}"));
        let of_control =
            |(name, value): (&String, &f64)| format!("{name}: {}", value_text(Some(*value), &figure.unit));
        let controls: Vec<_> = figure.controls.iter().map(of_control).collect();
        table.row(what, [figure.text.clone(), controls.join("; "), goal]);
    }
    table
}

fn missed(all: &Figures) -> Table {
    let mut table = Table::new("Every goal that this run missed", ["figure", "measured", "goal", "command"]);
    for figure in all.figures.iter().filter(|figure| figure.met == Some(false)) {
        let goal = figure.goal.clone().unwrap_or_default();
        table.row(&figure.what, [figure.text.clone(), goal, format!("`{}`", figure.command)]);
    }
    table
}

fn table_markdown(table: &Table) -> String {
    let row = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|text| text.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = format!("\n**{}**\n\n{}", table.title, row(&table.rows[0]));
    text += &format!("|---{}|\n", "|---:".repeat(table.rows[0].len() - 1));
    text.extend(table.rows[1..].iter().map(|cells| row(cells)));
    text.extend(table.notes.iter().map(|note| format!("\n{}.\n", note.trim_end_matches('.'))));
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Figure;
    use super::*;

    fn figure(id: &str, what: &str, value: f64) -> Figure {
        let (text, unit) = (format!("{value} ns"), "ns".to_owned());
        Figure { id: id.into(), what: what.into(), value: Some(value), text, unit, ..Figure::default() }
    }

    pub(in super::super) fn all() -> Figures {
        let missed = Figure {
            goal: Some("<= 6 ns".into()),
            met: Some(false),
            command: "memgroup-lab charge".into(),
            ..figure("charge.a-pair", "a pair", 7.5)
        };
        let pair = figure("charge.pair.memgroup.1-thread", "pair, memgroup, 1-thread", 7.5);
        let control = figure("charge.pair.no-stock.1-thread", "pair, no stock (control), 1-thread", 750.0);
        Figures {
            commit: "c".into(),
            machine: "m".into(),
            noisy: Some("a test".into()),
            figures: vec![missed, pair, control],
        }
    }

    #[test]
    fn begins_with_costs_and_missed_goals_and_has_every_table() {
        let mut table = Table::new("seed 004", ["the author's figures", "before"]);
        table.row("a | b", ["1".into()]);
        let (machine, tables) = (json!({}), vec![table]);
        let report = super::super::Written { machine, rows: Vec::new(), checks: Vec::new(), tables };
        let part = Part { title: "Charges", name: "charge".into(), report };
        let page = markdown(&all(), &[part], &["charge"]);
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text:?} in:\n{page}"));
        assert!(
            at("**The machine wasn't quiet: a test") < at("## What does it cost me?")
                && at("7.5 ns") < at("## Where it is slow")
        );
        assert!(at("| a pair | 7.5 ns | <= 6 ns | `memgroup-lab charge` |") < at("## Charges"));
        assert!(at("![Charges](figures/charge.svg)") < at("**seed 004**"));
        assert!(at("**seed 004**") < at("| a \\| b | 1 |"));
    }
}
