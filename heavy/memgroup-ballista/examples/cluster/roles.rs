//! The processes of the cluster. Each is this program again, with its role in a variable of its
//! environment.

use std::io::{BufRead, stdin};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::exit;
use std::sync::Arc;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::{SchedulerConfig, TaskDistributionPolicy};
use ballista_scheduler::scheduler_process::start_server;
use memgroup::{Config, Hierarchy};
use memgroup_ballista::{ClusterUsage, Tenants, read_tree, tenant_executor, tenant_scheduler};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::Failure;

/// The variable that holds the role.
pub(crate) const VARIABLE: &str = "MEMGROUP_CLUSTER_ROLE";

/// The work of one process.
#[derive(Serialize, Deserialize)]
pub(crate) enum Role {
    /// It answers each line that it reads with the usage of the cluster, as JSON.
    Scheduler { port: u16 },
    Executor {
        id: String,
        scheduler_port: u16,
        port: u16,
        grpc_port: u16,
        work_dir: PathBuf,
        tree: PathBuf,
        vcores: usize,
    },
}

/// Plays the role that the environment names, to the end; returns where it names none.
pub(crate) fn play() {
    let Ok(role) = std::env::var(VARIABLE) else { return };
    let role: Role = serde_json::from_str(&role).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ended = match role {
        Role::Scheduler { port } => runtime.block_on(scheduler(port)),
        executor => runtime.block_on(self::executor(executor)),
    };
    if let Err(error) = ended {
        eprintln!("{}: {error}", std::process::id());
        exit(1);
    }
    exit(0);
}

/// The lines that the parent writes. The process ends when the parent's end of the pipe closes,
/// however the parent ended.
fn lines_of_parent() -> mpsc::UnboundedReceiver<String> {
    let (lines, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            let _ = lines.send(line);
        }
        exit(0);
    });
    receiver
}

async fn scheduler(port: u16) -> Result<(), Failure> {
    let mut lines = lines_of_parent();
    let config = tenant_scheduler(SchedulerConfig {
        external_host: "127.0.0.1".to_owned(),
        bind_port: port,
        // Executors ask for tasks. With tasks that the scheduler pushes, queries hung after the
        // loss of an executor.
        scheduling_policy: TaskSchedulingPolicy::PullStaged,
        task_distribution: TaskDistributionPolicy::RoundRobin,
        // An executor that was killed is given up after so long.
        executor_timeout_seconds: 3,
        expire_dead_executor_interval_seconds: 1,
        ..SchedulerConfig::default()
    });
    let cluster = BallistaCluster::new_from_config(&config).await?;
    let state = cluster.cluster_state();
    tokio::spawn(async move {
        let mut usage = ClusterUsage::default();
        while lines.recv().await.is_some() {
            usage.collect(&*state).await;
            println!("{}", serde_json::to_string(&usage).unwrap());
        }
    });
    start_server(cluster, SocketAddr::from((Ipv4Addr::LOCALHOST, port)), Arc::new(config)).await?;
    Ok(())
}

async fn executor(role: Role) -> Result<(), Failure> {
    let _lines = lines_of_parent();
    let Role::Executor { id, scheduler_port, port, grpc_port, work_dir, tree, vcores } = role else {
        return Err("not the role of an executor".into());
    };
    let hierarchy = Hierarchy::new(Config::new())?;
    let tenants = Tenants::new(&hierarchy, &read_tree(tree)?)?;
    let config = ExecutorProcessConfig {
        executor_id: id,
        external_host: Some("127.0.0.1".to_owned()),
        port,
        grpc_port,
        scheduler_host: "127.0.0.1".to_owned(),
        scheduler_port,
        scheduler_connect_timeout_seconds: 20,
        task_scheduling_policy: TaskSchedulingPolicy::PullStaged,
        vcores,
        work_dir: Some(work_dir.to_str().ok_or("the directory's name is no text")?.to_owned()),
        executor_heartbeat_interval_seconds: 1,
        ..ExecutorProcessConfig::default()
    };
    start_executor_process(Arc::new(tenant_executor(&tenants, config))).await?;
    Ok(())
}
