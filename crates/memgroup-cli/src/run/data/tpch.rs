//! TPC-H tables in SQLite: their columns, and their rows from the generator.
//!
//! Money is stored in whole cents, so sums are exact, and dates as `YYYY-MM-DD`, so SQLite can
//! compare them as text. The large tables are filled in the order of their keys, so each insert
//! appends.

use std::fmt::{Display, Write};

use rusqlite::Connection;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};

/// The tables, with their columns in the order of the generator. `lineitem` is stored by its key,
/// without a row number. `partsupp` has no key, because at scales below about 0.025 TPC-H names a
/// supplier of a part twice.
pub(crate) const TABLES: &str = "
CREATE TABLE region (r_regionkey INTEGER PRIMARY KEY, r_name TEXT, r_comment TEXT);
CREATE TABLE nation (n_nationkey INTEGER PRIMARY KEY, n_name TEXT, n_regionkey INTEGER, n_comment TEXT);
CREATE TABLE supplier (s_suppkey INTEGER PRIMARY KEY, s_name TEXT, s_address TEXT, s_nationkey INTEGER,
    s_phone TEXT, s_acctbal INTEGER, s_comment TEXT);
CREATE TABLE customer (c_custkey INTEGER PRIMARY KEY, c_name TEXT, c_address TEXT, c_nationkey INTEGER,
    c_phone TEXT, c_acctbal INTEGER, c_mktsegment TEXT, c_comment TEXT);
CREATE TABLE part (p_partkey INTEGER PRIMARY KEY, p_name TEXT, p_mfgr TEXT, p_brand TEXT, p_type TEXT,
    p_size INTEGER, p_container TEXT, p_retailprice INTEGER, p_comment TEXT);
CREATE TABLE partsupp (ps_partkey INTEGER, ps_suppkey INTEGER, ps_availqty INTEGER, ps_supplycost INTEGER,
    ps_comment TEXT);
CREATE TABLE orders (o_orderkey INTEGER PRIMARY KEY, o_custkey INTEGER, o_orderstatus TEXT, o_totalprice INTEGER,
    o_orderdate TEXT, o_orderpriority TEXT, o_clerk TEXT, o_shippriority INTEGER, o_comment TEXT);
CREATE TABLE lineitem (l_orderkey INTEGER, l_partkey INTEGER, l_suppkey INTEGER, l_linenumber INTEGER,
    l_quantity INTEGER, l_extendedprice INTEGER, l_discount INTEGER, l_tax INTEGER, l_returnflag TEXT,
    l_linestatus TEXT, l_shipdate TEXT, l_commitdate TEXT, l_receiptdate TEXT, l_shipinstruct TEXT,
    l_shipmode TEXT, l_comment TEXT, PRIMARY KEY (l_orderkey, l_linenumber)) WITHOUT ROWID;
";

/// The indexes, created after the rows are inserted.
pub(crate) const INDEXES: &str = "
CREATE INDEX orders_by_customer ON orders (o_custkey);
CREATE INDEX partsupp_by_part ON partsupp (ps_partkey);";

/// Returns about how many rows all tables have, for the progress. An order has four line items on
/// average.
pub(crate) fn row_count_about(factor: f64) -> u64 {
    (factor * (6_001_215.0 + 1_500_000.0 + 800_000.0 + 200_000.0 + 150_000.0 + 10_000.0)) as u64 + 30
}

/// Fills all tables at scale `factor`. It calls `tick` now and then with the number of new rows. If
/// `tick` returns `false`, it ends early and returns `false`.
pub(crate) fn fill(
    connection: &Connection,
    factor: f64,
    tick: &mut dyn FnMut(u64) -> bool,
) -> rusqlite::Result<bool> {
    Ok(table(connection, "region", RegionGenerator::default().iter(), tick)?
        && table(connection, "nation", NationGenerator::default().iter(), tick)?
        && table(connection, "supplier", SupplierGenerator::new(factor, 1, 1).iter(), tick)?
        && table(connection, "customer", CustomerGenerator::new(factor, 1, 1).iter(), tick)?
        && table(connection, "part", PartGenerator::new(factor, 1, 1).iter(), tick)?
        && table(connection, "partsupp", PartSuppGenerator::new(factor, 1, 1).iter(), tick)?
        && table(connection, "orders", OrderGenerator::new(factor, 1, 1).iter(), tick)?
        && table(connection, "lineitem", LineItemGenerator::new(factor, 1, 1).iter(), tick)?)
}

