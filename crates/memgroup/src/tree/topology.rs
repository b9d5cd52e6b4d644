//! Tree: the groups, their parents and names, and the reuse of their places.
//!
//! Everything here is under the hierarchy's tree lock. Paths are walked and lists are made here. A
//! charge never comes here, and an uncharge only with the last byte of a removed group.
//!
//! ```text
//!   Free ── create ──▶ Online ─────────── remove ──────────▶ Dying ── release ──▶ Free
//!                        └── close ──▶ Closing ── remove ─────┘       (usage 0, no handle)
//! ```
//!
//! A group is closing while the groups below it are removed, until it is removed itself
//! (`closing`). It has no name and gets no children.
//!
//! - I1. A group pins its parent from creation to release, so no chain ever leads through a free
//!   node.
//! - I2. A dying group is in no child list; it is in a list of its own (`dying`). A closing group
//!   is in the list of siblings, but not among the names. So the name may be used again at once.
//! - I3. Walking a subtree allocates nothing: it may happen inside an allocator.

use std::time::{Duration, Instant};

use memgroup_sync::atomic::Ordering;

use crate::base::error::GroupError;
use crate::base::id::{NodeId, TOP};
use crate::state::config::CHUNK;
use crate::state::stats::update_tree::UpdateTree;
use crate::tree::entries::{Entries, Entry, Phase};
use crate::tree::name::{self, Name};

mod bounds;
mod closing;
mod dying;
mod named;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

/// The root's place.
pub(crate) const ROOT: NodeId = NodeId(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Online,
    Closing,
    Dying { since: Instant },
}

/// A group as it was when maintenance looked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    /// Changes whenever the group is charged, uncharged or counted for.
    pub(crate) activity: u64,
    /// Since when it has been so.
    pub(crate) since: Instant,
}

/// The tree of one hierarchy.
pub(crate) struct Tree {
    entries: Entries,
    /// The seed of the ranks (`named`).
    seed: u64,
    /// The zero of the tree's clock.
    began: Instant,
    /// The number of places that were ever made.
    places: u32,
    free: Vec<NodeId>,
    /// The notes of maintenance about each place; empty if it makes none.
    noted: Vec<Option<Noted>>,
    /// The number of places at the bottom of `free` that have given their records up.
    bare: usize,
    /// The number of those places in each chunk of places.
    bare_in: Vec<u32>,
    in_use: u32,
    dying: u32,
    /// Dying groups that were removed with records, and some that have been released since.
    departed: Vec<NodeId>,
    groups_max: u32,
    depth_max: u32,
    /// Whether no handle is left anywhere, so that the hierarchy waits only for its last bytes.
    pub(crate) retired: bool,
}

impl Tree {
    /// Bytes of a place, whether it is free or not.
    pub(crate) const PLACE_BYTES: u64 = size_of::<Entry>() as u64;

    /// Creates a tree without a group; the caller must then call `begin_root`.
    pub(crate) fn new(groups_max: u32, depth_max: u32) -> Tree {
        let mut tree = Tree {
            entries: Entries::default(),
            seed: named::seed(),
            began: Instant::now(),
            places: 1,
            free: Vec::new(),
            noted: Vec::new(),
            bare: 0,
            bare_in: vec![0],
            in_use: 0,
            dying: 0,
            departed: Vec::new(),
            groups_max,
            depth_max,
            retired: false,
        };
        tree.entries.make(ROOT);
        tree
    }

    /// Puts the root online for the next user of the hierarchy. The root's place must already have
    /// a node.
    pub(crate) fn begin_root(&mut self) {
        debug_assert!(self.in_use == 0 && self.state(ROOT) == State::Free);
        (self.in_use, self.retired) = (1, false);
        self.replace(ROOT, Entry { phase: Phase::Online, since: self.nanos(), ..Entry::free() });
    }

