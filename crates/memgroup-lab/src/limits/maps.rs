//! The controls of groups that come and go: names in a hash map behind a mutex, with a line for each group, or with all counters behind
//! the same mutex.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::PAGE;
use super::ledger::CasLevel;
use crate::harness::prelude::*;

/// Levels above each group.
const ABOVE: usize = super::LEVELS - 1;
const ROOM: &str = "the control refused a charge far below every limit";

/// Named groups of a control, below one parent.
pub(super) trait Names: Send + Sync {
    /// Adds a group; its name is free.
    fn create(&self, name: &str) -> Result<()>;

    fn remove(&self, name: &str) -> Result<()>;

    /// A copy of all names; how many.
    fn list(&self) -> usize;

    /// The sum of all groups' bytes.
    fn usage(&self) -> u64;

    /// Creates a group, charges a page, frees it and removes the group.
    fn live(&self, name: &str) -> Result<()>;
}

fn is_new(was: bool, name: &str) -> Result<()> {
    ensure(was, || format!("the control's group {name} was there or was not"))
}

/// A map of lines, which are charged outside the lock.
pub(super) struct CasMap {
    groups: Mutex<HashMap<Box<str>, Arc<CasLevel>>>,
    above: [CasLevel; ABOVE],
}

impl CasMap {
    pub(super) fn new() -> CasMap {
        CasMap { groups: Mutex::default(), above: std::array::from_fn(|_| CasLevel::new(FAR_BYTES)) }
    }

    fn add(&self, name: &str) -> Result<Arc<CasLevel>> {
        let line = Arc::new(CasLevel::new(FAR_BYTES));
        let before = lock(&self.groups).insert(name.into(), Arc::clone(&line));
        is_new(before.is_none(), name)?;
        Ok(line)
    }

    fn pair(&self, line: &CasLevel) -> Result<()> {
        let levels = || std::iter::once(line).chain(&self.above);
        ensure(levels().all(|level| level.take(PAGE)), || ROOM.to_owned())?;
        levels().for_each(|level| level.give(PAGE));
        Ok(())
    }
}

impl Names for CasMap {
    fn create(&self, name: &str) -> Result<()> {
        self.add(name).map(drop)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let removed = lock(&self.groups).remove(name);
        is_new(removed.is_some(), name)
    }

    fn list(&self) -> usize {
        lock(&self.groups).keys().cloned().collect::<Vec<_>>().len()
    }

    fn usage(&self) -> u64 {
        let lines: Vec<Arc<CasLevel>> = lock(&self.groups).values().cloned().collect();
        lines.iter().map(|line| line.usage()).sum()
    }

    fn live(&self, name: &str) -> Result<()> {
        self.pair(&*self.add(name)?)?;
        self.remove(name)
    }
}

/// All behind one mutex.
#[derive(Default)]
pub(super) struct MutexMap(Mutex<MutexNames>);

#[derive(Default)]
struct MutexNames {
    /// Usage, and two more numbers as the other accounts have: a limit and a count.
    groups: HashMap<Box<str>, [u64; 3]>,
    above: [u64; ABOVE],
}

impl MutexMap {
    /// Adds to a group and all above it, if the result is within the limits.
    fn change(&self, name: &str, bytes: i64) -> Result<()> {
        let mut names = lock(&self.0);
        let MutexNames { groups, above } = &mut *names;
        let group = groups.get_mut(name).ok_or("no such group").or_wrong(name)?;
        let levels = || std::iter::once(group[0]).chain(above.iter().copied());
        let fits = levels().all(|usage| usage.checked_add_signed(bytes).is_some_and(|now| now <= FAR_BYTES));
        ensure(fits, || ROOM.to_owned())?;
        let all = std::iter::once(&mut group[0]).chain(above);
        all.for_each(|usage| *usage = usage.wrapping_add_signed(bytes));
        Ok(())
    }
}

impl Names for MutexMap {
    fn create(&self, name: &str) -> Result<()> {
        let before = lock(&self.0).groups.insert(name.into(), [0; 3]);
        is_new(before.is_none(), name)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let removed = lock(&self.0).groups.remove(name);
        is_new(removed.is_some(), name)
    }

    fn list(&self) -> usize {
        lock(&self.0).groups.keys().cloned().collect::<Vec<_>>().len()
    }

    fn usage(&self) -> u64 {
        lock(&self.0).groups.values().map(|group| group[0]).sum()
    }

    fn live(&self, name: &str) -> Result<()> {
        self.create(name)?;
        self.change(name, PAGE as i64)?;
        self.change(name, -(PAGE as i64))?;
        self.remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps_names_and_bytes(names: &impl Names) {
        names.create("a").unwrap();
        names.create("b").unwrap();
        assert_eq!(names.list(), 2);
        assert!(names.create("a").is_err(), "the name is taken");
        names.live("c").unwrap();
        assert_eq!(names.usage(), 0);
        names.remove("a").unwrap();
        assert!(names.remove("a").is_err(), "it is gone");
        assert_eq!(names.list(), 1);
    }

    #[test]
    fn keeps_names_and_bytes_in_both_controls() {
        keeps_names_and_bytes(&CasMap::new());
        keeps_names_and_bytes(&MutexMap::default());
    }
}
