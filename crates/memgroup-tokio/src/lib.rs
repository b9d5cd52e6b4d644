//! Asynchronous tasks under memgroup.

mod body;
mod charge;
mod delay;
mod in_group;
mod limited;
mod request;
mod spawn;
mod stop;
mod tasks;

pub use body::{BodyAccount, BodyError, BodyFailure, ChargedBody};
pub use charge::{ReclaimerThread, Timed, TimedExt};
pub use in_group::{InGroup, InGroupExt};
pub use limited::{Ended, Limited};
pub use request::{Refusal, RequestGroup, RequestGroups, RequestService, ResponseBody};
pub use spawn::{GroupExt, JoinSetExt};
pub use tasks::Tasks;
