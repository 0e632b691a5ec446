//! Renders a scrape: sums over the workers, families sorted by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::counters::{BACKEND_SECONDS, HistogramTotal, REQUEST_SECONDS, RESPONSE_BYTES, WATCH_EVENT_BYTES};
use super::exposition::{ExpositionFormat, MetricType, MetricsText};
use super::labels::USERNAMES;
use super::procfs::ProcessStats;
use super::sums::{RequestKey, Sums};
use super::worker::MetricsShard;
use super::{Authentication, BackendPhase, ConnectionState, LabeledValues, Metrics, Protocol, Retry, StorageStats};

pub(super) fn render(metrics: &Metrics, format: ExpositionFormat) -> String {
    let mut text = MetricsText::new(format);
    render_families(metrics, &mut text);
    text.finish()
}

/// Renders the metrics of the process and of control planes, with all samples of a family together.
pub(super) fn render_all(metrics: &Metrics, control_planes: &[Arc<Metrics>], format: ExpositionFormat) -> String {
    if control_planes.is_empty() {
        return render(metrics, format);
    }
    let render_one = |metrics: &Metrics| {
        let mut text = MetricsText::new(format);
        render_families(metrics, &mut text);
        text
    };
    let others = control_planes.iter().map(|metrics| render_one(metrics));
    MetricsText::merged(format, std::iter::once(render_one(metrics)).chain(others)).finish()
}

fn render_families(metrics: &Metrics, text: &mut MetricsText) {
    text.set_control_plane(metrics.control_plane.clone());
    let mut sums = Sums::default();
    let shards: Vec<Arc<MetricsShard>> = metrics.shards.lock().clone();
    for shard in &shards {
        sums.add(shard);
    }

    render_aggregator(metrics, text);
    metrics.audit.render(text);
    metrics.authorization.render(text);
    let storage = metrics.storage.stats().unwrap_or_default();
    sums.render_requests(metrics, &storage, text);
    sums.render_authentication(text);
    metrics.reviews.render_token_cache(text);
    metrics.storage.render_requests(text);
    render_family(
        text,
        (
            "leader_election_master_status",
            "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.",
        ),
        ["name"],
        &metrics.leader,
    );
    text.family(
        "narthex_access_records_dropped_total",
        MetricType::Counter,
        "Access records dropped because standard error is read too slowly.",
    );
    text.sample(&[], metrics.access_records_dropped.load(Relaxed));
    sums.render_backends(text, metrics.connections_limit.load(Relaxed));
    let is_process = metrics.control_plane.is_none();
    if is_process {
        text.family("narthex_build_info", MetricType::Gauge, "Always 1; the version is in the label.");
        text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
    }
    render_certificates_and_availability(metrics, text);
    render_registry(metrics, text);
    metrics.calls.render(text);
    metrics.socks5.render(text);
    metrics.storage.render_revisions(&storage, text);
    text.family(
        "narthex_tls_handshake_failures_total",
        MetricType::Counter,
        "TLS handshakes of clients that failed, by reason.",
    );
    for (failure, count) in metrics.tls_handshake_failures() {
        text.sample(&[("reason", failure.as_str())], count);
    }
    metrics.spans.render(text);
    metrics.storage.render_unenforced(&storage, text);
    metrics.storage.render_history(&storage, text);
    sums.render_watches(text);
    if is_process {
        ProcessStats::read().render(text);
    }
    metrics.service_accounts.render(text);
    metrics.work_queues.render(text);
}

fn render_client_connections(metrics: &Metrics, text: &mut MetricsText) {
    let connections = metrics.client_connections();
    text.family("narthex_client_connections", MetricType::Gauge, "Open client connections.");
    if let Some(connections) = connections {
        text.sample(&[], connections.count() as u64);
    }
    let help = "Maximum number of open client connections; further ones wait.";
    text.family("narthex_client_connections_limit", MetricType::Gauge, help);
    if let Some(limit) = connections.and_then(|of| of.limit) {
        text.sample(&[], limit as u64);
    }
    metrics.compute.render(text);
}

