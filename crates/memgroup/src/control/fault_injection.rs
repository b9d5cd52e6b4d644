//! Fault injection: charges that fail although there is room, to test the code that makes them.
//!
//! A test that has the first charge refused, then the second and so on runs every error path of a
//! scenario, also those that no limit would ever cause.
//!
//! While an injection exists, all charges in the hierarchy bypass their stocks, so each of them
//! draws on the slow path. A charge that its stock serves never checks for injections.
//!
//! A charge draws once, when it begins: a charge that waits doesn't draw again when it is retried,
//! neither on a thread nor as a future. A move draws for the group that it moves to. These don't
//! draw: forced charges, the charges of an allocator that cannot fail, charges of no bytes,
//! charges of removed groups, and calls that only ask for room (`wait_for_room`, checkpoints).
//!
//! - I1. `Shared::bypasses_stocks` is set while the list has an injection. Both change under the
//!   tree lock.
//! - B1. The stock may still serve a charge that began on another thread before the injection did.

use core::fmt;
use core::ops::{Bound, RangeBounds};
use std::sync::Arc;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU64, Ordering};

use crate::tree::error::ChargeError;
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::parts::{HierarchyPart, Key, Part};
use crate::tree::shared::Shared;

/// The living injections of a hierarchy.
#[derive(Default)]
pub(crate) struct Injections(Mutex<Vec<Arc<Injection>>>);

/// Refusals of the charges of `top` and of all groups below it, by their numbers.
struct Injection {
    top: &'static Node,
    fails: (Bound<u64>, Bound<u64>),
    drawn: AtomicU64,
    failed: AtomicU64,
}

impl Injection {
    /// Counts one more charge. Returns whether it fails.
    fn draw(&self) -> bool {
        // ORDERING: Relaxed, here and below; figures, of which nothing else depends.
        let number = self.drawn.fetch_add(1, Ordering::Relaxed) + 1;
        let fails = self.fails.contains(&number);
        self.failed.fetch_add(u64::from(fails), Ordering::Relaxed);
        fails
    }
}

/// Draws whether a charge of `node` fails that bypasses the stock.
#[inline]
pub(crate) fn draw(node: &'static Node, bytes: u64) -> Result<(), ChargeError> {
    if node.shared().bypasses_stocks() { draw_at(node, bytes) } else { Ok(()) }
}

#[cold]
fn draw_at(node: &'static Node, bytes: u64) -> Result<(), ChargeError> {
    if node.counter.is_offline() {
        return Ok(());
    }
    let list = node.shared().injections().0.lock();
    let covering = list.iter().filter(|injection| node.is_within(injection.top));
    // Each of them counts the charge.
    let fails = covering.fold(false, |fails, injection| injection.draw() | fails);
    drop(list);
    if fails { Err(ChargeError::injected(node, bytes)) } else { Ok(()) }
}

/// Charges fail while this lives; from [`Group::inject_failures_at`].
#[must_use = "charges fail only while this lives"]
pub struct FailureInjection {
    group: Group,
    injection: Arc<Injection>,
}

impl FailureInjection {
    /// Charges that failed so far.
    pub fn failed(&self) -> u64 {
        // ORDERING: Relaxed, as in `draw`.
        self.injection.failed.load(Ordering::Relaxed)
    }

    /// Charges that this injection counted, failed or not.
    pub fn drawn(&self) -> u64 {
        // ORDERING: Relaxed, as in `draw`.
        self.injection.drawn.load(Ordering::Relaxed)
    }
}

impl Injections {
    /// Changes the list, and has charges bypass the stocks while it isn't empty.
    fn change(shared: &'static Shared, change: impl FnOnce(&mut Vec<Arc<Injection>>)) {
        let tree = shared.tree.lock();
        let mut list = shared.injections().0.lock();
        change(&mut list);
        shared.bypass_stocks(&tree, !list.is_empty());
    }
}

impl Drop for FailureInjection {
    fn drop(&mut self) {
        Injections::change(self.group.node().shared(), |list| {
            list.retain(|other| !Arc::ptr_eq(other, &self.injection));
        });
    }
}

impl fmt::Debug for FailureInjection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailureInjection")
            .field("group", &self.group.path())
            .field("failed", &self.failed())
            .finish()
    }
}

