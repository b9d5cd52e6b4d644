//! Shrinker: what can give memory back, as its owner writes it.

use core::fmt;
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::node::Node;

/// Something that keeps memory it could do without, a cache mostly, and gives some of it back when it is asked to.
///
/// What it gives back is uncharged by itself, in [`scan`](Shrinker::scan), as its memory is always uncharged: what counts are the counters,
/// not what it says. It may be called from any thread that needs memory, on several threads at once for different groups, never for
/// one group twice at the same time (`count` may be). A charge may call them on its own thread, with the locks that this holds: **do not charge under a
/// lock that your callbacks take, and have them try it**, or a charge waits for itself, or is refused beside its own full cache. No lock of the engine is held meanwhile, so it may charge, register, and remove
/// others; it is not called from within itself. When it panics, it is caught, and the shrinker is set aside ([`Quarantine`]); when it
/// takes longer than [`ShrinkerConfig::patience`], others go by. Until then charges that need what it alone has wait for their turn.
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
///         // Try only: the thread that asks may hold this lock, when it is its own charge that needs room.
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
///     // Charged before the lock is taken: room may have to be made in this cache itself.
///     let page = idle.try_charge(4096).unwrap();
///     pages.0.lock().unwrap().push(page);
///     registered.mark();
/// }
/// // All of the megabyte is in the idle one's pages. The busy one gets what it needs, and no more is taken.
/// let charge = busy.try_charge(300_000).unwrap();
/// assert_eq!(pages.0.lock().unwrap().len(), 256 - 300_000_usize.div_ceil(65_536) * 16);
/// # drop(charge);
/// registered.remove().unwrap();
/// ```
pub trait Shrinker: Send + Sync + 'static {
    /// What it could give back in one group. Cheap, an estimate, and without waiting.
    ///
    /// `token` is what its [seat](crate::Seat) in the group was given.
    fn count(&self, token: u64) -> Count;

    /// Gives back about so much, least useful first, and tells how much that was.
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

/// What a shrinker could give back in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// It cannot tell now; it is asked again another time.
    Unknown,
    /// Nothing. It is not asked again before its seat is [marked](crate::Seat::mark).
    Empty,
    /// About so much.
    Holds {
        /// Bytes that are charged for it.
        bytes: u64,
        /// How many things these are.
        objects: u64,
    },
}

impl Count {
    /// So many bytes in so many objects; [`Count::Empty`] where there are none.
    #[must_use]
    pub fn of(bytes: u64, objects: u64) -> Count {
        if bytes == 0 && objects == 0 { Count::Empty } else { Count::Holds { bytes, objects } }
    }
}

/// What a call of [`Shrinker::scan`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// So many bytes were given back, and it could go on.
    Freed {
        /// As it believes; what is believed by others is what was uncharged meanwhile.
        bytes: u64,
    },
    /// So many bytes were given back, and it cannot go on now: a lock is taken, or all that is left is in use. It is asked again later,
    /// for what it was not asked for now.
    Stopped {
        /// As for `Freed`.
        bytes: u64,
    },
}

/// What a shrinker is asked for.
pub struct Ask<'a> {
    pub(crate) node: &'static Node,
    pub(crate) token: u64,
    pub(crate) bytes: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) may_wait: bool,
    pub(crate) here: core::marker::PhantomData<(&'a (), *const ())>,
}

impl Ask<'_> {
    /// About how many bytes to give back: at most the shrinker's [batch](ShrinkerConfig::batch_bytes).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What its seat was given.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The group whose memory is wanted.
    #[must_use]
    pub fn group(&self) -> Group {
        Group::pinned(self.node)
    }

    /// Until when whoever asks is willing to wait.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether that time is over: a callback that takes long looks now and then, and stops.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Whether the callback may wait for locks, for I/O and for other threads. Not where it is a charge that needs room: its thread may hold any lock, and others
    /// wait for it, who may need memory themselves. One that waits nevertheless is set aside when its patience is over.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.may_wait
    }
}

impl fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask")
            .field("group", &self.node.id)
            .field("token", &self.token)
            .field("bytes", &self.bytes)
            .field("may_wait", &self.may_wait)
            .finish_non_exhaustive()
    }
}

/// How a shrinker wants to be treated.
#[derive(Clone, Debug)]
pub struct ShrinkerConfig {
    pub(crate) name: String,
    pub(crate) batch_bytes: u64,
    pub(crate) cost: u32,
    pub(crate) patience: Duration,
}

impl ShrinkerConfig {
    /// A shrinker of this name, for reports and errors; names need not differ.
    #[must_use]
    pub fn new(name: impl Into<String>) -> ShrinkerConfig {
        ShrinkerConfig { name: name.into(), batch_bytes: 64 << 10, cost: 2, patience: Duration::from_secs(1) }
    }

    /// Bytes that one call of [`Shrinker::scan`] is asked for at most; 64 KiB unless told. A cache that has less is asked only when all
    /// that have more have given what they could.
    ///
    /// # Panics
    /// For 0.
    #[must_use]
    pub fn batch_bytes(self, bytes: u64) -> ShrinkerConfig {
        assert!(bytes > 0, "the batch of the shrinker {:?} is 0 bytes; it has to be at least one", self.name);
        ShrinkerConfig { batch_bytes: bytes, ..self }
    }

    /// What it costs to have again what was given back, in relation to other shrinkers; 2 unless told. One of twice the cost is asked for half. 0:
    /// nothing; such a cache is asked for half of what it has at once.
    #[must_use]
    pub fn cost(self, cost: u32) -> ShrinkerConfig {
        ShrinkerConfig { cost, ..self }
    }

    /// How long one call of [`Shrinker::scan`] may take before it counts as an overrun; a second unless told. While one lasts longer, nobody else calls the shrinker, and
    /// after three it is set aside ([`Quarantine`]).
    #[must_use]
    pub fn patience(self, patience: Duration) -> ShrinkerConfig {
        ShrinkerConfig { patience, ..self }
    }
}

/// Why a shrinker is not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quarantine {
    /// It panicked.
    Panicked,
    /// A call that has not returned, or three that have, took longer than its [patience](ShrinkerConfig::patience).
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
