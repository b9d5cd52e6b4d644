//! Connections: how many there are, how long each may take, and which one is cut when there is no
//! room.
//!
//! ```text
//!           head read            body read              answer ready             answer written
//!   Waiting ──────────▶ Reading ──────────▶ Answering ────────────▶ Sending ──────────────────▶ Waiting
//!      │ idle, head        │ body                                      │ write, answer
//!      └──────── cut ◀─────┴───────────────────────────────────────────┘
//! ```
//!
//! - I1. There are never more connections than allowed. A new one replaces a client that has shown
//!   no right, the oldest first; then one that hasn't sent its whole request; then one that doesn't
//!   read its answer. If there is none of these, the new connection is refused.
//! - I2. Every state except `Answering` has a deadline. The handler enforces that of `Reading`.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::config::Times;
use crate::pace::Pace;

/// A new connection isn't closed to make room for another during this time, because a client sends
/// its request soon after it has connected.
const GRACE: Duration = Duration::from_millis(10);

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for a request.
    Waiting,
    /// A handler reads the body of the request, and enforces the deadline itself.
    Reading,
    /// A handler works.
    Answering,
    /// An answer is being sent. A stream of events has no deadline as a whole.
    Sending { is_stream: bool },
}

#[derive(Debug)]
struct State {
    opened: Instant,
    phase: Phase,
    /// When the phase began.
    since: Instant,
    /// When the first byte of a request that is not yet complete arrived.
    head_since: Option<Instant>,
    /// When the client stopped accepting bytes of the answer.
    stalled_since: Option<Instant>,
    /// Whether its last request had a right. Before the first request: whether its user may
    /// connect.
    has_right: bool,
}

/// One connection, shared by the table, its input and output, and its handlers.
#[derive(Debug)]
pub(crate) struct Conn {
    number: u64,
    state: Mutex<State>,
    cut: Notify,
}

impl Conn {
    pub(crate) fn enter(&self, phase: Phase) {
        let mut state = self.state.lock();
        (state.phase, state.since) = (phase, Instant::now());
        if phase != Phase::Waiting {
            state.head_since = None;
        }
    }

    /// Notes whether the request has a right.
    pub(crate) fn set_right(&self, has_right: bool) {
        self.state.lock().has_right = has_right;
    }

    /// Returns the time at which the current phase must have ended.
    fn deadline(&self, times: &Times) -> Option<Instant> {
        let state = self.state.lock();
        let stalled = state.stalled_since.map(|since| since + times.write);
        let phase = match state.phase {
            Phase::Waiting => match state.head_since {
                Some(since) => Some(since + times.head),
                None => Some(state.since + times.idle),
            },
            Phase::Reading | Phase::Answering | Phase::Sending { is_stream: true } => None,
            Phase::Sending { is_stream: false } => Some(state.since + times.answer),
        };
        stalled.into_iter().chain(phase).min()
    }

