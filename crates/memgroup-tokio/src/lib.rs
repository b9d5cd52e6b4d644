//! Asynchronous tasks under memgroup.

mod delay;
mod in_group;
mod limited;
mod spawn;
mod stop;
mod tasks;

pub use in_group::{InGroup, InGroupExt};
pub use limited::{Ended, Limited};
pub use spawn::{GroupExt, JoinSetExt};
pub use tasks::Tasks;
