#![doc = include_str!("guide/picture.md")]
#![doc = include_str!("guide/links.md")]
#![doc = include_str!("../docs/ten-minutes.md")]
#![forbid(unsafe_code)]

mod api;
mod base;
mod charge;
mod control;
mod counter;
pub mod guide;
mod lifecycle;
mod observe;
mod reclaim;
mod state;
pub mod stats;
mod stock;
mod tree;

pub use api::group::Overdraft;
pub use api::hierarchy::Dying;
pub use api::peak::PeakReader;
pub use api::scope::Scope;
#[cfg(feature = "serde")]
pub use api::settings::{ApplyError, GroupSpec, TreeSpec};
pub use api::snapshot::{
    Dead, FILES, FileError, FileProblem, GroupFile, GroupSnapshot, Limits, Snapshot, SnapshotReader,
    SubsystemSnapshot,
};
pub use api::statistics::{Footprint, Statistics};
pub use api::{block, raw, scope};
pub use base::deadline::Deadline;
pub use base::effort::Effort;
pub use base::error::GroupError;
pub use base::id::{GroupId, IdError};
pub use base::limit::{BYTES_MAX, LimitError, ParseBytesError, parse_bytes};
pub use charge::charge::Charge;
pub use charge::future::{Charging, Growing};
pub use charge::reclaimer::{Reclaimer, ReclaimerStop};
pub use control::fault_injection::FailureInjection;
pub use control::high::{Throttle, ThrottleEnd, Throttled};
pub use control::oom::{
    KillAnswer, KillHook, KillHookError, KillOutcome, KillRegistration, KillReport, KillRequest,
    OomScoreError,
};
pub use control::share::{FairShare, SHARE_MAX, ShareError};
pub use control::waiters::WeightError;
pub use counter::events::Events;
pub use counter::protect::{Protection, ProtectionError};
pub use lifecycle::ended::EndedGroup;
pub use lifecycle::maintenance::{Maintained, Maintenance};
pub use lifecycle::memory::PerCpuStats;
pub use lifecycle::owned::OwnedGroup;
pub use memgroup_percpu::SlotSource;
pub use observe::event::EventsAfter;
pub use observe::pressure::{
    Fired, Pressure, PressureLine, PressureTrigger, PressureWatch, StallGuard, TaskStall, TriggerError,
};
pub use observe::wait::WaitKind;
pub use observe::wait::report::{WaitReport, Waiters};
pub use observe::wait::tasks::WaitEnded;
pub use reclaim::{
    Ask, AskError, CallsError, Count, GroupShrinker, Quarantine, Reclaimed, Registration, Removal, Scan,
    Shrinker, ShrinkerConfig, ShrinkerError, ShrinkerId, ShrinkerReport, ShrinkerSlot,
};
pub use state::config::{Config, ConfigError};
pub use state::stats::stat::{RegisterError, Stat, StatKey, StatKind, Subsystem};
pub use state::stats::{Reach, SUBSYSTEMS_MAX};
#[doc(hidden)]
pub use state::tuning;
pub use stats::flush::Freshness;
pub use stats::stock_stats::StockStats;
pub use tree::error::{ChargeError, ChargeErrorKind};
pub use tree::handle::{Group, Hierarchy};
pub use tree::weak::WeakGroup;

/// The snippets of the crate's page in the repository compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
