//! Route table: looks up routes by group and version, without allocating.

use std::sync::Arc;

use kubeapi::{RetryAfter, Status};

use crate::availability::{
    Availability, AvailabilityMap, CircuitPermit, ConnectionSettings, EndpointHealth, Rejection,
};
use crate::egress::{ConnectionCounter, EgressRoute, EgressRoutes};
use crate::message::{Blame, Refusal};
use crate::observe::metrics::{CircuitState, RejectReason};
use crate::process::{Drain, Published, Publisher, ShardedMap, ShutdownPhase, changed_or_pending};
use crate::registry::{
    ApiService, ApiServiceBackend, DELEGATE, DisplayName, Registry, ResolveError, ResolveRules, ResolvedBackend,
    Revision, SidecarUpstream, SidecarUpstreams, resolve, sort_by_api_service,
};

use super::inflight::{Hand, Inflight, InflightPermit};

/// One APIService and where its requests go. The `Arc` is reused while neither changes, so that connections and counts
/// attached to it are kept.
pub struct Route {
    /// The APIService.
    pub api_service: Arc<ApiService>,
    /// Resolved endpoints, or why there are none.
    pub resolved: Result<ResolvedBackend, ResolveError>,
    /// Availability and circuit breaker.
    pub availability: Arc<Availability>,
    /// Health of its endpoints, in the order of [`ResolvedBackend::endpoints`].
    pub endpoint_health: Vec<Arc<EndpointHealth>>,
    /// Requests in flight.
    pub inflight: Inflight,
    /// Connections of all workers.
    pub connections: ConnectionCounter,
}

/// All routes, by group and version. Immutable; the next table shares unchanged routes.
#[derive(Clone, Default)]
pub struct RouteTable {
    by_group: ShardedMap<Arc<[Arc<Route>]>>,
    /// All routes by APIService, including those without a backend.
    by_name: ShardedMap<Arc<Route>>,
    delegate: Option<Arc<Route>>,
    /// Routes of a sidecar, by path prefix, longest first. If there are any, they own all paths.
    upstreams: Vec<Arc<Route>>,
    /// Whether every source of the registry is synced: an unknown path then belongs to no APIService.
    pub complete: bool,
    /// The registry it was built from.
    built_from: Option<Revision>,
    /// The egress routes it was built with.
    egress_routes: Arc<EgressRoutes>,
}

/// A route that can be used now: it has endpoints and is not known to be unavailable.
/// Only [`Route::target`] makes one.
pub struct RouteTarget {
    route: Arc<Route>,
    circuit_permit: Option<Box<CircuitPermit>>,
}

impl RouteTable {
    /// Builds the routes of `registry`, reusing unchanged ones of `previous`.
    pub fn build(
        registry: &Registry,
        rules: ResolveRules,
        routes: &Arc<EgressRoutes>,
        availability: &AvailabilityMap,
        previous: Option<&RouteTable>,
    ) -> RouteTable {
        let mut table = RouteTable { egress_routes: routes.clone(), ..RouteTable::default() };
        let has_same_routes = |previous: &&RouteTable| Arc::ptr_eq(&previous.egress_routes, routes);
        let since = |previous: &RouteTable| registry.changes_since(previous.built_from.as_ref()?);
        match previous.filter(has_same_routes).and_then(|previous| Some((previous, since(previous)?))) {
            Some((previous, changes)) => {
                table = previous.clone();
                for name in changes.affected {
                    table.update_route(name, registry, rules, availability, previous.by_name(name));
                }
            }
            None => {
                for api_service in registry.api_services() {
                    let name = &api_service.name;
                    table.update_route(
                        name,
                        registry,
                        rules,
                        availability,
                        previous.and_then(|table| table.by_name(name)),
                    );
                }
            }
        }
        (table.complete, table.built_from) = (registry.complete, Some(registry.revision()));
        table
    }

