//! After everything is dropped each group reads 0, exactly: whichever thread freed the blocks, and
//! whenever.
#![cfg(not(memgroup_loom))]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System, alloc, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memgroup::{Config, Group, Hierarchy, scope};
use memgroup_alloc::{Allocator, Uncounted, checkpoint, fallible, uncounted};
use proptest::prelude::*;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

fn tenant() -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let tenant = hierarchy.create("/tenants").unwrap().create("tenant").unwrap();
    (hierarchy, tenant)
}

/// `make` with `group` in force.
fn within<T>(group: &Group, make: impl FnOnce() -> T) -> T {
    let _scope = scope::enter(group);
    make()
}

/// The bytes charged for a block.
fn charged(size: u64, align: u64) -> u64 {
    (size + align.max(8)).next_multiple_of(16)
}

#[test]
fn charges_a_block_with_its_header_until_it_is_freed() {
    let (_hierarchy, tenant) = tenant();
    for size in [1, 7, 8, 9, 4096, 65_000, 70_000, 10 << 20] {
        let block = within(&tenant, || vec![1_u8; size as usize]);
        assert_eq!(tenant.usage_exact(), charged(size, 1), "{size}");
        drop(block);
        assert_eq!(tenant.usage_exact(), 0, "{size}");
    }
}

#[test]
fn aligns_blocks_and_zeroes_them() {
    let (_hierarchy, tenant) = tenant();
    for align in [1, 2, 4, 8, 16, 32, 64, 4096] {
        for size in [1, 16, 100, 100_000] {
            let layout = Layout::from_size_align(size, align).unwrap();
            let blocks = within(&tenant, || {
                // SAFETY: the layout is not of size 0.
                let first = unsafe { alloc(layout) };
                // SAFETY: as above.
                [first, unsafe { alloc_zeroed(layout) }]
            });
            assert!(blocks.iter().all(|block| !block.is_null() && block.addr() % align == 0));
            // SAFETY: the block is zeroed, and so long.
            let zeroed = unsafe { std::slice::from_raw_parts(blocks[1], size) };
            assert!(zeroed.iter().all(|byte| *byte == 0));
            assert_eq!(tenant.usage_exact(), 2 * charged(size as u64, align as u64), "{size} by {align}");
            for block in blocks {
                // SAFETY: from `alloc` with this layout.
                unsafe { dealloc(block, layout) };
            }
            assert_eq!(tenant.usage_exact(), 0);
        }
    }
}

#[test]
fn a_block_keeps_its_owner_and_its_bytes_when_it_grows_and_shrinks() {
    let (hierarchy, tenant) = tenant();
    let other = hierarchy.create("/other").unwrap();
    let mut block = within(&tenant, || (0..100_u8).collect::<Vec<u8>>());
    within(&other, || {
        for size in [1000, 100_000, 10_000_000] {
            block.reserve_exact(size - block.len());
            assert_eq!((tenant.usage_exact(), other.usage_exact()), (charged(size as u64, 1), 0));
        }
        block.shrink_to_fit();
    });
    assert_eq!((tenant.usage_exact(), other.usage_exact()), (charged(100, 1), 0));
    assert!(block.iter().copied().eq(0..100));
    drop(block);
    assert_eq!(tenant.usage_exact(), 0);
}

#[test]
fn a_block_without_a_group_stays_without_one() {
    let (_hierarchy, tenant) = tenant();
    let mut block = vec![1_u8; 100];
    within(&tenant, || block.reserve_exact(100_000));
    assert_eq!(tenant.usage_exact(), 0);
    within(&tenant, || drop(block));
    assert_eq!(tenant.usage_exact(), 0);
}

#[test]
fn a_block_may_be_freed_on_another_thread() {
    let (_hierarchy, tenant) = tenant();
    let (give, take) = mpsc::channel::<Vec<Vec<u8>>>();
    let free = thread::spawn(move || take.into_iter().for_each(drop));
    for _ in 0..50 {
        let blocks = within(&tenant, || (1..200).map(|size| vec![1_u8; size * 7]).collect());
        give.send(blocks).unwrap();
    }
    drop(give);
    free.join().unwrap();
    assert_eq!(tenant.usage_exact(), 0);
    tenant.drain();
    assert_eq!(tenant.usage(), 0, "a drain takes held back bytes, of ended threads too");
}

