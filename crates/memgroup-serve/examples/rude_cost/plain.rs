//! A plain server, as a program would write it with the same libraries: each connection has a task,
//! and nothing is bounded.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use memgroup::Hierarchy;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// Serves the tree until the process ends, on a thread of this name.
pub(crate) fn start(hierarchy: &Hierarchy, unix: &Path, thread: &str) -> std::io::Result<SocketAddr> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (unix, tcp) = {
        let _entered = runtime.enter();
        let tcp = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        tcp.set_nonblocking(true)?;
        (UnixListener::bind(unix)?, TcpListener::from_std(tcp)?)
    };
    let (address, hierarchy) = (tcp.local_addr()?, hierarchy.clone());
    std::thread::Builder::new().name(thread.to_owned()).spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    Ok((stream, _)) = unix.accept() => serve(&hierarchy, stream),
                    Ok((stream, _)) = tcp.accept() => serve(&hierarchy, stream),
                    // No descriptor is left.
                    else => tokio::task::yield_now().await,
                }
            }
        });
    })?;
    Ok(address)
}

fn serve(hierarchy: &Hierarchy, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let hierarchy = hierarchy.clone();
    let service =
        service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(&hierarchy, &request))));
    // An error is the client's, which is gone.
    tokio::spawn(async { _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await });
}

fn answer(hierarchy: &Hierarchy, request: &Request<Incoming>) -> Response<String> {
    let is_tree = ["/v1/tree", "/metrics", "/v1/waits"].contains(&request.uri().path());
    let text = is_tree.then(|| serde_json::to_string(&hierarchy.snapshot()).unwrap_or_default());
    let mut response = Response::new(text.unwrap_or_default());
    if !is_tree {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}
