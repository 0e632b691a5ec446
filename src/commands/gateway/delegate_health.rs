//! Health checks of the delegate, listed after the gateway's (`/readyz?verbose`). They do not affect the result.

use std::pin::pin;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method};

use super::admission::{admit_request, admit_to_apiservice};
use super::connection::ClientConnection;
use super::state::GatewayState;
use crate::authorize::EffectiveUser;
use crate::forward::{ForwardedHeaders, fetch};
use crate::kubeapi::{CanonicalPath, Query, RequestInfo};
use crate::process::with_deadline;

/// Timeout of the delegate's response, including authentication and authorization.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Size limit of the delegate's response.
const MAX_BODY: usize = 64 << 10;
/// The line in place of the delegate's checks when it does not answer.
const FAILED: &str = "[-]delegate failed: reason withheld\n";

/// Whether the response for `path` includes the delegate's checks.
pub(super) fn includes_delegate_checks(
    shared: &GatewayState,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> bool {
    shared.delegates_all
        && matches!(*method, Method::GET | Method::HEAD)
        && shared.health.iter().any(|health| health.lists_all(path, query))
}

/// The delegate's list of its checks, as lines. Empty for a caller that is not allowed to read it: the gateway reveals
/// no more than the delegate itself.
pub(super) async fn delegate_checks(
    connection: &ClientConnection,
    host: Option<HeaderValue>,
    info: &RequestInfo<'_>,
    path: &CanonicalPath<'_>,
    query: &Query<'_>,
    headers: &mut HeaderMap,
    audit_id: &HeaderValue,
) -> String {
    let list = pin!(async {
        let shared = &*connection.worker.shared;
        let table = shared.table.get();
        let Some(route) = table.delegate() else { return String::new() };
        let Ok(who) = shared.authenticator.authenticate(&connection.peer, path.decoded(), headers).await else {
            return String::new();
        };
        // Impersonation is not supported here; such callers can read the delegate's checks one by one.
        let Some(actor) = EffectiveUser::from_authenticated(&who) else { return String::new() };
        let Ok(permit) = shared.authorizer.authorize(&actor, info.clone()).await else { return String::new() };
        let (info, user) = (permit.request(), permit.user());
        let hand = shared.dealer.hand(&user.name);
        let asked = async {
            let place = admit_request(shared, user, info, hand).ok()?;
            let _place = admit_to_apiservice(shared, route, info, hand, place.as_ref()).ok()?;
            let target = route.target(|| hand).ok()?;
            let backend = connection.worker.backend(&target).ok()?;
            let signature = connection.forwarded_headers(user, host).ok()?;
            let origin = ForwardedHeaders { connection_headers: &signature, path: path.raw(), audit_id };
            let path_and_query = PathAndQuery::try_from(format!("{}?{}", path.wire(), query.wire())).ok()?;
            let _passage = target.circuit_permit().inspect(|circuit_permit| circuit_permit.mark_sent());
            let (status, body) = fetch(&backend, path_and_query, &origin, MAX_BODY).await.ok()?;
            // 500 lists the checks, too, with the failing ones.
            matches!(status.as_u16(), 200 | 500).then(|| String::from_utf8_lossy(&body).into_owned())
        };
        asked.await.unwrap_or_else(|| FAILED.to_owned())
    });
    let listed = with_deadline(Instant::now().checked_add(TIMEOUT), list).await;
    listed.unwrap_or_else(|| FAILED.to_owned())
}
