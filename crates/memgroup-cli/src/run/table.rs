//! Reports as text: columns that line up, nothing wider than 110 columns with names of up to 14 letters.

mod comparison;
mod limits;
mod sentences;

use super::house::{Held, Regime};
use super::report::{Half, Report, TenantReport};
use super::shrinkers::Shrinker;
use super::statistics::{Memory, Statistics};
use super::stop::By;
use super::units;

use sentences::{
    first_refusals, gave_way, measured, never_began, retried, room_made, stopped, verdict, wrapped,
};

/// Whether to emphasise, by the codes terminals know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Emphasis(pub(crate) bool);

impl Emphasis {
    fn wrap(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn heading(self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn alarm(self, text: &str) -> String {
        self.wrap("31", text)
    }

    fn aside(self, text: &str) -> String {
        self.wrap("2", text)
    }
}

/// Where nothing is known, or nothing could be.
const NONE: &str = "-";

/// One entry, and whether it wants attention.
#[derive(Debug, Clone)]
struct Cell {
    text: String,
    alarming: bool,
}

fn plain(text: impl Into<String>) -> Cell {
    Cell { text: text.into(), alarming: false }
}

fn or_none<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> Cell {
    plain(value.map_or_else(|| NONE.to_owned(), show))
}

fn refused(count: u64, alarming: bool) -> Cell {
    Cell { text: units::count(count), alarming: alarming && count > 0 }
}

/// The report of one run.
pub(crate) fn of_half(half: &Half, emphasis: Emphasis) -> String {
    let titles = ["tenant", "done", "refused", "p50", "p99", "usage", "peak", "max", "hit rate", "database"]
        .map(str::to_owned);
    let mut rows: Vec<Vec<Cell>> = half.tenants.iter().map(tenant_row).collect();
    let sum = |of: fn(&TenantReport) -> u64| units::count(half.tenants.iter().map(of).sum());
    let held = |name: &str, done: Cell, refused: Cell, held: Held| {
        let mut row = vec![plain(name), done, refused, plain(NONE), plain(NONE)];
        row.extend([
            plain(units::bytes(held.usage)),
            plain(units::bytes(held.peak)),
            plain(units::limit(held.max)),
        ]);
        row.extend([or_none(held.hit_rate, units::percent), plain(NONE)]);
        row
    };
    let done = plain(sum(|tenant| tenant.done));
    let refusals = plain(sum(|tenant| tenant.refused));
    rows.push(held("all tenants", done, refusals, half.all));
    if let Some(unattributed) = half.unattributed {
        rows.push(held("unattributed", plain(NONE), plain(NONE), unattributed));
    }
    let mut text = columns(&titles, &rows, half.tenants.len(), emphasis);
    text.push_str(&statistics(half, emphasis));
    text.push_str(&reclaim(half, emphasis));
    text.push_str(&limits::table(half, emphasis));
    text.push('\n');
    text.push_str(&verdict(Regime::Groups, half));
    text.push_str(&never_began(Regime::Groups, half));
    text.push_str(&stopped(half));
    text.push_str(&retried(Regime::Groups, half));
    text.push_str(&measured(half));
    text.push_str(&gave_way(Regime::Groups, half));
    text.push_str(&room_made(half));
    text.push_str(&first_refusals(half, ""));
    if let Some(percpu) = half.percpu {
        text.push_str(&wrapped(&format!(
            "Per-CPU memory of the groups, {} slot{}: {} bytes in use, {} backed by the system.",
            percpu.slots,
            if percpu.slots == 1 { "" } else { "s" },
            percpu.live,
            units::bytes(percpu.populated),
        )));
    }
    text
}

/// Where the memory is, what went through files, and whose time it was; nothing where nobody keeps statistics.
fn statistics(half: &Half, emphasis: Emphasis) -> String {
    let titles =
        ["tenant", "page cache", "schema", "statements", "other", "prepaid", "read", "written", "time"];
    let of = |name: &str, all: Option<Statistics>| {
        let Statistics { memory, io, scope_us } = all?;
        let Memory { file, schema, statements, other, prepaid, .. } = memory;
        let bytes = [file, schema, statements, other, prepaid, io.rbytes, io.wbytes];
        let mut row = vec![plain(name)];
        row.extend(bytes.map(|bytes| plain(units::bytes(bytes))));
        row.push(plain(units::duration_us(scope_us as f64)));
        Some(row)
    };
    let mut rows: Vec<Vec<Cell>> =
        half.tenants.iter().filter_map(|tenant| of(&tenant.name, tenant.statistics)).collect();
    let tenants = rows.len();
    rows.extend(of("all tenants", half.statistics));
    if rows.is_empty() {
        return String::new();
    }
    format!("\n{}", columns(&titles.map(str::to_owned), &rows, tenants, emphasis))
}

/// From whom memory was taken, and for whom; nothing where no cache gives way.
fn reclaim(half: &Half, emphasis: Emphasis) -> String {
    if half.reclaim != Some(true) {
        return String::new();
    }
    let titles =
        ["tenant", "taken", "gained", "calls", "caches", "holding", "asked", "time", "last", "set aside"];
    let row = |name: &str, statistics: Option<Statistics>, caches: &[&Shrinker]| {
        let Memory { reclaims, reclaimed, gained, .. } = statistics?.memory;
        let sum = |of: fn(&Shrinker) -> u64| caches.iter().map(|&cache| of(cache)).sum::<u64>();
        let set_aside = caches.iter().filter(|cache| cache.quarantine.is_some()).count() as u64;
        Some(vec![
            plain(name),
            plain(units::bytes(reclaimed)),
            plain(units::bytes(gained)),
            plain(units::count(reclaims)),
            plain(units::count(caches.len() as u64)),
            plain(units::bytes(sum(|cache| cache.holds.unwrap_or(0)))),
            plain(units::bytes(sum(|cache| cache.asked))),
            plain(units::duration_us(sum(|cache| cache.time_ns) as f64 / 1e3)),
            plain(units::bytes(sum(|cache| cache.last_freed))),
            Cell { text: units::count(set_aside), alarming: set_aside > 0 },
        ])
    };
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for tenant in &half.tenants {
        let caches: Vec<&Shrinker> = tenant.shrinkers.iter().flatten().collect();
        rows.extend(row(&tenant.name, tenant.statistics, &caches));
        all.extend(caches);
    }
    let tenants = rows.len();
    rows.extend(row("all tenants", half.statistics, &all));
    format!("\n{}", columns(&titles.map(str::to_owned), &rows, tenants, emphasis))
}

fn tenant_row(tenant: &TenantReport) -> Vec<Cell> {
    vec![
        plain(&tenant.name),
        plain(units::count(tenant.done)),
        refused(tenant.refused, !tenant.is_runaway()),
        or_none(tenant.p50_us, units::duration_us),
        or_none(tenant.p99_us, units::duration_us),
        or_none(tenant.usage, units::bytes),
        or_none(tenant.peak, units::bytes),
        plain(units::limit(tenant.max)),
        or_none(tenant.hit_rate, units::percent),
        plain(units::bytes(tenant.database)),
    ]
}

/// The whole of `report`, of a run whose end was asked for `by` somebody, or not.
pub(crate) fn of_report(report: &Report, by: Option<By>, emphasis: Emphasis) -> String {
    let halves = report.halves();
    let ended = if halves.iter().any(|(_, half)| half.interrupted) {
        format!(", ended by {}", by.unwrap_or(By::CtrlC))
    } else {
        String::new()
    };
    let half = &report.memgroup;
    let reclaim = if half.reclaim == Some(false) { ", without reclaim" } else { "" };
    let tenants = match half.tenants.len() {
        1 => "1 tenant".to_owned(),
        many => format!("{many} tenants"),
    };
    let head = emphasis.heading(&format!(
        "{tenants}, {:.1} s of statements, seed {}{reclaim}{ended}",
        half.seconds, half.seed
    ));
    let mut text = format!("{head}\n\n{}", of_half(half, emphasis));
    if halves.len() > 1 {
        text.push_str(&format!("\n{}", comparison::of_all(&halves, emphasis)));
    }
    text
}

/// Lines the columns up; a rule stands under the titles and after `ruled` rows, if more follow.
fn columns(titles: &[String], rows: &[Vec<Cell>], ruled: usize, emphasis: Emphasis) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].text.chars().count());
        cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = (String, bool)>| {
        let mut line = String::new();
        for (column, (text, alarming)) in cells.enumerate() {
            let pad = " ".repeat(widths[column] - text.chars().count());
            let text = if alarming { emphasis.alarm(&text) } else { text };
            match column {
                0 => line.push_str(&format!("{text}{pad}")),
                _ => line.push_str(&format!("  {pad}{text}")),
            }
        }
        line.truncate(line.trim_end().len());
        line
    };
    let rule = emphasis.aside(&"-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)));
    let mut text = line(&mut titles.iter().map(|title| (title.clone(), false)));
    text = format!("{}\n{rule}\n", emphasis.heading(&text));
    for (number, row) in rows.iter().enumerate() {
        if number == ruled {
            text.push_str(&format!("{rule}\n"));
        }
        text.push_str(&line(&mut row.iter().map(|cell| (cell.text.clone(), cell.alarming))));
        text.push('\n');
    }
    text
}

