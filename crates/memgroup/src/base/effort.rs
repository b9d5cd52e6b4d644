//! Effort: how far the engine goes for one charge.

use std::time::Instant;

/// How far the engine goes to make room for a charge.
///
/// Each step includes the ones before. Asynchronous executors and code that holds locks take less than all, so that no foreign code runs on their
/// threads. Ideas of the kernel's `GFP_NOWAIT` and `__GFP_NORETRY` (`include/linux/gfp_types.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effort {
    /// Counts, and takes back bytes that other stocks have prepaid. It calls no shrinker and no kill hook, and allocates nothing. It waits for
    /// nothing but short steps of the engine's own. Bytes above a [`high`](crate::Group::set_high) become debt, as those of a forced charge do.
    Count,
    /// Also asks shrinkers for memory, on this thread.
    Reclaim,
    /// Also calls kill hooks, on this thread. All other charges do so.
    Stop,
}

/// All that a charge may do besides counting.
#[derive(Clone, Copy)]
pub(crate) struct Means {
    pub(crate) effort: Effort,
    /// Until when it waits for room, if it waits.
    pub(crate) deadline: Option<Instant>,
    pub(crate) poll: Poll,
}

/// Whether a charge is one try of a future, which is told which level refuses and waits there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poll {
    No,
    /// It goes behind charges that wait already.
    First,
    /// It has waited, at a level where another one refused it.
    Again,
}

impl Means {
    /// Those of a plain charge.
    pub(crate) const PLAIN: Means = Means::with(Effort::Stop);

    pub(crate) const fn with(effort: Effort) -> Means {
        Means { effort, deadline: None, poll: Poll::No }
    }

    /// Those of a future. It climbs no step that takes the lock of a level.
    pub(crate) const fn of_poll(poll: Poll) -> Means {
        Means { poll, ..Means::with(Effort::Count) }
    }

    pub(crate) fn until(deadline: Instant) -> Means {
        Means { deadline: Some(deadline), ..Means::PLAIN }
    }
}
