//! A domain: the hazard records of all leases that can pin its places.
//!
//! ```text
//!   Domain: first chunk ──next──▶ chunk, kept for ever ──next──▶ .. ──▶ null
//! ```
//!
//! - I1. Chunks are never freed and never move, so a record is `&'static`. There are as many as
//!   the most leases at one time need.
//! - I2. `deferred` lists places with a departure that a scan could not prove over. It is empty
//!   unless the barrier was lost.
//! - E1. append → scan: the appending thread claims a record in that chunk, and the fences of
//!   claim and withdrawal (`record` E3) hold for the link too.
//! - E2. end of a lease ↔ detach with a lost barrier: exchanges of the record's `owner` on both
//!   sides. Either the scan finds the record free, or the end of the lease finds the place listed.
//!   Loom: `loom_a_lease_that_ends_ends_deferred_departures`.

#![allow(unsafe_code)]

use core::cell::Cell;
use core::ptr::{from_ref, null_mut};

use super::occupant::Occupant;
use super::place::Anchor;
use super::record::{Found, PinBy, Record, thread_id};
use crate::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
use crate::grace::{Evidence, Form, barrier};
use crate::mutation::{Mutation, active};
use crate::{Mutex, depth, interleave};

/// Records in a chunk.
const RECORDS: usize = if cfg!(memgroup_loom) { 2 } else { 16 };

crate::thread_local! {
    // Where a thread found a free record last, so that threads which walk at one time begin at
    // different ones.
    static HINT: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug)]
#[cfg_attr(memgroup_loom, derive(Default))]
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
        Self::default()
    }

    fn next(&self) -> Option<&'static Self> {
        // ORDERING: Acquire; pairs with `append`, shows the chunk's words. E1 makes sure that a
        // claimed record in it is not missed.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or a chunk that `append` published, which is never freed (I1).
        unsafe { next.as_ref() }
    }

    /// Links `made` after this chunk or, where another thread was faster, after that one's.
    fn append(&self, made: &'static Self) {
        let new = from_ref(made).cast_mut();
        // ORDERING: AcqRel, Acquire; pairs with `next`. Weaker, a thread could find the chunk
        // unwritten.
        let linked = self.next.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        if linked.is_err()
            && let Some(others) = self.next()
        {
            others.append(made);
        }
    }
}

/// The hazard records of a set of places; a walk over them takes a [`Lease`](super::Lease) here.
///
/// A domain is used for as long as the process runs. It costs 2 KiB, and as much again for every
/// 16 leases at one time.
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
#[derive(Debug)]
#[cfg_attr(memgroup_loom, derive(Default))]
pub struct Domain {
    first: Chunk,
    deferred_count: AtomicUsize,
    deferred: Mutex<Vec<&'static Anchor>>,
}

impl Domain {
    /// Makes a domain without leases.
    #[cfg(not(memgroup_loom))]
    #[expect(clippy::new_without_default, reason = "a domain is a static, not a part of another value")]
    pub const fn new() -> Self {
        Self { first: Chunk::new(), deferred_count: AtomicUsize::new(0), deferred: Mutex::new(Vec::new()) }
    }

    /// Makes a domain without leases.
    #[cfg(memgroup_loom)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Claims a record for a lease.
    #[inline(never)]
    pub(super) fn claim(&'static self) -> (&'static Record, PinBy) {
        let owner = thread_id();
        let begin = HINT.with(Cell::get) % RECORDS;
        let mut chunk = &self.first;
        loop {
            let mut order = (begin..RECORDS).chain(0..begin);
            if let Some((at, by)) = order.find_map(|at| Some((at, chunk.records[at].claim(owner)?))) {
                HINT.with(|hint| hint.set(at));
                return (&chunk.records[at], by);
            }
            if chunk.next().is_none() {
                // The chunk lives for ever, so no group that the thread allocates for must be
                // charged for it.
                let _inside = depth::enter();
                chunk.append(crate::keep(Box::new(Chunk::new())));
            }
            chunk = chunk.next().unwrap_or(chunk);
        }
    }

