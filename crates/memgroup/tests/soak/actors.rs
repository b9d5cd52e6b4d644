//! Actors: threads that carry out their plans in one hierarchy.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memgroup::{Charge, ChargeError, scope};
use memgroup_percpu::pin_virtual;

use crate::house::House;
use crate::ledger::{Held, Member, Orphan, Paper, lock};
use crate::plan::{Form, Setting, Step};
use crate::sleepers::Sleepers;

/// The most charges that an actor holds.
const HELD_MOST: usize = 96;
/// The longest time after its deadline at which a call may return. It covers the time until a busy
/// system runs the thread.
pub(crate) const SLACK: Duration = Duration::from_secs(60);

pub(crate) struct Actor<'h> {
    pub(crate) house: &'h House,
    pub(crate) sleepers: &'h Sleepers,
    charges: Vec<Held>,
    pub(crate) slot: usize,
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

impl<'h> Actor<'h> {
    pub(crate) fn new(house: &'h House, sleepers: &'h Sleepers) -> Actor<'h> {
        Actor { house, sleepers, charges: Vec::new(), slot: 0 }
    }

    /// Makes a call with a deadline in `after` microseconds, and checks that it returns in time.
    pub(crate) fn until<T>(&self, after: u64, call: impl FnOnce(Instant) -> T) -> T {
        let deadline = Instant::now() + micros(after);
        let outcome = call(deadline);
        let late = Instant::now().saturating_duration_since(deadline);
        assert!(late < SLACK, "a wait outlived its deadline by {late:?}");
        self.house.figures.latest.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
        self.house.figures.count(|figures| &figures.waits, 1);
        outcome
    }

    fn count_outcome<T>(&self, outcome: Result<T, ChargeError>) -> Option<T> {
        match &outcome {
            Ok(_) => self.house.figures.count(|figures| &figures.charges, 1),
            Err(_) => self.house.figures.count(|figures| &figures.refusals, 1),
        }
        outcome.ok()
    }

    fn pick(&mut self, at: usize) -> Option<Held> {
        let count = self.charges.len();
        (count > 0).then(|| self.charges.swap_remove(at % count))
    }

    pub(crate) fn keep(&mut self, held: Held) {
        if self.charges.len() >= HELD_MOST {
            self.charges.swap_remove(0);
        }
        self.charges.push(held);
    }

    pub(crate) fn charge(&mut self, member: &Arc<Member>, form: Form, bytes: u64) {
        let group = &member.group;
        let outcome = match form {
            Form::Try => group.try_charge(bytes).map(Paper::Plain),
            Form::Forced => group.charge_forced(bytes).map(Paper::Plain),
            Form::Until(after) => {
                self.until(after, |deadline| group.charge_until(bytes, deadline)).map(Paper::Plain)
            }
            Form::Scope => {
                let _scope = scope::enter(group);
                self.house.hierarchy.try_charge_current(bytes).expect("a group is in force").map(Paper::Plain)
            }
        };
        if let Some(paper) = self.count_outcome(outcome) {
            self.keep(Held::new(member, paper));
        }
    }

    fn grow(&self, held: &mut Held, form: Form, bytes: u64) {
        let outcome = match (&mut held.paper, form) {
            (Paper::Plain(charge), Form::Forced) => charge.grow_forced(bytes),
            (Paper::Plain(charge), Form::Until(after)) => {
                self.until(after, |deadline| charge.grow_until(bytes, deadline))
            }
            (Paper::Plain(charge), _) => charge.try_grow(bytes),
            (Paper::Gone, _) => Ok(()),
        };
        self.count_outcome(outcome);
        held.note();
    }

    /// Runs `act` on the charge at `at`, if there is one.
    fn with_plain(&mut self, at: usize, act: impl FnOnce(&mut Actor<'h>, Arc<Member>, Charge)) {
        let Some(mut held) = self.pick(at) else { return };
        match held.strike() {
            Paper::Plain(charge) => {
                let member = Arc::clone(&held.member);
                act(self, member, charge);
            }
            paper => self.keep(Held::new(&held.member, paper)),
        }
    }

    fn set(member: &Member, setting: Setting, value: u64) {
        // The plan has the largest value for no limit.
        let (group, limit) = (&member.group, (value < u64::MAX).then_some(value));
        // The root's limits stay large, because they refuse charges of every group.
        let is_root = group.parent().is_none();
        match setting {
            Setting::Max if is_root => group.set_max(limit.map(|bytes| bytes.max(8 << 20))).unwrap(),
            Setting::Max => group.set_max(limit).unwrap(),
            Setting::High if is_root => group.set_high(limit.map(|bytes| bytes.max(8 << 20))).unwrap(),
            Setting::High => group.set_high(limit).unwrap(),
            // A removed group has no protection: the call fails.
            Setting::Min => _ = group.set_min(value),
            Setting::Low => _ = group.set_low(value),
            Setting::Weight => group.set_weight(value.clamp(1, 10_000) as u32).unwrap(),
            Setting::OomScore => group.set_oom_score(value as i32 - 1000).unwrap(),
            Setting::OomGroup => group.set_oom_group(value == 1),
            Setting::Enforced => group.set_enforced(value > 0),
            // As for `Min`, and so has a root that is not accounted.
            Setting::Share => _ = group.set_share((value > 0).then_some(value as u32)),
            Setting::ReserveMin => _ = group.set_reserve_min(value == 1),
        }
    }

    fn remove(&self, member: &Member, with_all_below: bool) {
        let group = &member.group;
        let removed = if with_all_below { group.remove_all() } else { group.remove() };
        if removed.is_ok() || !member.group.is_online() {
            self.house.prune();
        }
    }

    pub(crate) fn step(&mut self, step: Step) {
        let house = self.house;
        let _pin = pin_virtual(self.slot);
        match step {
            Step::Create { parent, name } => house.create(&house.member(parent), &format!("g{name}")),
            Step::Remove { group } => self.remove(&house.member(group), group / 1024 % 16 == 0),
            Step::Charge { group, form, bytes } => self.charge(&house.member(group), form, bytes),
            Step::Drop { charge } => drop(self.pick(charge)),
            Step::Grow { charge, form, bytes } => {
                if let Some(mut held) = self.pick(charge) {
                    self.grow(&mut held, form, bytes);
                    self.keep(held);
                }
            }
            Step::Shrink { charge, part } => {
                if let Some(mut held) = self.pick(charge) {
                    let part = part.min(held.bytes());
                    match &mut held.paper {
                        Paper::Plain(charge) => charge.shrink(part),
                        Paper::Gone => {}
                    }
                    held.note();
                    self.keep(held);
                }
            }
            Step::Split { charge, part } => self.with_plain(charge, |actor, member, mut charge| {
                let part = charge.split(part.min(charge.bytes()));
                actor.keep(Held::plain(&member, charge));
                actor.keep(Held::plain(&member, part));
            }),
            Step::Merge { charge, other } => self.merge(charge, other),
            Step::Move { charge, group } => {
                let target = house.member(group);
                if let Some(mut held) = self.pick(charge) {
                    let moved = match &mut held.paper {
                        Paper::Plain(charge) => charge.try_move_to(&target.group).is_ok(),
                        _ => false,
                    };
                    if moved {
                        held.moved_to(&target);
                    }
                    self.keep(held);
                }
            }
            Step::Convert { charge } => self.convert(charge),
            Step::Orphan { charge } => {
                if let Some(orphan) = self.pick(charge).and_then(Orphan::of) {
                    lock(&house.orphans).push(orphan);
                }
            }
            Step::Bury { orphan } => {
                let mut orphans = lock(&house.orphans);
                let count = orphans.len();
                let orphan = (count > 0).then(|| orphans.swap_remove(orphan % count));
                drop(orphans);
                orphan.into_iter().for_each(|orphan| house.bury(orphan));
            }
            Step::Set { group, setting, value } => Actor::set(&house.member(group), setting, value),
            Step::Squeeze { group, eighths } => {
                let member = house.member(group);
                let usage = member.group.usage();
                Actor::set(&member, Setting::Max, usage - usage / 8 * eighths);
            }
            Step::Drain { group } => _ = house.member(group).group.drain(),
            Step::Reclaim { group, bytes, micros } => {
                let member = house.member(group);
                let reclaimed = self.until(micros, |deadline| member.group.reclaim(bytes, Some(deadline)));
                house.figures.count(|figures| &figures.reclaimed, reclaimed.bytes);
            }
            Step::Throttle { group, micros } if micros % 2 == 0 => {
                let member = house.member(group);
                self.until(micros, |deadline| member.group.throttle(Some(deadline)));
            }
            Step::Throttle { group, .. } => {
                let member = house.member(group);
                let throttle = member.group.take_throttle();
                assert!(throttle.is_none_or(|throttle| throttle.delay() <= Duration::from_secs(2)));
            }
            Step::Count { group, stat, delta } => {
                let (member, stat) = (house.member(group), stat % house.stats.len());
                // The first two statistics count bytes, and only grow. The third is a level.
                let delta = if stat == 2 { delta } else { delta.abs() };
                member.account.count(stat, delta);
                let (statistics, key) = &house.stats[stat];
                statistics.add(&member.group, *key, delta);
            }
            Step::Flush { group, stat } => {
                house.stats[stat % house.stats.len()].0.flush(&house.member(group).group);
            }
            _ => self.step_beside(step),
        }
    }

    fn merge(&mut self, at: usize, other: usize) {
        let (Some(mut one), Some(mut other)) = (self.pick(at), self.pick(other)) else { return };
        match (&mut one.paper, other.strike()) {
            (Paper::Plain(charge), Paper::Plain(more)) => {
                if let Err(back) = charge.merge(more) {
                    self.keep(Held::plain(&other.member, back));
                }
            }
            (_, paper) => self.keep(Held::new(&other.member, paper)),
        }
        one.note();
        self.keep(one);
    }

    fn convert(&mut self, at: usize) {
        let Some(mut held) = self.pick(at) else { return };
        let charge = match held.strike() {
            Paper::Plain(charge) => {
                let (id, bytes) = charge.into_parts();
                self.house.hierarchy.charge_from_parts(id, bytes).expect("the bytes keep the group")
            }
            Paper::Gone => return,
        };
        self.keep(Held::plain(&held.member, charge));
    }
}