    /// Returns when the connection must be cut.
    pub(crate) async fn until_cut(&self, times: &Times) {
        let shortest = [times.head, times.body, times.idle, times.write, times.answer].into_iter().min();
        let pause = (shortest.unwrap_or_default() / 4).max(Duration::from_millis(1));
        let mut cut = std::pin::pin!(self.cut.notified());
        loop {
            let now = Instant::now();
            let deadline = self.deadline(times);
            if deadline.is_some_and(|deadline| deadline <= now) {
                return;
            }
            // A new phase may have a nearer deadline.
            let look = (now + pause).min(deadline.unwrap_or(now + pause));
            tokio::select! {
                () = &mut cut => return,
                () = sleep_until(look) => {}
            }
        }
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Conns {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    open: BTreeMap<u64, Arc<Conn>>,
}

impl Conns {
    /// Adds a connection. If there are `most` already, it cuts another one, after that one's grace
    /// time. Returns `None` if none may be cut.
    pub(crate) async fn admit(&self, most: usize) -> Option<Arc<Conn>> {
        loop {
            match self.add(most) {
                Ok(conn) => return Some(conn),
                Err(None) => return None,
                Err(Some(later)) => sleep_until(later).await,
            }
        }
    }

    /// Returns the connection that was added. If that is not possible yet, returns the time at
    /// which it will be, or `None` if no other connection may be cut.
    fn add(&self, most: usize) -> Result<Arc<Conn>, Option<Instant>> {
        let mut list = self.list.lock();
        if list.open.len() >= most {
            let (since, victim) = list.victim().ok_or(None)?;
            if since + GRACE > Instant::now() {
                return Err(Some(since + GRACE));
            }
            list.cut(victim);
        }
        let number = list.next;
        list.next += 1;
        let (phase, opened) = (Phase::Waiting, Instant::now());
        let state =
            State { opened, phase, since: opened, head_since: None, stalled_since: None, has_right: false };
        let conn = Arc::new(Conn { number, state: Mutex::new(state), cut: Notify::new() });
        list.open.insert(number, Arc::clone(&conn));
        Ok(conn)
    }

    pub(crate) fn remove(&self, conn: &Conn) {
        self.list.lock().open.remove(&conn.number);
    }

    /// Cuts the connection that has read nothing of its answer for the longest time. Returns
    /// `false` if there is none.
    pub(crate) fn cut_stalled(&self) -> bool {
        let mut list = self.list.lock();
        let Some((_, victim)) = list.stalled() else { return false };
        list.cut(victim);
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.list.lock().open.len()
    }
}

impl List {
    /// Returns the earliest of the times that the connections have, and its connection.
    fn earliest(&self, time: impl Fn(&State) -> Option<Instant>) -> Option<(Instant, u64)> {
        self.open.values().filter_map(|conn| Some((time(&conn.state.lock())?, conn.number))).min()
    }

    fn stalled(&self) -> Option<(Instant, u64)> {
        self.earliest(|state| state.stalled_since)
    }

    /// Returns the next connection to be cut, and the time at which its grace began. A stranger
    /// gains no further grace by sending requests.
    fn victim(&self) -> Option<(Instant, u64)> {
        let stranger = || self.earliest(|state| (!state.has_right).then_some(state.opened));
        let is_silent = |state: &State| matches!(state.phase, Phase::Waiting | Phase::Reading);
        let idle = || self.earliest(|state| is_silent(state).then_some(state.since));
        stranger().or_else(idle).or_else(|| self.stalled())
    }

    fn cut(&mut self, number: u64) {
        if let Some(conn) = self.open.remove(&number) {
            conn.cut.notify_one();
        }
    }
}

/// The input and output of a connection. It settles CPU time with the server's pace, and records
/// progress for the table.
#[derive(Debug)]
pub(crate) struct Tracked<T> {
    pub(crate) inner: T,
    pub(crate) conn: Arc<Conn>,
    pub(crate) pace: Arc<Pace>,
}

impl<T: Read + Unpin> Read for Tracked<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.pace.settle();
        if polled.is_ready() {
            let mut state = self.conn.state.lock();
            if state.phase == Phase::Waiting && state.head_since.is_none() {
                state.head_since = Some(Instant::now());
            }
        }
        polled
    }
}

impl<T> Tracked<T> {
    fn wrote(&self, polled: &Poll<io::Result<usize>>) {
        self.pace.settle();
        let mut state = self.conn.state.lock();
        state.stalled_since = match polled {
            Poll::Pending => state.stalled_since.or_else(|| Some(Instant::now())),
            Poll::Ready(_) => None,
        };
    }
}

