//! Groups for requests: owned groups, removal with children, weak handles, and the record of an
//! ended group.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use memgroup::{
    ChargeErrorKind, Config, EndedGroup, Group, GroupError, Hierarchy, OwnedGroup, SlotSource, WeakGroup,
    scope,
};

use super::random::Random;

const THREADS: u64 = 4;
const REMOVALS: usize = ROUNDS / 20;
const ROUNDS: usize = if cfg!(any(miri, memgroup_emulated)) {
    100
} else if cfg!(any(memgroup_yields, debug_assertions)) {
    3_000
} else {
    30_000
};

fn hierarchy() -> Hierarchy {
    Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(4).unwrap())).unwrap()
}

/// Paths of the groups that are online, the root left out.
fn paths(h: &Hierarchy) -> Vec<String> {
    h.groups().iter().map(|group| group.path()).filter(|path| path != "/").collect()
}

/// Has the records of `group` sent to a channel.
fn records(group: &Group) -> mpsc::Receiver<EndedGroup> {
    let (log, lines) = mpsc::channel();
    group.on_end(move |ended| log.send(ended).unwrap()).unwrap();
    lines
}

#[test]
fn removes_a_group_with_all_groups_below_it() {
    let h = hierarchy();
    for path in ["/a/b/c/d", "/a/b/e", "/a/f", "/ab"] {
        h.get_or_create(path).unwrap();
    }
    let (a, inner) = (h.lookup("/a").unwrap(), h.lookup("/a/b/c").unwrap());
    a.remove_all().unwrap();
    assert_eq!(paths(&h), ["/ab"]);
    assert_eq!(a.remove_all(), Err(GroupError::Offline { path: "/a".to_owned() }));
    assert_eq!(inner.create("new").unwrap_err(), GroupError::Offline { path: "/a/b/c".to_owned() });
    assert_eq!(inner.try_charge(1).unwrap_err().kind(), ChargeErrorKind::Offline);
    assert_eq!(h.root().remove_all(), Err(GroupError::IsRoot));
    assert_eq!(h.root().children().len(), 1);
}

#[test]
fn keeps_live_charges_above_removed_groups_accounted() {
    let h = hierarchy();
    let tenants = h.create("/tenants").unwrap();
    let sort = h.get_or_create("/tenants/alice/sort").unwrap();
    let charge = sort.try_charge(4096).unwrap();
    drop(sort);
    h.lookup("/tenants/alice").unwrap().remove_all().unwrap();
    assert_eq!((tenants.usage_exact(), h.dying()[0].path.as_str()), (4096, "/tenants/alice/sort"));
    drop(charge);
    assert_eq!((tenants.usage_exact(), h.snapshot().groups.len()), (0, 2));
}

/// Ends the work of other threads, also when a check fails.
struct EndsWork<'a>(&'a AtomicBool);

impl Drop for EndsWork<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads create groups at all depths below a group while it is removed again and again.
#[test]
fn ends_beside_threads_that_create_below() {
    let h = hierarchy();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for number in 0..THREADS {
            let (h, is_over) = (&h, &is_over);
            threads.spawn(move || {
                let mut random = Random(number + 1);
                let mut at = h.get_or_create("/top").unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    at = match at.create(&format!("{number}-{}", random.below(4))) {
                        Ok(child) => {
                            // The charge may be refused: the group may be removed already.
                            drop(child.try_charge(1 + random.below(5000)));
                            if random.below(3) == 0 { at } else { child }
                        }
                        // At the most groups that there may be, only a removal makes room.
                        Err(_) => h.get_or_create("/top").unwrap_or(at),
                    };
                }
            });
        }
        let _ends = EndsWork(&is_over);
        for _ in 0..REMOVALS {
            let Ok(top) = h.get_or_create("/top") else { continue };
            let below = top.children();
            top.remove_all().unwrap();
            assert!(!top.is_online() && top.children().is_empty());
            assert!(below.iter().all(|child| !child.is_online()));
        }
    });
    for child in h.root().children() {
        child.remove_all().unwrap();
    }
    assert_eq!((h.snapshot().groups.len(), h.root().usage_exact()), (1, 0));
}

