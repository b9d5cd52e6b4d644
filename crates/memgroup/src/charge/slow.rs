//! Slow path: a charge that the stock did not serve. [`guide::refusal`](crate::guide::refusal)
//! describes its steps.
//!
//! # The ladder
//!
//! [`charge_slow_path`] alone decides on a charge that the stock doesn't serve. It buys a batch,
//! then charges the counters exactly, and where they refuse, takes the steps of [`LADDER`] in
//! their order until one of them makes the charge. A step that may have made room tries the charge
//! again. So after each step the attempt knows which level refused it last, and why.
//!
//! # G1, the refusal guarantee
//! *When a charge is refused, live charges, charges in flight and the asked bytes together
//! exceeded a bound at an instant within the call. The bound is the limit of the group that the
//! error names, less the bytes kept there for groups within their protection.*
//!
//! The error says how much is kept ([`ChargeError::reserved`]): mostly nothing, and at most the
//! amount that `protect::reserve` allows. It is looked up within the call, from sums that may lag
//! by bytes that are being charged at that moment.
//!
//! Let R be that group. The last try was decided by an RMW on R's counter (`Counter::refused`) at
//! an instant t, which found usage U. A charge in the subtree put every byte into U. Each byte is
//! one of these:
//!
//! - *A live charge*, or one that is being uncharged: it is live until that call returns. An
//!   uncharge adds its own bytes to a word. If they are above the cap, or the word isn't open, no
//!   drain and no other uncharge takes them along.
//! - *A charge in flight*: an exact charge added it to R and has not returned, perhaps because a
//!   higher level is about to refuse it. Or a charge had it set free and keeps it
//!   (`reclaim::credit`), at most as much as it asked for. Or an attempt to consume, not served
//!   and not yet undone, hides it. It hides at most as many bytes as that charge asked for
//!   (`stock::withdraw` has the sum).
//! - *Prepaid*: in an open stock, or carried to or from one by the thread that has set PENDING
//!   there, or taken out by a drain that has not returned the grant. A stock with a cap holds at
//!   most the cap, and that thread carries at most as much.
//!
//! The prepaid bytes at t are at most `prepaid_most`. A grant for two caps is known at R before
//! the first byte of the stock is charged there, and is returned after the last one was uncharged
//! (`counter` I7). The refusing thread reads the sum of returned grants before t, and that of
//! grants after t.
//!
//! So live charges and charges in flight are at least U - `prepaid_most`. The refusal is final if
//! that, the asked and the kept bytes exceed the limit. Otherwise R is frozen (`control::freeze`):
//! no grant passes, and all stocks below are emptied until every grant is returned. `prepaid_most`
//! is 0 then, and live bytes alone decide. Another thread may take the drained bytes, but only by
//! an exact charge, which is a live charge or one in flight. ∎
//!
//! If a fair share refuses (`counter::share`), R is the child above its even share, and no freeze
//! is needed, because most prepaid bytes are left out of the numbers that decide (I2 and I3
//! there). Live charges exceed the share less a 16a-th of the room.
//!
//! A charge larger than the limit itself, less the kept bytes, needs no such instant: it is
//! refused at once.
//!
//! Loom: `a_refusal_is_never_caused_by_stock`,
//! `a_refill_between_sweep_and_refusal_refuses_no_charge`,
//! `refuses_rightly_at_two_levels_together`,
//! `chargers_that_fail_at_once_are_refused_by_live_bytes_only` and the twins with a fault each.
//! With real threads: `tests/engine/stress.rs`.

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
use crate::state::counter::Reading;
use crate::state::stats::builtin::memory;
use crate::stats::update::count;
use crate::stock::drain;
use crate::tree::error::{ChargeError, ChargeErrorKind};
use crate::tree::node::Node;

/// How often caches are asked again after the last step of one charge.
const ASKS_MOST: u32 = 4;

/// How many of a group's next charges go to the counters after a refusal. The charge after them
/// may open a stock again, which the next refusal would drain.
const REFUSED: u32 = 8;

/// A charge for the slow path to make.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) bytes: u64,
    pub(crate) until: Until,
    pub(crate) want: Want,
    /// The slot whose stock gets the rest of a batch, if one may be bought.
    pub(crate) prepays: Option<usize>,
    pub(crate) means: Means,
}

impl Ask {
    pub(crate) fn exact(bytes: u64, until: Until) -> Ask {
        Ask { bytes, until, want: Want::Charge, prepays: None, means: Means::PLAIN }
    }

    /// Charges the counters for exactly the bytes, or looks whether there is room for a wait that
    /// charges nothing.
    fn try_once(&self, node: &'static Node) -> Result<(), Refused> {
        match self.want {
            Want::Charge | Want::Checkpoint => aftermath::charge(node, self.bytes, Climb::to(self.until)),
            Want::Room => chain::look_past_dry_runs(node, self.until, self.bytes),
        }
    }

