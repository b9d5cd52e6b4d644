//! Several charges at a time need bytes that one cache alone has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use memgroup::{
    Ask, Charge, ChargeErrorKind, Count, Group, GroupShrinker, Hierarchy, Quarantine, Scan, ShrinkerConfig,
};

use super::cache::{Made, PAGE, add, parent, plenty};

/// An idle tenant's pages fill the parent's limit, and giving back takes long.
fn serves_every_thread(slots: usize, threads: u64, charges: u64) {
    let (_hierarchy, tenants) = parent(slots, threads * charges);
    let idle = tenants.create("idle").unwrap();
    let pages: Arc<Mutex<Vec<Charge>>> = Arc::default();
    pages.lock().unwrap().extend((0..threads * charges).map(|_| idle.try_charge(PAGE).unwrap()));
    let inside = Arc::new(AtomicU64::new(0));
    let (counted, scanned) = (Arc::clone(&pages), Arc::clone(&pages));
    let slow = add(
        &idle,
        "slow",
        move || Count::of(counted.lock().unwrap().len() as u64 * PAGE, 1),
        move |_| {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time has it give back");
            std::thread::sleep(Duration::from_micros(300));
            inside.fetch_sub(1, Ordering::SeqCst);
            let page = scanned.lock().unwrap().pop();
            Scan::Freed { bytes: page.map_or(0, |page| page.bytes()) }
        },
    );
    let start = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (tenants, start) = (&tenants, &start);
            scope.spawn(move || {
                let busy = tenants.create(&format!("busy{number}")).unwrap();
                start.wait();
                let held: Vec<Charge> = (0..charges).map(|_| busy.try_charge(PAGE).unwrap()).collect();
                start.wait();
                drop(held);
            });
        }
    });
    assert_eq!((pages.lock().unwrap().len(), tenants.usage_exact()), (0, 0), "all of it was needed");
    slow.remove().unwrap();
}

#[test]
fn refuses_no_charge_beside_one_slow_full_cache() {
    serves_every_thread(2, 2, 40);
    serves_every_thread(8, 4, 30);
    serves_every_thread(128, 16, 20);
}

/// An idle group that fills the parent with its pages. Its shrinker is in its first call until the
/// test says so.
struct Stuck {
    hierarchy: Hierarchy,
    tenants: Group,
    /// The call lasts until this is dropped.
    call: Mutex<Option<Sender<()>>>,
    /// Calls that have begun.
    begun: Receiver<()>,
    scans: Arc<AtomicU64>,
    pages: Arc<Mutex<Vec<Charge>>>,
}

impl Stuck {
    fn new() -> (Stuck, GroupShrinker) {
        let (hierarchy, tenants) = parent(8, 20);
        let idle = tenants.create("idle").unwrap();
        let pages: Vec<Charge> = (0..20).map(|_| idle.try_charge(PAGE).unwrap()).collect();
        let ((begin, begun), (call, told)) = (channel(), channel::<()>());
        let (pages, told, scans) =
            (Arc::new(Mutex::new(pages)), Mutex::new(told), Arc::new(AtomicU64::new(0)));
        let (counted, held) = (Arc::clone(&scans), Arc::clone(&pages));
        let shrinker = add(&idle, "stuck", plenty, move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = begin.send(());
            let _ = told.lock().unwrap().recv();
            let page = held.lock().unwrap().pop();
            Scan::Freed { bytes: page.map_or(0, |page| page.bytes()) }
        });
        (Stuck { hierarchy, tenants, call: Mutex::new(Some(call)), begun, scans, pages }, shrinker)
    }

    fn go_on(&self) {
        self.call.lock().unwrap().take();
    }

    fn charge(&self, number: u64) -> Result<Charge, ChargeErrorKind> {
        let group = self.tenants.create(&format!("busy{number}")).unwrap();
        group.try_charge(PAGE).map_err(|error| error.kind())
    }
}

/// So that threads are likely to have got to where they wait. The tests hold wherever they are.
fn a_while() {
    std::thread::sleep(Duration::from_millis(30));
}

#[test]
fn refuses_waiters_when_the_shrinker_is_removed() {
    let (stuck, shrinker) = Stuck::new();
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (stuck, outcomes) = (&stuck.tenants, &outcomes);
            scope.spawn(move || {
                let group = stuck.create(&format!("busy{number}")).unwrap();
                outcomes.lock().unwrap().push(group.try_charge(PAGE));
            });
        }
        stuck.begun.recv().unwrap();
        a_while();
        let removal = shrinker.withdraw();
        stuck.go_on();
        removal.wait().unwrap();
    });
    let outcomes = outcomes.into_inner().unwrap();
    assert_eq!(stuck.scans.load(Ordering::SeqCst), 1, "the call that was on when it was removed");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    drop(outcomes);
    assert_eq!(stuck.tenants.usage_exact(), 19 * PAGE, "the pages that it still holds");
    stuck.pages.lock().unwrap().clear();
    assert_eq!(stuck.tenants.usage_exact(), 0);
}

#[test]
fn refuses_waiters_when_the_call_takes_too_long() {
    let (_hierarchy, tenants) = parent(2, 20);
    let idle = tenants.create("idle").unwrap();
    let pages: Mutex<Vec<Charge>> = Mutex::new((0..20).map(|_| idle.try_charge(PAGE).unwrap()).collect());
    let (call, told) = channel::<()>();
    let (begun, has_begun) = channel();
    let told = Mutex::new(told);
    let scan = move |_: &Ask<'_>| {
        begun.send(()).unwrap();
        let _ = told.lock().unwrap().recv();
        let page = pages.lock().unwrap().pop();
        Scan::Freed { bytes: page.map_or(0, |page| page.bytes()) }
    };
    let config = ShrinkerConfig::new("long").patience(Duration::from_millis(20));
    let shrinker = idle.add_shrinker(config, Made(plenty, scan)).unwrap();
    shrinker.mark();
    std::thread::scope(|scope| {
        let charge = |number: u64| {
            let group = tenants.create(&format!("busy{number}")).unwrap();
            move || group.try_charge(PAGE).map_err(|error| error.kind())
        };
        let caller = scope.spawn(charge(0));
        has_begun.recv().unwrap();
        // They come while it is in its time, wait until that is over, and go.
        let waiters: Vec<_> = (1..5).map(|number| scope.spawn(charge(number))).collect();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap().unwrap_err(), ChargeErrorKind::Refused);
        }
        assert_eq!(shrinker.registration().quarantine(), Some(Quarantine::Overdue));
        drop(call);
        drop(caller.join().unwrap().expect("the calling thread has the page that it freed"));
    });
    assert_eq!(shrinker.registration().quarantine(), None, "it has returned");
    shrinker.remove().unwrap();
    assert_eq!(tenants.usage_exact(), 0);
}

#[test]
fn does_not_wait_for_a_call_that_may_wait_for_locks() {
    let (stuck, shrinker) = Stuck::new();
    std::thread::scope(|scope| {
        let by_hand = scope.spawn(|| stuck.tenants.reclaim(PAGE, None).bytes);
        stuck.begun.recv().unwrap();
        // The call waits for this thread.
        assert_eq!(stuck.charge(0).unwrap_err(), ChargeErrorKind::Refused);
        assert_eq!(stuck.hierarchy.shrinkers()[0].overruns, 0);
        assert_eq!(shrinker.registration().quarantine(), None, "no thread has waited until it was overdue");
        stuck.go_on();
        assert_eq!(by_hand.join().unwrap(), PAGE);
    });
    drop(stuck.charge(1).expect("there is room now"));
    shrinker.remove().unwrap();
}
