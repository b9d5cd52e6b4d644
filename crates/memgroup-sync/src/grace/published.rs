//! Boxed values that readers reach in a read section, and that are taken away while they do.
//!
//! ```text
//!   Published ── withdraw, or publish over ──▶ Withdrawn ── retire ──▶ DeferredFree ── a grace period, reclaim ──▶ freed
//!       │ get, in a section                        │ deref
//!       ▼                                          ▼
//!   &T, as long as the section                 &T, as long as the Withdrawn
//! ```
//!
//! - I1. A value leaves its `Published` by an exchange, so for one caller (`AtomicBox` I2). From
//!   then on it is the value of one `Withdrawn`.
//! - I2. The reference from `get` ends with the borrow of the section, so before the section, and
//!   with the borrow of the place.
//! - I3. Only `DeferredFree` frees a withdrawn value, and after its grace period. It draws the
//!   epoch after the exchange that took the value out, so G2 of the module holds for it: every
//!   section that may have found the value is over.
//! - E1. publish → get: Release → Acquire on the pointer. Loom:
//!   `loom_a_section_sees_the_whole_of_a_published_value`.
//! - E2. publish → withdraw, or publish over: Release → Acquire on the pointer. Loom:
//!   `loom_a_withdrawn_value_is_seen_whole`.
//! - E3. The end of a section → reclaim: by the grace period (`epoch` E2). Loom:
//!   `loom_a_section_never_sees_a_value_that_was_freed`.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

use super::{Limbo, Section};
use crate::atomic::Ordering;
use crate::atomic_box::AtomicBox;
use crate::keep::model_failed;
use crate::mutation::{Mutation, active};
use crate::{Erasable, interleave};

/// A place for a boxed value that readers reach in a read section, and that can be taken away
/// while they do.
///
/// It is one pointer wide. Dropping it frees the value in it, which no thread reads any more then.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::grace::{self, DeferredFree, Form, Published};
///
/// static NAME: Published<String> = Published::empty();
/// assert!(NAME.publish(Box::new("old".to_owned())).is_none());
///
/// let mut deferred = DeferredFree::new();
/// let section = grace::enter();
/// let name = NAME.get(&section).expect("a name");
/// let old = NAME.publish(Box::new("new".to_owned())).expect("the old name");
/// deferred.retire(old, 3);
/// assert_eq!(deferred.reclaim(), 0);
/// assert_eq!(name, "old", "for as long as the section lasts");
/// drop(section);
///
/// grace::synchronize(Form::Quiet);
/// assert_eq!(deferred.reclaim(), 1);
/// # }
/// ```
pub struct Published<T> {
    value: AtomicBox<T>,
}

impl<T> Published<T> {
    /// A place without a value.
    #[cfg(not(memgroup_loom))]
    pub const fn empty() -> Self {
        Self { value: AtomicBox::empty() }
    }

    /// A place without a value.
    #[cfg(memgroup_loom)]
    pub fn empty() -> Self {
        Self { value: AtomicBox::empty() }
    }

    /// The value, which stays as it is for as long as the section lasts.
    ///
    /// The reference does not outlive the section:
    ///
    /// ```compile_fail,E0505
    /// use memgroup_sync::grace::{self, Published};
    ///
    /// let place = Published::<String>::empty();
    /// let section = grace::enter();
    /// let name = place.get(&section);
    /// drop(section);
    /// assert_eq!(name, None);
    /// ```
    #[inline(always)]
    pub fn get<'s>(&'s self, _section: &'s Section) -> Option<&'s T> {
        let relaxed = active(Mutation::GetRelaxed);
        // ORDERING: Acquire; pairs with the Release in `publish` (E1). Weaker, the value could be
        // read before it was written.
        let value = self.value.load(if relaxed { Ordering::Relaxed } else { Ordering::Acquire })?;
        // SAFETY: the section is borrowed for as long as the reference (I2). If the value is
        // withdrawn, it is not freed before the section is over (I3).
        Some(unsafe { value.as_ref() })
    }

    /// Like [`get`](Self::get), with a section of its own.
    #[inline]
    pub fn lend(&self) -> Option<Lent<'_, T>> {
        let section = super::enter();
        let value = NonNull::from(self.get(&section)?);
        Some(Lent { value, section, of: PhantomData })
    }

    /// Replaces the value; returns the old one.
    #[must_use = "the old value leaks unless a `DeferredFree` takes it"]
    pub fn publish(&self, value: Box<T>) -> Option<Withdrawn<T>> {
        // ORDERING: AcqRel; Release pairs with the Acquire in `get` (E1): without it a section
        // could read the value before it was written. Release with Acquire pairs this with the
        // other exchanges (E2), as in `withdraw`.
        let order = match () {
            _ if active(Mutation::PublishRelaxed) => Ordering::Acquire,
            _ if active(Mutation::TakeRelaxed) => Ordering::Release,
            _ => Ordering::AcqRel,
        };
        self.exchange(Some(value), order)
    }

    /// Takes the value out. Sections that found it continue to see it.
    #[must_use = "the value leaks unless a `DeferredFree` takes it"]
    pub fn withdraw(&self) -> Option<Withdrawn<T>> {
        let relaxed = active(Mutation::TakeRelaxed);
        // ORDERING: Acquire; pairs with the Release in `publish` (E2). Weaker, the value could be
        // read or dropped before it was written. Null publishes nothing, so no Release; the grace
        // period's work is that sections see it in time.
        self.exchange(None, if relaxed { Ordering::Relaxed } else { Ordering::Acquire })
    }

    /// Takes the value out, the only way to do so (I1).
    fn exchange(&self, new: Option<Box<T>>, order: Ordering) -> Option<Withdrawn<T>> {
        // ORDERING: Acquire; the fault is that two threads can both find the value.
        let loaded = active(Mutation::TakeByStore).then(|| self.value.load(Ordering::Acquire));
        let swapped = self.value.swap(new, order);
        loaded.unwrap_or(swapped).map(|value| Withdrawn { value })
    }
}

