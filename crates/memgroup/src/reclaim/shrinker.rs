//! Shrinker: the callbacks of a cache that can give memory back, and their settings.

use core::fmt;
use std::time::{Duration, Instant};

use crate::tree::handle::Group;
use crate::tree::node::Node;

/// A cache, mostly, that holds memory it could do without and gives some of it back on request.
///
/// It uncharges the memory itself, in [`scan`](Shrinker::scan), as memory is always uncharged. The
/// counters are believed, not its answer.
///
/// - Any thread that needs memory may call it, several threads at once for different groups. One
///   group is scanned by one thread at a time; `count` may run at the same time.
/// - A charge may call it on its own thread, which may hold any lock. **Do not charge under a lock
///   that your callbacks take, and have them try that lock.** Else a charge waits for itself, or
///   is refused although its own cache is full.
/// - Once a walk has found a cache empty, later walks skip it until its slot is
///   [marked](crate::ShrinkerSlot::mark). **Mark it under the cache's lock** when the first object
///   goes in.
/// - The engine holds no lock meanwhile, so callbacks may charge, register, and remove other
///   shrinkers. A shrinker is not called from within its own call.
/// - A panic is caught, and the shrinker is [quarantined](Quarantine).
/// - When a call takes longer than [`ShrinkerConfig::patience`], walks skip the shrinker. Until
///   then charges that need its memory wait for their turn, for as long as
///   [`Config::reclaim_patience`](crate::Config::reclaim_patience) lets them.
/// - A shrinker that gives less than an eighth of what it is asked for is asked later than others,
///   and after four such scans in a row only when others have given too little. If it frees
///   nothing in more than 16 scans in a row, although it counts something, only a round in 16 asks
///   it. It is asked as before once it gives enough, or when its slot is
///   [marked](crate::ShrinkerSlot::mark). Scans that [stop](Scan::Stopped) without a byte count up
///   to four.
///
/// The two calls are those of Linux' shrinkers (`count_objects`, `scan_objects`).
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use memgroup::{Ask, Charge, Config, Count, Hierarchy, Scan, Shrinker, ShrinkerConfig};
///
/// /// Pages, oldest first, each with its charge.
/// #[derive(Default)]
/// struct Pages(Mutex<Vec<Charge>>);
///
/// impl Shrinker for Pages {
///     fn count(&self, _token: u64) -> Count {
///         // Try only, as below.
///         let Ok(pages) = self.0.try_lock() else { return Count::Unknown };
///         Count::of(pages.iter().map(Charge::bytes).sum(), pages.len() as u64)
///     }
///
///     fn scan(&self, ask: &Ask<'_>) -> Scan {
///         // Try only: the calling thread may hold this lock, if its own charge needs memory.
///         let Ok(mut pages) = self.0.try_lock() else { return Scan::Stopped { bytes: 0 } };
///         let mut bytes = 0;
///         while bytes < ask.bytes() && !pages.is_empty() {
///             bytes += pages.remove(0).bytes(); // dropped, and so uncharged
///         }
///         Scan::Freed { bytes }
///     }
/// }
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenants = hierarchy.create("/tenants").unwrap();
/// tenants.set_max(1 << 20).unwrap();
/// let (idle, busy) = (tenants.create("idle").unwrap(), tenants.create("busy").unwrap());
///
/// let pages = Arc::new(Pages::default());
/// let registered = idle.add_shrinker(ShrinkerConfig::new("pages"), Arc::clone(&pages)).unwrap();
/// for _ in 0..256 {
///     // Charged before the lock is taken: the charge may need memory of this cache itself.
///     let page = idle.try_charge(4096).unwrap();
///     let mut pages = pages.0.lock().unwrap();
///     pages.push(page);
///     if pages.len() == 1 {
///         // Under the lock: otherwise others could fill the cache before any walk sees it.
///         registered.mark();
///     }
/// }
/// // All of the megabyte is in the idle group's pages. The busy one gets as much as it needs, and no more is taken.
/// let charge = busy.try_charge(300_000).unwrap();
/// assert_eq!(pages.0.lock().unwrap().len(), 256 - 300_000_usize.div_ceil(65_536) * 16);
/// # drop(charge);
/// registered.remove().unwrap();
/// ```
pub trait Shrinker: Send + Sync + 'static {
    /// Estimates how much it could give back in one group. It is to be cheap, and waits for
    /// nothing.
    ///
    /// `token` is the argument of [`attach`](crate::Registration::attach).
    fn count(&self, token: u64) -> Count;

    /// Gives back about the bytes it is asked for, least useful first, and returns how many that
    /// were.
    fn scan(&self, ask: &Ask<'_>) -> Scan;
}

impl<S: Shrinker + ?Sized> Shrinker for std::sync::Arc<S> {
    fn count(&self, token: u64) -> Count {
        (**self).count(token)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        (**self).scan(ask)
    }
}

