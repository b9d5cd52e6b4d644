//! Tenants that hold memory, and stop when they are told to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{
    Charge, Config, Group, Hierarchy, KillAnswer, KillOutcome, KillRegistration, KillRequest, SlotSource,
};

/// The bytes of one charge.
pub(crate) const PAGE: u64 = 4096;

/// A group of which something runs that can be stopped.
pub(crate) struct Tenant {
    pub(crate) group: Group,
    pub(crate) memory: Arc<Mutex<Vec<Charge>>>,
    /// Times that its hook was called.
    pub(crate) calls: Arc<AtomicU64>,
}

impl Tenant {
    /// With so many pages.
    pub(crate) fn new(parent: &Group, name: &str, pages: u64) -> Tenant {
        Tenant::of(&parent.create(name).unwrap(), pages)
    }

    pub(crate) fn of(group: &Group, pages: u64) -> Tenant {
        let tenant = Tenant { group: group.clone(), memory: Arc::default(), calls: Arc::default() };
        tenant.fill(pages);
        tenant
    }

    pub(crate) fn fill(&self, pages: u64) {
        (0..pages).for_each(|_| self.memory.lock().unwrap().push(self.group.try_charge(PAGE).unwrap()));
    }

    /// A hook that answers so, and frees nothing.
    pub(crate) fn answers(&self, answer: KillAnswer) -> KillRegistration {
        let calls = Arc::clone(&self.calls);
        let hook = move |_: &KillRequest<'_>| {
            calls.fetch_add(1, Ordering::Relaxed);
            answer
        };
        self.group.set_kill_hook(hook).unwrap()
    }

    /// A hook that frees all at once, and says that it is dying.
    pub(crate) fn dies(&self) -> KillRegistration {
        let (memory, calls) = (Arc::clone(&self.memory), Arc::clone(&self.calls));
        let hook = move |_: &KillRequest<'_>| {
            calls.fetch_add(1, Ordering::Relaxed);
            memory.lock().unwrap().clear();
            KillAnswer::Dying
        };
        self.group.set_kill_hook(hook).unwrap()
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Frees all that it holds.
    pub(crate) fn free(&self) {
        self.memory.lock().unwrap().clear();
    }
}

/// A group of so many pages, on so many slots, with this patience.
pub(crate) fn full(slots: usize, pages: u64, patience: Duration) -> (Hierarchy, Group) {
    let config = Config::with_slots(SlotSource::virtual_slots(slots).unwrap()).kill_patience(patience);
    let hierarchy = Hierarchy::new(config).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(pages * PAGE).unwrap();
    (hierarchy, tenants)
}

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// The victims, and the outcome of each kill.
pub(crate) fn outcomes(hierarchy: &Hierarchy) -> Vec<(String, Option<KillOutcome>)> {
    let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    hierarchy.kills().into_iter().map(|kill| (name(&kill.victim), kill.outcome)).collect()
}

/// How often groups were killed.
pub(crate) fn kills(group: &Group) -> u64 {
    group.events_local().oom_kill
}
