use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{
    Ask, Charge, Config, Count, Freshness, GroupShrinker, Hierarchy, Reach, Scan, Shrinker, ShrinkerConfig,
};

use super::{Action, SUBSYSTEM, Watcher, next_within};
use crate::files::{Files, ProcessError};
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
        self.watcher_of_files().unwrap()
    }

    fn watcher_of_files(&self) -> Result<Watcher, ProcessError> {
        let level = self.directory.path().join("sys/fs/cgroup/app");
        let limit = ProcessLimit { bytes: 1600 * MIB, source: LimitSource::Cgroup(level) };
        let watcher = Watcher::new_below(&Files::below(self.directory.path()), &self.hierarchy, limit)?;
        Ok(watcher.with_purge(|| {}).leave_malloc())
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
    process.uses(100 * MIB);
    let check = watcher.check().unwrap();
    assert_eq!((check.action, check.purged, check.charged), (Action::None, None, 1000 * MIB));
    // 1400 are used. Charges up to 1400 would make them 1800.
    process.uses(400 * MIB);
    let check = watcher.check().unwrap();
    assert_eq!((check.action, check.purged, check.reclaimed), (Action::Lowered(1100 * MIB), Some(0), 0));
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
    assert_eq!(process.statistic("lowered"), 2);
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
    let purge = move || std::fs::write(&path, (100 * MIB).to_string()).unwrap();
    let mut watcher = process.watcher().with_purge(purge);
    let check = watcher.check().unwrap();
    assert_eq!((check.action, check.purged, check.used), (Action::None, Some(1490 * MIB), 100 * MIB));
    assert_eq!((process.statistic("purges"), process.statistic("purged")), (1, (1490 * MIB) as i64));
}

#[test]
fn an_allocator_that_gives_nothing_back_is_purged_again_when_it_keeps_more() {
    let process = Process::new();
    let mut watcher = process.watcher();
    let mut purges = |uncharged: u64| {
        process.uses(uncharged * MIB);
        let check = watcher.check().unwrap();
        (check.purged.is_some(), check.action)
    };
    assert_eq!(purges(125), (false, Action::None), "100 are the margin, and 25 a 64th of the limit");
    assert_eq!(purges(126), (true, Action::Lowered(1374 * MIB)));
    assert_eq!(purges(150), (false, Action::None));
    assert_eq!(purges(152), (true, Action::Lowered(1348 * MIB)));
    assert_eq!(purges(1600), (true, Action::Lowered(100 * MIB)));
    assert_eq!(purges(1600), (false, Action::None));
}

#[test]
fn what_an_allocator_keeps_between_two_purges_is_a_part_of_the_margin() {
    let process = Process::new();
    let path = process.directory.path().join("sys/fs/cgroup/app/memory.current");
    let purge = move || std::fs::write(&path, (100 * MIB).to_string()).unwrap();
    let mut watcher = process.watcher().with_purge(purge);
    // The first purge frees what was kept for an unknown time.
    process.uses(800 * MIB);
    let check = watcher.check().unwrap();
    assert_eq!((check.purged, check.action), (Some(700 * MIB), Action::None));
    process.uses(300 * MIB);
    let check = watcher.check().unwrap();
    assert_eq!((check.purged, check.action), (Some(200 * MIB), Action::Lowered(1200 * MIB)));
    // It is forgotten, and the limit rises again.
    let mut rises = Vec::new();
    for _ in 0..1000 {
        if let Action::Raised(max) = watcher.check().unwrap().action {
            rises.push(max / MIB);
        }
    }
    assert!(rises[0] < 1250 && rises.is_sorted(), "{rises:?}");
    assert_eq!(process.max(), 1400, "{rises:?}");
}

#[test]
fn the_next_check_comes_before_the_processors_can_fill_the_room() {
    let (gib, ms) = (1 << 30, Duration::from_millis);
    assert_eq!(next_within(4 * gib, 1), ms(1000));
    assert_eq!(next_within(4 * gib, 100), ms(10));
    assert_eq!(next_within(100, 1), ms(1));
    assert_eq!(next_within(0, 1), ms(1));
    let process = Process::new();
    process.uses(600 * MIB);
    let mut watcher = process.watcher();
    watcher.processors = 2;
    assert_eq!(watcher.check().unwrap().next_within, Duration::from_secs_f64(1000.0 / 8192.0));
}

#[test]
fn early_checks_do_not_count_as_calm_ones() {
    let process = Process::new();
    let mut watcher = process.watcher();
    process.uses(1300 * MIB);
    assert_eq!(watcher.check().unwrap().action, Action::Lowered(200 * MIB));
    process.uses(1100 * MIB);
    for _ in 0..100 {
        assert_eq!(watcher.check_as(false).unwrap().action, Action::None);
    }
    let actions: Vec<_> = (0..8).map(|_| watcher.check().unwrap().action).collect();
    assert_eq!(actions[..7], [Action::None; 7]);
    assert_eq!(actions[7], Action::Raised(350 * MIB));
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
    let path = process.directory.path().join("sys/fs/cgroup/app/memory.stat");
    std::fs::remove_file(&path).unwrap();
    // This one was opened before, so it is read as it was.
    watcher.check().unwrap();
    std::fs::write(&path, "inactive_file many\n").unwrap();
    let mut fresh = process.watcher_of_files();
    let error = fresh.as_mut().unwrap_err().to_string();
    assert!(error.contains("app/memory.stat: invalid digit"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = process.watcher_of_files().unwrap_err().to_string();
    assert!(error.contains("app/memory.stat: No such file"), "{error}");
    assert_eq!(process.max(), 1400);
}

#[test]
fn a_watcher_ends_with_an_error_that_does_not_pass() {
    let process = Process::new();
    let mut watcher = process.watcher();
    process.write("sys/fs/cgroup/app/memory.current", "much\n");
    let mut asked = 0;
    let error = watcher.run_while(Duration::ZERO, |_| {
        asked += 1;
        asked < 10
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("app/memory.current: \"much\""), "{error}");
    assert_eq!((asked, process.max()), (0, 1400));
}
