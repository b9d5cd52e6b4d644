#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod chain;
mod charge;
mod config;
mod control;
mod counter;
mod deny;
mod error;
mod event;
mod group;
mod hierarchy;
mod high;
mod label;
mod limit;
mod maintenance;
mod marks;
mod measure;
mod memory;
mod mutation;
mod name;
mod node;
mod oom;
mod overrun;
mod peak;
mod pressure;
mod protect;
mod refusal;
mod residence;
mod rstat;
pub mod scope;
mod shared;
mod shrink;
mod snapshot;
mod stock;
mod tree;
mod wait;

pub use memgroup_percpu::{PageSize, SlotSource};

pub use charge::Charge;
pub use config::{Config, ConfigError};
pub use deny::{Denial, DenyError};
pub use error::{ChargeError, ChargeErrorKind, GroupError};
pub use event::{EventSubscription, Events, SubscriptionReport};
pub use group::{Group, GroupId, Overdraft};
pub use hierarchy::{Dying, Hierarchy};
pub use high::{Throttle, ThrottleEnd, Throttled};
pub use label::{LABELS_MAX, Label, LabelError, Labelled};
pub use limit::{LimitError, ParseBytesError, UNLIMITED, parse_bytes};
pub use maintenance::{Maintained, Maintenance};
pub use memory::PerCpuStats;
pub use oom::{HookError, Kill, KillHook, KillOutcome, KillReport, Killed, Killing, OomScoreError};
pub use peak::PeakReader;
pub use pressure::{Pressure, PressureLine, StallGuard, Trigger, TriggerError};
pub use protect::{Protection, ProtectionError};
pub use rstat::{
    Footprint, Freshness, GroupStats, Reach, RegisterError, SUBSYSTEMS_MAX, Stat, StatKind, Statistics,
    Subsystem, TreeStats,
};
pub use scope::Scope;
pub use shrink::{
    Ask, AskError, CallsError, Count, GroupShrinker, Quarantine, Reclaimed, Registration, Removal,
    RemoveError, Scan, Seat, Shrinker, ShrinkerConfig, ShrinkerError, ShrinkerId, ShrinkerReport,
};
pub use snapshot::{Dead, FILES, FileError, GroupSnapshot, Limits, Snapshot, SubsystemSnapshot};
pub use stock::StockStats;
pub use wait::{WaitKind, WaitReport, Waiters, WeightError};

/// The statistics of the built-in subsystems, by number.
pub mod stats {
    pub use crate::rstat::builtin::{cpu, io, memory};
}

/// The snippet on the project's first page compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FirstPage;
