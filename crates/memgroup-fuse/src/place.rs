//! Place: the directory of a mount, and the existing mounts there.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use procfs_core::process::MountInfo;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{getegid, geteuid};

use crate::attach::{self, KIND};
use crate::error::MountProblem;

/// The most links in a path, which is the kernel's limit.
const LINKS_MOST: usize = 40;

/// Returns the absolute path of the directory, without links. A dead file system may be mounted
/// there. A link in any part of the path is refused if other users may have created it.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, MountProblem> {
    let directory = walk(path, LINKS_MOST)?;
    // Renames after the walk don't matter, because `open` walks this path again without following
    // links.
    fs::read_link(in_proc(&directory)).map_err(MountProblem::NoDirectory)
}

/// Opens a directory whose path has no links. A link that was created there since is refused. The
/// descriptor stays with this directory, whatever happens to the path.
pub(crate) fn open(path: &Path) -> Result<OwnedFd, MountProblem> {
    walk(path, 0)
}

/// Returns the path by which a system call reaches an open directory.
pub(crate) fn in_proc(directory: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", directory.as_raw_fd()).into()
}

/// Opens the parts of a path one after the other, and follows up to `links` links. So a name that
/// is created in the meantime cannot lead elsewhere.
fn walk(path: &Path, mut links: usize) -> Result<OwnedFd, MountProblem> {
    let failed = |errno: Errno| MountProblem::NoDirectory(errno.into());
    let begin = |path: &Path| if path.is_absolute() { "/" } else { "." };
    let open = |from: BorrowedFd<'_>, name: &OsStr| {
        openat(from, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).map_err(failed)
    };
    if path.as_os_str().is_empty() {
        return Err(failed(Errno::NOENT));
    }
    let mut at = open(CWD, begin(path).as_ref())?;
    // The remaining parts, the next one last.
    let mut left: Vec<OsString> = parts(path).rev().collect();
    while let Some(name) = left.pop() {
        let next = open(at.as_fd(), &name)?;
        match fstat(&next) {
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_symlink() => {
                if !is_trusted(&fstat(&at).map_err(failed)?) {
                    let directory = fs::read_link(in_proc(&at)).map_err(MountProblem::NoDirectory)?;
                    return Err(MountProblem::Link { directory });
                }
                links = links.checked_sub(1).ok_or(failed(Errno::LOOP))?;
                let target = readlinkat(&next, "", Vec::new()).map_err(failed)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    at = open(CWD, "/".as_ref())?;
                }
                left.extend(parts(&target).rev());
            }
            // `fstat` fails on a dead file system.
            Ok(_) | Err(Errno::NOTCONN) => at = next,
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(at)
}

/// Returns the names in a path. A slash at the end adds none.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.map(|part| part.as_os_str().to_owned())
}

/// Returns whether only the user of this process and root can create entries in a directory. A
/// group of users may write there if it is the user's own.
fn is_trusted(directory: &Stat) -> bool {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    is_trusted_by(user, group, (directory.st_uid, directory.st_gid), directory.st_mode)
}

fn is_trusted_by(user: u32, group: u32, (owner, owning): (u32, u32), mode: u32) -> bool {
    (owner == user || owner == 0) && mode & 0o002 == 0 && (mode & 0o020 == 0 || owning == group)
}

