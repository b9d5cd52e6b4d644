//! Residence: whether a group's stock words are in memory, and where; and that its statistics come and go with them.
//!
//! ```text
//!            create               demote (idle)
//!   nothing ────────▶ record ────────────────────▶ nothing
//!                     │    ▲  ◀────────────────────
//!                     └────┘        touched
//!                    relocate
//!   free place: keeps its record for its next group, or gives it up (vacate)
//! ```
//!
//! Each change closes the stocks of the group first, as a refusal does, so that the words that are left behind stay CLOSED: who
//! still reaches them finds no stock there and goes to the counters, which no move touches. What was left behind is used again only
//! after a grace period. `docs/residence.md` has it step by step, with costs and what catches which mistake. The records
//! of a group's statistics are moved by `rstat::moves`; idle groups give both up.
//!
//! - I1. Records are linked and unlinked under the tree lock, which excludes drains, refusals and removal: they see one copy.
//! - I2. The stock word of a linked record is CLOSED where `overrun::may_open` says so: at `create`, when it moves, when it comes back
//!   and when a slot is admitted.
//! - E1. close, wait_settled → unlink: bytes between a word and the counters have arrived before the word is left behind. Loom:
//!   `a_move_loses_no_charge`.

use memgroup_percpu::{Fresh, OutOfMemory, Unlinked, Wait};
use memgroup_sync::atomic::Ordering;
use memgroup_sync::{grace, interleave};

use crate::group::GroupId;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::overrun;
use crate::rstat::Entry;
use crate::rstat::moves::{self, Alone};
use crate::shared::Shared;
use crate::stock::word::{CLOSED_WORD, Word};
use crate::stock::{WORD, count, drain};
use crate::tree::{State, Tree};

#[cfg(all(test, memgroup_loom))]
mod loom;

/// Gives the node of a new group a record, if its place has none any more; the caller holds the tree lock.
pub(crate) fn furnish(node: &'static Node) -> Result<(), OutOfMemory> {
    if !node.record.is_linked() {
        let fresh = node.shared.memory.stocks.allocate(node.id.0, Wait::May)?;
        let before = node.record.link(fresh);
        debug_assert!(before.is_none());
    }
    Ok(())
}

/// Sees to a word for `node` in `slot`; `false` if there is none now, and charges are exact.
#[cold]
pub(crate) fn make_word(node: &'static Node, slot: usize) -> bool {
    (node.record.is_linked() || promote(node)) && (node.shared.memory.is_admitted(slot) || admit(node, slot))
}

/// Admits `slot`, if a record waits for it. `false`: it was admitted before, or there is no record.
#[cold]
pub(crate) fn admit(node: &'static Node, slot: usize) -> bool {
    let shared = node.shared;
    if shared.memory.is_admitted(slot) || !node.record.is_linked() {
        return false;
    }
    admit_held(shared, &shared.tree.lock(), slot);
    true
}

/// Opens the copies of a slot to its threads; before that, those of groups that may have no stock are closed.
fn admit_held(shared: &'static Shared, tree: &Tree, slot: usize) {
    let closed = |node: &'static Node| {
        tree.state(node.id) != State::Free
            && !overrun::may_open(node)
            && !mutation::active(Mutation::AdmissionOpensStocks)
    };
    shared.memory.stocks.admit(slot, |early| {
        let section = grace::enter();
        for node in (0..tree.places()).filter_map(|at| shared.node(GroupId(at))) {
            if let Some(word) = early.word(&section, &node.record, WORD)
                && closed(node)
            {
                // ORDERING: Relaxed; the admission publishes it.
                word.store(CLOSED_WORD, Ordering::Relaxed);
            }
        }
    });
}

/// A group that gave its record up gets one again, if it is online. Takes nothing that could be waited for: a charge can do without.
fn promote(node: &'static Node) -> bool {
    let Some(_tree) = node.shared.tree.try_lock() else { return false };
    node.record.is_linked() || (!node.counter.is_offline() && promote_held(node, Wait::Never).is_ok())
}

pub(crate) fn promote_held(node: &'static Node, wait: Wait) -> Result<(), OutOfMemory> {
    let fresh = node.shared.memory.stocks.allocate(node.id.0, wait)?;
    close_if_need_be(node, &fresh);
    node.record.link(fresh);
    Ok(())
}

/// Takes the records away from a group that is idle or removed.
pub(crate) fn demote_held(node: &'static Node, alone: &Alone<'_>) {
    quiet(node);
    interleave::point();
    if let Some(old) = node.record.unlink() {
        node.shared.memory.stocks.retire(old, tag(node));
    }
    node.entries().for_each(|entry| moves::give_up(entry, alone));
}

/// Whether the group has any record.
pub(crate) fn is_furnished(node: &'static Node) -> bool {
    node.record.is_linked() || node.entries().any(|entry| entry.record.is_linked())
}