/// Failures for tests.
impl Group {
    /// Has charges fail by their number until the returned value is dropped, although there is
    /// room. Charges of this group and of all groups below it are counted, from 1, also those
    /// of groups that are created later.
    ///
    /// A test that repeats a scenario with `n..=n` and with `n..`, for `n` from 1 to the number of
    /// charges that the scenario makes, runs each of its error paths. An empty range only
    /// counts the charges.
    ///
    /// A charge is counted once, when it begins, also if it waits. A move counts for the group
    /// that it moves to. These do not fail and are not counted: [forced](Group::charge_forced)
    /// charges, the charges of [blocks](crate::block) that cannot fail, charges of no bytes,
    /// charges of removed groups, and calls that only ask for room, such as
    /// [`wait_for_room`](Group::wait_for_room) and [`checkpoint`](crate::block::checkpoint).
    ///
    /// While an injection exists, every charge in the hierarchy costs as much as one without a
    /// stock. If several exist, each of them counts the charge, which fails if any of them refuses
    /// it.
    ///
    /// ```
    /// # use memgroup::{ChargeErrorKind, Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let injection = hierarchy.root().inject_failures_at(2..=2);
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// let mut charge = tenant.try_charge(100).unwrap();
    /// assert_eq!(charge.try_grow(100).unwrap_err().kind(), ChargeErrorKind::Injected);
    /// assert!(charge.try_grow(100).is_ok());
    /// assert_eq!((injection.drawn(), injection.failed()), (3, 1));
    /// ```
    pub fn inject_failures_at(&self, charges: impl RangeBounds<u64>) -> FailureInjection {
        let fails = (charges.start_bound().cloned(), charges.end_bound().cloned());
        let (drawn, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        let injection = Arc::new(Injection { top: self.node(), fails, drawn, failed });
        Injections::change(self.node().shared(), |list| list.push(Arc::clone(&injection)));
        FailureInjection { group: self.clone(), injection }
    }
}

impl Part for Injections {}

static INJECTIONS: Key<HierarchyPart, Injections> = Key::new(HierarchyPart::Injections, Injections::default);

impl Shared {
    /// The injections of failures.
    pub(crate) fn injections(&self) -> &Injections {
        self.parts.get(&INJECTIONS)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::control::fault_injection::*;
    use crate::{ChargeErrorKind, Config, Hierarchy};

    fn tenant() -> Group {
        Hierarchy::new(Config::new()).unwrap().create("/tenant").unwrap()
    }

    #[test]
    fn charges_nothing_when_it_fails() {
        let tenant = tenant();
        let held = tenant.try_charge(1000).unwrap();
        let injection = tenant.inject_failures_at(..);
        let error = tenant.try_charge(10).unwrap_err();
        assert_eq!(error.kind(), ChargeErrorKind::Injected);
        assert_eq!(error.to_string(), "charge 10 bytes: a failure is injected into group /tenant");
        let mut grown = held;
        assert!(grown.try_grow(5).is_err());
        assert_eq!((grown.bytes(), tenant.usage_exact()), (1000, 1000));
        drop(tenant.charge_forced(77).unwrap());
        drop((grown, injection));
        assert_eq!(tenant.usage_exact(), 0);
    }

    #[test]
    fn lets_the_stock_serve_again_when_it_ends() {
        let tenant = tenant();
        let misses_of = |charges| {
            let before = tenant.stock().misses;
            (0..charges).for_each(|_| drop(tenant.try_charge(64).unwrap()));
            tenant.stock().misses - before
        };
        for _ in 0..2 {
            let injection = tenant.inject_failures_at(0..0);
            assert_eq!(misses_of(100), 100, "each bypasses the stock");
            drop(injection);
            assert!(misses_of(100) < 10, "charges bypass the stock still");
        }
    }

    /// The outcomes of eight charges of groups that take turns, in a subtree with `charges`
    /// injected.
    fn outcomes(charges: impl RangeBounds<u64>) -> Vec<bool> {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let top = hierarchy.create("/top").unwrap();
        let below = hierarchy.create("/top/below").unwrap();
        let beside = hierarchy.create("/beside").unwrap();
        let injection = top.inject_failures_at(charges);
        let later = hierarchy.create("/top/below/later").unwrap();
        let groups = [&top, &below, &later, &later, &below, &top, &top, &later];
        let outcomes: Vec<bool> = groups.map(|group| group.try_charge(64).is_err()).to_vec();
        assert!(beside.try_charge(64).is_ok() && hierarchy.root().try_charge(64).is_ok());
        assert_eq!(injection.drawn(), 8);
        assert_eq!(injection.failed(), outcomes.iter().filter(|&&failed| failed).count() as u64);
        drop(injection);
        for group in [&top, &below, &later] {
            assert!(group.try_charge(64).is_ok());
            assert!(hits_stock(group), "{} bypasses its stock still", group.path());
        }
        assert_eq!(hierarchy.root().usage_exact(), 0);
        outcomes
    }

    fn hits_stock(group: &Group) -> bool {
        let before = group.stock().misses;
        (0..100).for_each(|_| drop(group.try_charge(64).unwrap()));
        group.stock().misses - before < 10
    }

    #[test]
    fn refuses_charges_of_a_subtree_by_their_number() {
        for number in 1..=8 {
            let failed = |from: u64, to: u64| (1..=8).map(|at| (from..=to).contains(&at)).collect::<Vec<_>>();
            assert_eq!(outcomes(number..=number), failed(number, number));
            assert_eq!(outcomes(number..), failed(number, 8));
            assert_eq!(outcomes(..number), failed(0, number - 1));
            assert_eq!(outcomes((Bound::Excluded(number), Bound::Unbounded)), failed(number + 1, 8));
        }
        for none in [0..0, 5..5, 9..20] {
            assert_eq!(outcomes(none), [false; 8]);
        }
        assert_eq!(outcomes((Bound::Excluded(u64::MAX), Bound::Unbounded)), [false; 8]);
    }

    #[test]
    fn several_injections_count_each_charge_for_themselves() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let tenant = hierarchy.create("/tenant").unwrap();
        let at_root = hierarchy.root().inject_failures_at(2..=2);
        let at_tenant = tenant.inject_failures_at(3..=3);
        let outcomes = [(); 4].map(|()| tenant.try_charge(64).is_err());
        assert_eq!(outcomes, [false, true, true, false]);
        assert_eq!((at_root.drawn(), at_tenant.drawn()), (4, 4));
        drop(at_root);
        assert!(tenant.try_charge(64).is_ok());
        assert_eq!(at_tenant.drawn(), 5, "the other one covers the group still");
        drop(at_tenant);
        assert!(hits_stock(&tenant));
    }

