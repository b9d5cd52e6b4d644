//! Deny: charges refused at random, to test what their callers do then.
//!
//! Impala denies reservations so, and finds what no limit would ever hit. While a [`Denial`] lives its group's charges pass by the stock, so
//! each of them comes to the slow path, which draws. Nowhere else does it cost anything.
//!
//! - I1. What is drawn for the n-th charge depends on the seed and n alone. Which charge is the n-th is for the threads to settle.
//! - B1. A charge that began on another thread before the denial did may still be served by the stock.

use core::fmt;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU64, Ordering};

use crate::error::ChargeError;
use crate::group::Group;
use crate::node::{Diverted, Node};

/// Never denied.
const NEVER: u64 = 0;
/// Always denied; less than that is a share of 2<sup>63</sup>.
const ALWAYS: u64 = 1 << 63;

/// How likely a group denies a charge.
pub(crate) struct Odds {
    /// Of 2<sup>63</sup>.
    odds: AtomicU64,
    seed: AtomicU64,
    drawn: AtomicU64,
    denied: AtomicU64,
    /// Whether a denial lives.
    taken: Mutex<bool>,
}

impl Odds {
    pub(crate) fn new() -> Odds {
        Odds {
            odds: AtomicU64::new(NEVER),
            seed: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            taken: Mutex::new(false),
        }
    }
}

/// The finaliser of SplitMix64.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Draws for a charge of `node` that passes by the stock.
#[inline]
pub(crate) fn draw(node: &'static Node, bytes: u64) -> Result<(), ChargeError> {
    if node.marks.is_denied() { draw_at(node, bytes) } else { Ok(()) }
}

#[cold]
fn draw_at(node: &'static Node, bytes: u64) -> Result<(), ChargeError> {
    let Odds { odds, seed, drawn, denied, .. } = &node.control.denial;
    // ORDERING: Relaxed; the odds alone matter, and who sets them looks for no charge that is on.
    let odds = odds.load(Ordering::Relaxed);
    if odds == NEVER {
        return Ok(());
    }
    // ORDERING: Relaxed, both; each draw gets a number of its own, and that is all.
    let number = drawn.fetch_add(1, Ordering::Relaxed).wrapping_add(seed.load(Ordering::Relaxed));
    if mix(number) >> 1 >= odds {
        return Ok(());
    }
    // ORDERING: Relaxed; a count.
    denied.fetch_add(1, Ordering::Relaxed);
    Err(ChargeError::denied(node, bytes))
}

/// Charges of a group are denied at random while it lives. From [`Group::deny`].
#[must_use = "charges are denied only while it lives"]
pub struct Denial {
    /// The first to be dropped: it needs the group's place.
    _diverted: Diverted,
    group: Group,
}

impl Denial {
    /// Charges that were denied so far.
    pub fn denied(&self) -> u64 {
        // ORDERING: Relaxed; a count.
        self.group.node().control.denial.denied.load(Ordering::Relaxed)
    }

    /// Charges that were drawn for, those that were denied among them; none with probability 0.
    pub fn drawn(&self) -> u64 {
        // ORDERING: Relaxed; a count.
        self.group.node().control.denial.drawn.load(Ordering::Relaxed)
    }
}

impl Drop for Denial {
    fn drop(&mut self) {
        let denial = &self.group.node().control.denial;
        let mut taken = denial.taken.lock();
        // ORDERING: Relaxed; as in `draw`.
        denial.odds.store(NEVER, Ordering::Relaxed);
        self.group.node().marks.deny(false);
        *taken = false;
    }
}

impl fmt::Debug for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denial").field("group", &self.group.path()).field("denied", &self.denied()).finish()
    }
}

/// Why charges are not denied.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DenyError {
    /// The probability is none.
    Probability {
        /// As it was given.
        probability: f64,
    },
    /// The group denies charges already.
    Denies {
        /// Its path.
        path: String,
    },
}

impl fmt::Display for DenyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DenyError::Probability { probability } => {
                write!(f, "deny charges with probability {probability}: it has to be from 0 to 1")
            }
            DenyError::Denies { path } => {
                write!(f, "deny charges of group {path}: another denial of it is on; drop that first")
            }
        }
    }
}

impl std::error::Error for DenyError {}

