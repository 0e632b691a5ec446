//! The registry and the routes built from it.

use super::backend_files::BackendFiles;
use crate::availability::AvailabilityMap;
use crate::commands::gateway::control::{ControlTasks, RegistryViews, RegistryWarnings, UpstreamReadiness};
use crate::commands::gateway::registry_thread::{ClusterStatus, EmbeddedRegistry, LeaseRelease, RegistryThread};
use crate::commands::gateway::settings::EgressSettings;
use crate::commands::threads::TaskThreads;
use crate::config::GatewayConfig;
use crate::process::{Drain, Problem, Published};
use crate::registry::Registry;
use crate::rest::ObjectPublisher;
use crate::route::{RouteSources, RouteTable};
use crate::tls::server::ClientTrust;

/// The registry, the routes, and what is computed from them.
pub(super) struct Routing {
    pub(super) registry: Published<Registry>,
    pub(super) table: Published<RouteTable>,
    pub(super) availability: AvailabilityMap,
    pub(super) warnings: Published<RegistryWarnings>,
    pub(super) upstream_readiness: Published<UpstreamReadiness>,
    /// The kube-apiserver with the watched registry.
    pub(super) cluster: Option<ClusterStatus>,
    pub(super) lease_release: Option<LeaseRelease>,
}

/// How clients get the APIServices as objects.
pub(super) enum RegistryObjects {
    /// They are stored, and a source of the registry.
    Stored(EmbeddedRegistry),
    /// They are generated from the registry. None if a delegate serves them.
    Generated(Option<ObjectPublisher>),
}

impl Routing {
    /// Builds the first routes, and starts to follow the registry.
    ///
    /// # Errors
    /// The registry thread cannot be spawned.
    pub(super) fn start(
        config: &GatewayConfig,
        files: BackendFiles,
        egress: &EgressSettings,
        trust: &Published<ClientTrust>,
        objects: RegistryObjects,
        (threads, drain): (&TaskThreads, &Drain),
        tasks: &mut ControlTasks,
    ) -> Result<Routing, Problem> {
        let metrics = &egress.metrics;
        let BackendFiles { registry, cluster, delegate, upstreams, .. } = files;
        let (directory, mut registry) = registry.map_or_else(|| (None, Registry::empty()), |(d, r)| (Some(d), r));
        let (stored, generated) = match objects {
            RegistryObjects::Stored(stored) => (Some(stored), None),
            RegistryObjects::Generated(publisher) => (None, publisher),
        };
        registry.complete = cluster.is_none() && stored.is_none();
        let (availability, resolve_rules) = (AvailabilityMap::default(), config.backends.resolve_rules);
        let table = RouteTable::build(&registry, resolve_rules, &egress.routes.get(), &availability, None);
        let delegate = delegate.map(|delegate| tasks.follow("delegate", delegate));
        let table = table.with_delegate(delegate.as_ref().map(Published::get).as_ref(), &availability, None);
        let first_upstreams = upstreams.as_ref().map_or(&[][..], |(_, upstreams)| upstreams);
        let table = table.with_upstreams(first_upstreams, &availability, None);
        let upstreams = upstreams.map(|upstreams| tasks.follow("upstream", upstreams));

        let (registry_publisher, registry) = Published::new(registry);
        let (table_publisher, table) = Published::new(table);
        let (warnings_publisher, warnings) = Published::new(RegistryWarnings::default());
        let (readiness_publisher, upstream_readiness) = Published::new(UpstreamReadiness::new());
        let views = RegistryViews {
            upstream_readiness: upstreams.is_some().then_some(readiness_publisher),
            sources: RouteSources {
                registry: registry.clone(),
                delegate,
                upstreams,
                egress_routes: egress.routes.clone(),
            },
            table: table_publisher,
            apiservices: generated,
            warnings: warnings_publisher,
            trust: trust.clone(),
        };
        views.follow(&availability, resolve_rules, metrics, tasks);
        let registry_thread = RegistryThread {
            directory,
            cluster,
            embedded: stored,
            election: config.backends.election.clone(),
            publisher: registry_publisher,
            threads: threads.clone(),
            availability: availability.clone(),
            egress: egress.clone(),
            metrics: metrics.clone(),
            drain: drain.clone(),
        };
        // A sidecar has no registry.
        let (cluster, lease_release) = if config.is_sidecar() { (None, None) } else { registry_thread.start()? };
        Ok(Routing { registry, table, availability, warnings, upstream_readiness, cluster, lease_release })
    }
}
