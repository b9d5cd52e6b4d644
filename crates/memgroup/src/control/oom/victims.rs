//! Victims: the groups that have kill hooks, the choice among them, and their pending kills.
//!
//! ```text
//!            chosen            called            Dying                half is freed, or done
//!   alive ──────────▶ queued ─────────▶ asked ─────────▶ told ─────────────────────────────▶ alive: Died
//!     ▲                 │ patience        │ patience       │ patience
//!     │◀────────────────┘                 └──▶ overdue ◀───┘
//!     │◀── Idle, Refused, Panicked ───────┘      │
//!     └── half is freed, done, or ten patiences ──┘
//!
//!   the hook is withdrawn ──▶ the kill goes on: until the group is empty, or for a patience
//! ```
//!
//! The choice takes one pass over the hooks of the hierarchy. For each it climbs to the next group
//! above that has a hook. So it walks no tree, takes no tree lock, and allocates nothing. Only a
//! kill takes it, for the names in its report. The size of a candidate is the usage that its hook
//! covers: its own, less that of groups below with hooks.
//!
//! ```text
//!   groups with hooks that count in the full one ─▶ sizes ─▶ together enough? ─▶ highest score ─▶ most above its protection ─▶ lowest id
//!                                                               └─ no: none            └─▶ the topmost group killed as a whole, up to the full one
//! ```
//!
//! One lock guards it all, and is the last in the order of locks. A thread that holds it reads
//! counters and changes the lists; it calls no user code and waits for nothing. A registration
//! takes it, a charge that is about to be refused, and once in a kill a thread that uncharges.
//!
//! - I1. A group with a hook is held by it, and so are all groups above. So the nodes listed here
//!   are those groups' nodes.
//! - I2. A pending kill blocks every full group in which its victim counts. No other group is
//!   chosen there until the kill is overdue, or has freed half, apart from I9. A withdrawn hook
//!   does not end it: a request's hook goes with its future, while a thread of its own may have
//!   its memory still.
//! - I3. Each call of a hook ends in one outcome.
//! - I4. A choice allocates nothing: the list of pending kills has room for one of every hook, and
//!   for as many whose hooks are gone.
//! - I5. A group is chosen only if all candidates together have the missing bytes; and not while
//!   as many are on their way from groups that were told to stop and were removed, or whose hooks
//!   are gone (`pending` I2, I3). A candidate that is spared for its share counts for nothing.
//! - I6. Among candidates of one score it is the one that exceeds its protection by most. So a
//!   small group does not die for a giant beside it.
//! - I7. A group within its `min` is not chosen. It may die as a part of a group that is killed as
//!   a whole.
//! - I8. Where groups have fair shares, one above its even share is chosen, whatever the scores.
//!   Among several, one with work that was told to stop and has not comes last: its groups would
//!   be waited for one after the other. Then the scores count, then the excess of the child right
//!   below the full group. One within its even share is not chosen for another. It is for a charge
//!   of its own if that does not wait, no sibling can be chosen, and none is still to stop.
//! - I9. While victims are awaited, the one that is best is told only if more victims are late
//!   than awaited, both in the child of the full group in which it counts and, where any are
//!   awaited, in each group between. So work right below one group that ignores its stop gets 1,
//!   1, 2, 4, 8 and so on stops: it delays others by the logarithm of its number in patiences.
//!   Work of a tenant that stops in time loses one at a time, also where its siblings' work is
//!   late.
//! - B1. A thread that uncharges notes when half is freed. It may miss the watched usage, or a
//!   slot's stock may serve it at that moment. Then the next update of the pending kills notes it,
//!   at a refusal or a report.
//! - B2. Usages are read one after the other while they change. A charge under way may be missed,
//!   or seen below a hook and not at it.

use std::cmp::Reverse;
use std::time::Instant;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU32, Ordering};

use crate::base::id::{GroupId, NodeId};
use crate::control::oom::hook::{Hook, KillAnswer, Taken};
use crate::control::oom::pending::{Clock, PendingKill, Stage};
use crate::control::oom::report::{KillOutcome, Named, Record, Records};
use crate::control::oom::state::{NEVER, OomState};
use crate::counter::chain;
use crate::counter::protect::effective::effective;
use crate::counter::share::{self, Newcomer};
use crate::tree::node::Node;
use crate::tree::parts::{HierarchyPart, Key, Part};
use crate::tree::shared::Shared;

