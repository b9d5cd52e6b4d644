//! A thread's record, and the section that lives on it.
//!
//! ```text
//!   128 bytes   word      0, or the clock as the outermost section found it, with ACTIVE
//!               nested    sections inside the outermost one; ON_LOAN: the record goes back when the last one ends
//!               swapped   the clock as the thread last entered by a swap
//!               owner     the owner's thread id, 0: free
//!               noted     what a waiting writer saw in the word, and since when
//! ```
//!
//! - I1. `word`, `nested` and `swapped` are written by the owner alone: its thread, or a signal handler upon it, which
//!   leaves them as it found them. A scan reads, and where it exchanges it exchanges nothing.
//! - I2. `word` keeps the epoch of the outermost section until the last section on the record ends, in whatever order they
//!   are dropped: a nested section is covered by the older epoch, never the other way round.
//! - I3. A record whose `owner` is 0 has `word` and `nested` 0.
//! - I4. Records live for ever (see `registry`), so a section refers to its own by a plain reference.
//! - E1. leave → scan: Release → Acquire on `word`. Loom: `loom_a_reader_never_sees_what_is_used_again`.
//! - E2. give back → claim: Release → Acquire on `owner`. Loom: `loom_a_record_that_changes_hands_is_one_threads_at_a_time`.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::compiler_fence;

#[cfg(not(memgroup_loom))]
use super::epoch::ACTIVE;
use super::epoch::{self, Epoch, SWAP};
use super::registry;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::interleave;
use crate::mutation::{Mutation, active};

/// In `nested`: the thread has ended, or is ending, and the record goes back when its last section is over.
const ON_LOAN: u64 = 1 << 63;

/// One thread's record, in lines of its own.
#[repr(align(128))]
pub(super) struct Reader {
    pub(super) word: AtomicU64,
    nested: AtomicU64,
    pub(super) swapped: AtomicU64,
    pub(super) owner: AtomicU32,
    pub(super) noted_word: AtomicU64,
    pub(super) noted_at: AtomicU64,
}

/// Words that are all zero: what a fresh record is.
macro_rules! fresh {
    () => {
        Self {
            word: AtomicU64::new(0),
            nested: AtomicU64::new(0),
            swapped: AtomicU64::new(0),
            owner: AtomicU32::new(0),
            noted_word: AtomicU64::new(0),
            noted_at: AtomicU64::new(0),
        }
    };
}

impl Reader {
    #[cfg(not(memgroup_loom))]
    pub(super) const fn new() -> Self {
        fresh!()
    }

    #[cfg(memgroup_loom)]
    pub(super) fn new() -> Self {
        fresh!()
    }

