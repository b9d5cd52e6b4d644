//! Hostile: settings that change under load, shrinkers that give too much, hang or panic, and many
//! threads that reclaim at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use memgroup::{Ask, BYTES_MAX, Charge, Count, Group, Scan, Shrinker, ShrinkerConfig};

use super::cache::{BATCH, MIB, PAGE, Tenant, exact, pin};

/// Gives back single bytes out of one charge.
struct Bytes(std::sync::Mutex<Charge>);

impl Shrinker for Bytes {
    fn count(&self, _token: u64) -> Count {
        self.0.try_lock().map_or(Count::Unknown, |charge| Count::of(charge.bytes(), charge.bytes()))
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let Ok(mut charge) = self.0.try_lock() else { return Scan::Stopped { bytes: 0 } };
        let bytes = ask.bytes().min(charge.bytes());
        charge.shrink(bytes);
        Scan::Freed { bytes }
    }
}

fn add_bytes(group: &Group, bytes: u64) -> memgroup::GroupShrinker {
    let held = Bytes(std::sync::Mutex::new(group.try_charge(bytes).unwrap()));
    let shrinker = group.add_shrinker(ShrinkerConfig::new("bytes"), held).unwrap();
    shrinker.mark();
    shrinker
}

#[test]
fn keeps_min_while_many_threads_reclaim() {
    const MIN: u64 = 3 * MIB + 12_345;
    for spread in [false, true] {
        let hierarchy = exact();
        let a = hierarchy.create("/a").unwrap();
        a.set_max(64 * MIB).unwrap();
        let group = a.create("group").unwrap();
        group.set_min(MIN).unwrap();
        let children: Vec<Group> = (0..8)
            .map(|number| if spread { group.create(&number.to_string()).unwrap() } else { group.clone() })
            .collect();
        let shrinkers: Vec<_> = children.iter().map(|child| add_bytes(child, MIB)).collect();
        let least = AtomicU64::new(u64::MAX);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    least.fetch_min(group.usage(), Ordering::Relaxed);
                }
            });
            let reclaimers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..64).map(|_| a.reclaim(MIB / 4, None).bytes).sum::<u64>()))
                .collect();
            let freed: u64 = reclaimers.into_iter().map(|thread| thread.join().unwrap()).sum();
            done.store(true, Ordering::Relaxed);
            watch.join().unwrap();
            assert_eq!(freed, 8 * MIB - group.usage());
        });
        assert_eq!((group.usage(), least.into_inner().min(MIN)), (MIN, MIN), "to the byte, spread: {spread}");
        drop(shrinkers);
    }
}

