//! The tables: `lineitem` and `orders` of TPC-H, as files of Parquet.

use std::path::Path;

use ballista::prelude::{SessionConfigExt, SessionContextExt};
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use memgroup_ballista::TenantOptions;

use crate::Failure;

const TABLES: [&str; 2] = ["lineitem", "orders"];

/// As many parts of each plan.
const PARTITIONS: usize = 4;

/// Writes the tables of this scale.
pub(crate) fn generate(dir: &Path, scale: f64) -> Result<(), Failure> {
    for table in TABLES {
        memgroup_tpch::write(dir, table, scale, &mut |_| true)?;
    }
    Ok(())
}

async fn register(context: SessionContext, dir: &Path) -> Result<SessionContext, Failure> {
    memgroup_tpch::register(&context, dir, &TABLES).await?;
    Ok(context)
}

/// The tables in this process, without the cluster.
pub(crate) async fn local(dir: &Path) -> Result<SessionContext, Failure> {
    register(SessionContext::new(), dir).await
}

/// The tables in a session of this tenant on the cluster.
pub(crate) async fn remote(url: &str, tenant: &str, dir: &Path) -> Result<SessionContext, Failure> {
    let config = SessionConfig::new_with_ballista()
        .with_target_partitions(PARTITIONS)
        // Of the default, 10 MB, none fits the limits here.
        .with_sort_spill_reservation_bytes(512 << 10)
        // The adaptive planner of Ballista 55 loses queries with an executor:
        // apache/datafusion-ballista#1986.
        .with_ballista_adaptive_query_planner(false)
        .with_option_extension(TenantOptions::of(tenant));
    let state = SessionStateBuilder::new().with_config(config).with_default_features().build();
    register(SessionContext::remote_with_state(url, state).await?, dir).await
}
