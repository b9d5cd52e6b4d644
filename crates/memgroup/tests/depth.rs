//! The deepest tree, on a thread with a small stack.
// Frames of a debug build are several times as large.
#![cfg(all(not(memgroup_loom), not(debug_assertions)))]

use memgroup::{Config, Group, Hierarchy, SlotSource};

const DEPTH: u32 = 256;
const STACK: usize = 32 << 10;

/// The deepest group of a tree with as many levels as there can be.
fn deepest(hierarchy: &Hierarchy) -> Group {
    (1..=DEPTH).fold(hierarchy.root(), |group, _| group.create("g").unwrap())
}

#[test]
fn charges_256_levels_on_a_stack_of_32_kib() {
    for cap in [0, 256 << 10] {
        let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).depth_max(DEPTH);
        let hierarchy = Hierarchy::new(config.stock_cap_bytes(cap)).unwrap();
        let group = deepest(&hierarchy);
        let work = move || {
            let charge = group.try_charge(4096).unwrap();
            let forced = group.charge_forced(4096).unwrap();
            assert_eq!(hierarchy.snapshot().groups.len(), DEPTH as usize + 1);
            group.set_max(8192).unwrap();
            assert!(group.try_charge(1 << 20).is_err());
            drop((charge, forced));
            assert_eq!(hierarchy.root().usage_exact(), 0);
            group.remove().unwrap();
        };
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
        thread.unwrap().join().unwrap();
    }
}
