//! Dry run: limits that refuse no charge, and count the charges that they would have refused.
//!
//! An operator sets a limit that refuses nothing yet ([`Group::set_enforced`]). Reports show how
//! many charges it would have refused, and how far usage was above it. Such a charge is made, and
//! nothing is reclaimed for it. It counts as an event of its own kind, which threads can wait for.
//!
//! The counter stores such a limit in the same cell as an enforced one, with a mark, and compares
//! with it in the same way. So batches end below it, and a charge that fits costs no instruction
//! more. Only a charge that doesn't fit checks the mark:
//!
//! ```text
//! refused, mark set ─▶ OVER? ── yes: passes, counted
//!                        └───── no: drain the subtree, try again ── fits: not counted
//!                                      └── refused again: freeze the subtree, set OVER, try again
//! ```
//!
//! - I1. A charge passes such a limit only while OVER is set. Then no stock of the subtree is
//!   open, and usage consists of charges that are made or under way. So each charge that is
//!   counted would have been refused. While usage is above the limit, no stock serves a charge
//!   uncounted.
//! - I2. Only charges that were made are counted, at each level by itself, as if that level's
//!   limit were the only enforced one.
//! - I3. Whether a limit refuses belongs to the same epoch as the limit itself. From the instant
//!   at which `set_enforced(true)` enforces the limit, usage doesn't rise above it.
//! - B1. If other threads charge, too, a charge is counted by the usage at its compare-and-swap.
//!   This usage includes charges under way that may still be refused higher up. A charge under way
//!   while the limit changes may be counted by the old or the new limit.
//! - B2. OVER is cleared when usage is a sixty-fourth below the limit, so that the stocks of a
//!   tenant at its limit don't close and open in turn. Until then its charges are exact: they cost
//!   some fifty nanoseconds a level, and all its threads write one cache line.
//! - B3. A charge that takes over bytes freed for it (`reclaim::credit`) isn't counted at the
//!   levels where these bytes remained charged.

use crate::base::mutation::{self, Mutation};
use crate::control::{freeze, over_limit, waiters};
use crate::counter::chain::{self, Refused};
use crate::state::counter::Reading;
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// The number of drains for one charge after which a level is frozen: other threads may take the
/// drained bytes each time.
const DRAINS_MOST: u32 = 64;

