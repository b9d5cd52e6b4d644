//! The subsystem `cpu`: time in scopes.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use memgroup::stats::cpu::{NR_SCOPES, SCOPE_USEC};
use memgroup::tuning::Tuning;
use memgroup::{Config, Hierarchy, Maintenance, SlotSource, scope, stats};

use super::{HITS, fixture, local, nth, subtree};

fn busy(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn counts_time_in_a_nested_scope_for_the_inner_group() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let (outer, inner) = (hierarchy.create("/outer").unwrap(), hierarchy.create("/inner").unwrap());
    let cpu = hierarchy.cpu();
    let begin = Instant::now();
    {
        let _outer = scope::enter(&outer);
        busy(Duration::from_millis(2));
        {
            let _inner = scope::enter(&inner);
            busy(Duration::from_millis(5));
            let _same = scope::enter(&inner);
        }
        busy(Duration::from_millis(3));
    }
    let most = begin.elapsed().as_micros() as i64;
    busy(Duration::from_millis(1));
    let [outer_usec, inner_usec] = [&outer, &inner].map(|group| local(&cpu, group, SCOPE_USEC));
    assert!(outer_usec >= 4990 && inner_usec >= 4990, "{outer_usec} {inner_usec}");
    let all = subtree(&cpu, &hierarchy.root(), SCOPE_USEC);
    assert!((all - outer_usec - inner_usec).abs() <= 1 && all <= most, "{all} of {most}");
    assert_eq!((local(&cpu, &outer, NR_SCOPES), local(&cpu, &inner, NR_SCOPES)), (1, 2));
}

#[test]
fn counts_no_time_while_the_thread_has_left_its_group() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let (outer, inner) = (hierarchy.create("/outer").unwrap(), hierarchy.create("/inner").unwrap());
    let began = Instant::now();
    let left;
    {
        let _outer = scope::enter(&outer);
        {
            let _left = scope::leave();
            let since = Instant::now();
            busy(Duration::from_millis(20));
            let _inner = scope::enter(&inner);
            left = since.elapsed();
        }
        assert_eq!(scope::current(), Some(outer.clone()));
        busy(Duration::from_millis(1));
    }
    let most = (began.elapsed() - left).as_micros() as i64 + 1;
    let cpu = hierarchy.cpu();
    let usec = local(&cpu, &outer, SCOPE_USEC);
    assert!(usec >= 990 && usec <= most, "{usec} of {most}");
    assert_eq!((local(&cpu, &outer, NR_SCOPES), local(&cpu, &inner, NR_SCOPES)), (1, 1));
}

#[test]
fn counts_no_time_where_it_is_turned_off() {
    let config = || Config::with_slots(SlotSource::virtual_slots(2).unwrap());
    let timed = Hierarchy::new(config()).unwrap();
    let untimed = Hierarchy::new(config().scope_time(false)).unwrap();
    let (a, b) = (timed.create("/a").unwrap(), untimed.create("/b").unwrap());
    let began = Instant::now();
    let (before, after);
    {
        let _a = scope::enter(&a);
        busy(Duration::from_millis(1));
        {
            let _b = scope::enter(&b);
            before = began.elapsed();
            busy(Duration::from_millis(20));
            after = Instant::now();
        }
        busy(Duration::from_millis(1));
    }
    let most = before + after.elapsed();
    let usec = local(&timed.cpu(), &a, SCOPE_USEC);
    assert!(usec >= 1990 && usec <= most.as_micros() as i64 + 1, "{usec} of {most:?}");
    assert_eq!((local(&untimed.cpu(), &b, SCOPE_USEC), local(&untimed.cpu(), &b, NR_SCOPES)), (0, 0));
}

#[test]
fn counts_sampled_scopes_close_to_their_number() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).scope_time_sampled(8);
    let hierarchy = Hierarchy::new(config).unwrap();
    let group = hierarchy.create("/group").unwrap();
    // The samples of a new thread are always the same ones.
    std::thread::scope(|threads| {
        let entering = || (0..20_000).for_each(|_| drop(scope::enter(&group)));
        threads.spawn(entering).join().unwrap();
    });
    let scopes = local(&hierarchy.cpu(), &group, NR_SCOPES);
    assert!((19_000..=21_000).contains(&scopes) && scopes % 8 == 0, "{scopes} of 20000");
    assert!(Hierarchy::new(config.scope_time_sampled(65_537)).is_err());
}

