//! Records of groups that need them no more are given up, and others move together: steps 1 and 2 of a maintenance pass.

use core::time::Duration;
use std::time::Instant;

use memgroup_percpu::{Fresh, Record, Records};

use crate::base::id::NodeId;
use crate::lifecycle::maintenance::{Maintained, PAGES_HELD_MAX};
use crate::lifecycle::{memory, residence};
use crate::stats::moves::{self, LayoutGuard};
use crate::stats::release::DeferredReleases;
use crate::stock::drain;
use crate::tree::node::{Node, mix};
use crate::tree::shared::Shared;
use crate::tree::topology::{Noted, ROOT, State, Tree};

#[cfg(all(test, memgroup_loom))]
mod loom;

/// The most places that are visited while a lock is held, with records or without.
const PLACES_HELD_MAX: u32 = 1024;

/// Runs `step` until it returns `None`, or until more work would exceed the pages that one holding of the locks may take.
///
/// A step returns the bytes of records that it worked on; `each` is the most that one step takes. Whether steps are left.
fn steps(
    shared: &'static Shared,
    each: u64,
    done: &mut Maintained,
    mut step: impl FnMut(&mut Maintained) -> Option<u64>,
) -> bool {
    let page = shared.memory.stocks.arena().page().bytes() as u64;
    let mut bytes = 0;
    let more = loop {
        if bytes > 0 && bytes + each > PAGES_HELD_MAX * page {
            break true;
        }
        let Some(work) = step(done) else { break false };
        bytes += work;
    };
    done.pages_held_max = done.pages_held_max.max(bytes.div_ceil(page));
    more
}

/// Runs `work` with the tree lock, and the layout of the statistics alone.
fn with_layout<T>(shared: &'static Shared, work: impl FnOnce(&LayoutGuard<'_>, &mut Tree) -> T) -> T {
    let _releases = DeferredReleases(shared);
    let layout = shared.layout.write();
    let mut tree = shared.tree.lock();
    work(&layout, &mut tree)
}

/// Frees the records that free places kept for their next groups, at most so many bytes. The arenas decide which pages float.
pub(crate) fn free_kept(shared: &'static Shared, bytes_max: u64, done: &mut Maintained) {
    let each = memory::group_bytes(shared);
    let mut left = bytes_max / each;
    let mut more = true;
    while more {
        let mut tree = shared.tree.lock();
        more = steps(shared, each, done, |_| {
            left = left.checked_sub(1)?;
            let id = tree.strip()?;
            // A group that the system refused a node for leaves a place without one.
            shared.node(id).into_iter().for_each(residence::free_records);
            if let Some(chunk) = tree.bare_chunk(id) {
                shared.free_chunk(&tree, chunk);
                tree.free_entries(chunk);
            }
            Some(each)
        });
    }
}

/// Takes the records of removed groups that are not free yet, at most so many bytes. Their stocks are never opened again, and their
/// statistics move to the base words.
pub(crate) fn demote_removed(shared: &'static Shared, bytes_max: u64, done: &mut Maintained) {
    let each = memory::group_bytes(shared);
    let mut left = bytes_max / each;
    let mut step = |layout: &LayoutGuard<'_>, tree: &mut Tree, done: &mut Maintained| {
        left = left.checked_sub(1)?;
        let removed = std::iter::from_fn(|| tree.take_departed()).filter_map(|id| shared.node(id));
        let node = removed.into_iter().find(|node| residence::has_record(node))?;
        residence::demote_held(node, layout);
        done.demoted_groups += 1;
        Some(each)
    };
    while with_layout(shared, |layout, tree| steps(shared, each, done, |done| step(layout, tree, done))) {}
}

