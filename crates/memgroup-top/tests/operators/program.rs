//! The program: tenants that work, a server, and a mount. It is this test program, started again by
//! a test.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Lines, Write as _};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memgroup::{Config, Hierarchy};
use memgroup_alloc::Allocator;
use memgroup_fuse::{Mount, MountProblem, Options, mount};
use memgroup_serve::{Control, Serve, Token};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use xtask::Watchdog;

use crate::client::Client;

// So that the server's group is charged for each block that the server allocates.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

/// The variable of the environment with the folder of the program.
const FOLDER: &str = "MEMGROUP_TEST_PROGRAM";
/// The first letters of a line of the program, apart from those of the test harness.
const SAYS: &str = "program: ";
pub(crate) const READ: &str = "token-for-reading";
const HISTORY: usize = 3;
const SERVER: &str = "/memgroup-serve";
const TENANTS: [&str; 2] = ["/tenants/alice", "/tenants/bob"];

/// Runs the program, if this process is one. Each test begins with this call.
pub(crate) fn is_the_program() -> bool {
    let folder = std::env::var_os(FOLDER);
    if let Some(folder) = &folder {
        run(Path::new(folder));
    }
    folder.is_some()
}

/// Serves, and does as each line of standard input says. It ends with its standard input.
fn run(folder: &Path) {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    for path in TENANTS {
        hierarchy.get_or_create(path).unwrap().set_max(1 << 20).unwrap();
    }
    let _held = hierarchy.create("/cache").unwrap().try_charge(64 << 20).unwrap();
    let serve = Serve::unix(folder.join("m.sock")).and_tcp(([127, 0, 0, 1], 0));
    // The three largest groups are always the root, the cache and the server. So the bytes of the
    // history stay the same, although groups come and go.
    let serve = serve
        .token(Token::new(READ).unwrap())
        .control(Control::Unix)
        .history_groups(HISTORY)
        .cpu_percent(100);
    let server = memgroup_serve::start(&hierarchy, serve).unwrap();
    let mounted = mounted(&hierarchy, &groups(folder));
    say(&json!({"address": server.address().unwrap(), "is_mounted": mounted.is_some()}));
    let mut tenants = Vec::new();
    for line in io::stdin().lines() {
        match line.unwrap().as_str() {
            "work" => tenants = TENANTS.map(|path| Tenant::start(&hierarchy, path)).into(),
            "rest" => tenants.clear(),
            "create" => drop(hierarchy.create("/last").unwrap()),
            "remove" => hierarchy.lookup("/last").unwrap().remove().unwrap(),
            "tell" => {}
            other => panic!("{other:?} is no order"),
        }
        say(&state(&hierarchy));
    }
}

/// The directory of the mount. Its name is another one for each test, so that a mount which is left
/// tells its test's folder.
fn groups(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap().to_string_lossy();
    folder.join(format!("groups-{}", name.trim_start_matches('.')))
}

fn say(value: &Value) {
    println!("\n{SAYS}{value}");
    io::stdout().flush().unwrap();
}

/// `None` where the system lets this user mount nothing.
fn mounted(hierarchy: &Hierarchy, path: &Path) -> Option<Mount> {
    use MountProblem::{Device, Fusermount, NoFusermount, Refused};
    match mount(hierarchy, path, Options::new()) {
        Ok(mounted) => Some(mounted),
        Err(error) => {
            let is_of_the_system = match &error.problem {
                Device(_) | Fusermount(_) | NoFusermount(_) => true,
                Refused(error) => {
                    error.kind() == io::ErrorKind::PermissionDenied
                        || error.raw_os_error() == Some(libc::ENODEV)
                }
                _ => false,
            };
            assert!(is_of_the_system, "{error}");
            eprintln!("without a mount: {error}");
            None
        }
    }
}

/// The groups and the charged bytes.
fn state(hierarchy: &Hierarchy) -> Value {
    let groups = hierarchy.groups();
    // The root has the sum.
    let groups = groups.iter().filter(|group| !["/", SERVER].contains(&group.path().as_str()));
    let groups: serde_json::Map<_, _> =
        groups.map(|group| (group.path(), json!(group.usage_exact()))).collect();
    let server = hierarchy.lookup(SERVER).unwrap().usage_exact();
    json!({"groups": groups, "dying": hierarchy.dying().len(), "waits": hierarchy.waits().len(), "server": server})
}