/// Moves one stock record so that pages become free; returns the bytes moved, `None` when there is nothing to gain.
pub(crate) fn relocate_held(shared: &'static Shared, tree: &Tree) -> Option<u64> {
    let stocks = &shared.memory.stocks;
    let relocation = stocks.next_move()?;
    let node = shared.node(GroupId(relocation.owner()))?;
    let is_current = relocation.is_of(&node.record);
    if !is_current || tree.state(node.id) == State::Free {
        // Unlinked meanwhile, or nobody's words: given up instead of moved.
        stocks.discard(relocation.into_target());
        if is_current && let Some(old) = node.record.unlink() {
            stocks.retire(old, tag(node));
        }
        return Some(0);
    }
    move_held(node, relocation.into_target());
    Some((stocks.record_bytes() * stocks.admitted().count()) as u64)
}

/// The group's words are in `fresh` from now on.
fn move_held(node: &'static Node, fresh: Fresh) {
    quiet(node);
    close_if_need_be(node, &fresh);
    interleave::point();
    if let Some(old) = node.record.link(fresh) {
        interleave::point();
        node.shared.memory.stocks.retire(old, tag(node));
    }
}

/// Takes the records of a free place, in which nothing is left.
pub(crate) fn vacate(node: &'static Node) {
    if let Some(old) = node.record.unlink() {
        node.shared.memory.stocks.retire(old, tag(node));
    }
    node.entries().for_each(Entry::vacate);
}

/// The stocks of the group are empty and closed, and nobody is between them and the counters.
fn quiet(node: &'static Node) {
    if !mutation::active(Mutation::MoveLeavesStocksOpen) {
        drain::close(node);
        if !mutation::active(Mutation::MoveIgnoresPending) {
            drain::wait_settled(node);
        }
        drain::retire_caps(node);
    }
    drain::harvest(node);
}

fn close_if_need_be(node: &'static Node, fresh: &Fresh) {
    if overrun::may_open(node) || mutation::active(Mutation::MoveOpensStocks) {
        return;
    }
    let stocks = &node.shared.memory.stocks;
    for slot in stocks.admitted() {
        if let Some(word) = stocks.fresh_word(fresh, slot, WORD) {
            // ORDERING: Relaxed; linking publishes it.
            word.store(CLOSED_WORD, Ordering::Relaxed);
        }
    }
}

/// Tells in `reclaim` which group the words were of.
fn tag(node: &'static Node) -> u64 {
    u64::from(node.id.0) << 32 | u64::from(node.generation())
}

/// The last look at words that nobody reaches any more: attempts that came late are counted, and nothing else is there.
pub(crate) fn last_look(shared: &'static Shared, old: &Unlinked, tag: u64) {
    let stocks = &shared.memory.stocks;
    let mut attempts = 0;
    for slot in stocks.admitted() {
        let Some(word) = stocks.unlinked_word(old, slot, WORD) else { continue };
        // ORDERING: Relaxed; after the grace period nobody changes it any more.
        let word = Word(word.load(Ordering::Relaxed));
        assert!(
            word.bytes() == 0 && word.cap() == 0 && !word.is_pending(),
            "a stock that was left behind in slot {slot} still holds {word:?}"
        );
        attempts += word.attempts();
    }
    if attempts > 0 {
        count_late(shared, tag, attempts);
    }
}

/// Counts attempts for the group that `tag` names, if it still has its place. The lock holds off whoever gives that away.
fn count_late(shared: &'static Shared, tag: u64, attempts: u64) {
    let tree = shared.tree.lock();
    let of_the_group = |node: &&'static Node| {
        tree.state(node.id) != State::Free && node.generation() == tag as u32
            || mutation::active(Mutation::LastLookIgnoresGeneration)
    };
    if let Some(node) = shared.node(GroupId((tag >> 32) as u32)).filter(of_the_group) {
        count::charges(node, attempts);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use memgroup_percpu::{SlotSource, pin_virtual};

    use super::*;
    use crate::rstat::builtin::memory::{CHARGES, STOCK_MISSES};
    use crate::stock::{Stock, consume};
    use crate::{Config, Freshness, Hierarchy, Maintenance, Reach};

    #[test]
    fn an_attempt_that_comes_late_is_found_by_the_last_look() {
        let config = Config::with_slots(SlotSource::virtual_slots(1).unwrap());
        let hierarchy = Hierarchy::new(config).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let (node, _pin) = (group.node(), pin_virtual(0));
        (0..2).for_each(|_| drop(group.try_charge(100).unwrap()));
        let late = Stock::enter(node, 0).expect("the group was charged");
        {
            let layout = node.shared.layout.write();
            let _tree = node.shared.tree.lock();
            demote_held(node, &layout);
        }
        let found = late.attempt(100);
        assert!(found.is_closed() && found.attempts() == 0, "{found:?}");
        consume::charge_miss(late, 100, found).unwrap();
        let count = |stat| hierarchy.memory().get(&group, stat, Reach::Local, Freshness::Fresh);
        assert_eq!((count(CHARGES), count(STOCK_MISSES)), (2, 2), "what was left behind is in no flush");
        hierarchy.maintain(Maintenance::new().expedited());
        assert_eq!((count(CHARGES), count(STOCK_MISSES)), (3, 2));
        node.uncharge(100);
    }
}
