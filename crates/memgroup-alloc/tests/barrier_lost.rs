//! A barrier that worked when the program started and is forbidden later: the process continues.
//!
//! One test, in a process of its own: the barrier is lost for the whole of it.

#![cfg(all(target_os = "linux", not(any(miri, memgroup_loom, memgroup_emulated))))]

use std::sync::mpsc;
use std::thread::JoinHandle;

use memgroup::{Config, Group, Hierarchy, scope};
use memgroup_alloc::Allocator;
use memgroup_sync::grace;
use xtask::Watchdog;

#[path = "../../memgroup-sync/tests/seccomp/mod.rs"]
mod seccomp;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

/// A thread that allocates and frees `blocks` in a group on request.
struct Worker {
    tell: mpsc::Sender<(Group, usize)>,
    done: mpsc::Receiver<()>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start() -> Worker {
        let (tell, told) = mpsc::channel::<(Group, usize)>();
        let (tell_done, done) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            for (group, blocks) in told {
                let scope = scope::enter(&group);
                drop((0..blocks).map(|_| Box::new([1_u8; 100])).collect::<Vec<_>>());
                drop(scope);
                drop(group);
                tell_done.send(()).unwrap();
            }
        });
        Worker { tell, done, thread }
    }

    fn allocate(&self, group: &Group, blocks: usize) {
        self.tell.send((group.clone(), blocks)).unwrap();
        self.done.recv().unwrap();
    }

    fn end(self) {
        drop(self.tell);
        self.thread.join().unwrap();
    }
}

fn held_back(group: &Group) -> u64 {
    group.usage() - group.usage_exact()
}

#[test]
fn without_the_barrier_held_back_bytes_stay_until_their_threads_next_block() {
    if !grace::report().enters_by_store() {
        println!("skipped: there is no barrier to lose: {}", grace::report());
        return;
    }
    let _watchdog = Watchdog::over("an allocator without a barrier");
    // Without stock, the difference between usage and the exact bytes is held back.
    let hierarchy = Hierarchy::new(Config::new().stock_budget_bytes(0)).unwrap();
    let [tenant, removed, other] =
        ["/tenant", "/removed", "/other"].map(|name| hierarchy.create(name).unwrap());
    tenant.set_max(1 << 20).unwrap();
    let (first, second) = (Worker::start(), Worker::start());
    first.allocate(&tenant, 10);
    second.allocate(&removed, 10);
    assert!(held_back(&tenant) > 0 && held_back(&removed) > 0);
    seccomp::forbid_membarrier();

    // The bytes of a thread that may be between two stores stay, even if they make a charge fail.
    let before = held_back(&tenant);
    tenant.try_charge(1 << 20).unwrap_err();
    assert_eq!(held_back(&tenant), before);
    removed.remove().unwrap();
    assert_eq!(hierarchy.dying().len(), 1, "the bytes keep the group");

    // The threads have seen that there is no barrier, and make no stores: the bytes can be taken.
    first.allocate(&tenant, 1);
    drop(tenant.try_charge(1 << 20).unwrap());
    assert_eq!(held_back(&tenant), 0);
    second.allocate(&other, 1);
    assert_eq!((removed.usage(), hierarchy.dying().len()), (0, 0));

    // So can those of a thread that begins now, and those of a thread that has ended.
    let third = Worker::start();
    for worker in [&first, &third] {
        worker.allocate(&tenant, 10);
    }
    assert!(held_back(&tenant) > 0);
    first.end();
    drop(tenant.try_charge(1 << 20).unwrap());
    assert_eq!(held_back(&tenant), 0);
    third.end();
    second.end();
}
