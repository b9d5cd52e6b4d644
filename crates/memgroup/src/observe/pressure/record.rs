//! Record: the scope and the stall of one thread, for other threads to read. They tell whether a
//! thread of a group is at work.
//!
//! ```text
//!   RECORDS (static)   ┌ 128 bytes: node, generation ── of the scope in force, written by its thread at each change
//!                      │            stalled           ── written by its thread
//!                      └            taken             ── a thread has the record
//!   USED               records that a thread ever had: the end of a scan
//! ```
//!
//! A thread takes a record with its first scope, and gives it back when it ends. Entering and
//! leaving a scope costs two plain stores there, and a load from each hierarchy that it concerns:
//! `Shared::stalls` says whether scopes matter to a stall there (`stall`). A thread that was never
//! in a scope has no record: it is at work in no group.
//!
//! - I1. The thread that has the record writes `node`, `generation` and `stalled`. They are empty
//!   while no thread has it.
//! - I2. Records are never freed. A reference to one stays valid, whichever thread has it.
//! - B1. 4096 threads, as many as there are records, are seen at work. A group in which only a
//!   further thread is at work counts as full.

use std::cell::Cell;

use memgroup_sync::AtomicRef;
use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::observe::pressure::stall;
use crate::tree::node::Node;

#[cfg(not(memgroup_loom))]
const RECORDS_COUNT: usize = 4096;
#[cfg(memgroup_loom)]
const RECORDS_COUNT: usize = 2;

/// The record of one thread.
#[repr(align(128))]
pub(crate) struct Record {
    node: AtomicRef<Node>,
    generation: AtomicU64,
    stalled: AtomicBool,
    taken: AtomicBool,
}

struct Records([Record; RECORDS_COUNT]);

impl Records {
    #[cfg(not(memgroup_loom))]
    const fn new() -> Records {
        Records([const { Record::new() }; RECORDS_COUNT])
    }

    #[cfg(memgroup_loom)]
    fn new() -> Records {
        Records(std::array::from_fn(|_| Record::new()))
    }
}

memgroup_sync::global! {
    static RECORDS: Records = Records::new();
}

memgroup_sync::global! {
    static USED: AtomicU32 = AtomicU32::new(0);
}

memgroup_sync::global! {
    // The record of threads for which none is left. No thread reads it.
    static UNREAD: Record = Record::new();
}

std::thread_local! {
    // Without a destructor, so that it works while the thread ends.
    static OWN: Cell<Option<&'static Record>> = const { Cell::new(None) };
    static KEEPER: Keeper = const { Keeper };
}

/// Gives the thread's record back when it ends.
struct Keeper;

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(record) = OWN.replace(Some(&UNREAD)) {
            stall::end_with_thread(record);
            record.give_back();
        }
    }
}

impl Record {
    #[cfg(not(memgroup_loom))]
    const fn new() -> Record {
        Record {
            node: AtomicRef::none(),
            generation: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            taken: AtomicBool::new(false),
        }
    }

    #[cfg(memgroup_loom)]
    fn new() -> Record {
        Record {
            node: AtomicRef::none(),
            generation: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            taken: AtomicBool::new(false),
        }
    }

    /// Its number among all records, from 1 on; 0 for the one that no thread reads.
    pub(crate) fn number(&'static self) -> u32 {
        let bytes = std::ptr::from_ref(self).addr().wrapping_sub(RECORDS.0.as_ptr().addr());
        if bytes < size_of::<Records>() { (bytes / size_of::<Record>()) as u32 + 1 } else { 0 }
    }

    /// Publishes the scope of the record's thread: `node`, of this generation.
    #[inline(always)]
    pub(crate) fn put(&self, node: Option<&'static Node>, generation: u64) {
        // ORDERING: Relaxed; published by the store below.
        self.generation.store(generation, Ordering::Relaxed);
        // ORDERING: Release; pairs with the Acquire in `scope`: a thread that reads the node reads
        // this generation, or a later one.
        self.node.store(node, Ordering::Release);
    }

    pub(crate) fn set_stalled(&self, stalled: bool) {
        // ORDERING: Release; a reader that finds the thread at work again finds its present scope.
        self.stalled.store(stalled, Ordering::Release);
    }