/// Makes a charge of `bytes` by `attempt`, passing limits that refuse nothing. Returns the refusal
/// of an enforced limit.
pub(crate) fn past_dry_runs(bytes: u64, attempt: impl Fn() -> Result<(), Refused>) -> Result<(), Refused> {
    let (mut drained, mut drains): (Option<&'static Node>, u32) = (None, 0);
    loop {
        let Refused { node: level, seen } = match attempt() {
            Err(refused) if refused.seen.is_only_dry_run(bytes) => refused,
            outcome => return outcome,
        };
        let was_drained = drained.is_some_and(|drained| std::ptr::eq(drained, level));
        if was_drained || drains == DRAINS_MOST || seen.is_beyond_stocks(bytes) {
            let_charges_pass(level);
        } else {
            freeze::drain_for_charge(level, bytes - seen.headroom().min(bytes));
            (drained, drains) = (Some(level), drains + 1);
        }
    }
}

/// Freezes the subtree of `top`, and then lets charges pass its limit (I1).
pub(crate) fn let_charges_pass(top: &'static Node) {
    if mutation::active(Mutation::DryRunLeavesStocksOpen) {
        top.counter.mark_over(true);
    } else {
        over_limit::mark_if(top.shared().level_lock(top.id()), top, |_| true);
    }
}

/// Returns the bytes that could be charged to `node` now: the least headroom that enforced limits
/// leave.
pub(crate) fn headroom(node: &'static Node) -> u64 {
    chain::least_room(node, |level| {
        let seen = level.counter.read();
        if seen.is_dry_run { Reading { max: u64::MAX, ..seen }.headroom() } else { seen.headroom() }
    })
}

/// Limits that only count.
impl Group {
    /// Sets whether this group's `max` is enforced, which is the default, or is a dry run.
    ///
    /// In a dry run it refuses no charge, and nothing is reclaimed for it. Charges that don't fit
    /// are made and [counted](Group::would_refuse). The limits of other levels are enforced as
    /// before.
    ///
    /// The change takes effect at once and under load, as [`set_max`](Group::set_max) does, which
    /// leaves this setting alone. While usage is near or above the limit of a dry run, the
    /// subtree's charges go to the counters of every level. So each of them is counted, and none
    /// because of prepaid bytes.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// tenant.set_max(4096).unwrap();
    /// tenant.set_enforced(false);
    /// let held = tenant.try_charge(5000).unwrap();
    /// assert_eq!((tenant.would_refuse(), tenant.over_bytes_max()), (1, 904));
    /// tenant.set_enforced(true);
    /// assert!(tenant.try_charge(1).is_err());
    /// # drop(held);
    /// ```
    pub fn set_enforced(&self, enforced: bool) {
        let change = |node: &'static Node| node.counter.set_limit(node.counter.read().max, !enforced);
        over_limit::change(self.node(), change);
        _ = waiters::serve(self.node());
    }

    /// Returns whether this group's `max` is enforced.
    pub fn is_enforced(&self) -> bool {
        !self.node().counter.read().is_dry_run
    }

    /// Returns how many charges were made although this group's limit had no room for them,
    /// because it is a [dry run](Group::set_enforced). [`events_local`](Group::events_local)
    /// counts them too, and [`events`](Group::events) counts those of whole subtrees.
    pub fn would_refuse(&self) -> u64 {
        self.events_local().would_refuse
    }

    /// Returns the most bytes by which usage exceeded this group's limit during a dry run, forced
    /// charges included.
    pub fn over_bytes_max(&self) -> u64 {
        self.node().rare().past.over_bytes_max()
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::{Config, Hierarchy};

    #[test]
    fn opens_stocks_a_sixty_fourth_below_the_limit() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/group").unwrap();
        group.set_max(64_000).unwrap();
        group.set_enforced(false);
        let is_closed = || group.node().counter.read().over;
        let mut held = group.try_charge(64_000).unwrap();
        assert!(!is_closed(), "it fits");
        drop(group.try_charge(1).unwrap());
        assert!(is_closed(), "it did not");
        held.shrink(999);
        assert!(is_closed());
        held.shrink(1);
        assert!(!is_closed());
    }
}

#[cfg(all(test, memgroup_loom))]
mod loom {
    use memgroup_sync::loom::thread;

    use crate::base::mutation::{self, Mutation};
    use crate::charge::loom::{UNIT, assert_conserved, explore, explore_up_to, lone_group};
    use crate::state::stats::Reach;
    use crate::tree::node::Node;

    /// A group with a dry-run limit.
    fn dry_run_group(slots: usize, max: u64) -> &'static Node {
        let group = lone_group(slots, max);
        group.counter.set_limit(max, true);
        group
    }

    fn would_refuse(group: &'static Node) -> u64 {
        group.events().of(Reach::Local).would_refuse
    }

    fn a_small_and_a_large_charge_that_fit_together() {
        let group = dry_run_group(2, 6 * UNIT);
        // With all of the limit free this buys a batch. Its surplus must not make the large charge
        // count.
        let small = thread::spawn(move || group.charge_at(1, UNIT).unwrap());
        group.charge_at(0, 5 * UNIT).unwrap();
        small.join().unwrap();
        assert_eq!(would_refuse(group), 0, "charges fit at every moment");
        group.uncharge_at(0, 5 * UNIT);
        group.uncharge_at(1, UNIT);
        assert_conserved(group);
    }

    fn two_charges_above_the_limit() {
        let group = dry_run_group(2, 4 * UNIT);
        group.charge_at(0, 4 * UNIT).unwrap();
        let other = thread::spawn(move || group.charge_at(1, UNIT).unwrap());
        group.charge_at(0, UNIT).unwrap();
        group.uncharge_at(0, UNIT);
        group.charge_at(0, UNIT).unwrap();
        other.join().unwrap();
        assert_eq!(would_refuse(group), 3, "each charge came while all was taken");
        group.uncharge_at(0, 5 * UNIT);
        group.uncharge_at(1, UNIT);
        assert_conserved(group);
    }

    fn a_charge_and_a_limit_put_in_force() {
        let group = dry_run_group(1, 2 * UNIT);
        let charger = thread::spawn(move || {
            let _ = group.charge_at(0, 2 * UNIT);
            let _ = group.charge_at(0, UNIT);
        });
        group.counter.set_limit(2 * UNIT, false);
        let then = group.counter.usage();
        charger.join().unwrap();
        let now = group.counter.usage();
        assert!(now <= then.max(2 * UNIT), "{now} after {then} rises above a limit in force");
    }

    #[test]
    fn never_counts_a_charge_that_fits_but_for_stock() {
        explore(a_small_and_a_large_charge_that_fit_together);
    }

    #[test]
    fn counts_every_charge_above_the_limit() {
        explore_up_to(2, two_charges_above_the_limit);
    }

    #[test]
    fn keeps_usage_below_a_limit_put_in_force() {
        explore(a_charge_and_a_limit_put_in_force);
    }

    #[test]
    #[should_panic(expected = "charges fit at every moment")]
    fn counts_a_fitting_charge_without_a_wait_for_batches() {
        mutation::with(Mutation::RefusalIgnoresPending, || {
            explore(a_small_and_a_large_charge_that_fit_together)
        });
    }

    #[test]
    #[should_panic(expected = "charges fit at every moment")]
    fn counts_a_fitting_charge_with_stocks_left_open() {
        mutation::with(Mutation::DryRunLeavesStocksOpen, || {
            explore(a_small_and_a_large_charge_that_fit_together)
        });
    }
}
