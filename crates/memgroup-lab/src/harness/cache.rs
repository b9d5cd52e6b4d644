//! A cache of charged pages, as a shrinker.
//!
//! - I1. Each page of a cache holds a charge, so the caches' bytes are the groups' usage: counted
//!   after each run.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::harness::prelude::*;
use memgroup::{Ask, Charge, ChargeError, Count, Group, GroupShrinker, Scan, Shrinker, ShrinkerConfig};

pub(crate) const PAGE: u64 = 4096;

/// The most bytes of one call of `scan`, by default.
pub(crate) const BATCH: u64 = 64 << 10;

/// A shrinker that is asked for nothing: it answers by a function and never gives a byte.
pub(crate) struct Silent<F>(pub(crate) F);

impl<F: Fn() -> Count + Send + Sync + 'static> Shrinker for Silent<F> {
    fn count(&self, _token: u64) -> Count {
        (self.0)()
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Stopped { bytes: 0 }
    }
}

/// A shrinker that cannot tell its size.
pub(crate) fn idle() -> impl Shrinker {
    Silent(|| Count::Unknown)
}

/// A shrinker that gives one answer, and counts the calls.
pub(crate) fn counting(calls: &Arc<AtomicU64>, answer: Count) -> impl Shrinker + use<> {
    let calls = Arc::clone(calls);
    Silent(move || {
        // ORDERING: Relaxed; a number by itself.
        calls.fetch_add(1, Ordering::Relaxed);
        answer
    })
}

/// Pages, oldest first.
#[derive(Default)]
pub(crate) struct Pages(Mutex<VecDeque<Charge>>);

impl Pages {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Charge>> {
        lock(&self.0)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.lock().len() as u64 * PAGE
    }

    /// Puts a page in. It calls `mark` under the lock if the page is the first one: otherwise
    /// others could fill a cache that no walk sees.
    pub(crate) fn push(&self, page: Charge, mark: impl FnOnce()) {
        let mut pages = self.lock();
        pages.push_back(page);
        if pages.len() == 1 {
            mark();
        }
    }

    /// Gives pages back, at least `bytes` if there are; how many bytes. None while another thread
    /// has the cache.
    pub(crate) fn give_back(&self, bytes: u64) -> Option<u64> {
        let mut pages = self.0.try_lock().ok()?;
        let given = (bytes.div_ceil(PAGE) as usize).min(pages.len());
        drop(pages.drain(..given));
        Some(given as u64 * PAGE)
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }
}

impl Shrinker for Pages {
    fn count(&self, _token: u64) -> Count {
        match self.0.try_lock() {
            Ok(pages) => Count::of(pages.len() as u64 * PAGE, pages.len() as u64),
            Err(_) => Count::Unknown,
        }
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        self.give_back(ask.bytes()).map_or(Scan::Stopped { bytes: 0 }, |bytes| Scan::Freed { bytes })
    }
}

/// A group and its cache. The shrinker goes first.
pub(crate) struct Tenant {
    shrinker: GroupShrinker,
    pub(crate) pages: Arc<Pages>,
    pub(crate) group: Group,
}

impl Tenant {
    pub(crate) fn new<S: Shrinker>(
        parent: &Group,
        name: &str,
        wrap: impl FnOnce(Arc<Pages>) -> S,
    ) -> Result<Tenant> {
        Tenant::of(child(parent, name)?, wrap)
    }

    pub(crate) fn of<S: Shrinker>(group: Group, wrap: impl FnOnce(Arc<Pages>) -> S) -> Result<Tenant> {
        let pages = Arc::new(Pages::default());
        let config = ShrinkerConfig::new("pages").batch_bytes(BATCH);
        let shrinker = group.add_shrinker(config, wrap(Arc::clone(&pages))).set_up("a shrinker")?;
        Ok(Tenant { shrinker, pages, group })
    }

    /// Charges a page and puts it into the cache.
    pub(crate) fn add_page(&self) -> Result<(), ChargeError> {
        let page = self.group.try_charge(PAGE)?;
        self.pages.push(page, || self.shrinker.mark());
        Ok(())
    }

    /// Fills the cache up to so many bytes.
    pub(crate) fn fill(&self, bytes: u64) -> Result<()> {
        let missing = bytes.saturating_sub(self.pages.bytes()).div_ceil(PAGE);
        let filled = (0..missing).try_for_each(|_| self.add_page());
        filled.or_wrong(format_args!("{}: a page was refused where there is room", self.group.path()))
    }

    /// Marks the cache, even an empty one.
    pub(crate) fn mark(&self) {
        self.shrinker.mark();
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy, SlotSource};

    use super::*;

    #[test]
    fn gives_back_the_asked_bytes() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let hierarchy = Hierarchy::new(Config::with_slots(slots)).unwrap();
        let tenant = Tenant::new(&hierarchy.root(), "tenant", |pages| pages).unwrap();
        tenant.fill(64 * PAGE).unwrap();
        assert_eq!(tenant.group.reclaim(BATCH, None).bytes, BATCH);
        assert_eq!(tenant.pages.bytes(), 64 * PAGE - BATCH);
        tenant.pages.clear();
        assert_eq!(tenant.group.usage_exact(), 0);
    }
}
