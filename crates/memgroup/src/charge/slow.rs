//! Slow path: a charge that the stock did not serve. [`guide::refusal`](crate::guide::refusal) describes its steps.
//!
//! # The ladder
//!
//! [`charge_slow_path`] is the only place that decides on a charge that the stock does not serve. It has a step a line: each step
//! makes the charge, or leaves behind which level refused it last.
//!
//! # G1, the refusal guarantee
//! *When a charge is refused, live charges, charges in flight and the asked bytes together exceeded a bound at an instant within the
//! call. The bound is the limit of the group that the error names, less the bytes kept there for groups within their protection.*
//!
//! The error tells how much is kept ([`ChargeError::reserved`]): mostly nothing, and at most the amount that `protect::reserve` allows. It is
//! looked up within the call, from sums that may lag by bytes being charged at that moment.
//!
//! Let R be that group. The last try was decided by an RMW on R's counter (`Verdict::Final`) at an instant t, which found usage U. A charge in
//! the subtree put every byte into U. Each byte is one of these:
//!
//! - *A live charge*, or one that is being uncharged: it is live until that call returns. An uncharge adds its own bytes to a word. As far as
//!   they are above the cap, or the word is not open, no drain and no other uncharge takes them along.
//! - *A charge in flight*: an exact charge added it to R and has not returned, perhaps because a higher level is about to refuse it. Or a
//!   charge had it set free and keeps it (`reclaim::credit`), at most as much as it asked for. Or an attempt to consume, not served and not
//!   yet undone, hides it. It hides at most as many bytes as that charge asked for (`stock::withdraw` has the sum).
//! - *Prepaid*: in an open stock, or carried to or from one by the thread that has set PENDING there, or taken out by a drain that has not
//!   returned the grant. A stock with a cap holds at most the cap, and that thread carries at most as much.
//!
//! The prepaid bytes at t are at most `prepaid_most`. A grant for two caps is known at R before the first byte of the stock is charged there, and
//! is returned after the last one was uncharged (`counter` I7). The refusing thread reads the sum of returned grants before t, and that of grants
//! after t.
//!
//! So live charges and charges in flight are at least U - `prepaid_most`. The refusal is final if that, the asked and the kept bytes exceed the
//! limit. Where they do not, R is frozen (`control::freeze`): no grant passes, and all stocks below are emptied until every grant is returned.
//! `prepaid_most` is 0 then, and live bytes alone decide. A third thread may take the drained bytes, but only by an exact charge. That is a live
//! charge or one in flight. ∎
//!
//! Where a fair share refuses (`counter::share`), R is the child above its even share, and no freeze is needed: most prepaid bytes are left out of the
//! numbers that decide (I2 and I3 there). Live charges exceed the share less a 16a-th of the room.
//!
//! A charge larger than the limit itself, less the kept bytes, needs no such instant: it is refused at once.
//!
//! Loom: `a_refusal_is_never_caused_by_stock`, `a_refill_between_sweep_and_refusal_refuses_no_charge`,
//! `refuses_rightly_at_two_levels_together`, `chargers_that_fail_at_once_are_refused_by_live_bytes_only` and the twins with a fault each. With real threads:
//! `tests/engine/stress.rs`.

use std::time::Instant;

use memgroup_sync::grace;

use crate::base::effort::{Effort, Means, Poll};
use crate::base::limit::BYTES_MAX;
use crate::charge::batch;
use crate::charge::wait::{WaitSession, Waited, held_level};
use crate::control::freeze::{self, FrozenLevel};
use crate::control::make_room::{Room, make_room};
use crate::control::oom::OomAttempt;
use crate::control::{aftermath, dry_run, held_back, high};
use crate::counter::chain::{self, Climb, Refused, Until};
use crate::counter::events::Event;
use crate::counter::share;
use crate::observe::event;
use crate::observe::wait::charges::Want;
use crate::reclaim::{self, credit};
use crate::state::counter::{Reading, Verdict};
use crate::state::stats::builtin::memory;
use crate::stats::update::count;
use crate::stock::drain;
use crate::tree::error::{ChargeError, ChargeErrorKind};
use crate::tree::node::Node;

