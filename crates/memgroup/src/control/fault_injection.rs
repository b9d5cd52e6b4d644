//! Fault injection: charges that fail although there is room, to test the code that makes them.
//!
//! Impala denies reservations at random, and finds errors that no limit would ever cause. Here charges fail at random, or by their number: a test
//! that has the first charge refused, then the second and so on comes through every error path of a scenario.
//!
//! While an injection lives, the charges of the groups that it covers bypass the stock. So each of them comes to the slow path, which draws.
//! Nowhere else does it cost anything.
//!
//! A charge draws once, when it begins: a charge that waits does not draw again when it is tried again, neither on a thread nor as a future. A
//! move draws for the group that it moves to. These do not draw: forced charges, the charges of an allocator that cannot fail, charges of no
//! bytes, of removed groups, and calls that only ask for room (`wait_for_room`, checkpoints).
//!
//! - I1. The outcome of the n-th draw depends on the injection and on n alone. The order of the threads decides which charge draws as the n-th.
//! - I2. An online group has the mark `INJECTED` and no stock while an injection covers it. Both change under the tree lock.
//! - B1. The stock may still serve a charge that began on another thread before the injection did.

use core::fmt;
use core::ops::{Bound, RangeBounds};

use memgroup_sync::Mutex;

use crate::tree::error::ChargeError;
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::parts::{Key, Part};
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// The odds of a charge that always fails.
const ALWAYS: u64 = 1 << 63;

/// The injections of a hierarchy that live.
pub(crate) struct Injections(Mutex<List>);

#[derive(Default)]
struct List {
    /// The number of the last one.
    last: u64,
    living: Vec<Injection>,
}

struct Injection {
    number: u64,
    top: &'static Node,
    plan: Plan,
    drawn: u64,
    failed: u64,
}

/// Which of the charges fail.
#[derive(Clone, Copy)]
enum Plan {
    /// Those of the group itself, with these odds out of [`ALWAYS`].
    Random { odds: u64, seed: u64 },
    /// Those of the group and of all groups below it with a number from `first` to `last`.
    Numbered { first: u64, last: u64 },
}

impl Injection {
    fn covers(&self, node: &'static Node) -> bool {
        match self.plan {
            Plan::Random { .. } => std::ptr::eq(node, self.top),
            Plan::Numbered { .. } => node.is_within(self.top),
        }
    }

    /// Counts one more charge. Returns whether it fails.
    fn draw(&mut self) -> bool {
        self.drawn += 1;
        let fails = match self.plan {
            Plan::Random { odds, seed } => mix((self.drawn - 1).wrapping_add(seed)) >> 1 < odds,
            Plan::Numbered { first, last } => (first..=last).contains(&self.drawn),
        };
        self.failed += u64::from(fails);
        fails
    }
}

/// The finaliser of SplitMix64.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Draws whether a charge of `node` fails that bypasses the stock.
#[inline]
pub(crate) fn draw(node: &'static Node, bytes: u64) -> Result<(), ChargeError> {
    if node.marks.has_injection() { draw_at(node, bytes) } else { Ok(()) }
}

#[cold]
fn draw_at(node: &'static Node, bytes: u64) -> Result<(), ChargeError> {
    if node.counter.is_offline() {
        return Ok(());
    }
    let mut list = node.shared().injections().0.lock();
    let covering = list.living.iter_mut().filter(|injection| injection.covers(node));
    // Each of them counts the charge.
    if covering.fold(false, |fails, injection| injection.draw() | fails) {
        drop(list);
        return Err(ChargeError::injected(node, bytes));
    }
    Ok(())
}

/// A group was made: an injection may cover it, or have covered the last group at this place. The caller holds the tree lock.
pub(crate) fn created(_tree: &Tree, node: &'static Node) {
    let list = node.shared().injections().0.lock();
    if node.marks.has_injection() || !list.living.is_empty() {
        node.inject(list.living.iter().any(|injection| injection.covers(node)));
    }
}

/// Charges fail while this lives; from [`Group::inject_failures`] and [`Group::inject_failures_at`].
#[must_use = "charges fail only while this lives"]
pub struct FailureInjection {
    group: Group,
    number: u64,
}

impl FailureInjection {
    fn begin(group: &Group, plan: Plan) -> FailureInjection {
        let (top, shared) = (group.node(), group.node().shared());
        let tree = shared.tree.lock();
        let mut list = shared.injections().0.lock();
        list.last += 1;
        let number = list.last;
        list.living.push(Injection { number, top, plan, drawn: 0, failed: 0 });
        list.mark(shared, &tree, top);
        FailureInjection { group: group.clone(), number }
    }

    /// Charges that failed so far.
    pub fn failed(&self) -> u64 {
        self.read(|injection| injection.failed)
    }

    /// Charges that this injection counted, failed or not.
    pub fn drawn(&self) -> u64 {
        self.read(|injection| injection.drawn)
    }

    fn read(&self, of: impl Fn(&Injection) -> u64) -> u64 {
        let list = self.group.node().shared().injections().0.lock();
        list.living.iter().find(|injection| injection.number == self.number).map_or(0, of)
    }
}

impl List {
    /// Marks the groups within `top` that an injection covers, and no others.
    fn mark(&self, shared: &'static Shared, tree: &Tree, top: &'static Node) {
        for node in tree.subtree(top.id()).map(|id| shared.made(id)) {
            let covered = self.living.iter().any(|injection| injection.covers(node));
            if covered != node.marks.has_injection() {
                node.inject(covered);
            }
        }
    }
}

