//! Control: files that are written, groups that are made and removed.

use proptest::prelude::*;
use serde_json::json;

use crate::fixture::Fixture;

#[test]
fn a_written_file_arrives_in_the_engine() {
    let fixture = Fixture::new();
    let group = fixture.hierarchy.create("/t").unwrap();
    for (file, text) in [
        ("memory.max", "64M\n"),
        ("memory.high", "32M"),
        ("memory.low", "1M"),
        ("memory.min", " 4096 "),
        ("memory.oom.group", "1"),
        ("memory.share", "8"),
        ("memgroup.oom_score", "-5"),
        ("memgroup.weight", "7"),
        ("memgroup.enforced", "0"),
        ("memgroup.reserve_min", "1"),
        ("cgroup.max.descendants", "1"),
        ("cgroup.max.depth", "1"),
    ] {
        let reply = fixture.unix().send("PUT", &format!("/v1/groups/t/{file}"), text.as_bytes());
        assert_eq!((reply.status, reply.body.len()), (204, 0), "{file}");
        let read = fixture.unix().get(&format!("/v1/groups/t/{file}"));
        assert_eq!(read.text(), group.read_file(file).unwrap(), "{file}");
    }
    assert_eq!((group.max(), group.high(), group.weight()), (Some(64 << 20), Some(32 << 20), 7));
    assert!(!group.is_enforced() && group.oom_group());
    assert_eq!((group.max_descendants(), group.max_depth()), (Some(1), Some(1)));
    let post = |path: &str| fixture.unix().send("POST", path, b"");
    assert_eq!(post("/v1/groups/t/one").status, 201);
    for (path, status, code) in
        [("/v1/groups/t/two", 507, "too_many_groups"), ("/v1/groups/t/one/deep", 507, "too_many_groups")]
    {
        let reply = post(path);
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{}", reply.text());
        assert!(reply.json()["detail"].as_str().unwrap().contains("set_max_descendants"));
    }
    group.set_max_descendants(None);
    let reply = post("/v1/groups/t/one/deep");
    assert_eq!((reply.status, reply.code().as_str()), (400, "group_too_deep"));
}

#[test]
fn errors_name_the_group_the_file_and_the_allowed_values() {
    let fixture = Fixture::new();
    fixture.hierarchy.create("/t").unwrap();
    for file in fixture.hierarchy.files() {
        let reply = fixture.unix().send("PUT", &format!("/v1/groups/t/{}", file.name), b"nonsense");
        let problem = reply.json();
        assert_eq!((&problem["group"], &problem["file"]), (&json!("/t"), &json!(file.name)), "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with(&format!("failed to write {} of group /t: ", file.name)), "{detail}");
        if !file.writable {
            assert_eq!((reply.status, reply.code().as_str()), (405, "file_is_read_only"));
            assert_eq!(reply.header("allow"), Some("GET"), "methods, and no names of files");
            assert!(problem["allowed"].as_array().unwrap().contains(&json!("memory.max")));
        } else if !file.name.starts_with("cgroup.") || file.name.starts_with("cgroup.max.") {
            assert_eq!((reply.status, reply.code().as_str()), (400, "invalid_text"));
            let allowed = ["or max", "write 1 for yes, or 0 for no", "no whole number from", "powers of two"];
            assert!(allowed.iter().any(|words| detail.contains(words)), "{detail}");
        }
    }
    let misspelt = fixture.unix().get("/v1/groups/t/memory.mox").json();
    let detail = "group /t/memory.mox does not exist; /v1/tree lists all groups, and a group has no file \"memory.mox\"";
    assert_eq!((&misspelt["detail"], &misspelt["code"]), (&json!(detail), &json!("no_such_group")));
    assert!(misspelt["allowed"].as_array().unwrap().contains(&json!("memory.max")));
    let unknown = fixture.unix().send("PUT", "/v1/groups/t/memory.swap.max", b"1");
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "no_such_file"));
    assert!(unknown.json()["allowed"].as_array().unwrap().contains(&json!("memory.high")));
    let gone = fixture.unix().send("PUT", "/v1/groups/gone/memory.max", b"1");
    assert_eq!(
        (gone.status, gone.code(), &gone.json()["group"]),
        (404, "no_such_group".into(), &json!("/gone"))
    );
    let closed = fixture.unix().send("PUT", "/v1/groups/t/memory.max/", b"1");
    assert_eq!((closed.status, closed.code().as_str()), (400, "no_file_named"));
    let bytes = fixture.unix().send("PUT", "/v1/groups/t/memory.max", b"\xff\xfe");
    assert_eq!((bytes.status, bytes.code().as_str()), (400, "invalid_text"));
    let large = fixture.unix().send("PUT", "/v1/groups/t/memory.max", &[b' '; 5000]);
    assert_eq!((large.status, large.code().as_str()), (413, "body_too_large"));
}

