use std::time::Duration;

use super::{Kind, Scale, Settings, Spec, Temp, TenantSpec};

const VALID: &str = r#"
seconds = 1.5
seed = 7
max = "48M"

[[tenant]]
name = "shop"
workload = "lookups"
threads = 3
scale = 0.002
max = "16M"
cache = "256K"
pause_us = 250
work_seconds = 0.5
min = "max"

[[tenant]]
name = "hog"
workload = "runaway"
scale = 0.001
after = "shop"
temp = "memory"
low = "2M"
high = "24M"
oom_score = 500
oom_group = true
weight = 7
enforced = false
patience_ms = 1500
"#;

#[test]
fn reads_every_key() {
    let spec = Spec::parse("a.toml", VALID, None).expect("a valid SPEC");
    assert_eq!((spec.seconds, spec.seed, spec.max_bytes), (1.5, 7, Some(48 << 20)));
    let [shop, hog] = &spec.tenants[..] else { panic!("two tenants: {spec:?}") };
    assert_eq!((shop.name.as_str(), shop.workload, shop.threads), ("shop", Kind::Lookups, 3));
    assert_eq!(shop.scale, Scale::of_factor(0.002).expect("a scale"));
    assert_eq!((shop.max_bytes, shop.cache_bytes, shop.temp), (Some(16 << 20), 256 << 10, Temp::File));
    assert_eq!(shop.pause, Duration::from_micros(250));
    assert_eq!((shop.after, shop.work), (None, Some(Duration::from_millis(500))));
    assert_eq!((hog.after, hog.work), (Some(0), None));
    assert_eq!((hog.threads, hog.max_bytes, hog.temp), (1, None, Temp::Memory));
    assert_eq!(shop.settings, Settings { min_bytes: None, ..Settings::default() });
    let settings = Settings {
        min_bytes: Some(0),
        low_bytes: Some(2 << 20),
        high_bytes: Some(24 << 20),
        oom_score: 500,
        oom_group: true,
        weight: 7,
        enforced: false,
    };
    assert_eq!((hog.settings, spec.oom), (settings, true));
    assert_eq!((shop.patience, hog.patience), (Duration::ZERO, Duration::from_millis(1_500)));
}

#[test]
fn reads_the_spec_of_the_readme_which_has_every_key() {
    let readme = include_str!("../../../README.md");
    let (_, text) = readme.split_once("```toml\n").expect("a SPEC");
    let (text, _) = text.split_once("```").expect("its end");
    let spec = Spec::parse("README.md", text, None).expect("a valid SPEC");
    assert_eq!((spec.tenants.len(), spec.tenants[1].after), (2, Some(0)));
    let bare = "[[tenant]]\nname = 'shop'\nworkload = 'lookups'\nscale = 0.01\nwork_seconds = 5";
    let bare = Spec::parse("bare.toml", bare, None).expect("a valid SPEC");
    assert_eq!(spec.tenants[0], bare.tenants[0], "it shows the defaults");
    assert_eq!(Spec { tenants: bare.tenants.clone(), ..spec }, bare);
    for wrong in [text.replace("share", "shares"), text.replace("cache", "caches")] {
        let error = Spec::parse("README.md", &wrong, None).expect_err("an unknown key").to_string();
        let (_, known) = error.split_once("allowed: ").expect("the keys");
        for key in known.split(", ").filter(|&key| key != "run") {
            assert!(
                text.contains(&format!("{key} = ")) || text.contains(&format!("[[{key}]]")),
                "{key}: {text}"
            );
        }
    }
}

#[test]
fn has_defaults_for_all_keys_but_name_workload_and_scale() {
    let spec = Spec::parse("a.toml", "[[tenant]]\nname = 'a'\nworkload = 'etl'\nscale = 1", None)
        .expect("a valid SPEC");
    assert_eq!((spec.seconds, spec.seed, spec.max_bytes), (20.0, 1, None));
    assert!(spec.reclaim && spec.oom);
    assert_eq!(spec.tenants[0].settings, Settings::default());
    assert_eq!((spec.tenants[0].threads, spec.tenants[0].cache_bytes), (1, 1 << 20));
    assert_eq!((spec.tenants[0].after, spec.tenants[0].work), (None, None));
}

