//! All clients at once, for as long as `MEMGROUP_SOAK_SECONDS` says: nothing is left of them.
//!
//! | client | comes and goes |
//! |---|---|
//! | scrapes, trees, tables, histories, files by HTTP | with each request |
//! | streams of events | each reads a while |
//! | rude clients | as in `rude_cost/rude.rs` of the server's examples |
//! | `memgroup-top` in a pipe and on a terminal, recorders | each is killed; the recording is read |
//! | users of the mount: `cat`, `echo`, `mkdir`, `rmdir` | with each round |
//! | readers of the mount that wait in `poll` | each is killed |
//! | groups made, limited and removed by HTTP | with each round |

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::tempdir;

#[expect(dead_code, reason = "the example also has clients that flood the server")]
#[path = "../../../memgroup-serve/examples/rude_cost/rude.rs"]
mod rude;

use self::rude::{HOLDING, Target};
use crate::client::{Client, read_reply};
use crate::program::{Program, READ, is_the_program};
use crate::visitors::{self, Terminal, replay};

const TEST: &str = "soak::nothing_is_left_of_any_client";

/// The most bytes by which the median of the last quarter may exceed that of the third. The server
/// answers a thousand requests a second. So in ten minutes a loss of 14 bytes in each answer
/// exceeds it. The allocator's own free memory goes up and down by less.
const GROWTH_MAX: u64 = 2 << 20;
/// In a shorter run, buffers and tables fill until its end.
const GROWN_SECONDS: u64 = 300;

/// The rounds of each kind of client.
type Rounds = Mutex<BTreeMap<&'static str, u64>>;

/// The parts of a program that clients know.
struct Place<'p> {
    folder: &'p Path,
    unix: Client,
    tcp: Client,
    target: Target,
    is_over: AtomicBool,
    rounds: Rounds,
}

impl Place<'_> {
    /// Repeats a client's act to the end.
    fn repeat(&self, name: &'static str, pause: Duration, mut act: impl FnMut(u64)) {
        let mut round = 0;
        // ORDERING: Relaxed; the thread is joined afterwards.
        while !self.is_over.load(Ordering::Relaxed) {
            act(round);
            round += 1;
            thread::sleep(pause);
        }
        *self.rounds.lock().unwrap().entry(name).or_default() += round;
    }
}

/// Asks, and returns the status. `None` if the server cut the connection for another client, as it
/// may before it has read the request.
fn ask(client: &Client, method: &str, path: &str, body: &str) -> Option<u16> {
    let status = client.try_send(method, path, body.as_bytes()).ok()?.status;
    assert!([200, 201, 204, 404, 408, 409, 503].contains(&status), "{method} {path}: {status}");
    Some(status)
}

fn ask_for_all(place: &Place<'_>, round: u64) {
    let paths = [
        "/metrics",
        "/v1/tree",
        "/v1/table",
        "/v1/history",
        "/v1/waits",
        "/v1/groups/tenants/bob/memory.stat",
        "/",
    ];
    let client = if round.is_multiple_of(2) { &place.unix } else { &place.tcp };
    ask(client, "GET", paths[round as usize % paths.len()], "");
}

fn read_events(place: &Place<'_>) {
    let Ok(mut stream) = place.unix.connect() else { return };
    let _sent = stream.write_all(place.unix.head("GET", "/v1/events?after=oldest", "").as_bytes());
    if read_reply(&mut stream, true).is_ok_and(|reply| reply.status == 200) {
        // The tenants' events come ten times a second.
        for _ in 0..20 {
            let _events = stream.read(&mut [0; 4096]);
        }
    }
}

fn make_and_remove(place: &Place<'_>, round: u64) {
    let path = format!("/v1/groups/http-{:03}", round % 1000);
    ask(&place.unix, "POST", &path, r#"{"max":"8M"}"#);
    ask(&place.unix, "PUT", &format!("{path}/memory.max"), "4M");
    // Again if the server has cut the connection, or is busy.
    while !matches!(ask(&place.unix, "DELETE", &path, ""), Some(204 | 404)) {}
}

fn use_the_mount(groups: &Path, round: u64) {
    let directory = groups.join(format!("user-{:03}", round % 1000));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("memory.max"), "1M").unwrap();
    assert_eq!(fs::read_to_string(directory.join("memory.max")).unwrap(), "1048576\n");
    for file in ["memory.current", "memory.stat", "memory.pressure", "memory.events", "cgroup.stat"] {
        fs::read_to_string(groups.join("tenants/alice").join(file)).unwrap();
    }
    assert!(fs::read_dir(groups).unwrap().count() > 10);
    fs::remove_dir(&directory).unwrap();
}

