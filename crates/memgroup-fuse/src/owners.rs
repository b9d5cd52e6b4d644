//! Owners and permissions of directories and files. What a user has set lasts as long as the mount
//! and the group.
//!
//! As in cgroup v2, a new group and all its files belong to the user that made it, and `chown`
//! changes one file only. A group that the program made belongs to the user that mounted the tree.
//!
//! The two files with the bounds on the groups below a group are different. They belong to the
//! owner of the directory above, unless a `chown` names one of them. The owner of a delegated group
//! must not be able to lift the bound that the delegation relies on, not even if that user made the
//! directory. Those of the root belong to the user that mounted the tree.
//!
//! - I1. Only groups that differ from the default have an entry. Entries of removed groups are
//!   dropped when the table has doubled.

use std::collections::HashMap;
use std::time::SystemTime;

use memgroup::{GroupId, Hierarchy};
use parking_lot::Mutex;

use crate::files::{File, Kind};
use crate::inode::{DIRECTORY, Entries, Inode};

/// The permissions of the directory of a group that the program made.
const DIRECTORY_MODE: u16 = 0o755;

/// A user and a group of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Owner, permissions and times of a directory or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) owner: Owner,
    pub(crate) mode: u16,
    pub(crate) accessed: SystemTime,
    pub(crate) modified: SystemTime,
}

/// The entry of one group.
struct Entry {
    creator: Owner,
    /// Rights that differ from those of the creator's new group, by the file's number.
    set: HashMap<u8, Rights>,
}

pub(crate) struct Owners {
    hierarchy: Hierarchy,
    mounter: Owner,
    mounted: SystemTime,
    entries: Mutex<Entries<GroupId, Entry>>,
}

impl Owners {
    pub(crate) fn new(hierarchy: &Hierarchy, mounter: Owner) -> Owners {
        let (hierarchy, mounted) = (hierarchy.clone(), SystemTime::now());
        Owners { hierarchy, mounter, mounted, entries: Mutex::new(Entries::new()) }
    }

    fn default(&self, owner: Owner, mode: u16) -> Rights {
        Rights { owner, mode, accessed: self.mounted, modified: self.mounted }
    }

    /// Returns the rights of an inode. `file` is the file, unless the inode is a directory.
    pub(crate) fn get(&self, inode: Inode, file: Option<&File>) -> Rights {
        let mode = file.map_or(DIRECTORY_MODE, |file| file.mode);
        let is_bound = file.is_some_and(|file| file.kind == Kind::Bound);
        // Looked up first, because the engine's lock must not be taken under this one.
        let above =
            if is_bound { self.hierarchy.group(inode.group).and_then(|group| group.parent()) } else { None };
        let entries = self.entries.lock();
        let entry = entries.map.get(&inode.group);
        if let Some(&rights) = entry.and_then(|entry| entry.set.get(&inode.file)) {
            return rights;
        }
        let owner = match above {
            Some(above) => match entries.map.get(&above.id()) {
                Some(entry) => entry.set.get(&DIRECTORY).map_or(entry.creator, |rights| rights.owner),
                None => self.mounter,
            },
            None if is_bound => self.mounter,
            None => entry.map_or(self.mounter, |entry| entry.creator),
        };
        self.default(owner, mode)
    }

    pub(crate) fn set(&self, inode: Inode, rights: Rights) {
        self.insert(inode.group, self.mounter, inode.file, rights);
    }

    /// Notes that a user has made a group with these permissions of its directory.
    pub(crate) fn created(&self, group: GroupId, creator: Owner, mode: u16) {
        if creator != self.mounter || mode != DIRECTORY_MODE {
            let rights = self.default(creator, mode);
            self.insert(group, creator, DIRECTORY, rights);
        }
    }

