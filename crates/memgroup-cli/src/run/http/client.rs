//! Client: a connection of a tenant to the server, and its requests.

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
use tokio::time::Sleep;

use super::load::Answer;
use crate::run::spec::{Kind, Spec, TenantSpec};

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

/// A JSON list of small objects. As a tree each takes some 80 times its text.
fn objects() -> Bytes {
    const ITEM: &str = "{\"a\":0},";
    format!("[{}{{}}]", ITEM.repeat(JSON / ITEM.len())).into()
}

/// A connection to the server.
pub(super) struct Client<'a> {
    tenant: &'a TenantSpec,
    address: SocketAddr,
    seed: u64,
    /// Body of a runaway's JSON.
    json: Bytes,
    /// Open since the last answer.
    sender: Option<SendRequest<Content>>,
    turn: usize,
}

impl<'a> Client<'a> {
    /// Connection `number` of a tenant of `spec`.
    pub(super) fn new(spec: &'a Spec, tenant: usize, number: u32, address: SocketAddr) -> Client<'a> {
        let tenant = &spec.tenants[tenant];
        let json = if tenant.workload == Kind::Runaway { objects() } else { Bytes::new() };
        Client { tenant, address, seed: spec.seed, json, sender: None, turn: number as usize }
    }

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

    /// The answer to a request after its connection ended. A server that lives has refused a large
    /// body: it closed before the body was sent.
    async fn cut_off(&mut self, is_large: bool) -> Answer {
        self.sender = None;
        if is_large && TcpStream::connect(self.address).await.is_ok() {
            return Answer::Refused("the server closed the connection before the body was sent".to_owned());
        }
        Answer::Lost
    }

    /// Sends a request over the open connection, or a new one. The error is none if there is no
    /// connection.
    async fn send(&mut self, path: &str, data: Bytes) -> Result<(StatusCode, String), Option<hyper::Error>> {
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => {
                let stream = TcpStream::connect(self.address).await.map_err(|_| None)?;
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

impl Client<'_> {
    /// Makes the next request and waits for its answer. The error is an answer that no request
    /// should have.
    pub(super) async fn ask(&mut self) -> Result<Answer, String> {
        let (path, data) = self.next();
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
