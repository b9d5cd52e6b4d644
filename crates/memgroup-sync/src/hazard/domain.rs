//! A domain: the hazard records of all leases that its places can be pinned by.
//!
//! ```text
//!   Domain: first chunk ──next──▶ chunk, kept for ever ──next──▶ .. ──▶ null
//! ```
//!
//! - I1. Chunks are never freed and never move, so a record is `&'static`. There are as many as the most leases at one time need.
//! - I2. `unsettled` lists places with a departure that was found unproven. It is empty unless the barrier was lost.
//! - E1. append → scan: who appends claims in that chunk, and the fences of claim and withdrawal (`record` E3) hold for the link too.
//! - E2. end of a lease ↔ detach with a lost barrier: exchanges of the record's `owner` on both sides. Either the scan finds the record free, or the end of the
//!   lease finds the place listed. Loom: `loom_a_lease_that_ends_settles_what_a_lost_barrier_left`.

#![allow(unsafe_code)]

use core::cell::Cell;
use core::fmt;
use core::ptr::{from_ref, null_mut};

use super::lease::Lease;
use super::occupant::Occupant;
use super::place::Anchor;
use super::record::{Entry, Found, Record, thread_id};
use crate::Mutex;
use crate::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
use crate::grace::{Evidence, Form, barrier};
use crate::interleave;

/// Records in a chunk.
#[cfg(not(memgroup_loom))]
const RECORDS: usize = 16;
#[cfg(memgroup_loom)]
const RECORDS: usize = 2;

crate::thread_local! {
    // Where a thread found a free record last; threads that walk at one time so begin at different ones.
    static HINT: Cell<usize> = const { Cell::new(0) };
}

struct Chunk {
    records: [Record; RECORDS],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    #[cfg(not(memgroup_loom))]
    const fn new() -> Self {
        Self { records: [const { Record::new() }; RECORDS], next: AtomicPtr::new(null_mut()) }
    }

    #[cfg(memgroup_loom)]
    fn new() -> Self {
        Self { records: core::array::from_fn(|_| Record::new()), next: AtomicPtr::new(null_mut()) }
    }

    fn next(&self) -> Option<&'static Self> {
        // ORDERING: Acquire; pairs with `append`, shows the chunk's words. That a claimed record in it is not missed: E1.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or a chunk that `append` published and nobody frees (I1).
        unsafe { next.as_ref() }
    }

    /// Links `made` behind this chunk or, where others were faster, behind theirs.
    fn append(&self, made: &'static Self) {
        let new = from_ref(made).cast_mut();
        // ORDERING: AcqRel, Acquire; pairs with `next`. Weaker, who finds the chunk could find it unwritten.
        let linked = self.next.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        if linked.is_err()
            && let Some(others) = self.next()
        {
            others.append(made);
        }
    }
}

/// What leases there are, to who has emptied a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leases {
    /// None.
    None,
    /// Such as dwell in what they have pinned.
    Dwelling,
    /// Others too.
    Walking,
}

/// The hazard records of a set of places: who walks them takes a [`Lease`] here.
///
/// A domain is used for as long as the process runs. It costs 2 KiB, and as much again for every 16 leases at one time.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::hazard::{Domain, Place};
///
/// static DOMAIN: Domain = Domain::new();
/// static PLACE: Place<String> = Place::empty(&DOMAIN);
/// PLACE.put(Box::new("a callback".to_owned()));
///
/// let mut lease = DOMAIN.lease();
/// let pinned = lease.pin(&PLACE).expect("a value");
/// assert_eq!(*pinned, "a callback");
/// assert!(DOMAIN.busy().any(|occupant| occupant.is_in(&PLACE)));
/// drop(pinned);
/// assert_eq!(DOMAIN.busy().count(), 0);
/// # }
/// ```
pub struct Domain {
    first: Chunk,
    unsettled_count: AtomicUsize,
    unsettled: Mutex<Vec<&'static Anchor>>,
}

/// What a fresh domain is.
macro_rules! fresh {
    () => {
        Self { first: Chunk::new(), unsettled_count: AtomicUsize::new(0), unsettled: Mutex::new(Vec::new()) }
    };
}

impl Domain {
    /// A domain without leases.
    #[cfg(not(memgroup_loom))]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a domain is a static, not a part of something")]
    pub const fn new() -> Self {
        fresh!()
    }

    /// A domain without leases.
    #[cfg(memgroup_loom)]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a domain is a static, not a part of something")]
    pub fn new() -> Self {
        fresh!()
    }

    /// A lease for a walk on this thread: it can pin one place of this domain at a time. A walk within a walk takes another one.
    ///
    /// It takes a record that is free, with one compare-and-swap and a fence, and never waits. Where all are taken, memory for
    /// more is allocated and kept for ever.
    #[inline(always)]
    pub fn lease(&'static self) -> Lease {
        Lease::new(self, self.claim())
    }

