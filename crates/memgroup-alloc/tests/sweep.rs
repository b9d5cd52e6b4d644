//! Sweep of blocks within `fallible`: the N-th block that may fail does, once and from then on, in
//! a process of its own.
#![cfg(not(any(memgroup_loom, memgroup_emulated)))]

use std::collections::{HashMap, VecDeque};
use std::io::Read;

use memgroup::{Config, Group, Hierarchy, SlotSource, scope};
use memgroup_alloc::{Allocator, Checked, checkpoint, fallible};
use xtask::sweep::sweep_in_children;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

/// The size of a block that may fail. Smaller ones cannot.
const LARGE: usize = 100 << 10;

/// The blocks of a run that were refused.
#[derive(Default)]
struct Refused(u64);

impl Refused {
    /// Notes the outcome of a reservation. Returns whether it was made.
    fn note<E>(&mut self, outcome: Result<(), E>) -> bool {
        self.0 += u64::from(outcome.is_err());
        outcome.is_ok()
    }
}

/// The group holds `bytes` in blocks, and not much more: headers, and what collections round up.
fn assert_holds(group: &Group, bytes: usize) {
    let usage = group.usage_exact() as usize;
    assert!((bytes..bytes * 9 / 8 + 8192).contains(&usage), "{usage} are charged for blocks of {bytes}");
}

/// Buffers that are made, grow and shrink; one that fails stays as it was.
fn buffers(tenant: &Group, refused: &mut Refused) {
    let _scope = scope::enter(tenant);
    let (mut first, mut second) = (Vec::<u8>::new(), Vec::<u64>::new());
    for step in 1..=4 {
        let before = (first.capacity(), second.capacity());
        if refused.note(fallible(|| first.try_reserve_exact(step * LARGE))) {
            first.resize(step * LARGE, 7);
        }
        if refused.note(fallible(|| second.try_reserve_exact(step * LARGE / 8))) {
            second.resize(step * LARGE / 8, 7);
        }
        assert!(first.capacity() >= before.0 && second.capacity() >= before.1);
        assert_holds(tenant, first.capacity() + 8 * second.capacity());
        checkpoint().unwrap();
    }
    assert!(first.iter().all(|&byte| byte == 7) && second.iter().all(|&word| word == 7));
    first.truncate(LARGE / 2);
    first.shrink_to_fit();
    assert_holds(tenant, first.capacity() + 8 * second.capacity());
}

/// A map and a queue that keep what they have when they cannot grow, beside small blocks, which
/// never fail.
fn collections(tenant: &Group, refused: &mut Refused) {
    let _scope = scope::enter(tenant);
    let (mut map, mut queue) = (HashMap::<u64, [u64; 4]>::new(), VecDeque::<u64>::new());
    for round in 0..4_u64 {
        let more = 4000 << round;
        if refused.note(fallible(|| map.try_reserve(more))) {
            map.extend((0..more as u64).map(|key| (key, [key; 4])));
        }
        if refused.note(fallible(|| queue.try_reserve(16 * more))) {
            queue.extend(0..more as u64);
        }
        let small: Vec<String> =
            fallible(|| (0..100).map(|number| format!("row {number} of {round}")).collect());
        assert_eq!(small[7], format!("row 7 of {round}"));
        assert!(map.iter().all(|(key, value)| *value == [*key; 4]));
    }
}

/// Blocks that another thread frees, and one that grows in the scope of another group: its owner's.
fn across(tenant: &Group, other: &Group, refused: &mut Refused) {
    let mut block = Vec::<u8>::new();
    {
        let _scope = scope::enter(tenant);
        refused.note(fallible(|| block.try_reserve_exact(LARGE)));
    }
    {
        let _scope = scope::enter(other);
        refused.note(fallible(|| block.try_reserve_exact(2 * LARGE)));
    }
    assert_holds(tenant, if other.usage_exact() == 0 { block.capacity() } else { 0 });
    std::thread::spawn(move || drop(block)).join().unwrap();
}

/// A reader that stops where its group is above the limit reads on where a block was refused.
fn reader(tenant: &Group, refused: &mut Refused) {
    let _scope = scope::enter(tenant);
    let mut into = Vec::new();
    if !refused.note(fallible(|| into.try_reserve_exact(LARGE))) {
        into.reserve_exact(16 << 10);
    }
    let text = vec![b'x'; 8 << 10];
    assert_eq!(Checked::new(&text[..]).read_to_end(&mut into).unwrap(), 8 << 10);
}

#[test]
fn sweep_fallible_blocks() {
    sweep_in_children("sweep_fallible_blocks", |run| {
        let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap());
        let hierarchy = Hierarchy::new(config).unwrap();
        let (tenant, other) = (hierarchy.create("/tenant").unwrap(), hierarchy.create("/other").unwrap());
        let injection = hierarchy.root().inject_failures_at(run.refused());
        let mut refused = Refused::default();
        buffers(&tenant, &mut refused);
        collections(&tenant, &mut refused);
        across(&tenant, &other, &mut refused);
        reader(&tenant, &mut refused);
        assert_eq!(refused.0, injection.failed(), "blocks that failed, and charges that were refused");
        let charges = injection.drawn();
        assert_eq!(refused.0 > 0, run.refuses_any_of(charges));
        drop(injection);
        for group in hierarchy.groups() {
            assert_eq!(group.usage_exact(), 0, "{}", group.path());
        }
        // The next operation works, and so does the removal.
        let mut after = Refused::default();
        buffers(&tenant, &mut after);
        assert_eq!((after.0, tenant.usage_exact()), (0, 0));
        tenant.remove().unwrap();
        drop(tenant);
        assert!(hierarchy.snapshot().groups.iter().all(|group| group.online), "a group is kept by a block");
        charges
    });
}
