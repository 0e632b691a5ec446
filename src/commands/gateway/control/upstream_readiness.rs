//! Readiness of a sidecar's upstreams, for `/readyz`; `/livez` covers the sidecar only.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::availability::{AvailabilityCondition, ConditionStatus};
use crate::egress::Dialer;
use crate::observe::health::HealthCheck;
use crate::process::{Drain, Published, Publisher, ShutdownPhase};
use crate::route::{Route, RouteTable};

/// Intervals between two checks: when all upstreams are ready, and when one is not.
const CHECK_INTERVALS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));

/// Readiness conditions by the path of the upstream.
pub(in crate::commands::gateway) type UpstreamReadiness = BTreeMap<String, AvailabilityCondition>;

/// Opens a connection to each upstream every few seconds and publishes the results, until the process ends. No request
/// is sent: the upstream's own health checks are relayed like any path. Requests do not wait for this check.
pub(super) async fn follow(
    table: Published<RouteTable>,
    dialer: Dialer,
    publisher: Publisher<UpstreamReadiness>,
    mut drain: Drain,
) {
    let mut previous = UpstreamReadiness::new();
    loop {
        let now = table.get();
        let checks = now
            .upstreams()
            .iter()
            .map(async |route| (route.api_service.name.clone(), check_upstream(route, &dialer).await));
        let found = futures_util::future::join_all(checks).await;
        let mut next = UpstreamReadiness::new();
        for (name, result) in found {
            let condition = match (previous.remove(&name), &result) {
                (Some(before), Ok(())) if before.status == ConditionStatus::True => before,
                (Some(before), Err((reason, _))) if before.reason == *reason => before,
                (_, Ok(())) => {
                    tracing::info!(upstream = name, "upstream reachable");
                    condition(ConditionStatus::True, "Reached", "it accepts connections", String::new())
                }
                (_, Err((reason, cause))) => {
                    tracing::warn!(
                        upstream = name,
                        reason,
                        cause,
                        "upstream unreachable; /readyz fails until it accepts connections"
                    );
                    condition(ConditionStatus::False, reason, "it accepts no connections", cause.clone())
                }
            };
            next.insert(name, condition);
        }
        let all_ready = next.values().all(|condition| condition.status == ConditionStatus::True);
        previous.clone_from(&next);
        publisher.publish(Arc::new(next));
        tokio::select! {
            () = tokio::time::sleep(if all_ready { CHECK_INTERVALS.0 } else { CHECK_INTERVALS.1 }) => {}
            () = drain.wait_for(ShutdownPhase::Ending) => return,
        }
    }
}

fn condition(status: ConditionStatus, reason: &'static str, message: &str, detail: String) -> AvailabilityCondition {
    AvailabilityCondition {
        status,
        reason: Cow::Borrowed(reason),
        message: message.to_owned(),
        detail,
        since: SystemTime::now(),
    }
}

async fn check_upstream(route: &Route, dialer: &Dialer) -> Result<(), (&'static str, String)> {
    let resolved = route.resolved.as_ref().map_err(|unavailable| (unavailable.reason, unavailable.message.clone()))?;
    let patience = route.api_service.settings.connect_timeout;
    let mut last = ("NoEndpoints", String::new());
    for address in &resolved.endpoints {
        match dialer.open_address(&resolved.egress_route, address, patience).await {
            Ok(_) => return Ok(()),
            Err(error) => last = (error.reason, error.cause),
        }
    }
    Err(last)
}

/// The readiness check: every upstream accepts connections.
pub(in crate::commands::gateway) fn readiness_check(readiness: Published<UpstreamReadiness>) -> HealthCheck {
    HealthCheck::new("upstream", move || {
        let readiness = readiness.load();
        if readiness.is_empty() {
            return Err("upstreams not checked yet".to_owned());
        }
        let gone = readiness.iter().find(|(_, condition)| condition.status != ConditionStatus::True);
        gone.map_or(Ok(()), |(name, condition)| Err(format!("{name}: {} ({})", condition.reason, condition.message)))
    })
}
