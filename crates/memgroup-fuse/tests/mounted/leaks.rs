//! Nothing is left of descriptors, groups and mounts that are gone.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use memgroup::Hierarchy;
use memgroup_fuse::{Options, mount};
use xtask::Watchdog;

use super::{Mounted, can_mount, exact, mounted};

/// Runs the test in a process of its own, because it counts descriptors and threads of the process.
fn alone(path: &str, test: impl FnOnce()) {
    const MARK: &str = "MEMGROUP_TEST_ALONE";
    if std::env::var_os(MARK).is_some_and(|value| value == path) {
        return test();
    }
    if !can_mount() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let arguments = [path, "--exact", "--nocapture", "--test-threads=1"];
    let output = Command::new(this).args(arguments).env(MARK, path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}

/// The number of open descriptors and of threads of this process.
fn held() -> (usize, usize) {
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// The same, when no thread of a removal is left: it answers before it ends.
fn held_at_rest() -> (usize, usize) {
    let names = || fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path().join("comm"));
    // A thread may end in the meantime.
    let is_worker = |name| fs::read_to_string(name).is_ok_and(|name| name == "memgroup-remove\n");
    while names().any(is_worker) {
        thread::yield_now();
    }
    held()
}

/// Rounds so far: the progress of the tests.
static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// A thread that is counted before, too.
fn watchdog() -> Watchdog {
    // ORDERING: Relaxed; a count.
    Watchdog::new(|| ROUNDS.load(Relaxed), || format!("{:?} descriptors and threads", held()))
}

/// Waits until the process holds as much as before: the system lists a joined thread for a moment
/// longer.
fn wait_until_held(before: (usize, usize)) {
    while held() != before {
        thread::yield_now();
    }
}

fn use_it(m: &Mounted, rounds: usize) {
    for round in 0..rounds {
        // ORDERING: Relaxed; a count.
        ROUNDS.fetch_add(1, Relaxed);
        fs::create_dir(m.path("a")).unwrap();
        fs::create_dir(m.path("a/b")).unwrap();
        let kept: Vec<File> =
            ["memory.current", "memory.events", "memory.peak", "memory.pressure", "memory.stat"]
                .iter()
                .map(|name| OpenOptions::new().read(true).write(true).open(m.path("a/b").join(name)).unwrap())
                .collect();
        (&kept[2]).write_all(b"1").unwrap();
        (&kept[3]).write_all(b"some 150000 1000000").unwrap();
        for file in &kept {
            file.read_at(&mut [0; 64], 0).unwrap();
        }
        assert_eq!(fs::read_dir(m.path("a")).unwrap().count(), 1 + m.hierarchy.files().len());
        m.write("a/b/memory.max", "1M").unwrap();
        m.sh("chmod 0600 a/b/memory.max");
        if round % 2 == 0 {
            drop(kept);
            fs::remove_dir(m.path("a/b")).unwrap();
            fs::remove_dir(m.path("a")).unwrap();
        } else {
            // The group goes first.
            fs::remove_dir(m.path("a/b")).unwrap();
            fs::remove_dir(m.path("a")).unwrap();
            drop(kept);
        }
    }
}

#[test]
fn loops_leave_no_group_and_no_descriptor() {
    alone("leaks::loops_leave_no_group_and_no_descriptor", || {
        let _watchdog = watchdog();
        let Some(m) = mounted() else { return };
        use_it(&m, 4);
        let before = held_at_rest();
        use_it(&m, 200);
        wait_until_held(before);
        let snapshot = m.hierarchy.snapshot();
        assert_eq!(snapshot.groups.len(), 1, "{:?}", snapshot.groups);
        assert!(m.hierarchy.waits().is_empty());
    });
}

#[test]
fn mounts_leave_no_thread_no_descriptor_and_no_handle() {
    alone("leaks::mounts_leave_no_thread_no_descriptor_and_no_handle", || {
        let (_watchdog, folder) = (watchdog(), tempfile::tempdir().unwrap());
        let before = held();
        for round in 0..20 {
            // ORDERING: Relaxed; a count.
            ROUNDS.fetch_add(1, Relaxed);
            let hierarchy = Hierarchy::new(exact()).unwrap();
            let group = hierarchy.create("/a").unwrap();
            let mounted = mount(&hierarchy, folder.path(), Options::new()).unwrap();
            let file = File::open(folder.path().join("a/memory.events")).unwrap();
            file.read_at(&mut [0; 64], 0).unwrap();
            if round % 2 == 0 {
                mounted.unmount().unwrap();
            } else {
                drop(mounted);
            }
            assert!(file.read_at(&mut [0; 64], 0).is_err());
            drop(file);
            wait_until_held(before);
            // The tree ends with its last handle, so this one is the last.
            drop(hierarchy);
            let weak = group.downgrade();
            drop(group);
            assert!(weak.upgrade().is_none(), "round {round}");
        }
    });
}
