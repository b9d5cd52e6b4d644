//! Entries: the places of the tree, in chunks that go when no place of them has a group or memory.

use crate::base::id::{NodeId, TOP};
use crate::state::config::CHUNK;
use crate::tree::name::Name;

/// The state of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    Online,
    Closing,
    Dying,
}

/// The bounds on the groups below one group (`topology::bounds`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The most groups below it, on all levels.
    pub(crate) descendants: u32,
    /// The most levels below it.
    pub(crate) depth: u32,
}

impl Bounds {
    /// The number of a bound that is not set.
    pub(crate) const UNSET: u32 = u32::MAX;

    pub(crate) const NONE: Bounds = Bounds { descendants: Bounds::UNSET, depth: Bounds::UNSET };
}

/// One place of the tree: a group, or none.
pub(super) struct Entry {
    pub(super) phase: Phase,
    pub(super) depth: u16,
    /// Owners of the group; 0 where no owner removes it.
    pub(super) owners: u32,
    /// When it was created; if it is dying, when it was removed. In nanoseconds of the tree's
    /// clock.
    pub(super) since: u64,
    pub(super) name: Name,
    pub(super) parent: NodeId,
    pub(super) first_child: NodeId,
    pub(super) next_sibling: NodeId,
    pub(super) previous_sibling: NodeId,
    /// The group below it that was removed first of those that are dying; `TOP`: none is
    /// (`topology::dying`).
    pub(super) first_dying: NodeId,
    /// The highest of its online children, and what hangs before and after itself among its
    /// siblings (`topology::named`). If it is dying, the last two are the dying groups of its
    /// parent that come before and after it (`topology::dying`).
    pub(super) links: [NodeId; 3],
    /// How many of those children there are.
    pub(super) named: u32,
    /// Groups below it, on all levels, that are not released: online and dying ones.
    pub(super) below: u32,
    /// Groups right below it that are large (`topology::bounds`).
    pub(super) large_children: u32,
    pub(super) bounds: Bounds,
    /// The next in the same list of releases that are left to a thread with a turn to flush; the
    /// last links to itself. `TOP`: in none.
    pub(super) next_unsettled: NodeId,
}

const _: () = assert!(size_of::<Entry>() <= 96);

impl Entry {
    pub(super) fn free() -> Entry {
        Entry {
            phase: Phase::Free,
            depth: 0,
            owners: 0,
            since: 0,
            name: Name::EMPTY,
            parent: TOP,
            first_child: TOP,
            next_sibling: TOP,
            previous_sibling: TOP,
            first_dying: TOP,
            links: [TOP; 3],
            named: 0,
            below: 0,
            large_children: 0,
            bounds: Bounds::NONE,
            next_unsettled: TOP,
        }
    }
}

/// The places of a tree, by their ids.
#[derive(Default)]
pub(super) struct Entries(Vec<Option<Box<[Entry; CHUNK as usize]>>>);

impl Entries {
    /// Makes the places of the chunk in which `id` is, if there are none.
    pub(super) fn make(&mut self, id: NodeId) {
        let chunk = (id.0 / CHUNK) as usize;
        if self.0.len() <= chunk {
            self.0.resize_with(chunk + 1, || None);
        }
        self.0[chunk].get_or_insert_with(|| Box::new(std::array::from_fn(|_| Entry::free())));
    }

    pub(super) fn find(&self, id: NodeId) -> Option<&Entry> {
        Some(&self.0.get((id.0 / CHUNK) as usize)?.as_ref()?[(id.0 % CHUNK) as usize])
    }

    pub(super) fn find_mut(&mut self, id: NodeId) -> Option<&mut Entry> {
        Some(&mut self.0.get_mut((id.0 / CHUNK) as usize)?.as_mut()?[(id.0 % CHUNK) as usize])
    }

    /// Frees a chunk of free places.
    pub(super) fn free(&mut self, chunk: u32) {
        self.0[chunk as usize] = None;
    }
}
