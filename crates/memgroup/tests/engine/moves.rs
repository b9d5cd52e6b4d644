//! Stress of records that move, go and come back. Threads over virtual slots charge, hold, count,
//! set limits, create and remove groups, while another one makes pass after pass of maintenance.
//!
//! The oracle is conservation, group by group, each time the workers are at rest. Usage is the
//! held bytes. Sums are the bytes added in the group and in all groups that are or were below it.
//! Each charge is a hit or a miss. Run it with `--cfg memgroup_yields` to open the short windows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use memgroup::tuning::Tuning;
use memgroup::{
    Charge, Config, Freshness, Group, Hierarchy, Maintained, Maintenance, Reach, SlotSource, Statistics,
};
use memgroup_percpu::pin_virtual;

use super::gauges;
use super::random::Random;

const WORKERS: usize = 3;
const LEAVES: usize = 6;
const TENANTS: usize = 80;
const GAUGES: usize = 59;
const ROUNDS: usize = 4;
const STEPS: usize = if cfg!(memgroup_emulated) {
    500
} else if cfg!(memgroup_yields) {
    4_000
} else if cfg!(debug_assertions) {
    3_000
} else {
    20_000
};

/// The expected figures of a group.
#[derive(Clone, Copy, Default)]
struct Account {
    charges: u64,
    held_bytes: u64,
    first: i64,
    last: i64,
}

impl Account {
    fn add(&mut self, gauges: &Statistics, group: &Group, random: &mut Random) {
        let delta = random.below(2000) as i64 - 900;
        gauges.add(group, gauges::nth(gauges, 0), delta);
        self.first += delta;
        gauges.add(group, gauges::nth(gauges, GAUGES - 1), -delta);
        self.last -= delta;
    }

    fn try_charge(&mut self, group: &Group, random: &mut Random) -> Option<Charge> {
        self.charges += 1;
        group.try_charge(random.bytes(16)).ok()
    }

    fn check_sums(&self, gauges: &Statistics, group: &Group) {
        self.check_reach(gauges, group, Reach::Local);
    }

    fn check_reach(&self, gauges: &Statistics, group: &Group, reach: Reach) {
        let mut sums = [0; GAUGES];
        gauges.read(group, reach, Freshness::Fresh, &mut sums);
        assert_eq!((sums[0], sums[1], sums[GAUGES - 1]), (self.first, 0, self.last), "{group:?}");
    }

    fn merge(&mut self, other: Account) {
        self.charges += other.charges;
        self.held_bytes += other.held_bytes;
        self.first += other.first;
        self.last += other.last;
    }
}

struct Fixture {
    hierarchy: Hierarchy,
    gauges: Statistics,
    parent: Group,
    leaves: Vec<Group>,
    accounts: Mutex<[Account; LEAVES]>,
    /// Of tenants that went, and of those that were there when the workers came to rest.
    gone: Mutex<Account>,
    present: Mutex<Account>,
    /// Charges of removed groups, freed by any worker.
    mailbox: Mutex<Vec<Charge>>,
    rest: Barrier,
    done: AtomicBool,
}

/// A group of one worker's own.
struct Tenant {
    group: Group,
    account: Account,
    charges: Vec<Charge>,
}

struct Worker<'h> {
    fixture: &'h Fixture,
    random: Random,
    slots: usize,
    number: usize,
    accounts: [Account; LEAVES],
    charges: Vec<(usize, Charge)>,
    tenants: Vec<Tenant>,
}