impl<T: Write + Unpin> Write for Tracked<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.wrote(&polled);
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.wrote(&polled);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn table(count: usize) -> (Conns, Vec<Arc<Conn>>) {
        let (conns, mut open) = (Conns::default(), Vec::new());
        for _ in 0..count {
            open.push(conns.admit(count).await.unwrap());
        }
        (conns, open)
    }

    fn is_cut(conns: &Conns, conn: &Conn) -> bool {
        !conns.list.lock().open.contains_key(&conn.number)
    }

    #[tokio::test(start_paused = true)]
    async fn cuts_strangers_first_then_the_idle_then_those_that_do_not_read() {
        let (conns, open) = table(4).await;
        for conn in &open[1..] {
            conn.set_right(true);
        }
        open[1].enter(Phase::Answering);
        open[2].enter(Phase::Answering);
        let newcomer = conns.admit(4).await.unwrap();
        assert!(is_cut(&conns, &open[0]), "it has shown no right");
        newcomer.set_right(true);
        newcomer.enter(Phase::Answering);
        let newcomer = conns.admit(4).await.unwrap();
        assert!(is_cut(&conns, &open[3]), "it waits");
        newcomer.set_right(true);
        newcomer.enter(Phase::Answering);
        assert!(conns.admit(4).await.is_none(), "all work");
        open[2].state.lock().stalled_since = Some(Instant::now());
        conns.admit(4).await.unwrap();
        assert!(is_cut(&conns, &open[2]) && !is_cut(&conns, &open[1]));
        assert_eq!(conns.len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_has_time_to_send_its_request() {
        let (conns, open) = table(1).await;
        let began = Instant::now();
        conns.admit(1).await.unwrap();
        assert!(is_cut(&conns, &open[0]) && began.elapsed() >= GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_a_stranger_keep_no_other_client_out() {
        let (conns, open) = table(1).await;
        let requests = async {
            loop {
                open[0].enter(Phase::Answering);
                open[0].enter(Phase::Waiting);
                tokio::time::sleep(GRACE / 10).await;
            }
        };
        tokio::select! {
            admitted = conns.admit(1) => assert!(admitted.is_some() && is_cut(&conns, &open[0])),
            never = tokio::time::timeout(100 * GRACE, requests) => panic!("it keeps the place: {never:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_its_deadline() {
        let times = Times::default();
        let (_conns, open) = table(1).await;
        let conn = &open[0];
        let cut_after = async || {
            let began = Instant::now();
            conn.until_cut(&times).await;
            began.elapsed()
        };
        assert_eq!(cut_after().await, times.idle);
        conn.enter(Phase::Waiting);
        conn.state.lock().head_since = Some(Instant::now());
        assert_eq!(cut_after().await, times.head);
        conn.enter(Phase::Answering);
        conn.enter(Phase::Sending { is_stream: false });
        assert_eq!(cut_after().await, times.answer);
        conn.enter(Phase::Sending { is_stream: true });
        conn.state.lock().stalled_since = Some(Instant::now());
        assert_eq!(cut_after().await, times.write);
        conn.state.lock().stalled_since = None;
        conn.enter(Phase::Answering);
        let forever = tokio::time::timeout(Duration::from_secs(86_400), conn.until_cut(&times));
        assert!(forever.await.is_err(), "a handler bounds its own steps");
    }

    #[tokio::test(start_paused = true)]
    async fn settles_after_each_read_and_write() {
        let (_conns, open) = table(1).await;
        let settles = crate::pace::settles_of(|pace| {
            let inner = hyper_util::rt::TokioIo::new(tokio::net::UnixStream::pair().unwrap().0);
            let mut io = Tracked { inner, conn: Arc::clone(&open[0]), pace: Arc::clone(pace) };
            let mut context = Context::from_waker(std::task::Waker::noop());
            let mut buffer = [0; 8];
            let mut buffer = hyper::rt::ReadBuf::new(&mut buffer);
            _ = Pin::new(&mut io).poll_read(&mut context, buffer.unfilled());
            _ = Pin::new(&mut io).poll_write(&mut context, b"x");
            _ = Pin::new(&mut io).poll_write_vectored(&mut context, &[io::IoSlice::new(b"x")]);
        });
        assert_eq!(settles, 3);
    }
}
