//! Statements of each kind of tenant, and the keys of the rows that they ask for.
//!
//! - I1. The same seed, tenant and thread give the same statements in the same order, on every
//!   machine.
//! - I2. Every statement returns a row; a result without one is wrong. So each key exists in a
//!   database of that scale.

use std::thread;
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode};
use tpchgen::generators::{CustomerGenerator, OrderGenerator, PartGenerator};

use crate::run::spec::{Kind, Scale};

/// One statement with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Work {
    pub(crate) sql: &'static str,
    parameters: Vec<Value>,
}

impl Work {
    fn new(sql: &'static str) -> Work {
        Work { sql, parameters: Vec::new() }
    }

    /// Runs the statement to its last row, fetches every value, and returns the number of rows. It
    /// holds a hoard while `holds` returns true.
    pub(crate) fn run(&self, connection: &Connection, holds: impl FnMut() -> bool) -> rusqlite::Result<u64> {
        if self.sql == HOARD {
            return hoard(connection, holds);
        }
        let mut statement = connection.prepare_cached(self.sql)?;
        let columns = statement.column_count();
        let mut rows = statement.query(rusqlite::params_from_iter(&self.parameters))?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            for column in 0..columns {
                std::hint::black_box(row.get_ref(column)?);
            }
            count += 1;
        }
        Ok(count)
    }
}

/// Fills a temporary table until no more memory is available, and leaves a cursor on it open while
/// `holds` returns true. Returns the number of the table's parts.
fn hoard(connection: &Connection, mut holds: impl FnMut() -> bool) -> rusqlite::Result<u64> {
    let mut most = u64::MAX;
    loop {
        let held = fill_and_hold(connection, &mut most, &mut holds);
        let is_kept = !connection.is_autocommit();
        if is_kept {
            connection.execute_batch("ROLLBACK")?;
        }
        match held {
            // If SQLite has the memory for it, it undoes only the failed insertion. If not, it
            // undoes the whole transaction, and the next attempt takes less.
            Err(error) if is_out_of_memory(&error) && !is_kept && most > 0 && holds() => {}
            held => return held,
        }
    }
}

fn is_out_of_memory(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::OutOfMemory)
}

/// Fills the table with `most` parts. If that is refused, it lowers `most`.
fn fill_and_hold(
    connection: &Connection,
    most: &mut u64,
    holds: &mut impl FnMut() -> bool,
) -> rusqlite::Result<u64> {
    // The settings of every connection forbid writing. This one only writes its own temporary
    // table.
    connection
        .execute_batch("PRAGMA query_only = OFF; BEGIN; CREATE TEMP TABLE hoard (part BLOB NOT NULL)")?;
    let mut insert = connection.prepare(HOARD)?;
    let mut parts = 0;
    // The first part is made even if the run has ended, because a statement returns a row (I2).
    while parts == 0 || (parts < *most && holds()) {
        match insert.execute([]) {
            Ok(_) => parts += 1,
            Err(error) if is_out_of_memory(&error) => {
                *most = parts * 15 / 16;
                if connection.is_autocommit() || parts == 0 {
                    return Err(error);
                }
                break;
            }
            Err(error) => return Err(error),
        }
    }
    let mut select = connection.prepare("SELECT rowid FROM temp.hoard")?;
    while holds() {
        let mut rows = select.query([])?;
        while holds() && rows.next()?.is_some() {
            thread::park_timeout(HELD_FOR);
        }
    }
    Ok(parts)
}

/// The endless sequence of statements of one thread.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    kind: Kind,
    /// Row counts of `orders`, `customer` and `part`.
    rows: [u64; 3],
    keys: Keys,
    turn: usize,
}

impl Workload {
    /// Makes the sequence of `thread` of `tenant` on a database of this scale.
    pub(crate) fn new(kind: Kind, scale: Scale, seed: u64, tenant: &str, thread: u32) -> Workload {
        let factor = scale.factor();
        let rows = [
            OrderGenerator::calculate_row_count(factor, 1, 1),
            CustomerGenerator::calculate_row_count(factor, 1, 1),
            PartGenerator::calculate_row_count(factor, 1, 1),
        ];
        Workload { kind, rows: rows.map(|rows| rows as u64), keys: Keys::new(seed, tenant, thread), turn: 0 }
    }

    /// Returns the next statement.
    pub(crate) fn next(&mut self) -> Work {
        let turn = self.turn;
        self.turn += 1;
        match self.kind {
            Kind::Lookups => self.lookup(turn),
            Kind::Dashboards => self.dashboard(turn),
            Kind::Etl => {
                let sql = [SORTED_LINE_ITEMS, SHIPPING_BY_PRIORITY, REVENUE_BY_SUPPLY][turn % 3];
                Work::new(sql)
            }
            Kind::Runaway => Work::new(MISSING_JOIN_CONDITION),
            Kind::Hoarder => Work::new(HOARD),
            Kind::Requests => unreachable!("no SPEC with the engine `sqlite` has them"),
        }
    }

