//! Table: the open descriptors by the number that the kernel gives back with each request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::FileHandle;

/// Open descriptors of one kind.
pub(crate) struct Table<T>(Mutex<Entries<T>>);

struct Entries<T> {
    next: u64,
    open: HashMap<u64, Arc<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(Mutex::new(Entries { next: 1, open: HashMap::new() }))
    }
}

impl<T> Table<T> {
    fn entries(&self) -> MutexGuard<'_, Entries<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, opened: T) -> FileHandle {
        let mut entries = self.entries();
        let number = entries.next;
        entries.next += 1;
        entries.open.insert(number, Arc::new(opened));
        FileHandle(number)
    }

    pub(crate) fn get(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.entries().open.get(&handle.0).cloned()
    }

    pub(crate) fn remove(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.entries().open.remove(&handle.0)
    }
}
