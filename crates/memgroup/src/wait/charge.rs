//! A charge with a deadline: tried as any other, and where it is refused it waits for room at the group that refused.
//!
//! ```text
//!   stock ─▶ counters ─▶ drained, reclaimed ─▶ refused by T ─▶ hold T ─▶ in line at T ─▶ handed over
//!                              ▲                                             ├─▶ another level refuses: in line there
//!                              └──── every 100 ms, where there are shrinkers ┤
//!                                                                            └─▶ deadline, woken, removed: an error
//! ```
//!
//! - I1. The wait ends by its deadline, but for a shrinker's call that it makes itself, and for bounded steps of the engine.
//! - I2. A charge that can never fit where it would wait, or of a removed group, does not wait.
//! - I3. While it waits it holds one group: that group's subtree has no stock until the last that waits there is gone.

use core::time::Duration;
use std::cell::Cell;
use std::time::Instant;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::{MutexGuard, grace};

use super::line::{self, Line, State, Waiter, Want};
use super::list::{self, Listed};
use super::room::make_room;
use super::{WaitKind, Wake};
use crate::chain::{Refused, Until};
use crate::charge::Charge;
use crate::counter::{LARGEST, Reading};
use crate::deny;
use crate::error::{ChargeError, ChargeErrorKind};
use crate::group::Group;
use crate::high;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::oom::{self, Pursuit};
use crate::overrun;
use crate::refusal::{self, OnOom};
use crate::shrink::{keep, reclaim};
use crate::stock::consume;

/// After how long the first in a line has shrinkers asked again: caches may have been filled without anything being uncharged.
const REVIEW: Duration = Duration::from_millis(100);

/// Charges `bytes`, and waits for room until `deadline`.
fn charge(node: &'static Node, bytes: u64, deadline: Instant) -> Result<(), ChargeError> {
    if bytes == 0 || keep::is_reclaiming() || grace::inside() {
        return node.charge(bytes);
    }
    deny::draw(node, bytes)?;
    if consume::consume_prepaid(node, bytes) {
        return Ok(());
    }
    let began = Instant::now();
    // Who can wait goes behind those who wait already.
    let refused = match held_level(node).filter(|_| began < deadline) {
        Some(at) => Refused { node: at, seen: at.counter.read() },
        None => {
            let outcome = consume::charge_unserved_or(node, bytes, |first| {
                refusal::make(node, Until::Top, bytes, first, OnOom::Kill)
            });
            match outcome {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            }
        }
    };
    wait(node, bytes, deadline, Want::Charge, refused).map_err(|failed| failed.error(bytes, began))?;
    high::charged(node, Until::Top, bytes);
    Ok(())
}

