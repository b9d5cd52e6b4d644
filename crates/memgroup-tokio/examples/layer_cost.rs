//! The processor time of a small request: an axum server without groups, with the layer, and with
//! the layer and the counting allocator.
//!
//! `cargo run --release -p memgroup-tokio --example layer_cost [requests of a run] [rounds]` starts
//! each server in a process of its own, by turns. A server has one thread. Its time is the kernel's
//! count of nanoseconds for that thread, system calls included. So other programs on the machine
//! disturb it only by the caches. `layer_cost serve both 20000` is one run, for a profiler.

#![allow(unsafe_code)] // an allocator that is chosen at the start

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use memgroup::{Config, Hierarchy};
use memgroup_alloc::Allocator;
use memgroup_tokio::{ReclaimerThread, RequestGroups};

/// The last one also has the time in scopes sampled, and no pressure.
const MODES: [&str; 4] = ["plain", "layer", "both", "sampled"];
const CONNECTIONS: usize = 8;
/// Words of an answer: a plain request takes about 10 us with them.
const WORDS: usize = 40;

/// The counting allocator where the mode is `both` or `sampled`, and the system's elsewhere.
struct Chosen {
    counting: Allocator,
    /// 0 until the first block, then 1 or 2.
    choice: AtomicU8,
}

#[global_allocator]
static ALLOCATOR: Chosen = Chosen { counting: Allocator::system(), choice: AtomicU8::new(0) };

impl Chosen {
    fn get(&self) -> &dyn GlobalAlloc {
        // ORDERING: Relaxed; every thread finds the same value.
        let counts = match self.choice.load(Ordering::Relaxed) {
            0 => self.choose(),
            choice => choice == 2,
        };
        if counts { &self.counting } else { &System }
    }

    #[cold]
    fn choose(&self) -> bool {
        // SAFETY: the name is a C string, and no thread changes the environment: the program never
        // does.
        let value = unsafe { libc::getenv(c"LAYER_COST_COUNTS".as_ptr()) };
        // ORDERING: Relaxed; as in `get`.
        self.choice.store(if value.is_null() { 1 } else { 2 }, Ordering::Relaxed);
        !value.is_null()
    }
}

// SAFETY: each call goes to one of two allocators, to the same one in the whole life of the
// process.
unsafe impl GlobalAlloc for Chosen {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the inner allocator's condition.
        unsafe { self.get().alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`, and the block came from the same allocator.
        unsafe { self.get().dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { self.get().alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`.
        unsafe { self.get().realloc(at, layout, size) }
    }
}

/// A handler with some blocks of its own.
async fn words(Path(count): Path<usize>) -> String {
    let mut words: Vec<String> = (0..count).map(|number| format!("word-{}", number * 7 % 10)).collect();
    words.sort_unstable();
    words.join(" ")
}

fn app(mode: &str, hierarchy: &Hierarchy) -> Router {
    let app = Router::new().route("/words/{count}", get(words));
    if mode == "plain" {
        return app;
    }
    let tenants = hierarchy.create("/tenants").expect("the name is free");
    let alice = tenants.create("alice").expect("the name is free");
    tenants.set_max(512 << 20).expect("it is in range");
    alice.set_max(64 << 20).expect("it is in range");
    let layer = RequestGroups::new(move |head: &Parts| {
        let name = head.headers.get("x-tenant").and_then(|name| name.to_str().ok());
        tenants.child(name.ok_or(StatusCode::UNAUTHORIZED)?).ok_or(StatusCode::FORBIDDEN)
    });
    app.layer(layer.request_max(8 << 20).body_max(1 << 20).admission(16 << 10))
}

/// Nanoseconds for which this thread was on a processor.
fn thread_nanos() -> u64 {
    let stat =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts a thread's time");
    stat.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).expect("it begins with a number")
}

/// Sends requests one after the other, and reads each answer.
fn ask(address: SocketAddr, requests: usize) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("it is a socket");
    let mut buffer = [0; 1024];
    let head = format!("GET /words/{WORDS} HTTP/1.1\r\nhost: cost\r\nx-tenant: alice\r\n\r\n");
    for _ in 0..requests {
        stream.write_all(head.as_bytes()).expect("the server reads");
        let read = stream.read(&mut buffer).expect("the server answers");
        assert!(buffer[..read].starts_with(b"HTTP/1.1 200") && buffer[..read].ends_with(b"word-9"));
    }
}

/// One run. Prints the server's nanoseconds a request.
fn serve(mode: &str, requests: usize) {
    let config = Config::new();
    let config = if mode == "sampled" { config.scope_time_sampled(64).pressure(false) } else { config };
    let hierarchy = Hierarchy::new(config).expect("the settings are in range");
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).expect("a thread starts");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        tokio::spawn(axum::serve(listener, app(mode, &hierarchy)).into_future());
        // The first requests warm up.
        for (requests, is_counted) in [(requests / 10, false), (requests, true)] {
            let from = thread_nanos();
            let clients = (0..CONNECTIONS)
                .map(|_| tokio::task::spawn_blocking(move || ask(address, requests / CONNECTIONS)));
            for client in clients.collect::<Vec<_>>() {
                client.await.expect("every answer is right");
            }
            if is_counted {
                let requests = requests / CONNECTIONS * CONNECTIONS;
                println!("{}", (thread_nanos() - from) / requests as u64);
            }
        }
    });
}

/// A run in a process of its own.
fn measure(mode: &str, requests: usize) -> f64 {
    let program = std::env::current_exe().expect("the program has a path");
    let mut command = Command::new(program);
    command.args(["serve", mode, &requests.to_string()]);
    if ["both", "sampled"].contains(&mode) {
        command.env("LAYER_COST_COUNTS", "1");
    }
    let output = command.output().expect("the program starts again");
    let text = String::from_utf8(output.stdout).expect("it prints a number");
    text.trim().parse().unwrap_or_else(|_| panic!("mode {mode}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse().ok());
    if arguments.first().is_some_and(|first| first == "serve") {
        return serve(&arguments[1], number(2).unwrap_or(20_000));
    }
    let (requests, rounds) = (number(0).unwrap_or(20_000), number(1).unwrap_or(11));
    let runs: Vec<[f64; 4]> = (0..rounds).map(|_| MODES.map(|mode| measure(mode, requests))).collect();
    println!(
        "server's ns a request, {requests} requests on {CONNECTIONS} connections, medians of {rounds} rounds by turns"
    );
    for (at, mode) in MODES.iter().enumerate() {
        let nanos = median(runs.iter().map(|run| run[at]).collect());
        let over = median(runs.iter().map(|run| run[at] / run[0]).collect());
        println!("{mode:<8} {nanos:>8.0}  {over:.2} times plain");
    }
}
