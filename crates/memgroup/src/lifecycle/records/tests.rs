//! Nodes and records that go and come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use memgroup_percpu::{Call, SlotSource, inject};
use memgroup_sync::grace::{self, Form};

use crate::base::id::{GroupId, NodeId};
use crate::lifecycle::maintenance::Maintained;
use crate::lifecycle::memory;
use crate::lifecycle::pace::Pace;
use crate::lifecycle::records::{GROUPS_HELD_MAX, demote_removed, free_kept, has_record, steps};
use crate::reclaim::tests::Empty;
use crate::state::config::CHUNK;
use crate::state::stats::builtin::cpu;
use crate::stats::flush;
use crate::tree::node::{self, Node};
use crate::tree::shared::Shared;
use crate::{Charge, Config, Group, GroupError, Hierarchy, Maintenance, ShrinkerConfig, scope};

/// A kind of hierarchy that no other test uses.
fn config(number: u32) -> Config {
    Config::with_slots(SlotSource::virtual_slots(2).unwrap()).groups_max(7000 + number)
}

fn create(hierarchy: &Hierarchy, groups: u32) -> Vec<Group> {
    (0..groups).map(|number| hierarchy.create(&format!("/{number}")).unwrap()).collect()
}

fn remove(groups: Vec<Group>) {
    groups.into_iter().for_each(|group| group.remove().unwrap());
}

/// Gives memory back; returns the bytes of nodes.
fn maintain(hierarchy: &Hierarchy) -> u64 {
    hierarchy.maintain(Maintenance::new().all().expedited()).node_bytes
}

fn chunks(shared: &Shared) -> usize {
    shared.nodes_bytes() / (CHUNK as usize * size_of::<Node>())
}

#[test]
fn nodes_go_with_their_groups() {
    let hierarchy = Hierarchy::new(config(0)).unwrap();
    let shared = hierarchy.shared();
    let mut groups = create(&hierarchy, 20 * CHUNK);
    assert_eq!(chunks(shared), 21);
    let last = groups.pop().unwrap();
    let charge = groups[100].try_charge(1).unwrap();
    remove(groups);
    maintain(&hierarchy);
    assert_eq!(chunks(shared), 1 + 1 + 1, "the root's, that of the last group, and that of the charged one");
    drop(charge);
    remove(vec![last]);
    assert!(maintain(&hierarchy) > 0);
    assert_eq!((chunks(shared), shared.has_limbo()), (1, false));
    assert_eq!(hierarchy.maintained().node_bytes, 20 * CHUNK as u64 * size_of::<Node>() as u64);
    let groups = create(&hierarchy, 20 * CHUNK);
    assert_eq!(chunks(shared), 21);
    drop((groups, hierarchy));
    assert_eq!(chunks(shared), 0, "all of them go with the hierarchy");
    let again = Hierarchy::new(config(0)).unwrap();
    remove(create(&again, CHUNK));
}

#[test]
fn an_id_stays_stale_when_its_node_was_given_back() {
    let hierarchy = Hierarchy::new(config(1)).unwrap();
    let mut seen: Vec<GroupId> = Vec::new();
    for _ in 0..3 {
        let groups = create(&hierarchy, 3 * CHUNK);
        let ids: Vec<_> = groups.iter().map(Group::id).collect();
        assert!(ids.iter().all(|id| !seen.contains(id)), "an id is never another group's");
        for &id in &seen {
            assert!(hierarchy.group(id).is_none() && hierarchy.uncharge(id, 1).is_err(), "{id}");
        }
        seen.extend(ids);
        remove(groups);
        maintain(&hierarchy);
    }
}

#[test]
fn groups_are_what_they_were_in_fresh_nodes() {
    let hierarchy = Hierarchy::new(config(2)).unwrap();
    for round in 0..4 {
        let groups = create(&hierarchy, 2 * CHUNK);
        for group in &groups {
            assert_eq!((group.max(), group.high(), group.min(), group.low()), (None, None, 0, 0));
            assert_eq!((group.peak(), group.refusals(), group.oom_score(), group.owed()), (0, 0, 0, 0));
            assert_eq!(group.events(), Default::default());
            assert_eq!((group.weight(), group.stock().hits), (100, 0));
            group.set_max(1000).unwrap();
            group.set_min(10).unwrap();
            group.set_oom_score(7).unwrap();
            group.try_charge(2000).unwrap_err();
            drop(group.charge_forced(2000).unwrap());
            assert!(group.owed() > 0);
            group.set_weight(7).unwrap();
        }
        remove(groups);
        if round != 1 {
            maintain(&hierarchy);
        }
    }
}

