//! The TPC-H tables as SQLite tables: their shape, and how their rows come from the generator.
//!
//! Money is whole cents and dates are `YYYY-MM-DD` texts, so every sum is exact and every comparison is SQLite's
//! own. The big tables are filled in the order of their keys, which makes each insert an append.

use rusqlite::{Connection, Statement, params};
use tpchgen::dates::{MIN_GENERATE_DATE, TOTAL_DATE_RANGE, TPCHDate};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};

/// The tables. `lineitem` is stored by its key, without a row number beside it. `partsupp` has no key: with few
/// suppliers, at scales below about 0.025, TPC-H's formula names a supplier of a part twice.
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
CREATE TABLE lineitem (l_orderkey INTEGER, l_linenumber INTEGER, l_partkey INTEGER, l_suppkey INTEGER,
    l_quantity INTEGER, l_extendedprice INTEGER, l_discount INTEGER, l_tax INTEGER, l_returnflag TEXT,
    l_linestatus TEXT, l_shipdate TEXT, l_commitdate TEXT, l_receiptdate TEXT, l_shipinstruct TEXT,
    l_shipmode TEXT, l_comment TEXT, PRIMARY KEY (l_orderkey, l_linenumber)) WITHOUT ROWID;
";

/// Built once the rows are there.
pub(crate) const INDEXES: &str = "
CREATE INDEX orders_by_customer ON orders (o_custkey);
CREATE INDEX partsupp_by_part ON partsupp (ps_partkey);";

/// About how many rows all tables together have (line items are random, four to an order): what progress is
/// measured against.
pub(crate) fn row_count_about(factor: f64) -> u64 {
    (factor * (6_001_215.0 + 1_500_000.0 + 800_000.0 + 200_000.0 + 150_000.0 + 10_000.0)) as u64 + 30
}

/// Fills all tables at scale `factor`. Calls `tick` with the number of rows since the last call, now and then;
/// when it answers `false` the filling ends early and the answer is `false` too.
pub(crate) fn fill(
    connection: &Connection,
    factor: f64,
    tick: &mut dyn FnMut(u64) -> bool,
) -> rusqlite::Result<bool> {
    let mut filler = Filler { connection, tick, rows: 0, going: true };
    filler.places(factor)?;
    filler.customers(factor)?;
    filler.parts(factor)?;
    filler.orders(factor)?;
    filler.line_items(factor)?;
    if filler.going {
        filler.going = (filler.tick)(filler.rows);
    }
    Ok(filler.going)
}

/// Rows between two calls of `tick`.
const TICK_ROWS: u64 = 4_096;

struct Filler<'a> {
    connection: &'a Connection,
    tick: &'a mut dyn FnMut(u64) -> bool,
    rows: u64,
    going: bool,
}

