//! Answers show the figures of the engine.

use memgroup_serve::{ROUTES, Right};
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// A tree with usage, limits, a name that needs encoding, and a dying group.
fn fill(fixture: &Fixture) -> Vec<memgroup::Charge> {
    let hierarchy = &fixture.hierarchy;
    let mut charges = Vec::new();
    for (path, bytes) in
        [("/t", 10), ("/t/alice", 4096), ("/t/bob 100%", 77), ("/t/memory.max", 5), ("/gone", 9)]
    {
        charges.push(hierarchy.create(path).unwrap().try_charge(bytes).unwrap());
    }
    let alice = hierarchy.lookup("/t/alice").unwrap();
    alice.set_max(5000).unwrap();
    alice.try_charge(1000).unwrap_err();
    hierarchy.lookup("/gone").unwrap().remove().unwrap();
    charges
}

/// A snapshot as JSON, without the figures that a request itself changes.
fn at_rest(mut tree: Value) -> Value {
    let tree_fields = tree.as_object_mut().unwrap();
    assert!(tree_fields.remove("took_us").is_some() && tree_fields.remove("taken_unix_us").is_some());
    let groups = tree["groups"].as_array_mut().unwrap();
    groups.retain(|group| group["path"] != "/memgroup-serve" && group["path"] != "/");
    for group in groups {
        if let Some(dying) = group["dying"].as_object_mut() {
            assert!(dying.remove("age_us").is_some());
        }
    }
    tree
}

#[test]
fn the_tree_is_the_snapshot() {
    let fixture = Fixture::new();
    let _charges = fill(&fixture);
    let reply = fixture.unix().get("/v1/tree");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let expected = serde_json::to_value(fixture.hierarchy.snapshot()).unwrap();
    assert_eq!(at_rest(reply.json()), at_rest(expected));
}

#[test]
fn a_group_is_its_part_of_the_snapshot() {
    let fixture = Fixture::new();
    let _charges = fill(&fixture);
    for (path, url) in
        [("/t", "/t"), ("/t", "/t/"), ("/t/bob 100%", "/t/bob%20100%25"), ("/t/memory.max", "/t/memory.max/")]
    {
        let expected = fixture.hierarchy.lookup(path).unwrap().snapshot();
        let reply = fixture.unix().get(&format!("/v1/groups{url}"));
        assert_eq!(at_rest(reply.json()), at_rest(serde_json::to_value(expected).unwrap()), "{path}");
    }
    assert_eq!(fixture.unix().get("/v1/groups").json()["groups"][0]["path"], "/");
    let reply = fixture.unix().get("/v1/groups/t/nothing");
    assert_eq!(
        (reply.status, reply.code(), &reply.json()["group"]),
        (404, "no_such_group".into(), &json!("/t/nothing"))
    );
}

#[test]
fn a_tree_of_many_pieces_is_whole() {
    let fixture = Fixture::new();
    for number in 0..500 {
        fixture.hierarchy.create(&format!("/{number}-{}", "x".repeat(200))).unwrap();
    }
    let reply = fixture.unix().get("/v1/tree");
    assert!(reply.body.len() > 500_000, "several pieces");
    let expected = serde_json::to_value(fixture.hierarchy.snapshot()).unwrap();
    assert_eq!(at_rest(reply.json()), at_rest(expected));
}

#[test]
fn each_file_has_the_text_of_the_engine() {
    let fixture = Fixture::new();
    let _charges = fill(&fixture);
    let alice = fixture.hierarchy.lookup("/t/alice").unwrap();
    for file in fixture.hierarchy.files() {
        let reply = fixture.unix().get(&format!("/v1/groups/t/alice/{}", file.name));
        match alice.read_file(&file.name) {
            Some(text) => {
                assert_eq!((reply.status, reply.text()), (200, text.as_str()), "{}", file.name);
                assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
            }
            None => assert_eq!((reply.status, reply.code().as_str()), (405, "file_is_write_only")),
        }
    }
    assert_eq!(
        fixture.unix().get("/v1/groups/t/memory.max").text(),
        "max\n",
        "the file, not the group of this name"
    );
    assert_eq!(fixture.unix().get("/v1/groups/memory.max").text(), "max\n", "the root's");
}