fn record_and_kill(place: &Place<'_>, round: u64) {
    let file = place.folder.join(format!("{round}.memrec"));
    let mut recorder = visitors::recorder(&file, &place.target.unix);
    if visitors::has_begun(&mut recorder, &file) {
        thread::sleep(Duration::from_millis(round % 7 * 100));
        drop(recorder);
        // It can be read, whatever frame the recorder was writing.
        replay(&file);
    }
    _ = fs::remove_file(&file);
}

/// Runs all clients for some time, and returns the resident bytes of the program over that time.
fn run_clients(
    program: &mut Program,
    folder: &Path,
    time: Duration,
) -> (Vec<u64>, BTreeMap<&'static str, u64>) {
    let target = Target { unix: program.socket(), tcp: program.address, token: READ.to_owned() };
    let (unix, tcp) = (program.unix(), program.tcp());
    let place =
        Place { folder, unix, tcp, target, is_over: AtomicBool::new(false), rounds: Rounds::default() };
    let (place, groups) = (&place, program.groups());
    let (is_mounted, groups) = (program.is_mounted, &groups);
    program.order("work");
    let mut resident = Vec::new();
    thread::scope(|threads| {
        let each = Duration::from_millis;
        threads.spawn(move || place.repeat("requests", each(10), |round| ask_for_all(place, round)));
        threads.spawn(move || place.repeat("streams of events", each(10), |_| read_events(place)));
        threads
            .spawn(move || place.repeat("groups by HTTP", each(20), |round| make_and_remove(place, round)));
        threads.spawn(move || place.repeat("recorders", each(10), |round| record_and_kill(place, round)));
        let socket = &place.target.unix;
        threads.spawn(move || {
            place.repeat("top", each(10), |round| {
                let (top, terminal) = (visitors::top_that_is_not_read(socket), Terminal::start(socket));
                thread::sleep(each(round % 11 * 100));
                drop(top);
                terminal.kill();
            });
        });
        if is_mounted {
            threads.spawn(move || {
                place.repeat("rounds in the mount", each(10), |round| use_the_mount(groups, round))
            });
            threads.spawn(move || {
                place.repeat("readers of the mount", each(10), |_| {
                    drop(visitors::reader(TEST, &groups.join("tenants/bob")));
                });
            });
        }
        for (name, act) in HOLDING {
            threads.spawn(move || place.repeat(name, Duration::ZERO, |_| act(&place.target)));
        }
        let began = Instant::now();
        while began.elapsed() < time {
            thread::sleep(time / 400);
            let pages: u64 = program.proc("statm").split(' ').nth(1).unwrap().parse().unwrap();
            resident.push(pages * rustix::param::page_size() as u64);
        }
        // ORDERING: Relaxed; the threads are joined afterwards.
        place.is_over.store(true, Ordering::Relaxed);
    });
    program.order("rest");
    let rounds = place.rounds.lock().unwrap().clone();
    (resident, rounds)
}

fn median(values: &[u64]) -> u64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    values[values.len() / 2]
}

#[test]
#[ignore = "goes on for as long as MEMGROUP_SOAK_SECONDS says"]
fn nothing_is_left_of_any_client() {
    if is_the_program() || visitors::is_a_reader() {
        return;
    }
    let seconds = std::env::var("MEMGROUP_SOAK_SECONDS").map_or(60, |text| text.parse().unwrap());
    let folder = tempdir().unwrap();
    let mut program = Program::start(TEST, folder.path());
    // The first clients fill buffers and tables.
    run_clients(&mut program, folder.path(), Duration::from_secs(seconds / 10));
    let before = program.settled();
    let (resident, rounds) = run_clients(&mut program, folder.path(), Duration::from_secs(seconds));
    program.wait_until_held(&before);

    let quarters: Vec<u64> = resident.chunks(resident.len().div_ceil(4)).map(median).collect();
    println!("{seconds} s; rounds: {rounds:?}");
    println!("before and after: {before:?}");
    println!("median of resident bytes in each quarter: {quarters:?}");
    assert!(rounds.values().all(|&rounds| rounds > 0), "{rounds:?}");
    if seconds >= GROWN_SECONDS {
        assert!(quarters[3] <= quarters[2] + GROWTH_MAX, "{quarters:?}");
    }
}
