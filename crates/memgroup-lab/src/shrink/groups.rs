//! Groups with shrinkers of the engine, or as the kernel has them; and caches of charged pages.
//!
//! - I1. Each page of a cache holds a charge, so the caches' bytes are the groups' usage: counted
//!   after each run.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use memgroup::{
    Ask, Charge, Config, Count, Group, GroupShrinker, Hierarchy, Scan, Shrinker, ShrinkerConfig, SlotSource,
};
use memgroup_sync::CachePadded;

use crate::harness::prelude::*;

pub(super) const PAGE: u64 = 4096;
/// The most bytes of one call of `scan`, by default.
pub(super) const BATCH: u64 = 64 << 10;
/// Shrinkers that one word of marks covers.
const UNIT: usize = 64;

/// Groups side by side, in which shrinkers are registered.
pub(super) struct Groups<S> {
    /// The control; without it the engine has the shrinkers and reclaims.
    pub(super) kernel: Option<Kernel<S>>,
    pub(super) groups: Vec<Group>,
    pub(super) parent: Group,
    hierarchy: Hierarchy,
}

/// A registered shrinker.
pub(super) enum Registered {
    Ours(GroupShrinker),
    /// The group, and the shrinker's number.
    Kernels(usize, usize),
}

impl Registered {
    /// Marks one of the engine's; in the control every shrinker is marked.
    pub(super) fn mark(&self) {
        if let Registered::Ours(shrinker) = self {
            shrinker.mark();
        }
    }
}

impl<S: Shrinker> Groups<S> {
    /// Creates groups below a parent with this limit.
    pub(super) fn build(
        slots: SlotSource,
        kernel: Option<Kernel<S>>,
        groups: usize,
        max: impl Into<Option<u64>>,
    ) -> Result<Groups<S>> {
        let config = Config::with_slots(slots).groups_max(groups as u32 + 3).reclaim(kernel.is_none());
        let (hierarchy, parent) = limited_parent(config, max)?;
        Ok(Groups { kernel, groups: children(&parent, "g", groups)?, parent, hierarchy })
    }

    pub(super) fn register(&self, group: usize, shrinker: &Arc<S>) -> Result<Registered> {
        let shrinker = Arc::clone(shrinker);
        let Some(kernel) = &self.kernel else {
            let config = ShrinkerConfig::new(String::new()).batch_bytes(BATCH);
            return self.groups[group]
                .add_shrinker(config, shrinker)
                .map(Registered::Ours)
                .set_up("a shrinker");
        };
        Ok(Registered::Kernels(group, kernel.register(group, shrinker)))
    }

    /// Removes a shrinker, and returns when no call of it runs.
    pub(super) fn remove(&self, registered: Registered) -> Result<()> {
        match (registered, &self.kernel) {
            (Registered::Ours(shrinker), _) => shrinker.remove().or_wrong("a removal")?,
            (Registered::Kernels(group, number), Some(kernel)) => kernel.remove(group, number),
            _ => {}
        }
        Ok(())
    }

    /// Charges a page and puts it into a cache of the group; false if it was refused.
    pub(super) fn insert(&self, group: usize, pages: &Pages, registered: &Registered) -> bool {
        let page = self.groups[group].try_charge(PAGE);
        page.map(|page| pages.push(page, || registered.mark())).is_ok()
    }

    /// The caches' pages are the parent's usage, within its limit (I1).
    pub(super) fn check<'p>(&self, caches: impl Iterator<Item = &'p Pages>) -> Result<()> {
        let cached: u64 = caches.map(Pages::bytes).sum();
        let (usage, max) = (self.parent.usage_exact(), self.parent.max().unwrap_or(u64::MAX));
        ensure(usage == cached && usage <= max, || {
            format!("the parent's usage is {usage} bytes of {max}, its caches hold {cached}")
        })
    }

    /// The same, and nothing is charged any more after the caches are cleared.
    pub(super) fn end<'p>(&self, caches: impl Iterator<Item = &'p Pages> + Clone) -> Result<()> {
        self.check(caches.clone())?;
        caches.for_each(|pages| lock(&pages.0).clear());
        expect("bytes charged where nothing is held", self.hierarchy.root().usage_exact(), 0)
    }
}

/// Pages, oldest first.
#[derive(Default)]
pub(super) struct Pages(Mutex<VecDeque<Charge>>);

