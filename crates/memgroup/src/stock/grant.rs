//! Grant: how a stock is opened, or gets a larger cap, in such a way that a thread which decides
//! on a refusal misses none.
//!
//! ```text
//!   PENDING ─▶ grant at each level ─▶ list for walks ─▶ pass each level's word
//!                                                        ├─ FROZEN, OVER, COOLING or OFFLINE: the
//!                                                        │  grant is returned, there is no stock
//!                                                        └─▶ OPEN ─▶ drained: the bytes are
//!                                                            uncharged, then the grant is returned
//! ```
//!
//! - I1. A grant covers two caps: one for the bytes in the stock, one for the bytes that a thread
//!   with PENDING carries.
//! - I2. A thread that opens a stock holds the group: it has a handle for the charge, or carries
//!   bytes that are still charged.
//! - E1. pass, freeze: both are RMWs on the level's word. Either the grant finds FROZEN, or the
//!   freezing thread finds the grant, the list entry and PENDING, which came before.

use memgroup_sync::interleave;

use crate::base::mutation::{self, Mutation};
use crate::counter::chain;
use crate::state::stock_word::Word;
use crate::stock::{Pending, Stock};
use crate::tree::node::Node;

/// A grant that is known at each level. The caller must pass each level's word and open the stock;
/// otherwise the grant is returned.
pub(crate) struct Grant {
    node: &'static Node,
    bytes: u64,
}

/// Returns the bytes that the levels grant for an open stock of this cap.
pub(crate) fn of_cap(cap: u64) -> u64 {
    2 * cap
}

impl Grant {
    /// Makes the grant known at each level that raises the number of bytes allowed in the word to
    /// `cap`. The caller must hold the group and have set PENDING.
    pub(crate) fn announce(pending: &Pending<'_>, word: Word, cap: u64) -> Grant {
        let Stock { node, slot, .. } = *pending.stock;
        let bytes = of_cap(cap - word.room());
        if !mutation::active(Mutation::GrantIsKnownTooLate) {
            raise(node, bytes);
        }
        interleave::point();
        node.list_holder(slot);
        interleave::point();
        Grant { node, bytes }
    }

    /// Passes the word of each level, for bytes that are charged already. Returns whether every
    /// level let it pass.
    pub(crate) fn passes(&self) -> bool {
        chain::levels(self.node).all(|level| level.counter.passes())
    }

    /// Keeps the grant, because the stock is open. Its drain will return the grant.
    pub(crate) fn keep(self) {
        if mutation::active(Mutation::GrantIsKnownTooLate) {
            raise(self.node, self.bytes);
        }
        std::mem::forget(self);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if !mutation::active(Mutation::GrantIsKnownTooLate) {
            give_back(self.node, self.bytes);
        }
    }
}

fn raise(node: &'static Node, bytes: u64) {
    chain::levels(node).for_each(|level| level.counter.grant(bytes));
}

/// Returns a grant at each level, after the bytes that it was for were uncharged. The grant holds
/// the group until the end.
pub(crate) fn give_back(node: &'static Node, bytes: u64) {
    if bytes > 0 {
        chain::levels(node).skip(1).for_each(|level| level.counter.return_grant(bytes));
        node.counter.return_grant(bytes);
    }
}

/// Returns whether some level would let no grant pass now. This is a hint.
pub(crate) fn is_barred(node: &'static Node) -> bool {
    chain::levels(node).any(|level| level.counter.is_barred())
}
