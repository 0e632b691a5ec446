//! The status report of a running gateway, for the admin listener.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::control::{CertificateSources, RegistryWarnings, UpstreamReadiness, delegate_condition};
use super::control_planes::{ControlPlane, ControlPlaneState, ControlPlaneTable};
use super::registry_thread::ClusterStatus;
use super::state::GatewayState;
use crate::admin::{
    AdminState, AdminTokenConfig, ApiServiceReport, AuditSinkReport, ClientConnectionsReport, ClusterReport,
    ControlPlaneReport, DiscoveryReport, EgressReport, EndpointReport, RefusalReport, RemoteCallReport, StatusReport,
    StorageReport, TokenKeyReport, TrafficReport, VerdictReport, timestamp,
};
use crate::authenticate::service_accounts::TokenKey;
use crate::availability::{AvailabilityCondition, AvailabilityMap, ConditionStatus};
use crate::discovery::{SourceStatus, with_last_good};
use crate::egress::{EgressProxy, EgressRoute, EgressRoutes, ProxyFault, ProxyState, STANDARD_CALLS};
use crate::listen::Connections;
use crate::observe::access::{AccessLog, RefusedRequest};
use crate::observe::audit::AuditSinkStatus;
use crate::observe::health::HealthChecks;
use crate::observe::log::LogLevel;
use crate::observe::metrics::{CallStatus, ClientConnections, EgressMetrics, Metrics};
use crate::process::{FileErrors, Published};
use crate::registry::{ApiServiceBackend, DELEGATE, Registry};
use crate::route::Route;

/// Inputs of the status report besides the shared state.
pub(super) struct StatusInputs {
    pub(super) address: SocketAddr,
    pub(super) registry: Published<Registry>,
    pub(super) cluster: Option<ClusterStatus>,
    pub(super) file_errors: FileErrors,
    pub(super) warnings: Published<RegistryWarnings>,
    pub(super) availability: AvailabilityMap,
    /// Readiness of a sidecar's upstreams.
    pub(super) upstream_readiness: Published<UpstreamReadiness>,
    pub(super) egress_routes: Published<EgressRoutes>,
    /// Connections of each worker.
    pub(super) connections: Vec<Connections>,
    pub(super) log_level: LogLevel,
    pub(super) access_log: Arc<AccessLog>,
    pub(super) health: Vec<HealthChecks>,
    /// The control planes behind the gateway.
    pub(super) control_planes: Option<Published<ControlPlaneTable>>,
}

pub(super) fn admin_state(
    shared: &Arc<GatewayState>,
    inputs: StatusInputs,
    token: Option<AdminTokenConfig>,
) -> AdminState {
    let started = SystemTime::now();
    let (log_level, connections) = (inputs.log_level.clone(), inputs.connections.clone());
    let health = inputs.health.clone();
    let (reporting, tasks) = (shared.clone(), (shared.clone(), connections.clone()));
    AdminState {
        report: Arc::new(move || report(&reporting, &inputs, started)),
        metrics: shared.metrics.clone(),
        health,
        log_level,
        connections: Box::new(move || {
            let lines: Vec<_> = connections
                .iter()
                .enumerate()
                .map(|(worker, connections)| serde_json::json!({"worker": worker, "connections": connections.report()}))
                .collect();
            lines.into()
        }),
        tasks: Box::new(move || {
            let (shared, connections) = &tasks;
            serde_json::json!({
                "phase": StatusReport::phase_name(shared.drain.phase()),
                "workers": connections.iter().map(Connections::len).collect::<Vec<_>>(),
                "reading": shared.inflight.read_only.requests.count(),
                "mutating": shared.inflight.mutating.requests.count(),
            })
        }),
        token,
        drain: shared.drain.clone(),
    }
}

