//! The loop that keeps discovery, OpenAPI and metrics in step with the registry and with availability.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::backend_client::{BackendClient, DocumentFetcher};
use super::certificate_expiry::{CertificateExpiryCheck, CertificateSources};
use super::observers::{ApiServiceObserver, DelegateAvailability};
use crate::availability::AvailabilityMap;
use crate::discovery::{ApiServiceClaim, ClaimChange, DiscoveryAggregator, DiskCache};
use crate::egress::EgressRoutes;
use crate::observe::metrics::Metrics;
use crate::openapi::{OpenApiAggregator, OpenApiV2Aggregator};
use crate::process::{Drain, Problems, Published, ShutdownPhase, changed_or_pending};
use crate::registry::{ApiService, DELEGATE, Registry, Revision, api_server_of_location};
use crate::resources::catalog::ResourceCatalog;
use crate::route::RouteTable;
use crate::tls::CertificateInUse;

/// Seconds after which every circuit state is recorded again, in case its series was removed.
const CIRCUIT_REFRESH_ROUNDS: u32 = 30;
/// Seconds between two checks of certificate expiry.
const EXPIRY_ROUNDS: u32 = 10;
/// Number of expiry checks between two removals of unused peer certificates: once an hour.
const PEER_CLEANUP_INTERVAL: u32 = 360;

/// Aggregators of the documents of all backends.
pub(super) struct Aggregators {
    pub(super) discovery: DiscoveryAggregator<DocumentFetcher>,
    pub(super) openapi: OpenApiAggregator<DocumentFetcher>,
    pub(super) openapi_v2: OpenApiV2Aggregator<DocumentFetcher>,
}

/// Updates discovery, OpenAPI and metrics when the registry or availability changes.
pub(super) struct SyncLoop {
    pub(super) inputs: SyncInputs,
    pub(super) aggregators: Aggregators,
    /// Availability of the delegate, with `--delegate-kubeconfig`.
    pub(super) delegate: Option<DelegateAvailability>,
    pub(super) client: Rc<BackendClient>,
    pub(super) state: SyncState,
}

/// Published values that the loop reads.
pub(super) struct SyncInputs {
    pub(super) registry: Published<Registry>,
    pub(super) table: Published<RouteTable>,
    pub(super) availability: AvailabilityMap,
    /// Resources of the embedded API server.
    pub(super) catalog: Option<Published<ResourceCatalog>>,
    pub(super) certificates_in_use: Published<Vec<CertificateInUse>>,
    pub(super) egress_routes: Published<EgressRoutes>,
    /// Whether the delegate gets all requests that no APIService claims.
    pub(super) delegates_all: bool,
    /// Documents of backends from earlier processes.
    pub(super) disk_cache: DiskCache,
    pub(super) metrics: Arc<Metrics>,
    pub(super) drain: Drain,
}

/// What the loop has applied and recorded.
#[derive(Default)]
pub(super) struct SyncState {
    /// Revision of the registry and the delegate that the aggregators know.
    applied: Option<(Revision, Option<*const ApiService>)>,
    /// Version of the availability map.
    availability_version: u64,
    observer: ApiServiceObserver,
    /// Number of aggregations in the metrics.
    aggregations: u64,
    registry_problems: Option<Arc<Problems>>,
    /// Number of problems by file.
    problem_counts: HashMap<String, usize>,
    /// Whether unregistered documents were removed from the disk cache.
    cache_cleaned: bool,
    /// Seconds since the start.
    rounds: u32,
    /// Files of client certificates for egress proxies that have an expiry series in the metrics.
    proxy_certificates: Vec<String>,
    expiry: CertificateExpiryCheck,
}

impl Aggregators {
    fn apply_changes(&self, changes: Vec<ClaimChange>) {
        self.discovery.apply_changes(changes.clone());
        self.openapi.apply_changes(changes.clone());
        self.openapi_v2.apply_changes(changes);
    }

    fn set_api_services(&self, claims: Vec<ApiServiceClaim>) {
        self.discovery.set_api_services(claims.clone());
        self.openapi.set_api_services(claims.clone());
        self.openapi_v2.set_api_services(claims);
    }

