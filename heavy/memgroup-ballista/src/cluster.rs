//! The figures of all executors, as a scheduler collects them.

use std::collections::BTreeMap;
use std::fmt;

use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use ballista_scheduler::cluster::ClusterState;
use futures::future::join_all;
use serde::{Deserialize, Serialize};

use crate::flight;
use crate::flight::ExecutorUsage;

/// Whether an executor answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The executor sent its figures.
    Now,
    /// The executor is registered, but did not answer: the error.
    Silent(String),
    /// The executor is no longer registered.
    Gone,
}

/// One executor of a [`ClusterUsage`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executor {
    /// Whether the executor answered. If it did not, its figures are those of its last answer.
    pub answer: Answer,
    /// The figures.
    pub usage: ExecutorUsage,
}

/// The figures of all executors that a scheduler has seen, by their ids. Printed, it is a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterUsage {
    /// The executors. A lost executor keeps its last figures.
    pub executors: BTreeMap<String, Executor>,
}

impl ClusterUsage {
    /// Asks all registered executors for their figures at the same time. A lost executor keeps its
    /// last ones.
    pub async fn collect(&mut self, cluster: &dyn ClusterState) {
        let registered = cluster.registered_executor_metadata().await;
        for (id, executor) in &mut self.executors {
            if !registered.iter().any(|metadata| metadata.id == *id) {
                executor.answer = Answer::Gone;
            }
        }
        let answers = join_all(registered.into_iter().map(async |metadata| {
            let answer = ask(&format!("http://{}:{}", metadata.host, metadata.port)).await;
            (metadata.id, answer)
        }));
        for (id, answer) in answers.await {
            let executor = self
                .executors
                .entry(id)
                .or_insert_with(|| Executor { answer: Answer::Now, usage: ExecutorUsage::default() });
            match answer {
                Ok(usage) => *executor = Executor { answer: Answer::Now, usage },
                Err(error) => executor.answer = Answer::Silent(error.to_string()),
            }
        }
    }

    /// Returns the most bytes that a tenant held at one time on each executor, by the executors'
    /// ids.
    pub fn peaks<'u>(&'u self, tenant: &'u str) -> impl Iterator<Item = (&'u str, u64)> {
        self.executors
            .iter()
            .filter_map(move |(id, executor)| Some((id.as_str(), executor.usage.tenant(tenant)?.peak_bytes)))
    }
}

/// Asks an executor for its tenants' figures, at the address of its Arrow Flight service.
///
/// # Errors
/// The executor does not answer within Ballista's timeout for a connection, or was not set up by
/// [`tenant_executor`](crate::tenant_executor).
pub async fn ask(url: &str) -> Result<ExecutorUsage, Box<dyn std::error::Error + Send + Sync>> {
    let endpoint = create_grpc_client_endpoint(url.to_owned(), Some(&GrpcClientConfig::default()))?;
    flight::ask(endpoint.connect().await?).await
}

/// Bytes in the format of the table.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            bytes if bytes < 1 << 10 => format!("{bytes}"),
            bytes if bytes < 1 << 20 => format!("{:.1}K", bytes as f64 / 1024.0),
            bytes => format!("{:.1}M", bytes as f64 / f64::from(1 << 20)),
        };
        f.pad(&text)
    }
}

impl fmt::Display for ClusterUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.executors.keys().map(String::len).max().unwrap_or(0).max(8);
        writeln!(
            f,
            "{:width$}  {:10}  {:>8}  {:>8}  {:>8}  {:>8}  {:>8}  state",
            "executor", "tenant", "usage", "peak", "max", "refused", "sessions"
        )?;
        for (id, executor) in &self.executors {
            let answer = match &executor.answer {
                Answer::Now => "answers",
                Answer::Silent(_) => "silent",
                Answer::Gone => "gone",
            };
            for tenant in &executor.usage.tenants {
                let max = tenant.max_bytes.map_or_else(|| "-".to_owned(), |max| Bytes(max).to_string());
                writeln!(
                    f,
                    "{id:width$}  {:10}  {:>8}  {:>8}  {max:>8}  {:>8}  {:>8}  {answer}",
                    tenant.tenant,
                    Bytes(tenant.usage_bytes),
                    Bytes(tenant.peak_bytes),
                    tenant.refusals,
                    tenant.sessions,
                )?;
            }
        }
        Ok(())
    }
}
