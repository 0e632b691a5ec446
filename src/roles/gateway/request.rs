//! The path of a request: parse, authenticate, authorize, limit, route, forward.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::header::CONNECTION;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};

use super::answered::{done, finish, warned, without_body};
use super::connection::Connection;
use super::named::{AUDIT_ID, audit_id, known, labels};
use super::patience::{due, in_time, timeout};
use super::places::{admit, enter};
use super::{delegate_health, guarding, local};
use crate::authenticate::Authenticated;
use crate::authorize::rbac_proxy::Way;
use crate::authorize::{Actor, Permit, SelfReview};
use crate::forward::{Origin, Outbound, send};
use crate::kubeapi::{CanonicalPath, Query, RequestInfo, Status, User};
use crate::message::{Accept, Blame, Body, Received, Refusal, hop_by_hop, respond};
use crate::observe::access::AccessRecord;
use crate::observe::audit::Begin;
use crate::observe::metrics::{Authentication, Limit};
use crate::openapi::Version2;
use crate::process::Phase;
use crate::registry::DELEGATE;
use crate::reviewer::Question;

/// The warning added to a 401 of the delegate, which sees the gateway's certificate and not the caller's credentials.
const DELEGATE_UNAUTHORIZED: &str =
    "the API server behind this gateway answered 401: it may not trust the gateway's front-proxy certificate";

/// Answers one request, with an error response if it is refused.
///
/// The request is boxed: it passes through many futures, each of which would hold a copy, and moving such futures was a
/// seventh of all CPU.
pub(super) async fn answer(connection: Rc<Connection>, request: Box<Request<Received>>) -> Response<Body> {
    let mut record = connection.worker.reports.begin(connection.remote, &request);
    let accept = Accept::of(request.headers());
    let audit_id = audit_id(request.headers());
    record.audit_id(audit_id.clone());
    let head = request.method() == Method::HEAD;
    let browsers = connection.worker.shared.browsers.as_ref();
    let origin = browsers.and_then(|browsers| browsers.origin(request.headers()));
    let mut response = match relay(&connection, request, &audit_id, record).await {
        Ok(response) => response,
        Err((refusal, mut record)) => {
            record.refused(&refusal);
            if !connection.worker.reports.writes_refusals() {
                log(&refusal);
            }
            // An unauthenticated client does not keep its HTTP/2 connection, which it could flood (kube-apiserver's
            // mitigation of CVE-2023-44487, KEP-4000).
            if refusal.status().code == 401 {
                connection.ask_to_reconnect();
            }
            let response = respond(&refusal, &accept, connection.worker.shared.forwarding.error_format);
            finish(record, &response);
            response
        }
    };
    response.headers_mut().insert(AUDIT_ID, audit_id);
    if let Some(browsers) = browsers {
        browsers.mark(response.headers_mut(), origin);
    }
    if connection.is_leaving() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if head { without_body(response) } else { response }
}

type Answer = Result<Response<Body>, (Refusal, AccessRecord)>;

