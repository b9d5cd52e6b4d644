//! The comparison as a table with a column for each pool, and a sentence for each tenant.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::pools::{Pool, TENANTS};
use crate::turn::{Figures, Turn};

/// The table and the sentences. The first pools are memgroup's.
pub(crate) fn of(pools: &[(Pool, Turn)]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([""].into_iter().chain(pools.iter().map(|(pool, _)| pool.title())));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut row = |title: &str, figure: &dyn Fn(&Turn) -> String| {
        let figures = pools.iter().map(|(_, turn)| figure(turn));
        table.add_row([title.to_owned()].into_iter().chain(figures));
    };
    row("finished a minute", &|turn| {
        format!("{:.0}", sum(turn, |tenant| tenant.done) as f64 * 60.0 / turn.seconds)
    });
    row("failed", &|turn| sum(turn, Figures::failed).to_string());
    row("restarted", &|turn| sum(turn, |tenant| tenant.restarted).to_string());
    row("spilled", &|turn| mebibytes(sum(turn, |tenant| tenant.spilled)));
    for (index, tenant) in TENANTS.iter().enumerate().filter(|(_, tenant)| tenant.is_runaway()) {
        let name = tenant.name;
        row(&format!("{name}: finished"), &|turn| turn.tenants[index].done.to_string());
        row(&format!("{name}: failed"), &|turn| turn.tenants[index].failed().to_string());
        row(&format!("{name}: spilled"), &|turn| mebibytes(turn.tenants[index].spilled));
    }
    row("most resident", &|turn| mebibytes(turn.resident_peak));
    row("most charged", &|turn| turn.charged_peak.map_or_else(|| "-".to_owned(), mebibytes));
    for (index, tenant) in TENANTS.iter().enumerate().filter(|(_, tenant)| !tenant.is_runaway()) {
        for (title, share) in [("p50", 0.5), ("p99", 0.99)] {
            row(&format!("{}: {title}", tenant.name), &|turn| {
                turn.tenants[index].quantile(share).map_or_else(|| "-".to_owned(), milliseconds)
            });
        }
    }
    let sentences: String = (0..TENANTS.len()).map(|index| sentence(pools, index)).collect();
    format!("{}\n\n{sentences}", table.trim_fmt())
}

/// Returns the sum over all tenants except the runaway.
fn sum(turn: &Turn, figure: fn(&Figures) -> u64) -> u64 {
    let tenants = TENANTS.iter().zip(&turn.tenants);
    tenants.filter(|(tenant, _)| !tenant.is_runaway()).map(|(_, figures)| figure(figures)).sum()
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}M", bytes as f64 / f64::from(1 << 20))
}

fn milliseconds(took: Duration) -> String {
    format!("{:.0} ms", took.as_secs_f64() * 1e3)
}

/// How many queries of one tenant failed, with memgroup and under the other pools.
fn sentence(pools: &[(Pool, Turn)], index: usize) -> String {
    let name = TENANTS[index].name;
    let of = |is_wanted: fn(Pool) -> bool| {
        let turns = pools.iter().filter(move |(pool, _)| is_wanted(*pool));
        turns.map(|(_, turn)| &turn.tenants[index])
    };
    let mut text = format!("`{name}`:");
    if let Some(own) = of(|pool| pool == Pool::Memgroup).next() {
        text += &format!(" with memgroup {} of {} queries failed;", own.failed(), own.done + own.failed());
    }
    let others = || of(|pool| !pool.has_groups()).map(Figures::failed);
    if let (Some(least), Some(most)) = (others().min(), others().max()) {
        text += &format!(" under DataFusion's pools {least} to {most}.");
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_runaway_apart() {
        let figures = |name: &str, done, refused| Figures {
            name: name.to_owned(),
            done,
            refused,
            latencies_us: vec![1_500; 3],
            ..Figures::default()
        };
        let turn = |reports| Turn {
            seconds: 30.0,
            resident_peak: 3 << 19,
            tenants: vec![
                figures("dashboards", 10, 0),
                figures("reports", 5, reports),
                figures("analysts", 5, 0),
                figures("runaway", 1, 9),
            ],
            ..Turn::default()
        };
        let text = of(&[(Pool::Memgroup, turn(2)), (Pool::Greedy, turn(4)), (Pool::FairSpill, turn(2))]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        for expected in [
            &["finished", "a", "minute", "40", "40", "40"][..],
            &["failed", "2", "4", "2"],
            &["runaway:", "failed", "9", "9", "9"],
            &["most", "resident", "1.5M", "1.5M", "1.5M"],
            &["most", "charged", "-", "-", "-"],
            &["reports:", "p99", "2", "ms", "2", "ms", "2", "ms"],
        ] {
            assert!(lines.iter().any(|line| line == expected), "{expected:?} in\n{text}");
        }
        let sentence = "`reports`: with memgroup 2 of 7 queries failed; under DataFusion's pools 2 to 4.\n";
        assert!(text.contains(sentence), "{text}");
    }
}
