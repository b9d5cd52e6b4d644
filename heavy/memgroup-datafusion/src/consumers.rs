//! The consumers of one pool: the bytes that each holds now, and held at most.
//!
//! ```text
//!   segment 0   ┌──┬──┬──┬──┬──┬──┬── 64 places     id 5: one of the eight places from 5 on
//!   segment 1   ┌──┬──┬──┬──┬──┬──┬── 128 places    where those are taken, one of the eight from 5 on here
//!   ...
//! ```
//!
//! - I1. A consumer has one place from [`enter`](Consumers::enter) to [`leave`](Consumers::leave).
//!   DataFusion calls the first before it returns a reservation, and the second after the last one
//!   is dropped. Only reservations search for a place.
//! - I2. A place has two cache lines of its own, so consumers on different threads share none.
//! - I3. Finding a place takes no lock. Entering, leaving and listing take one.
//! - I4. A count belongs to one thread, and only this thread writes its bytes, so its stores lose
//!   none. No two threads of the process have the same number.

use std::cell::Cell;
use std::cmp::Reverse;
use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_utils::CachePadded;
use datafusion::execution::memory_pool::MemoryConsumer;

/// Places of each segment that one consumer may have.
const WINDOW: usize = 8;
/// Places of the first segment. Each further one has twice as many.
const FIRST: usize = 64;
const SEGMENTS: usize = 23;
/// A bit in the id of a place: the consumer's bytes are not charged, because other consumers
/// reserve the same ones.
const UNCHARGED: usize = 1 << (usize::BITS - 1);

/// Threads that count bytes of a consumer by stores: one of each remainder of their numbers.
const COUNTING: usize = 4;

/// The bytes that one thread added to a consumer, less those that it took, modulo 2^64.
#[derive(Default)]
struct Count {
    /// The [number](this_thread) of that thread; zero before there is one.
    thread: AtomicUsize,
    bytes: AtomicUsize,
}

/// The figures of one consumer, in bytes.
#[derive(Default)]
pub(crate) struct Place {
    /// The consumer's id and one, with [`UNCHARGED`], or zero.
    id: AtomicUsize,
    most: AtomicUsize,
    /// The bytes that it holds are the sum of these and `others`, modulo 2^64.
    counts: [Count; COUNTING],
    /// The bytes of all threads without a count of their own, by atomic additions.
    others: AtomicUsize,
    /// The bytes that it held when another query needed its memory. It should spill at its next
    /// growth. Zero if it was not asked to.
    asked: AtomicUsize,
    /// The bytes that it held when it was refused, until it has freed half of them. Then zero, or
    /// [`FREED`].
    spilling: AtomicUsize,
    /// One of the [stages](READS), or zero if it reads nothing back under its own name.
    stage: AtomicUsize,
}

/// A value of [`Place::spilling`]: a consumer that will read its spilled groups back has freed half
/// of the bytes that it held.
const FREED: usize = 1;

/// The stages of an aggregate. It reads its input, and spills groups when memory is short. After
/// its input it frees all its memory. It then merges the spilled groups under the same name, with
/// several reservations, and fails if it is refused.
const READS: usize = 1;
const SPILLED: usize = 2;
const MERGES: usize = 3;

/// Returns whether DataFusion's operator of this name is such an aggregate.
fn merges_later(name: &str) -> bool {
    let operator = name.split('[').next().unwrap_or_default();
    matches!(
        operator,
        "FinalHashAggregateStream" | "SingleHashAggregateStream" | "OrderedFinalAggregateStream"
    )
}

#[inline]
fn read(figure: &AtomicUsize) -> usize {
    // ORDERING: Relaxed, because the figures are independent. A thread that searches for a place
    // got its reservation after the place was entered (I1), and that orders the two.
    figure.load(Ordering::Relaxed)
}

#[inline]
fn write(figure: &AtomicUsize, value: usize) {
    // ORDERING: Relaxed; as in `read`.
    figure.store(value, Ordering::Relaxed);
}

