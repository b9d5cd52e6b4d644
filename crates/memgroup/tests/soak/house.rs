//! House: the hierarchy that all actors share, with its groups, caches, tenants and charges.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use memgroup::tuning::Tuning;
use memgroup::{Charge, Config, Hierarchy, SlotSource, StatKey, Statistics, stats};
use memgroup_percpu::pin_virtual;

use crate::hostile::{Cache, Late, Tenant};
use crate::ledger::{Account, Member, Orphan, STATS, lock};
use crate::random::Random;

/// Counts over all actors. They show that each kind of event happened.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) groups: AtomicU64,
    pub(crate) charges: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) waits: AtomicU64,
    /// The longest time from a deadline to the return of its call, in nanoseconds.
    pub(crate) latest: AtomicU64,
    pub(crate) reclaimed: AtomicU64,
    /// Groups that were checked for a stock.
    pub(crate) checked: AtomicU64,
    /// Waits that were looked at in quiet moments.
    pub(crate) slept: AtomicU64,
    /// How often all actors met.
    pub(crate) rests: AtomicU64,
    /// Caches that a reclaim had to ask.
    pub(crate) owed: AtomicU64,
}

impl Figures {
    pub(crate) fn count(&self, figure: impl FnOnce(&Figures) -> &AtomicU64, by: u64) {
        figure(self).fetch_add(by, Ordering::Relaxed);
    }
}

pub(crate) struct House {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) slots: usize,
    /// The root comes first. Groups that a hook has removed stay in the list until an actor prunes
    /// it.
    pub(crate) members: RwLock<Vec<Arc<Member>>>,
    pub(crate) accounts: Mutex<Vec<Weak<Account>>>,
    pub(crate) caches: Mutex<Vec<Arc<Cache>>>,
    pub(crate) tenants: Mutex<Vec<Arc<Tenant>>>,
    pub(crate) orphans: Mutex<Vec<Orphan>>,
    pub(crate) late: Arc<Late>,
    pub(crate) deaths: Arc<AtomicU64>,
    /// Groups of which the end was told.
    pub(crate) ended: Arc<AtomicU64>,
    /// The statistics that actors add to, each with its subsystem.
    pub(crate) stats: [(Statistics, StatKey); STATS],
    pub(crate) figures: Figures,
    /// Per-CPU memory of a root that is used on all slots, in bytes.
    pub(crate) record_bytes: u64,
    pub(crate) settings: Settings,
}

/// The settings of the configuration that the checks need.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) cap_bytes: u64,
    pub(crate) budget_bytes: u64,
}

/// The settings for a seed.
fn config(slots: usize, seed: u64) -> (Config, Settings) {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    let mut one_of = |values: [u64; 3]| values[random.below(3) as usize];
    let settings = Settings {
        cap_bytes: one_of([0, 16 << 10, 256 << 10]),
        budget_bytes: one_of([256 << 10, 1 << 20, 8 << 20]),
    };
    let config = Config::with_slots(SlotSource::virtual_slots(slots).unwrap())
        .groups_max(one_of([40, 120, 400]) as u32)
        .depth_max(6)
        .stock_cap_bytes(settings.cap_bytes)
        .stock_budget_bytes(settings.budget_bytes)
        .separate_trees(one_of([0, 1, 1]) == 1)
        .maintain_on_removal(one_of([0, 0, 1]) == 1)
        .demote_after((one_of([0, 0, 1]) == 1).then_some(Duration::ZERO))
        .reclaim_reserve_bytes(one_of([0, 64 << 10, 256 << 10]))
        .protected_reserve_bytes(one_of([0, 64 << 10, 1 << 20]))
        .kill_patience(Duration::from_millis(one_of([1, 2, 5])))
        .float(0, Duration::ZERO);
    (config, settings)
}

fn counted(hierarchy: &Hierarchy) -> [(Statistics, StatKey); STATS] {
    [
        (hierarchy.io(), stats::io::RBYTES),
        (hierarchy.io(), stats::io::WBYTES),
        (hierarchy.memory(), stats::memory::SORT),
    ]
}

