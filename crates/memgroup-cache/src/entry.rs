//! An entry, which holds its charge, and the error of an insertion.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use memgroup::{Charge, ChargeError};

/// A value with the charge of its bytes. A clone is another reference to the same value.
///
/// The cache has a reference, and each reader. The last one uncharges the bytes.
pub struct Entry<V>(pub(crate) Arc<Charged<V>>);

impl<V> Entry<V> {
    /// The bytes that are charged for the entry: its weight and
    /// [`CacheConfig::entry_bytes`](crate::CacheConfig::entry_bytes).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.charge.bytes()
    }
}

impl<V> Clone for Entry<V> {
    fn clone(&self) -> Entry<V> {
        Entry(Arc::clone(&self.0))
    }
}

impl<V> Deref for Entry<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.0.value
    }
}

impl<V: fmt::Debug> fmt::Debug for Entry<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("value", &self.0.value).field("bytes", &self.bytes()).finish()
    }
}

pub(crate) struct Charged<V> {
    // Declared in this order so that the value's memory is free when its bytes are uncharged, even
    // if its drop panics.
    value: V,
    charge: Charge,
    /// The shard of the cache, if its user needs that.
    pub(crate) shard: usize,
}

impl<V> Charged<V> {
    pub(crate) fn new(value: V, charge: Charge, shard: usize) -> Charged<V> {
        Charged { value, charge, shard }
    }
}

/// Drops a user's value. The panic hook has reported a panic of its drop, and the thread continues.
///
/// A cache drops values of several users on one thread. If such a panic continued, it would skip
/// the drops of the others.
pub(crate) fn discard<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // Its drop could panic as well.
        std::mem::forget(payload);
    }
}

/// The error of an insertion, with the value. The cache holds nothing under the key.
pub struct NotCached<V> {
    value: V,
    reason: NotCachedReason,
}

/// The reason why a value is not in the cache.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum NotCachedReason {
    /// Its group could not be charged.
    Charge(ChargeError),
    /// It is too large for the cache, or for its shard. Nothing was charged.
    TooLarge {
        /// The bytes of the entry.
        bytes: u64,
        /// The most that an entry may have.
        most: u64,
    },
}

impl<V> NotCached<V> {
    pub(crate) fn new(value: V, reason: NotCachedReason) -> NotCached<V> {
        NotCached { value, reason }
    }

    /// The value, which is not charged.
    #[must_use]
    pub fn into_value(self) -> V {
        self.value
    }

    /// The reason.
    pub fn reason(&self) -> NotCachedReason {
        self.reason
    }
}

impl fmt::Display for NotCachedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotCachedReason::Charge(error) => write!(f, "cache a value: failed to {error}"),
            NotCachedReason::TooLarge { bytes, most } => {
                write!(
                    f,
                    "cache a value of {bytes} bytes: an entry may have {most}; give the cache more capacity"
                )
            }
        }
    }
}

impl<V> fmt::Display for NotCached<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<V> fmt::Debug for NotCached<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotCached").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<V> Error for NotCached<V> {}
