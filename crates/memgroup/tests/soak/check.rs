//! Check: compares the engine with the ledger while no actor is in a step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memgroup::{Freshness, Group, Maintenance, Protection, Reach};
use memgroup_percpu::pin_virtual;

use crate::house::House;
use crate::ledger::{Account, Member, STATS, Tally, lock, numbers};

/// For each account: the bytes charged in its subtree, and the subtree's events and statistics.
type Sums = BTreeMap<*const Account, (u64, Tally)>;

fn accounts(house: &House) -> Vec<Arc<Account>> {
    let mut accounts = lock(&house.accounts);
    accounts.retain(|account| account.strong_count() > 0);
    accounts.iter().filter_map(std::sync::Weak::upgrade).collect()
}

fn sums(accounts: &[Arc<Account>]) -> Sums {
    let mut sums = Sums::new();
    for account in accounts {
        let (live, own) = (account.live(), account.own());
        for level in std::iter::successors(Some(account), |level| level.parent.as_ref()) {
            let (sum, tally) = sums.entry(Arc::as_ptr(level)).or_default();
            *sum += live;
            tally.add(&own);
        }
    }
    sums
}

/// The comparisons that are cheap enough for each step of a single actor.
pub(crate) fn charges(house: &House) {
    let accounts = accounts(house);
    let sums = sums(&accounts);
    let snapshot = house.hierarchy.snapshot();
    let usages: BTreeMap<_, _> =
        snapshot.groups.iter().map(|group| (group.id, group.usage_exact_bytes)).collect();
    for account in &accounts {
        let Some(member) = account.member() else { continue };
        let (group, live) = (&member.group, sums[&Arc::as_ptr(account)].0);
        assert_eq!(usages[&group.id()], live, "bytes of {}", account.path);
        let (usage, peak) = (group.usage(), group.peak());
        assert!(usage >= live && peak >= usage, "{}: {live}, {usage}, {peak}", account.path);
    }
    let waits = house.hierarchy.waits();
    assert!(waits.is_empty(), "no thread is in a call, but these waits are listed: {waits:?}");
}

/// Checks that no shrinker call is owed: a reclaim of all bytes of a group asks each cache below
/// it that is marked. It also checks that no group is dying without a byte or a handle.
pub(crate) fn nothing_is_owed(house: &House) {
    let caches = lock(&house.caches).clone();
    let reports = house.hierarchy.shrinkers();
    let owing: Vec<_> =
        caches.iter().filter_map(|cache| Some((cache, cache.asked_if_owed(&reports)?))).collect();
    let rests = house.figures.rests.fetch_add(1, Ordering::Relaxed) as usize;
    // The caches are left alone every other time, so that they grow.
    if rests.is_multiple_of(2) && !owing.is_empty() {
        let top = &owing[rests / 2 % owing.len()].0.member.group;
        top.reclaim(u64::MAX, Instant::now() + Duration::from_secs(60));
        for (cache, before) in owing {
            let group = &cache.member.group;
            let levels = std::iter::successors(Some(group.clone()), Group::parent);
            let mut below = levels.clone().take_while(|level| level != top);
            let is_below = levels.clone().any(|level| level == *top);
            // Bytes within the `min` of a group are not reclaimed for those above it.
            if is_below && below.all(|level| level.min() == 0) {
                let path = group.path();
                assert!(
                    cache.asked() > before,
                    "the cache of {path} is marked, and a reclaim of all did not ask it"
                );
                house.figures.count(|figures| &figures.owed, 1);
            }
        }
    }
    let held: Vec<_> = accounts(house).iter().map(|account| account.path.clone()).collect();
    for group in house.hierarchy.snapshot().groups.iter().filter(|group| !group.online) {
        let is_kept = group.usage_exact_bytes > 0 || held.contains(&group.path);
        assert!(is_kept, "{} is dying without a byte or a handle", group.path);
    }
}

/// All comparisons.
pub(crate) fn all(house: &House) {
    charges(house);
    let accounts = accounts(house);
    let sums = sums(&accounts);
    for account in &accounts {
        if let Some(member) = account.member() {
            let (live, tally) = &sums[&Arc::as_ptr(account)];
            assert_eq!(member.group.usage_exact(), *live, "bytes of {}", account.path);
            figures(house, &member, tally);
        }
    }
    let deaths = house.deaths.load(Ordering::Relaxed);
    assert_eq!(house.hierarchy.root().events().oom_kill, deaths, "kills, against hooks that answered Dying");
    lists(house, &accounts, &sums);
    protection(house);
    shares(house);
    marks(house);
}

