//! Credit: the bytes that a thread's reclaim frees stay with that thread.
//!
//! A charge that was refused has shrinkers give back, and tries again. Without a credit, any
//! thread could take the bytes meanwhile. In Spark another waiter takes them before the one that
//! had them spilled. So uncharges that the thread makes while it reclaims for a group are taken
//! from the levels *below* the group that refused. They are kept at that group and above, as a
//! part of the charge in flight: they never leave the counters that are full.
//!
//! ```text
//!   over   ██████████ full      the victim's page is uncharged:    over    ██████████ full: kept for the waiter
//!    ├─ victim  ██████                                              ├─ victim  █████
//!    └─ waiter  ████                                                └─ waiter  ████ + █ charged from the credit
//! ```
//!
//! While a cache gives back, its group's charges and uncharges bypass the stock, so they come
//! here.
//!
//! - I1. At most the bytes that the waiter asked for are kept. They are charged at `over` and
//!   every level above it that counts.
//! - I2. Kept bytes that are not used are uncharged there when the reclaim ends, however it ends.
//!   A charge that only moves bytes uses them below the levels that both its groups have above
//!   them. There they are uncharged, too.
//! - I3. Kept bytes count against the limits: while a level is above its limit with them, they are
//!   not used. Else a callback could borrow beyond a limit and give back, and a group above a
//!   lowered limit would stay there for ever.
//! - E1. Kept bytes never leave the counter of `over`, so no other thread's charge can have them.
//!   Loom: `keeps_freed_bytes_for_the_waiter`.
//! - B1. All uncharged bytes count as freed, also those that a callback had charged a moment
//!   before. To subtract its charges, each miss of a stock would have to read this state.
//! - B2. Bytes that another thread uncharges go to the counters and to the next charge. So do
//!   bytes that this thread uncharges in a group, if the cache of that group was not asked.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::base::mutation::{self, Mutation};
use crate::counter::{chain, protect, share};
use crate::tree::node::Node;
use crate::tree::topology::ROOT;

/// The reason for a reclaim.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// A charge of this many bytes by this group doesn't fit.
    Charge(&'static Node, u64),
    /// Usage is above `high`. Of a root that is not accounted, only its own memory counts.
    High { may_wait: bool },
    /// The user asked.
    ByHand,
}

/// The state of a reclaim on its thread.
#[derive(Clone, Copy)]
struct Account {
    over: &'static Node,
    purpose: Purpose,
    /// The most that is kept.
    wanted: u64,
    kept: u64,
    /// Uncharged in all.
    freed: u64,
}

memgroup_sync::thread_local! {
    static ACCOUNT: Cell<Option<Account>> = const { Cell::new(None) };
}

fn account() -> Option<Account> {
    ACCOUNT.with(Cell::get)
}

fn set(account: Account) {
    ACCOUNT.with(|cell| cell.set(Some(account)));
}

/// Returns whether the thread reclaims.
pub(crate) fn is_reclaiming() -> bool {
    account().is_some()
}

/// A reclaim on this thread, and the bytes that it keeps for its charge.
pub(crate) struct ReclaimCredit {
    here: PhantomData<*const ()>,
}

/// Bytes that stay charged at a level and above it, for the charge that reclaims.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) at: &'static Node,
    pub(crate) bytes: u64,
}

impl ReclaimCredit {
    /// Begins a reclaim in `over`. It keeps up to the bytes of the charge that it is for. `None`
    /// if the thread reclaims already.
    pub(crate) fn begin(over: &'static Node, purpose: Purpose) -> Option<ReclaimCredit> {
        if is_reclaiming() {
            return None;
        }
        let wanted = if let Purpose::Charge(_, bytes) = purpose { bytes } else { 0 };
        set(Account { over, purpose, wanted, kept: 0, freed: 0 });
        Some(ReclaimCredit { here: PhantomData })
    }

    /// Bytes uncharged so far.
    pub(crate) fn freed(&self) -> u64 {
        account().map_or(0, |account| account.freed)
    }

    /// Bytes that are kept.
    pub(crate) fn kept(&self) -> u64 {
        account().map_or(0, |account| account.kept)
    }

    /// Returns whether the user asked for the reclaim.
    pub(crate) fn is_by_hand(&self) -> bool {
        account().is_some_and(|account| matches!(account.purpose, Purpose::ByHand))
    }

    /// The group that charges.
    pub(crate) fn requester(&self) -> Option<&'static Node> {
        match account()?.purpose {
            Purpose::Charge(node, _) => Some(node),
            _ => None,
        }
    }

    /// Returns whether callbacks may wait.
    pub(crate) fn may_wait(&self) -> bool {
        let may_wait = |account: Account| {
            !matches!(account.purpose, Purpose::Charge(..) | Purpose::High { may_wait: false })
        };
        account().is_some_and(may_wait)
    }

    /// The bytes that the charge lacks now, beyond those that are kept. Other threads may have
    /// freed enough.
    pub(crate) fn lacks(&self) -> u64 {
        let Some(Account { over, purpose: Purpose::Charge(node, _), wanted, kept, .. }) = account() else {
            return 0;
        };
        let with_it =
            chain::right_below(over, node).map(|via| (via, via.counter.usage().saturating_add(wanted)));
        let seen = over.counter.read();
        let limit = seen.max.saturating_sub(protect::left_free(over, with_it));
        let most = limit.min(share::of_child(over).map_or(u64::MAX, |share| share.bytes));
        seen.usage.saturating_add(wanted).saturating_sub(most).saturating_sub(kept)
    }

    /// Makes the kept bytes the charge. Returns how many they were.
    pub(crate) fn use_kept(&self) -> u64 {
        let Some(account) = account() else { return 0 };
        if !mutation::active(Mutation::UsedIsStillKept) {
            set(Account { kept: 0, wanted: 0, ..account });
        }
        account.kept
    }

    /// Ends the reclaim. Returns the bytes that no charge used, which the caller uncharges.
    pub(crate) fn end(&self) -> Option<Kept> {
        let Account { over, kept, .. } = ACCOUNT.with(Cell::take)?;
        let is_any = kept > 0 && !mutation::active(Mutation::KeptIsNotLetGo);
        is_any.then_some(Kept { at: over, bytes: kept })
    }
}

/// The part that stays charged of `bytes` that the caller is about to uncharge from `node`, and
/// where. `None` if the thread's reclaim is not for a group above.
pub(crate) fn uncharge(node: &'static Node, bytes: u64) -> Option<Kept> {
    let Account { over, purpose, wanted, kept, freed } = account()?;
    let is_below = chain::levels(node).any(|level| std::ptr::eq(level, over));
    // A reclaim by hand of a root that is not accounted means all groups.
    let is_all =
        over.id() == ROOT && std::ptr::eq(node.shared(), over.shared()) && matches!(purpose, Purpose::ByHand);
    if !is_below && !is_all {
        return None;
    }
    let leaves_all = mutation::active(Mutation::KeptLeavesTheFullGroup);
    let more = if leaves_all || !is_below { 0 } else { bytes.min(wanted - kept) };
    set(Account { over, purpose, wanted, kept: kept + more, freed: freed + bytes });
    is_below.then_some(Kept { at: over, bytes: more })
}
