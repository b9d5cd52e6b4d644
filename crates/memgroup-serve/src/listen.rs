//! Listen: the Unix socket, created so that no other user can connect at any moment, and the TCP
//! address.
//!
//! - I1. A socket is bound in a new folder of mode 0700 beside its path, gets mode 0600, and is
//!   then moved to its path. So it never exists at its path with a wider mode.
//! - I2. A server holds a lock on `<path>.lock` while it lives. A server that doesn't get the lock
//!   leaves the socket alone. The operating system drops the lock when the process ends, however it
//!   ends. A lock file of another user is refused, because that user could hold the lock for ever.
//! - I3. With the lock held, an existing socket is replaced only if it refuses a connection, which
//!   shows that no server uses it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The longest path of a socket that all systems accept, minus the folder in which the socket is
/// bound.
const PATH_MAX: usize = 90;

/// The reason why a server does not listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another server has this socket.
    #[error("listen on {}: another server uses it; stop that one, or use another path", .0.display())]
    Taken(PathBuf),
    /// A file at this path is not a socket.
    #[error("listen on {}: a file that is no socket is there; remove it, or use another path", .0.display())]
    NoSocket(PathBuf),
    /// The lock file of the socket belongs to another user.
    #[error(
        "listen beside {}: the lock file belongs to user {owner}; put the socket in a folder where only this \
         user writes, such as XDG_RUNTIME_DIR",
        lock.display()
    )]
    ForeignLock {
        /// The path of the lock file.
        lock: PathBuf,
        /// The user id of the file's owner.
        owner: u32,
    },
    /// This path is too long for a socket.
    #[error(
        "listen on {}: the path has {} bytes, and a socket's has at most {PATH_MAX} here",
        .0.display(), .0.as_os_str().len()
    )]
    TooLong(PathBuf),
    /// Other machines can reach this address, and
    /// [`Serve::beyond_loopback`](crate::Serve::beyond_loopback) was not called.
    #[error(
        "listen on {0}: other machines can reach it, and nothing is encrypted; use 127.0.0.1 or [::1], or \
         allow it with Serve::beyond_loopback"
    )]
    BeyondLoopback(SocketAddr),
    /// The operating system refused a step: what was attempted, and the error.
    #[error("{0}: {1}{remedy}", remedy = remedy(.1))]
    Io(String, #[source] io::Error),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => ": another program listens there; use another port, or 0 for a free one",
        _ => "",
    }
}

/// Adds what was attempted to an error of the operating system.
fn doing<T>(result: io::Result<T>, act: impl FnOnce() -> String) -> Result<T, ListenError> {
    result.map_err(|error| ListenError::Io(act(), error))
}

/// A socket that is removed on drop, unless another one has replaced it.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    id: (u64, u64),
    _lock: Lock,
}

/// A lock on a file beside the socket. The file is removed together with the lock.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    file: File,
}

/// How often the lock file is opened if another program replaces it each time.
const TRIES: usize = 16;

impl Lock {
    /// Takes the lock of the socket at `socket`. Tests pass `between` to act when the file is open
    /// but not yet locked.
    fn take(socket: &Path, mut between: impl FnMut()) -> Result<Lock, ListenError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let listen = || format!("listen on {}", socket.display());
        for _ in 0..TRIES {
            // Checked before the file is opened, because in a folder that all users may write, the
            // system may refuse to open it.
            check_owner(&path, fs::symlink_metadata(&path).ok())?;
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                // `O_NONBLOCK`: opening a pipe without a reader fails at once.
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(&path);
            let file = doing(file, listen)?;
            let opened = doing(file.metadata(), listen)?;
            let id_opened = id_of(&opened);
            check_owner(&path, Some(opened))?;
            between();
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(ListenError::Taken(socket.to_owned())),
                Err(TryLockError::Error(error)) => return Err(ListenError::Io(listen(), error)),
            }
            // The previous holder may have removed the file after it was opened here.
            if id(&path).ok() == Some(id_opened) {
                return Ok(Lock { path, file });
            }
        }
        let replaced = format!(
            "another program replaced {} {TRIES} times; put the socket in a folder where only this user writes",
            path.display()
        );
        Err(ListenError::Io(listen(), io::Error::other(replaced)))
    }
}

/// Refuses a lock file of another user.
fn check_owner(lock: &Path, found: Option<fs::Metadata>) -> Result<(), ListenError> {
    let own = rustix::process::geteuid().as_raw();
    match found.map(|found| found.uid()).filter(|&owner| owner != own) {
        Some(owner) => Err(ListenError::ForeignLock { lock: lock.to_owned(), owner }),
        None => Ok(()),
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.path);
        let _open = self.file.unlock();
    }
}

fn id_of(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| id_of(&metadata))
}

impl Drop for Socket {
    fn drop(&mut self) {
        if id(&self.path).ok() == Some(self.id) {
            let _gone = fs::remove_file(&self.path);
        }
    }
}

/// A folder that is removed on drop.
struct Private(PathBuf);

impl Private {
    fn beside(path: &Path) -> io::Result<Private> {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        let folder = path.with_file_name(format!(".{:08x}", u32::from_ne_bytes(random)));
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Private(folder))
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _gone = fs::remove_file(self.0.join("s"));
        let _gone = fs::remove_dir(&self.0);
    }
}

