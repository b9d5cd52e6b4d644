//! How far a charge goes to make room, by its effort.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memgroup::{
    Ask, Charge, ChargeErrorKind, Config, Count, Effort, Group, GroupShrinker, Hierarchy, KillAnswer,
    KillRegistration, KillRequest, Scan, Shrinker, ShrinkerConfig, SlotSource,
};
use memgroup_percpu::pin_virtual;

const KIB: u64 = 1 << 10;

/// Memory that gives way, and the calls that asked for it.
#[derive(Default)]
struct Giving {
    held: Mutex<Vec<Charge>>,
    calls: AtomicU64,
}

impl Giving {
    fn called(&self) {
        // ORDERING: Relaxed; one thread.
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn calls(&self) -> u64 {
        // ORDERING: Relaxed; one thread.
        self.calls.load(Ordering::Relaxed)
    }
}

impl Shrinker for Giving {
    fn count(&self, _token: u64) -> Count {
        self.called();
        let held = self.held.lock().unwrap();
        Count::of(held.iter().map(Charge::bytes).sum(), held.len() as u64)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        self.called();
        let given = self.held.lock().unwrap().pop();
        Scan::Freed { bytes: given.map_or(0, |charge| charge.bytes()) }
    }
}

/// A parent of 64 KiB in which a cache has 24 KiB, and work that can be stopped has 40 KiB.
struct Full {
    asking: Group,
    parent: Group,
    cache: Arc<Giving>,
    work: Arc<Giving>,
    _registered: (GroupShrinker, KillRegistration),
}

fn full() -> Full {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * KIB).unwrap();
    let [asking, idle, busy] = ["asking", "idle", "busy"].map(|name| parent.create(name).unwrap());
    let (cache, work) = (Arc::new(Giving::default()), Arc::new(Giving::default()));
    let fill = |group: &Group, giving: &Giving, pages: usize| {
        let pages = (0..pages).map(|_| group.try_charge(4 * KIB).unwrap());
        giving.held.lock().unwrap().extend(pages);
    };
    fill(&idle, &cache, 6);
    fill(&busy, &work, 10);
    let registered = idle.add_shrinker(ShrinkerConfig::new("cache"), Arc::clone(&cache)).unwrap();
    registered.mark();
    let stops = Arc::clone(&work);
    let hook = busy.set_kill_hook(move |_: &KillRequest<'_>| {
        stops.called();
        stops.held.lock().unwrap().clear();
        KillAnswer::Dying
    });
    Full { asking, parent, cache, work, _registered: (registered, hook.unwrap()) }
}

#[test]
fn each_effort_goes_as_far_as_it_says() {
    let Full { asking, parent, cache, work, .. } = &full();
    let error = asking.try_charge_by(8 * KIB, Effort::Count).unwrap_err();
    assert_eq!((error.kind(), cache.calls(), work.calls()), (ChargeErrorKind::Refused, 0, 0));
    let first = asking.try_charge_by(8 * KIB, Effort::Reclaim).unwrap();
    assert!(cache.calls() > 0 && work.calls() == 0);
    // The cache has 16 KiB left.
    let mut second = asking.try_charge_by(16 * KIB, Effort::Reclaim).unwrap();
    let error = second.try_grow_by(4 * KIB, Effort::Reclaim).unwrap_err();
    assert_eq!((error.kind(), second.bytes(), work.calls()), (ChargeErrorKind::Refused, 16 * KIB, 0));
    second.try_grow_by(4 * KIB, Effort::Stop).unwrap();
    assert_eq!((second.bytes(), work.calls()), (20 * KIB, 1));
    assert_eq!(parent.usage_exact(), first.bytes() + second.bytes());
    assert!(second.try_grow_by(4 * KIB, Effort::Count).is_ok(), "there is room");
}

#[test]
fn counting_takes_back_bytes_that_others_have_prepaid() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * KIB).unwrap();
    let (a, b) = (parent.create("a").unwrap(), parent.create("b").unwrap());
    {
        let _pin = pin_virtual(0);
        let burst: Vec<_> = (0..8).map(|_| a.try_charge(KIB).unwrap()).collect();
        drop(burst);
    }
    let _pin = pin_virtual(1);
    assert!(parent.usage() > 0, "something is prepaid");
    let all = b.try_charge_by(64 * KIB, Effort::Count).unwrap();
    let error = a.try_charge_by(1, Effort::Count).unwrap_err();
    assert_eq!((error.usage(), error.max()), (64 * KIB, Some(64 * KIB)));
    drop(all);
}

#[test]
fn counting_above_high_leaves_debt_and_asks_no_cache() {
    let Full { asking, parent, cache, .. } = &full();
    cache.held.lock().unwrap().truncate(2);
    parent.set_high(48 * KIB).unwrap();
    let calls = cache.calls();
    let _held = asking.try_charge_by(8 * KIB, Effort::Count).unwrap();
    assert_eq!(cache.calls(), calls);
    assert!(asking.owed() > 0 && parent.events().high > 0);
    let _more = asking.try_charge_by(KIB, Effort::Reclaim).unwrap();
    assert!(cache.calls() > calls);
}
