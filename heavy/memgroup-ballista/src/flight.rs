//! The figures of an executor's tenants, and its Arrow Flight service, which also returns them.
//!
//! The scheduler knows each executor's address for Arrow Flight, so no further port is needed. The
//! figures are the answer to one more action; all other calls go to Ballista's own service.

use std::net::SocketAddr;
use std::sync::Arc;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, PollInfo,
    SchemaResult, Ticket,
};
use ballista_core::error::BallistaError;
use ballista_core::utils::{GrpcServerConfig, create_grpc_server};
use ballista_executor::ArrowFlightServerProvider;
use ballista_executor::flight_service::BallistaFlightService;
use ballista_executor::shutdown::Shutdown;
use memgroup::Hierarchy;
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::tenants::TENANTS;

/// The figures of one tenant on one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantUsage {
    /// The name of the tenant's group.
    pub tenant: String,
    /// Bytes that its sessions hold.
    pub usage_bytes: u64,
    /// The most bytes at one time, including prepaid bytes.
    pub peak_bytes: u64,
    /// The tenant's limit on this executor, or `None` if it has none.
    pub max_bytes: Option<u64>,
    /// Charges that the tenant's limit refused.
    pub refusals: u64,
    /// Sessions with a runtime on this executor.
    pub sessions: usize,
}

/// The figures of all tenants on one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorUsage {
    /// The tenants, in the order of their names.
    pub tenants: Vec<TenantUsage>,
}

impl ExecutorUsage {
    /// Returns the current figures of the tenants below [`TENANTS`].
    pub fn of(hierarchy: &Hierarchy) -> ExecutorUsage {
        let snapshot = hierarchy.snapshot();
        let parent = snapshot.groups.iter().position(|group| group.path == TENANTS);
        let tenants = parent.into_iter().flat_map(|parent| snapshot.children(parent));
        let of_group = |group: &memgroup::GroupSnapshot| TenantUsage {
            tenant: group.name.clone(),
            usage_bytes: group.usage_exact_bytes,
            peak_bytes: group.peak_bytes,
            max_bytes: group.limits.max_bytes,
            refusals: group.refusals,
            sessions: group.descendants,
        };
        ExecutorUsage { tenants: tenants.filter(|group| group.online).map(of_group).collect() }
    }

    /// Returns the figures of one tenant.
    pub fn tenant(&self, name: &str) -> Option<&TenantUsage> {
        self.tenants.iter().find(|tenant| tenant.tenant == name)
    }
}

/// The action that is answered with the figures, as JSON.
const ACTION: &str = "memgroup.usage";

/// Ballista's service, and the figures.
struct UsageService {
    ballista: BallistaFlightService,
    hierarchy: Hierarchy,
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl FlightService for UsageService {
    type DoActionStream = <BallistaFlightService as FlightService>::DoActionStream;
    type DoExchangeStream = <BallistaFlightService as FlightService>::DoExchangeStream;
    type DoGetStream = <BallistaFlightService as FlightService>::DoGetStream;
    type DoPutStream = <BallistaFlightService as FlightService>::DoPutStream;
    type HandshakeStream = <BallistaFlightService as FlightService>::HandshakeStream;
    type ListActionsStream = <BallistaFlightService as FlightService>::ListActionsStream;
    type ListFlightsStream = <BallistaFlightService as FlightService>::ListFlightsStream;

    async fn do_action(&self, request: Request<Action>) -> Reply<Self::DoActionStream> {
        if request.get_ref().r#type != ACTION {
            return self.ballista.do_action(request).await;
        }
        let usage = ExecutorUsage::of(&self.hierarchy);
        let body = serde_json::to_vec(&usage).map_err(|error| Status::internal(error.to_string()))?;
        let answer = arrow_flight::Result { body: body.into() };
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(answer)]))))
    }

    async fn handshake(&self, request: Request<Streaming<HandshakeRequest>>) -> Reply<Self::HandshakeStream> {
        self.ballista.handshake(request).await
    }

    async fn list_flights(&self, request: Request<Criteria>) -> Reply<Self::ListFlightsStream> {
        self.ballista.list_flights(request).await
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Reply<FlightInfo> {
        self.ballista.get_flight_info(request).await
    }

    async fn poll_flight_info(&self, request: Request<FlightDescriptor>) -> Reply<PollInfo> {
        self.ballista.poll_flight_info(request).await
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Reply<SchemaResult> {
        self.ballista.get_schema(request).await
    }

    async fn do_get(&self, request: Request<Ticket>) -> Reply<Self::DoGetStream> {
        self.ballista.do_get(request).await
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Reply<Self::DoPutStream> {
        self.ballista.do_put(request).await
    }

    async fn do_exchange(&self, request: Request<Streaming<FlightData>>) -> Reply<Self::DoExchangeStream> {
        self.ballista.do_exchange(request).await
    }

    async fn list_actions(&self, request: Request<Empty>) -> Reply<Self::ListActionsStream> {
        self.ballista.list_actions(request).await
    }
}

/// Starts the service as Ballista starts its own, with the same bounds on messages.
pub(crate) fn provider(
    hierarchy: Hierarchy,
    max_encoding: usize,
    max_decoding: usize,
) -> Arc<ArrowFlightServerProvider> {
    Arc::new(
        move |work_dir: String, address: SocketAddr, mut shutdown: Shutdown, config: GrpcServerConfig| {
            let service =
                UsageService { ballista: BallistaFlightService::new(work_dir), hierarchy: hierarchy.clone() };
            let service = FlightServiceServer::new(service)
                .max_encoding_message_size(max_encoding)
                .max_decoding_message_size(max_decoding);
            tokio::spawn(async move {
                let server = create_grpc_server(&config).add_service(service);
                server.serve_with_shutdown(address, shutdown.recv()).await.map_err(BallistaError::TonicError)
            })
        },
    )
}

/// Asks an executor for its figures.
pub(crate) async fn ask(channel: Channel) -> Result<ExecutorUsage, Box<dyn std::error::Error + Send + Sync>> {
    let action = Action { r#type: ACTION.to_owned(), ..Action::default() };
    let mut answers = FlightServiceClient::new(channel).do_action(action).await?.into_inner();
    let answer = answers.message().await?.ok_or("the executor's answer is empty")?;
    Ok(serde_json::from_slice(&answer.body)?)
}