#[test]
fn metrics_are_the_snapshot_in_both_formats() {
    let fixture = Fixture::new();
    let _charges = fill(&fixture);
    let open = fixture.unix().get("/metrics");
    assert_eq!(
        open.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(open.text().ends_with("# EOF\n"));
    let plain = fixture.unix().with("accept", "text/plain").get("/metrics");
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for text in [open.text(), plain.text()] {
        for line in [
            "memgroup_memory_usage_bytes{id=\"/t\"} 4188",
            "memgroup_memory_usage_bytes{id=\"/t/alice\"} 4096",
            "memgroup_memory_usage_bytes{id=\"/t/bob 100%\"} 77",
            "memgroup_memory_max_bytes{id=\"/t/alice\"} 5000",
            "memgroup_memory_refusals_total{id=\"/t/alice\"} 1",
            "memgroup_memory_events_total{id=\"/t/alice\",event=\"max\"} 1",
            "memgroup_memory_events_total{id=\"/\",event=\"max\"} 1",
            "memgroup_groups{state=\"online\"} 6",
            "memgroup_groups{state=\"dying\"} 1",
            "memgroup_dying_bytes 9",
            "memgroup_build_info{version=\"0.1.0\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(!text.contains("/gone"), "a dying group has no series");
    }
}

#[test]
fn metrics_show_the_largest_groups_and_the_sum_of_the_others() {
    let fixture = Fixture::with(|serve| serve.metrics_groups(3));
    let mut charges = Vec::new();
    for (number, bytes) in [1_u64 << 30, 1 << 40, 7, 8, 1 << 20].into_iter().enumerate() {
        let group = fixture.hierarchy.create(&format!("/g{number}")).unwrap();
        charges.push(group.try_charge(bytes).unwrap());
        group.set_max(bytes).unwrap();
        group.try_charge(1).unwrap_err();
    }
    let reply = fixture.unix().get("/metrics");
    let ids: Vec<&str> = reply
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix("memgroup_memory_refusals_total{id=\""))
        .collect();
    assert_eq!(ids, ["/\"} 0", "/g0\"} 1", "/g1\"} 1", "other\"} 3"]);
    assert!(reply.text().contains("memgroup_groups_shown{shown=\"each\"} 3\n"), "{}", reply.text());
    assert!(reply.text().contains("memgroup_groups_shown{shown=\"other\"} 4\n"));
    assert!(
        !reply.text().contains("memgroup_memory_max_bytes{id=\"other\"}"),
        "a sum of limits means nothing"
    );
}

#[test]
fn registered_statistics_have_series_with_names_of_their_own() {
    use memgroup::{Stat, Subsystem};
    const ODD: Subsystem = Subsystem {
        name: "odd.cache",
        stats: &[Stat::count("a-b"), Stat::count("a.b"), Stat::gauge("held"), Stat::time("busy_usec")],
    };
    let fixture = Fixture::new();
    let odd = fixture.hierarchy.register(ODD).unwrap();
    let group = fixture.hierarchy.create("/t").unwrap();
    odd.add(&group, ODD.key("a-b"), 3);
    odd.add(&group, ODD.key("a.b"), 4);
    odd.add(&group, ODD.key("held"), 5);
    odd.add_time(&group, ODD.key("busy_usec"), std::time::Duration::from_millis(1500));
    let reply = fixture.unix().get("/metrics");
    for line in [
        "memgroup_stat_odd_cache_a_b_total{id=\"/\"} 3",
        "memgroup_stat_odd_cache_a_b_2_total{id=\"/t\"} 4",
        "memgroup_stat_odd_cache_held{id=\"/t\"} 5",
        "memgroup_stat_odd_cache_busy_seconds_total{id=\"/t\"} 1.5",
    ] {
        assert!(reply.text().lines().any(|found| found == line), "{line}");
    }
    assert_eq!(
        fixture.unix().get("/v1/groups/t/odd.cache.stat").text(),
        group.read_file("odd.cache.stat").unwrap()
    );
}

#[test]
fn an_answer_without_memory_is_refused_and_nothing_stays() {
    let fixture = Fixture::with(|serve| serve.max_bytes(4 << 20).history_groups(0).connections(8));
    // Their table takes memory too.
    for number in 0..3000 {
        fixture.hierarchy.create(&format!("/{number}")).unwrap();
    }
    for path in ["/v1/tree?limit=3000", "/metrics", "/v1/groups?limit=3000"] {
        let reply = fixture.unix().get(path);
        assert_eq!((reply.status, reply.code().as_str()), (503, "no_memory"), "{path}");
        assert_eq!(
            (reply.header("retry-after"), &reply.json()["group"]),
            (Some("1"), &json!("/memgroup-serve"))
        );
        assert!(reply.text().contains("or raise that group's memory.max"), "{}", reply.text());
    }
    assert_eq!(fixture.unix().get("/v1/groups/7/memory.max").text(), "max\n", "a small one has room");
    let some = fixture.unix().get("/v1/tree").json();
    assert_eq!(some["groups"].as_array().unwrap().len() as u64 + some["left_out"].as_u64().unwrap(), 3002);
    fixture.hierarchy.lookup("/memgroup-serve").unwrap().set_max(64 << 20).unwrap();
    assert_eq!(fixture.unix().get("/v1/tree").json()["groups"].as_array().unwrap().len(), 3002);
}

#[test]
fn a_full_tree_can_be_looked_at_and_mended() {
    let fixture = Fixture::new();
    let hierarchy = &fixture.hierarchy;
    let hog = hierarchy.create("/hog").unwrap();
    hierarchy.root().set_max(hierarchy.root().usage() + 1000).unwrap();
    let mut held = Vec::new();
    while let Ok(charge) = hog.try_charge(100) {
        held.push(charge);
    }
    assert_eq!(fixture.unix().get("/v1/groups/hog/memory.current").status, 200);
    assert_eq!(fixture.unix().get("/v1/groups/hog").json()["groups"][0]["path"], "/hog");
    assert_eq!(fixture.unix().send("PUT", "/v1/groups/memory.max", b"1G").status, 204);
    assert_eq!(hog.try_charge(100).unwrap().bytes(), 100);
}

#[test]
fn waits_are_shown_with_what_they_wait_for() {
    let fixture = Fixture::new();
    let tenant = fixture.hierarchy.create("/t").unwrap();
    let child = tenant.create("x").unwrap();
    tenant.set_max(1000).unwrap();
    let held = tenant.try_charge(1000).unwrap();
    assert_eq!(fixture.unix().get("/v1/waits").json(), json!([]));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| child.charge_until(600, memgroup::Deadline::NEVER));
        while tenant.waiters().now == 0 {
            std::thread::yield_now();
        }
        let waits = fixture.unix().get("/v1/waits").json();
        let of = |key: &str| waits[0][key].clone();
        assert_eq!(
            [of("group"), of("at"), of("kind"), of("bytes")],
            [json!("/t/x"), json!("/t"), json!("charge"), json!(600)]
        );
        assert!(waits[0]["text"].as_str().unwrap().starts_with("/t/x has waited "), "{waits}");
        drop(held);
        drop(waiting.join().unwrap().unwrap());
    });
}