/// Frees the records of all places and all nodes, if no group is left.
pub(crate) fn free_all(shared: &'static Shared, done: &mut Maintained) {
    loop {
        free_kept(shared, u64::MAX, done);
        let mut tree = shared.tree.lock();
        if tree.state(ROOT) != State::Free {
            return;
        }
        // Another user may have had the hierarchy meanwhile, and left records.
        if tree.kept() == 0 {
            shared.node(ROOT).into_iter().for_each(residence::free_records);
            return shared.free_all_chunks(&mut tree);
        }
    }
}

/// Takes the records of groups that were idle for long enough, and of removed groups that still hold bytes. Returns the number of
/// online groups without a stock.
pub(crate) fn demote_idle(shared: &'static Shared, now: Instant, done: &mut Maintained) -> u64 {
    let Some(after) = shared.config.demote_after else { return 0 };
    let each = memory::group_bytes(shared);
    let (mut at, mut cold) = (0, 0);
    let mut step = |at: u32, layout: &LayoutGuard<'_>, tree: &mut Tree, done: &mut Maintained| {
        let Some(node) = shared.node(NodeId(at)) else { return 0 };
        // Only a look at all words of a group tells whether it is idle, so the look is work on its records too.
        let has_work = tree.state(node.id()) != State::Free && residence::has_record(node);
        if has_work && is_idle(tree, node, now, after) {
            residence::demote_held(node, layout);
            done.demoted_groups += 1;
        }
        cold += u64::from(tree.state(node.id()) == State::Online && !node.record.is_linked());
        if has_work { each } else { 0 }
    };
    while with_layout(shared, |layout, tree| {
        let end = tree.places().min(at + PLACES_HELD_MAX);
        steps(shared, each, done, |done| {
            let place = (at < end).then_some(at)?;
            at += 1;
            Some(step(place, layout, tree, done))
        });
        at < tree.places()
    }) {}
    cold
}

/// A number that changes whenever the group is charged, uncharged or added to.
fn activity(node: &'static Node) -> u64 {
    node.entries().map(|entry| moves::activity(entry, node)).fold(drain::activity(node), mix)
}

fn is_idle(tree: &mut Tree, node: &'static Node, now: Instant, after: Duration) -> bool {
    match tree.state(node.id()) {
        State::Free => false,
        State::Dying { .. } => true,
        State::Online => {
            let activity = activity(node);
            let noted = tree.noted(node.id());
            match *noted {
                Some(before) if before.activity == activity => {
                    now.saturating_duration_since(before.since) >= after
                }
                _ => {
                    *noted = Some(Noted { activity, since: now });
                    after.is_zero()
                }
            }
        }
    }
}

/// Moves records out of sparse chunks, one arena after the other, at most so many bytes of all.
pub(crate) fn relocate(shared: &'static Shared, bytes_max: u64, done: &mut Maintained) {
    let stocks = &shared.memory.stocks;
    relocate_in(
        shared,
        stocks,
        bytes_max,
        done,
        |node| &node.record,
        |node, fresh, _| {
            residence::move_held(node, fresh);
        },
    );
    for store in shared.statistics.stores() {
        let record = |node: &'static Node| &node.entry(store).record;
        relocate_in(shared, &store.records, bytes_max, done, record, |node, fresh, layout| {
            moves::move_to(node.entry(store), fresh, layout);
        });
    }
}

