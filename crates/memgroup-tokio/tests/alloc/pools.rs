//! Threads of pools that a request is the first to use.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use memgroup_tokio::{ChargedBody, GroupExt, RequestGroup};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Handler, tenants};

#[test]
fn a_requests_group_does_not_wait_for_the_thread_that_tokio_started_for_it() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build().unwrap();
    let (hierarchy, _tenants, layer) = tenants(&["alice"]);
    runtime.block_on(async {
        let block = |request: Request<ChargedBody<Full<Bytes>>>| async move {
            let group = request.extensions().get::<RequestGroup>().unwrap().group().clone();
            let blocks = group.spawn_blocking(|| vec![1_u8; 1 << 20].len()).await.unwrap();
            let mut set = tokio::task::JoinSet::new();
            memgroup_tokio::JoinSetExt::spawn_blocking_in(&mut set, &group, || vec![1_u8; 1 << 20].len());
            let more = set.join_next().await.unwrap().unwrap();
            Response::new(Full::from((blocks + more).to_string()))
        };
        let mut service = layer.layer(Handler(block));
        let request = Request::builder().header("tenant", "alice").body(Full::default()).unwrap();
        let response = service.call(request).await.unwrap();
        assert_eq!(response.status(), 200);
        drop(response);
        // The only thread has finished the earlier closures when it gets to this one. Afterwards it
        // waits in the pool.
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert!(hierarchy.dying().is_empty(), "{:?}", hierarchy.dying());
        assert_eq!(hierarchy.root().usage_exact(), 0);
    });
}