#[test]
fn nodes_with_shrinkers_stay_until_no_group_is_left() {
    let hierarchy = Hierarchy::new(config(3)).unwrap();
    let shared = hierarchy.shared();
    let groups = create(&hierarchy, 4 * CHUNK);
    let shrinker = groups[100].add_shrinker(ShrinkerConfig::new("empty"), Empty).unwrap();
    drop(shrinker);
    remove(groups);
    maintain(&hierarchy);
    assert_eq!(chunks(shared), 2, "the root's, and one with a part for walks");
    let groups = create(&hierarchy, 20 * CHUNK);
    drop((groups, hierarchy));
    assert_eq!(chunks(shared), 0);
    let again = Hierarchy::new(config(3)).unwrap();
    let groups = create(&again, 4 * CHUNK);
    let kept: Vec<_> = groups.iter().filter(|group| group.node().shrinkers().is_some()).collect();
    assert_eq!(kept.len(), 1, "the place has its part again");
    let shrinker = kept[0].add_shrinker(ShrinkerConfig::new("empty"), Empty).unwrap();
    assert_eq!(again.shrinkers().len(), 1);
    drop(shrinker);
}

#[test]
fn a_scope_with_a_forgotten_guard_finds_no_group_in_an_erased_node() {
    let hierarchy = Hierarchy::new(config(4)).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut groups = create(&hierarchy, 4 * CHUNK);
            std::mem::forget(scope::enter(&groups[3 * CHUNK as usize]));
            assert!(scope::current().is_some());
            groups.drain(..).for_each(|group| drop(group.remove()));
            maintain(&hierarchy);
            assert_eq!(scope::current(), None);
            assert!(hierarchy.try_charge_current(1).is_none());
            grace::synchronize(Form::Quiet);
            let other = Hierarchy::new(config(8)).unwrap();
            let others = create(&other, 20 * CHUNK);
            assert_eq!(scope::current(), None, "nor another hierarchy's group at the same address");
            remove(others);
        });
    });
}

#[test]
fn a_forgotten_stall_ends_with_its_thread_also_in_an_erased_node() {
    let hierarchy = Hierarchy::new(config(9)).unwrap();
    let thread = std::thread::spawn({
        let hierarchy = hierarchy.clone();
        move || {
            let groups = create(&hierarchy, 4 * CHUNK);
            drop(scope::enter(&groups[3 * CHUNK as usize]));
            std::mem::forget(groups[3 * CHUNK as usize].stall());
            remove(groups);
            maintain(&hierarchy);
        }
    });
    thread.join().unwrap();
    let root = hierarchy.root();
    drop(root.stall());
    assert_eq!(hierarchy.groups().len(), 1);
}

#[test]
fn parts_go_with_the_records_of_a_free_place() {
    let hierarchy = Hierarchy::new(config(11)).unwrap();
    let groups = create(&hierarchy, CHUNK / 2);
    let nodes: Vec<_> = groups.iter().map(Group::node).collect();
    remove(groups);
    maintain(&hierarchy);
    assert!(nodes.into_iter().all(|node| node.withdraw_parts().is_none()), "the chunk stays, with the root");
}

#[test]
fn ids_are_good_after_a_hierarchy_that_was_refused_memory() {
    // As many slots as no other test has: their memory is mapped here.
    let config = Config::with_slots(SlotSource::virtual_slots(43).unwrap()).groups_max(7012);
    let refused = (0..8).filter(|&after| {
        let guard = inject::fail(Call::Map, after);
        let refused = Hierarchy::new(config).is_err();
        drop(guard);
        refused
    });
    assert!(refused.count() > 0, "what is mapped first is for the root");
    for _ in 0..2 {
        let hierarchy = Hierarchy::new(config).unwrap();
        for group in create(&hierarchy, 20 * CHUNK).iter().chain([&hierarchy.root()]) {
            let (id, bytes) = group.try_charge(10).unwrap().into_parts();
            hierarchy.uncharge(id, bytes).unwrap();
        }
    }
}

