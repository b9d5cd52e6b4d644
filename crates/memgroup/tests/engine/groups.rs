//! Groups: creating, finding, listing and removing them, and the errors for bad input.

use memgroup::{ChargeErrorKind, Config, GroupError, GroupId, Hierarchy, SlotSource};

fn hierarchy() -> Hierarchy {
    Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(4).unwrap())).unwrap()
}

#[test]
fn groups_are_found_and_listed_parents_first() {
    let h = hierarchy();
    for path in ["/a", "/a/b", "/a/b/c", "/d"] {
        assert_eq!(h.create(path).unwrap().path(), path);
        assert_eq!(h.lookup(path).unwrap().path(), path);
    }
    let paths: Vec<_> = h.groups().iter().map(|group| group.path()).collect();
    assert_eq!(paths.len(), 5);
    for (at, path) in paths.iter().enumerate() {
        let parent =
            path.rsplit_once('/').map_or("/", |(parent, _)| if parent.is_empty() { "/" } else { parent });
        assert!(path == "/" || paths[..at].iter().any(|earlier| earlier == parent), "{path} in {paths:?}");
    }
    assert_eq!(h.lookup("/").unwrap(), h.root());
    let b = h.lookup("/a/b").unwrap();
    assert_eq!((b.name(), b.parent().unwrap().path()), ("b".to_owned(), "/a".to_owned()));
    assert_eq!(h.root().parent(), None);
    assert_eq!(h.root().children().iter().map(|group| group.name()).collect::<Vec<_>>(), ["a", "d"]);
}

#[test]
fn errors_for_bad_names_and_paths_say_how_to_correct_them() {
    let h = hierarchy();
    h.create("/a").unwrap();
    for (path, said) in [
        ("", "does not begin with a slash"),
        ("a", "does not begin with a slash"),
        ("/", "always there"),
        ("/a", "exists already"),
        ("/a/", "1 to 255 bytes"),
        ("/a/.", "not . or .."),
        ("/a/..", "not . or .."),
        ("/a/x\ty", "control character"),
        ("//a", "empty name"),
        ("/b/c", "/b"),
    ] {
        let error = h.create(path).unwrap_err().to_string();
        assert!(error.contains(said), "{path:?}: {error}");
    }
    let error = h.create(&format!("/{}", "n".repeat(256))).unwrap_err();
    assert!(matches!(error, GroupError::InvalidName { .. }));
    let error = h.lookup("/a/b/c").unwrap_err();
    assert_eq!(error, GroupError::NotFound { path: "/a/b/c".to_owned(), missing: "/a/b".to_owned() });
}

#[test]
fn a_hierarchy_is_for_as_many_groups_as_it_was_asked_to_be() {
    for groups_max in [1, 2, 63, 64, 65, 129] {
        let source = SlotSource::virtual_slots(1).unwrap();
        let h = Hierarchy::new(Config::with_slots(source).groups_max(groups_max)).unwrap();
        for number in 1..groups_max {
            let group = h.create(&format!("/{number}")).unwrap();
            assert_eq!(group.try_charge(number.into()).unwrap().bytes(), u64::from(number));
        }
        assert_eq!(h.groups().len(), groups_max as usize);
        assert_eq!(h.create("/one-more").unwrap_err(), GroupError::TooMany { groups_max });
    }
}

#[test]
fn depth_and_number_of_groups_are_bounded() {
    let config = Config::with_slots(SlotSource::virtual_slots(1).unwrap()).depth_max(2).groups_max(4);
    let h = Hierarchy::new(config).unwrap();
    h.create("/a").unwrap();
    h.create("/a/b").unwrap();
    assert!(matches!(h.create("/a/b/c").unwrap_err(), GroupError::TooDeep { depth_max: 2, .. }));
    let d = h.create("/d").unwrap();
    assert_eq!(h.create("/e").unwrap_err(), GroupError::TooMany { groups_max: 4 });
    d.remove().unwrap();
    drop(d);
    h.create("/e").unwrap();
    for (config, said) in [
        (Config::new().groups_max(0), "groups_max is 0"),
        (Config::new().depth_max(257), "depth_max is 257"),
        (Config::new().stock_cap_bytes(1 << 40), "0 to 8 MiB"),
    ] {
        assert!(Hierarchy::new(config).unwrap_err().to_string().contains(said));
    }
}

#[test]
fn a_group_with_children_and_the_root_are_not_removed() {
    let h = hierarchy();
    let a = h.create("/a").unwrap();
    let b = a.create("b").unwrap();
    assert_eq!(a.remove().unwrap_err(), GroupError::HasChildren { path: "/a".to_owned(), children: 1 });
    assert_eq!(h.root().remove().unwrap_err(), GroupError::IsRoot);
    b.remove().unwrap();
    assert_eq!(b.remove().unwrap_err(), GroupError::Offline { path: "/a/b".to_owned() });
    a.remove().unwrap();
    assert!(h.lookup("/a").is_err());
    assert_eq!(a.create("x").unwrap_err(), GroupError::Offline { path: "/a".to_owned() });
}

