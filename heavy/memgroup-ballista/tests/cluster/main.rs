//! A cluster of three processes: tenants arrive, a limit refuses, and an executor dies.

#[path = "../../examples/cluster/clients.rs"]
mod clients;
#[path = "../../examples/cluster/data.rs"]
mod data;
#[path = "../../examples/cluster/processes.rs"]
mod processes;
#[path = "../../examples/cluster/roles.rs"]
mod roles;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memgroup_ballista::{Answer, ClusterUsage};

use crate::processes::Cluster;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const TREE: &str = r#"
["/tenants".groups.small]
max = "32M"
["/tenants".groups.hog]
max = "16K"
["/tenants".groups.idle]
max = "32M"
"#;

const SMALL: [&str; 2] = [
    "select l_returnflag, sum(l_quantity) as quantity, count(*) as rows from lineitem group by 1 order by 1",
    "select o_orderpriority, count(*) as rows from orders join lineitem on o_orderkey = l_orderkey group by 1 order by 1",
];

/// The first batch of rows does not fit, so an operator that can spill has nothing to spill.
const HOG: &str = "select count(*) as rows from lineitem a join lineitem b on a.l_orderkey = b.l_orderkey and a.l_comment < b.l_comment";

/// The processes of the cluster are this program with this test alone. In the program itself it
/// does nothing.
#[test]
fn plays_the_role_that_the_environment_names() {
    roles::play();
}

const CHILD: [&str; 3] = ["--exact", "plays_the_role_that_the_environment_names", "--nocapture"];

fn start(executors: usize) -> Arc<Cluster> {
    Arc::new(Cluster::start(TREE, executors, 2, &CHILD).unwrap())
}

/// The sum of a tenant's figures over all executors.
fn sum(usage: &ClusterUsage, tenant: &str, of: impl Fn(&memgroup_ballista::TenantUsage) -> u64) -> u64 {
    usage.executors.values().filter_map(|executor| executor.usage.tenant(tenant)).map(of).sum()
}

/// Waits until the executors that answer hold no byte: tasks end some time after their query.
async fn until_empty(cluster: &Cluster) {
    let begin = Instant::now();
    loop {
        let usage = cluster.usage().unwrap();
        let answering = usage.executors.values().filter(|executor| executor.answer == Answer::Now);
        let held: u64 =
            answering.flat_map(|executor| &executor.usage.tenants).map(|tenant| tenant.usage_bytes).sum();
        if held == 0 {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "bytes stay charged:\n{usage}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn charges_tenants_and_refuses_the_hog() {
    let dir = tempfile::tempdir().unwrap();
    data::generate(dir.path(), 0.002).unwrap();
    let cluster = start(2);
    let queries = clients::queries(dir.path(), &SMALL).await.unwrap();

    let small = data::remote(&cluster.url(), "small", dir.path()).await.unwrap();
    let mut outcome = clients::Outcome::default();
    for query in &queries {
        outcome.query(&cluster, &small, query).await.unwrap();
    }
    assert!(outcome.failed.is_empty() && outcome.wrong.is_empty(), "{outcome:?}");
    let usage = cluster.usage().unwrap();
    assert!(
        sum(&usage, "small", |tenant| tenant.sessions as u64) > 0,
        "no group of a session of small:\n{usage}"
    );
    assert!(sum(&usage, "small", |tenant| tenant.peak_bytes) > 0, "nothing charged to small:\n{usage}");
    assert_eq!(
        sum(&usage, "hog", |tenant| tenant.sessions as u64 + tenant.peak_bytes),
        0,
        "charged to hog:\n{usage}"
    );

    let hog = data::remote(&cluster.url(), "hog", dir.path()).await.unwrap();
    let error = hog.sql(HOG).await.unwrap().collect().await.unwrap_err().to_string();
    assert!(error.contains("refused by group /tenants/hog"), "{error}");
    let usage = cluster.usage().unwrap();
    assert!(sum(&usage, "hog", |tenant| tenant.refusals) > 0, "no refusal of hog:\n{usage}");
    assert_eq!(sum(&usage, "small", |tenant| tenant.refusals), 0, "small was refused:\n{usage}");

    // Each query of a client is a session of its own on the executors, so the tenant may change
    // between two.
    hog.sql("set memgroup.tenant = 'idle'").await.unwrap().collect().await.unwrap();
    hog.sql(SMALL[0]).await.unwrap().collect().await.unwrap();
    let usage = cluster.usage().unwrap();
    assert!(sum(&usage, "idle", |tenant| tenant.sessions as u64) > 0, "the tenant did not change:\n{usage}");

    for (tenant, part) in [
        ("", "the session names no tenant"),
        ("eve", "tenant \\\"eve\\\" has no group below /tenants"),
        ("small/session-1", "a tenant's name has no slash"),
    ] {
        let context = data::remote(&cluster.url(), tenant, dir.path()).await.unwrap();
        let error = context.sql(SMALL[0]).await.unwrap().collect().await.unwrap_err().to_string();
        assert!(error.contains(part), "tenant {tenant:?}: {error}");
    }
    until_empty(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finishes_the_queries_of_a_tenant_when_an_executor_dies() {
    let dir = tempfile::tempdir().unwrap();
    data::generate(dir.path(), 0.002).unwrap();
    let cluster = start(2);
    let queries = clients::queries(dir.path(), &SMALL).await.unwrap();
    let until = Instant::now() + Duration::from_secs(8);
    let small = data::remote(&cluster.url(), "small", dir.path()).await.unwrap();
    let client = tokio::spawn(clients::run(Arc::clone(&cluster), small, queries, until));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let usage = cluster.usage().unwrap();
    assert_eq!(usage.executors["executor-2"].answer, Answer::Now);
    cluster.kill("executor-2");
    let outcome = client.await.unwrap().unwrap();
    assert!(outcome.failed.is_empty() && outcome.wrong.is_empty(), "{outcome:?}");
    assert!(outcome.times.len() > 2, "{outcome:?}");
    let usage = cluster.usage().unwrap();
    assert_ne!(usage.executors["executor-2"].answer, Answer::Now, "the killed executor answers:\n{usage}");
    until_empty(&cluster).await;
}

/// The pipe also closes when the parent is killed.
#[test]
fn ends_a_process_when_the_pipe_of_its_parent_closes() {
    let role = roles::Role::Scheduler { port: processes::free_port().unwrap() };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(CHILD)
        .env(roles::VARIABLE, serde_json::to_string(&role).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pipe = child.stdin.take().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(child.try_wait().unwrap().is_none(), "the process ended before its parent did");
    drop(pipe);
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("the process goes on without its parent");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