#[test]
fn a_group_without_memory_for_its_node_is_refused() {
    let hierarchy = Hierarchy::new(config(5)).unwrap();
    let first = create(&hierarchy, CHUNK - 1);
    let guard = memgroup_sync::inject::refuse_chunks();
    let error = hierarchy.create("/more").unwrap_err();
    assert!(matches!(&error, GroupError::OutOfMemory { path, .. } if path == "/more"), "{error:?}");
    maintain(&hierarchy);
    let refused = Hierarchy::new(config(6)).unwrap_err().to_string();
    assert!(refused.contains("refused address space for its groups; raise RLIMIT_AS"), "{refused}");
    drop(guard);
    hierarchy.create("/more").unwrap();
    Hierarchy::new(config(6)).unwrap().create("/group").unwrap();
    drop(first);
}

#[test]
fn charges_last_while_nodes_come_and_go() {
    const ROUNDS: usize = if cfg!(memgroup_yields) { 200 } else { 2000 };
    let hierarchy = Hierarchy::new(config(7)).unwrap();
    let (send, receive) = std::sync::mpsc::sync_channel::<Charge>(64);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        // The last bytes of most groups go on another thread than the last handles.
        threads.spawn(move || receive.iter().for_each(drop));
        threads.spawn(|| {
            // ORDERING: Relaxed; one more pass does no harm.
            while !is_over.load(Ordering::Relaxed) {
                maintain(&hierarchy);
            }
        });
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let (hierarchy, send) = (&hierarchy, send.clone());
                threads.spawn(move || {
                    for round in 0..ROUNDS {
                        let group = hierarchy.create(&format!("/{worker}-{round}")).unwrap();
                        group.set_max(10_000).unwrap();
                        send.send(group.try_charge(1 + round as u64 % 9000).unwrap()).unwrap();
                        if round % 3 == 0 {
                            // Marks the group OVER, so that uncharges look at it.
                            group.set_max(0).unwrap();
                        }
                        group.remove().unwrap();
                    }
                })
            })
            .collect();
        drop(send);
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        // ORDERING: Relaxed; as above. Before a worker's panic goes on, which would else wait for
        // the passes without end.
        is_over.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(Result::unwrap);
    });
    maintain(&hierarchy);
    assert_eq!((hierarchy.root().usage_exact(), hierarchy.groups().len()), (0, 1));
    assert!(hierarchy.dying().is_empty() && hierarchy.shared().tree.lock().in_use() == 1);
}

#[test]
fn a_step_that_finds_a_turn_taken_leaves_its_groups_to_the_next() {
    let hierarchy = Hierarchy::new(config(80)).unwrap();
    let (shared, mut done) = (hierarchy.shared(), Maintained::default());
    let group = hierarchy.create("/group").unwrap();
    let _charge = group.try_charge(1).unwrap();
    hierarchy.cpu().add(&group, cpu::NR_SCOPES, 1);
    assert!(has_record(group.node()));
    group.remove().unwrap();
    let mut demote = || demote_removed(shared, u64::MAX, &Pace::step(Instant::now()), &mut done);
    let turn = flush::lock(shared.statistics.trees().next().unwrap(), shared);
    assert_eq!(demote(), 0);
    drop(turn);
    assert!(demote() > 0 && !has_record(group.node()));
}

#[test]
fn no_more_is_given_up_than_may_wait() {
    let hierarchy = Hierarchy::new(config(81)).unwrap();
    let (shared, mut done) = (hierarchy.shared(), Maintained::default());
    remove(create(&hierarchy, 100));
    let (kept, most) = (shared.tree.lock().kept(), 10 * memory::record_bytes(shared));
    assert_eq!((free_kept(shared, most, &Pace::whole(), &mut done), kept), (most, 100));
    assert_eq!(shared.tree.lock().kept(), 90);
}

#[test]
fn a_lock_is_held_for_so_many_small_groups_only() {
    let hierarchy = Hierarchy::new(config(82)).unwrap();
    let (mut visited, mut done) = (0, Maintained::default());
    let visit = |_: &mut _| {
        visited += 1;
        Some(u64::from(visited % 2 == 0))
    };
    assert!(steps(hierarchy.shared(), 1, &mut done, visit));
    assert_eq!(visited, 2 * GROUPS_HELD_MAX, "places without records are no work");
}

