//! Fair shares: one key of the SPEC, and no setting of a tenant.

use std::fmt::Write as _;

use super::{Place, run_until, tenant};

/// Tenants beside the runaway.
const SMALL: usize = 24;

/// Small tenants without any setting, and a runaway that wants all there is, as the first or the last of them.
fn neighbours(runaway_first: bool) -> String {
    let mut tenants: Vec<String> = (0..SMALL)
        .map(|number| {
            let workload = if number % 2 == 0 { "lookups" } else { "dashboards" };
            format!("name = \"small{number}\"\nworkload = \"{workload}\"\nscale = 0.001\ncache = \"256K\"\npause_us = 1000\n")
        })
        .collect();
    let runaway = "name = \"runaway\"\nworkload = \"runaway\"\nthreads = 2\nscale = 0.003\ncache = \"256K\"\ntemp = \"memory\"\n";
    tenants.insert(if runaway_first { 0 } else { SMALL }, runaway.to_owned());
    let mut spec = "max = \"24M\"\nshare = 8\n".to_owned();
    for tenant in tenants {
        writeln!(spec, "\n[[tenant]]\n{tenant}").expect("a text grows");
    }
    spec
}

#[test]
fn refuses_and_stops_only_the_runaway_among_tenants_without_settings() {
    for runaway_first in [true, false] {
        let place = Place::new();
        let spec = place.write("neighbours.toml", &neighbours(runaway_first));
        let (report, table) = run_until(&place, &spec, |line| {
            let has_refused =
                line.split("  ").any(|part| part.contains("runaway") && part.contains("refused"));
            let all_ran = (0..SMALL).all(|number| !line.contains(&format!("small{number} 0")));
            line.starts_with("running ") && has_refused && all_ran
        });
        let half = &report["memgroup"];
        for number in 0..SMALL {
            let small = tenant(half, &format!("small{number}"));
            assert_eq!((&small["refused"], &small["killed"]), (&0.into(), &0.into()), "{small}\n{table}");
            assert!(small["done"].as_u64() > Some(0), "{small}\n{table}");
        }
        let runaway = tenant(half, "runaway");
        assert!(runaway["refused"].as_u64() > Some(0) && runaway["done"] == 0, "{runaway}");
        assert!(table.contains("Only statements of `runaway`"), "{table}");
    }
}
