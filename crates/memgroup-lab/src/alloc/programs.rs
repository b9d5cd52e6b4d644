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

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::prelude::*;

const INNER: [&str; 2] = ["system", "mimalloc"];
/// The bare allocator is the control. `header` writes eight bytes before each block and counts
/// nothing: the least cost of an allocator that knows a block's owner.
const KINDS: [&str; 5] = ["bare", "cap", "tracking", "header", "ours"];
/// A program, and the most that its slowdown may be with each inner allocator.
const PROGRAMS: [(&str, [f64; 2]); 4] =
    [("regex", [1.03, 1.03]), ("json", [1.04, 1.08]), ("words", [1.05, 1.07]), ("lines", [1.05, 1.07])];
/// Groups that one thread allocates in by turns; a thread has slots for eight.
const SWITCHES: [usize; 4] = [1, 8, 9, 64];

/// The binaries, by their inner allocator and their kind.
struct Binaries(HashMap<(usize, usize), PathBuf>);

impl Binaries {
    /// Builds all of them beside the program.
    fn build(program: &Path) -> Result<Binaries> {
        let target = program.ancestors().nth(2).unwrap_or(program);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("memgroup-alloc");
        ensure_source(&source)?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut built = HashMap::new();
        for (inner, kind) in cases() {
            let name = name_of(inner, kind);
            let what = format!("build the programs with the allocator {name}");
            let output = Command::new(&cargo)
                .current_dir(&source)
                .args(["rustc", "-q", "--release", "--example", "programs", "--target-dir"])
                .arg(target)
                .args(["--", "--cfg", &format!("allocator=\"{name}\"")])
                .output()
                .map_err(Error::system(&*what))?;
            if !output.status.success() {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(Error::system(what)(std::io::Error::other(text)));
            }
            let directory = target.join("release").join("examples");
            let copy = directory.join(format!("programs-{name}"));
            std::fs::copy(directory.join("programs"), &copy)
                .map_err(Error::system("keep a built program"))?;
            built.insert((inner, kind), copy);
        }
        Ok(Binaries(built))
    }

    /// Runs one, and returns the figures that it prints.
    fn run(&self, case: (usize, usize), arguments: &[String]) -> Result<Figures> {
        let path = &self.0[&case];
        let output = Command::new(path)
            .args(arguments)
            .output()
            .map_err(Error::system(format!("start {}", path.display())))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure(output.status.success(), || {
            format!(
                "{} {}: {}, {}",
                path.display(),
                arguments.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            )
        })?;
        Ok(Figures(text))
    }
}

/// Lines of a name and a number.
struct Figures(String);

impl Figures {
    fn median(&self, name: &str) -> Option<f64> {
        let of = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok();
        median_of(self.0.lines().filter_map(of).collect::<Vec<_>>())
    }
}

fn cases() -> impl Iterator<Item = (usize, usize)> {
    (0..INNER.len()).flat_map(|inner| (0..KINDS.len()).map(move |kind| (inner, kind)))
}

fn name_of(inner: usize, kind: usize) -> String {
    format!("{}-{}", INNER[inner], KINDS[kind])
}

fn ensure_source(source: &Path) -> Result<()> {
    source.join("Cargo.toml").metadata().map(drop).map_err(Error::system(format!(
        "find the programs' source in {}; run the experiment where the repository was built",
        source.display()
    )))
}

/// The figures of all cases, a sample a round: those of one kind over the bare ones of the same
/// round, and the bare ones.
struct Rounds(HashMap<(usize, usize), Vec<f64>>);

impl Rounds {
    fn run(
        lab: &mut Lab<'_>,
        binaries: &Binaries,
        rounds: usize,
        metric: &'static str,
        arguments: &[String],
        also: &mut dyn FnMut((usize, usize), &Figures),
    ) -> Result<Rounds> {
        let all: Vec<_> = cases().collect();
        let mut of: HashMap<_, Vec<f64>> = HashMap::new();
        lab.in_turns(rounds, all.len(), |_, at| {
            let figures = binaries.run(all[at], arguments)?;
            also(all[at], &figures);
            let figure = figures.median(metric).ok_or("none").or_wrong("figures of a program")?;
            of.entry(all[at]).or_default().push(figure);
            Ok(())
        })?;
        Ok(Rounds(of))
    }

    fn absolute(&self, case: (usize, usize)) -> Option<Summary> {
        Summary::of(&self.0[&case])
    }

    /// Over the bare one of the same round.
    fn over_bare(&self, (inner, kind): (usize, usize)) -> Option<Summary> {
        let [with, bare] = [kind, 0].map(|kind| &self.0[&(inner, kind)]);
        Summary::of(with.iter().zip(bare).map(|(with, bare)| with / bare).collect::<Vec<_>>())
    }
}

