//! Table: the open descriptors by the number that the kernel gives back with each request.
//!
//! - I1. Every user finds places: the more are taken, the fewer a user may hold, and [`ALWAYS`] are
//!   never refused ([`has_place`]). A descriptor holds one place. The entries of a directory's list
//!   are added when it is made, so a user exceeds its part by one list at most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::FileHandle;

/// A user may take another place while it holds fewer than a `PART`th of the free ones: the first
/// user gets a fifth of all places, and the next one a fifth of the rest.
const PART: usize = 4;

/// The places that a user may always hold, whatever others hold.
pub(crate) const ALWAYS: usize = 16;

/// Returns whether a user that holds `held` places may take another one, if all users together hold
/// `all` of `most`.
pub(crate) fn has_place(held: usize, all: usize, most: usize) -> bool {
    held < ALWAYS.max(most.saturating_sub(all) / PART)
}

/// Open descriptors of one kind.
pub(crate) struct Table<T> {
    /// The places of all users together, beyond [`ALWAYS`] for each.
    most: usize,
    entries: Mutex<Entries<T>>,
}

struct Entries<T> {
    next: u64,
    open: HashMap<u64, Entry<T>>,
    /// Places that are held: of each user, and in all.
    held: HashMap<u32, usize>,
    all: usize,
}

struct Entry<T> {
    user: u32,
    places: usize,
    opened: Arc<T>,
}

impl<T> Table<T> {
    /// A table in which the first user gets `places`.
    pub(crate) fn new(places: usize) -> Table<T> {
        let entries = Entries { next: 1, open: HashMap::new(), held: HashMap::new(), all: 0 };
        Table { most: places * (PART + 1), entries: entries.into() }
    }

    fn entries(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if there is no place for the user (I1).
    pub(crate) fn insert(&self, user: u32, opened: T) -> Option<FileHandle> {
        let mut entries = self.entries();
        let held = entries.held.get(&user).copied().unwrap_or_default();
        if !has_place(held, entries.all, self.most) {
            return None;
        }
        let number = entries.next;
        entries.next += 1;
        entries.open.insert(number, Entry { user, places: 0, opened: Arc::new(opened) });
        entries.hold(number, 1);
        Some(FileHandle(number))
    }

    /// The descriptor holds so many places beside its own.
    pub(crate) fn hold(&self, handle: FileHandle, places: usize) {
        self.entries().hold(handle.0, places + 1);
    }

    pub(crate) fn get(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.entries().open.get(&handle.0).map(|entry| Arc::clone(&entry.opened))
    }

    pub(crate) fn remove(&self, handle: FileHandle) -> Option<Arc<T>> {
        let mut entries = self.entries();
        entries.hold(handle.0, 0);
        let Entry { user, opened, .. } = entries.open.remove(&handle.0)?;
        if entries.held.get(&user) == Some(&0) {
            entries.held.remove(&user);
        }
        Some(opened)
    }
}

impl<T> Entries<T> {
    /// The descriptor holds so many places in all.
    fn hold(&mut self, number: u64, places: usize) {
        if let Some(entry) = self.open.get_mut(&number) {
            let before = std::mem::replace(&mut entry.places, places);
            let held = self.held.entry(entry.user).or_default();
            *held = *held - before + places;
            self.all = self.all - before + places;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_user_beyond_its_part_and_leaves_places_to_every_other() {
        let table = Table::new(100);
        let first = table.insert(1, "a").unwrap();
        table.hold(first, 98);
        let second = table.insert(1, "b").unwrap();
        assert_eq!(table.insert(1, "c"), None);
        table.remove(second).unwrap();
        // The list of the last one that has a place may be long.
        let long = table.insert(1, "d").unwrap();
        table.hold(long, 200);
        assert_eq!((table.insert(1, "e"), table.entries().all), (None, 300));
        table.hold(long, 199);
        assert_eq!(table.entries().all, 299, "a list that is made again counts once");
        table.hold(long, 200);
        // Each takes as many as it gets.
        let take = |user| (0..100).take_while(|_| table.insert(user, "f").is_some()).count();
        let taken: Vec<usize> = (2..100).map(take).collect();
        assert_eq!(taken[..2], [40, 32], "a fifth of the free places each");
        assert!(taken.is_sorted_by(|before, after| before >= after), "{taken:?}");
        assert_eq!(taken[97], ALWAYS, "a late user has places");
        assert_eq!(*table.remove(long).unwrap(), "d");
        let last = table.insert(100, "g").unwrap();
        assert_eq!((*table.get(last).unwrap(), table.get(long)), ("g", None));
        (1..=last.0).for_each(|number| drop(table.remove(FileHandle(number))));
        let entries = table.entries();
        assert_eq!((entries.all, entries.held.len(), entries.open.len()), (0, 0, 0));
    }
}
