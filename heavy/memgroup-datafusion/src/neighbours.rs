//! The running queries, and which of them free memory when a group that they share is full.
//!
//! ```text
//!   /tenants          full: a growth of /tenants/small/1 was refused here
//!     /tenants/hog    furthest above its protection: gives up to that excess
//!       2             furthest above its own, within the hog: asked first
//!       1             asked for the rest
//!     /tenants/small  next: the query that asks must spill itself
//! ```
//!
//! When a group refuses a growth, all queries below that group may be the cause. The search goes
//! down from that group, as the engine's reclaim does. At each level, the child that is furthest
//! above its [protection](Group::protection_within) frees memory first, up to its excess. The
//! protection is [`min`](Group::set_min) or [`low`](Group::set_low), or the even share if the level
//! gives [fair shares](Group::set_share). The child that the refusal names comes before all others.
//!
//! - I1. A query is asked only by setting flags. No code of it runs here, and no locks of it are
//!   held except the short ones of its lists.
//! - I2. The flags are hints. Each one refuses one growth of a consumer that holds more than it
//!   asks for, and that consumer spills. It refuses none if the consumer has freed half of its
//!   bytes by itself, if the growth has been made, or if there is room for it.
//! - I3. A query that did not use the memory for which another one has spilled asks again only
//!   after a pause. The pause is counted in its own refused growths, and doubles. It ends for good
//!   when the query uses the memory that it asked for. A growth that may wait always asks: it takes
//!   the memory as soon as it is available, and the patience of its query is finite.
//! - I4. A level is listed in the one above as long as it has queries. A refused growth reads only
//!   the children of the groups that it goes down to.
//! - I5. The lock of a level is held only to copy its list. No level and no query is dropped under
//!   it.

use std::collections::{BinaryHeap, HashMap};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memgroup::{ChargeError, Group, GroupId, PeakReader};

use crate::consumers::{Consumers, Place};
use crate::runs::Runs;

/// Refused growths of the longest pause.
const PAUSE_MOST: u32 = 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A group with queries in it or below.
struct Level {
    group: Group,
    above: Option<Arc<Level>>,
    below: Mutex<Below>,
    runs: Runs,
}

/// The queries of a level.
#[derive(Default)]
struct Below {
    /// The groups right below that have queries.
    levels: HashMap<GroupId, Weak<Level>>,
    /// Queries in the group itself, mostly one.
    queries: Vec<Weak<Member>>,
}

/// The roots of hierarchies with queries.
static ROOTS: Mutex<Vec<(Group, Weak<Level>)>> = Mutex::new(Vec::new());

impl Level {
    /// The level of a group, listed in those above.
    fn of(group: &Group) -> Arc<Level> {
        let (below, runs) = (Mutex::default(), Runs::default());
        let level = |above| Arc::new(Level { group: group.clone(), above, below, runs });
        let Some(parent) = group.parent() else {
            let mut roots = lock(&ROOTS);
            // An existing entry may be that of a level that is being dropped.
            let known = roots.iter().filter(|(root, _)| root == group).find_map(|(_, known)| known.upgrade());
            return known.unwrap_or_else(|| {
                let new = level(None);
                roots.push((group.clone(), Arc::downgrade(&new)));
                new
            });
        };
        let above = Level::of(&parent);
        let mut below = lock(&above.below);
        let known = below.levels.get(&group.id()).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let new = level(Some(Arc::clone(&above)));
            below.levels.insert(group.id(), Arc::downgrade(&new));
            new
        })
    }

    /// The levels right below, and the queries in the group itself.
    fn children(&self) -> (Vec<Arc<Level>>, Vec<Arc<Member>>) {
        let below = lock(&self.below);
        let levels = below.levels.values().filter_map(Weak::upgrade).collect();
        (levels, below.queries.iter().filter_map(Weak::upgrade).collect())
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        // The entry may be of a newer level of this group.
        let is_gone = |level: &Weak<Level>| level.strong_count() == 0;
        match &self.above {
            Some(above) => {
                let mut below = lock(&above.below);
                if below.levels.get(&self.group.id()).is_some_and(is_gone) {
                    below.levels.remove(&self.group.id());
                }
            }
            None => lock(&ROOTS).retain(|(_, level)| !is_gone(level)),
        }
    }
}