/// Removals of a group and of groups below it at the same time: each group is removed, and told
/// of, once.
#[test]
fn removes_each_group_once_beside_other_removals() {
    let h = hierarchy();
    for _ in 0..ROUNDS / 20 {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let mut groups = Vec::new();
        for path in ["/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/b/e", "/a/f"] {
            let (group, ended) = (h.create(path).unwrap(), Arc::clone(&ended));
            group.on_end(move |record| ended.lock().unwrap().push(record.path)).unwrap();
            groups.push(group);
        }
        std::thread::scope(|threads| {
            for group in groups.iter().take(3) {
                threads.spawn(move || {
                    // Another thread may have removed it, or may be about to.
                    let _ = group.remove_all();
                });
            }
        });
        let mut ended = ended.lock().unwrap().clone();
        ended.sort();
        assert_eq!(ended, ["/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/b/e", "/a/f"]);
        assert!(groups.iter().all(|group| !group.is_online()));
    }
    assert_eq!(h.snapshot().groups.len(), 1);
}

#[test]
fn an_owned_group_goes_with_its_last_owner() {
    let h = hierarchy();
    let tenant = h.create("/tenant").unwrap();
    let first = tenant.create_owned("request").unwrap();
    let second = first.clone();
    let third = h.get_or_create_owned("/tenant/request").unwrap();
    assert_eq!((&*first, &*first), (&*second, &*third));
    assert!(matches!(tenant.create_owned("request"), Err(GroupError::Exists { .. })));
    let charge = {
        let _scope = scope::enter(&first);
        scope::try_charge_current(4096).unwrap().unwrap()
    };
    drop((first, third));
    assert_eq!(paths(&h), ["/tenant", "/tenant/request"]);
    drop(second);
    assert_eq!((paths(&h), tenant.usage_exact()), (vec!["/tenant".to_owned()], 4096));
    drop(charge);
    assert_eq!((h.snapshot().groups.len(), tenant.usage_exact()), (2, 0));
}

#[test]
fn the_last_owner_removes_groups_below_owned_or_not() {
    let h = hierarchy();
    let session = h.get_or_create_owned("/session").unwrap();
    let query = session.create_owned("query").unwrap();
    let sort = query.create("sort").unwrap();
    drop(session);
    assert!(!query.is_online() && !sort.is_online() && paths(&h).is_empty());
    // The name is free, and the owner of a removed group removes no other.
    let again = h.get_or_create_owned("/session/query").unwrap();
    assert_ne!(*again, *query);
    drop(query);
    assert!(again.is_online());
}

#[test]
fn owners_of_a_group_that_was_created_plainly_leave_it() {
    let h = hierarchy();
    let tenant = h.create("/tenant").unwrap();
    drop(h.get_or_create_owned("/tenant").unwrap());
    assert!(tenant.is_online());
    // A group that was removed by hand is left to its new owner.
    let owner = h.get_or_create_owned("/request").unwrap();
    owner.remove().unwrap();
    let plain = h.create("/request").unwrap();
    drop(owner);
    assert!(plain.is_online());
}

#[test]
fn errors_for_owned_groups_are_those_of_create() {
    let h = hierarchy();
    for (path, said) in [
        ("a", "does not begin with a slash"),
        ("/", "always there"),
        ("//a", "empty name"),
        ("/a/", "empty name"),
        ("/a/../b", "not . or .."),
        ("/a/b\tc", "control character"),
    ] {
        let error = h.get_or_create_owned(path).unwrap_err().to_string();
        assert!(error.contains(said), "{path:?}: {error}");
        assert_eq!(path == "/", h.get_or_create(path).is_ok(), "{path:?}");
        assert!(paths(&h).is_empty(), "nothing is half created");
    }
    let removed = h.create("/removed").unwrap();
    removed.remove().unwrap();
    assert_eq!(removed.create_owned("x").unwrap_err(), GroupError::Offline { path: "/removed".to_owned() });
    assert!(paths(&h).is_empty());
}

#[test]
fn an_owner_dropped_by_a_panic_removes_its_group() {
    let h = hierarchy();
    let before = scope::current();
    let (told, heard) = mpsc::channel();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let request = h.get_or_create_owned("/request").unwrap();
        request.on_end(|_| panic!("a callback panics while a panic unwinds")).unwrap();
        request.on_end(move |ended| told.send(ended).unwrap()).unwrap();
        let _scope = scope::enter(&request);
        let _charge = request.try_charge(100).unwrap();
        panic!("the request fails");
    }));
    assert_eq!(*outcome.unwrap_err().downcast::<&str>().unwrap(), "the request fails");
    assert_eq!(heard.recv().unwrap().path, "/request");
    // The text of the panic was allocated in the group, which a charging allocator keeps until that
    // is freed.
    assert_eq!((h.snapshot().groups.len() - h.dying().len(), scope::current()), (1, before));
}

