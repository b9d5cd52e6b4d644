//! Measure: limits that refuse nobody, and count what they would have refused.
//!
//! An operator who wants to know what a limit would do sets it, has it measure ([`Group::set_enforced`]), and reads how many charges it would have
//! refused and by how much usage was above it. The charge is made, nothing is reclaimed for it, and it is an event of its own kind, for which one can wait.
//!
//! The counter has such a limit in the same cell as one in force, with a mark beside it, and refuses at it in the same way: so batches end below it, and
//! what fits costs not one instruction more. Only a charge that does not fit looks at the mark:
//!
//! ```text
//!   refused, mark set ─▶ OVER? ── yes: passes, counted
//!                          └───── no: drain the subtree, try again ── fits: not counted
//!                                        └── refused still: close the subtree's stocks, wait for batches in flight, set OVER, try again
//! ```
//!
//! - I1. A charge passes such a limit only while OVER is set, and then every stock of the subtree is closed: usage is what is charged, and in flight.
//!   So what is counted would have been refused, and while usage is above the limit no charge is served by a stock, where nobody could count it.
//! - I2. Only charges that were made are counted, at each level by itself: as if the limit of that level alone were in force.
//! - I3. Whether a limit refuses is of the same epoch as the limit: from the instant at which `set_enforced(true)` puts it in force nothing rises above it.
//! - B1. With other threads about, what counts is usage at the instant of the compare-and-swap, with charges that are in flight and may yet be refused
//!   higher up. A charge that is under way while the limit changes may be counted by the one before or after.
//! - B2. OVER goes when usage is a sixty-fourth below the limit, so that a tenant at its limit does not have the stocks of the subtree
//!   closed and opened by turns. Until then its charges are exact: some fifty nanoseconds a level, and a line that all its threads write.
//! - B3. What a charge has had set free for it and takes over (`shrink::keep`) is not counted at the levels where it was charged all along.

use memgroup_sync::MutexGuard;

use crate::chain::{self, Refused};
use crate::counter::Reading;
use crate::event::{self, Event};
use crate::group::Group;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::overrun;
use crate::stock::drain;
use crate::tree::Tree;

/// Drains for one charge after which a level is closed unasked: what is drained may be taken by others each time.
const DRAINS_MOST: u32 = 64;

