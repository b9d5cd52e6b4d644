use std::sync::{Arc, Mutex};

use memgroup::{
    Ask, Charge, Config, Count, Freshness, GroupShrinker, Hierarchy, Reach, Scan, Shrinker, ShrinkerConfig,
};

use super::{Action, SUBSYSTEM, Watcher};
use crate::files::Files;
use crate::limit::{LimitSource, ProcessLimit};

const MIB: u64 = 1 << 20;

/// A process with a limit of 1600 MiB. Its memory is the charged bytes and others.
struct Process {
    directory: tempfile::TempDir,
    hierarchy: Hierarchy,
}

impl Process {
    fn new() -> Process {
        let directory = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let process = Process { directory, hierarchy };
        process.write("proc/self/cgroup", "0::/app\n");
        process.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        process.write("sys/fs/cgroup/app/memory.max", "1677721600\n");
        process.write("sys/fs/cgroup/app/memory.stat", "inactive_file 0\n");
        process.uses(0);
        process
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Bytes that are not charged.
    fn uses(&self, others: u64) {
        let used = self.hierarchy.root().usage() + others;
        self.write("sys/fs/cgroup/app/memory.current", &format!("{used}\n"));
    }

    fn watcher(&self) -> Watcher {
        let level = self.directory.path().join("sys/fs/cgroup/app");
        let limit = ProcessLimit { bytes: 1600 * MIB, source: LimitSource::Cgroup(level) };
        let watcher =
            Watcher::new_below(Files::below(self.directory.path()), &self.hierarchy, limit).unwrap();
        watcher.with_purge(|| {})
    }

    fn max(&self) -> u64 {
        self.hierarchy.root().max().unwrap() / MIB
    }

    fn statistic(&self, name: &str) -> i64 {
        let statistics = self.hierarchy.statistics(SUBSYSTEM.name).unwrap();
        let key = statistics.key(name).unwrap();
        statistics.get(&self.hierarchy.root(), key, Reach::Subtree, Freshness::Fresh)
    }
}

struct Cache(Mutex<Vec<Charge>>);

impl Cache {
    fn new(hierarchy: &Hierarchy, mib: u64) -> (Arc<Cache>, GroupShrinker) {
        let group = hierarchy.create("/cache").unwrap();
        let charges = (0..mib).map(|_| group.try_charge(MIB).unwrap()).collect();
        let cache = Arc::new(Cache(Mutex::new(charges)));
        let registered = group.add_shrinker(ShrinkerConfig::new("cache"), Arc::clone(&cache)).unwrap();
        registered.mark();
        (cache, registered)
    }
}

impl Shrinker for Cache {
    fn count(&self, _token: u64) -> Count {
        let entries = self.0.lock().unwrap().len() as u64;
        Count::of(entries * MIB, entries)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let mut charges = self.0.lock().unwrap();
        let count = charges.len().min(ask.bytes().div_ceil(MIB) as usize);
        Scan::Freed { bytes: charges.drain(..count).map(|charge| charge.bytes()).sum() }
    }
}

#[test]
fn lowers_the_limit_and_asks_caches_by_the_excess_and_raises_it_when_calm() {
    let process = Process::new();
    let mut watcher = process.watcher();
    assert_eq!(process.max(), 1400);
    let (_cache, _registered) = Cache::new(&process.hierarchy, 1000);
    process.uses(400 * MIB);
    let check = watcher.check().unwrap();
    assert_eq!((check.action, check.purged, check.charged), (Action::None, None, 1000 * MIB));
    assert_eq!(
        (process.statistic("used"), process.statistic("uncharged")),
        ((1400 * MIB) as i64, (400 * MIB) as i64)
    );
    // 1700 of 1600 are used: 200 more than 15/16.
    process.uses(700 * MIB);
    let check = watcher.check().unwrap();
    assert_eq!((check.action, check.reclaimed), (Action::Lowered(800 * MIB), 200 * MIB));
    assert_eq!(process.hierarchy.root().usage(), 800 * MIB);
    // The caches gave the missing bytes: nothing is above.
    process.uses(700 * MIB);
    assert_eq!((watcher.check().unwrap().action, process.max()), (Action::None, 800));
    // Below 7/8 for eight checks: half of the room.
    process.uses(100 * MIB);
    let actions: Vec<_> = (0..8).map(|_| watcher.check().unwrap().action).collect();
    assert_eq!(actions[..7], [Action::None; 7]);
    assert_eq!(actions[7], Action::Raised(1050 * MIB));
    for _ in 0..100 {
        watcher.check().unwrap();
    }
    assert_eq!(process.max(), 1400, "never above the limit that was set");
    assert_eq!(process.statistic("lowered"), 1);
    assert_eq!(process.statistic("reclaimed"), (200 * MIB) as i64);
    drop(watcher);
    assert_eq!((process.statistic("used"), process.statistic("uncharged")), (0, 0));
}

#[test]
fn the_same_excess_lowers_the_limit_once_and_never_below_its_floor() {
    let process = Process::new();
    let mut watcher = process.watcher();
    let held = process.hierarchy.create("/held").unwrap().try_charge(500 * MIB).unwrap();
    process.uses(1100 * MIB);
    assert_eq!(watcher.check().unwrap().action, Action::Lowered(400 * MIB));
    assert_eq!(watcher.check().unwrap().action, Action::None);
    process.uses(2000 * MIB);
    assert_eq!(watcher.check().unwrap().action, Action::Lowered(100 * MIB));
    assert_eq!(watcher.check().unwrap().action, Action::None);
    drop(held);
    drop(watcher);
    assert_eq!(process.max(), 1400, "the limit that was set is back");
}

#[test]
fn purging_the_allocator_may_be_all_that_is_needed() {
    let process = Process::new();
    let path = process.directory.path().join("sys/fs/cgroup/app/memory.current");
    process.uses(1590 * MIB);
    let purge = move || std::fs::write(&path, (1400 * MIB).to_string()).unwrap();
    let mut watcher = process.watcher().with_purge(purge);
    let check = watcher.check().unwrap();
    assert_eq!((check.action, check.purged, check.used), (Action::None, Some(190 * MIB), 1400 * MIB));
    assert_eq!((process.statistic("purges"), process.statistic("purged")), (1, (190 * MIB) as i64));
}

#[test]
fn pressure_of_the_kernel_has_caches_give_back_although_the_limit_is_far() {
    let process = Process::new();
    let mut watcher = process.watcher();
    let (_cache, _registered) = Cache::new(&process.hierarchy, 100);
    process.uses(0);
    let pressure =
        "some avg10=45.00 avg60=1.00 avg300=0.10 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    process.write("sys/fs/cgroup/app/memory.pressure", pressure);
    let check = watcher.check().unwrap();
    assert_eq!((check.pressure, check.reclaimed, check.action), (Some(45.0), 25 * MIB, Action::None));
}

#[test]
fn a_limit_that_the_user_sets_meanwhile_is_kept() {
    let process = Process::new();
    let mut watcher = process.watcher();
    process.uses(1700 * MIB);
    assert_eq!(watcher.check().unwrap().action, Action::Lowered(100 * MIB));
    process.hierarchy.root().set_max(600 * MIB).unwrap();
    process.uses(0);
    for _ in 0..50 {
        assert_eq!(watcher.check().unwrap().action, Action::None);
    }
    drop(watcher);
    assert_eq!(process.max(), 600);
}

#[test]
fn a_file_that_is_gone_is_named_and_nothing_is_changed() {
    let process = Process::new();
    let mut watcher = process.watcher();
    std::fs::remove_file(process.directory.path().join("sys/fs/cgroup/app/memory.current")).unwrap();
    let error = watcher.check().unwrap_err().to_string();
    assert!(error.contains("app/memory.current: No such file"), "{error}");
    assert_eq!(process.max(), 1400);
}
