//! What a SPEC sets besides `max`, and what the report says of it.

use super::{Place, run_until, tenant};

/// As `reclaim::GIVING`, but what the archive holds is protected. `{}`: how.
const KEEPING: &str = r#"
max = "10M"

[[tenant]]
name = "archive"
workload = "dashboards"
scale = 0.008
work_seconds = 0.5
max = "8M"
cache = "5M"
{}

[[tenant]]
name = "hog"
workload = "runaway"
after = "archive"
scale = 0.001
max = "8M"
cache = "256K"
temp = "memory"
"#;

/// Runs that until the hog was refused several times; the report and the table.
fn keeping(how: &str) -> (serde_json::Value, String) {
    let place = Place::new();
    let spec = place.write("keeping.toml", &KEEPING.replace("{}", how));
    run_until(&place, &spec, |line| {
        line.starts_with("running ") && line.contains(", idle  hog ") && !line.contains("  hog 0")
    })
}

#[test]
fn what_is_within_min_stays_whoever_is_refused() {
    let (report, table) = keeping("min = 'max'");
    let half = &report["memgroup"];
    let [archive, hog] = ["archive", "hog"].map(|name| tenant(half, name));
    assert_eq!((&archive["protected"], &hog["protected"]), (&true.into(), &false.into()));
    assert!(archive["page_cache"].as_u64() > Some(5 << 20), "{archive}");
    assert_eq!(archive["idle"]["page_cache"], archive["page_cache"], "{archive}");
    assert_eq!(
        (&archive["idle"]["reclaimed"], &archive["events"]["low"]),
        (&0.into(), &0.into()),
        "{archive}"
    );
    assert!(hog["refused"].as_u64() > Some(0), "{hog}");
    assert!(hog["first_refusal"].as_str().expect("a text").contains("refused by group /tenants,"), "{hog}");
    let row =
        table.lines().find(|line| line.starts_with("archive") && line.contains(" yes ")).expect("a row");
    assert!(row.ends_with("0.00"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 110), "{table}");
}

#[test]
fn what_is_within_low_goes_where_nothing_else_is_left_and_is_counted() {
    let (report, _) = keeping("low = '4M'");
    let archive = tenant(&report["memgroup"], "archive");
    assert_eq!(archive["protected"], true);
    assert!(archive["page_cache"].as_u64() < Some(4 << 20), "{archive}");
    assert!(archive["idle"]["reclaimed"].as_u64() > Some(0), "{archive}");
    assert!(archive["events"]["low"].as_u64() > Some(0), "{archive}");
}

#[test]
fn a_limit_that_is_not_enforced_refuses_nobody() {
    let place = Place::new();
    let spec = place.write(
        "keeping.toml",
        &KEEPING
            .replace("{}", "")
            .replace("max = \"8M\"\ncache = \"256K\"", "max = \"1M\"\nenforced = false\ncache = \"256K\"")
            .replace("max = \"10M\"\n", ""),
    );
    let (report, table) =
        run_until(&place, &spec, |line| line.contains("  hog ") && !line.contains("  hog 0"));
    let hog = tenant(&report["memgroup"], "hog");
    assert_eq!((&hog["max"], &hog["refused"]), (&(1 << 20).into(), &0.into()), "{hog}");
    assert!(hog["done"].as_u64() > Some(0) && hog["peak"].as_u64() > Some(10 << 20), "{hog}");
    assert!(hog["would_refuse"].as_u64() > Some(0), "{hog}");
    assert!(table.contains("The limit of `hog` is not enforced: it would have refused "), "{table}");
}
