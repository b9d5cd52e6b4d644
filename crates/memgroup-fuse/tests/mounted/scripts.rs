//! The scripts of two kernel letters, rewritten for the mount.
//!
//! The README lists the parts that need objects of the kernel. The program does those here.

use std::process::Command;
use std::sync::{Arc, Mutex};

use memgroup::{Ask, Charge, Config, Count, Hierarchy, Maintenance, Scan, Shrinker, ShrinkerConfig, stats};
use memgroup_fuse::Options;

use super::{mounted, mounted_of};

/// "percpu: partial chunk depopulation": makes some thousand cgroups, removes ten of each eleven,
/// and looks at the per-CPU memory.
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
    // The kernel gives each cgroup its per-CPU memory at once, and the engine with the first charge
    // and the first addition.
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

/// A cache of one group's blocks: it stands for the files of one mount of `tmpfs`, and for its
/// inodes and directory entries.
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

/// The steps of "make slab shrink lockless" that the shell takes: groups below one limit, and a
/// process and a directory for each.
///
/// The letter mounts `tmpfs` in each directory, and writes a file there with `dd`. The first is a
/// shrinker here, and the second a charge.
const SCRIPT: &str = r#"
create() {
    mkdir -p test
    echo $limit > test/memory.max
    for i in `seq 0 $1`; do
        mkdir -p test/$i
        echo $$ > test/$i/cgroup.procs
        mkdir -p $DIR/$i
    done
}
touch() {
    for i in `seq $1 $2`; do
        echo $$ > test/$i/cgroup.procs
    done
}
case "$1" in
    create) create $2 ;;
    touch) touch $2 $3 ;;
    *) exit 1 ;;
esac
"#;

const REFUSED: &str = "echo: write error: Operation not supported";

/// Makes groups from 0 to `last`, and writes 1 MiB in each up to `touched`, by two threads.
fn touches(limit: &str, last: usize, touched: usize) {
    let Some(m) = mounted() else { return };
    let files = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new("bash");
        command.args(["-c", SCRIPT, "script"]).args(arguments).current_dir(m.path("."));
        let output =
            command.env("DIR", files.path()).env("limit", limit).env("LC_ALL", "C").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert!(said.lines().all(|line| line.ends_with(REFUSED)), "{said}");
        said.lines().count()
    };
    assert_eq!(run(&["create", &last.to_string()]), last + 1, "no group takes a process");
    assert_eq!(std::fs::read_dir(files.path()).unwrap().count(), last + 1);
    let max = memgroup::parse_bytes(limit).unwrap().unwrap();
    assert_eq!(m.read("test/memory.max"), format!("{max}\n"));
    assert_eq!(m.read("test/cgroup.stat"), format!("nr_descendants {}\nnr_dying_descendants 0\n", last + 1));
    let test = m.hierarchy.lookup("/test").unwrap();
    // A shrinker for each group, also for those that stay empty.
    let caches: Vec<_> = (0..=last)
        .map(|number| {
            let group = test.child(&number.to_string()).unwrap();
            let held = Arc::new(Mutex::new(Vec::new()));
            let registered =
                group.add_shrinker(ShrinkerConfig::new("tmpfs"), Files(Arc::clone(&held))).unwrap();
            (group, held, registered)
        })
        .collect();
    assert_eq!(run(&["touch", "0", &touched.to_string()]), touched + 1);
    std::thread::scope(|threads| {
        for half in caches[..=touched].chunks(touched / 2 + 1) {
            threads.spawn(move || {
                for (group, held, registered) in half {
                    for _ in 0..(1 << 20) / BLOCK_BYTES {
                        let block = group.try_charge(BLOCK_BYTES).unwrap();
                        held.lock().unwrap().push(block);
                        registered.mark();
                    }
                }
            });
        }
    });
    let written = (touched as u64 + 1) << 20;
    let current: u64 = m.read("test/memory.current").trim_end().parse().unwrap();
    let reclaimed: u64 = m.sh("sed -n 's/^reclaimed //p' test/memory.stat").trim_end().parse().unwrap();
    assert!(current <= max && current > written.min(max) * 3 / 4, "{current}");
    assert_eq!(current + reclaimed, written);
    drop(caches);
    assert_eq!(m.sh("rmdir test/[0-9]* test && cat memory.current"), "0\n");
}

#[test]
fn reclaims_from_many_groups_below_one_limit() {
    touches("100M", 300, 150);
}

#[test]
#[ignore = "starts 12,000 processes"]
fn reclaims_from_as_many_groups_as_in_the_letter() {
    touches("200M", 2000, 1000);
    // The limit of the letter's second script has room for all.
    touches("4G", 4000, 3000);
}
