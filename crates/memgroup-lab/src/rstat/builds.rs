//! The cover letter's second experiment: two children build, and a reader reads their parent's cpu
//! statistics. SQLite statements stand in for the kernel builds (17.2 s for a million reads before
//! the patches, 6.5 s after). The speed of the builds themselves, which the letter's last
//! experiment is about, is measured beside the reader and without one.
//!
//! SQLite has one allocator in a process, which serves one hierarchy, so each kind of trees has
//! processes of its own, and the two alternate. Such a process prints its [`METRICS`].
//!
//! - I1. Every statement was a scope of its group, and the statistics say so.

use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

use memgroup::stats::{cpu, io};
use memgroup::{Config, Freshness, Reach};

use super::{BUILDS, READS, SEED, read_beside, seed_gain, timed_reads};
use crate::Args;
use crate::args::{Trees, word};
use crate::harness::prelude::*;

const CHILDREN: usize = 2;
const ROWS: i64 = 2_000;
/// Few, so that pages are read again and again.
const CACHED_PAGES: i64 = 50;
/// How long the children work without a reader.
const ALONE: Duration = Duration::from_millis(200);
/// What a process measures: ns of the reader's CPU time for a read, and flushes of cpu's tree for a
/// read; statements for a second of the children's CPU time, beside the reader and without one.
const METRICS: [&str; 4] = ["read", "flushes a read", "statements beside a reader", "statements"];

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    if !lab.has_program("SQLite statements")? {
        return Ok(());
    }
    let found = lab.sample(lab.pick(1, 5, 20), 2, |lab, index, found| {
        let figures = lab.process::<{ METRICS.len() }>(&["rstat", "--serve", &word(Trees::BOTH[index])])?;
        METRICS.into_iter().zip(figures).for_each(|(metric, figure)| found.push(metric, figure));
        Ok(())
    })?;
    let columns = METRICS.into_iter().zip(["ns", "", "1/s", "1/s"]).collect::<Vec<_>>();
    let rows = Trees::BOTH.map(Trees::name).into_iter().zip(&found);
    let rows = rows.map(|(name, found)| (name, name, json!({"reads": "cpu beside SQLite"}), found));
    let [before, after] = SEED.cells(BUILDS);
    let note = format!(
        "each statement is a scope, so cpu changes as often as memory and io do. Flushes: the share of reads that found a change; the others are copies, and with one tree every charge is a change. Statements: for a second of the children's CPU time. The seed, two kernel builds: {before} s before, {after} s after, and the builds spent the same cycles on updates"
    );
    let title = "one reader of a parent's cpu statistics while two children run SQLite statements; both by their own CPU time";
    lab.show(title, &columns, rows, note)?;
    let gain = found[0].over(&found[1], "read");
    lab.at_least("reading cpu beside SQLite: one tree over separate", gain, seed_gain(BUILDS), "x");
    let speed = found[1].over(&found[0], "statements");
    lab.at_least("SQLite without a reader: separate trees over one", speed, 0.97, "x");
    Ok(())
}

/// Measures with one kind of trees, in a process that does nothing else.
pub(super) fn serve(args: &Args, trees: Trees, out: &mut dyn Write) -> Result<()> {
    let sqlite = Sqlite::take(Config::new().separate_trees(trees == Trees::Separate))?;
    let (hierarchy, directory, workers) = (&sqlite.hierarchy, directory()?, Workers::start(2)?);
    let parent = child(&hierarchy.root(), "builds")?;
    let open = |at| {
        let group = child(&parent, &format!("child{at}"))?;
        Tenant::open(&group, &directory.path().join(group.name()), ROWS, CACHED_PAGES).map(Mutex::new)
    };
    let tenants = (0..CHILDREN).map(open).collect::<Result<Vec<_>>>()?;
    let work = |child: usize, shift: &Shift| {
        let (mut tenant, mut random) = (lock(&tenants[child]), Random::new(child as u64));
        let (mut statements, before) = (0, thread_cpu_ns());
        shift.begin(1);
        while shift.lasts() {
            tenant.use_one(random.next())?;
            statements += 1;
        }
        Ok([statements, thread_cpu_ns() - before])
    };
    let (statistics, mut all) = (hierarchy.cpu(), 0);
    let mut side = |read: &(dyn Fn() -> [f64; 2] + Sync)| -> Result<([f64; 2], f64)> {
        let (read, made) = read_beside(&workers, CHILDREN, || Ok(read()), work)?;
        let [statements, ns] = [0, 1].map(|of: usize| made.iter().map(|one| one[of]).sum::<u64>());
        all += statements;
        Ok((read, statements as f64 * 1e9 / ns as f64))
    };
    let ([ns, flushes], beside) = side(&|| {
        let mut values = [0; cpu::NR_SCOPES.index() + 1];
        timed_reads(&statistics, args.pick(500, READS / 5, READS), || {
            statistics.read(&parent, Reach::Subtree, Freshness::Fresh, &mut values);
            std::hint::black_box(&values);
        })
    })?;
    let (_, alone) = side(&|| {
        std::thread::sleep(ALONE);
        [0.0; 2]
    })?;
    // I1, and pages of files were read.
    let get = |of: memgroup::Statistics, stat| of.get(&parent, stat, Reach::Subtree, Freshness::Fresh) as u64;
    let (scopes, reads) = (get(statistics.clone(), cpu::NR_SCOPES), get(hierarchy.io(), io::RIOS));
    ensure(scopes >= all && reads > 0, || {
        format!("{all} statements were {scopes} scopes and {reads} reads of the parent")
    })?;
    writeln!(out, "{ns} {flushes} {beside} {alone}").map_err(Error::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because SQLite serves one hierarchy in a process.
    #[test]
    fn prints_what_it_measured() {
        let (mut answer, args) = (Vec::new(), Args { tiny: true, ..Args::default() });
        serve(&args, Trees::Unified, &mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let figures: Vec<f64> = answer.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [ns, flushes, beside, alone] = figures[..] else { panic!("{answer}") };
        assert!(ns > 0.0 && flushes <= 1.0 && beside > 0.0 && alone > 0.0, "{answer}");
    }
}