/// The number of a thread without one yet. No thread has it.
const NUMBERLESS: usize = usize::MAX;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NUMBERLESS) };
}

/// Returns the number of this thread, which is at least one.
#[inline]
fn this_thread() -> usize {
    NUMBER.get()
}

impl Count {
    #[inline]
    fn add(&self, bytes: usize) {
        // Only this thread writes it (I4).
        write(&self.bytes, read(&self.bytes).wrapping_add(bytes));
    }
}

impl Place {
    /// Adds `bytes`.
    pub(crate) fn add(&self, bytes: usize) {
        self.change(bytes);
        self.note_most();
    }

    pub(crate) fn take(&self, bytes: usize) {
        self.change(bytes.wrapping_neg());
        self.note_spilled();
    }

    fn change(&self, bytes: usize) {
        // ORDERING: Relaxed; as in `read`.
        match self.own_count().or_else(|| self.claim_count()) {
            Some(count) => count.add(bytes),
            None => _ = self.others.fetch_add(bytes, Ordering::Relaxed),
        }
    }

    /// The count that this thread has, or may have.
    #[inline]
    fn count(&self) -> &Count {
        &self.counts[this_thread() % COUNTING]
    }

    /// The count of this thread.
    #[inline]
    fn own_count(&self) -> Option<&Count> {
        let count = self.count();
        (read(&count.thread) == this_thread()).then_some(count)
    }

    /// Claims a count for this thread, unless it belongs to another one.
    fn claim_count(&self) -> Option<&Count> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        if this_thread() == NUMBERLESS {
            // ORDERING: Relaxed, because the atomic addition alone makes each number unique.
            NUMBER.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        let count = self.count();
        // ORDERING: Relaxed; as in `read`.
        let claim = || count.thread.compare_exchange(0, this_thread(), Ordering::Relaxed, Ordering::Relaxed);
        (read(&count.thread) == 0 && claim().is_ok()).then_some(count)
    }

