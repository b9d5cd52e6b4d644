//! When a cache is called, with what, and for how long.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use memgroup::{Scan, ShrinkerConfig};

use super::cache::{Cache, PAGE, add, parent, plenty};

#[test]
fn a_shrinker_is_registered_while_a_call_of_one_that_was_dropped_goes_on() {
    let (hierarchy, tenants) = parent(2, 10);
    let _held = tenants.try_charge(10 * PAGE).unwrap();
    let ((entered, is_in), (go, wait)) = (channel(), channel::<()>());
    let (entered, wait) = (Mutex::new(entered), Mutex::new(wait));
    let stuck = add(&tenants, "stuck", plenty, move |_| {
        entered.lock().unwrap().send(()).unwrap();
        let _ = wait.lock().unwrap().recv();
        Scan::Stopped { bytes: 0 }
    });
    let number = stuck.registration().id();
    let caller = {
        let tenants = tenants.clone();
        std::thread::spawn(move || tenants.reclaim(PAGE, None))
    };
    is_in.recv().unwrap();
    drop(stuck);
    let next = hierarchy.add_shrinker(ShrinkerConfig::new("next"), Cache::default()).unwrap();
    assert_ne!(next.id(), number, "the number is in use while the call goes on");
    drop(go);
    caller.join().unwrap();
    let after = hierarchy.add_shrinker(ShrinkerConfig::new("after"), Cache::default()).unwrap();
    assert_eq!(after.id(), number);
}

#[test]
fn a_callback_may_replace_its_own_shrinker() {
    let (_hierarchy, tenants) = parent(2, 10);
    let _held = tenants.try_charge(10 * PAGE).unwrap();
    let own = Arc::new(Mutex::new(None));
    let (mine, group) = (Arc::clone(&own), tenants.clone());
    let first = add(&tenants, "first", plenty, move |_| {
        let second = group.add_shrinker(ShrinkerConfig::new("second"), Cache::default()).unwrap();
        drop(mine.lock().unwrap().replace(second));
        Scan::Freed { bytes: 0 }
    });
    *own.lock().unwrap() = Some(first);
    assert!(tenants.try_charge(PAGE).is_err());
    assert_eq!(own.lock().unwrap().as_ref().unwrap().registration().name(), "second");
}
