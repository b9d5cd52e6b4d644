//! Place: the directory of a mount, and the mounts that are there already.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use procfs_core::process::MountInfo;
use rustix::mount::UnmountFlags;
use rustix::process::geteuid;

use crate::attach::{self, KIND};
use crate::error::MountProblem;

/// The absolute path of the directory, without links. A dead file system may be mounted at it. A link at the path itself is refused where other users
/// may have placed it.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, MountProblem> {
    let parent = path.parent().map(|parent| if parent == Path::new("") { Path::new(".") } else { parent });
    let last = parent.zip(path.file_name());
    if let Some((parent, name)) = last
        && fs::symlink_metadata(parent.join(name)).is_ok_and(|found| found.is_symlink())
    {
        let parent = parent.canonicalize().map_err(MountProblem::NoDirectory)?;
        let found = fs::metadata(&parent).map_err(MountProblem::NoDirectory)?;
        if !is_trusted(found.uid(), found.mode(), geteuid().as_raw()) {
            return Err(MountProblem::Link { directory: parent });
        }
    }
    let absolute = match path.canonicalize() {
        // Its last part is the dead file system: those above lead there.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => match last {
            Some((parent, name)) => parent.canonicalize().map(|parent| parent.join(name)),
            None => Err(error),
        },
        found => found,
    };
    absolute.map_err(MountProblem::NoDirectory)
}

/// Whether only the user and root place entries in a directory with this owner and these permissions. Its group is taken for the user's own.
fn is_trusted(owner: u32, mode: u32, user: u32) -> bool {
    (owner == user || owner == 0) && mode & 0o002 == 0
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

/// Unmounts the tree with this source, and ends its connection to the kernel: open descriptors answer that it is gone. Returns whether the connection has
/// ended. If the tree is not mounted any more, it does nothing.
pub(crate) fn end(path: &Path, source: &str) -> io::Result<bool> {
    let is_ours = |mount: &MountInfo| mount.mount_source.as_deref() == Some(source);
    let Some(ours) = mounts()?.into_iter().find(is_ours) else { return Ok(false) };
    if !top(path)?.is_some_and(|top| is_ours(&top)) {
        return Err(io::Error::other("another file system is mounted above it; unmount that first"));
    }
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
    let point = escaped(path);
    Ok(mounts()?.into_iter().rfind(|mount| mount.mount_point == Path::new(&point)))
}

/// All mounts that this process sees, the latest last.
fn mounts() -> io::Result<Vec<MountInfo>> {
    let list = fs::read("/proc/self/mountinfo")?;
    Ok(parse(&String::from_utf8_lossy(&list)))
}

fn parse(list: &str) -> Vec<MountInfo> {
    list.lines().filter_map(|line| MountInfo::from_line(line).ok()).collect()
}

/// The path as the list of mounts has it, where some characters are octal numbers.
pub(crate) fn escaped(path: &Path) -> String {
    let escape = |c| match c {
        ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", u32::from(c)),
        c => c.to_string(),
    };
    path.to_string_lossy().chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_list_of_mounts_and_skips_lines_of_other_forms() {
        let list = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:35 / /mnt/a\\040b rw - tmpfs tmpfs rw
a line of a later kernel
41 22 0:36 / /mnt/a rw - fuse.memgroup memgroup-7-0 rw,user_id=0
";
        let kinds: Vec<_> = parse(list).into_iter().map(|mount| mount.fs_type).collect();
        assert_eq!(kinds, ["ext4", "tmpfs", "fuse.memgroup"]);
        assert_eq!(parse(list)[1].mount_point, Path::new(&escaped(Path::new("/mnt/a b"))));
        assert_eq!(escaped(Path::new("/a\\b\tc\n")), "/a\\134b\\011c\\012");
        assert_eq!(top(Path::new("/proc")).unwrap().unwrap().fs_type, "proc");
        assert!(top(Path::new("/proc/self")).unwrap().is_none());
    }

    #[test]
    fn refuses_paths_without_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(clear(&file), Err(MountProblem::NoDirectory(_))));
        assert!(matches!(clear(&folder.path().join("missing")), Err(MountProblem::NoDirectory(_))));
        assert!(matches!(absolute(&folder.path().join("missing")), Err(MountProblem::NoDirectory(_))));
        clear(folder.path()).unwrap();
    }

    #[test]
    fn trusts_directories_in_which_no_other_user_writes() {
        for (owner, mode, is_so) in [
            (7, 0o40700, true),
            (7, 0o40775, true),
            (0, 0o40755, true),
            (8, 0o40755, false),
            (0, 0o41777, false),
            (7, 0o40777, false),
        ] {
            assert_eq!(is_trusted(owner, mode, 7), is_so, "{owner} {mode:o}");
        }
    }
}
