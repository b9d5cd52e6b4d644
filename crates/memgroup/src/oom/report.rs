//! Report: who was killed for whom, and what came of it.
//!
//! - I1. A kill has one outcome: the first that is written stays.
//! - B1. The last 64 hooks that were called are known. What becomes of one that was called before those is not.

use std::time::{Duration, Instant};

use crate::group::GroupId;
use crate::hierarchy::Hierarchy;
use crate::node::Node;
use crate::shared::Shared;

/// Kills that are known.
const KEPT: usize = 64;

/// What came of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KillOutcome {
    /// It died in time: half of what it had was gone, or it was [said](crate::Group::kill_done) that it was done, or its hook was removed.
    Died,
    /// It did not in [time](crate::Config::kill_patience), or its hook was called for longer, and it was passed over.
    Overdue,
    /// Nothing ran there.
    Idle {
        /// Bytes that the hook says it gave back.
        freed: u64,
    },
    /// It was not to be stopped then.
    Refused,
    /// The hook panicked, and was set aside.
    Panicked,
}

/// One call of a kill hook: see [`Hierarchy::kills`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KillReport {
    /// The group that was to die; `(released)` if it is there no more.
    pub victim: String,
    /// The group whose charge needed the memory; as above.
    pub requester: String,
    /// The group that was full; as above.
    pub full: String,
    /// The group that died as a whole, if it did; as above.
    pub unit: Option<String>,
    /// When the hook was called.
    pub at: Instant,
    /// Bytes that the charge asked for.
    pub asked_bytes: u64,
    /// Bytes that the victim had then, without those of groups below it that have hooks of their own.
    pub usage_bytes: u64,
    /// How long it took until half of that was gone, or it was said that it was done; also of one that was overdue.
    pub took: Option<Duration>,
    /// What came of it; `None`: it is on.
    pub outcome: Option<KillOutcome>,
}

/// A group as it was then.
#[derive(Clone, Copy)]
pub(super) struct Named {
    id: GroupId,
    generation: u32,
}

impl Named {
    pub(super) fn of(node: &'static Node) -> Named {
        Named { id: node.id, generation: node.generation() }
    }

    fn path(self, shared: &'static Shared) -> String {
        shared.path_of(self.id, self.generation).unwrap_or_else(|| "(released)".to_owned())
    }
}

/// A call of a hook, as it is kept.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) victim: Named,
    pub(super) requester: Named,
    pub(super) full: Named,
    pub(super) unit: Option<Named>,
    pub(super) at: Instant,
    pub(super) asked: u64,
    pub(super) usage: u64,
    pub(super) took: Option<Duration>,
    pub(super) outcome: Option<KillOutcome>,
}

impl Record {
    /// Notes what came of it, unless that is known; whether it was not.
    pub(super) fn end(&mut self, outcome: KillOutcome) -> bool {
        let first = self.outcome.is_none();
        self.outcome = self.outcome.or(Some(outcome));
        first
    }

    /// Notes that it is as good as dead.
    pub(super) fn fell(&mut self) {
        self.took = self.took.or_else(|| Some(self.at.elapsed()));
    }
}

/// The last records. It has no memory before there is a hook.
pub(super) struct Ring {
    records: Vec<Option<Record>>,
    next: u64,
}

impl Ring {
    pub(super) fn new() -> Ring {
        Ring { records: Vec::new(), next: 0 }
    }

    /// There is a hook, so there may be something to keep.
    pub(super) fn prepare(&mut self) {
        self.records.resize(KEPT, None);
    }

    /// None is known any more. Numbers go on.
    pub(super) fn clear(&mut self) {
        self.records.fill(None);
    }

    /// Its number.
    pub(super) fn push(&mut self, record: Record) -> u64 {
        let number = self.next;
        self.next += 1;
        if let Some(place) = self.records.get_mut(number as usize % KEPT) {
            *place = Some(record);
        }
        number
    }

    /// The record of this number, if it is known still.
    pub(super) fn of(&mut self, number: u64) -> Option<&mut Record> {
        let is_known = number < self.next && self.next - number <= KEPT as u64;
        self.records.get_mut(number as usize % KEPT)?.as_mut().filter(|_| is_known)
    }

    /// All that are known, the oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = Record> + '_ {
        let oldest = (self.next as usize % KEPT).min(self.records.len());
        self.records[oldest..].iter().chain(&self.records[..oldest]).copied().flatten()
    }
}

impl Hierarchy {
    /// The last 64 calls of kill hooks, the oldest first: who was to die for whom, and what came of it.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, KillOutcome, Killed, Killing};
    /// let hierarchy = Hierarchy::new(Config::new())?;
    /// let tenant = hierarchy.create("/tenant")?;
    /// tenant.set_max(4096)?;
    /// let _charge = tenant.try_charge(4096)?;
    /// let _hook = tenant.set_kill_hook(|_: &Killing<'_>| Killed::Refused)?;
    /// tenant.try_charge(1).unwrap_err();
    /// let report = &hierarchy.kills()[0];
    /// assert_eq!((report.victim.as_str(), report.usage_bytes), ("/tenant", 4096));
    /// assert_eq!(report.outcome, Some(KillOutcome::Refused));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn kills(&self) -> Vec<KillReport> {
        let shared = self.shared();
        let mut records = Vec::with_capacity(KEPT);
        shared.victims.copy_records(shared, &mut records);
        let of = |record: Record| KillReport {
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
        records.into_iter().map(of).collect()
    }
}
