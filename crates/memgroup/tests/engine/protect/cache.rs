//! A group with a cache of charged pages that it can give back.

use std::sync::{Arc, Mutex};

use memgroup::{
    Ask, Charge, ChargeError, Config, Count, Group, GroupShrinker, Hierarchy, Scan, Shrinker, ShrinkerConfig,
    SlotSource,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PAGE: u64 = 16 << 10;
pub(crate) const BATCH: u64 = 64 << 10;

/// A hierarchy of two virtual slots in which every charge goes to the counters.
pub(crate) fn exact() -> Hierarchy {
    let slots = SlotSource::virtual_slots(2).unwrap();
    Hierarchy::new(Config::with_slots(slots).stock_cap_bytes(0)).unwrap()
}

/// Pages, oldest first.
#[derive(Default)]
pub(crate) struct Pages(Mutex<Vec<Charge>>);

impl Shrinker for Pages {
    fn count(&self, _token: u64) -> Count {
        let Ok(pages) = self.0.try_lock() else { return Count::Unknown };
        Count::of(pages.iter().map(Charge::bytes).sum(), pages.len() as u64)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let Ok(mut pages) = self.0.try_lock() else { return Scan::Stopped { bytes: 0 } };
        let (mut bytes, mut given) = (0, Vec::new());
        while bytes < ask.bytes() && !pages.is_empty() {
            let page = pages.remove(0);
            bytes += page.bytes();
            given.push(page);
        }
        drop(pages);
        Scan::Freed { bytes }
    }
}

/// A group and its cache.
pub(crate) struct Tenant {
    pub(crate) group: Group,
    pages: Arc<Pages>,
    shrinker: GroupShrinker,
}

impl Tenant {
    pub(crate) fn new(parent: &Group, name: &str) -> Tenant {
        let group = parent.create(name).unwrap();
        let pages = Arc::new(Pages::default());
        let shrinker = group.add_shrinker(ShrinkerConfig::new(name), Arc::clone(&pages)).unwrap();
        Tenant { group, pages, shrinker }
    }

    /// Reads so much into the cache, page by page.
    pub(crate) fn try_fill(&self, bytes: u64) -> Result<(), ChargeError> {
        for _ in 0..bytes / PAGE {
            let page = self.group.try_charge(PAGE)?;
            self.pages.0.lock().unwrap().push(page);
            self.shrinker.mark();
        }
        Ok(())
    }

    pub(crate) fn fill(&self, bytes: u64) {
        self.try_fill(bytes).unwrap();
    }

    pub(crate) fn usage(&self) -> u64 {
        self.group.usage()
    }
}

/// Memory that cannot be given back, charged page by page, as far as it goes.
pub(crate) fn pin(group: &Group, bytes: u64) -> (Vec<Charge>, Option<ChargeError>) {
    let mut pinned = Vec::new();
    for _ in 0..bytes / PAGE {
        match group.try_charge(PAGE) {
            Ok(page) => pinned.push(page),
            Err(error) => return (pinned, Some(error)),
        }
    }
    (pinned, None)
}

/// Whether two numbers are within so many per cent of their sum.
#[track_caller]
pub(crate) fn assert_close(name: &str, is: u64, should: u64, percent: u64) {
    let bound = (is + should) * percent / 100;
    assert!(is.abs_diff(should) <= bound, "{name} is {is}, which is not within {bound} of {should}");
}
