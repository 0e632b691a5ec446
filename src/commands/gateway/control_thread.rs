//! The control thread: watches files, probes backends, and fetches their documents.
//!
//! It shares only published snapshots with the workers, so that no request waits for it.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime};

use tokio::task::spawn_local;

use super::backend_client::{AvailabilityMetrics, BackendClient, DOCUMENT_MEMORY, DocumentFetcher};
use super::certificate_expiry::{CertificateSources, ExpiryLog};
use super::file_errors::FileErrors;
use super::settings;
use super::status::delegate_condition;
use super::upstream_readiness::{self, UpstreamReadiness};
use super::warnings::{self, RegistryWarnings};
use crate::authenticate::{StaticTokens, TokenFile, jwt};
use crate::authorize::rbac_proxy::{self, RulesFile};
use crate::authorize::{PolicyFile, RbacPolicy};
use crate::availability::apiservice_api::{self, ApiServiceView};
use crate::availability::{self, AvailabilityMap, ConditionStatus};
use crate::delegation_server::{AuthConfigMap, AuthConfigMapSource};
use crate::discovery::{ApiServiceClaim, ClaimChange, DiscoveryAggregator, DiscoverySnapshot, DiskCache, LocalGroups};
use crate::egress::{EgressConfigFile, EgressRoutes, Pool};
use crate::forward::UserHeaders;
use crate::observe::audit;
use crate::observe::metrics::{CircuitState, Metrics};
use crate::openapi::{Index, OpenApiAggregator, OpenApiV2, OpenApiV2Aggregator};
use crate::process::{Drain, FairBudget, Published, Publisher, ShutdownPhase};
use crate::registry::{
    ApiService, ApiServiceBackend, DELEGATE, Delegate, Registry, ResolveRules, Revision, SidecarUpstreams,
    UpstreamFiles,
};
use crate::route::{self, Route, RouteTable};
use crate::tls::server::{self, CertificateInUse, ClientTrust, ServingPublishers};
use crate::tls::{ClientIdentity, GeneratedCertificates, KeyPair};

/// Inputs of the control thread.
pub(super) struct ControlThread {
    pub(super) serving: server::ServingFiles,
    pub(super) serving_publishers: ServingPublishers,
    pub(super) generated_certificates: GeneratedCertificates,
    /// Client certificate for backends; each upstream of a sidecar has its own.
    pub(super) identity: Option<(ClientIdentity, Published<KeyPair>)>,
    /// With `--delegate-kubeconfig`: its file, publisher and snapshot.
    pub(super) delegate: Option<(Delegate, Publisher<ApiService>, Published<ApiService>)>,
    /// The upstreams of a sidecar.
    pub(super) upstreams: Option<(UpstreamFiles, Publisher<SidecarUpstreams>, Published<SidecarUpstreams>)>,
    /// Readiness of the upstreams.
    pub(super) upstream_readiness: Option<Publisher<UpstreamReadiness>>,
    pub(super) registry: Published<Registry>,
    pub(super) table_publisher: Publisher<RouteTable>,
    pub(super) table: Published<RouteTable>,
    pub(super) availability: AvailabilityMap,
    pub(super) apiservice_view: Publisher<ApiServiceView>,
    pub(super) trust: Published<ClientTrust>,
    pub(super) warnings: Publisher<RegistryWarnings>,
    pub(super) rules: ResolveRules,
    pub(super) tokens: Option<(TokenFile, Publisher<StaticTokens>)>,
    pub(super) policy: Option<(PolicyFile, Publisher<RbacPolicy>)>,
    pub(super) rules_file: Option<(RulesFile, Publisher<rbac_proxy::RbacProxyRules>)>,
    pub(super) jwt: Option<jwt::AuthenticationConfigWatcher>,
    /// With `--serve-delegation`.
    pub(super) auth_configmap: Option<(AuthConfigMapSource, Publisher<AuthConfigMap>)>,
    /// Whether the delegate serves the APIService API: they are registered in its kube-apiserver.
    pub(super) registrations_elsewhere: bool,
    /// Whether the delegate gets all requests that no APIService claims.
    pub(super) delegates_all: bool,
    pub(super) file_errors: FileErrors,
    pub(super) audit: Option<(audit::AuditPolicyFile, Publisher<audit::AuditPolicy>)>,
    pub(super) egress: settings::EgressSettings,
    /// With `--egress-selector-config-file`.
    pub(super) egress_file: Option<(EgressConfigFile, Publisher<EgressRoutes>)>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) certificates_in_use: Published<Vec<CertificateInUse>>,
    /// Documents of backends from earlier processes.
    pub(super) disk_cache: DiskCache,
    pub(super) drain: Drain,
}

