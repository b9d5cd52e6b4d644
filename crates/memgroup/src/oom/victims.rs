//! Victims: which groups have hooks, and which of them are dying.
//!
//! ```text
//!            chosen            called            Dying                half is gone, or done
//!   alive ──────────▶ queued ─────────▶ asked ─────────▶ told ─────────────────────────────▶ alive: Died
//!     ▲                 │ patience        │ patience       │ patience
//!     │◀────────────────┘                 └──▶ overdue ◀───┘
//!     │◀── Idle, Refused, Panicked ───────┘      │
//!     └── half is gone, done, or ten patiences ───┘
//! ```
//!
//! All of it is under one lock, which is the last one in its order: who holds it reads counters and changes what is here, calls nobody, and waits for nobody. It is taken
//! by who registers, by a charge that is about to be refused, and once in a kill by who uncharges.
//!
//! - I1. A group with a hook is held by it, and so are all groups above: nodes that are listed here are those groups'.
//! - I2. What is queued, asked or told, and has not lost half of what it had, keeps others from being chosen for any group that it counts in.
//! - I3. Every trial that was called ends in one outcome: `Record::end`.
//! - I4. A choice allocates nothing: there is room for a trial of every hook.
//! - B1. Who uncharges notes the time at which half is gone; where it misses the watch, or a thread whose slot has a stock is faster than the detour around it, the next
//!   look at the trials does, which is at the next refusal or report.

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::choose::levels;
use super::hook::{Hook, Killed, Taken};
use super::report::{KillOutcome, Named, Record, Ring};
use super::settings;
use super::trial::{Clock, Stage, Trial};
use crate::node::Node;
use crate::shared::Shared;

/// All groups of a hierarchy that have hooks.
pub(crate) struct Victims {
    hooks: AtomicU32,
    numbers: AtomicU64,
    list: Mutex<List>,
}

/// What is behind the lock.
pub(super) struct List {
    /// A hook keeps its seat; those between may be vacant.
    pub(super) seats: Vec<Option<Seat>>,
    vacant: Vec<usize>,
    /// The seats that have trials.
    pub(super) on: Vec<usize>,
    pub(super) ring: Ring,
    /// Of the last charge that looked for victims, or of the last set of them.
    pub(super) numbers: u64,
}

/// A group that has a hook.
pub(super) struct Seat {
    pub(super) node: &'static Node,
    /// The hook's.
    number: u64,
    pub(super) is_aside: bool,
    /// The last charge for which it was asked.
    pub(super) charge: u64,
    pub(super) trial: Option<Trial>,
    /// While a victim is chosen: whether it counts in the group that is full, what it has, and what of that is of groups below with hooks of their own.
    pub(super) is_counted: bool,
    pub(super) usage: u64,
    pub(super) below: u64,
}

/// For which charge.
pub(super) struct Plea {
    pub(super) requester: &'static Node,
    pub(super) full: &'static Node,
    pub(super) asked: u64,
    /// The charge's number.
    pub(super) charge: u64,
}

/// One or several that were chosen.
pub(super) struct Chosen {
    pub(super) set: u64,
    /// The group that they are all of, if it dies as a whole.
    pub(super) unit: Option<&'static Node>,
}

/// A call to be made, or that was.
pub(super) struct Call {
    pub(super) node: &'static Node,
    pub(super) number: u64,
    pub(super) usage: u64,
    pub(super) by_itself: bool,
    seat: usize,
    record: u64,
}

impl Seat {
    /// Bytes that its hook covers, as they were measured.
    pub(super) fn size(&self) -> u64 {
        self.usage.saturating_sub(self.below)
    }
}

impl Victims {
    pub(crate) fn new() -> Victims {
        Victims {
            hooks: AtomicU32::new(0),
            numbers: AtomicU64::new(0),
            list: Mutex::new(List {
                seats: Vec::new(),
                vacant: Vec::new(),
                on: Vec::new(),
                ring: Ring::new(),
                numbers: 0,
            }),
        }
    }

    /// For the next hierarchy. There is no hook: each would hold this one.
    pub(crate) fn clear(&self) {
        self.list.lock().ring.clear();
    }

    /// Whether there is any hook.
    pub(crate) fn is_any(&self) -> bool {
        // ORDERING: Relaxed; one that is set just now was not there yet.
        self.hooks.load(Ordering::Relaxed) > 0
    }