#[test]
fn a_removed_group_holds_its_bytes_until_the_last_is_released() {
    let h = hierarchy();
    let a = h.create("/a").unwrap();
    let b = h.create("/a/b").unwrap();
    let charge = b.try_charge(10_000).unwrap();
    let rest = b.try_charge(1).unwrap();
    b.remove().unwrap();
    assert!(!b.is_online());
    assert_eq!(b.try_charge(1).unwrap_err().kind(), ChargeErrorKind::Offline);
    assert_eq!(b.try_charge(0).unwrap_err().kind(), ChargeErrorKind::Offline);
    assert_eq!(b.stock().prepaid_bytes, 0);
    assert_eq!((b.usage(), a.usage(), h.root().usage()), (10_001, 10_001, 10_001));
    a.remove().unwrap();
    drop((a, b));
    let ages = |dying: &memgroup::Dying| dying.age <= dying.removed.elapsed();
    assert!(h.dying().iter().all(ages), "each has the time since its removal");
    let listed: Vec<_> = h.dying().into_iter().map(|dying| (dying.path, dying.usage_bytes)).collect();
    assert_eq!(listed, [("/a/b".to_owned(), 10_001), ("/a".to_owned(), 10_001)]);
    // The name is free at once, and the new group has nothing to do with the old one.
    let again = h.create("/a").unwrap();
    assert_eq!((again.usage(), again.max()), (0, None));
    drop(charge);
    assert_eq!(h.dying().len(), 2);
    drop(rest);
    assert_eq!(h.dying(), []);
    assert_eq!(h.root().usage(), 0);
}

#[test]
fn forced_charges_of_a_removed_group_are_counted_too() {
    let h = hierarchy();
    let a = h.create("/a").unwrap();
    let mut charge = a.try_charge(100).unwrap();
    a.remove().unwrap();
    charge.grow_forced(50).unwrap();
    assert!(charge.try_grow(1).is_err());
    assert_eq!((a.usage(), h.root().usage(), charge.bytes()), (150, 150, 150));
    drop(a);
    assert_eq!(h.dying().len(), 1);
    drop(charge);
    assert_eq!((h.dying().len(), h.root().usage()), (0, 0));
}

#[test]
fn an_error_names_the_group_that_refused_even_when_it_is_gone() {
    let h = hierarchy();
    let parent = h.create("/parent").unwrap();
    parent.set_max(1000).unwrap();
    let child = h.create("/parent/child").unwrap();
    let kept = child.try_charge(600).unwrap();
    let error = child.try_charge(401).unwrap_err();
    let copy = error;
    assert_eq!(
        (error.group(), error.asked(), error.usage(), error.max()),
        (parent.id(), 401, 600, Some(1000))
    );
    assert_eq!(error.to_string(), "charge 401 bytes: refused by group /parent, usage 600 of max 1000");
    assert_eq!((parent.refusals(), child.refusals()), (1, 0));
    drop(kept);
    child.remove().unwrap();
    parent.remove().unwrap();
    drop((child, parent));
    assert_eq!(copy.path(), None);
    let other = h.create("/other").unwrap();
    assert_eq!(copy.path(), None, "another group in its place is not taken for it: {:?}", other.id());
    assert!(copy.to_string().contains("removed since"));
}

#[test]
fn absurd_charges_and_limits_are_refused_and_change_nothing() {
    let h = hierarchy();
    let a = h.create("/a").unwrap();
    for bytes in [u64::MAX, 1 << 48, 1 << 63] {
        assert_eq!(a.try_charge(bytes).unwrap_err().kind(), ChargeErrorKind::TooLarge);
        assert_eq!(a.charge_forced(bytes).unwrap_err().kind(), ChargeErrorKind::TooLarge);
    }
    for bytes in [u64::MAX, 1 << 48] {
        assert!(a.set_max(bytes).unwrap_err().to_string().starts_with("set max of group /a: "));
    }
    a.set_max(0).unwrap();
    assert_eq!(a.try_charge(1).unwrap_err().kind(), ChargeErrorKind::Refused);
    a.set_max(None).unwrap();
    let all = a.try_charge((1 << 48) - 1).unwrap();
    assert_eq!(a.try_charge(1).unwrap_err().kind(), ChargeErrorKind::TooLarge);
    drop(all);
    assert_eq!((a.usage_exact(), h.root().usage_exact()), (0, 0));
}