/// Snapshots published by the control thread and read by workers.
pub(super) type DiscoveryReaders = (Published<DiscoverySnapshot>, Published<Index>, OpenApiV2);

impl ControlThread {
    /// Runs until the process ends. `ready` receives the readers of the published documents.
    pub(super) async fn run(self, ready: Sender<DiscoveryReaders>) {
        let stamp = match UserHeaders::new(&BackendClient::user(), false) {
            Ok(stamp) => stamp,
            Err(unspeakable) => return tracing::error!(why = unspeakable.0, "own user name is no valid header value"),
        };
        let dialer = self.egress.dialer();
        let ways = self.egress.routes;
        let seen_ways = ways.clone();
        let (identity, our_identity) = self.identity.unzip();
        let asker = Rc::new(BackendClient {
            pool: Pool::new(dialer.clone()),
            identity: our_identity,
            table: self.table,
            identity_headers: stamp,
            metrics: self.metrics.clone(),
        });
        let own = LocalGroups {
            delegation: self.auth_configmap.is_some(),
            delegate: self.delegates_all,
            has_foreign_registrations: self.registrations_elsewhere,
        };
        let memory = FairBudget::new(DOCUMENT_MEMORY);
        let fetcher = || DocumentFetcher { client: asker.clone(), memory: memory.clone() };
        let (discovery, documents) = DiscoveryAggregator::start(fetcher(), own, &self.disk_cache);
        let delegate_documents = self.delegates_all.then(|| documents.clone());
        let (openapi, index) = OpenApiAggregator::start(fetcher(), own, &self.disk_cache);
        let (openapi2, version2) = OpenApiV2Aggregator::start(fetcher(), &self.disk_cache);
        if ready.send((documents, index, version2)).is_err() {
            return;
        }
        let drain = || self.drain.clone();
        spawn_local(self.serving.follow(self.serving_publishers, self.file_errors.reporter("serving"), drain()));
        spawn_local(self.generated_certificates.renew(drain()));
        if let Some(identity) = identity {
            spawn_local(identity.follow(self.file_errors.reporter("identity"), drain()));
        }
        if let Some((file, publisher)) = self.tokens {
            spawn_local(file.publish_changes(publisher, self.file_errors.reporter("tokens"), drain()));
        }
        if let Some(jwt) = self.jwt {
            spawn_local(jwt.run(dialer.clone(), self.file_errors.reporter("authentication"), drain()));
        }
        if let Some((file, publisher)) = self.egress_file {
            spawn_local(file.follow(publisher, self.file_errors.reporter("egress"), drain()));
        }
        if let Some((file, publisher)) = self.policy {
            spawn_local(file.publish_changes(publisher, self.file_errors.reporter("policy"), drain()));
        }
        if let Some((file, publisher)) = self.rules_file {
            spawn_local(file.publish_changes(publisher, self.file_errors.reporter("config-file"), drain()));
        }
        if let Some((speaker, publisher)) = self.auth_configmap {
            spawn_local(speaker.run(publisher, drain()));
        }
        if let Some((file, publisher)) = self.audit {
            spawn_local(file.publish_changes(publisher, self.file_errors.reporter("audit"), drain()));
        }
        let (registry, rules, board) = (&self.registry, self.rules, &self.availability);
        let delegate = self.delegate.map(|(file, publisher, delegate)| {
            spawn_local(file.follow(publisher, self.file_errors.reporter("delegate"), drain()));
            delegate
        });
        let upstreams = self.upstreams.map(|(files, publisher, upstreams)| {
            spawn_local(files.follow(publisher, self.file_errors.reporter("upstream"), drain()));
            upstreams
        });
        if let Some(reached) = self.upstream_readiness {
            spawn_local(upstream_readiness::follow(asker.table.clone(), dialer.clone(), reached, drain()));
        }
        let table_publisher = self.table_publisher;
        let sources = route::RouteSources {
            registry: registry.clone(),
            delegate: delegate.clone(),
            upstreams,
            egress_routes: ways.clone(),
        };
        spawn_local(route::publish_route_tables(sources, rules, board.clone(), table_publisher, drain()));
        spawn_local(apiservice_api::publish_views(registry.clone(), board.clone(), self.apiservice_view, drain()));
        spawn_local(warnings::follow(registry.clone(), self.trust, self.warnings, self.metrics.clone(), drain()));
        let (registry, board, drain) = (registry.clone(), board.clone(), drain());
        let (probing, counting) = (asker.clone(), AvailabilityMetrics(self.metrics.clone()));
        spawn_local(async move { availability::run(registry, rules, ways, board, &*probing, counting, drain).await });
        let known = ControlLoop {
            registry: self.registry,
            table: asker.table.clone(),
            delegates_all: self.delegates_all,
            availability: self.availability,
            delegate: delegate_documents.map(DelegateAvailability::new),
            metrics: self.metrics,
            client: asker,
            certificates_in_use: self.certificates_in_use,
            egress_routes: seen_ways,
            reported_proxy_certificates: Vec::new(),
            expiry: ExpiryLog::default(),
            disk_cache: self.disk_cache,
            drain: self.drain,
        };
        known.run(&discovery, &openapi, &openapi2).await;
    }
}

