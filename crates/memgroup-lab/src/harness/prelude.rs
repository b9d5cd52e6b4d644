//! The names of the harness that experiments use.

pub(crate) use serde_json::json;

pub(crate) use super::clock::{self, Clock, Stopwatch};
pub(crate) use super::fixture::*;
pub(crate) use super::machine::virtual_slots;
pub(crate) use super::os::{self, *};
pub(crate) use super::report::{Record, Seed, SeedFigure};
pub(crate) use super::sqlite::*;
pub(crate) use super::stats::*;
pub(crate) use super::table::*;
pub(crate) use super::trace::{Traced, first_call};
pub(crate) use super::window::{Measured, Plan, Random, Variant, Work, each, note_windows};
pub(crate) use super::workers::{Sleeper, Workers, lock, spin_until};
pub(crate) use super::{Lab, fixture};
pub(crate) use crate::error::{Error, OrFail, Result, ensure, expect};
