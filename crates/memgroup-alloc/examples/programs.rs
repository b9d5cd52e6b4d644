//! Programs that allocate, with the global allocator that the build names. `memgroup-lab alloc`
//! builds one binary for each and compares them.
//!
//! ```text
//! cargo rustc --release -p memgroup-alloc --example programs -- --cfg 'allocator="system-ours"'
//! target/release/examples/programs json 2 50000000 3      threads, bytes of input, repetitions
//! target/release/examples/programs switch 9 100000        groups, blocks
//! ```
//!
//! It prints a line for each figure: its name and a number. Without the `cfg` the allocator is the
//! system's, bare.
#![cfg(not(memgroup_loom))]
#![allow(unexpected_cfgs, unsafe_code)]

use std::hint::black_box;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use memgroup::{Config, Group, Hierarchy, scope};

#[cfg(allocator = "mimalloc-bare")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(allocator = "system-cap")]
#[global_allocator]
static ALLOCATOR: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, usize::MAX);

#[cfg(allocator = "mimalloc-cap")]
#[global_allocator]
static ALLOCATOR: cap::Cap<mimalloc::MiMalloc> = cap::Cap::new(mimalloc::MiMalloc, usize::MAX);

#[cfg(allocator = "system-tracking")]
#[global_allocator]
static ALLOCATOR: tracking_allocator::Allocator<std::alloc::System> = tracking_allocator::Allocator::system();

#[cfg(allocator = "mimalloc-tracking")]
#[global_allocator]
static ALLOCATOR: tracking_allocator::Allocator<mimalloc::MiMalloc> =
    tracking_allocator::Allocator::from_allocator(mimalloc::MiMalloc);

#[cfg(allocator = "system-header")]
#[global_allocator]
static ALLOCATOR: header::Header<std::alloc::System> = header::Header(std::alloc::System);

#[cfg(allocator = "mimalloc-header")]
#[global_allocator]
static ALLOCATOR: header::Header<mimalloc::MiMalloc> = header::Header(mimalloc::MiMalloc);

#[cfg(allocator = "system-ours")]
#[global_allocator]
static ALLOCATOR: memgroup_alloc::Allocator = memgroup_alloc::Allocator::system();

#[cfg(allocator = "mimalloc-ours")]
#[global_allocator]
static ALLOCATOR: memgroup_alloc::Allocator<mimalloc::MiMalloc> =
    memgroup_alloc::Allocator::over(mimalloc::MiMalloc);

/// The header alone: eight bytes before each block, which a free reads. No byte is counted.
#[cfg(any(allocator = "system-header", allocator = "mimalloc-header"))]
mod header {
    use std::alloc::{GlobalAlloc, Layout};

    pub(super) struct Header<A>(pub(super) A);

    const OWNER: u64 = 7;

    /// The layout with the header, and the bytes before the program's.
    #[inline(always)]
    fn whole(layout: Layout) -> (Layout, usize) {
        let prefix = layout.align().max(size_of::<u64>());
        // SAFETY: no program here asks for a block of nearly all the address space; the alignment
        // is a power of two.
        (unsafe { Layout::from_size_align_unchecked(layout.size() + prefix, prefix) }, prefix)
    }

    /// Writes the header.
    ///
    /// # Safety
    /// `base` is null, or a fresh block longer than `prefix`.
    #[inline(always)]
    unsafe fn begin(base: *mut u8, prefix: usize) -> *mut u8 {
        if base.is_null() {
            return base;
        }
        // SAFETY: the prefix is within the block.
        let block = unsafe { base.add(prefix) };
        // SAFETY: the header is the prefix's last eight bytes, at a multiple of 8.
        unsafe { block.cast::<u64>().sub(1).write(OWNER) };
        block
    }

    // Never inlined, as those of `memgroup_alloc::Allocator`. Inlined into drop glue, they cost
    // 1.13 of the bare time of JSON, and cost 1.06.
    //
    // SAFETY: that of the allocator within; the prefix is a multiple of the alignment.
    unsafe impl<A: GlobalAlloc> GlobalAlloc for Header<A> {
        #[inline(never)]
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let (whole, prefix) = whole(layout);
            // SAFETY: the layout is not empty.
            let base = unsafe { self.0.alloc(whole) };
            // SAFETY: fresh, and so long.
            unsafe { begin(base, prefix) }
        }