impl Pages {
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.0).len() as u64 * PAGE
    }

    /// Puts a page in. It calls `mark` under the lock if the page is the first one: otherwise
    /// others could fill a cache that no walk sees.
    fn push(&self, page: Charge, mark: impl FnOnce()) {
        let mut pages = lock(&self.0);
        pages.push_back(page);
        if pages.len() == 1 {
            mark();
        }
    }

    /// Gives pages back, at least `bytes` if there are; how many bytes. None while another thread
    /// has the cache.
    pub(super) fn give_back(&self, bytes: u64) -> Option<u64> {
        let mut pages = self.0.try_lock().ok()?;
        let given = (bytes.div_ceil(PAGE) as usize).min(pages.len());
        drop(pages.drain(..given));
        Some(given as u64 * PAGE)
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

/// The control: all shrinkers by number, and each group's marks and deferred counts.
///
/// With every 64th number each group gets larger arrays (`expand_shrinker_info`). A read-write lock
/// is around all of it, as in the kernel up to 6.3: a walk tries it at each group and holds it over
/// the callbacks. With SRCU, the seed's own way, it is held only while the lists are read or
/// changed, but a removal waits for every walk's section that has begun.
pub(super) struct Kernel<S> {
    state: RwLock<State<S>>,
    srcu: Option<Srcu>,
}

struct State<S> {
    shrinkers: Vec<Option<Arc<S>>>,
    free: Vec<usize>,
    /// The marks and the deferred counts of each group.
    groups: Vec<(Vec<u64>, Vec<u64>)>,
}

impl<S> State<S> {
    fn marked(&self, group: usize) -> impl Iterator<Item = &Arc<S>> {
        let words = self.groups[group].0.iter().enumerate().filter(|(_, bits)| **bits != 0);
        let numbers = words.flat_map(|(word, &bits)| {
            (0..UNIT).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * UNIT + bit)
        });
        numbers.filter_map(|number| self.shrinkers[number].as_ref())
    }
}

impl<S> Kernel<S> {
    pub(super) fn new(groups: usize, srcu: Option<Srcu>) -> Kernel<S> {
        let groups = vec![(Vec::new(), Vec::new()); groups];
        Kernel { state: RwLock::new(State { shrinkers: Vec::new(), free: Vec::new(), groups }), srcu }
    }

    fn register(&self, group: usize, shrinker: Arc<S>) -> usize {
        let state = &mut *self.state.write().unwrap_or_else(PoisonError::into_inner);
        let number = state.free.pop().unwrap_or(state.shrinkers.len());
        if number == state.shrinkers.len() {
            state.shrinkers.push(None);
            for (marks, deferred) in state.groups.iter_mut().filter(|_| number.is_multiple_of(UNIT)) {
                marks.reserve_exact(1);
                marks.push(0);
                deferred.reserve_exact(UNIT);
                deferred.resize(number + UNIT, 0);
            }
        }
        state.shrinkers[number] = Some(shrinker);
        state.groups[group].0[number / UNIT] |= 1 << (number % UNIT);
        number
    }

    fn remove(&self, group: usize, number: usize) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.groups[group].0[number / UNIT] &= !(1 << (number % UNIT));
        let removed = state.shrinkers[number].take();
        state.free.push(number);
        drop(state);
        self.srcu.iter().for_each(Srcu::synchronize);
        drop(removed);
    }

    /// Calls a group's marked shrinkers; false if the walk passes by because the lock is taken. One
    /// thread at a time may walk with SRCU.
    pub(super) fn visit(&self, group: usize, mut call: impl FnMut(&S)) -> bool {
        let Some(srcu) = &self.srcu else {
            let state = self.state.try_read();
            return state.map(|state| state.marked(group).for_each(|shrinker| call(shrinker))).is_ok();
        };
        srcu.section(0, || {
            // The kernel reads its list in place. A copy stands for that, because the lists here
            // are not RCU's.
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            let marked: Vec<_> = state.marked(group).cloned().collect();
            drop(state);
            marked.iter().for_each(|shrinker| call(shrinker));
        });
        true
    }
}

/// Read sections as the seed's SRCU has them: two counters a thread for each of two epochs, and a
/// full barrier beside each.
pub(super) struct Srcu {
    epoch: CachePadded<AtomicUsize>,
    threads: Box<[CachePadded<[AtomicU64; 4]>]>,
}