impl Group {
    /// From now on charges of this group, not of those below it, are refused with this probability, also where there is room: to test what
    /// the code does that made them. Forced charges are not, nor is what an adapter gives back. It ends when what is returned is dropped.
    ///
    /// The same seed draws the same for the same charges in the same order. Each costs what a charge without stock costs meanwhile.
    ///
    /// # Errors
    /// The probability is not from 0 to 1, or the group denies charges already.
    ///
    /// ```
    /// # use memgroup::{ChargeErrorKind, Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// {
    ///     let denial = tenant.deny(1.0, 7).unwrap();
    ///     assert_eq!(tenant.try_charge(100).unwrap_err().kind(), ChargeErrorKind::Denied);
    ///     assert_eq!(denial.denied(), 1);
    /// }
    /// assert!(tenant.try_charge(100).is_ok());
    /// ```
    pub fn deny(&self, probability: f64, seed: u64) -> Result<Denial, DenyError> {
        // A comparison that NaN fails.
        if !(0.0..=1.0).contains(&probability) {
            return Err(DenyError::Probability { probability });
        }
        let denial = &self.node().control.denial;
        let mut taken = denial.taken.lock();
        if *taken {
            return Err(DenyError::Denies { path: self.path() });
        }
        *taken = true;
        let diverted = self.node().divert();
        let odds = (probability * ALWAYS as f64) as u64;
        for (number, value) in
            [(&denial.seed, seed), (&denial.drawn, 0), (&denial.denied, 0), (&denial.odds, odds)]
        {
            // ORDERING: Relaxed; as in `draw`.
            number.store(value, Ordering::Relaxed);
        }
        self.node().marks.deny(true);
        Ok(Denial { _diverted: diverted, group: self.clone() })
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;
    use crate::{ChargeErrorKind, Config, Hierarchy};

    fn tenant() -> Group {
        Hierarchy::new(Config::new()).unwrap().create("/tenant").unwrap()
    }

    #[test]
    fn as_many_charges_are_denied_as_the_probability_says_and_the_same_ones_again() {
        let tenant = tenant();
        for probability in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let run = |seed| {
                let denial = tenant.deny(probability, seed).unwrap();
                let outcomes: Vec<bool> = (0..20_000).map(|_| tenant.try_charge(64).is_err()).collect();
                let drawn = if probability == 0.0 { 0 } else { 20_000 };
                assert_eq!(denial.drawn(), drawn, "each charge is drawn for, none is the stock's");
                assert_eq!(denial.denied(), outcomes.iter().filter(|&&denied| denied).count() as u64);
                outcomes
            };
            let first = run(1);
            let share = first.iter().filter(|&&denied| denied).count() as f64 / 20_000.0;
            assert!((share - probability).abs() < 0.02, "{share} of {probability}");
            assert_eq!(first, run(1));
            assert!(first != run(2) || probability == 0.0 || probability == 1.0);
        }
        assert_eq!(tenant.usage_exact(), 0);
    }

    #[test]
    fn what_is_denied_is_told_and_nothing_is_charged() {
        let tenant = tenant();
        let held = tenant.try_charge(1000).unwrap();
        let denial = tenant.deny(1.0, 0).unwrap();
        let error = tenant.try_charge(10).unwrap_err();
        assert_eq!(error.kind(), ChargeErrorKind::Denied);
        assert_eq!(error.to_string(), "charge 10 bytes: denied by injection in group /tenant");
        let mut grown = held;
        assert!(grown.try_grow(5).is_err());
        assert_eq!((grown.bytes(), tenant.usage_exact()), (1000, 1000));
        drop(tenant.charge_forced(77).unwrap());
        drop((grown, denial));
        assert_eq!(tenant.usage_exact(), 0);
    }

    #[test]
    fn charges_are_served_by_the_stock_again_when_a_denial_has_ended() {
        let tenant = tenant();
        let misses_of = |charges| {
            let before = tenant.stock().misses;
            (0..charges).for_each(|_| drop(tenant.try_charge(64).unwrap()));
            tenant.stock().misses - before
        };
        for _ in 0..2 {
            let denial = tenant.deny(0.0, 0).unwrap();
            assert_eq!(misses_of(100), 100, "each passes by the stock");
            drop(denial);
            assert!(misses_of(100) < 10, "the group is diverted still");
        }
    }

    #[test]
    fn a_probability_that_is_none_and_a_second_denial_are_errors_that_say_so() {
        let tenant = tenant();
        for probability in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let error = tenant.deny(probability, 0).unwrap_err().to_string();
            assert!(error.contains("from 0 to 1") && error.contains(&probability.to_string()), "{error}");
        }
        let first = tenant.deny(0.5, 0).unwrap();
        assert!(tenant.deny(0.5, 0).unwrap_err().to_string().contains("/tenant"));
        drop(first);
        assert!(tenant.deny(0.5, 0).is_ok());
    }
}