fn slowdowns(lab: &mut Lab<'_>, binaries: &Binaries) -> Result<()> {
    let rounds = lab.pick(1, 3, 7);
    let (json_bytes, text_bytes, repetitions) =
        lab.pick((100_000, 100_000, 1), (5_000_000, 3_000_000, 3), (50_000_000, 3_000_000, 3));
    let mut table = Table::new(
        format!(
            "programs: ms of the bare allocator (control), and times as long; JSON of {} MB",
            json_bytes / 1_000_000
        ),
        ["program", "threads", "bare", "cap", "tracking-allocator", "header", "ours", "most resident"],
    );
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
            let mut resident: HashMap<_, Vec<f64>> = HashMap::new();
            let mut also = |case, figures: &Figures| {
                resident.entry(case).or_default().extend(figures.median("resident"));
            };
            let measured = Rounds::run(lab, binaries, rounds, "seconds", &arguments, &mut also)?;
            for (inner, most) in most.into_iter().enumerate() {
                let params = json!({"program": program, "inner": INNER[inner], "threads": threads});
                let bare = measured.absolute((inner, 0)).map(|seconds| seconds.scaled(1e9));
                lab.record("bare (control)", params.clone()).summary("program", "ns", bare);
                let over: Vec<_> = (1..KINDS.len()).map(|kind| measured.over_bare((inner, kind))).collect();
                let mut cells = vec![threads.to_string(), figure_or_dash(median(bare).map(|ns| ns / 1e6))];
                for (kind, over) in KINDS[1..].iter().zip(&over) {
                    lab.record(*kind, params.clone()).summary("program over bare", "x", *over);
                    cells.push(times(median(*over)));
                }
                let [ours, bare] = [KINDS.len() - 1, 0].map(|kind| median_of(&resident[&(inner, kind)]));
                let memory = ratio(ours, bare);
                lab.record("ours", params).value("resident over bare", "x", memory);
                cells.push(times(memory));
                table.row(format!("{program}, {}", INNER[inner]), cells);
                let name = format!("{program}, {}, {}", INNER[inner], counted(threads as u64, "thread"));
                let [cap, _, _, ours] = over[..] else { unreachable!("four kinds beside the bare one") };
                lab.at_most(format!("{name}, over bare"), median(ours), most, "x");
                if threads == 2 && program != "regex" {
                    let over_cap = ratio(median(ours), median(cap));
                    lab.at_most(format!("{name}, over cap"), over_cap, 1.0, "x");
                }
            }
        }
    }
    table.note("processor time of a repetition, all threads of a process in one group; with tracking-allocator each in its own, because one thread at a time may enter its groups. cap has one counter for the process; tracking-allocator a tracker with one counter a group, in lines of their own; header only writes eight bytes before each block, as ours does. The last column is the most resident memory of the process, its text too: ours over bare. words: 3 to 14 bytes; lines: 74 on the average");
    lab.print(&table)
}

fn switches(lab: &mut Lab<'_>, binaries: &Binaries) -> Result<()> {
    let (rounds, blocks) = lab.pick((1, 100), (3, 100_000), (7, 300_000));
    let mut table = Table::new(
        "one thread: enter a group, allocate and free 64 bytes, leave: ns",
        ["", "system, bare", "tracking", "ours", "mimalloc, bare", "tracking", "ours"],
    );
    for groups in SWITCHES {
        let arguments = ["switch".to_owned(), groups.to_string(), blocks.to_string()];
        let measured = Rounds::run(lab, binaries, rounds, "ns", &arguments, &mut |_, _| ())?;
        let mut cells = Vec::new();
        for (inner, kind) in cases().filter(|&(_, kind)| !["cap", "header"].contains(&KINDS[kind])) {
            let params = json!({"inner": INNER[inner], "groups": groups});
            let ns = measured.absolute((inner, kind));
            cells.push(lab.record(KINDS[kind], params).summary("switch", "ns", ns));
        }
        table.row(counted(groups as u64, "group"), cells);
    }
    table.note("the groups take turns, and a thread has slots for eight. Bare enters no group. Ours enters a scope with its defaults, which reads the clock; no goal");
    lab.print(&table)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let Some(program) = lab.args.program.clone().filter(|_| !lab.args.tiny) else {
        return lab.paragraph(
            "\nnote: no programs with other allocators: they are built beside the program memgroup",
        );
    };
    let binaries = Binaries::build(&program)?;
    slowdowns(lab, &binaries)?;
    switches(lab, &binaries)
}