/// A tenant's thread: it charges, is refused at its limit, and makes and removes groups. Dropping
/// it ends it.
struct Tenant {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tenant {
    fn start(hierarchy: &Hierarchy, path: &str) -> Tenant {
        let (group, is_over) = (hierarchy.lookup(path).unwrap(), Arc::<AtomicBool>::default());
        let over = Arc::clone(&is_over);
        let work = move || {
            let (mut held, mut kept) = (Vec::new(), None);
            // ORDERING: Relaxed; the thread is joined afterwards.
            for round in (0..10_000).cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                match group.try_charge(1 << (8 + round % 11)) {
                    Ok(charge) => held.push(charge),
                    Err(_) => held.clear(),
                }
                if round % 8 == 0 {
                    let session = group.create(&format!("session-{round:04}")).unwrap();
                    let charge = session.charge_forced(4096).unwrap();
                    session.remove().unwrap();
                    // Removed, it is there as long as it is charged.
                    kept = Some(charge);
                }
                thread::sleep(Duration::from_millis(1));
            }
            drop(kept);
        };
        Tenant { is_over, thread: Some(thread::spawn(work)) }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // ORDERING: Relaxed; the thread is joined afterwards.
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Bytes by which lists of the server may grow with the most tasks and connections that it had at
/// one time. The parts of one connection take more.
const SPARE: u64 = 4096;

/// Everything that clients could leave behind in the program.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    connections: u64,
    descriptors: usize,
    threads: usize,
    children: usize,
    mounts: usize,
    state: Value,
    /// Bytes of the server's group.
    server: u64,
}

impl Held {
    /// Whether nothing more is held than before.
    pub(crate) fn is_as(&self, before: &Held) -> bool {
        let counts = |held: &Held| [held.descriptors, held.threads, held.children, held.mounts];
        let is_same = self.connections == before.connections && counts(self) == counts(before);
        is_same && self.state == before.state && self.server <= before.server + SPARE
    }
}

/// The running program. Dropping it ends it; after a failed assertion, by force.
pub(crate) struct Program {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
    folder: PathBuf,
    pub(crate) address: SocketAddr,
    pub(crate) is_mounted: bool,
}

impl Program {
    /// Starts the program, for the test of this name.
    pub(crate) fn start(test: &str, folder: &Path) -> Program {
        _ = fs::create_dir(groups(folder));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1", "--include-ignored"])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        // Before the first line, so that a program which says none is ended, too.
        let address = SocketAddr::from(([0; 4], 0));
        let mut program = Program { child, said, folder: folder.to_owned(), address, is_mounted: false };
        let ready = next(&mut program.said);
        program.address = ready["address"].as_str().unwrap().parse().unwrap();
        program.is_mounted = ready["is_mounted"] == true;
        if !program.is_mounted {
            println!("skipped: the parts with a mount");
        }
        program
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("m.sock")
    }

    pub(crate) fn unix(&self) -> Client {
        Client::unix(self.socket())
    }

    pub(crate) fn tcp(&self) -> Client {
        Client::tcp(self.address).token(READ)
    }

    pub(crate) fn groups(&self) -> PathBuf {
        groups(&self.folder)
    }

    /// Gives an order, and returns the state after it.
    pub(crate) fn order(&mut self, order: &str) -> Value {
        let mut orders = self.child.stdin.as_ref().unwrap();
        writeln!(orders, "{order}").and_then(|()| orders.flush()).unwrap();
        next(&mut self.said)
    }

    /// The text of a file of the program in `/proc`.
    pub(crate) fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    /// Waits until the history has all its places, and threads of control actions have ended.
    /// Returns the figures from then on.
    pub(crate) fn settled(&mut self) -> Held {
        let client = self.unix();
        let places = || client.get("/v1/history").json()["groups"].as_array().unwrap().len();
        until("a history of the largest groups", || places() == HISTORY && connections(&client) == 1);
        until("threads that end", || self.statuses("memgroup-serve").len() == 1);
        self.held()
    }

