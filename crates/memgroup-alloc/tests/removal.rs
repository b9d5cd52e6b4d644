//! The end of a removed group for which other threads hold bytes back.
#![cfg(not(any(miri, memgroup_loom)))]

use std::sync::{Barrier, mpsc};
use std::thread::JoinHandle;

use memgroup::{Config, Group, Hierarchy, scope};
use memgroup_alloc::Allocator;
use xtask::Watchdog;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

/// A block that a slot may hold back.
const SMALL: usize = 100;

/// One that none may.
const LARGE: usize = 1 << 20;

/// A thread that allocates a block in a group and frees it on request. It then holds bytes back for
/// the group.
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
            for (group, bytes) in told {
                let scope = scope::enter(&group);
                drop(std::hint::black_box(vec![1_u8; bytes]));
                drop(scope);
                drop(group);
                tell_done.send(()).unwrap();
            }
        });
        Worker { tell, done, thread }
    }

    fn allocate(&self, group: &Group, bytes: usize) {
        self.tell.send((group.clone(), bytes)).unwrap();
        self.done.recv().unwrap();
    }

    fn end(self) {
        drop(self.tell);
        self.thread.join().unwrap();
    }
}

/// A group that was removed while a worker holds bytes back for it, its parent, and the worker.
fn removed_beside_a_worker(hierarchy: &Hierarchy) -> (Group, Worker) {
    let parent = hierarchy.get_or_create("/parent").unwrap();
    let worker = Worker::start();
    let request = parent.create("request").unwrap();
    worker.allocate(&request, SMALL);
    request.remove().unwrap();
    drop(request);
    assert!(parent.usage() > 0, "the removal has disturbed no other thread");
    (parent, worker)
}

fn hierarchy() -> Hierarchy {
    Hierarchy::new(Config::new().stock_budget_bytes(0)).unwrap()
}

#[test]
fn a_removed_group_ends_with_the_next_block_of_the_thread_that_holds_bytes_back() {
    let _watchdog = Watchdog::over("the end of a removed group");
    let (hierarchy, elsewhere) = (hierarchy(), hierarchy());
    let (parent, worker) = removed_beside_a_worker(&hierarchy);
    worker.allocate(&elsewhere.create("/group").unwrap(), SMALL);
    assert_eq!(parent.usage(), 0);
    worker.end();
}

#[test]
fn a_removed_group_ends_with_a_large_block_of_that_thread() {
    let _watchdog = Watchdog::over("the end of a removed group");
    let (hierarchy, elsewhere) = (hierarchy(), hierarchy());
    let (parent, worker) = removed_beside_a_worker(&hierarchy);
    worker.allocate(&elsewhere.create("/group").unwrap(), 1 << 20);
    assert_eq!(parent.usage(), 0);
    worker.end();
}

/// The usage above a removed group, after a thread that holds bytes back for it has called `act`
/// with a large block of another group. The thread makes and frees no other block in the meantime.
fn usage_after_a_large_block(act: fn(Vec<u8>) -> Vec<u8>) -> u64 {
    let _watchdog = Watchdog::over("the end of a removed group");
    let (hierarchy, elsewhere) = (hierarchy(), hierarchy());
    let parent = hierarchy.get_or_create("/parent").unwrap();
    let (request, other) = (parent.create("request").unwrap(), elsewhere.create("/group").unwrap());
    let turn = Barrier::new(2);
    let (before, after) = std::thread::scope(|threads| {
        threads.spawn(|| {
            let scope = scope::enter(&other);
            let large = std::hint::black_box(vec![1_u8; LARGE]);
            let inner = scope::enter(&request);
            drop(std::hint::black_box(vec![1_u8; SMALL]));
            drop(inner);
            turn.wait();
            turn.wait();
            let large = std::hint::black_box(act(large));
            turn.wait();
            turn.wait();
            drop(large);
            drop(scope);
        });
        turn.wait();
        request.remove().unwrap();
        let before = parent.usage();
        turn.wait();
        turn.wait();
        let after = parent.usage();
        turn.wait();
        (before, after)
    });
    assert!(before > 0, "the removal has disturbed no other thread");
    after
}