/// How often caches are asked again after the last try of one charge.
const ASKS_MOST: u32 = 4;

/// After a refusal the group's next charges go to the counters, and the one of this number may have a stock opened. The next refusal would take it.
const REFUSED: u32 = 8;

/// A charge that the slow path is to make.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) bytes: u64,
    pub(crate) until: Until,
    pub(crate) want: Want,
    /// The slot where a batch may be bought: its stock gets the rest of it.
    pub(crate) prepays: Option<usize>,
    pub(crate) means: Means,
}

impl Ask {
    pub(crate) fn exact(bytes: u64, until: Until) -> Ask {
        Ask { bytes, until, want: Want::Charge, prepays: None, means: Means::PLAIN }
    }

    pub(crate) fn with_batch(slot: usize, bytes: u64) -> Ask {
        Ask { prepays: Some(slot), ..Ask::exact(bytes, Until::Top) }
    }
}

/// Makes the charge that `ask` describes, or refuses it for good.
#[cold]
#[inline(never)]
pub(crate) fn charge_slow_path(node: &'static Node, mut ask: Ask) -> Result<(), ChargeError> {
    let Ask { bytes, until, want, means, .. } = ask;
    // The first two steps, before there is a ladder: they make most charges, and cost less without its state.
    let mut refused = None;
    if means.deadline.is_none() && means.poll == Poll::No && want == Want::Charge {
        if ask.prepays.take().is_some_and(|slot| batch::buy(node, slot, bytes, means.effort)) {
            return Ok(());
        }
        refused = aftermath::charge(node, bytes, Climb::to(until, Verdict::Hint)).err();
        if refused.is_none() {
            high::after_charge(node, until, bytes, means.effort);
            return Ok(());
        }
    }
    climb(SlowCharge::new(node, ask, refused))
}

#[inline(never)]
fn climb(mut charge: SlowCharge) -> Result<(), ChargeError> {
    loop {
        let is_made = !charge.goes_behind_waiters()
            && (charge.with_batch()
                || charge.exactly()
                || charge.goes_on()
                    && (charge.past_dry_runs()
                        || charge.after_recount()
                        || charge.with_held_back()
                        || charge.after_drain()
                        || charge.after_reclaim()
                        || charge.with_held_back()
                        || charge.after_kill()
                        || charge.finally()));
        if is_made {
            break;
        }
        if !charge.goes_on() {
            return Err(ChargeError::of(charge.last.node, charge.last.seen, charge.ask.bytes));
        }
        if charge.is_excused() {
            break;
        }
        match charge.wait() {
            Waited::Handed => break,
            Waited::Again => {}
            Waited::Over => return Err(charge.refused()),
        }
    }
    charge.made();
    Ok(())
}

/// A charge on its way through the slow path.
struct SlowCharge {
    node: &'static Node,
    ask: Ask,
    /// The level that refused last, as it was seen then. Before the first attempt, the group's own.
    last: Refused,
    /// The level in which room is made.
    full: &'static Node,
    /// That level refused before the ladder began, and is not tried once more at once.
    is_refused: bool,
    /// Whether room can be made at all: the charge is smaller than the limit that refused it, and the group is online.
    can_fit: bool,
    /// The counters are charged. Not so where a look found room for a wait that charges nothing.
    is_charged: bool,
    /// The level at which running out of memory was counted.
    oom_counted: Option<&'static Node>,
    /// The result of asking caches.
    room: Room,
    /// When it asks them no more.
    reclaim_end: Option<Instant>,
    /// How often they were asked again after the last try.
    asked_again: u32,
    session: Option<WaitSession>,
    began: Option<Instant>,
    ended: Option<ChargeErrorKind>,
}

impl SlowCharge {
    fn new(node: &'static Node, ask: Ask, refused: Option<Refused>) -> SlowCharge {
        let deadline = ask.means.deadline.filter(|_| !credit::is_reclaiming() && !grace::inside());
        SlowCharge {
            node,
            ask: Ask { means: Means { deadline, ..ask.means }, ..ask },
            last: refused.unwrap_or_else(|| Refused { node, seen: node.counter.read() }),
            full: node,
            is_refused: refused.is_some(),
            can_fit: true,
            is_charged: false,
            oom_counted: None,
            room: Room::None,
            reclaim_end: None,
            asked_again: 0,
            session: None,
            began: deadline.map(|_| Instant::now()),
            ended: None,
        }
    }