#[test]
fn protects_the_tenants_of_the_built_in_scenario_by_shares_alone() {
    let spec = Spec::read(None, None).expect("a valid SPEC");
    let max = spec.max_bytes.expect("a common limit");
    assert!(spec.reclaim && spec.oom && spec.share == Some(8) && !spec.reserve_min);
    for kind in [Kind::Lookups, Kind::Dashboards, Kind::Etl, Kind::Runaway, Kind::Hoarder] {
        assert!(spec.tenants.iter().any(|tenant| tenant.workload == kind), "{kind:?}");
    }
    for TenantSpec { name, max_bytes, settings, .. } in &spec.tenants {
        assert_eq!((*max_bytes, *settings), (None, Settings::default()), "{name}");
    }
    let busy = |tenant: &&TenantSpec| {
        tenant.work.is_none() && !matches!(tenant.workload, Kind::Runaway | Kind::Hoarder)
    };
    let caches: u64 = spec.tenants.iter().filter(busy).map(|t| t.cache_bytes * u64::from(t.threads)).sum();
    assert!(caches < max / 2, "the busy ones that behave have room beside the greedy ones");
}

#[test]
fn reads_the_factor_of_shares_and_names_a_wrong_one() {
    let with = |share: &str| Spec::parse("a.toml", &format!("share = {share}\n{VALID}"), None);
    assert_eq!(Spec::parse("a.toml", VALID, None).expect("a valid SPEC").share, None);
    assert_eq!(with("8").expect("a valid SPEC").share, Some(8));
    assert_eq!(with("0").expect("a valid SPEC").share, None);
    for wrong in ["1025", "-1", "\"8\"", "0.5"] {
        let error = with(wrong).expect_err("a wrong factor").to_string();
        assert!(
            error.contains(&format!("key `share` is {wrong}; allowed: an integer from 0 to 1024")),
            "{error}"
        );
    }
}

#[test]
fn reads_the_keys_of_the_run_from_a_table_too() {
    let (_, tenants) = VALID.split_once("max = \"48M\"\n").expect("it is there");
    let read = |top: &str| Spec::parse("a.toml", &format!("{top}{tenants}"), None);
    let there = Spec { reclaim: false, ..Spec::parse("a.toml", VALID, None).expect("a valid SPEC") };
    for top in [
        "[run]\nseconds = 1.5\nseed = 7\nmax = '48M'\nreclaim = false\n",
        "seconds = 1.5\nreclaim = false\n[run]\nseed = 7\nmax = '48M'\n",
        "seconds = 1.5\nseed = 7\nmax = '48M'\nreclaim = false\n[run]\nreclaim = false\nmax = 50331648\n",
    ] {
        assert_eq!(read(top).expect("a valid SPEC"), there, "{top}");
    }
    for (top, expected) in [
        (
            "reclaim = true\n[run]\nreclaim = false\n",
            "a.toml:3: key `reclaim` of [run] is false; line 1 says true outside of [run]; allowed: to say it in one place",
        ),
        ("[run]\nreclaim = 'no'\n", "a.toml:2: key `reclaim` of [run] is 'no'; allowed: true or false"),
        (
            "[run]\nseconds = 0\n",
            "a.toml:2: key `seconds` of [run] is 0; allowed: a number from 0.1 to 86400, in seconds",
        ),
        (
            "[run]\nsecond = 1\n",
            "a.toml:2: key `second` of [run] is unknown (is `seconds` meant?); allowed: engine, max, oom, reclaim, reserve_min, seconds, seed, share",
        ),
        ("[run]\noom = 1\n", "a.toml:2: key `oom` of [run] is 1; allowed: true or false"),
        ("run = true\n", "a.toml:1: key `run` is not a table; allowed: [run]"),
    ] {
        assert_eq!(read(top).expect_err(top).to_string(), expected);
    }
}

/// The error after `from` in `VALID` is replaced by `to`.
fn error_of(from: &str, to: &str) -> String {
    assert!(VALID.contains(from), "{from}");
    let text = VALID.replacen(from, to, 1);
    Spec::parse("a.toml", &text, None).expect_err(to).to_string()
}