/// Compares even shares with the weights of the children that hold bytes: together they are less
/// than the limit.
fn shares(house: &House) {
    for member in house.members().iter() {
        let (Some(factor), Some(max)) = (member.group.share(), member.group.max()) else { continue };
        let factor = u64::from(factor);
        let holding: Vec<_> = member.group.children().into_iter().filter(|child| child.usage() > 0).collect();
        let weights = 100 + factor * holding.iter().map(|child| u64::from(child.weight())).sum::<u64>();
        for child in holding.iter().filter(|child| child.min() == 0) {
            let Some(share) = child.fair_share() else { continue };
            let most = part(max, factor * u64::from(child.weight()), weights);
            assert!(share.even <= most, "{}: {share:?}, it should be {most} at most", child.path());
        }
    }
}

fn figures(house: &House, member: &Member, tally: &Tally) {
    let (group, account) = (&member.group, &member.account);
    assert_eq!(numbers(&group.events()), tally.events, "events of {}", account.path);
    let now = numbers(&group.events());
    let before = std::mem::replace(&mut *lock(&member.seen), now);
    assert!(now.iter().zip(before).all(|(now, before)| *now >= before), "events of {}", account.path);
    for stat in 0..STATS {
        let (statistics, key) = &house.stats[stat];
        let of = |reach| statistics.get(group, *key, reach, Freshness::Fresh);
        assert_eq!(of(Reach::Local), account.stats()[stat], "statistic {stat} of {}", account.path);
        assert_eq!(of(Reach::Subtree), tally.stats[stat], "statistic {stat} below {}", account.path);
    }
    let pressure = group.pressure();
    let now = [pressure.some.total, pressure.full.total];
    let before = std::mem::replace(&mut *lock(&member.pressure), now);
    assert!(now[0] >= before[0] && now[1] >= before[1], "{}: {before:?}, then {now:?}", account.path);
}

/// Compares the lists of groups and of dying groups, with their bytes.
fn lists(house: &House, accounts: &[Arc<Account>], sums: &Sums) {
    let is_online = |account: &Account| account.member().is_some_and(|member| member.group.is_online());
    let live = |account: &Arc<Account>| sums[&Arc::as_ptr(account)].0;
    let mut expected: Vec<_> =
        accounts.iter().map(|account| (account.path.clone(), is_online(account), live(account))).collect();
    let snapshot = house.hierarchy.snapshot();
    let mut there: Vec<_> = snapshot
        .groups
        .iter()
        .map(|group| (group.path.clone(), group.online, group.usage_exact_bytes))
        .collect();
    expected.sort();
    there.sort();
    assert_eq!(there, expected, "groups of the engine, against those of the ledger");

    expected.retain(|(_, is_online, live)| !is_online && *live > 0);
    let dying = house.hierarchy.dying();
    let mut dying: Vec<_> = dying.into_iter().map(|one| (one.path, false, one.usage_bytes)).collect();
    dying.sort();
    assert_eq!(dying, expected, "dying groups");
}

/// `of * by / all`, rounded down: the error is less than one byte.
fn part(of: u64, by: u64, all: u64) -> u64 {
    if all == 0 { 0 } else { u64::try_from(u128::from(of) * u128::from(by) / u128::from(all)).unwrap() }
}

/// The part of the parent's protection that one child has.
fn share(group: &Group, setting: u64, above: u64, used_by_all: u64, parent: &Group) -> u64 {
    let used = group.usage().min(setting);
    if used_by_all > above {
        return part(above, used, used_by_all);
    }
    let unprotected = parent.usage() - used_by_all;
    used + part(above - used_by_all, group.usage() - used, unprotected)
}