    pub(crate) fn is_stalled(&self) -> bool {
        // ORDERING: Acquire; pairs with `set_stalled`.
        self.stalled.load(Ordering::Acquire)
    }

    /// Returns the scope of the record's thread, unless that group was released.
    pub(crate) fn scope(&self) -> Option<&'static Node> {
        // A scope that changes in between is read again. One that was forgotten in a released group
        // stays as it is.
        for _ in 0..3 {
            // ORDERING: Acquire; pairs with `put`.
            let node = self.node.load(Ordering::Acquire)?;
            // ORDERING: Acquire; the node's generation is read after it, and a second look comes
            // after this one.
            if node.generation() == self.generation.load(Ordering::Acquire) {
                return Some(node);
            }
        }
        None
    }

    /// The group in which the thread is at work.
    pub(crate) fn at_work(&self) -> Option<&'static Node> {
        // ORDERING: Acquire; pairs with the Release in `give_back`, and hides the record that no
        // thread reads.
        if self.is_stalled() || !self.taken.load(Ordering::Acquire) { None } else { self.scope() }
    }

    /// Returns whether the thread is at work in `top` or below.
    pub(crate) fn works_in(&self, top: &'static Node) -> bool {
        self.at_work().is_some_and(|node| node.is_within(top))
    }

    /// Takes the record, if no thread has it.
    fn claim(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `give_back`: the words are empty (I1).
        // Relaxed when it is taken: nothing follows.
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn give_back(&'static self) {
        let before = self.scope();
        self.put(None, 0);
        if is_watched(before) {
            stall::after_scope_change(self, before, None);
        }
        self.stalled.store(false, Ordering::Relaxed); // ORDERING: Relaxed; published by the store below.
        // ORDERING: Release; pairs with `claim`.
        self.taken.store(false, Ordering::Release);
    }
}

/// A record for a thread that has none.
pub(crate) fn claim() -> Option<&'static Record> {
    let (index, record) = RECORDS.0.iter().enumerate().find(|(_, record)| record.claim())?;
    // ORDERING: Relaxed; where a scan must not miss a record, both sides fence (`meter` E1).
    USED.fetch_max(index as u32 + 1, Ordering::Relaxed);
    Some(record)
}

/// The record of this number, as [`Record::number`] tells it; `None` for 0.
pub(crate) fn numbered(number: u32) -> Option<&'static Record> {
    RECORDS.0.get((number as usize).checked_sub(1)?)
}

/// The records that threads have or had.
pub(crate) fn all() -> impl Iterator<Item = &'static Record> {
    // ORDERING: Relaxed; as in `claim`.
    RECORDS.0[..USED.load(Ordering::Relaxed) as usize].iter()
}

/// The calling thread's record.
pub(crate) fn own() -> Option<&'static Record> {
    OWN.get()
}

/// Returns whether a change of scope from or to `node` may matter to a stall that is on.
#[inline(always)]
fn is_watched(node: Option<&'static Node>) -> bool {
    // ORDERING: Relaxed; a thread that begins a stall checks the records after it has counted the
    // stall. Both threads may miss one change: `docs/pressure.md`.
    node.is_some_and(|node| node.shared().stalls.load(Ordering::Relaxed) != 0)
}

/// Publishes that the scope of this thread changes from `before` to `after`.
#[inline(always)]
pub(crate) fn publish(before: Option<&'static Node>, after: Option<&'static Node>, generation: u64) {
    let Some(record) = OWN.get() else { return publish_first(after, generation) };
    record.put(after, generation);
    if is_watched(before) || is_watched(after) {
        stall::after_scope_change(record, before, after);
    }
}

/// Publishes the thread's first scope.
#[cold]
#[inline(never)]
fn publish_first(after: Option<&'static Node>, generation: u64) {
    let record = claim().unwrap_or(&UNREAD);
    // Set first: registering the destructor may allocate, and the allocator may enter a scope.
    OWN.set(Some(record));
    if KEEPER.try_with(|_| ()).is_err() {
        // The thread ends and has given its record back already.
        OWN.set(Some(&UNREAD));
        record.give_back();
        return;
    }
    record.set_stalled(stall::is_stalled());
    record.put(after, generation);
    if is_watched(after) {
        stall::after_scope_change(record, None, after);
    }
}
