//! Client: the requests of a tenant, over a connection to the server.

use std::error::Error;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Sleep;

use crate::run::base::{Failure, OrFail, RunError};
use crate::run::spec::{Kind, Spec, TenantSpec};
use crate::run::work::{self, Run, Step};

/// Time between two looks at the run while a request waits.
const LOOK_EVERY: Duration = Duration::from_millis(10);

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
#[derive(Default)]
pub(super) struct Content {
    data: Bytes,
    /// The data comes again and again, with a pause.
    is_endless: bool,
    is_sent: bool,
    pause: Option<Pin<Box<Sleep>>>,
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

/// A JSON list of small objects. As a tree each takes some 80 times its text.
fn objects() -> Bytes {
    const ITEM: &str = "{\"a\":0},";
    format!("[{}{{}}]", ITEM.repeat(JSON / ITEM.len())).into()
}

/// Why a request has no answer.
pub(super) type Failed = Box<dyn Error + Send + Sync>;

/// Starts the runtime of one thread.
pub(super) fn runtime() -> Result<Runtime, RunError> {
    Builder::new_current_thread().enable_all().build().or_fail("start a connection")
}

/// Connects to the server.
pub(super) async fn connect(address: SocketAddr) -> Result<SendRequest<Content>, Failed> {
    let stream = TcpStream::connect(address).await?;
    // Without it small requests are slower, and still right.
    let _ = stream.set_nodelay(true);
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// A client of the server. It has at most one connection.
pub(super) struct Client<'a> {
    runtime: Runtime,
    requests: Requests<'a>,
}

impl<'a> Client<'a> {
    /// The client of a tenant with that `number`.
    pub(super) fn new(
        spec: &Spec,
        tenant: &'a TenantSpec,
        number: u32,
        address: SocketAddr,
    ) -> Result<Client<'a>, RunError> {
        let json = if tenant.workload == Kind::Runaway { objects() } else { Bytes::new() };
        let turn = number as usize;
        let requests = Requests { tenant, address, seed: spec.seed, json, sender: None, turn };
        Ok(Client { runtime: runtime()?, requests })
    }
}

impl work::Client for Client<'_> {
    fn next(&mut self, run: Run<'_>) -> Step {
        let Client { runtime, requests } = self;
        let result = runtime.block_on(async {
            let mut asked = std::pin::pin!(requests.ask());
            loop {
                match tokio::time::timeout(LOOK_EVERY, &mut asked).await {
                    Ok(answer) => return answer,
                    Err(_) if run.is_ending() => return Err(Failure::Interrupted),
                    Err(_) => {}
                }
            }
        });
        let is_timed = matches!(result, Ok(()) | Err(Failure::Interrupted));
        Step { result, retries: 0, is_timed }
    }
}

/// The requests of a client.
struct Requests<'a> {
    tenant: &'a TenantSpec,
    address: SocketAddr,
    seed: u64,
    /// Body of a runaway's JSON.
    json: Bytes,
    /// Open since the last answer.
    sender: Option<SendRequest<Content>>,
    turn: usize,
}

impl Requests<'_> {
    /// The next request.
    fn next(&mut self) -> (&'static str, Bytes) {
        let turn = self.turn;
        self.turn += 1;
        if self.tenant.workload == Kind::Requests {
            let first = self.seed.wrapping_mul(turn as u64 + 1);
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

    /// Makes the next request and waits for its answer.
    async fn ask(&mut self) -> Result<(), Failure> {
        let (path, data) = self.next();
        let is_large = data.len() >= FRAME;
        let had_connection = self.sender.is_some();
        let mut sent = self.send(path, data.clone()).await;
        // The server closed the connection after its last answer, and before this request.
        if let Err(error) = &sent
            && had_connection
            && error.downcast_ref().is_some_and(hyper::Error::is_canceled)
        {
            sent = self.send(path, data).await;
        }
        if let Ok((status, text)) = sent {
            return answer(status, text);
        }
        self.sender = None;
        // A server that lives has refused a large body: it closed the connection before the body was sent.
        if is_large && TcpStream::connect(self.address).await.is_ok() {
            let text = "the server closed the connection before the body was sent";
            return Err(Failure::Refused(text.to_owned()));
        }
        Err(Failure::Lost)
    }

    /// Sends a request over the open connection, or a new one.
    async fn send(&mut self, path: &str, data: Bytes) -> Result<(StatusCode, String), Failed> {
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => connect(self.address).await?,
        };
        sender.ready().await?;
        let request = Request::post(format!("/{}/{path}", self.tenant.name)).header("host", "localhost");
        let content = Content { data, is_endless: path == STREAM, ..Content::default() };
        let response = sender.send_request(request.body(content)?).await?;
        let status = response.status();
        let text = response.into_body().collect().await?.to_bytes();
        if status == StatusCode::OK {
            self.sender = Some(sender);
        }
        Ok((status, String::from_utf8_lossy(&text).trim_end().to_owned()))
    }
}

fn answer(status: StatusCode, text: String) -> Result<(), Failure> {
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::SERVICE_UNAVAILABLE if text.contains("was stopped to free memory") => {
            Err(Failure::Killed)
        }
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Err(Failure::Refused(format!("{}: {text}", status.as_u16())))
        }
        other => Err(Failure::Other(format!("the server answered {other}: {text}"))),
    }
}
