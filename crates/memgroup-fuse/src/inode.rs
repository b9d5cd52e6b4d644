//! Inode numbers: a group's id with the number of one of its files.
//!
//! ```text
//!   63 .. 32     generation of the group
//!   31 ..  8     its node: a hierarchy has at most 2^24 groups
//!    7 ..  0     the file's number; 0 is the directory
//! ```
//!
//! The kernel wants 1 for the directory of the root. No other number is below 2^32, because generations begin with 1.
//!
//! - I1. A number belongs to one group for ever, because a generation is never used again. So no table of inodes is needed.

use fuser::INodeNo;
use memgroup::GroupId;

/// The file's number of a directory.
pub(crate) const DIRECTORY: u8 = 0;

/// A directory or a file of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) group: GroupId,
    /// [`DIRECTORY`], or the number of the file.
    pub(crate) file: u8,
}

impl Inode {
    /// The number of this inode in a tree with this root.
    pub(crate) fn number(self, root: GroupId) -> INodeNo {
        if self.file == DIRECTORY && self.group == root {
            return INodeNo::ROOT;
        }
        let id = self.group.as_u64();
        INodeNo(id >> 32 << 32 | (id & 0xff_ffff) << 8 | u64::from(self.file))
    }

    /// The inode with this number.
    pub(crate) fn of(number: INodeNo, root: GroupId) -> Inode {
        if number == INodeNo::ROOT {
            return Inode { group: root, file: DIRECTORY };
        }
        let INodeNo(number) = number;
        let group = GroupId::from_u64(number >> 32 << 32 | number >> 8 & 0xff_ffff);
        Inode { group, file: number as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_each_file_of_each_group_a_number_of_its_own() {
        let id = |generation: u64, node: u64| GroupId::from_u64(generation << 32 | node);
        let root = id(1, 0);
        let mut seen = std::collections::HashSet::new();
        for generation in [1, 3, u64::from(u32::MAX)] {
            for node in [0, 1, 255, 256, (1 << 24) - 1] {
                for file in [DIRECTORY, 1, 40, 255] {
                    let inode = Inode { group: id(generation, node), file };
                    let number = inode.number(root);
                    assert_eq!(Inode::of(number, root), inode);
                    assert!(seen.insert(number), "{inode:?}");
                    assert_eq!(number == INodeNo::ROOT, inode == Inode { group: root, file: DIRECTORY });
                    assert!(number == INodeNo::ROOT || number.0 >= 1 << 32);
                }
            }
        }
    }
}
