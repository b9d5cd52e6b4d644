//! Programs with a global allocator that charges, over the same programs with the bare allocator.
//!
//! A binary has one global allocator. So each is built by itself, from the example `programs` of
//! `memgroup-alloc`, and run in turns:
//!
//! ```text
//!   round 1:  system bare │ mimalloc cap │ system ours │ ...      a process each; its figure is the median of its repetitions
//!   round 2:  mimalloc ours │ system bare │ ...                   over the bare one of the same round
//! ```
//!
//! - I1. A process ends with no byte charged to its group, or it fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::prelude::*;

const INNER: [&str; 2] = ["system", "mimalloc"];
/// The bare allocator is the control. `header` writes eight bytes before each block and counts
/// nothing: the least cost of an allocator that knows a block's owner. The last two have no goal,
/// so a short run leaves them out.
const KINDS: [&str; 5] = ["bare", "cap", "ours", "tracking", "header"];
/// A program, and the most that its slowdown may be with each inner allocator.
const PROGRAMS: [(&str, [f64; 2]); 4] =
    [("regex", [1.03, 1.03]), ("json", [1.04, 1.08]), ("words", [1.05, 1.07]), ("lines", [1.05, 1.07])];
/// Groups that one thread allocates in by turns; a thread has slots for eight.
const SWITCHES: [usize; 4] = [1, 8, 9, 64];

/// The binaries: one for each kind of each inner allocator.
struct Binaries {
    paths: Vec<PathBuf>,
    kinds: usize,
}

impl Binaries {
    /// Builds all of them beside the program.
    fn build(program: &Path, kinds: usize) -> Result<Binaries> {
        let target = program.ancestors().nth(2).unwrap_or(program);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("memgroup-alloc");
        source.join("Cargo.toml").metadata().map_err(Error::system(format!(
            "find the programs' source in {}; run the experiment where the repository was built",
            source.display()
        )))?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let directory = target.join("release/examples");
        let build = |name: String| {
            run(Command::new(&cargo)
                .current_dir(&source)
                .args(["rustc", "-q", "--release", "--example", "programs", "--target-dir"])
                .arg(target)
                .args(["--", "--cfg", &format!("allocator=\"{name}\"")]))?;
            let copy = directory.join(format!("programs-{name}"));
            std::fs::copy(directory.join("programs"), &copy)
                .map_err(Error::system("keep a built program"))?;
            Ok(copy)
        };
        let names =
            INNER.iter().flat_map(|inner| KINDS[..kinds].iter().map(move |kind| format!("{inner}-{kind}")));
        Ok(Binaries { paths: names.map(build).collect::<Result<_>>()?, kinds })
    }

    /// Runs each once a round; the medians of the figures that a process prints, for each inner
    /// allocator and each kind.
    fn measure(&self, lab: &mut Lab<'_>, rounds: usize, arguments: &[String]) -> Result<Vec<Vec<Samples>>> {
        let found = lab.sample(rounds, self.paths.len(), |_, at, samples| {
            let mut process = Samples::default();
            for line in run(Command::new(&self.paths[at]).args(arguments))?.lines() {
                let (name, figure) = line.split_once(' ').ok_or(line).or_wrong("a figure of a program")?;
                process.push(name, figure.parse().or_wrong(line)?);
            }
            for name in ["seconds", "resident", "ns"] {
                process.median(name).into_iter().for_each(|median| samples.push(name, median));
            }
            Ok(())
        })?;
        let mut found = found.into_iter();
        Ok(INNER.map(|_| found.by_ref().take(self.kinds).collect()).into())
    }
}

