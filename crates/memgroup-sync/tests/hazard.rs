//! Hazard records, one behaviour after the other: waits, detached closures, reports.

#![cfg(not(memgroup_loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use memgroup_sync::hazard::{Domain, Place, WaitError, Withdrawn};
use tracked::{Counted, Tracked};
use xtask::Watchdog;

mod tracked;

/// A domain and a place of it, of one test.
fn place() -> (&'static Domain, &'static Place<Tracked>) {
    let domain = memgroup_sync::keep(Box::new(Domain::new()));
    (domain, memgroup_sync::keep(Box::new(Place::empty(domain))))
}

/// A thread that has a place pinned until it is told to stop.
struct User {
    stop: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<bool>,
}

impl User {
    /// Returns when the place is pinned. Whether the value was good all the time is the thread's
    /// result.
    fn of(domain: &'static Domain, place: &'static Place<Tracked>) -> Self {
        let (stop, stopped) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new().name("user-of-place".to_owned());
        let thread = thread.spawn(move || {
            let mut lease = domain.lease();
            let pinned = lease.pin(place).expect("a value");
            tell.send(()).unwrap();
            stopped.recv().unwrap();
            pinned.is_good()
        });
        told.recv().unwrap();
        Self { stop, thread: thread.unwrap() }
    }

    fn stops(self) {
        let _watchdog = Watchdog::over("the end of a use");
        self.stop.send(()).unwrap();
        assert!(self.thread.join().unwrap(), "the value was good to the end");
    }
}

fn withdrawn(place: &'static Place<Tracked>) -> Withdrawn<Tracked> {
    place.withdraw().expect("a value")
}

/// Waits for the last use of a value.
fn waited(withdrawn: Withdrawn<Tracked>) -> Box<Tracked> {
    let _watchdog = Watchdog::over("a wait for the last use of a value");
    withdrawn.wait().expect("this thread does not use it")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(10)
}

#[test]
fn an_empty_place_has_nothing_to_pin_and_nothing_to_withdraw() {
    let (domain, place) = place();
    assert!(domain.lease().pin(place).is_none());
    assert!(place.withdraw().is_none() && !place.is_taken());
    assert_eq!(domain.busy().count(), 0);
}

#[test]
fn a_place_is_used_again_and_again() {
    let (domain, place) = place();
    let counted = Counted::default();
    for number in 0..10 {
        place.put(counted.value(number));
        assert_eq!(domain.lease().pin(place).map(|value| value.number), Some(number));
        let withdrawn = withdrawn(place);
        assert_eq!(withdrawn.number, number, "who withdraws it reads it as well");
        assert!(domain.lease().pin(place).is_none() && withdrawn.blockers().is_empty());
        assert_eq!(waited(withdrawn).number, number);
        assert_eq!(counted.dropped(), number + 1);
    }
}

#[test]
fn a_withdrawal_waits_for_the_uses_of_its_own_place_and_for_no_other() {
    let (domain, one) = place();
    let other = memgroup_sync::keep(Box::new(Place::empty(domain)));
    let counted = Counted::default();
    one.put(counted.value(1));
    other.put(counted.value(2));
    let user = User::of(domain, one);
    assert_eq!(waited(withdrawn(other)).number, 2);
    let Err(WaitError::Deadline(waited)) = withdrawn(one).wait_until(soon()) else { panic!("it is in use") };
    assert_eq!(counted.dropped(), 1);
    user.stops();
    assert_eq!(waited.wait_until(Instant::now()).unwrap().number, 1);
}

#[test]
fn a_wait_ends_when_the_last_of_several_users_stops() {
    let (domain, place) = place();
    let counted = Counted::default();
    place.put(counted.value(1));
    let users = [(); 3].map(|()| User::of(domain, place));
    let withdrawn = withdrawn(place);
    assert_eq!(withdrawn.blockers().len(), 3);
    let stopping = std::thread::spawn(move || {
        for user in users {
            std::thread::sleep(Duration::from_millis(if cfg!(miri) { 1 } else { 20 }));
            user.stops();
        }
    });
    let value = waited(withdrawn);
    value.is_gone();
    stopping.join().unwrap();
}

#[test]
fn refuses_to_wait_for_the_caller_s_own_use() {
    let (domain, place) = place();
    place.put(Counted::default().value(1));
    let mut lease = domain.lease();
    let pinned = lease.pin(place).unwrap();
    let withdrawn = withdrawn(place);
    assert!(withdrawn.is_used_here());
    let _watchdog = Watchdog::over("a wait for the caller's own use");
    let Err(WaitError::UsedHere(withdrawn)) = withdrawn.wait() else { panic!("it would not end") };
    let error = withdrawn.wait_until(Instant::now() + Duration::from_secs(3600)).unwrap_err();
    assert!(error.to_string().contains("on a thread that uses it"), "{error}");
    drop(pinned);
    let (WaitError::Deadline(withdrawn) | WaitError::UsedHere(withdrawn)) = error;
    assert_eq!(waited(withdrawn).number, 1);
}