#[test]
fn places_go_at_once_and_nodes_after_the_flushes_that_may_refer_to_them() {
    let hierarchy = Hierarchy::new(config(83)).unwrap();
    let (shared, mut done) = (hierarchy.shared(), Maintained::default());
    remove(create(&hierarchy, 3 * CHUNK));
    let has_entry = || shared.tree.lock().has_entry(NodeId(2 * CHUNK));
    assert!(has_entry());
    free_kept(shared, u64::MAX, &Pace::whole(), &mut done);
    assert!(!has_entry() && shared.has_limbo());
    grace::synchronize(Form::Expedited);
    assert_eq!(shared.reclaim_nodes(usize::MAX, || false), 0, "a flush is under way");
    grace::synchronize(Form::Expedited);
    assert!(shared.has_limbo() && shared.reclaim_nodes(usize::MAX, || true) > 0);
}

/// Runs the test of this name alone in a process, which may then change the count of generations
/// for all.
fn runs_alone(test: &str) -> bool {
    const CHILD: &str = "MEMGROUP_TEST_ALONE";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let this = std::env::current_exe().unwrap();
    let name = format!("lifecycle::records::tests::{test}");
    let output = std::process::Command::new(this)
        .args([&name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

#[test]
#[cfg_attr(memgroup_emulated, ignore = "starts a process")]
fn nothing_of_a_group_finds_another_when_half_of_the_generation_came_round() {
    if !runs_alone("nothing_of_a_group_finds_another_when_half_of_the_generation_came_round") {
        return;
    }
    let hierarchy = Hierarchy::new(config(9)).unwrap();
    let first = hierarchy.create("/first").unwrap();
    let (weak, id, node) = (first.downgrade(), first.id(), first.node());
    first.set_max(0).unwrap();
    let refused = first.try_charge(1).unwrap_err();
    std::mem::forget(scope::enter(&first));
    assert_eq!((scope::current_id(), refused.path().as_deref()), (Some(id), Some("/first")));
    first.remove().unwrap();
    drop(first);
    // The lives after which a generation of 32 bits is the same again, with and without the bit for
    // a free node.
    for lives in [1_u64 << 31, 1 << 32, 1 << 33, 1 << 40] {
        node::set_generations(id.generation() + 2 * lives);
        let next = hierarchy.create("/next").unwrap();
        assert!(std::ptr::eq(next.node(), node), "the place is used again");
        assert_eq!(next.id().generation(), id.generation() + 2 * lives);
        assert_eq!(next.id().generation() as u32, id.generation() as u32);
        let (_, bytes) = next.try_charge(100).unwrap().into_parts();
        assert!(weak.upgrade().is_none() && hierarchy.group(id).is_none());
        assert!(hierarchy.uncharge(id, bytes).is_err() && hierarchy.charge_from_parts(id, bytes).is_err());
        assert_eq!((scope::current_id(), refused.path()), (None, None));
        assert!(weak != next.downgrade() && id != next.id() && id.as_u64() != next.id().as_u64());
        assert_eq!(GroupId::from_u128(next.id().as_u128()), next.id());
        assert_eq!((next.usage_exact(), hierarchy.uncharge(next.id(), bytes)), (100, Ok(())));
        next.remove().unwrap();
    }
}

#[test]
#[cfg_attr(memgroup_emulated, ignore = "starts a process")]
fn nothing_panics_after_the_last_generation() {
    if !runs_alone("nothing_panics_after_the_last_generation") {
        return;
    }
    let hierarchy = Hierarchy::new(config(10)).unwrap();
    node::set_generations(u64::MAX - 4);
    let mut ended = Vec::new();
    for generation in [u64::MAX - 4, u64::MAX - 2, u64::MAX, 1, 3] {
        let group = hierarchy.create("/group").unwrap();
        assert_eq!((group.id().generation(), group.node().has_group()), (generation, true));
        assert!(ended.iter().all(|weak: &crate::WeakGroup| weak.upgrade().is_none()));
        assert_eq!(group.downgrade().upgrade().as_ref(), Some(&group));
        assert_eq!(GroupId::from_u128(group.id().as_u128()), group.id());
        ended.push(group.downgrade());
        let (node, charge) = (group.node(), group.try_charge(10).unwrap());
        group.remove().unwrap();
        drop(group);
        drop(charge);
        assert!(!node.has_group());
    }
    remove(create(&hierarchy, 3 * CHUNK));
    maintain(&hierarchy);
    remove(create(&hierarchy, 3 * CHUNK));
}