        #[inline(never)]
        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            let (whole, prefix) = whole(layout);
            // SAFETY: as in `alloc`.
            let base = unsafe { self.0.alloc_zeroed(whole) };
            // SAFETY: as above.
            unsafe { begin(base, prefix) }
        }

        #[inline(never)]
        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            let (whole, prefix) = whole(layout);
            // SAFETY: `alloc` wrote the header.
            let owner = unsafe { block.cast::<u64>().sub(1).read() };
            if owner != OWNER {
                std::process::abort();
            }
            // SAFETY: the pointer and the layout that the inner allocator knows.
            unsafe { self.0.dealloc(block.sub(prefix), whole) };
        }

        #[inline(never)]
        unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            let (whole, prefix) = whole(layout);
            // SAFETY: as in `dealloc`. The header moves with the block.
            let base = unsafe { self.0.realloc(block.sub(prefix), whole, size + prefix) };
            // SAFETY: the prefix is within the block.
            if base.is_null() { base } else { unsafe { base.add(prefix) } }
        }
    }
}

/// Whether the blocks are charged to groups.
const CHARGES: bool = cfg!(any(allocator = "system-ours", allocator = "mimalloc-ours"));

/// The groups of `tracking-allocator`, with the least that a user does about a block: one counter a
/// group. One thread at a time may enter a group, so each thread has one of its own.
#[cfg(any(allocator = "system-tracking", allocator = "mimalloc-tracking"))]
mod tracking {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracking_allocator::{AllocationGroupId, AllocationRegistry, AllocationTracker};

    const GROUPS: usize = 128;

    /// In lines of its own: threads that count in two groups do not disturb each other.
    #[repr(align(128))]
    struct Counter(AtomicUsize);

    struct Counters([Counter; GROUPS]);

    impl AllocationTracker for Counters {
        fn allocated(&self, _: usize, _: usize, whole: usize, group: AllocationGroupId) {
            // ORDERING: Relaxed, here and below; a number by itself.
            self.0[group.as_usize().get() % GROUPS].0.fetch_add(whole, Ordering::Relaxed);
        }

        fn deallocated(
            &self,
            _: usize,
            _: usize,
            whole: usize,
            group: AllocationGroupId,
            _: AllocationGroupId,
        ) {
            // ORDERING: as above.
            self.0[group.as_usize().get() % GROUPS].0.fetch_sub(whole, Ordering::Relaxed);
        }
    }

    pub(super) fn begin() {
        let counters = Counters([const { Counter(AtomicUsize::new(0)) }; GROUPS]);
        AllocationRegistry::set_global_tracker(counters).expect("the only tracker");
        AllocationRegistry::enable_tracking();
    }
}

/// A group of the program's work, as its allocator knows groups.
struct Owner {
    group: Group,
    #[cfg(any(allocator = "system-tracking", allocator = "mimalloc-tracking"))]
    token: tracking_allocator::AllocationGroupToken,
}

impl Owner {
    fn new(group: Group) -> Owner {
        Owner {
            group,
            #[cfg(any(allocator = "system-tracking", allocator = "mimalloc-tracking"))]
            token: tracking_allocator::AllocationGroupToken::register().expect("a new group"),
        }
    }

    /// Calls `act` in the group.
    fn within<T>(&mut self, act: impl FnOnce() -> T) -> T {
        #[cfg(any(allocator = "system-tracking", allocator = "mimalloc-tracking"))]
        let _guard = self.token.enter();
        let _scope = CHARGES.then(|| scope::enter(&self.group));
        act()
    }
}