#[test]
fn adds_to_the_current_group_of_the_same_hierarchy_only() {
    let config = || Config::with_slots(SlotSource::virtual_slots(2).unwrap());
    let (one, other) = (Hierarchy::new(config()).unwrap(), Hierarchy::new(config()).unwrap());
    let (group, io) = (one.create("/group").unwrap(), one.io());
    assert!(!io.add_current(stats::io::RBYTES, 1), "no group is in force");
    {
        let _scope = scope::enter(&group);
        assert!(io.add_current(stats::io::RBYTES, 5));
        assert!(!other.io().add_current(stats::io::RBYTES, 1), "none of this hierarchy is");
    }
    assert_eq!(
        (subtree(&io, &one.root(), nth(&io, 0)), subtree(&other.io(), &other.root(), nth(&other.io(), 0))),
        (5, 0)
    );
}

#[test]
fn adds_to_a_user_subsystem_of_the_current_group() {
    let (hierarchy, cache) = fixture(2);
    let group = hierarchy.create("/group").unwrap();
    let _scope = scope::enter(&group);
    assert!(cache.add_current(HITS, 5));
    assert_eq!((local(&cache, &group, HITS), subtree(&cache, &hierarchy.root(), HITS)), (5, 5));
    assert_eq!(subtree(&hierarchy.io(), &group, stats::io::RBYTES), 0);
}

#[test]
fn restores_no_group_after_a_drop_out_of_order() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(1).unwrap())).unwrap();
    let [a, b, c] = ["/a", "/b", "/c"].map(|path| hierarchy.create(path).unwrap());
    let first = scope::enter(&a);
    let second = scope::enter(&b);
    drop(first);
    assert_eq!(scope::current(), None);
    let third = scope::enter(&c);
    drop(second);
    assert_eq!(scope::current(), None, "the guard of /a is gone");
    drop(third);
    assert_eq!(scope::current(), None);
    let last = scope::enter(&c);
    assert_eq!(scope::current(), Some(c.clone()));
    drop(last);
    assert_eq!(scope::current(), None);
}

#[test]
fn a_thread_that_left_its_group_gets_it_back_in_order_only() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(1).unwrap())).unwrap();
    let [a, b] = ["/a", "/b"].map(|path| hierarchy.create(path).unwrap());
    // A charging allocator may run the test in a group.
    let before = scope::current();
    drop(scope::leave());
    assert_eq!(scope::current(), before, "the group from before");
    let first = scope::enter(&a);
    {
        let _left = scope::leave();
        let _left_again = scope::leave();
        {
            let _scope = scope::enter(&b);
            assert_eq!(scope::current(), Some(b.clone()));
        }
        assert_eq!(scope::current(), None);
    }
    assert_eq!(scope::current(), Some(a.clone()));
    let left = scope::leave();
    drop(first);
    drop(left);
    assert_eq!(scope::current(), None, "the guard of /a is gone");
    {
        let _scope = scope::enter(&a);
        std::mem::forget(scope::leave());
    }
    assert_eq!(scope::current(), None, "a guard was forgotten");
    let _scope = scope::enter(&b);
    assert_eq!(scope::current(), Some(b.clone()));
}

#[test]
fn skips_marks_of_a_forgotten_scope_in_a_free_place() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).float(0, Duration::ZERO);
    let hierarchy = Hierarchy::new(config).unwrap();
    let (io, other) = (hierarchy.io(), hierarchy.create("/other").unwrap());
    for round in 0..if cfg!(memgroup_yields) { 50 } else { 200 } {
        let group = hierarchy.create("/group").unwrap();
        // The thread allocates nothing while the group is in force: a charging allocator would keep
        // it.
        let begun = Arc::new(Barrier::new(2));
        let adds = std::thread::spawn({
            let (io, group, begun) = (io.clone(), group.clone(), Arc::clone(&begun));
            move || {
                std::mem::forget(scope::enter(&group));
                drop(group);
                begun.wait();
                while io.add_current(stats::io::RBYTES, 1) {}
            }
        });
        begun.wait();
        group.remove().unwrap();
        drop(group);
        adds.join().unwrap();
        hierarchy.maintain(Maintenance::new().all().expedited());
        io.add(&other, stats::io::WBYTES, 1);
        assert_eq!(subtree(&io, &hierarchy.root(), nth(&io, 1)), round + 1);
    }
}
