//! Fair shares: one key of the SPEC, and no setting of a tenant.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Place, run_until, tenant};

/// Tenants beside the greedy one.
const SMALL: usize = 24;
const SEEDS: usize = 20;

const RUNAWAY: &str = "name = \"greedy\"\nworkload = \"runaway\"\nthreads = 2\nscale = 0.003\ncache = \"256K\"\ntemp = \"memory\"\n";
const HOARDER: &str =
    "name = \"greedy\"\nworkload = \"hoarder\"\nscale = 0.001\ncache = \"256K\"\ntemp = \"memory\"\n";

/// Small tenants without any setting, and a greedy one at position `at` among them.
fn neighbours(seed: usize, greedy: &str, at: usize) -> String {
    let mut tenants: Vec<String> = (0..SMALL)
        .map(|number| {
            let workload = if number % 2 == 0 { "lookups" } else { "dashboards" };
            format!("name = \"small{number}\"\nworkload = \"{workload}\"\nscale = 0.001\ncache = \"256K\"\npause_us = 1000\n")
        })
        .collect();
    tenants.insert(at, greedy.to_owned());
    let mut spec = format!("seed = {seed}\nmax = \"24M\"\nshare = 8\n");
    for tenant in tenants {
        writeln!(spec, "\n[[tenant]]\n{tenant}").expect("a text grows");
    }
    spec
}

/// Whether each small tenant has done a statement, by a line of progress: `running 1 of 20 s:
/// small0 12  small1 0  greedy 3 refused`.
fn all_small_ran(line: &str) -> bool {
    let counts = line.split_once(" s: ").map_or("", |(_, counts)| counts);
    let ran = counts.split("  ").filter(|part| part.starts_with("small") && !part.ends_with(" 0"));
    line.starts_with("running ") && ran.count() == SMALL
}

/// Fails unless all small tenants have done statements, and none was refused or stopped. Returns
/// the report of the greedy one.
#[track_caller]
fn served_all_small(report: &Value, table: &str) -> Value {
    let half = &report["memgroup"];
    for number in 0..SMALL {
        let small = tenant(half, &format!("small{number}"));
        assert_eq!((&small["refused"], &small["killed"]), (&0.into(), &0.into()), "{small}\n{table}");
        assert!(small["done"].as_u64() > Some(0), "{small}\n{table}");
    }
    tenant(half, "greedy").clone()
}

fn refuses_only_the_runaway(positions: impl Iterator<Item = usize>) {
    for at in positions {
        let place = Place::new();
        let spec = place.write("neighbours.toml", &neighbours(1 + at % SEEDS, RUNAWAY, at));
        let (report, table) = run_until(&place, &spec, |line| {
            let has_refused =
                line.split("  ").any(|part| part.contains("greedy") && part.contains("refused"));
            has_refused && all_small_ran(line)
        });
        let runaway = served_all_small(&report, &table);
        assert!(runaway["refused"].as_u64() > Some(0) && runaway["done"] == 0, "{runaway}");
        assert!(table.contains("`greedy`: all statements failed for lack of memory ("), "{table}");
    }
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn refuses_and_stops_only_the_runaway_that_starts_first_or_last() {
    refuses_only_the_runaway([0, SMALL].into_iter());
}

#[test]
#[ignore = "each of 25 runs takes three seconds"]
fn refuses_and_stops_only_the_runaway_in_every_start_order() {
    refuses_only_the_runaway(0..=SMALL);
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn serves_small_tenants_beside_a_hoarder() {
    for at in [0, SMALL / 2, SMALL] {
        let place = Place::new();
        let spec = place.write("neighbours.toml", &neighbours(1, HOARDER, at));
        let (report, table) = run_until(&place, &spec, all_small_ran);
        let hoarder = served_all_small(&report, &table);
        // Beside nothing a share of 24M is 21.3M, and its even share of 25 is 0.96M.
        let peak = hoarder["peak"].as_u64().expect("a peak");
        assert!((1 << 20..23 << 20).contains(&peak), "{hoarder}");
    }
}