/// A growth for which other queries were asked to spill.
struct Ask {
    /// The group that refused it, and the bytes that it needs there.
    full: Group,
    bytes: u64,
    /// The bytes that its query holds once it is made, and the most that the query held since it
    /// asked.
    goal: u64,
    held: PeakReader,
    /// A consumer has spilled for it.
    is_answered: AtomicBool,
    /// It waits for the memory. In the meantime, bytes that its query gains are those of other
    /// growths.
    is_waiting: AtomicBool,
}

impl Ask {
    fn is_used(&self) -> bool {
        self.held.read() >= self.goal
    }

    fn is_needed(&self) -> bool {
        // ORDERING: Relaxed, because this is only a hint.
        let is_waiting = self.is_waiting.load(Ordering::Relaxed);
        self.full.headroom() < self.bytes && (is_waiting || !self.is_used())
    }
}

/// Keeps an ask until its growth ends, even if a later ask of the query replaces it.
pub(crate) struct Asked(Arc<Ask>);

impl Drop for Asked {
    fn drop(&mut self) {
        // ORDERING: Relaxed, because this is only a hint.
        self.0.is_waiting.store(false, Ordering::Relaxed);
    }
}

/// The asking of one query.
#[derive(Default)]
struct Asking {
    last: Option<Arc<Ask>>,
    /// How many refused growths do not ask after an unused ask, and how many of these are left.
    pause: u32,
    left: u32,
}

