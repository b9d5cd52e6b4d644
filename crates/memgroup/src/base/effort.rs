//! Effort: how far the engine goes for one charge.

use std::time::Instant;

/// How far the engine goes to make room for a charge.
///
/// Each step includes the ones before it. Asynchronous executors, and code that holds locks,
/// should ask for less than `Stop`, so that no foreign code runs on their threads. The kernel's
/// `GFP_NOWAIT` and `__GFP_NORETRY` are similar (`include/linux/gfp_types.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effort {
    /// Only counts, and takes back bytes that other stocks have prepaid. It calls no shrinker and
    /// no kill hook, and allocates nothing. It waits for nothing but short steps of the engine
    /// itself. Bytes above a [`high`](crate::Group::set_high) become debt, as those of a forced
    /// charge do.
    Count,
    /// Also asks shrinkers for memory, on this thread.
    Reclaim,
    /// Also calls kill hooks, on this thread. All other charges do so.
    Stop,
}

/// What a charge may do besides counting.
#[derive(Clone, Copy)]
pub(crate) struct Means {
    pub(crate) effort: Effort,
    /// The instant until which it waits for headroom, if it waits at all.
    pub(crate) deadline: Option<Instant>,
    pub(crate) poll: Poll,
}

/// Says whether a charge is one try of a future. The future learns which level refuses, and waits
/// there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poll {
    No,
    /// The first try, which goes behind the charges that wait already.
    First,
    /// A later try: the future has waited already.
    Again,
}

impl Means {
    /// The means of a plain charge.
    pub(crate) const PLAIN: Means = Means::with(Effort::Stop);

    pub(crate) const fn with(effort: Effort) -> Means {
        Means { effort, deadline: None, poll: Poll::No }
    }

    /// Returns the means of a future, which takes no step that needs the lock of a level.
    pub(crate) const fn of_poll(poll: Poll) -> Means {
        Means { poll, ..Means::with(Effort::Count) }
    }

    pub(crate) fn until(deadline: Instant) -> Means {
        Means { deadline: Some(deadline), ..Means::PLAIN }
    }
}
