//! Out of memory: which group is stopped. See [`guide::oom`](crate::guide::oom).

mod attempt;
mod hook;
mod pending;
mod report;
mod state;
mod victims;

pub(crate) use attempt::OomAttempt;
pub use hook::{KillAnswer, KillHook, KillHookError, KillRegistration, KillRequest};
pub use report::{KillOutcome, KillReport};
pub use state::OomScoreError;
pub(crate) use state::after_uncharge;
