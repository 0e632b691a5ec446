//! Health checks, which need no authentication: a load balancer has no credentials. The delegate's are listed after the
//! gateway's (`/readyz?verbose`). They do not affect the result.

use std::pin::pin;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{HeaderMap, Response};
use kubeapi::RequestInfo;

use super::limits::{acquire_apiservice_permit, admit_request};
use super::target::ParsedRequest;
use crate::authorize::EffectiveUser;
use crate::forward::{ForwardedHeaders, fetch};
use crate::message::Body;
use crate::observe::access::AccessRecord;
use crate::observe::health::RequestedChecks;
use crate::process::with_deadline;

/// Timeout of the delegate's response, including authentication and authorization.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Size limit of the delegate's response.
const MAX_BODY: usize = 64 << 10;
/// The line in place of the delegate's checks when it does not answer.
const FAILED: &str = "[-]delegate failed: reason withheld\n";

/// The response to a request for health checks.
///
/// Owns `info`: borrowed over an await, it would be part of the future of every request.
pub(super) async fn respond(
    parsed: &ParsedRequest<'_>,
    info: RequestInfo<'_>,
    checks: RequestedChecks<'_>,
    headers: &mut HeaderMap,
    record: &mut AccessRecord,
) -> Response<Body> {
    let query = parsed.target.uri.query();
    // Boxed: few requests need it.
    let delegate_checks = match parsed.shared.delegate.all && checks.are_listed(query) {
        true => Box::pin(delegate_checks(parsed, &info, headers)).await,
        false => String::new(),
    };
    let response = checks.respond(query, &delegate_checks);
    parsed.start_audit(&info, None, headers, record);
    response.map(Body::from)
}

/// The delegate's list of its checks, as lines. Empty for a caller that is not allowed to read it: the gateway reveals
/// no more than the delegate itself.
async fn delegate_checks(parsed: &ParsedRequest<'_>, info: &RequestInfo<'_>, headers: &mut HeaderMap) -> String {
    let (connection, path, query) = (parsed.connection, &parsed.target.path, &parsed.target.query);
    let list = pin!(async {
        let shared = parsed.shared;
        let Some(route) = parsed.target.table.delegate() else { return String::new() };
        let Ok(caller) = shared.access.authenticator.authenticate(&connection.peer, path.decoded(), headers).await
        else {
            return String::new();
        };
        // Impersonation is not supported here; such callers can read the delegate's checks one by one.
        let Some(caller) = EffectiveUser::from_authenticated(&caller) else { return String::new() };
        let Ok(permit) = shared.access.authorizer.authorize(&caller, info.clone()).await else { return String::new() };
        let (info, user) = (permit.request(), permit.user());
        let hand = shared.inflight.dealer.hand(&user.name);
        let checks = async {
            let permit = admit_request(shared, user, info, hand).ok()?;
            let _permit = acquire_apiservice_permit(shared, route, info, hand, permit.as_ref()).ok()?;
            let target = route.target(|| hand).ok()?;
            let backend = connection.worker.backend(&target).ok()?;
            let connection_headers = connection.forwarded_headers(user, parsed.target.host.clone()).ok()?;
            let headers = ForwardedHeaders { connection_headers, path: path.raw(), audit_id: parsed.audit_id };
            let path_and_query = PathAndQuery::try_from(format!("{}?{}", path.wire(), query.wire())).ok()?;
            let _circuit_permit = target.circuit_permit().inspect(|circuit_permit| circuit_permit.mark_sent());
            let (status, body) = fetch(&backend, path_and_query, &headers, MAX_BODY).await.ok()?;
            // 500 lists the checks, too, with the failing ones.
            matches!(status.as_u16(), 200 | 500).then(|| String::from_utf8_lossy(&body).into_owned())
        };
        checks.await.unwrap_or_else(|| FAILED.to_owned())
    });
    let listed = with_deadline(Instant::now().checked_add(TIMEOUT), list).await;
    listed.unwrap_or_else(|| FAILED.to_owned())
}
