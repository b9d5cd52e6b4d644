//! Log: lines for control actions, by `tracing`.

use std::fmt;

use http::StatusCode;

use crate::problem::Problem;

/// Logs a control action: the client, the act, and its result.
#[cfg(feature = "tracing")]
pub(crate) fn control(client: &impl fmt::Display, act: &str, result: &Result<StatusCode, Problem>) {
    match result {
        Ok(_) => tracing::info!(target: "memgroup::control", %client, act, "carried out"),
        Err(problem) => {
            tracing::warn!(target: "memgroup::control", %client, act, reason = problem.detail, "refused");
        }
    }
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn control(_: &impl fmt::Display, _: &str, _: &Result<StatusCode, Problem>) {}