#[test]
fn makes_and_removes_groups() {
    let fixture = Fixture::new();
    let send = |method: &str, path: &str, body: &str| fixture.unix().send(method, path, body.as_bytes());
    assert_eq!(send("POST", "/v1/groups/t", "").status, 201);
    assert_eq!(send("POST", "/v1/groups/t/a%20b", "{\"max\": \"8M\", \"weight\": 3}").status, 201);
    let group = fixture.hierarchy.lookup("/t/a b").unwrap();
    assert_eq!((group.max(), group.weight()), (Some(8 << 20), 3));
    assert_eq!(send("POST", "/v1/groups/t/memory.max/", "").status, 201, "a name may be that of a file");
    for (path, body, status, code) in [
        ("/t", "", 409, "group_exists"),
        ("/x/y", "", 404, "no_such_group"),
        ("", "", 409, "group_is_root"),
        ("/t/..", "", 400, "invalid_name"),
        ("/t/%00", "", 400, "invalid_name"),
        ("/t/memory.max", "", 400, "names_a_file"),
        ("/t//x", "", 400, "invalid_path"),
        ("/t/%2f", "", 400, "invalid_path"),
        ("/t/n", "max=8M", 400, "invalid_settings"),
        ("/t/n", "{\"maxx\": 1}", 400, "invalid_settings"),
        ("/t/n", "{\"max\": -1}", 400, "invalid_settings"),
        ("/t/n", "{\"max\": 1} x", 400, "invalid_settings"),
        ("/t/n?recursive=true", "", 400, "invalid_query"),
    ] {
        let reply = send("POST", &format!("/v1/groups{path}"), body);
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{path} {body}: {}", reply.text());
    }
    assert!(fixture.hierarchy.lookup("/t/n").is_err());
    let exists = send("POST", "/v1/groups/t", "").json()["detail"].as_str().unwrap().to_owned();
    assert!(exists.ends_with("; PUT /v1/groups/PATH/FILE changes its settings"), "{exists}");
    let reply = send("DELETE", "/v1/groups/t", "");
    assert_eq!((reply.status, reply.code().as_str()), (409, "group_has_children"));
    assert!(reply.json()["detail"].as_str().unwrap().contains("?recursive=true"));
    assert_eq!(send("DELETE", "/v1/groups/t?recursive=perhaps", "").code(), "invalid_query");
    assert_eq!(send("DELETE", "/v1/groups/t/memory.max", "").code(), "names_a_file");
    assert_eq!(send("DELETE", "/v1/groups/t/memory.max/", "").status, 204, "the group of this name");
    assert_eq!(send("DELETE", "/v1/groups/t?recursive=true", "").status, 204);
    assert!(fixture.hierarchy.lookup("/t").is_err());
    assert_eq!(send("DELETE", "/v1/groups/t", "").code(), "no_such_group");
    assert_eq!(send("DELETE", "/v1/groups/?recursive=true", "").code(), "group_is_root");
}

