//! Bytes that a group takes, and bytes that are left of it: in a process of its own, which has no other memory to reuse.
//!
//! ```text
//!   memgroup lab limits --memory-of engine --groups 100000     prints a line for each stage:  live 65536000
//! ```
//!
//! The figures are resident bytes of the process (`/proc/self/statm`) beyond those before the first group. Each group has a name of 16
//! bytes, was charged on both slots, wrote one statistic on each, and was freed; the names themselves are not kept.
//!
//! - I1. Every group was charged and wrote its statistic, and nothing is charged at the end.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use memgroup::{Config, Freshness, Group, Maintenance, Reach, stats::io};
use memgroup_percpu::pin_virtual;

use super::lifecycle::name_of;
use super::maps::{CasMap, MutexMap, Names};
use super::{PAGE, many_groups};
use crate::args::{MemoryOf, word};
use crate::harness::prelude::*;

const SLOTS: usize = 2;
const LIVE_BYTES_MOST: f64 = 600.0;
/// Of the bytes of the live groups, in percent.
const LEFT_MOST: [(&str, f64); 3] = [("removed", 30.0), ("maintained", 10.0), ("dropped", LEFT_OF_ALL_MOST)];
/// The goal is 0; so much of 100,000 groups is a few pages of the allocator.
const LEFT_OF_ALL_MOST: f64 = 1.0;
const STAGES: [&str; 5] = ["live", "removed", "maintained", "dropped", "trimmed"];

/// Resident bytes of each stage, as lines of text.
struct Stages {
    start: u64,
    lines: String,
}

impl Stages {
    fn begin() -> Result<Stages> {
        Ok(Stages { start: resident_bytes()?, lines: String::new() })
    }

    fn reach(&mut self, stage: &str) -> Result<()> {
        let bytes = resident_bytes()?.saturating_sub(self.start);
        // A String takes every line.
        let _ = writeln!(self.lines, "{stage} {bytes}");
        Ok(())
    }

    fn trim(mut self) -> Result<String> {
        give_heap_back();
        self.reach("trimmed")?;
        Ok(self.lines)
    }
}

/// Measures in this process, which has done nothing else.
pub(super) fn serve(of: MemoryOf, groups: usize, out: &mut dyn Write) -> Result<()> {
    let lines = match of {
        MemoryOf::Engine => engine(groups)?,
        MemoryOf::CasMap => control(CasMap::new(), groups)?,
        MemoryOf::MutexMap => control(MutexMap::default(), groups)?,
    };
    write!(out, "{lines}").and_then(|()| out.flush()).map_err(Error::Output)
}

fn engine(groups: usize) -> Result<String> {
    let mut handles: Vec<Group> = Vec::with_capacity(groups);
    let mut stages = Stages::begin()?;
    let config = Config::with_slots(virtual_slots(SLOTS)?).groups_max(groups as u32 + 3);
    let hierarchy = hierarchy(config)?;
    let parent = child(&hierarchy.root(), "parent")?;
    for number in 0..groups {
        let group = child(&parent, &name_of(number))?;
        for slot in 0..SLOTS {
            let _pin = pin_virtual(slot);
            drop(group.try_charge(PAGE).or_wrong("a charge without a limit")?);
            hierarchy.io().add(&group, io::RBYTES, 1);
        }
        handles.push(group);
    }
    stages.reach("live")?;
    let written = hierarchy.io().get(&parent, io::RBYTES, Reach::Subtree, Freshness::Fresh);
    expect("statistics written by the groups", written, (groups * SLOTS) as i64)?;
    expect_bytes(&parent, "usage of the groups", parent.usage_exact(), 0)?;
    for group in handles.drain(..) {
        group.remove().or_wrong("failed to remove an empty group")?;
    }
    stages.reach("removed")?;
    hierarchy.maintain(Maintenance::new().all());
    stages.reach("maintained")?;
    drop((parent, hierarchy));
    stages.reach("dropped")?;
    stages.trim()
}

fn control(names: impl Names, groups: usize) -> Result<String> {
    let mut stages = Stages::begin()?;
    (0..groups).try_for_each(|number| names.create(&name_of(number)))?;
    stages.reach("live")?;
    (0..groups).try_for_each(|number| names.remove(&name_of(number)))?;
    stages.reach("removed")?;
    stages.reach("maintained")?;
    drop(names);
    stages.reach("dropped")?;
    stages.trim()
}

/// Runs a process for one account, and reads the bytes of each stage.
fn ask(program: &Path, of: MemoryOf, groups: usize) -> Result<[f64; 5]> {
    let output = Command::new(program)
        .args(["limits", "--memory-of", &word(of), "--groups", &groups.to_string()])
        .output()
        .map_err(Error::system(format!("start {}", program.display())))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let bytes = |stage: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(stage)?.trim().parse().ok());
        line.ok_or_else(|| format!("{:?}, {text:?}", output.status))
            .or_wrong("the measuring process ended with")
    };
    let mut all = [0.0; 5];
    for (of, stage) in all.iter_mut().zip(STAGES) {
        *of = bytes(stage)?;
    }
    Ok(all)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let Some(program) = lab.args.program.clone() else {
        return lab.paragraph("\nnote: no bytes of a group: they need processes of the program memgroup-lab");
    };
    let groups = many_groups(lab);
    let mut table = Table::new(
        format!("resident bytes for each of {} groups on {SLOTS} slots", count(groups as u64)),
        ["", "live", "removed", "maintained", "hierarchy dropped", "and heap trimmed"],
    );
    for (name, of) in
        [("memgroup", MemoryOf::Engine), ("CAS map", MemoryOf::CasMap), ("mutex map", MemoryOf::MutexMap)]
    {
        let bytes = ask(&program, of, groups)?;
        let mut record = lab.record(name, json!({"groups": groups, "slots": SLOTS}));
        let each = bytes.map(|bytes| bytes / groups as f64);
        let cells: Vec<String> = STAGES
            .into_iter()
            .zip(each)
            .map(|(stage, bytes)| record.value(stage, "bytes", Some(bytes)))
            .collect();
        table.row(name, cells);
        if of == MemoryOf::Engine {
            lab.at_most("bytes a group", Some(each[0]), LIVE_BYTES_MOST, "bytes");
            for ((stage, most), left) in LEFT_MOST.into_iter().zip(&each[1..]) {
                lab.at_most(format!("bytes left, {stage}"), Some(100.0 * left / each[0]), most, "% of live");
            }
        }
    }
    table.note("each group has a name of 16 bytes, was charged on both slots, wrote one statistic on each, and was freed. The controls have names in a hash map, and a line or three numbers each. Trimmed: malloc_trim, so that pages which the allocator alone keeps are gone");
    lab.print(&table)
}
