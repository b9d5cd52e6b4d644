//! Hierarchies that come and go, each with settings that no other one has: the memory of the ones
//! before is used again.

use std::time::Duration;

use memgroup::tuning::Tuning;
use memgroup::{Config, Freshness, GroupError, Hierarchy, Maintenance, Reach, Stat, Subsystem, stats};

use super::{config, in_its_own_process};

const THINGS: Subsystem = Subsystem { name: "things", stats: &[Stat::count("things")] };

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Has glibc give back what it keeps of freed memory.
fn trim() {
    Hierarchy::new(config(2)).unwrap().maintain(Maintenance::new().all());
}

/// Settings that no other number has; every one of them is another in many of 300.
fn settings(number: u32) -> Config {
    config(2)
        .groups_max(40 + number)
        .depth_max(2 + number % 7)
        .stock_cap_bytes(u64::from(number % 3) << 16)
        .stock_budget_bytes(1 << 20 | u64::from(number) << 8)
        .account_root(!number.is_multiple_of(5))
        .scope_time_sampled(number % 4)
        .reclaim(number.is_multiple_of(2))
        .reclaim_patience(Duration::from_millis(1 + u64::from(number)))
        .float(u64::from(number) << 12, Duration::from_millis(u64::from(number)))
        .demote_after(number.is_multiple_of(3).then(|| Duration::from_secs(number.into())))
        .kill_patience(Duration::from_millis(1 + u64::from(number)))
        .pressure(!number.is_multiple_of(11))
}

/// A hierarchy with so many settings of its own, which all hold, and in which something was done.
fn used(number: u32) -> Hierarchy {
    let config = settings(number);
    let hierarchy = Hierarchy::new(config).unwrap();
    assert_eq!((hierarchy.config(), hierarchy.root().usage(), hierarchy.groups().len()), (config, 0, 1));
    assert_eq!(hierarchy.subsystems(), ["memory", "cpu", "io"]);
    let groups: Vec<_> = (0..30).map(|name| hierarchy.create(&format!("/{name}")).unwrap()).collect();
    let things = hierarchy.register(THINGS).unwrap();
    let key = things.key("things").unwrap();
    let (mut charges, mut made) = (Vec::new(), groups.len() as u32 + 1);
    for group in &groups {
        charges.push(group.try_charge(100).unwrap());
        hierarchy.io().add(group, stats::io::RBYTES, 1);
        things.add(group, key, 2);
    }
    let has_stock = groups.iter().any(|group| group.stock().prepaid_bytes > 0);
    assert_eq!(has_stock, !number.is_multiple_of(3), "a cap of 0 turns the stock off");
    let counts = if number.is_multiple_of(5) { 0 } else { 3000 };
    assert_eq!(hierarchy.root().usage_exact(), counts, "account_root");
    let sum = |key| things.get(&hierarchy.root(), key, Reach::Subtree, Freshness::Fresh);
    assert_eq!(sum(key), 60);
    // As deep, and as many, as these settings allow.
    let mut deepest = groups[0].clone();
    for _ in 1..2 + number % 7 {
        deepest = deepest.create("below").unwrap();
        made += 1;
    }
    let error = deepest.create("below").unwrap_err();
    assert!(matches!(error, GroupError::TooDeep { depth_max, .. } if depth_max == 2 + number % 7), "{error}");
    let more: Vec<_> =
        (made..40 + number).map(|name| groups[1].create(&format!("{name}")).unwrap()).collect();
    let error = groups[1].create("one-more").unwrap_err();
    assert!(matches!(error, GroupError::TooMany { groups_max } if groups_max == 40 + number), "{error}");
    drop((charges, more));
    hierarchy
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn hierarchies_of_300_different_settings_use_the_same_memory() {
    in_its_own_process("pool::hierarchies_of_300_different_settings_use_the_same_memory", || {
        // A hierarchy keeps some of the memory of the largest that it was. The pool has only the
        // last few of these.
        (30..330).for_each(|number| drop(used(number)));
        let before = resident_bytes();
        (30..330).for_each(|number| drop(used(number)));
        let grown = resident_bytes().saturating_sub(before);
        println!("300 hierarchies in turn: {grown} bytes");
        assert!(grown <= 1 << 20, "300 different hierarchies in turn left {grown} bytes");
    });
}

#[test]
fn hierarchies_that_were_there_at_one_time_keep_little() {
    in_its_own_process("pool::hierarchies_that_were_there_at_one_time_keep_little", || {
        const N: u32 = 100;
        // Its tables, and what the first few keep for their next users.
        const EACH_MOST: u64 = 160 << 10;
        drop(used(0));
        let before = resident_bytes();
        let all: Vec<_> = (0..N).map(used).collect();
        let peak = resident_bytes() - before;
        drop(all);
        trim();
        let kept = resident_bytes().saturating_sub(before);
        println!("{N} hierarchies at one time: {peak} bytes, and {} each afterwards", kept / u64::from(N));
        assert!(
            kept <= u64::from(N) * EACH_MOST,
            "{N} hierarchies keep {} bytes each, of {}",
            kept / u64::from(N),
            peak / u64::from(N)
        );
        // They are used again, all but a few, so as many do not keep more.
        drop((N..2 * N).map(used).collect::<Vec<_>>());
        trim();
        let grown = resident_bytes().saturating_sub(before + kept);
        println!("{N} others: {grown} bytes more");
        assert!(grown <= 16 * EACH_MOST, "{N} others left {grown} bytes more");
    });
}
