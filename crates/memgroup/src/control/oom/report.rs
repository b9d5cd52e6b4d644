//! Kill reports: the last calls of kill hooks, and the outcome of each.
//!
//! - I1. A kill has one outcome: the first that is recorded stays.
//! - B1. The last 64 calls are kept. The outcome of an older call is not recorded.
//! - B2. A report outlives its groups. So each record has their paths, in memory that is made with
//!   the first hook. Of a longer path it has the end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::base::id::GroupId;
use crate::tree::handle::Hierarchy;
use crate::tree::node::Node;
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// How many calls are kept.
const KEPT: usize = 64;

/// The bytes of a path that a record keeps.
const PATH_BYTES: usize = 160;

/// The outcome of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KillOutcome {
    /// The group died in time: half of its bytes were freed, its user [reported the
    /// end](crate::Group::kill_done), or it got another hook. A new hook means that other work
    /// runs in the group, so the old one is taken to be over, although the group may have as
    /// many bytes as before.
    Died,
    /// The group did not die within the [patience](crate::Config::kill_patience), or its hook did
    /// not return, and the group was skipped.
    Overdue,
    /// Nothing ran in the group.
    Idle {
        /// Bytes that the hook says it gave back.
        freed: u64,
    },
    /// The hook answered that the group could not be stopped.
    Refused,
    /// The hook panicked, and was set aside.
    Panicked,
}

/// One call of a kill hook; see [`Hierarchy::kills`].
///
/// The paths are those that the groups had. Of a group that was released since, a path of more
/// than 160 bytes is shown by its end, behind `…`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KillReport {
    /// The path of the group to be killed.
    pub victim: String,
    /// The path of the group that needed the memory for a charge.
    pub requester: String,
    /// The path of the group that was full.
    pub full: String,
    /// The path of the group that was killed as a whole, if one was.
    pub unit: Option<String>,
    /// When the hook was called.
    pub at: Instant,
    /// Bytes that the charge asked for.
    pub asked_bytes: u64,
    /// Bytes that the victim had then, without those of groups below it that have hooks of their
    /// own.
    pub usage_bytes: u64,
    /// How long it took until half of them were freed, or the end was reported. Set for an overdue
    /// kill too, once it has ended.
    pub took: Option<Duration>,
    /// The outcome; `None` while the kill is pending.
    pub outcome: Option<KillOutcome>,
}

/// A group of a record: its id, and its path at the time of the call.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    id: GroupId,
    /// The path, at the end.
    path: [u8; PATH_BYTES],
    begin: u8,
}

impl Named {
    /// The caller holds the group.
    pub(crate) fn of(tree: &Tree, node: &'static Node) -> Named {
        let mut path = [0; PATH_BYTES];
        let begin = tree.write_path(node.id(), &mut path) as u8;
        Named { id: node.group_id(), path, begin }
    }

    /// The whole path while the group is there, else what was kept of it.
    fn path(&self, shared: &'static Shared) -> String {
        let kept = || String::from_utf8_lossy(&self.path[self.begin.into()..]).into_owned();
        shared.path_of(self.id).unwrap_or_else(kept)
    }
}

/// The record of one call.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    pub(crate) victim: Named,
    pub(crate) requester: Named,
    pub(crate) full: Named,
    pub(crate) unit: Option<Named>,
    pub(crate) at: Instant,
    pub(crate) asked: u64,
    pub(crate) usage: u64,
    pub(crate) took: Option<Duration>,
    pub(crate) outcome: Option<KillOutcome>,
}

/// The records of the last calls, each with a number.
pub(crate) struct Records {
    last: VecDeque<Record>,
    /// The number of the next record.
    next: u64,
}

impl Records {
    pub(crate) fn new() -> Records {
        Records { last: VecDeque::new(), next: 0 }
    }

    /// Makes room for the records. The first hook does that, so that a kill allocates nothing.
    pub(crate) fn prepare(&mut self) {
        self.last.reserve(KEPT - self.last.len());
    }

    /// Forgets all records. Numbers go on.
    pub(crate) fn clear(&mut self) {
        self.last.clear();
    }

    /// Adds a record, and returns its number.
    pub(crate) fn push(&mut self, record: Record) -> u64 {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(record);
        self.next += 1;
        self.next - 1
    }

    /// Records the outcome of a call, unless it has one, and that the victim is dead.
    pub(crate) fn note(&mut self, number: u64, is_dead: bool, outcome: Option<KillOutcome>) {
        let first = self.next - self.last.len() as u64;
        let index = number.checked_sub(first).map(|index| index as usize);
        if let Some(record) = index.and_then(|index| self.last.get_mut(index)) {
            record.outcome = record.outcome.or(outcome);
            record.took = record.took.or_else(|| is_dead.then(|| record.at.elapsed()));
        }
    }

    /// All records, the oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Record> {
        self.last.iter()
    }
}

/// Kills.
impl Hierarchy {
    /// The last 64 calls of kill hooks, the oldest first: the victim, the requester, and the
    /// outcome of each.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, KillOutcome, KillAnswer, KillRequest};
    /// let hierarchy = Hierarchy::new(Config::new())?;
    /// let tenant = hierarchy.create("/tenant")?;
    /// tenant.set_max(4096)?;
    /// let _charge = tenant.try_charge(4096)?;
    /// let _hook = tenant.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused)?;
    /// tenant.try_charge(1).unwrap_err();
    /// let report = &hierarchy.kills()[0];
    /// assert_eq!((report.victim.as_str(), report.usage_bytes), ("/tenant", 4096));
    /// assert_eq!(report.outcome, Some(KillOutcome::Refused));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn kills(&self) -> Vec<KillReport> {
        let shared = self.shared();
        let mut records = Vec::with_capacity(KEPT);
        shared.victims().copy_records(shared, &mut records);
        let report = |record: Record| KillReport {
            victim: record.victim.path(shared),
            requester: record.requester.path(shared),
            full: record.full.path(shared),
            unit: record.unit.map(|unit| unit.path(shared)),
            at: record.at,
            asked_bytes: record.asked,
            usage_bytes: record.usage,
            took: record.took,
            outcome: record.outcome,
        };
        records.into_iter().map(report).collect()
    }
}