/// The groups of a hierarchy that have kill hooks.
pub(crate) struct Victims {
    hooks: AtomicU32,
    list: Mutex<List>,
}

/// The state behind the lock.
struct List {
    candidates: Vec<Candidate>,
    /// The pending kills, also of groups whose hooks are gone. Those of one set are in a row.
    kills: Vec<PendingKill>,
    /// During a choice: the groups right below the full one in which a victim is late, in order.
    late: Vec<NodeId>,
    records: Records,
    /// The last number of a hook, of a charge that looks for victims, or of a set of them.
    number: u64,
}

/// A group that has a hook.
struct Candidate {
    node: &'static Node,
    /// The hook's number.
    number: u64,
    is_aside: bool,
    /// The number of the last charge for which the hook was asked.
    charge: u64,
    /// Its pending kill is in the list.
    is_killed: bool,
    /// During a choice: the group's usage, 0 if it does not count in the full group.
    usage: u64,
    /// During a choice: the usage of groups below that have hooks.
    below: u64,
}

/// A charge that looks for a victim in one full group.
pub(crate) struct OomControl {
    pub(crate) requester: &'static Node,
    pub(crate) full: &'static Node,
    pub(crate) asked: u64,
    /// The charge's number.
    pub(crate) charge: u64,
    /// The charge waits for room: groups that cannot be stopped have time to free some.
    pub(crate) waits: bool,
}

/// The victims that were chosen: one group, or all candidates of a unit.
pub(crate) struct Chosen {
    set: u64,
    /// The group that is killed as a whole.
    pub(crate) unit: Option<&'static Node>,
}

/// Whether a charge must wait for victims.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    ForNone,
    /// Only a child with more late victims than awaited ones may have another told (I9).
    UnlessBeside,
    ForAll,
}

/// A call of a hook.
pub(crate) struct Call {
    pub(crate) node: &'static Node,
    /// The hook's number.
    pub(crate) number: u64,
    pub(crate) usage: u64,
    /// The requester is the victim, or a part of it.
    pub(crate) kills_requester: bool,
    record: u64,
}

/// Returns whether both count in the same group right below the full one.
fn is_beside_requester(node: &'static Node, control: &OomControl) -> bool {
    let [own, other] = [node, control.requester].map(|node| chain::right_below(control.full, node));
    own.zip(other).is_some_and(|(own, other)| std::ptr::eq(own, other))
}

/// The groups from `node` to `top`, both included, if charges of `node` count in `top`.
fn levels(node: &'static Node, top: &'static Node) -> Option<impl Iterator<Item = &'static Node>> {
    let depth = chain::levels(node).position(|level| std::ptr::eq(level, top))?;
    Some(chain::levels(node).take(depth + 1))
}

impl Candidate {
    /// Bytes that its hook covers.
    fn size(&self) -> u64 {
        self.usage.saturating_sub(self.below)
    }

    /// Returns whether its hook can be asked for this charge.
    fn can_be_asked(&self, control: &OomControl) -> bool {
        let is_free = !self.is_aside && !self.is_killed && self.charge != control.charge;
        is_free && self.node.oom().score() > NEVER
    }
}

impl Victims {
    pub(crate) fn new() -> Victims {
        let (candidates, kills, late) = (Vec::new(), Vec::new(), Vec::new());
        let list = List { candidates, kills, late, records: Records::new(), number: 0 };
        Victims { hooks: AtomicU32::new(0), list: Mutex::new(list) }
    }

    /// Returns whether the hierarchy has a hook.
    pub(crate) fn is_any(&self) -> bool {
        // ORDERING: Relaxed; a hook that is set at this moment may be missed.
        self.hooks.load(Ordering::Relaxed) > 0
    }

