//! The control thread: watches files, probes backends, and fetches their documents.
//!
//! It shares only published snapshots with the workers, so that no request waits for it.

mod backend_client;
mod certificate_expiry;
mod held_endpoint;
mod observers;
mod sync_loop;
mod tasks;
mod upstream_readiness;
mod warnings;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

pub(super) use self::certificate_expiry::CertificateSources;
pub(super) use self::observers::delegate_condition;
pub(super) use self::tasks::ControlTasks;
pub(super) use self::upstream_readiness::{UpstreamReadiness, readiness_check};
pub(super) use self::warnings::RegistryWarnings;

use self::backend_client::{AvailabilityMetrics, BackendClient, DOCUMENT_MEMORY, DocumentFetcher};
use self::observers::DelegateAvailability;
use self::sync_loop::{Aggregators, SyncInputs, SyncLoop, SyncState};
use super::settings::EgressSettings;
use super::state::Documents;
use crate::availability::{self, AvailabilityMap};
use crate::discovery::{DiscoveryAggregator, DiskCache, LocalGroups};
use crate::egress::Pool;
use crate::forward::UserHeaders;
use crate::observe::metrics::Metrics;
use crate::openapi::{BuildLocalV2, OpenApiAggregator, OpenApiV2Aggregator, build_v2};
use crate::process::{Drain, FairBudget, Published, Publisher};
use crate::registry::{Registry, ResolveRules};
use crate::resources::catalog::ResourceCatalog;
use crate::rest::ObjectPublisher;
use crate::route::{RouteSources, RouteTable, publish_route_tables};
use crate::tls::server::ClientTrust;
use crate::tls::{CertificateInUse, KeyPair};

/// The control thread.
pub(super) struct ControlThread {
    /// Tasks of other subsystems.
    pub(super) tasks: ControlTasks,
    /// Client certificate for backends; each upstream of a sidecar has its own.
    pub(super) identity: Option<Published<KeyPair>>,
    pub(super) registry: Published<Registry>,
    pub(super) table: Published<RouteTable>,
    pub(super) availability: AvailabilityMap,
    pub(super) resolve_rules: ResolveRules,
    pub(super) egress: EgressSettings,
    pub(super) certificates_in_use: Published<Vec<CertificateInUse>>,
    pub(super) local_groups: LocalGroups,
    /// Resources of the embedded API server.
    pub(super) catalog: Option<Published<ResourceCatalog>>,
    /// Whether the delegate gets all requests that no APIService claims.
    pub(super) delegates_all: bool,
    /// Documents of backends from earlier processes.
    pub(super) disk_cache: DiskCache,
    pub(super) metrics: Arc<Metrics>,
    pub(super) drain: Drain,
}

/// Publishers of what tasks compute from the registry and the routes, and their inputs.
pub(super) struct RegistryViews {
    pub(super) sources: RouteSources,
    pub(super) table: Publisher<RouteTable>,
    /// Publishes the APIServices as objects, unless a delegate serves them.
    pub(super) apiservices: Option<ObjectPublisher>,
    pub(super) warnings: Publisher<RegistryWarnings>,
    /// Readiness of the upstreams; only with upstreams.
    pub(super) upstream_readiness: Option<Publisher<UpstreamReadiness>>,
    pub(super) trust: Published<ClientTrust>,
}

