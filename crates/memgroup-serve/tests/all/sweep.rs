//! A sweep over the charges of a server and of the groups that its clients make: each is refused
//! once.

use std::fs;

use memgroup::{ChargeErrorKind, Hierarchy};
use memgroup_serve::{Control, ROUTES, Serve, StartError};

use crate::client::{Client, Reply, read_reply};
use crate::fixture::{hierarchy, socket};

/// Counts a refusal. Any other error is wrong.
fn note(reply: &Reply, path: &str, refused: &mut u64) {
    if reply.status == 200 {
        return;
    }
    assert_eq!((reply.status, reply.code().as_str()), (503, "no_memory"), "{path}: {}", reply.text());
    assert!(reply.text().contains("a failure is injected"), "{path}: {}", reply.text());
    *refused += 1;
}

/// Asks for everything, and makes, uses and removes a group. Returns how many charges of answers
/// and of the group were refused.
fn scenario(client: &Client, hierarchy: &Hierarchy) -> u64 {
    let mut refused = 0;
    for route in ROUTES.iter().filter(|route| route.method == "GET" && route.path != "/v1/events") {
        let path = route.path.replace("<path>", "t").replace("<file>", "memory.max");
        note(&client.get(&path), &path, &mut refused);
    }
    let mut stream = client.connect().unwrap();
    stream
        .write_all(client.head("GET", "/v1/events?after=oldest", "connection: close\r\n").as_bytes())
        .unwrap();
    note(&read_reply(&mut stream, false).unwrap(), "/v1/events", &mut refused);
    drop(stream);
    // A control action needs no charge.
    assert_eq!(client.send("POST", "/v1/groups/t/new", b"{\"max\":4096}").status, 201);
    let group = hierarchy.lookup("/t/new").unwrap();
    for bytes in [1, 4095] {
        match group.try_charge(bytes) {
            Ok(charge) => assert_eq!(group.usage_exact(), charge.bytes()),
            Err(error) => {
                assert_eq!(error.kind(), ChargeErrorKind::Injected, "{error}");
                refused += 1;
            }
        }
    }
    drop(group);
    assert_eq!(client.send("PUT", "/v1/groups/t/new/memory.max", b"8192").status, 204);
    assert_eq!(client.send("DELETE", "/v1/groups/t/new", b"").status, 204);
    refused
}

#[test]
fn sweep_requests() {
    xtask::sweep::sweep("requests to a server", |run| {
        let (hierarchy, folder) = (hierarchy(), tempfile::tempdir().unwrap());
        for path in ["/memgroup-serve", "/t"] {
            hierarchy.create(path).unwrap();
        }
        let client = Client::unix(socket(&folder));
        let start = || {
            let serve = Serve::unix(socket(&folder)).control(Control::Unix);
            let few = serve.connections(8).events(64).history_groups(4).cpu_percent(100).niceness(0);
            memgroup_serve::start(&hierarchy, few)
        };
        let nothing_is_left = || {
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
            assert!(hierarchy.groups().iter().all(|group| group.usage_exact() == 0));
            assert_eq!(hierarchy.dying(), vec![]);
        };
        let injection = hierarchy.root().inject_failures_at(run.refused());
        let refused = match start() {
            Ok(server) => {
                let refused = scenario(&client, &hierarchy);
                server.stop();
                refused
            }
            Err(StartError::Memory(text)) => {
                assert!(text.contains("a failure is injected"), "{text}");
                1
            }
            Err(error) => panic!("{error}"),
        };
        // The server's checks of the tree make charges as well. They are repeated later.
        let charges = injection.drawn();
        assert!(refused <= injection.failed(), "{refused} of {}", injection.failed());
        assert_eq!(injection.failed() > 0, run.refuses_any_of(charges));
        drop(injection);
        nothing_is_left();
        let server = start().unwrap();
        assert_eq!(scenario(&client, &hierarchy), 0);
        server.stop();
        nothing_is_left();
        charges
    });
}
