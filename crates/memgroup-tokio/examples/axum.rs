//! An axum server with a group for each request, below that of its tenant. The README of the crate says how to try it with curl.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use memgroup::{Config, Effort, Group, Hierarchy};
use memgroup_tokio::{ReclaimerThread, RequestGroup, RequestGroups};
use tokio::net::TcpListener;

const MIB: u64 = 1 << 20;

/// The tenant that the header names. An unknown one is refused.
fn tenant_of(hierarchy: &Hierarchy, head: &Parts) -> Result<Group, StatusCode> {
    let name = head.headers.get("x-tenant").and_then(|name| name.to_str().ok());
    let name = name.ok_or(StatusCode::UNAUTHORIZED)?;
    hierarchy.lookup(&format!("/tenants/{name}")).map_err(|_| StatusCode::FORBIDDEN)
}

/// Takes memory mebibyte by mebibyte, and holds it for a second. It is charged before it is allocated.
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

/// Tells how long the body was. The layer has charged it.
async fn upload(Extension(request): Extension<RequestGroup>, body: Bytes) -> String {
    format!("{} bytes; the request has {}\n", body.len(), request.group().usage_exact())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hierarchy = Hierarchy::new(Config::new())?;
    let _reclaimer = ReclaimerThread::spawn(&hierarchy)?;
    let tenants = hierarchy.create("/tenants")?;
    tenants.set_max(24 * MIB)?;
    for name in ["alice", "bob"] {
        tenants.create(name)?.set_max(16 * MIB)?;
    }

    let layer = RequestGroups::new({
        let hierarchy = hierarchy.clone();
        move |head: &Parts| tenant_of(&hierarchy, head)
    });
    let layer = layer.request_max(12 * MIB).body_max(MIB).admission(16 << 10);
    let app = Router::new()
        .route("/work/{mebibytes}", get(work))
        .route("/runaway", get(run_away))
        .route("/upload", post(upload))
        .layer(layer)
        // Outside of the layer: it answers when all groups are full.
        .route("/usage", get(move || async move { format!("{} bytes\n", hierarchy.root().usage_exact()) }));

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
