//! Residence: where a group's stock words and statistics are in memory.
//!
//! ```text
//!            create               demote (idle)
//!   nothing ────────▶ record ────────────────────▶ nothing
//!                     │    ▲  ◀────────────────────
//!                     └────┘   charged or added to
//!                    relocate
//!   free place: keeps its record for its next group, or frees it
//! ```
//!
//! Each change closes the words first and empties the stocks. So the words that are left behind stay CLOSED. A thread that
//! still reaches them finds no stock there and goes to the counters, which no move touches. The old memory is used again only after
//! a grace period. The page below has the steps, the costs and the tests. `stats::moves` moves the records of statistics.
//!
//! - I1. Records are linked and unlinked under the tree lock. A drain of either copy is right: no stock is open in the one left behind.
//! - I2. No stock is open in a record that was just linked, nor on a slot that was just admitted.
//! - E1. close, retire → unlink: bytes between a word and the counters have arrived before the word is left behind. Loom:
//!   `moves_a_record_without_losing_a_charge`.
#![doc = include_str!("../../docs/residence.md")]

use memgroup_percpu::{Fresh, OutOfMemory, Unlinked, Wait};
use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

use crate::base::id::{GroupId, NodeId};
use crate::base::mutation::{self, Mutation};
use crate::control::aftermath;
use crate::state::stats::builtin::MEMORY;
use crate::state::stats::builtin::memory::CHARGES;
use crate::state::stats::store::StatEntry;
use crate::state::stock_word::Word;
#[cfg(test)]
use crate::stats::flush;
use crate::stats::flush::FlushGuard;
use crate::stats::moves;
use crate::stats::update::count;
use crate::stock::{WORD, drain};
use crate::tree::node::Node;
use crate::tree::shared::Shared;
use crate::tree::topology::State;

#[cfg(all(test, memgroup_loom))]
mod loom;

/// Allocates a record for a new group, if its place kept none. The caller holds the tree lock.
pub(crate) fn alloc_record(node: &'static Node) -> Result<(), OutOfMemory> {
    if !node.record.is_linked() {
        let fresh = node.shared().memory.stocks.allocate(node.id().0, Wait::May)?;
        let before = node.record.link(fresh);
        debug_assert!(before.is_none());
    }
    Ok(())
}

/// Makes a stock word of `node` on `slot`, if it has none. `false` if none can be made now, so that charges are exact.
#[cold]
pub(crate) fn make_word(node: &'static Node, slot: usize) -> bool {
    (node.record.is_linked() || promote(node))
        && (node.shared().memory.is_admitted(slot) || admit(node, slot))
}

/// Admits `slot`, if the group has a record. `false` if it was admitted before, or there is no record.
#[cold]
pub(crate) fn admit(node: &'static Node, slot: usize) -> bool {
    let shared = node.shared();
    if shared.memory.is_admitted(slot) || !node.record.is_linked() {
        return false;
    }
    let _tree = shared.tree.lock();
    shared.memory.stocks.admit(slot, |_| ());
    true
}

/// Gives a record to an online group that has none, if that needs no waiting. A charge can do without one.
fn promote(node: &'static Node) -> bool {
    let Some(_tree) = node.shared().tree.try_lock() else { return false };
    node.record.is_linked() || (!node.counter.is_offline() && promote_held(node, Wait::Never).is_ok())
}

pub(crate) fn promote_held(node: &'static Node, wait: Wait) -> Result<(), OutOfMemory> {
    let fresh = node.shared().memory.stocks.allocate(node.id().0, wait)?;
    node.record.link(fresh);
    Ok(())
}

/// The turn that a thread needs to move stock words: their charges are counted in `memory`. A model may count nothing.
#[cfg(test)]
pub(crate) fn stock_turn(shared: &'static Shared) -> Option<FlushGuard> {
    shared.statistics.stores().nth(MEMORY).map(|store| flush::lock(store.updates, shared))
}

/// Takes those records of a group that is idle or removed which belong to `turn`: of its subsystems, and the stock words with the turn of
/// `memory`. The caller holds the tree lock.
pub(crate) fn demote_held(node: &'static Node, turn: Option<&FlushGuard>) {
    let is_in_turn = |entry: &StatEntry| turn.is_some_and(|turn| turn.is_of(entry));
    if node.find_entry(MEMORY).is_none_or(is_in_turn) {
        close_stocks(node);
        interleave::point();
        if let Some(old) = node.record.unlink() {
            node.shared().memory.stocks.retire(old, tag(node));
        }
    }
    if let Some(turn) = turn {
        let entries = node.entries().filter(|entry| turn.is_of(entry));
        entries.for_each(|entry| moves::move_to_base(entry, turn));
    }
}

