//! Boxed values that readers reach in a read section, and that are taken away while they do.
//!
//! ```text
//!   Published ── withdraw, or publish over ──▶ Withdrawn ── retire ──▶ Attic ── a grace period, reclaim ──▶ freed
//!       │ get, in a section                        │ deref
//!       ▼                                          ▼
//!   &T, as long as the section                 &T, as long as the Withdrawn
//! ```
//!
//! - I1. A place holds null, or a pointer out of a `Box` whose value is the place's.
//! - I2. A pointer leaves its place by an exchange, so for one caller. From then on no place holds it, and its value is that of one
//!   `Withdrawn`.
//! - I3. What `get` returns ends with the borrow of the section, so before the section, and with the borrow of the place.
//! - I4. A withdrawn value is freed by an attic alone, and after its grace period. The epoch is drawn after the exchange that took
//!   the value out, so G2 of the module holds for it: every section that may have found it is over.
//! - E1. publish → get: Release → Acquire on the place. Loom: `loom_a_section_sees_the_whole_of_what_was_published`.
//! - E2. publish → withdraw, or publish over: Release → Acquire on the place.
//!   Loom: `loom_who_takes_a_value_out_sees_the_whole_of_it`.
//! - E3. The end of a section → reclaim: by the grace period (`epoch` E2).
//!   Loom: `loom_a_section_never_sees_a_value_that_was_freed`.

#![allow(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::{NonNull, null_mut};

use super::section::model_failed;
use super::{BriefSection, Limbo, Section};
use crate::atomic::{AtomicPtr, Ordering};
use crate::interleave;
use crate::mutation::{Mutation, active};

/// A place for a boxed value that readers reach in a read section, and that can be taken away while they do.
///
/// It is one pointer wide. Dropping it frees the value that is in it: nobody reads any more then.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::grace::{self, Attic, Form, Published};
///
/// static NAME: Published<String> = Published::empty();
/// assert!(NAME.publish(Box::new("old".to_owned())).is_none());
///
/// let mut attic = Attic::new();
/// let section = grace::enter();
/// let name = NAME.get(&section).expect("a name");
/// let old = NAME.publish(Box::new("new".to_owned())).expect("the old name");
/// attic.retire(old, 3);
/// assert_eq!(attic.reclaim(), 0);
/// assert_eq!(name, "old", "for as long as the section lasts");
/// drop(section);
///
/// grace::synchronize(Form::Quiet);
/// assert_eq!(attic.reclaim(), 1);
/// # }
/// ```
pub struct Published<T> {
    place: AtomicPtr<T>,
    // Without it a place would be `Send` and `Sync` whatever is in it.
    value: PhantomData<*mut T>,
    /// The same once more, for a drop after the execution of the model, when nothing that is modelled is there any more.
    #[cfg(memgroup_loom)]
    shadow: std::sync::atomic::AtomicPtr<T>,
}

// SAFETY: a place that is sent takes its value along; nobody else reads that, because `get` borrows the place (I3).
unsafe impl<T: Send> Send for Published<T> {}
// SAFETY: through `&Published<T>` threads get `&T`, hence `Sync`, and take out values of each other, hence `Send`.
unsafe impl<T: Send + Sync> Sync for Published<T> {}

impl<T> Published<T> {
    /// A place with nothing in it.
    #[cfg(not(memgroup_loom))]
    #[must_use]
    pub const fn empty() -> Self {
        Self { place: AtomicPtr::new(null_mut()), value: PhantomData }
    }

    /// A place with nothing in it.
    #[cfg(memgroup_loom)]
    #[must_use]
    pub fn empty() -> Self {
        let shadow = std::sync::atomic::AtomicPtr::new(null_mut());
        Self { place: AtomicPtr::new(null_mut()), value: PhantomData, shadow }
    }

    /// What is in the place, which stays where it is for as long as the section lasts.
    ///
    /// It does not outlive the section:
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
        // SAFETY: the section is borrowed for as long as the reference (I3).
        unsafe { self.follow() }
    }

    /// The same in a brief section. After [`extend`](BriefSection::extend) the value is to be got again.
    #[inline(always)]
    pub fn get_brief<'s>(&'s self, _section: &'s BriefSection) -> Option<&'s T> {
        // SAFETY: the section is borrowed for as long as the reference (I3).
        unsafe { self.follow() }
    }

    /// What is in the place.
    ///
    /// # Safety
    ///
    /// The calling thread is in a section that lasts longer than the reference.
    #[inline(always)]
    unsafe fn follow(&self) -> Option<&T> {
        // ORDERING: Acquire; pairs with the Release in `publish` (E1). Weaker, the value could be read before it was written.
        let order = if active(Mutation::GetRelaxed) { Ordering::Relaxed } else { Ordering::Acquire };
        let value = self.place.load(order);
        // SAFETY: null, or out of a box (I1); if the value is withdrawn, it is not freed before the section is over (I4).
        unsafe { value.as_ref() }
    }

    /// Puts `value` into the place; what was there before.
    #[must_use = "what was there before leaks unless an attic takes it"]
    pub fn publish(&self, value: Box<T>) -> Option<Withdrawn<T>> {
        // ORDERING: AcqRel; Release pairs with the Acquire in `follow` (E1): without it a section could read the value before it
        // was written. Release with Acquire pairs this with the other exchanges (E2), as in `withdraw`.
        let order = if active(Mutation::PublishRelaxed) {
            Ordering::Acquire
        } else if active(Mutation::TakeRelaxed) {
            Ordering::Release
        } else {
            Ordering::AcqRel
        };
        self.exchange(Box::into_raw(value), order)
    }

    /// Takes the value out of the place. Sections that found it there go on seeing it.
    #[must_use = "what was there leaks unless an attic takes it"]
    pub fn withdraw(&self) -> Option<Withdrawn<T>> {
        // ORDERING: Acquire; pairs with the Release in `publish` (E2). Weaker, the value could be read or dropped before it was
        // written. Null shows nothing, so no Release; that sections see it in time is the grace period's work.
        let order = if active(Mutation::TakeRelaxed) { Ordering::Relaxed } else { Ordering::Acquire };
        self.exchange(null_mut(), order)
    }

    /// The only way out of the place (I2).
    fn exchange(&self, new: *mut T, order: Ordering) -> Option<Withdrawn<T>> {
        let old = if active(Mutation::TakeByStore) {
            // ORDERING: Acquire; the fault is that two threads can both find the value.
            let old = self.place.load(Ordering::Acquire);
            // ORDERING: Release, as above.
            self.place.store(new, Ordering::Release);
            old
        } else {
            // ORDERING: the caller's, who says why.
            self.place.swap(new, order)
        };
        // ORDERING: Relaxed; threads of a model take turns.
        #[cfg(memgroup_loom)]
        self.shadow.store(new, Ordering::Relaxed);
        NonNull::new(old).map(|value| Withdrawn { value })
    }
}