/// Uses every per-slot part of the root on each slot, so that all its memory is there.
fn use_all(hierarchy: &Hierarchy, slots: usize) {
    for slot in 0..slots {
        let _pin = pin_virtual(slot);
        let root = hierarchy.root();
        drop(root.try_charge(64).unwrap());
        for (statistics, stat) in counted(hierarchy) {
            statistics.add(&root, stat, 0);
        }
        hierarchy.cpu().add(&root, stats::cpu::SCOPE_USEC, 0);
    }
}

impl House {
    pub(crate) fn new(slots: usize, seed: u64) -> House {
        let (config, settings) = config(slots, seed);
        let hierarchy = Hierarchy::new(config).unwrap();
        use_all(&hierarchy, slots);
        let record_bytes = hierarchy.percpu().live_bytes;
        let root = Member::new(hierarchy.root(), None);
        House {
            slots,
            accounts: Mutex::new(vec![Arc::downgrade(&root.account)]),
            members: RwLock::new(vec![root]),
            caches: Mutex::default(),
            tenants: Mutex::default(),
            orphans: Mutex::default(),
            late: Arc::default(),
            deaths: Arc::default(),
            ended: Arc::default(),
            stats: counted(&hierarchy),
            figures: Figures::default(),
            record_bytes,
            settings,
            hierarchy,
        }
    }

    pub(crate) fn members(&self) -> std::sync::RwLockReadGuard<'_, Vec<Arc<Member>>> {
        self.members.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group with the number `at`, modulo the number of groups.
    pub(crate) fn member(&self, at: usize) -> Arc<Member> {
        let members = self.members();
        Arc::clone(&members[at % members.len()])
    }

    pub(crate) fn create(&self, parent: &Arc<Member>, name: &str) {
        let Ok(group) = parent.group.create(name) else { return };
        let ended = Arc::clone(&self.ended);
        if group.on_end(move |_| _ = ended.fetch_add(1, Ordering::Relaxed)).is_err() {
            // It was removed already, with its parent.
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
        let member = Member::new(group, Some(Arc::clone(parent)));
        lock(&self.accounts).push(Arc::downgrade(&member.account));
        self.members.write().unwrap_or_else(PoisonError::into_inner).push(member);
        self.figures.count(|figures| &figures.groups, 1);
    }

    /// Forgets groups that are removed.
    pub(crate) fn prune(&self) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        let (online, removed) = members.drain(..).partition(|member| member.group.is_online());
        *members = online;
        drop(members);
        // Outside the lock: a last handle may be among them.
        let removed: Vec<Arc<Member>> = removed;
        drop(removed);
    }

    pub(crate) fn bury(&self, orphan: Orphan) {
        orphan.bury(|id, bytes| {
            if bytes % 2 == 0 {
                return self.hierarchy.uncharge(id, bytes).expect("the bytes keep the group");
            }
            let charge: Charge =
                self.hierarchy.charge_from_parts(id, bytes).expect("the bytes keep the group");
            drop(charge);
        });
    }

    /// Removes caches, tenants and groups. The actors have dropped their charges before.
    pub(crate) fn clear(&self) {
        while !self.late.is_empty() {
            self.late.free(true);
        }
        let (caches, tenants) =
            (std::mem::take(&mut *lock(&self.caches)), std::mem::take(&mut *lock(&self.tenants)));
        for cache in caches {
            cache.take_registration().map_or(Ok(()), memgroup::GroupShrinker::remove).unwrap();
            cache.clear();
        }
        for tenant in tenants {
            tenant.take_hook().map_or(Ok(()), memgroup::KillRegistration::remove).unwrap();
            tenant.free();
        }
        let orphans = std::mem::take(&mut *lock(&self.orphans));
        orphans.into_iter().for_each(|orphan| self.bury(orphan));
        self.prune();
        let mut members = self.members().clone();
        members.sort_by_key(|member| std::cmp::Reverse(member.levels().count()));
        members.pop();
        members.iter().for_each(|member| member.group.remove().unwrap());
        drop(members);
        self.prune();
        let [made, ended] = [&self.figures.groups, &self.ended].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(made, ended, "each group's end is told once");
    }
}
