//! Process: distinguishes the hierarchies of this process from those that it inherited by a
//! `fork`.
//!
//! The child of a fork has copies of all hierarchies, and of the locks that threads of the parent
//! held at that moment. In the child nobody releases them, so an allocator must leave inherited
//! groups alone.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn forks() -> u32 {
    // ORDERING: Relaxed, here and in `begin_child`, because the number changes only while the
    // process has a single thread.
    FORKS.load(Ordering::Relaxed)
}

/// Informs the engine that this process is the child of a `fork`. All groups that exist now are
/// inherited, and [`Owner::is_inherited`](crate::block::Owner::is_inherited) returns `true` for
/// them. An allocator must call this in the child (`pthread_atfork`), before there is a second
/// thread.
pub fn begin_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::tree::owner::Owner;
    use crate::{Config, Hierarchy};

    #[test]
    fn groups_of_before_a_fork_are_inherited_and_later_ones_are_not() {
        let is_inherited = |hierarchy: &Hierarchy| Owner::of(hierarchy.root().node()).is_inherited();
        // The configuration differs from those of tests that run at the same time, so this test
        // does not get their hierarchies.
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