/// Threads look up and drop owners of a few paths: each owner has an online group, and the path
/// leads to it.
#[test]
fn a_new_owner_gets_a_living_group_beside_last_drops() {
    let h = hierarchy();
    let (began, ended) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|threads| {
        for number in 0..THREADS {
            let (h, began, ended) = (&h, &began, &ended);
            threads.spawn(move || {
                let mut random = Random(number + 1);
                let mut kept: Vec<OwnedGroup> = Vec::new();
                for _ in 0..ROUNDS {
                    let path = format!("/tenants/{}", random.below(3));
                    let owner = h.get_or_create_owned(&path).unwrap();
                    assert!(owner.is_online());
                    assert_eq!(h.lookup(&path).unwrap(), *owner, "the path leads to another group");
                    if owner.set_max(1 << 40).is_ok() && owner.oom_score() == 0 {
                        // The first owner of each group: a second one finds the score, or adds a
                        // callback too.
                        owner.set_oom_score(1).unwrap();
                        began.fetch_add(1, Ordering::Relaxed);
                        let ended = Arc::clone(ended);
                        owner.on_end(move |_| _ = ended.fetch_add(1, Ordering::Relaxed)).unwrap();
                    }
                    drop(owner.try_charge(1 + random.below(3000)).unwrap());
                    if random.below(4) == 0 {
                        kept.push(if random.below(2) == 0 { owner.clone() } else { owner });
                    }
                    if random.below(4) == 0 {
                        kept.clear();
                    }
                }
            });
        }
    });
    assert_eq!(began.load(Ordering::Relaxed), ended.load(Ordering::Relaxed));
    assert_eq!((paths(&h), h.root().usage_exact()), (vec!["/tenants".to_owned()], 0));
    assert_eq!(h.snapshot().groups.len(), 2);
}

#[test]
fn a_weak_handle_finds_its_group_until_the_release() {
    let h = hierarchy();
    let group = h.create("/group").unwrap();
    let (weak, id) = (group.downgrade(), group.id());
    assert_eq!((weak.upgrade(), weak.id(), weak), (Some(group.clone()), id, group.downgrade()));
    let charge = group.try_charge(10).unwrap();
    group.remove().unwrap();
    drop(group);
    // The group is dying: its bytes keep it.
    let upgraded = weak.upgrade().unwrap();
    assert!(!upgraded.is_online() && upgraded.usage() == 10);
    drop(charge);
    drop(upgraded);
    assert_eq!((weak.upgrade(), weak.id()), (None, id));
    let next = h.create("/next").unwrap();
    assert_eq!((next.id().node(), weak.upgrade()), (id.node(), None), "the place has another group");
    assert_ne!(weak, next.downgrade());
    drop((h, next));
    assert_eq!(weak.upgrade(), None, "its hierarchy is gone");
}

#[test]
fn a_weak_handle_keeps_no_hierarchy_and_an_upgrade_does() {
    let h = hierarchy();
    let group = h.create("/group").unwrap();
    let ended = records(&group);
    let weak = group.downgrade();
    drop((h, group));
    assert_eq!(ended.recv().unwrap().path, "/group", "the last handle ended the hierarchy");
    assert_eq!(weak.upgrade(), None);
}

/// Groups come and go while other threads upgrade weak handles: an upgrade finds its own group or
/// none.
#[test]
fn an_upgrade_beside_releases_finds_its_own_group() {
    let h = hierarchy();
    let latest = Mutex::new(h.root().downgrade());
    let is_over = AtomicBool::new(false);
    let upgrades = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let weak = *latest.lock().unwrap();
                    if let Some(group) = weak.upgrade() {
                        assert_eq!(group.id(), weak.id());
                        // The handle keeps the group, so this is its name.
                        assert!(group.name().is_empty() || group.name() == group.path()[1..]);
                        assert_eq!(weak.upgrade(), Some(group));
                        upgrades.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let _ends = EndsWork(&is_over);
        let has_upgraded = || upgrades.load(Ordering::Relaxed) > 0;
        for round in (0..).take_while(|&round| round < ROUNDS || !has_upgraded()) {
            let group = h.get_or_create_owned(&format!("/{round}")).unwrap();
            *latest.lock().unwrap() = group.downgrade();
            drop(group.try_charge(100));
        }
    });
    assert_eq!(h.snapshot().groups.len(), 1);
}

