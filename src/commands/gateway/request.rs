//! The path of a request: parse, authenticate, authorize, limit, route, forward.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::header::CONNECTION;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};

use super::admission::{admit_request, admit_to_apiservice};
use super::connection::ClientConnection;
use super::finish_response::{add_warning, finish_with_record, record_response, strip_body};
use super::request_labels::{AUDIT_ID, audit_id, known_labels, request_labels};
use super::timeouts::{backend_timeout, before_deadline, client_deadline};
use super::{delegate_health, local, sidecar_mode};
use crate::authenticate::AuthenticatedUser;
use crate::authorize::rbac_proxy::PathAccess;
use crate::authorize::{EffectiveUser, Permit, SelfReview};
use crate::delegation_server::DelegationRequest;
use crate::forward::{ForwardedHeaders, OutboundRequest, send};
use crate::kubeapi::{CanonicalPath, Query, RequestInfo, Status, User};
use crate::message::{Accept, Blame, Body, IncomingBody, Refusal, hop_by_hop, respond};
use crate::observe::access::AccessRecord;
use crate::observe::audit::AuditInput;
use crate::observe::metrics::{Authentication, ExceededLimit};
use crate::openapi::OpenApiV2;
use crate::process::ShutdownPhase;
use crate::registry::DELEGATE;

/// The warning added to a 401 of the delegate, which sees the gateway's certificate and not the caller's credentials.
const DELEGATE_UNAUTHORIZED: &str =
    "the API server behind this gateway answered 401: it may not trust the gateway's front-proxy certificate";

/// Answers one request, with an error response if it is refused.
///
/// The request is boxed: it passes through many futures, each of which would hold a copy, and moving such futures was a
/// seventh of all CPU.
pub(super) async fn handle(connection: Rc<ClientConnection>, request: Box<Request<IncomingBody>>) -> Response<Body> {
    let mut record = connection.worker.reports.begin(connection.remote, &request);
    let accept = Accept::from_headers(request.headers());
    let audit_id = audit_id(request.headers());
    record.set_audit_id(audit_id.clone());
    let head = request.method() == Method::HEAD;
    let browsers = connection.worker.shared.cors.as_ref();
    let origin = browsers.and_then(|browsers| browsers.allowed_origin(request.headers()));
    let mut response = match process(&connection, request, &audit_id, record).await {
        Ok(response) => response,
        Err((refusal, mut record)) => {
            record.record_refusal(&refusal);
            if !connection.worker.reports.logs_refusals() {
                log_internal_error(&refusal);
            }
            // An unauthenticated client does not keep its HTTP/2 connection, which it could flood (kube-apiserver's
            // mitigation of CVE-2023-44487, KEP-4000).
            if refusal.status().code == 401 {
                connection.request_reconnect();
            }
            let response = respond(&refusal, &accept, connection.worker.shared.relay.error_format);
            record_response(record, &response);
            response
        }
    };
    response.headers_mut().insert(AUDIT_ID, audit_id);
    if let Some(browsers) = browsers {
        browsers.add_headers(response.headers_mut(), origin);
    }
    if connection.is_closing() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if head { strip_body(response) } else { response }
}

type RelayResult = Result<Response<Body>, (Refusal, AccessRecord)>;

