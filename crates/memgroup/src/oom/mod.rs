#![doc = include_str!("../../docs/oom.md")]

mod choose;
mod error;
mod hook;
mod kill;
mod report;
mod settings;
mod trial;
mod victims;

pub(crate) use kill::{Pursuit, pursue, relieve};
pub(crate) use settings::{Candidacy, fell};
pub(crate) use victims::Victims;

pub use error::{HookError, OomScoreError};
pub use hook::{Kill, KillHook, Killed, Killing};
pub use report::{KillOutcome, KillReport};
