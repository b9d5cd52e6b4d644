//! As many groups as a hierarchy may have by default, and a server with its default settings: every
//! route answers, within the server's own limit.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use memgroup::{Config, Hierarchy};
use memgroup_serve::{Control, ROUTES, Serve};
use serde_json::Value;
use xtask::Watchdog;

use crate::client::{Client, Reply, read_reply};
use crate::fixture::socket;

/// A client whose requests are counted: the progress of the test.
struct Counted(Client, Arc<AtomicU64>);

impl Counted {
    fn send(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        // ORDERING: Relaxed; a count.
        self.1.fetch_add(1, Relaxed);
        self.0.send(method, path, body)
    }

    fn get(&self, path: &str) -> Reply {
        self.send("GET", path, b"")
    }
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn each_route_answers_beside_as_many_groups_as_there_may_be() {
    let requests = Arc::new(AtomicU64::new(0));
    // ORDERING: Relaxed; a count.
    let progress = {
        let requests = Arc::clone(&requests);
        move || requests.load(Relaxed)
    };
    let _watched = Watchdog::new(progress, || "answers about 65,536 groups".to_owned());
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let tenant = hierarchy.create("/tenant").unwrap();
    let victim = hierarchy.create("/victim").unwrap();
    let large = victim.create("large").unwrap();
    let _charge = large.try_charge(1 << 30).unwrap();
    let mut number = 0;
    while tenant.create(&format!("request-{number}")).is_ok() {
        number += 1;
    }
    tenant.child("request-0").unwrap().remove().unwrap();
    // This test is not about its share of a CPU.
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::unix(socket(&folder)).control(Control::Unix).cpu_percent(100);
    let server = memgroup_serve::start(&hierarchy, serve).unwrap();
    let client = Counted(Client::unix(server.socket().unwrap()), requests);
    let own = hierarchy.lookup("/memgroup-serve").unwrap();
    let all = hierarchy.groups().len();
    assert_eq!(all, 65_536, "the default of groups_max");
    while client.get("/v1/about").json()["groups"] != all {
        std::thread::yield_now();
    }
    assert_eq!(client.get("/v1/about").json()["groups_without_events"], 0);

    for route in ROUTES.iter().filter(|route| route.method == "GET") {
        let path = route.path.replace("<path>", "tenant").replace("<file>", "memory.max");
        let reply = if path == "/v1/events" {
            let mut stream = client.0.connect().unwrap();
            stream.write_all(client.0.head("GET", &path, "").as_bytes()).unwrap();
            read_reply(&mut stream, true).unwrap()
        } else {
            client.get(&path)
        };
        assert_eq!(reply.status, 200, "{path}: {}", String::from_utf8_lossy(&reply.body));
    }
    let listed = |answer: &Value, groups: &str| answer[groups].as_array().unwrap().len();
    for path in ["/v1/tree", "/v1/groups/"] {
        let tree = client.get(path).json();
        let left_out = tree["left_out"].as_u64().unwrap() as usize;
        assert_eq!((listed(&tree, "groups") + left_out, left_out > 0), (all, true), "{path}");
        let paths: Vec<&Value> =
            tree["groups"].as_array().unwrap().iter().map(|group| &group["path"]).collect();
        assert!(["/", "/victim", "/victim/large"].iter().all(|path| paths.contains(&&Value::from(*path))));
        assert_eq!(tree["groups"][0]["descendants"], all - 1);
    }
    let table = client.get("/v1/table").json();
    assert_eq!(listed(&table, "usage_bytes") + table["left_out"].as_u64().unwrap() as usize, all);
    let three = client.get("/v1/tree?limit=3").json();
    assert_eq!((listed(&three, "groups"), &three["left_out"]), (3, &Value::from(all - 3)));
    let metrics = client.get("/metrics");
    assert!(metrics.text().contains("memgroup_memory_usage_bytes{id=\"/victim/large\"} 1073741824\n"));
    assert!(metrics.text().contains("memgroup_groups_shown{shown=\"each\"} 1000\n"));
    assert!(metrics.text().contains(&format!("memgroup_groups_shown{{shown=\"other\"}} {}\n", all - 1000)));

    assert_eq!(client.send("PUT", "/v1/groups/tenant/memory.max", b"1").status, 204);
    // The spare places are for others.
    assert_eq!(client.send("POST", "/v1/groups/tenant/one-more", b"").code(), "too_many_groups");
    assert_eq!(client.send("DELETE", "/v1/groups/tenant?recursive=true", b"").status, 204);
    assert_eq!(client.send("POST", "/v1/groups/one-more", b"").status, 201);
    assert!(own.peak() <= own.max().unwrap(), "{} of {:?}", own.peak(), own.max());
    server.stop();
}

#[test]
fn a_limit_is_a_number_of_groups() {
    let fixture = crate::fixture::Fixture::new();
    for (number, bytes) in [10, 30, 20].into_iter().enumerate() {
        fixture.hierarchy.create(&format!("/{number}")).unwrap().charge_forced(bytes).unwrap().into_parts();
    }
    // The server's own group is the largest.
    let paths = |answer: Value| -> Vec<Value> {
        answer["groups"].as_array().unwrap().iter().map(|group| group["path"].clone()).collect()
    };
    let tree = |limit: &str| fixture.unix().get(&format!("/v1/tree?limit={limit}"));
    assert_eq!(paths(tree("3").json()), ["/", "/1", "/memgroup-serve"]);
    assert_eq!(tree("3").json()["left_out"], 2);
    assert_eq!((paths(tree("99").json()).len(), tree("99").json()["left_out"] == 0), (5, true));
    assert_eq!(paths(fixture.unix().get("/v1/groups/1?limit=3").json()), ["/1"]);
    let table = fixture.unix().get("/v1/table?limit=2&known=x").json();
    assert_eq!(
        (&table["groups"]["name"], &table["left_out"]),
        (&serde_json::json!(["", "memgroup-serve"]), &3.into())
    );
    for wrong in ["0", "", "-1", "x", "99999999999999999999999"] {
        assert_eq!((tree(wrong).status, tree(wrong).code().as_str()), (400, "invalid_query"), "{wrong:?}");
    }
}
