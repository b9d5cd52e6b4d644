//! A scripted shrinker, and calls and visits of it that a test makes by hand.

use crate::reclaim::scan::tests::*;

pub(crate) const BATCH: u64 = 64 << 10;

/// The answers of the calls, of which the last is repeated, and the questions.
pub(crate) struct Script {
    pub(crate) counts: Mutex<Vec<Count>>,
    pub(crate) scans: Scan,
    pub(crate) counted: Mutex<u64>,
    pub(crate) asked: Mutex<Vec<u64>>,
}

impl Shrinker for Arc<Script> {
    fn count(&self, _token: u64) -> Count {
        *self.counted.lock().unwrap() += 1;
        let mut counts = self.counts.lock().unwrap();
        if counts.len() > 1 { counts.remove(0) } else { counts[0] }
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        self.asked.lock().unwrap().push(ask.bytes());
        self.scans
    }
}

/// A scripted shrinker that is attached to a group, which is charged with 1000 batches.
pub(crate) struct Fixture {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) group: Group,
    pub(crate) script: Arc<Script>,
    pub(crate) registration: Registration,
    pub(crate) attached: Option<ShrinkerSlot>,
    _held: Charge,
}

impl Fixture {
    pub(crate) fn new(counts: &[Count], scans: Scan) -> Fixture {
        Fixture::of(ShrinkerConfig::new("scripted"), counts, scans)
    }

    pub(crate) fn of(config: ShrinkerConfig, counts: &[Count], scans: Scan) -> Fixture {
        let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let held = group.try_charge(1000 * BATCH).unwrap();
        let script = Arc::new(Script {
            counts: Mutex::new(counts.to_vec()),
            scans,
            counted: Mutex::new(0),
            asked: Mutex::default(),
        });
        // Tests seize slots at the time 1, which is long ago where the hierarchy comes from the
        // pool: its clock goes on.
        let config = config.patience(Duration::from_secs(3600));
        let registration = hierarchy.add_shrinker(config, Arc::clone(&script)).unwrap();
        let attached = Some(registration.attach(&group, 0).unwrap());
        Fixture { hierarchy, group, script, registration, attached, _held: held }
    }

    pub(crate) fn place(&self) -> &'static Place<ShrinkerEntry> {
        place(&self.registration, &self.hierarchy)
    }

    pub(crate) fn slot_in(&self, group: &Group) -> SlotRef {
        SlotRef::of(group.node(), self.place()).expect("it is attached")
    }

    pub(crate) fn slot(&self) -> SlotRef {
        self.slot_in(&self.group)
    }

    pub(crate) fn state(&self) -> &'static SlotState {
        self.slot().state
    }

    /// Makes a series of calls at a priority, until `deadline` has passed. Returns its results.
    pub(crate) fn call(
        &self,
        priority: u32,
        deadline: Option<Instant>,
        make: impl FnOnce(Call<'_>, &mut ScanControl<'_>),
    ) -> ScanStats {
        let (slot, place) = (self.slot(), self.place());
        let mut lease = domain().lease();
        let entry = &lease.pin(place).unwrap();
        let credit = ReclaimCredit::begin(slot.node, Purpose::ByHand).unwrap();
        let class = slot.state.class();
        let control = ScanControl::new(slot.node, &credit, u64::MAX, false);
        let mut control = ScanControl { priority, deadline, end: deadline, class, ..control };
        make(Call { slot, place, entry }, &mut control);
        control.stats
    }

    /// Asks a cache that holds so much for its share at a priority.
    pub(crate) fn ask(&self, bytes: u64, priority: u32) -> ScanStats {
        self.call(priority, None, |call, control| assert!(call.ask(bytes, control)))
    }

    /// Visits the slot in its class.
    pub(crate) fn visit(&self, priority: u32) -> ScanStats {
        self.visit_in(self.slot(), self.state().class(), priority)
    }

    pub(crate) fn visit_in(&self, slot: SlotRef, class: usize, priority: u32) -> ScanStats {
        self.walk(slot, class, priority, Purpose::ByHand, |goes_on| assert!(goes_on, "the walk goes on"))
    }

    /// Visits the slot at the last priority, for a charge that does not fit.
    pub(crate) fn visit_and_wait(&self) {
        let node = self.group.node();
        node.counter.set_max(1000 * BATCH);
        self.walk(self.slot(), self.state().class(), 0, Purpose::Charge(node, BATCH), |_| ());
    }

    fn walk(
        &self,
        slot: SlotRef,
        class: usize,
        priority: u32,
        purpose: Purpose,
        goes_on: impl FnOnce(bool),
    ) -> ScanStats {
        let credit = ReclaimCredit::begin(slot.node, purpose).unwrap();
        let control = ScanControl {
            priority,
            class,
            waiter: (!credit.is_by_hand()).then_some(slot.node),
            ..ScanControl::new(slot.node, &credit, u64::MAX, false)
        };
        let mut walk = Walk::new(control);
        goes_on(!is_due(slot.state, &walk.control) || walk.visit(slot));
        walk.control.stats
    }

    pub(crate) fn asked(&self) -> Vec<u64> {
        std::mem::take(&mut *self.script.asked.lock().unwrap())
    }

    pub(crate) fn counted(&self) -> u64 {
        std::mem::take(&mut *self.script.counted.lock().unwrap())
    }

    /// The classes in which its slot is marked.
    pub(crate) fn marks(&self) -> Vec<usize> {
        let slot = self.slot();
        let slots = &slot.node.shrinkers().unwrap().slots;
        (0..CLASSES).filter(|&class| slots.is_marked(slot.number, class)).collect()
    }
}

pub(crate) const GIVES_NOTHING: Scan = Scan::Freed { bytes: 0 };
pub(crate) const STOPS: Scan = Scan::Stopped { bytes: 0 };

pub(crate) fn holds(bytes: u64) -> Count {
    Count::of(bytes, 1)
}

pub(crate) fn place(registration: &Registration, hierarchy: &Hierarchy) -> &'static Place<ShrinkerEntry> {
    hierarchy.root().node().shared().shrinkers().places.get(registration.id().0).unwrap()
}