    /// Puts the hook into its group's place, if that is empty. Returns the hook's number.
    pub(crate) fn register(&self, node: &'static Node, mut hook: Box<Hook>) -> Result<u64, Taken> {
        let place = node.oom().make_place();
        let mut list = self.list.lock();
        if node.candidate_index().is_some() {
            return Err(Taken::ByHook);
        }
        if place.is_taken() {
            return Err(Taken::ByCall);
        }
        let number = list.draw();
        hook.number = number;
        place.put(hook);
        // Other work runs in the group from here on.
        list.end_kills(|kill| kill.is_of(node), Some(KillOutcome::Died));
        list.records.prepare();
        node.oom().set_index(Some(list.candidates.len()));
        let candidate =
            Candidate { node, number, is_aside: false, charge: 0, is_killed: false, usage: 0, below: 0 };
        list.candidates.push(candidate);
        let most = 2 * list.candidates.len();
        let missing = most.saturating_sub(list.kills.len());
        list.kills.reserve(missing);
        let most = list.kills.capacity();
        list.late.reserve(most);
        // ORDERING: Relaxed; as in `is_any`.
        self.hooks.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    /// Removes a hook that is about to be withdrawn. A kill of its group goes on.
    pub(crate) fn unregister(&self, node: &'static Node, number: u64) {
        let mut list = self.list.lock();
        if list.candidate(node).is_none_or(|candidate| candidate.number != number) {
            return;
        }
        let Some(index) = node.candidate_index() else { return };
        list.candidates.swap_remove(index);
        node.oom().set_index(None);
        if let Some(moved) = list.candidates.get(index) {
            moved.node.oom().set_index(Some(index));
        }
        list.lose_hook(node);
        // ORDERING: Relaxed; as in `is_any`.
        self.hooks.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn is_set_aside(&self, node: &'static Node) -> bool {
        self.list.lock().candidate(node).is_some_and(|candidate| candidate.is_aside)
    }

    pub(crate) fn reinstate(&self, node: &'static Node) {
        if let Some(candidate) = self.list.lock().candidate(node) {
            candidate.is_aside = false;
        }
    }

    /// The killed work of a group has ended. Returns whether a kill of the group was pending.
    pub(crate) fn finish(&self, node: &'static Node) -> bool {
        self.list.lock().finish(node)
    }

    /// The usage of a group fell, perhaps far enough for the end of its pending kill.
    #[cold]
    pub(crate) fn update(&self, node: &'static Node) {
        self.list.lock().update(|kill| kill.is_of(node), Clock::of(node.shared()));
    }

    /// A number for a charge that looks for victims.
    pub(crate) fn begin_charge(&self) -> u64 {
        self.list.lock().draw()
    }

    /// Returns whether a group could be chosen now.
    pub(crate) fn is_any_for(&self, control: &OomControl) -> bool {
        let mut list = self.list.lock();
        list.update_all(Clock::of(control.full.shared()));
        list.find(control, 0).is_some()
    }

    /// A group that counts in `top` and was told to stop, and has not freed half of its bytes; its
    /// usage.
    pub(crate) fn dying_in(&self, top: &'static Node) -> Option<(GroupId, u64)> {
        let list = self.list.lock();
        let awaited = list.awaited().find(|node| levels(node, top).is_some());
        let dying = awaited.or_else(|| list.on_their_way_in(top).1);
        dying.map(|dying| (dying.group_id(), dying.counter.usage()))
    }

    /// Chooses the victim, if that can free `lacks` bytes: one group, or all candidates of a group
    /// that is killed as a whole.
    pub(crate) fn choose(&self, control: &OomControl, lacks: u64) -> Option<Chosen> {
        self.choose_at(control, lacks, Clock::of(control.full.shared()))
    }

    fn choose_at(&self, control: &OomControl, lacks: u64, clock: Clock) -> Option<Chosen> {
        let mut list = self.list.lock();
        let list = &mut *list;
        list.update_all(clock);
        let (on_their_way, dying) = list.on_their_way_in(control.full);
        if dying.is_some() && on_their_way >= lacks {
            return None;
        }
        let (victim, unit) = list.find(control, lacks)?;
        let set = list.draw();
        for candidate in &mut list.candidates {
            let node = candidate.node;
            // Of a unit those die too that hold nothing.
            let is_chosen = match unit {
                Some(unit) => candidate.can_be_asked(control) && levels(node, unit).is_some(),
                None => std::ptr::eq(node, victim),
            };
            if is_chosen {
                let (usage, size) = (candidate.usage, candidate.size());
                candidate.is_killed = true;
                list.kills.push(PendingKill::queued(node, set, clock.now, usage, size));
            }
        }
        Some(Chosen { set, unit })
    }

    /// Begins the next call for the chosen victims. `from` is where the last search ended.
    pub(crate) fn begin_call(&self, control: &OomControl, chosen: &Chosen, from: &mut usize) -> Option<Call> {
        // For the names of the groups. The tree lock comes before the list's.
        let tree = control.full.shared().tree.lock();
        let mut list = self.list.lock();
        let List { candidates, kills, records, .. } = &mut *list;
        let is_next =
            |kill: &PendingKill| kill.set == chosen.set && kill.stage == Stage::Queued && kill.has_hook;
        // The end of another kill may have moved one of them in front of `from`.
        let start = (*from).min(kills.len());
        let after = kills[start..].iter().position(is_next).map(|index| start + index);
        let index = after.or_else(|| kills.iter().position(is_next))?;
        *from = index + 1;
        let kill = &mut kills[index];
        let node = kill.node()?;
        let candidate = candidates.get_mut(node.candidate_index()?)?;
        candidate.charge = control.charge;
        let number = candidate.number;
        let record = records.push(Record {
            victim: Named::of(&tree, node),
            requester: Named::of(&tree, control.requester),
            full: Named::of(&tree, control.full),
            unit: chosen.unit.map(|unit| Named::of(&tree, unit)),
            at: Instant::now(),
            asked: control.asked,
            usage: kill.size,
            took: None,
            outcome: None,
        });
        kill.begin_call(record);
        let covering = chain::levels(control.requester).find(|level| level.candidate_index().is_some());
        let kills_requester = covering.is_some_and(|covering| std::ptr::eq(covering, node));
        Some(Call { node, number, usage: kill.size, kills_requester, record })
    }

    /// A hook has answered; `None`: it panicked.
    pub(crate) fn end_call(&self, call: &Call, answer: Option<KillAnswer>) {
        let mut list = self.list.lock();
        let ended = match answer {
            Some(KillAnswer::Dying) => None,
            Some(KillAnswer::Idle { freed }) => Some(KillOutcome::Idle { freed }),
            Some(KillAnswer::Refused) => Some(KillOutcome::Refused),
            None => Some(KillOutcome::Panicked),
        };
        let candidate = list.candidate(call.node).filter(|other| other.number == call.number);
        if let Some(candidate) = candidate {
            candidate.is_aside |= answer.is_none();
        }
        let is_this = |kill: &PendingKill| kill.record == call.record;
        if ended.is_some() {
            list.records.note(call.record, false, ended);
            list.end_kills(is_this, None);
        } else if let Some(kill) = list.kills.iter_mut().find(|kill| is_this(kill)) {
            kill.told();
            list.update(is_this, Clock::of(call.node.shared()));
        }
    }

    /// Copies the records of the last calls into a vector that has room for them.
    pub(crate) fn copy_records(&self, shared: &'static Shared, into: &mut Vec<Record>) {
        let mut list = self.list.lock();
        list.update_all(Clock::of(shared));
        into.extend(list.records.all());
    }
}

impl List {
    fn draw(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn candidate(&mut self, node: &'static Node) -> Option<&mut Candidate> {
        let candidate = self.candidates.get_mut(node.candidate_index()?);
        candidate.filter(|candidate| std::ptr::eq(candidate.node, node))
    }

    /// Groups that were told to stop, have not freed half of their bytes, and still have time for
    /// it.
    fn awaited(&self) -> impl Iterator<Item = &'static Node> {
        self.kills.iter().filter(|kill| kill.is_awaited()).filter_map(PendingKill::node)
    }

    /// Groups that were told to stop, and have not in time.
    fn late(&self) -> impl Iterator<Item = &'static Node> {
        self.kills.iter().filter(|kill| kill.is_late()).filter_map(PendingKill::node)
    }

    /// Returns for which victims a charge that finds `top` full must wait.
    fn waiting_in(&self, top: &'static Node) -> Waiting {
        let mut waiting = Waiting::ForNone;
        // Siblings have the same answer.
        let mut known: Option<&'static Node> = None;
        for node in self.awaited().filter(|node| levels(node, top).is_some()) {
            let above = chain::levels(node).nth(1);
            let is_known = known.is_some_and(|known| above.is_some_and(|above| std::ptr::eq(known, above)));
            if !is_known && !self.may_tell_more(node, top) {
                return Waiting::ForAll;
            }
            known = above.filter(|above| !std::ptr::eq(*above, top));
            waiting = Waiting::UnlessBeside;
        }
        waiting
    }

    /// Returns whether `node` may be told to stop beside those that are awaited in `top` (I9).
    fn may_tell_more(&self, node: &'static Node, top: &'static Node) -> bool {
        let Some(child) = chain::right_below(top, node) else { return false };
        let number_in = |level, nodes: &mut dyn Iterator<Item = &'static Node>| {
            nodes.filter(|other| levels(other, level).is_some()).count()
        };
        // The group itself has no siblings in it, unless it is the child.
        let is_below = usize::from(!std::ptr::eq(node, child));
        levels(node, child).into_iter().flatten().skip(is_below).all(|level| {
            let awaited = number_in(level, &mut self.awaited());
            let is_free = awaited == 0 && !std::ptr::eq(level, child);
            is_free || awaited < number_in(level, &mut self.late())
        })
    }

