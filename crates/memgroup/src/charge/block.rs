//! Blocks: the charges of an allocator, which cannot fail. See [`crate::block`].

use std::cell::Cell;

use crate::base::effort::{Effort, Means};
use crate::charge::charge::Charge;
use crate::charge::slow::{Ask, charge_slow_path};
use crate::control::{aftermath, high, over_limit};
use crate::counter::chain::{self, Climb, Refused, Until};
use crate::observe::wait::charges::Want;
use crate::state::stats::builtin::memory;
use crate::stats::update::count;
use crate::stock::Unheld;
use crate::tree::error::{ChargeError, ChargeErrorKind};
use crate::tree::node::Node;
use crate::tree::owner::Owner;

/// Bytes ahead are a multiple of this.
const GRAIN: u64 = 64;

/// The most bytes ahead that a forced charge takes.
const FORCED_AHEAD: u64 = 4096;

/// One charge may take ahead this part of the room below the limits.
const PART_OF_ROOM: u64 = 32;

std::thread_local! {
    // The thread was charged beyond a limit since its last checkpoint.
    static IS_RAISED: Cell<bool> = const { Cell::new(false) };
}

/// A charge that was made for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The group that was charged: the one asked for, or its nearest ancestor that is online if
    /// that was removed.
    pub owner: Owner,
    /// The bytes that were charged: at least those that were asked for.
    pub bytes: u64,
}

/// Charges for blocks of memory.
impl Owner {
    /// Charges `bytes` at any limit, and up to `ahead` more for later blocks.
    ///
    /// The bytes ahead are a multiple of 64. They are charged if all limits leave room for 32
    /// times as many. If there isn't even room for `bytes`, the charge is forced, as by
    /// [`Group::charge_forced`](crate::Group::charge_forced): the bytes above a limit are a debt
    /// and an overdraft, and up to 4 KiB of `ahead` are charged with them. Then the thread's flag
    /// is raised, on which [`checkpoint`](crate::block::checkpoint) acts.
    ///
    /// Returns `None` if no group is left that can be charged, because the hierarchy is gone or
    /// the bytes are more than a counter holds.
    ///
    /// It calls no foreign code, allocates nothing, and doesn't wait for memory. It takes a lock
    /// of the engine in two cases only: to wake threads that wait for an event that it counts,
    /// and to serve a waiting charge after a race for the last bytes.
    ///
    /// # Safety in an allocator
    /// It may be called at any time in a thread's life, except while
    /// [`is_inside`](crate::block::is_inside) returns `true`.
    pub fn charge(self, bytes: u64, ahead: u64) -> Option<Charged> {
        let node = self.node();
        let ahead = match ahead {
            0 => 0,
            _ => ahead.min(chain::headroom_to_prepay(node, 0) / PART_OF_ROOM) & !(GRAIN - 1),
        };
        charge_within(node, bytes + ahead).or_else(|| charge_online(node, bytes, ahead.min(FORCED_AHEAD)))
    }

    /// Charges `bytes` more for a block that grows, as [`charge`](Owner::charge) does, but always
    /// to this group, which must hold bytes of the block. Returns whether the bytes were charged.
    /// If the group was removed, the call takes the tree lock.
    pub fn grow(self, bytes: u64) -> bool {
        let node = self.node();
        charge_within(node, bytes).is_some()
            || force(node, bytes).is_ok()
            || node.counter.is_offline() && Charge::forced(node, bytes).is_ok()
    }

    /// Charges `bytes` as [`Group::try_charge_by`](crate::Group::try_charge_by) does with
    /// [`Effort::Count`]. If the group was removed, charges its nearest ancestor that is online.
    /// Returns the group that was charged.
    ///
    /// # Errors
    /// The same as those of [`Group::try_charge_by`](crate::Group::try_charge_by).
    pub fn try_charge(self, bytes: u64) -> Result<Owner, ChargeError> {
        let means = Means::with(Effort::Count);
        let count = |node: &'static Node| node.charge_unheld(Unheld::begin(), bytes, means);
        let mut tried = (self.node(), count(self.node()));
        while let (node, Err(error)) = &tried
            && error.kind() == ChargeErrorKind::Offline
            && let Some(level) = online(node)
        {
            tried = (level, count(level));
        }
        let (node, charged) = tried;
        charged.map(|()| Owner::of(node))
    }