    /// Updates the route of the APIService `name`; `before` is its previous one.
    fn update_route(
        &mut self,
        name: &str,
        registry: &Registry,
        rules: ResolveRules,
        availability: &AvailabilityMap,
        before: Option<&Arc<Route>>,
    ) {
        let route = registry.api_service(name).map(|api_service| {
            let resolved = resolve(api_service, registry, rules, &self.egress_routes);
            Route::new(api_service, resolved, availability, before)
        });
        let had = self.by_name.get(name).cloned();
        match &route {
            Some(route) => self.by_name.insert(name, route.clone()),
            None => self.by_name.remove(name),
        }
        // An APIService without a backend claims no path: those go to the delegate.
        let claims = |route: &&Arc<Route>| route.api_service.backend != ApiServiceBackend::Local;
        let route = route.as_ref().filter(claims);
        // The name determines the group.
        let Some(group) = had.as_ref().or(route).map(|route| route.api_service.group.as_str()) else { return };
        let others = self.by_group.get(group).into_iter().flat_map(|routes| routes.iter());
        let others = others.filter(|one| one.api_service.name != name);
        let routes: Arc<[Arc<Route>]> = others.chain(route).cloned().collect();
        match routes.is_empty() {
            true => self.by_group.remove(group),
            false => self.by_group.insert(group, routes),
        }
    }

    /// Adds `delegate` as the owner of paths that no APIService claims.
    pub fn with_delegate(
        mut self,
        delegate: Option<&Arc<ApiService>>,
        availability: &AvailabilityMap,
        previous: Option<&RouteTable>,
    ) -> RouteTable {
        let before = previous.and_then(RouteTable::delegate);
        let nothing = Registry::default();
        let resolved = |delegate| resolve(delegate, &nothing, ResolveRules::default(), &self.egress_routes);
        self.delegate = delegate.map(|delegate| Route::new(delegate, resolved(delegate), availability, before));
        self
    }

    /// Adds `upstreams` as the owners of all paths, if there are any.
    pub fn with_upstreams(
        mut self,
        upstreams: &[SidecarUpstream],
        availability: &AvailabilityMap,
        previous: Option<&RouteTable>,
    ) -> RouteTable {
        let nothing = Registry::default();
        let route = |upstream: &SidecarUpstream| {
            let resolved = resolve(&upstream.api_service, &nothing, ResolveRules::default(), &self.egress_routes);
            let before = previous.and_then(|table| table.by_name(&upstream.path));
            Route::new(&upstream.api_service, resolved, availability, before)
        };
        self.upstreams = upstreams.iter().map(route).collect();
        self.upstreams.sort_by_key(|route| std::cmp::Reverse(route.api_service.name.len()));
        self
    }

    /// The route of `/apis/<group>/<version>` and all paths below. The version is ignored for the legacy core group
    /// (`""`): `v1.` owns `/api` and all paths below.
    pub fn find(&self, group: &str, version: &str) -> Option<&Arc<Route>> {
        let versions = self.by_group.get(group)?;
        versions.iter().find(|route| group.is_empty() || route.api_service.version == version)
    }

    /// The route of a decoded path: `/apis/<group>/<version>[/…]`, `/api[/…]`. `None` for `/apis`, `/apis/<group>` and
    /// all paths that no APIService claims.
    pub fn find_path(&self, path: &str) -> Option<&Arc<Route>> {
        if !self.upstreams.is_empty() {
            return self.upstreams.iter().find(|route| is_below(path, &route.api_service.name));
        }
        let mut segments = path.strip_prefix('/')?.split('/');
        match segments.next()? {
            "api" => self.find("", ""),
            "apis" => {
                let group = segments.next().filter(|group| !group.is_empty())?;
                self.find(group, segments.next()?)
            }
            _ => None,
        }
    }

    /// Whether any version of `group` has a route.
    pub fn has_group(&self, group: &str) -> bool {
        self.by_group.get(group).is_some()
    }

    /// The delegate's route, if there is one.
    pub fn delegate(&self) -> Option<&Arc<Route>> {
        self.delegate.as_ref()
    }

    /// Whether the table was built from exactly this `registry`.
    pub fn is_built_from(&self, registry: &Registry) -> bool {
        self.built_from.as_ref().is_some_and(|mark| registry.is_at(mark))
    }

