//! Find: the programs of this user that serve their groups.
//!
//! A server of memgroup-serve holds a lock on `<socket>.lock` while it lives. It binds its socket
//! in a folder with a random name (`.0123abcd/s`), and then moves the socket to its path. So a
//! process serves its groups if it listens on such a socket and has such a lock file open.

use std::collections::HashSet;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A program that serves its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) socket: PathBuf,
    /// Whether the process and its socket are this user's or root's. Any user may place a socket
    /// where root looks for one.
    pub(crate) is_trusted: bool,
}

/// Returns the user that runs this process. This is the owner of the process's entry in /proc: root
/// if no other process may look into this one.
pub(crate) fn own_user() -> io::Result<u32> {
    fs::metadata("/proc/self").map(|found| found.uid())
}

/// Returns whether the user `own` or root owns the file at `path`.
fn is_of(path: &Path, own: Option<u32>) -> bool {
    fs::metadata(path).is_ok_and(|found| found.uid() == 0 || Some(found.uid()) == own)
}

/// Returns the programs whose entries in /proc this user may read, in the order of their numbers.
/// If `pid` is given, only that process is examined.
pub(crate) fn programs(pid: Option<u32>) -> Vec<Program> {
    let listening = fs::read_to_string("/proc/net/unix").map(|text| sockets(&text)).unwrap_or_default();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<Program> = pids
        .filter(|one| pid.is_none_or(|pid| pid == *one))
        .flat_map(|one| of_process(one, &listening))
        .collect();
    found.sort_by(|a, b| (a.pid, &a.socket).cmp(&(b.pid, &b.socket)));
    found.dedup();
    found
}

/// Returns the inodes of the sockets that servers listen on, from the text of /proc/net/unix.
fn sockets(text: &str) -> HashSet<String> {
    const LISTENS: &str = "00010000";
    let of_line = |line: &str| {
        let mut words = line.split_whitespace().skip(3);
        let (flags, inode, path) = (words.next()?, words.nth(2)?, words.next()?);
        let folder = path.strip_suffix("/s")?.rsplit('/').next()?;
        let digits = folder.strip_prefix('.').filter(|digits| digits.len() == 8)?;
        let is_one = flags == LISTENS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_one.then(|| inode.to_owned())
    };
    text.lines().filter_map(of_line).collect()
}

fn of_process(pid: u32, listening: &HashSet<String>) -> Vec<Program> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links: Vec<PathBuf> = files.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    let is_socket = |link: &PathBuf| {
        let inode = link.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
        inode.is_some_and(|inode| listening.contains(inode))
    };
    if !links.iter().any(is_socket) {
        return Vec::new();
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned();
    let locked = links.iter().filter(|link| link.extension().is_some_and(|end| end == "lock"));
    let beside = locked.map(|link| link.with_extension("")).filter(|path| {
        // A socket that was replaced by a file of another kind isn't this program's.
        fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
    });
    let own = own_user().ok();
    let is_own = is_of(Path::new(&format!("/proc/{pid}")), own);
    beside
        .map(|socket| Program { pid, name: name.clone(), is_trusted: is_own && is_of(&socket, own), socket })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{is_of, programs, sockets};

    #[test]
    fn knows_the_sockets_of_a_server() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0001 01 101 /run/.0a1b2c3d/s\n\
            0000: 00000002 00000000 00000000 0001 03 102 /run/.0a1b2c3d/s\n\
            0000: 00000002 00000000 00010000 0001 01 103 .ffffffff/s\n\
            0000: 00000002 00000000 00010000 0001 01 104 /run/wayland-0\n\
            0000: 00000002 00000000 00010000 0001 01 105\n\
            0000: 00000002 00000000 00010000 0001 01 106 /run/.0a1b2c3/s\n";
        let mut found: Vec<_> = sockets(text).into_iter().collect();
        found.sort();
        assert_eq!(found, ["101", "103"]);
    }

    #[test]
    fn trusts_files_of_this_user_and_of_root() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let own = super::own_user().expect("a user");
        assert!(is_of(file.path(), Some(own)));
        assert_eq!(is_of(file.path(), Some(own + 1)), own == 0, "of another user, unless it is root");
        assert!(is_of(Path::new("/"), Some(own + 1)), "of root");
        assert!(!is_of(Path::new("/nowhere/at/all"), Some(own)));
    }

    #[test]
    fn finds_a_server_in_this_process() {
        let hierarchy = memgroup::Hierarchy::new(memgroup::Config::new()).expect("a hierarchy");
        let folder = tempfile::tempdir().expect("a directory");
        let socket = folder.path().canonicalize().expect("a path").join("m.sock");
        let server =
            memgroup_serve::start(&hierarchy, memgroup_serve::Serve::unix(&socket)).expect("a server");
        let own = || programs(Some(std::process::id()));
        let is_it = |program: &super::Program| program.socket == socket && program.is_trusted;
        assert!(own().iter().any(is_it), "{:?}", own());
        server.stop();
        assert!(own().iter().all(|program| program.socket != socket), "{:?}", own());
    }
}
