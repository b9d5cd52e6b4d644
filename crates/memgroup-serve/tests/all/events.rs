//! Server-sent events: those that a client gets at once, and those that it gets when it comes back.

use std::time::Duration;

use memgroup::{Group, KillAnswer, KillRequest};
use serde_json::{Value, json};
use xtask::Watchdog;

use crate::client::{Client, Stream, read_chunk, read_reply};
use crate::fixture::{Fixture, READ};

/// A stream of events.
struct Events {
    stream: Box<dyn Stream>,
    text: String,
}

/// An event: its id, its kind, its data.
type Event = (String, String, Value);

impl Events {
    fn open(client: &Client, path: &str) -> Events {
        let mut stream = client.connect().unwrap();
        stream.write_all(client.head("GET", path, "").as_bytes()).unwrap();
        let reply = read_reply(&mut stream, false).unwrap();
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")));
        let mut events = Events { stream, text: String::new() };
        assert_eq!(events.block(), "retry: 2000\n: events of memgroup");
        events
    }

    fn after(client: &Client, id: &str) -> Events {
        Events::open(&client.with("last-event-id", id), "/v1/events")
    }

    /// The text up to the next empty line.
    fn block(&mut self) -> String {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                return block;
            }
            let chunk = read_chunk(&mut self.stream).unwrap().expect("the stream goes on");
            self.text += std::str::from_utf8(&chunk).unwrap();
        }
    }

    fn next(&mut self) -> Event {
        let block = loop {
            let block = self.block();
            // A comment shows that the server is alive.
            if block != ":" {
                break block;
            }
        };
        let mut lines = block.lines();
        let mut field = |name: &str| lines.next().unwrap().strip_prefix(name).unwrap().to_owned();
        let (id, kind, data) = (field("id: "), field("event: "), field("data: "));
        (id, kind, serde_json::from_str(&data).unwrap())
    }

    /// Reads until this many groups have changed, reported one by one and as sums. Returns the
    /// number of the last event.
    fn sum(&mut self, kind: &str, key: &str) -> u64 {
        let mut changed = 0;
        loop {
            let (id, told, data) = self.next();
            changed += u64::from(told == kind);
            if told == "groups_more" {
                changed += data[key].as_u64().unwrap();
            }
            if changed == MANY {
                return number(&id);
            }
        }
    }

    /// The next event of a kind.
    fn next_of(&mut self, kind: &str) -> Event {
        loop {
            let event = self.next();
            if event.1 == kind {
                return event;
            }
        }
    }
}

/// The number of events that are kept, which is more than one check reports.
const KEPT: usize = 400;

/// The number of groups that are made at once, which is more than one check reports one by one.
const MANY: u64 = 250;

/// Makes and removes many groups, and waits until all of it was reported. Returns the number of the
/// last event.
fn make_and_remove(parent: &Group, events: &mut Events) -> u64 {
    let groups: Vec<_> = (0..MANY).map(|one| parent.create(&format!("{one}")).unwrap()).collect();
    // A limit that is met makes the server check the tree at once.
    groups[0].set_max(0).unwrap();
    groups[0].try_charge(1).unwrap_err();
    events.sum("group_made", "made");
    groups.iter().for_each(|group| group.remove().unwrap());
    parent.set_max(0).unwrap();
    parent.try_charge(1).unwrap_err();
    parent.set_max(None).unwrap();
    events.sum("group_removed", "removed")
}

/// The number in an id.
fn number(id: &str) -> u64 {
    id.split_once('-').unwrap().1.parse().unwrap()
}

#[test]
fn tells_groups_made_limits_met_and_groups_removed() {
    let _watched = Watchdog::over("events of a group");
    let fixture = Fixture::new();
    let mut events = Events::open(&fixture.unix(), "/v1/events");
    let group = fixture.hierarchy.create("/t").unwrap();
    let (first, _, data) = events.next_of("group_made");
    assert_eq!((&data["group"], &data["id"]), (&json!("/t"), &json!(group.id().as_u64())));
    group.set_max(100).unwrap();
    let _charge = group.try_charge(60).unwrap();
    for _ in 0..3 {
        group.try_charge(60).unwrap_err();
    }
    let mut refused = 0;
    while refused < 3 {
        let (_, _, data) = events.next_of("limit");
        assert_eq!(
            (&data["group"], &data["usage_bytes"], &data["max_bytes"]),
            (&json!("/t"), &json!(60), &json!(100))
        );
        refused += data["refused"].as_u64().unwrap();
    }
    assert_eq!(refused, 3);
    group.remove().unwrap();
    let (last, _, data) = events.next_of("group_removed");
    assert_eq!(data["group"], json!("/t"));
    assert!(number(&last) > number(&first));
}