/// Compares each group's protection with the one computed from settings and usages of its siblings
/// and ancestors.
fn protection(house: &House) {
    let root = house.hierarchy.root();
    let mut expected: BTreeMap<_, _> = BTreeMap::from([(root.id(), Protection::default())]);
    for parent in house.hierarchy.groups() {
        let above = expected[&parent.id()];
        let children = parent.children();
        let used = |setting: fn(&Group) -> u64| -> u64 {
            children.iter().map(|child| child.usage().min(setting(child))).sum()
        };
        let (min, low) = (used(Group::min), used(Group::low));
        for child in &children {
            let own = if parent == root {
                Protection { min: child.min(), low: child.low() }
            } else {
                Protection {
                    min: share(child, child.min(), above.min, min, &parent),
                    low: share(child, child.low(), above.low, low, &parent),
                }
            };
            expected.insert(child.id(), own);
        }
    }
    let there = root.protections();
    assert_eq!(there.len() + 1, expected.len(), "every group below the root");
    for (id, there) in there {
        let expected = expected[&id];
        let is_near = |a: u64, b: u64| a.abs_diff(b) <= 12;
        assert!(
            is_near(there.min, expected.min) && is_near(there.low, expected.low),
            "{:?} is protected by {there:?}, not {expected:?}",
            house.hierarchy.group(id),
        );
    }
}

/// Whether the engine must allow the group a batch: at every level a slot's share of the room is
/// at least 512 bytes, and no fair share or reservation takes of it.
fn may_have_stock(house: &House, member: &Member) -> bool {
    let room = 512 * house.slots as u64;
    let has_room = |level: &Member| {
        let group = &level.group;
        let below =
            |limit: Option<u64>, kept: u64| limit.is_none_or(|limit| group.usage() + kept + room < limit);
        let is_plain = group.share().is_none() && !group.reserves_min();
        is_plain && below(group.max(), group.max().map_or(0, |max| max / 8)) && below(group.high(), 0)
    };
    house.settings.cap_bytes > 0 && member.group.is_online() && member.levels().all(has_room)
}

/// Checks that no stock stays closed without a reason. A group has a stock if it and all its
/// ancestors are within their limits.
fn marks(house: &House) {
    let _pin = pin_virtual(0);
    let members = house.members().clone();
    // An overdue victim has no stock until it has freed enough memory, or has no hook any more.
    let victims: Vec<_> = lock(&house.tenants).iter().map(|tenant| Arc::clone(&tenant.member)).collect();
    let is_victim = |member: &Arc<Member>| victims.iter().any(|victim| Arc::ptr_eq(victim, member));
    for member in members.iter().filter(|member| !is_victim(member) && may_have_stock(house, member)) {
        house.figures.count(|figures| &figures.checked, 1);
        // A level that was drained for a charge has stocks again after some charges.
        for _ in 0..10_000 {
            drop(member.group.try_charge(64).expect("there is room"));
        }
        let hits = member.group.stock().hits;
        drop(member.group.try_charge(64));
        let has_stock = member.group.stock().hits > hits;
        let reserved = house.hierarchy.stock_reserved_bytes()[0];
        assert!(
            has_stock || reserved + (256 << 10) > house.settings.budget_bytes,
            "{:?} has no stock, with {reserved} bytes of the slot's budget taken",
            member.group
        );
    }
}

/// Checks that all groups are removed, all bytes uncharged, and all per-CPU memory given back.
pub(crate) fn nothing_is_left(house: &House) {
    house.hierarchy.root().drain();
    let what = Maintenance::new().expedited().all().at(Instant::now() + Duration::from_secs(3600));
    (0..3).for_each(|_| _ = house.hierarchy.maintain(what));
    all(house);
    assert_eq!(house.hierarchy.groups().len(), 1);
    assert!(house.hierarchy.dying().is_empty() && house.hierarchy.shrinkers().is_empty());
    assert_eq!(house.hierarchy.snapshot().groups.len(), 1, "a group is kept although no thread has a handle");
    house.hierarchy.root().drain();
    assert_eq!((house.hierarchy.root().usage(), house.hierarchy.root().usage_exact()), (0, 0));
    let percpu = house.hierarchy.percpu();
    assert!(percpu.live_bytes <= house.record_bytes, "{percpu:?}, and {} for a root", house.record_bytes);
    assert_eq!(percpu.limbo_bytes, 0, "{percpu:?}");
    for kill in house.hierarchy.kills() {
        assert!(kill.outcome.is_some(), "{kill:?} has an end");
    }
}
