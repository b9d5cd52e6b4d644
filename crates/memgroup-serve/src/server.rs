//! Server: the thread with its runtime, from the start to the stop.
//!
//! - I1. Everything that the server runs is polled in its group (`InGroupExt`), so that allocations
//!   and time are charged there. Between two polls the thread is in no group: a thread in a group
//!   counts as working, and would hide `full` pressure.
//!
//! The promises of the server, and the code that keeps each one:
//!
//! | promise | kept by |
//! |---|---|
//! | bounded connections; strangers are replaced first | `Conns::admit`, `List::victim` |
//! | deadlines for slow clients | `Conn::until_cut`; for bodies `control::read_body` |
//! | a client that does not read gives its memory back | `answer::with_room`, `Conns::cut_stalled` |
//! | bounded requests | `serve` (head), `control::read_body` (body), `route::query` |
//! | memory of connections is charged before it is allocated | `App::new` |
//! | memory of answers, too | `Account`, `Chunks`, `snapshots::take`, `Ring`, `Series` |
//! | answers are made as fast as the client reads | `AnswerBody`, `Tree::pop`, `Stream::run` |
//! | a share of one CPU, with rests | `Pace::turn_of`, `Pace::settle`, `Pace::rest` |
//! | bounded checks of the tree | `Sampler::look`, `Pace::exempt` |
//! | control while no thread can be started, or one hangs | `Actions::start`, `Actions::run` |
//! | a right before any figure | `answer::admitted`, `Access::check` |
//! | a socket that no other user can open or take | `listen::unix`, `Lock::take` |
//! | a stop that leaves nothing behind | `Server::drop`, `Socket::drop`, `Actions::drop` |
//!
//! hyper keeps none of these except the limit of a head: its timer covers only the head, and a
//! graceful shutdown waits for clients instead of ending them. Limits of `tower` bound requests,
//! not connections or bytes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use memgroup::{ChargeError, Hierarchy, OwnedGroup};
use memgroup_tokio::InGroupExt as _;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::access::{Access, Peer};
use crate::account::Account;
use crate::actions::Actions;
use crate::answer;
use crate::app::App;
use crate::config::Serve;
use crate::config::Token;
use crate::conn::{Conn, Tracked};
use crate::listen::{self, ListenError, Socket};
use crate::sampler::Sampler;

/// The most bytes of a request's head, and of an answer that wait in a connection.
const BUFFER: usize = 16 << 10;
/// The most headers of a request.
const HEADERS: usize = 64;

/// The reason why a server was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The server cannot listen.
    #[error("failed to start the server: {0}")]
    Listen(ListenError),
    /// The server's group cannot be created.
    #[error("failed to start the server: {0}")]
    Group(memgroup::GroupError),
    /// The server's group cannot have the limit or the protection.
    #[error("failed to start the server: {0}")]
    Limit(String),
    /// The server's group has no room for the server; the text is the refusal.
    #[error("failed to start the server: {0}")]
    Memory(String),
    /// The operating system refused a thread or random numbers: what was attempted, and the error.
    #[error("failed to start the server: {0}: {1}")]
    Io(String, std::io::Error),
}

/// Makes an error of the operating system into that of a start.
fn doing(act: &str) -> impl FnOnce(std::io::Error) -> StartError {
    move |error| StartError::Io(act.to_owned(), error)
}

/// A running server; from [`start`]. Dropping it stops the server, as [`stop`](Server::stop) does.
#[derive(Debug)]
#[must_use = "dropping it stops the server"]
pub struct Server {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    address: Option<SocketAddr>,
    socket: Option<PathBuf>,
    token: Option<Token>,
    /// Dropped last, because the group can only be removed when nothing of the server is charged
    /// any more.
    _group: OwnedGroup,
}