/// Updates discovery, OpenAPI and metrics when the registry or availability changes.
struct ControlLoop {
    registry: Published<Registry>,
    table: Published<RouteTable>,
    delegates_all: bool,
    /// With `--delegate-kubeconfig`.
    delegate: Option<DelegateAvailability>,
    availability: AvailabilityMap,
    metrics: Arc<Metrics>,
    client: Rc<BackendClient>,
    certificates_in_use: Published<Vec<CertificateInUse>>,
    egress_routes: Published<EgressRoutes>,
    /// Files of client certificates for egress proxies that have an expiry series in the metrics.
    reported_proxy_certificates: Vec<String>,
    expiry: ExpiryLog,
    disk_cache: DiskCache,
    drain: Drain,
}

impl ControlLoop {
    async fn run(
        mut self,
        discovery: &DiscoveryAggregator<DocumentFetcher>,
        openapi: &OpenApiAggregator<DocumentFetcher>,
        openapi2: &OpenApiV2Aggregator<DocumentFetcher>,
    ) {
        let mut changes = self.availability.changes();
        let mut counted = 0;
        let mut mistakes: HashMap<String, usize> = HashMap::new();
        let mut problems = None;
        let mut round = tokio::time::interval(Duration::from_secs(1));
        let aggregations = discovery.aggregations();
        let mut told: Option<(Revision, Option<*const ApiService>)> = None;
        let mut judged = 0;
        let mut seen = ApiServiceObserver::default();
        let mut rounds = 0_u32;
        let mut swept = false;
        loop {
            let registry = self.registry.get();
            // Documents are fetched by the table: an older one has the old addresses of moved backends.
            let table = self.table.get();
            if !table.is_built_from(&registry) {
                tokio::select! {
                    () = self.table.changed() => continue,
                    () = self.drain.wait_for(ShutdownPhase::Ending) => return,
                }
            }
            let delegate = table.delegate().filter(|_| self.delegates_all).map(|route| &route.api_service);
            let delegate_now = delegate.map(Arc::as_ptr);
            let (version, turned) = self.availability.changed_since(judged);
            judged = version;
            // Documents do not depend on endpoint addresses.
            let registered = told.as_ref().and_then(|(mark, _)| registry.changes_since(mark));
            let registered = registered.map(|changes| changes.api_services);
            match &registered {
                Some(names) => {
                    let mut changed: Vec<ClaimChange> = names
                        .iter()
                        .map(|name| {
                            ((*name).to_owned(), registry.api_service(name).map(|one| ApiServiceClaim::new(one)))
                        })
                        .collect();
                    if told.as_ref().is_none_or(|(_, before)| *before != delegate_now) {
                        changed.push((DELEGATE.to_owned(), delegate.map(|delegate| ApiServiceClaim::new(delegate))));
                    }
                    if !changed.is_empty() {
                        discovery.apply_changes(changed.clone());
                        openapi.apply_changes(changed.clone());
                        openapi2.apply_changes(changed);
                    }
                }
                None => {
                    let known: Vec<ApiServiceClaim> =
                        registry.api_services().chain(delegate).map(|one| ApiServiceClaim::new(one)).collect();
                    discovery.set_api_services(known.clone());
                    openapi.set_api_services(known.clone());
                    openapi2.set_api_services(known);
                }
            }
            told = Some((registry.revision(), delegate_now));
            if registry.complete && !swept {
                swept = true;
                self.remove_unregistered_documents(&registry);
            }
            if problems.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &registry.problems)) {
                problems = Some(registry.problems.clone());
                // A file without errors stays at 0: a series that ends looks like a failed scrape.
                mistakes.values_mut().for_each(|count| *count = 0);
                for problem in &registry.problems.0 {
                    *mistakes.entry(problem_file(&problem.location)).or_default() += 1;
                }
                for (file, count) in &mistakes {
                    self.metrics.set_registry_errors(file, *count);
                }
            }
            let names: BTreeSet<String> = match (&registered, &turned) {
                (Some(registered), Some(turned)) => {
                    registered.iter().copied().chain(turned.iter().map(AsRef::as_ref)).map(str::to_owned).collect()
                }
                _ => registry.api_services().map(|one| one.name.clone()).chain(seen.names()).collect(),
            };
            // Fetched at once when availability changes: the documents become current or stale.
            for name in seen.observe_availability(names, &table, &self.metrics) {
                discovery.refresh_now(&name);
                openapi.refresh_now(&name);
                openapi2.refresh_now(&name);
            }
            let total = aggregations.load(Ordering::Relaxed);
            for _ in counted..total {
                self.metrics.record_discovery_aggregation();
            }
            counted = total;
            tokio::select! {
                () = self.registry.changed() => {}
                () = self.table.changed() => {}
                changed = changes.changed() => if changed.is_err() { return },
                _ = round.tick() => {
                    rounds += 1;
                    if rounds.is_multiple_of(CIRCUIT_REFRESH_ROUNDS) {
                        seen.circuits.clear();
                    }
                    // Circuits have no change notification.
                    let delegate = table.delegate().filter(|_| self.delegates_all);
                    seen.observe_circuits(table.routes().chain(delegate), &self.metrics);
                    if let Some(delegate) = &mut self.delegate {
                        delegate.observe(&self.metrics);
                    }
                    self.client.pool.sweep();
                    self.record_certificate_expiry();
                    self.warn_of_expiry(&table, rounds);
                }
                () = self.drain.wait_for(ShutdownPhase::Ending) => return,
            }
        }
    }

    /// Removes cached documents of APIServices that were unregistered while no process ran.
    fn remove_unregistered_documents(&self, registry: &Registry) {
        let names = registry.api_services().map(|one| one.name.clone());
        self.disk_cache.retain_only(names.chain([DELEGATE.to_owned()]).collect());
    }

    /// Warns of certificates that expire soon, every `EXPIRY_ROUNDS` seconds.
    fn warn_of_expiry(&mut self, table: &RouteTable, rounds: u32) {
        if rounds % EXPIRY_ROUNDS != 2 {
            return;
        }
        let identity = self.client.identity.as_ref().map(Published::get);
        let (in_use, ways) = (self.certificates_in_use.get(), self.egress_routes.get());
        let sources =
            CertificateSources { in_use: &in_use, identity, egress_routes: &ways, table, metrics: &self.metrics };
        if rounds / EXPIRY_ROUNDS % PEER_CLEANUP_INTERVAL == PEER_CLEANUP_INTERVAL - 1 {
            sources.remove_unused_peers();
        }
        self.expiry.check(&sources, SystemTime::now());
    }

    /// Records in the metrics when each certificate in use expires.
    fn record_certificate_expiry(&mut self) {
        let seconds = |time: rustls::pki_types::UnixTime| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        for in_use in self.certificates_in_use.load().iter() {
            self.metrics.set_certificate_expiry(&in_use.file.display().to_string(), seconds(in_use.not_after));
        }
        let mut gone = std::mem::take(&mut self.reported_proxy_certificates);
        for identity in self.egress_routes.load().identities() {
            let place = identity.place();
            gone.retain(|file| file != place);
            if self.reported_proxy_certificates.iter().all(|told| told != place) {
                self.metrics.set_certificate_expiry(place, seconds(identity.not_after()));
                self.reported_proxy_certificates.push(place.to_owned());
            }
        }
        gone.iter().for_each(|file| self.metrics.remove_certificate(file));
        // Last: an egress proxy may have the same certificate.
        if let Some(ours) = &self.client.identity {
            let ours = ours.load();
            self.metrics.set_certificate_expiry(ours.place(), seconds(ours.not_after()));
        }
    }
}

