//! Client: the requests of a tenant, over a connection to the server.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Sleep;

use crate::run::base::{Failure, OrFail, RunError};
use crate::run::spec::{Kind, TenantSpec};
use crate::run::work::{self, Run, Step};

/// Time between two checks whether the run ends while a request waits.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Numbers in the body of a small request.
const NUMBERS: u64 = 32;
/// Bytes in the JSON of a runaway.
const JSON: usize = 1 << 20;
/// The bytes of a frame of a body without end, and the time between two frames.
const FRAME: usize = 512 << 10;
const FRAME_PAUSE: Duration = Duration::from_millis(1);
/// The path of requests with a body without end.
const STREAM: &str = "stream";
/// The paths of a runaway's requests, in turn.
const RUNAWAY: [&str; 4] = ["push", STREAM, "json", "reserve"];

/// Body of a request.
pub(super) type Content = Either<Full<Bytes>, Endless>;

/// A body of equal frames without end, with a pause before each but the first.
#[derive(Default)]
pub(super) struct Endless {
    pause: Option<Pin<Box<Sleep>>>,
}

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
        }
        self.pause = Some(Box::pin(tokio::time::sleep(FRAME_PAUSE)));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; FRAME])))))
    }
}

/// Returns a JSON list of small objects. In memory, each takes about 80 times as much as its text.
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
    // If this fails, small requests are only slower.
    let _ = stream.set_nodelay(true);
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// A client of the server. It has at most one connection.
pub(super) struct Client<'a> {
    runtime: Arc<Runtime>,
    tenant: &'a TenantSpec,
    address: SocketAddr,
    seed: u64,
    /// Body of a runaway's JSON.
    json: Bytes,
    /// Open since the last answer.
    sender: Option<SendRequest<Content>>,
    turn: usize,
}

impl work::Client for Client<'_> {
    fn next(&mut self, run: Run<'_>) -> Step {
        let result = Arc::clone(&self.runtime).block_on(async {
            let mut asked = std::pin::pin!(self.ask());
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

impl<'a> Client<'a> {
    /// Makes client `number` of a tenant.
    pub(super) fn new(
        seed: u64,
        tenant: &'a TenantSpec,
        number: u32,
        address: SocketAddr,
    ) -> Result<Client<'a>, RunError> {
        let json = if tenant.workload == Kind::Runaway { objects() } else { Bytes::new() };
        let (runtime, turn) = (runtime()?.into(), number as usize);
        Ok(Client { runtime, tenant, address, seed, json, sender: None, turn })
    }

    /// Returns the next request.
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
        (path, if path == "json" { self.json.clone() } else { Bytes::new() })
    }

    /// Makes the next request and waits for its answer.
    async fn ask(&mut self) -> Result<(), Failure> {
        let (path, data) = self.next();
        let is_large = path == STREAM || data.len() >= FRAME;
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
        // If the server lives, it refused a large body by closing the connection before the body
        // was sent.
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
        let content =
            if path == STREAM { Either::Right(Endless::default()) } else { Either::Left(Full::new(data)) };
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