    /// A charge that can wait, and can fit one day, queues behind those that wait already. Looked at once.
    fn goes_behind_waiters(&mut self) -> bool {
        let deadline = self.ask.means.deadline.filter(|_| self.session.is_none());
        let is_in_time = deadline.is_some_and(|deadline| self.began.is_some_and(|began| began < deadline));
        if !is_in_time && self.ask.means.poll != Poll::First {
            return false;
        }
        let can_wait = || never_fits(self.node, self.ask.bytes).is_none();
        let held = held_level(self.node).filter(|_| can_wait());
        if let Some(at) = held {
            self.last = Refused { node: at, seen: at.counter.read() };
        }
        held.is_some()
    }

    /// Whether it climbs further than a poll. A reclaimer climbs these steps for a future.
    fn goes_on(&self) -> bool {
        self.ask.means.poll == Poll::No
    }

    /// Spends prepaid bytes, or buys a batch for itself and the charges to come. Once.
    fn with_batch(&mut self) -> bool {
        let Ask { bytes, means, .. } = self.ask;
        self.ask.prepays.take().is_some_and(|slot| batch::buy(self.node, slot, bytes, means.effort))
    }

    /// Charges the counters for exactly the bytes.
    fn exactly(&mut self) -> bool {
        let Ask { bytes, until, .. } = self.ask;
        let outcome = match self.ask.want {
            _ if std::mem::take(&mut self.is_refused) => false,
            Want::Charge | Want::Checkpoint => self.note(aftermath::try_charge(self.node, until, bytes)),
            Want::Room => self.note(chain::look_past_dry_runs(self.node, until, bytes)),
        };
        (self.full, self.can_fit) =
            (self.last.node, !self.last.seen.offline && bytes <= self.last.seen.most());
        outcome
    }

    /// Passes a dry-run limit, if the charge was refused by such limits only.
    fn past_dry_runs(&mut self) -> bool {
        if !self.last.seen.is_only_dry_run(self.ask.bytes) {
            return false;
        }
        let outcome = self.attempt();
        let is_made = self.note(outcome);
        let seen = self.last.seen;
        (self.full, self.can_fit) = (self.last.node, !seen.offline && self.ask.bytes <= seen.most());
        is_made
    }

    /// Where the group gives shares, its own bytes may be fewer than was known.
    fn after_recount(&mut self) -> bool {
        let is_own = self.can_fit && std::ptr::eq(self.last.node, self.node) && !self.last.seen.is_share;
        if !is_own || !share::recount_own(self.node) {
            return false;
        }
        let outcome = self.attempt();
        let is_made = self.note(outcome);
        self.full = self.last.node;
        is_made
    }

    /// Bytes that an allocator holds back below the full group go back to the counters, if they are as many as the charge lacks.
    fn with_held_back(&mut self) -> bool {
        let Refused { seen, .. } = self.last;
        let missing = (seen.usage.saturating_add(self.ask.bytes)).saturating_sub(seen.most()).max(1);
        if !self.can_fit || held_back::collect(self.full, missing) == 0 {
            return false;
        }
        let outcome = self.attempt();
        let is_made = self.note(outcome);
        self.full = self.last.node;
        is_made
    }

    /// Prepaid bytes of the full group's subtree go back to the counters, as many as the charge lacks.
    fn after_drain(&mut self) -> bool {
        if self.can_fit && !self.last.seen.is_beyond_stocks(self.ask.bytes) {
            let missing = self.ask.bytes.saturating_sub(self.last.seen.headroom()).max(1);
            if freeze::drain_for_charge(self.full, missing) > 0 {
                let outcome = self.attempt();
                if self.note(outcome) {
                    return true;
                }
                self.full = self.last.node;
            }
        }
        count_max(self.last, self.ask.bytes);
        false
    }