#[test]
fn blocks_may_be_freed_while_their_thread_ends() {
    struct Late(RefCell<Vec<Vec<u8>>>, RefCell<Option<Group>>);
    impl Drop for Late {
        fn drop(&mut self) {
            let group = self.1.take().unwrap();
            let more = within(&group, || vec![1_u8; 300]);
            self.0.borrow_mut().push(more);
        }
    }
    thread_local! {
        static LATE: Late = const { Late(RefCell::new(Vec::new()), RefCell::new(None)) };
    }
    let (_hierarchy, tenant) = tenant();
    for _ in 0..20 {
        let group = tenant.clone();
        thread::spawn(move || {
            let blocks = within(&group, || vec![vec![1_u8; 1000], vec![1_u8; 100_000]]);
            LATE.with(|late| {
                *late.0.borrow_mut() = blocks;
                *late.1.borrow_mut() = Some(group);
            });
        })
        .join()
        .unwrap();
        assert_eq!(tenant.usage_exact(), 0);
    }
}

#[test]
fn blocks_of_a_removed_group_are_charged_to_it_until_they_are_freed() {
    let (hierarchy, tenant) = tenant();
    let parent = tenant.parent().unwrap();
    let (mut small, large) = within(&tenant, || (vec![1_u8; 100], vec![1_u8; 100_000]));
    let _scope = scope::enter(&tenant);
    tenant.remove().unwrap();
    let all = charged(100, 1) + charged(100_000, 1);
    assert_eq!((tenant.usage(), parent.usage_exact()), (all, all), "a removal leaves nothing held back");
    small.reserve_exact(900);
    assert_eq!(tenant.usage(), charged(1000, 1) + charged(100_000, 1), "it grows in its group");
    let new = vec![1_u8; 200];
    assert_eq!(tenant.usage(), charged(1000, 1) + charged(100_000, 1));
    assert_eq!(parent.usage_exact(), tenant.usage() + charged(200, 1), "a new one is the parent's");
    drop((small, large));
    assert_eq!((tenant.usage(), parent.usage_exact()), (0, charged(200, 1)));
    drop(_scope);
    drop(tenant);
    assert_eq!(hierarchy.dying().len(), 0, "the group is released");
    drop(new);
    assert_eq!(parent.usage_exact(), 0);
}

#[test]
fn a_refusal_takes_held_back_bytes_first() {
    let (_hierarchy, tenant) = tenant();
    tenant.set_max(1 << 20).unwrap();
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let group = tenant.clone();
    let holder = thread::spawn(move || {
        let blocks: Vec<_> = within(&group, || (0..600).map(|_| vec![1_u8; 100]).collect());
        drop(blocks);
        tell.send(()).unwrap();
        ended.recv().unwrap_err();
    });
    told.recv().unwrap();
    assert!(tenant.usage() > tenant.usage_exact(), "the thread holds bytes back");
    drop(tenant.try_charge(1 << 20).unwrap());
    drop(end);
    holder.join().unwrap();
}

#[test]
fn bytes_that_were_freed_within_the_engine_go_back_outside() {
    let (hierarchy, tenant) = tenant();
    let other = hierarchy.create("/other").unwrap();
    let mut blocks: Vec<_> = within(&tenant, || (0..100).map(|_| vec![1_u8; 1000]).collect());
    let held_back = || tenant.usage() - tenant.usage_exact();
    while held_back() <= 64 << 10 {
        let _inside = memgroup_sync::depth::enter();
        drop(blocks.pop().expect("a slot that is overfull"));
    }
    // It enters the engine for a block of another group.
    drop(within(&other, || vec![1_u8; 100]));
    assert_eq!(held_back(), 0);
}

#[test]
fn a_waiting_charge_gets_the_bytes_that_a_thread_frees() {
    let (hierarchy, tenant) = tenant();
    tenant.set_max(100_000).unwrap();
    let blocks: Vec<_> = within(&tenant, || (0..50).map(|_| vec![1_u8; 1000]).collect());
    thread::scope(|threads| {
        let waits = threads.spawn(|| tenant.charge_until(95_000, Instant::now() + Duration::from_secs(600)));
        while hierarchy.waits().is_empty() {
            thread::yield_now();
        }
        blocks.into_iter().for_each(drop);
        drop(waits.join().unwrap().unwrap());
    });
    assert_eq!(tenant.usage_exact(), 0);
}

#[test]
fn blocks_go_over_the_limit_and_a_checkpoint_tells() {
    let (_hierarchy, tenant) = tenant();
    tenant.set_max(100_000).unwrap();
    let _scope = scope::enter(&tenant);
    checkpoint().unwrap();
    let blocks: Vec<_> = (0..200).map(|_| vec![1_u8; 1000]).collect();
    assert!(tenant.usage_exact() > 200_000 && tenant.overdraft().bytes > 0);
    let over = checkpoint().unwrap_err();
    assert_eq!((over.error().group(), over.error().max()), (tenant.id(), Some(100_000)));
    checkpoint().unwrap_err();
    drop(blocks);
    checkpoint().unwrap();
}