    /// A number for a hook.
    pub(super) fn draw_number(&self) -> u64 {
        // ORDERING: Relaxed; each number once is all that is wanted.
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Puts the hook into its group's place, if that is vacant.
    pub(super) fn enlist(&self, node: &'static Node, hook: Box<Hook>) -> Result<(), Taken> {
        let place = node.control.oom.make_place();
        let mut list = self.list.lock();
        if node.control.oom.has_hook() {
            return Err(Taken::Hook);
        }
        if place.is_taken() {
            return Err(Taken::Call);
        }
        let number = hook.number;
        place.put(hook);
        list.ring.prepare();
        let seat = list.vacant.pop().unwrap_or_else(|| {
            list.seats.push(None);
            list.seats.len() - 1
        });
        let missing = list.seats.len() - list.on.len();
        list.on.reserve(missing);
        let missing = list.seats.len() - list.vacant.len();
        list.vacant.reserve(missing);
        list.seats[seat] = Some(Seat {
            node,
            number,
            is_aside: false,
            charge: 0,
            trial: None,
            is_counted: false,
            usage: 0,
            below: 0,
        });
        node.control.oom.set_seat(Some(seat));
        // ORDERING: Relaxed; as in `is_any`.
        self.hooks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The hook is about to be withdrawn: it is chosen no more, and what was dying by it counts as dead.
    pub(super) fn forget(&self, node: &'static Node, number: u64) {
        let mut list = self.list.lock();
        let Some(at) = list.seat_of(node).filter(|&at| list.is_of(at, number)) else { return };
        if list.trial(at).is_some_and(|trial| trial.stage != Stage::Asked) {
            list.done(at);
        }
        list.end_trial(at);
        list.seats[at] = None;
        list.vacant.push(at);
        node.control.oom.set_seat(None);
        // ORDERING: Relaxed; as in `is_any`.
        self.hooks.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn is_set_aside(&self, node: &'static Node) -> bool {
        let list = self.list.lock();
        list.seat_of(node).and_then(|at| list.seats[at].as_ref()).is_some_and(|seat| seat.is_aside)
    }

    pub(super) fn reinstate(&self, node: &'static Node) {
        let mut list = self.list.lock();
        if let Some(at) = list.seat_of(node)
            && let Some(seat) = &mut list.seats[at]
        {
            seat.is_aside = false;
        }
    }

    /// What was told to stop in the group has ended; whether there was a trial.
    pub(super) fn done(&self, node: &'static Node) -> bool {
        let mut list = self.list.lock();
        let Some(at) = list.seat_of(node) else { return false };
        let was_on = list.done(at);
        list.settle(at, Clock::of(node.shared));
        was_on
    }

    /// Usage of a group that is dying fell far enough, perhaps.
    #[cold]
    pub(super) fn look(&self, node: &'static Node) {
        let mut list = self.list.lock();
        if let Some(at) = list.seat_of(node) {
            list.settle(at, Clock::of(node.shared));
        }
    }

    /// A number for a charge that looks for victims.
    pub(super) fn begin_charge(&self) -> u64 {
        self.list.lock().draw()
    }

    /// Whether a group might be chosen now for who needs memory in `plea.full`.
    pub(super) fn is_any_for(&self, plea: &Plea) -> bool {
        let mut list = self.list.lock();
        list.settle_all(Clock::of(plea.full.shared));
        !list.is_dying_in(plea.full) && list.find(plea, 0).is_some()
    }

    /// Chooses who is to die, if that can set free `lacks` bytes: one group, or all of a group that dies as a whole.
    pub(super) fn choose(&self, plea: &Plea, lacks: u64) -> Option<Chosen> {
        let clock = Clock::of(plea.full.shared);
        let mut list = self.list.lock();
        list.settle_all(clock);
        if list.is_dying_in(plea.full) {
            return None;
        }
        let (at, unit) = list.find(plea, lacks)?;
        let set = list.draw();
        for seat in 0..list.seats.len() {
            let is_chosen = match unit {
                Some(unit) => list.is_candidate_in(seat, unit, plea),
                None => seat == at,
            };
            if is_chosen && let Some(one) = &mut list.seats[seat] {
                one.trial = Some(Trial::queued(set, clock.now, one));
                list.on.push(seat);
            }
        }
        Some(Chosen { set, unit })
    }

    /// The next of a set that is to be called; `from` is where it was looked for last.
    pub(super) fn begin_call(&self, plea: &Plea, chosen: &Chosen, from: &mut usize) -> Option<Call> {
        let mut list = self.list.lock();
        let list = &mut *list;
        let is_next = |seat: &Option<Seat>| {
            let trial = seat.as_ref().and_then(|seat| seat.trial.as_ref());
            trial.is_some_and(|trial| trial.set == chosen.set && trial.stage == Stage::Queued)
        };
        let at = *from + list.seats.get(*from..)?.iter().position(is_next)?;
        *from = at + 1;
        let seat = list.seats[at].as_mut()?;
        let trial = seat.trial.as_mut()?;
        let node = seat.node;
        trial.record = list.ring.push(Record {
            victim: Named::of(node),
            requester: Named::of(plea.requester),
            full: Named::of(plea.full),
            unit: chosen.unit.map(Named::of),
            at: std::time::Instant::now(),
            asked: plea.asked,
            usage: trial.size,
            took: None,
            outcome: None,
        });
        (trial.stage, trial.since) = (Stage::Asked, node.shared.nanos());
        trial.diverted = Some(node.divert());
        settings::watch(node, Some(trial.threshold));
        seat.charge = plea.charge;
        let mut levels = std::iter::successors(Some(plea.requester), |level| level.up());
        let covering = levels.find(|level| level.control.oom.has_hook());
        let by_itself = covering.is_some_and(|covering| std::ptr::eq(covering, node));
        Some(Call { node, number: seat.number, usage: trial.size, by_itself, seat: at, record: trial.record })
    }

    /// A hook has answered; `None`: it panicked.
    pub(super) fn end_call(&self, call: &Call, answer: Option<Killed>) {
        let mut list = self.list.lock();
        let list = &mut *list;
        let ended = match answer {
            Some(Killed::Dying) => None,
            Some(Killed::Idle { freed }) => Some(KillOutcome::Idle { freed }),
            Some(Killed::Refused) => Some(KillOutcome::Refused),
            None => Some(KillOutcome::Panicked),
        };
        let Some(seat) = list.seats[call.seat].as_mut().filter(|seat| seat.number == call.number) else {
            // The hook was removed meanwhile.
            if let Some(record) = list.ring.of(call.record) {
                record.end(ended.unwrap_or(KillOutcome::Died));
            }
            return;
        };
        seat.is_aside |= answer.is_none();
        if let Some(outcome) = ended {
            if let Some(record) = list.ring.of(call.record) {
                record.end(outcome);
            }
            return list.end_trial(call.seat);
        }
        let Some(trial) = &mut seat.trial else { return };
        trial.stage = match trial.stage {
            Stage::Overdue { .. } => Stage::Overdue { in_call: false },
            Stage::Queued | Stage::Asked | Stage::Told => Stage::Told,
        };
        list.settle(call.seat, Clock::of(call.node.shared));
    }

    /// The last records, into a vector that has room for them.
    pub(super) fn copy_records(&self, shared: &'static Shared, into: &mut Vec<Record>) {
        let mut list = self.list.lock();
        list.settle_all(Clock::of(shared));
        into.extend(list.ring.all());
    }
}

impl List {
    fn draw(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn seat_of(&self, node: &'static Node) -> Option<usize> {
        let at = node.control.oom.seat()?;
        self.seats[at].as_ref().filter(|seat| std::ptr::eq(seat.node, node)).map(|_| at)
    }

    pub(super) fn trial(&self, at: usize) -> Option<&Trial> {
        self.seats[at].as_ref()?.trial.as_ref()
    }

    fn is_of(&self, at: usize, number: u64) -> bool {
        self.seats[at].as_ref().is_some_and(|seat| seat.number == number)
    }

    /// Whether somebody whose bytes count in `top` is dying.
    fn is_dying_in(&self, top: &'static Node) -> bool {
        let seats = self.on.iter().filter_map(|&at| self.seats[at].as_ref());
        let mut awaited = seats.filter(|seat| seat.trial.as_ref().is_some_and(Trial::is_awaited));
        awaited.any(|seat| levels(seat.node, top).is_some())
    }
}