    /// The route of the APIService `name`, even without a backend. For [`DELEGATE`] it is the delegate's, for a path
    /// that of the upstream with this path.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Route>> {
        if name == DELEGATE {
            return self.delegate();
        }
        if name.starts_with('/') {
            return self.upstreams.iter().find(|route| route.api_service.name == name);
        }
        self.by_name.get(name)
    }

    /// Routes of upstreams, longest path first.
    pub fn upstreams(&self) -> &[Arc<Route>] {
        &self.upstreams
    }

    /// All routes of APIServices in no order, including those without a backend; not the delegate's, nor those of
    /// upstreams.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.by_name.values()
    }

    /// All routes in the order of discovery, then the delegate's and those of upstreams. Sorts on each call.
    pub fn sorted_routes(&self) -> Vec<Arc<Route>> {
        let mut all: Vec<_> = self.by_name.values().cloned().collect();
        sort_by_api_service(&mut all, |route| &route.api_service);
        all.extend(self.delegate.iter().chain(&self.upstreams).cloned());
        all
    }
}

impl Route {
    /// The route of `api_service`; `before` itself if unchanged.
    fn new(
        api_service: &Arc<ApiService>,
        resolved: Result<ResolvedBackend, ResolveError>,
        availability: &AvailabilityMap,
        before: Option<&Arc<Route>>,
    ) -> Arc<Route> {
        match before {
            Some(route) if Arc::ptr_eq(&route.api_service, api_service) && route.resolved == resolved => route.clone(),
            _ => Arc::new(Route {
                api_service: api_service.clone(),
                endpoint_health: endpoint_health(
                    api_service,
                    &resolved,
                    &availability.get_or_insert(&api_service.name),
                ),
                resolved,
                availability: availability.get_or_insert(&api_service.name),
                inflight: before.map(|route| route.inflight.clone()).unwrap_or_default(),
                connections: before.map(|route| route.connections.clone()).unwrap_or_default(),
            }),
        }
    }

    /// Proof that a request of the user with this hand can be sent now, or the 503 that says why not.
    pub fn target(self: &Arc<Self>, hand: impl FnOnce() -> Hand) -> Result<RouteTarget, Refusal> {
        match &self.resolved {
            Err(unavailable) => Err(self.unavailable(unavailable.reason, &unavailable.message, "")),
            Ok(_) => match self.availability.admit(|| hand().as_u16()) {
                Ok(circuit_permit) => Ok(RouteTarget { route: self.clone(), circuit_permit }),
                Err(obstacle) => Err(self.circuit_rejection(&obstacle)),
            },
        }
    }

    /// The resolved backend; one without endpoints if there is none.
    pub fn resolved_backend(&self) -> &ResolvedBackend {
        static NOWHERE: ResolvedBackend = ResolvedBackend {
            endpoints: Vec::new(),
            preferred_count: 0,
            server_name: String::new(),
            prefix: String::new(),
            plaintext_protocol: None,
            egress_route: EgressRoute::Direct,
        };
        self.resolved.as_ref().unwrap_or(&NOWHERE)
    }

    /// Whether new requests are served, as far as is known: it has endpoints, its circuit is closed, and not all
    /// endpoints are ejected.
    pub fn is_serving(&self) -> bool {
        self.resolved.is_ok()
            && self.availability.is_available()
            && self.availability.circuit_state() == CircuitState::Closed
            && self.endpoint_health.iter().any(|endpoint| !endpoint.is_ejected())
    }

    fn circuit_rejection(&self, obstacle: &Rejection) -> Refusal {
        let name = &self.api_service.name;
        let (cause, message, after) = match obstacle {
            Rejection::Unavailable(condition) => {
                return self.unavailable(&condition.reason, &condition.message, &condition.detail);
            }
            Rejection::CircuitOpen { reason, after } => {
                let message = format!("its recent requests got no response: {reason}");
                ("CircuitOpen", message, RetryAfter::CircuitOpen(*after))
            }
            Rejection::Recovering => {
                let message = "it has just recovered, and gets requests gradually".to_owned();
                ("Recovering", message, RetryAfter::CircuitRecovering)
            }
        };
        let text =
            format!("the server is currently unable to handle the request ({}: {cause}: {message})", DisplayName(name));
        let status = self
            .with_api_service_details(Status::service_unavailable(text))
            .with_cause(cause, &*message)
            .with_retry_after(after);
        Refusal::new(Blame::Backend, status).with_cause(message)
    }