    fn nanos(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn entry(&self, id: NodeId) -> &Entry {
        self.entries.find(id).expect("a place that is in use has an entry")
    }

    fn entry_mut(&mut self, id: NodeId) -> &mut Entry {
        self.entries.find_mut(id).expect("a place that is in use has an entry")
    }

    /// Returns the state of a place. Places that were forgotten are free.
    pub(crate) fn state(&self, id: NodeId) -> State {
        self.entries.find(id).map_or(State::Free, |entry| match entry.phase {
            Phase::Free => State::Free,
            Phase::Online => State::Online,
            Phase::Closing => State::Closing,
            Phase::Dying => State::Dying { since: self.began + Duration::from_nanos(entry.since) },
        })
    }

    pub(crate) fn depth(&self, id: NodeId) -> u32 {
        self.entry(id).depth.into()
    }

    pub(crate) fn name(&self, id: NodeId) -> &str {
        self.entry(id).name.as_str()
    }

    pub(crate) fn parent(&self, id: NodeId) -> Option<NodeId> {
        Some(self.entry(id).parent).filter(|&parent| parent != TOP)
    }

    pub(crate) fn online(&self) -> u32 {
        self.in_use - self.dying
    }

    /// Returns the number of groups in use, online and dying.
    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Returns the path of a group, which may be dying.
    pub(crate) fn path(&self, id: NodeId) -> String {
        if id == ROOT {
            return "/".to_owned();
        }
        let mut names = Vec::new();
        let mut at = id;
        while let Some(parent) = self.parent(at) {
            names.push(self.name(at));
            at = parent;
        }
        names.iter().rev().fold(String::new(), |path, name| path + "/" + name)
    }

    /// Writes the path of a group to the end of `buffer`, and returns where it begins there. If
    /// the path is too long, it writes an ellipsis and the end of the path. It allocates
    /// nothing.
    pub(crate) fn write_path(&self, id: NodeId, buffer: &mut [u8]) -> usize {
        const ELLIPSIS: &str = "…";
        let (mut begin, mut at) = (buffer.len(), id);
        let prepend = |buffer: &mut [u8], begin: usize, text: &str| {
            buffer[begin - text.len()..begin].copy_from_slice(text.as_bytes());
            begin - text.len()
        };
        while let Some(parent) = self.parent(at) {
            let name = self.name(at);
            let spare = if parent == ROOT { 0 } else { ELLIPSIS.len() };
            if name.len() + 1 + spare > begin {
                if at == id {
                    // Of the group's own name the end.
                    let least = name.len().saturating_sub(begin - ELLIPSIS.len());
                    let from = (least..name.len()).find(|&from| name.is_char_boundary(from));
                    begin = prepend(buffer, begin, &name[from.unwrap_or(name.len())..]);
                }
                return prepend(buffer, begin, ELLIPSIS);
            }
            begin = prepend(buffer, begin, name);
            begin = prepend(buffer, begin, "/");
            at = parent;
        }
        if id == ROOT { prepend(buffer, begin, "/") } else { begin }
    }

    fn path_below(&self, parent: NodeId, name: &str) -> String {
        let above = self.path(parent);
        if parent == ROOT { format!("/{name}") } else { format!("{above}/{name}") }
    }

    pub(crate) fn lookup(&self, path: &str) -> Result<NodeId, GroupError> {
        let mut at = ROOT;
        for component in name::components(path)? {
            at = self.child(at, component).ok_or_else(|| GroupError::NotFound {
                path: path.to_owned(),
                missing: self.path_below(at, component),
            })?;
        }
        Ok(at)
    }

    /// Makes a place for a child of `parent`. The caller must make the node ready.
    pub(crate) fn create(&mut self, parent: NodeId, name: &str) -> Result<NodeId, GroupError> {
        name::check(name)?;
        if self.state(parent) != State::Online {
            return Err(GroupError::Offline { path: self.path(parent) });
        }
        if self.child(parent, name).is_some() {
            return Err(GroupError::Exists { path: self.path_below(parent, name) });
        }
        let depth = self.depth(parent) + 1;
        if depth > self.depth_max {
            return Err(GroupError::TooDeep {
                path: self.path_below(parent, name),
                depth_max: self.depth_max,
            });
        }
        self.check_bounds(parent, name)?;
        if !self.has_place(parent) {
            return Err(GroupError::TooMany { groups_max: self.groups_max });
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.places += 1;
            self.bare_in.resize(self.places.div_ceil(CHUNK) as usize, 0);
            // For all places: the last uncharge of a removed group allocates nothing.
            self.free.reserve(self.places as usize);
            NodeId(self.places - 1)
        });
        self.entries.make(id);
        if self.bare > self.free.len() {
            self.bare -= 1;
            self.bare_in[(id.0 / CHUNK) as usize] -= 1;
        }
        self.in_use += 1;
        let (phase, since) = (Phase::Online, self.nanos());
        let entry =
            Entry { phase, since, name: Name::new(name), depth: depth as u16, parent, ..Entry::free() };
        self.replace(id, entry);
        self.link(id);
        self.count_above(id, |below| below + 1);
        Ok(id)
    }

    fn link(&mut self, id: NodeId) {
        let parent = self.entry(id).parent;
        self.name_child(parent, id);
        let next = std::mem::replace(&mut self.entry_mut(parent).first_child, id);
        self.entry_mut(id).next_sibling = next;
        if next != TOP {
            self.entry_mut(next).previous_sibling = id;
        }
    }

