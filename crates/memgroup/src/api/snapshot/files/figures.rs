//! Figures: the values that files show, of a snapshot, or of a group as it is now.

use crate::api::snapshot::GroupSnapshot;
use crate::api::snapshot::files::Limits;
use crate::api::statistics;
use crate::counter::events::Events;
use crate::observe::pressure::Pressure;
use crate::state::stats::Reach;
use crate::stats::flush;
use crate::tree::handle::Group;
use crate::tree::listing::Listing;

/// The source of a file's text. A group computes only the figure that is asked for.
pub(super) trait Figures {
    fn limits(&self) -> Limits;
    fn usage_bytes(&self) -> u64;
    fn peak_bytes(&self) -> u64;
    fn events(&self, reach: Reach) -> Events;
    fn pressure(&self) -> Pressure;
    fn is_populated(&self) -> bool;
    /// Groups below it: those that are online, and those that are dying.
    fn descendants(&self) -> [usize; 2];
    /// Names of the subsystems.
    fn controllers(&self) -> Vec<&'static str>;
    /// Text of the statistics of one subsystem.
    fn stat(&self, subsystem: &str) -> Option<String>;
}

impl Figures for GroupSnapshot {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn usage_bytes(&self) -> u64 {
        self.usage_bytes
    }

    fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    fn events(&self, reach: Reach) -> Events {
        match reach {
            Reach::Local => self.events_local,
            Reach::Subtree => self.events,
        }
    }

    fn pressure(&self) -> Pressure {
        self.pressure
    }

    fn is_populated(&self) -> bool {
        GroupSnapshot::is_populated(self)
    }

    fn descendants(&self) -> [usize; 2] {
        [self.descendants, self.dying_descendants]
    }

    fn controllers(&self) -> Vec<&'static str> {
        self.subsystems().map(|subsystem| subsystem.name).collect()
    }

    fn stat(&self, subsystem: &str) -> Option<String> {
        self.subsystem(subsystem).map(|subsystem| subsystem.text())
    }
}

impl Figures for Group {
    fn limits(&self) -> Limits {
        Limits::of(self, self.bounds())
    }

    fn usage_bytes(&self) -> u64 {
        self.usage()
    }

    fn peak_bytes(&self) -> u64 {
        self.peak()
    }

    fn events(&self, reach: Reach) -> Events {
        self.node().events().of(reach)
    }

    fn pressure(&self) -> Pressure {
        Group::pressure(self)
    }

    fn is_populated(&self) -> bool {
        self.usage_exact() > 0
    }

    fn descendants(&self) -> [usize; 2] {
        let listing = Listing::of(self);
        let dying = listing.groups.iter().skip(1).filter(|listed| listed.removed.is_some()).count();
        [listing.groups.len() - 1 - dying, dying]
    }

    fn controllers(&self) -> Vec<&'static str> {
        self.node().shared().statistics.registered().map(|(subsystem, _)| subsystem.name).collect()
    }

    fn stat(&self, name: &str) -> Option<String> {
        let mut registered = self.node().shared().statistics.registered();
        let (subsystem, store) = registered.find(|(subsystem, _)| subsystem.name == name)?;
        let mut values = vec![0; subsystem.stats.len()];
        flush::refresh(store, self.node());
        self.node().entry(store).flushed().copy(Reach::Subtree, &mut values);
        subsystem.to_units(&mut values);
        Some(statistics::text(subsystem, &values))
    }
}