/// Handles a request: parse, answer health checks, authenticate, impersonate, authorize, limit, route, forward.
async fn process(
    connection: &Rc<ClientConnection>,
    mut request: Box<Request<IncomingBody>>,
    audit_id: &HeaderValue,
    mut record: AccessRecord,
) -> RelayResult {
    // A refusal must return the record, or the request would be recorded as abandoned.
    macro_rules! attempt {
        ($result:expr) => {
            match $result {
                Ok(value) => value,
                Err(refusal) => return Err((Refusal::from(refusal), record)),
            }
        };
    }
    let worker = &connection.worker;
    let shared = &*worker.shared;

    // Parse. Authorization, routing and forwarding all use this one interpretation.
    let host = attempt!(connection.requested_host(&request).map_err(client_error));
    let uri = std::mem::take(request.uri_mut());
    let path = attempt!(sidecar_mode::parse_path(shared, uri.path()).map_err(client_error));
    let query = Query::parse(uri.query().unwrap_or_default());
    let method = request.method().clone();
    let info = attempt!(sidecar_mode::parse_info(shared, &method, &path, &query).map_err(client_error));
    let table = shared.table.get();
    let route = table.find_path(path.decoded());
    let upgrading = hop_by_hop::upgrade_protocol(request.headers()).is_some();
    let lasts = info.is_long_running()
        || route.is_some_and(|route| {
            route.api_service.settings.long_running.matches(&info.verb, info.subresource, info.path)
        });
    let long_running = upgrading || lasts;
    record.set_labels(&request_labels(&method, &info, &query, request.headers()), long_running, |_| {
        known_labels(shared, &info, route)
    });

    // Starts the audit of the request, once the user is known.
    let audit = |record: &mut AccessRecord, user: Option<&Arc<User>>, headers: &HeaderMap, unauthenticated: bool| {
        if let Some(auditor) = &shared.auditor {
            record.start_audit(auditor, &AuditInput { info: &info, user, headers, long_running, unauthenticated });
        }
    };

    // Health checks need no authentication: a load balancer has no credentials.
    let others = if delegate_health::includes_delegate_checks(shared, &method, path.decoded(), uri.query()) {
        let (host, headers) = (host.clone(), request.headers_mut());
        let asking = delegate_health::delegate_checks(connection, host, &info, &path, &query, headers, audit_id);
        Box::pin(asking).await
    } else {
        String::new()
    };
    if let Some(response) = local::health_response(shared, &method, path.decoded(), uri.query(), &others) {
        audit(&mut record, None, request.headers(), false);
        return Ok(finish_with_record(record, response));
    }
    // Nor do CORS preflight requests: browsers send them without credentials.
    if method == Method::OPTIONS
        && shared.cors.as_ref().is_some_and(|browsers| browsers.allowed_origin(request.headers()).is_some())
    {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(finish_with_record(record, response));
    }
    // `/metrics` is still served (`pkg/server/filters/with_retry_after.go`).
    if shared.relay.send_retry_after && shared.drain.phase() == ShutdownPhase::Leaving && path.decoded() != "/metrics" {
        connection.close_after_response();
        let status = Status::too_many_requests("The apiserver is shutting down, please try again later.", 5);
        return Err((Refusal::new(Blame::Gateway, status), record));
    }

    let (mut warning, mut anonymous, mut query_is_judged) = (None, false, true);
    let permit = 'let_in: {
        // Paths of a sidecar may be hidden, or served without authentication and authorization.
        match shared.policy.paths.access(&path) {
            PathAccess::Protected => {}
            PathAccess::NotFound => {
                return Err((client_error(Status::not_found()).with_cause("not among --allow-paths"), record));
            }
            PathAccess::Open(open) => {
                shared.authenticator.strip_identity_headers(request.headers_mut());
                audit(&mut record, None, request.headers(), false);
                query_is_judged = false;
                break 'let_in Permit::for_open_path(open, &shared.policy.open_path_user, info);
            }
        }

        // Authenticate. This removes the client's identity headers and credentials.
        let due = if long_running || !sidecar_mode::honors_timeout_parameter(shared, &info) {
            None
        } else {
            client_deadline(&query)
        };
        let authenticating = shared.authenticator.authenticate(&connection.peer, path.decoded(), request.headers_mut());
        let authenticated = match due {
            None => authenticating.await,
            Some(due) => {
                let in_time = before_deadline(due, Box::pin(authenticating)).await;
                attempt!(in_time.inspect_err(|_| audit(&mut record, None, request.headers(), false)))
            }
        };
        let metrics = worker.reports.metrics();
        let who = attempt!(authenticated.inspect_err(|nobody| {
            metrics.record_authentication(nobody.result(), None);
            audit(&mut record, None, request.headers(), true);
        }));
        audit(&mut record, Some(who.user()), request.headers(), false);
        metrics.record_authentication(Authentication::Success, Some(&who.name));
        record.set_user(who.user());
        connection.record_certificate_use();
        warning = who.warning();
        anonymous = who.is_anonymous();

        // Impersonate.
        let actor = match EffectiveUser::from_authenticated(&who) {
            Some(actor) => actor,
            None => attempt!(Box::pin(impersonate(connection, &who, request.headers_mut(), &info, due)).await),
        };
        if let Some(impersonated) = actor.impersonated() {
            record.set_impersonated(&impersonated.user, impersonated.constraint);
        }

        // Authorize.
        let authorized = match &shared.policy.rules {
            Some(rules) => {
                let rules = rules.get();
                query_is_judged = rules.reads_query_parameters();
                let questions =
                    Box::new(attempt!(rules.required_permissions(&method, &path, &query, request.headers())));
                let authorizing = Box::pin(shared.authorizer.authorize_all(&actor, info, &questions));
                match due {
                    None => authorizing.await,
                    Some(due) => attempt!(before_deadline(due, authorizing).await),
                }
            }
            None => {
                let authorizing = shared.authorizer.authorize(&actor, info);
                match due {
                    None => authorizing.await,
                    Some(due) => attempt!(before_deadline(due, Box::pin(authorizing)).await),
                }
            }
        };
        if let Some(audited) = record.audit_context() {
            match &authorized {
                Ok(permit) => audited.record_allowed(permit.reason()),
                Err(denied) => audited.record_denied(denied.forbidden_reason()),
            }
        }
        attempt!(authorized)
    };
    let (info, user) = (permit.request(), permit.user());

    // Limit requests in flight. A review sent by a backend is exempt: the request that caused it already counts, and
    // waits for it.
    let question = match &shared.reviewer {
        Some(reviewer) if route.is_none() => DelegationRequest::parse(info).map(|question| (reviewer, question)),
        _ => None,
    };
    // Long-running requests are exempt, too. Upgrade requests are not: they count until the upgrade succeeds.
    let hand = if lasts || question.is_some() { None } else { Some(shared.dealer.hand(&user.name)) };
    let place = match hand {
        Some(hand) => attempt!(admit_request(shared, user, info, hand)),
        None => None,
    };
    if shared.relay.goaway_chance > 0.0 && fastrand::f64() < shared.relay.goaway_chance || anonymous {
        connection.request_reconnect();
    }

    // Route: to a local response or a backend.
    let route = match route.or_else(|| local::openapi_owner(shared, &table, path.decoded())) {
        Some(route) => Some(route),
        None => attempt!(local::delegate_route(shared, &table, info)),
    };
    let Some(route) = route else {
        if shared.sidecar {
            return Err((sidecar_mode::no_upstream(), record));
        }
        if let Some(review) = SelfReview::parse(info) {
            let receipt = record.request_body_counter();
            let answer = Box::pin(local::self_review(connection, review, &permit, *request, &receipt)).await;
            let response = attempt!(answer);
            return Ok(finish_with_record(record, add_warning(response, warning)));
        }
        if let Some((reviewer, question)) = question {
            let receipt = record.request_body_counter();
            let asked = local::delegation_review(connection, reviewer, question, &permit, &query, *request, &receipt);
            let response = attempt!(Box::pin(asked).await);
            return Ok(finish_with_record(record, add_warning(response, warning)));
        }
        if OpenApiV2::is_path(path.decoded()) {
            let answer = shared.openapi_v2.answer(&method, request.headers());
            let response = attempt!(Box::pin(answer).await);
            return Ok(finish_with_record(record, add_warning(response, warning)));
        }
        let response = attempt!(local::respond(connection, &permit, &method, &uri, &query, request.headers()));
        return Ok(finish_with_record(record, add_warning(response, warning)));
    };
    let target = attempt!(route.target(|| hand.unwrap_or_else(|| shared.dealer.hand(&user.name))));
    let route_place = match hand {
        Some(hand) => {
            Some(attempt!(admit_to_apiservice(shared, route, info, hand, place.as_ref()).map_err(|turned| {
                shared.metrics.rejections().record(ExceededLimit::ApiService, turned);
                route.too_many_requests(turned)
            })))
        }
        None => None,
    };
    let backend = attempt!(worker.backend(&target));
    record.set_service(backend.metrics());
    let signature = attempt!(connection.forwarded_headers(user, host));
    let timeout = if long_running {
        None
    } else {
        attempt!(backend_timeout(info, &query, route, shared.sidecar).map_err(client_error))
    };
    record.mark_admitted();

    let openapi = sidecar_mode::has_kubernetes_responses(shared) && local::is_openapi(path.decoded());
    let sent_query =
        if query_is_judged { query.wire_first_values(info.authorized_parameters()) } else { query.raw().into() };
    let path_and_query = attempt!(backend_path(&path, &sent_query, &uri, openapi));
    let identity_headers = shared.authenticator.identity_headers();
    let outbound = OutboundRequest {
        request,
        path_and_query,
        forwarded_headers: ForwardedHeaders { connection_headers: &signature, path: path.raw(), audit_id },
        identity_headers: &identity_headers,
        rules: shared.policy.rules.as_ref().map(|rules| rules.get()),
        connection: &connection.handle,
        timeout,
        streams_by_type: shared.sidecar,
        permits: [place, route_place],
        circuit_permit: target.circuit_permit(),
    };
    let mut response =
        send(&permit, &backend, outbound, shared.relay.reject_redirects, &worker.streams, record).await?;
    if openapi {
        local::mark_openapi_immutable(&mut response, uri.query());
    }
    if response.status() == StatusCode::UNAUTHORIZED && route.api_service.name == DELEGATE {
        response = add_warning(response, Some(DELEGATE_UNAUTHORIZED));
    }
    Ok(add_warning(response, warning))
}