    /// Charges `bytes` more for a block that grows, to this group, if there is room for them. If
    /// the group was removed, its nearest ancestor that is online must have room.
    ///
    /// # Errors
    /// The same as those of [`try_charge`](Owner::try_charge).
    pub fn try_grow(self, bytes: u64) -> Result<(), ChargeError> {
        let charged = self.try_charge(bytes)?;
        if charged != self {
            let is_grown = self.grow(bytes);
            charged.uncharge(bytes);
            if !is_grown {
                return Err(ChargeError::of(self.node(), self.node().counter.read(), bytes));
            }
        }
        Ok(())
    }

    /// Uncharges `bytes` that were charged for blocks, from any thread.
    ///
    /// It calls no foreign code and doesn't wait for memory. It takes locks of the engine if
    /// charges wait for the bytes, or if a removed group is empty afterwards. The bytes are not
    /// checked: the [contract](crate::raw) of numbers holds here, too.
    pub fn uncharge(self, bytes: u64) {
        if bytes > 0 {
            aftermath::uncharge_counters(self.node(), bytes);
        }
    }

    /// Uncharges `bytes` without a lock, for calls while [`is_inside`](crate::block::is_inside)
    /// returns `true`. The next uncharge serves charges that wait. If this call empties a removed
    /// group, the next call that is not inside releases the group. The bytes are not checked, as
    /// in [`uncharge`](Owner::uncharge).
    pub fn uncharge_inside(self, bytes: u64) {
        chain::uncharge_held(self.node(), bytes);
    }
}

/// Charges `bytes` if all levels have room for them.
fn charge_within(node: &'static Node, bytes: u64) -> Option<Charged> {
    let climb = Climb::to(Until::Top);
    chain::look_for_room(node, Until::Top, bytes)
        .and_then(|()| aftermath::charge(node, bytes, climb))
        .ok()?;
    high::after_charge(node, Until::Top, bytes, Effort::Count);
    Some(Charged { owner: Owner::of(node), bytes })
}

/// Returns the group, or its nearest ancestor that is online if the group was removed.
fn online(node: &'static Node) -> Option<&'static Node> {
    chain::levels(node).find(|level| !level.counter.is_offline())
}

/// Charges the first level that is online: `bytes` within all limits, or with `ahead` by force.
#[cold]
fn charge_online(node: &'static Node, bytes: u64, ahead: u64) -> Option<Charged> {
    while let Some(level) = online(node) {
        let outcome = charge_within(level, bytes).map_or_else(|| force(level, bytes + ahead), Ok);
        match outcome {
            Ok(charged) => return Some(charged),
            // The level was removed at this moment, so the next one is charged.
            Err(refused) if refused.seen.offline => {}
            Err(_) => return None,
        }
    }
    None
}

/// Charges at any limit, and raises the thread's flag.
fn force(node: &'static Node, bytes: u64) -> Result<Charged, Refused> {
    aftermath::charge_forced(node, bytes, u64::MAX, false)?;
    count(node, memory::FORCED, 1);
    high::after_forced_charge(node, bytes);
    IS_RAISED.set(true);
    Ok(Charged { owner: Owner::of(node), bytes })
}

/// Returns whether a block of this thread was charged beyond a limit since its last
/// [`checkpoint`](crate::block::checkpoint).
#[inline(always)]
pub fn is_over() -> bool {
    IS_RAISED.get()
}

/// Asks for room in the group: for the bytes by which it exceeds its limits, and one more. It
/// isn't refused because of a level that is full of other groups' bytes (`share::own_excess`).
pub(crate) fn checkpoint(node: &'static Node, means: Means) -> Result<(), ChargeError> {
    IS_RAISED.set(false);
    over_limit::mark_levels(node);
    let asked = Ask { means, want: Want::Checkpoint, ..Ask::exact(1, Until::Top) };
    charge_slow_path(node, asked).inspect_err(|_| IS_RAISED.set(true))
}