/// Serves the figures and files of `hierarchy` on a thread of its own, until the returned value is
/// stopped or dropped.
///
/// ```
/// use memgroup::{Config, Hierarchy};
/// use memgroup_serve::Serve;
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let folder = tempfile::tempdir()?;
/// let server = memgroup_serve::start(&hierarchy, Serve::unix(folder.path().join("memgroup.sock")))?;
/// // `curl --unix-socket .../memgroup.sock http://localhost/metrics`
/// server.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A listener cannot be made, the system refuses a thread or random numbers, or the server's group
/// cannot be created or limited or has no room. Nothing is left behind in these cases.
pub fn start(hierarchy: &Hierarchy, mut serve: Serve) -> Result<Server, StartError> {
    let owned = hierarchy.get_or_create_owned(&serve.group).map_err(StartError::Group)?;
    let group = (*owned).clone();
    group.set_max(serve.max_bytes).map_err(|error| StartError::Limit(error.to_string()))?;
    group.set_min(serve.min_bytes).map_err(|error| StartError::Limit(error.to_string()))?;
    if serve.tcp.is_some() && serve.token.is_none() {
        serve.token = Some(Token::random().map_err(doing("make a token"))?);
    }
    let token = serve.token.clone();
    let (stop, stopped) = watch::channel(false);
    let (tell, told) = mpsc::sync_channel(1);
    let hierarchy = hierarchy.clone();
    // All of it happens on the new thread: the caller may be inside another runtime, where a
    // runtime can neither block nor be dropped.
    let run = move || match prepare(hierarchy, serve, Account { group }) {
        Ok((runtime, listeners, app, sampler)) => {
            // The caller waits for this message.
            let _told = tell.send(Ok((listeners.address, listeners.socket.as_ref().map(|s| s.path.clone()))));
            let group = app.account.group.clone();
            runtime.block_on(listeners.run(app, sampler, stopped).in_group(&group));
            // The connections end with the runtime's tasks, and then the threads of control
            // actions.
            drop(runtime);
        }
        Err(error) => _ = tell.send(Err(error)),
    };
    let thread = std::thread::Builder::new().name("memgroup-serve".to_owned()).spawn(run);
    let thread = thread.map_err(doing("start a thread"))?;
    let panicked = || doing("start a thread")(std::io::Error::other("the thread panicked"));
    match told.recv().unwrap_or_else(|_| Err(panicked())) {
        Ok((address, socket)) => {
            Ok(Server { stop, thread: Some(thread), address, socket, token, _group: owned })
        }
        Err(error) => {
            let _ended = thread.join();
            Err(error)
        }
    }
}

/// Binds the listeners, starts the threads for control actions, lowers the priority of this thread,
/// and makes what requests share.
fn prepare(
    hierarchy: Hierarchy,
    serve: Serve,
    account: Account,
) -> Result<(Runtime, Listeners, Arc<App>, Sampler), StartError> {
    let (runtime, listeners) = Listeners::bind(&serve)?;
    let has_control = serve.control_unix || serve.control_token.is_some();
    let actions = has_control.then(Actions::start).transpose();
    let actions = actions.map_err(doing("start the threads of control actions"))?;
    // Only Linux has a niceness for each thread. If the system refuses, the priority stays as it
    // is.
    if cfg!(target_os = "linux") && serve.niceness > 0 {
        _ = rustix::process::nice(serve.niceness);
    }
    let access = Access::new(&serve, listeners.address);
    let memory = |error: ChargeError| StartError::Memory(error.to_string());
    let app = Arc::new(App::new(hierarchy, serve, account, access, actions).map_err(memory)?);
    let sampler = Sampler::new(&app).map_err(memory)?;
    Ok((runtime, listeners, app, sampler))
}

impl Server {
    /// Returns the address of the TCP listener, with the port that the system chose for port 0, or
    /// `None` without a listener.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the path of the Unix socket, or `None` without one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Returns the token for reading by TCP, which is random unless
    /// [`Serve::token`](crate::Serve::token) was called. Returns `None` if there is no token. Show
    /// it only to the operator.
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Returns the address of the page for a browser, or `None` without a TCP listener. The token
    /// is in the fragment of the address, which browsers do not send.
    ///
    /// For a page that may control, replace it with the token of
    /// [`Control::Token`](crate::Control::Token).
    #[must_use]
    pub fn page(&self) -> Option<String> {
        let (address, token) = (self.address?, self.token.as_ref()?);
        Some(format!("http://{address}/#token={}", token.secret()))
    }

