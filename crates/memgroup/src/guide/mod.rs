//! How each mechanism works: one page each, in the order in which a reader needs them.
//!
//! The [front page](crate) explains the whole in ten minutes. The pages are also in the
//! repository, in `crates/memgroup/docs`.
//!
//! | page | describes |
//! |---|---|
//! | [`guarantees`] | the guarantees G1 to G10, and the cost of each operation |
//! | [`stock`] | why a charge and its uncharge cost two atomic additions |
//! | [`refusal`] | the steps before a charge is refused |
//! | [`reclaim`] | how caches release memory |
//! | [`protect`] | the bytes that `min` and `low` keep for a group |
//! | [`share`] | how one setting on a parent keeps a runaway from starving its siblings |
//! | [`high`] | how a group is slowed down instead of refused |
//! | [`wait`] | how a charge waits for memory, and the order in which waiters are served |
//! | [`oom`] | which group is stopped when nothing can be reclaimed |
//! | [`events`] | how a program learns that usage reached a limit |
//! | [`pressure`] | how much time was lost for lack of memory |
//! | [`statistics`] | how counters are added to and read at little cost |
//! | [`snapshot`] | a whole tree as one value, as cgroup v2's files, and as JSON |
//! | [`lifetime`] | the end of a group, from its removal to the reuse of its place |
//! | [`residence`] | where a group's per-CPU words are, and how that memory is returned |
//!
//! The layers below have pages of their own: `memgroup_percpu` on per-CPU memory, `memgroup_sync`
//! on grace periods and hazard records.

// Each page follows `links.md`. If a link is defined twice, the first definition counts, so in
// rustdoc the links of a page lead to items and pages here. In the repository they lead to files.
// If a test in a page fails, rustdoc reports it under the name of `links.md`.

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/stock.md")]
pub mod stock {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/refusal.md")]
pub mod refusal {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/reclaim.md")]
pub mod reclaim {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/protect.md")]
pub mod protect {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/share.md")]
pub mod share {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/high.md")]
pub mod high {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/wait.md")]
pub mod wait {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/oom.md")]
pub mod oom {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/events.md")]
pub mod events {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/pressure.md")]
pub mod pressure {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/statistics.md")]
pub mod statistics {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/snapshot.md")]
pub mod snapshot {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/lifetime.md")]
pub mod lifetime {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/residence.md")]
pub mod residence {}
