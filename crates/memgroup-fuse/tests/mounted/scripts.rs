//! The scripts of two kernel letters, written anew for the mount.
//!
//! The parts that need objects of the kernel are these. Processes that are moved into a cgroup (`cgroup.procs`), and files in `tmpfs`, stand for memory
//! that is charged; here the program charges it. The kernel's per-CPU memory is in `/proc/meminfo`; the engine has figures of its own. Version 1's
//! `memory.limit_in_bytes` is `memory.max`.

use std::sync::{Arc, Mutex};

use memgroup::{Ask, Charge, Config, Count, Hierarchy, Maintenance, Scan, Shrinker, ShrinkerConfig, stats};
use memgroup_fuse::Options;

use super::{mounted, mounted_of};

/// "percpu: partial chunk depopulation": makes some thousand cgroups, removes ten of each eleven, and looks at the per-CPU memory.
fn depopulates(rounds: usize) {
    let Some(m) = mounted_of(Hierarchy::new(Config::new()).unwrap(), Options::new()) else { return };
    let percpu = || m.hierarchy.percpu().populated_bytes;
    let before = percpu();
    let said = m.sh(&format!(
        "mkdir percpu_test
         echo '+memory' > percpu_test/cgroup.subtree_control
         for i in $(seq 1 {rounds}); do
             mkdir percpu_test/cg_$i
             for j in $(seq 1 10); do mkdir percpu_test/cg_${{i}}_$j; done
         done
         cat percpu_test/cgroup.stat"
    ));
    assert_eq!(said, format!("nr_descendants {}\nnr_dying_descendants 0\n", 11 * rounds));
    // The kernel gives each cgroup its per-CPU memory at once, and the engine with the first charge and the first addition.
    let memory = m.hierarchy.memory();
    for group in m.hierarchy.groups() {
        drop(group.try_charge(1).unwrap());
        memory.add(&group, stats::memory::FILE, 1);
    }
    let peak = percpu();
    let said = m.sh(&format!(
        "for i in $(seq 1 {rounds}); do
             for j in $(seq 1 10); do rmdir percpu_test/cg_${{i}}_$j; done
         done
         cat percpu_test/cgroup.stat"
    ));
    assert_eq!(said, format!("nr_descendants {rounds}\nnr_dying_descendants 0\n"));
    m.hierarchy.maintain(Maintenance::new().all());
    let after = percpu();
    let said = m.sh(&format!(
        "for i in $(seq 1 {rounds}); do rmdir percpu_test/cg_$i; done
         rmdir percpu_test && cat cgroup.stat"
    ));
    assert_eq!(said, "nr_descendants 0\nnr_dying_descendants 0\n");
    println!("per-CPU memory in bytes: {before}, {peak} with all groups, {after} with one of eleven");
    assert!(before < peak && after - before < (peak - before) / 4, "{before} {peak} {after}");
}

#[test]
fn gives_memory_back_when_ten_of_eleven_groups_are_removed() {
    depopulates(60);
}

#[test]
#[ignore = "starts 22,000 processes"]
fn gives_memory_back_when_ten_of_eleven_of_11_000_groups_are_removed() {
    depopulates(1000);
}

/// A cache of one group's blocks: it stands for the files of one mount of `tmpfs`, and for its inodes and directory entries.
struct Files(Arc<Mutex<Vec<Charge>>>);

impl Shrinker for Files {
    fn count(&self, _: u64) -> Count {
        let Ok(held) = self.0.try_lock() else { return Count::Unknown };
        Count::of(held.iter().map(Charge::bytes).sum(), held.len() as u64)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let Ok(mut held) = self.0.try_lock() else { return Scan::Stopped { bytes: 0 } };
        let blocks = held.len().min(ask.bytes().div_ceil(BLOCK_BYTES) as usize);
        Scan::Freed { bytes: held.drain(..blocks).map(|charge| charge.bytes()).sum() }
    }
}

const BLOCK_BYTES: u64 = 64 << 10;

/// "make slab shrink lockless": many cgroups with a cache each below one limit. More is written than fits, so that charges call shrinkers of all of them.
#[test]
fn reclaims_from_many_groups_below_one_limit() {
    const GROUPS: usize = 400;
    let Some(m) = mounted() else { return };
    let said = m.sh(&format!(
        "mkdir test
         echo 200M > test/memory.max
         for i in $(seq 1 {GROUPS}); do
             mkdir test/$i
             /bin/echo $$ > test/$i/cgroup.procs
         done 2>&1 | sort | uniq -c | sed 's/.*: //'
         cat test/memory.max"
    ));
    assert_eq!(said, "Operation not supported\n209715200\n", "a group has no processes");
    let test = m.hierarchy.lookup("/test").unwrap();
    let caches: Vec<_> = (1..=GROUPS)
        .map(|number| {
            let group = test.child(&number.to_string()).unwrap();
            let held = Arc::new(Mutex::new(Vec::new()));
            let registered =
                group.add_shrinker(ShrinkerConfig::new("tmpfs"), Files(Arc::clone(&held))).unwrap();
            (group, held, registered)
        })
        .collect();
    // `dd bs=1M count=1` in each, by two threads.
    std::thread::scope(|threads| {
        for half in caches.chunks(GROUPS / 2) {
            threads.spawn(move || {
                for (group, held, registered) in half {
                    for _ in 0..16 {
                        let block = group.try_charge(BLOCK_BYTES).unwrap();
                        held.lock().unwrap().push(block);
                        registered.mark();
                    }
                }
            });
        }
    });
    let current: u64 = m.read("test/memory.current").trim_end().parse().unwrap();
    assert!(current <= 200 << 20 && current > 150 << 20, "{current}");
    assert!(m.read("test/memory.stat").contains("\nreclaimed "));
    let reclaimed: u64 = m.sh("sed -n 's/^reclaimed //p' test/memory.stat").trim_end().parse().unwrap();
    assert!(reclaimed >= 200 << 20, "{reclaimed}");
    drop(caches);
    assert_eq!(m.sh("rmdir test/[0-9]* test && cat memory.current"), "0\n");
}