/// Certificates, circuits, client connections, cached decisions, ejected endpoints: the families between `narthex_build_info` and the registry's.
fn render_certificates_and_availability(metrics: &Metrics, text: &mut MetricsText) {
    metrics.certificates.render(text);
    render_family(
        text,
        ("narthex_circuit_state", "Circuit breaker of an APIService: 0 closed, 1 half open, 2 open."),
        ["apiservice"],
        &metrics.circuit,
    );
    if metrics.control_plane.is_none() {
        render_client_connections(metrics, text);
    }
    metrics.reviews.render_decision_cache(text);
    metrics.egress.render_stuck(text);
    render_family(
        text,
        ("narthex_endpoint_ejected", "1 while an endpoint is ejected by outlier detection."),
        ["apiservice", "endpoint"],
        &metrics.ejected,
    );
    metrics.peer_certificates.render(text);
}

/// The state of the registry's sources.
fn render_registry(metrics: &Metrics, text: &mut MetricsText) {
    render_family(
        text,
        ("narthex_registry_errors", "Mistakes in a source of the registry; its last good state is in use."),
        ["source"],
        &metrics.registry_errors,
    );
    render_family(
        text,
        (
            "narthex_registry_source_up",
            "1 while a source of the registry is being watched; otherwise its last known state is in use.",
        ),
        ["source"],
        &metrics.registry_source_up,
    );
    text.family("narthex_registry_warnings", MetricType::Gauge, "Warnings about registry objects that are in use.");
    text.sample(&[], metrics.registry_warnings.load(Relaxed));
}

fn render_aggregator(metrics: &Metrics, text: &mut MetricsText) {
    text.family(
        "aggregator_discovery_aggregation_count_total",
        MetricType::Counter,
        "[ALPHA] Counter of number of times discovery was aggregated",
    );
    text.sample(&[], metrics.discovery_aggregations.load(Relaxed));
    text.family(
        "aggregator_unavailable_apiservice",
        MetricType::Gauge,
        "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.",
    );
    for (name, reason) in metrics.unavailable.lock().iter() {
        text.sample(&[("name", name)], u64::from(reason.is_some()));
    }
    text.family(
        "aggregator_unavailable_apiservice_total",
        MetricType::Counter,
        "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
    );
    for ([name, reason], count) in metrics.unavailable_total.values.lock().iter() {
        text.sample(&[("name", name), ("reason", reason)], *count);
    }
}

fn render_family<const LABELS: usize>(
    text: &mut MetricsText,
    (name, help): (&'static str, &'static str),
    labels: [&str; LABELS],
    family: &LabeledValues<LABELS>,
) {
    text.family(name, MetricType::Gauge, help);
    for (values, value) in family.values.lock().iter() {
        let pairs: [(&str, &str); LABELS] = std::array::from_fn(|n| (labels[n], values[n].as_str()));
        text.sample(&pairs, *value);
    }
}

impl Sums {
    fn render_authentication(&self, text: &mut MetricsText) {
        text.family(
            "authenticated_user_requests",
            MetricType::Counter,
            "[ALPHA] Counter of authenticated requests broken out by username.",
        );
        for (name, count) in USERNAMES.iter().zip(self.usernames).filter(|(_, count)| *count > 0) {
            text.sample(&[("username", name)], count);
        }
        text.family("authentication_attempts", MetricType::Counter, "[ALPHA] Counter of authenticated attempts.");
        for (result, count) in Authentication::ALL.iter().zip(self.attempts).filter(|(_, count)| *count > 0) {
            text.sample(&[("result", result.as_str())], count);
        }
    }