#[test]
fn tells_a_kill_with_victim_requester_and_time() {
    let _watched = Watchdog::over("events of a kill");
    let fixture = Fixture::new();
    let tenants = fixture.hierarchy.create("/t").unwrap();
    tenants.set_max(1000).unwrap();
    let (victim, requester) = (tenants.create("hog").unwrap(), tenants.create("alice").unwrap());
    let held = std::sync::Mutex::new(Some(victim.try_charge(1000).unwrap()));
    let hook = victim
        .set_kill_hook(move |_: &KillRequest<'_>| {
            drop(held.lock().unwrap().take());
            KillAnswer::Dying
        })
        .unwrap();
    let mut events = Events::open(&fixture.unix(), "/v1/events");
    let charge = requester.try_charge(500).unwrap();
    let kill = loop {
        let (_, _, data) = events.next_of("kill");
        if data["took_us"].is_u64() {
            break data;
        }
    };
    let of = |key: &str| kill[key].clone();
    assert_eq!(
        [of("victim"), of("requester"), of("full")],
        [json!("/t/hog"), json!("/t/alice"), json!("/t")]
    );
    assert_eq!(
        [of("usage_bytes"), of("asked_bytes"), of("outcome")],
        [json!(1000), json!(500), json!("died")]
    );
    let listed = fixture.unix().get("/v1/kills").json();
    assert_eq!((&listed[0]["victim"], &listed[0]["outcome"]), (&json!("/t/hog"), &json!("died")));
    let metrics = fixture.unix().get("/metrics");
    for line in ["memgroup_kills_total{outcome=\"died\"} 1", "memgroup_kill_duration_seconds_count 1"] {
        assert!(metrics.text().lines().any(|found| found == line), "{line}");
    }
    drop((charge, hook));
}

#[test]
fn a_client_that_comes_back_gets_all_that_it_missed_once() {
    let _watched = Watchdog::over("events after an id");
    let fixture = Fixture::new();
    let mut events = Events::open(&fixture.unix(), "/v1/events");
    fixture.hierarchy.create("/a").unwrap();
    let (id, _, _) = events.next_of("group_made");
    drop(events);
    fixture.hierarchy.create("/b").unwrap();
    let mut seen = Events::open(&fixture.unix(), "/v1/events?after=oldest");
    while seen.next_of("group_made").2["group"] != "/b" {}
    for client in [fixture.unix(), fixture.tcp().token(READ)] {
        let (next, kind, data) = Events::after(&client, &id).next();
        assert_eq!(
            (number(&next), kind.as_str(), &data["group"]),
            (number(&id) + 1, "group_made", &json!("/b"))
        );
        let path = format!("/v1/events?after={id}");
        assert_eq!(Events::open(&client, &path).next().0, next);
    }
    assert_eq!(fixture.unix().with("last-event-id", "x").get("/v1/events").code(), "invalid_id");
}

#[test]
fn a_gap_is_told() {
    let _watched = Watchdog::over("events after a gap");
    let fixture = Fixture::with(|serve| serve.events(KEPT));
    let mut events = Events::open(&fixture.unix(), "/v1/events");
    let first = fixture.hierarchy.create("/first").unwrap();
    let (id, _, _) = events.next_of("group_made");
    drop(events);
    let mut watch = Events::open(&fixture.unix(), "/v1/events");
    while make_and_remove(&first, &mut watch) <= number(&id) + KEPT as u64 {}
    let mut events = Events::after(&fixture.unix(), &id);
    let (gap, kind, data) = events.next();
    assert_eq!(kind, "gap");
    let lost = data["lost"].as_u64().unwrap();
    assert_eq!(number(&gap), number(&id) + lost, "a client that comes back goes on after the gap");
    assert_eq!(number(&events.next().0), number(&gap) + 1);
    // Ids of another server.
    let mut events = Events::after(&fixture.unix(), "1-7");
    let (_, kind, data) = events.next();
    assert_eq!((kind.as_str(), &data["lost"]), ("gap", &Value::Null));
    assert_eq!(number(&events.next().0), number(&gap) + 1);
}

#[test]
fn half_of_the_connections_may_be_streams() {
    let fixture = Fixture::with(|serve| serve.connections(8));
    let streams: Vec<_> = (0..4).map(|_| Events::open(&fixture.unix(), "/v1/events")).collect();
    let reply = fixture.unix().get("/v1/events");
    assert_eq!((reply.status, reply.code().as_str()), (503, "too_many_streams"));
    assert_eq!(fixture.unix().get("/v1/about").json()["connections"], json!(5));
    drop(streams);
    let _watched = Watchdog::over("places of streams that are given back");
    while fixture.unix().get("/v1/events").status != 200 {
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn a_stream_that_is_not_read_costs_no_memory_and_gets_a_gap() {
    let _watched = Watchdog::over("a stream that is not read");
    let times = memgroup_serve::Times { write: Duration::from_secs(3600), ..Default::default() };
    // The history of groups grows with the time that the test takes.
    let fixture = Fixture::with(|serve| serve.times(times).events(KEPT).history_groups(0));
    let mut slow = Events::open(&fixture.unix(), "/v1/events");
    let own = fixture.hierarchy.lookup("/memgroup-serve").unwrap();
    let mut fast = Events::open(&fixture.unix(), "/v1/events");
    let parent = fixture.hierarchy.create(&format!("/{}", "x".repeat(250))).unwrap();
    fast.next_of("group_made");
    let mut most = 0;
    // More than fit into the buffers between the two ends: an event has some three hundred bytes.
    while make_and_remove(&parent, &mut fast) < 2500 {
        most = most.max(own.usage());
    }
    assert!(most < 8 << 20, "{most}");
    let lost = slow.next_of("gap").2["lost"].as_u64().unwrap();
    assert!(lost > 0);
}