fn report(shared: &GatewayState, inputs: &StatusInputs, started: SystemTime) -> StatusReport {
    let (in_use, routes, table) = (shared.serving.in_use.get(), inputs.egress_routes.get(), shared.table.get());
    let identity = shared.identity.as_ref().map(Published::get);
    let sources = CertificateSources {
        in_use: &in_use,
        identity,
        egress_routes: &routes,
        table: &table,
        metrics: &shared.metrics,
    };
    StatusReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: timestamp(started),
        phase: StatusReport::phase_name(shared.drain.phase()).to_owned(),
        listen: vec![format!("https://{}", inputs.address)],
        apiservices: table
            .sorted_routes()
            .iter()
            .filter(|route| shared.delegate.all || route.api_service.name != DELEGATE)
            .map(|route| apiservice_report(shared, inputs, route))
            .collect(),
        certificates: sources.certificates(),
        peer_certificates: sources.peer_certificates(u64::MAX),
        cluster: inputs.cluster.as_ref().map(cluster_report),
        storage: shared
            .metrics
            .storage()
            .stats()
            .map(|stats| StorageReport::new(stats, shared.metrics.work_queues().stats()))
            .map(|report| StorageReport { token_keys: token_keys(shared), ..report }),
        authorizers: shared.access.authorizer.describe(),
        file_problems: inputs.file_errors.current(),
        handshake_failures: handshake_failures(&shared.metrics),
        client_connections: shared.metrics.client_connections().map(client_connections_report).unwrap_or_default(),
        refusals: inputs.access_log.refusals().into_iter().map(refusal_report).collect(),
        audit: shared
            .access
            .auditor
            .iter()
            .flat_map(|auditor| auditor.sink_status())
            .map(AuditSinkReport::from)
            .collect(),
        document_problems: document_problems(shared, &inputs.availability),
        registry_warnings: inputs
            .warnings
            .get()
            .lines()
            .into_iter()
            .chain(routes.missing_selection_warnings(&STANDARD_CALLS))
            .collect(),
        remote_calls: shared.metrics.calls().status().iter().map(remote_call_report).collect(),
        egress: egress_report(&routes, shared.metrics.egress()),
        registry_problems: inputs.registry.get().problems.0.iter().map(ToString::to_string).collect(),
        not_ready: shared
            .health
            .iter()
            .filter(|health| health.name() == "readyz")
            .flat_map(HealthChecks::failing_checks)
            .collect(),
        control_planes: match &inputs.control_planes {
            Some(table) => table.load().all().iter().map(|one| control_plane_report(one)).collect(),
            None => Vec::new(),
        },
        log_level: inputs.log_level.current(),
        // Of the moment in which it is asked for.
        verdict: VerdictReport::default(),
    }
}

fn client_connections_report(of: &ClientConnections) -> ClientConnectionsReport {
    ClientConnectionsReport { open: of.count(), limit: of.limit.unwrap_or(0) }
}

fn control_plane_report(of: &ControlPlane) -> ControlPlaneReport {
    let report = ControlPlaneReport {
        name: of.name.to_string(),
        requests: of.selector.to_string(),
        ..ControlPlaneReport::default()
    };
    match &**of.state.load() {
        ControlPlaneState::Starting => ControlPlaneReport { state: "starting".to_owned(), ..report },
        ControlPlaneState::Failed(problems) => {
            let problems = problems.lines().map(str::to_owned).collect();
            ControlPlaneReport { state: "failed".to_owned(), problems, ..report }
        }
        ControlPlaneState::Serving(instance) => {
            let shared = &instance.parts.shared;
            let table = shared.table.load();
            let routes = table.routes().filter(|route| route.api_service.name != DELEGATE);
            let (mut apiservices, mut unavailable) = (0, Vec::new());
            for route in routes {
                apiservices += 1;
                let name = &route.api_service.name;
                let condition = instance.parts.availability.get_or_insert(name).condition();
                if condition.status == ConditionStatus::False {
                    unavailable.push(format!("{name}: {}", condition.reason));
                }
            }
            let registry = instance.parts.registry.load();
            let problems = registry.problems.0.iter().map(ToString::to_string);
            ControlPlaneReport {
                state: "serving".to_owned(),
                problems: instance.parts.file_errors.current().into_iter().chain(problems).collect(),
                apiservices,
                unavailable,
                inflight: shared.inflight.count() as u64,
                ..report
            }
        }
    }
}

/// The keys of service account tokens.
fn token_keys(shared: &GatewayState) -> Vec<TokenKeyReport> {
    let Some(issuer) = shared.api.token_issuer() else { return Vec::new() };
    let (keys, now) = (issuer.keys(), SystemTime::now());
    let report =
        |key: &TokenKey| TokenKeyReport { key_id: key.public().key_id.clone(), state: keys.describe(key, now) };
    keys.keys().iter().map(report).collect()
}