    /// Acquires an in-flight permit of this APIService for the user with `hand`. Long-running requests need none.
    /// `free` is the number of free permits of the gateway's own limit, for `mutating` requests or the others, if there
    /// is one.
    ///
    /// # Errors
    /// Why there is none; [`Route::too_many_requests`] makes the response.
    pub fn try_acquire(&self, hand: Hand, mutating: bool, free: Option<usize>) -> Result<InflightPermit, RejectReason> {
        self.inflight.try_acquire_shared(hand, self.api_service.settings.max_inflight, mutating, free)
    }

    /// The 429 for a request without an in-flight permit.
    pub fn too_many_requests(&self, turned: RejectReason) -> Refusal {
        let name = &self.api_service.name;
        let called = DisplayName(name);
        let message = format!("too many requests for {called}, please try again later");
        let why = match turned {
            RejectReason::LimitReached => {
                format!("the limit max-inflight of {name}, or its share of the gateway's limit, is reached")
            }
            RejectReason::FairShare => format!("the user's fair share of the limit max-inflight of {name} is used up"),
        };
        Refusal::new(Blame::Gateway, Status::too_many_requests(message, RetryAfter::Overloaded)).with_cause(why)
    }

    /// Adds the APIService to the details of `status`, unless this is an upstream's route.
    fn with_api_service_details(&self, status: Status) -> Status {
        let name = &self.api_service.name;
        if name.starts_with('/') { status } else { status.with_resource("apiregistration.k8s.io", "apiservices", name) }
    }

    fn unavailable(&self, reason: &str, message: &str, detail: &str) -> Refusal {
        let called = DisplayName(&self.api_service.name);
        let text = format!("the server is currently unable to handle the request ({called}: {reason}: {message})");
        let status = self
            .with_api_service_details(Status::service_unavailable(text))
            .with_cause(reason, message)
            .with_retry_after(RetryAfter::Unavailable);
        Refusal::new(Blame::Backend, status).with_cause(if detail.is_empty() { message } else { detail })
    }
}

