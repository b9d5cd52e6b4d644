//! Serve: the groups of a run, for a browser and other clients on this machine.
//!
//! - I1. The socket is in a directory that only this user can write to, so no other user can place
//!   a file at its path.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::{env, process};

use memgroup::Hierarchy;
use memgroup_serve::{Control, Serve, Server, Token};

use crate::run::base::process::user;
use crate::run::base::progress::Progress;
use crate::run::base::{OrFail, RunError};

/// Serves the groups on a socket until the result is dropped, and prints how to see them. With an
/// `address` it also serves a page there, whose token may read and control.
pub(crate) fn serve(
    hierarchy: &Hierarchy,
    address: Option<SocketAddr>,
    progress: &Progress,
) -> Result<Server, RunError> {
    let own = user().or_fail("read /proc/self")?;
    let folder = folder(env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), &env::temp_dir(), own);
    let folder = folder.map_err(RunError::Failure)?;
    sweep(&folder);
    let socket = folder.join(format!("memgroup-{}.sock", process::id()));
    let mut settings = Serve::unix(&socket);
    if let Some(address) = address {
        let token = Token::random().or_fail("make a token")?;
        settings = settings.and_tcp(address).token(token.clone()).control(Control::Token(token));
    }
    let server = memgroup_serve::start(hierarchy, settings).map_err(|error| match address {
        Some(address) => RunError::Usage(format!("--serve {address}: {error}")),
        None => RunError::Failure(format!("failed to serve the groups on {}: {error}", socket.display())),
    })?;
    progress.line(&format!("to watch the groups of this run: memgroup-top {}", socket.display()));
    if let Some(page) = server.page() {
        progress.line(&format!("page of all groups until the run ends: {page}"));
    }
    Ok(server)
}

/// Returns the directory of the socket: `runtime` if only this user can use it, or else one in
/// `temporary`.
fn folder(runtime: Option<PathBuf>, temporary: &Path, own: u32) -> Result<PathBuf, String> {
    // After `su` it may be that of another user.
    if let Some(runtime) = runtime.filter(|path| path.is_absolute() && is_private(path, own).unwrap_or(false))
    {
        return Ok(runtime);
    }
    let folder = temporary.join(format!("memgroup-{own}"));
    let wrong = "a file is there that is not a directory of this user with the mode 0700; remove it, or set XDG_RUNTIME_DIR";
    let made = match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => is_private(&folder, own).and_then(|is| if is { Ok(()) } else { Err(io::Error::other(wrong)) }),
    };
    let failed = |why| format!("failed to make the directory {} for a socket: {why}", folder.display());
    made.map_err(failed).map(|()| folder)
}

/// Removes the sockets of runs that were killed. The process of such a run is gone, and no server
/// holds its lock.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid =
            || name.to_str()?.strip_prefix("memgroup-")?.strip_suffix(".sock.lock")?.parse::<u32>().ok();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || pid().is_none_or(|pid| Path::new("/proc").join(pid.to_string()).exists()) {
            continue;
        }
        let lock = entry.path();
        // A run in another container may share the directory without sharing the numbers of
        // processes.
        let Ok(file) = File::open(&lock) else { continue };
        if file.try_lock().is_ok() {
            let socket = lock.with_extension("");
            if fs::symlink_metadata(&socket).is_ok_and(|found| found.file_type().is_socket()) {
                let _gone = fs::remove_file(&socket);
            }
            let _gone = fs::remove_file(&lock);
        }
    }
}

/// Returns whether the path is a directory, not a link to one, that this user owns and no other
/// user can read or write.
fn is_private(path: &Path, own: u32) -> io::Result<bool> {
    let found = fs::symlink_metadata(path)?;
    Ok(found.is_dir() && found.uid() == own && found.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;
    use std::process;

    use super::{folder, sweep};
    use crate::run::base::process::user;

    #[test]
    fn takes_directories_of_this_user_alone() {
        let own = user().expect("a user");
        let place = tempfile::tempdir().expect("a directory");
        let (runtime, temporary) = (place.path().join("runtime"), place.path());
        let made = temporary.join(format!("memgroup-{own}"));
        let set_mode = |path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
        fs::create_dir(&runtime).expect("a directory");
        set_mode(&runtime, 0o700);
        assert_eq!(folder(Some(runtime.clone()), temporary, own), Ok(runtime.clone()));
        assert!(!made.exists());
        // Other users may write to it, or it is one of them.
        set_mode(&runtime, 0o770);
        for unusable in [Some(runtime.clone()), Some("relative".into()), Some(temporary.join("none")), None] {
            assert_eq!(folder(unusable, temporary, own), Ok(made.clone()));
            assert_eq!(fs::metadata(&made).expect("it is made").mode() & 0o7777, 0o700);
        }
        set_mode(&runtime, 0o700);
        let wrong =
            |user| folder(Some(runtime.clone()), temporary, user).expect_err("a directory of another user");
        assert!(wrong(own + 1).contains(&format!("memgroup-{} ", own + 1)), "{}", wrong(own + 1));
        // Nor is a directory or a link taken that another user has placed.
        set_mode(&made, 0o755);
        let refused = || folder(None, temporary, own).expect_err("a directory that others read");
        let said = format!("failed to make the directory {} for a socket: a file is there", made.display());
        assert!(refused().starts_with(&said), "{}", refused());
        fs::remove_dir(&made).expect("an empty directory");
        symlink(&runtime, &made).expect("a link");
        assert!(refused().starts_with(&said), "{}", refused());
    }

    #[test]
    fn removes_sockets_of_runs_that_were_killed() {
        let place = tempfile::tempdir().expect("a directory");
        let path = |name: &str| place.path().join(name);
        // Numbers of processes are below 2^22.
        let (gone, held, own) = (u32::MAX, u32::MAX - 1, process::id());
        for pid in [gone, held, own] {
            drop(UnixListener::bind(path(&format!("memgroup-{pid}.sock"))).expect("a socket"));
        }
        let lock = |pid: u32| File::create(path(&format!("memgroup-{pid}.sock.lock"))).expect("a lock");
        let (_gone, held_lock, _own) = (lock(gone), lock(held), lock(own));
        held_lock.lock().expect("a lock");
        fs::write(path("memgroup-1.txt"), "").expect("a file of another program");
        sweep(place.path());
        let mut left: Vec<_> = fs::read_dir(place.path())
            .expect("a directory")
            .map(|entry| entry.expect("a file").file_name().into_string().expect("a name"))
            .collect();
        left.sort();
        let both = |pid: u32| [format!("memgroup-{pid}.sock"), format!("memgroup-{pid}.sock.lock")];
        let mut expected = [both(held), both(own)].concat();
        expected.push("memgroup-1.txt".to_owned());
        expected.sort();
        assert_eq!(left, expected);
    }
}