    /// Bytes that groups that count in `top` are still to free because they were told to stop, and
    /// one of those groups.
    fn on_their_way_in(&self, top: &'static Node) -> (u64, Option<&'static Node>) {
        let kills = self.kills.iter().filter_map(|kill| Some((kill.node()?, kill.remaining())));
        let counted = kills.filter(|&(node, bytes)| bytes > 0 && levels(node, top).is_some());
        counted.fold((0, None), |(sum, _), (node, bytes)| (sum.saturating_add(bytes), Some(node)))
    }

    /// The victim, and the group that is killed as a whole with it; `None` if all candidates
    /// together have less than `lacks` bytes.
    fn find(&mut self, control: &OomControl, lacks: u64) -> Option<(&'static Node, Option<&'static Node>)> {
        let waiting = self.waiting_in(control.full);
        if waiting == Waiting::ForAll {
            return None;
        }
        self.measure(control.full);
        self.find_late_below(control.full);
        let (mut sum, mut first) = (0_u64, None);
        let newcomer = Newcomer::of(control.full, Some(control.requester));
        let is_own = share::is_above_own_even(control.full, control.requester);
        let is_last_resort = !control.waits && !self.late().any(|node| levels(node, control.full).is_some());
        for candidate in self.candidates.iter().filter(|one| one.size() > 0 && one.can_be_asked(control)) {
            let (node, size) = (candidate.node, candidate.size());
            let protection = effective(node, control.full);
            if candidate.usage <= protection.min {
                continue;
            }
            let even = share::even_of(node, newcomer);
            let excess = size.saturating_sub(protection.min.max(protection.low).max(even));
            // One that is within its share is not stopped for another. Nor is it for a charge of
            // its own while a sibling above its share has time to give.
            let above = share::excess(node, control.full, newcomer);
            let is_spared = above == Some(0) && !(is_last_resort && is_beside_requester(node, control));
            if is_spared || (is_own && !std::ptr::eq(node, control.full)) {
                continue;
            }
            sum = sum.saturating_add(size);
            // Other work of the same child of the full group was told to stop, and has not in time.
            let is_beside_late = || {
                let child = chain::right_below(control.full, node);
                child.is_some_and(|child| self.late.binary_search(&child.id()).is_ok())
            };
            let is_willing = above.is_some() && !is_beside_late();
            let rank =
                (above > Some(0), is_willing, node.oom().score(), above, excess, Reverse(node.group_id()));
            if first.as_ref().is_none_or(|(highest, _)| rank > *highest) {
                first = Some((rank, node));
            }
        }
        let (_, victim) = first.filter(|_| sum >= lacks)?;
        let is_beside = waiting == Waiting::UnlessBeside;
        if is_beside && !self.may_tell_more(victim, control.full) {
            return None;
        }
        let is_unit = |level: &&Node| level.find_oom().is_some_and(OomState::is_unit);
        let unit = levels(victim, control.full)?
            // Beside victims that are awaited, the other children of the full group are not told.
            .filter(|level| is_unit(level) && !(is_beside && std::ptr::eq(*level, control.full)))
            .last();
        Some((victim, unit))
    }