impl Worker<'_> {
    fn step(&mut self, step: usize) {
        let _pin =
            step.is_multiple_of(16).then(|| pin_virtual(self.random.below(self.slots as u64) as usize));
        let leaf = self.random.below(LEAVES as u64) as usize;
        let group = &self.fixture.leaves[leaf];
        match self.random.below(100) {
            0..30 => {
                if let Some(charge) = self.accounts[leaf].try_charge(group, &mut self.random) {
                    self.charges.push((leaf, charge));
                }
            }
            30..48 => {
                if !self.charges.is_empty() {
                    let at = self.random.below(self.charges.len() as u64) as usize;
                    drop(self.charges.swap_remove(at));
                }
            }
            48..68 => self.accounts[leaf].add(&self.fixture.gauges, group, &mut self.random),
            68..70 => {
                let max = [None, Some(1 << 20), Some(1 << 14)][self.random.below(3) as usize];
                group.set_max(max).unwrap();
            }
            70..72 => {
                let freed = std::mem::take(&mut *self.fixture.mailbox.lock().unwrap());
                drop(freed);
            }
            72..88 => self.use_a_tenant(),
            88..94 => self.tenant_comes(step),
            94..99 => self.tenant_goes(),
            _ => drop(self.fixture.leaves[leaf].drain()),
        }
    }

    fn use_a_tenant(&mut self) {
        if self.tenants.is_empty() {
            return;
        }
        let at = self.random.below(self.tenants.len() as u64) as usize;
        let tenant = &mut self.tenants[at];
        tenant.account.add(&self.fixture.gauges, &tenant.group, &mut self.random);
        tenant.charges.extend(tenant.account.try_charge(&tenant.group, &mut self.random));
        tenant.charges.truncate(6);
    }

    fn tenant_comes(&mut self, step: usize) {
        if self.tenants.len() < TENANTS {
            let name = format!("{}-{step}-{}", self.number, self.random.below(u64::MAX));
            let group = self.fixture.parent.create(&name).unwrap();
            self.tenants.push(Tenant { group, account: Account::default(), charges: Vec::new() });
            self.use_a_tenant();
        }
    }

    /// Its sums are whole whatever moves; its charges are freed later, by others.
    fn tenant_goes(&mut self) {
        if self.tenants.is_empty() {
            return;
        }
        let at = self.random.below(self.tenants.len() as u64) as usize;
        let mut tenant = self.tenants.swap_remove(at);
        tenant.account.check_sums(&self.fixture.gauges, &tenant.group);
        tenant.group.remove().unwrap();
        assert!(tenant.group.try_charge(1).is_err());
        // The release of some groups finds unflushed values, and moves them to the groups above.
        match self.random.below(3) {
            0 => tenant.account.check_sums(&self.fixture.gauges, &tenant.group),
            1 => tenant.charges.clear(),
            _ => {}
        }
        tenant.account.add(&self.fixture.gauges, &tenant.group, &mut self.random);
        self.fixture.gone.lock().unwrap().merge(tenant.account);
        self.fixture.mailbox.lock().unwrap().append(&mut tenant.charges);
    }

    /// Returns its own figures, and the expected ones of its tenants.
    fn rest(&mut self) {
        for (leaf, charge) in &self.charges {
            self.accounts[*leaf].held_bytes += charge.bytes();
        }
        for (all, mine) in self.fixture.accounts.lock().unwrap().iter_mut().zip(&mut self.accounts) {
            all.merge(std::mem::take(mine));
        }
        for tenant in &self.tenants {
            self.fixture.present.lock().unwrap().merge(tenant.account);
        }
        self.fixture.rest.wait();
        for tenant in &self.tenants {
            tenant.account.check_sums(&self.fixture.gauges, &tenant.group);
            tenant.group.drain();
            assert_eq!(tenant.group.usage(), tenant.charges.iter().map(Charge::bytes).sum::<u64>());
        }
        self.fixture.rest.wait();
    }
}

/// Ends the process when a thread panics: the others would wait for it at the barrier for ever.
struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::exit(101);
        }
    }
}

/// Checks the leaves when all workers are at rest, and the sums of all there is and was, which it
/// returns. Maintenance goes on.
fn check(fixture: &Fixture, totals: &mut [Account; LEAVES]) -> Account {
    for (total, news) in totals.iter_mut().zip(std::mem::take(&mut *fixture.accounts.lock().unwrap())) {
        total.held_bytes = 0;
        total.merge(news);
    }
    fixture.mailbox.lock().unwrap().clear();
    // Charges that came late to a record that had moved are counted when it is used again.
    fixture.hierarchy.maintain(Maintenance::new().expedited());
    for (leaf, total) in fixture.leaves.iter().zip(&*totals) {
        total.check_sums(&fixture.gauges, leaf);
        leaf.drain();
        assert_eq!(leaf.usage(), total.held_bytes, "{leaf:?}");
        let stock = leaf.stock();
        assert_eq!(stock.hits + stock.misses, total.charges, "{leaf:?} {stock:?}");
    }
    let mut all = *fixture.gone.lock().unwrap();
    all.merge(std::mem::take(&mut fixture.present.lock().unwrap()));
    totals.iter().for_each(|&total| all.merge(total));
    all.check_reach(&fixture.gauges, &fixture.parent, Reach::Subtree);
    all.check_reach(&fixture.gauges, &fixture.hierarchy.root(), Reach::Subtree);
    all
}

fn maintain(fixture: &Fixture) -> Maintained {
    let _end = EndOnPanic;
    let mut all = Maintained::default();
    // ORDERING: Release and Acquire; the end, after all that was done before it.
    while !fixture.done.load(Ordering::Acquire) {
        let done = fixture.hierarchy.maintain(Maintenance::new().all().expedited());
        all.moved_records += done.moved_records;
        all.demoted_groups += done.demoted_groups;
        all.depopulated_bytes += done.depopulated_bytes;
        std::thread::yield_now();
    }
    all
}

fn fixture(config: Config) -> Fixture {
    let hierarchy = Hierarchy::new(config).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    let leaves = (0..LEAVES).map(|n| parent.create(&format!("leaf{n}")).unwrap()).collect();
    Fixture {
        gauges: gauges::register(&hierarchy, GAUGES),
        hierarchy,
        parent,
        leaves,
        accounts: Mutex::default(),
        gone: Mutex::default(),
        present: Mutex::default(),
        mailbox: Mutex::default(),
        rest: Barrier::new(WORKERS + 1),
        done: AtomicBool::new(false),
    }
}

