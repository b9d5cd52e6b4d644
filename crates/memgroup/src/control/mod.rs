//! Control: the policies of a group that is at a limit, and the consequences of a charge or an
//! uncharge.

pub(crate) mod aftermath;
pub(crate) mod dry_run;
pub(crate) mod fault_injection;
pub(crate) mod freeze;
pub(crate) mod held_back;
pub(crate) mod high;
pub(crate) mod make_room;
pub(crate) mod oom;
pub(crate) mod over_limit;
pub(crate) mod protection;
pub(crate) mod release;
pub(crate) mod share;
pub(crate) mod waiters;