/// Handles a request: parse, answer health checks, authenticate, impersonate, authorize, limit, route, forward.
async fn relay(
    connection: &Rc<Connection>,
    mut request: Box<Request<Received>>,
    audit_id: &HeaderValue,
    mut record: AccessRecord,
) -> Answer {
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
    let host = attempt!(connection.host(&request).map_err(client));
    let uri = std::mem::take(request.uri_mut());
    let path = attempt!(guarding::path(shared, uri.path()).map_err(client));
    let query = Query::parse(uri.query().unwrap_or_default());
    let method = request.method().clone();
    let info = attempt!(guarding::info(shared, &method, &path, &query).map_err(client));
    let table = shared.table.get();
    let route = table.find_path(path.decoded());
    let upgrading = hop_by_hop::upgrade_protocol(request.headers()).is_some();
    let lasts = info.is_long_running()
        || route.is_some_and(|route| {
            route.api_service.settings.long_running.matches(&info.verb, info.subresource, info.path)
        });
    let long_running = upgrading || lasts;
    record.asks(&labels(&method, &info, &query, request.headers()), long_running, |_| known(shared, &info, route));

    // Starts the audit of the request, once the user is known.
    let audit = |record: &mut AccessRecord, user: Option<&Arc<User>>, headers: &HeaderMap, unauthenticated: bool| {
        if let Some(auditor) = &shared.auditor {
            record.audit(auditor, &Begin { info: &info, user, headers, long_running, unauthenticated });
        }
    };

    // Health checks need no authentication: a load balancer has no credentials.
    let others = if delegate_health::is_asked(shared, &method, path.decoded(), uri.query()) {
        let (host, headers) = (host.clone(), request.headers_mut());
        let asking = delegate_health::checks(connection, host, &info, &path, &query, headers, audit_id);
        Box::pin(asking).await
    } else {
        String::new()
    };
    if let Some(response) = local::health(shared, &method, path.decoded(), uri.query(), &others) {
        audit(&mut record, None, request.headers(), false);
        return Ok(done(record, response));
    }
    // Nor do CORS preflight requests: browsers send them without credentials.
    if method == Method::OPTIONS
        && shared.browsers.as_ref().is_some_and(|browsers| browsers.origin(request.headers()).is_some())
    {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(done(record, response));
    }
    // `/metrics` is still served (`pkg/server/filters/with_retry_after.go`).
    if shared.forwarding.send_retry_after && shared.drain.phase() == Phase::Leaving && path.decoded() != "/metrics" {
        connection.leave();
        let status = Status::too_many_requests("The apiserver is shutting down, please try again later.", 5);
        return Err((Refusal::new(Blame::Gateway, status), record));
    }

    let (mut warning, mut anonymous, mut query_is_judged) = (None, false, true);
    let permit = 'let_in: {
        // Paths of a sidecar may be hidden, or served without authentication and authorization.
        match shared.guard.paths.way(&path) {
            Way::Asked => {}
            Way::NotThere => return Err((client(Status::not_found()).because("not among --allow-paths"), record)),
            Way::Open(open) => {
                shared.authenticator.take_away(request.headers_mut());
                audit(&mut record, None, request.headers(), false);
                query_is_judged = false;
                break 'let_in Permit::open(open, &shared.guard.nobody, info);
            }
        }

        // Authenticate. This removes the client's identity headers and credentials.
        let due = if long_running || !guarding::has_timeout(shared, &info) { None } else { due(&query) };
        let authenticating = shared.authenticator.authenticate(&connection.peer, path.decoded(), request.headers_mut());
        let authenticated = match due {
            None => authenticating.await,
            Some(due) => {
                let in_time = in_time(due, Box::pin(authenticating)).await;
                attempt!(in_time.inspect_err(|_| audit(&mut record, None, request.headers(), false)))
            }
        };
        let metrics = worker.reports.metrics();
        let who = attempt!(authenticated.inspect_err(|nobody| {
            metrics.authenticated(nobody.result(), None);
            audit(&mut record, None, request.headers(), true);
        }));
        audit(&mut record, Some(who.user()), request.headers(), false);
        metrics.authenticated(Authentication::Success, Some(&who.name));
        record.user(who.user());
        connection.let_in();
        warning = who.warning();
        anonymous = who.is_anonymous();

        // Impersonate.
        let actor = match Actor::oneself(&who) {
            Some(actor) => actor,
            None => attempt!(Box::pin(impersonate(connection, &who, request.headers_mut(), &info, due)).await),
        };
        if let Some(impersonated) = actor.impersonated() {
            record.impersonated(&impersonated.user, impersonated.constraint);
        }

        // Authorize.
        let authorized = match &shared.guard.rules {
            Some(rules) => {
                let rules = rules.get();
                query_is_judged = rules.read_queries();
                let questions = Box::new(attempt!(rules.questions(&method, &path, &query, request.headers())));
                let authorizing = Box::pin(shared.authorizer.authorize_all(&actor, info, &questions));
                match due {
                    None => authorizing.await,
                    Some(due) => attempt!(in_time(due, authorizing).await),
                }
            }
            None => {
                let authorizing = shared.authorizer.authorize(&actor, info);
                match due {
                    None => authorizing.await,
                    Some(due) => attempt!(in_time(due, Box::pin(authorizing)).await),
                }
            }
        };
        if let Some(audited) = record.audited() {
            match &authorized {
                Ok(permit) => audited.allowed(permit.why()),
                Err(denied) => audited.denied(denied.forbidden()),
            }
        }
        attempt!(authorized)
    };
    let (info, user) = (permit.request(), permit.user());

    // Limit requests in flight. A review sent by a backend is exempt: the request that caused it already counts, and
    // waits for it.
    let question = match &shared.reviewer {
        Some(reviewer) if route.is_none() => Question::asked(info).map(|question| (reviewer, question)),
        _ => None,
    };
    // Long-running requests are exempt, too. Upgrade requests are not: they count until the upgrade succeeds.
    let hand = if lasts || question.is_some() { None } else { Some(shared.dealer.hand(&user.name)) };
    let place = match hand {
        Some(hand) => attempt!(admit(shared, user, info, hand)),
        None => None,
    };
    if shared.forwarding.goaway_chance > 0.0 && fastrand::f64() < shared.forwarding.goaway_chance || anonymous {
        connection.ask_to_reconnect();
    }

    // Route: to a local response or a backend.
    let route = match route.or_else(|| local::openapi_owner(shared, &table, path.decoded())) {
        Some(route) => Some(route),
        None => attempt!(local::delegate(shared, &table, info)),
    };
    let Some(route) = route else {
        if shared.sidecar {
            return Err((guarding::nowhere(), record));
        }
        if let Some(review) = SelfReview::asked(info) {
            let receipt = record.receipt();
            let answer = Box::pin(local::self_review(connection, review, &permit, *request, &receipt)).await;
            let response = attempt!(answer);
            return Ok(done(record, warned(response, warning)));
        }
        if let Some((reviewer, question)) = question {
            let receipt = record.receipt();
            let asked = local::backend_s_question(connection, reviewer, question, &permit, &query, *request, &receipt);
            let response = attempt!(Box::pin(asked).await);
            return Ok(done(record, warned(response, warning)));
        }
        if Version2::is(path.decoded()) {
            let answer = shared.openapi2.answer(&method, request.headers());
            let response = attempt!(Box::pin(answer).await);
            return Ok(done(record, warned(response, warning)));
        }
        let response = attempt!(local::answer(connection, &permit, &method, &uri, &query, request.headers()));
        return Ok(done(record, warned(response, warning)));
    };
    let target = attempt!(route.target(|| hand.unwrap_or_else(|| shared.dealer.hand(&user.name))));
    let route_place = match hand {
        Some(hand) => Some(attempt!(enter(shared, route, info, hand, place.as_ref()).map_err(|turned| {
            shared.metrics.rejections().count(Limit::ApiService, turned);
            route.crowded(turned)
        }))),
        None => None,
    };
    let backend = attempt!(worker.backend(&target));
    record.service(backend.counts());
    let signature = attempt!(connection.signature(user, host));
    let timeout =
        if long_running { None } else { attempt!(timeout(info, &query, route, shared.sidecar).map_err(client)) };
    record.admitted();

    let openapi = guarding::knows_answers(shared) && local::is_openapi(path.decoded());
    let sent_query = if query_is_judged { query.wire_once(info.judged_parameters()) } else { query.raw().into() };
    let path_and_query = attempt!(sent_path(&path, &sent_query, &uri, openapi));
    let identity_headers = shared.authenticator.identity_headers();
    let outbound = Outbound {
        request,
        path_and_query,
        origin: Origin { signature: &signature, path: path.raw(), audit_id },
        identity_headers: &identity_headers,
        rules: shared.guard.rules.as_ref().map(|rules| rules.get()),
        connection: &connection.closer,
        timeout,
        streams_by_type: shared.sidecar,
        places: [place, route_place],
        passage: target.passage(),
    };
    let mut response =
        send(&permit, &backend, outbound, shared.forwarding.reject_redirects, &worker.streams, record).await?;
    if openapi {
        local::seal_openapi(&mut response, uri.query());
    }
    if response.status() == StatusCode::UNAUTHORIZED && route.api_service.name == DELEGATE {
        response = warned(response, Some(DELEGATE_UNAUTHORIZED));
    }
    Ok(warned(response, warning))
}

