//! The consumers of one pool: the bytes that each holds now, and held at most.
//!
//! ```text
//!   segment 0   ┌──┬──┬──┬──┬──┬──┬── 64 places     id 5: one of the eight places from 5 on
//!   segment 1   ┌──┬──┬──┬──┬──┬──┬── 128 places    where those are taken, one of the eight from 5 on here
//!   ...
//! ```
//!
//! - I1. A consumer has one place from [`enter`](Consumers::enter) to [`leave`](Consumers::leave). DataFusion calls the first before it hands
//!   out a reservation, and the second after the last one is dropped. Only reservations look for a place.
//! - I2. A place has two cache lines of its own: consumers on different threads share none.
//! - I3. Finding a place takes no lock. Entering, leaving and listing take one.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_utils::CachePadded;
use datafusion::execution::memory_pool::MemoryConsumer;

/// Places of each segment that one consumer may have.
const WINDOW: usize = 8;
/// Places of the first segment. Each further one has twice as many.
const FIRST: usize = 64;
const SEGMENTS: usize = 24;

/// The figures of one consumer, in bytes.
#[derive(Default)]
pub(crate) struct Place {
    /// The consumer's id and one, or zero.
    id: AtomicUsize,
    /// The first thread that grew it, as [`this_thread`], or zero. That thread alone writes `own`, without atomic additions.
    owner: AtomicUsize,
    /// The bytes that it holds are the wrapping sum of the two: growth and shrinkage by its first thread, and by all others.
    own: AtomicUsize,
    others: AtomicUsize,
    most: AtomicUsize,
    /// Its bytes are not charged: other consumers reserve the same ones.
    is_uncharged: AtomicBool,
    /// The bytes that it held when another query needed its memory: it is to spill at its next growth. Zero if it was not asked.
    asked: AtomicUsize,
}

/// A number of this thread, of which no two threads that run have the same.
#[inline]
fn this_thread() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

// ORDERING: Relaxed, all of them. Each figure stands by itself. A thread that looks for a place was handed a reservation after the place was
// entered (I1), and that hand-over orders the two. A thread with the number of one that ended comes after it.
impl Place {
    /// Adds `bytes`, and returns the bytes that the consumer holds then.
    #[inline]
    pub(crate) fn add(&self, bytes: usize) -> usize {
        self.change(bytes);
        let held = self.held();
        if held > self.most.load(Ordering::Relaxed) {
            self.most.fetch_max(held, Ordering::Relaxed);
        }
        held
    }

    #[inline]
    pub(crate) fn take(&self, bytes: usize) {
        self.change(bytes.wrapping_neg());
    }

    #[inline]
    fn change(&self, bytes: usize) {
        if self.owner.load(Ordering::Relaxed) == this_thread() {
            self.own.store(self.own.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
        } else {
            self.change_of_others(bytes);
        }
    }

    fn change_of_others(&self, bytes: usize) {
        let _ = self.owner.compare_exchange(0, this_thread(), Ordering::Relaxed, Ordering::Relaxed);
        self.others.fetch_add(bytes, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn held(&self) -> usize {
        let held = self.own.load(Ordering::Relaxed).wrapping_add(self.others.load(Ordering::Relaxed));
        // Between the two loads a thread may give back bytes that another one grew by.
        if held > isize::MAX as usize { 0 } else { held }
    }

    #[inline]
    pub(crate) fn is_uncharged(&self) -> bool {
        self.is_uncharged.load(Ordering::Relaxed)
    }

    /// The bytes that the consumer held when it was asked to spill. It is told once.
    pub(crate) fn take_ask(&self) -> Option<usize> {
        Some(self.asked.swap(0, Ordering::Relaxed)).filter(|&held| held > 0)
    }

    #[inline]
    fn is_of(&self, id: usize) -> bool {
        self.id.load(Ordering::Relaxed) == id + 1
    }

    /// Gives a free place to a consumer.
    fn enter(&self, id: usize, is_charged: bool) {
        for figure in [&self.owner, &self.own, &self.others, &self.most] {
            figure.store(0, Ordering::Relaxed);
        }
        self.asked.store(0, Ordering::Relaxed);
        self.is_uncharged.store(!is_charged, Ordering::Relaxed);
        self.id.store(id + 1, Ordering::Relaxed);
    }
}

/// One consumer of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerReport {
    /// Its name, as DataFusion's operator gave it.
    pub name: String,
    /// Its number, of which no two in the process are the same.
    pub id: usize,
    /// Whether it can write the memory that it holds to disk.
    pub can_spill: bool,
    /// Whether its bytes are charged ([`GroupPool::uncharged`](crate::GroupPool::uncharged)).
    pub is_charged: bool,
    /// Bytes that it holds.
    pub held: usize,
    /// The most bytes that it held at one time.
    pub most: usize,
}

/// All consumers of one pool.
pub(crate) struct Consumers {
    segments: [OnceLock<Box<[CachePadded<Place>]>>; SEGMENTS],
    /// Names and kinds; the figures of the reports are zero here.
    known: Mutex<Vec<ConsumerReport>>,
}

impl Consumers {
    pub(crate) fn new() -> Consumers {
        Consumers { segments: [const { OnceLock::new() }; SEGMENTS], known: Mutex::default() }
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
        for (number, segment) in self.segments.iter().enumerate() {
            let segment =
                segment.get_or_init(|| (0..FIRST << number).map(|_| CachePadded::default()).collect());
            if let Some(place) = Self::window(segment, id).find(|place| place.id.load(Ordering::Relaxed) == 0)
            {
                return place.enter(id, is_charged);
            }
        }
    }

    pub(crate) fn leave(&self, consumer: &MemoryConsumer) {
        let mut known = self.lock();
        known.retain(|known| known.id != consumer.id());
        if let Some(place) = self.place(consumer.id()) {
            place.id.store(0, Ordering::Relaxed);
        }
    }

    /// The place of a consumer that entered and did not leave.
    #[inline]
    pub(crate) fn place(&self, id: usize) -> Option<&Place> {
        let first = &self.segments[0].get()?[id & (FIRST - 1)];
        if first.is_of(id) { Some(first) } else { self.place_beside(id) }
    }

    fn place_beside(&self, id: usize) -> Option<&Place> {
        let segments = self.segments.iter().map_while(OnceLock::get);
        segments.flat_map(|segment| Self::window(segment, id)).find(|place| place.is_of(id))
    }

    /// Asks consumers that can spill to do so at their next growth, those that hold most first, until they hold `bytes` together.
    pub(crate) fn ask(&self, bytes: usize) {
        let known = self.lock();
        let mut order: Vec<_> = self.spilling(&known).collect();
        order.sort_by_key(|(held, _)| Reverse(*held));
        let mut asked = 0;
        for (held, place) in order {
            if asked >= bytes {
                break;
            }
            // ORDERING: Relaxed; a hint by itself.
            place.asked.store(held, Ordering::Relaxed);
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
                (consumer.held, consumer.most) = (place.held(), place.most.load(Ordering::Relaxed));
            }
        }
        list
    }
}