/// `text` without its emphasis.
fn strip(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('\x1b') {
        plain.push_str(&rest[..start]);
        rest = rest[start..].split_once('m').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::{By, Emphasis, of_report, strip};
    use crate::run::report::tests::half;
    use crate::run::report::{Half, Report};

    fn shown(memgroup: Half, baseline: Option<Half>) -> String {
        of_report(&Report { baseline, ..Report::of(memgroup) }, None, Emphasis(false))
    }

    #[test]
    fn the_table_lines_up_and_fits_110_columns() {
        let text = shown(half(0), None);
        let expected = "\
2 tenants, 20.0 s of statements, seed 1

tenant             done  refused      p50     p99  usage   peak   max  hit rate  database
-----------------------------------------------------------------------------------------
lookups       1,234,567        0  12.5 us  2.5 ms  15.0M  16.0M   16M    99.7 %     45.0M
runaway               0      120        -       -  15.0M  16.0M   16M    99.7 %     45.0M
-----------------------------------------------------------------------------------------
all tenants   1,234,567      120        -       -  30.0M  32.0M  128M         -         -
unattributed          -        -        -       -   2.0K   4.0K   max         -         -

tenant       page cache  schema  statements   other  prepaid  read  written     time
------------------------------------------------------------------------------------
lookups           14.0M   60.0K        4.0K  960.0K   128.0K  3.0G        0  19.50 s
runaway           14.0M   60.0K        4.0K  960.0K   128.0K  3.0G        0  19.50 s
------------------------------------------------------------------------------------
all tenants       14.0M   60.0K        4.0K  960.0K   128.0K  3.0G        0  19.50 s

tenant       taken  gained  calls  caches  holding  asked    time  last  set aside
----------------------------------------------------------------------------------
lookups       2.0M    1.0M      5       1    13.0M   3.0M  1.2 ms  4.0K          0
runaway       2.0M    1.0M      5       1    13.0M   3.0M  1.2 ms  4.0K          0
----------------------------------------------------------------------------------
all tenants   2.0M    1.0M      5       2    26.0M   6.0M  2.5 ms  8.0K          0

tenant       protected  low  high  max  oom  kill  stopped  throttled     some  some %  full %
----------------------------------------------------------------------------------------------
lookups            yes    0     0    0    0     0        0     1.50 s  40.0 ms    0.20    0.05
runaway              -    0     0  120   60     0        0     1.50 s  40.0 ms    0.20    0.05
----------------------------------------------------------------------------------------------
all tenants          -    0     0  130   65     0        0     1.50 s  60.0 ms    0.30    0.03
max and oom are counted where the limit is: beyond the tenants' own, at that of all tenants

With memgroup, only `runaway` was refused.
Room that caches made, a tenant's own included: 1.0M for `lookups` and 1.0M for `runaway`.
First refusal of `runaway`: /tenants/runaway is full
Per-CPU memory of the groups, 2 slots: 128 bytes in use, 8.0K backed by the system.
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_end_is_said_if_it_came_early_and_by_what() {
        let mut early = Report::of(half(0));
        let shown = |report: &Report, by| of_report(report, by, Emphasis(false));
        assert!(
            shown(&early, Some(By::Q)).starts_with("2 tenants, 20.0 s of statements, seed 1\n"),
            "too late"
        );
        early.memgroup.interrupted = true;
        for (by, said) in [(Some(By::Q), "q"), (Some(By::CtrlC), "Ctrl-C"), (None, "Ctrl-C")] {
            let head = format!("2 tenants, 20.0 s of statements, seed 1, ended by {said}\n");
            assert!(shown(&early, by).starts_with(&head), "{said}");
        }
    }

    #[test]
    fn one_tenant_is_no_tenants() {
        let mut alone = half(0);
        alone.tenants.truncate(1);
        assert!(shown(alone, None).starts_with("1 tenant, 20.0 s of statements, seed 1\n"));
    }

    #[test]
    fn a_first_refusal_that_says_no_more_than_that_is_left_out() {
        let mut baseline = half(3);
        baseline.tenants[0].first_refusal = Some("out of memory".to_owned());
        let text = shown(half(0), Some(baseline));
        assert!(!text.contains("First refusal of `lookups`"), "{text}");
        assert!(text.contains("First refusal of `runaway` with SQLite's heap limit: /tenants"), "{text}");
    }

    #[test]
    fn without_reclaim_the_head_says_so_and_there_is_no_table_of_who_gave_way() {
        let mut off = half(0);
        off.reclaim = Some(false);
        let text = shown(off, None);
        assert!(text.starts_with("2 tenants, 20.0 s of statements, seed 1, without reclaim\n"), "{text}");
        assert!(!text.contains("taken"), "{text}");
    }

    #[test]
    fn a_cache_that_is_set_aside_stands_out() {
        let mut troubled = half(0);
        let caches = troubled.tenants[0].shrinkers.as_mut().expect("there are some");
        caches[0].quarantine = Some("panicked".to_owned());
        let text = of_report(&Report::of(troubled), None, Emphasis(true));
        assert_eq!(
            text.matches("\x1b[31m1\x1b[0m").count(),
            2,
            "in its tenant's row and in that of all: {text}"
        );
    }

    #[test]
    fn emphasis_changes_no_letter_and_marks_only_those_who_suffer() {
        let report = Report { baseline: Some(half(3)), ..Report::of(half(0)) };
        let emphatic = of_report(&report, None, Emphasis(true));
        assert_eq!(strip(&emphatic), of_report(&report, None, Emphasis(false)));
        assert!(emphatic.contains("\x1b[31m3\x1b[0m"));
        assert!(!emphatic.contains("\x1b[31m120"));
    }

    #[test]
    fn where_all_are_served_nobody_is_blamed() {
        let mut calm = half(0);
        calm.tenants[1].refused = 0;
        assert!(shown(calm, None).contains("With memgroup, nobody was refused.\n"));
        let mut odd = half(3);
        odd.tenants[1].refused = 0;
        let text = shown(odd, None);
        assert!(
            text.contains(
                "With memgroup, refused were statements of `lookups` (3 of 1,234,570 statements).\n"
            )
        );
    }
}
