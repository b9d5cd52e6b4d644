//! The JSON form: names and kinds that readers rely on, and what is read back.

use memgroup::{Hierarchy, Reach, Snapshot, Stat, StatKey, Subsystem, stats};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{cache, hierarchy};

const OWN: Subsystem = Subsystem { name: "own", stats: &[Stat::count("hits"), Stat::gauge("held")] };
const KEYS: [StatKey; 5] =
    [stats::memory::CHARGES, stats::memory::FILE, stats::io::RBYTES, OWN.key("hits"), OWN.key("held")];

/// A change of the tree: what, at which group, and how much.
type Change = (u8, usize, u64);

/// Makes the changes in a new tree, and returns it with what holds its bytes.
fn changed(changes: &[Change]) -> (Hierarchy, Vec<Box<dyn std::any::Any>>) {
    let h = hierarchy();
    let own = h.register(OWN).unwrap();
    let (mut groups, mut held) = (vec![h.root()], Vec::<Box<dyn std::any::Any>>::new());
    for (number, &(what, at, amount)) in changes.iter().enumerate() {
        let group = groups[at % groups.len()].clone();
        match what % 8 {
            0 | 1 => groups.extend(group.create(&format!("\u{e9} \"{number}\\"))),
            2 => held.extend(group.try_charge(amount % (1 << 20)).map(|it| Box::new(it) as Box<_>)),
            3 => drop(group.set_max(Some(amount % (1 << 22)).filter(|max| max % 2 == 0))),
            4 => drop((group.set_low(amount), group.set_min(u64::MAX), group.set_share(Some(8)))),
            5 => {
                own.add(&group, KEYS[3], (amount % 1000) as i64);
                own.add(&group, KEYS[4], -((amount % 1000) as i64));
                h.io().add(&group, KEYS[2], (amount % 1000) as i64);
            }
            6 => held.push(Box::new(group.charge_forced(amount % 4096))),
            _ => {
                if number % 2 == 0 {
                    held.push(Box::new(cache(&h.root(), 0, 0)));
                } else {
                    drop(group.remove());
                }
            }
        }
    }
    (h, held)
}

/// The path, figures and statistics of a group.
type Figures = (String, String, Vec<Option<i64>>);

/// The figures that a reader of the snapshot asks for.
fn figures(snapshot: &Snapshot) -> Vec<Figures> {
    let of = |group: &memgroup::GroupSnapshot| {
        let bytes = (group.usage_bytes, group.usage_exact_bytes, group.peak_bytes);
        let counts = (group.descendants, group.dying_descendants, group.events, group.events_local);
        let figures = format!("{:?} {bytes:?} {counts:?} {:?}", group.limits, group.pressure);
        let keys = KEYS.iter().flat_map(|&key| [Reach::Local, Reach::Subtree].map(|reach| (key, reach)));
        (group.path.clone(), figures, keys.map(|(key, reach)| group.statistic(key, reach)).collect())
    };
    snapshot.groups.iter().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_read_is_what_was_written(changes in proptest::collection::vec(any::<Change>(), 0..40)) {
        let (h, held) = changed(&changes);
        let snapshot = h.snapshot();
        let text = serde_json::to_string(&snapshot).unwrap();
        let read: Snapshot = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), text);
        prop_assert_eq!(figures(&read), figures(&snapshot));
        // In another order, and from a source that lends no text.
        let value = serde_json::to_value(&snapshot).unwrap();
        let read: Snapshot = serde_json::from_value(value.clone()).unwrap();
        prop_assert_eq!(serde_json::to_value(&read).unwrap(), value);
        let statistics = |all: &Snapshot| figures(all).into_iter().map(|(_, _, them)| them).collect::<Vec<_>>();
        prop_assert_eq!(statistics(&read), statistics(&snapshot));
        drop(held);
    }
}