/// Unmounts dead trees at the path, which programs that ended have left. Every other file system
/// stays.
pub(crate) fn clear(path: &Path) -> Result<(), MountProblem> {
    loop {
        // Both calls are needed: for a moment, the kernel answers the second one by itself, even
        // for a dead file system.
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

/// Unmounts the top mount at the path, even while descriptors are open there.
fn detach(path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => attach::unmount_by_fusermount(path),
        done => Ok(done?),
    }
}

/// Unmounts the tree with this source, and ends its connection to the kernel, so that open
/// descriptors answer that it is gone. Returns whether the connection has ended. Does nothing if
/// the tree is no longer mounted.
pub(crate) fn end(path: &Path, source: &str) -> io::Result<bool> {
    let is_ours = |mount: &MountInfo| mount.mount_source.as_deref() == Some(source);
    let Some(ours) = mounts()?.into_iter().find(is_ours) else { return Ok(false) };
    if !top(path)?.is_some_and(|top| is_ours(&top)) {
        return Err(io::Error::other("another file system is mounted above it; unmount that first"));
    }
    // Only root may force an unmount.
    let force = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    if rustix::mount::unmount(path, force).is_ok() {
        return Ok(true);
    }
    detach(path)?;
    // The device number identifies the connection, which belongs to the user that mounted the tree.
    let connection = ours.majmin.split(':').nth(1).unwrap_or_default();
    Ok(fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1").is_ok())
}

/// Returns the latest mount at the path, which is the visible one.
fn top(path: &Path) -> io::Result<Option<MountInfo>> {
    let point = attach::escaped(path);
    Ok(mounts()?.into_iter().rfind(|mount| mount.mount_point == Path::new(&point)))
}

/// Returns all mounts that this process sees, the latest last.
fn mounts() -> io::Result<Vec<MountInfo>> {
    let list = fs::read("/proc/self/mountinfo")?;
    Ok(parse(&String::from_utf8_lossy(&list)))
}

fn parse(list: &str) -> Vec<MountInfo> {
    list.lines().filter_map(|line| MountInfo::from_line(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

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
        assert_eq!(parse(list)[1].mount_point, Path::new(&attach::escaped(Path::new("/mnt/a b"))));
        assert_eq!(attach::escaped(Path::new("/a\\b\tc\n")), "/a\\134b\\011c\\012");
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
        for (owner, group, mode, is_so) in [
            (7, 9, 0o40700, true),
            (7, 8, 0o40775, true),
            (7, 9, 0o40775, false),
            (0, 0, 0o40755, true),
            (0, 0, 0o40775, false),
            (8, 8, 0o40755, false),
            (0, 0, 0o41777, false),
            (7, 8, 0o40777, false),
        ] {
            assert_eq!(is_trusted_by(7, 8, (owner, group), mode), is_so, "{owner} {group} {mode:o}");
        }
    }

    #[test]
    fn refuses_a_link_in_any_part_that_another_user_may_have_placed() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        for path in ["open", "real/below/groups"] {
            fs::create_dir_all(top.join(path)).unwrap();
        }
        fs::set_permissions(top.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
        let links = [
            ("link", "real"),
            ("absolute", top.join("real").to_str().unwrap()),
            ("chain", "link/below"),
            ("up", "real/below/.."),
            ("round", "round"),
            ("open/link", "../real"),
            ("by-open", "open/link"),
        ]
        .map(|(link, target)| (top.join(link), PathBuf::from(target)));
        links.iter().for_each(|(link, target)| symlink(target, link).unwrap());
        let groups = top.join("real/below/groups");
        for path in [
            "real/below/groups",
            "link/below/groups/",
            "absolute/below/./groups",
            "chain/groups",
            "up/below/groups",
        ] {
            assert_eq!(absolute(&top.join(path)).unwrap(), groups, "{path}");
        }
        for path in ["open/link", "open/link/below/groups", "by-open/below/groups", "open/../open/link/below"]
        {
            let error = absolute(&top.join(path)).unwrap_err();
            assert!(
                matches!(&error, MountProblem::Link { directory } if *directory == top.join("open")),
                "{path}: {error}"
            );
        }
        assert!(matches!(absolute(&top.join("round")), Err(MountProblem::NoDirectory(_))), "no end");
        assert!(matches!(absolute(Path::new("")), Err(MountProblem::NoDirectory(_))));
        assert_eq!(absolute(Path::new(".")).unwrap(), std::env::current_dir().unwrap());
        assert_eq!(absolute(Path::new("/")).unwrap(), Path::new("/"));

        // A link that is placed between the two walks.
        let opened = open(&groups).unwrap();
        fs::rename(top.join("real"), top.join("moved")).unwrap();
        symlink("moved", top.join("real")).unwrap();
        assert!(matches!(open(&groups), Err(MountProblem::NoDirectory(_))), "no link is followed then");
        assert_eq!(
            fs::read_link(in_proc(&opened)).unwrap(),
            top.join("moved/below/groups"),
            "it is the same one"
        );
    }
}
