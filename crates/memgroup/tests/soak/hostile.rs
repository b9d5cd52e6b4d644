//! Hostile: shrinkers and kill hooks that misbehave in one call of four.
//!
//! A callback keeps two rules. It only tries locks that a charging thread may hold, and a callback
//! that hangs goes on after at most 1.5 ms. It keeps no other rule of the interface.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use memgroup::{
    Ask, Count, Group, GroupShrinker, KillAnswer, KillRegistration, KillRequest, Scan, Shrinker,
    ShrinkerConfig, ShrinkerReport,
};

use crate::ledger::{Held, Member, lock};
use crate::plan::Manner;
use crate::random::Random;
use crate::sleepers::CALLS;

/// A callback that misbehaves does so once in this many calls, on average.
const MISCHIEF: u64 = 4;

/// A call of a callback, until it returns or panics.
struct Call;

impl Call {
    fn begin() -> Call {
        CALLS.fetch_add(1, Ordering::SeqCst);
        Call
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn hang(random: &Mutex<Random>) {
    let micros = lock(random).below(1500);
    std::thread::sleep(Duration::from_micros(micros));
}

/// Panics without `panic!`, because that would print a message each time.
fn panic_quietly() -> ! {
    resume_unwind(Box::new("by chance"))
}

/// The behaviour of this call: `manner` once in [`MISCHIEF`] calls, else honest.
fn mischief(random: &Mutex<Random>, manner: Manner) -> Manner {
    if lock(random).below(MISCHIEF) == 0 { manner } else { Manner::Honest }
}

/// A cache of one group.
pub(crate) struct Cache {
    pub(crate) member: Arc<Member>,
    pages: Mutex<Vec<Held>>,
    manner: Manner,
    random: Mutex<Random>,
    own: Mutex<Option<GroupShrinker>>,
    /// Takes the pages that another thread frees later.
    late: Arc<Late>,
    /// It was marked since it last said that it is empty.
    is_marked: AtomicBool,
    /// How often it was counted or scanned.
    asked: AtomicU64,
}

/// Charges that another thread is to free.
#[derive(Default)]
pub(crate) struct Late(Mutex<Vec<(Vec<Held>, Arc<Member>)>>);

impl Late {
    /// Frees the oldest charges, and reports the end of the kill if `says` is set.
    pub(crate) fn free(&self, says: bool) {
        let mut waiting = lock(&self.0);
        if waiting.is_empty() {
            return;
        }
        let (held, member) = waiting.remove(0);
        drop(waiting);
        drop(held);
        if says {
            member.group.kill_done();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    fn leave(&self, held: Vec<Held>, member: &Arc<Member>) {
        lock(&self.0).push((held, Arc::clone(member)));
    }
}

impl Cache {
    /// Registers a cache; `None` if the group is removed or has too many shrinkers.
    pub(crate) fn new(
        member: &Arc<Member>,
        manner: Manner,
        seed: u64,
        late: &Arc<Late>,
    ) -> Option<Arc<Cache>> {
        let cache = Arc::new(Cache {
            member: Arc::clone(member),
            pages: Mutex::default(),
            manner,
            random: Mutex::new(Random(seed | 1)),
            own: Mutex::default(),
            late: Arc::clone(late),
            is_marked: AtomicBool::new(false),
            asked: AtomicU64::new(0),
        });
        let patience = Duration::from_micros(if seed.is_multiple_of(2) { 500 } else { 100_000 });
        let config = ShrinkerConfig::new(format!("{manner:?}"))
            .batch_bytes(4096 << (seed % 5))
            .cost((seed % 4) as u32)
            .patience(patience);
        let own = member.group.add_shrinker(config, Arc::clone(&cache)).ok()?;
        *lock(&cache.own) = Some(own);
        Some(cache)
    }

    /// Charges up to `pages` pages, until one is refused. The charge may reclaim from this cache
    /// itself, so the thread holds no lock.
    pub(crate) fn fill(&self, pages: u64, bytes: u64) -> u64 {
        for page in 0..pages {
            let Ok(charge) = self.member.group.try_charge(bytes) else { return page };
            lock(&self.pages).push(Held::plain(&self.member, charge));
        }
        if let Some(own) = &*lock(&self.own) {
            // Under the lock of the pages: a count that found none has said so before, or finds
            // these.
            let pages = lock(&self.pages);
            self.is_marked.store(!pages.is_empty(), Ordering::SeqCst);
            drop(pages);
            own.mark();
        }
        pages
    }

    pub(crate) fn take_registration(&self) -> Option<GroupShrinker> {
        lock(&self.own).take()
    }

    /// Runs `act` on the cache's registration, if it has one.
    pub(crate) fn with_registration<T>(&self, act: impl FnOnce(&GroupShrinker) -> T) -> Option<T> {
        lock(&self.own).as_ref().map(act)
    }

    /// How often it was asked, if reclaim must find it: it is registered, marked and not
    /// quarantined, and has pages.
    pub(crate) fn asked_if_owed(&self, reports: &[ShrinkerReport]) -> Option<u64> {
        let id = self.with_registration(|own| own.registration().id())?;
        let is_well = reports.iter().any(|report| report.id == id && report.quarantine.is_none());
        let is_owed = is_well
            && self.member.group.is_online()
            && self.is_marked.load(Ordering::SeqCst)
            && !lock(&self.pages).is_empty();
        is_owed.then(|| self.asked.load(Ordering::SeqCst))
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Drops all pages.
    pub(crate) fn clear(&self) {
        let pages = std::mem::take(&mut *lock(&self.pages));
        drop(pages);
    }

    fn free(&self, bytes: u64, late: bool) -> Scan {
        let Ok(mut pages) = self.pages.try_lock() else { return Scan::Stopped { bytes: 0 } };
        let (mut freed, mut count) = (0, 0);
        while freed < bytes && count < pages.len() {
            freed += pages[count].bytes();
            count += 1;
        }
        let given: Vec<Held> = pages.drain(..count).collect();
        drop(pages);
        if late {
            self.late.leave(given, &self.member);
        }
        Scan::Freed { bytes: freed }
    }

    /// Registers another shrinker, which has nothing to give, and withdraws it.
    fn register_another(&self, group: &Group) {
        struct Nothing;
        impl Shrinker for Nothing {
            fn count(&self, _: u64) -> Count {
                Count::Empty
            }
            fn scan(&self, _: &Ask<'_>) -> Scan {
                Scan::Freed { bytes: 0 }
            }
        }
        let Ok(other) = group.add_shrinker(ShrinkerConfig::new("another"), Nothing) else { return };
        other.mark();
        let left = other.withdraw().wait_until(Instant::now() + Duration::from_micros(500));
        drop(left);
    }
}

impl Shrinker for Cache {
    fn count(&self, _: u64) -> Count {
        let _call = Call::begin();
        self.asked.fetch_add(1, Ordering::SeqCst);
        match (self.manner, mischief(&self.random, self.manner)) {
            (Manner::Lies, Manner::Lies) => return Count::Holds { bytes: u64::MAX / 2, objects: 1 },
            (Manner::Panics, Manner::Panics) if lock(&self.random).below(8) == 0 => panic_quietly(),
            _ => {}
        }
        let Ok(pages) = self.pages.try_lock() else { return Count::Unknown };
        if pages.is_empty() {
            self.is_marked.store(false, Ordering::SeqCst);
        }
        Count::of(pages.iter().map(Held::bytes).sum(), pages.len() as u64)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let _call = Call::begin();
        self.asked.fetch_add(1, Ordering::SeqCst);
        match mischief(&self.random, self.manner) {
            Manner::Honest => self.free(ask.bytes(), false),
            Manner::FreesLate => self.free(ask.bytes(), true),
            Manner::Hangs => {
                hang(&self.random);
                self.free(ask.bytes(), false)
            }
            Manner::Panics => panic_quietly(),
            Manner::FreesNothing => Scan::Freed { bytes: 0 },
            Manner::Lies => Scan::Freed { bytes: u64::MAX },
            Manner::Registers => {
                self.register_another(&ask.group());
                self.free(ask.bytes(), false)
            }
            Manner::Charges => {
                let bytes = lock(&self.random).bytes(14);
                let charge =
                    self.member.group.try_charge(bytes).map(|charge| Held::plain(&self.member, charge));
                let scanned = self.free(ask.bytes(), false);
                if let (Ok(held), Ok(mut pages)) = (charge, self.pages.try_lock()) {
                    pages.push(held);
                }
                scanned
            }
            Manner::Goes => {
                let scanned = self.free(u64::MAX, false);
                let own = self.own.try_lock().ok().and_then(|mut own| own.take());
                if let Some(own) = own {
                    own.remove().expect_err("from within its own call");
                }
                scanned
            }
        }
    }
}

/// Work in a group that a kill hook can stop.
pub(crate) struct Tenant {
    pub(crate) member: Arc<Member>,
    memory: Mutex<Vec<Held>>,
    manner: Manner,
    random: Mutex<Random>,
    hook: Mutex<Option<KillRegistration>>,
    late: Arc<Late>,
    /// How many hooks answered [`KillAnswer::Dying`], over all tenants.
    deaths: Arc<AtomicU64>,
}

impl Tenant {
    /// Sets the group's kill hook; `None` if the group has one or is removed.
    pub(crate) fn new(
        member: &Arc<Member>,
        manner: Manner,
        seed: u64,
        late: &Arc<Late>,
        deaths: &Arc<AtomicU64>,
    ) -> Option<Arc<Tenant>> {
        let tenant = Arc::new(Tenant {
            member: Arc::clone(member),
            memory: Mutex::default(),
            manner,
            random: Mutex::new(Random(seed | 1)),
            hook: Mutex::default(),
            late: Arc::clone(late),
            deaths: Arc::clone(deaths),
        });
        // The hook holds no reference that keeps the tenant. It answers `Refused` if the tenant was
        // dropped meanwhile.
        let told: Weak<Tenant> = Arc::downgrade(&tenant);
        let kept = Arc::clone(member);
        let hook = member.group.set_kill_hook(move |killing: &KillRequest<'_>| {
            assert!(killing.group == &kept.group, "the hook of another group");
            told.upgrade().map_or(KillAnswer::Refused, |tenant| tenant.told(killing))
        });
        *lock(&tenant.hook) = Some(hook.ok()?);
        Some(tenant)
    }

    pub(crate) fn fill(&self, charges: u64, bytes: u64) -> u64 {
        for number in 0..charges {
            let Ok(charge) = self.member.group.try_charge(bytes) else { return number };
            lock(&self.memory).push(Held::plain(&self.member, charge));
        }
        charges
    }

    pub(crate) fn free(&self) {
        let memory = std::mem::take(&mut *lock(&self.memory));
        drop(memory);
    }

    pub(crate) fn take_hook(&self) -> Option<KillRegistration> {
        lock(&self.hook).take()
    }

    pub(crate) fn reinstate(&self) {
        if let Some(hook) = &*lock(&self.hook) {
            hook.reinstate();
        }
    }

    fn told(&self, killing: &KillRequest<'_>) -> KillAnswer {
        let _call = Call::begin();
        let free = |late: bool| {
            let Ok(mut memory) = self.memory.try_lock() else { return 0 };
            let memory = std::mem::take(&mut *memory);
            let bytes = memory.iter().map(Held::bytes).sum();
            if late {
                self.late.leave(memory, &self.member);
            }
            bytes
        };
        let answer = match mischief(&self.random, self.manner) {
            Manner::Honest => {
                free(false);
                KillAnswer::Dying
            }
            Manner::Hangs => {
                hang(&self.random);
                free(false);
                KillAnswer::Dying
            }
            Manner::Panics => panic_quietly(),
            Manner::FreesNothing => KillAnswer::Dying,
            Manner::Lies => KillAnswer::Idle { freed: u64::MAX },
            Manner::FreesLate => {
                free(true);
                KillAnswer::Dying
            }
            Manner::Registers => KillAnswer::Idle { freed: free(false) },
            Manner::Charges => {
                let charge = killing.requester.try_charge(lock(&self.random).bytes(14));
                free(false);
                drop(charge);
                KillAnswer::Dying
            }
            Manner::Goes => {
                let hook = self.hook.try_lock().ok().and_then(|mut hook| hook.take());
                drop(hook);
                let _ = self.member.group.remove();
                free(false);
                KillAnswer::Refused
            }
        };
        self.deaths.fetch_add(u64::from(answer == KillAnswer::Dying), Ordering::Relaxed);
        answer
    }
}
