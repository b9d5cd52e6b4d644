//! Data: the tenants' TPC-H databases, and the statements that run on them.

pub(crate) mod files;
mod keys;
mod tpch;
pub(crate) mod workload;

use std::path::Path;

use crate::run::base::progress::Progress;
use crate::run::base::stop::Stop;
use crate::run::spec::Spec;

/// The SPEC and the surroundings of a run.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) spec: &'a Spec,
    /// Directory of the databases.
    pub(crate) directory: &'a Path,
    pub(crate) progress: &'a Progress,
    pub(crate) stop: &'a Stop,
}
