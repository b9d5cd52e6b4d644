//! Writes and callbacks that take long, tenants at their limit, and locks: they hold up no other
//! request.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use memgroup::{Ask, Charge, Count, Group, Scan, Shrinker, ShrinkerConfig};
use memgroup_fuse::Options;
use rustix::io::Errno;
use xtask::Watchdog;

use super::rights::{USER, sh_as};
use super::{mounted, mounted_with, number};

/// A cache that frees nothing until it is allowed to.
#[derive(Clone, Default)]
struct Slow(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    held: Vec<Charge>,
    scans: usize,
    may_free: bool,
}

impl Slow {
    fn of(group: &Group) -> Slow {
        let slow = Slow::default();
        slow.0.0.lock().unwrap().held.push(group.try_charge(1 << 20).unwrap());
        slow
    }

    fn wait_until(&self, is_so: impl Fn(&State) -> bool) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |state| !is_so(state)).unwrap());
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }
}

impl Shrinker for Slow {
    fn count(&self, _: u64) -> Count {
        Count::of(1 << 20, 1)
    }

    fn scan(&self, _: &Ask<'_>) -> Scan {
        self.change(|state| state.scans += 1);
        self.wait_until(|state| state.may_free);
        let freed = std::mem::take(&mut self.0.0.lock().unwrap().held);
        Scan::Freed { bytes: freed.iter().map(Charge::bytes).sum() }
    }
}

#[test]
fn answers_while_more_writes_to_reclaim_wait_than_there_are_workers() {
    const GROUPS: usize = 8;
    let Some(m) = mounted() else { return };
    let _watchdog = Watchdog::over("requests beside slow writes");
    let made = (0..GROUPS).map(|number| {
        let group = m.hierarchy.create(&format!("/{number}")).unwrap();
        let slow = Slow::of(&group);
        let registered = group.add_shrinker(ShrinkerConfig::new("slow"), slow.clone()).unwrap();
        registered.mark();
        (slow, registered)
    });
    let (caches, registered): (Vec<Slow>, Vec<_>) = made.unzip();
    thread::scope(|threads| {
        let writes: Vec<_> = (0..GROUPS)
            .map(|number| {
                let m = &m;
                threads.spawn(move || m.write(&format!("{number}/memory.reclaim"), "1M"))
            })
            .collect();
        let scans = || caches.iter().map(|cache| cache.0.0.lock().unwrap().scans).sum::<usize>();
        while scans() < 4 {
            thread::yield_now();
        }
        for number in 0..GROUPS {
            assert_eq!(m.read(&format!("{number}/memory.current")), "1048576\n");
            m.write(&format!("{number}/memory.high"), "max").unwrap();
        }
        fs::create_dir(m.path("new")).unwrap();
        fs::remove_dir(m.path("new")).unwrap();
        assert_eq!(scans(), 4, "the others wait for a worker");
        caches.iter().for_each(|cache| cache.change(|state| state.may_free = true));
        for write in writes {
            assert_eq!(write.join().unwrap(), Ok(()));
        }
    });
    assert_eq!(m.read("memory.current"), "0\n");
    assert_eq!(m.write("0/memory.reclaim", "1M"), Err(Errno::AGAIN), "nothing is left");
    drop(registered);
}