    #[inline(never)]
    fn claim(&'static self) -> (&'static Record, Entry) {
        let owner = thread_id();
        let begin = HINT.with(Cell::get) % RECORDS;
        let mut chunk = &self.first;
        loop {
            let mut order = (begin..RECORDS).chain(0..begin);
            if let Some((at, entry)) = order.find_map(|at| Some((at, chunk.records[at].claim(owner)?))) {
                HINT.with(|hint| hint.set(at));
                return (&chunk.records[at], entry);
            }
            chunk = match chunk.next() {
                Some(next) => next,
                None => {
                    chunk.append(crate::keep(Box::new(Chunk::new())));
                    chunk.next().unwrap_or(chunk)
                }
            };
        }
    }

    /// All records, claimed or not.
    pub(super) fn records(&'static self) -> impl Iterator<Item = &'static Record> {
        core::iter::successors(Some(&self.first), |chunk| chunk.next()).flat_map(|chunk| &chunk.records)
    }

    /// Who is in which place now, in no order. The first call that meets a pin notes the time, for [`Occupant::held`].
    pub fn busy(&'static self) -> impl Iterator<Item = Occupant> {
        self.records().filter_map(Occupant::of)
    }

    /// Who is in which place, with none left out who was in one before this call: unlike [`busy`](Self::busy) it makes the barrier, if anybody
    /// could hide. Who has left since may be in the list. Who is found in it is gone when `busy` does not show it any more, and what was done in
    /// the place then precedes that.
    #[must_use]
    pub fn users(&'static self) -> Vec<Occupant> {
        // ORDERING: SeqCst; pairs with the fence in `Record::claim`: a lease that is not seen claimed here looks at places after this call began.
        fence(Ordering::SeqCst);
        let evidence = match self.leases() {
            Leases::None => return Vec::new(),
            Leases::Dwelling => Evidence::Loads,
            Leases::Walking => barrier::barrier(Form::Expedited),
        };
        let me = thread_id();
        self.records().filter_map(|record| Occupant::using(record, record.used(evidence, me))).collect()
    }

    /// Under what leases a place may have been found full that was empty before the caller's fence.
    pub(super) fn leases(&'static self) -> Leases {
        let mut leases = Leases::None;
        for record in self.records().filter(|record| record.is_claimed()) {
            if record.is_walking() {
                return Leases::Walking;
            }
            leases = Leases::Dwelling;
        }
        leases
    }

    /// Whether the place with this key may be in use: a scan ends at the first record on which it is. That record was looked at as
    /// `evidence` asks, so who leaves it sees what was done before the scan.
    pub(super) fn uses(&'static self, key: usize, evidence: Evidence) -> bool {
        let me = thread_id();
        self.records().any(|record| record.look(key, evidence, me) != Found::Nothing)
    }

    /// Whether the calling thread has the place with this key pinned.
    pub(super) fn uses_here(&'static self, key: usize) -> bool {
        let me = thread_id();
        self.records().any(|record| record.is_used_by(key, me))
    }

    /// Who is in the place with this key. Notes the time of those who are met the first time.
    pub(super) fn occupants(&'static self, key: usize, evidence: Evidence) -> impl Iterator<Item = Occupant> {
        let me = thread_id();
        self.records().filter_map(move |record| Occupant::found(record, key, record.look(key, evidence, me)))
    }

    /// From now on leases that end look at this place, whose departure may be unproven. Before the scan that decides it.
    pub(super) fn watch(&'static self, anchor: &'static Anchor) {
        let mut unsettled = self.unsettled.lock();
        unsettled.push(anchor);
        // ORDERING: Relaxed; shown to the leases that a scan finds in force by its exchange of their `owner` (E2).
        self.unsettled_count.store(unsettled.len(), Ordering::Relaxed);
    }

    /// A record was given back.
    pub(super) fn lease_ended(&'static self) {
        interleave::point();
        // ORDERING: Relaxed; ordered by the exchange that gave the record back (E2).
        if self.unsettled_count.load(Ordering::Relaxed) != 0 {
            self.settle_all();
        }
    }

    /// Ends the departures that are proven by now. The lock is held during the looks, so that a lease that ends meanwhile looks again
    /// after them.
    #[cold]
    #[inline(never)]
    fn settle_all(&'static self) {
        let mut over = Vec::new();
        let mut unsettled = self.unsettled.lock();
        unsettled.retain(|anchor| {
            over.extend(anchor.take_if_over());
            anchor.has_departure()
        });
        // ORDERING: Relaxed; written under the lock. A lease that ends and reads an older number looks in vain.
        self.unsettled_count.store(unsettled.len(), Ordering::Relaxed);
        drop(unsettled);
        over.into_iter().for_each(|departure| departure.end_containing_panics());
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").finish_non_exhaustive()
    }
}
