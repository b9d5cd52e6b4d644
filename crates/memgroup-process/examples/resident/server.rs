//! The program that the example and the test run in child processes: a server of one tenant, whose
//! 32 requests at a time take blocks of a mebibyte, each with a checkpoint after it, until the
//! tenant's limit refuses one or the request has 64. Then it drops them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use memgroup::{Config, Hierarchy, scope};
use memgroup_alloc::{Allocator, checkpoint};
use memgroup_process::{ProcessLimit, Watcher};

#[global_allocator]
static ALLOCATOR: Allocator<Chosen> = Allocator::over(Chosen);

/// The variable of the environment that chooses the allocator.
pub(crate) const ALLOCATOR_VARIABLE: &str = "RESIDENT_ALLOCATOR";

pub(crate) const MIB: u64 = 1 << 20;
/// The most memory that the process may have.
pub(crate) const LIMIT: u64 = 512 * MIB;
/// The most that all groups, and the tenant, may be charged.
const ROOT_MAX: u64 = 448 * MIB;
const TENANTS_MAX: u64 = 384 * MIB;
const CONNECTIONS: u64 = 32;
const BLOCKS: usize = 64;

/// Variables of the environment with the advised settings of mimalloc and jemalloc: freed memory
/// goes back at once.
pub(crate) const SETTINGS: [(&str, &str); 2] =
    [("MIMALLOC_PURGE_DELAY", "0"), ("_RJEM_MALLOC_CONF", "dirty_decay_ms:0")];

/// Allocators to choose from.
pub(crate) const ALLOCATORS: &[&str] =
    if cfg!(memgroup_allocators) { &["System", "mimalloc", "jemalloc"] } else { &["System"] };

/// The allocator that the environment names. The first allocation reads it, before the process has
/// a second thread.
struct Chosen;

fn chosen() -> u8 {
    static CHOICE: AtomicU8 = AtomicU8::new(0);
    // ORDERING: Relaxed, because the number publishes nothing else.
    let choice = CHOICE.load(Ordering::Relaxed);
    if choice != 0 {
        return choice;
    }
    // SAFETY: the name is terminated, and nothing changes the environment.
    let name = unsafe { libc::getenv(c"RESIDENT_ALLOCATOR".as_ptr()) };
    // SAFETY: a variable that is set is a terminated string.
    let name = if name.is_null() { c"" } else { unsafe { std::ffi::CStr::from_ptr(name) } };
    let choice = ALLOCATORS.iter().position(|one| one.as_bytes() == name.to_bytes()).unwrap_or(0) as u8 + 1;
    CHOICE.store(choice, Ordering::Relaxed);
    choice
}

// SAFETY: each call goes to one and the same allocator, which keeps the contract.
unsafe impl GlobalAlloc for Chosen {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match chosen() {
            #[cfg(memgroup_allocators)]
            // SAFETY: the caller's promise.
            2 => unsafe { mimalloc::MiMalloc.alloc(layout) },
            #[cfg(memgroup_allocators)]
            // SAFETY: the caller's promise.
            3 => unsafe { tikv_jemallocator::Jemalloc.alloc(layout) },
            // SAFETY: the caller's promise.
            _ => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match chosen() {
            #[cfg(memgroup_allocators)]
            // SAFETY: the caller's promise.
            2 => unsafe { mimalloc::MiMalloc.dealloc(block, layout) },
            #[cfg(memgroup_allocators)]
            // SAFETY: the caller's promise.
            3 => unsafe { tikv_jemallocator::Jemalloc.dealloc(block, layout) },
            // SAFETY: the caller's promise.
            _ => unsafe { System.dealloc(block, layout) },
        }
    }
}

/// How the process is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Not at all.
    Not,
    /// By a watcher that leaves the allocator's settings as they are.
    Settings,
    /// By a watcher, with the settings that the README advises.
    Advised,
}

impl Watched {
    pub(crate) const ALL: [(Watched, &str); 3] = [
        (Watched::Not, "no watcher"),
        (Watched::Settings, "watcher, default settings of the allocator"),
        (Watched::Advised, "watcher, advised settings"),
    ];
}

/// Serves this many requests on each connection. Returns the peaks of resident and charged bytes,
/// and the numbers of requests that were served and refused.
pub(crate) fn serve(watched: Watched, requests: u64) -> [u64; 4] {
    let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
    hierarchy.root().set_max(ROOT_MAX).expect("a limit");
    let tenants = hierarchy.create("/tenants").expect("a group");
    tenants.set_max(TENANTS_MAX).expect("a limit");
    let [served, refused] = [const { AtomicU64::new(0) }; 2];
    let is_over = AtomicBool::new(false);
    let watcher = (watched != Watched::Not).then(|| {
        let watcher = Watcher::new(&hierarchy, ProcessLimit::of_bytes(LIMIT)).expect("a watcher");
        with_allocator(watcher, watched)
    });
    thread::scope(|threads| {
        // ORDERING: Relaxed on all; numbers by themselves, of which the last are read after the
        // threads are joined.
        let watching = watcher.map(|mut watcher| {
            let is_over = &is_over;
            threads.spawn(move || {
                watcher.run_while(Duration::from_millis(100), |_| !is_over.load(Ordering::Relaxed))
            })
        });
        let connections: Vec<_> = (0..CONNECTIONS)
            .map(|connection| {
                let (tenants, served, refused) = (&tenants, &served, &refused);
                threads.spawn(move || {
                    for request in 0..requests {
                        let name = format!("request-{connection}-{request}");
                        let group = tenants.create_owned(&name).expect("a group");
                        let _scope = scope::enter(&group);
                        let mut blocks = Vec::new();
                        let is_refused = (0..BLOCKS).any(|_| {
                            blocks.push(std::hint::black_box(vec![1_u8; MIB as usize]));
                            checkpoint().is_err()
                        });
                        (if is_refused { refused } else { served }).fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        connections.into_iter().for_each(|connection| connection.join().expect("no panic"));
        is_over.store(true, Ordering::Relaxed);
        if let Some(watching) = watching {
            watching.join().expect("no panic").expect("a watcher that goes on");
        }
    });
    let [served, refused] = [served.into_inner(), refused.into_inner()];
    [resident_peak(), hierarchy.root().peak(), served, refused]
}

/// The most bytes that were resident in this process at once.
fn resident_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a file of Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[cfg(not(memgroup_allocators))]
fn with_allocator(watcher: Watcher, watched: Watched) -> Watcher {
    if watched == Watched::Settings { watcher.leave_malloc() } else { watcher }
}

#[cfg(memgroup_allocators)]
fn with_allocator(watcher: Watcher, watched: Watched) -> Watcher {
    let watcher = if watched == Watched::Settings { watcher.leave_malloc() } else { watcher };
    match chosen() {
        // SAFETY: the call has no precondition.
        2 => watcher.with_purge(|| unsafe { libmimalloc_sys::mi_collect(true) }),
        3 => watcher.with_purge(|| {
            let (name, none) = (c"arena.4096.purge", std::ptr::null_mut());
            // SAFETY: the name is terminated, and the call takes no value and gives none.
            let code =
                unsafe { tikv_jemalloc_sys::mallctl(name.as_ptr(), none, std::ptr::null_mut(), none, 0) };
            assert_eq!(code, 0, "jemalloc has no arenas to purge");
        }),
        _ => watcher,
    }
}