#[test]
fn a_removed_group_ends_with_a_large_block_that_is_made() {
    let make = |large: Vec<u8>| {
        std::mem::forget(large);
        vec![1_u8; LARGE]
    };
    assert_eq!(usage_after_a_large_block(make), 0);
}

#[test]
fn a_removed_group_ends_with_a_large_block_that_grows() {
    let grow = |mut large: Vec<u8>| {
        large.reserve_exact(LARGE + 1);
        large
    };
    assert_eq!(usage_after_a_large_block(grow), 0);
}

#[test]
fn a_removed_group_ends_with_a_large_block_that_is_freed() {
    let free = |large: Vec<u8>| {
        drop(large);
        Vec::new()
    };
    assert_eq!(usage_after_a_large_block(free), 0);
}

#[test]
fn a_removed_group_stays_beside_a_thread_that_makes_no_block() {
    assert!(usage_after_a_large_block(|large| large) > 0, "else the tests above show nothing");
}

#[test]
fn a_removed_group_ends_with_that_thread() {
    let (parent, worker) = removed_beside_a_worker(&hierarchy());
    worker.end();
    assert_eq!(parent.usage(), 0);
    // A group that is removed later than the thread ends with its removal, unless a new thread, of
    // another test, has taken over what the thread held back.
    let ends_with_its_removal = || {
        let parent = hierarchy().get_or_create("/parent").unwrap();
        let (late, worker) = (parent.create("late").unwrap(), Worker::start());
        worker.allocate(&late, SMALL);
        worker.end();
        late.remove().unwrap();
        parent.usage() == 0
    };
    assert!((0..20).any(|_| ends_with_its_removal()));
}

#[test]
fn a_removed_group_ends_when_somebody_looks() {
    let hierarchy = hierarchy();
    let (parent, worker) = removed_beside_a_worker(&hierarchy);
    assert_eq!((hierarchy.dying().len(), parent.usage()), (0, 0));
    let (parent, other) = removed_beside_a_worker(&hierarchy);
    assert_eq!((hierarchy.snapshot().dying().count(), parent.usage()), (0, 0));
    let (parent, third) = removed_beside_a_worker(&hierarchy);
    parent.drain();
    assert_eq!(parent.usage(), 0);
    [worker, other, third].into_iter().for_each(Worker::end);
}

#[test]
fn removed_groups_keep_no_places_from_new_ones() {
    for (groups_max, max_descendants) in [(4, None), (100, Some(2))] {
        let config = Config::new().stock_budget_bytes(0).groups_max(groups_max);
        let hierarchy = Hierarchy::new(config).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max_descendants(max_descendants);
        removes_many_below(&parent);
    }
}

fn removes_many_below(parent: &Group) {
    let workers: Vec<Worker> = (0..4).map(|_| Worker::start()).collect();
    for (round, worker) in (0..100).zip(workers.iter().cycle()) {
        let request = parent.create(&format!("request-{round}")).unwrap();
        worker.allocate(&request, SMALL);
        request.remove().unwrap();
    }
    workers.into_iter().for_each(Worker::end);
    assert_eq!(parent.usage(), 0);
}

#[test]
fn a_removal_on_the_thread_that_holds_bytes_back_ends_the_group() {
    let hierarchy = hierarchy();
    let parent = hierarchy.create("/parent").unwrap();
    let request = parent.create_owned("request").unwrap();
    {
        let _scope = scope::enter(&request);
        drop(std::hint::black_box(vec![1_u8; SMALL]));
    }
    assert!(parent.usage() > 0);
    drop(request);
    assert_eq!(parent.usage(), 0);
}