    /// Does the same past limits that only count.
    fn try_past_dry_runs(&self, node: &'static Node) -> Result<(), Refused> {
        dry_run::past_dry_runs(self.bytes, || self.try_once(node))
    }

    /// Ends a charge that was made: throttles the group above `high`, and gives back bytes that
    /// were only charged to find out whether they have room.
    fn made(&self, node: &'static Node) {
        if self.want != Want::Room {
            high::after_charge(node, self.until, self.bytes, self.means.effort);
        }
        if self.want == Want::Checkpoint {
            aftermath::uncharge_counters(node, self.bytes);
        }
    }

    /// Returns the level at which this charge must queue behind others, because it can wait, too,
    /// and can fit one day.
    #[cold]
    #[inline(never)]
    fn level_to_queue_at(&self, node: &'static Node) -> Option<&'static Node> {
        let waits = self.means.deadline.is_some_and(|deadline| Instant::now() < deadline);
        let queues = waits || self.means.poll == Poll::First;
        held_level(node).filter(|_| queues && never_fits(node, self.bytes).is_none())
    }
}

/// Makes the charge that `ask` describes, or refuses it for good. What a charge that has room does
/// not need is not inlined, because the registers that it would save are stores before the
/// counters' atomic operations.
#[inline(never)]
pub(crate) fn charge_slow_path(node: &'static Node, mut ask: Ask) -> Result<(), ChargeError> {
    if ask.means.deadline.is_some() || ask.means.poll == Poll::First {
        ask.means.deadline = ask.means.deadline.filter(|_| can_wait());
        if let Some(at) = ask.level_to_queue_at(node) {
            return climb(node, ask, Refused { node: at, seen: at.counter.read() }, &[]);
        }
    }
    if let Some(slot) = ask.prepays
        && batch::buy(node, slot, ask.bytes, ask.means.effort)
    {
        return Ok(());
    }
    match ask.try_once(node) {
        Ok(()) => {
            ask.made(node);
            Ok(())
        }
        Err(refused) => climb(node, ask, refused, AFTER_EXACT),
    }
}

/// Returns whether the thread may wait: not while others wait for it.
#[cold]
#[inline(never)]
fn can_wait() -> bool {
    !credit::is_reclaiming() && !grace::inside()
}

/// A step of the ladder. `full` is the level that refused the charge last.
#[derive(Clone, Copy)]
enum Step {
    /// Charges the counters exactly.
    Exact,
    /// Passes limits that only count.
    DryRun,
    /// Counts the group's own bytes, if it gives shares: they may be fewer than was known.
    Recount,
    /// Collects bytes that an allocator holds back below `full`, if they are as many as the charge
    /// lacks.
    HeldBack,
    /// Drains stocks below `full` of as many bytes as the charge lacks.
    Drain,
    /// Has shrinkers below `full` free the missing bytes.
    Reclaim,
    /// Has a group below `full` stopped.
    Kill,
    /// Decides. If prepaid bytes could still make room, it freezes `full` first.
    Final,
}

const LADDER: [Step; 8] = [
    Step::Exact,
    Step::DryRun,
    Step::Recount,
    Step::HeldBack,
    Step::Drain,
    Step::Reclaim,
    Step::Kill,
    Step::Final,
];
const AFTER_EXACT: &[Step] = LADDER.split_at(1).1;

/// The outcome of a step.
enum Outcome {
    /// The charge is made, or there is room for a wait that charges nothing.
    Charged,
    /// The level that refused last will not have room, whatever the next steps do.
    Refused,
    Next,
}

/// Takes the steps for a charge that was refused, and all of them again after each wait.
#[inline(never)]
fn climb(node: &'static Node, ask: Ask, refused: Refused, mut steps: &[Step]) -> Result<(), ChargeError> {
    if ask.means.poll != Poll::No {
        // A reclaimer takes the steps for a future.
        return Err(ChargeError::of(refused.node, refused.seen, ask.bytes));
    }
    let mut attempt = Attempt::new(node, ask, refused);
    loop {
        if attempt.is_made_by(steps) {
            ask.made(node);
            return Ok(());
        }
        if attempt.is_excused() {
            return Ok(());
        }
        match attempt.wait() {
            Waited::Handed if ask.want == Want::Charge => {
                ask.made(node);
                return Ok(());
            }
            Waited::Handed => return Ok(()),
            Waited::Again => steps = &LADDER,
            Waited::Over => return Err(attempt.refused()),
        }
    }
}

/// A charge on its way up the ladder.
struct Attempt {
    node: &'static Node,
    ask: Ask,
    /// The level that refused last, as the charge saw it.
    last: Refused,
    tried: Tried,
    began: Option<Instant>,
    session: Option<WaitSession>,
    ended: Option<ChargeErrorKind>,
}

/// What was tried for a charge that goes beyond counting.
#[derive(Default)]
struct Tried {
    /// The level at which the charge was last counted as held up by `max`.
    max_counted: Option<&'static Node>,
    /// The level at which running out of memory was counted.
    oom_counted: Option<&'static Node>,
    /// Caches had nothing left when they were last asked. Other threads may have filled them
    /// since.
    nothing_left: bool,
    /// No cache is asked from this instant on.
    reclaim_end: Option<Instant>,
    /// How often caches were asked again after the last step.
    asked_again: u32,
}

impl Attempt {
    fn new(node: &'static Node, ask: Ask, refused: Refused) -> Attempt {
        let began = ask.means.deadline.map(|_| Instant::now());
        Attempt { node, ask, last: refused, tried: Tried::default(), began, session: None, ended: None }
    }

