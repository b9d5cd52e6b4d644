//! Where shrinkers are registered: the engine, and the kernel's way before the seed.
//!
//! The control is a read-write lock around the lists of all groups, held for reading over the callbacks of one group and tried again for the
//! next; for writing, by who registers or removes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use memgroup::{
    Ask, Charge, Config, Count, Group, GroupShrinker, Hierarchy, Scan, Shrinker, ShrinkerConfig, SlotSource,
};

use crate::Error;
use crate::harness::tree::child;

/// What each group holds, which a shrinker with a gate says it could give back.
const HELD_BYTES: u64 = 1 << 30;

/// What the first callback that comes to it waits for; those after it pass.
pub(super) struct Gate {
    is_in: AtomicBool,
    is_open: AtomicBool,
    /// It opens by itself after so long.
    opens_after: Duration,
}

impl Gate {
    pub(super) fn closed(opens_after: Duration) -> Arc<Gate> {
        Arc::new(Gate { is_in: AtomicBool::new(false), is_open: AtomicBool::new(false), opens_after })
    }

    fn pass(&self) {
        let begin = Instant::now();
        // ORDERING: Release; who finds it knows that the call has begun.
        if self.is_in.swap(true, Ordering::Release) {
            return;
        }
        // ORDERING: Acquire; pairs with `open`.
        while !self.is_open.load(Ordering::Acquire) && begin.elapsed() < self.opens_after {
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    pub(super) fn open(&self) {
        // ORDERING: Release; pairs with `pass`.
        self.is_open.store(true, Ordering::Release);
    }

    /// Whether a callback is waiting, or was.
    pub(super) fn was_entered(&self) -> bool {
        // ORDERING: Acquire; pairs with `pass`.
        self.is_in.load(Ordering::Acquire)
    }
}

/// A shrinker that cannot tell what it has; or, with a gate, has plenty and waits there when it is asked for it.
pub(super) struct Answer(pub(super) Option<Arc<Gate>>);

impl Answer {
    fn give(&self) {
        if let Some(gate) = &self.0 {
            gate.pass();
        }
    }
}

impl Shrinker for Answer {
    fn count(&self, _token: u64) -> Count {
        if self.0.is_some() { Count::of(HELD_BYTES, 1) } else { Count::Unknown }
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        self.give();
        Scan::Stopped { bytes: 0 }
    }
}

/// Shrinkers that are registered, removed and walked.
pub(super) trait Registry: Send + Sync + Sized + 'static {
    type Registered: Send;

    /// Groups side by side, each with one shrinker that cannot tell.
    fn build(slots: SlotSource, groups: usize) -> Result<Self, Error>;
    /// Registers one in a group, by number.
    fn register(&self, group: usize, shrinker: Answer) -> Result<Self::Registered, Error>;
    fn mark(&self, registered: &Self::Registered);
    /// Removes it, and returns when no call of it runs.
    fn remove(&self, registered: Self::Registered) -> Result<(), Error>;
    /// Calls all that are marked.
    fn walk(&self);
    /// Waits until no call runs that runs now.
    fn wait_for_calls(&self) -> Result<(), Error>;
}

/// The engine. The shrinkers go before their groups.
pub(super) struct Ours {
    shrinkers: Vec<GroupShrinker>,
    /// Something in each group: nobody is asked for what the group does not hold.
    _held: Vec<Charge>,
    groups: Vec<Group>,
    parent: Group,
    hierarchy: Hierarchy,
}

impl Registry for Ours {
    type Registered = GroupShrinker;

    fn build(slots: SlotSource, groups: usize) -> Result<Ours, Error> {
        let config = Config::with_slots(slots).groups_max(groups as u32 + 3);
        let hierarchy = Hierarchy::new(config).map_err(|error| Error::setup("the hierarchy", error))?;
        let parent = child(&hierarchy.root(), "parent")?;
        let groups: Vec<Group> =
            (0..groups).map(|at| child(&parent, &format!("g{at}"))).collect::<Result<_, _>>()?;
        let held = groups.iter().map(|group| group.try_charge(HELD_BYTES)).collect::<Result<_, _>>();
        let held = held.map_err(|error| Error::setup("a charge", error))?;
        let mut ours = Ours { shrinkers: Vec::new(), _held: held, groups, parent, hierarchy };
        for group in 0..ours.groups.len() {
            let shrinker = ours.register(group, Answer(None))?;
            ours.mark(&shrinker);
            ours.shrinkers.push(shrinker);
        }
        Ok(ours)
    }

