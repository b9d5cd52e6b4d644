//! Mount: starts and stops serving one tree at one path.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use fuser::{Config, Session, SessionACL};
use memgroup::Hierarchy;
use rustix::process::{getegid, geteuid};

use crate::error::{MountError, MountProblem};
use crate::owners::Owner;
use crate::row::Row;
use crate::tree::Tree;
use crate::{attach, place};

/// Options of a mount.
///
/// ```
/// let options = memgroup_fuse::Options::new().allow_other(true);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    allow_other: bool,
    unmount_at_end: bool,
}

impl Options {
    /// Returns the defaults: only processes of the user that mounts see the tree, and a shell
    /// unmounts it, whichever way the program ends.
    pub fn new() -> Options {
        Options { allow_other: false, unmount_at_end: true }
    }

    /// Sets whether processes of other users see the tree; `false` by default. Owners and
    /// permissions of the files limit what they may do. If a user other than root mounts,
    /// `/etc/fuse.conf` must have `user_allow_other`.
    pub fn allow_other(self, allow_other: bool) -> Options {
        Options { allow_other, ..self }
    }

    /// Sets whether a child process, a shell, waits for the end of the program and then unmounts;
    /// `true` by default. Without it, a program that ends without dropping its [`Mount`], by
    /// `exit`, a signal or an abort, leaves a dead mount behind.
    pub fn unmount_at_end(self, unmount_at_end: bool) -> Options {
        Options { unmount_at_end, ..self }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

/// A mounted tree, made by [`mount`]. Dropping it unmounts the tree.
///
/// The drop first ends the connection to the kernel, so it unmounts even while descriptors are
/// open. From then on they answer `ENOTCONN`. If another program unmounted the tree, the drop does
/// nothing. A running write to `memory.reclaim` continues, but its result is lost.
#[must_use = "dropping it unmounts the tree"]
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    source: String,
    thread: Option<JoinHandle<()>>,
}

/// Mounts the tree of groups at a directory.
///
/// The directory must exist; the tree hides its entries. A symbolic link in any part of `path` is
/// followed only if it is in a directory of this user or of root to which other users cannot write.
/// A dead tree left by a program that ended is unmounted first. Root mounts by a system call. Other
/// users need the program `fusermount3`, and access to `/dev/fuse`. The mount keeps the hierarchy
/// alive, as a handle does.
///
/// The call starts three threads, which are in no scope, so their memory is charged to no group.
/// The returned [`Mount`] is memory of the caller. With [`Options::unmount_at_end`], the call also
/// starts a child process, which a program that waits for all its children will see.
///
/// ```no_run
/// use memgroup::{Config, Hierarchy};
/// use memgroup_fuse::{Options, mount};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// hierarchy.create("/alice")?;
/// let mounted = mount(&hierarchy, "/run/myserver/groups", Options::new())?;
/// std::fs::write("/run/myserver/groups/alice/memory.max", "64M")?;
/// assert_eq!(hierarchy.lookup("/alice")?.max(), Some(64 << 20));
/// drop(mounted);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// There is no such directory, the system does not let this user mount, or another tree or a dead
/// file system of another kind is mounted there.
pub fn mount(hierarchy: &Hierarchy, path: impl AsRef<Path>, options: Options) -> Result<Mount, MountError> {
    let (path, hierarchy) = (path.as_ref(), hierarchy.clone());
    let (ready, began) = channel();
    let error = |problem| MountError { path: path.to_owned(), problem };
    let serve = {
        let path = path.to_owned();
        move || serve(&hierarchy, &path, &options, &ready)
    };
    // Everything is made on the serving thread, because the calling thread may be in a tenant's
    // scope.
    let thread = thread::Builder::new().name("memgroup-fuse".to_owned()).spawn(serve);
    let thread = thread.map_err(|failed| error(MountProblem::Session(failed)))?;
    match began.recv() {
        Ok(Ok((path, source))) => Ok(Mount { path, source, thread: Some(thread) }),
        Ok(Err(problem)) => {
            // Joined, so that its handle of the hierarchy is dropped.
            _ = thread.join();
            Err(error(problem))
        }
        Err(_) => Err(error(MountProblem::Session(io::Error::other("the thread that serves has ended")))),
    }
}

/// The path without links, and the source, which identifies this mount in the list of mounts.
type Place = (PathBuf, String);

/// Mounts the tree and serves it until the end.
fn serve(hierarchy: &Hierarchy, path: &Path, options: &Options, ready: &Sender<Result<Place, MountProblem>>) {
    match begin(hierarchy, path, options) {
        Ok((place, session, unmounter)) => {
            let is_heard = ready.send(Ok(place)).is_ok();
            if is_heard {
                // An error means that the connection is gone.
                _ = session.run();
            }
            drop(unmounter);
        }
        Err(problem) => drop(ready.send(Err(problem))),
    }
}

fn begin(
    hierarchy: &Hierarchy,
    path: &Path,
    options: &Options,
) -> Result<(Place, Session<Tree>, Option<attach::Unmounter>), MountProblem> {
    static MOUNTS: AtomicU64 = AtomicU64::new(0);

    let path = place::absolute(path)?;
    place::clear(&path)?;
    // ORDERING: Relaxed, because the number only has to differ for each mount.
    let source = format!("memgroup-{}-{}", std::process::id(), MOUNTS.fetch_add(1, Ordering::Relaxed));
    let mounter = Owner { uid: geteuid().as_raw(), gid: getegid().as_raw() };
    let tree = Tree::new(hierarchy, mounter).map_err(MountProblem::Session)?;
    // Started before the mount, so that at every moment something would unmount it.
    let start = || attach::Unmounter::start(&path, &source).map_err(MountProblem::Shell);
    let unmounter = options.unmount_at_end.then(start).transpose()?;
    let directory = place::open(&path)?;
    let connection = attach::attach(&place::in_proc(&directory), &path, &source, options.allow_other)?;
    let acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    let session = connection
        .try_clone()
        .and_then(|next| Session::from_fd(tree.looking(Row::new(next)), connection, acl, Config::default()));
    match session {
        Ok(session) => Ok(((path, source), session, unmounter)),
        Err(error) => {
            _ = place::end(&path, &source);
            Err(MountProblem::Session(error))
        }
    }
}

impl Mount {
    /// Returns the directory as an absolute path without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the tree is still mounted. Another program may unmount it.
    pub fn is_mounted(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Unmounts as the drop does, and returns the error if that fails.
    ///
    /// # Errors
    /// The system refused, or another file system covers the tree. The tree then stays mounted as
    /// long as the program runs.
    pub fn unmount(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let has_ended = place::end(&self.path, &self.source)?;
        if has_ended || thread.is_finished() {
            _ = thread.join();
        }
        // Otherwise the tree is served until the last descriptor is closed, because this user may
        // not end the connection.
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // After an error it stays mounted. A drop cannot report that.
        _ = self.end();
    }
}