    /// Returns an error if `id` may not be removed now.
    pub(crate) fn check_removal(&self, id: NodeId) -> Result<(), GroupError> {
        let entry = self.entry(id);
        if id == ROOT {
            Err(GroupError::IsRoot)
        } else if entry.phase != Phase::Online {
            Err(GroupError::Offline { path: self.path(id) })
        } else if entry.first_child != TOP {
            // A child that is closing is not counted.
            Err(GroupError::HasChildren { path: self.path(id), children: self.child_count(id).max(1) })
        } else {
            Ok(())
        }
    }

    /// Online or Closing → Dying: takes a group out of its parent's list. Returns the group's age.
    pub(crate) fn retire(&mut self, id: NodeId, has_records: bool) -> Duration {
        if has_records {
            // Before it is dying, because this drops the entries of places that are not dying.
            self.depart(id);
        }
        self.unname(id);
        let now = self.nanos();
        let (age, parent, previous, next) = {
            let entry = self.entry_mut(id);
            entry.phase = Phase::Dying;
            (
                Duration::from_nanos(now.saturating_sub(std::mem::replace(&mut entry.since, now))),
                entry.parent,
                std::mem::replace(&mut entry.previous_sibling, TOP),
                // It stays, for a walk that has reached this group (`after`).
                entry.next_sibling,
            )
        };
        self.dying += 1;
        if parent == TOP {
            return age;
        }
        self.link_dying(id);
        if previous == TOP {
            self.entry_mut(parent).first_child = next;
        } else {
            self.entry_mut(previous).next_sibling = next;
        }
        if next != TOP {
            self.entry_mut(next).previous_sibling = previous;
        }
        age
    }

    fn depart(&mut self, id: NodeId) {
        // Most groups are released as soon as the handle by which they were removed is dropped.
        if self.departed.len() > 64 + 2 * self.dying as usize {
            let mut departed = std::mem::take(&mut self.departed);
            departed.retain(|&id| self.is_dying(id));
            self.departed = departed;
        }
        self.departed.push(id);
    }

    /// Returns whether the group of this place was removed and is not released yet.
    pub(crate) fn is_dying(&self, id: NodeId) -> bool {
        self.entries.find(id).is_some_and(|entry| entry.phase == Phase::Dying)
    }

    /// Returns a dying group that may still have its record, which the caller must take away.
    pub(crate) fn take_departed(&mut self) -> Option<NodeId> {
        while let Some(id) = self.departed.pop() {
            if self.is_dying(id) {
                return Some(id);
            }
        }
        None
    }

    /// Puts a group back that `take_departed` returned, and that still has a record.
    pub(crate) fn depart_again(&mut self, id: NodeId) {
        if self.is_dying(id) {
            self.departed.push(id);
        }
    }

    /// Returns an upper bound on the number of dying groups that still have records.
    pub(crate) fn departed(&self) -> usize {
        self.departed.len().min(self.dying as usize)
    }

    /// Dying → Free: the place may be given to another group. Returns the parent, whose pin the
    /// caller must give back.
    pub(crate) fn release(&mut self, id: NodeId) -> Option<NodeId> {
        debug_assert!(self.is_dying(id));
        debug_assert!(self.entry(id).below == 0, "groups below it keep it (I1)");
        let parent = self.parent(id);
        self.count_above(id, |below| below - 1);
        debug_assert!(self.entry(id).first_dying == TOP, "a group is released after those below it");
        self.unlink_dying(id);
        self.replace(id, Entry::free());
        self.in_use -= 1;
        self.dying -= 1;
        if id != ROOT {
            self.free.push(id);
        }
        parent
    }

    /// Returns whether the release of a dying group is left to a thread that has a turn to flush.
    pub(crate) fn is_unsettled(&self, id: NodeId) -> bool {
        self.entry(id).next_unsettled != TOP
    }

    /// Leaves the release of a dying group to the thread that has the turn to flush `updates`. It
    /// must not be left to a thread already.
    pub(crate) fn leave_unsettled(&mut self, id: NodeId, updates: &UpdateTree) {
        // ORDERING: Relaxed; written under the tree lock only.
        let first = NodeId(updates.unsettled.load(Ordering::Relaxed));
        self.entry_mut(id).next_unsettled = if first == TOP { id } else { first };
        // ORDERING: AcqRel pairs with itself. Acquire: if the thread with the turn has looked
        // already, the next try for the turn sees that it let go. Release: a thread that sees the
        // group there sees all that this one did before (`stats::release` E1).
        updates.unsettled.swap(id.0, Ordering::AcqRel);
    }