#[test]
fn an_id_that_was_never_given_out_is_a_panic_that_names_it() {
    let h = hierarchy();
    let never = GroupId::from_u128(4_000_000);
    let text = h.uncharge(never, 1).unwrap_err().to_string();
    assert!(text.contains("4000000.0") && text.contains("1 bytes"), "{text}");
    assert_eq!(h.group(never), None);
    assert_eq!(h.group(h.root().id()), Some(h.root()));
    assert!(h.uncharge(never, 0).is_err());
    let gone = h.create("/gone").unwrap();
    let stale = gone.id();
    gone.remove().unwrap();
    drop(gone);
    let next = h.create("/next").unwrap();
    assert_eq!(next.id().node(), stale.node(), "the node is used again");
    let held = next.try_charge(100).unwrap();
    assert!(h.uncharge(stale, 100).is_err() && h.group(stale).is_none());
    assert!(h.charge_from_parts(stale, 100).is_err() && h.charge_from_parts(stale, 0).is_err());
    assert_eq!(next.usage_exact(), 100, "no other group pays");
    drop(held);
}

#[test]
fn a_hierarchy_lives_as_long_as_its_last_handle() {
    let group = hierarchy().create("/only/handle").unwrap_err();
    assert!(matches!(group, GroupError::NotFound { .. }));
    let group = hierarchy().create("/only").unwrap();
    let charge = group.try_charge(5000).unwrap();
    assert_eq!(group.path(), "/only");
    drop(group);
    // Only the charge is left. It still has a group, which takes no more.
    assert!(!charge.group().is_online());
    assert_eq!(charge.group().usage(), 5000);
    drop(charge);
}

#[test]
fn hierarchies_that_come_and_go_do_not_pile_up_or_mix() {
    let config = Config::with_slots(SlotSource::virtual_slots(3).unwrap()).groups_max(7);
    for round in 0..1000 {
        let h = Hierarchy::new(config).unwrap();
        assert_eq!((h.root().usage(), h.root().peak(), h.root().max(), h.groups().len()), (0, 0, None, 1));
        assert_eq!(h.stock_reserved_bytes(), [0, 0, 0]);
        let group = h.create("/g").unwrap();
        h.root().set_max(1 << 30).unwrap();
        drop(group.try_charge(1000 + round).unwrap());
    }
}

#[test]
fn the_root_can_be_left_unaccounted() {
    let h = Hierarchy::new(Config::new().account_root(false)).unwrap();
    let a = h.create("/a").unwrap();
    h.root().set_max(0).unwrap();
    let mut charge = a.try_charge(5000).unwrap();
    assert_eq!((a.usage_exact(), h.root().usage()), (5000, 0));
    let b = h.create("/b").unwrap();
    charge.try_move_to(&b).unwrap();
    assert_eq!((a.usage_exact(), b.usage_exact(), h.root().usage()), (0, 5000, 0));
}

#[test]
fn a_hierarchy_that_is_used_again_has_one_user() {
    use std::sync::Barrier;

    // Two threads drop the last handle and the last charge of a hierarchy at the same time. Both
    // may retire it. The second one must not touch the hierarchy that has been made of it
    // meanwhile.
    const ROUNDS: usize = if cfg!(debug_assertions) { 1000 } else { 5000 };
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).groups_max(77);
    let (barrier, given) = (Barrier::new(2), std::sync::Mutex::new(None));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                barrier.wait();
                let charge: Option<memgroup::Charge> = given.lock().unwrap().take();
                drop(charge);
                barrier.wait();
            }
        });
        for _ in 0..ROUNDS {
            let hierarchy = Hierarchy::new(config).unwrap();
            let charge = hierarchy.create("/g").unwrap().try_charge(100).unwrap();
            drop(hierarchy);
            let handle = charge.group();
            *given.lock().unwrap() = Some(charge);
            barrier.wait();
            drop(handle);
            let (one, two) = (Hierarchy::new(config).unwrap(), Hierarchy::new(config).unwrap());
            assert_ne!(one, two);
            one.create("/of-one").unwrap();
            assert_eq!((one.groups().len(), two.groups().len()), (2, 1));
            barrier.wait();
            assert_eq!((one.groups().len(), two.groups().len()), (2, 1));
        }
    });
}

#[test]
fn gets_the_same_group_on_every_thread_and_creates_those_above() {
    let hierarchy = Hierarchy::new(Config::new().depth_max(4)).unwrap();
    for round in 0..50 {
        let path = format!("/{round}/b/c");
        let begin = std::sync::Barrier::new(4);
        let ids = std::thread::scope(|scope| {
            let get = || {
                begin.wait();
                hierarchy.get_or_create(&path).unwrap().id()
            };
            [(); 4].map(|()| scope.spawn(get)).map(|thread| thread.join().unwrap())
        });
        assert!(ids.iter().all(|&id| id == ids[0]), "{ids:?}");
        assert_eq!(hierarchy.lookup(&path).unwrap().id(), ids[0]);
    }
    assert_eq!(hierarchy.get_or_create("/").unwrap(), hierarchy.root());
    let too_deep = hierarchy.get_or_create("/x/2/3/4/5").unwrap_err();
    assert!(matches!(too_deep, GroupError::TooDeep { depth_max: 4, .. }), "{too_deep}");
    assert!(matches!(hierarchy.get_or_create("a/b"), Err(GroupError::InvalidPath { .. })));
    assert!(matches!(hierarchy.get_or_create("/a/../b"), Err(GroupError::InvalidName { .. })));
}
