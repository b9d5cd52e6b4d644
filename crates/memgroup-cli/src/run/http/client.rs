//! Client: the connections of the tenants, a thread each, and the results of their requests.
//!
//! - I1. Each request that begins is counted once: done, refused, killed, lost or interrupted.
//! - I2. The latency of each request that was done is recorded. So is the time that an interrupted one has waited, if no answer took its connection
//!   so long: it would have taken at least that. So a tenant that waits for ever has a latency.
//! - E1. Connection → watcher: the counts are approximate during the run, and exact after the join. Watcher → connections: only the flag is handed over.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::run::base::error::{OrFail, RunError};
use crate::run::measure::latencies::Latencies;
use crate::run::spec::{Kind, Spec, TenantSpec};

/// Time between two looks of a waiting connection at the end of the run.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Pause after a lost connection.
const LOST_PAUSE: Duration = Duration::from_millis(100);
/// Numbers in the body of a small request.
const NUMBERS: u64 = 32;
/// Bytes in the JSON of a runaway.
const JSON: usize = 1 << 20;
/// Frame of a body without end, and the time between two.
const FRAME: usize = 512 << 10;
const FRAME_PAUSE: Duration = Duration::from_millis(1);
/// The path of requests with a body without end.
const STREAM: &str = "stream";
/// The paths of a runaway's requests, in turn.
const RUNAWAY: [&str; 4] = ["push", STREAM, "json", "reserve"];

/// Body of a request.
struct Content {
    data: Bytes,
    /// The data comes again and again, with a pause.
    is_endless: bool,
    is_sent: bool,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Content {
    fn new(data: Bytes, is_endless: bool) -> Content {
        Content { data, is_endless, is_sent: false, pause: None }
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
        }
        let sends = !self.is_sent || self.is_endless;
        self.is_sent = true;
        self.pause = self.is_endless.then(|| Box::pin(tokio::time::sleep(FRAME_PAUSE)));
        Poll::Ready(sends.then(|| Ok(Frame::data(self.data.clone()))))
    }

    fn is_end_stream(&self) -> bool {
        !self.is_endless && (self.is_sent || self.data.is_empty())
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        if self.is_endless {
            return hyper::body::SizeHint::default();
        }
        hyper::body::SizeHint::with_exact(if self.is_sent { 0 } else { self.data.len() as u64 })
    }
}

/// Results of the requests of one connection, or of a tenant.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) done: u64,
    pub(super) refused: u64,
    pub(super) killed: u64,
    pub(super) lost: u64,
    pub(super) interrupted: u64,
    pub(super) latencies: Latencies,
    pub(super) first_refusal: Option<String>,
}

impl Tally {
    pub(super) fn add(&mut self, other: Tally) {
        self.done += other.done;
        self.refused += other.refused;
        self.killed += other.killed;
        self.lost += other.lost;
        self.interrupted += other.interrupted;
        self.latencies.add(&other.latencies);
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
    }
}

/// A run, as its connections see it.
pub(super) struct Run<'a> {
    pub(super) spec: &'a Spec,
    pub(super) address: SocketAddr,
    pub(super) ending: AtomicBool,
    /// For each tenant, its connections that have work left.
    pub(super) busy: Vec<AtomicU32>,
}

impl Run<'_> {
    fn is_ending(&self) -> bool {
        // ORDERING: Relaxed; only the flag is handed over (E1).
        self.ending.load(Ordering::Relaxed)
    }

    /// Pauses, until the run ends at most.
    async fn pause(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !self.is_ending()
        {
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
    }

    /// Sends the requests of connection `number` of a tenant until the run ends.
    pub(super) fn connection(&self, tenant: usize, number: u32) -> Result<Tally, RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.or_fail("start a connection")?;
        let spec = &self.spec.tenants[tenant];
        let json = if spec.workload == Kind::Runaway { objects() } else { Bytes::new() };
        let mut connection =
            Connection { run: self, tenant: spec, json, sender: None, turn: number as usize };
        let tally =
            runtime.block_on(connection.all()).or_fail(format_args!("ask for tenant `{}`", spec.name));
        // ORDERING: Relaxed; only the count is handed over.
        self.busy[tenant].fetch_sub(1, Ordering::Relaxed);
        tally
    }
}

/// A JSON list of small objects. As a tree each takes some 80 times its text.
fn objects() -> Bytes {
    const ITEM: &str = "{\"a\":0},";
    format!("[{}{{}}]", ITEM.repeat(JSON / ITEM.len())).into()
}

/// Answer to a request.
enum Answer {
    Done,
    Refused(String),
    Killed,
    Lost,
}

struct Connection<'a> {
    run: &'a Run<'a>,
    tenant: &'a TenantSpec,
    /// Body of a runaway's JSON.
    json: Bytes,
    /// Open since the last answer.
    sender: Option<SendRequest<Content>>,
    turn: usize,
}

