//! Calls that an adapter makes inside an allocator allocate nothing: charges, uncharges and
//! additions to statistics. So do those that bring a group's memory back, or release a group.
#![cfg(not(memgroup_loom))]
#![allow(unsafe_code)]

mod gauges;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use memgroup::{
    Ask, Charge, Config, Count, Freshness, Group, Hierarchy, KillAnswer, KillRequest, Maintenance, Reach,
    Scan, Shrinker, ShrinkerConfig, SlotSource, scope,
};
use memgroup_percpu::pin_virtual;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of each thread's calls.
struct Counting;

// SAFETY: forwards to the system's allocator; the count is a plain cell without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `act` allocates on this thread.
fn allocations(act: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    act();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn groups_that_become_cold_return_or_end_allocate_nothing() {
    let slots = SlotSource::virtual_slots(2).unwrap();
    let hierarchy = Hierarchy::new(Config::with_slots(slots).demote_after(Some(Duration::ZERO))).unwrap();
    let levels = gauges::register(&hierarchy, 3);
    let groups: Vec<Group> =
        (0..500).map(|number| hierarchy.create(&format!("/{number}")).unwrap()).collect();
    for slot in [0, 1] {
        let _pin = pin_virtual(slot);
        let first = || drop(groups[0].try_charge(1).unwrap());
        assert_eq!(allocations(first), 0, "the first charge on slot {slot}");
    }
    let _pin = pin_virtual(0);
    let add = || groups.iter().for_each(|group| levels.add(group, gauges::nth(&levels, 1), 7));
    assert_eq!(allocations(add), 0, "the first additions");
    assert_eq!(gauges::own(&levels, &groups[499], 1), 7);
    let cold = || hierarchy.maintain(Maintenance::new().expedited()).demoted_groups;
    assert_eq!(cold(), 500);
    let mut charges: Vec<Charge> = Vec::with_capacity(groups.len());
    let back = allocations(|| charges.extend(groups.iter().map(|group| group.try_charge(100).unwrap())));
    assert_eq!(back, 0, "all groups came back");
    assert_eq!(allocations(add), 0, "and their statistics");
    let read =
        || assert_eq!(groups.iter().map(|group| gauges::own(&levels, group, 1)).sum::<i64>(), 500 * 14);
    assert_eq!(allocations(read), 0, "reads");
    add();
    assert_eq!(allocations(|| levels.flush(&hierarchy.root())), 0, "a flush of the whole tree");
    let all = levels.get(&hierarchy.root(), gauges::nth(&levels, 1), Reach::Subtree, Freshness::Flushed);
    assert_eq!(all, 500 * 21);
    assert!(cold() >= 500);
    groups.into_iter().for_each(|group| group.remove().unwrap());
    assert_eq!(allocations(|| charges.clear()), 0, "all removed groups were released");
    assert_eq!(hierarchy.dying().len(), 0);
}

/// A cache that never has anything.
struct Nothing;

impl Shrinker for Nothing {
    fn count(&self, _token: u64) -> Count {
        Count::Empty
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Freed { bytes: 0 }
    }
}

#[test]
fn allocates_nothing_when_a_slot_and_its_group_end() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("nothing"), Nothing).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    let groups: Vec<Group> = (0..300).map(|number| parent.create(&format!("{number}")).unwrap()).collect();
    let mut slots: Vec<_> = groups.iter().map(|group| registration.attach(group, 0).unwrap()).collect();
    slots.extend(groups.iter().map(|group| registration.attach(group, 1).unwrap()));
    slots.iter().for_each(|slot| slot.mark());
    let mut charges: Vec<Charge> = groups.iter().map(|group| group.try_charge(100).unwrap()).collect();
    parent.drain();
    groups.into_iter().for_each(|group| group.remove().unwrap());
    assert_eq!(allocations(|| slots.clear()), 0, "all slots are given up");
    assert_eq!(allocations(|| charges.clear()), 0, "all removed groups were released");
    assert_eq!(hierarchy.dying().len(), 0);
}

#[test]
fn a_charge_that_has_others_killed_allocates_nothing() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    let groups: Vec<Group> = (0..300).map(|number| parent.create(&format!("{number}")).unwrap()).collect();
    let _hooks: Vec<_> = groups
        .iter()
        .enumerate()
        .map(|(number, group)| {
            let answer = [KillAnswer::Refused, KillAnswer::Idle { freed: 0 }, KillAnswer::Dying][number % 3];
            group.set_kill_hook(move |_: &KillRequest<'_>| answer).unwrap()
        })
        .collect();
    let charges: Vec<Charge> = groups.iter().map(|group| group.try_charge(100).unwrap()).collect();
    parent.drain();
    parent.set_max(parent.usage()).unwrap();
    let refuse = || assert!(parent.try_charge(1).is_err());
    assert_eq!(allocations(refuse), 0, "one after the other until one dies");
    assert_eq!(parent.events().oom_kill, 1);
    assert_eq!(groups.iter().filter(|group| group.kill_done()).count(), 1);
    parent.set_oom_group(true);
    assert_eq!(allocations(refuse), 0, "all of them");
    assert!(parent.events().oom_kill >= 100 && parent.events().oom_group_kill == 1);
    assert_eq!(allocations(|| drop(charges)), 0, "and their end");
    assert!(hierarchy.kills().len() == 64);
}

#[test]
fn an_uncharge_that_serves_a_waiter_allocates_nothing() {
    let slots = SlotSource::virtual_slots(2).unwrap();
    let hierarchy = Hierarchy::new(Config::with_slots(slots)).unwrap();
    let group = hierarchy.create("/group").unwrap();
    group.set_max(8 << 10).unwrap();
    let mut held = group.try_charge(8 << 10).unwrap();
    let far = std::time::Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| group.charge_until(4 << 10, far)));
        while group.waiters().now < waiters.len() {
            std::thread::yield_now();
        }
        assert_eq!(allocations(|| held.shrink(8 << 10)), 0);
        waiters.into_iter().for_each(|waiter| drop(waiter.join().unwrap().unwrap()));
    });
}

#[test]
fn scopes_stalls_and_triggers_allocate_nothing() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let group = hierarchy.create("/a").and_then(|above| above.create("b")).unwrap();
    let trigger = group.add_pressure_trigger("some 1 500000".parse().unwrap());
    let stall_in_a_scope = || {
        let _scope = scope::enter(&group);
        let _stall = group.stall();
        std::thread::sleep(Duration::from_micros(50));
    };
    let first = std::thread::scope(|threads| threads.spawn(|| allocations(stall_in_a_scope)).join().unwrap());
    assert_eq!(first, 0, "the first of a thread");
    // The list of waits takes memory for 32 waits at a time.
    assert_eq!(group.wait_events(&group.events(), Instant::now()), None);
    assert_eq!(allocations(|| assert!(trigger.wait(Instant::now()))), 0, "it has fired");
    assert_eq!(allocations(|| assert!(group.pressure().some.total > 0)), 0, "a look");
    let again = || {
        let _stall = group.stall();
        assert!(trigger.wait(Instant::now() + Duration::from_secs(60)));
    };
    assert_eq!(allocations(again), 0, "a wait");
}
