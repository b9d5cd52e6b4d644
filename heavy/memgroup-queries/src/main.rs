//! TPC-H queries of several tenants in one process: under memgroup, and under DataFusion's pools.
//!
//! `cargo run --release` runs four tenants, one of which wants several times the available memory.
//! Each pool has two turns, in processes of their own, and the pools alternate.

#![forbid(unsafe_code)]

mod pools;
mod table;
mod turn;

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use memgroup_tpch::TABLES;

use pools::Pool;
use turn::Turn;

/// Turns of each pool.
const ROUNDS: u32 = 2;
/// Changes with the tables or their writer, so that a new program makes new files.
const FORMAT: u32 = 2;

/// Runs TPC-H queries of several tenants under memgroup, and under DataFusion's pools.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Seconds of queries under each pool
    #[arg(long, default_value_t = 20.0, value_parser = seconds)]
    seconds: f64,
    /// Limit of all tenants together, such as 128M
    #[arg(long, default_value = "128M", value_parser = bytes)]
    max: u64,
    /// Scale of TPC-H. 1 is a gigabyte of text.
    #[arg(long, default_value_t = 0.1, value_parser = scale)]
    scale: f64,
    /// Directory for the tables, which are made once for each scale
    #[arg(long, default_value = "target/tpch")]
    data: PathBuf,
    /// Also writes all figures to a file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Runs one turn in this process, and prints its figures as JSON
    #[arg(long, hide = true)]
    turn: Option<Pool>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 1 to 86400".to_owned())
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().ok().filter(|scale| (0.001..=100.0).contains(scale));
    scale.ok_or_else(|| "expected a scale from 0.001 to 100".to_owned())
}

fn bytes(text: &str) -> Result<u64, String> {
    let bytes = memgroup::parse_bytes(text).map_err(|error| error.to_string())?;
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "expected a limit, such as 128M".to_owned())
}

/// Formats bytes in the largest unit of which they are a multiple.
fn in_units(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|&(_, shift)| bytes.trailing_zeros() >= shift);
    let (unit, shift) = unit.unwrap_or(("bytes", 0));
    format!("{} {unit}", bytes >> shift)
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memgroup-queries: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let tables = options.data.join(format!("parquet-{FORMAT}-{}", options.scale));
    let length = Duration::from_secs_f64(options.seconds / f64::from(ROUNDS));
    if let Some(pool) = options.turn {
        let turn = turn::run(pool, options.max, length, &tables)?;
        serde_json::to_writer(io::stdout().lock(), &turn)?;
        return Ok(());
    }
    check_spill()?;
    prepare(&tables, options.scale)
        .map_err(|error| format!("cannot make the tables in {}: {error}", tables.display()))?;
    let mut sums: Vec<(Pool, Turn)> =
        Pool::value_variants().iter().map(|&pool| (pool, Turn::default())).collect();
    let all = ROUNDS as usize * sums.len();
    for round in 0..ROUNDS as usize {
        for (number, (pool, sum)) in (round * all / ROUNDS as usize + 1..).zip(&mut sums) {
            eprintln!("{number} of {all}: {}, {:.1} s", pool.title(), length.as_secs_f64());
            let turn = turn_in_child(*pool, options)
                .map_err(|error| format!("the turn of {} failed: {error}", pool.title()))?;
            sum.add(turn);
        }
    }
    println!("\n{} s of queries under each pool, limit {}\n", options.seconds, in_units(options.max));
    print!("{}", table::of(&sums));
    if let Some(path) = &options.json {
        let report: serde_json::Map<_, _> = sums
            .iter()
            .map(|(pool, turn)| Ok((pool.title().to_owned(), serde_json::to_value(turn)?)))
            .collect::<serde_json::Result<_>>()?;
        let write = || Ok::<_, io::Error>(serde_json::to_writer(File::create(path)?, &report)?);
        write().map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Runs one turn in a process of its own.
fn turn_in_child(pool: Pool, options: &Options) -> Result<Turn, Box<dyn Error>> {
    let name = pool.to_possible_value().expect("no pool is hidden");
    let output = Command::new(std::env::current_exe()?)
        .args(["--turn", name.get_name()])
        .args(["--seconds", &options.seconds.to_string(), "--max", &options.max.to_string()])
        .args(["--scale", &options.scale.to_string()])
        .arg("--data")
        .arg(&options.data)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("it ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Fails if queries could not spill.
fn check_spill() -> Result<(), String> {
    let directory = std::env::temp_dir();
    tempfile::tempfile_in(&directory).map(drop).map_err(|error| {
        let directory = directory.display();
        format!("cannot make a file in {directory}, where queries spill: {error}; set TMPDIR")
    })
}

/// Makes the tables unless they exist, and reads them once, so that no turn waits for the disk.
/// They are made in another directory and then renamed, so a directory of this name is always
/// complete.
fn prepare(tables: &Path, scale: f64) -> Result<(), Box<dyn Error>> {
    if !tables.exists() {
        let data = tables.parent().ok_or("it has no parent")?;
        fs::create_dir_all(data)?;
        let building = tempfile::Builder::new().prefix(".building").tempdir_in(data)?;
        for table in TABLES {
            eprintln!("making TPC-H at scale {scale}: {table}");
            memgroup_tpch::write(building.path(), table, scale, &mut |_| true)?;
        }
        match fs::rename(building.path(), tables) {
            Ok(()) => drop(building.keep()),
            // Another process has made them.
            Err(_) if tables.exists() => {}
            Err(error) => return Err(error.into()),
        }
    }
    for table in TABLES {
        io::copy(&mut File::open(memgroup_tpch::file(tables, table))?, &mut io::sink())?;
    }
    Ok(())
}
