//! Per-CPU memory that goes back (seed 001): the cover letter's script, which makes eleven thousand
//! groups and removes ten of eleven.

mod costs;
mod groups;
mod script;
mod sizes;

use std::io::Write;

use memgroup::PageSize;

use self::groups::{Mode, Plan, page_name};
use self::script::{Played, Script, Stage, play};
use crate::Args;
use crate::harness::prelude::*;

/// Each machine ran the script without the patches and with them, and read the size of all per-CPU
/// memory three times: at the start, after 11,000 groups were created, and ten seconds after ten of
/// eleven were removed.
const SEED: Seed = Seed {
    name: "001",
    title: "percpu: partial chunk depopulation, 2021",
    machine: "Gushchin's x86 server; Sampat's guests of 4 CPUs, Intel and POWER9 with pages of 64 KiB",
    source: "its cover letter's and a tester's reply's",
    address: Some("first version: https://lwn.net/Articles/850508/"),
    figures: &[
        SeedFigure::new("x86: at the start", "kB", 7_488.0, 7_488.0),
        SeedFigure::new("x86: 11,000 groups", "kB", 481_152.0, 481_408.0),
        SeedFigure::new("x86: 10 of 11 removed", "kB", 481_152.0, 135_552.0),
        SeedFigure::new("Intel guest: at the start", "kB", 1_952.0, 2_080.0),
        SeedFigure::new("Intel guest: 11,000 groups", "kB", 219_648.0, 219_712.0),
        SeedFigure::new("Intel guest: 10 of 11 removed", "kB", 219_648.0, 72_672.0),
        SeedFigure::new("POWER9: at the start", "kB", 5_888.0, 6_144.0),
        SeedFigure::new("POWER9: 11,000 groups", "kB", 118_272.0, 119_040.0),
        SeedFigure::new("POWER9: 10 of 11 removed", "kB", 118_272.0, 119_040.0),
    ],
};
/// The most slots by default. The letter does not say how many CPUs its author's machine had; 16 is
/// what we infer from the memory of its groups.
const SLOTS_DEFAULT_MAX: usize = 16;
/// The goal for the memory over its records, at the peak and maintained.
const OVER_NEEDED_MOST: f64 = 1.1;

/// One run of the script on one of the seed's machines, in kB.
#[derive(Debug, Clone, PartialEq)]
struct Kernel {
    name: String,
    start: f64,
    created: f64,
    /// Seconds after the removal, in which the kernel gave back its empty pages.
    maintained: f64,
}

impl Kernel {
    fn percent(&self) -> f64 {
        100.0 * self.maintained / self.created
    }
}

/// The six runs of the letter and the reply: each machine without the patches and with them.
fn letters() -> Vec<Kernel> {
    let mut letters = Vec::new();
    for (machine, figures) in ["x86", "Intel", "POWER9"].into_iter().zip(SEED.figures.chunks_exact(3)) {
        let [before, after] = [|figure: &SeedFigure| figure.before, |figure: &SeedFigure| figure.after];
        for (side, of) in [("unpatched", before), ("patched", after)] {
            if let [Some(start), Some(created), Some(maintained)] = [0, 1, 2].map(|at| of(&figures[at])) {
                letters.push(Kernel { name: format!("seed, {machine}, {side}"), start, created, maintained });
            }
        }
    }
    letters
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let script = Script { outer: args.pick(60, 1_000, 1_000), inner: 10 };
    // The script visits every slot, which only virtual ones allow.
    let machine = memgroup_percpu::SlotSource::detect().slots();
    let slots = virtual_slots(args.slots.unwrap_or(machine.min(SLOTS_DEFAULT_MAX)))?;
    let plan = Plan { mode: Mode::Kept, page: PageSize::ALL[0], slots, groups: script.groups() };

    let mut lab = Lab::open(args, Some(SEED), None, out)?;
    lab.paragraph("stages: start, before any group; created, all groups are there; removed, only those that stay are there, and removals have given memory back by themselves; maintained, after an explicit call of maintain (the kernel: seconds later); at rest, no group is left and all is maintained")?;
    let mut played = Vec::new();
    for page in PageSize::ALL {
        let modes = Mode::ALL.into_iter().map(|(mode, _)| play(script, Plan { mode, page, ..plan }));
        played.push(modes.collect::<Result<Vec<_>>>()?);
    }
    systems(&mut lab, &played[0])?;
    by_page(&mut lab, &played)?;
    upkeep(&mut lab, &played[0])?;
    sizes::run(&mut lab, script, slots)?;
    costs::groups(&mut lab, script, plan)?;
    costs::beside_maintenance(&mut lab, plan)?;
    lab.close()
}