impl Srcu {
    pub(super) fn new(threads: usize) -> Srcu {
        Srcu {
            epoch: CachePadded::new(AtomicUsize::new(0)),
            threads: (0..threads).map(|_| CachePadded::default()).collect(),
        }
    }

    pub(super) fn section<T>(&self, thread: usize, read: impl FnOnce() -> T) -> T {
        // ORDERING: Relaxed, all: a thread's own counters. The fences make the section's reads
        // follow the entry and precede the exit for a thread that waits in `synchronize`.
        let add = |counter: &AtomicU64| counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let epoch = self.epoch.load(Ordering::Relaxed) & 1;
        add(&self.threads[thread][epoch]);
        fence(Ordering::SeqCst);
        let result = read();
        fence(Ordering::SeqCst);
        add(&self.threads[thread][2 + epoch]);
        result
    }

    /// Waits until every section that has begun is over. The kernel's waits longer, because it
    /// batches such waits.
    fn synchronize(&self) {
        // A section may have read the epoch before the last change of it, so both are waited for.
        for _ in 0..2 {
            // ORDERING: SeqCst; pairs with the fence of a section, as SRCU does.
            let old = self.epoch.fetch_add(1, Ordering::SeqCst) & 1;
            // ORDERING: Acquire; pairs with the fence after a section. The exits are read first, so
            // that none is missed.
            let sum = |at: usize| self.threads.iter().map(|one| one[at].load(Ordering::Acquire)).sum::<u64>();
            while {
                let left = sum(2 + old);
                fence(Ordering::SeqCst);
                left != sum(old)
            } {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(kernel: Option<Kernel<Pages>>) -> Groups<Pages> {
        Groups::build(SlotSource::virtual_slots(2).unwrap(), kernel, 3, 64 * PAGE).unwrap()
    }

    #[test]
    fn gives_back_the_asked_bytes() {
        let (groups, pages) = (groups(None), Arc::<Pages>::default());
        let registered = groups.register(1, &pages).unwrap();
        assert!((0..64).all(|_| groups.insert(1, &pages, &registered)));
        assert_eq!(groups.groups[1].reclaim(BATCH, None).bytes, BATCH);
        assert_eq!(pages.bytes(), 64 * PAGE - BATCH);
        groups.end([&*pages].into_iter()).unwrap();
    }

    #[test]
    fn fails_when_a_charge_is_in_no_cache() {
        let groups = groups(None);
        let _charge = groups.groups[0].try_charge(PAGE).unwrap();
        let error = groups.end([].into_iter()).unwrap_err();
        assert!(error.to_string().contains("its caches hold 0"), "{error}");
    }

    #[test]
    fn grows_the_arrays_of_all_groups_with_every_64th_shrinker() {
        let kernel = Kernel::new(2, None);
        let numbers: Vec<usize> = (0..65).map(|_| kernel.register(1, Arc::<Pages>::default())).collect();
        assert_eq!(numbers, (0..65).collect::<Vec<_>>());
        kernel.remove(1, 3);
        assert_eq!(kernel.register(0, Arc::default()), 3, "a number is used again");
        let state = kernel.state.read().unwrap();
        for (marks, deferred) in &state.groups {
            assert_eq!((marks.len(), deferred.len()), (2, 128));
        }
        assert_eq!((state.marked(0).count(), state.marked(1).count()), (1, 64));
    }

    #[test]
    fn passes_by_groups_while_the_lock_is_taken() {
        let kernel = Kernel::new(3, None);
        kernel.register(1, Arc::<Pages>::default());
        let held = kernel.state.write().unwrap();
        let called = |group| {
            let mut called = 0;
            (kernel.visit(group, |_| called += 1), called)
        };
        assert_eq!(called(1), (false, 0));
        drop(held);
        assert_eq!([0, 1].map(called), [(true, 0), (true, 1)]);
    }

    #[test]
    fn waits_for_sections_that_have_begun() {
        let (srcu, inside, over) = (Srcu::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                srcu.section(1, || {
                    // ORDERING: SeqCst, all; a test.
                    inside.store(1, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    over.store(1, Ordering::SeqCst);
                });
            });
            spin_until(|| (inside.load(Ordering::SeqCst) == 1).then_some(()));
            srcu.synchronize();
            assert_eq!(over.load(Ordering::SeqCst), 1);
        });
        assert_eq!(srcu.section(0, || 7), 7);
        srcu.synchronize();
    }
}