/// Makes a charge of `node` by `attempt`, past limits that only measure. Whoever else refuses is told. With `tree`, the caller holds the lock.
pub(crate) fn passing(
    tree: Option<&Tree>,
    bytes: u64,
    node: &'static Node,
    attempt: impl Fn() -> Result<(), Refused>,
) -> Result<(), Refused> {
    let (mut drained, mut drains): (Option<&'static Node>, u32) = (None, 0);
    loop {
        let level = match attempt() {
            Err(refused) if refused.seen.only_measures(bytes) => refused.node,
            outcome => return outcome,
        };
        let lock: Option<MutexGuard<'_, Tree>> = tree.is_none().then(|| node.shared.tree.lock());
        let Some(tree) = tree.or(lock.as_deref()) else { unreachable!("given, or locked") };
        if drained.is_some_and(|drained| std::ptr::eq(drained, level)) || drains == DRAINS_MOST {
            close(tree, level);
        } else {
            drain::counted_in(tree, level);
            (drained, drains) = (Some(level), drains + 1);
        }
    }
}

/// Closes the stocks of every group that counts in `top`, for good measure: then, and not before, charges pass its limit.
pub(crate) fn close(tree: &Tree, top: &'static Node) {
    if mutation::active(Mutation::MeasureLeavesStocksOpen) {
        return top.counter.mark_over(true);
    }
    for node in top.shared.counted_in(tree, top) {
        drain::close(node);
    }
    for node in top.shared.counted_in(tree, top) {
        drain::wait_settled(node);
    }
    top.counter.mark_over(true);
}

/// The usage at which a level that is marked OVER has stocks again.
pub(crate) fn reopens_at(seen: Reading) -> u64 {
    if seen.measured { seen.max - seen.max / 64 } else { seen.max }
}

/// Counts a charge that took `node` to `usage`, if that is above a limit that only measures.
#[inline]
pub(crate) fn count_if_over(node: &'static Node, usage: u64) {
    let over_bytes = node.counter.over_shadow(usage);
    if over_bytes > 0 {
        count_over(node, over_bytes);
    }
}

#[cold]
fn count_over(node: &'static Node, over_bytes: u64) {
    node.counter.raise_over(over_bytes);
    event::count(node, Event::WouldRefuse);
}

/// What could be charged to `node` now: the least that limits in force leave.
pub(crate) fn headroom(node: &'static Node) -> u64 {
    chain::least_room(node, |level| {
        let seen = level.counter.read();
        if seen.measured { Reading { max: u64::MAX, ..seen }.headroom() } else { seen.headroom() }
    })
}

impl Group {
    /// Whether this group's `max` is in force, as it is unless told otherwise, or only measures: then it refuses nobody, nothing is reclaimed for
    /// it, and charges that it has no room for are made and [counted](Group::would_refuse). Limits of other levels are as they were.
    ///
    /// It takes effect at once and under load, as [`set_max`](Group::set_max) does, which keeps what is said here. Near a limit that measures, and as
    /// long as usage is above it, charges of the subtree go to the counters of every level, so that none is missed and stock is never the reason.
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
        let node = self.node();
        let tree = node.shared.tree.lock();
        node.counter.set_limit(node.counter.read().max, !enforced);
        overrun::settle(&tree, node);
    }

    /// Whether this group's `max` refuses.
    pub fn is_enforced(&self) -> bool {
        !self.node().counter.read().measured
    }

    /// Charges that were made although this group's limit had no room for them, because it [only measures](Group::set_enforced): what
    /// [`events_local`](Group::events_local) says, and [`events`](Group::events) of whole subtrees.
    pub fn would_refuse(&self) -> u64 {
        self.events_local().would_refuse
    }

    /// The most bytes by which usage was above a limit of this group that only measured, forced charges included.
    pub fn over_bytes_max(&self) -> u64 {
        self.node().counter.over_bytes_max()
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::{Config, Hierarchy};

    #[test]
    fn stocks_are_open_again_a_sixty_fourth_below_the_limit_and_not_before() {
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

    use crate::mutation::{self, Mutation};
    use crate::node::Node;
    use crate::rstat::Reach;
    use crate::stock::loom::{UNIT, assert_conserved, explore, explore_up_to, lone_group};

    /// A group whose limit only measures.
    fn measured_group(slots: usize, max: u64) -> &'static Node {
        let group = lone_group(slots, max);
        group.counter.set_limit(max, true);
        group
    }

    fn would_refuse(group: &'static Node) -> u64 {
        group.control.events.of(Reach::Local).would_refuse
    }

    fn a_small_and_a_large_charge_that_fit_together() {
        let group = measured_group(2, 6 * UNIT);
        // With all of the limit free this buys a batch; its surplus is no reason to count the large one.
        let small = thread::spawn(move || group.charge_at(1, UNIT).unwrap());
        group.charge_at(0, 5 * UNIT).unwrap();
        small.join().unwrap();
        assert_eq!(would_refuse(group), 0, "charges fit at every moment");
        group.uncharge_at(0, 5 * UNIT);
        group.uncharge_at(1, UNIT);
        assert_conserved(group);
    }

    fn two_charges_above_the_limit() {
        let group = measured_group(2, 4 * UNIT);
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
        let group = measured_group(1, 2 * UNIT);
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
    fn what_fits_is_never_counted_because_of_stock() {
        explore(a_small_and_a_large_charge_that_fit_together);
    }

    #[test]
    fn while_a_limit_is_passed_every_charge_is_counted() {
        explore_up_to(2, two_charges_above_the_limit);
    }

    #[test]
    fn nothing_rises_above_a_limit_from_when_it_is_in_force() {
        explore(a_charge_and_a_limit_put_in_force);
    }

    #[test]
    #[should_panic(expected = "charges fit at every moment")]
    fn a_charge_is_counted_because_of_a_batch_in_flight_where_nobody_waits_for_that() {
        mutation::with(Mutation::RefusalIgnoresPending, || {
            explore(a_small_and_a_large_charge_that_fit_together)
        });
    }

    #[test]
    #[should_panic(expected = "each charge came while all was taken")]
    fn a_charge_is_missed_where_the_stocks_are_left_open() {
        mutation::with(Mutation::MeasureLeavesStocksOpen, || explore_up_to(2, two_charges_above_the_limit));
    }
}
