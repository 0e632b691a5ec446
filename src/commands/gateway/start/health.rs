//! The health endpoints and their checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::commands::gateway::control::readiness_check;
use crate::commands::gateway::review_thread::{DelegatedAuth, review_check};
use crate::config::GatewayConfig;
use crate::discovery::DiscoverySnapshot;
use crate::observe::access::AccessLog;
use crate::observe::health::{HealthCheck, HealthChecks};
use crate::observe::metrics::Metrics;
use crate::process::{Drain, Published, ShutdownPhase};
use crate::rest::ApiServer;
use crate::route::RouteTable;

use super::routing::Routing;

/// The readiness checks that depend on the configuration.
pub(super) fn readiness_checks(
    config: &GatewayConfig,
    routing: &Routing,
    delegated: &DelegatedAuth,
    metrics: &Arc<Metrics>,
) -> Vec<HealthCheck> {
    let registry = routing.cluster.as_ref().map(|cluster| cluster.check(&routing.table));
    let upstreams = config.is_sidecar().then(|| readiness_check(routing.upstream_readiness.clone()));
    let sends_reviews = config.delegated_auth.authorization_kubeconfig.is_some()
        || config.authorization_config.is_some()
        || !delegated.token_reviews.is_empty();
    let reviews = sends_reviews.then(|| review_check(metrics, config.delegated_auth.readiness_requires_reviews));
    let certificate = delegated.certificate_wait.clone().map(certificate_check);
    [registry, upstreams, reviews, certificate].into_iter().flatten().collect()
}

/// Names of what a kube-apiserver does after its start (`test/e2e/apimachinery/health_handlers.go`). Here all of it is done
/// before the first request, unless an object that every server has could not be stored.
const START_HOOKS: [&str; 20] = [
    "poststarthook/storage-readiness",
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
];

/// The checks of an embedded API server's start.
pub(super) fn start_checks(api: &ApiServer) -> impl Iterator<Item = HealthCheck> {
    START_HOOKS.into_iter().map(|name| start_check(name, api))
}

/// The check of an embedded API server's start that only `/readyz` has, as in a kube-apiserver.
pub(super) fn informer_check(api: &ApiServer) -> HealthCheck {
    start_check("informer-sync", api)
}

fn start_check(name: &'static str, api: &ApiServer) -> HealthCheck {
    let api = api.clone();
    HealthCheck::new(name, move || match (api.has_ended_controller(), api.has_bootstrap_objects()) {
        (false, true) => Ok(()),
        (false, false) => Err("not finished".to_owned()),
        (true, _) => Err("a controller has ended: restart the process".to_owned()),
    })
}

/// The health endpoints `/livez`, `/readyz` and `/healthz`. All three have the `shared` checks, `/readyz` also those in
/// `more`.
pub(super) fn health_endpoints(
    drain: &Drain,
    access_log: &AccessLog,
    (table, documents): (&Published<RouteTable>, &Published<DiscoverySnapshot>),
    shared: &[HealthCheck],
    more: &[HealthCheck],
) -> Vec<HealthChecks> {
    let leaving = |drain: Drain| {
        HealthCheck::new("shutdown", move || {
            if drain.phase() == ShutdownPhase::Serving { Ok(()) } else { Err("process is shutting down".to_owned()) }
        })
    };
    let last = [discovery_check(table.clone(), documents.clone()), leaving(drain.clone())];
    let alive = || [HealthCheck::ping()].into_iter().chain(shared.iter().cloned());
    // Of an embedded API server, it is among the shared ones, as in a kube-apiserver.
    let log = shared.is_empty().then(|| access_log.check());
    let ready = alive().chain(log).chain(more.iter().cloned()).chain(last);
    vec![HealthChecks::new("livez", alive()), HealthChecks::new("readyz", ready), HealthChecks::new("healthz", alive())]
}

/// A readiness check that fails until the requested serving certificate is issued.
fn certificate_check(waits: Published<Option<String>>) -> HealthCheck {
    HealthCheck::new("serving-certificate", move || waits.load().as_ref().clone().map_or(Ok(()), Err))
}

/// A readiness check that succeeds, for good, once the registry is complete and discovery was fetched from every
/// backend (KEP-3352). The name is kube-apiserver's.
fn discovery_check(table: Published<RouteTable>, documents: Published<DiscoverySnapshot>) -> HealthCheck {
    let complete = AtomicBool::default();
    HealthCheck::new("poststarthook/apiservice-discovery-controller", move || {
        if complete.load(Ordering::Relaxed) || (table.load().complete && documents.load().all_asked()) {
            complete.store(true, Ordering::Relaxed);
            return Ok(());
        }
        Err("discovery not fetched from all backends yet".to_owned())
    })
}
