//! Parsing of a request: its target is validated before anything else in it is read.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, Method, Uri};
use kubeapi::{CanonicalPath, Query, RequestInfo, Status, User, duration};

use super::destination::{LocalSnapshots, RequestDestination, RoutingRequest, RoutingSettings};
use super::labels::{known_labels, request_labels};
use super::timeouts::client_deadline;
use crate::authenticate::{AuthenticatedUser, AuthenticationError};
use crate::commands::gateway::state::GatewayState;
use crate::commands::gateway::worker::ClientConnection;
use crate::message::{Blame, Refusal, hop_by_hop};
use crate::observe::access::AccessRecord;
use crate::observe::audit::AuditInput;
use crate::observe::trace::TraceInput;
use crate::route::{Route, RouteTable};

/// The parts of a request's target, and the route table in use when it arrived.
pub(super) struct RequestTarget<'u> {
    shared: &'u GatewayState,
    pub(super) method: Method,
    pub(super) host: Option<HeaderValue>,
    pub(super) uri: &'u Uri,
    pub(super) path: CanonicalPath<'u>,
    pub(super) query: Query<'u>,
    pub(super) table: Arc<RouteTable>,
}

/// A parsed request.
pub(super) struct ParsedRequest<'r> {
    pub(super) connection: &'r Rc<ClientConnection>,
    pub(super) shared: &'r GatewayState,
    pub(super) target: &'r RequestTarget<'r>,
    pub(super) audit_id: &'r HeaderValue,
    /// The route that claims the path.
    pub(super) route: Option<&'r Arc<Route>>,
    /// Whether the request is long-running by its verb, its subresource or the settings of its APIService.
    pub(super) is_long_running: bool,
    /// Whether the request has no timeout: it is long-running or an upgrade.
    pub(super) has_no_timeout: bool,
    /// Deadline of authentication and authorization, if the client sent one.
    pub(super) deadline: Option<Instant>,
}

impl<'u> RequestTarget<'u> {
    /// Parses `uri`, which was requested of `host`.
    ///
    /// # Errors
    /// 400 for a path that servers could interpret differently.
    pub(super) fn parse(
        connection: &'u ClientConnection,
        method: &Method,
        host: Option<HeaderValue>,
        uri: &'u Uri,
    ) -> Result<RequestTarget<'u>, Refusal> {
        let shared = &*connection.worker.shared;
        Ok(RequestTarget {
            shared,
            method: method.clone(),
            host,
            path: shared.policy.parse_path(uri.path()).map_err(client_error)?,
            query: Query::parse(uri.query().unwrap_or_default()),
            table: shared.table.get(),
            uri,
        })
    }

    /// The attributes of the request.
    ///
    /// # Errors
    /// 400 for a request that kube-apiserver rejects.
    pub(super) fn request_info(&self) -> Result<RequestInfo<'_>, Refusal> {
        self.shared.policy.parse_info(&self.method, &self.path, &self.query).map_err(client_error)
    }
}

impl<'r> ParsedRequest<'r> {
    pub(super) fn new(
        connection: &'r Rc<ClientConnection>,
        target: &'r RequestTarget<'r>,
        info: &RequestInfo<'_>,
        headers: &HeaderMap,
        audit_id: &'r HeaderValue,
    ) -> ParsedRequest<'r> {
        let route = target.table.find_path(target.path.decoded());
        let matches = |route: &Arc<Route>| {
            route.api_service.settings.long_running.matches(&info.verb, info.subresource, info.path)
        };
        let is_long_running = info.is_long_running() || route.is_some_and(matches);
        let has_no_timeout = is_long_running || hop_by_hop::upgrade_protocol(headers).is_some();
        let honors_timeout = !has_no_timeout && target.shared.policy.honors_timeout_parameter(info);
        ParsedRequest {
            connection,
            shared: target.shared,
            target,
            audit_id,
            route,
            is_long_running,
            has_no_timeout,
            deadline: if honors_timeout { client_deadline(&target.query) } else { None },
        }
    }

    /// Checks the query's `timeout` (`k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go`), before anything of the
    /// request is answered.
    ///
    /// # Errors
    /// 400 for an invalid one.
    pub(super) fn check_timeout_parameter(&self) -> Result<(), Refusal> {
        if self.is_long_running || !self.shared.policy.validates_timeout_parameter() {
            return Ok(());
        }
        duration::request_timeout(&self.target.query, Duration::MAX).map(drop).map_err(client_error)
    }

    /// Where the request goes.
    pub(super) fn destination(&self, info: &RequestInfo<'_>, headers: &HeaderMap) -> RequestDestination<'r> {
        let (shared, method) = (self.shared, &self.target.method);
        let settings = RoutingSettings {
            health: &shared.health,
            delegate: shared.delegate,
            serves_reviews: shared.serves_reviews,
            issues_tokens: shared.api.token_issuer().is_some(),
            serves_locally: shared.policy.serves_locally(),
        };
        let cors = shared.responses.cors.as_ref().filter(|_| *method == Method::OPTIONS);
        let is_preflight = cors.is_some_and(|cors| cors.allowed_origin(headers).is_some());
        let request = RoutingRequest { method, info, is_preflight, table: &self.target.table, route: self.route };
        RequestDestination::find(&settings, &request, || LocalSnapshots {
            catalog: shared.api.catalog().load(),
            discovery: shared.documents.discovery.load(),
            openapi: shared.documents.openapi.load(),
        })
    }

    /// The decoded path.
    pub(super) fn path(&self) -> &'r str {
        self.target.path.decoded()
    }

    /// Sets the metric labels of the request.
    pub(super) fn set_labels(&self, info: &RequestInfo<'_>, headers: &HeaderMap, record: &mut AccessRecord) {
        let labels = request_labels(&self.target.method, info, &self.target.query, headers);
        record.set_labels(&labels, self.has_no_timeout, |_| known_labels(self.shared, info, self.route));
    }

    /// Starts the audit of the request. `authenticated` is the result of authentication; none without one.
    pub(super) fn start_audit(
        &self,
        info: &RequestInfo<'_>,
        authenticated: Option<Result<&AuthenticatedUser, &AuthenticationError>>,
        headers: &HeaderMap,
        record: &mut AccessRecord,
    ) {
        let Some(auditor) = &self.shared.access.auditor else { return };
        let (user, annotations) = match authenticated {
            None => (None, &[][..]),
            Some(Ok(caller)) => (Some(caller.user()), &*caller.notes().annotations),
            Some(Err(error)) => (None, &*error.notes().annotations),
        };
        let unauthenticated = matches!(authenticated, Some(Err(_)));
        let long_running = self.has_no_timeout;
        let control_plane = self.connection.worker.reports.control_plane();
        let begin = AuditInput { info, user, headers, long_running, control_plane, unauthenticated, annotations };
        record.start_audit(auditor, &begin);
    }

    /// Starts the trace of the request of an authenticated `user`; none for a path that needs no authentication.
    pub(super) fn start_trace(
        &self,
        info: &RequestInfo<'_>,
        user: Option<&User>,
        headers: &mut HeaderMap,
        record: &mut AccessRecord,
    ) {
        if let Some(tracer) = &self.shared.tracer {
            record.start_trace(tracer, &TraceInput { info, host: self.target.host.as_ref(), user }, headers);
        }
    }
}

/// The refusal of a request that is wrong as `status` says.
pub(super) fn client_error(status: Status) -> Refusal {
    Refusal::new(Blame::Client, status)
}