    /// Takes the steps until one of them makes the charge.
    fn is_made_by(&mut self, steps: &[Step]) -> bool {
        for &step in steps {
            match self.take(step) {
                Outcome::Charged => return true,
                Outcome::Refused => break,
                Outcome::Next => {}
            }
        }
        if !steps.is_empty() {
            self.count_max();
        }
        false
    }

    fn take(&mut self, step: Step) -> Outcome {
        let Refused { node: full, seen } = self.last;
        match step {
            Step::Exact => self.note(self.ask.try_once(self.node)),
            Step::DryRun if seen.is_only_dry_run(self.ask.bytes) => self.try_again(),
            Step::DryRun => self.outcome(),
            Step::Recount => {
                let is_own = std::ptr::eq(full, self.node) && !seen.is_share;
                if is_own && share::recount_own(self.node) { self.try_again() } else { Outcome::Next }
            }
            Step::HeldBack if held_back::collect(full, self.missing()) > 0 => self.try_again(),
            Step::HeldBack => Outcome::Next,
            Step::Drain => self.drain(),
            Step::Reclaim => self.reclaim(),
            Step::Kill => self.kill(),
            Step::Final => self.decide(),
        }
    }

    /// Tries the charge after a step that may have made room.
    fn try_again(&mut self) -> Outcome {
        self.note(self.ask.try_past_dry_runs(self.node))
    }

    /// Remembers which level refused the charge.
    fn note(&mut self, outcome: Result<(), Refused>) -> Outcome {
        match outcome {
            Ok(()) => Outcome::Charged,
            Err(refused) => {
                self.last = refused;
                self.outcome()
            }
        }
    }

    /// The outcome for a charge that was refused: whether room can be made for it at all.
    fn outcome(&self) -> Outcome {
        let Refused { seen, .. } = self.last;
        let can_fit = !seen.offline && self.ask.bytes <= seen.most();
        if can_fit || seen.is_only_dry_run(self.ask.bytes) { Outcome::Next } else { Outcome::Refused }
    }

    /// The bytes that the charge lacks in the level that refused it last.
    fn missing(&self) -> u64 {
        let Refused { seen, .. } = self.last;
        seen.usage.saturating_add(self.ask.bytes).saturating_sub(seen.most()).max(1)
    }

    fn drain(&mut self) -> Outcome {
        let Refused { node: full, seen } = self.last;
        let drains = !seen.is_beyond_stocks(self.ask.bytes);
        let outcome = if drains && freeze::drain_for_charge(full, self.missing()) > 0 {
            self.try_again()
        } else {
            Outcome::Next
        };
        if !matches!(outcome, Outcome::Charged) {
            self.count_max();
        }
        outcome
    }

    fn reclaim(&mut self) -> Outcome {
        let Ask { bytes, until, want, means, .. } = self.ask;
        let shared = self.node.shared();
        self.tried.nothing_left = false;
        if means.effort < Effort::Reclaim || !shared.shrinkers().is_any() {
            return Outcome::Next;
        }
        let patience = shared.config.reclaim_patience();
        let end = *self.tried.reclaim_end.get_or_insert_with(|| Instant::now() + patience);
        let mut full = self.last.node;
        let room = make_room(self.node, until, bytes, &mut full, end);
        if room == Room::Charged {
            if want == Want::Room {
                aftermath::uncharge_counters(self.node, bytes);
            }
            return Outcome::Charged;
        }
        self.tried.nothing_left = room == Room::NothingLeft;
        self.after_callbacks(full)
    }

