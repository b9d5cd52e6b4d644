//! The same work in several ways, side by side: memgroup's own run on the left.
//!
//! All stand in one table where that is no wider than `WIDTH`; else each of the others has a table of its own beside memgroup's.

use super::sentences::{begun, first_refusals, gave_way, never_began, retried, verdict, wrapped};
use super::{Cell, Emphasis, columns, or_none, plain, refused, strip};
use crate::run::house::Regime;
use crate::run::report::{Half, TenantReport};
use crate::run::units;

/// Columns that a table may take.
const WIDTH: usize = 110;
const NUMBERS: [&str; 4] = ["done", "refused", "p50", "p99"];

/// Of `halves`, memgroup's own the first, and what they say in words.
pub(super) fn of_all(halves: &[(Regime, &Half)], emphasis: Emphasis) -> String {
    let Some((own, others)) = halves.split_first() else { return String::new() };
    let whole = side_by_side(halves, emphasis);
    let fits = strip(&whole).lines().all(|line| line.chars().count() <= WIDTH);
    let mut text = if fits {
        whole + "\n"
    } else {
        others.iter().map(|other| side_by_side(&[*own, *other], emphasis) + "\n").collect()
    };
    text.push_str(&verdict(own.0, own.1));
    for &(regime, half) in others {
        text.push_str(&verdict(regime, half));
        text.push_str(&never_began(regime, half));
        text.push_str(&retried(regime, half));
        text.push_str(&gave_way(regime, half));
        text.push_str(&guarded(regime, half));
    }
    text.push_str(&slower(halves));
    text.push_str(&most_held(halves));
    for &(regime, half) in others {
        text.push_str(&first_refusals(half, &format!(" {}", regime.title())));
    }
    text
}

fn side_by_side(halves: &[(Regime, &Half)], emphasis: Emphasis) -> String {
    let mut titles = vec!["tenant".to_owned()];
    for number in 0..halves.len() {
        titles.extend((number > 0).then(|| "|".to_owned()));
        titles.extend(NUMBERS.map(str::to_owned));
    }
    let tenants = halves.iter().map(|(_, half)| half.tenants.len()).min().unwrap_or(0);
    let row = |index: usize| {
        let mut row = Vec::new();
        for (number, (_, half)) in halves.iter().enumerate() {
            let tenant = &half.tenants[index];
            row.push(plain(if number == 0 { &tenant.name } else { "|" }));
            row.extend(numbers(tenant));
        }
        row
    };
    let rows: Vec<Vec<Cell>> = (0..tenants).map(row).collect();
    let table = columns(&titles, &rows, rows.len(), emphasis);
    // A heading stands over the first column of its run.
    let first = strip(table.lines().next().unwrap_or_default());
    let bars = first.char_indices().filter(|&(_, letter)| letter == '|').map(|(at, _)| at);
    let mut over = format!("{:>16}", "");
    for (&(regime, _), end) in halves.iter().zip(bars.map(Some).chain([None])) {
        over.push_str(regime.title());
        if let Some(end) = end {
            over = format!("{over:<end$}|  ");
        }
    }
    format!("{}\n{table}", emphasis.heading(&over))
}

fn numbers(tenant: &TenantReport) -> [Cell; NUMBERS.len()] {
    [
        plain(units::count(tenant.done)),
        refused(tenant.refused, !tenant.is_runaway()),
        or_none(tenant.p50_us, units::duration_us),
        or_none(tenant.p99_us, units::duration_us),
    ]
}

/// What kept a run without limits from taking the whole machine, and whether it had to.
fn guarded(regime: Regime, half: &Half) -> String {
    let Some(guard) = half.guard else { return String::new() };
    let guard = format!("the guard of {}, half of what the system had left,", units::bytes(guard));
    let refused: u64 = half.tenants.iter().map(|tenant| tenant.refused).sum();
    let refusals = |count| {
        if count == 1 { "1 statement".to_owned() } else { format!("{} statements", units::count(count)) }
    };
    wrapped(&match refused {
        0 => format!("{}, {guard} was never reached.", begun(regime.title())),
        count => format!(
            "{} that were refused {} met {guard} and no other limit.",
            refusals(count),
            regime.title()
        ),
    })
}

/// How much longer the slow statements of the protected took than without limits.
fn slower(halves: &[(Regime, &Half)]) -> String {
    let find = |wanted: Regime| halves.iter().find(|(regime, _)| *regime == wanted).map(|(_, half)| *half);
    let (Some(own), Some(free)) = (find(Regime::Groups), find(Regime::Unlimited)) else {
        return String::new();
    };
    let line = |(limited, free): (&TenantReport, &TenantReport)| {
        let (with, without) = (limited.p99_us?, free.p99_us.filter(|&us| us > 0.0)?);
        limited.protected.then(|| {
            wrapped(&format!(
                "The p99 of `{}`, protected, is {:.2} times what it is without limits.",
                limited.name,
                with / without
            ))
        })
    };
    own.tenants.iter().zip(&free.tenants).filter_map(line).collect()
}