#[test]
fn the_group_of_the_server_is_not_removed_and_its_limit_can_be_raised() {
    let fixture = Fixture::with(|serve| serve.control(memgroup_serve::Control::Unix).group("/ops/serve"));
    for path in ["/ops/serve", "/ops"] {
        let reply = fixture.unix().send("DELETE", &format!("/v1/groups{path}?recursive=true"), b"");
        assert_eq!((reply.status, reply.code().as_str()), (409, "own_group"), "{path}");
    }
    assert_eq!(fixture.unix().send("POST", "/v1/groups/op", b"").status, 201);
    assert_eq!(
        fixture.unix().send("DELETE", "/v1/groups/op", b"").status,
        204,
        "its name is the begin of another"
    );
    let set = |text: &[u8]| fixture.unix().send("PUT", "/v1/groups/ops/serve/memory.max", text).status;
    assert_eq!(set(b"0"), 204);
    assert_eq!(fixture.unix().get("/v1/tree").code(), "no_memory");
    assert_eq!(set(b"64M"), 204);
    assert_eq!(fixture.unix().get("/v1/tree").status, 200);
}

#[test]
fn reclaim_says_how_much_less_was_freed() {
    let fixture = Fixture::new();
    fixture.hierarchy.create("/t").unwrap();
    let reply = fixture.unix().send("PUT", "/v1/groups/t/memory.reclaim", b"1M");
    assert_eq!((reply.status, reply.code().as_str()), (409, "reclaimed_less"));
    assert!(reply.text().contains("0 of 1048576 bytes were freed"), "{}", reply.text());
}

#[test]
fn a_callback_that_hangs_stops_no_other_request() {
    use std::sync::mpsc;
    let fixture = Fixture::new();
    let group = fixture.hierarchy.create("/t").unwrap();
    let (begun, is_begun) = mpsc::channel();
    let (release, is_released) = mpsc::channel::<()>();
    group
        .on_end(move |_| {
            begun.send(()).unwrap();
            is_released.recv().unwrap();
        })
        .unwrap();
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| fixture.unix().send("DELETE", "/v1/groups/t", b""));
        is_begun.recv().unwrap();
        assert_eq!(fixture.unix().get("/v1/tree").status, 200);
        assert_eq!(fixture.unix().send("POST", "/v1/groups/u", b"").status, 201);
        release.send(()).unwrap();
        assert_eq!(hanging.join().unwrap().status, 204);
    });
}

#[test]
fn the_server_goes_on_after_a_callback_that_panics() {
    let fixture = Fixture::new();
    let group = fixture.hierarchy.create("/t").unwrap();
    // The engine catches it.
    group.on_end(|_| panic!("on purpose")).unwrap();
    assert_eq!(fixture.unix().send("DELETE", "/v1/groups/t", b"").status, 204);
    assert_eq!(fixture.unix().get("/metrics").status, 200);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_path_and_no_body_makes_the_server_fail(
        method in "GET|PUT|POST|DELETE",
        path in "(/|%|%2[fF]|%2e|%00|\\.\\.|\\.|[a-z]|memory\\.max|\\?|=|&|recursive|true){0,24}",
        body in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        use std::sync::LazyLock;
        static FIXTURE: LazyLock<Fixture> = LazyLock::new(Fixture::new);
        let reply = FIXTURE.unix().send(&method, &format!("/v1/groups/{path}"), &body);
        prop_assert!(reply.status < 500, "{} {}", reply.status, reply.text());
    }

    #[test]
    fn each_name_that_the_engine_takes_can_be_made_read_and_removed(name in "[^/\\p{C}]{1,40}") {
        use std::sync::LazyLock;
        static FIXTURE: LazyLock<Fixture> = LazyLock::new(Fixture::new);
        let url: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let reply = FIXTURE.unix().send("POST", &format!("/v1/groups/{url}"), b"");
        let is_valid = reply.status == 201;
        prop_assert_eq!(is_valid, FIXTURE.hierarchy.lookup(&format!("/{name}")).is_ok());
        if is_valid {
            let tree = FIXTURE.unix().get(&format!("/v1/groups/{url}/")).json();
            prop_assert_eq!(&tree["groups"][0]["path"], &json!(format!("/{name}")));
            prop_assert_eq!(FIXTURE.unix().send("DELETE", &format!("/v1/groups/{url}"), b"").status, 204);
        } else {
            prop_assert_eq!(reply.status, 400);
        }
    }
}