    pub(crate) fn held(&mut self) -> Held {
        let id = self.child.id();
        let connections = connections(&self.unix());
        let count = |folder: &str| fs::read_dir(format!("/proc/{id}/{folder}")).unwrap().count();
        let mut state = self.order("tell");
        Held {
            connections,
            descriptors: count("fd"),
            threads: count("task"),
            children: self.proc(&format!("task/{id}/children")).split_whitespace().count(),
            mounts: mounts(&self.groups()),
            server: state.as_object_mut().unwrap().remove("server").unwrap().as_u64().unwrap(),
            state,
        }
    }

    /// Waits until nothing is left of the clients.
    pub(crate) fn wait_until_held(&mut self, before: &Held) {
        let last = Arc::new(Mutex::new(String::new()));
        let seen = Arc::clone(&last);
        let report = move || format!("the program holds more than before: {}\n", seen.lock().unwrap());
        let _watchdog = Watchdog::new(|| 0, report);
        loop {
            let now = self.held();
            if now.is_as(before) {
                return;
            }
            *last.lock().unwrap() = format!("\n{now:?}\n{before:?}");
            pause();
        }
    }

    /// The files `status` of the threads of this name.
    fn statuses(&self, thread: &str) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        // A thread may end before its files are read.
        let texts = tasks.map(|task| fs::read_to_string(task.path().join("status")).unwrap_or_default());
        texts.filter(|text| text.starts_with(&format!("Name:\t{thread}\n"))).collect()
    }

    /// Whether the thread of this name sleeps for longer than its ticks are.
    pub(crate) fn is_asleep(&self, thread: &str) -> bool {
        let sleeps = || {
            let text = self.statuses(thread).pop().unwrap();
            text.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap().to_owned()
        };
        let before = sleeps();
        thread::sleep(Duration::from_millis(1500));
        sleeps() == before
    }

    /// Kills the program, and before it the shell that would unmount.
    pub(crate) fn kill(mut self) {
        let id = self.child.id();
        // Each thread has children of its own.
        for task in fs::read_dir(format!("/proc/{id}/task")).unwrap() {
            let children = fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
            children.split_whitespace().for_each(|child| kill(child.parse().unwrap()));
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if thread::panicking() {
            // The program may hang. Its shell unmounts then, but later than the folder is removed.
            _ = self.child.kill();
            _ = unmount(self.groups(), UnmountFlags::DETACH);
        }
        _ = self.child.wait();
    }
}

/// The next line that the program says.
fn next(said: &mut Lines<BufReader<ChildStdout>>) -> Value {
    let says = |line: io::Result<String>| {
        line.unwrap().strip_prefix(SAYS).map(|text| serde_json::from_str(text).unwrap())
    };
    said.find_map(says).expect("the program has ended")
}

/// The number of connections to the server, with that which asks.
pub(crate) fn connections(client: &Client) -> u64 {
    client.get("/v1/about").json()["connections"].as_u64().unwrap()
}

/// The number of our file systems at the path.
pub(crate) fn mounts(path: &Path) -> usize {
    let at = format!(" {} fuse.memgroup ", path.display());
    fs::read_to_string("/proc/self/mounts").unwrap().lines().filter(|line| line.contains(&at)).count()
}

/// Kills a process that may have ended.
pub(crate) fn kill(id: i32) {
    _ = kill_process(Pid::from_raw(id).unwrap(), Signal::KILL);
}

pub(crate) fn pause() {
    thread::sleep(Duration::from_millis(10));
}

/// Waits until it is true.
pub(crate) fn until(operation: &'static str, mut is_true: impl FnMut() -> bool) {
    let _watchdog = Watchdog::over(operation);
    while !is_true() {
        pause();
    }
}

#[test]
fn a_failed_test_leaves_no_program_and_no_mount() {
    if is_the_program() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut id, mut at) = (0, PathBuf::new());
    let fails = || {
        let test = "program::a_failed_test_leaves_no_program_and_no_mount";
        let program = Program::start(test, folder.path());
        (id, at) = (program.child.id(), program.groups());
        // Stopped, it does not end by itself.
        kill_process(Pid::from_child(&program.child), Signal::STOP).unwrap();
        panic!("an assertion fails");
    };
    catch_unwind(AssertUnwindSafe(fails)).unwrap_err();
    assert!(id > 0 && !Path::new(&format!("/proc/{id}")).exists());
    assert_eq!(mounts(&at), 0);
}