impl Asking {
    /// Returns whether a growth that is refused now may ask.
    fn may_ask(&mut self) -> bool {
        // ORDERING: Relaxed, because this is only a hint.
        if let Some(ask) = self.last.take_if(|ask| ask.is_answered.load(Ordering::Relaxed)) {
            self.pause = if ask.is_used() { 0 } else { (2 * self.pause).clamp(1, PAUSE_MOST) };
            self.left = self.pause;
        }
        let may = self.left == 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

/// The part of a pool that other queries see.
pub(crate) struct Member {
    level: Arc<Level>,
    pub(crate) consumers: Consumers,
    /// Up to this many bytes, a consumer that can spill and was not asked checks no others. It was
    /// half a share at the last check.
    pub(crate) line: AtomicUsize,
    /// Growths that were refused, at any level and for any reason.
    refused: AtomicU64,
    /// The most bytes that the query would have held with a growth that the tree refused and that
    /// could not spill.
    wanted: AtomicU64,
    asking: Mutex<Asking>,
    /// The growths of other queries that this one was asked for.
    asked: Mutex<Vec<Weak<Ask>>>,
}

impl Member {
    /// The member of a new pool of this group.
    pub(crate) fn enter(group: &Group) -> Arc<Member> {
        let member = Arc::new(Member {
            level: Level::of(group),
            consumers: Consumers::new(),
            line: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            asking: Mutex::default(),
            asked: Mutex::default(),
        });
        let mut below = lock(&member.level.below);
        below.queries.retain(|query| query.strong_count() > 0);
        below.queries.push(Arc::downgrade(&member));
        drop(below);
        member
    }

    /// Returns the queries in the neighbouring groups, and this one.
    pub(crate) fn runs(&self) -> &Runs {
        &self.level.above.as_ref().unwrap_or(&self.level).runs
    }

    /// Makes the next growth of a consumer that can spill check all of them.
    pub(crate) fn look_again(&self) {
        // ORDERING: Relaxed, because this is only a hint.
        self.line.store(0, Ordering::Relaxed);
    }

    /// Counts a refused growth, which means that memory is scarce.
    pub(crate) fn count_refusal(&self) {
        self.look_again();
        // ORDERING: Relaxed, here and below; a number by itself.
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the query would hold `bytes` with a growth that the tree refused and that cannot
    /// spill instead.
    pub(crate) fn want(&self, bytes: u64) {
        // ORDERING: Relaxed, because the number publishes nothing else.
        self.wanted.fetch_max(bytes, Ordering::Relaxed);
    }

    /// The most bytes that the query wanted since [`forget_wanted`](Member::forget_wanted).
    pub(crate) fn wanted(&self) -> u64 {
        // ORDERING: Relaxed, because the number publishes nothing else.
        self.wanted.load(Ordering::Relaxed)
    }

    pub(crate) fn forget_wanted(&self) {
        // ORDERING: Relaxed, because the number publishes nothing else.
        self.wanted.store(0, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) -> u64 {
        // ORDERING: Relaxed, because the number publishes nothing else.
        self.refused.load(Ordering::Relaxed)
    }

    /// Asks other queries to spill for a growth of this one that `error` refused. With it the query
    /// would hold `goal` bytes. Returns `None` if none was asked, because this query itself must
    /// free memory, or made others spill in vain before.
    pub(crate) fn ask_others(
        self: &Arc<Member>,
        error: &ChargeError,
        goal: u64,
        may_wait: bool,
    ) -> Option<Asked> {
        let mut levels = std::iter::successors(Some(&self.level), |level| level.above.as_ref());
        let full = levels.find(|level| level.group.id() == error.group())?;
        let mut asking = lock(&self.asking);
        if !asking.may_ask() && !may_wait {
            return None;
        }
        let taken = error.usage().saturating_add(error.reserved());
        let room = error.max().map_or(0, |max| max.saturating_sub(taken));
        let mut search = Search { named: error.held_by(), asker: self, found: Vec::new() };
        let missing = error.asked().saturating_sub(room);
        // A growth that cannot be helped makes no query spill.
        let found = search.find(full, &full.group, missing);
        if found != ControlFlow::Continue(0) || search.found.is_empty() {
            return None;
        }
        let mut held = self.level.group.peak_reader();
        held.reset();
        let (full, bytes) = (full.group.clone(), error.asked());
        let (is_answered, is_waiting) = (AtomicBool::new(false), AtomicBool::new(may_wait));
        let ask = Arc::new(Ask { full, bytes, goal, held, is_answered, is_waiting });
        for (query, bytes) in search.found {
            query.be_asked(&ask, bytes);
        }
        asking.last = Some(Arc::clone(&ask));
        Some(Asked(ask))
    }

    fn be_asked(&self, ask: &Arc<Ask>, bytes: u64) {
        let mut asked = lock(&self.asked);
        asked.retain(|ask| ask.strong_count() > 0);
        asked.push(Arc::downgrade(ask));
        drop(asked);
        self.consumers.ask(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Returns whether a consumer must spill for another query. Only the first call returns `true`.
    #[cold]
    pub(crate) fn gives_way(&self, place: &Place) -> bool {
        let Some(held) = place.take_ask() else { return false };
        let mut asked = lock(&self.asked);
        asked.retain(|ask| ask.upgrade().is_some_and(|ask| ask.is_needed()));
        if asked.is_empty() || place.held() <= held / 2 {
            return false;
        }
        for ask in asked.iter().filter_map(Weak::upgrade) {
            // ORDERING: Relaxed; as in `may_ask`.
            ask.is_answered.store(true, Ordering::Relaxed);
        }
        true
    }
}

/// The cause that a group is to give memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It is above its protection.
    Protection,
    /// It is above its even share.
    Share,
    /// The refusal names it.
    Named,
}

/// The search for queries that give bytes to a growth.
struct Search<'s> {
    /// The group that the refusal names.
    named: Option<GroupId>,
    asker: &'s Arc<Member>,
    /// Queries, and the bytes to ask each of them for.
    found: Vec<(Arc<Member>, u64)>,
}

impl Search<'_> {
    /// Finds queries in `level` that can free up to `missing` bytes. Returns the bytes still
    /// missing. It stops at the query that asks. Settings of groups below `top` protect there.
    fn find(&mut self, level: &Level, top: &Group, mut missing: u64) -> ControlFlow<(), u64> {
        let (levels, queries) = level.children();
        let children = levels.iter().enumerate().filter_map(|(at, child)| {
            let (excess, rank) = self.excess(level, &child.group, top);
            (excess > 0).then_some((rank, excess, at))
        });
        let own = queries.iter().enumerate().map(|(at, query)| {
            let spillable = query.consumers.spillable() as u64;
            (Rank::Protection, spillable, levels.len() + at)
        });
        let mut order: BinaryHeap<_> = children.chain(own).collect();
        while missing > 0
            && let Some((rank, excess, at)) = order.pop()
        {
            let most = missing.min(excess);
            let given = match levels.get(at) {
                Some(child) => {
                    // If a group must free memory because of its share, the settings that protect
                    // it protect none of the groups in it.
                    let top = if rank == Rank::Protection { top } else { &child.group };
                    most - self.find(child, top, most)?
                }
                None => self.take(&queries[at - levels.len()], most)?,
            };
            missing -= given;
        }
        ControlFlow::Continue(missing)
    }

    /// Bytes that `child` right below `level` may give.
    fn excess(&self, level: &Level, child: &Group, top: &Group) -> (u64, Rank) {
        let protection = child.protection_within(top);
        let over = |bytes: u64| child.usage().saturating_sub(bytes);
        if self.named == Some(child.id()) {
            // Uses a share that takes the asking query into account, which may have no memory yet.
            return (over(protection.min), Rank::Named);
        }
        match level.group.share().and_then(|_| child.fair_share()) {
            Some(share) => (share.excess, Rank::Share),
            None => (over(protection.min.max(protection.low)), Rank::Protection),
        }
    }

    fn take(&mut self, query: &Arc<Member>, bytes: u64) -> ControlFlow<(), u64> {
        if Arc::ptr_eq(query, self.asker) {
            return ControlFlow::Break(());
        }
        if bytes > 0 {
            self.found.push((Arc::clone(query), bytes));
        }
        ControlFlow::Continue(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};

    use memgroup::{Config, Group, Hierarchy};

    use super::{Level, Member, ROOTS, lock};

    fn is_listed(root: &Group) -> bool {
        lock(&ROOTS).iter().any(|(listed, _)| listed == root)
    }

    #[test]
    fn a_level_that_is_being_dropped_hides_no_other_one() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let root = hierarchy.lookup("/").unwrap();
        // The entry that a level leaves until its drop has the lock.
        lock(&ROOTS).push((root.clone(), Weak::new()));
        let (first, second) = (Level::of(&root), Level::of(&root));
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        assert!(!is_listed(&root));
    }

    #[test]
    fn a_level_is_listed_as_long_as_it_has_queries() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let [a, b] = ["/tenant/a", "/tenant/b"].map(|path| hierarchy.get_or_create(path).unwrap());
        let root = hierarchy.lookup("/").unwrap();
        let (first, again, other) = (Member::enter(&a), Member::enter(&a), Member::enter(&b));
        assert!(Arc::ptr_eq(&first.level, &again.level));
        let tenant = Arc::clone(first.level.above.as_ref().unwrap());
        assert_eq!((tenant.children().0.len(), first.level.children().1.len()), (2, 2));
        drop(first);
        assert_eq!((tenant.children().0.len(), again.level.children().1.len()), (2, 1));
        drop(again);
        assert_eq!(lock(&tenant.below).levels.len(), 1);
        assert!(is_listed(&root));
        drop((tenant, other));
        assert!(!is_listed(&root));
        assert!(!is_listed(&hierarchy.lookup("/tenant").unwrap()));
    }
}