/// Rows between two calls of `tick`.
const TICK_ROWS: u64 = 4_096;

/// Inserts `rows` into the table `name`. Each row prints itself as `field|field|...|`.
fn table(
    connection: &Connection,
    name: &str,
    rows: impl Iterator<Item = impl Display>,
    tick: &mut dyn FnMut(u64) -> bool,
) -> rusqlite::Result<bool> {
    let mut types = connection.prepare("SELECT type FROM pragma_table_info(?1)")?;
    let is_number = |row: &rusqlite::Row<'_>| Ok(row.get::<_, String>(0)? == "INTEGER");
    let is_number = types.query_map([name], is_number)?.collect::<rusqlite::Result<Vec<bool>>>()?;
    let marks = vec!["?"; is_number.len()].join(",");
    let mut insert = connection.prepare(&format!("INSERT INTO {name} VALUES ({marks})"))?;
    let (mut line, mut new_rows) = (String::new(), 0);
    for row in rows {
        line.clear();
        let _infallible = write!(line, "{row}");
        for (number, (field, is_number)) in line.split('|').zip(&is_number).enumerate() {
            if *is_number {
                insert.raw_bind_parameter(number + 1, hundredths(field))?;
            } else {
                insert.raw_bind_parameter(number + 1, field)?;
            }
        }
        insert.raw_execute()?;
        new_rows += 1;
        if new_rows == TICK_ROWS {
            if !tick(new_rows) {
                return Ok(false);
            }
            new_rows = 0;
        }
    }
    Ok(tick(new_rows))
}

/// Reads `123.45` as 12345, and `123` as 123.
fn hundredths(field: &str) -> i64 {
    let digits = field.bytes().filter(u8::is_ascii_digit);
    let number = digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    if field.starts_with('-') { -number } else { number }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::{INDEXES, TABLES, fill, row_count_about};

    fn filled(factor: f64) -> Connection {
        let connection = Connection::open_in_memory().expect("a connection");
        connection.execute_batch(TABLES).expect("the tables are well formed");
        assert!(fill(&connection, factor, &mut |_| true).expect("rows fit their tables"));
        connection.execute_batch(INDEXES).expect("the indexes are well formed");
        connection
    }

    fn number(connection: &Connection, sql: &str) -> i64 {
        connection.query_row(sql, [], |row| row.get(0)).expect(sql)
    }

    #[test]
    fn fills_each_table_with_the_rows_of_its_scale() {
        let connection = filled(0.001);
        for (table, rows) in [
            ("region", 5),
            ("nation", 25),
            ("supplier", 10),
            ("customer", 150),
            ("part", 200),
            ("partsupp", 800),
            ("orders", 1_500),
            ("lineitem", 6_005),
        ] {
            assert_eq!(number(&connection, &format!("SELECT count(*) FROM {table}")), rows, "{table}");
        }
    }

    #[test]
    fn stores_the_values_of_the_generator() {
        let connection = filled(0.001);
        let row: (String, i64, String) = connection
            .query_row(
                "SELECT l_shipdate, l_extendedprice, l_shipinstruct FROM lineitem ORDER BY l_orderkey, l_linenumber",
                [],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .expect("order 1 has a line");
        let first = tpchgen::generators::LineItemGenerator::new(0.001, 1, 1).iter().next().expect("a line");
        assert_eq!(row.0, first.l_shipdate.to_string());
        assert_eq!(row.1, first.l_extendedprice.into_inner());
        assert_eq!(row.2, first.l_shipinstruct);
    }

    #[test]
    fn estimates_the_rows_within_one_percent() {
        let mut rows = 0;
        let connection = Connection::open_in_memory().expect("a connection");
        connection.execute_batch(TABLES).expect("the tables are well formed");
        fill(&connection, 0.002, &mut |more| {
            rows += more;
            true
        })
        .expect("rows fit their tables");
        assert!(rows.abs_diff(row_count_about(0.002)) * 100 < rows, "{rows} rows");
    }

    #[test]
    fn stops_filling_when_tick_returns_false() {
        let connection = Connection::open_in_memory().expect("a connection");
        connection.execute_batch(TABLES).expect("the tables are well formed");
        let mut ticks = 0;
        let mut until_eighth = |_| {
            ticks += 1;
            ticks < 8
        };
        assert!(!fill(&connection, 0.001, &mut until_eighth).expect("rows fit their tables"));
        assert_eq!(number(&connection, "SELECT count(*) FROM lineitem"), 4_096);
    }
}