/// The impersonated user, if the caller may impersonate it. A separate future, because few requests need it.
async fn impersonate<'w>(
    connection: &ClientConnection,
    who: &'w AuthenticatedUser,
    headers: &mut HeaderMap,
    info: &RequestInfo<'_>,
    due: Option<Instant>,
) -> Result<EffectiveUser<'w>, Refusal> {
    let shared = &*connection.worker.shared;
    let groups = shared.authenticator.groups();
    let impersonating = shared.impersonator.impersonate(&shared.authorizer, groups, who, headers, info);
    match due {
        None => impersonating.await,
        Some(due) => before_deadline(due, Box::pin(impersonating)).await?,
    }
}

fn client_error(status: Status) -> Refusal {
    Refusal::new(Blame::Client, status)
}

/// The path and query sent to the backend: exactly those that were authorized.
fn backend_path(path: &CanonicalPath<'_>, query: &str, uri: &Uri, openapi: bool) -> Result<PathAndQuery, Refusal> {
    let path = path.wire();
    let made = if openapi {
        // The `hash` parameter is removed: a backend with a newer document would answer with a redirect.
        let query = Some(query).filter(|query| !query.is_empty());
        crate::openapi::split_hash(query).0.map_or_else(|| path.to_owned(), |rest| format!("{path}?{rest}"))
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
    PathAndQuery::try_from(made)
        .map_err(|error| client_error(Status::bad_request("the request's path cannot be sent on")).with_cause(error))
}

/// Logs an internal error, also if no access record is written.
fn log_internal_error(refusal: &Refusal) {
    if refusal.status().code == 500 {
        tracing::error!(cause = refusal.cause(), "request failed with an internal error: {}", refusal.status().message);
    }
}
