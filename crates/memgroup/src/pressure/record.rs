//! Record: what a thread lets others know, so that it can be told whether anybody in a group gets on.
//!
//! ```text
//!   RECORDS (static)   ┌ 128 bytes: node, generation ── of the scope in force, written by its thread at each change
//!                      │            stalled           ── written by its thread
//!                      └            taken             ── a thread has it
//!   USED               records that a thread ever had: as far as a scan goes
//! ```
//!
//! A thread takes a record with its first scope and gives it back when it ends. Entering and leaving a scope is two plain stores there and a load of
//! `WATCHED`, which says whether a stall is on that others' changes matter to (`stall`). Threads that were never in a scope have none: they
//! are nowhere at work.
//!
//! - I1. `node`, `generation` and `stalled` are written by the thread that has the record, and are empty where nobody has it.
//! - I2. Records are never freed: a reference to one is always good, and whoever has it by then.
//! - B1. So many threads as there are records are seen at work, 4096. One more is not: where it alone gets on, it is full.

use std::cell::Cell;

use memgroup_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use memgroup_sync::{AtomicRef, CachePadded};

use super::stall;
use crate::node::Node;

#[cfg(not(memgroup_loom))]
const RECORDS_COUNT: usize = 4096;
#[cfg(memgroup_loom)]
const RECORDS_COUNT: usize = 2;

/// One thread's.
#[repr(align(128))]
pub(crate) struct Record {
    node: AtomicRef<Node>,
    generation: AtomicU32,
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
    // Stalls that are on and last.
    static WATCHED: CachePadded<AtomicU32> = CachePadded::new(AtomicU32::new(0));
}

memgroup_sync::global! {
    // The record of threads for which there is none: nobody looks at it.
    static NOBODYS: Record = Record::new();
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
        if let Some(record) = OWN.replace(Some(&NOBODYS)) {
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
            generation: AtomicU32::new(0),
            stalled: AtomicBool::new(false),
            taken: AtomicBool::new(false),
        }
    }

    #[cfg(memgroup_loom)]
    fn new() -> Record {
        Record {
            node: AtomicRef::none(),
            generation: AtomicU32::new(0),
            stalled: AtomicBool::new(false),
            taken: AtomicBool::new(false),
        }
    }

    /// From now on `node`, of this generation, is in force on the record's thread.
    #[inline(always)]
    pub(super) fn put(&self, node: Option<&'static Node>, generation: u32) {
        // ORDERING: Relaxed; published by the store below.
        self.generation.store(generation, Ordering::Relaxed);
        // ORDERING: Release; pairs with the Acquire in `scope`: who finds the node finds this generation, or a later one.
        self.node.store(node, Ordering::Release);
    }

    pub(super) fn set_stalled(&self, stalled: bool) {
        // ORDERING: Release; who finds the thread at work again finds what is in force on it by then.
        self.stalled.store(stalled, Ordering::Release);
    }

    pub(super) fn is_stalled(&self) -> bool {
        // ORDERING: Acquire; pairs with `set_stalled`.
        self.stalled.load(Ordering::Acquire)
    }

    /// The group in force on the record's thread, if it is there still.
    pub(super) fn scope(&self) -> Option<&'static Node> {
        // A scope that changes while it is looked at is looked at again; one that was left behind in a group that is gone stays as it is.
        for _ in 0..3 {
            // ORDERING: Acquire; pairs with `put`.
            let node = self.node.load(Ordering::Acquire)?;
            // ORDERING: Acquire; the look at the node's generation comes after it, and a second look after this one.
            if node.generation() == self.generation.load(Ordering::Acquire) {
                return Some(node);
            }
        }
        None
    }

    /// The group in which the thread gets on.
    pub(super) fn at_work(&self) -> Option<&'static Node> {
        // ORDERING: Acquire; pairs with the Release in `give_back`, and hides the record that is nobody's.
        if self.is_stalled() || !self.taken.load(Ordering::Acquire) { None } else { self.scope() }
    }

    /// Whether the thread gets on in `top` or below.
    pub(super) fn works_in(&self, top: &'static Node) -> bool {
        self.at_work().is_some_and(|node| node.is_within(top))
    }

    /// Takes it, if nobody has it.
    fn claim(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `give_back`: the words are empty (I1). Relaxed when it is taken: nothing follows.
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    pub(super) fn give_back(&'static self) {
        let before = self.scope();
        self.put(None, 0);
        if is_watched() {
            stall::moved(self, before, None);
        }
        self.stalled.store(false, Ordering::Relaxed); // ORDERING: Relaxed; published by the store below.
        // ORDERING: Release; pairs with `claim`.
        self.taken.store(false, Ordering::Release);
    }
}

/// A record for a thread that has none.
pub(super) fn claim() -> Option<&'static Record> {
    let (index, record) = RECORDS.0.iter().enumerate().find(|(_, record)| record.claim())?;
    // ORDERING: Relaxed; who relies on a scan that does not miss a record fences between the two on both sides (`meter` E1).
    USED.fetch_max(index as u32 + 1, Ordering::Relaxed);
    Some(record)
}

/// The records that threads may have.
pub(super) fn all() -> impl Iterator<Item = &'static Record> {
    // ORDERING: Relaxed; as in `claim`.
    RECORDS.0[..USED.load(Ordering::Relaxed) as usize].iter()
}

/// The calling thread's.
pub(super) fn own() -> Option<&'static Record> {
    OWN.get()
}

/// Whether a change of scope may matter to a stall that is on.
#[inline(always)]
pub(super) fn is_watched() -> bool {
    // ORDERING: Relaxed; whoever begins to watch looks at the records afterwards. One change that both miss: `docs/pressure.md`.
    WATCHED.load(Ordering::Relaxed) != 0
}

/// One more stall is on that lasts.
pub(super) fn watch() {
    // ORDERING: Relaxed; the fences before the looks at the records order it.
    WATCHED.fetch_add(1, Ordering::Relaxed);
}

/// One less.
pub(super) fn unwatch() {
    // ORDERING: Relaxed; a change that still finds it set looks for nothing.
    WATCHED.fetch_sub(1, Ordering::Relaxed);
}

/// What is in force on this thread changes from `before` to `after`.
#[inline(always)]
pub(crate) fn publish(before: Option<&'static Node>, after: Option<&'static Node>, generation: u32) {
    let Some(record) = OWN.get() else { return publish_first(after, generation) };
    record.put(after, generation);
    if is_watched() {
        stall::moved(record, before, after);
    }
}

/// The thread's first scope.
#[cold]
#[inline(never)]
fn publish_first(after: Option<&'static Node>, generation: u32) {
    let record = claim().unwrap_or(&NOBODYS);
    // Set first: where registering the destructor allocates, the allocator may enter a scope.
    OWN.set(Some(record));
    if KEEPER.try_with(|_| ()).is_err() {
        // The thread ends and has given its record back already.
        OWN.set(Some(&NOBODYS));
        record.give_back();
        return;
    }
    record.set_stalled(stall::is_stalled());
    record.put(after, generation);
    if is_watched() {
        stall::moved(record, None, after);
    }
}
