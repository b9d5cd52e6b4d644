//! TPC-H for tests and measurements of memgroup: its tables as Parquet files, and its 22 queries in
//! DataFusion's SQL.
//!
//! ```
//! use datafusion::prelude::SessionContext;
//!
//! # #[tokio::main]
//! # async fn main() -> datafusion::common::Result<()> {
//! let directory = tempfile::tempdir()?;
//! for table in memgroup_tpch::TABLES {
//!     memgroup_tpch::write(directory.path(), table, 0.001, &mut |_rows| true)?;
//! }
//! let database = SessionContext::new();
//! memgroup_tpch::register(&database, directory.path(), &memgroup_tpch::TABLES).await?;
//! let rows = database.sql(memgroup_tpch::query(6).unwrap()).await?.collect().await?;
//! assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 1);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

use std::fs::File;
use std::path::{Path, PathBuf};

use datafusion::arrow::array::{RecordBatch, RecordBatchReader};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::common::{Result, plan_err};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

/// The tables, the small ones first.
pub const TABLES: [&str; 8] =
    ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"];

/// Number of the queries; the first one has number 1.
pub const QUERIES: u32 = 22;

/// Rows of a row group in a file, which one partition of a scan reads. Even small scales have
/// several row groups.
const GROUP_ROWS: usize = 128 << 10;

/// Returns the SQL of a query with the parameters of TPC-H's validation run, or `None` for a number
/// that no query has.
pub fn query(number: u32) -> Option<&'static str> {
    let texts = include_str!("queries.sql").split("-- ");
    texts.filter_map(|part| part.split_once('\n')).find_map(|(title, sql)| {
        let found = title.trim().parse() == Ok(number);
        found.then_some(sql)
    })
}

/// The file of a table.
pub fn file(directory: &Path, table: &str) -> PathBuf {
    directory.join(format!("{table}.parquet"))
}

/// Writes the rows of a table at a scale to its file in `directory`, and syncs the file. It calls
/// `tick` with the number of new rows from time to time. If `tick` returns `false`, it ends early
/// and returns `false`, and the file is incomplete.
///
/// # Errors
/// TPC-H has no such table, or the file cannot be written.
pub fn write(directory: &Path, table: &str, scale: f64, tick: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
    let rows: Box<dyn RecordBatchReader> = match table {
        "region" => Box::new(RegionArrow::new(RegionGenerator::new(scale, 1, 1))),
        "nation" => Box::new(NationArrow::new(NationGenerator::new(scale, 1, 1))),
        "supplier" => Box::new(SupplierArrow::new(SupplierGenerator::new(scale, 1, 1))),
        "customer" => Box::new(CustomerArrow::new(CustomerGenerator::new(scale, 1, 1))),
        "part" => Box::new(PartArrow::new(PartGenerator::new(scale, 1, 1))),
        "partsupp" => Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, 1, 1))),
        "orders" => Box::new(OrderArrow::new(OrderGenerator::new(scale, 1, 1))),
        "lineitem" => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, 1, 1))),
        _ => return plan_err!("TPC-H has no table {table}; it has {}", TABLES.join(", ")),
    };
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(GROUP_ROWS)).build();
    let file = File::create(file(directory, table))?;
    let mut writer = ArrowWriter::try_new(file.try_clone()?, rows.schema(), Some(properties))?;
    for batch in rows {
        let batch = batch?;
        writer.write(&batch)?;
        if !tick(batch.num_rows() as u64) {
            return Ok(false);
        }
    }
    writer.close()?;
    file.sync_all()?;
    Ok(true)
}

/// Registers the files of these tables as tables of a context.
///
/// # Errors
/// A file is missing or is not a Parquet file, the context already has a table of that name, or the
/// directory's name is not UTF-8.
pub async fn register(context: &SessionContext, directory: &Path, tables: &[&str]) -> Result<()> {
    for table in tables {
        let path = file(directory, table);
        let Some(path) = path.to_str() else {
            return plan_err!("the name of {} is no text", path.display());
        };
        context.register_parquet(*table, path, ParquetReadOptions::default()).await?;
    }
    Ok(())
}

/// The rows of a query as text, for [`are_same`] and messages.
///
/// # Errors
/// A value cannot be formatted.
pub fn text(rows: &[RecordBatch]) -> Result<String> {
    Ok(pretty_format_batches(rows)?.to_string())
}

/// Returns whether two [texts](text) have the same rows. Floats may differ by rounding, because
/// plans add them in different orders.
pub fn are_same(one: &str, other: &str) -> bool {
    let is_close = |one: &str, other: &str| {
        let (Ok(one), Ok(other)) = (one.parse::<f64>(), other.parse::<f64>()) else { return false };
        (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
    };
    let are_cells_same =
        || cells(one).zip(cells(other)).all(|(one, other)| one == other || is_close(one, other));
    one == other || cells(one).count() == cells(other).count() && are_cells_same()
}

/// The titles and values, without the lines between.
fn cells(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_text_of_each_query() {
        for number in 1..=QUERIES {
            let sql = query(number).unwrap_or_else(|| panic!("query {number}"));
            assert!(sql.starts_with("select") || sql.starts_with("with"), "query {number}: {sql}");
        }
        assert_eq!((query(0), query(QUERIES + 1)), (None, None));
    }

    #[test]
    fn rows_are_the_same_but_for_the_rounding_of_floats() {
        let rows = "+---+---+\n| a | 1.0000000001 |\n| b | 2 |\n";
        assert!(are_same(rows, &rows.replace("1.0000000001", "1.0000000002")));
        for other in ["1.00001", "x", ""] {
            assert!(!are_same(rows, &rows.replace("1.0000000001", other)), "{other}");
        }
        assert!(!are_same(rows, "| a | 1.0000000001 |\n"));
    }

    #[test]
    fn ends_early_when_tick_returns_false() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!write(directory.path(), "orders", 0.001, &mut |_| false).unwrap());
    }

    #[test]
    fn names_the_tables_that_there_are() {
        let error = write(Path::new("/"), "item", 1.0, &mut |_| true).unwrap_err().to_string();
        assert!(error.contains("no table item; it has region, nation"), "{error}");
    }

    #[tokio::test]
    async fn writes_all_rows_of_a_scale() {
        let directory = tempfile::tempdir().unwrap();
        let context = SessionContext::new();
        let rows = [5, 25, 10, 150, 200, 800, 1_500, 6_005];
        for (table, rows) in TABLES.into_iter().zip(rows) {
            let mut ticked = 0;
            let mut tick = |more| {
                ticked += more;
                true
            };
            assert!(write(directory.path(), table, 0.001, &mut tick).unwrap());
            assert_eq!(ticked, rows, "{table}");
            register(&context, directory.path(), &[table]).await.unwrap();
            assert_eq!(context.table(table).await.unwrap().count().await.unwrap() as u64, rows, "{table}");
        }
    }
}
