//! Forwarding of an authorized request to the backend of its route.

use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri};
use kubeapi::{CanonicalPath, Status};

use super::access::Access;
use super::limits::Admission;
use super::response::add_warning;
use super::target::{ParsedRequest, client_error};
use super::timeouts::backend_timeout;
use crate::forward::{
    BackendRenewal, ForwardedBody, ForwardedHeaders, OutboundRequest, ResponseOptions, WorkerBackend,
};
use crate::message::{IncomingBody, Refusal};
use crate::observe::access::AccessRecord;
use crate::openapi;
use crate::process::Published;
use crate::registry::DELEGATE;
use crate::route::Route;

/// The warning added to a 401 of the delegate, which sees the gateway's certificate and not the caller's credentials.
const DELEGATE_UNAUTHORIZED: &str =
    "the API server behind this gateway answered 401: it may not trust the gateway's front-proxy certificate";

/// Admits a request to the backend of `route`, and prepares what to send to it.
///
/// # Errors
/// 503 for an unavailable APIService, 429 for a busy one.
pub(super) fn admit_to_backend<'r>(
    parsed: &ParsedRequest<'r>,
    access: &Access<'_>,
    route: &Arc<Route>,
    admission: Admission,
    request: Box<Request<IncomingBody>>,
    record: &mut AccessRecord,
) -> Result<(Rc<WorkerBackend>, OutboundRequest<'r>), Refusal> {
    let (shared, connection, incoming) = (parsed.shared, parsed.connection, parsed.target);
    let (info, user) = (access.permit.request(), access.permit.user());
    let hand = admission.hand;
    let target = route.target(|| hand.unwrap_or_else(|| shared.inflight.dealer.hand(&user.name)))?;
    let permits = admission.admit_to_apiservice(shared, route, info)?;
    let backend = connection.worker.backend(&target)?;
    record.set_service(backend.metrics());
    let connection_headers = connection.forwarded_headers(user, incoming.host.clone())?;
    let timeout = match parsed.has_no_timeout {
        true => None,
        false => backend_timeout(&shared.policy, info, &incoming.query, route).map_err(client_error)?,
    };
    record.mark_admitted();
    let query = match access.query_authorized {
        true => incoming.query.wire_first_values(info.authorized_parameters()),
        false => incoming.query.raw().into(),
    };
    let is_openapi = shared.policy.is_openapi_document(parsed.path());
    let outbound = OutboundRequest {
        request,
        path_and_query: backend_path(&incoming.path, &query, incoming.uri, is_openapi)?,
        forwarded_headers: ForwardedHeaders {
            connection_headers,
            path: incoming.path.raw(),
            audit_id: parsed.audit_id,
        },
        identity_headers: shared.access.authenticator.identity_headers(),
        rules: shared.policy.rules.as_ref().map(Published::get),
        timeout,
        circuit_permit: target.circuit_permit(),
        renewal: BackendRenewal::new(&*connection.worker, route.clone()),
        response_options: ResponseOptions {
            connection: &connection.handle,
            streams: &connection.worker.streams,
            streams_by_type: shared.policy.streams_by_type(),
            // As kube-aggregator, which passes on what the API server behind it answers.
            reject_redirects: shared.responses.reject_redirects && !route.api_service.settings.owns_origin,
            permits,
        },
    };
    Ok((backend, outbound))
}

/// The path and query sent to the backend: exactly those that were authorized.
fn backend_path(path: &CanonicalPath<'_>, query: &str, uri: &Uri, is_openapi: bool) -> Result<PathAndQuery, Refusal> {
    let path = path.wire();
    let built = if is_openapi {
        // The `hash` parameter is removed: a backend with a newer document would answer with a redirect.
        let query = Some(query).filter(|query| !query.is_empty());
        openapi::split_hash(query).0.map_or_else(|| path.to_owned(), |rest| format!("{path}?{rest}"))
    } else {
        if let Some(whole) = uri.path_and_query()
            && let Some(rest) = whole.as_str().strip_prefix(path)
            && rest.strip_prefix('?').unwrap_or(rest) == query
        {
            // Unchanged, as nearly always: reused without allocation.
            return Ok(whole.clone());
        }
        if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
    };
    PathAndQuery::try_from(built)
        .map_err(|error| client_error(Status::bad_request("the request's path cannot be sent on")).with_cause(error))
}

/// Adds what the gateway itself says about the response of a backend.
pub(super) fn add_gateway_headers(
    parsed: &ParsedRequest<'_>,
    route: &Route,
    mut response: Response<ForwardedBody>,
) -> Response<ForwardedBody> {
    if parsed.shared.policy.is_openapi_document(parsed.path()) {
        // Immutable if it matches the hash in the query.
        let hash = openapi::split_hash(parsed.target.uri.query()).1;
        openapi::mark_immutable(response.headers_mut(), hash, SystemTime::now());
    }
    if response.status() == StatusCode::UNAUTHORIZED && route.api_service.name == DELEGATE {
        response = add_warning(response, Some(DELEGATE_UNAUTHORIZED));
    }
    response
}
