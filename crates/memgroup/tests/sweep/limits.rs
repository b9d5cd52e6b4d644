//! Charges at a limit: shrinkers that charge in their calls, hooks, queues of waiting charges,
//! shares and reservations.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{
    Ask, Charge, ChargeError, Count, Group, KillAnswer, KillRequest, Scan, Shrinker, ShrinkerConfig,
};

use crate::{Book, PAGE, hierarchy};

fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A cache that charges its group for an index while it gives pages back. If that charge is
/// refused, it gives back without an index.
#[derive(Default)]
struct Cache {
    pages: Mutex<Vec<Charge>>,
    refused: Mutex<u64>,
}

impl Shrinker for Cache {
    fn count(&self, _token: u64) -> Count {
        let pages = self.pages.lock().unwrap().len() as u64;
        Count::of(pages * PAGE, pages)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let index = ask.group().try_charge(16);
        *self.refused.lock().unwrap() += index
            .as_ref()
            .err()
            .map_or(0, |error| u64::from(error.kind() == memgroup::ChargeErrorKind::Injected));
        let mut pages = self.pages.lock().unwrap();
        let count = (ask.bytes().div_ceil(PAGE) as usize).min(pages.len());
        let given: Vec<Charge> = pages.drain(..count).collect();
        Scan::Freed { bytes: given.len() as u64 * PAGE }
    }
}

#[test]
fn sweep_charges_that_reclaim() {
    xtask::sweep::sweep("charges that reclaim", |run| {
        let mut book = Book::open(hierarchy(), run);
        let tenants = book.hierarchy.create("/tenants").unwrap();
        tenants.set_max(16 * PAGE).unwrap();
        tenants.set_high(14 * PAGE).unwrap();
        let (busy, idle) = (tenants.create("busy").unwrap(), tenants.create("idle").unwrap());
        let cache = Arc::new(Cache::default());
        let shrinker = idle.add_shrinker(ShrinkerConfig::new("pages"), Arc::clone(&cache)).unwrap();
        for _ in 0..3 {
            for _ in 0..8 {
                let outcome = idle.try_charge(PAGE);
                // Told by the cache: the same charge may have had it called.
                book.refused += std::mem::take(&mut *cache.refused.lock().unwrap());
                if let Some(page) = book.note(outcome) {
                    cache.pages.lock().unwrap().push(page);
                }
                shrinker.mark();
            }
            let outcome = busy.try_charge(12 * PAGE);
            book.refused += std::mem::take(&mut *cache.refused.lock().unwrap());
            drop(book.note(outcome));
            _ = idle.reclaim(2 * PAGE, far());
            book.refused += std::mem::take(&mut *cache.refused.lock().unwrap());
            book.check_refusals();
            let cached = cache.pages.lock().unwrap().len() as u64;
            assert_eq!(tenants.usage_exact(), cached * PAGE);
        }
        cache.pages.lock().unwrap().clear();
        shrinker.remove().unwrap();
        book.close()
    });
}

/// What a victim holds, and the hook that frees it.
fn victim(group: &Group) -> (Arc<Mutex<Vec<Charge>>>, memgroup::KillRegistration) {
    let held = Arc::new(Mutex::new(Vec::<Charge>::new()));
    let freed = Arc::clone(&held);
    let hook = group
        .set_kill_hook(move |_: &KillRequest<'_>| {
            freed.lock().unwrap().clear();
            KillAnswer::Dying
        })
        .unwrap();
    (held, hook)
}

#[test]
fn sweep_charges_that_stop_a_victim() {
    xtask::sweep::sweep("charges that stop a victim", |run| {
        let mut book = Book::open(hierarchy(), run);
        let tenants = book.hierarchy.create("/tenants").unwrap();
        tenants.set_max(16 * PAGE).unwrap();
        let (small, large) = (tenants.create("small").unwrap(), tenants.create("large").unwrap());
        let (held, hook) = victim(&large);
        for _ in 0..3 {
            for _ in 0..12 {
                let outcome = large.try_charge(PAGE);
                let page = book.note(outcome);
                held.lock().unwrap().extend(page);
            }
            let outcome = small.try_charge(8 * PAGE);
            drop(book.note(outcome));
            let outcome = small.charge_until(2 * PAGE, far());
            drop(book.note(outcome));
        }
        held.lock().unwrap().clear();
        hook.remove().unwrap();
        book.close()
    });
}

/// Threads wait for room while the main thread frees it. The order of the threads varies, the
/// oracle does not.
#[test]
fn sweep_charges_that_wait() {
    xtask::sweep::sweep("charges that wait", |run| {
        let mut book = Book::open(hierarchy(), run);
        let tenants = book.hierarchy.create("/tenants").unwrap();
        tenants.set_max(4 * PAGE).unwrap();
        tenants.set_share(Some(8)).unwrap();
        let groups = ["a", "b", "c"].map(|name| tenants.create(name).unwrap());
        groups[0].set_min(PAGE).unwrap();
        for _ in 0..2 {
            let full = book.hierarchy.create("/tenants/full").unwrap();
            let held = full.charge_forced(4 * PAGE).unwrap();
            let outcomes = std::thread::scope(|threads| {
                let waiters = groups.each_ref().map(|group| {
                    threads.spawn(move || {
                        let mut charge = group.charge_until(PAGE, far())?;
                        charge.grow_until(100, far())?;
                        drop(charge);
                        Ok::<(), ChargeError>(())
                    })
                });
                // A charge that is refused at once does not wait.
                while waiters.iter().filter(|waiter| !waiter.is_finished()).count() > tenants.waiters().now {
                    std::thread::yield_now();
                }
                drop(held);
                waiters.map(|waiter| waiter.join().unwrap())
            });
            book.refused += outcomes.iter().filter(|outcome| outcome.is_err()).count() as u64;
            for error in outcomes.into_iter().filter_map(Result::err) {
                assert_eq!(error.kind(), memgroup::ChargeErrorKind::Injected, "{error}");
            }
            book.check_refusals();
            full.remove().unwrap();
        }
        book.close()
    });
}