#[test]
fn uncounted_blocks_are_counted_once_by_their_charge() {
    let (_hierarchy, tenant) = tenant();
    let (charge, page) = within(&tenant, || {
        let charge = tenant.try_charge(100_000).unwrap();
        let mut page = uncounted(|| vec![1_u8; 100_000]);
        page.reserve_exact(200_000);
        (charge, page)
    });
    assert_eq!(tenant.usage_exact(), 100_000);
    let counted = within(&tenant, || {
        let outer = Uncounted::begin();
        let inner = Uncounted::begin();
        drop(outer);
        let free = vec![1_u8; 100];
        drop(inner);
        (free, vec![1_u8; 100])
    });
    assert_eq!(tenant.usage_exact(), 100_000 + charged(100, 1));
    drop((page, charge, counted));
    assert_eq!(tenant.usage_exact(), 0);
}

#[test]
fn large_blocks_may_fail_where_the_program_says_so() {
    let (_hierarchy, tenant) = tenant();
    tenant.set_max(1 << 20).unwrap();
    let _scope = scope::enter(&tenant);
    let mut buffer = Vec::<u8>::new();
    fallible(|| buffer.try_reserve_exact(1 << 21)).unwrap_err();
    fallible(|| buffer.try_reserve_exact(1 << 19)).unwrap();
    fallible(|| buffer.try_reserve_exact(1 << 21)).unwrap_err();
    assert_eq!(tenant.usage_exact(), charged(1 << 19, 1), "a refused growth leaves the block as it was");
    buffer.reserve_exact(1 << 21);
    checkpoint().unwrap_err();
    drop(buffer);
    assert_eq!(tenant.usage_exact(), 0);
}

/// Has memory for blocks below 100,000 bytes.
struct Scarce;

// SAFETY: the system's blocks, or null.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if layout.size() < 100_000 { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) };
    }
}

#[test]
fn a_block_for_which_there_is_no_memory_is_not_charged() {
    let (_hierarchy, tenant) = tenant();
    let _scope = scope::enter(&tenant);
    let scarce = Allocator::over(Scarce);
    let [small, large] = [1000, 200_000].map(|size| Layout::from_size_align(size, 8).unwrap());
    // SAFETY: the layout is not of size 0.
    assert!(unsafe { scarce.alloc(large) }.is_null());
    assert_eq!(tenant.usage_exact(), 0);
    // SAFETY: as above.
    let block = unsafe { scarce.alloc(small) };
    // SAFETY: a live block of this layout.
    assert!(unsafe { scarce.realloc(block, small, large.size()) }.is_null());
    assert_eq!(tenant.usage_exact(), charged(1000, 8));
    // SAFETY: as above: a growth that failed leaves the block as it was.
    unsafe { scarce.dealloc(block, small) };
    assert_eq!(tenant.usage_exact(), 0);
}

#[test]
fn no_block_fails_while_the_thread_panics() {
    struct Late;
    impl Drop for Late {
        fn drop(&mut self) {
            drop(vec![1_u8; 1 << 20]);
        }
    }
    let (_hierarchy, tenant) = tenant();
    tenant.set_max(100_000).unwrap();
    let _scope = scope::enter(&tenant);
    let fails = || fallible(|| Vec::<u8>::new().try_reserve_exact(1 << 20)).unwrap_err();
    fails();
    thread::scope(|threads| {
        let panics = threads.spawn(|| {
            let _scope = scope::enter(&tenant);
            fallible(|| {
                let _late = Late;
                std::panic::resume_unwind(Box::new(0));
            });
        });
        panics.join().unwrap_err();
    });
    fails();
    assert_eq!(tenant.usage_exact(), 0);
}