    /// Notes in which groups right below `top` a victim is late.
    fn find_late_below(&mut self, top: &'static Node) {
        let mut late = std::mem::take(&mut self.late);
        late.clear();
        late.extend(self.late().filter_map(|node| chain::right_below(top, node)).map(Node::id));
        late.sort_unstable();
        late.dedup();
        self.late = late;
    }

    /// Reads the usage of all candidates that count in `top`, and how much of it groups below with
    /// hooks have.
    fn measure(&mut self, top: &'static Node) {
        for candidate in &mut self.candidates {
            (candidate.usage, candidate.below) = (0, 0);
        }
        for index in 0..self.candidates.len() {
            let node = self.candidates[index].node;
            let Some(mut levels) = levels(node, top) else { continue };
            let usage = node.counter.usage();
            self.candidates[index].usage = usage;
            let covering = levels.by_ref().skip(1).find_map(|level| level.candidate_index());
            if let Some(candidate) = covering.and_then(|index| self.candidates.get_mut(index)) {
                candidate.below = candidate.below.saturating_add(usage);
            }
        }
    }

    /// Compares all pending kills with the clock and with their victims' usage.
    fn update_all(&mut self, clock: Clock) {
        self.update(|_| true, clock);
    }

    /// Ends those of some kills that are over, and marks those that are overdue.
    fn update(&mut self, is_one: impl Fn(&PendingKill) -> bool, clock: Clock) {
        let List { candidates, kills, records, .. } = self;
        kills.retain_mut(|kill| {
            let is_over = is_one(kill) && kill.update(clock, records);
            if is_over {
                free_candidate(candidates, kill);
            }
            !is_over
        });
    }