/// Failed TLS handshakes of clients, by reason; zero counts are left out.
fn handshake_failures(metrics: &Metrics) -> BTreeMap<String, u64> {
    let failures = metrics.tls_handshake_failures().into_iter().filter(|(_, count)| *count > 0);
    failures.map(|(failure, count)| (failure.as_str().to_owned(), count)).collect()
}

fn refusal_report(of: RefusedRequest) -> RefusalReport {
    RefusalReport {
        time: timestamp(of.time),
        client: of.client.to_string(),
        user: of.user,
        impersonated: of.impersonated,
        verb: of.verb,
        path: match of.control_plane.as_str() {
            "" => of.path,
            name => format!("{name} {}", of.path),
        },
        status: of.status,
        reason: of.reason,
        cause: of.cause,
        audit_id: of.audit_id,
        count: of.count,
    }
}

/// The report of the calls to one server.
pub(in crate::commands) fn remote_call_report(of: &CallStatus) -> RemoteCallReport {
    let failure = of.failure.as_ref();
    let micros = |latency: Duration| u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    RemoteCallReport {
        call: of.kind.as_str().to_owned(),
        name: of.name.clone(),
        server: of.server.clone(),
        last_success: of.last_success.map(timestamp).unwrap_or_default(),
        failing_since: failure.map(|failure| timestamp(failure.since)).unwrap_or_default(),
        last_failure: failure.map(|failure| timestamp(failure.last)).unwrap_or_default(),
        error: failure.map(|failure| failure.error.clone()).unwrap_or_default(),
        latency_micros: failure.map_or(of.latency, |failure| failure.duration).map(micros),
        successes: of.successes,
        errors: of.errors,
        cache_hits: of.kind.is_review().then_some(of.cache_hits),
    }
}

/// The report of the egress routes and the state of their proxies.
pub(in crate::commands) fn egress_report(routes: &EgressRoutes, metrics: &EgressMetrics) -> Vec<EgressReport> {
    let state = |state| match state {
        ProxyState::Untried => "untried".to_owned(),
        ProxyState::Healthy => "serves".to_owned(),
        ProxyState::Failing { fault: ProxyFault::TimedOut, cause, since } => {
            format!("has not answered since {}: {cause}", timestamp(since))
        }
        ProxyState::Failing { fault, cause, since } => {
            format!("fails since {}: {}: {cause}", timestamp(since), fault.reason())
        }
    };
    let lines = routes.entries().map(|(name, way)| {
        let selection = name.to_owned();
        match way {
            EgressRoute::Direct => {
                vec![EgressReport { selection, protocol: "direct".to_owned(), ..EgressReport::default() }]
            }
            EgressRoute::Proxied(through) => {
                let egress_report = |(proxy, now): (&EgressProxy, ProxyState)| EgressReport {
                    selection: selection.clone(),
                    protocol: through.protocol.as_str().to_owned(),
                    proxy: proxy.address.to_string(),
                    state: state(now),
                    stalled_tunnels: metrics.stuck_tunnels(name) as u64,
                };
                through.states().map(egress_report).collect()
            }
        }
    });
    lines.flatten().collect()
}

/// Document problems of available APIServices; the others have the reason in their condition. One that was removed has
/// no problems, though its documents are forgotten later.
fn document_problems(shared: &GatewayState, availability: &AvailabilityMap) -> Vec<String> {
    let available = |name: &str| name == DELEGATE || availability.get(name).is_some_and(|of| of.is_available());
    let documents = shared.documents.discovery.load();
    let sources = documents.sources();
    let discovery = sources.iter().filter(|source| source.is_polled && !source.problem.is_empty());
    let discovery = discovery.filter(|source| available(&source.apiservice));
    let discovery = discovery.map(|source| {
        format!("{}: discovery: {}", source.apiservice, with_last_good(&source.problem, source.resources > 0))
    });
    let index = shared.documents.openapi.load();
    let version3 = index.problems().into_iter().filter(|(name, _)| available(name));
    let version3 = version3.map(|(name, problem)| format!("{name}: OpenAPI v3: {problem}"));
    let version2 = shared.documents.openapi_v2.problems().into_iter().filter(|(name, _)| available(name));
    let version2 = version2.map(|(name, problem)| format!("{name}: OpenAPI v2: {problem}"));
    discovery.chain(version3).chain(version2).collect()
}