fn relocate_in(
    shared: &'static Shared,
    records: &'static Records,
    bytes_max: u64,
    done: &mut Maintained,
    record: impl Fn(&'static Node) -> &'static Record,
    move_to: impl Fn(&'static Node, Fresh, &LayoutGuard<'_>),
) {
    let bytes = (records.record_bytes() * records.admitted().count()) as u64;
    let step = |layout: &LayoutGuard<'_>, tree: &mut Tree, done: &mut Maintained| {
        if done.moved_bytes >= bytes_max {
            done.more = true;
            return None;
        }
        let relocation = records.next_move()?;
        let node = shared.node(NodeId(relocation.owner()));
        let Some(node) = node.filter(|node| relocation.is_current(record(node))) else {
            // Unlinked meanwhile: given up instead of moved.
            records.discard(relocation.into_target());
            return Some(bytes.max(64));
        };
        if tree.state(node.id()) != State::Free {
            move_to(node, relocation.into_target(), layout);
            done.moved_bytes += bytes;
            done.moved_records += u64::from(bytes > 0);
        } else {
            // Of a free place: given up instead of moved.
            records.discard(relocation.into_target());
            if let Some(old) = record(node).unlink() {
                records.retire(old, residence::tag(node));
            }
        }
        Some(bytes.max(64))
    };
    while with_layout(shared, |layout, tree| steps(shared, bytes, done, |done| step(layout, tree, done))) {}
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use memgroup_percpu::{Call, SlotSource, inject, pin_virtual};
    use memgroup_sync::grace::{self, Form};

    use crate::base::id::GroupId;
    use crate::control::aftermath;
    use crate::lifecycle::maintenance::Maintained;
    use crate::lifecycle::records::demote_removed;
    use crate::reclaim::tests::Empty;
    use crate::state::config::CHUNK;
    use crate::stock::{Stock, withdraw};
    use crate::tree::node::Node;
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
        assert_eq!(
            chunks(shared),
            1 + 1 + 1,
            "the root's, that of the last group, and that of the charged one"
        );
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
                assert_eq!((group.events(), group.labels()), (Default::default(), Vec::new()));
                assert_eq!((group.weight(), group.stock().hits), (100, 0));
                group.set_max(1000).unwrap();
                group.set_min(10).unwrap();
                group.set_oom_score(7).unwrap();
                group.try_charge(2000).unwrap_err();
                drop(group.charge_forced(2000).unwrap());
                assert!(group.owed() > 0);
                group.set_weight(7).unwrap();
                drop(group.label("sort").unwrap().try_charge(100).unwrap());
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
    fn a_move_leaves_the_last_bytes_of_a_removed_group_to_the_thread_that_uncharges_them() {
        let hierarchy = Hierarchy::new(config(10)).unwrap();
        let (shared, group) = (hierarchy.shared(), hierarchy.create("/group").unwrap());
        let _pin = pin_virtual(0);
        let charge = group.try_charge(100).unwrap();
        let node = group.node();
        remove(vec![group]);
        // A thread has put the bytes into the stock, which is not open, and has not taken them out yet.
        let late = Stock::enter(node, 0).expect("the group was charged");
        std::mem::forget(charge);
        assert!(!late.put(100).is_open());
        demote_removed(shared, u64::MAX, &mut Maintained::default());
        assert_eq!(withdraw(&late, 100), 100, "the move took them");
        assert_eq!(shared.tree.lock().in_use(), 2);
        drop(late);
        aftermath::uncharge_counters(node, 100);
        assert_eq!(hierarchy.root().usage_exact(), 0);
        assert_eq!(shared.tree.lock().in_use(), 1);
    }

    #[test]
    fn parts_go_with_the_records_of_a_free_place() {
        let hierarchy = Hierarchy::new(config(11)).unwrap();
        let groups = create(&hierarchy, CHUNK / 2);
        let nodes: Vec<_> = groups.iter().map(Group::node).collect();
        remove(groups);
        maintain(&hierarchy);
        assert!(
            nodes.into_iter().all(|node| node.withdraw_parts().is_none()),
            "the chunk stays, with the root"
        );
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
        assert!(refused.count() > 1, "the second thing that is mapped is for the root");
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
            // ORDERING: Relaxed; as above. Before a worker's panic goes on, which would else wait for the passes without end.
            is_over.store(true, Ordering::Relaxed);
            ends.into_iter().for_each(Result::unwrap);
        });
        maintain(&hierarchy);
        assert_eq!((hierarchy.root().usage_exact(), hierarchy.groups().len()), (0, 1));
        assert!(hierarchy.dying().is_empty() && hierarchy.shared().tree.lock().in_use() == 1);
    }
}
