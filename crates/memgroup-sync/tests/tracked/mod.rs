//! Values that know whether they were given back, and count their drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A number twice, on a heap of its own, which knows whether it was given back and counts its
/// drops.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) number: usize,
    again: Box<usize>,
    gone: AtomicBool,
    drops: Arc<AtomicUsize>,
}

impl Tracked {
    pub(crate) fn is_good(&self) -> bool {
        // ORDERING: Relaxed; it is set after the last use, so that no order can be missing.
        self.number == *self.again && !self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn is_gone(&self) {
        // ORDERING: Relaxed, as above.
        assert!(!self.gone.swap(true, Ordering::Relaxed), "{} was given back twice", self.number);
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.number = usize::MAX;
        // ORDERING: Release; pairs with the Acquire in `dropped`, for a test that waits for a drop.
        self.drops.fetch_add(1, Ordering::Release);
    }
}

/// Makes values and counts how many of them were dropped.
#[derive(Clone, Default)]
pub(crate) struct Counted(pub(crate) Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn value(&self, number: usize) -> Box<Tracked> {
        let drops = Arc::clone(&self.0);
        Box::new(Tracked { number, again: Box::new(number), gone: AtomicBool::new(false), drops })
    }

    pub(crate) fn dropped(&self) -> usize {
        // ORDERING: Acquire; pairs with the Release in `drop`.
        self.0.load(Ordering::Acquire)
    }
}