    fn render_requests(&self, metrics: &Metrics, storage: &StorageStats, text: &mut MetricsText) {
        metrics.conversion.render(text);
        text.family(
            "apiserver_current_inflight_requests",
            MetricType::Gauge,
            "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
        );
        for (kind, count) in ["readOnly", "mutating"].into_iter().zip(self.in_flight) {
            text.sample(&[("request_kind", kind)], count);
        }
        metrics.reviews.render_requests(text);
        metrics.egress.render_dials(text);
        metrics.rejections.render(text);
        metrics.impersonations.render(text);
        render_counter(
            text,
            "apiserver_kube_aggregator_x509_missing_san_total",
            "[ALPHA] Counts the number of requests to servers missing SAN extension in their serving certificate OR \
             the number of connection failures due to the lack of x509 certificate SAN extension missing (either/or, \
             based on the runtime environment)",
            &metrics.missing_san,
        );
        text.family(
            "apiserver_longrunning_requests",
            MetricType::Gauge,
            "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, \
             scope and component. Not all requests are tracked this way.",
        );
        for (request, sums) in self.requests.iter().filter(|(_, sums)| sums.long_running != 0) {
            text.sample(&request.labels(None, None), sums.long_running);
        }
        text.family(
            "apiserver_request_duration_seconds",
            MetricType::Histogram,
            "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, \
             subresource, scope and component.",
        );
        for (request, sums) in &self.requests {
            let labels = request.labels(Some(request.dry_run), None);
            text.histogram(&labels, REQUEST_SECONDS.printed, &sums.duration.buckets, sums.duration.sum);
        }
        text.family(
            "apiserver_request_terminations_total",
            MetricType::Counter,
            "[ALPHA] Number of requests which apiserver terminated in self-defense.",
        );
        for (request, sums) in &self.requests {
            for (code, count) in &sums.terminations {
                text.sample(&request.labels(None, Some(&code.to_string())), *count);
            }
        }
        text.family(
            "apiserver_request_total",
            MetricType::Counter,
            "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, \
             scope, component, and HTTP response code.",
        );
        for (request, sums) in &self.requests {
            for (code, count) in &sums.codes {
                text.sample(&request.labels(Some(request.dry_run), Some(&code.to_string())), *count);
            }
        }
        metrics.storage.render_resources(storage, text);
        self.render_sizes(text);
        metrics.storage.render_storage(storage, text);
        self.render_terminated_watches(text);
        text.family(
            "apiserver_tls_handshake_errors_total",
            MetricType::Counter,
            "[ALPHA] Number of requests dropped with 'TLS handshake error from' error",
        );
        text.sample(&[], metrics.tls_handshake_failures().iter().map(|(_, count)| count).sum::<u64>());
        metrics.storage.render_watch_cache(storage, text);
        self.render_watch_events(text);
    }

    fn render_sizes(&self, text: &mut MetricsText) {
        text.family(
            "apiserver_response_sizes",
            MetricType::Histogram,
            "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope \
             and component.",
        );
        // Without the label dry_run: series that differ only in it are merged.
        let mut sizes: BTreeMap<RequestKey, HistogramTotal> = BTreeMap::new();
        for (request, sums) in &self.requests {
            if let Some(counted) = &sums.sizes {
                sizes.entry(RequestKey { dry_run: "", ..request.clone() }).or_default().add(counted);
            }
        }
        for (request, counted) in &sizes {
            text.histogram(&request.labels(None, None), RESPONSE_BYTES.printed, &counted.buckets, counted.sum);
        }
    }

    fn render_terminated_watches(&self, text: &mut MetricsText) {
        text.family(
            "apiserver_terminated_watchers_total",
            MetricType::Counter,
            "[ALPHA] Counter of watchers closed due to unresponsiveness broken by resource type.",
        );
        let mut unread: BTreeMap<[&str; 2], u64> = BTreeMap::new();
        for (request, sums) in self.requests.iter().filter(|(_, sums)| sums.unread_watches > 0) {
            *unread.entry([&request.group, &request.resource]).or_default() += sums.unread_watches;
        }
        for ([group, resource], count) in unread {
            text.sample(&[("group", group), ("resource", resource)], count);
        }
    }

