//! Room: a wait in the same lines as charges, which ends with nothing charged.
//!
//! ```text
//!   enough room? ─ no ─▶ drained, reclaimed ─▶ refused ─▶ in line ─▶ there is room ─▶ who waited tries what it was refused for
//!       └─ yes ──────────────────┴──▶ at once                 └─▶ its next wait, where somebody was faster
//! ```
//!
//! - I1. No hook is called for it: who waits so holds nothing, however much it had, and would always be the smaller one beside those that hold something.
//! - I2. In line it looks whether there is room, and charges nothing: not for as long as a thread takes to wake up either, in which others would be refused for it, or stopped.
//! - B1. What is drained or reclaimed for it is charged before it is uncharged: that is how it is decided. Others may be refused within these few steps.

use std::time::Instant;

use memgroup_sync::grace;

use super::charge::{held_level, wait};
use super::line::Want;
use crate::chain::{self, Refused, Until};
use crate::error::ChargeError;
use crate::group::Group;
use crate::node::Node;
use crate::refusal::{self, OnOom};
use crate::shrink::keep;

fn wait_for_room(node: &'static Node, bytes: u64, deadline: Instant) -> Result<(), ChargeError> {
    if bytes == 0 {
        let seen = node.counter.read();
        return if seen.offline { Err(ChargeError::of(node, seen, 0)) } else { Ok(()) };
    }
    let began = Instant::now();
    let is_inside = keep::is_reclaiming() || grace::inside();
    // Who can wait goes behind those who wait already.
    let refused = match held_level(node).filter(|_| began < deadline && !is_inside) {
        Some(at) => Refused { node: at, seen: at.counter.read() },
        None => match look_or_make(node, bytes) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        },
    };
    if is_inside {
        return Err(refusal::refuse(refused, bytes));
    }
    wait(node, bytes, deadline, Want::Room, refused).map_err(|failed| failed.error(bytes, began))
}

fn look_or_make(node: &'static Node, bytes: u64) -> Result<(), Refused> {
    chain::look_for_room(node, Until::Top, bytes).or_else(|first| make_room(node, bytes, first))
}

/// After a refusal: whether there is room with what stocks and caches give.
pub(super) fn make_room(node: &'static Node, bytes: u64, first: Refused) -> Result<(), Refused> {
    refusal::make(node, Until::Top, bytes, first, OnOom::Refuse)?;
    node.uncharge_counters(bytes);
    Ok(())
}

impl Group {
    /// Waits until `deadline` for room for `bytes`, as [`charge_until`](Group::charge_until) does, and charges nothing: for work that has failed for want of memory, has set free
    /// what it had, and is to be tried again when it may succeed. Of what it will need such a caller has a guess, so nobody is stopped for it: no kill hook is called.
    ///
    /// There was room at an instant within the call; others may have it by the time it returns. What reclaim has made room for is charged for that instant, which the
    /// group's [peak](Group::peak) may show.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, Killed, Killing};
    /// # use std::time::{Duration, Instant};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenants = hierarchy.create("/tenants").unwrap();
    /// tenants.set_max(1000).unwrap();
    /// let (query, neighbour) = (tenants.create("query").unwrap(), tenants.create("neighbour").unwrap());
    /// let _held = neighbour.try_charge(600).unwrap();
    /// let _hook = neighbour.set_kill_hook(|_: &Killing<'_>| Killed::Dying).unwrap();
    /// let soon = || Instant::now() + Duration::from_millis(20);
    /// assert!(query.wait_for_room(400, soon()).is_ok() && query.usage_exact() == 0);
    /// assert!(query.wait_for_room(600, soon()).is_err() && neighbour.events().oom_kill == 0);
    /// ```
    ///
    /// # Errors
    /// As for [`charge_until`](Group::charge_until).
    pub fn wait_for_room(&self, bytes: u64, deadline: Instant) -> Result<(), ChargeError> {
        wait_for_room(self.node(), bytes, deadline)
    }
}