    /// Applies the current catalog, and acknowledges it once all documents have it: discovery is published with pauses.
    fn set_catalog(&self, published: &Published<ResourceCatalog>) {
        let version = published.version();
        let catalog = published.get();
        self.openapi.set_catalog(catalog.clone());
        self.openapi_v2.local_changed();
        let published = published.clone();
        self.discovery.set_catalog(catalog, move || published.acknowledge(version));
    }

    fn refresh_now(&self, name: &str) {
        self.discovery.refresh_now(name);
        self.openapi.refresh_now(name);
        self.openapi_v2.refresh_now(name);
    }
}

impl SyncLoop {
    /// Runs until the process ends.
    pub(super) async fn run(mut self) {
        let mut availability_changes = self.inputs.availability.changes();
        let mut interval = tokio::time::interval(Duration::from_secs(1));
        let aggregations = self.aggregators.discovery.aggregations();
        // Definitions are established when the documents have them.
        self.inputs.catalog.iter().for_each(|catalog| catalog.acknowledge(0));
        loop {
            let registry = self.inputs.registry.get();
            // Documents are fetched by the table: an older one has the old addresses of moved backends.
            let table = self.inputs.table.get();
            if !table.is_built_from(&registry) {
                tokio::select! {
                    () = self.inputs.table.changed() => continue,
                    () = self.inputs.drain.wait_for(ShutdownPhase::Ending) => return,
                }
            }
            self.apply(&registry, &table);
            self.record_aggregations(&aggregations);
            tokio::select! {
                () = self.inputs.registry.changed() => {}
                () = self.inputs.table.changed() => {}
                () = changed_or_pending(&mut self.inputs.catalog) => {
                    self.inputs.catalog.iter().for_each(|catalog| self.aggregators.set_catalog(catalog));
                }
                changed = availability_changes.changed() => if changed.is_err() { return },
                _ = interval.tick() => self.tick(&table),
                () = self.inputs.drain.wait_for(ShutdownPhase::Ending) => return,
            }
        }
    }

    /// Applies what has changed since the last call.
    fn apply(&mut self, registry: &Registry, table: &RouteTable) {
        let (version, turned) = self.inputs.availability.changed_since(self.state.availability_version);
        self.state.availability_version = version;
        let registered = self.update_claims(registry, table);
        if registry.complete && !self.state.cache_cleaned {
            self.state.cache_cleaned = true;
            // Documents of APIServices that were unregistered while no process ran.
            let names = registry.api_services().map(|one| one.name.clone());
            self.inputs.disk_cache.retain_only(names.chain([DELEGATE.to_owned()]).collect());
        }
        self.record_registry_problems(registry);
        let names: BTreeSet<String> = match (registered, &turned) {
            (Some(registered), Some(turned)) => {
                registered.into_iter().chain(turned.iter().map(|name| (**name).to_owned())).collect()
            }
            _ => registry.api_services().map(|one| one.name.clone()).chain(self.state.observer.names()).collect(),
        };
        // Fetched at once when availability changes: the documents become current or stale.
        for name in self.state.observer.observe_availability(names, table, &self.inputs.metrics) {
            self.aggregators.refresh_now(&name);
        }
    }

    /// Updates which APIServices the aggregators fetch. Returns the names of those that changed; none if all may have.
    fn update_claims(&mut self, registry: &Registry, table: &RouteTable) -> Option<Vec<String>> {
        let delegate = table.delegate().filter(|_| self.inputs.delegates_all).map(|route| &route.api_service);
        let delegate_now = delegate.map(Arc::as_ptr);
        let applied = self.state.applied.replace((registry.revision(), delegate_now));
        // Documents do not depend on endpoint addresses.
        let changes = applied.as_ref().and_then(|(revision, _)| registry.changes_since(revision));
        let Some(names) = changes.map(|changes| changes.api_services) else {
            let claims = registry.api_services().chain(delegate).map(|one| ApiServiceClaim::new(one)).collect();
            self.aggregators.set_api_services(claims);
            return None;
        };
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let claim = |name: &String| (name.clone(), registry.api_service(name).map(|one| ApiServiceClaim::new(one)));
        let mut changed: Vec<ClaimChange> = names.iter().map(claim).collect();
        if applied.is_none_or(|(_, before)| before != delegate_now) {
            changed.push((DELEGATE.to_owned(), delegate.map(|delegate| ApiServiceClaim::new(delegate))));
        }
        if !changed.is_empty() {
            self.aggregators.apply_changes(changed);
        }
        Some(names)
    }