    #[inline]
    fn note_most(&self) {
        let held = self.held();
        if held > read(&self.most) {
            // ORDERING: Relaxed; as in `read`.
            self.most.fetch_max(held, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn held(&self) -> usize {
        let counts = self.counts.iter().map(|count| read(&count.bytes));
        let held = counts.fold(read(&self.others), usize::wrapping_add);
        // Between the loads, one thread may return bytes that another one grew by.
        if held > isize::MAX as usize { 0 } else { held }
    }

    #[inline]
    pub(crate) fn is_uncharged(&self) -> bool {
        read(&self.id) & UNCHARGED != 0
    }

    /// Returns whether the consumer was asked to spill, and has not taken this up yet.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        read(&self.asked) > 0
    }

    /// Takes the bytes that the consumer held when it was asked to spill. Only the first call
    /// returns them.
    pub(crate) fn take_ask(&self) -> Option<usize> {
        // ORDERING: Relaxed; as in `read`.
        Some(self.asked.swap(0, Ordering::Relaxed)).filter(|&held| held > 0)
    }

    /// Returns the bytes that the consumer held when it was refused, until it has freed half of
    /// them. In that time it writes them to disk. Otherwise returns `None`.
    pub(crate) fn spilling(&self) -> Option<usize> {
        Some(read(&self.spilling)).filter(|&held| held > FREED)
    }

    /// Notes that the consumer is refused, and begins to spill unless it is spilling already.
    pub(crate) fn spill(&self) {
        let begin = |held| (held <= FREED).then(|| self.held());
        // ORDERING: Relaxed, both; as in `read`.
        _ = self.spilling.fetch_update(Ordering::Relaxed, Ordering::Relaxed, begin);
        _ = self.stage.compare_exchange(READS, SPILLED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Called after a shrinkage, when a consumer that spilled may have freed half of its bytes.
    #[inline]
    fn note_spilled(&self) {
        let spilling = read(&self.spilling);
        if spilling > 0 && self.held() <= spilling / 2 {
            self.end_spill();
        }
    }

    #[cold]
    fn end_spill(&self) {
        let is_aggregate = read(&self.stage) == SPILLED;
        // A spill frees all bytes of the groups right after a refusal, which set a number. At the
        // end of the input the bytes are freed without a refusal.
        if is_aggregate && self.held() == 0 && read(&self.spilling) == FREED {
            write(&self.stage, MERGES);
        }
        write(&self.spilling, if is_aggregate { FREED } else { 0 });
    }

    /// Returns whether the consumer is an aggregate that merges its spilled groups, and can spill
    /// no more.
    pub(crate) fn merges(&self) -> bool {
        read(&self.stage) == MERGES
    }

    /// Notes that one of the consumer's reservations, which holds `own` bytes, will grow. An
    /// aggregate has other reservations only while it merges. This identifies an aggregate whose
    /// last batch made it spill, so that it frees no bytes at the end of its input.
    pub(crate) fn note_reservation(&self, own: usize) {
        if own < self.held() {
            // ORDERING: Relaxed, both; as in `read`.
            _ = self.stage.compare_exchange(SPILLED, MERGES, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns whether the consumer will merge its spilled groups, or does so.
    pub(crate) fn is_aggregate(&self) -> bool {
        read(&self.stage) >= READS
    }

    #[inline]
    fn is_of(&self, id: usize) -> bool {
        read(&self.id) & !UNCHARGED == id + 1
    }

    /// Gives a free place to a consumer.
    fn enter(&self, id: usize, is_charged: bool, merges_later: bool) {
        let counts = self.counts.iter().flat_map(|count| [&count.thread, &count.bytes]);
        counts.chain([&self.others, &self.most]).for_each(|figure| write(figure, 0));
        write(&self.asked, 0);
        write(&self.spilling, 0);
        write(&self.stage, if merges_later { READS } else { 0 });
        let kind = if is_charged { 0 } else { UNCHARGED };
        write(&self.id, (id + 1) | kind);
    }
}

/// A place, and the count of this thread in it.
pub(crate) struct Counted<'p> {
    pub(crate) place: &'p Place,
    count: &'p Count,
}

impl Counted<'_> {
    /// Does the work of [`Place::add`].
    #[inline]
    pub(crate) fn add(&self, bytes: usize) {
        self.count.add(bytes);
        self.place.note_most();
    }

    /// Does the work of [`Place::take`].
    #[inline]
    pub(crate) fn take(&self, bytes: usize) {
        self.count.add(bytes.wrapping_neg());
        self.place.note_spilled();
    }
}

/// One consumer of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerReport {
    /// Its name, as DataFusion's operator gave it.
    pub name: String,
    /// Its number, which is unique in the process.
    pub id: usize,
    /// Whether it can write the memory that it holds to disk. An aggregate that merges its spilled
    /// groups cannot.
    pub can_spill: bool,
    /// Whether its bytes are charged ([`GroupPool::uncharged`](crate::GroupPool::uncharged)).
    pub is_charged: bool,
    /// Bytes that it holds.
    pub held: usize,
    /// The most bytes that it held at one time. If several threads change it at once, bytes that
    /// they return in the meantime may count as well.
    pub most: usize,
}

/// All consumers of one pool.
pub(crate) struct Consumers {
    /// The first segment. It is stored inline so that a growth loads no address for it.
    first: [CachePadded<Place>; FIRST],
    /// The further ones.
    segments: [OnceLock<Box<[CachePadded<Place>]>>; SEGMENTS],
    /// Names and kinds; the figures of the reports are zero here.
    known: Mutex<Vec<ConsumerReport>>,
}

impl Consumers {
    pub(crate) fn new() -> Consumers {
        Consumers {
            first: std::array::from_fn(|_| CachePadded::default()),
            segments: [const { OnceLock::new() }; SEGMENTS],
            known: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ConsumerReport>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places of one segment where a consumer may be.
    #[inline]
    fn window(segment: &[CachePadded<Place>], id: usize) -> impl Iterator<Item = &Place> {
        (0..WINDOW).map(move |at| &*segment[(id + at) & (segment.len() - 1)])
    }

    pub(crate) fn enter(&self, consumer: &MemoryConsumer, is_charged: bool) {
        let mut known = self.lock();
        let id = consumer.id();
        known.push(ConsumerReport {
            name: consumer.name().to_owned(),
            id,
            can_spill: consumer.can_spill(),
            is_charged,
            held: 0,
            most: 0,
        });
        let further = self.segments.iter().enumerate().map(|(number, segment)| {
            let places = || (0..FIRST << (number + 1)).map(|_| CachePadded::default()).collect();
            &**segment.get_or_init(places)
        });
        let mut places =
            iter::once(&self.first[..]).chain(further).flat_map(|segment| Self::window(segment, id));
        if let Some(place) = places.find(|place| read(&place.id) == 0) {
            place.enter(id, is_charged, consumer.can_spill() && merges_later(consumer.name()));
        }
    }

    pub(crate) fn leave(&self, consumer: &MemoryConsumer) {
        let mut known = self.lock();
        known.retain(|known| known.id != consumer.id());
        if let Some(place) = self.place(consumer.id()) {
            write(&place.id, 0);
        }
    }

    #[inline]
    fn nearest(&self, id: usize) -> &Place {
        &self.first[id & (FIRST - 1)]
    }

    /// Returns the place of a charged consumer, with the count of this thread, if it is the first
    /// one that the consumer may have. Most consumers have that one.
    #[inline]
    pub(crate) fn counted(&self, id: usize) -> Option<Counted<'_>> {
        let place = self.nearest(id);
        if read(&place.id) != id + 1 {
            return None;
        }
        Some(Counted { place, count: place.own_count()? })
    }

    /// Returns the place of a consumer that entered and has not left.
    pub(crate) fn place(&self, id: usize) -> Option<&Place> {
        let nearest = self.nearest(id);
        if nearest.is_of(id) { Some(nearest) } else { self.place_beside(id) }
    }

    fn place_beside(&self, id: usize) -> Option<&Place> {
        let further = self.segments.iter().map_while(OnceLock::get).map(|segment| &**segment);
        let mut places =
            iter::once(&self.first[..]).chain(further).flat_map(|segment| Self::window(segment, id));
        places.find(|place| place.is_of(id))
    }

    /// Asks consumers that can spill to do so at their next growth, beginning with those that hold
    /// most, until the asked ones hold `bytes` together.
    pub(crate) fn ask(&self, bytes: usize) {
        let known = self.lock();
        let mut order: Vec<_> = self.spilling(&known).collect();
        order.sort_by_key(|(held, _)| Reverse(*held));
        let mut asked = 0;
        for (held, place) in order {
            if asked >= bytes {
                break;
            }
            write(&place.asked, held);
            asked += held;
        }
    }

    /// Charged bytes of the consumers that can spill.
    pub(crate) fn spillable(&self) -> usize {
        let known = self.lock();
        self.spilling(&known).map(|(held, _)| held).sum()
    }

    /// The consumers that can spill charged bytes, with those bytes.
    fn spilling<'c>(&'c self, known: &'c [ConsumerReport]) -> impl Iterator<Item = (usize, &'c Place)> {
        let can_spill = known.iter().filter(|consumer| consumer.can_spill && consumer.is_charged);
        let places = can_spill.filter_map(|consumer| self.place(consumer.id));
        let places = places.filter(|place| !place.merges());
        places.map(|place| (place.held(), place)).filter(|(held, _)| *held > 0)
    }

    /// The charged bytes of all consumers.
    pub(crate) fn charged(&self) -> usize {
        self.list().iter().filter(|consumer| consumer.is_charged).map(|consumer| consumer.held).sum()
    }

    /// All consumers with their figures.
    pub(crate) fn list(&self) -> Vec<ConsumerReport> {
        let mut list = self.lock().clone();
        for consumer in &mut list {
            if let Some(place) = self.place(consumer.id) {
                (consumer.held, consumer.most) = (place.held(), read(&place.most));
                consumer.can_spill &= !place.merges();
            }
        }
        list
    }
}
