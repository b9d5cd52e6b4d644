//! An executor's Arrow Flight service that also tells its tenants' figures.
//!
//! The scheduler knows each executor's address for Arrow Flight, so no further port is needed. The figures are the answer to one more action; all
//! other calls are those of Ballista's own service.

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
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::usage::ExecutorUsage;

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

/// Starts the service as Ballista starts its own, with the same bounds of messages.
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
