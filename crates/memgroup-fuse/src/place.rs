//! Place: the directory of a mount, and the mounts that are there already.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use procfs_core::process::MountInfo;
use rustix::mount::UnmountFlags;

use crate::attach::{self, KIND};
use crate::error::MountProblem;

/// The absolute path of the directory, without links. A dead file system may be mounted at it.
pub(crate) fn absolute(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        // Its last part is the dead file system: those above lead there.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => {
            let name = path.file_name().ok_or(error)?;
            let parent = path.parent().filter(|parent| *parent != Path::new(""));
            Ok(parent.unwrap_or(Path::new(".")).canonicalize()?.join(name))
        }
        found => found,
    }
}

/// Unmounts dead trees at the path, those of programs that ended. Every other file system stays.
pub(crate) fn clear(path: &Path) -> Result<(), MountProblem> {
    loop {
        // Of these the kernel answers the second by itself for a moment, also for a dead file system.
        let found =
            rustix::fs::statfs(path).map_err(io::Error::from).and_then(|_| fs::symlink_metadata(path));
        let top = top(path).map_err(MountProblem::Mounts)?;
        let is_tree = top.as_ref().is_some_and(|top| top.fs_type == KIND);
        match found {
            Ok(_) if is_tree => return Err(MountProblem::Occupied),
            Ok(found) if found.is_dir() => return Ok(()),
            Ok(_) => return Err(MountProblem::NoDirectory(io::ErrorKind::NotADirectory.into())),
            Err(error) if error.kind() != io::ErrorKind::NotConnected => {
                return Err(MountProblem::NoDirectory(error));
            }
            Err(_) if is_tree => detach(path).map_err(MountProblem::Stale)?,
            Err(error) => {
                return Err(match top {
                    Some(top) => MountProblem::Dead { kind: top.fs_type },
                    None => MountProblem::NoDirectory(error),
                });
            }
        }
    }
}

/// Takes the top mount at the path away, also while descriptors are open there.
fn detach(path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::PERM) => attach::unmount_by_fusermount(path),
        done => Ok(done?),
    }
}

/// Unmounts the tree with this source, if it is still the top mount at the path, and ends its connection to the kernel: open descriptors answer that it
/// is gone. Returns whether the connection has ended.
pub(crate) fn end(path: &Path, source: &str) -> io::Result<bool> {
    let Some(ours) = top(path)?.filter(|top| top.mount_source.as_deref() == Some(source)) else {
        return Ok(false);
    };
    // Only the owner of the machine may force.
    let force = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    if rustix::mount::unmount(path, force).is_ok() {
        return Ok(true);
    }
    detach(path)?;
    // The number of the device is that of the connection, which belongs to the user that mounted.
    let connection = ours.majmin.split(':').nth(1).unwrap_or_default();
    Ok(fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1").is_ok())
}

/// The mount at the path that was made last, and so is seen there.
fn top(path: &Path) -> io::Result<Option<MountInfo>> {
    let list = fs::read("/proc/self/mountinfo")?;
    let list = String::from_utf8_lossy(&list);
    Ok(top_of(&list, path))
}

fn top_of(list: &str, path: &Path) -> Option<MountInfo> {
    // The list has some characters as octal numbers.
    let escaped: String = path
        .to_string_lossy()
        .chars()
        .map(|c| match c {
            ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", u32::from(c)),
            c => c.to_string(),
        })
        .collect();
    let mut mounts = list.lines().filter_map(|line| MountInfo::from_line(line).ok());
    mounts.rfind(|mount| mount.mount_point == Path::new(&escaped))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:35 / /mnt/a\\040b rw - tmpfs tmpfs rw
41 22 0:36 / /mnt/a rw - fuse.memgroup memgroup-7-0 rw,user_id=0
a line of a later kernel
42 22 0:37 / /mnt/a rw - fuse.sshfs host: rw
";

    #[test]
    fn finds_the_mount_that_is_seen_at_a_path() {
        let kind = |path: &str| top_of(LIST, Path::new(path)).map(|mount| mount.fs_type);
        assert_eq!(kind("/mnt/a").as_deref(), Some("fuse.sshfs"));
        assert_eq!(kind("/mnt/a b").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/mnt/a\\040b"), None);
        assert_eq!(kind("/mnt"), None);
    }

    #[test]
    fn refuses_paths_without_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(clear(&file), Err(MountProblem::NoDirectory(_))));
        assert!(matches!(clear(&folder.path().join("missing")), Err(MountProblem::NoDirectory(_))));
        assert_eq!(absolute(&folder.path().join("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
        clear(folder.path()).unwrap();
    }
}
