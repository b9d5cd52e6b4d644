//! Keys of the rows that statements ask for: seeded random numbers, mapped to TPC-H's keys.
//!
//! - I1. The same seed, tenant and thread give the same sequence on every machine.
//! - I2. Every returned key exists in a database of that scale.

use tpchgen::generators::{CustomerGenerator, OrderGenerator, PartGenerator};

use crate::run::spec::Scale;

/// Random numbers of one thread of one tenant (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    state: u64,
}

impl Keys {
    /// The sequence of `thread` of `tenant` under `seed`. It depends on the tenant's name, not on
    /// its place in the SPEC.
    pub(crate) fn new(seed: u64, tenant: &str, thread: u32) -> Keys {
        // FNV-1a, because it is the same on every machine.
        let name = tenant.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut keys = Keys { state: seed ^ name };
        keys.state = keys.next().wrapping_add(u64::from(thread).wrapping_mul(0xd1b5_4a32_d192_ed03));
        keys
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 up to, not including, `end` (0 when `end` is 0).
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // High half of a wide product: the bias is negligible for ends far below 2^64.
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// Row counts of the tables with random keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowCounts {
    orders: u64,
    customers: u64,
    parts: u64,
}

impl RowCounts {
    /// The counts at `scale`.
    pub(crate) fn at(scale: Scale) -> RowCounts {
        let factor = scale.factor();
        RowCounts {
            orders: OrderGenerator::calculate_row_count(factor, 1, 1) as u64,
            customers: CustomerGenerator::calculate_row_count(factor, 1, 1) as u64,
            parts: PartGenerator::calculate_row_count(factor, 1, 1) as u64,
        }
    }

    /// A random key of `orders`.
    pub(crate) fn order_key(self, keys: &mut Keys) -> i64 {
        order_key_of(1 + keys.below(self.orders))
    }

    /// A random key of `customer`.
    pub(crate) fn customer_key(self, keys: &mut Keys) -> i64 {
        (1 + keys.below(self.customers)) as i64
    }

    /// A random key of `part`.
    pub(crate) fn part_key(self, keys: &mut Keys) -> i64 {
        (1 + keys.below(self.parts)) as i64
    }
}

/// The key of the `index`-th order, counted from 1. TPC-H uses the first 8 of every 32 keys.
fn order_key_of(index: u64) -> i64 {
    ((index >> 3) << 5 | (index & 7)) as i64
}

#[cfg(test)]
mod tests {
    use tpchgen::generators::OrderGenerator;

    use super::{Keys, RowCounts, order_key_of};
    use crate::run::spec::Scale;

    #[test]
    fn computes_the_order_keys_of_the_generator() {
        for (index, order) in (1..).zip(OrderGenerator::new(0.001, 1, 1).iter()) {
            assert_eq!(order_key_of(index), order.o_orderkey, "order {index}");
        }
    }

    #[test]
    fn repeats_keys_for_the_same_seed_tenant_and_thread_only() {
        let draw = |seed, tenant, thread| {
            let mut keys = Keys::new(seed, tenant, thread);
            [keys.next(), keys.next(), keys.next()]
        };
        assert_eq!(draw(7, "etl", 0), draw(7, "etl", 0));
        assert_ne!(draw(7, "etl", 0), draw(7, "etl", 1));
        assert_ne!(draw(7, "etl", 0), draw(8, "etl", 0));
        assert_ne!(draw(7, "etl", 0), draw(7, "lte", 0));
    }

    #[test]
    fn draws_every_number_below_the_end() {
        let mut keys = Keys::new(1, "a", 0);
        let drawn: Vec<u64> = (0..1_000).map(|_| keys.below(10)).collect();
        assert!(drawn.iter().all(|&number| number < 10));
        assert!(drawn.contains(&0) && drawn.contains(&9));
    }

    #[test]
    fn draws_keys_within_the_tables() {
        let counts = RowCounts::at(Scale::of_factor(0.001).expect("0.001 is a scale"));
        let mut keys = Keys::new(3, "a", 0);
        for _ in 0..1_000 {
            assert!((1..=150).contains(&counts.customer_key(&mut keys)));
            assert!((1..=200).contains(&counts.part_key(&mut keys)));
            assert!((1..=order_key_of(1_500)).contains(&counts.order_key(&mut keys)));
        }
    }
}