/// Seconds between two checks of certificate expiry.
const EXPIRY_ROUNDS: u32 = 10;
/// Number of expiry checks between two removals of unused peer certificates: once an hour.
const PEER_CLEANUP_INTERVAL: u32 = 360;

/// Availability of the delegate, for the metric `aggregator_unavailable_apiservice`.
struct DelegateAvailability {
    documents: Published<DiscoverySnapshot>,
    /// The last recorded value.
    available: Option<bool>,
}

impl DelegateAvailability {
    fn new(documents: Published<DiscoverySnapshot>) -> DelegateAvailability {
        DelegateAvailability { documents, available: None }
    }

    /// Records a change. Nothing is recorded before the first fetch from the delegate.
    fn observe(&mut self, metrics: &Metrics) {
        let condition = delegate_condition(&self.documents.load());
        let available = match condition.status {
            ConditionStatus::True => true,
            ConditionStatus::False => false,
            ConditionStatus::Unknown => return,
        };
        if self.available.replace(available) != Some(available) {
            metrics.set_apiservice_availability(DELEGATE, (!available).then_some(&*condition.reason));
        }
    }
}

/// Seconds after which every circuit state is recorded again, in case its series was removed.
const CIRCUIT_REFRESH_ROUNDS: u32 = 30;

/// The last observed availability and circuit state of APIServices, by name.
#[derive(Default)]
struct ApiServiceObserver {
    available: HashMap<String, bool>,
    circuits: HashMap<String, CircuitState>,
}

