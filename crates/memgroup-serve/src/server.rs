//! Server: the thread with its runtime, from the start to the stop.
//!
//! - I1. Everything that the server runs is polled in its group ([`InGroupExt`]), so that allocations and time are charged there. Between two polls
//!   the thread is in no group: a thread in one counts as at work, and would hide `full` pressure.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use memgroup::{Hierarchy, OwnedGroup};
use memgroup_tokio::InGroupExt as _;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;

use crate::access::{Access, Peer};
use crate::account::Account;
use crate::actions::Actions;
use crate::answer;
use crate::app::App;
use crate::config::Serve;
use crate::conn::{Conn, Tracked};
use crate::listen::{self, ListenError, Socket};
use crate::sampler::Sampler;
use crate::token::Token;

/// The most bytes of the head of a request, and of an answer that wait in a connection.
const BUFFER: usize = 16 << 10;
/// The most headers of a request.
const HEADERS: usize = 64;
/// The reason why a server was not started.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The server cannot listen.
    Listen(ListenError),
    /// The server's group cannot be created.
    Group(memgroup::GroupError),
    /// The server's group cannot have the limit or the protection.
    Limit(String),
    /// The server's group has no room for the server: the refusal.
    Memory(String),
    /// The system refuses a thread, or random numbers: the act, and the error.
    Io(String, std::io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed to start the server: ")?;
        match self {
            StartError::Listen(error) => error.fmt(f),
            StartError::Group(error) => error.fmt(f),
            StartError::Limit(error) | StartError::Memory(error) => f.write_str(error),
            StartError::Io(act, error) => write!(f, "{act}: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ListenError> for StartError {
    fn from(error: ListenError) -> StartError {
        StartError::Listen(error)
    }
}

/// A running server; from [`start`]. Dropping it stops it, as [`stop`](Server::stop) does.
#[derive(Debug)]
#[must_use = "dropping it stops the server"]
pub struct Server {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    address: Option<SocketAddr>,
    socket: Option<PathBuf>,
    token: Option<Token>,
    /// Dropped last: the group is removed when nothing of the server is charged any more.
    _group: OwnedGroup,
}

/// Serves the figures and files of `hierarchy` on a thread of its own, until the returned value is stopped or dropped.
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
/// A listener cannot be made, or the system refuses a thread or random numbers. Or the server's group cannot be created or limited, or has no room. Nothing is
/// left behind then.
pub fn start(hierarchy: &Hierarchy, mut serve: Serve) -> Result<Server, StartError> {
    let owned = hierarchy.get_or_create_owned(&serve.group).map_err(StartError::Group)?;
    let group = (*owned).clone();
    group.set_max(serve.max_bytes).map_err(|error| StartError::Limit(error.to_string()))?;
    group.set_min(serve.min_bytes).map_err(|error| StartError::Limit(error.to_string()))?;
    let account = Account { group };
    if serve.tcp.is_some() && serve.token.is_none() {
        let token = Token::random().map_err(|error| StartError::Io("make a token".to_owned(), error))?;
        serve.token = Some(token);
    }
    let token = serve.token.clone();
    let (stop, stopped) = watch::channel(false);
    let (tell, told) = mpsc::sync_channel(1);
    let hierarchy = hierarchy.clone();
    let niceness = serve.niceness;
    let run = move || match bind(&serve, niceness) {
        Ok((runtime, listeners, actions)) => {
            let (address, socket) = (listeners.address(), listeners.socket());
            let access = Access::new(&serve, address);
            let made = App::new(hierarchy, serve, account, access, actions).and_then(|app| {
                let app = Arc::new(app);
                Sampler::new(&app).map(|sampler| (app, sampler))
            });
            let (app, sampler) = match made {
                Ok(made) => made,
                Err(error) => {
                    let _told = tell.send(Err(StartError::Memory(error.to_string())));
                    return;
                }
            };
            // The caller waits for this.
            let _told = tell.send(Ok((address, socket)));
            let group = app.account.group.clone();
            runtime.block_on(listeners.run(app, sampler, stopped).in_group(&group));
            // With its tasks go the connections, and then the threads of control actions.
            drop(runtime);
        }
        Err(error) => {
            let _told = tell.send(Err(error));
        }
    };
    let thread = std::thread::Builder::new().name("memgroup-serve".to_owned()).spawn(run);
    let thread = thread.map_err(|error| StartError::Io("start a thread".to_owned(), error))?;
    let listening = told.recv();
    match listening {
        Ok(Ok((address, socket))) => {
            Ok(Server { stop, thread: Some(thread), address, socket, token, _group: owned })
        }
        Ok(Err(error)) => {
            let _ended = thread.join();
            Err(error)
        }
        Err(_) => {
            let panic = std::io::Error::other("the thread panicked");
            Err(StartError::Io("start a thread".to_owned(), panic))
        }
    }
}

/// Binds the listeners, starts the threads for control actions, and then lowers the priority of this thread.
fn bind(
    serve: &Serve,
    niceness: i32,
) -> Result<(tokio::runtime::Runtime, Listeners, Option<Actions>), StartError> {
    let (runtime, listeners) = Listeners::bind(serve)?;
    let has_control = serve.control_unix || serve.control_token.is_some();
    let actions = has_control.then(Actions::start).transpose();
    let actions =
        actions.map_err(|error| StartError::Io("start the threads of control actions".to_owned(), error))?;
    be_nice(niceness);
    Ok((runtime, listeners, actions))
}

/// Lowers the priority of this thread, and of those that it starts. Where the system refuses that, they keep their priority.
#[cfg(target_os = "linux")]
fn be_nice(niceness: i32) {
    if niceness > 0 {
        _ = rustix::process::nice(niceness);
    }
}

#[cfg(not(target_os = "linux"))]
fn be_nice(_: i32) {}

impl Server {
    /// The address of the TCP listener, with the port that the system chose for port 0. `None` without one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The path of the Unix socket. `None` without one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The token for reading by TCP, from [`Serve::token`](crate::Serve::token) or random. `None` without both. Show it to the operator only.
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// The address of the page for a browser, with the token in its fragment, which browsers do not send. `None` without a TCP listener.
    ///
    /// For a page that may control, put the token of [`Control::Token`](crate::Control::Token) there instead.
    #[must_use]
    pub fn page(&self) -> Option<String> {
        let (address, token) = (self.address?, self.token.as_ref()?);
        Some(format!("http://{address}/#token={}", token.secret()))
    }

    /// Stops the server. It closes all connections, removes the socket, waits for the thread, and removes the server's group if the server made it.
    ///
    /// It waits up to five seconds for a control action that is under way, such as one that calls shrinkers.
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
    unix: Option<(UnixListener, Socket)>,
    tcp: Option<(TcpListener, SocketAddr)>,
    uid: u32,
}

impl Listeners {
    /// Makes the runtime, and binds the listeners to it.
    fn bind(serve: &Serve) -> Result<(tokio::runtime::Runtime, Listeners), StartError> {
        let doing = |act: &str| {
            let act = act.to_owned();
            |error| StartError::Io(act, error)
        };
        let unix = serve.unix.as_deref().map(listen::unix).transpose()?;
        let tcp = serve.tcp.map(|address| listen::tcp(address, serve.beyond_loopback)).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(doing("start a runtime"))?;
        let entered = runtime.enter();
        let unix = unix
            .map(|(listener, socket)| UnixListener::from_std(listener).map(|listener| (listener, socket)))
            .transpose()
            .map_err(doing("listen on the socket"))?;
        let tcp = tcp
            .map(|(listener, address)| TcpListener::from_std(listener).map(|listener| (listener, address)))
            .transpose()
            .map_err(doing("listen on the address"))?;
        let own = UnixStream::pair().and_then(|(one, _)| one.peer_cred());
        let uid = own.map_err(doing("ask for the user of the process"))?.uid();
        drop(entered);
        Ok((runtime, Listeners { unix, tcp, uid }))
    }

    fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|(_, address)| *address)
    }

    fn socket(&self) -> Option<PathBuf> {
        self.unix.as_ref().map(|(_, socket)| socket.path.clone())
    }

    /// Accepts connections until the server is stopped.
    async fn run(self, app: Arc<App>, sampler: Sampler, mut stopped: watch::Receiver<bool>) {
        let until = stopped.clone();
        let serve = async {
            loop {
                app.pace.turn().await;
                tokio::select! {
                    Some(accepted) = accept_unix(self.unix.as_ref().map(|(listener, _)| listener), self.uid) => {
                        admit(&app, accepted, &until).await;
                    }
                    Some(accepted) = accept_tcp(self.tcp.as_ref().map(|(listener, _)| listener)) => {
                        admit(&app, accepted, &until).await;
                    }
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

async fn accept_unix(
    listener: Option<&UnixListener>,
    own: u32,
) -> Option<std::io::Result<(UnixStream, Peer)>> {
    let accepted = listener?.accept().await;
    Some(accepted.and_then(|(stream, _)| {
        let other = stream.peer_cred()?;
        let is_allowed = [own, 0].contains(&other.uid());
        Ok((stream, Peer::Unix { uid: other.uid(), pid: other.pid(), is_allowed }))
    }))
}

async fn accept_tcp(
    listener: Option<&TcpListener>,
) -> Option<std::io::Result<(tokio::net::TcpStream, Peer)>> {
    let accepted = listener?.accept().await;
    Some(accepted.and_then(|(stream, address)| {
        stream.set_nodelay(true)?;
        Ok((stream, Peer::Tcp(address)))
    }))
}

/// Serves a connection, if there is room for one.
async fn admit<T>(app: &Arc<App>, accepted: std::io::Result<(T, Peer)>, stopped: &watch::Receiver<bool>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let Ok((stream, peer)) = accepted else {
        // The process may have no file descriptor left. The connection waits in the queue of the system.
        return tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let Some(conn) = app.conns.admit(app.serve.connections).await else { return };
    conn.set_right(matches!(peer, Peer::Unix { is_allowed: true, .. }));
    let served = serve(Arc::clone(app), stream, peer, conn, stopped.clone());
    tokio::spawn(served.in_group(&app.account.group));
    // Its request may be there already.
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
        // An error is the client's, which is gone.
        _ = connection => {}
        () = conn.until_cut(&app.serve.times) => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    app.conns.remove(&conn);
}
