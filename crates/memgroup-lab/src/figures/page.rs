//! The page and the charts that are made of the figures.

use std::fmt::Write;

use super::{Figure, Figures, Part};
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

/// A chart: its file, its title, and the begin and the end of its figures' ids.
const CHARTS: [(&str, &str, [&str; 2]); 4] = [
    ("charge.svg", "A charge of 4 KiB and its uncharge, three levels", ["charge.pair.", ""]),
    ("drain.svg", "One drain of 128 stocks of a group", ["drain.whole-drain.", ".slots-128"]),
    ("rstat.svg", "A fresh read beside other statistics that change", ["rstat.read.", ""]),
    ("limits.svg", "Away from the best case, over the control", ["limits.a", ""]),
];

/// The page of all figures.
pub(super) fn markdown(all: &Figures, parts: &[Part]) -> Result<String> {
    let mut text = format!(
        "# Figures\n\nThis page is written by `cargo run --release -p memgroup-lab -- figures`; don't edit it. \
         [How a figure is made](../crates/memgroup-lab/README.md#how-a-figure-is-made).\n\n{}. Commit {}.\n",
        all.machine, all.commit
    );
    if let Some(why) = &all.noisy {
        line(
            &mut text,
            &format!(
                "\n**The machine wasn't quiet: {why}.** Trust the ratios, which were measured in turn, more than the times."
            ),
        );
    }
    line(
        &mut text,
        "\n## What does it cost me?\n\n| | figure | the same in its controls | goal |\n|---|---:|---|---|",
    );
    for (id, what) in COSTS {
        let Some(figure) = all.figures.iter().find(|figure| figure.id == id) else {
            // The memory of groups and some others need a process or a CPU that a short run may lack.
            line(&mut text, &format!("| {what} | not measured | | |"));
            continue;
        };
        let goal = figure.goal.as_ref().map_or_else(String::new, |goal| {
            if figure.met == Some(true) { goal.clone() } else { format!("{goal}, missed") }
        });
        let controls = figure
            .controls
            .iter()
            .map(|(name, value)| format!("{name}: {}", super::value_text(Some(*value), &figure.unit)));
        let controls = controls.collect::<Vec<_>>().join("; ");
        line(&mut text, &format!("| {what} | {} | {controls} | {goal} |", figure.text));
    }
    line(
        &mut text,
        "\n![Charges](figures/charge.svg)\n\n## Where it is slow\n\nEvery goal that this run missed.\n",
    );
    line(&mut text, "| figure | measured | goal | command |\n|---|---:|---:|---|");
    for figure in all.figures.iter().filter(|figure| figure.met == Some(false)) {
        let goal = figure.goal.as_deref().unwrap_or_default();
        line(
            &mut text,
            &format!("| {} | {} | {goal} | `{}` |", cell(&figure.what), figure.text, figure.command),
        );
    }
    line(&mut text, "\n![Away from the best case](figures/limits.svg)");
    for part in parts {
        line(
            &mut text,
            &format!("\n## {}\n\n`cargo run --release -p memgroup-lab -- {}`", part.title, part.name),
        );
        let of_part = CHARTS.iter().find(|(file, ..)| *file == format!("{}.svg", part.name));
        // The other two are above.
        if let Some((file, title, _)) = of_part.filter(|_| !["charge", "limits"].contains(&&*part.name)) {
            line(&mut text, &format!("\n![{title}](figures/{file})"));
        }
        part.tables.iter().for_each(|table| table_markdown(&mut text, table));
    }
    Ok(text)
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn table_markdown(text: &mut String, table: &Table) {
    let row = |cells: &[String]| {
        format!("| {} |", cells.iter().map(|text| cell(text)).collect::<Vec<_>>().join(" | "))
    };
    line(text, &format!("\n**{}**\n", table.title));
    line(text, &row(&table.rows[0]));
    line(text, &format!("|---{}|", "|---:".repeat(table.rows[0].len() - 1)));
    table.rows[1..].iter().for_each(|cells| line(text, &row(cells)));
    table.notes.iter().for_each(|note| line(text, &format!("\n{}.", note.trim_end_matches('.'))));
}

/// The charts that have figures, by the names of their files.
pub(super) fn charts(all: &Figures) -> Result<Vec<(String, String)>> {
    let chart = |&(file, title, [begin, end]): &(&str, &str, [&str; 2])| {
        let of_limits = begin.starts_with("limits");
        let bars = all.figures.iter().filter(|figure| {
            // Of the limits, what takes longer than its control; of others, everything.
            let of_kind = if of_limits {
                figure.unit == "x" && figure.value.is_some_and(|over| over > 1.0)
            } else {
                figure.goal.is_none()
            };
            figure.id.starts_with(begin) && figure.id.ends_with(end) && of_kind && figure.value.is_some()
        });
        let bars: Vec<Bar<'_>> = bars.map(Bar::of).collect();
        (!bars.is_empty()).then(|| (file.to_owned(), svg(title, &bars)))
    };
    Ok(CHARTS.iter().filter_map(chart).collect())
}

/// One bar of a chart.
struct Bar<'f> {
    name: String,
    text: &'f str,
    value: f64,
    is_control: bool,
}