fn main() -> ExitCode {
    #[cfg(any(allocator = "system-tracking", allocator = "mimalloc-tracking"))]
    tracking::begin();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<usize>().ok());
    match (arguments.first().map(String::as_str), number(1), number(2), number(3)) {
        (Some("switch"), Some(groups), Some(blocks), None) => switch(groups, blocks),
        (Some(program), Some(threads), Some(bytes), Some(repetitions)) => {
            slow(program, threads, bytes, repetitions);
        }
        _ => {
            eprintln!(
                "usage: programs json|regex|words|lines THREADS BYTES REPETITIONS | switch GROUPS BLOCKS"
            );
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// A parent below which groups are made, with a limit that no program reaches.
fn tenants() -> Group {
    let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
    let tenants = hierarchy.create("/tenants").expect("a new group");
    tenants.set_max(64 << 30).expect("a limit");
    tenants
}

/// Runs one program on this many threads, all in one group, and prints the processor time of each
/// repetition on each thread.
fn slow(program: &str, threads: usize, bytes: usize, repetitions: usize) {
    let group = tenants().create("tenant").expect("a new group");
    let work = match program {
        "json" => json,
        "regex" => find,
        "words" => sort_words,
        _ => sort_lines,
    };
    let text = if program == "json" { objects(bytes) } else { words(bytes) };
    // A library's blocks that live as long as the process are not the group's.
    work("[]");
    let once = || {
        let before = thread_seconds();
        work(&text);
        thread_seconds() - before
    };
    // The first repetition warms up.
    let all = || -> Vec<f64> {
        let mut owner = Owner::new(group.clone());
        owner.within(|| (0..=repetitions).map(|_| once()).skip(1).collect())
    };
    let times: Vec<f64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(all)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    times.iter().for_each(|seconds| println!("seconds {seconds}"));
    println!("resident {}", status("VmHWM:"));
    drop(times);
    assert_eq!(group.peak() > 0, CHARGES, "the allocator is the one that the build names");
    assert_eq!(group.usage_exact(), 0, "all blocks are freed");
}

/// Allocates and frees a block in one group after the other, and prints the nanoseconds of each
/// turn.
fn switch(groups: usize, blocks: usize) {
    let tenants = tenants();
    let mut owners: Vec<Owner> = (0..groups)
        .map(|number| Owner::new(tenants.create(&number.to_string()).expect("a new group")))
        .collect();
    for round in 0..6 {
        let began = Instant::now();
        for number in 0..blocks {
            let block = owners[number % groups].within(|| black_box(Box::new([0_u8; 64])));
            drop(black_box(block));
        }
        if round > 0 {
            println!("ns {}", began.elapsed().as_nanos() as f64 / blocks as f64);
        }
    }
}

/// The processor time of this thread.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is written.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "the system has no clock of a thread");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Bytes of a line of the process's status.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells of the process");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the system has this line");
    let kib: u64 = line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number");
    kib << 10
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }

    fn word(&mut self) -> String {
        let letters = 3 + self.below(12);
        (0..letters).map(|_| (b'a' + self.below(26) as u8) as char).collect()
    }
}

/// A list of small objects, as JSON.
fn objects(bytes: usize) -> String {
    let mut random = Random(7);
    let mut text = String::from("[");
    while text.len() < bytes {
        if text.len() > 1 {
            text.push(',');
        }
        let (number, price) = (random.below(1 << 30), random.below(100_000));
        let (name, city, first, second) = (random.word(), random.word(), random.word(), random.word());
        text += &format!(
            r#"{{"id":{number},"name":"{name}","tags":["{first}","{second}"],"price":{price}.5,"address":{{"city":"{city}","zip":"{number}"}}}}"#
        );
    }
    text.push(']');
    text
}

/// Lines of words.
fn words(bytes: usize) -> String {
    let mut random = Random(7);
    let mut text = String::new();
    while text.len() < bytes {
        text += &random.word();
        text.push(if random.below(8) == 0 { '\n' } else { ' ' });
    }
    text
}

/// Parses the text into a tree of maps and strings, and drops it.
fn json(text: &str) {
    let value: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
    black_box(value.as_array().map(Vec::len));
}

/// Scans the lines for words, and keeps a copy of each match.
fn find(text: &str) {
    let pattern = regex::Regex::new(r"\b([a-m]+)([n-z]+)\w*\b").expect("a pattern");
    for line in text.lines() {
        let found: Vec<String> = pattern.captures_iter(line).map(|found| found[1].to_owned()).collect();
        black_box(found);
    }
}

/// Sorts copies of all words: 3 to 14 bytes each.
fn sort_words(text: &str) {
    let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    words.sort();
    black_box(words.len());
}

/// Sorts copies of all lines: 74 bytes each on the average.
fn sort_lines(text: &str) {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    black_box(lines.len());
}