/// The memory of the seed's machines and of our modes, in kB.
fn systems(lab: &mut Lab<'_>, played: &[Played]) -> Result<()> {
    let (script, plan) = (played[0].script, played[0].plan);
    let title = format!(
        "the script: {} groups created, 1 of {} left; ours on {}, pages of {}, {} bytes a group and slot",
        count(script.groups() as u64),
        1 + script.inner,
        counted(plan.slots.slots() as u64, "slot"),
        page_name(plan.page),
        count(Plan::RECORD_BYTES)
    );
    let columns = [
        "kB",
        "start",
        "created",
        "removed",
        "maintained",
        "at rest",
        "by itself, %",
        "maintained, %",
        "x needed",
    ];
    let mut table = Table::new(title, columns);
    for kernel in letters() {
        let [start, created, maintained] = [kernel.start, kernel.created, kernel.maintained].map(figure);
        let percent = figure(kernel.percent());
        table
            .row(kernel.name, [start, created, dash(), maintained, dash(), percent.clone(), percent, dash()]);
    }
    for one in played {
        let kb = Stage::ALL.map(|(stage, name)| {
            let params = json!({"page": page_name(plan.page), "stage": name});
            let mut row = lab.record(one.plan.mode.name(), params);
            row.value("populated", "bytes", Some(one.at(stage).populated_bytes as f64));
            row.value("beside the slots", "bytes", Some(one.at(stage).beside_bytes as f64));
            kib(one.at(stage).populated_bytes)
        });
        let shares = [Stage::Removed, Stage::Maintained].map(|stage| figure(one.percent_of_peak(stage)));
        let needed = figure(one.at(Stage::Maintained).over_needed());
        table.row(one.plan.mode.name(), kb.into_iter().chain(shares).chain([needed]));
        if one.plan.mode == Mode::Relocated {
            let kb =
                Stage::ALL.map(|(stage, _)| kib(one.at(stage).populated_bytes + one.at(stage).beside_bytes));
            let shares = [Stage::Removed, Stage::Maintained].map(|stage| {
                let params = json!({"page": page_name(plan.page), "stage": stage.name()});
                lab.record("relocation and base words", params).value(
                    "kept",
                    "%",
                    Some(one.percent_with_beside(stage)),
                )
            });
            table.row("relocation and base words", kb.into_iter().chain(shares).chain([dash()]));
        }
    }
    table.note(format!(
        "percent of each one's own peak, at least {} while every group keeps a record on each slot. By itself: what removals give back without a call; the kernel's thread does it by itself. No depopulation is the control. Base words: with the flushed values and base words of each group, which lie beside the slots and take the same whatever their number; as much as they may take. The kernel's figures are Percpu: of /proc/meminfo, with all other per-CPU memory. The letter names neither CPUs nor bytes of a group: 2,700 bytes a CPU are ours, if it had 16",
        figure(script.limit_percent())
    ));
    lab.print(&table)?;
    if let [_, _, relocated, demoted] = played {
        let peak = relocated.at(Stage::Created).over_needed();
        lab.at_most("peak over needed", Some(peak), OVER_NEEDED_MOST, "x");
        let limit = (script.limit_percent() * 100.0).floor() / 100.0;
        let left = demoted.percent_of_peak(Stage::Maintained);
        lab.at_most("kept with cold demotion, of the peak", Some(left), limit, "%");
    }
    Ok(())
}

/// What is kept for every page size, by itself and maintained.
fn by_page(lab: &mut Lab<'_>, by_page: &[Vec<Played>]) -> Result<()> {
    let columns = [
        "% of peak",
        "the kernel",
        "depopulation: by itself",
        "maintained",
        "relocation: by itself",
        "maintained",
        "moved kB",
    ];
    let mut table = Table::new("the same script by page size", columns);
    for played in by_page {
        let page = played[0].plan.page;
        let kernel = match page {
            PageSize::Kib4 => letters().get(1).map(Kernel::percent),
            PageSize::Kib64 => letters().get(5).map(Kernel::percent),
            _ => None,
        };
        let mut cells = vec![figure_or_dash(kernel)];
        for one in &played[1..3] {
            for (stage, name) in [(Stage::Removed, "removed"), (Stage::Maintained, "maintained")] {
                let params = json!({"page": page_name(page), "stage": name});
                cells.push(lab.record(one.plan.mode.name(), params).value(
                    "kept",
                    "%",
                    Some(one.percent_of_peak(stage)),
                ));
            }
        }
        let relocated = &played[2];
        cells.push(kib(relocated.at(Stage::AtRest).moved_bytes));
        table.row(format!("pages of {}", page_name(page)), cells);
        let name = format!("kept over needed with relocation, pages of {}", page_name(page));
        lab.at_most(name, Some(relocated.at(Stage::Maintained).over_needed()), OVER_NEEDED_MOST, "x");
    }
    table.note("the kernel: the seed's patched x86 and POWER9. A page that is larger than the system's own is imitated: memory is backed and given back in pieces of that size. Each kind of record takes whole pages on each slot, which is most of what is left with pages of 2 MiB. Moved: in all, by removals too");
    lab.print(&table)
}

/// What giving back takes, of the removals and of the call.
fn upkeep(lab: &mut Lab<'_>, played: &[Played]) -> Result<()> {
    let columns = ["", "us a removal: p50", "p99", "max", "mean", "maintain, ms", "gave back kB", "moved kB"];
    let mut table = Table::new(
        "what giving back takes: removals with the part that they do themselves, then maintain",
        columns,
    );
    for one in played {
        let quantiles = Quantiles::of(one.removals.clone());
        let mean = one.removals.iter().sum::<f64>() / one.removals.len() as f64;
        let mut row = lab.record(one.plan.mode.name(), json!({"call": "removal"}));
        let mut cells = row.quantiles(quantiles, 1e3).to_vec();
        cells.push(row.us("mean", Some(mean)));
        let took = one.upkeep.took.as_secs_f64() * 1e3;
        let mut row = lab.record(one.plan.mode.name(), json!({"call": "maintain"}));
        cells.push(row.value("maintain", "ms", Some(took)));
        cells.extend([kib(one.upkeep.depopulated_bytes), kib(one.upkeep.moved_bytes)]);
        table.row(one.plan.mode.name(), cells);
    }
    table.note("maintain: until a pass finds no more to do. The largest removals include what the machine did beside them");
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_letters_of_the_seeds_thread() {
        let letters = letters();
        assert_eq!(letters.len(), 6);
        let name = "seed, x86, patched".to_owned();
        assert_eq!(letters[1], Kernel { name, start: 7_488.0, created: 481_408.0, maintained: 135_552.0 });
        assert!((letters[1].percent() - 28.2).abs() < 0.05);
        assert_eq!((letters[4].start, letters[5].percent()), (5_888.0, 100.0));
    }
}