    /// Ends some kills, with an outcome for the records.
    fn end_kills(&mut self, is_one: impl Fn(&PendingKill) -> bool, outcome: Option<KillOutcome>) {
        let List { candidates, kills, records, .. } = self;
        kills.retain_mut(|kill| {
            let ends = is_one(kill);
            if ends {
                free_candidate(candidates, kill);
                records.note(kill.record, outcome.is_some(), outcome);
            }
            !ends
        });
    }

    /// The hook of a group is gone. Its kill goes on if its hook was called, and there is room for
    /// it beside those that may come (I4).
    fn lose_hook(&mut self, node: &'static Node) {
        let is_room = self.kills.len() + self.candidates.len() <= self.kills.capacity();
        let records = &mut self.records;
        self.kills.retain_mut(|kill| {
            let is_its = kill.has_hook && kill.is_of(node);
            let goes_on = !is_its || (kill.lose_hook() && is_room);
            if !goes_on {
                records.note(kill.record, true, Some(KillOutcome::Died));
            }
            goes_on
        });
    }

    /// The killed work has ended. Returns whether it was told to.
    fn finish(&mut self, node: &'static Node) -> bool {
        let was_told = |kill: &PendingKill| kill.is_of(node) && kill.stage != Stage::Queued;
        let any = self.kills.iter().any(was_told);
        self.end_kills(|kill| was_told(kill) && !kill.has_hook, Some(KillOutcome::Died));
        self.kills.iter_mut().filter(|kill| was_told(kill)).for_each(PendingKill::finish);
        self.update(was_told, Clock::of(node.shared()));
        any
    }
}

/// The candidate of a kill that ends can be chosen again.
fn free_candidate(candidates: &mut [Candidate], kill: &PendingKill) {
    let index = kill.node().filter(|_| kill.has_hook).and_then(Node::candidate_index);
    if let Some(candidate) = index.and_then(|index| candidates.get_mut(index)) {
        candidate.is_killed = false;
    }
}

impl Part for Victims {
    /// For the next hierarchy. It has no hook: each would hold the hierarchy.
    fn reset(&self) {
        let mut list = self.list.lock();
        list.records.clear();
        list.kills.clear();
    }
}

static VICTIMS: Key<HierarchyPart, Victims> = Key::new(HierarchyPart::Victims, Victims::new);