#[test]
fn does_not_ask_again_a_shrinker_that_gave_too_much() {
    struct Everything(std::sync::Mutex<Vec<Charge>>, Arc<AtomicU64>);

    impl Shrinker for Everything {
        fn count(&self, _token: u64) -> Count {
            Count::of(64 * MIB, 1)
        }

        fn scan(&self, _ask: &Ask<'_>) -> Scan {
            self.1.fetch_add(1, Ordering::Relaxed);
            let given = std::mem::take(&mut *self.0.lock().unwrap());
            Scan::Freed { bytes: given.len() as u64 * PAGE }
        }
    }

    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    a.set_max(8 * MIB).unwrap();
    let group = a.create("group").unwrap();
    group.set_min(4 * MIB).unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let (pages, refused) = pin(&group, 8 * MIB);
    assert!(refused.is_none());
    let shrinker = Everything(std::sync::Mutex::new(pages), Arc::clone(&asked));
    let shrinker = group.add_shrinker(ShrinkerConfig::new("everything"), shrinker).unwrap();
    shrinker.mark();
    let (_held, refused) = pin(&a, 7 * MIB);
    assert!(refused.is_none());
    assert_eq!((asked.load(Ordering::Relaxed), group.usage()), (1, 0));
    // Reclaim leaves a cache below its min alone, whatever it claims to hold.
    let (_more, refused) = pin(&a, 2 * MIB);
    assert!(refused.is_some());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn asks_a_few_times_for_the_last_byte_above_min() {
    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    let group = a.create("group").unwrap();
    group.set_min(MIB).unwrap();
    let _held = group.try_charge(MIB + 1).unwrap();
    let asked = Arc::new(AtomicU64::new(0));

    struct Lies(Arc<AtomicU64>);

    impl Shrinker for Lies {
        fn count(&self, _token: u64) -> Count {
            Count::of(64 * MIB, 1)
        }

        fn scan(&self, ask: &Ask<'_>) -> Scan {
            assert_eq!(ask.bytes(), 1);
            self.0.fetch_add(1, Ordering::Relaxed);
            Scan::Freed { bytes: 64 * MIB }
        }
    }

    let shrinker = group.add_shrinker(ShrinkerConfig::new("lies"), Lies(Arc::clone(&asked))).unwrap();
    shrinker.mark();
    assert_eq!(a.reclaim(1 << 40, None).bytes, 0);
    assert!((1..=26).contains(&asked.load(Ordering::Relaxed)), "{asked:?} times");
}

#[test]
fn does_not_ask_for_the_last_bytes_one_by_one() {
    struct Once(std::sync::Mutex<Charge>, Arc<AtomicU64>);

    impl Shrinker for Once {
        fn count(&self, _token: u64) -> Count {
            Count::of(64 * MIB, 1)
        }

        fn scan(&self, _ask: &Ask<'_>) -> Scan {
            if self.1.fetch_add(1, Ordering::Relaxed) == 0 {
                self.0.lock().unwrap().shrink(7 * MIB - 1);
            }
            Scan::Freed { bytes: 0 }
        }
    }

    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    let group = a.create("group").unwrap();
    group.set_min(MIB).unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let once = Once(std::sync::Mutex::new(group.try_charge(8 * MIB).unwrap()), Arc::clone(&asked));
    // At cost 0 half is asked for at once.
    let shrinker = group.add_shrinker(ShrinkerConfig::new("once").cost(0), once).unwrap();
    shrinker.mark();
    assert_eq!(a.reclaim(1 << 40, None).bytes, 7 * MIB - 1);
    assert!((2..=26).contains(&asked.load(Ordering::Relaxed)), "{asked:?} times");
}

#[test]
fn does_not_count_caches_of_a_protected_group() {
    struct Counted(Arc<AtomicU64>);

    impl Shrinker for Counted {
        fn count(&self, _token: u64) -> Count {
            self.0.fetch_add(1, Ordering::Relaxed);
            Count::of(MIB, 1)
        }

        fn scan(&self, _ask: &Ask<'_>) -> Scan {
            Scan::Freed { bytes: 0 }
        }
    }

    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    let group = a.create("group").unwrap();
    let below = group.create("below").unwrap();
    let _held = below.try_charge(MIB).unwrap();
    let counts = Arc::new(AtomicU64::new(0));
    let shrinker = below.add_shrinker(ShrinkerConfig::new("counted"), Counted(Arc::clone(&counts))).unwrap();
    shrinker.mark();
    group.set_min(MIB).unwrap();
    a.reclaim(MIB, None);
    assert_eq!(counts.load(Ordering::Relaxed), 0);
    group.set_min(MIB - 1).unwrap();
    a.reclaim(MIB, None);
    assert!(counts.load(Ordering::Relaxed) > 0);
}

#[test]
fn drops_the_claim_of_a_shrinker_that_panics() {
    struct Panics;

    impl Shrinker for Panics {
        fn count(&self, _token: u64) -> Count {
            Count::of(MIB, 1)
        }

        fn scan(&self, _ask: &Ask<'_>) -> Scan {
            panic!("as it is meant to")
        }
    }

    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    let tenant = Tenant::new(&a, "tenant");
    tenant.group.set_min(MIB).unwrap();
    tenant.fill(MIB + 2 * PAGE);
    let panics = tenant.group.add_shrinker(ShrinkerConfig::new("panics"), Panics).unwrap();
    panics.mark();
    let freed: u64 = (0..4).map(|_| a.reclaim(MIB, None).bytes).sum();
    assert_eq!((freed, tenant.usage()), (2 * PAGE, MIB));
}

#[test]
fn asks_another_cache_for_the_rest_while_one_hangs() {
    struct Hangs(std::sync::Mutex<mpsc::Receiver<()>>, std::sync::Mutex<mpsc::Sender<()>>);

    impl Shrinker for Hangs {
        fn count(&self, _token: u64) -> Count {
            Count::of(64 * MIB, 1)
        }

        fn scan(&self, _ask: &Ask<'_>) -> Scan {
            self.1.lock().unwrap().send(()).unwrap();
            let _ = self.0.lock().unwrap().recv();
            Scan::Freed { bytes: 0 }
        }
    }

    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    let tenant = Tenant::new(&a, "tenant");
    tenant.group.set_min(MIB).unwrap();
    tenant.fill(3 * MIB);
    let ((let_go, held), (entered, is_in)) = (mpsc::channel(), mpsc::channel());
    let hangs = Hangs(std::sync::Mutex::new(held), std::sync::Mutex::new(entered));
    let hangs = tenant.group.add_shrinker(ShrinkerConfig::new("hangs"), hangs).unwrap();
    hangs.mark();
    thread::scope(|scope| {
        let hung = scope.spawn(|| a.reclaim(16 * MIB, None));
        is_in.recv_timeout(Duration::from_secs(60)).expect("it is called within a minute");
        let freed: u64 = (0..4).map(|_| a.reclaim(16 * MIB, None).bytes).sum();
        assert!(freed > 0, "the rest is not lost");
        assert_eq!(tenant.usage(), MIB + BATCH, "the bytes that the other was asked for are left to it");
        drop(let_go);
        hung.join().unwrap();
        a.reclaim(16 * MIB, None);
    });
    assert_eq!(tenant.usage(), MIB, "the claim of the one that hung is free again");
}

#[test]
fn loses_nothing_when_settings_change_under_load() {
    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    a.set_max(8 * MIB).unwrap();
    let tenants: Vec<Tenant> = (0..4).map(|number| Tenant::new(&a, &number.to_string())).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (tenants, done, a) = (&tenants, &done, &a);
        let setter = scope.spawn(move || {
            let mut random = super::super::random::Random(42);
            while !done.load(Ordering::Relaxed) {
                let tenant = &tenants[random.below(4) as usize];
                let bytes = [0, MIB, 3 * MIB, BYTES_MAX][random.below(4) as usize];
                let _ = if random.below(2) == 0 {
                    tenant.group.set_min(bytes)
                } else {
                    tenant.group.set_low(bytes)
                };
            }
        });
        let users: Vec<_> = tenants
            .iter()
            .map(|tenant| scope.spawn(move || (0..2000).filter(|_| tenant.try_fill(PAGE).is_ok()).count()))
            .collect();
        let filled: usize = users.into_iter().map(|user| user.join().unwrap()).sum();
        done.store(true, Ordering::Relaxed);
        setter.join().unwrap();
        assert!(filled > 0 && a.usage() <= 8 * MIB);
    });
    for tenant in &tenants {
        tenant.group.set_min(0).unwrap();
        tenant.group.set_low(0).unwrap();
    }
    assert_eq!(a.usage(), tenants.iter().map(Tenant::usage).sum::<u64>());
    a.reclaim(8 * MIB, None);
    assert_eq!((a.usage(), a.headroom()), (0, 8 * MIB));
}