    /// Takes the group that was left last to the thread with this turn, so that it is left to
    /// none.
    pub(crate) fn take_unsettled(&mut self, updates: &UpdateTree) -> Option<NodeId> {
        // ORDERING: Relaxed, because it is written under the tree lock only.
        let id = NodeId(updates.unsettled.load(Ordering::Relaxed));
        let next = std::mem::replace(&mut self.entries.find_mut(id)?.next_unsettled, TOP);
        let first = if next == id { TOP } else { next };
        // ORDERING: Relaxed, because a release that is left to a thread afterwards is another RMW.
        updates.unsettled.store(first.0, Ordering::Relaxed);
        Some(id)
    }

    /// Returns the number of free places that may have kept their records.
    pub(crate) fn kept(&self) -> usize {
        self.free.len() - self.bare
    }

    /// Returns the number of groups in use and of free places that may have kept their records.
    pub(crate) fn with_records(&self) -> usize {
        self.in_use as usize + self.kept()
    }

    /// Returns the free place that has waited longest of those that may have kept a record, which
    /// the caller must take away.
    pub(crate) fn strip(&mut self) -> Option<NodeId> {
        let id = self.free.get(self.bare).copied()?;
        self.bare += 1;
        self.bare_in[(id.0 / CHUNK) as usize] += 1;
        Some(id)
    }

    /// Returns the chunk in which `id` is, if all its places are free and have given up their
    /// records.
    pub(crate) fn bare_chunk(&self, id: NodeId) -> Option<u32> {
        let chunk = id.0 / CHUNK;
        let places = CHUNK.min(self.places() - chunk * CHUNK);
        (self.bare_in[chunk as usize] == places).then_some(chunk)
    }

    /// Gives the places of a bare chunk back.
    pub(crate) fn free_entries(&mut self, chunk: u32) {
        self.entries.free(chunk);
    }

    #[cfg(all(test, not(memgroup_loom)))]
    pub(crate) fn has_entry(&self, id: NodeId) -> bool {
        self.entries.find(id).is_some()
    }

    /// Returns the note that maintenance made about a group when it last looked.
    pub(crate) fn noted(&mut self, id: NodeId) -> &mut Option<Noted> {
        if self.noted.len() < self.places as usize {
            self.noted.resize(self.places as usize, None);
        }
        &mut self.noted[id.0 as usize]
    }

    /// Forgets all places but the root's, for the next user of the hierarchy. No group and no node
    /// may be left.
    pub(crate) fn forget_places(&mut self) {
        debug_assert!(self.in_use == 0);
        (self.entries, self.places) = (Entries::default(), 1);
        self.entries.make(ROOT);
        (self.free, self.departed) = (Vec::new(), Vec::new());
        self.noted = Vec::new();
        (self.bare, self.bare_in) = (0, vec![0]);
    }

    /// Sets the bounds on all groups, for the next user of the hierarchy.
    pub(crate) fn set_bounds_of_all(&mut self, groups_max: u32, depth_max: u32) {
        (self.groups_max, self.depth_max) = (groups_max, depth_max);
    }

    /// Gives the place to another group, or to none.
    fn replace(&mut self, id: NodeId, entry: Entry) {
        debug_assert!(!self.is_unsettled(id), "a release that is left to a thread is done by that thread");
        if let Some(noted) = self.noted.get_mut(id.0 as usize) {
            *noted = None;
        }
        *self.entry_mut(id) = entry;
    }

    /// Returns the number of online children.
    pub(crate) fn child_count(&self, id: NodeId) -> usize {
        self.entry(id).named as usize
    }

    /// Returns `top` and all online groups below it, parents before children. It allocates
    /// nothing.
    pub(crate) fn subtree(&self, top: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let top_or_none = Some(top).filter(|&top| self.entries.find(top).is_some());
        std::iter::successors(top_or_none, move |&at| self.after(at, top))
    }

    /// Returns the group that comes after `at` in the subtree of `top`.
    ///
    /// A walk that has a turn to flush may free the tree lock between two groups, because no group
    /// is released in between. New groups are put at the beginning of a list, and a removed
    /// one keeps its next sibling. So the walk misses no group that stays, but it may visit
    /// removed ones.
    pub(crate) fn after(&self, at: NodeId, top: NodeId) -> Option<NodeId> {
        let first = self.entry(at).first_child;
        if first != TOP {
            return Some(first);
        }
        let mut climb = at;
        while climb != top {
            let next = self.entry(climb).next_sibling;
            if next != TOP {
                return Some(next);
            }
            climb = self.entry(climb).parent;
        }
        None
    }

    /// Returns the number of places that were ever made, including the root's.
    pub(crate) fn places(&self) -> u32 {
        self.places
    }
}
