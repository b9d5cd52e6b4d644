//! Configurations, settings and trees of groups, read from TOML and JSON.
#![cfg(all(feature = "serde", not(memgroup_loom)))]

use std::time::Duration;

use memgroup::{ApplyError, BYTES_MAX, Config, GroupError, GroupSpec, Hierarchy, SlotSource, TreeSpec};
use serde::de::DeserializeOwned;

fn virtual_config() -> Config {
    Config::with_slots(SlotSource::virtual_slots(4).unwrap())
}

fn toml_error<T: DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
    toml::from_str::<T>(text).unwrap_err().to_string()
}

fn json_error<T: DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
    serde_json::from_str::<T>(text).unwrap_err().to_string()
}

#[test]
fn reads_each_setting_of_a_configuration() {
    let read: Config = toml::from_str(
        r#"
        slots = "virtual:4"
        groups_max = 100
        depth_max = 3
        stock_cap_bytes = "64K"
        stock_budget_bytes = 1048576
        account_root = false
        scope_time = false
        reclaim = false
        reclaim_patience = "500ms"
        reclaim_reserve_bytes = "1M"
        maintain_on_removal = false
        demote_after = "10min"
        protected_reserve_bytes = "3M"
        oom = false
        kill_patience = "2s"
        pressure = false
        "#,
    )
    .unwrap();
    let config = virtual_config()
        .groups_max(100)
        .depth_max(3)
        .stock_cap_bytes(64 << 10)
        .stock_budget_bytes(1 << 20)
        .account_root(false)
        .scope_time(false)
        .reclaim(false)
        .reclaim_patience(Duration::from_millis(500))
        .reclaim_reserve_bytes(1 << 20)
        .maintain_on_removal(false)
        .demote_after(Some(Duration::from_secs(600)))
        .protected_reserve_bytes(3 << 20)
        .oom(false)
        .kill_patience(Duration::from_secs(2))
        .pressure(false);
    assert_eq!(read, config);
    assert_eq!(toml::from_str::<Config>("").unwrap(), Config::new());
    let sampled: Config = toml::from_str("scope_time_sampled = 32").unwrap();
    assert_eq!(sampled, Config::new().scope_time_sampled(32));
    let read: Config = serde_json::from_str(r#"{"demote_after": "never", "kill_patience": "7s"}"#).unwrap();
    assert_eq!(read, Config::new().kill_patience(Duration::from_secs(7)));
    assert!(Hierarchy::new(read).is_ok());
}

#[test]
fn errors_of_a_configuration_name_the_key_and_the_allowed_values() {
    for (text, said) in [
        (
            "groups_maxx = 1",
            "key `groups_maxx` of the configuration is unknown; allowed: slots, groups_max, depth_max",
        ),
        ("groups_max = 0", "the configuration: groups_max is 0; allowed: 1 to 16777216"),
        ("groups_max = -1", "key `groups_max` of the configuration is -1; allowed: an integer from 1 up"),
        ("groups_max = 5000000000", "key `groups_max` of the configuration is 5000000000; allowed"),
        ("groups_max = '5'", "key `groups_max` of the configuration is \"5\"; allowed"),
        ("groups_max = 1.5", "key `groups_max` of the configuration is 1.5; allowed"),
        ("groups_max = [1]", "key `groups_max` of the configuration is a list; allowed"),
        ("depth_max.x = 1", "key `depth_max` of the configuration is a table; allowed"),
        ("depth_max = 300", "the configuration: depth_max is 300; allowed: 1 to 256"),
        (
            "stock_cap_bytes = '64Q'",
            "key `stock_cap_bytes` of the configuration is \"64Q\"; allowed: bytes, as an integer",
        ),
        ("stock_cap_bytes = 'max'", "key `stock_cap_bytes` of the configuration is \"max\"; allowed: bytes"),
        ("stock_cap_bytes = '9M'", "the configuration: stock_cap_bytes is 9437184; allowed: 0 to 8 MiB"),
        ("pressure = 1", "key `pressure` of the configuration is 1; allowed: true or false"),
        ("kill_patience = 5", "key `kill_patience` of the configuration is 5; allowed: 1ms to 1h, as a text"),
        ("kill_patience = '5'", "key `kill_patience` of the configuration is \"5\"; allowed"),
        ("kill_patience = '5 s'", "key `kill_patience` of the configuration is \"5 s\"; allowed"),
        (
            "kill_patience = '2h'",
            "the configuration: kill_patience, in us, is 7200000000; allowed: 1000 to 3600000000",
        ),
        ("demote_after = '99999999999999999999h'", "key `demote_after` of the configuration is"),
        ("demote_after = '9999999999999999999h'", "key `demote_after` of the configuration is"),
        ("slots = 'virtual:0'", "key `slots` of the configuration is \"virtual:0\"; allowed: \"detect\""),
    ] {
        let error = toml_error::<Config>(text);
        assert!(error.contains(said), "{text}: {error}");
    }
    let error = json_error::<Config>(r#"{"pressure": true, "pressure": false}"#);
    assert!(error.contains("key `pressure` of the configuration stands twice; allowed: once"), "{error}");
    let error = json_error::<Config>(r#"{"pressure": null}"#);
    assert!(error.contains("key `pressure` of the configuration is null; allowed: true or false"), "{error}");
}

#[test]
fn applies_each_setting_of_a_group_and_leaves_the_others() {
    let h = Hierarchy::new(virtual_config()).unwrap();
    let group = h.create("/group").unwrap();
    let all: GroupSpec = toml::from_str(
        r#"
        max = "1G"
        high = 943718400
        low = "max"
        min = "64M"
        oom_group = true
        oom_score = -5
        weight = 500
        share = 8
        reserve_min = true
        enforced = false
        max_descendants = 1000
        max_depth = "max"
        "#,
    )
    .unwrap();
    group.set_max_depth(3);
    group.apply(&all).unwrap();
    let settings = || {
        (
            (group.max(), group.high(), group.low(), group.min(), group.oom_group(), group.oom_score()),
            (group.weight(), group.share(), group.reserves_min(), group.is_enforced()),
            (group.max_descendants(), group.max_depth()),
        )
    };
    let bytes = (Some(1 << 30), Some(900 << 20), BYTES_MAX, 64 << 20, true, -5);
    let (rest, bounds) = ((500, Some(8), true, false), (Some(1000), None));
    assert_eq!(settings(), (bytes, rest, bounds));
    group.apply(&GroupSpec::default()).unwrap();
    assert_eq!(settings(), (bytes, rest, bounds));
    let some: GroupSpec =
        serde_json::from_str(r#"{"max": "max", "share": 0, "enforced": true, "low": 0, "max_depth": 0}"#)
            .unwrap();
    group.apply(&some).unwrap();
    let bytes = (None, Some(900 << 20), 0, 64 << 20, true, -5);
    assert_eq!(settings(), (bytes, (500, None, true, true), (Some(1000), Some(0))));
}

#[test]
fn reads_trees_by_path_and_nested() {
    let by_path: TreeSpec = toml::from_str(
        r#"
        ["/"]
        max = "10G"
        ["/tenants"]
        share = 8
        ["/tenants/alice"]
        max = "1G"
        ["/tenants/alice/batch"]
        weight = 10
        ["/tenants/bob"]
        "#,
    )
    .unwrap();
    let nested: TreeSpec = serde_json::from_str(
        r#"{
            "/": {"max": "10G", "groups": {"tenants": {"share": 8, "groups": {
                "alice": {"groups": {"batch": {"weight": 10}}, "max": 1073741824}}}}},
            "/tenants/bob": {}
        }"#,
    )
    .unwrap();
    assert_eq!(by_path, nested);
    let h = Hierarchy::new(virtual_config()).unwrap();
    let kept = h.get_or_create("/tenants/alice/other").unwrap();
    kept.set_max(5).unwrap();
    // The second time it changes nothing.
    for _ in 0..2 {
        h.apply(&nested).unwrap();
        let max = |path| h.lookup(path).unwrap().max();
        assert_eq!(
            (max("/"), max("/tenants/alice"), max("/tenants/bob")),
            (Some(10 << 30), Some(1 << 30), None)
        );
        assert_eq!(h.lookup("/tenants").unwrap().share(), Some(8));
        assert_eq!(h.lookup("/tenants/alice/batch").unwrap().weight(), 10);
        assert_eq!((kept.is_online(), kept.max(), h.groups().len()), (true, Some(5), 6));
    }
}

#[test]
fn reads_the_example_of_the_guide_within_a_configuration() {
    #[derive(serde::Deserialize)]
    struct Program {
        memory: Config,
        groups: TreeSpec,
    }

    let page = include_str!("../../docs/snapshot.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let program: Program = toml::from_str(example).unwrap();
    let expected = Config::new().groups_max(10_000).reclaim_patience(Duration::from_millis(500));
    assert_eq!(program.memory, expected);
    let h = Hierarchy::new(program.memory).unwrap();
    h.apply(&program.groups).unwrap();
    let (tenants, alice) = (h.lookup("/tenants").unwrap(), h.lookup("/tenants/alice").unwrap());
    assert_eq!((tenants.max(), tenants.share(), alice.min()), (Some(9 << 30), Some(8), 64 << 20));
    let error = toml::from_str::<Program>(&example.replace("9G", "9Q")).map(drop).unwrap_err().to_string();
    let printed = page.split("``key").nth(1).unwrap().split("``").next().unwrap().trim();
    assert!(error.contains(&format!("key {printed}")), "{error}");
}

#[test]
fn errors_of_a_tree_name_the_group_and_the_allowed_values() {
    for (text, said) in [
        (
            r#"{"/a": {"maxx": 1}}"#,
            "key `maxx` of group /a is unknown; allowed: max, high, low, min, oom_group, oom_score",
        ),
        (r#"{"/a": {"maxx": 1}}"#, "enforced, max_descendants, max_depth, groups"),
        (
            r#"{"/a": {"max_depth": -1}}"#,
            "key `max_depth` of group /a is -1; allowed: an integer from 0 to 4294967295, or \"max\" for no bound",
        ),
        (r#"{"/a": {"max_descendants": "64K"}}"#, "key `max_descendants` of group /a is \"64K\"; allowed"),
        (r#"{"/a": {"memory.max": 1}}"#, "key `memory.max` of group /a is unknown"),
        (
            r#"{"/a": {"max": -1}}"#,
            "key `max` of group /a is -1; allowed: 0 to less than 256T, or \"max\" for no limit",
        ),
        (r#"{"/a": {"max": "1.5G"}}"#, "key `max` of group /a is \"1.5G\"; allowed"),
        (r#"{"/a": {"max": 281474976710656}}"#, "key `max` of group /a is 281474976710656; allowed"),
        (r#"{"/a": {"max": 1e30}}"#, "key `max` of group /a is 1"),
        (
            r#"{"/a": {"min": "300T"}}"#,
            "key `min` of group /a is \"300T\"; allowed: 0 to less than 256T, or \"max\" for all",
        ),
        (r#"{"/a": {"weight": 0}}"#, "key `weight` of group /a is 0; allowed: an integer from 1 to 10000"),
        (r#"{"/a": {"share": 1025}}"#, "key `share` of group /a is 1025; allowed: an integer from 0 to 1024"),
        (
            r#"{"/a": {"oom_score": 1001}}"#,
            "key `oom_score` of group /a is 1001; allowed: an integer from -1000 to 1000",
        ),
        (r#"{"/a": {"oom_group": "yes"}}"#, "key `oom_group` of group /a is \"yes\"; allowed: true or false"),
        (
            r#"{"/a": {"max": 10, "high": 11}}"#,
            "key `high` of group /a is 11 bytes, above its `max` of 10; allowed: up to",
        ),
        (r#"{"/a": {"low": "1K", "max": 10}}"#, "key `low` of group /a is 1024 bytes, above its `max` of 10"),
        (r#"{"/a": {"groups": {"b": {"min": 11, "max": 10}}}}"#, "key `min` of group /a/b is 11 bytes"),
        (r#"{"/a": {"groups": {"b": {"max": []}}}}"#, "key `max` of group /a/b is a list; allowed"),
        (r#"{"/a": {"groups": {"b": {}}}, "/a/b": {}}"#, "group /a/b stands twice; allowed: once"),
        (r#"{"/a": {}, "/a": {}}"#, "key `/a` of the tree stands twice; allowed: once"),
        (
            r#"{"a": {}}"#,
            "\"a\" is no path of a group: it does not begin with a slash; write it as /parent/child",
        ),
        (r#"{"/a/": {}}"#, "it has an empty name in it"),
        (r#"{"/a": {"groups": {"": {}}}}"#, "\"\" cannot name a group"),
        (r#"{"/a": {"groups": {"/b": {}}}}"#, "\"/b\" cannot name a group"),
        (r#"{"/..": {}}"#, "\"..\" cannot name a group"),
        (r#"{"/a": 5}"#, "expected a table of the settings of group /a"),
        (r#"{"/a": {"groups": 5}}"#, "expected a table of the groups below /a, by name"),
        ("[]", "expected a table of groups by path, such as \"/tenants/alice\""),
    ] {
        let error = json_error::<TreeSpec>(text);
        assert!(error.contains(said), "{text}: {error}");
    }
    // TOML's errors show the line.
    let error = toml_error::<TreeSpec>("['/a']\nmax = 1\n['/b']\nmaxx = 1\n");
    assert!(error.contains("key `maxx` of group /b is unknown") && error.contains("line "), "{error}");
    let allowed = r#"{"/a": {"max": 10, "low": "max", "high": "max", "min": 10}}"#;
    assert!(serde_json::from_str::<TreeSpec>(allowed).is_ok());
}

#[test]
fn a_tree_that_cannot_be_created_changes_nothing() {
    let h = Hierarchy::new(virtual_config().groups_max(4).depth_max(2)).unwrap();
    let kept = h.create("/a").unwrap();
    let tree: TreeSpec =
        serde_json::from_str(r#"{"/": {"max": 1}, "/a": {"max": 1}, "/b/c": {}, "/d": {}}"#).unwrap();
    let error = h.apply(&tree).unwrap_err();
    assert_eq!(error, ApplyError::Group(GroupError::TooMany { groups_max: 4 }));
    assert!(
        error.to_string().starts_with("create the groups of a tree: the hierarchy holds 4 groups already")
    );
    let too_deep: TreeSpec = serde_json::from_str(r#"{"/a": {"max": 1}, "/b/c/d": {}}"#).unwrap();
    let error = h.apply(&too_deep).unwrap_err().to_string();
    assert_eq!(
        error,
        "create the groups of a tree: group /b/c/d would be deeper than 2 levels below the root"
    );
    assert_eq!((h.root().max(), kept.max(), h.groups().len()), (None, None, 2));
    assert_eq!(h.snapshot().groups.len(), 2, "those that were created are gone");
}

#[test]
fn a_root_that_is_not_accounted_takes_no_share() {
    let h = Hierarchy::new(virtual_config().account_root(false)).unwrap();
    let tree: TreeSpec = serde_json::from_str(r#"{"/": {"share": 8}, "/a": {}}"#).unwrap();
    let error = h.apply(&tree).unwrap_err().to_string();
    assert!(error.contains("set share of group /"), "{error}");
    assert_eq!(h.groups().len(), 1);
}

#[test]
fn settings_of_a_removed_group_are_refused() {
    let h = Hierarchy::new(virtual_config()).unwrap();
    let group = h.create("/group").unwrap();
    group.remove().unwrap();
    let spec: GroupSpec = serde_json::from_str(r#"{"min": 5}"#).unwrap();
    let error = group.apply(&spec).unwrap_err().to_string();
    assert_eq!(error, "set min of group /group: it was removed; protect a group that is online");
}

#[test]
fn a_record_is_serialised_with_units_in_its_names() {
    let h = Hierarchy::new(virtual_config().stock_cap_bytes(0)).unwrap();
    let request = h.get_or_create_owned("/request").unwrap();
    let (log, lines) = std::sync::mpsc::channel();
    request.on_end(move |ended| log.send(serde_json::to_value(&ended).unwrap()).unwrap()).unwrap();
    drop(request.try_charge(4096).unwrap());
    let id = request.id().as_u64();
    drop(request);
    let record = lines.recv().unwrap();
    assert_eq!((&record["path"], &record["id"]), (&"/request".into(), &id.into()));
    assert_eq!((&record["peak_bytes"], &record["usage_bytes"]), (&4096.into(), &0.into()));
    assert_eq!((&record["refusals"], &record["events"]["oom_kill"]), (&0.into(), &0.into()));
    assert!(record["lifetime_us"].is_u64() && record["stalled_us"] == 0);
}
