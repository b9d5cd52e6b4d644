//! A wait until every callback that runs has returned.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{CallsError, Scan};

use super::cache::{PAGE, add, parent, plenty};

#[test]
fn waits_until_the_last_call_has_returned() {
    let (hierarchy, tenants) = parent(8, 1 << 20);
    let _held = tenants.try_charge(1 << 30).unwrap();
    let (entered, inside) = channel();
    let (done, calls) = (Arc::new(AtomicU64::new(0)), 3);
    let releases: Vec<_> = (0..calls)
        .map(|number| {
            let (release, released) = channel::<()>();
            let (entered, released, done) = (entered.clone(), Mutex::new(released), Arc::clone(&done));
            let shrinker = add(&tenants, &format!("s{number}"), plenty, move |_| {
                let _ = entered.send(());
                let _ = released.lock().unwrap().recv();
                done.fetch_add(1, Ordering::Relaxed);
                Scan::Stopped { bytes: 0 }
            });
            (release, shrinker)
        })
        .collect();
    std::thread::scope(|scope| {
        for (_, shrinker) in &releases {
            let id = shrinker.registration().id();
            scope.spawn({
                let tenants = tenants.clone();
                move || tenants.ask_shrinker(id, PAGE).unwrap()
            });
        }
        (0..calls).for_each(|_| inside.recv().unwrap());
        let error = hierarchy.wait_for_shrinkers(Some(Instant::now())).unwrap_err();
        assert!(
            matches!(&error, CallsError::Blocked { name: Some(name), .. } if name.starts_with('s')),
            "{error:?}"
        );
        assert!(error.to_string().contains("calls of shrinker \"s"), "{error}");
        let wait = scope.spawn(|| {
            hierarchy.wait_for_shrinkers(None).unwrap();
            done.load(Ordering::Relaxed)
        });
        let (shrinkers, releases): (Vec<_>, Vec<_>) =
            releases.into_iter().map(|(release, shrinker)| (shrinker, release)).unzip();
        for release in releases {
            std::thread::sleep(Duration::from_millis(5));
            drop(release);
        }
        assert_eq!(wait.join().unwrap(), calls, "the effects of the calls are seen");
        drop(shrinkers);
    });
    hierarchy.wait_for_shrinkers(Some(Instant::now())).expect("no thread is in a call");
}

#[test]
fn does_not_wait_for_later_calls() {
    let (hierarchy, tenants) = parent(8, 1 << 20);
    let _held = tenants.try_charge(1 << 30).unwrap();
    let shrinker = add(&tenants, "busy", plenty, |_| {
        std::thread::sleep(Duration::from_millis(2));
        Scan::Stopped { bytes: 0 }
    });
    let (id, is_over) = (shrinker.registration().id(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                tenants.ask_shrinker(id, PAGE).unwrap();
            }
        });
        for _ in 0..20 {
            hierarchy.wait_for_shrinkers(None).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    shrinker.remove().unwrap();
}

#[test]
fn refuses_to_wait_within_a_call_and_ignores_other_trees() {
    let (hierarchy, tenants) = parent(8, 1 << 20);
    let _held = tenants.try_charge(1 << 30).unwrap();
    let (other, _) = parent(8, 10);
    let (hierarchy, told) = (Arc::new(hierarchy), Arc::new(Mutex::new(Vec::new())));
    let (asked, heard) = (Arc::clone(&hierarchy), Arc::clone(&told));
    let shrinker = add(&tenants, "asks", plenty, move |_| {
        heard.lock().unwrap().push(asked.wait_for_shrinkers(None));
        // Another thread is in no call of the other hierarchy, whatever goes on here.
        heard.lock().unwrap().push(std::thread::scope(|scope| {
            scope.spawn(|| other.wait_for_shrinkers(Some(Instant::now()))).join().unwrap()
        }));
        Scan::Stopped { bytes: 0 }
    });
    tenants.ask_shrinker(shrinker.registration().id(), PAGE).unwrap();
    assert_eq!(*told.lock().unwrap(), [Err(CallsError::FromWithin { name: None }), Ok(())]);
    shrinker.remove().unwrap();
}
