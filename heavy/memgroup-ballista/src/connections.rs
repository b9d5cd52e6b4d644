//! Connections of an executor to others, kept for the next task.
//!
//! Ballista gives its own engine such a pool, which a program cannot create. An engine that wraps
//! Ballista's needs this one instead.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ballista_core::client::BallistaClient;
use ballista_core::client_pool::{BallistaClientPool, PooledClient};
use ballista_core::error::Result;
use ballista_core::extension::BallistaConfigGrpcEndpoint;
use ballista_core::utils::GrpcClientConfig;

/// The address of an executor, and the settings of connections to it.
type Key = (String, u16, GrpcClientConfig);

/// Idle connections, and since when each is idle. The newest is last.
type Idle = HashMap<Key, Vec<(BallistaClient, Instant)>>;

/// Idle connections.
pub(crate) struct Connections {
    idle: Arc<Mutex<Idle>>,
    idle_most: Duration,
}

impl Connections {
    /// A connection that has been idle for this long is closed when another one is requested.
    pub(crate) fn new(idle_most: Duration) -> Connections {
        Connections { idle: Arc::default(), idle_most }
    }

    /// Closes connections that were idle for too long, and returns the others.
    fn close_old(&self) -> MutexGuard<'_, Idle> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|_, clients| {
            clients.retain(|(_, since)| since.elapsed() < self.idle_most);
            !clients.is_empty()
        });
        idle
    }

    /// Takes the newest idle connection to an address.
    fn take(&self, key: &Key) -> Option<BallistaClient> {
        self.close_old().get_mut(key)?.pop().map(|(client, _)| client)
    }
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("idle_most", &self.idle_most).finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl BallistaClientPool for Connections {
    async fn acquire(
        &self,
        host: &str,
        port: u16,
        config: &GrpcClientConfig,
        customize_endpoint: Option<Arc<BallistaConfigGrpcEndpoint>>,
    ) -> Result<PooledClient> {
        let key = (host.to_owned(), port, config.clone());
        let client = match self.take(&key) {
            Some(client) => client,
            None => {
                BallistaClient::try_new(
                    host,
                    port,
                    config.max_message_size,
                    config.use_tls,
                    customize_endpoint,
                    config.io_retries_times,
                    config.io_retry_wait_time_ms,
                    config.initial_connection_window_size,
                    config.initial_stream_window_size,
                )
                .await?
            }
        };
        let idle = Arc::clone(&self.idle);
        let keep = move |client| {
            let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.entry(key).or_default().push((client, Instant::now()));
        };
        Ok(PooledClient::new(client, Box::new(keep)))
    }

    async fn evict_idle(&self) {
        drop(self.close_old());
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use ballista_core::utils::GrpcServerConfig;
    use ballista_executor::shutdown::ShutdownNotifier;
    use memgroup::{Config, Hierarchy};

    use super::*;
    use crate::flight;

    fn idle(connections: &Connections) -> usize {
        connections.idle.lock().unwrap().values().map(Vec::len).sum()
    }

    #[tokio::test]
    async fn keeps_a_connection_for_the_next_task_until_it_is_old() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (hierarchy, stop) = (Hierarchy::new(Config::new()).unwrap(), ShutdownNotifier::new());
        let serve = flight::provider(hierarchy, 1 << 20, 1 << 20);
        let served =
            serve(String::new(), address, stop.subscribe_for_shutdown(), GrpcServerConfig::default());
        let config = GrpcClientConfig::default();
        let connect = async |connections: &Connections| {
            let ip = address.ip().to_string();
            loop {
                // The server may not be listening yet.
                match connections.acquire(&ip, address.port(), &config, None).await {
                    Ok(client) => return client,
                    Err(error) => assert!(!served.is_finished(), "{error}"),
                }
            }
        };

        let connections = Connections::new(Duration::from_secs(3600));
        let (first, second) = (connect(&connections).await, connect(&connections).await);
        assert_eq!(idle(&connections), 0);
        drop(first);
        second.discard();
        assert_eq!(idle(&connections), 1);
        let again = connect(&connections).await;
        assert_eq!(idle(&connections), 0, "it was taken");
        drop(again);
        connections.evict_idle().await;
        assert_eq!(idle(&connections), 1, "it is not old");

        let connections = Connections::new(Duration::ZERO);
        drop(connect(&connections).await);
        assert_eq!(idle(&connections), 1);
        connections.evict_idle().await;
        assert_eq!(idle(&connections), 0);
        served.abort();
    }
}
