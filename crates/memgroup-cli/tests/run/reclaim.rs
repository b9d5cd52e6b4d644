//! Reclaim of an idle tenant's cache: with it only the runaway is refused, without it other tenants
//! are too.

use serde_json::Value;

use super::{Place, group, run_until, stderr, stdout, tenant};

/// The archive's first statement fills its page cache with more than 5M. The rest of the 10M is too
/// small for the hog, which always takes its 5M. The limits of the two busy tenants fit into the
/// 10M.
const GIVING: &str = r#"
max = "10M"

[[tenant]]
name = "archive"
workload = "dashboards"
scale = 0.008
work_seconds = 0.5
max = "8M"
cache = "5M"

[[tenant]]
name = "night"
workload = "etl"
after = "archive"
scale = 0.003
max = "4M"
cache = "512K"

[[tenant]]
name = "hog"
workload = "runaway"
after = "archive"
scale = 0.001
max = "5M"
cache = "256K"
temp = "memory"
"#;

/// The number under a path of keys.
fn number(value: &Value, path: &[&str]) -> u64 {
    let found = path.iter().fold(value, |value, key| &value[key]);
    found.as_u64().unwrap_or_else(|| panic!("{path:?} of {value}"))
}

#[test]
fn reclaims_an_idle_cache_and_refuses_only_the_runaway() {
    let place = Place::new();
    let spec = place.write("giving.toml", GIVING);
    let (report, table) = run_until(&place, &spec, |line| {
        let has_begun = |name: &str| !line.contains(&format!("  {name} 0"));
        line.starts_with("running ")
            && line.contains(", idle  night")
            && has_begun("night")
            && has_begun("hog")
    });
    let half = &report["memgroup"];
    assert_eq!(half["reclaim"], true);
    let [archive, night, hog] = ["archive", "night", "hog"].map(|name| tenant(half, name));
    for (tenant, refused) in [(archive, false), (night, false), (hog, true)] {
        assert_eq!(number(tenant, &["refused"]) > 0, refused, "{tenant}");
        assert!(number(tenant, &["peak"]) <= number(tenant, &["max"]), "{tenant}");
    }
    assert!(
        hog["first_refusal"].as_str().expect("a text").contains("refused by group /tenants/hog"),
        "{hog}"
    );

    let (then, now) = (number(archive, &["idle", "page_cache"]), number(archive, &["page_cache"]));
    assert!(now < then && then > 5 << 20, "{archive}");
    let statistic =
        |name: &str, key: &str| number(group(half, name), &["statistics", "memory", "hierarchical", key]);
    let reclaimed = statistic("archive", "reclaimed");
    assert!(reclaimed > 0);
    assert!(archive["idle"]["since_seconds"].as_f64() >= Some(0.5), "{archive}");
    assert!(night["idle"].is_null() && hog["idle"].is_null(), "{half}");
    assert!(statistic("hog", "gained") > 0 && statistic("", "reclaimed") >= reclaimed);
    let caches = half["groups"]["shrinkers"].as_array().expect("a list");
    assert!(caches.iter().all(|cache| cache["name"] == "sqlite page cache"), "{caches:?}");
    let sum = |key: &str| caches.iter().map(|cache| number(cache, &[key])).sum::<u64>();
    for key in ["freed_bytes", "scans", "asked_bytes", "time_us"] {
        assert!(sum(key) > 0, "{key}: {caches:?}");
    }
    assert!(caches.iter().all(|cache| cache["quarantine"].is_null()), "{caches:?}");

    assert!(table.contains("`hog`: all statements failed for lack of memory ("), "{table}");
    assert!(table.contains("`archive`: no statement failed; it was idle from second "), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
}

#[test]
fn refuses_others_and_keeps_idle_caches_without_reclaim() {
    let place = Place::new();
    let spec = place.write("keeping.toml", &format!("[run]\nreclaim = false{GIVING}"));
    let (report, table) = run_until(&place, &spec, |line| {
        let night = line.split("  ").find(|part| part.starts_with("night "));
        line.starts_with("running ") && night.is_some_and(|night| night.ends_with(" refused"))
    });
    let half = &report["memgroup"];
    assert_eq!(half["reclaim"], false);
    let [archive, night] = ["archive", "night"].map(|name| tenant(half, name));
    assert!(number(night, &["refused"]) > 0, "{night}");
    assert!(
        night["first_refusal"].as_str().expect("a text").contains("refused by group /tenants,"),
        "{night}"
    );
    assert_eq!(number(archive, &["idle", "page_cache"]), number(archive, &["page_cache"]));
    for key in ["reclaims", "reclaimed", "gained"] {
        assert_eq!(number(group(half, ""), &["statistics", "memory", "hierarchical", key]), 0, "{key}");
    }
    let head = table.lines().next().expect("a line");
    assert!(head.contains(", without reclaim"), "{table}");
    assert!(table.contains("`archive`: no statement failed; it was idle from second "), "{table}");
}

#[test]
fn switches_reclaim_off_in_every_regime() {
    let place = Place::new();
    let spec = place.write("giving.toml", GIVING);
    for more in [&["--no-reclaim"][..], &["--no-reclaim", "--baseline"]] {
        let output = place.run(&spec, more).args(["--seconds", "0.2", "--json", "-"]).output();
        let output = output.expect("the program starts");
        assert!(output.status.success(), "{}", stderr(&output));
        let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        assert_eq!(report["memgroup"]["reclaim"], false, "{more:?}");
        // SQLite's heap limit reclaims no cache, but the page caches are known.
        let baseline = report.get("baseline");
        assert_eq!(baseline.is_some(), more.len() == 2);
        if let Some(half) = baseline {
            assert!(half["reclaim"].is_null(), "{half}");
            assert!(number(tenant(half, "archive"), &["page_cache"]) > 0, "{half}");
        }
    }
}