fn most_held(halves: &[(Regime, &Half)]) -> String {
    let each: Vec<String> = halves
        .iter()
        .map(|(regime, half)| {
            let of = half.all.max.map(|max| format!(" of {}", units::limit(Some(max)))).unwrap_or_default();
            format!("{}{of} {}", units::bytes(half.all.peak), regime.title())
        })
        .collect();
    wrapped(&format!("Most memory held at once: {}.", each.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::of_report;
    use super::{Emphasis, WIDTH};
    use crate::run::report::tests::half;
    use crate::run::report::{Half, Report};

    fn three() -> Report {
        let mut unlimited = Half { guard: Some(11 << 30), ..half(0) };
        unlimited.all.max = None;
        unlimited.tenants[1].refused = 0;
        Report { unlimited: Some(unlimited), baseline: Some(half(3)), ..Report::of(half(0)) }
    }

    fn comparison(report: &Report) -> String {
        let text = of_report(report, None, Emphasis(false));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        text.split_once(" backed by the system.\n\n").expect("two parts").1.to_owned()
    }

    #[test]
    fn two_runs_stand_side_by_side_and_the_text_says_who_suffered() {
        let report = Report { unlimited: None, ..three() };
        let expected = "                \
with memgroup                 |  with SQLite's heap limit
tenant        done  refused      p50     p99  |       done  refused      p50     p99
------------------------------------------------------------------------------------
lookups  1,234,567        0  12.5 us  2.5 ms  |  1,234,567        3  12.5 us  2.5 ms
runaway          0      120        -       -  |          0      120        -       -

With memgroup, only `runaway` was refused.
With SQLite's heap limit, `runaway` was refused, and others suffered: `lookups` (3 of 1,234,570
  statements).
Most memory held at once: 32.0M of 128M with memgroup, 32.0M of 128M with SQLite's heap limit.
First refusal of `lookups` with SQLite's heap limit: /tenants/lookups is full
First refusal of `runaway` with SQLite's heap limit: /tenants/runaway is full
";
        assert_eq!(comparison(&report), expected);
    }

    #[test]
    fn three_runs_stand_side_by_side_where_they_fit() {
        let mut report = three();
        for half in [Some(&mut report.memgroup), report.unlimited.as_mut(), report.baseline.as_mut()] {
            half.expect("it ran").tenants[0].done = 7;
        }
        let text = comparison(&report);
        let lines: Vec<&str> = text.lines().take(5).collect();
        let bars = |line: &str| line.match_indices('|').map(|(at, _)| at).collect::<Vec<_>>();
        assert_eq!(bars(lines[0]).len(), 2, "{text}");
        for line in [lines[1], lines[3], lines[4]] {
            assert_eq!(bars(line), bars(lines[0]), "{text}");
        }
        let [first, second, third] =
            ["with memgroup", "without limits", "with SQLite's"].map(|title| lines[0].find(title));
        assert!(first < second && second < third && first.is_some(), "{text}");
    }

    #[test]
    fn three_runs_that_do_not_fit_stand_in_two_tables_each_beside_memgroups_own() {
        let text = comparison(&three());
        let heads: Vec<&str> =
            text.lines().filter(|line| line.starts_with("  ") && line.contains('|')).collect();
        assert_eq!(heads.len(), 2, "{text}");
        assert!(heads.iter().all(|head| head.contains("with memgroup")), "{text}");
        assert!(heads[0].contains("without limits") && heads[1].contains("heap limit"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("lookups ")).count(), 2, "{text}");
    }

    #[test]
    fn whether_the_guard_was_reached_is_said() {
        let said = |report: &Report| comparison(report).split_whitespace().collect::<Vec<_>>().join(" ");
        let mut report = three();
        let never =
            "Without limits, the guard of 11.0G, half of what the system had left, was never reached.";
        assert!(said(&report).contains(never), "{}", said(&report));
        report.unlimited.as_mut().expect("it ran").tenants[1].refused = 5;
        let met = "5 statements that were refused without limits met the guard of 11.0G, half of what the system had left, \
                   and no other limit.";
        assert!(said(&report).contains(met), "{}", said(&report));
        assert!(said(&report).contains("32.0M without limits, "), "{}", said(&report));
    }

    #[test]
    fn the_protected_are_compared_with_themselves_without_limits() {
        let mut report = three();
        report.memgroup.tenants[0].p99_us = Some(3_000.0);
        let text = comparison(&report);
        assert!(
            text.contains("The p99 of `lookups`, protected, is 1.20 times what it is without limits.\n"),
            "{text}"
        );
        assert!(!text.contains("The p99 of `runaway`"), "{text}");
    }
}