impl Connection<'_> {
    async fn all(&mut self) -> Result<Tally, String> {
        let (run, tenant, mut tally) = (self.run, self.tenant, Tally::default());
        while let Some(earlier) = tenant.after
            // ORDERING: Relaxed; only the count is handed over.
            && run.busy[earlier].load(Ordering::Relaxed) > 0
            && !run.is_ending()
        {
            run.pause(LOOK_EVERY).await;
        }
        let mut longest = Duration::ZERO;
        let ends = tenant.work.map(|work| Instant::now() + work);
        while !run.is_ending() && ends.is_none_or(|ends| Instant::now() < ends) {
            let (path, data) = self.next();
            let started = Instant::now();
            let mut asked = std::pin::pin!(self.ask(path, data));
            let answer = loop {
                match tokio::time::timeout(LOOK_EVERY, &mut asked).await {
                    Ok(answer) => break Some(answer?),
                    Err(_) if run.is_ending() => break None,
                    Err(_) => {}
                }
            };
            let waited = started.elapsed();
            if matches!(answer, Some(Answer::Done)) || answer.is_none() && waited > longest {
                tally.latencies.record(waited.as_nanos() as u64);
            }
            longest = longest.max(waited);
            match answer {
                Some(Answer::Done) => tally.done += 1,
                Some(Answer::Refused(text)) => {
                    tally.refused += 1;
                    tally.first_refusal.get_or_insert(text);
                }
                Some(Answer::Killed) => tally.killed += 1,
                Some(Answer::Lost) => {
                    tally.lost += 1;
                    run.pause(LOST_PAUSE).await;
                }
                None => tally.interrupted += 1,
            }
            run.pause(tenant.pause).await;
        }
        Ok(tally)
    }

    /// The next request.
    fn next(&mut self) -> (&'static str, Bytes) {
        let turn = self.turn;
        self.turn += 1;
        if self.tenant.workload == Kind::Requests {
            let first = self.run.spec.seed.wrapping_mul(turn as u64 + 1);
            let numbers = (first..).take(NUMBERS as usize).map(|number| number.to_string());
            let text = format!("[{}]", numbers.collect::<Vec<_>>().join(","));
            return ("small", text.into());
        }
        let path = RUNAWAY[turn % RUNAWAY.len()];
        let data = match path {
            STREAM => Bytes::from_static(&[b'x'; FRAME]),
            "json" => self.json.clone(),
            _ => Bytes::new(),
        };
        (path, data)
    }

    /// Sends a request and reads its answer. The error is an answer that no handler should give.
    async fn ask(&mut self, path: &str, data: Bytes) -> Result<Answer, String> {
        let is_large = data.len() >= FRAME;
        let had_connection = self.sender.is_some();
        match self.send(path, data.clone()).await {
            Ok((status, text)) => answer(status, text),
            // The server closed the connection after its last answer, and before this request.
            Err(Some(error)) if had_connection && error.is_canceled() => match self.send(path, data).await {
                Ok((status, text)) => answer(status, text),
                Err(_) => Ok(self.cut_off(is_large).await),
            },
            Err(_) => Ok(self.cut_off(is_large).await),
        }
    }

    /// The answer to a request after its connection ended. A server that lives has refused a large body: it closed before the body was sent.
    async fn cut_off(&mut self, is_large: bool) -> Answer {
        self.sender = None;
        if is_large && TcpStream::connect(self.run.address).await.is_ok() {
            return Answer::Refused("the server closed the connection before the body was sent".to_owned());
        }
        Answer::Lost
    }

    /// Sends a request over the open connection, or a new one. The error is none if there is no connection.
    async fn send(&mut self, path: &str, data: Bytes) -> Result<(StatusCode, String), Option<hyper::Error>> {
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => {
                let stream = TcpStream::connect(self.run.address).await.map_err(|_| None)?;
                // Without it small requests are slower, and still right.
                let _ = stream.set_nodelay(true);
                let (sender, connection) = handshake(TokioIo::new(stream)).await?;
                tokio::spawn(connection);
                sender
            }
        };
        sender.ready().await?;
        let request = Request::post(format!("/{}/{path}", self.tenant.name)).header("host", "localhost");
        let request = request.body(Content::new(data, path == STREAM)).expect("names are parts of a URI");
        let response = sender.send_request(request).await?;
        let status = response.status();
        let text = response.into_body().collect().await?.to_bytes();
        if status == StatusCode::OK {
            self.sender = Some(sender);
        }
        Ok((status, String::from_utf8_lossy(&text).trim_end().to_owned()))
    }
}

fn answer(status: StatusCode, text: String) -> Result<Answer, String> {
    match status {
        StatusCode::OK => Ok(Answer::Done),
        StatusCode::SERVICE_UNAVAILABLE if text.contains("was stopped to free memory") => Ok(Answer::Killed),
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Ok(Answer::Refused(format!("{}: {text}", status.as_u16())))
        }
        other => Err(format!("the server answered {other}: {text}")),
    }
}
