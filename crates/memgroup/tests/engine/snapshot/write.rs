//! Writes to files.

use std::io;
use std::sync::{Arc, Mutex};

use memgroup::{Ask, BYTES_MAX, Count, FILES, FileProblem, Group, Scan, Shrinker, ShrinkerConfig};

use super::{Cache, cache, hierarchy};

#[test]
fn writes_a_limit_as_it_is_read() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    for (text, max) in [
        ("512M\n", Some(512 << 20)),
        ("4096", Some(4096)),
        (" 1G ", Some(1 << 30)),
        ("0", Some(0)),
        ("max\n", None),
    ] {
        group.write_file("memory.max", text).unwrap();
        assert_eq!(group.max(), max, "{text:?}");
        let shown = group.read_file("memory.max").unwrap();
        group.write_file("memory.max", &shown).unwrap();
        assert_eq!(group.max(), max, "a shown text can be written: {shown:?}");
    }
}

#[test]
fn writes_every_setting_as_it_is_shown() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    for (file, at_first, text, shown) in [
        ("memory.max", "max\n", "8M", "8388608\n"),
        ("memory.high", "max\n", "6M", "6291456\n"),
        ("memory.low", "0\n", "4M", "4194304\n"),
        ("memory.min", "0\n", "max", "max\n"),
        ("memory.oom.group", "0\n", "1\n", "1\n"),
        ("memory.share", "0\n", "8", "8\n"),
        ("memgroup.reserve_min", "0\n", "1", "1\n"),
        ("memgroup.oom_score", "0\n", "-1000", "-1000\n"),
        ("memgroup.weight", "100\n", "10000", "10000\n"),
        ("memgroup.enforced", "1\n", "0", "0\n"),
        ("cgroup.max.descendants", "max\n", "100", "100\n"),
        ("cgroup.max.depth", "max\n", "0", "0\n"),
    ] {
        let file_now = || group.read_file(file).unwrap();
        assert_eq!(file_now(), at_first, "{file}");
        for text in [text, shown] {
            group.write_file(file, text).unwrap();
            assert_eq!(file_now(), shown, "{file}");
        }
    }
    assert_eq!((group.max(), group.high()), (Some(8 << 20), Some(6 << 20)));
    assert_eq!((group.low(), group.min()), (4 << 20, BYTES_MAX));
    assert_eq!((group.oom_group(), group.oom_score(), group.weight()), (true, -1000, 10_000));
    assert!(!group.is_enforced());
    assert_eq!((group.max_descendants(), group.max_depth()), (Some(100), Some(0)));
    for file in ["cgroup.max.descendants", "cgroup.max.depth"] {
        group.write_file(file, " max\n").unwrap();
    }
    assert_eq!((group.max_descendants(), group.max_depth()), (None, None));
    group.write_file("memory.share", "0").unwrap();
    assert_eq!(group.share(), None);
}

#[test]
fn refuses_invalid_text_and_says_which_is_valid() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    group.set_max(4096).unwrap();
    let long = "9".repeat(5000);
    for (file, text, said) in [
        ("memory.max", "lots", "\"lots\" is not a number of bytes: it has no digits; write digits"),
        ("memory.max", "-1", "it is negative"),
        ("memory.max", "", "no digits"),
        ("memory.max", "1 2", "suffix is unknown"),
        ("memory.max", "512T", "256 TiB"),
        ("memory.max", "18446744073709551615", "256 TiB"),
        ("memory.max", &long, "a text of 5000 bytes"),
        ("memory.high", "1.5G", "it has a fraction"),
        ("memory.low", "4 M", "suffix is unknown"),
        ("memory.min", "-4096", "it is negative"),
        ("memory.oom.group", "2", "neither 0 nor 1"),
        ("memory.oom.group", "yes", "neither 0 nor 1"),
        ("memory.share", "1025", "1 to 1024; None turns it off, as 0 in memory.share does"),
        ("memory.share", "-8", "no whole number from 0 to 1024"),
        ("memgroup.reserve_min", "yes", "neither 0 nor 1"),
        ("memgroup.oom_score", "1001", "-1000"),
        ("memgroup.oom_score", "high", "no whole number from -1000 to 1000"),
        ("memgroup.oom_score", "99999999999", "no whole number from -1000 to 1000"),
        ("memgroup.weight", "0", "1 to 10000"),
        ("memgroup.weight", "-1", "no whole number from 1 to 10000"),
        ("memgroup.weight", "99999999999", "no whole number from 1 to 10000"),
        ("memgroup.enforced", "", "neither 0 nor 1"),
        ("cgroup.max.descendants", "-1", "no whole number from 0 to 4294967295, or max for no bound"),
        ("cgroup.max.descendants", "4294967296", "no whole number from 0 to 4294967295"),
        ("cgroup.max.depth", "", "no whole number from 0 to 4294967295"),
        ("cgroup.max.depth", "1K", "no whole number from 0 to 4294967295"),
        ("memory.reclaim", "max", "no number of bytes that could be freed"),
        ("memory.reclaim", "1M swappiness=60", "nothing is swapped here"),
        ("memory.reclaim", "", "no digits"),
    ] {
        let error = group.write_file(file, text).unwrap_err();
        let printed = error.to_string();
        assert!(matches!(error.problem, FileProblem::Text(_)), "{printed}");
        assert!(
            printed.starts_with(&format!("write {file} of group /a: ")) && printed.contains(said),
            "{printed}"
        );
        assert!(printed.len() < 400, "{printed}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(group.max(), Some(4096));
}

#[test]
fn refuses_unknown_and_read_only_files() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    for (file, said, kind) in [
        ("memory.swap.max", "there is no such file", io::ErrorKind::NotFound),
        ("io.stat\n", "\"io.stat\\n\"", io::ErrorKind::NotFound),
        ("memory.current", "it can only be read", io::ErrorKind::PermissionDenied),
    ] {
        let error = group.write_file(file, "1").unwrap_err();
        let printed = error.to_string();
        assert!(
            printed.contains(said) && printed.contains("can be written: memory.max, memory.high"),
            "{printed}"
        );
        assert_eq!(io::Error::from(error).kind(), kind);
    }
    let writable = FILES.iter().filter(
        |file| !matches!(group.write_file(file, ""), Err(error) if error.problem == FileProblem::ReadOnly),
    );
    assert_eq!(writable.count(), 17);
}