/// The impersonated user, if the caller may impersonate it. A separate future, because few requests need it.
async fn impersonate<'w>(
    connection: &Connection,
    who: &'w Authenticated,
    headers: &mut HeaderMap,
    info: &RequestInfo<'_>,
    due: Option<Instant>,
) -> Result<Actor<'w>, Refusal> {
    let shared = &*connection.worker.shared;
    let groups = shared.authenticator.groups();
    let impersonating = shared.impersonator.impersonate(&shared.authorizer, groups, who, headers, info);
    match due {
        None => impersonating.await,
        Some(due) => in_time(due, Box::pin(impersonating)).await?,
    }
}

fn client(status: Status) -> Refusal {
    Refusal::new(Blame::Client, status)
}

/// The path and query sent to the backend: exactly those that were authorized.
fn sent_path(path: &CanonicalPath<'_>, query: &str, uri: &Uri, openapi: bool) -> Result<PathAndQuery, Refusal> {
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
        .map_err(|error| client(Status::bad_request("the request's path cannot be sent on")).because(error))
}

/// Logs an internal error, also if no access record is written.
fn log(refusal: &Refusal) {
    if refusal.status().code == 500 {
        tracing::error!(cause = refusal.cause(), "request failed with an internal error: {}", refusal.status().message);
    }
}