impl Shared {
    /// The groups that have kill hooks.
    pub(crate) fn victims(&self) -> &Victims {
        self.parts.get(&VICTIMS)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::time::Duration;

    use crate::control::oom::hook::KillRequest;
    use crate::control::oom::victims::*;
    use crate::state::config::Config;
    use crate::tree::handle::{Group, Hierarchy};

    const PATIENCE: Duration = Duration::from_secs(3600);

    fn at(patiences: u64) -> Clock {
        Clock::at(patiences * PATIENCE.as_nanos() as u64, PATIENCE)
    }

    /// Stops every victim that a charge finds at this time, and returns their names.
    fn tell(control: &OomControl, clock: Clock) -> Vec<String> {
        let victims = control.full.shared().victims();
        let mut told = Vec::new();
        while let Some(chosen) = victims.choose_at(control, 1, clock) {
            let call = victims.begin_call(control, &chosen, &mut 0).expect("it was chosen just now");
            victims.end_call(&call, Some(KillAnswer::Dying));
            let mut list = victims.list.lock();
            let kill = list.kills.iter_mut().find(|kill| kill.record == call.record);
            kill.expect("it was told").since = clock.now;
            drop(list);
            told.push(Group::pinned(call.node).name());
        }
        told
    }

    #[test]
    fn victims_that_ignore_their_stop_delay_others_by_the_logarithm_of_their_number() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0).kill_patience(PATIENCE)).unwrap();
        let full = hierarchy.create("/full").unwrap();
        let [hoarder, other, requester] =
            ["hoarder", "other", "requester"].map(|name| full.create(name).unwrap());
        let with_work = |group: Group, bytes| {
            let charge = group.try_charge(bytes).unwrap();
            (group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).unwrap(), charge)
        };
        let _work: Vec<_> = (0..16)
            .map(|number| with_work(hoarder.create(&format!("request-{number}")).unwrap(), 1 << 20))
            .collect();
        let _other = with_work(other, 1 << 10);
        let (requester, full) = (requester.node(), full.node());
        let charge = hierarchy.shared().victims().begin_charge();
        let control = OomControl { requester, full, asked: 1, charge, waits: false };
        let told: Vec<_> = (0..7).map(|patiences| tell(&control, at(patiences))).collect();
        assert_eq!(told.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 2, 4, 8, 1, 0]);
        assert_eq!(told[5], ["other"], "the smaller one of another child comes after all of them");
    }

    #[test]
    fn late_victims_of_one_tenant_have_no_more_of_another_told() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0).kill_patience(PATIENCE)).unwrap();
        let full = hierarchy.create("/full").unwrap();
        let tenants = full.create("tenants").unwrap();
        let work = ["alice", "bob"].map(|name| {
            let tenant = tenants.create(name).unwrap();
            let work = (0..8).map(|number| {
                let request = tenant.create(&format!("{name}-{number}")).unwrap();
                let charge = request.try_charge(1 << 20).unwrap();
                (request.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).unwrap(), charge)
            });
            work.collect::<Vec<_>>()
        });
        let node = full.node();
        let charge = hierarchy.shared().victims().begin_charge();
        let control = OomControl { requester: node, full: node, asked: 1, charge, waits: true };
        let told: Vec<_> = (0..7).map(|patiences| tell(&control, at(patiences))).collect();
        assert_eq!(told.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 2, 4, 1, 1, 2]);
        assert_eq!(told[4], ["bob-0"]);
        drop(work);
    }

    #[test]
    fn a_child_that_stops_in_time_loses_one_at_a_time() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0).kill_patience(PATIENCE)).unwrap();
        let full = hierarchy.create("/full").unwrap();
        let tenant = full.create("tenant").unwrap();
        let work = (0..4).map(|number| {
            let request = tenant.create(&format!("request-{number}")).unwrap();
            let charge = request.try_charge(1 << 20).unwrap();
            (request.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).unwrap(), charge)
        });
        let mut work: Vec<_> = work.collect();
        let node = full.node();
        let charge = hierarchy.shared().victims().begin_charge();
        let control = OomControl { requester: node, full: node, asked: 1, charge, waits: true };
        for left in (0..4).rev() {
            let [name] = &tell(&control, at(0))[..] else { panic!("one is told") };
            work.retain(|(_, charge)| charge.group().name() != *name);
            assert_eq!(work.len(), left);
        }
    }
}
