//! Sections, and the way from a thread to its record.
//!
//! - I1. A section is made after its reader has begun one, and nowhere else: dropping it ends one.
//! - I2. None of the thread-locals that a section goes through has a destructor, so sections can
//!   be entered at any time in a thread's life.
//! - I3. `BRIEF` holds the address of a record that lives for ever.

#![allow(unsafe_code)]

use core::cell::Cell;
use core::marker::PhantomData;

#[cfg(not(memgroup_loom))]
use super::epoch::ACTIVE;
use super::reader::Reader;
use super::registry;
use crate::keep::model_failed;

/// A read section: while it lives, no memory that was reachable when it began is used again.
///
/// It belongs to the thread that began it. Sections nest, and may end in any order: the protection
/// of the first lasts until the last is over. A section that is forgotten (`mem::forget`) never
/// ends, and no grace period ends after it.
#[derive(Debug)]
#[must_use = "a section is over when it is dropped"]
pub struct Section {
    reader: &'static Reader,
    on_this_thread: PhantomData<*const ()>,
}

/// A section that begins and ends with a store each, for a few instructions on a fast path.
///
/// It belongs to the thread that began it, and there is one at a time. Ordinary sections may begin
/// and end while it lasts, and the other way round.
#[derive(Debug)]
#[must_use = "a section is over when it is dropped"]
pub struct BriefSection {
    reader: &'static Reader,
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for BriefSection {
    #[inline(always)]
    fn drop(&mut self) {
        if !model_failed() {
            self.reader.end_brief();
        }
    }
}

#[cfg(all(test, memgroup_loom))]
impl Section {
    pub(super) fn is_on(&self, reader: &Reader) -> bool {
        core::ptr::eq(self.reader, reader)
    }
}

impl Drop for Section {
    #[inline(always)]
    fn drop(&mut self) {
        if !model_failed() {
            self.reader.end();
        }
    }
}

/// Stands for the record of a thread that has none. It is always in a brief section, so that no
/// thread begins one here.
#[cfg(not(memgroup_loom))]
static NO_RECORD: Reader = Reader::new(ACTIVE);

#[cfg(not(memgroup_loom))]
crate::thread_local! {
    // The thread's record or NO_RECORD, for `enter_briefly`. A pointer, because to older compilers
    // a constant cannot refer to a static that changes.
    static BRIEF: Cell<*const Reader> = const { Cell::new(&raw const NO_RECORD) };
}

crate::thread_local! {
    // Without a destructor, so that it is one load relative to the thread pointer and can be read
    // for as long as the thread runs.
    static OWN: Cell<Option<&'static Reader>> = const { Cell::new(None) };
    static END_OF_THREAD: EndOfThread = const { EndOfThread(Cell::new(None)) };
}

/// Gives the thread's record back when the thread ends.
struct EndOfThread(Cell<Option<&'static Reader>>);

#[cfg(any(not(memgroup_loom), test))]
impl EndOfThread {
    fn end_of_thread(&self) {
        if let Some(reader) = self.0.take() {
            set_own(None);
            reader.give_back_after_last_section();
        }
    }
}

#[cfg(not(memgroup_loom))]
impl Drop for EndOfThread {
    fn drop(&mut self) {
        self.end_of_thread();
    }
}

/// Ends a model's thread. The thread calls it, because loom destroys thread-locals after a join,
/// and after the statics.
#[cfg(all(test, memgroup_loom))]
pub(super) fn end_of_thread() {
    END_OF_THREAD.with(EndOfThread::end_of_thread);
}

/// Begins a read section; see the [module](super).
///
/// The first section of a thread claims a record for it. None allocates through the global
/// allocator, and none panics.
#[inline(always)]
pub fn enter() -> Section {
    match own() {
        Some(reader) => begin(reader),
        None => enter_first(),
    }
}

/// Begins a brief section if that takes two loads and a store: the thread has a record, is in no
/// other brief section, and sections are entered by a store. It makes no function call, so that a
/// fast path around it keeps its registers. After `None` the caller takes [`enter`].
#[cfg(not(memgroup_loom))]
#[inline(always)]
pub fn enter_briefly() -> Option<BriefSection> {
    let reader = BRIEF.with(Cell::get);
    // SAFETY: that of NO_RECORD, or one that came as a `&'static` (I3).
    begin_briefly(unsafe { &*reader })
}

/// The same, in a model.
#[cfg(memgroup_loom)]
pub fn enter_briefly() -> Option<BriefSection> {
    begin_briefly(own()?)
}

#[inline(always)]
fn begin(reader: &'static Reader) -> Section {
    reader.begin();
    Section { reader, on_this_thread: PhantomData }
}

#[inline(always)]
fn begin_briefly(reader: &'static Reader) -> Option<BriefSection> {
    // `then_some` would make a section, and end it, where none was begun.
    if reader.begin_brief() { Some(BriefSection { reader, on_this_thread: PhantomData }) } else { None }
}

/// The thread has this record, or none, from now on.
fn set_own(reader: Option<&'static Reader>) {
    OWN.with(|own| own.set(reader));
    #[cfg(not(memgroup_loom))]
    BRIEF.with(|brief| brief.set(reader.unwrap_or(&NO_RECORD)));
}

#[inline(always)]
fn own() -> Option<&'static Reader> {
    OWN.with(Cell::get)
}

/// Returns whether this thread is in a section, where [`synchronize`](super::synchronize) would
/// panic.
pub fn inside() -> bool {
    own().is_some_and(|reader| reader.is_active() || reader.is_in_brief())
}

#[cold]
#[inline(never)]
fn enter_first() -> Section {
    let reader = registry::claim();
    // Set first: where registering the destructor allocates, the allocator may enter a section of
    // its own.
    set_own(Some(reader));
    if END_OF_THREAD.try_with(|end| end.0.set(Some(reader))).is_ok() {
        return begin(reader);
    }
    // The thread is ending and its record has gone back: this one is for the section alone.
    set_own(None);
    let section = begin(reader);
    reader.give_back_after_last_section();
    section
}
