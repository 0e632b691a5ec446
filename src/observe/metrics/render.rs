//! One scrape: the workers' cells added up and written down, families in the order of their names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cell::{BACKEND_SECONDS, Counted, Histogram, REQUEST_SECONDS, RESPONSE_BYTES};
use super::labels::USERNAMES;
use super::procfs::Reading;
use super::text::{Format, Kind, Text};
use super::worker::{EndpointSeries, RequestSeries, ServiceSeries, Shard};
use super::{Authentication, BackendPhase, ConnectionState, DryRun, Family, Metrics, Protocol, Retry, Scope, Verb};

/// `component` as kube-apiserver has it, so that its dashboards read ours.
const COMPONENT: &str = "apiserver";

pub(super) fn render(metrics: &Metrics, format: Format) -> String {
    let mut text = Text::new(format);
    let mut sums = Sums::default();
    let shards: Vec<Arc<Shard>> = metrics.shards.lock().clone();
    for shard in &shards {
        sums.add(shard);
    }

    aggregator(metrics, &mut text);
    sums.requests(metrics, &mut text);
    text.family(
        "authenticated_user_requests",
        Kind::Counter,
        "Counter of authenticated requests broken out by username.",
    );
    for (name, count) in USERNAMES.iter().zip(sums.usernames).filter(|(_, count)| *count > 0) {
        text.sample(&[("username", name)], count);
    }
    text.family("authentication_attempts", Kind::Counter, "Counter of authenticated attempts.");
    for (result, count) in Authentication::ALL.iter().zip(sums.attempts).filter(|(_, count)| *count > 0) {
        text.sample(&[("result", result.as_str())], count);
    }
    text.family(
        "narthex_access_records_dropped_total",
        Kind::Counter,
        "Access records that were dropped because standard error did not take them in time.",
    );
    text.sample(&[], metrics.access_records_dropped.load(Relaxed));
    sums.backends(&mut text);
    text.family("narthex_build_info", Kind::Gauge, "Always 1; the version is in the label.");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
    family(
        &mut text,
        ("narthex_certificate_expiry_timestamp_seconds", "When the certificate in a file ends, in seconds since 1970."),
        ["file"],
        &metrics.certificate_expiry,
    );
    family(
        &mut text,
        ("narthex_circuit_state", "Circuit of an APIService: 0 closed, 1 half open, 2 open."),
        ["apiservice"],
        &metrics.circuit,
    );
    family(
        &mut text,
        ("narthex_endpoint_ejected", "1 while an endpoint takes no requests because it failed."),
        ["apiservice", "endpoint"],
        &metrics.ejected,
    );
    family(
        &mut text,
        ("narthex_registry_errors", "Mistakes in a source of the registry, whose last good state is used."),
        ["source"],
        &metrics.registry_errors,
    );
    sums.watches(&mut text);
    Reading::now().render(&mut text);
    text.finish()
}

fn aggregator(metrics: &Metrics, text: &mut Text) {
    text.family(
        "aggregator_discovery_aggregation_count_total",
        Kind::Counter,
        "[ALPHA] Counter of number of times discovery was aggregated",
    );
    text.sample(&[], metrics.discovery_aggregations.load(Relaxed));
    text.family(
        "aggregator_unavailable_apiservice",
        Kind::Gauge,
        "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.",
    );
    for (name, reason) in metrics.unavailable.lock().iter() {
        text.sample(&[("name", name)], u64::from(reason.is_some()));
    }
    text.family(
        "aggregator_unavailable_apiservice_total",
        Kind::Counter,
        "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
    );
    for ([name, reason], count) in metrics.unavailable_total.values.lock().iter() {
        text.sample(&[("name", name), ("reason", reason)], *count);
    }
}

fn family<const LABELS: usize>(
    text: &mut Text,
    (name, help): (&'static str, &'static str),
    labels: [&str; LABELS],
    family: &Family<LABELS>,
) {
    text.family(name, Kind::Gauge, help);
    for (values, value) in family.values.lock().iter() {
        let pairs: [(&str, &str); LABELS] = std::array::from_fn(|n| (labels[n], values[n].as_str()));
        text.sample(&pairs, *value);
    }
}

/// The labels of one series of requests, in the order in which they are sorted.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
struct Request {
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    verb: &'static str,
    dry_run: &'static str,
}

#[derive(Default)]
struct RequestSums {
    codes: BTreeMap<u16, u64>,
    terminations: BTreeMap<u16, u64>,
    duration: Counted,
    sizes: Option<Counted>,
    long_running: u64,
}