    /// Takes a free record for the thread `owner`, which is not 0.
    pub(super) fn claim(&self, owner: u32) -> bool {
        // ORDERING: Relaxed; a hint, the exchange decides.
        if self.owner.load(Ordering::Relaxed) != 0 {
            return false;
        }
        interleave::point();
        if active(Mutation::ClaimByStore) {
            // ORDERING: Release; the fault is that two threads can both have seen it free.
            self.owner.store(owner, Ordering::Release);
            return true;
        }
        // ORDERING: Acquire; pairs with the Release in `give_back` (E2), without it the words of the last owner could
        // be read. Release only continues the chain that a scan's exchange begins.
        self.owner.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn give_back(&self) {
        // ORDERING: Relaxed; the owner's own word (I1), published by the store below.
        self.nested.store(0, Ordering::Relaxed);
        // ORDERING: Release; pairs with the exchange in `claim` (E2): the next owner finds `word` and `nested` at 0.
        let order = if active(Mutation::GiveBackRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        self.owner.store(0, order);
    }

    #[inline(always)]
    fn is_active(&self) -> bool {
        // ORDERING: Relaxed; the owner reads its own word (I1).
        self.word.load(Ordering::Relaxed) != 0
    }

    #[inline(always)]
    fn begin(&'static self) -> Section {
        if self.is_active() {
            self.begin_nested();
            return self.section();
        }
        let clock = epoch::now();
        interleave::point();
        if clock & SWAP != 0 && !active(Mutation::EnterByStore) {
            self.begin_by_swap(clock);
            self.section()
        } else {
            self.begin_by_store(clock)
        }
    }

    /// What ends the section that was just begun. Nothing else makes one: dropping it is what ends the section.
    #[inline(always)]
    fn section(&'static self) -> Section {
        Section { reader: self, on_this_thread: PhantomData }
    }

    /// The outermost section, while `clock` does not ask for a swap.
    #[inline(always)]
    fn begin_by_store(&'static self, clock: u64) -> Section {
        // ORDERING: Release; pairs with the scan's Acquire: who sees this section knows that the one before it on
        // this record is over. That it is seen at all before the section's loads is the barrier's work.
        self.word.store(clock, Ordering::Release);
        // The barrier on the writer's side orders what the processor does; this, what the compiler does.
        compiler_fence(Ordering::SeqCst);
        self.section()
    }

    #[cold]
    #[inline(never)]
    fn begin_by_swap(&self, clock: u64) {
        // ORDERING: Release; a scan that finds it (lost barrier) knows that the sections entered by a store are over.
        self.swapped.store(clock, Ordering::Release);
        // ORDERING: AcqRel; pairs with the scan's exchange of this word. One of the two is first: either the scan
        // sees this section, or this section sees what was unlinked before the scan. Weaker, both could miss.
        self.word.swap(clock, Ordering::AcqRel);
    }

    #[cold]
    #[inline(never)]
    fn begin_nested(&self) {
        if active(Mutation::NestedTakesNewEpoch) {
            // ORDERING: AcqRel, as in `begin`; the fault is the epoch.
            self.word.swap(epoch::now(), Ordering::AcqRel);
        }
        // ORDERING: Relaxed; the owner's own word (I1).
        let nested = self.nested.load(Ordering::Relaxed);
        // ORDERING: Relaxed, as above. A signal between the two leaves what it found.
        self.nested.store(nested + 1, Ordering::Relaxed);
    }

    #[inline(always)]
    fn end(&'static self) {
        interleave::point();
        // ORDERING: Relaxed; the owner's own word (I1).
        if self.nested.load(Ordering::Relaxed) == 0 || active(Mutation::NestedLeaveIsLast) {
            self.end_outermost();
        } else {
            self.end_nested();
        }
    }

    #[inline(always)]
    fn end_outermost(&self) {
        // ORDERING: Release; pairs with the scan's Acquire (E1). Weaker, memory could be reused before the section's last
        // access to it.
        let order = if active(Mutation::LeaveRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        if cfg!(memgroup_loom) && !leaves_as_shipped() {
            // ORDERING: that of the store below.
            self.word.swap(0, order);
        } else {
            self.word.store(0, order);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_nested(&self) {
        // ORDERING: Relaxed; the owner's own word (I1).
        let nested = self.nested.load(Ordering::Relaxed);
        if nested == ON_LOAN {
            self.end_outermost();
            self.give_back();
        } else {
            // ORDERING: Relaxed, as above.
            self.nested.store(nested - 1, Ordering::Relaxed);
        }
    }

    /// The record goes back with the end of its last section, at once if there is none.
    fn give_back_after_last_section(&self) {
        if self.is_active() {
            // ORDERING: Relaxed; the owner's own word (I1).
            let nested = self.nested.load(Ordering::Relaxed);
            // ORDERING: Relaxed, as above.
            self.nested.store(nested | ON_LOAN, Ordering::Relaxed);
        } else {
            self.give_back();
        }
    }
}

/// A read section: while it lives, nothing that was reachable when it began is used again.
///
/// It belongs to the thread that began it. Sections nest, and may end in any order: the protection of the first lasts
/// until the last is over. A section that is forgotten (`mem::forget`) never ends, and no grace period ends after it.
#[must_use = "a section is over when it is dropped"]
pub struct Section {
    reader: &'static Reader,
    on_this_thread: PhantomData<*const ()>,
}

impl Section {
    /// Ends the section without a look at others: two instructions fewer, and no call.
    ///
    /// # Safety
    ///
    /// It was begun by [`try_enter`], and no section was begun on this thread since.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn end_alone(self) {
        let section = core::mem::ManuallyDrop::new(self);
        section.reader.end_outermost();
    }
}

#[cfg(all(test, memgroup_loom))]
impl Section {
    pub(super) fn is_on(&self, reader: &Reader) -> bool {
        core::ptr::eq(self.reader, reader)
    }
}

#[cfg(all(test, memgroup_loom))]
impl Reader {
    pub(super) fn is_free(&self) -> bool {
        // ORDERING: Relaxed; at rest, after the joins.
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        // ORDERING: Relaxed, as above.
        self.owner.load(Ordering::Relaxed) == 0 && word(&self.word) == 0 && word(&self.nested) == 0
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

impl core::fmt::Debug for Section {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Section").finish_non_exhaustive()
    }
}

/// Whether a model's sections leave by a store, as they do outside models. To loom a store and another thread's exchange
/// that the storing thread did not see have no order, so a wait for the store need not end: a model that waits has its
/// sections leave by an exchange.
#[inline(always)]
fn leaves_as_shipped() -> bool {
    #[cfg(all(test, memgroup_loom))]
    return super::loom::LEAVES_AS_SHIPPED.get();
    #[cfg(not(all(test, memgroup_loom)))]
    false
}

/// Whether this is the unwinding of a model that failed: its atomics are not there any more.
#[inline(always)]
fn model_failed() -> bool {
    cfg!(memgroup_loom) && std::thread::panicking()
}

/// Stands in for the record of a thread that has none: always in a section, so that nobody enters here quickly.
#[cfg(not(memgroup_loom))]
static NOBODY: Reader = Reader { word: AtomicU64::new(ACTIVE), ..Reader::new() };

#[cfg(not(memgroup_loom))]
crate::thread_local! {
    // The thread's record or NOBODY; what `try_enter` looks at.
    static QUICK: Cell<&'static Reader> = const { Cell::new(&NOBODY) };
}

crate::thread_local! {
    // Without a destructor, so that it is one load relative to the thread pointer and can be read for as long as the
    // thread runs.
    static OWN: Cell<Option<&'static Reader>> = const { Cell::new(None) };
}

crate::thread_local! {
    static KEEPER: Keeper = const { Keeper { reader: Cell::new(None) } };
}

/// Gives the thread's record back when the thread ends.
struct Keeper {
    reader: Cell<Option<&'static Reader>>,
}

#[cfg(any(not(memgroup_loom), test))]
impl Keeper {
    fn end_of_thread(&self) {
        if let Some(reader) = self.reader.take() {
            disown();
            reader.give_back_after_last_section();
        }
    }
}

#[cfg(not(memgroup_loom))]
impl Drop for Keeper {
    fn drop(&mut self) {
        self.end_of_thread();
    }
}

/// A model's thread ends. It says so, because loom destroys thread-locals after a join, and after the statics.
#[cfg(all(test, memgroup_loom))]
pub(super) fn end_of_thread() {
    KEEPER.with(Keeper::end_of_thread);
}

/// Begins a read section; see the [module](super).
///
/// The first section of a thread claims a record for it. None allocates through the global allocator, and none panics.
#[inline(always)]
pub fn enter() -> Section {
    match try_enter() {
        Some(section) => section,
        None => enter_plainly(),
    }
}

#[cold]
#[inline(never)]
fn enter_plainly() -> Section {
    match own() {
        Some(reader) => reader.begin(),
        None => enter_first(),
    }
}

/// Begins a section if that takes two loads and a store: the thread has a record, is in no section, and enters by a store. Without
/// a call on the way, so that a fast path around it keeps its registers; where it is `None`, [`enter`] is the answer.
#[cfg(not(memgroup_loom))]
#[inline(always)]
pub fn try_enter() -> Option<Section> {
    let reader = QUICK.with(Cell::get);
    if reader.is_active() {
        return None;
    }
    let clock = epoch::now();
    if clock & SWAP != 0 {
        return None;
    }
    Some(reader.begin_by_store(clock))
}

/// Never quickly: a model enters by a swap.
#[cfg(memgroup_loom)]
pub fn try_enter() -> Option<Section> {
    None
}

/// The thread has this record from now on.
fn own_is(reader: &'static Reader) {
    OWN.with(|own| own.set(Some(reader)));
    #[cfg(not(memgroup_loom))]
    QUICK.with(|quick| quick.set(reader));
}

/// The thread has no record from now on.
fn disown() {
    OWN.with(|own| own.set(None));
    #[cfg(not(memgroup_loom))]
    QUICK.with(|quick| quick.set(&NOBODY));
}

#[inline(always)]
fn own() -> Option<&'static Reader> {
    OWN.with(Cell::get)
}

/// Whether this thread is in a section.
pub(super) fn inside() -> bool {
    own().is_some_and(Reader::is_active)
}

#[cold]
#[inline(never)]
fn enter_first() -> Section {
    let reader = registry::claim();
    // Set first: where registering the destructor allocates, the allocator may enter a section of its own.
    own_is(reader);
    if KEEPER.try_with(|keeper| keeper.reader.set(Some(reader))).is_ok() {
        return reader.begin();
    }
    // The thread is ending and its record has gone back: this one is for the section alone.
    disown();
    let section = reader.begin();
    reader.give_back_after_last_section();
    section
}

/// What a scan may believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// Every running thread executed a barrier since the epoch was made: loads.
    Loads,
    /// Readers enter by a swap: exchanges of the words.
    Exchanges,
    /// As `Exchanges`, of records that are known to have left their last section that was entered by a store.
    Proofs {
        /// The epoch from which every section is entered by a swap.
        since: Epoch,
    },
}

/// What a scan found in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No section that was begun before the epoch.
    Nothing,
    /// A section with this word.
    Section(u64),
    /// The thread may be in a section that is not visible; it has not entered by a swap yet.
    Unproven,
}

impl Reader {
    /// Whether a section that was begun before `target` was made may still be in force on this record.
    pub(super) fn look(&self, target: Epoch, evidence: Evidence) -> Found {
        // The proof first, the word after it: a section that is entered by a store before the proof is over by then.
        let proven = match evidence {
            Evidence::Proofs { since } => {
                self.entered_by_swap_since(since) || active(Mutation::LostBarrierNeedsNoProof)
            }
            Evidence::Loads | Evidence::Exchanges => true,
        };
        interleave::point();
        let word = if evidence == Evidence::Loads || active(Mutation::ScanByLoads) {
            // ORDERING: Acquire; pairs with the Release in `end_outermost` (E1). That a section cannot hide is the
            // barrier's work.
            self.word.load(Ordering::Acquire)
        } else {
            // ORDERING: AcqRel; pairs with the swap in `begin` and, Acquire, with `end_outermost` (E1). By a load this
            // scan and a section could each miss the other.
            self.word.fetch_or(0, Ordering::AcqRel)
        };
        match word {
            0 if proven => Found::Nothing,
            0 => Found::Unproven,
            word if word >= target.0 => Found::Nothing,
            word => Found::Section(word),
        }
    }

    /// A look that decides nothing and takes the line from nobody: whether another `look` is worth it.
    pub(super) fn still_holds(&self, word: u64) -> bool {
        // ORDERING: Relaxed; it decides nothing, a `look` follows that has the order needed.
        self.word.load(Ordering::Relaxed) == word
    }

    fn entered_by_swap_since(&self, since: Epoch) -> bool {
        // ORDERING: Acquire; pairs with the Release store in `begin`: earlier sections of this owner are over.
        if self.swapped.load(Ordering::Acquire) >= since.0 {
            return true;
        }
        // ORDERING: AcqRel; Acquire pairs with the Release of `give_back`: the last owner's sections are over. Release
        // pairs with `claim`: who claims after this sees the clock, and swaps. By a load a claim could slip between.
        self.owner.compare_exchange(0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
