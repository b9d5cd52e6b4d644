//! Table: the open descriptors by the number that the kernel gives back with each request.
//!
//! - I1. A user that holds as many places as its bound, and any user when all places are held, gets no more. A descriptor holds one place. The
//!   entries of a directory's list are added when it is made, so a user exceeds the bound by one list at most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::FileHandle;

/// Users that hold all they may before a table is full.
const USERS: usize = 4;

/// Open descriptors of one kind.
pub(crate) struct Table<T> {
    /// The places of one user.
    places: usize,
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
    /// A table in which a user has so many places.
    pub(crate) fn new(places: usize) -> Table<T> {
        let entries = Entries { next: 1, open: HashMap::new(), held: HashMap::new(), all: 0 };
        Table { places, entries: entries.into() }
    }

    fn entries(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if there is no place for the user (I1).
    pub(crate) fn insert(&self, user: u32, opened: T) -> Option<FileHandle> {
        let mut entries = self.entries();
        let held = entries.held.get(&user).copied().unwrap_or_default();
        if held >= self.places || entries.all >= self.places * USERS {
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
    fn refuses_a_user_beyond_its_places_and_all_users_beyond_theirs() {
        let table = Table::new(10);
        let first = table.insert(1, "a").unwrap();
        table.hold(first, 8);
        let second = table.insert(1, "b").unwrap();
        assert_eq!(table.insert(1, "c"), None);
        table.remove(second).unwrap();
        // The list of the last one that has a place may be long.
        let long = table.insert(1, "d").unwrap();
        table.hold(long, 20);
        assert_eq!((table.insert(1, "e"), table.entries().all), (None, 30));
        table.hold(long, 19);
        assert_eq!(table.entries().all, 29, "a list that is made again counts once");
        table.hold(long, 20);
        for _ in 0..10 {
            table.insert(2, "f").unwrap();
        }
        assert_eq!(table.insert(3, "g"), None, "no place is left");
        assert_eq!(*table.remove(long).unwrap(), "d");
        let last = table.insert(3, "g").unwrap();
        assert_eq!((*table.get(last).unwrap(), table.get(long)), ("g", None));
        (1..=last.0).for_each(|number| drop(table.remove(FileHandle(number))));
        let entries = table.entries();
        assert_eq!((entries.all, entries.held.len(), entries.open.len()), (0, 0, 0));
    }
}