/// A published value, or a part of it, with the read section that keeps it.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::grace::Published;
///
/// let place: Published<(u32, String)> = Published::empty();
/// assert!(place.publish(Box::new((7, "seven".to_owned()))).is_none());
/// let name = place.lend().expect("a value").map(|(_, name)| name.as_str());
/// assert_eq!(&*name, "seven");
/// # }
/// ```
pub struct Lent<'p, T: ?Sized> {
    value: NonNull<T>,
    section: Section,
    /// The place, which frees the value in it when it is dropped.
    of: PhantomData<&'p T>,
}

impl<'p, T: ?Sized> Lent<'p, T> {
    /// A part of the value, kept by the same section.
    pub fn map<U: ?Sized>(self, part: impl FnOnce(&T) -> &U) -> Lent<'p, U> {
        let value = NonNull::from(part(&self));
        Lent { value, section: self.section, of: PhantomData }
    }

    /// Like [`map`](Self::map), for a part that may not be there.
    pub fn find<U: ?Sized>(self, part: impl FnOnce(&T) -> Option<&U>) -> Option<Lent<'p, U>> {
        let value = NonNull::from(part(&self)?);
        Some(Lent { value, section: self.section, of: PhantomData })
    }
}

impl<T: ?Sized> Deref for Lent<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `get` returned it, or the value it is part of, for the section that is held
        // beside it.
        unsafe { self.value.as_ref() }
    }
}

// SAFETY: one atomic pointer, for which null is a value. A value that is erased leaks, and is
// never freed under a reader. (Loom's has a second pointer, and a model erases nothing.)
unsafe impl<T: Send + Sync + 'static> Erasable for Published<T> {
    fn zero() -> Self {
        Published::empty()
    }

    unsafe fn erase(&self) {
        let _leaks = self.withdraw();
    }
}

/// A value that was published and then withdrawn; readers that began before may still see it.
///
/// Give it to a [`DeferredFree`]. Dropping it never frees the value, which leaks then.
#[must_use = "a withdrawn value leaks unless a `DeferredFree` takes it"]
pub struct Withdrawn<T> {
    value: NonNull<T>,
}

// SAFETY: its owner reads the value while sections of other threads do, hence `Sync`, and may have
// it dropped, hence `Send`.
unsafe impl<T: Send + Sync> Send for Withdrawn<T> {}
// SAFETY: through `&Withdrawn<T>` there is `&T` and nothing else.
unsafe impl<T: Sync> Sync for Withdrawn<T> {}

impl<T> Deref for Withdrawn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: out of a box, which is not freed before this `Withdrawn` is consumed (I1, I3).
        unsafe { self.value.as_ref() }
    }
}

/// Withdrawn values that wait for their grace periods.
///
/// It has no bound: it only delays the freeing of memory that is in use already.
/// [`bytes`](Self::bytes) tells how much that is.
///
/// Dropping it frees the values after their grace period and leaks the rest. It must not wait,
/// because the caller may be in a section. A caller that wants all memory back calls
/// [`synchronize`](super::synchronize) before.
pub struct DeferredFree<T> {
    limbo: Limbo<Withdrawn<T>>,
}

impl<T> DeferredFree<T> {
    /// Makes an empty one.
    #[expect(clippy::new_without_default, reason = "no caller makes one by default")]
    pub fn new() -> Self {
        Self { limbo: Limbo::new(usize::MAX) }
    }

    /// Takes a value, which a [`reclaim`](Self::reclaim) after its grace period drops. `bytes` is
    /// the size of the value with all that it holds, as far as the caller wants it counted.
    pub fn retire(&mut self, withdrawn: Withdrawn<T>, bytes: usize) {
        interleave::point();
        if active(Mutation::RetireFreesAtOnce) {
            // SAFETY: none, this is the fault. The memory stays, so that a model's reads of it are
            // defined.
            return unsafe { withdrawn.value.drop_in_place() };
        }
        // The sum stays below the bound, so the value is never handed back.
        let bytes = bytes.min(self.limbo.bytes_max - self.limbo.bytes());
        let refused = self.limbo.retire(withdrawn, bytes).is_err();
        debug_assert!(!refused, "the bytes were made to fit");
    }

    /// Drops every value with a grace period that is over; returns how many. It waits for nothing:
    /// a grace period ends when a thread calls [`synchronize`](super::synchronize) after
    /// [`retire`](Self::retire).
    pub fn reclaim(&mut self) -> usize {
        self.reclaim_some(usize::MAX)
    }

    /// Like [`reclaim`](Self::reclaim), for at most `most` values, the oldest first.
    pub fn reclaim_some(&mut self, most: usize) -> usize {
        // SAFETY: out of a box, and of this `Withdrawn` alone (I1). The epoch was drawn after the
        // value was withdrawn, and is over: no section refers to it (I3).
        self.limbo.reclaim_some(most, |withdrawn| drop(unsafe { Box::from_raw(withdrawn.value.as_ptr()) }))
    }

    /// The number of values in it.
    pub fn len(&self) -> usize {
        self.limbo.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.limbo.is_empty()
    }

    /// The bytes in it, as given to [`retire`](Self::retire).
    pub fn bytes(&self) -> usize {
        self.limbo.bytes()
    }
}

impl<T> Drop for DeferredFree<T> {
    fn drop(&mut self) {
        #[cfg(memgroup_loom)]
        if crate::keep::is_over() {
            return;
        }
        if !model_failed() {
            self.reclaim();
        }
    }
}