/// Whether the group has any record.
pub(crate) fn has_record(node: &'static Node) -> bool {
    node.record.is_linked() || node.entries().any(|entry| entry.record.is_linked())
}

/// Moves the group's stock words to `fresh`. The caller holds the tree lock, and the turn to flush `memory`.
pub(crate) fn move_held(node: &'static Node, fresh: Fresh) {
    close_stocks(node);
    interleave::point();
    if let Some(old) = node.record.link(fresh) {
        interleave::point();
        node.shared().memory.stocks.retire(old, tag(node));
    }
}

/// Frees the records of a free place.
pub(crate) fn free_records(node: &'static Node) {
    if let Some(old) = node.record.unlink() {
        node.shared().memory.stocks.retire(old, tag(node));
    }
    node.entries().for_each(StatEntry::free_record);
    node.shared().free_parts(node);
}

/// Empties the stocks of the group for good, and waits for threads between them and the counters.
fn close_stocks(node: &'static Node) {
    if !mutation::active(Mutation::MoveLeavesStocksOpen) {
        drain::close(node);
    }
    aftermath::retire(node);
    count(node, CHARGES, drain::harvest(node));
}

/// Names the group that the words belonged to, for `last_look`.
pub(crate) fn tag(node: &'static Node) -> u128 {
    node.group_id().as_u128()
}

/// Counts the attempts in words that no thread can reach any more, and asserts that nothing else is there.
pub(crate) fn last_look(shared: &'static Shared, old: &Unlinked, tag: u128) {
    let stocks = &shared.memory.stocks;
    let mut attempts = 0;
    for slot in stocks.admitted() {
        let Some(word) = stocks.unlinked_word(old, slot, WORD) else { continue };
        // ORDERING: Relaxed; after the grace period no thread changes it.
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

/// Counts attempts for the group that `tag` names, if it still has its place. The tree lock keeps the place from being given away.
fn count_late(shared: &'static Shared, tag: u128, attempts: u64) {
    let tree = shared.tree.lock();
    let id = GroupId::from_u128(tag);
    let of_the_group = |node: &&'static Node| {
        tree.state(node.id()) != State::Free && node.generation() == id.generation()
            || mutation::active(Mutation::LastLookIgnoresGeneration)
    };
    if let Some(node) = shared.node(NodeId(id.node())).filter(of_the_group) {
        count(node, CHARGES, attempts);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use memgroup_percpu::{SlotSource, pin_virtual};

    use crate::charge::batch;
    use crate::lifecycle::residence::*;
    use crate::state::stats::builtin::memory::{CHARGES, STOCK_MISSES};
    use crate::stock::Stock;
    use crate::{Config, Freshness, Hierarchy, Maintenance, Reach};

    #[test]
    fn counts_an_attempt_on_a_record_left_behind() {
        let config = Config::with_slots(SlotSource::virtual_slots(1).unwrap());
        let hierarchy = Hierarchy::new(config).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let (node, _pin) = (group.node(), pin_virtual(0));
        (0..2).for_each(|_| drop(group.try_charge(100).unwrap()));
        let late = Stock::enter(node, 0).expect("the group was charged");
        {
            let turn = stock_turn(node.shared());
            let _tree = node.shared().tree.lock();
            demote_held(node, turn.as_ref());
        }
        let found = late.attempt(100);
        assert!(found.is_closed() && found.attempts() == 0, "{found:?}");
        batch::charge_miss(late, 100, found, crate::base::effort::Means::PLAIN).unwrap();
        let count = |stat| hierarchy.memory().get(&group, stat, Reach::Local, Freshness::Fresh);
        assert_eq!(
            (count(CHARGES), count(STOCK_MISSES)),
            (2, 2),
            "attempts on the old record are in no flush yet"
        );
        hierarchy.maintain(Maintenance::new().expedited());
        assert_eq!((count(CHARGES), count(STOCK_MISSES)), (3, 2));
        node.uncharge(100);
    }
}