#[derive(Default)]
struct ServiceSums {
    watches: u64,
    retries: [u64; Retry::ALL.len()],
}

#[derive(Default)]
struct EndpointSums {
    phases: [Counted; BackendPhase::ALL.len()],
    connections: [[u64; ConnectionState::ALL.len()]; Protocol::ALL.len()],
}

/// All workers together.
#[derive(Default)]
struct Sums {
    in_flight: [u64; 2],
    attempts: [u64; Authentication::ALL.len()],
    usernames: [u64; USERNAMES.len()],
    requests: BTreeMap<Request, RequestSums>,
    services: BTreeMap<String, ServiceSums>,
    endpoints: BTreeMap<(String, String), EndpointSums>,
}

impl Sums {
    fn add(&mut self, shard: &Shard) {
        add(&mut self.in_flight, shard.in_flight.iter().map(|cell| cell.get()));
        add(&mut self.attempts, shard.attempts.iter().map(|cell| cell.get()));
        add(&mut self.usernames, shard.usernames.iter().map(|cell| cell.get()));
        for series in shard.requests.lock().iter() {
            self.requests.entry(Request::of(series)).or_default().add(series);
        }
        // The worker holds a series as long as it counts in it: after that, it ends.
        let mut services = shard.services.lock();
        for service in services.iter() {
            self.services.entry(service.name.clone()).or_default().add(service);
        }
        services.retain(|service| Arc::strong_count(service) > 1);
        let mut endpoints = shard.endpoints.lock();
        for endpoint in endpoints.iter() {
            let key = (endpoint.service.clone(), endpoint.address.clone());
            self.endpoints.entry(key).or_default().add(endpoint);
        }
        endpoints.retain(|endpoint| Arc::strong_count(endpoint) > 1);
    }

    fn requests(&self, metrics: &Metrics, text: &mut Text) {
        text.family(
            "apiserver_current_inflight_requests",
            Kind::Gauge,
            "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
        );
        for (kind, count) in ["readOnly", "mutating"].into_iter().zip(self.in_flight) {
            text.sample(&[("request_kind", kind)], count);
        }
        counter(
            text,
            "apiserver_kube_aggregator_x509_missing_san_total",
            "[ALPHA] Counts the number of requests to servers missing SAN extension in their serving certificate OR \
             the number of connection failures due to the lack of x509 certificate SAN extension missing (either/or, \
             based on the runtime environment)",
            &metrics.missing_san,
        );
        text.family(
            "apiserver_longrunning_requests",
            Kind::Gauge,
            "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, \
             scope and component. Not all requests are tracked this way.",
        );
        for (request, sums) in self.requests.iter().filter(|(_, sums)| sums.long_running != 0) {
            text.sample(&request.labels(None, None), sums.long_running);
        }
        text.family(
            "apiserver_request_duration_seconds",
            Kind::Histogram,
            "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, \
             subresource, scope and component.",
        );
        for (request, sums) in &self.requests {
            let labels = request.labels(Some(request.dry_run), None);
            text.histogram(&labels, REQUEST_SECONDS.printed, &sums.duration.buckets, sums.duration.sum);
        }
        text.family(
            "apiserver_request_terminations_total",
            Kind::Counter,
            "[ALPHA] Number of requests which apiserver terminated in self-defense.",
        );
        for (request, sums) in &self.requests {
            for (code, count) in &sums.terminations {
                text.sample(&request.labels(None, Some(&code.to_string())), *count);
            }
        }
        text.family(
            "apiserver_request_total",
            Kind::Counter,
            "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, \
             scope, component, and HTTP response code.",
        );
        for (request, sums) in &self.requests {
            for (code, count) in &sums.codes {
                text.sample(&request.labels(Some(request.dry_run), Some(&code.to_string())), *count);
            }
        }
        text.family(
            "apiserver_response_sizes",
            Kind::Histogram,
            "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope \
             and component.",
        );
        // Series that differ in nothing but dry_run are one here.
        let mut sizes: BTreeMap<Request, Counted> = BTreeMap::new();
        for (request, sums) in &self.requests {
            if let Some(counted) = &sums.sizes {
                sizes.entry(Request { dry_run: "", ..request.clone() }).or_default().add(counted);
            }
        }
        for (request, counted) in &sizes {
            text.histogram(&request.labels(None, None), RESPONSE_BYTES.printed, &counted.buckets, counted.sum);
        }
        counter(
            text,
            "apiserver_tls_handshake_errors_total",
            "[ALPHA] Number of requests dropped with 'TLS handshake error from' error",
            &metrics.tls_handshake_errors,
        );
    }

