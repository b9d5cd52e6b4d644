//! A moment without descriptors: the watcher continues, because its files stay open; and if it has
//! to open one, it tries again.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use memgroup::{Config, Hierarchy};
use memgroup_process::{Check, ProcessLimit, Watcher};

/// The descriptors with a number below this may be opened.
fn allow_descriptors(below: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a `rlimit` to be written.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let before = std::mem::replace(&mut limit.rlim_cur, below);
    // SAFETY: `limit` is a `rlimit` to be read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    before
}

/// Makes the file at `path`, which is open somewhere in this process, fail when it is read.
fn spoil(path: &str) {
    let place = File::open("/proc").expect("a directory cannot be read as a file");
    let open = fs::read_dir("/proc/self/fd").expect("a directory").map(|entry| entry.expect("an entry"));
    let is_it = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().ends_with(path))
    };
    let spoilt: Vec<_> = open.filter(is_it).collect();
    let [entry] = &spoilt[..] else { panic!("{} descriptors of {path}", spoilt.len()) };
    let number = entry.file_name().to_str().and_then(|name| name.parse().ok()).expect("a number");
    // SAFETY: the descriptor stays open, with another file behind it; nothing of its owner depends
    // on which.
    assert_eq!(unsafe { libc::dup2(place.as_raw_fd(), number) }, number);
}

#[test]
fn a_watcher_outlives_a_lack_of_descriptors() {
    let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
    let mut watcher = Watcher::new(&hierarchy, ProcessLimit::of_bytes(1 << 40)).expect("a watcher");
    let (mut phase, mut before, mut used, mut memory) = (0, 0, 0, Vec::new());
    let mut seen: Vec<Check> = Vec::new();
    let outcome = watcher.run_while(Duration::from_millis(1), |check| {
        seen.push(check.clone());
        match (phase, seen.len()) {
            (0, _) => {
                before = allow_descriptors(3);
                let refused = File::open("/dev/null").expect_err("no descriptor is left");
                assert_eq!(refused.raw_os_error(), Some(libc::EMFILE));
                (used, memory) = (check.used, vec![1_u8; 64 << 20]);
                phase = 1;
            }
            (1, 10) => {
                assert!(seen.iter().all(|check| check.error.is_none()), "{seen:?}");
                assert!(check.used >= used + (memory.len() as u64), "the figures are not new");
                allow_descriptors(before);
                spoil("/statm");
                allow_descriptors(3);
                phase = 2;
            }
            (2, 20) => {
                let failed = &seen[10..];
                let says =
                    |check: &Check| check.error.as_deref().is_some_and(|error| error.contains("statm"));
                assert!(failed.iter().all(says), "{failed:?}");
                assert!(
                    check.error.as_deref().is_some_and(|error| error.contains("os error 24")),
                    "{check:?}"
                );
                assert_eq!(check.used, seen[9].used, "the figures of the last check");
                allow_descriptors(before);
                phase = 3;
            }
            (3, _) => {
                assert_eq!(check.error, None);
                return false;
            }
            _ => {}
        }
        true
    });
    outcome.expect("the watcher goes on");
    assert_eq!(phase, 3);
}
