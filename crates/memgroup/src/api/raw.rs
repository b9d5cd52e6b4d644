//! Charges by numbers alone, for callers that answer for them: the numbers aren't checked here.
//!
//! [`Charge::into_parts`] turns a charge into two numbers, its group's id and its bytes.
//! [`Hierarchy::uncharge`] and [`Hierarchy::charge_from_parts`] take them back, and check that
//! there is a group with this id. The functions of this module do without the id, for code that
//! frees a block in some nanoseconds and has the numbers in a header that only it writes.
//!
//! # Contract
//!
//! Each byte that [`Charge::into_parts`] releases must be taken back exactly once, by one of these
//! calls or of those by id, for the same group. Until then it keeps the group alive.
//!
//! A caller that breaks this makes figures wrong. Usage of the group and of those above it is too
//! low by the bytes that were taken twice, so their limits are exceeded by as much. A removed
//! group may go while charges of it are left, which then count in the group that has its place. No
//! memory is corrupted, and no later call of another tenant panics. Of these calls only
//! [`charge_of_node`] may panic: when the group is gone and its node is unused. Usage that would
//! fall below zero stays 0.
//!
//! ```
//! use memgroup::{Config, Hierarchy, raw};
//!
//! let hierarchy = Hierarchy::new(Config::new())?;
//! let query = hierarchy.create("/query")?;
//! let (id, bytes) = query.try_charge(4096)?.into_parts();
//! raw::uncharge(&query, 96);
//! drop(raw::charge_of_node(&hierarchy, id.node(), bytes - 96));
//! assert_eq!(query.usage_exact(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::base::id::NodeId;
use crate::charge::charge::Charge;
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::node::Node;

/// So many bytes at once are compared with the usage, because only a broken contract leads to
/// more: a counter that several such calls take below zero together could come round.
const ABSURD: u64 = 1 << 40;

/// Returns whether a group may have so many bytes.
#[inline(always)]
pub(crate) fn is_plausible(node: &Node, bytes: u64) -> bool {
    bytes < ABSURD || bytes <= node.counter.usage()
}

/// Uncharges `bytes` from the group, online or removed, within the module's [contract](self). The
/// stock takes them if it can. Of more than 1 TiB it takes at most the usage of the group.
#[inline(always)]
pub fn uncharge(group: &Group, bytes: u64) {
    let bytes = if is_plausible(group.node(), bytes) { bytes } else { group.usage() };
    if bytes > 0 {
        group.node().uncharge(bytes);
    }
}

/// Makes a charge that owns `bytes` already charged, for a block with a header that holds no more
/// than the [node](crate::GroupId::node) of its owner, within the module's [contract](self). The
/// bytes of the block keep the group, so the node is still the group's.
///
/// # Panics
/// When the hierarchy never had the node, when the group is gone and no other has the node, or
/// when `bytes` is 0, or more than 1 TiB and more than the group's usage.
#[inline]
pub fn charge_of_node(hierarchy: &Hierarchy, node: u32, bytes: u64) -> Charge {
    assert!(bytes > 0, "take up the charge of node {node}: a charge of no bytes needs the id of its group");
    let found = hierarchy.shared().node(NodeId(node)).filter(|found| found.has_group());
    let found = found.unwrap_or_else(|| no_group_at(hierarchy, node, bytes));
    assert!(
        is_plausible(found, bytes),
        "take up {bytes} bytes of node {node}: its group has {}; pass the number that `into_parts` returned",
        found.counter.usage()
    );
    Charge::owning(found, bytes)
}

#[cold]
fn no_group_at(hierarchy: &Hierarchy, node: u32, bytes: u64) -> ! {
    if node >= hierarchy.shared().places() {
        panic!("take up {bytes} bytes of node {node}: the hierarchy never had it");
    }
    panic!(
        "take up {bytes} bytes of node {node}: its group is gone; take each block's bytes up once, before they are uncharged"
    );
}
