//! Client of OTLP over gRPC: one unary call at a time, on a connection of the dialer, so that egress selections apply.

use std::cell::RefCell;
use std::fmt::Display;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request, StatusCode, Uri};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;

use crate::egress::{Address, CONTROL_PLANE, Dialer, Host, OpenedStream};
use crate::observe::trace::{CollectorEndpoint, ExportError};

/// Timeout of a call (`OTEL_EXPORTER_OTLP_TIMEOUT`).
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Size limit of a response.
const MAX_RESPONSE: usize = 1 << 20;
const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Status codes of gRPC after which a call may be repeated, by the specification of OTLP; among them 4
/// (DEADLINE_EXCEEDED), 8 (RESOURCE_EXHAUSTED) and 14 (UNAVAILABLE).
const RETRYABLE: [&str; 7] = ["1", "4", "8", "10", "11", "14", "15"];

/// Client of one collector.
pub(super) struct OtlpClient {
    endpoint: CollectorEndpoint,
    address: Address,
    dialer: Dialer,
    /// The connection, while no call uses it.
    connection: RefCell<Option<SendRequest<Bytes>>>,
}

impl OtlpClient {
    pub(super) fn new(endpoint: CollectorEndpoint, dialer: Dialer) -> OtlpClient {
        let address = match &endpoint {
            CollectorEndpoint::Tcp(host, port) => {
                let host = host.parse().map_or_else(|_| Host::Name(host.clone()), Host::Ip);
                Address::tcp(host, *port)
            }
            CollectorEndpoint::Unix(path) => Address::Unix(path.clone()),
        };
        OtlpClient { endpoint, address, dialer, connection: RefCell::new(None) }
    }

    pub(super) fn endpoint(&self) -> &CollectorEndpoint {
        &self.endpoint
    }

    /// Calls `TraceService/Export`. Returns the number of rejected spans.
    ///
    /// # Errors
    /// No connection, or another status than OK.
    pub(super) async fn export(&self, request: Bytes) -> Result<u64, ExportError> {
        let call = tokio::time::timeout(CALL_TIMEOUT, self.call(request)).await;
        call.unwrap_or_else(|_| Err(transient(format_args!("no response within {CALL_TIMEOUT:?}"))))
    }

    async fn call(&self, request: Bytes) -> Result<u64, ExportError> {
        let idle = self.connection.take();
        let reused = match idle {
            Some(sender) => sender.ready().await.ok(),
            None => None,
        };
        let mut sender = match reused {
            Some(sender) => sender,
            None => self.connect().await?.ready().await.map_err(transient)?,
        };
        let uri = Uri::builder().scheme("http").authority(self.endpoint.authority()).path_and_query(METHOD);
        let head = Request::post(uri.build().map_err(transient)?)
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header(USER_AGENT, concat!("narthex/", env!("CARGO_PKG_VERSION")))
            .body(())
            .map_err(transient)?;
        let (response, mut stream) = sender.send_request(head, false).map_err(transient)?;
        stream.send_data(message_frame(&request), true).map_err(transient)?;
        let (head, mut body) = response.await.map_err(transient)?.into_parts();
        if head.status != StatusCode::OK {
            return Err(transient(format_args!("HTTP status {}, not gRPC", head.status.as_u16())));
        }
        let mut data = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(transient)?;
            let _ = body.flow_control().release_capacity(chunk.len());
            data.extend_from_slice(&chunk);
            if data.len() > MAX_RESPONSE {
                return Err(transient("the response is too large"));
            }
        }
        let trailers = body.trailers().await.map_err(transient)?;
        check_status(trailers.as_ref().unwrap_or(&head.headers))?;
        self.connection.replace(Some(sender));
        Ok(rejected_spans(&data))
    }

    async fn connect(&self) -> Result<SendRequest<Bytes>, ExportError> {
        let route = self.dialer.route(CONTROL_PLANE, true);
        let opened = self.dialer.open_address(&route, &self.address, CALL_TIMEOUT).await;
        let OpenedStream { stream, .. } = opened.map_err(|error| transient(error.cause))?;
        let handshake = h2::client::Builder::new().enable_push(false).handshake(stream);
        let (sender, connection) = handshake.await.map_err(transient)?;
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to the trace collector ended");
            }
        });
        Ok(sender)
    }
}

/// A message of gRPC, uncompressed.
fn message_frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// Checks the status in the trailers, or in the headers of a response without a body.
fn check_status(headers: &HeaderMap) -> Result<(), ExportError> {
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match value("grpc-status") {
        Some("0") => Ok(()),
        Some(code) => {
            let message = format!("gRPC status {code}: {}", value("grpc-message").unwrap_or_default());
            Err(ExportError { message, is_retryable: RETRYABLE.contains(&code) })
        }
        None => Err(transient("the response has no grpc-status")),
    }
}

/// The number of spans that the collector rejected for good.
fn rejected_spans(data: &[u8]) -> u64 {
    let response = data.get(5..).and_then(|message| ExportTraceServiceResponse::decode(message).ok());
    let partial = response.and_then(|response| response.partial_success).unwrap_or_default();
    if partial.rejected_spans > 0 {
        tracing::warn!(spans = partial.rejected_spans, error = partial.error_message, "trace collector rejected spans");
    }
    u64::try_from(partial.rejected_spans).unwrap_or_default()
}

fn transient(error: impl Display) -> ExportError {
    ExportError { message: error.to_string(), is_retryable: true }
}