#[test]
fn names_file_line_key_and_allowed_values_in_errors() {
    let cases = [
        (
            "seconds = 1.5",
            "seconds = 0",
            "a.toml:2: key `seconds` is 0; allowed: a number from 0.1 to 86400, in seconds",
        ),
        (
            "seconds = 1.5",
            "seconds = nan",
            "a.toml:2: key `seconds` is nan; allowed: a number from 0.1 to 86400, in seconds",
        ),
        ("seconds = 1.5", "seconds = '9'", "a.toml:2: key `seconds` is '9'; allowed: a number"),
        ("seed = 7", "seed = -7", "a.toml:3: key `seed` is -7; allowed: an integer from 0 up"),
        (
            "seed = 7",
            "sede = 7",
            "a.toml:3: key `sede` is unknown; allowed: engine, max, oom, reclaim, reserve_min, run, seconds, seed, share, tenant",
        ),
        (
            "\"48M\"",
            "1.5",
            "a.toml:4: key `max` is 1.5; allowed: 1M to less than 256T, or \"max\" for no limit; bytes are an integer",
        ),
        ("\"48M\"", "-5", "a.toml:4: key `max` is -5; allowed: 1M to less than 256T, or \"max\""),
        ("\"48M\"", "\"48Q\"", "a.toml:4: key `max` is \"48Q\"; allowed: 1M to less than 256T"),
        ("\"48M\"", "4096", "a.toml:4: key `max` is 4096; allowed: 1M to less than 256T, or \"max\""),
        (
            "\"48M\"",
            "18446744073709551615",
            "a.toml:4: key `max` is 18446744073709551615; allowed: 1M to less than 256T, or \"max\"",
        ),
        (
            "seed = 7",
            "[[tenants]]",
            "a.toml:3: key `tenants` is unknown (is `tenant` meant?); allowed: engine, max, oom, reclaim, reserve_min, run, seconds, seed, share, tenant",
        ),
        (
            "name = \"shop\"",
            "",
            "a.toml:6: key `name` of tenant 1 is missing; allowed: a name of 1 to 32 letters, digits, `-` and `_`, such as \"etl\"",
        ),
        (
            "\"shop\"",
            "\"a/b\"",
            "a.toml:7: key `name` of tenant 1 is \"a/b\"; allowed: a name of 1 to 32 letters, digits",
        ),
        ("\"shop\"", "\"\"", "a.toml:7: key `name` of tenant 1 is \"\"; allowed: a name of 1 to 32 letters"),
        ("\"shop\"", "\"unattributed\"", "that name means memory without a tenant"),
        (
            "\"hog\"",
            "\"shop\"",
            "a.toml:18: key `name` of tenant 2 is \"shop\"; another tenant has that name",
        ),
        (
            "\"lookups\"",
            "\"look\"",
            "a.toml:8: key `workload` of tenant `shop` is \"look\"; allowed: \"lookups\", \"dashboards\", \"etl\", \"runaway\" or \"hoarder\"",
        ),
        (
            "threads = 3",
            "threads = 0",
            "a.toml:9: key `threads` of tenant `shop` is 0; allowed: an integer from 1 to 64",
        ),
        (
            "threads = 3",
            "threads = 1.5",
            "a.toml:9: key `threads` of tenant `shop` is 1.5; allowed: an integer",
        ),
        (
            "0.002",
            "0.0005",
            "a.toml:10: key `scale` of tenant `shop` is 0.0005; allowed: a TPC-H scale factor of 0.001 to 10",
        ),
        (
            "0.002",
            "-1",
            "a.toml:10: key `scale` of tenant `shop` is -1; allowed: a TPC-H scale factor of 0.001 to 10",
        ),
        (
            "scale = 0.002",
            "",
            "a.toml:6: key `scale` of tenant `shop` is missing; allowed: a TPC-H scale factor",
        ),
        ("\"16M\"", "\"9999999T\"", "a.toml:11: key `max` of tenant `shop` is \"9999999T\""),
        ("\"256K\"", "0", "a.toml:12: key `cache` of tenant `shop` is 0; allowed: 64K to 1T"),
        ("\"256K\"", "\"max\"", "a.toml:12: key `cache` of tenant `shop` is \"max\"; allowed: 64K to 1T"),
        (
            "250",
            "-1",
            "a.toml:13: key `pause_us` of tenant `shop` is -1; allowed: an integer from 0 to 60000000, in microseconds",
        ),
        (
            "work_seconds = 0.5",
            "work_seconds = 0",
            "a.toml:14: key `work_seconds` of tenant `shop` is 0; allowed: a number above 0 and up to 1.5, the seconds of the whole run",
        ),
        (
            "work_seconds = 0.5",
            "work_seconds = -1",
            "a.toml:14: key `work_seconds` of tenant `shop` is -1; allowed: a number above 0 and up to 1.5, the seconds",
        ),
        (
            "work_seconds = 0.5",
            "work_seconds = 1.6",
            "a.toml:14: key `work_seconds` of tenant `shop` is 1.6; allowed: a number above 0 and up to 1.5, the seconds",
        ),
        (
            "work_seconds = 0.5",
            "work_seconds = nan",
            "a.toml:14: key `work_seconds` of tenant `shop` is nan; allowed: a number above 0 and up to 1.5, the seconds",
        ),
        (
            "after = \"shop\"",
            "after = \"hog\"",
            "a.toml:21: key `after` of tenant `hog` is \"hog\"; allowed: the name of a tenant that stands earlier and has \
             `work_seconds`",
        ),
        (
            "work_seconds = 0.5",
            "",
            "a.toml:21: key `after` of tenant `hog` is \"shop\"; allowed: the name of a tenant that stands earlier and has",
        ),
        (
            "\"memory\"",
            "\"disk\"",
            "a.toml:22: key `temp` of tenant `hog` is \"disk\"; allowed: \"file\" or \"memory\"",
        ),
        (
            "temp =",
            "tmp =",
            "a.toml:22: key `tmp` of tenant `hog` is unknown; allowed: after, cache, enforced, high, low, max, min, name",
        ),
        (
            "\"2M\"",
            "-1",
            "a.toml:23: key `low` of tenant `hog` is -1; allowed: 0 to less than 256T, or \"max\" for all that it holds",
        ),
        (
            "\"2M\"",
            "\"256T\"",
            "a.toml:23: key `low` of tenant `hog` is \"256T\"; allowed: 0 to less than 256T",
        ),
        (
            "min = \"max\"",
            "min = true",
            "a.toml:15: key `min` of tenant `shop` is true; allowed: 0 to less than",
        ),
        (
            "\"24M\"",
            "0",
            "a.toml:24: key `high` of tenant `hog` is 0; allowed: 1M to less than 256T, or \"max\" for no limit",
        ),
        (
            "500",
            "1001",
            "a.toml:25: key `oom_score` of tenant `hog` is 1001; allowed: an integer from -1000 to 1000",
        ),
        ("500", "'high'", "a.toml:25: key `oom_score` of tenant `hog` is 'high'; allowed: an integer"),
        (
            "oom_group = true",
            "oom_group = 1",
            "a.toml:26: key `oom_group` of tenant `hog` is 1; allowed: true or false",
        ),
        (
            "weight = 7",
            "weight = 0",
            "a.toml:27: key `weight` of tenant `hog` is 0; allowed: an integer from 1 to 10000",
        ),
        (
            "enforced = false",
            "enforced = 'no'",
            "a.toml:28: key `enforced` of tenant `hog` is 'no'; allowed: true or false",
        ),
        (
            "1500",
            "-1",
            "a.toml:29: key `patience_ms` of tenant `hog` is -1; allowed: an integer from 0 to 3600000, in milliseconds",
        ),
        ("seed = 7", "seed = = 7", "a.toml:3: not TOML: "),
        ("seed = 7", "seed = 7\nseed = 8", "a.toml:4: not TOML: duplicate key, in `seed = 8`"),
    ];
    for (from, to, expected) in cases {
        let error = error_of(from, to);
        assert!(error.contains(expected), "{to}: got {error:?}, expected {expected:?}");
    }
}

