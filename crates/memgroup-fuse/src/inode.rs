//! Inode numbers: a group's generation with the number of one of its files.
//!
//! ```text
//!   63 ..  8     generation of the group
//!    7 ..  0     the file's number; 0 is the directory
//! ```
//!
//! The kernel requires 1 for the directory of the root. No other number is below 2^8, because
//! generations begin with 1.
//!
//! - I1. A number belongs to one group for ever, because no two groups of a process have the same
//!   generation. Its lower 56 bits, which fit, are enough for a million groups a second over a
//!   thousand years.
//! - I2. A number has no room for the group's node, so a table has the ids of the groups whose
//!   numbers the kernel knows. An entry stays until its group is released. A number without an
//!   entry names no group, whichever group uses the node by then.

use std::collections::HashMap;
use std::hash::Hash;

use fuser::INodeNo;
use memgroup::{GroupId, Hierarchy};
use parking_lot::Mutex;

/// The file's number of a directory.
pub(crate) const DIRECTORY: u8 = 0;

/// Entries below which none is dropped.
pub(crate) const ENTRIES_LEAST: usize = 64;

/// Entries of groups. When their number has doubled, those of groups that are gone are dropped.
pub(crate) struct Entries<K, V> {
    pub(crate) map: HashMap<K, V>,
    /// The number of entries at which the map is pruned.
    most: usize,
}

impl<K: Eq + Hash, V> Entries<K, V> {
    pub(crate) fn new() -> Entries<K, V> {
        Entries { map: HashMap::new(), most: ENTRIES_LEAST }
    }

    /// Returns the map, with room for one more entry. `is_there` says whether the group of an entry
    /// still exists.
    pub(crate) fn for_one_more(&mut self, is_there: impl Fn(&K, &V) -> bool) -> &mut HashMap<K, V> {
        if self.map.len() >= self.most {
            self.map.retain(|key, value| is_there(key, value));
            self.most = ENTRIES_LEAST.max(2 * self.map.len());
        }
        &mut self.map
    }
}

/// A directory or a file of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) group: GroupId,
    /// [`DIRECTORY`], or the number of the file.
    pub(crate) file: u8,
}

impl Inode {
    /// Returns the number of this inode in a tree with this root.
    pub(crate) fn number(self, root: GroupId) -> INodeNo {
        if self.file == DIRECTORY && self.group == root {
            return INodeNo::ROOT;
        }
        INodeNo(self.group.as_u64() << 8 | u64::from(self.file))
    }
}

/// The groups whose numbers the kernel knows.
pub(crate) struct Inodes {
    hierarchy: Hierarchy,
    pub(crate) root: GroupId,
    /// By generation.
    entries: Mutex<Entries<u64, GroupId>>,
}

impl Inodes {
    pub(crate) fn new(hierarchy: &Hierarchy) -> Inodes {
        let root = hierarchy.root().id();
        let mut entries = Entries::new();
        entries.map.insert(root.as_u64(), root);
        Inodes { hierarchy: hierarchy.clone(), root, entries: Mutex::new(entries) }
    }

    /// Notes that the kernel gets an inode of this group, and may send its number from now on.
    pub(crate) fn tell(&self, group: GroupId) {
        let mut entries = self.entries.lock();
        let is_there = |_: &u64, id: &GroupId| self.hierarchy.group(*id).is_some();
        entries.for_one_more(is_there).insert(group.as_u64(), group);
    }

    /// Returns the inode with this number. If its group was released, no group has the id of the
    /// returned inode.
    pub(crate) fn find(&self, number: INodeNo) -> Inode {
        if number == INodeNo::ROOT {
            return Inode { group: self.root, file: DIRECTORY };
        }
        let INodeNo(number) = number;
        let generation = number >> 8;
        let entries = self.entries.lock();
        let released = || GroupId::from_u128(u128::from(generation) << 32 | u128::from(u32::MAX));
        let group = entries.map.get(&generation).copied().unwrap_or_else(released);
        Inode { group, file: number as u8 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use memgroup::Config;

    use super::*;

    fn id(generation: u64, node: u32) -> GroupId {
        GroupId::from_u128(u128::from(generation) << 32 | u128::from(node))
    }

    #[test]
    fn give_each_file_of_each_group_a_number_of_its_own() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let inodes = Inodes::new(&hierarchy);
        let root = inodes.root;
        let mut seen = HashSet::new();
        // The same node again after 2^31 and after 2^32 lives, and the last number that fits.
        let after = |lives: u64| id(root.as_u64() + 2 * lives, 7);
        let groups = [
            root,
            after(1),
            after(2),
            after(1 << 31),
            after((1 << 31) + 1),
            after(1 << 32),
            id((1 << 56) - 1, 7),
        ];
        for group in groups {
            for file in [DIRECTORY, 1, 40, 255] {
                let inode = Inode { group, file };
                let number = inode.number(root);
                assert_eq!(number == INodeNo::ROOT, inode == Inode { group: root, file: DIRECTORY });
                assert!(number == INodeNo::ROOT || number.0 >= 1 << 8);
                assert!(seen.insert(number), "{inode:?}");
                let unknown = inodes.find(number);
                assert_eq!((unknown.file, unknown.number(root)), (file, number));
                assert!(group == root || hierarchy.group(unknown.group).is_none());
                inodes.tell(group);
                assert_eq!(inodes.find(number), inode);
            }
        }
    }

    #[test]
    fn lead_to_no_other_group_when_theirs_was_released() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let inodes = Inodes::new(&hierarchy);
        let kept = hierarchy.create("/kept").unwrap();
        let place = |number: u32| hierarchy.create(&format!("/{number}")).unwrap();
        let first = place(0);
        let node = first.id().node();
        let mut numbers = Vec::new();
        inodes.tell(kept.id());
        inodes.tell(first.id());
        let number = |group: &memgroup::Group| Inode { group: group.id(), file: 3 }.number(inodes.root);
        let (of_kept, mut last) = (number(&kept), first);
        for life in 1..1000 {
            numbers.push(number(&last));
            last.remove().unwrap();
            drop(last);
            last = place(life);
            assert_eq!(last.id().node(), node, "the place is used again");
            inodes.tell(last.id());
            let entries = inodes.entries.lock().map.len();
            assert!(entries <= ENTRIES_LEAST, "{entries}");
        }
        for &number in &numbers {
            let inode = inodes.find(number);
            assert!(hierarchy.group(inode.group).is_none());
            assert_eq!((inode.file, inode.number(inodes.root)), (3, number));
        }
        assert_eq!(hierarchy.group(inodes.find(number(&last)).group), Some(last));
        assert_eq!(hierarchy.group(inodes.find(of_kept).group), Some(kept));
    }
}