/// Binds a Unix socket at `path`.
pub(crate) fn unix(path: &Path) -> Result<(UnixListener, Socket), ListenError> {
    let listen = || format!("listen on {}", path.display());
    if path.as_os_str().len() > PATH_MAX {
        return Err(ListenError::TooLong(path.to_owned()));
    }
    let lock = Lock::take(path, || ())?;
    check_free(path)?;
    let private = doing(Private::beside(path), listen)?;
    let bound = private.0.join("s");
    let listener = doing(UnixListener::bind(&bound), listen)?;
    doing(fs::set_permissions(&bound, Permissions::from_mode(0o600)), listen)?;
    doing(listener.set_nonblocking(true), listen)?;
    let id = doing(id(&bound), listen)?;
    doing(fs::rename(&bound, path), listen)?;
    Ok((listener, Socket { path: path.to_owned(), id, _lock: lock }))
}

/// Checks that a socket may be put at the path: nothing is there, or a socket that no server uses.
fn check_free(path: &Path) -> Result<(), ListenError> {
    let listen = || format!("listen on {}", path.display());
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => {
            if !doing(found, listen)?.file_type().is_socket() {
                return Err(ListenError::NoSocket(path.to_owned()));
            }
        }
    }
    match answers(path) {
        Ok(true) => Err(ListenError::Taken(path.to_owned())),
        Ok(false) => Ok(()),
        Err(error) => Err(ListenError::Io(listen(), error)),
    }
}

/// Returns whether a server uses the socket. A server that accepts nothing and has a full queue
/// counts.
fn answers(path: &Path) -> io::Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    match runtime.block_on(tokio::net::UnixStream::connect(path)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Binds a TCP address.
pub(crate) fn tcp(
    address: SocketAddr,
    beyond_loopback: bool,
) -> Result<(std::net::TcpListener, SocketAddr), ListenError> {
    if !address.ip().is_loopback() && !beyond_loopback {
        return Err(ListenError::BeyondLoopback(address));
    }
    let listen = || format!("listen on {address}");
    let listener = doing(std::net::TcpListener::bind(address), listen)?;
    doing(listener.set_nonblocking(true), listen)?;
    let bound = doing(listener.local_addr(), listen)?;
    Ok((listener, bound))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn makes_a_socket_for_its_owner_and_removes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        let (listener, socket) = unix(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(names(folder.path()), ["m.sock", "m.sock.lock"]);
        UnixStream::connect(&path).unwrap();
        drop((listener, socket));
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn leaves_the_socket_of_a_server_that_lives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        let first = unix(&path).unwrap();
        assert!(matches!(unix(&path).unwrap_err(), ListenError::Taken(_)));
        drop(first);
        let foreign = UnixListener::bind(&path).unwrap();
        assert!(matches!(unix(&path).unwrap_err(), ListenError::Taken(_)), "it has no lock, and answers");
        drop(foreign);
        assert!(path.exists());
        // While it listens, no other file gets the number of its inode.
        let (_listener, socket) = unix(&path).unwrap();
        assert_eq!(names(folder.path()), ["m.sock", "m.sock.lock"], "a stale socket was replaced");
        // Another server took the path by force: its socket stays.
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert_eq!(names(folder.path()), ["m.sock"]);
    }

    #[test]
    fn leaves_other_files_and_links_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&path, "data").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for path in [&path, &link] {
            assert!(matches!(unix(path).unwrap_err(), ListenError::NoSocket(_)));
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
        let error = unix(&folder.path().join("missing/m.sock")).unwrap_err().to_string();
        assert!(error.starts_with("listen on ") && error.contains("missing/m.sock: "), "{error}");
        let long = folder.path().join("x".repeat(100));
        assert!(matches!(unix(&long).unwrap_err(), ListenError::TooLong(_)));
    }

    #[test]
    fn refuses_a_lock_file_of_another_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        let lock = folder.path().join("m.sock.lock");
        fs::write(&lock, "").unwrap();
        if std::os::unix::fs::chown(&lock, Some(65_534), None).is_err() {
            println!("SKIPPED: this user cannot give a file away");
            return;
        }
        // That user holds it, or not.
        let held = File::open(&lock).unwrap();
        for _ in 0..2 {
            let error = unix(&path).unwrap_err();
            assert!(matches!(error, ListenError::ForeignLock { owner: 65_534, .. }), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("m.sock.lock: the lock file belongs to user 65534; put the socket"),
                "{text}"
            );
            held.lock().unwrap();
        }
        assert_eq!(names(folder.path()), ["m.sock.lock"], "it is left alone");
    }

    #[test]
    fn a_lock_file_that_is_replaced_again_and_again_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        let other = folder.path().join("other");
        let mut times = 0;
        let error = Lock::take(&path, || {
            times += 1;
            fs::write(&other, "").unwrap();
            fs::rename(&other, folder.path().join("m.sock.lock")).unwrap();
        });
        let text = error.unwrap_err().to_string();
        assert!(text.contains("m.sock.lock 16 times; put the socket"), "{text}");
        assert_eq!(times, TRIES);
        // Replaced once, as by a server that ends.
        let mut is_new = true;
        let taken = Lock::take(&path, || {
            if std::mem::take(&mut is_new) {
                fs::remove_file(folder.path().join("m.sock.lock")).unwrap();
            }
        });
        drop(taken.unwrap());
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn a_full_queue_counts_as_a_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = runtime.block_on(tokio::net::UnixStream::connect(&path)) {
            waiting.push(stream);
        }
        assert!(matches!(unix(&path).unwrap_err(), ListenError::Taken(_)));
    }

    #[test]
    fn refuses_an_address_that_others_reach() {
        let error = tcp(([0, 0, 0, 0], 0).into(), false).unwrap_err();
        assert!(error.to_string().contains("Serve::beyond_loopback"), "{error}");
        assert!(tcp(([0, 0, 0, 0], 0).into(), true).is_ok());
        let (_listener, bound) = tcp(([127, 0, 0, 1], 0).into(), false).unwrap();
        assert!(tcp(bound, false).unwrap_err().to_string().starts_with(&format!("listen on {bound}: ")));
    }
}
