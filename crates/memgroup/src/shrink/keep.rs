//! Keep: what a thread's reclaim sets free stays with it.
//!
//! A charge that was refused has shrinkers give back, and tries again. What they gave back would be everybody's meanwhile: in Spark another
//! waiter takes it before the one that had it spilled. So uncharges that the thread makes while it reclaims for a group are taken from
//! the levels *below* the group that refused and kept at that group and above, as a part of the charge in flight: it never leaves the
//! counters that are full.
//!
//! ```text
//!   over   ██████████ full      a page of the victim's is uncharged:   over    ██████████ full: kept for the waiter
//!    ├─ victim  ██████                                                   ├─ victim  █████
//!    └─ waiter  ████                                                     └─ waiter  ████ + █ charged from what was kept
//! ```
//!
//! While a cache gives back, its group's charges and uncharges pass by the stock (`Node::divert`), so they come here.
//!
//! - I1. What is kept is at most what the waiter asked for, and is charged at `over` and every level above it that counts.
//! - I2. What is kept and not used is uncharged there when the reclaim ends, however it ends. A charge that only moves uses it below the levels
//!   that both its groups have above them, and there it is uncharged, too.
//! - I3. What is kept counts against the limits: while a level is above its limit with it, it is not used. Else what a callback borrows beyond a
//!   limit and gives back would be room, and a group above a limit that was lowered would stay there for ever.
//! - E1. What is kept never leaves the counter of `over`, so no other thread's charge can have it. Loom: `what_is_set_free_is_its_waiters`.
//! - B1. What is told to have been set free is what was uncharged, also where a callback had charged it a moment before; net of its charges it would be
//!   less, and each miss of a stock would have to look here.
//! - B2. What another thread uncharges, or this one in a group whose cache was not asked, goes to the counters and to whoever comes first.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::chain::{self, Until};
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::protect;
use crate::tree::ROOT;

/// What a thread that reclaims has set free.
#[derive(Clone, Copy)]
struct Keeping {
    over: &'static Node,
    /// The group right below it that the waiter charges through, if it is another.
    via: Option<&'static Node>,
    /// To be kept at most.
    wanted: u64,
    /// No charge waits for it.
    by_hand: bool,
    kept: u64,
    /// Uncharged in all.
    freed: u64,
}

memgroup_sync::thread_local! {
    static KEEPING: Cell<Option<Keeping>> = const { Cell::new(None) };
}

/// A reclaim on this thread.
pub(crate) struct Keeper {
    here: PhantomData<*const ()>,
}

fn keeping() -> Option<Keeping> {
    KEEPING.with(Cell::get)
}

fn keep(keeping: Option<Keeping>) {
    KEEPING.with(|cell| cell.set(keeping));
}

/// Whether the thread reclaims.
pub(crate) fn is_reclaiming() -> bool {
    keeping().is_some()
}

/// Begins to keep up to `wanted` bytes of what this thread uncharges below `over`; with 0, nothing is kept, for no charge waits for it. `None` where the thread reclaims already.
pub(crate) fn begin(over: &'static Node, wanted: u64) -> Option<Keeper> {
    begin_as(over, wanted, wanted == 0)
}

/// As `begin` with 0, beside a charge that is made already.
pub(crate) fn begin_beside(over: &'static Node) -> Option<Keeper> {
    begin_as(over, 0, false)
}

fn begin_as(over: &'static Node, wanted: u64, by_hand: bool) -> Option<Keeper> {
    if is_reclaiming() {
        return None;
    }
    keep(Some(Keeping { over, via: None, wanted, by_hand, kept: 0, freed: 0 }));
    Some(Keeper { here: PhantomData })
}

/// `begin` for a charge of `node`.
pub(crate) fn begin_for(node: &'static Node, over: &'static Node, wanted: u64) -> Option<Keeper> {
    let keeper = begin(over, wanted)?;
    let is_right_below = |level: &&Node| level.up().is_some_and(|up| std::ptr::eq(up, over));
    let via = std::iter::successors(Some(node), |level| level.up()).find(is_right_below);
    keep(keeping().map(|keeping| Keeping { via, ..keeping }));
    Some(keeper)
}

impl Keeper {
    /// Whether it is somebody who asks, and no charge.
    pub(crate) fn is_by_hand(&self) -> bool {
        keeping().is_some_and(|keeping| keeping.by_hand)
    }

    /// Bytes uncharged so far.
    pub(crate) fn freed(&self) -> u64 {
        keeping().map_or(0, |keeping| keeping.freed)
    }

    /// Bytes that are kept.
    pub(crate) fn kept(&self) -> u64 {
        keeping().map_or(0, |keeping| keeping.kept)
    }

    /// What the waiter lacks now, beyond what is kept. It may be that others have set enough free.
    pub(crate) fn lacks(&self) -> u64 {
        let Some(Keeping { over, via, wanted, kept, .. }) = keeping() else { return 0 };
        let seen = over.counter.read();
        let with_it = via.map(|via| (via, via.counter.usage().saturating_add(wanted)));
        let most = seen.max.saturating_sub(protect::left_free(over, with_it));
        seen.usage.saturating_add(wanted).saturating_sub(most).saturating_sub(kept)
    }

    /// What is kept has become the waiter's charge, as far as that goes: the levels above it have been charged for long.
    pub(crate) fn use_kept(&self, until: Until) {
        let kept = self.kept();
        if !mutation::active(Mutation::UsedIsStillKept) {
            keep(keeping().map(|keeping| Keeping { kept: 0, wanted: 0, ..keeping }));
        }
        if let Until::Below(charged) = until
            && kept > 0
        {
            chain::uncharge(charged, Until::Top, kept);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(keeping) = KEEPING.with(Cell::take)
            && keeping.kept > 0
            && !mutation::active(Mutation::KeptIsNotLetGo)
        {
            chain::uncharge(keeping.over, Until::Top, keeping.kept);
        }
    }
}

/// Uncharges `bytes` of `node`, if they are to be kept.
pub(crate) fn uncharge(node: &'static Node, bytes: u64) -> bool {
    let Some(keeping) = keeping() else { return false };
    if !counts_in(node, keeping.over) {
        // Who asks by hand at a root that is left unaccounted means all groups.
        if keeping.by_hand && keeping.over.id == ROOT && std::ptr::eq(node.shared, keeping.over.shared) {
            keep(Some(Keeping { freed: keeping.freed + bytes, ..keeping }));
        }
        return false;
    }
    let kept = if mutation::active(Mutation::KeptLeavesTheFullGroup) {
        0
    } else {
        bytes.min(keeping.wanted - keeping.kept)
    };
    keep(Some(Keeping { kept: keeping.kept + kept, freed: keeping.freed + bytes, ..keeping }));
    if !std::ptr::eq(node, keeping.over) {
        chain::uncharge(node, Until::Below(keeping.over), bytes);
    }
    if bytes > kept {
        chain::uncharge(keeping.over, Until::Top, bytes - kept);
    }
    true
}

/// Whether charges of `node` count in `over`.
fn counts_in(node: &'static Node, over: &'static Node) -> bool {
    std::iter::successors(Some(node), |level| level.up()).any(|level| std::ptr::eq(level, over))
}
