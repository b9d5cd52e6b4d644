// The first definition of a link counts: here items of the crate, on other sites files.
#![doc = "[Details]: #details\n[memgroup]: memgroup\n"]
#![doc = include_str!("links.md")]
#![doc = include_str!("../README.md")]
#![doc = include_str!("../docs/details.md")]
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines, or earlier in its own
//! line:
//!
//! - `charge`: the reclaimer, and timeouts and delays by tokio's clock.
//! - `in_group`, `body`: the group in force at polls, tasks; bytes of bodies.
//! - `stop`, `limited`, `tasks`: ends of tasks.
//! - `request`: the layer.

#![forbid(unsafe_code)]

mod body;
mod charge;
mod in_group;
mod limited;
mod request;
mod stop;
mod tasks;

pub use body::{BodyAccount, BodyError, BodyFailure, ChargedBody};
pub use charge::{ReclaimerThread, Timed, TimedExt};
pub use in_group::{GroupExt, InGroup, InGroupExt, JoinSetExt};
pub use limited::{Ended, Limited};
pub use request::{Refusal, RequestFuture, RequestGroup, RequestGroups, RequestService, ResponseBody};
pub use tasks::Tasks;