/// An estimate of the bytes that a shrinker could give back in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The shrinker cannot tell now. A later walk asks again.
    Unknown,
    /// Nothing. The shrinker is not asked again before its slot is
    /// [marked](crate::ShrinkerSlot::mark).
    Empty,
    /// About so many bytes.
    Holds {
        /// Bytes that are charged for it.
        bytes: u64,
        /// The number of objects that they are in.
        objects: u64,
    },
}

impl Count {
    /// A count of `bytes` bytes in `objects` objects; [`Count::Empty`] if both are 0.
    #[must_use]
    pub fn of(bytes: u64, objects: u64) -> Count {
        if bytes == 0 && objects == 0 { Count::Empty } else { Count::Holds { bytes, objects } }
    }
}

/// The result of a [`Shrinker::scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The shrinker gave bytes back, and could go on.
    Freed {
        /// The bytes that it gave back. The engine goes by the bytes that were uncharged
        /// meanwhile.
        bytes: u64,
    },
    /// The shrinker gave bytes back, and cannot go on now: a lock is taken, or the rest is in use.
    /// It is asked for the rest later.
    Stopped {
        /// The bytes that it gave back, as for `Freed`.
        bytes: u64,
    },
}

/// A request for bytes of one group.
pub struct Ask<'a> {
    pub(crate) node: &'static Node,
    pub(crate) token: u64,
    pub(crate) bytes: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) may_wait: bool,
    pub(crate) here: core::marker::PhantomData<(&'a (), *const ())>,
}

impl Ask<'_> {
    /// About how many bytes to give back: at most the shrinker's
    /// [batch](ShrinkerConfig::batch_bytes).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The argument of [`attach`](crate::Registration::attach).
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The group to free memory of.
    #[must_use]
    pub fn group(&self) -> Group {
        Group::pinned(self.node)
    }

    /// The deadline of the reclaim, if it has one.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns whether the deadline has passed: a callback that takes long checks now and then,
    /// and stops.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Returns whether the callback may wait for locks, for I/O and for other threads. It may not
    /// within a charge: the charging thread may hold any lock, and others that wait for it may
    /// need memory themselves. A callback that waits all the same is quarantined when its
    /// patience is over.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.may_wait
    }
}

impl fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask")
            .field("group", &self.node.id())
            .field("token", &self.token)
            .field("bytes", &self.bytes)
            .field("may_wait", &self.may_wait)
            .finish_non_exhaustive()
    }
}

/// The settings of a shrinker.
#[derive(Clone, Debug)]
pub struct ShrinkerConfig {
    pub(crate) name: String,
    pub(crate) batch_bytes: u64,
    pub(crate) cost: u32,
    pub(crate) patience: Duration,
}

impl ShrinkerConfig {
    /// Settings for a shrinker of this name, which reports and errors print. Names need not
    /// differ.
    #[must_use]
    pub fn new(name: impl Into<String>) -> ShrinkerConfig {
        ShrinkerConfig { name: name.into(), batch_bytes: 64 << 10, cost: 2, patience: Duration::from_secs(1) }
    }

    /// Sets the most bytes that one call of [`Shrinker::scan`] is asked for; 64 KiB by default. A
    /// cache that has less is asked only after all larger ones have given as much as they could.
    ///
    /// # Panics
    /// For 0.
    #[must_use]
    pub fn batch_bytes(self, bytes: u64) -> ShrinkerConfig {
        assert!(bytes > 0, "the batch of the shrinker {:?} is 0 bytes; it has to be at least one", self.name);
        ShrinkerConfig { batch_bytes: bytes, ..self }
    }

    /// Sets the cost of making the freed objects again, in relation to other shrinkers; 2 by
    /// default. A shrinker of twice the cost is asked for half as much. At 0 a cache is asked for
    /// half of its bytes at once.
    #[must_use]
    pub fn cost(self, cost: u32) -> ShrinkerConfig {
        ShrinkerConfig { cost, ..self }
    }

    /// Sets how long one call of [`Shrinker::scan`] may take before it counts as an overrun; a
    /// second by default. While a call lasts longer, no other thread calls the shrinker. After
    /// three such calls it is quarantined ([`Quarantine`]).
    #[must_use]
    pub fn patience(self, patience: Duration) -> ShrinkerConfig {
        ShrinkerConfig { patience, ..self }
    }
}

/// The number of a shrinker in its hierarchy. It is given to another one when the shrinker is
/// removed and all its slots are given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ShrinkerId(pub(crate) u32);

impl fmt::Display for ShrinkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The reason why a shrinker is not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Quarantine {
    /// A call of the shrinker panicked.
    Panicked,
    /// A call that has not returned, or three that have, took longer than the
    /// [patience](ShrinkerConfig::patience).
    Overdue,
}

impl fmt::Display for Quarantine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Quarantine::Panicked => "panicked",
            Quarantine::Overdue => "overdue",
        })
    }
}