#[test]
fn history_grows_by_a_sample_each_second() {
    let fixture = Fixture::new();
    let tenant = fixture.hierarchy.create("/a b").unwrap();
    let _charge = tenant.try_charge(100).unwrap();
    let history = loop {
        let reply = fixture.unix().get("/v1/history?group=/a%20b");
        if reply.status == 200 && reply.json()["times_unix_ms"].as_array().unwrap().len() >= 2 {
            break reply.json();
        }
        std::thread::yield_now();
    };
    assert_eq!(history["groups"].as_array().unwrap().len(), 1);
    let usage = history["groups"][0]["usage_bytes"].as_array().unwrap();
    assert_eq!(usage.last(), Some(&json!(100)));
    let all = fixture.unix().get("/v1/history").json();
    let paths: Vec<&str> =
        all["groups"].as_array().unwrap().iter().map(|group| group["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/", "/a b", "/memgroup-serve"]);
    assert_eq!(fixture.unix().get("/v1/history?groups=/x").code(), "invalid_query");
}

#[test]
fn tells_a_group_without_a_history_from_one_that_does_not_exist() {
    let fixture = Fixture::with(|serve| serve.history_groups(0));
    let code = |group: &str| fixture.unix().get(&format!("/v1/history?group={group}")).code();
    assert_eq!(code("/memgroup-serve"), "no_history");
    assert_eq!(code("/memgroup-serve&group=/x"), "no_such_group");
    assert_eq!(code("x"), "invalid_path");
}