#[test]
fn finds_each_kind_by_its_name() {
    let kind = |name: &str| {
        let text = VALID.replacen("\"lookups\"", &format!("{name:?}"), 1);
        Spec::parse("a.toml", &text, None).map(|spec| spec.tenants[0].workload).ok()
    };
    let kinds = [Kind::Lookups, Kind::Dashboards, Kind::Etl, Kind::Runaway].map(Some);
    assert_eq!(["lookups", "dashboards", "etl", "runaway"].map(kind), kinds);
    assert_eq!(kind("Etl"), None);
}

#[test]
fn refuses_a_spec_without_tenants() {
    for (text, expected) in [
        ("", "a.toml: key `tenant` is missing; allowed: at least one [[tenant]]"),
        ("tenant = 3", "a.toml:1: key `tenant` is not a list of tables; allowed: [[tenant]]"),
        ("\ntenant = ['a']", "a.toml:2: key `tenant` is not a list of tables; allowed: [[tenant]]"),
    ] {
        let error = Spec::parse("a.toml", text, None).expect_err(text).to_string();
        assert_eq!(error, expected);
    }
}

#[test]
fn names_the_line_of_the_65th_tenant() {
    let tenants = |count: usize| -> String {
        (0..count).map(|n| format!("[[tenant]]\nname = 't{n}'\nworkload = 'etl'\nscale = 1\n")).collect()
    };
    assert_eq!(Spec::parse("a.toml", &tenants(64), None).expect("a valid SPEC").tenants.len(), 64);
    let error = Spec::parse("a.toml", &tenants(66), None).expect_err("two too many").to_string();
    assert_eq!(error, "a.toml:257: key `tenant` stands 66 times; allowed: 1 to 64");
}