#[test]
#[cfg_attr(miri, ignore = "reads the threads' names from /proc")]
fn an_error_names_the_place_the_thread_and_for_how_long() {
    let (domain, place) = place();
    place.put(Counted::default().value(1));
    let user = User::of(domain, place);
    let error = withdrawn(place).wait_until(soon()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("{:#x}", place.key())), "{text}");
    assert!(!cfg!(target_os = "linux") || text.contains("(user-of-place) in it for "), "{text}");
    let (WaitError::Deadline(withdrawn) | WaitError::UsedHere(withdrawn)) = error;
    let first = withdrawn.blockers()[0].held();
    std::thread::sleep(Duration::from_millis(5));
    let second = withdrawn.blockers()[0].held();
    assert!(second >= first + Duration::from_millis(5), "{first:?} {second:?}");
    user.stops();
    assert!(withdrawn.blockers().is_empty());
}

#[test]
fn reports_each_user_from_the_stamp_of_its_pin() {
    const PAUSE: Duration = Duration::from_millis(5);
    let (domain, place) = place();
    place.put(Counted::default().value(1));
    let mut lease = domain.lease();
    let held = || {
        let occupants: Vec<_> = domain.busy().collect();
        assert!(occupants.len() == 1 && occupants[0].is_in(place) && !occupants[0].is_unproven());
        occupants[0].held()
    };
    let stamped = lease.pin(place).unwrap();
    stamped.stamp();
    std::thread::sleep(PAUSE);
    assert!(held() >= PAUSE);
    drop(stamped);
    let began = Instant::now();
    let _unstamped = lease.pin(place).unwrap();
    let known = held();
    assert!(known <= began.elapsed(), "of this pin, not of the one before");
    std::thread::sleep(PAUSE);
    assert!(held() >= PAUSE, "from the first look on");
}

#[test]
fn runs_a_detached_closure_on_the_last_user() {
    let (domain, place) = place();
    let counted = Counted::default();
    place.put(counted.value(1));
    let users = [User::of(domain, place), User::of(domain, place)];
    let (tell, told) = mpsc::channel::<(ThreadId, usize)>();
    withdrawn(place).detach(move |value| {
        value.is_gone();
        tell.send((std::thread::current().id(), value.number)).unwrap();
    });
    let [first, last] = users;
    first.stops();
    assert!(told.try_recv().is_err() && place.is_taken());
    let id = last.thread.thread().id();
    last.stops();
    let _watchdog = Watchdog::over("the closure of a detached value");
    assert_eq!(told.recv(), Ok((id, 1)));
    assert!(told.recv().is_err(), "once");
    assert!(!place.is_taken());
    assert_eq!(counted.dropped(), 1);
}

#[test]
fn runs_the_closure_of_an_unused_value_at_once() {
    let (domain, place) = place();
    let counted = Counted::default();
    for lease in [None, Some(domain.lease())] {
        place.put(counted.value(1));
        let done = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&done);
        withdrawn(place).detach(move |_| {
            // ORDERING: Relaxed; one thread.
            counts.fetch_add(1, Ordering::Relaxed);
        });
        // ORDERING: Relaxed; one thread.
        assert_eq!(done.load(Ordering::Relaxed), 1);
        place.put(counted.value(1));
        drop(withdrawn(place));
        drop(lease);
    }
    assert_eq!(counted.dropped(), 4);
}

#[test]
fn lets_a_detached_closure_use_the_place_and_the_domain() {
    let (domain, place) = place();
    let counted = Counted::default();
    place.put(counted.value(1));
    let user = User::of(domain, place);
    let more = counted.clone();
    withdrawn(place).detach(move |value| {
        drop(value);
        place.put(more.value(2));
        assert_eq!(domain.lease().pin(place).unwrap().number, 2);
        withdrawn(place).detach(move |value| {
            drop(value);
            place.put(more.value(3));
        });
    });
    user.stops();
    assert_eq!(domain.lease().pin(place).unwrap().number, 3);
    assert_eq!(counted.dropped(), 2);
    drop(withdrawn(place));
}

#[test]
fn contains_the_panic_of_a_detached_closure() {
    let (domain, place) = place();
    let counted = Counted::default();
    place.put(counted.value(1));
    let user = User::of(domain, place);
    withdrawn(place).detach(|value| panic!("what is done with {}", value.number));
    user.stops();
    assert_eq!(counted.dropped(), 1);
    place.put(counted.value(2));
    let here = catch_unwind(AssertUnwindSafe(|| withdrawn(place).detach(|_| panic!("here and now"))));
    assert!(here.is_err());
    place.put(counted.value(3));
    assert_eq!(waited(withdrawn(place)).number, 3);
    assert_eq!(counted.dropped(), 3);
}

