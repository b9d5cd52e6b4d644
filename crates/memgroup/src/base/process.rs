//! Process: tells hierarchies of this process from those that it inherited by a `fork`.
//!
//! The child of a fork has copies of all hierarchies, and of the locks that threads of the parent
//! held at that moment. Nobody there releases them. So an allocator leaves inherited groups alone.

use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn forks() -> u32 {
    // ORDERING: Relaxed; it changes while the process has one thread.
    FORKS.load(Ordering::Relaxed)
}

/// Tells the engine that this process is the child of a `fork`: all groups that there are now are
/// inherited, and [`Owner::is_inherited`](crate::block::Owner::is_inherited) says so. An allocator
/// calls this in the child (`pthread_atfork`), before there is a second thread.
pub fn begin_child() {
    // ORDERING: Relaxed, as above.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::tree::owner::Owner;
    use crate::{Config, Hierarchy};

    #[test]
    fn groups_of_before_a_fork_are_inherited_and_later_ones_are_not() {
        let is_inherited = |hierarchy: &Hierarchy| Owner::of(hierarchy.root().node()).is_inherited();
        // A configuration of its own, because other tests run beside this one.
        let config = || Config::new().groups_max(77);
        let before = Hierarchy::new(config()).unwrap();
        assert!(!is_inherited(&before));
        super::begin_child();
        assert!(is_inherited(&before));
        let after = Hierarchy::new(config()).unwrap();
        assert!(!is_inherited(&after));
        drop(before);
        assert!(!is_inherited(&Hierarchy::new(config()).unwrap()), "the dropped one is used again");
    }
}