    fn insert(&self, group: GroupId, creator: Owner, file: u8, rights: Rights) {
        let mut entries = self.entries.lock();
        let is_there = |id: &GroupId, _: &_| self.hierarchy.group(*id).is_some_and(|group| group.is_online());
        let entry = entries
            .for_one_more(is_there)
            .entry(group)
            .or_insert_with(|| Entry { creator, set: HashMap::new() });
        entry.set.insert(file, rights);
    }

    /// Drops the entry of a removed group.
    pub(crate) fn removed(&self, group: GroupId) {
        self.entries.lock().map.remove(&group);
    }
}

#[cfg(test)]
mod tests {
    use memgroup::Config;

    use super::*;

    const PLAIN: File = File { name: String::new(), kind: Kind::Plain, mode: 0o644 };

    #[test]
    fn give_a_bound_to_the_owner_of_the_directory_above() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let (mounter, alice) = (Owner { uid: 0, gid: 0 }, Owner { uid: 7, gid: 8 });
        let bound = File { kind: Kind::Bound, ..PLAIN };
        let owners = Owners::new(&hierarchy, mounter);
        let (outer, inner) = (hierarchy.create("/a").unwrap(), hierarchy.create("/a/b").unwrap());
        let owner =
            |group: &memgroup::Group| owners.get(Inode { group: group.id(), file: 1 }, Some(&bound)).owner;
        assert_eq!((owner(&hierarchy.root()), owner(&outer), owner(&inner)), (mounter, mounter, mounter));
        owners.created(outer.id(), alice, 0o755);
        owners.created(inner.id(), Owner { uid: 9, gid: 9 }, 0o755);
        assert_eq!((owner(&outer), owner(&inner)), (mounter, alice));
        let directory = Inode { group: outer.id(), file: DIRECTORY };
        owners.set(directory, Rights { owner: mounter, ..owners.get(directory, None) });
        assert_eq!((owner(&outer), owner(&inner)), (mounter, mounter));
        let file = Inode { group: outer.id(), file: 1 };
        owners.set(file, Rights { owner: alice, ..owners.get(file, Some(&bound)) });
        assert_eq!(owner(&outer), alice, "the file was given to another user by name");
        inner.remove().unwrap();
        assert_eq!(owner(&inner), mounter);
    }

    #[test]
    fn drop_the_entries_of_removed_groups() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let (mounter, user) = (Owner { uid: 0, gid: 0 }, Owner { uid: 7, gid: 8 });
        let owners = Owners::new(&hierarchy, mounter);
        let kept = hierarchy.create("/kept").unwrap();
        owners.created(kept.id(), user, 0o700);
        for number in 0..1000 {
            let group = hierarchy.create(&format!("/{number}")).unwrap();
            owners.created(group.id(), user, 0o755);
            group.remove().unwrap();
            assert!(owners.entries.lock().map.len() <= crate::inode::ENTRIES_LEAST);
        }
        let directory = owners.get(Inode { group: kept.id(), file: DIRECTORY }, None);
        assert_eq!((directory.owner, directory.mode), (user, 0o700));
        let file = || owners.get(Inode { group: kept.id(), file: 3 }, Some(&PLAIN));
        assert_eq!((file().owner, file().mode), (user, 0o644));
        owners.removed(kept.id());
        assert_eq!(file().owner, mounter);
    }

    #[test]
    fn keep_one_file_apart_from_the_others() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let mounter = Owner { uid: 1, gid: 1 };
        let owners = Owners::new(&hierarchy, mounter);
        let inode = |file| Inode { group: hierarchy.root().id(), file };
        let changed =
            Rights { owner: Owner { uid: 2, gid: 3 }, mode: 0o640, ..owners.get(inode(1), Some(&PLAIN)) };
        owners.set(inode(1), changed);
        assert_eq!(owners.get(inode(1), Some(&PLAIN)), changed);
        assert_eq!(
            (owners.get(inode(2), Some(&PLAIN)).owner, owners.get(inode(0), None).owner),
            (mounter, mounter)
        );
    }
}