#[test]
fn takes_only_what_is_so_in_files_about_processes_and_subsystems() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    for text in ["+memory", "+memory +io\n", " \n", ""] {
        group.write_file("cgroup.subtree_control", text).unwrap();
    }
    for (file, text, said, kind) in [
        ("cgroup.subtree_control", "+memory -io", "on in every group", io::ErrorKind::Unsupported),
        ("cgroup.subtree_control", "+pids", "+memory, +cpu, +io", io::ErrorKind::InvalidInput),
        ("cgroup.subtree_control", "memory", "turns no subsystem on", io::ErrorKind::InvalidInput),
        ("cgroup.procs", "1", "no processes", io::ErrorKind::Unsupported),
        ("cgroup.threads", "", "no processes", io::ErrorKind::Unsupported),
        ("cgroup.type", "threaded\n", "no threads", io::ErrorKind::Unsupported),
        ("cgroup.type", "domain", "every group is a domain", io::ErrorKind::InvalidInput),
    ] {
        let error = group.write_file(file, text).unwrap_err();
        assert!(error.to_string().starts_with(&format!("write {file} of group /a: ")), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(io::Error::from(error).kind(), kind, "{file}: {text:?}");
    }
}

#[test]
fn refuses_writes_to_a_removed_group() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    group.remove().unwrap();
    for file in ["memory.max", "memory.reclaim"] {
        let error = group.write_file(file, "0").unwrap_err();
        assert_eq!(
            (error.path.as_str(), error.file.as_str(), &error.problem),
            ("/a", file, &FileProblem::Offline)
        );
        assert_eq!(error.to_string(), format!("write {file} of group /a: the group was removed"));
    }
}

#[test]
fn reclaims_the_requested_bytes_or_tells_how_many() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    let plans = cache(&group, 10, 100_000);
    group.write_file("memory.reclaim", "250000\n").unwrap();
    assert_eq!(group.usage_exact(), 700_000, "in whole charges");
    group.write_file("memory.reclaim", "0").unwrap();
    assert_eq!(group.usage_exact(), 700_000);
    let error = group.write_file("memory.reclaim", "1M").unwrap_err();
    let FileProblem::Short { asked_bytes, freed_bytes } = error.problem else { panic!("{error}") };
    assert_eq!((asked_bytes, freed_bytes, group.usage_exact()), (1 << 20, 700_000, 0));
    assert!(error.to_string().contains("700000 of 1048576 bytes were freed"), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::WouldBlock);
    drop(plans);
    let error = group.write_file("memory.reclaim", "1").unwrap_err();
    assert!(matches!(error.problem, FileProblem::Short { freed_bytes: 0, .. }), "{error}");
}

/// A cache that gives one thing back and then cannot go on.
struct Halting(Cache);

impl Shrinker for Halting {
    fn count(&self, token: u64) -> Count {
        self.0.count(token)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        match self.0.scan(ask) {
            Scan::Freed { bytes } | Scan::Stopped { bytes } => Scan::Stopped { bytes },
        }
    }
}

#[test]
fn reclaims_in_rounds_while_they_free_memory() {
    const CHARGES: usize = 200;
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    let held = (0..CHARGES).map(|_| group.try_charge(100_000).unwrap()).collect();
    let halting = Halting(Cache(std::sync::Arc::new(std::sync::Mutex::new(held))));
    let registered = group.add_shrinker(ShrinkerConfig::new("halting"), halting).unwrap();
    registered.mark();
    let one_round = group.reclaim(u64::MAX / 2, None).bytes;
    assert!(0 < one_round && one_round < 50 * 100_000, "{one_round}");
    let rest = group.usage_exact();
    group.write_file("memory.reclaim", &rest.to_string()).unwrap();
    assert_eq!(group.usage_exact(), 0);
    drop(registered);
}

/// A cache that gives back while its group is removed.
struct Leaving {
    cache: Halting,
    group: Group,
}

impl Shrinker for Leaving {
    fn count(&self, token: u64) -> Count {
        self.cache.count(token)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        // The second time it was removed already.
        let _ = self.group.remove();
        self.cache.scan(ask)
    }
}

#[test]
fn stops_reclaim_when_the_group_is_removed() {
    const CHARGES: u64 = 200;
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    let held = (0..CHARGES).map(|_| group.try_charge(100_000).unwrap()).collect();
    let cache = Halting(Cache(Arc::new(Mutex::new(held))));
    let registered =
        group.add_shrinker(ShrinkerConfig::new("leaving"), Leaving { cache, group: group.clone() }).unwrap();
    registered.mark();
    let error = group.write_file("memory.reclaim", &(CHARGES * 100_000).to_string()).unwrap_err();
    let FileProblem::Short { freed_bytes, .. } = error.problem else { panic!("{error}") };
    assert!(0 < freed_bytes && freed_bytes < 50 * 100_000, "{freed_bytes} bytes: it went on");
    assert!(!group.is_online());
    registered.remove().unwrap();
}