impl RegistryViews {
    /// Adds the tasks that keep them current.
    pub(super) fn follow(
        self,
        availability: &AvailabilityMap,
        rules: ResolveRules,
        metrics: &Arc<Metrics>,
        tasks: &mut ControlTasks,
    ) {
        let (registry, metrics) = (self.sources.registry.clone(), metrics.clone());
        let RegistryViews { sources, table, apiservices, warnings, upstream_readiness, trust } = self;
        if let Some(publisher) = upstream_readiness {
            let table = table.reader();
            tasks.add("upstream-readiness", move |context| {
                upstream_readiness::follow(table, context.dialer, publisher, context.drain)
            });
        }
        let (map, viewed) = (availability.clone(), registry.clone());
        tasks.add("route-table", {
            let map = map.clone();
            move |context| publish_route_tables(sources, rules, map, table, context.drain)
        });
        if let Some(publisher) = apiservices {
            tasks.add("apiservice-objects", move |context| async move {
                let publish = async |name: &str, object| {
                    if let Err(error) = publisher.publish("", name, object).await {
                        tracing::error!(apiservice = name, %error, "APIService is not shown to clients");
                    }
                };
                availability::publish_api_services(viewed, map, publish, context.drain).await;
            });
        }
        tasks.add("registry-warnings", move |context| {
            warnings::follow(registry, trust, warnings, metrics, context.drain)
        });
    }
}

impl ControlThread {
    /// Runs until the process ends. `ready` receives the published documents.
    pub(super) async fn run(self, ready: Sender<Documents>) {
        let identity_headers = match UserHeaders::new(&BackendClient::user(), false) {
            Ok(headers) => headers,
            Err(error) => {
                return tracing::error!(
                    why = error.0,
                    "the gateway's own user name cannot be sent in an identity header; the control thread ends"
                );
            }
        };
        let dialer = self.egress.dialer();
        let client = Rc::new(BackendClient {
            pool: Pool::new(dialer.clone()),
            delegate_endpoint: RefCell::default(),
            identity: self.identity,
            table: self.table.clone(),
            identity_headers,
            metrics: self.metrics.clone(),
        });
        let (aggregators, documents) =
            start_aggregators(&client, self.local_groups, self.catalog.clone(), &self.disk_cache);
        let delegate = self.delegates_all.then(|| DelegateAvailability::new(documents.discovery.clone()));
        if ready.send(documents).is_err() {
            return;
        }
        self.tasks.spawn(&dialer, &self.drain);
        let (registry, map, routes) = (self.registry.clone(), self.availability.clone(), self.egress.routes.clone());
        let (rules, drain) = (self.resolve_rules, self.drain.clone());
        let (probing, counting) = (client.clone(), AvailabilityMetrics(self.metrics.clone()));
        tokio::task::spawn_local(async move {
            availability::run(registry, rules, routes, map, &*probing, counting, drain).await;
        });
        let inputs = SyncInputs {
            registry: self.registry,
            table: self.table,
            availability: self.availability,
            catalog: self.catalog,
            certificates_in_use: self.certificates_in_use,
            egress_routes: self.egress.routes,
            delegates_all: self.delegates_all,
            disk_cache: self.disk_cache,
            metrics: self.metrics,
            drain: self.drain,
        };
        SyncLoop { inputs, aggregators, delegate, client, state: SyncState::default() }.run().await;
    }
}

/// Starts the aggregators of discovery and OpenAPI, and returns what they publish.
fn start_aggregators(
    client: &Rc<BackendClient>,
    local_groups: LocalGroups,
    catalog: Option<Published<ResourceCatalog>>,
    disk_cache: &DiskCache,
) -> (Aggregators, Documents) {
    let memory = FairBudget::new(DOCUMENT_MEMORY);
    let fetcher = || DocumentFetcher { client: client.clone(), memory: memory.clone() };
    let (discovery, snapshot) = DiscoveryAggregator::start(fetcher(), local_groups.clone(), disk_cache);
    let local_v2 =
        catalog.map(|catalog| -> BuildLocalV2 { Arc::new(move |is_known| build_v2(&catalog.get(), is_known)) });
    let (openapi, index) = OpenApiAggregator::start(fetcher(), local_groups, disk_cache);
    let (openapi_v2, merged) = OpenApiV2Aggregator::start(fetcher(), disk_cache, local_v2);
    let documents = Documents { discovery: snapshot, openapi: index, openapi_v2: merged };
    (Aggregators { discovery, openapi, openapi_v2 }, documents)
}