    fn render_watch_events(&self, text: &mut MetricsText) {
        // Without scope and subresource: series that differ only in them are merged.
        let mut events: BTreeMap<[&str; 3], HistogramTotal> = BTreeMap::new();
        for (request, sums) in self.requests.iter().filter(|(_, sums)| !sums.watch_events.buckets.is_empty()) {
            events.entry([&request.group, &request.resource, &request.version]).or_default().add(&sums.watch_events);
        }
        text.family(
            "apiserver_watch_events_sizes",
            MetricType::Histogram,
            "[ALPHA] Watch event size distribution in bytes",
        );
        for (names, total) in &events {
            text.histogram(&watch_labels(names), WATCH_EVENT_BYTES.printed, &total.buckets, total.sum);
        }
        text.family(
            "apiserver_watch_events_total",
            MetricType::Counter,
            "[ALPHA] Number of events sent in watch clients",
        );
        for (names, total) in &events {
            text.sample(&watch_labels(names), total.buckets.iter().sum::<u64>());
        }
    }

    fn render_backends(&self, text: &mut MetricsText, connections_bound: u64) {
        text.family("narthex_backend_connections", MetricType::Gauge, "Connections to backends, by state.");
        for ((service, address), sums) in &self.endpoints {
            for (protocol, states) in Protocol::ALL.iter().zip(&sums.connections) {
                for (state, count) in ConnectionState::ALL.iter().zip(states).filter(|(_, count)| **count != 0) {
                    let labels = [
                        ("apiservice", service.as_str()),
                        ("endpoint", address),
                        ("protocol", protocol.as_str()),
                        ("state", state.as_str()),
                    ];
                    text.sample(&labels, *count);
                }
            }
        }
        text.family(
            "narthex_backend_connections_limit",
            MetricType::Gauge,
            "Maximum number of connections to all endpoints of one APIService.",
        );
        text.sample(&[], connections_bound);
        let help = "Responses of a backend with a body although their status does not allow one.";
        text.family("narthex_backend_forbidden_bodies_total", MetricType::Counter, help);
        for (service, sums) in self.services.iter().filter(|(_, sums)| sums.forbidden_bodies > 0) {
            text.sample(&[("apiservice", service)], sums.forbidden_bodies);
        }
        text.family(
            "narthex_backend_inflight",
            MetricType::Gauge,
            "Requests in flight to an endpoint, including watches, updated every second.",
        );
        for ((service, address), sums) in &self.endpoints {
            text.sample(&[("apiservice", service), ("endpoint", address)], sums.inflight);
        }
        text.family(
            "narthex_backend_request_duration_seconds",
            MetricType::Histogram,
            "Duration of the phases of forwarded requests: dial, proxy, TLS, headers, body.",
        );
        for ((service, address), sums) in &self.endpoints {
            for (phase, counted) in BackendPhase::ALL.iter().zip(&sums.phases) {
                if counted.buckets.iter().any(|bucket| *bucket > 0) {
                    let labels = [("apiservice", service.as_str()), ("endpoint", address), ("phase", phase.as_str())];
                    text.histogram(&labels, BACKEND_SECONDS.printed, &counted.buckets, counted.sum);
                }
            }
        }
        text.family("narthex_backend_retries_total", MetricType::Counter, "Retried requests.");
        for (service, sums) in &self.services {
            for (reason, count) in Retry::ALL.iter().zip(sums.retries).filter(|(_, count)| *count > 0) {
                text.sample(&[("apiservice", service), ("reason", reason.as_str())], count);
            }
        }
    }

    fn render_watches(&self, text: &mut MetricsText) {
        text.family("narthex_watches", MetricType::Gauge, "Open watches.");
        for (service, sums) in &self.services {
            text.sample(&[("apiservice", service)], sums.watches);
        }
    }
}

fn watch_labels<'r>(names: &[&'r str; 3]) -> [(&'static str, &'r str); 3] {
    let [group, resource, version] = *names;
    [("group", group), ("resource", resource), ("version", version)]
}