fn storm(slots: usize, demote_after: Option<Duration>) {
    let config = Config::with_slots(SlotSource::virtual_slots(slots).unwrap())
        .stock_budget_bytes(1 << 20)
        .float(0, Duration::ZERO)
        .demote_after(demote_after);
    let fixture = fixture(config);
    let (maintained, all) = std::thread::scope(|scope| {
        let _end = EndOnPanic;
        let maintainer = scope.spawn(|| maintain(&fixture));
        for number in 0..WORKERS {
            let fixture = &fixture;
            scope.spawn(move || {
                let _end = EndOnPanic;
                let random = Random(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1));
                let (accounts, charges, tenants) = (Default::default(), Vec::new(), Vec::new());
                let mut worker = Worker { fixture, random, slots, number, accounts, charges, tenants };
                for round in 0..ROUNDS {
                    let _pin = pin_virtual((number + round * WORKERS) % slots);
                    (0..STEPS).for_each(|step| worker.step(round * STEPS + step));
                    worker.rest();
                }
            });
        }
        let mut totals = [Account::default(); LEAVES];
        let mut all = Account::default();
        for _ in 0..ROUNDS {
            fixture.rest.wait();
            all = check(&fixture, &mut totals);
            fixture.rest.wait();
        }
        // ORDERING: Release and Acquire; the end, after all that was done before it.
        fixture.done.store(true, Ordering::Release);
        (maintainer.join().unwrap(), all)
    });
    assert!(maintained.depopulated_bytes > 0, "{maintained:?}");
    if demote_after.is_some() {
        assert!(maintained.demoted_groups > 0, "{maintained:?}");
    } else {
        assert!(maintained.moved_records > 0, "{maintained:?}");
    }
    // The workers' charges went with them; their tenants are still there.
    fixture.parent.drain();
    for group in fixture.hierarchy.groups() {
        assert_eq!((group.usage(), group.stock().prepaid_bytes), (0, 0), "{group:?}");
    }
    for child in fixture.parent.children() {
        child.remove().unwrap();
    }
    all.check_reach(&fixture.gauges, &fixture.parent, Reach::Subtree);
    fixture.parent.remove().unwrap();
    all.check_reach(&fixture.gauges, &fixture.hierarchy.root(), Reach::Subtree);
    assert!(fixture.hierarchy.dying().is_empty());
    while fixture.hierarchy.maintain(Maintenance::new().all().expedited()).more {}
    assert!(fixture.hierarchy.stock_reserved_bytes().iter().all(|&bytes| bytes == 0));
    assert_eq!(fixture.hierarchy.percpu().limbo_bytes, 0);
}

#[test]
fn moves_records_on_2_slots() {
    storm(2, None);
}

#[test]
fn moves_records_on_8_slots() {
    storm(8, None);
}

#[test]
fn moves_records_on_128_slots() {
    storm(128, None);
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn moves_records_on_512_slots() {
    storm(512, None);
}

#[test]
fn demotes_groups_on_2_slots() {
    storm(2, Some(Duration::ZERO));
}

#[test]
fn demotes_groups_on_8_slots() {
    storm(8, Some(Duration::ZERO));
}

#[test]
fn demotes_groups_on_128_slots() {
    storm(128, Some(Duration::ZERO));
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn demotes_groups_on_512_slots() {
    storm(512, Some(Duration::ZERO));
}

#[test]
fn loses_nothing_of_a_group_demoted_all_the_time() {
    const ADDITIONS: u64 = if cfg!(memgroup_yields) { 20 } else { 100 } * STEPS as u64;
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap());
    let fixture = fixture(config.demote_after(Some(Duration::ZERO)));
    let (gauges, leaf) = (&fixture.gauges, &fixture.leaves[0]);
    let first = gauges::nth(gauges, 0);
    let maintained = std::thread::scope(|scope| {
        let maintainer = scope.spawn(|| maintain(&fixture));
        let adders: Vec<_> = (0..WORKERS)
            .map(|number| {
                scope.spawn(move || {
                    let _end = EndOnPanic;
                    let _pin = pin_virtual(number);
                    for _ in 0..ADDITIONS {
                        gauges.add(leaf, first, 1);
                        drop(leaf.try_charge(100).unwrap());
                    }
                })
            })
            .collect();
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        // ORDERING: Release and Acquire; the end, after all that was done before it.
        fixture.done.store(true, Ordering::Release);
        maintainer.join().unwrap()
    });
    assert!(maintained.demoted_groups > 0, "{maintained:?}");
    assert_eq!(gauges::own(gauges, leaf, 0), (WORKERS as u64 * ADDITIONS) as i64);
    fixture.hierarchy.maintain(Maintenance::new().expedited());
    let stock = leaf.stock();
    assert_eq!(stock.hits + stock.misses, WORKERS as u64 * ADDITIONS, "{stock:?}");
    fixture.parent.drain();
    assert_eq!(leaf.usage(), 0);
}
