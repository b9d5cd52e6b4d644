//! Table: the open descriptors by the number that the kernel sends with each request.
//!
//! - I1. Every user finds places: the more are taken, the fewer a user may hold, and [`ALWAYS`] are
//!   never refused ([`has_place`]). A descriptor holds one place. The entries of a directory's list
//!   are added when it is made, so a user exceeds its part by one list at most.

use std::collections::HashMap;
use std::sync::Arc;

use fuser::FileHandle;
use parking_lot::Mutex;

/// A user may take another place while it holds fewer than a `PART`th of the free ones: the first
/// user gets a fifth of all places, and the next one a fifth of the rest.
const PART: usize = 4;

/// The places that a user may always hold, whatever others hold.
pub(crate) const ALWAYS: usize = 16;

/// Returns whether a user that holds `held` places may take another one, if all users together hold
/// `all` of `most`.
fn has_place(held: usize, all: usize, most: usize) -> bool {
    held < ALWAYS.max(most.saturating_sub(all) / PART)
}

/// The places that users hold.
#[derive(Default)]
pub(crate) struct Places {
    users: HashMap<u32, usize>,
    pub(crate) all: usize,
}

impl Places {
    /// Takes a place for a user. Returns `false` if there is none for it (I1).
    pub(crate) fn take(&mut self, user: u32, most: usize) -> bool {
        let held = self.users.get(&user).copied().unwrap_or_default();
        let has_place = has_place(held, self.all, most);
        if has_place {
            self.change(user, 0, 1);
        }
        has_place
    }

    /// Notes that the user holds `now` places instead of `before`.
    pub(crate) fn change(&mut self, user: u32, before: usize, now: usize) {
        let held = self.users.entry(user).or_default();
        *held = *held - before + now;
        self.all = self.all - before + now;
        if *held == 0 {
            self.users.remove(&user);
        }
    }
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
    places: Places,
}

struct Entry<T> {
    user: u32,
    places: usize,
    opened: Arc<T>,
}

impl<T> Table<T> {
    /// Makes a table in which the first user gets `places`.
    pub(crate) fn new(places: usize) -> Table<T> {
        let entries = Entries { next: 1, open: HashMap::new(), places: Places::default() };
        Table { most: places * (PART + 1), entries: entries.into() }
    }

    /// Adds a descriptor. Returns `None` if there is no place for the user (I1).
    pub(crate) fn insert(&self, user: u32, opened: T) -> Option<FileHandle> {
        let mut entries = self.entries.lock();
        if !entries.places.take(user, self.most) {
            return None;
        }
        let number = entries.next;
        entries.next += 1;
        entries.open.insert(number, Entry { user, places: 1, opened: Arc::new(opened) });
        Some(FileHandle(number))
    }

    /// Notes that the descriptor holds `places` places in addition to its own.
    pub(crate) fn hold(&self, handle: FileHandle, places: usize) {
        let mut entries = self.entries.lock();
        let Entries { open, places: all, .. } = &mut *entries;
        if let Some(entry) = open.get_mut(&handle.0) {
            let before = std::mem::replace(&mut entry.places, places + 1);
            all.change(entry.user, before, entry.places);
        }
    }

    pub(crate) fn get(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.entries.lock().open.get(&handle.0).map(|entry| Arc::clone(&entry.opened))
    }

    pub(crate) fn remove(&self, handle: FileHandle) -> Option<Arc<T>> {
        let mut entries = self.entries.lock();
        let Entry { user, places, opened } = entries.open.remove(&handle.0)?;
        entries.places.change(user, places, 0);
        Some(opened)
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
        assert_eq!((table.insert(1, "e"), table.entries.lock().places.all), (None, 300));
        table.hold(long, 199);
        assert_eq!(table.entries.lock().places.all, 299, "a list that is made again counts once");
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
        let entries = table.entries.lock();
        assert_eq!((entries.places.all, entries.places.users.len(), entries.open.len()), (0, 0, 0));
    }
}