fn render_counter(text: &mut MetricsText, name: &'static str, help: &'static str, value: &AtomicU64) {
    text.family(name, MetricType::Counter, help);
    text.sample(&[], value.load(Relaxed));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Method;
    use store::watch_cache::{RequestRecorder as _, StoreOperation};

    use super::super::families::audit::AuditLoss;
    use super::super::families::tracing::SpanLoss;
    use super::super::{
        AccountTokenUse, CacheResult, CallKind, CircuitState, ClientConnections, ComputeRefusal, ConversionFailure,
        DecisionCacheKind, DryRun, ExceededLimit, HandshakeFailure, ImpersonationStep, KnownLabels,
        PeerCertificateInfo, RejectReason, RequestLabels, RequestOutcome, ResourceStats, ReviewKind, RoundTrip, Scope,
        Verb, WorkerMetrics,
    };
    use super::*;
    use crate::observe::audit::AuditLevel;

    fn request(worker: &WorkerMetrics, verb: Verb, dry_run: DryRun, ended: &RequestOutcome) {
        let labels = RequestLabels {
            verb,
            group: "example.narthex.dev",
            version: "v1",
            resource: "greetings",
            subresource: "",
            scope: Scope::Namespace,
            dry_run,
        };
        let series = worker.series(&labels, |_| KnownLabels::Resource);
        worker.request_started(series, false);
        worker.request_finished(series, false, ended);
    }

    fn ended(code: u16, millis: u64, bytes: u64) -> RequestOutcome {
        RequestOutcome {
            code,
            duration: Duration::from_millis(millis),
            bytes,
            is_self_defense: code == 429,
            by_slow_client: false,
        }
    }

    fn sample_metrics() -> (Arc<Metrics>, [WorkerMetrics; 2], Vec<Box<dyn std::any::Any>>) {
        let metrics = Metrics::new();
        let workers = [WorkerMetrics::new(&metrics), WorkerMetrics::new(&metrics)];
        let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
        for worker in &workers {
            request(worker, Verb::List, DryRun::No, &ended(200, 5, 1000));
            request(worker, Verb::Post, DryRun::No, &ended(429, 0, 10));
            worker.record_authentication(Authentication::Success, Some("jane@example.com"));
            worker.record_authentication(Authentication::Failure, None);
            let service = worker.service("v1.example.narthex.dev");
            service.record_retry(Retry::StaleConnection);
            service.record_forbidden_body();
            service.request_started(true, true);
            let endpoint = worker.endpoint("v1.example.narthex.dev", "10.0.0.1:443");
            endpoint.observe(BackendPhase::Headers, Duration::from_micros(700));
            kept.push(Box::new(endpoint.count_connection(Protocol::Http2, ConnectionState::Active)));
            kept.push(Box::new((service, endpoint)));
        }
        request(&workers[0], Verb::Post, DryRun::All, &ended(201, 70_000, 10));
        request(&workers[1], Verb::List, DryRun::No, &ended(200, 30, 2_000_000_000));
        for worker in &workers {
            request(
                worker,
                Verb::Watch,
                DryRun::No,
                &RequestOutcome { by_slow_client: true, ..ended(200, 9_000, 300) },
            );
        }
        let path = workers[0].series(&RequestLabels::for_path(&Method::GET, "/livez"), |_| KnownLabels::Nothing);
        workers[0].request_started(path, true);
        metrics.set_apiservice_availability("v1.example.narthex.dev", None);
        metrics.set_apiservice_availability("v1.dead.example.com", Some("FailedDiscoveryCheck"));
        metrics.set_apiservice_availability("v1.dead.example.com", Some("FailedDiscoveryCheck"));
        metrics.set_apiservice_availability("v1.dead.example.com", Some("MissingEndpoints"));
        metrics.set_apiservice_availability("v1.gone.example.com", Some("ServiceNotFound"));
        metrics.remove_apiservice("v1.gone.example.com");
        metrics.set_endpoint_ejected("v1.example.narthex.dev", "10.0.0.1:443", true);
        metrics.set_circuit_state("v1.example.narthex.dev", CircuitState::HalfOpen);
        metrics.certificates().set_expiry("/etc/narthex/\"serving\".crt", 1_795_132_800);
        metrics.set_registry_errors("bad.yaml", 2);
        metrics.set_registry_errors("mended.yaml", 1);
        metrics.set_registry_errors("mended.yaml", 0);
        metrics.set_registry_source_up("kube-apiserver", true);
        metrics.set_leader("narthex", false);
        metrics.record_discovery_aggregation();
        metrics.record_tls_handshake_failure(HandshakeFailure::PlainHttp);
        metrics.reviews().record_lookup(DecisionCacheKind::Access, CacheResult::Hit);
        metrics.reviews().record_request(ReviewKind::Access, Some(201), Duration::from_millis(1));
        metrics.reviews().token_fetch_started();
        metrics.reviews().token_fetch_finished(false);
        metrics.authorization().decisions("Webhook", "guard").record_denied();
        let guard = metrics.authorization().webhook("guard");
        guard.record_request(RoundTrip::Timeout, Duration::from_secs(3));
        guard.record_fail_open(true);
        guard.record_conditions(Duration::from_micros(5), true);
        guard.record_exclusion();
        metrics.authorization().set_config("");
        metrics.authorization().record_reload("");
        metrics.audit().record_level(AuditLevel::Metadata);
        metrics.audit().record_event();
        metrics.audit().record_lost(AuditLoss::Log, 1);
        metrics.spans().enable();
        metrics.spans().record_exported(5);
        metrics.spans().record_dropped(SpanLoss::QueueFull, 2);
        metrics.reviews().record_request(ReviewKind::Token, Some(201), Duration::from_millis(1));
        drop(metrics.reviews().token_wait_guard());
        metrics.egress().record_start("socks5", "tcp");
        metrics.egress().record_success("socks5", "tcp", Duration::from_millis(30));
        metrics.egress().record_failure("socks5", "tcp", true);
        metrics.egress().update_stuck("site-b", 0, 1);
        metrics.rejections().record(ExceededLimit::ReadOnly, RejectReason::FairShare);
        for step in [ImpersonationStep::Attempt, ImpersonationStep::AuthorizationCheck] {
            metrics.impersonations().record(step, "user-info", true, Duration::from_millis(3));
        }
        metrics.certificates().set_expiring("7d", 1);
        let presented = PeerCertificateInfo {
            subject: "CN=server".to_owned(),
            not_before: 0,
            not_after: 1_795_132_800,
            refused: "",
        };
        let name = "server.example.com".to_owned();
        metrics.peer_certificates().record("10.0.0.1:443".to_owned(), name, b"", "", || Some(presented));
        let call = metrics.calls().register(CallKind::TokenReview, "");
        call.record_quietly("10.0.0.2:6443", Ok(()), Duration::from_millis(1));
        kept.push(Box::new(call));
        for worker in &workers {
            let labels = RequestLabels {
                verb: Verb::Watch,
                group: "coordination.k8s.io",
                version: "v1",
                resource: "leases",
                subresource: "",
                scope: Scope::Cluster,
                dry_run: DryRun::No,
            };
            let series = worker.series(&labels, |_| KnownLabels::Resource);
            worker.watch_event_sent(series, 700);
        }
        let storage = metrics.storage().requests("coordination.k8s.io", "leases");
        storage.record(StoreOperation::Update, Duration::from_millis(6), false);
        storage.record(StoreOperation::Create, Duration::from_millis(1), true);
        metrics.storage().set_source(|| StorageStats {
            location: "store.db".into(),
            refusal: None,
            size: 40_960,
            revision: 20_000_000_000_000_012,
            compacted: 7,
            unenforced_crds: vec!["foos.g".to_owned()],
            unenforced_kinds: Vec::new(),
            resources: vec![
                ResourceStats { resource: "configmaps".to_owned(), objects: 2, ..ResourceStats::default() },
                ResourceStats {
                    group: "coordination.k8s.io".to_owned(),
                    resource: "leases".to_owned(),
                    objects: 1,
                    bytes: 300,
                    revision: 20_000_000_000_000_012,
                    history: 3,
                    watches: 2,
                },
            ],
        });
        metrics.conversion().record("foos.g", ("v1", "v2"), Duration::from_millis(6), Ok(()));
        let failure = Err(ConversionFailure::PartialResponse);
        metrics.conversion().record("foos.g", ("v1", "v2"), Duration::from_millis(6), failure);
        metrics.compute().record_wait(Duration::from_millis(6));
        metrics.compute().record_refusal(ComputeRefusal::QueueFull);
        let work_queue = metrics.work_queues().register("namespace");
        work_queue.record_add();
        work_queue.set_state(0, 1, None);
        let began = std::time::Instant::now();
        work_queue.record_start(Duration::from_millis(6), began);
        work_queue.record_end(began, true);
        metrics.service_accounts().enable();
        metrics.service_accounts().record(AccountTokenUse::Legacy);
        metrics.socks5().enable();
        metrics.socks5().record_bytes(3, 5);
        metrics.set_client_connections(ClientConnections { open: Arc::new(2.into()), limit: Some(9968) });
        (metrics, workers, kept)
    }

    /// The text without lines that depend on the process, and without values that depend on the time and the host.
    fn stable(text: &str) -> String {
        const TIMES: [&str; 4] = [
            "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds{",
            "authentication_token_cache_request_duration_seconds_",
            "narthex_remote_call_last_success_timestamp_seconds{",
            "workqueue_work_duration_seconds_",
        ];
        let stable = |line: &&str| !line.contains(" process_") && !line.starts_with("process_");
        let placeholders = |line: &str| {
            let mut line = line.replace(env!("CARGO_PKG_VERSION"), "VERSION");
            if let Some((before, after)) = line.split_once("apiserver_id_hash=\"") {
                line = format!("{before}apiserver_id_hash=\"HOST\"{}", after.split_once('"').unwrap().1);
            }
            if TIMES.iter().any(|name| line.starts_with(name)) {
                line = format!("{} TIME", line.rsplit_once(' ').unwrap().0);
            }
            line + "\n"
        };
        text.lines().filter(stable).map(placeholders).collect()
    }

    #[test]
    fn metrics_render_matches_golden_file() {
        let (metrics, _workers, _kept) = sample_metrics();
        let text = stable(&metrics.render(ExpositionFormat::Classic));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/observe/metrics/golden.txt"), &text).unwrap();
        }
        for (line, (got, expected)) in text.lines().zip(include_str!("golden.txt").lines()).enumerate() {
            assert_eq!(got, expected, "line {}", line + 1);
        }
        assert_eq!(text.lines().count(), include_str!("golden.txt").lines().count());
    }

    #[test]
    fn metrics_families_are_sorted_and_unique() {
        let (metrics, _workers, _kept) = sample_metrics();
        for format in [ExpositionFormat::Classic, ExpositionFormat::OpenMetrics] {
            let text = metrics.render(format);
            let mut names: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
            if format == ExpositionFormat::OpenMetrics {
                // Without `_total` the names sort differently.
                names.sort_unstable();
            }
            assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        }
    }

    #[test]
    fn metrics_formats_have_the_same_samples() {
        let (metrics, _workers, _kept) = sample_metrics();
        let names = |format| {
            let text = stable(&metrics.render(format));
            let samples = text.lines().filter(|line| !line.starts_with('#'));
            samples.map(|line| line.split(['{', ' ']).next().unwrap_or("").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(ExpositionFormat::Classic), names(ExpositionFormat::OpenMetrics));
    }

    #[test]
    fn metrics_of_removed_service_are_rendered_once_more() {
        let (metrics, _workers, kept) = sample_metrics();
        drop(kept);
        assert!(metrics.render(ExpositionFormat::Classic).contains("narthex_watches{"));
        assert!(!metrics.render(ExpositionFormat::Classic).contains("narthex_watches{"));
    }

    #[test]
    fn metrics_running_requests_are_summed_over_workers() {
        let (metrics, _workers, _kept) = sample_metrics();
        assert_eq!(metrics.apiservice_load("v1.example.narthex.dev").watches, 2);
        assert_eq!(metrics.endpoint_snapshot("v1.example.narthex.dev", "10.0.0.1:443").connections, 2);
        assert_eq!(metrics.endpoint_snapshot("v1.example.narthex.dev", "10.0.0.9:443").connections, 0);
    }
}