    fn record_registry_problems(&mut self, registry: &Registry) {
        let state = &mut self.state;
        if state.registry_problems.as_ref().is_some_and(|recorded| Arc::ptr_eq(recorded, &registry.problems)) {
            return;
        }
        state.registry_problems = Some(registry.problems.clone());
        // A file without errors stays at 0: a series that ends looks like a failed scrape.
        state.problem_counts.values_mut().for_each(|count| *count = 0);
        for problem in &registry.problems.0 {
            *state.problem_counts.entry(problem_file(&problem.location)).or_default() += 1;
        }
        for (file, count) in &state.problem_counts {
            self.inputs.metrics.set_registry_errors(file, *count);
        }
    }

    fn record_aggregations(&mut self, aggregations: &AtomicU64) {
        let total = aggregations.load(Ordering::Relaxed);
        for _ in self.state.aggregations..total {
            self.inputs.metrics.record_discovery_aggregation();
        }
        self.state.aggregations = total;
    }

    /// Does what is due every second.
    fn tick(&mut self, table: &RouteTable) {
        self.state.rounds += 1;
        if self.state.rounds.is_multiple_of(CIRCUIT_REFRESH_ROUNDS) {
            self.state.observer.forget_circuits();
        }
        // Circuits have no change notification.
        let delegate = table.delegate().filter(|_| self.inputs.delegates_all);
        self.state.observer.observe_circuits(table.routes().chain(delegate), &self.inputs.metrics);
        if let Some(delegate) = &mut self.delegate {
            delegate.observe(&self.inputs.metrics);
        }
        self.client.sweep();
        self.record_certificate_expiry();
        self.warn_of_expiry(table);
    }

    /// Warns of certificates that expire soon, every `EXPIRY_ROUNDS` seconds.
    fn warn_of_expiry(&mut self, table: &RouteTable) {
        let rounds = self.state.rounds;
        if rounds % EXPIRY_ROUNDS != 2 {
            return;
        }
        let identity = self.client.identity.as_ref().map(Published::get);
        let (in_use, routes) = (self.inputs.certificates_in_use.get(), self.inputs.egress_routes.get());
        let metrics = &self.inputs.metrics;
        let sources = CertificateSources { in_use: &in_use, identity, egress_routes: &routes, table, metrics };
        if rounds / EXPIRY_ROUNDS % PEER_CLEANUP_INTERVAL == PEER_CLEANUP_INTERVAL - 1 {
            sources.remove_unused_peers();
        }
        self.state.expiry.check(&sources, SystemTime::now());
    }

    /// Records in the metrics when each certificate in use expires.
    fn record_certificate_expiry(&mut self) {
        let (inputs, recorded) = (&self.inputs, &mut self.state.proxy_certificates);
        let metrics = inputs.metrics.certificates();
        for in_use in inputs.certificates_in_use.load().iter() {
            metrics.set_expiry(&in_use.file.display().to_string(), in_use.not_after.as_secs());
        }
        let mut gone = std::mem::take(recorded);
        for identity in inputs.egress_routes.load().identities() {
            let location = identity.location();
            gone.retain(|file| file != location);
            if recorded.iter().all(|file| file != location) {
                metrics.set_expiry(location, identity.not_after().as_secs());
                recorded.push(location.to_owned());
            }
        }
        gone.iter().for_each(|file| metrics.remove(file));
        // Last: an egress proxy may have the same certificate.
        if let Some(identity) = &self.client.identity {
            let identity = identity.load();
            metrics.set_expiry(identity.location(), identity.not_after().as_secs());
        }
    }
}

/// The file in a problem's place, without the document number; or the name of the API server.
fn problem_file(location: &str) -> String {
    if let Some(source) = api_server_of_location(location) {
        return source.to_owned();
    }
    location.split(" document ").next().unwrap_or(location).trim_end_matches(',').to_owned()
}