#[cfg(memgroup_loom)]
impl<T> Published<T> {
    fn drop_in_model(&self) {
        // ORDERING: Relaxed, as in `drop`.
        if let Some(value) = NonNull::new(self.place.load(Ordering::Relaxed)) {
            // SAFETY: as in `drop`.
            drop(unsafe { Box::from_raw(value.as_ptr()) });
        }
    }
}

impl<T> Default for Published<T> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").finish_non_exhaustive()
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        #[cfg(memgroup_loom)]
        let place = if crate::keep::is_over() { &self.shadow } else { return self.drop_in_model() };
        #[cfg(not(memgroup_loom))]
        let place = &self.place;
        // ORDERING: Relaxed; whoever gave the place to the caller alone has ordered what was done to it.
        if let Some(value) = NonNull::new(place.load(Ordering::Relaxed)) {
            // SAFETY: out of a box (I1), and the place's (I2). `get` borrows the place, which is dropped: nobody reads (I3).
            drop(unsafe { Box::from_raw(value.as_ptr()) });
        }
    }
}

/// A value that was published and is no more; readers that began before may still see it.
///
/// Give it to an [`Attic`]. Dropping it never frees the value, which leaks then.
#[must_use = "a withdrawn value leaks unless an attic takes it"]
pub struct Withdrawn<T> {
    value: NonNull<T>,
}

// SAFETY: whoever has it reads the value while sections of other threads do, hence `Sync`, and may have it dropped, hence `Send`.
unsafe impl<T: Send + Sync> Send for Withdrawn<T> {}
// SAFETY: through `&Withdrawn<T>` there is `&T` and nothing else.
unsafe impl<T: Sync> Sync for Withdrawn<T> {}

impl<T> Withdrawn<T> {
    /// Drops the value and gives its memory back.
    ///
    /// # Safety
    ///
    /// Every section that was begun before the value was withdrawn is over.
    unsafe fn free(self) {
        // SAFETY: out of a box (I1), and of this `Withdrawn` alone (I2); by the contract no section refers to it.
        drop(unsafe { Box::from_raw(self.value.as_ptr()) });
    }
}

impl<T> Deref for Withdrawn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: out of a box (I1), which is not freed before this `Withdrawn` is consumed (I2, I4).
        unsafe { self.value.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Withdrawn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Withdrawn").field(&**self).finish()
    }
}

/// Withdrawn values that wait for their grace periods.
///
/// It has no bound: what comes in is memory that is in use already, and this only keeps it from being freed too soon. How much that
/// is, [`bytes`](Self::bytes) tells.
///
/// Dropping it frees what may be freed by then and leaks the rest, because it must not wait: the caller may be in a section.
/// Who wants everything back calls [`synchronize`](super::synchronize) before.
pub struct Attic<T> {
    limbo: Limbo<Withdrawn<T>>,
}

impl<T> Attic<T> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { limbo: Limbo::new(usize::MAX) }
    }

    /// Takes a value, to drop it in a [`reclaim`](Self::reclaim) after its grace period. `bytes` is what the value holds, itself
    /// included, as far as the caller wants it counted.
    pub fn retire(&mut self, withdrawn: Withdrawn<T>, bytes: usize) {
        interleave::point();
        if active(Mutation::RetireFreesAtOnce) {
            // SAFETY: none, this is the fault. The memory stays, so that what a model reads of it is defined.
            return unsafe { withdrawn.value.drop_in_place() };
        }
        // The sum stays below the bound, so the value is never handed back.
        let bytes = bytes.min(self.limbo.bytes_max() - self.limbo.bytes());
        let refused = self.limbo.retire(withdrawn, bytes).is_err();
        debug_assert!(!refused, "the bytes were made to fit");
    }

    /// Drops every value whose grace period is over and counts them. Waits for nothing: grace periods end by what
    /// [`synchronize`](super::synchronize) does, on any thread, called after [`retire`](Self::retire).
    pub fn reclaim(&mut self) -> usize {
        // SAFETY: the epoch was drawn after the value was withdrawn, and is over (I4).
        self.limbo.reclaim(|withdrawn| unsafe { withdrawn.free() })
    }

    /// The values in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.limbo.len()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limbo.is_empty()
    }

    /// The bytes in it, as [`retire`](Self::retire) was told.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.limbo.bytes()
    }
}

impl<T> Default for Attic<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Attic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attic").field("values", &self.len()).field("bytes", &self.bytes()).finish()
    }
}

impl<T> Drop for Attic<T> {
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
