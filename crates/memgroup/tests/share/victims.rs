//! A child within its even share that finds neither room nor caches has a sibling above its share stopped.

use std::sync::{Arc, Mutex};

use memgroup::{Charge, Group, KillAnswer, KillRegistration, KillRequest};

use crate::cache::{MIB, exact};

/// Memory of a group that is given back when the group is told to stop.
struct Work {
    group: Group,
    memory: Arc<Mutex<Vec<Charge>>>,
    _hook: KillRegistration,
}

impl Work {
    fn new(parent: &Group, name: &str, bytes: u64) -> Work {
        let group = parent.create(name).unwrap();
        let memory = Arc::new(Mutex::new(vec![group.try_charge(bytes).unwrap()]));
        let its = Arc::clone(&memory);
        let hook = move |_: &KillRequest<'_>| {
            its.lock().unwrap().clear();
            KillAnswer::Dying
        };
        let hook = group.set_kill_hook(hook).unwrap();
        Work { group, memory, _hook: hook }
    }

    fn is_stopped(&self) -> bool {
        self.memory.lock().unwrap().is_empty()
    }
}

#[test]
fn a_hoarder_that_came_first_is_stopped_whatever_the_scores_say() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    let small: Vec<_> = (0..4).map(|number| Work::new(&parent, &format!("small{number}"), 4 * MIB)).collect();
    let hoarder = Work::new(&parent, "hoarder", 48 * MIB);
    // Without shares they would be stopped first.
    small.iter().for_each(|work| work.group.set_oom_score(1000).unwrap());
    parent.set_share(8).unwrap();
    let newcomer = parent.create("newcomer").unwrap();
    let charge = newcomer.try_charge(6 * MIB).unwrap();
    assert!(hoarder.is_stopped() && !small.iter().any(Work::is_stopped));
    assert_eq!(charge.bytes(), 6 * MIB);
}

#[test]
fn a_child_above_its_share_has_its_own_work_stopped() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let small = Work::new(&parent, "small", 4 * MIB);
    let runaway = Work::new(&parent, "runaway", 40 * MIB);
    let more = runaway.group.try_charge(20 * MIB).unwrap();
    assert!(runaway.is_stopped() && !small.is_stopped());
    drop(more);
}
