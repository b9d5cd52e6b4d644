//! The tenants of the pressure: a SQLite database each, in a file, with a page cache that would like to hold all of it.
//!
//! ```text
//!   parent, limited ──┬── t0: its connection ── buffers: what is charged beside it, and timed
//!                     ├── t1 ...
//! ```
//!
//! - I1. All houses of all runs are in the one hierarchy that SQLite serves (`harness::sqlite`).

use std::sync::{Mutex, PoisonError};

use memgroup::{Group, GroupShrinker, Hierarchy, ShrinkerConfig};

use super::probe::Probe;
use crate::Error;
use crate::harness::sqlite::{Directory, Tenant, failed, remove, unique};
use crate::harness::tree::{child, expect_bytes, limit};

/// What a tenant's share has left for what is no page: the connection's own blocks grow a little while it works.
const BESIDE_PAGES: u64 = 64 << 10;

/// How a tenant's cache is kept within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bounds {
    /// By SQLite alone: each cache is told its share in pages. What is done without reclaim.
    Shares,
    /// Each tenant has a limit, its share, and makes room from its own cache.
    Limits,
    /// Only all tenants together have a limit, and room is made from every cache below it.
    Common,
}

impl Bounds {
    pub(super) const ALL: [Bounds; 3] = [Bounds::Shares, Bounds::Limits, Bounds::Common];

    pub(super) fn name(self) -> &'static str {
        match self {
            Bounds::Shares => "fixed shares, no reclaim (control)",
            Bounds::Limits => "a limit each",
            Bounds::Common => "a common limit",
        }
    }
}

/// What one tenant is charged with by itself, and with all of its database in its cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    bare_bytes: u64,
    all_bytes: u64,
    pages: u64,
}

impl Needs {
    /// Finds out with a tenant that has no limit.
    pub(super) fn measure(hierarchy: &Hierarchy, rows: i64) -> Result<Needs, Error> {
        let directory = Directory::make()?;
        let group = child(&hierarchy.root(), &unique("alone"))?;
        let mut tenant = Tenant::open(&group, &directory.file(0), rows, None)?;
        // With the statements prepared, and next to no page.
        tenant.look_up(1)?;
        tenant.sum(1)?;
        tenant.update(1)?;
        tenant.connection.execute_batch("PRAGMA shrink_memory").map_err(failed)?;
        let bare_bytes = group.usage_exact();
        tenant.check_all()?;
        let pages = tenant.connection.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0));
        let needs =
            Needs { bare_bytes, all_bytes: group.usage_exact(), pages: pages.map_err(failed)? as u64 };
        tenant.close()?;
        remove(&group)?;
        if needs.all_bytes < needs.bare_bytes + needs.pages * 4096 {
            return Err(Error::Wrong(format!(
                "a database of {} pages is all cached, and {needs:?}",
                needs.pages
            )));
        }
        Ok(needs)
    }

    pub(super) fn all_bytes(self) -> u64 {
        self.all_bytes
    }

    /// Pages for which a share of so many bytes has room, beside what is no page.
    fn pages_in(self, share_bytes: u64) -> u64 {
        let page_bytes = (self.all_bytes - self.bare_bytes).div_ceil(self.pages);
        share_bytes.saturating_sub(self.bare_bytes + BESIDE_PAGES) / page_bytes
    }
}

/// Tenants below a parent, kept within bounds in one way.
pub(super) struct House {
    pub(super) bounds: Bounds,
    pub(super) tenants: Vec<Mutex<Tenant>>,
    pub(super) parent: Group,
    pub(super) hierarchy: Hierarchy,
    probes: Vec<GroupShrinker>,
    _directory: Directory,
}