    fn register(&self, group: usize, shrinker: Answer) -> Result<GroupShrinker, Error> {
        let config = ShrinkerConfig::new(String::new());
        self.groups[group].add_shrinker(config, shrinker).map_err(|error| Error::setup("a shrinker", error))
    }

    fn mark(&self, registered: &GroupShrinker) {
        registered.mark();
    }

    fn remove(&self, registered: GroupShrinker) -> Result<(), Error> {
        registered.remove().map_err(|error| Error::Wrong(error.to_string()))
    }

    fn walk(&self) {
        self.parent.reclaim(u64::MAX, None);
    }

    fn wait_for_calls(&self) -> Result<(), Error> {
        self.hierarchy.wait_for_shrinkers(None).map_err(|error| Error::Wrong(error.to_string()))
    }
}

/// A shrinker of the control's, and its number.
type Numbered = (u64, Box<Answer>);

/// The lists of all groups, and a lock around them.
pub(super) struct Locked {
    lists: RwLock<Vec<Vec<Numbered>>>,
    numbers: AtomicU64,
}

impl Registry for Locked {
    type Registered = (usize, u64);

    fn build(_: SlotSource, groups: usize) -> Result<Locked, Error> {
        let lists = (0..groups).map(|_| Vec::new()).collect();
        let locked = Locked { lists: RwLock::new(lists), numbers: AtomicU64::new(0) };
        for group in 0..groups {
            locked.register(group, Answer(None))?;
        }
        Ok(locked)
    }

    fn register(&self, group: usize, shrinker: Answer) -> Result<(usize, u64), Error> {
        // ORDERING: Relaxed; a number by itself.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let shrinker = Box::new(shrinker);
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        lists[group].push((number, shrinker));
        Ok((group, number))
    }

    /// Here every shrinker is marked.
    fn mark(&self, _: &(usize, u64)) {}

    fn remove(&self, (group, number): (usize, u64)) -> Result<(), Error> {
        let gone =
            || Error::Wrong(format!("shrinker {number} is not in the control's list of group {group}"));
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        let index = lists[group].iter().position(|listed| listed.0 == number).ok_or_else(gone)?;
        let removed = lists[group].swap_remove(index);
        drop(lists);
        drop(removed);
        Ok(())
    }

    /// As the kernel's `synchronize_shrinkers`.
    fn wait_for_calls(&self) -> Result<(), Error> {
        drop(self.lists.write().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    fn walk(&self) {
        let groups = self.lists.try_read().map_or(0, |lists| lists.len());
        for group in 0..groups {
            // A group whose lock cannot be had is passed by.
            let Ok(lists) = self.lists.try_read() else { continue };
            for (_, shrinker) in &lists[group] {
                let called: &dyn Shrinker = &**shrinker;
                if called.count(0) != Count::Unknown {
                    shrinker.give();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_and_goes<R: Registry>() {
        let registry = R::build(SlotSource::virtual_slots(2).unwrap(), 3).unwrap();
        let gate = Gate::closed(Duration::ZERO);
        let registered = registry.register(1, Answer(Some(Arc::clone(&gate)))).unwrap();
        registry.mark(&registered);
        registry.walk();
        assert!(gate.was_entered(), "what is registered and marked is called");
        registry.remove(registered).unwrap();
        assert_eq!(Arc::strong_count(&gate), 1, "what is removed is dropped");
        registry.walk();
    }

    #[test]
    fn a_shrinker_is_called_while_it_is_registered() {
        comes_and_goes::<Ours>();
        comes_and_goes::<Locked>();
    }
}
