//! An axum server with a group for each request, below that of its tenant. The README of the crate
//! says how to try it with curl.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use memgroup::{Config, Effort, Group, Hierarchy};
use memgroup_tokio::{RequestGroup, RequestGroups};
use tokio::net::TcpListener;

const MIB: u64 = 1 << 20;

/// The tenant that the header names, which stands for what a server would have authenticated. An
/// unknown one is refused: a request creates no tenant.
fn tenant_of(tenants: &Group, head: &Parts) -> Result<Group, StatusCode> {
    let name = head.headers.get("x-tenant").and_then(|name| name.to_str().ok());
    // `child` takes a name and no path. So it finds no group of another tenant's request.
    tenants.child(name.ok_or(StatusCode::UNAUTHORIZED)?).ok_or(StatusCode::FORBIDDEN)
}

/// Takes memory mebibyte by mebibyte, and holds it for a second. It is charged before it is
/// allocated.
async fn work(Path(mebibytes): Path<u64>, Extension(request): Extension<RequestGroup>) -> impl IntoResponse {
    let mut held = Vec::new();
    for _ in 0..mebibytes {
        match request.group().try_charge_by(MIB, Effort::Count) {
            Ok(charge) => held.push((charge, vec![1_u8; MIB as usize])),
            Err(error) => return request.refuse(&error).into_response::<String>(),
        }
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let usage = request.tenant().usage_exact();
    Response::new(format!("{} MiB taken; the tenant has {} MiB\n", held.len(), usage / MIB))
}

/// Takes memory by force, as an allocator does that cannot refuse. The layer ends it.
async fn run_away(Extension(request): Extension<RequestGroup>) -> String {
    let mut held = Vec::new();
    loop {
        held.push(request.group().charge_forced(MIB).expect("no counter is full"));
        tokio::task::yield_now().await;
    }
}

/// Answers with the length of the body, which the layer has charged.
async fn upload(Extension(request): Extension<RequestGroup>, body: Bytes) -> String {
    format!("{} bytes; the request has {}\n", body.len(), request.group().usage_exact())
}

/// The groups of the tenants.
fn tenants() -> Result<Hierarchy, Box<dyn std::error::Error>> {
    let hierarchy = Hierarchy::new(Config::new())?;
    let tenants = hierarchy.create("/tenants")?;
    tenants.set_max(24 * MIB)?;
    for name in ["alice", "bob"] {
        tenants.create(name)?.set_max(16 * MIB)?;
    }
    Ok(hierarchy)
}

fn app(hierarchy: Hierarchy) -> Router {
    let tenants = hierarchy.lookup("/tenants").expect("main has created it");
    let layer = RequestGroups::new(move |head: &Parts| tenant_of(&tenants, head));
    let layer = layer.request_max(12 * MIB).body_max(MIB).admission(16 << 10);
    Router::new()
        .route("/work/{mebibytes}", get(work))
        .route("/runaway", get(run_away))
        .route("/upload", post(upload))
        .layer(layer)
        // Outside of the layer: it answers when all groups are full.
        .route("/usage", get(move || async move { format!("{} bytes\n", hierarchy.root().usage_exact()) }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(tenants()?)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::yield_now;

    use crate::*;

    /// The status line and the rest of the answer.
    async fn ask(address: SocketAddr, head: &str, body: &[u8]) -> (String, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let length = body.len();
        let head = format!("{head}\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        // A server that refuses the body may close while it is sent.
        _ = stream.write_all(body).await;
        let mut answer = Vec::new();
        _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (status, rest) = answer.split_once("\r\n").unwrap();
        (status.to_owned(), rest.to_owned())
    }

    #[tokio::test]
    async fn answers_as_the_readme_says() {
        let hierarchy = tenants().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(axum::serve(listener, app(hierarchy.clone())).into_future());
        let get = |path: &str, tenant: &str| {
            let head = format!("GET {path} HTTP/1.1\r\nx-tenant: {tenant}");
            async move { ask(address, &head, b"").await }
        };
        let alice = hierarchy.lookup("/tenants/alice").unwrap();

        let (status, text) = get("/work/4", "alice").await;
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert!(text.ends_with("4 MiB taken; the tenant has 4 MiB\n"), "{text}");
        assert_eq!(get("/work/20", "alice").await.0, "HTTP/1.1 413 Payload Too Large");
        assert_eq!(get("/runaway", "alice").await.0, "HTTP/1.1 413 Payload Too Large");
        assert_eq!(get("/work/1", "eve").await.0, "HTTP/1.1 403 Forbidden");
        let upload = "POST /upload HTTP/1.1\r\nx-tenant: alice";
        assert_eq!(ask(address, upload, &[0; 5]).await.0, "HTTP/1.1 200 OK");
        assert_eq!(ask(address, upload, &vec![0; 2_000_000]).await.0, "HTTP/1.1 413 Payload Too Large");

        let held = alice.try_charge(10 * MIB).unwrap();
        let (status, text) = get("/work/10", "alice").await;
        assert_eq!(status, "HTTP/1.1 429 Too Many Requests");
        assert!(text.contains("retry-after: 1\r\n"), "{text}");
        let more = alice.try_charge(5 * MIB).unwrap();
        let (status, text) = get("/work/12", "bob").await;
        assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
        assert!(text.contains("retry-after: 1\r\n"), "{text}");
        drop((held, more));

        // The connections end by themselves.
        while hierarchy.root().usage_exact() > 0 || !alice.children().is_empty() {
            yield_now().await;
        }
        assert!(get("/usage", "alice").await.1.ends_with("0 bytes\n"));
    }
}
