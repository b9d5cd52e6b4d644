//! The files byte for byte, as the kernel's documentation of cgroup v2 gives their formats.

use memgroup::{FILES, Stat, Subsystem, scope, stats};

use super::hierarchy;

#[test]
fn shows_every_file_in_its_documented_format() {
    let h = hierarchy();
    let parent = h.create("/tenants").unwrap();
    let group = parent.create("alice").unwrap();
    group.set_max(1 << 20).unwrap();
    parent.create("bob").unwrap();
    let held = group.try_charge(600_000).unwrap();
    group.try_charge(600_000).unwrap_err();
    let (io, memory) = (h.io(), h.memory());
    for (stat, value) in [(stats::io::RBYTES, 1_459_200), (stats::io::RIOS, 192), (stats::io::SYNCS, 2)] {
        io.add(&group, stat, value);
    }
    memory.add(&group, stats::memory::FILE, 4096);
    drop(scope::enter(&group));
    let file = |name: &str| parent.read_file(name).unwrap_or_else(|| panic!("{name}"));

    // Single values, each with a newline.
    assert_eq!(file("memory.max"), "max\n");
    assert_eq!(file("memory.current"), "600000\n");
    assert_eq!(file("memory.peak"), "600000\n");
    assert_eq!(group.read_file("memory.max").unwrap(), "1048576\n");
    // Space-separated values.
    assert_eq!(file("cgroup.controllers"), "memory cpu io\n");
    // Flat keyed.
    assert_eq!(file("memory.events"), "low 0\nhigh 0\nmax 1\noom 1\noom_kill 0\noom_group_kill 0\n");
    assert_eq!(file("memory.events.local"), "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n");
    assert_eq!(file("cgroup.events"), "populated 1\nfrozen 0\n");
    assert_eq!(file("cgroup.stat"), "nr_descendants 2\nnr_dying_descendants 0\n");
    assert_eq!(
        file("memory.pressure"),
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    );
    let snapshot = h.snapshot();
    let shown = snapshot.group("/tenants").unwrap();
    let spent = shown.statistic(stats::cpu::SCOPE_USEC, memgroup::Reach::Subtree).unwrap();
    assert_eq!(file("cpu.stat"), format!("scope_usec {spent}\nnr_scopes 1\n"));
    let stat = file("memory.stat");
    let keys: Vec<_> = stat.lines().map(|line| line.split_once(' ').unwrap().0).collect();
    assert_eq!(keys[..6], ["file", "schema", "statements", "sort", "hash", "charges"]);
    assert!(stat.starts_with("file 4096\nschema 0\n") && stat.contains("\ngained 0\n"), "{stat}");
    // Nested keyed.
    assert_eq!(file("io.stat"), "all rbytes=1459200 wbytes=0 rios=192 wios=0 syncs=2\n");

    drop(held);
    assert_eq!(parent.read_file("cgroup.events").unwrap(), "populated 0\nfrozen 0\n");
    assert_eq!(parent.read_file("memory.peak").unwrap(), "600000\n");
}

#[test]
fn has_exactly_the_listed_files() {
    let h = hierarchy();
    let root = h.root();
    for name in FILES {
        // That one is written only.
        assert_eq!(root.read_file(name).is_none(), *name == "memory.reclaim", "{name}");
        if let Some(text) = root.read_file(name) {
            let is_empty = ["cgroup.procs", "cgroup.threads"].contains(name);
            assert!(text.ends_with('\n') != is_empty && !text.ends_with("\n\n"), "{name}: {text:?}");
        }
    }
    let mut sorted = FILES.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), FILES.len(), "each name once");
    for name in
        ["", "memory", "memory.swap.max", "memory.numa_stat", "cgroup.freeze", "stat", ".stat", "Memory.max"]
    {
        assert_eq!(root.read_file(name), None, "{name}");
    }
}

#[test]
fn shows_a_file_for_a_registered_subsystem() {
    let h = hierarchy();
    const CACHE: Subsystem = Subsystem { name: "cache", stats: &[Stat::count("hits"), Stat::gauge("held")] };
    const SLY: Subsystem = Subsystem { name: "cgroup", stats: &[Stat::count("hits")] };
    let cache = h.register(CACHE).unwrap();
    // Named so as to hide a file that every group has.
    let sly = h.register(SLY).unwrap();
    let group = h.create("/a").unwrap();
    cache.add(&group, CACHE.key("held"), -5);
    sly.add(&group, SLY.key("hits"), 1);
    let root = h.root();
    assert_eq!(root.read_file("cache.stat").unwrap(), "hits 0\nheld -5\n");
    assert_eq!(root.read_file("cgroup.stat").unwrap(), "nr_descendants 1\nnr_dying_descendants 0\n");
    // The subsystems of a former user of the hierarchy's memory decide the order.
    let controllers = root.read_file("cgroup.controllers").unwrap();
    let (builtin, registered) = controllers.trim_end().split_at("memory cpu io ".len());
    assert_eq!(builtin, "memory cpu io ");
    assert!(["cache cgroup", "cgroup cache"].contains(&registered), "{controllers}");
    let files: Vec<_> = h.files().into_iter().map(|file| file.name).collect();
    assert_eq!(files.len(), FILES.len() + 1);
    assert!(files.contains(&"cache.stat".to_owned()), "{files:?}");
}

#[test]
fn reads_removed_groups_and_registered_subsystems() {
    let h = hierarchy();
    const CACHE: Subsystem =
        Subsystem { name: "cache", stats: &[Stat::count("hits"), Stat::time("busy_usec")] };
    let cache = h.register(CACHE).unwrap();
    let parent = h.create("/a").unwrap();
    let (child, gone) = (parent.create("b").unwrap(), parent.create("c").unwrap());
    parent.set_max(9000).unwrap();
    parent.set_share(8).unwrap();
    let held = [child.try_charge(5000).unwrap(), gone.try_charge(1).unwrap()];
    child.try_charge(5000).unwrap_err();
    gone.remove().unwrap();
    cache.add_time(&child, CACHE.key("busy_usec"), std::time::Duration::from_micros(7));
    for group in [&h.root(), &parent, &child, &gone] {
        for file in h.files() {
            let name = file.name.as_str();
            assert_eq!(group.read_file(name).is_some(), file.readable, "{name} of {}", group.path());
        }
        assert_eq!(group.read_file("cgroup.freeze"), None);
    }
    assert_eq!(parent.read_file("cgroup.stat").unwrap(), "nr_descendants 1\nnr_dying_descendants 1\n");
    assert_eq!(parent.read_file("cache.stat").unwrap(), "hits 0\nbusy_usec 7\n");
    drop(held);
}

#[test]
fn counts_a_removed_group_as_the_kernel_does() {
    let h = hierarchy();
    let parent = h.create("/a").unwrap();
    let group = parent.create("b").unwrap();
    let charge = group.try_charge(1).unwrap();
    group.remove().unwrap();
    let stat = |path: &str| h.lookup(path).unwrap().read_file("cgroup.stat").unwrap();
    assert_eq!(stat("/"), "nr_descendants 1\nnr_dying_descendants 1\n");
    assert_eq!(stat("/a"), "nr_descendants 0\nnr_dying_descendants 1\n");
    drop((charge, group));
    assert_eq!(stat("/"), "nr_descendants 1\nnr_dying_descendants 0\n");
}
