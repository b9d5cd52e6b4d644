//! The settings of executors and schedulers that have tenants.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::RuntimeProducer;
use ballista_executor::execution_engine::DefaultExecutionEngine;
use ballista_executor::executor_process::ExecutorProcessConfig;
use ballista_scheduler::config::SchedulerConfig;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;

use crate::connections::Connections;
use crate::fit::FittingEngine;
use crate::flight;
use crate::options::with_tenant_options;
use crate::tenants::Tenants;

/// Returns settings of an executor with tasks that charge the groups of their sessions' tenants.
/// Its Arrow Flight service returns the tenants' figures.
///
/// Each task is fitted to the lowest limit of its session's group and those above. It has fewer
/// rows in a batch than its configuration says, and its sorts reserve fewer bytes for their merges.
///
/// If `config` has a producer of runtimes or of configurations, or an engine, the result wraps it.
/// [`ExecutorProcessConfig::memory_pool_size`] becomes `Some(0)`: for any other value Ballista
/// replaces the pool of each runtime. If `config` has an Arrow Flight service, it stays as it is,
/// and the figures are not available.
///
/// # Security
/// Like all of Ballista's own actions on that port, the action `memgroup.usage` needs no right: it
/// shows the names and figures of all tenants to anybody who can reach it. Make sure that only the
/// scheduler and the other executors can.
#[must_use]
pub fn tenant_executor(tenants: &Tenants, config: ExecutorProcessConfig) -> ExecutorProcessConfig {
    let work_dir = config.work_dir.clone();
    let base: RuntimeProducer = config.override_runtime_producer.unwrap_or_else(|| {
        Arc::new(move |_| {
            let builder = RuntimeEnvBuilder::new();
            match &work_dir {
                Some(dir) => builder.with_temp_file_path(dir).build_arc(),
                None => builder.build_arc(),
            }
        })
    });
    let flight = config.override_arrow_flight_service.unwrap_or_else(|| {
        flight::provider(
            tenants.hierarchy().clone(),
            config.grpc_max_encoding_message_size as usize,
            config.grpc_max_decoding_message_size as usize,
        )
    });
    let engine = config.override_execution_engine.unwrap_or_else(|| Arc::new(own_engine(config.client_ttl)));
    let partitions = match config.vcores {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        vcores => vcores,
    };
    ExecutorProcessConfig {
        memory_pool_size: Some(0),
        override_execution_engine: Some(Arc::new(FittingEngine { inner: engine, partitions })),
        override_runtime_producer: Some(tenants.runtimes(base)),
        override_config_producer: Some(with_tenant_options(config.override_config_producer)),
        override_arrow_flight_service: Some(flight),
        ..config
    }
}

/// Ballista's engine. It keeps connections for `seconds` seconds, or none for zero.
fn own_engine(client_ttl: u64) -> DefaultExecutionEngine {
    match client_ttl {
        0 => DefaultExecutionEngine::new(),
        seconds => {
            let connections = Connections::new(Duration::from_secs(seconds));
            DefaultExecutionEngine::with_client_pool(Arc::new(connections))
        }
    }
}

/// Returns settings of a scheduler that passes the tenant of each session on to the executors.
#[must_use]
pub fn tenant_scheduler(config: SchedulerConfig) -> SchedulerConfig {
    SchedulerConfig {
        override_config_producer: Some(with_tenant_options(config.override_config_producer)),
        ..config
    }
}