impl Bar<'_> {
    fn of(figure: &Figure) -> Bar<'_> {
        // A row's name begins with its metric, which the title says; that of a goal has none.
        let name = if figure.goal.is_some() {
            &figure.what
        } else {
            figure.what.split_once(", ").map_or(&*figure.what, |(_, rest)| rest)
        };
        let ours = ["memgroup", "separate trees"].iter().any(|ours| name.starts_with(ours));
        let is_control = figure.goal.is_none() && !ours;
        let name = name
            .replace(" (control)", "")
            .replace("-threads", " threads")
            .replace("-thread", " thread")
            .replace("slots-", "slots ")
            .replace('-', " ");
        Bar { name, text: &figure.text, value: figure.value.unwrap_or(0.0), is_control }
    }
}

/// Horizontal bars on a scale of tens, because the longest are a hundred times as long as the
/// shortest.
fn svg(title: &str, bars: &[Bar<'_>]) -> String {
    const LEFT: f64 = 530.0;
    const LONGEST: f64 = 260.0;
    const ROW: f64 = 25.0;
    const TOP: f64 = 62.0;
    let values = || bars.iter().map(|bar| bar.value.max(1e-3));
    let least = values().fold(f64::INFINITY, f64::min).log10().floor();
    let decades = (values().fold(0.0, f64::max).log10().ceil() - least).max(1.0);
    let length = |value: f64| (value.max(1e-3).log10() - least) / decades * LONGEST;
    let bottom = TOP + ROW * bars.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 {}\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <rect width=\"900\" height=\"{}\" rx=\"8\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"16\" font-weight=\"600\" fill=\"#1a202c\">{}</text>\n\
         <text x=\"20\" y=\"48\" font-size=\"11\" fill=\"#718096\">blue: memgroup; grey: controls; each line is ten times the one before</text>\n",
        bottom + 16.0,
        bottom + 16.0,
        escaped(title)
    );
    for decade in 0..=decades as u32 {
        let x = LEFT + f64::from(decade) / decades * LONGEST;
        _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#e2e8f0\"/>"
        );
    }
    for (row, bar) in bars.iter().enumerate() {
        let (y, long) = (TOP + ROW * row as f64, length(bar.value).max(2.0));
        let colour = if bar.is_control { "#a0aec0" } else { "#2b6cb0" };
        _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#2d3748\">{}</text>\n\
             <rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{long:.1}\" height=\"15\" rx=\"2\" fill=\"{colour}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#1a202c\">{}</text>",
            LEFT - 10.0,
            y + 16.0,
            escaped(&bar.name),
            y + 4.0,
            LEFT + long + 8.0,
            y + 16.0,
            escaped(bar.text)
        );
    }
    text + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(id: &str, what: &str, value: f64) -> Figure {
        let (text, unit) = (format!("{value} ns"), "ns".to_owned());
        Figure { id: id.into(), what: what.into(), value: Some(value), text, unit, ..Figure::default() }
    }

    fn all() -> Figures {
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
        let part = Part {
            title: "Charges",
            name: "charge".into(),
            report: serde_json::Value::Null,
            tables: vec![table],
        };
        let page = markdown(&all(), &[part]).unwrap();
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text:?} in:\n{page}"));
        assert!(
            at("**The machine wasn't quiet: a test") < at("## What does it cost me?")
                && at("7.5 ns") < at("## Where it is slow")
        );
        assert!(at("| a pair | 7.5 ns | <= 6 ns | `memgroup-lab charge` |") < at("## Charges"));
        assert!(at("**seed 004**") < at("| a \\| b | 1 |"));
    }

    #[test]
    fn draws_a_bar_for_each_figure_ten_times_as_far_for_a_hundred_times_as_much() {
        let charts = charts(&all()).unwrap();
        let [(name, svg)] = &charts[..] else { panic!("{charts:?}") };
        assert_eq!((name.as_str(), svg.matches("rx=\"2\"").count()), ("charge.svg", 2));
        assert!(
            svg.contains("memgroup, 1 thread") && svg.contains("750 ns") && svg.contains("#a0aec0"),
            "{svg}"
        );
    }
}
