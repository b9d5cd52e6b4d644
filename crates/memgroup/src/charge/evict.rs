//! Evict: idle stocks give up their part of the slot's budget to a group that asks for it.

use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

use crate::base::id::NodeId;
use crate::base::mutation::{self, Mutation};
use crate::control::aftermath;
use crate::counter::share::{self, GrantsLeft};
use crate::state::stats::builtin::memory;
use crate::state::stock_word::Word;
use crate::stats::update::count;
use crate::stock::drain::Taken;
use crate::stock::{Pending, Stock, grant};
use crate::tree::node::Node;

/// How many of a group's next charges go to the counters after its stock was evicted. A group that
/// is charged often soon asks again, and by then other stocks are idle.
const EVICTED: u32 = 64;

/// How many of them do after the group found no room in the budget, or a level that lets no stock
/// be opened. There each attempt would be undone, and each uncharge into the stock withdrawn.
pub(crate) const REFUSED: u32 = 8;

/// How many stocks one miss visits. More would take the hand around many busy groups within one
/// round, and spare none of them.
const VISITS: u32 = 2;

/// Takes the bytes that `cap` adds to the word's cap out of the slot's budget, if necessary from
/// idle stocks of other groups. If the group gets none and has no stock there, its charges go to
/// the counters for a while.
pub(crate) fn reserve(stock: &Stock, word: Word, cap: u64) -> bool {
    let &Stock { node, slot, .. } = stock;
    let (budget, bytes) = (&node.shared().budget, cap - word.cap());
    let left = share::grants_left(node);
    let leaves_shares = leaves_shares(left, word, cap);
    if !leaves_shares && word.is_open() {
        return false;
    }
    // If the shares above leave too little, the stocks that hold it are evicted: those of the same
    // tenant if it holds half of all.
    let below = if leaves_shares { None } else { left.held_below };
    let is_reserved = leaves_shares && budget.reserve(slot, bytes)
        || evict_idle(node, slot, bytes, below)
            && leaves_shares_now(stock, word, cap)
            && budget.reserve(slot, bytes);
    if !is_reserved && word.cap() == 0 {
        node.back_off(REFUSED);
    }
    is_reserved
}

/// Returns whether a grant for `cap` leaves enough for the fair shares of the groups above. A
/// stock may be opened while there is any room for its grant, but one that grows must leave three
/// quarters of the room to others.
fn leaves_shares(left: GrantsLeft, word: Word, cap: u64) -> bool {
    let grant = grant::of_cap(cap - word.room());
    grant <= if word.is_open() { left.bytes / 4 } else { left.bytes }
}

/// Does the same after others were evicted. A drained stock asks for its old cap. If that is too
/// large, the cap is returned, and the stock starts again with a small one.
fn leaves_shares_now(stock: &Stock, word: Word, cap: u64) -> bool {
    let leaves_shares = leaves_shares(share::grants_left(stock.node), word, cap);
    if !leaves_shares && word.cap() > 0 {
        visit(stock.node, stock.slot);
    }
    leaves_shares
}

/// Moves the slot's clock hand until `wanted` bytes of reserve came back or its visits are used
/// up. If `below` is given, skips groups outside its subtree.
#[cold]
fn evict_idle(asking: &'static Node, slot: usize, wanted: u64, below: Option<&'static Node>) -> bool {
    let shared = asking.shared();
    let groups = u64::from(shared.places());
    let mut freed = 0;
    for _ in 0..u64::from(VISITS).min(groups) {
        // ORDERING: Relaxed, because the position of the hand matters for fairness only.
        let at = shared.budget.hand(slot).fetch_add(1, Ordering::Relaxed) % groups;
        let is_meant = |node: &&'static Node| {
            !std::ptr::eq(*node, asking) && below.is_none_or(|below| node.is_within(below))
        };
        if let Some(node) = shared.node(NodeId(at as u32)).filter(is_meant) {
            freed += visit(node, slot);
        }
        if freed >= wanted {
            return true;
        }
    }
    freed > 0 || below.is_some()
}

/// Visits one stock under the hand: harvests and spares it if it was used, or returns it to the
/// budget. Returns the reserve that was given back.
pub(crate) fn visit(node: &'static Node, slot: usize) -> u64 {
    let Some(stock) = Stock::of(node, slot) else { return 0 };
    let shared = node.shared();
    let word = stock.look();
    if word.cap() == 0 || word.is_pending() {
        return 0;
    }
    let spared = word.is_open() && word.is_used();
    // There is only one attempt, because a word that changes is not idle.
    let next = if spared { word.rested().with_pending() } else { word.retired() };
    if !stock.change(word, next) && !mutation::active(Mutation::ClockTakesTheCapBlindly) {
        return 0;
    }
    // The node can't be released while this runs: removal waits for the grant of the stock.
    if spared {
        let _pending = Pending::begun(&stock);
        count(node, memory::CHARGES, word.attempts());
        interleave::point();
        return 0;
    }
    interleave::point();
    if word.is_open() {
        node.back_off(EVICTED);
    }
    aftermath::drained(Taken::from_word(node, word).uncharged());
    shared.budget.give_back(slot, word.cap());
    word.cap()
}