    #[test]
    fn a_new_group_at_the_place_of_a_covered_one_is_not_covered() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let top = hierarchy.create("/top").unwrap();
        let injection = top.inject_failures_at(1..);
        for round in 0..3 {
            let covered = hierarchy.create("/top/covered").unwrap();
            assert!(covered.try_charge(64).is_err());
            let place = covered.id().node();
            covered.remove().unwrap();
            drop(covered);
            let again = hierarchy.create("/top/again").unwrap();
            assert!(again.id().node() == place && again.try_charge(64).is_err());
            again.remove().unwrap();
            drop(again);
            let other = hierarchy.create("/other").unwrap();
            assert_eq!(other.id().node(), place, "round {round} is to use the place again");
            assert!(other.try_charge(64).is_ok(), "it isn't covered");
            other.remove().unwrap();
        }
        assert_eq!(injection.failed(), 6);
    }

    #[test]
    fn each_form_of_a_charge_is_counted_once() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let (alice, bob) = (hierarchy.create("/alice").unwrap(), hierarchy.create("/bob").unwrap());
        let injection = hierarchy.root().inject_failures_at(0..0);
        let soon = std::time::Duration::from_millis(1);
        let mut drawn = 0;
        let mut adds = |count: u64, form: &str| {
            assert_eq!(injection.drawn() - drawn, count, "{form}");
            drawn = injection.drawn();
        };
        let mut charge = alice.try_charge(100).unwrap();
        adds(1, "a charge");
        charge.try_grow(50).unwrap();
        adds(1, "growth");
        charge.try_move_to(&bob).unwrap();
        adds(1, "a move");
        drop(alice.charge_forced(100).unwrap());
        adds(0, "a forced charge");
        drop(alice.try_charge(0).unwrap());
        adds(0, "a charge of nothing");
        alice.wait_for_room(100, soon).unwrap();
        adds(0, "a wait for room");
        bob.set_max(200).unwrap();
        assert_eq!(bob.charge_until(100, soon).unwrap_err().kind(), ChargeErrorKind::Deadline);
        adds(1, "a charge that waits");
        alice.remove().unwrap();
        assert_eq!(alice.try_charge(1).unwrap_err().kind(), ChargeErrorKind::Offline);
        adds(0, "a charge of a removed group");
    }
}
