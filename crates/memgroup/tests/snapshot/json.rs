//! The JSON form: names and kinds that readers rely on.

use serde_json::{Value, json};

use super::{cache, hierarchy};

#[test]
fn serialises_a_group_under_the_documented_names() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    group.set_max(1 << 20).unwrap();
    let plans = cache(&group, 1, 500_000);
    let label = group.label("sorts").unwrap();
    let labelled = label.charge_forced(7).unwrap();
    let forced = group.charge_forced(1 << 20).unwrap();
    let snapshot = h.snapshot();
    let value = serde_json::to_value(&snapshot).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&value), ["groups", "left_out", "shrinkers", "taken_unix_us", "took_us"]);
    assert!(value["taken_unix_us"].as_u64().unwrap() > 1_600_000_000_000_000);

    let [root, found] = value["groups"].as_array().unwrap().as_slice() else { panic!("two groups: {value}") };
    assert_eq!(
        keys(found),
        [
            "depth",
            "descendants",
            "dying",
            "dying_descendants",
            "events",
            "events_local",
            "fair_share",
            "id",
            "label_bytes",
            "limits",
            "name",
            "online",
            "over_bytes_max",
            "overdraft",
            "owed_bytes",
            "parent",
            "path",
            "peak_bytes",
            "pressure",
            "refusals",
            "statistics",
            "stock",
            "usage_bytes",
            "usage_exact_bytes",
            "waiters"
        ]
    );
    assert_eq!((&root["parent"], &root["limits"]["max_bytes"]), (&Value::Null, &Value::Null));
    assert_eq!(
        found["limits"],
        json!({
            "max_bytes": 1 << 20, "high_bytes": null, "low_bytes": 0, "min_bytes": 0, "oom_group": false,
            "oom_score": 0, "weight": 100, "share": 0, "reserve_min": false, "enforced": true,
            "max_descendants": null, "max_depth": null
        })
    );
    assert_eq!(found["waiters"], json!({ "now": 0, "longest_us": 0, "bytes": 0 }));
    let none = json!({ "avg10_percent": 0.0, "avg60_percent": 0.0, "avg300_percent": 0.0, "total_us": 0 });
    assert_eq!(found["pressure"], json!({ "some": none, "full": none }));
    assert_eq!(found["label_bytes"], json!({ "sorts": 7 }));
    assert_eq!(
        (&found["path"], &found["name"], &found["depth"], &found["parent"]),
        (&json!("/a"), &json!("a"), &json!(1), &json!(0))
    );
    assert_eq!(
        (&found["online"], &found["dying"], &found["id"]),
        (&json!(true), &Value::Null, &json!(group.id().as_u64()))
    );
    assert_eq!(found["usage_exact_bytes"], 1_548_583);
    assert_eq!(found["overdraft"], json!({ "charges": 1, "bytes": 500_007 }));
    assert_eq!(
        keys(&found["events"]),
        ["high", "low", "max", "oom", "oom_group_kill", "oom_kill", "would_refuse"]
    );
    assert_eq!(found["events"]["max"], snapshot.group("/a").unwrap().events.max);
    assert_eq!(
        keys(&found["stock"]),
        ["drained_bytes", "drains", "hits", "misses", "prepaid_bytes", "refills", "returns"]
    );
    assert_eq!(keys(&found["statistics"]), ["cpu", "io", "memory"]);
    for reach in ["hierarchical", "local"] {
        assert_eq!(keys(&found["statistics"]["io"][reach]), ["rbytes", "rios", "syncs", "wbytes", "wios"]);
    }
    let report = &value["shrinkers"][0];
    assert_eq!(
        (&report["name"], &report["quarantine"], &report["callers"]),
        (&json!("plans"), &Value::Null, &json!([]))
    );
    for figure in
        ["scans", "asked_bytes", "claimed_bytes", "freed_bytes", "last_freed_bytes", "time_us", "overruns"]
    {
        assert!(report[figure].is_u64(), "{figure}: {report}");
    }
    drop((plans, forced, labelled));
}

#[test]
fn serialises_a_removed_group() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    let charge = group.try_charge(7).unwrap();
    group.remove().unwrap();
    let value = serde_json::to_value(h.snapshot()).unwrap();
    let found = &value["groups"][1];
    assert_eq!((&found["online"], &found["dying"]["usage_bytes"]), (&json!(false), &json!(7)));
    assert!(found["dying"]["age_us"].is_u64(), "{found}");
    drop(charge);
}