#[test]
fn accepts_the_largest_limit_that_a_group_can_count() {
    let most = (1_u64 << 48) - 1;
    let spec =
        Spec::parse("a.toml", &VALID.replacen("\"48M\"", &most.to_string(), 1), None).expect("a valid SPEC");
    assert_eq!(spec.max_bytes, Some(most));
    assert!(error_of("\"48M\"", "\"256T\"").contains("less than 256T"));
}

#[test]
fn names_a_file_that_does_not_exist() {
    let error =
        Spec::read(Some(std::path::Path::new("no/such.toml")), None).expect_err("no such file").to_string();
    assert!(error.starts_with("no/such.toml: cannot be read: "), "{error}");
    assert!(error.ends_with("; allowed: a TOML file, such as `memgroup run --print-spec` prints"), "{error}");
}

#[test]
fn gives_the_runaway_more_work_than_ten_times_its_limit() {
    let spec = Spec::read(None, None).expect("a valid SPEC");
    for tenant in spec.tenants.iter().filter(|tenant| tenant.workload == Kind::Runaway) {
        let milli = u64::from(tenant.scale.milli());
        // Each customer with each order; a name, a key and two comments take more than 50 bytes.
        let wanted = (150 * milli) * (1_500 * milli) * 50;
        assert!(
            wanted > 10 * spec.max_bytes.expect("a common limit") && tenant.temp == Temp::Memory,
            "{}: {wanted} bytes",
            tenant.name
        );
    }
}

#[test]
fn accepts_every_spec_of_the_program() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("specs");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).expect("the directory is there") {
        let path = entry.expect("an entry").path();
        Spec::read(Some(&path), None).unwrap_or_else(|error| panic!("{error}"));
        count += 1;
    }
    assert!(count >= 2, "{count}");
}

#[test]
fn repeats_only_the_start_of_long_keys_values_and_lines() {
    let long = "9".repeat(1 << 20);
    let (cut, shown) = (format!("{}…", &long[..80]), |text: &str| error_of("\"48M\"", text));
    assert!(shown(&format!("\"x{long}\"")).contains(&format!("key `max` is \"x{}…; allowed: ", &long[..78])));
    assert!(shown(&long).contains(&format!("key `max` is {cut}; allowed: ")));
    assert!(shown(&format!("{long}.5")).contains(&format!("key `max` is {cut}; allowed: ")));
    for text in [
        format!("x{long} = 1"),
        format!("[[tenant]]\nx{long} = 1"),
        format!("[x{long}]\ny = 1"),
        format!("max = {long} {long}"),
        format!("x{long} = 1\nx{long} = 1"),
        format!("max = '{long}'\n[run]\nmax = '1{long}'"),
        format!("max = \"{}\"", "\u{1}".repeat(1 << 20).escape_unicode()),
    ] {
        let error = Spec::parse("a.toml", &text, None).expect_err("a wrong SPEC").to_string();
        assert!(error.len() < 1000 && error.starts_with("a.toml:"), "{} bytes: {:.2000}", error.len(), error);
    }
}
