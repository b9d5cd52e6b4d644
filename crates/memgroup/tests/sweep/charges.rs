//! Charges of every form, without a limit in the way.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memgroup::{ChargeError, Charging, Effort, Group, ReclaimerStop, WaitReport, block, scope};

use crate::{Book, PAGE, hierarchy};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// The outcome of a future that has room, or is refused at once.
fn polled<T>(mut future: impl Future<Output = Result<T, ChargeError>> + Unpin) -> Result<T, ChargeError> {
    match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("there is room, but it waits"),
    }
}

/// Grows the last charge of the book by every form of growth.
fn grow(book: &mut Book) {
    let Some(mut charge) = book.held.pop() else { return };
    for form in 0..4 {
        let before = charge.bytes();
        let outcome = match form {
            0 => charge.try_grow(100),
            1 => charge.try_grow_by(100, Effort::Count),
            2 => charge.grow_until(100, soon()),
            _ => polled(charge.grow(100)),
        };
        let grown = book.note(outcome).map_or(0, |()| 100);
        assert_eq!(charge.bytes(), before + grown, "form {form}");
        book.check_bytes(charge.bytes());
    }
    charge.grow_forced(50).unwrap();
    book.held.push(charge);
    book.check_bytes(0);
}

/// Moves a charge to a sibling, to a child, to the parent and back; and a part of it.
fn make_moves(book: &mut Book, to: &[&Group]) {
    let Some(mut charge) = book.held.pop() else { return };
    let part = charge.split(10);
    for group in to {
        let (from, bytes) = (charge.group(), charge.bytes());
        let outcome = charge.try_move_to(group);
        let moved = book.note(outcome).is_some();
        assert_eq!(charge.bytes(), bytes);
        assert!(charge.group() == if moved { (*group).clone() } else { from });
        book.check_bytes(bytes + part.bytes());
    }
    book.held.extend([part, charge]);
}

/// A scope, and charges of the thread's group; of blocks, too.
fn within_scope(book: &mut Book, group: &Group) {
    let _scope = scope::enter(group);
    let current = scope::try_charge_current(300).expect("a scope is entered");
    book.keep(current);
    let current = book.hierarchy.try_charge_current(300).expect("a scope is entered");
    book.keep(current);
    let owner = block::current().expect("a scope is entered");
    let outcome = owner.try_charge(200);
    if let Some(charged) = book.note(outcome) {
        book.check_bytes(200);
        let grown = book.note(charged.try_grow(56)).map_or(0, |()| 56);
        charged.uncharge(200 + grown);
    }
    let forced = owner.charge(100, 0).expect("the group is online");
    assert_eq!(forced.bytes, 100);
    assert!(owner.grow(28));
    owner.uncharge(128);
    book.check_bytes(0);
}

#[test]
fn sweep_charges_of_all_forms() {
    xtask::sweep::sweep("charges of all forms", |run| {
        let mut book = Book::open(hierarchy(), run);
        let alice = book.hierarchy.create("/alice").unwrap();
        let job = book.hierarchy.create("/alice/job").unwrap();
        let bob = book.hierarchy.create("/bob").unwrap();
        let (readers, root) = ([&alice, &bob].map(Group::peak_reader), book.hierarchy.root());
        for group in [&alice, &job, &bob, &root] {
            book.keep(group.try_charge(PAGE));
            for effort in [Effort::Count, Effort::Reclaim, Effort::Stop] {
                book.keep(group.try_charge_by(100, effort));
            }
            book.keep(group.charge_until(PAGE, soon()));
            book.keep(polled(group.charge(PAGE)));
            book.keep(group.charge_forced(70));
            book.keep(group.try_charge(0));
            grow(&mut book);
            within_scope(&mut book, group);
            group.wait_for_room(1 << 20, soon()).unwrap();
        }
        make_moves(&mut book, &[&bob, &job, &alice, &root, &bob]);
        let peaks: Vec<u64> = readers.iter().map(|reader| reader.read()).collect();
        assert!(
            peaks.iter().zip([&alice, &bob]).all(|(&peak, group)| peak >= group.usage_exact()),
            "{peaks:?}"
        );
        // The bytes of a charge that is taken apart, and of one that is made of the parts.
        if let Some(charge) = book.held.pop() {
            let (id, bytes) = charge.into_parts();
            book.check_bytes(bytes);
            let again = book.hierarchy.charge_from_parts(id, bytes).unwrap();
            book.held.push(again);
        }
        book.close()
    });
}

/// A future is tried again at its later polls, and is counted at the first one alone.
#[test]
fn sweep_charges_of_futures_that_wait() {
    xtask::sweep::sweep("futures that wait", |run| {
        let mut book = Book::open(hierarchy(), run);
        let reclaimer = book.hierarchy.reclaimer();
        let stop = reclaimer.stop_handle();
        let tenants = book.hierarchy.create("/tenants").unwrap();
        tenants.set_max(4 * PAGE).unwrap();
        let (tenant, other) = (tenants.create("tenant").unwrap(), tenants.create("other").unwrap());
        tenant.set_max(2 * PAGE).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| reclaimer.run());
            // Also where an assertion fails.
            let _stops = Stops(stop);
            for _ in 0..3 {
                let full = tenant.charge_forced(2 * PAGE).unwrap();
                let mut waiting: Vec<_> = (0..3).map(|_| tenant.charge(PAGE / 2)).collect();
                let mut made = Vec::new();
                let mut poll_all = |book: &mut Book, waiting: &mut Vec<Charging>| {
                    waiting.retain_mut(|future| {
                        let polled = Pin::new(future).poll(&mut Context::from_waker(Waker::noop()));
                        let outcome = polled.map(|outcome| book.note(outcome));
                        let is_pending = outcome.is_pending();
                        made.extend(if let Poll::Ready(charge) = outcome { charge } else { None });
                        is_pending
                    });
                };
                poll_all(&mut book, &mut waiting);
                // Now the group above refuses: they are tried again, and wait there.
                let beside = other.charge_forced(4 * PAGE).unwrap();
                drop(full);
                let at_tenants = |wait: &WaitReport| wait.at == "/tenants";
                while book.hierarchy.waits().iter().filter(|wait| at_tenants(wait)).count() < waiting.len() {
                    poll_all(&mut book, &mut waiting);
                    std::thread::yield_now();
                }
                drop(beside);
                while !waiting.is_empty() {
                    poll_all(&mut book, &mut waiting);
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(book.injection.drawn(), 9, "one for each future");
        book.close()
    });
}

struct Stops(ReclaimerStop);

impl Drop for Stops {
    fn drop(&mut self) {
        self.0.stop();
    }
}
