//! Reclaim: has shrinkers give back memory, from the whole subtree of the group that is full.
//!
//! A round goes through the priorities from 12 to 0. At each it visits the largest caches first,
//! and asks each in proportion to its size, until enough is uncharged. A charge that was refused
//! does that on its own thread, keeps the freed bytes (`credit`), and tries again. A round that
//! freed nothing while no other thread scanned anything is the last one. So is the seventeenth in
//! a row after which the charge lacks as much as before, unless another thread is moving a mark: a
//! full cache may have none then. So is the one that ends after the time that one charge has for
//! all its rounds ([`Config::reclaim_patience`](crate::Config::reclaim_patience)). If another
//! level refuses then, room is made in that one. The first rounds spare bytes that `low` protects;
//! all rounds spare those that `min` protects.
//!
//! One round in 16 first explores: it asks a few of the smallest caches, and of those that gave
//! little (`backoff`), before it goes through the priorities. Otherwise nobody would notice that
//! such a cache has something to give, as long as others give enough.
//!
//! - I1. Reclaim does not begin within reclaim. A refused charge of a callback draws on the
//!   reserve ([`Config::reclaim_reserve_bytes`](crate::Config::reclaim_reserve_bytes)), or stays
//!   refused.
//! - B1. When another group turns out to refuse, higher up, the bytes kept for the first group are
//!   uncharged. Any thread may take them then.

use std::time::Instant;

use crate::counter::protect::Sparing;
use crate::reclaim::bitmap::CLASSES;
use crate::reclaim::control::{Reclaimed, ScanControl};
use crate::reclaim::credit::{Purpose, ReclaimCredit};
use crate::reclaim::due::{EXPLORED, PRIORITIES, least_class};
use crate::reclaim::group::{GroupShrinkers, Rotation};
use crate::reclaim::walk::Walk;
use crate::tree::node::Node;

/// Returns whether a shrinker may have anything in `top` or below.
pub(crate) fn is_any(top: &'static Node) -> bool {
    let registry = top.shared().shrinkers();
    let is_any = |shrinkers: &GroupShrinkers| {
        let seen = registry.marks_now();
        (0..CLASSES).any(|class| shrinkers.is_any(class)) || !registry.is_unmoved(seen)
    };
    registry.is_any() && top.shrinkers().is_some_and(is_any)
}

/// Makes one round in `top`: all priorities, until enough is freed. Returns the control with its
/// results.
pub(crate) fn round<'c>(top: &'static Node, mut control: ScanControl<'c>) -> ScanControl<'c> {
    control.rotation = top.shrinkers().map_or_else(Rotation::default, GroupShrinkers::next_rotation);
    let registry = top.shared().shrinkers();
    let mut walk = Walk::new(control);
    if walk.control.rotation.explores() {
        walk.control.explores = true;
        let _ = (0..CLASSES).all(|class| walk.pass(top, EXPLORED, class));
        walk.control.explores = false;
        if walk.control.is_done() || walk.control.is_late() {
            return walk.control;
        }
    }
    for priority in (0..=PRIORITIES).rev() {
        // The last priority asks every cache, so it is the one that must miss none.
        let seen = registry.marks_now();
        if !(least_class(priority)..CLASSES).rev().all(|class| walk.pass(top, priority, class)) {
            return walk.control;
        }
        walk.control.stats.marks_moved = !registry.is_unmoved(seen);
    }
    walk.control
}

/// Has shrinkers in `top` and below give back `bytes`, or as much as they have until the deadline.
pub(crate) fn reclaim(
    top: &'static Node,
    purpose: Purpose,
    bytes: u64,
    deadline: Option<Instant>,
) -> Reclaimed {
    if bytes == 0 || !is_any(top) {
        return Reclaimed::default();
    }
    let Some(credit) = ReclaimCredit::begin(top, purpose) else { return Reclaimed::default() };
    let control = ScanControl { deadline, end: deadline, ..ScanControl::new(top, &credit, bytes, true) };
    let mut control = round(top, control);
    if control.stats.spared_low && !control.is_done() && !control.is_late() {
        control.sparing = Sparing::new(top, credit.requester(), false);
        control = round(top, control);
    }
    control.reclaimed()
}
