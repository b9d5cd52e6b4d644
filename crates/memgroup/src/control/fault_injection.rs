//! Fault injection: charges that fail at random, to test the code that makes them.
//!
//! Impala denies reservations so, and finds errors that no limit would ever cause. While an injection lives, its group's charges bypass the stock.
//! So each of them comes to the slow path, which draws. Nowhere else does it cost anything.
//!
//! - I1. The outcome of the n-th draw depends on the seed and on n alone. The order of the threads decides which charge draws as the n-th.
//! - B1. The stock may still serve a charge that began on another thread before the injection did.

use core::fmt;

use memgroup_sync::Mutex;
use memgroup_sync::grace::Lent;

use crate::tree::error::ChargeError;
use crate::tree::handle::Group;
use crate::tree::node::{Node, StockBypass};
use crate::tree::parts::{Key, Part};

/// The odds of a charge that always fails.
const ALWAYS: u64 = 1 << 63;

/// The injection of a group, while one lives.
pub(crate) struct FaultState(Mutex<Option<Faults>>);

struct Faults {
    /// The odds of a failure, out of [`ALWAYS`].
    odds: u64,
    seed: u64,
    drawn: u64,
    failed: u64,
}

impl FaultState {
    pub(crate) fn new() -> FaultState {
        FaultState(Mutex::new(None))
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
    let faults = node.faults();
    let mut state = faults.0.lock();
    let Some(faults) = state.as_mut().filter(|faults| faults.odds > 0) else { return Ok(()) };
    let number = faults.drawn.wrapping_add(faults.seed);
    faults.drawn += 1;
    if mix(number) >> 1 >= faults.odds {
        return Ok(());
    }
    faults.failed += 1;
    drop(state);
    Err(ChargeError::injected(node, bytes))
}

/// Charges of a group fail at random while this lives; from [`Group::inject_failures`].
#[must_use = "charges fail only while this lives"]
pub struct FailureInjection {
    /// Dropped first: it needs the group's node.
    _bypass: StockBypass,
    group: Group,
}

impl FailureInjection {
    /// Charges that failed so far.
    pub fn failed(&self) -> u64 {
        self.read(|faults| faults.failed)
    }

    /// Charges that were drawn for, failed or not. None with a probability of 0.
    pub fn drawn(&self) -> u64 {
        self.read(|faults| faults.drawn)
    }

    fn read(&self, of: impl Fn(&Faults) -> u64) -> u64 {
        self.group.node().faults().0.lock().as_ref().map_or(0, of)
    }
}

impl Drop for FailureInjection {
    fn drop(&mut self) {
        let faults = self.group.node().faults();
        let mut state = faults.0.lock();
        self.group.node().marks.set_injection(false);
        *state = None;
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
    /// Charges of the group fail at random already.
    Active {
        /// The group's path.
        path: String,
    },
}

impl fmt::Display for InjectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InjectionError::Probability { probability } => {
                write!(f, "inject failures with probability {probability}: it has to be from 0 to 1")
            }
            InjectionError::Active { path } => {
                write!(f, "inject failures into group {path}: another injection is on; drop that first")
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
    /// same outcomes for the same charges in the same order. Meanwhile each charge costs as much as one without stock.
    ///
    /// # Errors
    /// The probability is not from 0 to 1, or charges of the group fail at random already.
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
        let faults = self.node().faults();
        let mut state = faults.0.lock();
        if state.is_some() {
            return Err(InjectionError::Active { path: self.path() });
        }
        let odds = (probability * ALWAYS as f64) as u64;
        *state = Some(Faults { odds, seed, drawn: 0, failed: 0 });
        let bypass = self.node().bypass_stock();
        self.node().marks.set_injection(true);
        Ok(FailureInjection { _bypass: bypass, group: self.clone() })
    }
}

impl Part for FaultState {}

static FAULTS: Key<FaultState> = Key::new(2, FaultState::new);

impl Node {
    /// The fault injection of the group.
    pub(crate) fn faults(&self) -> Lent<'_, FaultState> {
        self.part(&FAULTS)
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
                let drawn = if probability == 0.0 { 0 } else { 20_000 };
                assert_eq!(injection.drawn(), drawn, "each charge is drawn for, the stock serves none");
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
    fn refuses_a_bad_probability_and_a_second_injection() {
        let tenant = tenant();
        for probability in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let error = tenant.inject_failures(probability, 0).unwrap_err().to_string();
            assert!(error.contains("from 0 to 1") && error.contains(&probability.to_string()), "{error}");
        }
        let first = tenant.inject_failures(0.5, 0).unwrap();
        assert!(tenant.inject_failures(0.5, 0).unwrap_err().to_string().contains("/tenant"));
        drop(first);
        assert!(tenant.inject_failures(0.5, 0).is_ok());
    }
}
