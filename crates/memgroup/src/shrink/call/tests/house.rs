//! A scripted shrinker, and calls and visits of it that are made by hand.

use super::*;

pub(super) const BATCH: u64 = 64 << 10;

/// What each call answers, the last answer for ever, and what was asked.
pub(super) struct Script {
    pub(super) counts: Mutex<Vec<Count>>,
    pub(super) scans: Scan,
    pub(super) counted: Mutex<u64>,
    pub(super) asked: Mutex<Vec<u64>>,
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

/// A scripted shrinker with a seat in a group, which is charged with 1000 batches.
pub(super) struct House {
    pub(super) hierarchy: Hierarchy,
    pub(super) group: Group,
    pub(super) script: Arc<Script>,
    pub(super) registration: Registration,
    pub(super) seat: Option<Seat>,
    _held: Charge,
}

impl House {
    pub(super) fn new(counts: &[Count], scans: Scan) -> House {
        House::of(ShrinkerConfig::new("scripted"), counts, scans)
    }

    pub(super) fn of(config: ShrinkerConfig, counts: &[Count], scans: Scan) -> House {
        let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let held = group.try_charge(1000 * BATCH).unwrap();
        let script = Arc::new(Script {
            counts: Mutex::new(counts.to_vec()),
            scans,
            counted: Mutex::new(0),
            asked: Mutex::default(),
        });
        let registration = hierarchy.add_shrinker(config, Arc::clone(&script)).unwrap();
        let seat = Some(registration.seat(&group, 0).unwrap());
        House { hierarchy, group, script, registration, seat, _held: held }
    }

    pub(super) fn place(&self) -> &'static Place<Entry> {
        self.hierarchy.root().node().shared.shrinkers.place(self.registration.id().0).unwrap()
    }

    pub(super) fn found(&self, group: &Group) -> Found {
        let node = group.node();
        let (seat, cell) = node.roster().unwrap().seat_of(self.place()).expect("it has a seat");
        Found { node, generation: node.generation(), seat, cell }
    }

    pub(super) fn cell(&self) -> &'static Cell {
        self.found(&self.group).cell
    }

    /// A call at a priority, which comes to its end in the past of `deadline`. What it met.
    pub(super) fn call(
        &self,
        priority: u32,
        deadline: Option<Instant>,
        make: impl FnOnce(Call<'_>, &Keeper, &mut Met),
    ) -> Met {
        let found = self.found(&self.group);
        let mut lease = domain().lease();
        let entry = lease.pin(self.place()).unwrap();
        let wanted = Wanted { bytes: u64::MAX, deadline, may_wait: true };
        let keeper = keep::begin(found.node, 0).unwrap();
        let mut met = Met::default();
        let class = found.cell.class();
        let sparing = Sparing::new(found.node, false);
        let call =
            Call { found, entry: &entry, shrinker: self.place(), class, priority, wanted: &wanted, sparing };
        make(call, &keeper, &mut met);
        met
    }

    /// Asks of a cache that holds so much what a priority makes of it.
    pub(super) fn ask(&self, bytes: u64, priority: u32) -> Met {
        self.call(priority, None, |call, keeper, met| assert!(call.ask(bytes, keeper, met)))
    }

    /// A walk comes by in the class that is the seat's.
    pub(super) fn visit(&self, priority: u32) -> Met {
        self.come_by(self.found(&self.group), self.cell().class(), priority)
    }

    pub(super) fn come_by(&self, found: Found, class: usize, priority: u32) -> Met {
        self.walk(found, class, priority, 0, |goes_on| assert!(goes_on, "the walk goes on"))
    }

    /// A walk for a charge of so much that does not fit, at the last priority.
    pub(super) fn come_by_and_wait(&self) {
        let (found, class) = (self.found(&self.group), self.cell().class());
        self.group.node().counter.set_max(1000 * BATCH);
        self.walk(found, class, 0, BATCH, |_| ());
    }

    /// A walk comes by a seat; for a charge it waits for that.
    fn walk(
        &self,
        found: Found,
        class: usize,
        priority: u32,
        charge: u64,
        goes_on: impl FnOnce(bool),
    ) -> Met {
        let Found { node, generation, seat, cell } = found;
        let wanted = Wanted { bytes: u64::MAX, deadline: None, may_wait: charge == 0 };
        let keeper = keep::begin(node, charge).unwrap();
        let (mut lease, mut met) = (domain().lease(), Met::default());
        let mut visitor = Visitor {
            wanted: &wanted,
            keeper: &keeper,
            sparing: Sparing::new(node, false),
            priority,
            class,
            turn: Turn::default(),
            waits: (charge > 0).then_some(node),
            lease: &mut lease,
            met: &mut met,
        };
        goes_on(visitor.visit(visit::Group { node, generation, protected: Protection::NONE }, seat, cell));
        met
    }

    pub(super) fn asked(&self) -> Vec<u64> {
        std::mem::take(&mut *self.script.asked.lock().unwrap())
    }

    pub(super) fn counted(&self) -> u64 {
        std::mem::take(&mut *self.script.counted.lock().unwrap())
    }

    /// The classes in which its seat is marked.
    pub(super) fn marks(&self) -> Vec<usize> {
        let found = self.found(&self.group);
        let roster = found.node.roster().unwrap();
        (0..CLASSES).filter(|&class| roster.seats.is_marked(found.seat, class)).collect()
    }
}

pub(super) const GIVES_NOTHING: Scan = Scan::Freed { bytes: 0 };
pub(super) const STOPS: Scan = Scan::Stopped { bytes: 0 };

pub(super) fn holds(bytes: u64) -> Count {
    Count::of(bytes, 1)
}