    /// Shrinkers of the full group's subtree give back the missing bytes.
    fn after_reclaim(&mut self) -> bool {
        let Ask { bytes, until, means, .. } = self.ask;
        let is_asked = self.can_fit && means.effort >= Effort::Reclaim;
        self.room = if is_asked && self.node.shared().shrinkers().is_any() {
            let patience = self.node.shared().config.reclaim_patience();
            let end = *self.reclaim_end.get_or_insert_with(|| Instant::now() + patience);
            make_room(self.node, until, bytes, &mut self.full, end)
        } else {
            Room::None
        };
        self.is_charged = self.room == Room::Charged;
        self.is_charged
    }

    /// A group of the full group's subtree is told to stop.
    fn after_kill(&mut self) -> bool {
        let Ask { bytes, until, want, means, .. } = self.ask;
        if self.can_fit
            && want != Want::Room
            && means.effort >= Effort::Stop
            && self.node.shared().victims().is_any()
        {
            let mut attempt = OomAttempt::new(self.node, means.deadline.is_some());
            self.is_charged = attempt.make_charge(until, bytes, &mut self.full);
            self.oom_counted = attempt.counted;
        }
        self.is_charged
    }

    /// The last try. Other threads may have filled caches since those had nothing left. Then they are asked again.
    fn finally(&mut self) -> bool {
        let mut is_made = self.with_held_back() || self.while_frozen();
        while !is_made && self.asks_again() {
            is_made = self.after_reclaim() || self.while_frozen();
        }
        if !is_made && self.can_fit {
            self.count_oom();
        }
        is_made
    }

    fn asks_again(&mut self) -> bool {
        let asks = self.room == Room::NothingLeft
            && self.asked_again < ASKS_MOST
            && !self.last.seen.offline
            && reclaim::is_any(self.last.node);
        self.asked_again += u32::from(asks);
        asks
    }

    /// Tries a last time. A refusal is final where no prepaid byte could have made room (G1). Else the level that refused is frozen for one
    /// more try, and then the next one above it that refuses.
    fn while_frozen(&mut self) -> bool {
        let mut frozen: Option<FrozenLevel> = None;
        while self.can_fit {
            let outcome = self.attempt_finally();
            frozen.take().inspect(FrozenLevel::cools);
            if self.note(outcome) {
                return true;
            }
            let Refused { node: at, seen } = self.last;
            if !std::ptr::eq(at, self.full) {
                count_max(self.last, self.ask.bytes);
                self.full = at;
            }
            if seen.is_only_dry_run(self.ask.bytes) {
                dry_run::let_charges_pass(at);
            } else if seen.is_beyond_stocks(self.ask.bytes) {
                return false;
            } else {
                frozen = Some(FrozenLevel::new(at));
            }
        }
        false
    }

    fn attempt_finally(&self) -> Result<(), Refused> {
        let Ask { bytes, until, want, .. } = self.ask;
        match want {
            Want::Charge | Want::Checkpoint => {
                aftermath::charge(self.node, bytes, Climb::to(until, Verdict::Final))
            }
            Want::Room => chain::look_past_dry_runs(self.node, until, bytes),
        }
    }

    fn attempt(&self) -> Result<(), Refused> {
        let Ask { bytes, until, want, .. } = self.ask;
        if want == Want::Room {
            return chain::look_past_dry_runs(self.node, until, bytes);
        }
        let attempt = || aftermath::charge(self.node, bytes, Climb::to(until, Verdict::Hint));
        dry_run::past_dry_runs(bytes, attempt)
    }

    /// Remembers the outcome of an attempt to charge the counters, or of a look for room; whether it is made, or there is room.
    fn note(&mut self, outcome: Result<(), Refused>) -> bool {
        let is_made = outcome.map_err(|refused| self.last = refused).is_ok();
        self.is_charged = is_made && self.ask.want != Want::Room;
        is_made
    }

    /// Nothing could be reclaimed for the charge. That is counted once for each level; not within a callback, for which nothing is
    /// reclaimed.
    fn count_oom(&self) {
        let Refused { node, seen } = self.last;
        let is_counted = self.oom_counted.is_some_and(|counted| std::ptr::eq(counted, node));
        let is_held_up = !seen.offline && self.ask.bytes <= BYTES_MAX - seen.usage;
        if is_held_up && !is_counted && !credit::is_reclaiming() {
            event::count(node, Event::Oom);
        }
    }