/// Calls `act` with the text of `value`, each time with another of its leaves replaced by `wrong`
/// or, where the leaf is a text, by a number.
fn with_each_leaf_wrong(value: &mut Value, act: &mut dyn FnMut(&str)) {
    fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(all) if !all.is_empty() => {
                all.iter().for_each(|(key, inner)| leaves(inner, &format!("{at}/{key}"), found));
            }
            Value::Array(all) if !all.is_empty() => {
                (0..).zip(all).for_each(|(number, inner)| leaves(inner, &format!("{at}/{number}"), found));
            }
            _ => found.push(at.to_owned()),
        }
    }
    let mut found = Vec::new();
    leaves(value, "", &mut found);
    assert!(found.len() > 100, "{found:?}");
    for at in found {
        let leaf = value.pointer_mut(&at).unwrap();
        let wrong = if leaf.is_string() { json!(WRONG_NUMBER) } else { json!(WRONG) };
        let right = std::mem::replace(leaf, wrong);
        act(&value.to_string());
        *value.pointer_mut(&at).unwrap() = right;
    }
}

const WRONG: &str = "wrong-value";
const WRONG_NUMBER: u64 = 9_876_543_210_123;

#[test]
fn an_error_says_where_the_text_is_wrong() {
    let (h, held) = changed(&[(0, 0, 0), (2, 1, 5), (6, 1, 9), (5, 1, 7), (4, 0, 7), (0, 1, 0), (7, 1, 99)]);
    let mut value = serde_json::to_value(h.snapshot()).unwrap();
    with_each_leaf_wrong(&mut value, &mut |text| {
        let error = serde_json::from_str::<Snapshot>(text).expect_err(text);
        let (begin, length) = match text.find(WRONG) {
            Some(at) => (at, WRONG.len()),
            None => (text.find(&WRONG_NUMBER.to_string()).unwrap(), 13),
        };
        let near = begin..=begin + length + 2;
        let around = &text[begin.saturating_sub(40)..begin];
        assert!(error.line() == 1 && near.contains(&error.column()), "{error}: {begin} {around}");
    });
    let text = value.to_string();
    for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
        let error = serde_json::from_str::<Snapshot>(&text[..end]).expect_err("it is cut");
        assert!(error.is_eof() && error.column() <= end, "{end}: {error}");
    }
    drop(held);
}

#[test]
fn refuses_what_no_snapshot_is() {
    let group = |statistics: &str| format!(r#"{{"groups":[{{"statistics":{{{statistics}}}}}]}}"#);
    for (text, part) in [
        (r#"{"groups":[{"parent":0}]}"#.to_owned(), "group 0 has the parent 0, which is not before it"),
        (r#"{"groups":[{},{"parent":2},{}]}"#.to_owned(), "group 1 has the parent 2"),
        (r#"{"taken_unix_us":-1,"groups":[]}"#.to_owned(), "invalid value: integer `-1`"),
        ("{}".to_owned(), "missing field `groups`"),
        (
            group(r#""a":{"hierarchical":{"b":1},"local":{"c":1}}"#),
            "the statistics of \"a\" has other names in `hierarchical` than in `local`",
        ),
        (group(r#""a":{"hierarchical":{"b":1,"b":2},"local":{"b":1,"b":2}}"#), "the name \"b\" twice"),
        (group(r#""a":{"local":{}}"#), "missing field `hierarchical`"),
        (group(r#""a":1"#), "invalid type: integer `1`"),
    ] {
        let error = serde_json::from_str::<Snapshot>(&text).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(" at line 1 column "), "{part}: {error}");
    }
}

#[test]
fn reads_so_many_definitions_only() {
    let text = |number: usize| {
        let names: Vec<_> =
            (0..50).map(|stat| format!(r#""{number}-{stat}-{}":0"#, "x".repeat(100))).collect();
        let names = names.join(",");
        format!(
            r#"{{"groups":[{{"statistics":{{"s":{{"hierarchical":{{{names}}},"local":{{{names}}}}}}}}}]}}"#
        )
    };
    let read = |number| serde_json::from_str::<Snapshot>(&text(number));
    let refused = (0..1000).find_map(|number| read(number).err()).expect("there is a bound");
    assert!(refused.to_string().contains("exceed the 1048576 bytes of definitions"), "{refused}");
    assert_eq!(read(0).unwrap().groups[0].subsystems().count(), 1, "those before can still be read");
}

#[test]
fn serialises_a_group_under_the_documented_names() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    group.set_max(1 << 20).unwrap();
    let plans = cache(&group, 1, 500_000);
    let forced = group.charge_forced((1 << 20) + 7).unwrap();
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
    drop((plans, forced));
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