    /// Stops the server. It closes all connections, removes the socket, waits for the thread, and
    /// removes the server's group if the server made it.
    ///
    /// It waits up to five seconds for a running control action, such as one that calls shrinkers.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// The listeners of a server.
struct Listeners {
    unix: Option<UnixListener>,
    tcp: Option<TcpListener>,
    socket: Option<Socket>,
    address: Option<SocketAddr>,
}

impl Listeners {
    /// Makes the runtime, and binds the listeners to it.
    fn bind(serve: &Serve) -> Result<(Runtime, Listeners), StartError> {
        let unix = serve.unix.as_deref().map(listen::unix).transpose();
        let (unix, socket) = unix.map_err(StartError::Listen)?.unzip();
        let tcp = serve.tcp.map(|address| listen::tcp(address, serve.beyond_loopback)).transpose();
        let (tcp, address) = tcp.map_err(StartError::Listen)?.unzip();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(doing("start a runtime"))?;
        let entered = runtime.enter();
        let unix = unix.map(UnixListener::from_std).transpose().map_err(doing("listen on the socket"))?;
        let tcp = tcp.map(TcpListener::from_std).transpose().map_err(doing("listen on the address"))?;
        drop(entered);
        Ok((runtime, Listeners { unix, tcp, socket, address }))
    }

    /// Accepts connections until the server is stopped.
    async fn run(self, app: Arc<App>, sampler: Sampler, mut stopped: watch::Receiver<bool>) {
        let until = stopped.clone();
        let serve = async {
            loop {
                app.pace.turn().await;
                tokio::select! {
                    Some(accepted) = accept_unix(self.unix.as_ref()) => admit(&app, accepted, &until).await,
                    Some(accepted) = accept_tcp(self.tcp.as_ref()) => admit(&app, accepted, &until).await,
                    else => std::future::pending().await,
                }
            }
        };
        tokio::spawn(sampler.run().in_group(&app.account.group));
        tokio::select! {
            () = serve => {}
            // The sender lives as long as the server.
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
    }
}

type Accepted<T> = std::io::Result<(T, Peer)>;

async fn accept_unix(listener: Option<&UnixListener>) -> Option<Accepted<UnixStream>> {
    let accepted = listener?.accept().await;
    Some(accepted.and_then(|(stream, _)| {
        let (own, other) = (rustix::process::geteuid().as_raw(), stream.peer_cred()?);
        let is_allowed = [own, 0].contains(&other.uid());
        Ok((stream, Peer::Unix { uid: other.uid(), pid: other.pid(), is_allowed }))
    }))
}

async fn accept_tcp(listener: Option<&TcpListener>) -> Option<Accepted<tokio::net::TcpStream>> {
    let accepted = listener?.accept().await;
    Some(accepted.and_then(|(stream, address)| {
        stream.set_nodelay(true)?;
        Ok((stream, Peer::Tcp(address)))
    }))
}

/// Serves a connection, if there is room for one.
async fn admit<T>(app: &Arc<App>, accepted: Accepted<T>, stopped: &watch::Receiver<bool>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let Ok((stream, peer)) = accepted else {
        // The process may have no file descriptor left. The connection waits in the system's queue.
        return tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let Some(conn) = app.conns.admit(app.serve.connections).await else { return };
    conn.set_right(matches!(peer, Peer::Unix { is_allowed: true, .. }));
    let served = serve(Arc::clone(app), stream, peer, conn, stopped.clone());
    tokio::spawn(served.in_group(&app.account.group));
    // Its request may have arrived already, so let its task run.
    tokio::task::yield_now().await;
}

async fn serve<T>(app: Arc<App>, stream: T, peer: Peer, conn: Arc<Conn>, mut stopped: watch::Receiver<bool>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        let (app, conn) = (Arc::clone(&app), Arc::clone(&conn));
        async move { Ok::<_, std::convert::Infallible>(answer::answer(app, conn, peer, request).await) }
    });
    let io = Tracked { inner: TokioIo::new(stream), conn: Arc::clone(&conn), pace: Arc::clone(&app.pace) };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(app.serve.times.idle);
    http.max_buf_size(BUFFER).max_headers(HEADERS);
    let connection = http.serve_connection(io, service);
    tokio::select! {
        // An error means that the client is gone.
        _ = connection => {}
        () = conn.until_cut(&app.serve.times) => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    app.conns.remove(&conn);
}
