//! Listed: how a flush of the statistics finds the charges that stocks served.
//!
//! A hit counts its attempt in the addition that it makes anyway, and does nothing else, so it
//! cannot mark its group for the next flush. The first attempt on a word that is not LISTED
//! therefore takes the slow path, marks the group, and sets LISTED. A flush that takes the
//! attempts clears LISTED again.
//!
//! - I1. The attempts in a word that is LISTED were marked after the last flush that took attempts
//!   from it. A thread that finds the word not LISTED marks the group.
//! - E1. mark → list, take → unlist: LISTED is set by a compare-and-swap against a word that was
//!   read, with attempts in it, before the mark was checked. If a flush came in between, it took
//!   the attempts, so the word has changed. Loom: `flushes_or_marks_each_hit`.
//! - B1. If other threads then make the same attempts with the same outcome, the word is the same
//!   as before. Each of them found it not LISTED, and marks the group. So nothing is lost, but a
//!   flush at that instant may come too early for one of them.
//! - B2. Only a flush takes attempts while their group lives, with two exceptions: when a word is
//!   full of them, and when the budget's clock spares a word. The thread that takes them then
//!   counts them, and a flush in between comes too early for them.

use memgroup_sync::interleave;

use crate::base::mutation::{self, Mutation};
use crate::state::stats::builtin::MEMORY;
use crate::stock::{Stock, update};
use crate::tree::node::Node;

/// Lists the stock after an attempt that found its word not LISTED.
pub(crate) fn list(stock: &Stock) {
    let entry = stock.node.find_entry(MEMORY);
    stock.update(|word| {
        // A model that counts nothing has no mark.
        if let Some(entry) = entry
            && !entry.mark(stock.node.id()).is_set(stock.slot)
            && !mutation::active(Mutation::HitNeverMarks)
        {
            entry.mark(stock.node.id()).set(stock.slot);
        }
        interleave::point();
        // If there are no attempts, a flush has taken ours.
        (!word.is_listed() && word.attempts() > 0).then(|| word.listed())
    });
}

/// Takes the attempts on the stock of one slot for a flush, which has cleared the slot's mark
/// before. Returns `None` if the group has no word there.
pub(crate) fn harvest(node: &'static Node, slot: usize) -> Option<u64> {
    let keeps_listed = mutation::active(Mutation::HarvestLeavesListed);
    let cell = node.stock.get(slot)?;
    // This is an RMW even if it changes nothing: an attempt that comes too late follows it, and
    // finds the mark cleared (E1).
    let found = update(cell, |word| Some(if keeps_listed { word.harvested() } else { word.flushed() }));
    found.map(|word| word.attempts())
}