/// Runs a command, and returns what it prints.
fn run(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(Error::system(format!("start {command:?}")))?;
    let said = || format!("{command:?}: {}, {}", output.status, String::from_utf8_lossy(&output.stderr));
    ensure(output.status.success(), said)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn slowdowns(lab: &mut Lab<'_>, binaries: &Binaries) -> Result<()> {
    let (json_bytes, text_bytes, repetitions) =
        lab.pick((100_000, 100_000, 1), (5_000_000, 3_000_000, 3), (50_000_000, 3_000_000, 3));
    let title = format!(
        "programs: ms of the bare allocator (control), and times as long; JSON of {} MB",
        json_bytes / 1_000_000
    );
    let kinds = &KINDS[1..binaries.kinds];
    let columns = ["program", "threads", "bare"].iter().chain(kinds).chain(&["most resident"]);
    let mut table = Table::new(title, columns.copied());
    for (program, most) in PROGRAMS {
        for threads in lab.one_and_all() {
            let bytes = match program {
                "json" => json_bytes,
                // Few copies of much text take about as long as many of little.
                "lines" => 5 * text_bytes,
                _ => text_bytes,
            };
            let arguments =
                [program.to_owned(), threads.to_string(), bytes.to_string(), repetitions.to_string()];
            let measured = binaries.measure(lab, lab.pick(1, 3, 7), &arguments)?;
            for ((inner, most), found) in INNER.into_iter().zip(most).zip(&measured) {
                let params = json!({"program": program, "inner": inner, "threads": threads});
                let bare = found[0].summary("seconds").map(|seconds| seconds.scaled(1e9));
                lab.record("bare (control)", params.clone()).summary("program", "ns", bare);
                let mut cells = vec![threads.to_string(), figure_or_dash(median(bare).map(|ns| ns / 1e6))];
                let mut medians = Vec::new();
                for (kind, of) in kinds.iter().zip(&found[1..]) {
                    // Over the bare one of the same round.
                    let both = of.of("seconds").iter().zip(found[0].of("seconds"));
                    let over = Summary::of(both.map(|(with, bare)| with / bare));
                    lab.record(*kind, params.clone()).summary("program over bare", "x", over);
                    cells.push(times(median(over)));
                    medians.push(median(over));
                }
                let (cap, ours, memory) = (medians[0], medians[1], found[2].over(&found[0], "resident"));
                lab.record("ours", params).value("resident over bare", "x", memory);
                cells.push(times(memory));
                table.row(format!("{program}, {inner}"), cells);
                let name = format!("{program}, {inner}, {}", counted(threads as u64, "thread"));
                lab.at_most(format!("{name}, over bare"), ours, most, "x");
                if threads == 2 && program != "regex" {
                    lab.at_most(format!("{name}, over cap"), ratio(ours, cap), 1.0, "x");
                }
            }
        }
    }
    table.note("processor time of a repetition, all threads of a process in one group; with tracking-allocator each in its own, because one thread at a time may enter its groups. cap has one counter for the process; tracking-allocator a tracker with one counter a group, in lines of their own; header only writes eight bytes before each block, as ours does. The last column is the most resident memory of the process, its text too: ours over bare. words: 3 to 14 bytes; lines: 74 on the average");
    lab.print(&table)
}

fn switches(lab: &mut Lab<'_>, binaries: &Binaries) -> Result<()> {
    let kinds: Vec<usize> =
        (0..binaries.kinds).filter(|&kind| !["cap", "header"].contains(&KINDS[kind])).collect();
    let both =
        INNER.iter().flat_map(|inner| kinds.iter().map(move |&kind| format!("{inner}, {}", KINDS[kind])));
    let both: Vec<String> = both.collect();
    let columns = std::iter::once("").chain(both.iter().map(String::as_str));
    let mut table = Table::new("one thread: enter a group, allocate and free 64 bytes, leave: ns", columns);
    for groups in SWITCHES {
        let (rounds, blocks) = lab.pick((1, 100), (3, 100_000), (7, 300_000));
        let arguments = ["switch".to_owned(), groups.to_string(), blocks.to_string()];
        let measured = binaries.measure(lab, rounds, &arguments)?;
        let mut cells = Vec::new();
        for (inner, found) in INNER.iter().zip(&measured) {
            for &kind in &kinds {
                let mut record = lab.record(KINDS[kind], json!({"inner": inner, "groups": groups}));
                cells.push(record.summary("switch", "ns", found[kind].summary("ns")));
            }
        }
        table.row(counted(groups as u64, "group"), cells);
    }
    table.note("the groups take turns, and a thread has slots for eight. Bare enters no group. Ours enters a scope with its defaults, which reads the clock; no goal");
    lab.print(&table)
}

pub(super) fn measure(lab: &mut Lab<'_>) -> Result<()> {
    let Some(program) = lab.args.program.clone().filter(|_| !lab.args.tiny) else {
        return lab.paragraph(
            "\nnote: no programs with other allocators: they are built beside the program memgroup",
        );
    };
    let binaries = Binaries::build(&program, lab.pick(3, 3, KINDS.len()))?;
    slowdowns(lab, &binaries)?;
    switches(lab, &binaries)
}
