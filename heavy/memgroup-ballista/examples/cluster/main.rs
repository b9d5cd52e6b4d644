//! A cluster of one scheduler and two executors, each a process, with two tenants. One tenant's
//! queries are short; the other's hold all memory that they get. After half of the time one
//! executor is killed.
//!
//! `cargo run -p memgroup-ballista --example cluster [seconds]`

mod clients;
mod data;
mod processes;
mod roles;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::clients::Outcome;
use crate::processes::Cluster;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The scale of the tables: 120,000 rows of `lineitem`.
const SCALE: f64 = 0.02;

/// The limits of each executor.
const TREE: &str = r#"
["/tenants"]
max = "64M"
["/tenants/small"]
max = "32M"
["/tenants/hog"]
max = "8M"
"#;

const SMALL: [&str; 3] = [
    "select l_returnflag, l_linestatus, sum(l_quantity) as quantity, count(*) as rows from lineitem group by 1, 2 order by 1, 2",
    "select o_orderpriority, count(*) as orders from orders where o_orderdate < date '1995-03-15' group by 1 order by 1",
    "select o_orderpriority, sum(l_extendedprice) as price from orders join lineitem on o_orderkey = l_orderkey where l_shipmode = 'MAIL' group by 1 order by 1",
];

const HOG: [&str; 2] = [
    // The table of a hash join cannot spill.
    "select count(*) as rows from lineitem a join lineitem b on a.l_orderkey = b.l_orderkey and a.l_comment < b.l_comment",
    // A sort can.
    "select count(*) as rows, max(number) as most from (select row_number() over (order by l_comment, l_orderkey, l_linenumber) as number from lineitem)",
];

/// The time that this part of the queries took at most.
fn quantile(times: &[Duration], part: f64) -> String {
    let mut times = times.to_vec();
    times.sort();
    let at = (times.len().saturating_sub(1) as f64 * part).round() as usize;
    times.get(at).map_or_else(|| "-".to_owned(), |time| format!("{} ms", time.as_millis()))
}

fn print_tenant(name: &str, outcome: &Outcome, peaks: &str) {
    println!(
        "{name:8}  {:>6}  {:>6}  {:>6}  {:>6}  {:>8}  {:>8}  {peaks}",
        outcome.times.len(),
        outcome.failed.len(),
        outcome.wrong.len(),
        outcome.resent,
        quantile(&outcome.times, 0.5),
        quantile(&outcome.times, 0.99)
    );
}

async fn run(seconds: u64) -> Result<bool, Failure> {
    let dir = tempfile::tempdir()?;
    data::generate(dir.path(), SCALE)?;
    let (small, hog) =
        (clients::queries(dir.path(), &SMALL).await?, clients::queries(dir.path(), &HOG).await?);
    let cluster = Arc::new(Cluster::start(TREE, 2, 4, &[])?);
    println!("a scheduler and two executors run; {seconds} s of queries");

    let until = Instant::now() + Duration::from_secs(seconds);
    let url = cluster.url();
    let mut sessions = Vec::new();
    for (tenant, queries) in [("small", &small), ("small", &small), ("hog", &hog), ("hog", &hog)] {
        let context = data::remote(&url, tenant, dir.path()).await?;
        sessions.push((
            tenant,
            tokio::spawn(clients::run(Arc::clone(&cluster), context, queries.clone(), until)),
        ));
    }
    // The figures of an executor that is killed are those of the last time that it was asked.
    let ends = Arc::new(AtomicBool::new(false));
    let sampler = {
        let (cluster, ends) = (Arc::clone(&cluster), Arc::clone(&ends));
        std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) && cluster.usage().is_ok() {
                std::thread::sleep(Duration::from_millis(200));
            }
        })
    };
    tokio::time::sleep(Duration::from_secs(seconds) / 2).await;
    println!("\nbefore one executor is killed:\n{}", cluster.usage()?);
    cluster.kill("executor-2");

    let (mut of_small, mut of_hog) = (Outcome::default(), Outcome::default());
    for (tenant, session) in sessions {
        let sum = if tenant == "small" { &mut of_small } else { &mut of_hog };
        let outcome = session.await??;
        sum.times.extend(outcome.times);
        sum.failed.extend(outcome.failed);
        sum.wrong.extend(outcome.wrong);
        sum.resent += outcome.resent;
    }
    ends.store(true, Ordering::Relaxed);
    let _ = sampler.join();
    let usage = cluster.usage()?;
    println!("at the end:\n{usage}");
    println!("tenant      done  failed   wrong  resent       p50       p99  peak bytes of each executor");
    for (name, outcome) in [("small", &of_small), ("hog", &of_hog)] {
        let peaks: Vec<_> = usage.peaks(name).map(|(id, bytes)| format!("{id} {bytes}")).collect();
        print_tenant(name, outcome, &peaks.join(", "));
    }
    let shortened = |error: &String| error.chars().take(600).collect::<String>();
    if let Some(error) = of_hog.failed.first() {
        println!("\nthe first error of `hog`: {}", shortened(error));
    }
    for error in &of_small.failed {
        println!("\nan error of `small`: {}", shortened(error));
    }
    for rows in &of_small.wrong {
        println!("\nwrong rows of `small`: {rows}");
    }
    Ok(of_small.failed.is_empty() && of_small.wrong.is_empty() && !of_small.times.is_empty())
}

fn main() -> Result<ExitCode, Failure> {
    roles::play();
    let seconds = std::env::args().nth(1).map_or(Ok(20), |seconds| seconds.parse())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let is_well = runtime.block_on(run(seconds))?;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
