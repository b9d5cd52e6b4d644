//! The barrier on the writer's side: what lets readers enter by a store.
//!
//! - I1. Sections are entered by a store only once [`report`] has chosen, and every writer has it choose before it decides
//!   on its [`barrier`]. So no writer goes without a barrier while a section is entered by a store.
//! - I2. When a barrier that worked at start-up fails, the other command is tried; when that fails too the barrier is
//!   lost for ever: sections are entered by a swap again, and a scan asks of each record a proof that its last section
//!   entered by a store is over (`Evidence::Proofs`).

use std::sync::OnceLock;

use super::Form;
use super::epoch;
use super::look::Evidence;
use super::membarrier::{self, Command};
use super::report::{GraceError, GraceReport};

/// The environment variable that overrides the choice: `quiet`, `swap` or `expedited`.
pub const VARIABLE: &str = "MEMGROUP_GRACE";

/// How sections are entered, and what a writer does before its scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(any(memgroup_loom, miri, not(target_os = "linux")), allow(dead_code))]
pub(super) enum Plan {
    /// Sections are entered by a swap; no barrier is needed.
    Swap,
    /// Sections are entered by a store; each form makes the barrier that is named.
    Store { quiet: Command, expedited: Command },
}

/// What was chosen for this process, and why not something better.
///
/// The first call chooses, and from then on sections may be entered by a store. Every writer calls it; calling it when
/// the program starts spares the sections before the first writer the price of a swap.
pub fn report() -> &'static GraceReport {
    static REPORT: OnceLock<GraceReport> = OnceLock::new();
    REPORT.get_or_init(|| {
        let report = choose();
        #[cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
        if report.plan != Plan::Swap {
            epoch::let_readers_store();
        }
        report
    })
}

/// Orders what was unlinked before this call against the sections: what a scan that follows may believe.
pub(crate) fn barrier(form: Form) -> Evidence {
    let plan = report().plan;
    if let Some(since) = epoch::barrier_lost() {
        return Evidence::Proofs { since };
    }
    match (plan, form) {
        (Plan::Swap, _) => Evidence::Exchanges,
        (Plan::Store { quiet, expedited }, Form::Quiet) => store_barrier(quiet, expedited),
        (Plan::Store { quiet, expedited }, Form::Expedited) => store_barrier(expedited, quiet),
    }
}

fn store_barrier(first: Command, second: Command) -> Evidence {
    if membarrier::run(first).is_ok() || (second != first && membarrier::run(second).is_ok()) {
        return Evidence::Loads;
    }
    Evidence::Proofs { since: epoch::lose_the_barrier() }
}

#[cfg(any(memgroup_loom, miri, not(target_os = "linux")))]
fn choose() -> GraceReport {
    GraceReport { plan: Plan::Swap, by_variable: false, rejected: vec![GraceError::NoSuchCall] }
}

#[cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
fn choose() -> GraceReport {
    let mut rejected = Vec::new();
    let asked = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let plan = match asked.as_ref().map(|value| value.to_string_lossy()).as_deref() {
        None => None,
        Some("swap") => Some(Plan::Swap),
        Some("quiet") => keep(quiet_plan(&mut rejected), &mut rejected),
        Some("expedited") => keep(expedited_plan(), &mut rejected),
        Some(other) => keep(Err(GraceError::Variable { value: other.to_owned() }), &mut rejected),
    };
    if let Some(plan) = plan {
        return GraceReport { plan, by_variable: true, rejected };
    }
    let plan = keep(quiet_plan(&mut rejected), &mut rejected).unwrap_or(Plan::Swap);
    rejected.dedup();
    GraceReport { plan, by_variable: false, rejected }
}

#[cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
fn keep(plan: Result<Plan, GraceError>, rejected: &mut Vec<GraceError>) -> Option<Plan> {
    plan.map_err(|error| rejected.push(error)).ok()
}

/// The quiet form by the global command, the expedited one by the private command where that can be had.
#[cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
fn quiet_plan(rejected: &mut Vec<GraceError>) -> Result<Plan, GraceError> {
    let quiet = membarrier::offered(Command::Global)?;
    let expedited = membarrier::offered(Command::Private).unwrap_or_else(|error| {
        rejected.push(error);
        quiet
    });
    Ok(Plan::Store { quiet, expedited })
}

/// Both forms by the private command.
#[cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
fn expedited_plan() -> Result<Plan, GraceError> {
    let private = membarrier::offered(Command::Private)?;
    Ok(Plan::Store { quiet: private, expedited: private })
}
