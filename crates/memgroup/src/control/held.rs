//! Held: the bytes that a group itself holds, for an uncharge that a caller made of two numbers.
//!
//! No counter has them: usage has prepaid bytes too, and those of the groups below. So the check looks three times, and each look costs more
//! than the one before. Only the last one says no.
//!
//! - I1. Bytes that are held are never refused in a group without groups below. The last look freezes the group. Its usage then has live
//!   charges and charges in flight, and no prepaid byte (`freeze`).
//! - B1. A charge on its way up counts in a group before it counts in the group above. For that moment a group with groups below seems to
//!   hold less. So the last look is repeated there, for some milliseconds.
//! - B2. A wrong call may pass beside other calls that change the group. So may one for bytes that the group does hold, of another charge.

use std::time::Duration;

use crate::base::id::{GroupId, IdError};
use crate::control::freeze::FrozenLevel;
use crate::stock::drain;
use crate::tree::children::{ChildSteps, STEP};
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::shared::Shared;

/// Last looks at a group with groups below, and the pause after each.
const LOOKS_MOST: u32 = 16;
const PAUSE: Duration = Duration::from_millis(1);

/// Fails if the group does not hold `bytes`. It is the group of `node`, unless that was released meanwhile.
#[inline]
pub(crate) fn check(
    shared: &'static Shared,
    node: &'static Node,
    id: GroupId,
    bytes: u64,
) -> Result<(), IdError> {
    let seen = node.counter.read_with_prepaid();
    if seen.usage >= bytes.saturating_add(seen.prepaid_most) && node.is_childless() {
        return Ok(());
    }
    check_stocks(shared, node, id, bytes)
}

#[inline(never)]
fn check_stocks(
    shared: &'static Shared,
    node: &'static Node,
    id: GroupId,
    bytes: u64,
) -> Result<(), IdError> {
    if node.is_childless() && held_beside_stocks(node, 0) >= bytes {
        return Ok(());
    }
    let group = {
        let tree = shared.tree.lock();
        Group::pinned(shared.find(&tree, id).ok_or(IdError::stale(id, bytes))?)
    };
    if held_beside_stocks(group.node(), bytes_below(group.node())) >= bytes {
        return Ok(());
    }
    for look in 1.. {
        let held = held_without_stocks(group.node());
        if held >= bytes {
            break;
        }
        if group.node().is_childless() || look == LOOKS_MOST {
            return Err(IdError { id, bytes, held_bytes: Some(held) });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// The bytes that a group itself holds, if none moves meanwhile.
fn held_beside_stocks(node: &'static Node, below: u64) -> u64 {
    node.counter.usage().saturating_sub(below).saturating_sub(drain::prepaid(node))
}

/// The bytes that a group itself holds. No stock is open in it meanwhile.
fn held_without_stocks(node: &'static Node) -> u64 {
    let _frozen = FrozenLevel::new(node);
    let before = node.counter.usage_now();
    let below = bytes_below(node);
    // Charges below may come or go during the look.
    before.max(node.counter.usage_now()).saturating_sub(below)
}

/// Bytes of the groups right below a group that count in it, dying ones included. The caller holds the group. Charges may move meanwhile.
///
/// Dying groups come first: a group that is removed meanwhile is then missing, and not counted twice. So a right call is never refused for it.
fn bytes_below(node: &'static Node) -> u64 {
    let shared = node.shared();
    let counted = |child: &'static Node| {
        let counts = child.up().is_some_and(|up| std::ptr::eq(up, node));
        if counts { child.counter.usage() } else { 0 }
    };
    if node.is_childless() {
        return 0;
    }
    let (mut sum, mut last) = (0, None::<Group>);
    loop {
        let tree = shared.tree.lock_behind();
        let after = last.as_ref().map(|last| last.node().id());
        let mut found = (0, None);
        for child in tree.dying_after(node.id(), after).take(STEP).map(|id| shared.made(id)) {
            sum += counted(child);
            found = (found.0 + 1, Some(child));
        }
        let next = found.1.filter(|_| found.0 == STEP).map(Group::pinned);
        drop(tree);
        // The group before is let go without the lock.
        last = next;
        if last.is_none() {
            break;
        }
    }
    let mut online = ChildSteps::of(node);
    while online.step(&shared.tree.lock_behind(), |child| sum += counted(child)) {}
    sum
}