impl ApiServiceObserver {
    /// The names of all observed APIServices.
    fn names(&self) -> Vec<String> {
        self.available.keys().cloned().collect()
    }

    /// Observes the APIServices `names`. Returns those that changed their availability.
    fn observe_availability(&mut self, names: BTreeSet<String>, table: &RouteTable, metrics: &Metrics) -> Vec<String> {
        let mut turned = Vec::new();
        for name in names {
            // The series of a re-created APIService was removed.
            self.circuits.remove(&name);
            let Some(route) = table.by_name(&name).filter(|_| name != DELEGATE) else {
                self.available.remove(&name);
                continue;
            };
            self.observe_circuit(route, metrics);
            let is = route.availability.is_available();
            if self.available.insert(name.clone(), is).is_some_and(|was| was != is) {
                turned.push(name);
            }
        }
        turned
    }

    /// Observes the circuits of all routes. A closed circuit, as nearly all are, costs one load, so that an idle second
    /// stays cheap with many APIServices. Names are looked up only if a circuit was not closed or none is recorded.
    fn observe_circuits<'r>(&mut self, routes: impl Iterator<Item = &'r Arc<Route>>, metrics: &Metrics) {
        let all = self.circuits.is_empty() || self.circuits.values().any(|told| *told != CircuitState::Closed);
        for route in routes {
            if all || route.availability.circuit_state() != CircuitState::Closed {
                self.observe_circuit(route, metrics);
            }
        }
    }

    fn observe_circuit(&mut self, route: &Route, metrics: &Metrics) {
        let (name, now) = (&route.api_service.name, route.availability.circuit_state());
        if !matches!(route.api_service.backend, ApiServiceBackend::Local) && self.circuits.get(name) != Some(&now) {
            self.circuits.insert(name.clone(), now);
            metrics.set_circuit_state(name, now);
        }
    }
}

/// The file in a problem's place, without the document number; or `kube-apiserver`.
fn problem_file(place: &str) -> String {
    if place.starts_with("kube-apiserver, ") {
        return "kube-apiserver".to_owned();
    }
    place.split(" document ").next().unwrap_or(place).trim_end_matches(',').to_owned()
}
