#![doc = include_str!("../README.md")]

mod alloc;
mod args;
mod charge;
mod drain;
mod error;
mod figures;
mod harness;
mod limits;
mod percpu;
mod rstat;
mod shrink;

use std::fs::OpenOptions;
use std::io::{self, Write};

pub use args::{Args, Experiment, Trees};
pub use error::Error;

/// Runs one experiment and prints its report to the standard output.
///
/// # Errors
/// [`Error`]: a bad argument, something the machine refused, a file that cannot be written, or a
/// wrong result. A figure that misses its goal is printed as missed and is no error.
pub fn run(args: Args) -> Result<(), Error> {
    run_to(&args, &mut io::stdout())
}

/// Runs one experiment and prints its report to `out`.
///
/// ```
/// let mut args = memgroup_lab::Args::new(memgroup_lab::Experiment::Charge);
/// args.threads = Some(0);
/// let error = memgroup_lab::run_to(&args, &mut std::io::sink()).unwrap_err();
/// assert_eq!(error.to_string(), "use --threads 0 with charge: 1 to 256 can be measured");
/// ```
///
/// # Errors
/// As [`run`].
pub fn run_to(args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    args.check()?;
    if let Some(path) = &args.json {
        // Found out now, not after minutes of measuring.
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|source| Error::Json { path: path.clone(), source })?;
    }
    match args.experiment {
        Experiment::Charge => charge::run(args, out),
        Experiment::Drain => drain::run(args, out),
        Experiment::Percpu => percpu::run(args, out),
        Experiment::Rstat => rstat::run(args, out),
        Experiment::Shrink => shrink::run(args, out),
        Experiment::Limits => limits::run(args, out),
        Experiment::Alloc => alloc::run(args, out),
        Experiment::Figures => figures::run(args, out),
    }
}