    /// All records, claimed or not.
    pub(super) fn records(&'static self) -> impl Iterator<Item = &'static Record> {
        core::iter::successors(Some(&self.first), |chunk| chunk.next()).flat_map(|chunk| &chunk.records)
    }

    /// The threads that use a place now, in no order. The first call that meets a pin notes the
    /// time, for [`Occupant::held`].
    pub fn busy(&'static self) -> impl Iterator<Item = Occupant> {
        self.records().filter_map(Occupant::of)
    }

    /// The threads that use a place, with none left out that used one before this call. Unlike
    /// [`busy`](Self::busy) it makes the barrier, if a pin could hide. Threads that have left
    /// since may be in the list. Once `busy` does not show one of them any more, that thread
    /// has left, and its use of the place comes before.
    pub fn users(&'static self) -> Vec<Occupant> {
        if !active(Mutation::UsersWithoutFence) {
            // ORDERING: SeqCst; pairs with the fence in `Record::claim`. Without it a lease that
            // isn't seen claimed here could miss writes that came before this call. Loom:
            // `loom_a_thread_that_is_not_listed_sees_the_writes_before`.
            fence(Ordering::SeqCst);
        }
        let Some(evidence) = self.evidence(|| barrier::barrier(Form::Expedited)) else { return Vec::new() };
        let me = thread_id();
        self.records().filter_map(|record| Occupant::of_any(record, record.scan(evidence, me))).collect()
    }

    /// The evidence for scans of places that were empty before the caller's fence; `None` if no
    /// lease is in force. `make_barrier` runs only if a lease may pin places now. Of leases that
    /// are all in a [long use](super::Pinned::long_use) the pins are seen, and later reads find
    /// those places empty (`record` E6).
    pub(super) fn evidence(&'static self, make_barrier: impl FnOnce() -> Evidence) -> Option<Evidence> {
        let mut evidence = None;
        for record in self.records().filter(|record| record.is_claimed()) {
            if record.may_pin() {
                return Some(make_barrier());
            }
            evidence = Some(Evidence::Loads);
        }
        evidence
    }

    /// Returns whether the place with this key may be in use. The scan ends at the first record
    /// with the place, which was read as `evidence` requires: a thread that leaves it sees the
    /// writes before the scan.
    pub(super) fn uses(&'static self, key: usize, evidence: Evidence) -> bool {
        let me = thread_id();
        self.records().any(|record| record.scan_for(key, evidence, me) != Found::Nothing)
    }

    /// Returns whether the calling thread has the place with this key pinned.
    pub(super) fn uses_here(&'static self, key: usize) -> bool {
        let me = thread_id();
        self.records().any(|record| record.is_used_by(key, me))
    }

    /// The threads that use the place with this key. Notes the time for those that are met the
    /// first time.
    pub(super) fn occupants(&'static self, key: usize, evidence: Evidence) -> impl Iterator<Item = Occupant> {
        let me = thread_id();
        let found = move |record: &Record| record.scan_for(key, evidence, me);
        self.records().filter_map(move |record| Occupant::of_place(record, key, found(record)))
    }

    /// From now on leases that end check this place; its departure may stay unproven. Called
    /// before the scan that decides it.
    pub(super) fn defer(&'static self, anchor: &'static Anchor) {
        let mut deferred = self.deferred.lock();
        deferred.push(anchor);
        // ORDERING: Relaxed; the scan's exchange of `owner` shows it to the leases that the scan
        // finds in force (E2).
        self.deferred_count.store(deferred.len(), Ordering::Relaxed);
    }

    /// Checks deferred departures after a record was given back.
    pub(super) fn lease_ended(&'static self) {
        interleave::point();
        // ORDERING: Relaxed; ordered by the exchange that gave the record back (E2).
        if self.deferred_count.load(Ordering::Relaxed) != 0 {
            self.end_proven_departures();
        }
    }

    /// Ends the departures that are proven by now. The lock is held during the scans, so that a
    /// lease that ends meanwhile scans again after them.
    #[cold]
    #[inline(never)]
    fn end_proven_departures(&'static self) {
        let inside = depth::enter();
        let mut over = Vec::new();
        let mut deferred = self.deferred.lock();
        deferred.retain(|anchor| {
            over.extend(anchor.take_if_over());
            anchor.has_departure()
        });
        // ORDERING: Relaxed; written under the lock. A lease that ends and reads an older number
        // scans in vain.
        self.deferred_count.store(deferred.len(), Ordering::Relaxed);
        drop((deferred, inside));
        over.into_iter().for_each(|departure| departure.end_containing_panics());
    }
}