    /// Whether it is a checkpoint that passes although levels above are full, because groups beside its own have the bytes.
    /// One that does not is refused by the level at which its own group has too much.
    fn is_excused(&mut self) -> bool {
        if self.ask.want != Want::Checkpoint {
            return false;
        }
        let own = share::own_excess(self.node);
        self.last = own.unwrap_or(self.last);
        own.is_none()
    }

    /// Waits in the queue of the level that refused, if the charge has a deadline.
    fn wait(&mut self) -> Waited {
        let Some(deadline) = self.ask.means.deadline else { return Waited::Over };
        if self.last.seen.offline {
            return Waited::Over;
        }
        // Also at levels that have not refused it yet: in the queue of another level it would only be in the way.
        if let Some(never) = never_fits(self.node, self.ask.bytes) {
            self.last = never;
            return Waited::Over;
        }
        if Instant::now() >= deadline {
            self.ended = Some(ChargeErrorKind::Deadline);
            return Waited::Over;
        }
        let Ask { bytes, want, .. } = self.ask;
        let session =
            self.session.get_or_insert_with(|| WaitSession::begin(self.node, bytes, deadline, want));
        session.wait(&mut self.last, &mut self.ended)
    }

    /// The charge is made: `high` is looked at, and bytes that were charged to find out whether there is room are given back.
    fn made(&self) {
        let Ask { bytes, until, want, means, .. } = self.ask;
        match want {
            Want::Charge if self.is_charged || self.session.is_some() => {
                high::after_charge(self.node, until, bytes, means.effort)
            }
            Want::Room if self.is_charged => aftermath::uncharge_counters(self.node, bytes),
            Want::Checkpoint if self.is_charged => {
                high::after_charge(self.node, until, bytes, means.effort);
                aftermath::uncharge_counters(self.node, bytes);
            }
            Want::Charge | Want::Room | Want::Checkpoint => {}
        }
    }

    /// Counts the refusal, and says it.
    fn refused(&self) -> ChargeError {
        let error = refuse(self.node, self.last, self.ask.bytes);
        match (self.ended, self.began) {
            (Some(kind), Some(began)) => error.after_wait(kind, began.elapsed()),
            _ => error,
        }
    }
}

/// Counts a refusal of a charge of `asker` by the level that refused last, and says it.
pub(crate) fn refuse(asker: &'static Node, last: Refused, bytes: u64) -> ChargeError {
    let Refused { node, seen } = last;
    node.counter.count_refusal();
    count(node, memory::REFUSALS, 1);
    asker.back_off(REFUSED);
    // The group's own stocks were not drained, if their bytes could not have made room.
    let prepaid = if seen.prepaid_most > 0 { drain::prepaid(node) } else { 0 };
    let seen = Reading { usage: seen.usage.saturating_sub(prepaid), ..seen };
    let error = ChargeError::of(node, seen, bytes);
    if last.seen.offline || bytes > last.seen.most() {
        return error;
    }
    let victims = node.shared().victims();
    if let Some(victim) = victims.is_any().then(|| victims.dying_in(node)).flatten() {
        return error.while_dying(victim);
    }
    match share::largest_above(node, asker).filter(|_| !seen.is_share) {
        Some(largest) => error.beside(largest),
        None => error,
    }
}

/// The lowest level at which a charge of so many bytes can never fit.
pub(crate) fn never_fits(node: &'static Node, bytes: u64) -> Option<Refused> {
    let mut levels = chain::levels(node).map(|node| Refused { node, seen: node.counter.read() });
    levels.find(|Refused { seen, .. }| bytes > BYTES_MAX || bytes > seen.max && !seen.is_dry_run)
}

/// A charge is held up by a limit: not by a removal, nor by the size of a counter.
pub(crate) fn count_max(refused: Refused, bytes: u64) {
    if !refused.seen.offline && bytes <= BYTES_MAX - refused.seen.usage {
        event::count(refused.node, Event::Max);
    }
}
