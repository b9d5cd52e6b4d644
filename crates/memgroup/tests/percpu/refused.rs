//! Memory that the system refuses again and again: nothing is kept of a call that fails but what
//! its next try uses.

use memgroup::{Freshness, GroupError, Hierarchy, Reach, Stat, Subsystem};
use memgroup_sync::inject::refuse_chunks_at;

use super::{config, in_its_own_process, maintain};

/// Bytes of the address space, and resident bytes.
fn bytes() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let mut pages = text.split_whitespace().map(|pages| pages.parse::<u64>().unwrap());
    [(); 2].map(|()| pages.next().unwrap() * 4096)
}

/// The most that a thousand refused calls may leave.
const GROWTH_MOST: u64 = 1 << 20;

/// Calls `refused` a thousand times, and some times before that, for what is made once.
#[track_caller]
fn check_flat(mut refused: impl FnMut(u64)) {
    (0..20).for_each(&mut refused);
    let before = bytes();
    (0..1000).for_each(&mut refused);
    let grown: [u64; 2] = std::array::from_fn(|at| bytes()[at].saturating_sub(before[at]));
    assert!(grown.iter().all(|&grown| grown <= GROWTH_MOST), "address space and memory grew by {grown:?}");
}

const ONE: Subsystem = Subsystem { name: "one", stats: &[Stat::count("things")] };
const TWO: Subsystem = Subsystem { name: "two", stats: &[Stat::count("things"), Stat::gauge("level")] };

#[test]
fn registrations_that_are_refused_leave_nothing() {
    in_its_own_process("refused::registrations_that_are_refused_leave_nothing", || {
        let hierarchy = Hierarchy::new(config(16)).unwrap();
        // In three chunks of nodes.
        let groups: Vec<_> = (0..150).map(|name| hierarchy.create(&format!("/{name}")).unwrap()).collect();
        check_flat(|round| {
            // Once there is one of the three chunks of values that it takes.
            let _guard = refuse_chunks_at(1 + u64::from(round == 7)..=u64::MAX);
            let error = hierarchy.register([ONE, TWO][round as usize % 2]).unwrap_err().to_string();
            assert!(error.contains("memory"), "{error}");
        });
        assert_eq!(hierarchy.subsystems().len(), 3);
        // Both are registered by the next call that is not refused, and count in each group.
        for (subsystem, number) in [(ONE, 4), (TWO, 5)] {
            let statistics = hierarchy.register(subsystem).unwrap();
            let key = statistics.key("things").unwrap();
            groups.iter().for_each(|group| statistics.add(group, key, 1));
            let sum = statistics.get(&hierarchy.root(), key, Reach::Subtree, Freshness::Fresh);
            assert_eq!((sum, hierarchy.subsystems().len()), (150, number));
        }
    });
}

#[test]
fn groups_that_are_refused_leave_nothing() {
    in_its_own_process("refused::groups_that_are_refused_leave_nothing", || {
        let hierarchy = Hierarchy::new(config(16)).unwrap();
        // All places of the first chunk of nodes.
        let groups: Vec<_> = (1..64).map(|name| hierarchy.create(&format!("/{name}")).unwrap()).collect();
        let mut refused = 0;
        check_flat(|_| {
            // It takes flushed values of three subsystems, nodes, rare words and entries. Each try
            // gets one of these.
            let guard = refuse_chunks_at(2..=u64::MAX);
            match hierarchy.create("/more") {
                Ok(group) => {
                    drop(guard);
                    group.remove().unwrap();
                    drop(group);
                    maintain(&hierarchy);
                }
                Err(GroupError::OutOfMemory { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        });
        assert!(refused > 800, "{refused} of 1020 calls are refused");
        let more = hierarchy.create("/more").unwrap();
        let charges: Vec<_> =
            groups.iter().chain([&more]).map(|group| group.try_charge(7).unwrap()).collect();
        assert_eq!(hierarchy.root().usage_exact(), 64 * 7);
        drop(charges);
        assert_eq!(hierarchy.root().usage_exact(), 0);
    });
}