#[test]
fn the_record_has_the_figures_of_the_group() {
    let h = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let request = h.get_or_create_owned("/alice/request").unwrap();
    let ended = records(&request);
    request.set_max(1000).unwrap();
    let held = request.try_charge(600).unwrap();
    request.try_charge(500).unwrap_err();
    let stalled = request.stall();
    std::thread::sleep(Duration::from_millis(2));
    drop(stalled);
    let id = request.id();
    drop(request);
    let ended = ended.recv().unwrap();
    assert_eq!((ended.path.as_str(), ended.id), ("/alice/request", id));
    assert_eq!((ended.peak_bytes, ended.usage_bytes, ended.refusals), (600, 600, 1));
    assert_eq!((ended.events.max, ended.events.oom_kill), (1, 0));
    assert!(ended.stalled >= Duration::from_millis(2) && ended.lifetime >= ended.stalled);
    let (lifetime, stalled) = (ended.lifetime.as_micros(), ended.stalled.as_micros());
    assert_eq!(
        ended.to_string(),
        format!(
            "/alice/request lifetime_us={lifetime} peak_bytes=600 usage_bytes=600 refusals=1 kills=0 stalled_us={stalled}"
        )
    );
    drop(held);
    assert_eq!(h.root().usage(), 0);
}

#[test]
fn callbacks_are_told_once_in_their_order_and_children_first() {
    let h = hierarchy();
    let (log, lines) = mpsc::channel();
    let parent = h.create("/parent").unwrap();
    let child = parent.create("child").unwrap();
    for (group, name) in [(&parent, "first"), (&parent, "second"), (&child, "child")] {
        let log = log.clone();
        group.on_end(move |ended| log.send(format!("{name} {}", ended.path)).unwrap()).unwrap();
    }
    let panics = h.create("/panics").unwrap();
    panics.on_end(|_| panic!("it is caught")).unwrap();
    panics.remove().unwrap();
    parent.remove_all().unwrap();
    let dropped = Arc::new(());
    let kept = Arc::clone(&dropped);
    let error = parent.on_end(move |_| drop(kept)).unwrap_err();
    assert_eq!(error, GroupError::Offline { path: "/parent".to_owned() });
    assert_eq!(Arc::strong_count(&dropped), 1, "a callback that is refused is dropped");
    drop(log);
    let told: Vec<String> = lines.iter().collect();
    assert_eq!(told, ["child /parent/child", "first /parent", "second /parent"]);
    // The next group of the place has no callback.
    drop((parent, child, panics));
    h.create("/next").unwrap().remove().unwrap();
}

#[test]
fn a_callback_may_use_the_hierarchy() {
    let h = hierarchy();
    let (used, handle) = (h.clone(), mpsc::channel());
    let request = h.get_or_create_owned("/request").unwrap();
    let sender = handle.0;
    let own = request.clone().downgrade();
    request
        .on_end(move |ended| {
            assert!(own.upgrade().is_some_and(|group| !group.is_online()), "it holds the group");
            let next = used.get_or_create_owned(&ended.path).unwrap();
            sender.send((next.try_charge(10).unwrap().bytes(), used.snapshot().groups.len())).unwrap();
        })
        .unwrap();
    drop(request);
    assert_eq!(handle.1.recv().unwrap(), (10, 3), "the root, the ended group and the next one");
    assert_eq!(h.snapshot().groups.len(), 1);
}

#[test]
fn owners_and_weak_handles_go_to_other_threads() {
    fn is_free<T: Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe + 'static>() {}
    is_free::<OwnedGroup>();
    is_free::<WeakGroup>();
    is_free::<EndedGroup>();
    let h = hierarchy();
    let owner = h.get_or_create_owned("/request").unwrap();
    let weak = owner.downgrade();
    std::thread::spawn(move || drop(owner)).join().unwrap();
    assert_eq!((weak.upgrade(), paths(&h).len()), (None, 0));
}