impl House {
    /// Tenants that may have `max_bytes` together, each with a database of so many rows.
    pub(super) fn build(
        hierarchy: &Hierarchy,
        bounds: Bounds,
        needs: Needs,
        tenants: usize,
        rows: i64,
        max_bytes: u64,
    ) -> Result<House, Error> {
        let directory = Directory::make()?;
        let parent = child(&hierarchy.root(), &unique("pressure"))?;
        limit(&parent, max_bytes)?;
        let share_bytes = max_bytes / tenants as u64;
        let cached_pages = (bounds == Bounds::Shares).then(|| needs.pages_in(share_bytes));
        let open = |at: usize| {
            let group = child(&parent, &format!("t{at}"))?;
            if bounds != Bounds::Common {
                limit(&group, share_bytes)?;
            }
            Tenant::open(&group, &directory.file(at), rows, cached_pages).map(Mutex::new)
        };
        let tenants = (0..tenants).map(open).collect::<Result<Vec<_>, Error>>()?;
        let mut house = House {
            bounds,
            tenants,
            parent,
            hierarchy: hierarchy.clone(),
            probes: Vec::new(),
            _directory: directory,
        };
        house.probe()?;
        Ok(house)
    }

    /// Has every walk of who is refused here come by a probe.
    fn probe(&mut self) -> Result<(), Error> {
        let refusing = match self.bounds {
            Bounds::Common => vec![self.parent.clone()],
            Bounds::Shares | Bounds::Limits => self.parent.children(),
        };
        for group in refusing {
            let probe = group.add_shrinker(ShrinkerConfig::new("probe"), Probe);
            let probe = probe.map_err(|why| Error::setup("a probe", why))?;
            probe.mark();
            self.probes.push(probe);
        }
        Ok(())
    }

    /// Everything is within its bounds, and never was without.
    pub(super) fn check_bounds(&self) -> Result<(), Error> {
        for group in std::iter::once(self.parent.clone()).chain(self.parent.children()) {
            let (peak, (usage, max)) = (group.peak(), group.usage_and_max());
            if usage > max || peak > max {
                return Err(Error::Wrong(format!(
                    "{}: {} has {usage} bytes, had {peak}, and may have {max}",
                    self.bounds.name(),
                    group.path()
                )));
            }
        }
        Ok(())
    }

    /// Reads every row once more, closes all and removes the groups: nothing is charged any more.
    pub(super) fn end(self) -> Result<(), Error> {
        drop(self.probes);
        for tenant in self.tenants {
            let mut tenant = tenant.into_inner().unwrap_or_else(PoisonError::into_inner);
            tenant.check_all()?;
            tenant.close()?;
        }
        expect_bytes(&self.parent, "usage after all was closed", self.parent.usage_exact(), 0)?;
        self.parent.drain();
        expect_bytes(&self.parent, "usage after a drain", self.parent.usage(), 0)?;
        remove(&self.parent)
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, SlotSource};

    use super::*;

    /// A house without tenants, in a hierarchy of its own.
    fn empty_house() -> House {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let hierarchy = Hierarchy::new(Config::with_slots(slots)).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        let _directory = Directory::make().unwrap();
        House {
            bounds: Bounds::Common,
            tenants: Vec::new(),
            parent,
            hierarchy,
            probes: Vec::new(),
            _directory,
        }
    }

    #[test]
    fn bytes_above_a_limit_are_a_wrong_result_also_when_they_are_gone() {
        let house = empty_house();
        let group = house.parent.create("tenant").unwrap();
        group.set_max(100).unwrap();
        house.check_bounds().unwrap();
        drop(group.charge_forced(200).unwrap());
        let error = house.check_bounds().unwrap_err();
        assert!(matches!(&error, Error::Wrong(text) if text.contains("may have 100")), "{error}");
    }

    #[test]
    fn bytes_that_stay_when_all_is_closed_are_a_wrong_result() {
        empty_house().end().unwrap();
        let house = empty_house();
        let charge = house.parent.try_charge(10).unwrap();
        let error = house.end().unwrap_err();
        assert!(matches!(&error, Error::Wrong(text) if text.contains("is 10 bytes")), "{error}");
        drop(charge);
    }

    #[test]
    fn a_share_has_room_for_its_pages_and_what_stands_beside_them() {
        let needs = Needs { bare_bytes: 100_000, all_bytes: 100_000 + 1_000 * 4_500, pages: 1_000 };
        let pages = needs.pages_in(needs.all_bytes() / 2);
        assert!((450..500).contains(&pages), "{pages}");
        assert!(needs.bare_bytes + BESIDE_PAGES + pages * 4_500 <= needs.all_bytes() / 2);
        assert_eq!(needs.pages_in(1), 0);
    }
}