    fn lookup(&mut self, turn: usize) -> Work {
        let lookups = [(ORDER_BY_KEY, 0), (LINE_ITEM_BY_KEY, 0), (CUSTOMER_BY_KEY, 1), (PART_BY_KEY, 2)];
        let (sql, table) = lookups[turn % 4];
        let row = 1 + self.keys.below(self.rows[table]);
        let key = if table == 0 { order_key_of(row) } else { row as i64 };
        Work { sql, parameters: vec![Value::Integer(key)] }
    }

    fn dashboard(&mut self, turn: usize) -> Work {
        let year = 1993 + self.keys.below(5);
        let (sql, parameters) = match turn % 4 {
            0 => {
                let day = 1 + self.keys.below(30);
                (PRICING_SUMMARY, vec![Value::Text(format!("1998-09-{day:02}"))])
            }
            1 => {
                let discount = 2 + self.keys.below(8) as i64;
                let quantity = 24 + self.keys.below(2) as i64;
                let [from, to] = [year, year + 1].map(|year| Value::Text(format!("{year}-01-01")));
                let between = [discount - 1, discount + 1, quantity].map(Value::Integer);
                (FORECAST_REVENUE, [from, to].into_iter().chain(between).collect())
            }
            2 => (ORDERS_BY_MONTH, vec![Value::Text(format!("{year}-01-01"))]),
            _ => (BEST_CUSTOMERS, vec![Value::Text(format!("{year}-01-01"))]),
        };
        Work { sql, parameters }
    }
}

/// Random numbers of one thread of one tenant (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    state: u64,
}

impl Keys {
    /// Makes the sequence of `thread` of `tenant` under `seed`. It depends on the tenant's name,
    /// and not on where the tenant stands in the SPEC.
    pub(crate) fn new(seed: u64, tenant: &str, thread: u32) -> Keys {
        // FNV-1a, because it is the same on every machine.
        let name = tenant.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut keys = Keys { state: seed ^ name };
        keys.state = keys.next().wrapping_add(u64::from(thread).wrapping_mul(0xd1b5_4a32_d192_ed03));
        keys
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // The bias of the high half of a wide product is negligible for ends far below 2^64.
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// Returns the key of the `index`-th order, counted from 1. TPC-H uses the first 8 of every 32
/// keys.
fn order_key_of(index: u64) -> i64 {
    ((index >> 3) << 5 | (index & 7)) as i64
}

/// How long a hoarder leaves its cursor on one row.
const HELD_FOR: Duration = Duration::from_millis(20);

/// One part of a hoard: 256K.
const HOARD: &str = "
INSERT INTO temp.hoard WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 16)
SELECT zeroblob(16000) FROM n";

const ORDER_BY_KEY: &str = "SELECT * FROM orders WHERE o_orderkey = ?1";
const LINE_ITEM_BY_KEY: &str = "SELECT * FROM lineitem WHERE l_orderkey = ?1 AND l_linenumber = 1";
const CUSTOMER_BY_KEY: &str = "SELECT * FROM customer WHERE c_custkey = ?1";
const PART_BY_KEY: &str = "SELECT * FROM part WHERE p_partkey = ?1";

/// TPC-H query 1. Prices, discounts and taxes are whole hundredths.
const PRICING_SUMMARY: &str = "
SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
       sum(l_extendedprice * (100 - l_discount)), sum(l_extendedprice * (100 - l_discount) * (100 + l_tax)),
       avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*)
FROM lineitem WHERE l_shipdate <= ?1
GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus";

/// TPC-H query 6.
const FORECAST_REVENUE: &str = "
SELECT sum(l_extendedprice * l_discount) FROM lineitem
WHERE l_shipdate >= ?1 AND l_shipdate < ?2 AND l_discount BETWEEN ?3 AND ?4 AND l_quantity < ?5";

const ORDERS_BY_MONTH: &str = "
SELECT substr(o_orderdate, 1, 7) AS month, o_orderpriority, count(*), sum(o_totalprice)
FROM orders WHERE o_orderdate >= ?1
GROUP BY month, o_orderpriority ORDER BY month, o_orderpriority";

const BEST_CUSTOMERS: &str = "
SELECT c_name, c_mktsegment, sum(o_totalprice) AS spent, count(*)
FROM orders JOIN customer ON c_custkey = o_custkey WHERE o_orderdate >= ?1
GROUP BY o_custkey ORDER BY spent DESC, o_custkey LIMIT 20";

const SORTED_LINE_ITEMS: &str = "
SELECT l_shipdate, l_extendedprice, l_orderkey, l_linenumber, l_shipmode, l_comment
FROM lineitem ORDER BY l_shipdate, l_extendedprice, l_orderkey, l_linenumber";

