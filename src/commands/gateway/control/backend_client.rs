//! The gateway's own requests to backends: probes, discovery and OpenAPI documents.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderValue, Method, Request};
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use kubeapi::User;
use rustls_pki_types::UnixTime;

use super::held_endpoint::HeldEndpoint;
use crate::availability::{Probe, ProbeFailure, ProbeObserver};
use crate::discovery::{Fetch, FetchError, FetchedResponse, MAX_BODY};
use crate::egress::{Address, DialPhase, Endpoint, EndpointResponse, Pool, SendError};
use crate::forward::{UserHeaders, endpoint_key, transport_security};
use crate::message::{Body, DocumentError, unpack};
use crate::observe::metrics::Metrics;
use crate::process::{FairBudget, Published, Reservation};
use crate::registry::{ApiService, ClientCertificate, DELEGATE, ResolvedBackend};
use crate::route::RouteTable;
use crate::tls::KeyPair;

/// Sends the gateway's own requests to backends, as kube-aggregator does: as user `system:kube-aggregator` of group
/// `system:masters`, never with anything a client sent.
pub(super) struct BackendClient {
    pub(super) pool: Pool,
    pub(super) delegate_endpoint: RefCell<HeldEndpoint<Endpoint>>,
    pub(super) identity: Option<Published<KeyPair>>,
    pub(super) table: Published<RouteTable>,
    pub(super) identity_headers: UserHeaders,
    pub(super) metrics: Arc<Metrics>,
}

/// Why a request to a backend failed: a reason for clients and a cause for the log.
struct BackendCallError {
    reason: &'static str,
    cause: String,
    /// Whether dialing or the handshake failed.
    unreachable: bool,
}

impl BackendClient {
    /// Closes connections that are no longer used. Call it every second.
    pub(super) fn sweep(&self) {
        self.delegate_endpoint.borrow_mut().release(Instant::now());
        self.pool.sweep();
    }

    /// The user of the gateway's own requests.
    pub(super) fn user() -> User {
        User { name: "system:kube-aggregator".into(), groups: vec!["system:masters".into()], ..User::default() }
    }

    async fn send(
        &self,
        api_service: &ApiService,
        resolved: &ResolvedBackend,
        address: &Address,
        path: &str,
        headers: &[(http::HeaderName, &str)],
    ) -> Result<EndpointResponse, BackendCallError> {
        let wrong = |cause: String| BackendCallError { reason: "TLSConfiguration", cause, unreachable: true };
        let identity = self.identity.as_ref().map(Published::get);
        let wire = transport_security(api_service, resolved, identity.as_ref())
            .map_err(|problem| wrong(problem.to_string()))?;
        let endpoint = self.pool.endpoint(&endpoint_key(api_service, resolved, address, &wire));
        if api_service.name == DELEGATE {
            self.delegate_endpoint.borrow_mut().hold(&endpoint, Instant::now());
        }
        let mut request = Box::new(Request::new(Body::Empty));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = format!("{}{path}", resolved.prefix)
            .parse()
            .map_err(|error: http::uri::InvalidUri| wrong(error.to_string()))?;
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|error| wrong(error.to_string()))?;
            request.headers_mut().insert(name, value);
        }
        self.identity_headers.apply(request.headers_mut());
        let error = match endpoint.send(request).await {
            Ok(sent) => return Ok(sent),
            Err(error) => error,
        };
        if let SendError::NotSent { error, .. } = &error
            && error.reason == "MissingSAN"
        {
            self.metrics.record_missing_san();
        }
        let (reason, mut cause, unreachable) = match error {
            SendError::NotSent { error, .. } => (error.reason, error.cause, true),
            // In TLS 1.3 a backend verifies the client certificate after the client's side of the handshake is done.
            SendError::Refused(error) => (error.reason, error.cause, error.phase == DialPhase::Handshake),
            SendError::InvalidResponse(error) => ("InvalidAnswer", error.to_string(), false),
            SendError::Broken(error) | SendError::StaleConnection(error) => {
                ("ConnectionBroken", error.to_string(), false)
            }
        };
        if reason == "ClientCertificateRefused"
            && let Some(untimely) = self.certificate_validity_problem(api_service)
        {
            cause = format!("{cause}; rejected: {untimely}");
        }
        Err(BackendCallError { reason, cause, unreachable })
    }
}

impl BackendClient {
    /// The client certificate for the backend of `api_service` with its validity problem, if it has one.
    fn certificate_validity_problem(&self, api_service: &ApiService) -> Option<String> {
        let (kind, pair) = match &api_service.client_certificate {
            ClientCertificate::Shared => ("front-proxy", self.identity.as_ref()?.get()),
            ClientCertificate::Dedicated(pair) => ("client", pair.clone()),
            ClientCertificate::None => return None,
        };
        let facts = pair.info();
        let untimely = facts.validity_error(UnixTime::now())?;
        Some(format!("the gateway's {kind} certificate \"{}\": {untimely}", facts.subject))
    }
}

