//! Keys and contents of the underlying cache: the user's, and those of wedges.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};

use equivalent::Equivalent;

/// A key of the underlying cache.
#[derive(PartialEq, Eq)]
pub(crate) enum Slot<K> {
    /// The user's.
    Key(K),
    /// The key of a wedge, which is an entry that consists only of weight.
    Wedge(u64),
}

/// The content of the underlying cache under a key.
#[derive(Clone)]
pub(crate) enum Held<E> {
    Entry(E),
    /// The weight of a wedge.
    Wedge(u64),
}

impl<E> Held<E> {
    pub(crate) fn into_entry(self) -> Option<E> {
        match self {
            Held::Entry(entry) => Some(entry),
            Held::Wedge(_) => None,
        }
    }
}

impl<K: Hash> Hash for Slot<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Hashes like the user's key, so that a look-up needs no `Slot`.
        match self {
            Slot::Key(key) => key.hash(state),
            Slot::Wedge(number) => number.hash(state),
        }
    }
}

/// A key to look up.
pub(crate) struct KeyRef<'q, Q: ?Sized>(pub(crate) &'q Q);

impl<Q: Hash + ?Sized> Hash for KeyRef<'_, Q> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<K: Borrow<Q>, Q: Eq + ?Sized> Equivalent<Slot<K>> for KeyRef<'_, Q> {
    fn equivalent(&self, slot: &Slot<K>) -> bool {
        matches!(slot, Slot::Key(key) if key.borrow() == self.0)
    }
}

/// The key of a wedge, to look up.
pub(crate) struct WedgeRef(pub(crate) u64);

impl Hash for WedgeRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<K> Equivalent<Slot<K>> for WedgeRef {
    fn equivalent(&self, slot: &Slot<K>) -> bool {
        matches!(slot, Slot::Wedge(number) if *number == self.0)
    }
}