/// The highest level of the chain at which somebody waits.
pub(super) fn held_level(node: &'static Node) -> Option<&'static Node> {
    std::iter::successors(Some(node), |level| level.up())
        .filter(|level| level.control.waiting.is_held() && !level.counter.read().measured)
        .last()
}

/// What a charge that was refused got for its waiting.
pub(super) struct Failed {
    last: Refused,
    /// `None`: the refusal says it all.
    kind: Option<ChargeErrorKind>,
}

impl Failed {
    /// Counts the refusal, and says it.
    pub(super) fn error(self, bytes: u64, began: Instant) -> ChargeError {
        let error = refusal::refuse(self.last, bytes);
        self.kind.map_or(error, |kind| error.after_wait(kind, began.elapsed()))
    }
}

/// How a stay in one line ended.
pub(super) enum Left {
    Handed,
    Again(Refused),
    Over(ChargeErrorKind),
}

pub(super) fn wait(
    node: &'static Node,
    bytes: u64,
    deadline: Instant,
    want: Want,
    refused: Refused,
) -> Result<(), Failed> {
    let (mut last, mut stay) = (refused, None);
    loop {
        let never_fits = bytes > LARGEST || bytes > last.seen.max && !last.seen.measured;
        if last.seen.offline || never_fits {
            return Err(Failed { last, kind: None });
        }
        if Instant::now() >= deadline {
            return Err(Failed { last, kind: Some(ChargeErrorKind::Deadline) });
        }
        let stay = stay.get_or_insert_with(|| Stay::begin(node, bytes, deadline, want));
        match stay.in_line(last.node) {
            Ok(Left::Handed) => return Ok(()),
            Ok(Left::Again(refused)) => {
                let made = match want {
                    Want::Charge => refusal::make(node, Until::Top, bytes, refused, OnOom::Kill),
                    Want::Room => make_room(node, bytes, refused),
                };
                match made {
                    Ok(()) => return Ok(()),
                    Err(refused) => last = refused,
                }
            }
            Ok(Left::Over(kind)) => {
                let at = if node.counter.is_offline() { node } else { last.node };
                let reserved = if std::ptr::eq(at, last.node) { last.seen.reserved } else { 0 };
                let last = Refused { node: at, seen: Reading { reserved, ..at.counter.read() } };
                return Err(Failed { last, kind: (!last.seen.offline).then_some(kind) });
            }
            Err(refused) => last = refused,
        }
    }
}

/// The whole wait of one charge, in whatever lines.
pub(super) struct Stay {
    node: &'static Node,
    bytes: u64,
    deadline: Instant,
    want: Want,
    arrival: u64,
    listed: Listed,
    /// Who was asked to die for it since it waits.
    pursuit: Cell<Option<Pursuit>>,
}

impl Stay {
    pub(super) fn begin(node: &'static Node, bytes: u64, deadline: Instant, want: Want) -> Stay {
        // First: who is seen to wait has its turn.
        let arrival = node.shared.waits.line.lock().arrive();
        let listed = list::begin(node, WaitKind::Charge, bytes, deadline);
        Stay { node, bytes, deadline, want, arrival, listed, pursuit: Cell::new(None) }
    }

    /// Waits at `at`, which has refused. `Err`: the group was removed.
    pub(super) fn in_line(&self, at: &'static Node) -> Result<Left, Refused> {
        let _hold = Hold::begin(self.node, at)?;
        self.enqueue(at);
        self.listed.at(at);
        let wake = loop {
            let wake = self.listed.park(self.until());
            match wake {
                Wake::All => break wake,
                Wake::Deadline if Instant::now() >= self.deadline => break wake,
                Wake::Deadline => {
                    if self.review(at) {
                        break wake;
                    }
                }
                // Else a notice of a line that it has left.
                Wake::Notified if !self.line().waits(at, self.arrival) => break wake,
                Wake::Notified => {}
            }
        };
        Ok(match self.leave(at) {
            State::Handed => Left::Handed,
            _ if wake == Wake::All => Left::Over(ChargeErrorKind::Woken),
            State::Again(refused) => Left::Again(refused),
            State::Waiting | State::Away => Left::Over(ChargeErrorKind::Deadline),
        })
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.node.shared.waits.line.lock()
    }

    /// When it is to look whether caches have something to give by now, or another group is to be stopped.
    fn until(&self) -> Instant {
        let shared = self.node.shared;
        let gives = shared.config.reclaim && shared.shrinkers.is_any();
        // What is kept free for others may be less by a charge, too, without anybody who serves.
        let reviews = gives || self.may_kill() || shared.protected.is_any();
        if reviews { self.deadline.min(Instant::now() + REVIEW) } else { self.deadline }
    }

    fn may_kill(&self) -> bool {
        self.want == Want::Charge && self.node.shared.victims.is_any()
    }

    /// The first in line has shrinkers asked once more, and the next victim if the one before takes too long; whether the charge is made.
    fn review(&self, at: &'static Node) -> bool {
        if !self.line().go_away(at, self.arrival) {
            return false;
        }
        let (&Stay { node, bytes, .. }, mut over) = (self, at);
        let gives = node.shared.config.reclaim && node.shared.shrinkers.is_any();
        let is_made = gives && reclaim::make_room(node, Until::Top, bytes, &mut over)
            || self.may_kill() && self.pursue(&mut over);
        if is_made {
            if self.want == Want::Room {
                node.uncharge_counters(bytes);
            }
            self.line().made(at, self.arrival);
        } else {
            self.line().come_back(at, self.arrival);
        }
        is_made
    }

    /// Has who was not asked yet for this charge killed; whether the charge is made.
    fn pursue(&self, over: &mut &'static Node) -> bool {
        let pursuit = self.pursuit.take().unwrap_or_else(|| Pursuit::begin(self.node));
        let relief = oom::pursue(self.node, Until::Top, self.bytes, over, pursuit);
        self.pursuit.set(Some(relief.pursuit));
        relief.is_made
    }

    fn enqueue(&self, at: &'static Node) {
        let &Stay { node, bytes, want, arrival, .. } = self;
        let ticket = self.listed.ticket().expect("the list grows for charges");
        self.line().enqueue(Waiter::new(at, node, bytes, want, arrival, ticket));
    }

    /// Leaves the line, with what was handed over.
    fn leave(&self, at: &'static Node) -> State {
        let state = self.line().leave(at, self.arrival);
        if mutation::active(Mutation::WaiterGoesWithoutTheCharge) { State::Waiting } else { state }
    }
}

/// Somebody waits at a group: until this is dropped there is no stock in its subtree.
struct Hold {
    at: &'static Node,
}

impl Hold {
    /// For a charge of `node` that is to wait at `at`; `Err` where that group was removed.
    fn begin(node: &'static Node, at: &'static Node) -> Result<Hold, Refused> {
        let tree = node.shared.tree.lock();
        let seen = node.counter.read();
        if seen.offline {
            return Err(Refused { node, seen });
        }
        // ORDERING: Relaxed; changed under the tree lock, and published by the mark that `hold` sets (see `is_held`).
        if at.control.waiting.held.fetch_add(1, Ordering::Relaxed) == 0 {
            overrun::hold(&tree, at);
        }
        Ok(Hold { at })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if super::is_model_failing() {
            return;
        }
        let tree = self.at.shared.tree.lock();
        // ORDERING: Relaxed; as in `begin`.
        if self.at.control.waiting.held.fetch_sub(1, Ordering::Relaxed) == 1 {
            overrun::settle(&tree, self.at);
        } else {
            // It may have been the one that the others were to let go first.
            line::serve(self.at);
        }
    }
}

impl Group {
    /// Charges `bytes` as [`try_charge`](Group::try_charge) does, and where that is refused waits until `deadline` for room, at the group that refused.
    ///
    /// What others uncharge there is charged for those who wait and handed to them, in the order of their groups' [weights](Group::set_weight), then of
    /// arrival; one that does not fit is passed by at most 16 others. A charge that does not wait may take what is free at any time; one that can wait goes
    /// behind those who wait already. The wait is [listed](crate::Hierarchy::waits), and ended by [`wake_waiters`](Group::wake_waiters) and by the removal of
    /// the group.
    ///
    /// It may allocate, and it blocks: it is not for code that holds a lock that others need to set memory free, nor for the inside of an
    /// allocator. From within a shrinker's call or a read section it does not wait. A deadline that has passed is no wait either.
    ///
    /// ```
    /// # use memgroup::{ChargeErrorKind, Config, Hierarchy};
    /// # use std::time::{Duration, Instant};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// tenant.set_max(1000).unwrap();
    /// let held = tenant.try_charge(600).unwrap();
    /// let soon = Instant::now() + Duration::from_millis(20);
    /// let error = tenant.charge_until(600, soon).unwrap_err();
    /// assert_eq!((error.kind(), error.usage()), (ChargeErrorKind::Deadline, 600));
    /// assert!(Instant::now() >= soon && error.waited() > Duration::ZERO);
    /// drop(held);
    /// ```
    ///
    /// # Errors
    /// - [`Deadline`](ChargeErrorKind::Deadline): there was no room in time; the numbers are those of the group at which it waited last.
    /// - [`Woken`](ChargeErrorKind::Woken): all waits of the group were ended.
    /// - At once, as by `try_charge`: the group was removed, also while it waited; or `bytes` are more than a limit, whatever is charged.
    pub fn charge_until(&self, bytes: u64, deadline: Instant) -> Result<Charge, ChargeError> {
        charge(self.node(), bytes, deadline).map(|()| Charge::owning(self.node(), bytes))
    }
}

impl Charge {
    /// Charges `bytes` more, and waits for room until `deadline`, as [`Group::charge_until`] does. What is charged already stays charged meanwhile: several
    /// who grow so wait for each other until their deadlines.
    ///
    /// # Errors
    /// As there; this charge stays as it was.
    pub fn grow_until(&mut self, bytes: u64, deadline: Instant) -> Result<(), ChargeError> {
        if bytes > 0 {
            charge(self.node(), bytes, deadline)?;
            self.add(bytes);
        }
        Ok(())
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use memgroup_percpu::SlotSource;

    use super::*;
    use crate::stock::{Stock, drain};
    use crate::{Config, Hierarchy};

    #[test]
    fn a_drain_serves_who_waits_with_what_an_uncharge_under_way_has_put_into_a_closed_stock() {
        const PAGE: u64 = 4096;
        let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap());
        let hierarchy = Hierarchy::new(config).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let node = group.node();
        group.set_max(100 * PAGE).unwrap();
        // The slot is used, so that it has a word.
        drop(group.try_charge(1).unwrap());
        let held = group.try_charge(100 * PAGE).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| group.charge_until(PAGE, deadline));
            while group.waiters().now == 0 || !node.control.waiting.is_held() {
                std::thread::yield_now();
            }
            // Whoever holds the group has closed it when this lock is free again.
            drop(node.shared.tree.lock());
            let stock = Stock::enter(node, node.source.current()).unwrap();
            assert!(!stock.put(PAGE).takes(PAGE), "it is closed: the uncharge would take it out again");
            drop(stock);
            let tree = node.shared.tree.lock();
            let drained = drain::group(node);
            drop(tree);
            assert_eq!(drained, PAGE);
            drop(waiter.join().unwrap().expect("a page was set free"));
        });
        assert!(Instant::now() < deadline);
        let (id, _) = held.into_parts();
        hierarchy.uncharge(id, 99 * PAGE);
        assert_eq!(group.usage_exact(), 0);
    }
}