#[test]
fn a_dropped_withdrawal_drops_the_value_after_its_last_use() {
    let (domain, place) = place();
    let counted = Counted::default();
    place.put(counted.value(1));
    let user = User::of(domain, place);
    drop(withdrawn(place));
    assert_eq!(counted.dropped(), 0);
    user.stops();
    assert_eq!(counted.dropped(), 1);
}

#[test]
fn a_use_that_panics_is_over() {
    let (domain, place) = place();
    place.put(Counted::default().value(1));
    let walk = || {
        let mut lease = domain.lease();
        let pinned = lease.pin(place).unwrap();
        panic!("in the use of {}", pinned.number);
    };
    assert!(catch_unwind(walk).is_err());
    assert_eq!(domain.busy().count(), 0);
    assert_eq!(waited(withdrawn(place)).number, 1);
}

fn message(panics: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(panics)).expect_err("a panic");
    *payload.downcast::<String>().expect("a message with numbers")
}

#[test]
fn a_place_that_is_taken_takes_no_other_value() {
    let (domain, place) = place();
    let counted = Counted::default();
    place.put(counted.value(1));
    assert!(message(|| place.put(counted.value(2))).ends_with("there is one in it"));
    let user = User::of(domain, place);
    let withdrawn = withdrawn(place);
    assert!(message(|| place.put(counted.value(3))).ends_with("the last one is still in use"));
    user.stops();
    assert!(message(|| place.put(counted.value(4))).ends_with("the last one is still in use"));
    drop(withdrawn);
    place.put(counted.value(5));
    assert_eq!(domain.lease().pin(place).unwrap().number, 5);
    drop(place.withdraw());
    assert_eq!(counted.dropped(), 5);
}

#[test]
fn a_place_of_another_domain_is_not_pinned() {
    let ((domain, _), (_, place)) = (place(), place());
    place.put(Counted::default().value(1));
    let pins = || assert!(domain.lease().pin(place).is_some());
    assert!(message(pins).ends_with("it is of another domain than the lease"));
    drop(place.withdraw());
}

#[test]
fn a_pin_that_is_forgotten_ends_when_its_lease_is_used_again_or_ends() {
    let (domain, one) = place();
    let other = memgroup_sync::keep(Box::new(Place::empty(domain)));
    let counted = Counted::default();
    one.put(counted.value(1));
    other.put(counted.value(2));
    let mut lease = domain.lease();
    std::mem::forget(lease.pin(one));
    drop(withdrawn(one));
    assert_eq!(counted.dropped(), 0);
    std::mem::forget(lease.pin(other));
    assert_eq!(counted.dropped(), 1);
    drop(withdrawn(other));
    assert_eq!(counted.dropped(), 1);
    drop(lease);
    assert_eq!(counted.dropped(), 2);
}

#[test]
fn there_are_as_many_leases_as_walks_at_one_time() {
    const LEASES: usize = 50;
    let (domain, place) = place();
    let counted = Counted::default();
    place.put(counted.value(1));
    let mut leases: Vec<_> = (0..LEASES).map(|_| domain.lease()).collect();
    let pinned: Vec<_> = leases.iter_mut().map(|lease| lease.pin(place).unwrap()).collect();
    assert_eq!(domain.busy().count(), LEASES);
    drop(withdrawn(place));
    for pinned in pinned {
        assert!(pinned.is_good() && counted.dropped() == 0);
    }
    assert_eq!((domain.busy().count(), counted.dropped()), (0, 1));
}

#[test]
fn drops_the_value_of_a_place_that_was_never_shared() {
    let (domain, _) = place();
    let counted = Counted::default();
    let place = Place::empty(domain);
    place.put(counted.value(1));
    drop(place);
    assert_eq!(counted.dropped(), 1);
}

#[test]
fn places_can_be_an_array_that_is_a_static() {
    static DOMAIN: Domain = Domain::new();
    static PLACES: [Place<usize>; 3] = [Place::empty(&DOMAIN), Place::empty(&DOMAIN), Place::empty(&DOMAIN)];
    let mut lease = DOMAIN.lease();
    for (number, place) in PLACES.iter().enumerate() {
        place.put(Box::new(number));
        assert_eq!(lease.pin(place).as_deref(), Some(&number));
    }
    let keys: std::collections::HashSet<_> = PLACES.iter().map(Place::key).collect();
    assert_eq!(keys.len(), 3);
}