impl Filler<'_> {
    /// Inserts `rows` into `table`, each by `insert`, until they end or `tick` says stop.
    fn table<T>(
        &mut self,
        table: &str,
        columns: usize,
        rows: impl Iterator<Item = T>,
        mut insert: impl FnMut(&mut Statement<'_>, T) -> rusqlite::Result<usize>,
    ) -> rusqlite::Result<()> {
        let marks = vec!["?"; columns].join(",");
        let mut statement = self.connection.prepare(&format!("INSERT INTO {table} VALUES ({marks})"))?;
        for row in rows {
            if !self.going {
                break;
            }
            insert(&mut statement, row)?;
            self.rows += 1;
            if self.rows == TICK_ROWS {
                self.going = (self.tick)(self.rows);
                self.rows = 0;
            }
        }
        Ok(())
    }

    fn places(&mut self, factor: f64) -> rusqlite::Result<()> {
        self.table("region", 3, RegionGenerator::default().iter(), |statement, row| {
            statement.execute(params![row.r_regionkey, row.r_name, row.r_comment])
        })?;
        self.table("nation", 4, NationGenerator::default().iter(), |statement, row| {
            statement.execute(params![row.n_nationkey, row.n_name, row.n_regionkey, row.n_comment])
        })?;
        self.table("supplier", 7, SupplierGenerator::new(factor, 1, 1).iter(), |statement, row| {
            statement.execute(params![
                row.s_suppkey,
                row.s_name.to_string(),
                row.s_address.to_string(),
                row.s_nationkey,
                row.s_phone.to_string(),
                row.s_acctbal.into_inner(),
                row.s_comment,
            ])
        })
    }

    fn customers(&mut self, factor: f64) -> rusqlite::Result<()> {
        self.table("customer", 8, CustomerGenerator::new(factor, 1, 1).iter(), |statement, row| {
            statement.execute(params![
                row.c_custkey,
                row.c_name.to_string(),
                row.c_address.to_string(),
                row.c_nationkey,
                row.c_phone.to_string(),
                row.c_acctbal.into_inner(),
                row.c_mktsegment,
                row.c_comment,
            ])
        })
    }

    fn parts(&mut self, factor: f64) -> rusqlite::Result<()> {
        self.table("part", 9, PartGenerator::new(factor, 1, 1).iter(), |statement, row| {
            statement.execute(params![
                row.p_partkey,
                row.p_name.to_string(),
                row.p_mfgr.to_string(),
                row.p_brand.to_string(),
                row.p_type,
                row.p_size,
                row.p_container,
                row.p_retailprice.into_inner(),
                row.p_comment,
            ])
        })?;
        self.table("partsupp", 5, PartSuppGenerator::new(factor, 1, 1).iter(), |statement, row| {
            statement.execute(params![
                row.ps_partkey,
                row.ps_suppkey,
                row.ps_availqty,
                row.ps_supplycost.into_inner(),
                row.ps_comment,
            ])
        })
    }

    fn orders(&mut self, factor: f64) -> rusqlite::Result<()> {
        let dates = DateTexts::new();
        self.table("orders", 9, OrderGenerator::new(factor, 1, 1).iter(), |statement, row| {
            statement.execute(params![
                row.o_orderkey,
                row.o_custkey,
                row.o_orderstatus.to_string(),
                row.o_totalprice.into_inner(),
                dates.of(row.o_orderdate),
                row.o_orderpriority,
                row.o_clerk.to_string(),
                row.o_shippriority,
                row.o_comment,
            ])
        })
    }

    fn line_items(&mut self, factor: f64) -> rusqlite::Result<()> {
        let dates = DateTexts::new();
        self.table("lineitem", 16, LineItemGenerator::new(factor, 1, 1).iter(), |statement, row| {
            statement.execute(params![
                row.l_orderkey,
                row.l_linenumber,
                row.l_partkey,
                row.l_suppkey,
                row.l_quantity,
                row.l_extendedprice.into_inner(),
                row.l_discount.into_inner(),
                row.l_tax.into_inner(),
                row.l_returnflag,
                row.l_linestatus,
                dates.of(row.l_shipdate),
                dates.of(row.l_commitdate),
                dates.of(row.l_receiptdate),
                row.l_shipinstruct,
                row.l_shipmode,
                row.l_comment,
            ])
        })
    }
}

/// Every date the generator knows, written once: a line item has three.
struct DateTexts(Vec<String>);

impl DateTexts {
    fn new() -> DateTexts {
        DateTexts(
            (0..TOTAL_DATE_RANGE).map(|day| TPCHDate::new(MIN_GENERATE_DATE + day).to_string()).collect(),
        )
    }

    fn of(&self, date: TPCHDate) -> &str {
        &self.0[date.into_inner() as usize]
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::{INDEXES, TABLES, fill, row_count_about};

    fn filled(factor: f64) -> Connection {
        let connection = Connection::open_in_memory().expect("memory is there");
        connection.execute_batch(TABLES).expect("the tables are well formed");
        assert!(fill(&connection, factor, &mut |_| true).expect("rows fit their tables"));
        connection.execute_batch(INDEXES).expect("the indexes are well formed");
        connection
    }

    fn number(connection: &Connection, sql: &str) -> i64 {
        connection.query_row(sql, [], |row| row.get(0)).expect(sql)
    }

    #[test]
    fn every_table_has_the_rows_of_its_scale() {
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
    fn values_are_those_of_the_generator() {
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
    fn the_estimate_of_rows_is_near_the_truth() {
        let mut rows = 0;
        let connection = Connection::open_in_memory().expect("memory is there");
        connection.execute_batch(TABLES).expect("the tables are well formed");
        fill(&connection, 0.002, &mut |more| {
            rows += more;
            true
        })
        .expect("rows fit their tables");
        assert!(rows.abs_diff(row_count_about(0.002)) * 100 < rows, "{rows} rows");
    }

    #[test]
    fn filling_ends_when_told_to() {
        let connection = Connection::open_in_memory().expect("memory is there");
        connection.execute_batch(TABLES).expect("the tables are well formed");
        assert!(!fill(&connection, 0.001, &mut |_| false).expect("rows fit their tables"));
        assert_eq!(number(&connection, "SELECT count(*) FROM lineitem"), 4_096 - 2_690);
    }
}