#[test]
fn the_page_loads_nothing_from_elsewhere() {
    let fixture = Fixture::new();
    let files = ROUTES.iter().filter(|route| route.right == Right::Nothing).map(|route| route.path);
    for path in files {
        let kind = match path {
            "/" => "text/html",
            "/style.css" => "text/css",
            _ => "text/javascript",
        };
        let reply = fixture.tcp().get(path);
        assert!(reply.header("content-type").unwrap().starts_with(kind), "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        let is_own = |rule: &&str| {
            rule.ends_with(" 'none'") || rule.ends_with(" 'self'") || *rule == "img-src 'self' data:"
        };
        assert_eq!(policy.split("; ").find(|rule| !is_own(rule)), None, "{policy}");
        for rule in ["default-src", "base-uri", "form-action", "frame-ancestors"] {
            assert!(policy.split("; ").any(|found| found == format!("{rule} 'none'")), "{rule} in {policy}");
        }
        assert!(policy.contains("; script-src 'self';"), "{policy}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert!(!reply.text().contains("://"), "{path} names another site");
        let head = fixture.tcp().send("HEAD", path, b"");
        assert_eq!((head.status, head.header("content-length")), (200, reply.header("content-length")));
    }
}

#[test]
fn many_waits_are_charged_beside_their_text() {
    use std::pin::Pin;
    use std::task::{Context, Waker};
    const WAITS: usize = 2000;
    let fixture = Fixture::with(|serve| serve.history_groups(0));
    let group = fixture.hierarchy.create(&format!("/{}", "x".repeat(200))).unwrap();
    let own = fixture.hierarchy.lookup("/memgroup-serve").unwrap();
    let reclaimer = fixture.hierarchy.reclaimer();
    let stop = reclaimer.stop_handle();
    std::thread::scope(|scope| {
        scope.spawn(|| reclaimer.run());
        let mut tasks: Vec<_> = (0..WAITS).map(|_| group.events_after(&group.events())).collect();
        let mut context = Context::from_waker(Waker::noop());
        assert!(tasks.iter_mut().all(|task| Pin::new(task).poll(&mut context).is_pending()));
        let reply = fixture.unix().get("/v1/waits");
        assert_eq!(reply.json().as_array().unwrap().len(), WAITS);
        // The text alone has room.
        let limit = own.usage() + reply.body.len() as u64 + (128 << 10);
        own.set_max(limit).unwrap();
        assert_eq!(fixture.unix().get("/v1/waits").code(), "no_memory");
        own.set_max(limit + 2 * reply.body.len() as u64).unwrap();
        assert_eq!(fixture.unix().get("/v1/waits").json().as_array().unwrap().len(), WAITS);
        drop(tasks);
        stop.stop();
    });
}

#[test]
fn names_break_no_answer() {
    let fixture = Fixture::new();
    let client = fixture.unix();
    let names = [
        "\",\"groups\":[{},\"",
        "a\\\"b\\",
        "<script>&lt;<!--",
        "\u{2028}data: x\u{2029}",
        "%0d%0ax: y %s {} '",
        "\u{fffd}\u{10ffff}",
    ];
    for name in names {
        let (path, url) =
            (format!("/{name}"), name.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>());
        assert_eq!(client.send("POST", &format!("/v1/groups/{url}"), b"").status, 201, "{name:?}");
        let group = fixture.hierarchy.lookup(&path).unwrap();
        group.set_max(4096).unwrap();
        group.try_charge(4097).unwrap_err();
        let paths = |tree: Value| -> Vec<Value> {
            tree["groups"].as_array().unwrap().iter().map(|group| group["path"].clone()).collect()
        };
        assert!(paths(client.get("/v1/tree").json()).contains(&json!(path)));
        assert_eq!(paths(client.get(&format!("/v1/groups/{url}/")).json()), [json!(path)]);
        let table = client.get("/v1/table").json();
        assert!(table["groups"]["name"].as_array().unwrap().contains(&json!(name)));
        for (reply, code) in [
            (client.send("POST", &format!("/v1/groups/{url}"), b""), "group_exists"),
            (client.send("PUT", &format!("/v1/groups/{url}/memory.max"), b"lots"), "invalid_text"),
            (client.send("PUT", &format!("/v1/groups/{url}/memory.peak"), b"1"), "file_is_read_only"),
            (client.send("POST", &format!("/v1/groups/{url}"), name.as_bytes()), "invalid_settings"),
            (client.send("DELETE", "/v1/groups/none", b""), "no_such_group"),
            (client.get(&format!("/v1/groups/{url}/none")), "no_such_group"),
            (client.get(&format!("/v1/history?group=/none{url}")), "no_such_group"),
            (client.get(&format!("/v1/history?group={url}")), "invalid_path"),
            (client.get(&format!("/v1/table?{url}=1")), "invalid_query"),
            // Control characters are in no name, and leave no trace in an answer.
            (client.send("POST", &format!("/v1/groups/{url}%0d%0a%1b%00"), b""), "invalid_name"),
        ] {
            assert_eq!(reply.code(), code, "{}", reply.text());
            assert!(!reply.text().contains(char::is_control), "{}", reply.text());
            assert_eq!(reply.header("x"), None);
        }
        let metrics = client.get("/metrics");
        let escaped = path.replace('\\', "\\\\").replace('"', "\\\"");
        let line = format!("memgroup_memory_max_bytes{{id=\"{escaped}\"}} 4096");
        assert_eq!(metrics.text().lines().filter(|other| **other == line).count(), 1, "{line}");
    }
}