const SHIPPING_BY_PRIORITY: &str = "
SELECT l_shipmode, o_orderpriority, o_orderstatus, count(*), sum(l_extendedprice * (100 - l_discount))
FROM lineitem JOIN orders ON o_orderkey = l_orderkey
GROUP BY l_shipmode, o_orderpriority, o_orderstatus ORDER BY 5 DESC";

const REVENUE_BY_SUPPLY: &str = "
SELECT l_partkey, l_suppkey, count(*), sum(l_quantity), sum(l_extendedprice * (100 - l_discount)) AS revenue
FROM lineitem GROUP BY l_partkey, l_suppkey ORDER BY revenue DESC";

/// Without `WHERE c_custkey = o_custkey` every customer is joined with every order.
const MISSING_JOIN_CONDITION: &str = "
SELECT c_name, o_orderkey, c_comment || ' / ' || o_comment AS note
FROM customer, orders ORDER BY note, o_orderkey";

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use tpchgen::generators::OrderGenerator;

    use super::{Keys, Value, Workload, order_key_of};
    use crate::run::data::tpch;
    use crate::run::spec::{Kind, Scale};

    fn tiny() -> (Connection, Scale) {
        let connection = Connection::open_in_memory().expect("a connection");
        connection.execute_batch(tpch::TABLES).expect("valid tables");
        tpch::fill(&connection, 0.001, &mut |_| true).expect("rows fit their tables");
        (connection, Scale::of_factor(0.001).expect("a scale"))
    }

    #[test]
    fn returns_rows_for_every_statement() {
        let (connection, scale) = tiny();
        for (kind, statements) in [(Kind::Lookups, 400), (Kind::Dashboards, 40), (Kind::Etl, 3)] {
            let mut workload = Workload::new(kind, scale, 11, "a", 0);
            for _ in 0..statements {
                let work = workload.next();
                let rows = work.run(&connection, || true).expect("a valid statement");
                assert!(rows > 0, "{work:?}");
            }
        }
    }

    #[test]
    fn finds_exactly_one_row_by_key() {
        let (connection, scale) = tiny();
        let mut workload = Workload::new(Kind::Lookups, scale, 5, "a", 0);
        for _ in 0..400 {
            let work = workload.next();
            assert_eq!(work.run(&connection, || true).expect("a valid statement"), 1, "{work:?}");
        }
    }

    #[test]
    fn holds_a_hoard_as_long_as_it_may_and_leaves_nothing() {
        let (connection, scale) = tiny();
        let work = Workload::new(Kind::Hoarder, scale, 5, "a", 0).next();
        for (calls, parts) in [(0, 1), (5, 6)] {
            let (mut asked, before) = (0, connection.total_changes());
            let held = work.run(&connection, || {
                asked += 1;
                asked <= calls
            });
            assert_eq!(held.expect("a hoard"), parts);
            assert_eq!(connection.total_changes() - before, parts * 16, "each part has 16 rows");
        }
        assert!(connection.is_autocommit());
        connection.prepare("SELECT * FROM temp.hoard").expect_err("the table is gone");
    }

    #[test]
    fn reads_every_line_item_in_the_etl() {
        let (connection, scale) = tiny();
        let work = Workload::new(Kind::Etl, scale, 5, "a", 0).next();
        assert_eq!(work.run(&connection, || true).expect("a valid statement"), 6_005);
    }

    #[test]
    fn returns_no_row_for_a_missing_key() {
        let (connection, scale) = tiny();
        connection.execute("DELETE FROM orders", []).expect("rows can go");
        let work = Workload::new(Kind::Lookups, scale, 5, "a", 0).next();
        assert_eq!(work.run(&connection, || true).expect("a valid statement"), 0);
    }

    #[test]
    fn repeats_the_statements_of_a_seed() {
        let scale = Scale::of_factor(0.001).expect("a scale");
        for kind in [Kind::Lookups, Kind::Dashboards, Kind::Etl, Kind::Runaway, Kind::Hoarder] {
            let list = |seed| {
                let mut workload = Workload::new(kind, scale, seed, "a", 1);
                (0..50).map(|_| workload.next()).collect::<Vec<_>>()
            };
            assert_eq!(list(3), list(3), "{kind:?}");
        }
        let first = |seed| Workload::new(Kind::Lookups, scale, seed, "a", 1).next();
        assert!((0..8).any(|seed| first(seed) != first(9)));
    }

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
        let scale = Scale::of_factor(0.001).expect("0.001 is a scale");
        let mut workload = Workload::new(Kind::Lookups, scale, 3, "a", 0);
        for turn in 0..4_000 {
            let [Value::Integer(key)] = workload.next().parameters[..] else { panic!("a key") };
            let last = [order_key_of(1_500), order_key_of(1_500), 150, 200][turn % 4];
            assert!((1..=last).contains(&key), "{key} of {last}");
        }
    }
}
