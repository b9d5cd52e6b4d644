//! Attach: mounts a new connection to the kernel, as root by the system call, else by
//! `fusermount3`; and the shell that unmounts after the end of the program.
//!
//! A program that calls `exit` or is ended by a signal runs no destructors, and the kernel keeps
//! the mount, which answers nothing. So a child process reads from a pipe that only the program
//! holds. The kernel closes the pipe whichever way the program ends, and the child then unmounts.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{getegid, geteuid};

use crate::error::MountProblem;

/// The type of our file systems in `/proc/self/mountinfo`.
pub(crate) const KIND: &str = "fuse.memgroup";

const FUSERMOUNT: &str = "fusermount3";

/// Mounts a file system at a directory, and returns the connection through which it is served. The
/// system call takes `opened`, a path that leads to the open directory. `fusermount3` makes checks
/// of its own, and takes `path`. `source` is the name in the list of mounts.
pub(crate) fn attach(
    opened: &Path,
    path: &Path,
    source: &str,
    allow_other: bool,
) -> Result<OwnedFd, MountProblem> {
    let rights = if allow_other { "default_permissions,allow_other" } else { "default_permissions" };
    match by_system_call(opened, source, rights)? {
        Some(connection) => Ok(connection),
        None => by_fusermount(path, source, rights),
    }
}

/// Returns `None` if only another program may mount for this user.
fn by_system_call(path: &Path, source: &str, rights: &str) -> Result<Option<OwnedFd>, MountProblem> {
    let device: OwnedFd = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(device) => device.into(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !geteuid().is_root() => {
            return Ok(None);
        }
        Err(error) => return Err(MountProblem::Device(error)),
    };
    let (connection, uid, gid) = (device.as_raw_fd(), geteuid().as_raw(), getegid().as_raw());
    let options = format!("fd={connection},rootmode=40000,user_id={uid},group_id={gid},{rights}");
    let options = CString::new(options).map_err(|error| MountProblem::Refused(error.into()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match rustix::mount::mount(source, path, KIND, flags, options.as_c_str()) {
        Ok(()) => Ok(Some(device)),
        Err(rustix::io::Errno::PERM) => Ok(None),
        Err(error) => Err(MountProblem::Refused(error.into())),
    }
}

/// Has `fusermount3` mount. It sends the connection over its standard input.
fn by_fusermount(path: &Path, source: &str, rights: &str) -> Result<OwnedFd, MountProblem> {
    let (ours, theirs) = UnixStream::pair().map_err(MountProblem::Session)?;
    let options = format!("fsname={source},subtype=memgroup,nosuid,nodev,noexec,{rights}");
    let child = Command::new(FUSERMOUNT)
        .args(["-o", &options, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountProblem::NoFusermount)?;
    let received = receive(&ours);
    let output = child.wait_with_output().map_err(MountProblem::NoFusermount)?;
    received.ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        MountProblem::Fusermount(said.trim().trim_start_matches("fusermount3: ").to_owned())
    })
}

/// Returns the connection that arrives, or `None` if the sender ends without sending one.
fn receive(socket: &UnixStream) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut messages = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut bytes, &mut messages, RecvFlags::CMSG_CLOEXEC).ok()?;
    messages.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut connections) => connections.next(),
        _ => None,
    })
}

/// Returns the command that unmounts a tree at a path for this user, even while descriptors are
/// open there.
fn unmount_command() -> &'static [&'static str] {
    if geteuid().is_root() { &["umount", "-l", "--"] } else { &[FUSERMOUNT, "-u", "-z", "--"] }
}

pub(crate) fn unmount_by_fusermount(path: &Path) -> io::Result<()> {
    let output = Command::new(FUSERMOUNT).args(["-u", "-z", "--"]).arg(path).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Unmounts only the program's own tree. By then another file system may cover it, which is the
/// last one in the list of mounts.
const SCRIPT: &str = r#"
read -r end
while read -r id parent device root at rest; do
    if [ "$at" = "$point" ]; then top=$rest; fi
done </proc/self/mountinfo
case $top in *" - $kind $source "*) exec "$@" ;; esac
"#;

/// The child process of one mount. Dropping it ends it.
pub(crate) struct Unmounter(Child);

impl Unmounter {
    pub(crate) fn start(path: &Path, source: &str) -> io::Result<Unmounter> {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "sh"]).args(unmount_command()).arg(path);
        shell.env("point", escaped(path)).env("kind", KIND).env("source", source);
        // The shell keeps no directory in use, and a signal to the program's terminal does not end
        // it.
        shell.current_dir("/").process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        shell.spawn().map(Unmounter)
    }
}

impl Drop for Unmounter {
    fn drop(&mut self) {
        // The shell finds nothing to unmount, because the tree is gone.
        drop(self.0.stdin.take());
        _ = self.0.wait();
    }
}

/// Returns the path in the form of the list of mounts, where some characters are octal numbers.
pub(crate) fn escaped(path: &Path) -> String {
    let escape = |c| match c {
        ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", u32::from(c)),
        c => c.to_string(),
    };
    path.to_string_lossy().chars().map(escape).collect()
}