impl Probe for &BackendClient {
    async fn probe(
        &self,
        api_service: &ApiService,
        resolved: &ResolvedBackend,
        endpoint: &Address,
    ) -> Result<(), ProbeFailure> {
        let path = api_service.discovery_path();
        let sent = self.send(api_service, resolved, endpoint, &path, &[(ACCEPT, "application/json")]).await.map_err(
            |BackendCallError { reason, cause, unreachable }| match unreachable {
                true => ProbeFailure::unreachable(api_service, reason, cause),
                false => ProbeFailure::no_answer(api_service, reason, cause),
            },
        )?;
        let EndpointResponse { response, guard: mut lease, .. } = sent;
        let status = response.status();
        // Read to its end, so that the connection can be reused; at most the size limit of discovery documents.
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        if body.is_ok() {
            lease.finish();
        }
        if status.is_success() {
            return Ok(());
        }
        let untimely = self.certificate_validity_problem(api_service);
        Err(ProbeFailure::status(api_service, status.as_u16(), untimely.as_deref()))
    }
}

/// Fetches documents for discovery and OpenAPI.
pub(super) struct DocumentFetcher {
    pub(super) client: Rc<BackendClient>,
    /// Memory budget of all documents being read, shared by APIServices.
    pub(super) memory: Arc<FairBudget>,
}

/// Memory limit of all documents being read, in bytes; one document may take half of it.
pub(super) const DOCUMENT_MEMORY: usize = 128 << 20;

impl Fetch for DocumentFetcher {
    async fn fetch(
        &self,
        apiservice: &str,
        path: &str,
        accept: &str,
        if_none_match: Option<&str>,
        max_bytes: usize,
    ) -> Result<FetchedResponse, FetchError> {
        let table = self.client.table.get();
        let route = table.by_name(apiservice).ok_or_else(|| FetchError::new("it is no longer registered"))?;
        let resolved = route.resolved.as_ref().map_err(|unavailable| {
            FetchError::seen_by_probe(format!("{}: {}", unavailable.reason, unavailable.message))
        })?;
        let mut headers = vec![(ACCEPT, accept)];
        headers.extend(if_none_match.map(|etag| (IF_NONE_MATCH, etag)));
        let mut last = FetchError::new("it has no endpoints");
        // Ejected endpoints are tried last.
        let (out, fine): (Vec<_>, Vec<_>) =
            resolved.endpoints.iter().zip(&route.endpoint_health).partition(|(_, standing)| standing.is_ejected());
        for (address, _) in fine.into_iter().chain(out).take(3) {
            match self.client.send(&route.api_service, resolved, address, path, &headers).await {
                Ok(sent) => {
                    // The delegate has no availability probe and may go without requests for long.
                    if apiservice == DELEGATE && !sent.response.status().is_server_error() {
                        route.availability.poll_answered(address);
                    }
                    return read_document(sent, path, max_bytes, Reservation::new(&self.memory, apiservice)).await;
                }
                Err(BackendCallError { reason, cause, unreachable }) => {
                    last = FetchError { text: format!("{reason}: {cause}"), seen_by_probe: unreachable };
                }
            }
        }
        Err(last)
    }
}

/// Reads a document into buffers that grow with it, however small its frames are.
async fn read_document(
    sent: EndpointResponse,
    path: &str,
    max_bytes: usize,
    mut reservation: Reservation,
) -> Result<FetchedResponse, FetchError> {
    let EndpointResponse { response, guard: mut lease, .. } = sent;
    let (parts, mut body) = response.into_parts();
    let text = |name| parts.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::to_owned);
    let too_large = || FetchError::new(format!("the answer to GET {path} is larger than {} MiB", max_bytes >> 20));
    let too_much = || {
        FetchError::new(format!(
            "the answer to GET {path} is ignored: all documents being read together are larger than {} MiB",
            DOCUMENT_MEMORY >> 20
        ))
    };
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(too_large());
    }
    let (mut full, mut last, mut length) = (Vec::new(), BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| FetchError::new(format!("its response is incomplete: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > max_bytes {
            return Err(too_large());
        }
        if last.len() + data.len() > last.capacity() {
            let capacity = length.clamp(BUFFER_SIZES.0, BUFFER_SIZES.1).max(data.len());
            if !reservation.try_grow(capacity) {
                return Err(too_much());
            }
            full.push(std::mem::replace(&mut last, BytesMut::with_capacity(capacity)));
        }
        last.extend_from_slice(&data);
    }
    lease.finish();
    let body = if full.len() < 2 {
        last.freeze()
    } else {
        full.push(last);
        Bytes::from(full.concat())
    };
    let packed = body.len();
    let body = unpack(&parts.headers, body, max_bytes).map_err(|error| match error {
        DocumentError::TooLong(_) => too_large(),
        other => FetchError::new(format!("the answer to GET {path} is ignored: {other}")),
    })?;
    if body.len() > packed && !reservation.try_grow(body.len() - packed) {
        return Err(too_much());
    }
    Ok(FetchedResponse {
        status: parts.status.as_u16(),
        content_type: text(CONTENT_TYPE).unwrap_or_default(),
        etag: text(ETAG),
        body,
        reservation: Some(Arc::new(reservation)),
    })
}

/// Smallest and largest buffer size of a document, in bytes.
const BUFFER_SIZES: (usize, usize) = (16 << 10, 1 << 20);

/// Records availability of APIServices in the metrics.
pub(super) struct AvailabilityMetrics(pub(super) Arc<Metrics>);

impl ProbeObserver for AvailabilityMetrics {
    fn set_unavailable(&self, name: &str, unavailable: bool) {
        if !unavailable {
            self.0.set_apiservice_availability(name, None);
        }
    }

    fn became_unavailable(&self, name: &str, reason: &str) {
        self.0.set_apiservice_availability(name, Some(reason));
    }

    fn removed(&self, name: &str) {
        self.0.remove_apiservice(name);
    }
}