#[test]
fn groups_may_be_made_and_removed_by_a_thread_that_charges_one() {
    let (hierarchy, tenant) = tenant();
    let scope = scope::enter(&tenant);
    for round in 0..100 {
        let group = hierarchy.create(&format!("/round-{round}")).unwrap();
        let block = within(&group, || vec![1_u8; 10_000]);
        assert_eq!(group.usage_exact(), charged(10_000, 1));
        drop(block);
        group.set_max(1000).unwrap();
        group.try_charge(2000).unwrap_err();
        group.remove().unwrap();
    }
    assert_eq!(hierarchy.dying().len(), 0);
    drop(scope);
    assert_eq!(tenant.usage_exact(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Switch(usize),
    Make { size: usize, align: u32 },
    Resize { nth: usize, size: usize },
    Free(usize),
    FreeElsewhere(usize),
    Drain,
    Remove(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![4 => 1_usize..2000, 1 => 2000_usize..200_000];
    prop_oneof![
        2 => (0_usize..5).prop_map(Step::Switch),
        6 => (size.clone(), 0_u32..8).prop_map(|(size, align)| Step::Make { size, align }),
        3 => (any::<usize>(), size).prop_map(|(nth, size)| Step::Resize { nth, size }),
        3 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::FreeElsewhere),
        1 => Just(Step::Drain),
        1 => (0_usize..4).prop_map(Step::Remove),
    ]
}

/// A block of the program, with its owner by number.
struct Block {
    place: usize,
    layout: Layout,
    owner: Option<usize>,
}

impl Block {
    fn charged(&self) -> u64 {
        charged(self.layout.size() as u64, self.layout.align() as u64)
    }

    fn free(self) {
        // SAFETY: from `alloc` with this layout, and given up.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(self.place), self.layout) };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each group's usage is that of a ledger, after each step.
    #[test]
    fn usage_is_that_of_a_ledger(steps in prop::collection::vec(step(), 1..60)) {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let parent = hierarchy.create("/tenants").unwrap();
        let groups: Vec<Group> = (0..4).map(|at| parent.create(&at.to_string()).unwrap()).collect();
        // The last entry is the parent's.
        let mut is_online = [true; 4];
        let (mut blocks, mut current) = (Vec::<Block>::new(), None);
        for step in steps {
            let act = |make: &mut dyn FnMut()| match current {
                Some(at) => within(&groups[at], make),
                None => make(),
            };
            let pick = |nth: usize, len: usize| (len > 0).then(|| nth % len);
            match step {
                Step::Switch(to) => current = (to < 4).then_some(to),
                Step::Make { size, align } => {
                    let layout = Layout::from_size_align(size, 1 << align).unwrap();
                    let mut place = 0;
                    // SAFETY: the layout is not of size 0.
                    act(&mut || place = unsafe { alloc(layout) }.expose_provenance());
                    let owner = current.map(|at| if is_online[at] { at } else { 4 });
                    blocks.push(Block { place, layout, owner });
                }
                Step::Resize { nth, size } => if let Some(at) = pick(nth, blocks.len()) {
                    let block = &mut blocks[at];
                    let before = std::ptr::with_exposed_provenance_mut(block.place);
                    // SAFETY: a live block of this layout.
                    act(&mut || block.place = unsafe { std::alloc::realloc(before, block.layout, size) }.expose_provenance());
                    block.layout = Layout::from_size_align(size, block.layout.align()).unwrap();
                },
                Step::Free(nth) => if let Some(at) = pick(nth, blocks.len()) {
                    blocks.swap_remove(at).free();
                },
                Step::FreeElsewhere(nth) => if let Some(at) = pick(nth, blocks.len()) {
                    let block = blocks.swap_remove(at);
                    thread::spawn(move || block.free()).join().unwrap();
                },
                Step::Drain => _ = parent.drain(),
                Step::Remove(at) => if std::mem::take(&mut is_online[at]) {
                    groups[at].remove().unwrap();
                },
            }
            let sum = |owner: usize| blocks.iter().filter(|block| block.owner == Some(owner)).map(Block::charged).sum::<u64>();
            for (at, group) in groups.iter().enumerate() {
                prop_assert_eq!(group.usage_exact(), sum(at), "group {}", at);
            }
            prop_assert_eq!(parent.usage_exact(), (0..5).map(sum).sum::<u64>());
        }
        blocks.into_iter().for_each(Block::free);
        prop_assert_eq!(parent.usage_exact(), 0);
        parent.drain();
        prop_assert_eq!(parent.usage(), 0);
        drop(groups);
        prop_assert_eq!(hierarchy.dying().len(), 0);
    }
}

#[test]
fn blocks_that_may_fail_in_a_removed_group_are_charged_above_it_within_the_limit() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(1 << 20).unwrap();
    let removed = parent.create("removed").unwrap();
    let scope = memgroup::scope::enter(&removed);
    let mut old = Vec::<u8>::with_capacity(80_000);
    removed.remove().unwrap();
    let mut new = Vec::<u8>::new();
    fallible(|| new.try_reserve_exact(100_000)).unwrap();
    fallible(|| old.try_reserve_exact(200_000)).unwrap();
    assert!((300_000..310_000).contains(&parent.usage_exact()), "{}", parent.usage_exact());
    fallible(|| new.try_reserve_exact(1 << 20)).unwrap_err();
    fallible(|| old.try_reserve_exact(1 << 20)).unwrap_err();
    assert!(parent.usage_exact() < 310_000, "a block that failed costs nothing: {}", parent.usage_exact());
    drop((new, old, scope));
    assert_eq!(parent.usage_exact(), 0);
}