/// Whether `path` equals `prefix` or is below it.
fn is_below(path: &str, prefix: &str) -> bool {
    prefix == "/" || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn endpoint_health(
    api_service: &ApiService,
    resolved: &Result<ResolvedBackend, ResolveError>,
    availability: &Availability,
) -> Vec<Arc<EndpointHealth>> {
    let Ok(resolved) = resolved else { return Vec::new() };
    availability.track_endpoints(ConnectionSettings::new(api_service, resolved), &resolved.endpoints)
}

impl RouteTarget {
    /// The route.
    pub fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// The circuit permit of the request until its response head, if the circuit is not closed. Dropping an unused
    /// target returns it.
    pub fn circuit_permit(self) -> Option<Box<CircuitPermit>> {
        self.circuit_permit
    }
}

/// Inputs of the route table.
pub struct RouteSources {
    /// APIServices, Services and endpoints.
    pub registry: Published<Registry>,
    /// The delegate, which owns paths that no APIService claims.
    pub delegate: Option<Published<ApiService>>,
    /// Upstreams of a sidecar, which own all paths.
    pub upstreams: Option<Published<SidecarUpstreams>>,
    /// Egress routes.
    pub egress_routes: Published<EgressRoutes>,
}

/// Publishes a new table whenever an input changes, until the process ends.
pub async fn publish_route_tables(
    sources: RouteSources,
    rules: ResolveRules,
    availability: AvailabilityMap,
    publisher: Publisher<RouteTable>,
    mut drain: Drain,
) {
    let RouteSources { mut registry, mut delegate, mut upstreams, egress_routes: mut ways } = sources;
    let reader = publisher.reader();
    loop {
        tokio::select! {
            () = registry.changed() => {}
            () = changed_or_pending(&mut delegate) => {}
            () = changed_or_pending(&mut upstreams) => {}
            () = ways.changed() => {}
            () = drain.wait_for(ShutdownPhase::Ending) => return,
        }
        let before = reader.get();
        let delegate = delegate.as_ref().map(Published::get);
        let table = RouteTable::build(&registry.get(), rules, &ways.get(), &availability, Some(&before));
        let mut table = table.with_delegate(delegate.as_ref(), &availability, Some(&before));
        if let Some(upstreams) = &upstreams {
            table = table.with_upstreams(&upstreams.get(), &availability, Some(&before));
        }
        publisher.publish(Arc::new(table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::availability::BackendOutcome;
    use crate::registry::proptest_model::{self, RegistryModel};
    use crate::registry::snapshot::tests::{api_service, registry};

    fn text(name: &str, priority: u32) -> String {
        let service = "service: {name: api, namespace: ns}";
        api_service(name, &format!("groupPriorityMinimum: {priority}, versionPriority: 1, {service}"))
    }

    fn hand() -> Hand {
        crate::route::Dealer::default().hand("jane")
    }

    const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: api, namespace: ns}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 443}]}\n---\n";

    fn build(documents: &str, previous: Option<&RouteTable>) -> RouteTable {
        RouteTable::build(
            &registry(documents),
            ResolveRules::default(),
            &Arc::default(),
            &AvailabilityMap::default(),
            previous,
        )
    }

    fn found<'t>(table: &'t RouteTable, path: &str) -> Option<&'t str> {
        table.find_path(path).map(|route| route.api_service.name.as_str())
    }

    #[test]
    fn route_table_finds_api_service_by_path() {
        let local = api_service("v1.local.io", "groupPriorityMinimum: 1, versionPriority: 1");
        let legacy = text("v1.", 1);
        let table = build(&format!("{}{}{legacy}{local}", text("v1.a.io", 1), text("v2.a.io", 1)), None);
        assert_eq!(found(&table, "/apis/a.io/v1"), Some("v1.a.io"));
        assert_eq!(found(&table, "/apis/a.io/v2/namespaces/x/things"), Some("v2.a.io"));
        assert_eq!(found(&table, "/apis/a.io/v1beta1"), None);
        for own in
            ["/apis", "/apis/", "/apis/a.io", "/apis/a.io/", "/", "", "/version", "/apis//v1", "/apis/local.io/v1"]
        {
            assert_eq!(found(&table, own), None, "{own}");
        }
        for legacy in ["/api", "/api/", "/api/v1", "/api/v1/pods"] {
            assert_eq!(found(&table, legacy), Some("v1."), "{legacy}");
        }
        assert!(table.has_group("a.io") && !table.has_group("local.io"));
        assert!(table.by_name("v1.local.io").is_some());
    }

    #[test]
    fn route_table_reuses_unchanged_routes_and_counts() {
        let rules = ResolveRules::default();
        let board = AvailabilityMap::default();
        let registry = registry(&format!("{}{}{SERVICE}", text("v1.a.io", 1), text("v1.b.io", 1)));
        let ways = Arc::default();
        let one = RouteTable::build(&registry, rules, &ways, &board, None);
        let two = RouteTable::build(&registry, rules, &ways, &board, Some(&one));
        assert!(Arc::ptr_eq(one.find("a.io", "v1").unwrap(), two.find("a.io", "v1").unwrap()));
        let place = two.find("a.io", "v1").unwrap().try_acquire(hand(), false, None).ok().unwrap();
        // Another registry: other objects with the same names.
        let other = build(&format!("{}{SERVICE}", text("v1.a.io", 2)), Some(&two));
        let (before, after) = (two.find("a.io", "v1").unwrap(), other.find("a.io", "v1").unwrap());
        assert!(!Arc::ptr_eq(before, after));
        assert_eq!(after.inflight.count(), 1);
        drop(place);
        assert_eq!(after.inflight.count(), 0);
    }

    proptest::proptest! {
        #[test]
        fn whatever_happens_to_the_registry_it_is_as_if_it_were_made_anew(events in proptest_model::events()) {
            let (rules, ways, board) = (ResolveRules::default(), Arc::default(), AvailabilityMap::default());
            let mut history = RegistryModel::new();
            let mut table = RouteTable::build(&history.registry, rules, &ways, &board, None);
            let shape = |table: &RouteTable| {
                let line = |route: &Arc<Route>| format!("{} {:?}", route.api_service.manifest, route.resolved);
                let find = |(group, version)| table.find(group, version).map(|route| route.api_service.name.clone());
                let found = ["a.io", "b.io"].map(|group| ["v1", "v2", "v3"].map(|version| find((group, version))));
                (table.sorted_routes().iter().map(line).collect::<Vec<_>>(), found, table.has_group("a.io"), table.complete)
            };
            for event in &events {
                history.apply(event);
                let before = table.clone();
                table = RouteTable::build(&history.registry, rules, &ways, &board, Some(&before));
                let anew = RouteTable::build(&history.rebuild(), rules, &ways, &board, None);
                proptest::prop_assert_eq!(shape(&table).0, shape(&anew).0, "after {:?}", event);
                proptest::prop_assert_eq!(shape(&table).1, shape(&anew).1, "after {:?}", event);
                proptest::prop_assert_eq!(table.complete, history.registry.complete);
                // Unchanged routes are kept.
                for route in table.routes() {
                    if let Some(was) = before.by_name(&route.api_service.name)
                        && Arc::ptr_eq(&was.api_service, &route.api_service)
                        && was.resolved == route.resolved
                    {
                        proptest::prop_assert!(Arc::ptr_eq(was, route));
                    }
                }
            }
        }
    }

    #[test]
    fn route_without_backend_is_503_with_cause() {
        let table = build(&text("v1.a.io", 1), None);
        let refusal = table.find("a.io", "v1").unwrap().target(hand).err().unwrap();
        let status = refusal.status();
        assert_eq!((status.code, status.reason), (503, "ServiceUnavailable"));
        let details = status.details.as_ref().unwrap();
        assert_eq!(details.causes[0].reason, "ServiceNotFound");
        assert_eq!(details.retry_after_seconds, 5);
        assert!(status.message.contains("v1.a.io: ServiceNotFound"), "{}", status.message);
    }

    #[test]
    fn route_target_has_endpoints() {
        let table = build(&format!("{}{SERVICE}", text("v1.a.io", 1)), None);
        let target = table.find("a.io", "v1").unwrap().target(hand).ok().unwrap();
        assert_eq!(target.route().resolved_backend().endpoints[0].to_string(), "10.0.0.1:443");
        assert_eq!(target.route().resolved_backend().server_name, "api.ns.svc");
    }

    #[test]
    fn route_is_not_serving_while_circuit_open_or_all_ejected() {
        let table = build(&format!("{}{SERVICE}", text("v1.a.io", 1)), None);
        let route = table.find("a.io", "v1").unwrap();
        assert!(route.is_serving());
        assert!(!build(&text("v1.a.io", 1), None).find("a.io", "v1").unwrap().is_serving(), "no endpoints");
        while !route.endpoint_health[0].record_failure(|| true) {}
        assert!(!route.is_serving(), "all endpoints are ejected");
        route.endpoint_health[0].record_success();
        assert!(route.is_serving());
        route.availability.record_failure(BackendOutcome::Unreachable, "NoEndpoints");
        assert!(!route.is_serving(), "its circuit is open");
    }

    #[test]
    fn route_inflight_limit_exceeded_is_429() {
        let limited =
            text("v1.a.io", 1).replace("metadata: {", "metadata: {annotations: {narthex.dev/max-inflight: '1'}, ");
        let table = build(&format!("{limited}{SERVICE}"), None);
        let route = table.find("a.io", "v1").unwrap();
        let place = route.try_acquire(hand(), false, None).ok();
        assert!(place.is_some());
        let turned = route.try_acquire(hand(), false, None).err().unwrap();
        assert_eq!((turned, route.too_many_requests(turned).status().code), (RejectReason::LimitReached, 429));
    }
}