impl Drop for FailureInjection {
    fn drop(&mut self) {
        let (top, shared) = (self.group.node(), self.group.node().shared());
        let tree = shared.tree.lock();
        let mut list = shared.injections().0.lock();
        list.living.retain(|injection| injection.number != self.number);
        list.mark(shared, &tree, top);
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

/// The reason why failures are not injected.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum InjectionError {
    /// The probability is not from 0 to 1.
    Probability {
        /// The probability as given.
        probability: f64,
    },
}

impl fmt::Display for InjectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InjectionError::Probability { probability } => {
                write!(f, "inject failures with probability {probability}: it has to be from 0 to 1")
            }
        }
    }
}

impl std::error::Error for InjectionError {}

/// Failures for tests.
impl Group {
    /// Has charges of this group, not of those below it, fail with this probability until the returned value is dropped, although there is room.
    ///
    /// It is for tests of the code that makes the charges. Forced charges do not fail, and giving memory back never does. The same seed draws the
    /// same outcomes for the same charges in the same order. Meanwhile each charge costs as much as one without stock. Several injections may be
    /// on at once: a charge fails if any of them says so.
    ///
    /// # Errors
    /// The probability is not from 0 to 1.
    ///
    /// ```
    /// # use memgroup::{ChargeErrorKind, Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// {
    ///     let injection = tenant.inject_failures(1.0, 7).unwrap();
    ///     assert_eq!(tenant.try_charge(100).unwrap_err().kind(), ChargeErrorKind::Injected);
    ///     assert_eq!(injection.failed(), 1);
    /// }
    /// assert!(tenant.try_charge(100).is_ok());
    /// ```
    pub fn inject_failures(&self, probability: f64, seed: u64) -> Result<FailureInjection, InjectionError> {
        // A comparison that NaN fails.
        if !(0.0..=1.0).contains(&probability) {
            return Err(InjectionError::Probability { probability });
        }
        let odds = (probability * ALWAYS as f64) as u64;
        Ok(FailureInjection::begin(self, Plan::Random { odds, seed }))
    }

    /// Has charges fail by their number until the returned value is dropped, although there is room. Charges of this group and of all groups below
    /// it are counted, from 1, also those of groups that are created later.
    ///
    /// A test that repeats a scenario with `n..=n` and with `n..`, for `n` from 1 to the number of charges that the scenario makes, comes through each
    /// of its error paths. An empty range only counts the charges.
    ///
    /// A charge is counted once, when it begins, also if it waits. A move counts for the group that it moves to. These do not fail and are not
    /// counted: [forced](Group::charge_forced) charges, the charges of [blocks](crate::block) that cannot fail, charges of no bytes, charges of removed
    /// groups, and calls that only ask for room, such as [`wait_for_room`](Group::wait_for_room) and
    /// [`checkpoint`](crate::block::checkpoint). Meanwhile each charge costs as much as one without stock.
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
        // An excluded bound without a number beyond it leaves no charge.
        let none = (1, 0);
        let first = match charges.start_bound() {
            Bound::Included(&first) => Some(first),
            Bound::Excluded(&before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let last = match charges.end_bound() {
            Bound::Included(&last) => Some(last),
            Bound::Excluded(&end) => end.checked_sub(1),
            Bound::Unbounded => Some(u64::MAX),
        };
        let (first, last) = first.zip(last).unwrap_or(none);
        FailureInjection::begin(self, Plan::Numbered { first, last })
    }
}

impl Part for Injections {}

static INJECTIONS: Key<Injections> = Key::new(9, || Injections(Mutex::new(List::default())));

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
    fn fails_as_often_as_the_probability_says_and_repeatably() {
        let tenant = tenant();
        for probability in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let run = |seed| {
                let injection = tenant.inject_failures(probability, seed).unwrap();
                let outcomes: Vec<bool> = (0..20_000).map(|_| tenant.try_charge(64).is_err()).collect();
                assert_eq!(injection.drawn(), 20_000, "each charge is drawn for, the stock serves none");
                assert_eq!(injection.failed(), outcomes.iter().filter(|&&failed| failed).count() as u64);
                outcomes
            };
            let first = run(1);
            let share = first.iter().filter(|&&failed| failed).count() as f64 / 20_000.0;
            assert!((share - probability).abs() < 0.02, "{share} of {probability}");
            assert_eq!(first, run(1));
            assert!(first != run(2) || probability == 0.0 || probability == 1.0);
        }
        assert_eq!(tenant.usage_exact(), 0);
    }

    #[test]
    fn charges_nothing_when_it_fails() {
        let tenant = tenant();
        let held = tenant.try_charge(1000).unwrap();
        let injection = tenant.inject_failures(1.0, 0).unwrap();
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
            let injection = tenant.inject_failures(0.0, 0).unwrap();
            assert_eq!(misses_of(100), 100, "each bypasses the stock");
            drop(injection);
            assert!(misses_of(100) < 10, "charges bypass the stock still");
        }
    }

    #[test]
    fn refuses_a_bad_probability() {
        let tenant = tenant();
        for probability in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let error = tenant.inject_failures(probability, 0).unwrap_err().to_string();
            assert!(error.contains("from 0 to 1") && error.contains(&probability.to_string()), "{error}");
        }
    }

    /// The outcomes of eight charges of groups that take turns, in a subtree with `charges` injected.
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
            let other = hierarchy.create("/other").unwrap();
            assert_eq!(other.id().node(), place, "round {round} is to use the place again");
            assert!(other.try_charge(64).is_ok() && hits_stock(&other));
            other.remove().unwrap();
        }
        assert_eq!(injection.failed(), 3);
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
