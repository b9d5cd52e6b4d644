//! The barrier on the writer's side, which allows readers to enter by a store.
//!
//! - I1. Sections are entered by a store only once [`report`] has chosen, and every writer calls
//!   it before it decides on its [`barrier`]. So no writer omits the barrier while a section is
//!   entered by a store.
//! - I2. When a barrier that worked at start-up fails, the other command is tried. When that fails
//!   too, the barrier is lost for ever: sections are entered by a swap again, and a scan requires
//!   of each record a proof that its last section entered by a store is over (`Evidence::Proofs`).

use std::sync::OnceLock;

use super::evidence::Evidence;
use super::membarrier::{self, Command, GraceError};
use super::report::{GraceReport, Plan, VARIABLE};
use super::{Form, epoch};

/// The form chosen for this process, and why a better one was rejected.
///
/// The first call chooses, and from then on sections may be entered by a store. Every writer calls
/// it. A program that calls it at its start spares the sections before the first writer the price
/// of a swap.
pub fn report() -> &'static GraceReport {
    static REPORT: OnceLock<GraceReport> = OnceLock::new();
    REPORT.get_or_init(|| {
        let report = choose();
        if report.plan != Plan::Swap {
            epoch::let_readers_store();
        }
        report
    })
}

/// Orders the unlinking before this call against the sections; returns the evidence that a scan
/// after it may use.
pub(crate) fn barrier(form: Form) -> Evidence {
    let plan = report().plan;
    if let Some(since) = epoch::barrier_lost() {
        return Evidence::Proofs { since };
    }
    let Plan::Store { quiet, expedited } = plan else { return Evidence::Exchanges };
    let (first, second) = match form {
        Form::Quiet => (quiet, expedited),
        Form::Expedited => (expedited, quiet),
    };
    if membarrier::run(first).is_ok() || (second != first && membarrier::run(second).is_ok()) {
        return Evidence::Loads;
    }
    Evidence::Proofs { since: epoch::lose_the_barrier() }
}

fn choose() -> GraceReport {
    let mut rejected = Vec::new();
    let asked = std::env::var_os(VARIABLE).filter(|value| !value.is_empty() && !cfg!(memgroup_loom));
    let plan = match asked.as_ref().map(|value| value.to_string_lossy()).as_deref() {
        None => None,
        Some("swap") => Some(Plan::Swap),
        Some("quiet") => keep(quiet_plan(&mut rejected), &mut rejected),
        Some("expedited") => {
            let both = |private| Plan::Store { quiet: private, expedited: private };
            keep(membarrier::offered(Command::Private).map(both), &mut rejected)
        }
        Some(other) => {
            rejected.push(GraceError(format!("use {VARIABLE}={other}: it must be quiet, swap or expedited")));
            None
        }
    };
    let by_variable = plan.is_some();
    let plan = plan.or_else(|| keep(quiet_plan(&mut rejected), &mut rejected)).unwrap_or(Plan::Swap);
    rejected.dedup();
    GraceReport { plan, by_variable, rejected }
}

fn keep<T>(offered: Result<T, GraceError>, rejected: &mut Vec<GraceError>) -> Option<T> {
    offered.map_err(|error| rejected.push(error)).ok()
}

/// The quiet form by the global command, the expedited one by the private command where the kernel
/// offers that.
fn quiet_plan(rejected: &mut Vec<GraceError>) -> Result<Plan, GraceError> {
    let quiet = membarrier::offered(Command::Global)?;
    let expedited = keep(membarrier::offered(Command::Private), rejected).unwrap_or(quiet);
    Ok(Plan::Store { quiet, expedited })
}