#[test]
fn answers_another_user_beside_slow_writes() {
    const GROUPS: usize = 5;
    let Some(m) = mounted_with(Options::new().allow_other(true)) else { return };
    fs::set_permissions(m.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let _watchdog = Watchdog::over("a write beside those of another user");
    let cache = |name: &str| {
        let group = m.hierarchy.create(name).unwrap();
        let slow = Slow::of(&group);
        let registered = group.add_shrinker(ShrinkerConfig::new("slow"), slow.clone()).unwrap();
        registered.mark();
        (slow, registered)
    };
    let (fast, _fast) = cache("/user");
    fast.change(|state| state.may_free = true);
    chown(m.path("user/memory.reclaim"), Some(USER), None).unwrap();
    let (slow, _slow): (Vec<Slow>, Vec<_>) = (0..GROUPS).map(|name| cache(&format!("/{name}"))).unzip();
    thread::scope(|threads| {
        for name in 0..GROUPS {
            let m = &m;
            threads.spawn(move || m.write(&format!("{name}/memory.reclaim"), "1M").unwrap());
        }
        while slow.iter().map(|cache| cache.0.0.lock().unwrap().scans).sum::<usize>() < 4 {
            thread::yield_now();
        }
        let said = sh_as(USER, m.folder.path(), "echo 1M > user/memory.reclaim && cat user/memory.current");
        assert_eq!(said, "0\n");
        slow.iter().for_each(|cache| cache.change(|state| state.may_free = true));
    });
}

#[test]
fn answers_while_callbacks_of_removed_groups_hang() {
    const MOST: usize = 16;
    let Some(m) = mounted() else { return };
    let _watchdog = Watchdog::over("requests beside callbacks that hang");
    let (called, calls) = channel();
    let (release, is_released) = channel::<()>();
    let is_released = Arc::new(Mutex::new(is_released));
    for name in 0..=MOST {
        let group = m.hierarchy.create(&format!("/{name}")).unwrap();
        let (called, is_released) = (called.clone(), Arc::clone(&is_released));
        let hang = move |_| {
            called.send(()).unwrap();
            // It returns when the sender is dropped.
            _ = is_released.lock().unwrap().recv();
        };
        group.on_end(hang).unwrap();
    }
    for name in 0..MOST {
        fs::remove_dir(m.path(&name.to_string())).unwrap();
        calls.recv().unwrap();
        assert!(!m.path(&name.to_string()).exists());
    }
    let last = MOST.to_string();
    assert_eq!(number(fs::remove_dir(m.path(&last))), Err(Errno::BUSY), "all threads are taken");
    // The kernel's lock of the parent is free: it is listed, and has new groups.
    let directories = || fs::read_dir(m.folder.path()).unwrap().flatten();
    let directories = || directories().filter(|entry| entry.file_type().unwrap().is_dir()).count();
    assert_eq!(directories(), 1);
    fs::create_dir(m.path("0")).unwrap();
    assert_eq!((m.read("0/memory.current").as_str(), directories()), ("0\n", 2));
    drop(release);
    while number(fs::remove_dir(m.path(&last))) == Err(Errno::BUSY) {
        thread::yield_now();
    }
    assert_eq!((calls.recv(), m.path(&last).exists()), (Ok(()), false));
}

#[test]
fn answers_beside_a_tenant_at_its_limit_that_waits() {
    let Some(m) = mounted() else { return };
    let _watchdog = Watchdog::over("requests beside a charge that waits");
    let tenant = m.hierarchy.create("/a").unwrap();
    tenant.set_max(1000).unwrap();
    let held = tenant.try_charge(1000).unwrap();
    thread::scope(|threads| {
        let waiting = threads
            .spawn(|| tenant.charge_until(500, memgroup::Deadline::NEVER).map(|charge| charge.bytes()));
        while m.hierarchy.waits().is_empty() {
            thread::yield_now();
        }
        assert_eq!(m.read("a/memory.current"), "1000\n");
        assert!(m.read("a/memory.stat").contains("\ncharges "));
        // An operator lets it in.
        m.write("a/memory.max", "2000").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 500);
    });
    drop(held);
}

#[test]
fn reads_in_the_middle_of_a_storm_of_charges() {
    let Some(m) = mounted() else { return };
    let groups: Vec<_> = (0..4).map(|number| m.hierarchy.create(&format!("/{number}")).unwrap()).collect();
    groups[0].set_max(5000).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        for group in &groups {
            threads.spawn(|| {
                // ORDERING: Relaxed; it orders nothing.
                while !is_over.load(Relaxed) {
                    let held: Vec<_> = (0..50).map(|_| group.try_charge(1000)).collect();
                    drop(held);
                    thread::sleep(Duration::from_micros(100));
                }
            });
        }
        let file = File::open(m.path("0/memory.current")).unwrap();
        for _ in 0..500 {
            let mut text = [0; 32];
            let bytes = file.read_at(&mut text, 0).unwrap();
            let current: u64 = str::from_utf8(&text[..bytes]).unwrap().trim_end().parse().unwrap();
            assert!(current <= 5000, "{current}");
            m.read("memory.events");
        }
        // ORDERING: Relaxed, as above.
        is_over.store(true, Relaxed);
    });
    assert_eq!(m.read("memory.current"), "0\n");
}