    fn backends(&self, text: &mut Text) {
        text.family("narthex_backend_connections", Kind::Gauge, "Connections to backends, by what they are doing.");
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
            "narthex_backend_request_duration_seconds",
            Kind::Histogram,
            "Where the time of relayed requests goes: dialling, TLS, waiting for the headers, the body.",
        );
        for ((service, address), sums) in &self.endpoints {
            for (phase, counted) in BackendPhase::ALL.iter().zip(&sums.phases) {
                if counted.buckets.iter().any(|bucket| *bucket > 0) {
                    let labels = [("apiservice", service.as_str()), ("endpoint", address), ("phase", phase.as_str())];
                    text.histogram(&labels, BACKEND_SECONDS.printed, &counted.buckets, counted.sum);
                }
            }
        }
        text.family("narthex_backend_retries_total", Kind::Counter, "Requests that went to a backend once more.");
        for (service, sums) in &self.services {
            for (reason, count) in Retry::ALL.iter().zip(sums.retries).filter(|(_, count)| *count > 0) {
                text.sample(&[("apiservice", service), ("reason", reason.as_str())], count);
            }
        }
    }

    fn watches(&self, text: &mut Text) {
        text.family("narthex_watches", Kind::Gauge, "Watches that are open.");
        for (service, sums) in &self.services {
            text.sample(&[("apiservice", service)], sums.watches);
        }
    }
}

impl Request {
    fn of(series: &RequestSeries) -> Request {
        let (scope, verb, dry_run): (Scope, Verb, DryRun) = (series.scope, series.verb, series.dry_run);
        Request {
            group: series.group.clone(),
            version: series.version.clone(),
            resource: series.resource.clone(),
            subresource: series.subresource.clone(),
            scope: scope.as_str(),
            verb: verb.as_str(),
            dry_run: dry_run.as_str(),
        }
    }

    /// The labels in the order of their names, as client_golang writes them.
    fn labels<'r>(&'r self, dry_run: Option<&'r str>, code: Option<&'r str>) -> Vec<(&'static str, &'r str)> {
        let mut labels = Vec::with_capacity(9);
        labels.extend(code.map(|code| ("code", code)));
        labels.push(("component", COMPONENT));
        labels.extend(dry_run.map(|dry_run| ("dry_run", dry_run)));
        labels.extend([
            ("group", self.group.as_str()),
            ("resource", &self.resource),
            ("scope", self.scope),
            ("subresource", &self.subresource),
            ("verb", self.verb),
            ("version", &self.version),
        ]);
        labels
    }
}

impl RequestSums {
    fn add(&mut self, series: &RequestSeries) {
        series.codes.each(|code, count| *self.codes.entry(code).or_default() += count);
        series.terminations.each(|code, count| *self.terminations.entry(code).or_default() += count);
        series.duration.add_to(&mut self.duration);
        if let Some(sizes) = &series.sizes {
            sizes.add_to(self.sizes.get_or_insert_default());
        }
        self.long_running = self.long_running.wrapping_add(series.long_running.get());
    }
}

impl ServiceSums {
    fn add(&mut self, series: &ServiceSeries) {
        self.watches = self.watches.wrapping_add(series.watches.get());
        add(&mut self.retries, series.retries.iter().map(|cell| cell.get()));
    }
}

impl EndpointSums {
    fn add(&mut self, series: &EndpointSeries) {
        for (sum, phase) in self.phases.iter_mut().zip(&series.phases) {
            Histogram::add_to(phase, sum);
        }
        for (sums, cells) in self.connections.iter_mut().zip(&series.connections) {
            add(sums, cells.iter().map(|cell| cell.get()));
        }
    }
}

impl Counted {
    fn add(&mut self, other: &Counted) {
        self.buckets.resize(other.buckets.len(), 0);
        add(&mut self.buckets, other.buckets.iter().copied());
        self.sum += other.sum;
    }
}

fn add(sums: &mut [u64], values: impl Iterator<Item = u64>) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum = sum.wrapping_add(value);
    }
}

fn counter(text: &mut Text, name: &'static str, help: &'static str, value: &AtomicU64) {
    text.family(name, Kind::Counter, help);
    text.sample(&[], value.load(Relaxed));
}