fn cluster_report(status: &ClusterStatus) -> ClusterReport {
    let (state, leadership) = (status.state.get(), status.leadership.get());
    ClusterReport {
        server: state.server.clone(),
        complete: state.complete,
        failing_since: state.failing.as_ref().map(|(since, _)| timestamp(*since)).unwrap_or_default(),
        failure: state.failing.as_ref().map(|(_, why)| why.clone()).unwrap_or_default(),
        identity: leadership.identity.clone(),
        leads: leadership.is_leader,
        leader: leadership.leader.clone().unwrap_or_default(),
    }
}

impl From<AuditSinkStatus> for AuditSinkReport {
    fn from(of: AuditSinkStatus) -> AuditSinkReport {
        AuditSinkReport { name: of.name.to_owned(), waiting: of.waiting as u64, dropped: of.dropped }
    }
}

fn discovery_report(source: &SourceStatus) -> DiscoveryReport {
    DiscoveryReport {
        state: match (source.is_polled, source.current) {
            (false, _) => "notFetched",
            (true, true) => "current",
            (true, false) => "stale",
        }
        .to_owned(),
        last: source.fetched.get().map(timestamp).unwrap_or_default(),
        since: source.since.map(timestamp).unwrap_or_default(),
        problem: source.problem.clone(),
        resources: source.resources as u64,
    }
}

fn apiservice_report(shared: &GatewayState, inputs: &StatusInputs, route: &Arc<Route>) -> ApiServiceReport {
    let service = &route.api_service;
    let condition = match service.name.as_str() {
        DELEGATE => delegate_condition(&shared.documents.discovery.load()),
        path if path.starts_with('/') => {
            let reached = inputs.upstream_readiness.load().get(path).cloned();
            Arc::new(reached.unwrap_or_else(|| AvailabilityCondition::unknown(SystemTime::now())))
        }
        name => inputs.availability.get_or_insert(name).condition(),
    };
    let running = shared.metrics.apiservice_load(&service.name);
    let endpoints = route.resolved.as_ref().map(|resolved| resolved.endpoints.as_slice()).unwrap_or_default();
    ApiServiceReport {
        name: service.name.clone(),
        service: match &service.backend {
            ApiServiceBackend::Local => "Local".to_owned(),
            ApiServiceBackend::Service(service) => format!("{}/{}", service.namespace, service.name),
            ApiServiceBackend::Url(url) => url.to_string(),
        },
        available: match condition.status {
            ConditionStatus::True => Some(true),
            ConditionStatus::False => Some(false),
            ConditionStatus::Unknown => None,
        },
        reason: condition.reason.to_string(),
        message: if condition.detail.is_empty() {
            condition.message.to_string()
        } else {
            format!("{} ({})", condition.message, condition.detail)
        },
        since: timestamp(condition.since),
        endpoints: endpoints
            .iter()
            .zip(&route.endpoint_health)
            .map(|(endpoint, standing)| {
                let address = endpoint.to_string();
                let now = shared.metrics.endpoint_snapshot(&service.name, &address);
                let (state, reason) = match standing.dial_failure() {
                    Some(reason) => ("unreachable", reason),
                    None if standing.is_ejected() => ("ejected", ""),
                    None => ("ready", ""),
                };
                EndpointReport {
                    address,
                    state: state.to_owned(),
                    reason: reason.to_owned(),
                    connections: now.connections,
                    inflight: now.inflight,
                    latency_micros: now.latency.map(|latency| u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)),
                    // The admin listener keeps the history.
                    traffic: TrafficReport::default(),
                }
            })
            .collect(),
        egress_route: route.resolved.as_ref().map(|resolved| resolved.egress_route.to_string()).unwrap_or_default(),
        circuit: match &service.backend {
            ApiServiceBackend::Local => String::new(),
            _ => route.availability.circuit_state().as_str().to_owned(),
        },
        discovery: shared.documents.discovery.load().source(&service.name).map(discovery_report).unwrap_or_default(),
        inflight: running.requests,
        watches: running.watches,
        traffic: TrafficReport::default(),
    }
}