    fn kill(&mut self) -> Outcome {
        let Ask { bytes, until, want, means, .. } = self.ask;
        if want == Want::Room || means.effort < Effort::Stop || !self.node.shared().victims().is_any() {
            return Outcome::Next;
        }
        let mut full = self.last.node;
        let mut attempt = OomAttempt::new(self.node, means.deadline.is_some());
        if attempt.make_charge(until, bytes, &mut full) {
            return Outcome::Charged;
        }
        self.tried.oom_counted = attempt.counted;
        self.after_callbacks(full)
    }

    /// Tries again after shrinkers or hooks were called, which left the charge refused by `full`.
    /// They were followed by drains, which also collect what an allocator held back.
    fn after_callbacks(&mut self, full: &'static Node) -> Outcome {
        self.tried.max_counted = Some(full);
        self.try_again()
    }

    /// Decides on the charge. Other threads may have filled caches since those had nothing left,
    /// which are asked again then.
    fn decide(&mut self) -> Outcome {
        let mut outcome = self.freeze();
        while let Outcome::Refused = outcome
            && self.asks_again()
        {
            outcome = match self.reclaim() {
                Outcome::Next => self.freeze(),
                decided => decided,
            };
        }
        if let Outcome::Refused = outcome {
            self.count_oom();
        }
        outcome
    }

    fn asks_again(&mut self) -> bool {
        let Refused { node, seen } = self.last;
        let asks = self.tried.nothing_left
            && self.tried.asked_again < ASKS_MOST
            && !seen.offline
            && reclaim::is_any(node);
        self.tried.asked_again += u32::from(asks);
        asks
    }

    /// Refuses the charge if no prepaid byte could have made room (G1). Otherwise it freezes the
    /// level that refused for one more try, and then the next one above it that refuses.
    fn freeze(&mut self) -> Outcome {
        loop {
            let Refused { node: full, seen } = self.last;
            let mut frozen = None;
            if seen.is_only_dry_run(self.ask.bytes) {
                dry_run::let_charges_pass(full);
            } else if seen.is_beyond_stocks(self.ask.bytes) {
                return Outcome::Refused;
            } else {
                frozen = Some(FrozenLevel::new(full));
            }
            let outcome = self.ask.try_once(self.node);
            frozen.iter().for_each(FrozenLevel::cools);
            drop(frozen);
            if let Outcome::Charged = self.note(outcome) {
                return Outcome::Charged;
            }
            self.count_max();
        }
    }

    /// Counts the charge as held up by the limit that refused it last, once for each level: not if
    /// the group was removed, or the counter cannot hold the bytes.
    fn count_max(&mut self) {
        let Refused { node: full, .. } = self.last;
        if !self.tried.max_counted.is_some_and(|counted| std::ptr::eq(counted, full)) {
            self.tried.max_counted = Some(full);
            count_max(self.last, self.ask.bytes);
        }
    }

    /// Counts that nothing could be reclaimed for the charge, once for each level: not within a
    /// callback, for which nothing is reclaimed.
    fn count_oom(&self) {
        let Refused { node, seen } = self.last;
        let is_counted = self.tried.oom_counted.is_some_and(|counted| std::ptr::eq(counted, node));
        let is_held_up = !seen.offline && self.ask.bytes <= BYTES_MAX - seen.usage;
        if is_held_up && !is_counted && !credit::is_reclaiming() {
            event::count(node, Event::Oom);
        }
    }

    /// Returns whether it is a checkpoint that passes although levels above are full, because
    /// groups beside its own have the bytes. Another one is refused by the level at which its
    /// own group has too much.
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
        // Also at levels that have not refused it yet: in the queue of another level it would only
        // be in the way.
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

    /// Counts the refusal, and returns it as an error.
    fn refused(&self) -> ChargeError {
        let error = refuse(self.node, self.last, self.ask.bytes);
        match (self.ended, self.began) {
            (Some(kind), Some(began)) => error.after_wait(kind, began.elapsed()),
            _ => error,
        }
    }
}

/// Counts a refusal of a charge of `asker` by the level that refused last, and returns it as an
/// error.
pub(crate) fn refuse(asker: &'static Node, last: Refused, bytes: u64) -> ChargeError {
    let Refused { node, seen } = last;
    node.rare().past.count_refusal();
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

/// Returns the lowest level at which a charge of `bytes` can never fit.
pub(crate) fn never_fits(node: &'static Node, bytes: u64) -> Option<Refused> {
    let mut levels = chain::levels(node).map(|node| Refused { node, seen: node.counter.read() });
    levels.find(|Refused { seen, .. }| bytes > BYTES_MAX || bytes > seen.max && !seen.is_dry_run)
}

/// Counts a charge as held up by a limit, unless a removal or the size of a counter is in its way.
pub(crate) fn count_max(refused: Refused, bytes: u64) {
    if !refused.seen.offline && bytes <= BYTES_MAX - refused.seen.usage {
        event::count(refused.node, Event::Max);
    }
}
