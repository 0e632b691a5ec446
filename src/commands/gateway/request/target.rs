//! Parsing of a request: its target and host are validated before anything else in it is read.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};

use super::labels::{known_labels, request_labels};
use super::timeouts::client_deadline;
use crate::commands::gateway::state::GatewayState;
use crate::commands::gateway::worker::ClientConnection;
use crate::kubeapi::{CanonicalPath, Query, RequestInfo, Status, User};
use crate::message::{Blame, Refusal, hop_by_hop};
use crate::observe::access::AccessRecord;
use crate::observe::audit::AuditInput;
use crate::route::{Route, RouteTable};

/// Header lines of one request, far beyond any user's groups. hyper limits HTTP/1.1 itself; the header map holds 24,576
/// names and panics when one more is added.
const MAX_HEADER_LINES: usize = 4096;

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
    /// Whether it is long-running by its verb, its subresource or the settings of its APIService.
    pub(super) is_long_running: bool,
    /// Whether it has no timeout: it is long-running or an upgrade.
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

    /// The decoded path.
    pub(super) fn path(&self) -> &'r str {
        self.target.path.decoded()
    }

    /// Sets the metric labels of the request.
    pub(super) fn set_labels(&self, info: &RequestInfo<'_>, headers: &HeaderMap, record: &mut AccessRecord) {
        let labels = request_labels(&self.target.method, info, &self.target.query, headers);
        record.set_labels(&labels, self.has_no_timeout, |_| known_labels(self.shared, info, self.route));
    }

    /// Starts the audit of the request once its user is known. `unauthenticated` says that authentication failed.
    pub(super) fn start_audit(
        &self,
        info: &RequestInfo<'_>,
        user: Option<&Arc<User>>,
        headers: &HeaderMap,
        unauthenticated: bool,
        record: &mut AccessRecord,
    ) {
        if let Some(auditor) = &self.shared.access.auditor {
            let long_running = self.has_no_timeout;
            record.start_audit(auditor, &AuditInput { info, user, headers, long_running, unauthenticated });
        }
    }
}

/// The requested host; none over HTTP/1.0, or if the request names none.
///
/// The host of the request target wins, as RFC 9112 says for `GET https://host/…`. Over HTTP/2 a `Host` beside
/// `:authority` must be equal.
///
/// # Errors
/// 400 for a missing, repeated or malformed host and for a malformed target. 405 for `CONNECT` and `TRACE`. 431 for too
/// many header lines.
pub(in crate::commands::gateway) fn requested_host<B>(request: &Request<B>) -> Result<Option<&str>, Status> {
    let headers = request.headers();
    if headers.len() > MAX_HEADER_LINES {
        return Err(Status::request_header_fields_too_large(format!(
            "a request has at most {MAX_HEADER_LINES} header lines"
        )));
    }
    // CONNECT would open a tunnel to any host; TRACE echoes credentials.
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return Err(Status::method_not_allowed("the server does not allow this method on the requested resource"));
    }
    let target = request.uri();
    let authority = target.authority().map(http::uri::Authority::as_str);
    if authority.is_some() && target.scheme().is_none() {
        return Err(Status::bad_request("the request target is neither a path nor a URL"));
    }
    let mut lines = headers.get_all(HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err(Status::bad_request("the request has more than one Host"));
    }
    let line = match line.map(HeaderValue::to_str) {
        Some(Err(_)) => return Err(malformed()),
        Some(Ok(line)) => Some(line),
        None => None,
    };
    let host = match (authority, line) {
        (Some(authority), Some(line))
            if request.version() == Version::HTTP_2 && !authority.eq_ignore_ascii_case(line) =>
        {
            return Err(Status::bad_request("the request names one host in :authority and another in Host"));
        }
        (None, None) if request.version() == Version::HTTP_11 => {
            return Err(Status::bad_request("the request has no Host"));
        }
        (authority, line) => authority.or(line),
    };
    Ok(host.filter(|host| !host.is_empty()))
}

/// Validates `host`; called once per new host of a connection.
pub(in crate::commands::gateway) fn validate_host(host: &str) -> Result<(), Status> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"!$%&'()*+-.:;=[]_~".contains(&byte);
    if host.bytes().all(known) { Ok(()) } else { Err(malformed()) }
}

/// The refusal of a request that is wrong as `status` says.
pub(super) fn client_error(status: Status) -> Refusal {
    Refusal::new(Blame::Client, status)
}

fn malformed() -> Status {
    Status::bad_request("the request names a host that cannot be one")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_host(method: &str, target: &str, version: Version, hosts: &[&str]) -> Result<Option<String>, u16> {
        let mut request = Request::builder().method(method).uri(target).version(version);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let request = request.body(()).unwrap();
        let host = requested_host(&request).map_err(|status| status.code)?;
        host.map(|host| validate_host(host).map(|()| host.to_owned())).transpose().map_err(|status| status.code)
    }

    #[test]
    fn host_header_single_or_absent() {
        let (old, one, two) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
        let a = || Ok(Some("a".to_owned()));
        for (target, version, hosts, expected) in [
            ("/x", one, &["a"][..], a()),
            ("/x", one, &["a:6443"], Ok(Some("a:6443".to_owned()))),
            ("/x", one, &["[::1]:6443"], Ok(Some("[::1]:6443".to_owned()))),
            ("/x", one, &[""], Ok(None)),
            ("/x", one, &[], Err(400)),
            ("/x", old, &[], Ok(None)),
            ("/x", one, &["a", "a"], Err(400)),
            ("/x", one, &["b@a"], Err(400)),
            ("/x", one, &["a/b"], Err(400)),
            ("/x", one, &["a, b"], Err(400)),
            ("https://a/x", one, &["b"], a()),
            ("https://a/x", two, &[], a()),
            ("https://a/x", two, &["A"], a()),
            ("https://a/x", two, &["b"], Err(400)),
            ("/x", two, &["a"], a()),
            ("a", one, &["a"], Err(400)),
        ] {
            assert_eq!(parse_host("GET", target, version, hosts), expected, "{target} {version:?} {hosts:?}");
        }
        assert_eq!(parse_host("CONNECT", "a:443", one, &["a"]), Err(405));
        assert_eq!(parse_host("TRACE", "/x", one, &["a"]), Err(405));
    }
}
