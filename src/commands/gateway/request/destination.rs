//! Where a request goes. One pure function decides, from the parsed request and one load of each snapshot.
//!
//! It decides before authentication, by the attributes that are authorized then: what is authorized is what is routed.

use std::sync::Arc;

use arc_swap::Guard;
use http::Method;
use kubeapi::RequestInfo;

use crate::authorize::SelfReview;
use crate::commands::gateway::state::DelegateScope;
use crate::delegation_server::DelegationRequest;
use crate::discovery::{DiscoveryDocument, DiscoverySnapshot};
use crate::observe::health::{HealthChecks, RequestedChecks};
use crate::openapi::{Index, OpenApiDocument, OpenApiPath, OpenApiV2};
use crate::resources::catalog::ResourceCatalog;
use crate::route::{Route, RouteTable};

/// Where a request goes.
pub(super) enum RequestDestination<'r> {
    /// Health checks, without authentication: a load balancer has no credentials.
    Health(RequestedChecks<'r>),
    /// The response to a CORS preflight request, without authentication: browsers send no credentials with it.
    Preflight,
    /// The backend of an APIService, the delegate, or an upstream of a sidecar.
    Backend(&'r Arc<Route>),
    /// The gateway itself.
    Local(LocalDestination),
    /// Nowhere: refused once it is authorized.
    Refused(RoutingError),
}

/// What the gateway answers itself.
pub(super) enum LocalDestination {
    /// A review of the caller (`kubectl auth`).
    SelfReview(SelfReview),
    /// A review for a backend (`--serve-delegation`).
    Delegation(DelegationRequest),
    /// Objects: stored ones of the embedded API server, or those that the gateway generates. The verb reads the catalog
    /// again when the body is complete: a CRD may change until then, and its new schema is to be enforced.
    Object,
    Discovery(DiscoveryDocument),
    OpenApiV2,
    OpenApiV3(OpenApiDocument),
    /// The list of all paths, at `/`.
    PathIndex(Arc<DiscoverySnapshot>),
    Version,
    Metrics,
    /// How others verify service account tokens.
    OpenIdConfiguration,
    /// The keys of service account tokens.
    TokenKeys,
}

/// Why a request is refused when nothing owns its path.
pub(super) enum RoutingError {
    /// No upstream of a sidecar owns the path.
    NoUpstream,
    /// The registry is not complete. An APIService that is not read yet may claim the path, so the request must neither go
    /// to the delegate nor get a 404.
    RegistryIncomplete,
    /// A path below `/openapi/v3` without a document.
    UnknownDocument,
    /// Any other path. The discovery documents say whether its group and version exist.
    UnknownPath(Arc<DiscoverySnapshot>),
}

/// A parsed request, with what the route table has for its path.
pub(super) struct RoutingRequest<'i, 'r> {
    pub(super) method: &'i Method,
    pub(super) info: &'i RequestInfo<'i>,
    /// Whether this is a CORS preflight request of an allowed origin.
    pub(super) is_preflight: bool,
    pub(super) table: &'r RouteTable,
    /// The route of `table` that claims the path.
    pub(super) route: Option<&'r Arc<Route>>,
}

/// The settings that determine destinations.
pub(super) struct RoutingSettings<'r> {
    pub(super) health: &'r [HealthChecks],
    pub(super) delegate: DelegateScope,
    /// Whether reviews of backends are answered (`--serve-delegation`, `--embedded-api`).
    pub(super) serves_reviews: bool,
    /// Whether tokens of ServiceAccounts are issued (`--embedded-api`).
    pub(super) issues_tokens: bool,
    /// Whether requests that no backend owns are answered locally.
    pub(super) serves_locally: bool,
}

/// The snapshots of what is served locally.
pub(super) struct LocalSnapshots {
    pub(super) catalog: Guard<Arc<ResourceCatalog>>,
    pub(super) discovery: Guard<Arc<DiscoverySnapshot>>,
    pub(super) openapi: Guard<Arc<Index>>,
}

impl<'r> RequestDestination<'r> {
    /// Decides where a request goes. `load` is called at most once, and not for a path that an APIService claims.
    pub(super) fn find(
        settings: &RoutingSettings<'r>,
        request: &RoutingRequest<'_, 'r>,
        load: impl FnOnce() -> LocalSnapshots,
    ) -> RequestDestination<'r> {
        let path = request.info.path;
        if matches!(*request.method, Method::GET | Method::HEAD)
            && let Some(checks) = settings.health.iter().find_map(|checks| checks.find(path))
        {
            return RequestDestination::Health(checks);
        }
        if request.is_preflight {
            return RequestDestination::Preflight;
        }
        if let Some(route) = request.route {
            return RequestDestination::Backend(route);
        }
        if !settings.serves_locally {
            return RequestDestination::Refused(RoutingError::NoUpstream);
        }
        find_unclaimed(settings, request, &load())
    }
}

/// The destination of a path that no APIService claims.
fn find_unclaimed<'r>(
    settings: &RoutingSettings<'r>,
    request: &RoutingRequest<'_, 'r>,
    snapshots: &LocalSnapshots,
) -> RequestDestination<'r> {
    let (info, table) = (request.info, request.table);
    let document = snapshots.openapi.find(info.path);
    if let Some(OpenApiPath::Relayed(api_service)) = document
        && let Some(route) = table.by_name(api_service)
    {
        return RequestDestination::Backend(route);
    }
    let is_unknown_document = matches!(document, Some(OpenApiPath::Unknown));
    let local = match (info.is_resource_request, document) {
        (true, _) => find_resource(settings, info, &snapshots.catalog),
        (false, Some(OpenApiPath::Document(document))) => Some(LocalDestination::OpenApiV3(document)),
        (false, _) => find_document(settings, info.path, &snapshots.discovery),
    };
    let is_local = is_registration(info) && !settings.delegate.apiservices
        || local.as_ref().is_some_and(|local| local.precedes_delegate(settings.delegate, info.path));
    if !is_local {
        if !table.complete {
            return RequestDestination::Refused(RoutingError::RegistryIncomplete);
        }
        // APIServices registered in a cluster are read and written there, even if the delegate serves nothing else here.
        let is_delegated = settings.delegate.all || is_registration(info);
        if let Some(delegate) = table.delegate().filter(|_| is_delegated) {
            return RequestDestination::Backend(delegate);
        }
    }
    match local {
        Some(local) => RequestDestination::Local(local),
        None if is_unknown_document => RequestDestination::Refused(RoutingError::UnknownDocument),
        None => RequestDestination::Refused(RoutingError::UnknownPath(Arc::clone(&snapshots.discovery))),
    }
}

/// What the gateway serves of a resource.
fn find_resource(
    settings: &RoutingSettings<'_>,
    info: &RequestInfo<'_>,
    catalog: &ResourceCatalog,
) -> Option<LocalDestination> {
    if let Some(review) = SelfReview::parse(info) {
        return Some(LocalDestination::SelfReview(review));
    }
    if settings.serves_reviews
        && let Some(delegation) = DelegationRequest::parse(info)
    {
        return Some(LocalDestination::Delegation(delegation));
    }
    catalog.find(info.api_group, info.api_version, info.resource).map(|_| LocalDestination::Object)
}

/// What the gateway serves at a path of no resource, but for documents of OpenAPI v3.
fn find_document(
    settings: &RoutingSettings<'_>,
    path: &str,
    discovery: &Arc<DiscoverySnapshot>,
) -> Option<LocalDestination> {
    match path {
        "/" => Some(LocalDestination::PathIndex(discovery.clone())),
        "/version" | "/version/" => Some(LocalDestination::Version),
        "/metrics" => Some(LocalDestination::Metrics),
        "/.well-known/openid-configuration" if settings.issues_tokens => Some(LocalDestination::OpenIdConfiguration),
        "/openid/v1/jwks" | "/openid/v1/jwks/" if settings.issues_tokens => Some(LocalDestination::TokenKeys),
        _ if OpenApiV2::is_path(path) => Some(LocalDestination::OpenApiV2),
        _ => discovery.find_document(path).map(LocalDestination::Discovery),
    }
}

impl LocalDestination {
    /// Whether the gateway serves this itself even if all unclaimed paths go to the delegate.
    fn precedes_delegate(&self, scope: DelegateScope, path: &str) -> bool {
        match self {
            LocalDestination::SelfReview(_) | LocalDestination::Delegation(_) => false,
            LocalDestination::Version => !scope.all,
            LocalDestination::Metrics => !scope.metrics,
            // With an empty segment this is another path to the delegate.
            LocalDestination::OpenApiV3(_) => !path.starts_with("/openapi/v3//"),
            LocalDestination::Object
            | LocalDestination::Discovery(_)
            | LocalDestination::OpenApiV2
            | LocalDestination::OpenIdConfiguration
            | LocalDestination::TokenKeys
            | LocalDestination::PathIndex(_) => true,
        }
    }
}

/// Whether a request is for APIServices, or another resource of their group.
fn is_registration(info: &RequestInfo<'_>) -> bool {
    info.is_resource_request && (info.api_group, info.api_version) == ("apiregistration.k8s.io", "v1")
}

#[cfg(test)]
mod tests {
    use kubeapi::{CanonicalPath, Query};

    use super::*;
    use crate::availability::AvailabilityMap;
    use crate::discovery::{LocalGroups, sample_documents};
    use crate::observe::health::HealthCheck;
    use crate::openapi::relayed_documents;
    use crate::process::Published;
    use crate::registry::snapshot::tests::{api_service, registry};
    use crate::registry::{ApiService, DELEGATE, Registry, ResolveRules, SidecarUpstream};

    /// A gateway with the APIService `v1beta1.wardle.example.com`, and what else a test adds.
    struct TestGateway {
        scope: DelegateScope,
        serves_reviews: bool,
        serves_locally: bool,
        allows_origin: bool,
        health: [HealthChecks; 3],
        table: RouteTable,
        catalog: Published<ResourceCatalog>,
        discovery: Published<DiscoverySnapshot>,
        openapi: Published<Index>,
    }

    const API_SERVICE: &str = "v1beta1.wardle.example.com";

    fn test_registry() -> Registry {
        let backend = "groupPriorityMinimum: 1, versionPriority: 1, service: {name: api, namespace: ns}";
        registry(&api_service(API_SERVICE, backend))
    }

    /// The APIService of the registry under another name.
    fn renamed(name: &str) -> Arc<ApiService> {
        let registry = test_registry();
        let api_service = registry.api_service(API_SERVICE).unwrap();
        Arc::new(ApiService { name: name.to_owned(), ..ApiService::clone(api_service) })
    }

    impl TestGateway {
        /// A gateway with a registry directory alone.
        fn new() -> TestGateway {
            let (registry, availability) = (test_registry(), AvailabilityMap::default());
            let mut table = RouteTable::build(&registry, ResolveRules::default(), &Arc::default(), &availability, None);
            table.complete = true;
            let openapi = relayed_documents(&LocalGroups::default(), "wardle.example.com", "v1beta1", &[]);
            TestGateway {
                scope: DelegateScope { all: false, apiservices: false, metrics: false },
                serves_reviews: false,
                serves_locally: true,
                allows_origin: false,
                health: ["livez", "readyz", "healthz"].map(|name| HealthChecks::new(name, [HealthCheck::ping()])),
                table,
                catalog: Published::fixed(ResourceCatalog::of_generated(true, false)),
                discovery: Published::fixed(sample_documents()),
                openapi: Published::fixed(openapi),
            }
        }

        /// With `--embedded-api`.
        fn with_embedded_api() -> TestGateway {
            let catalog = ResourceCatalog::default();
            let local_groups = LocalGroups { embedded: Some(Arc::new(catalog.clone())), ..LocalGroups::default() };
            TestGateway {
                catalog: Published::fixed(catalog),
                discovery: Published::fixed(DiscoverySnapshot::empty(&local_groups)),
                openapi: Published::fixed(relayed_documents(&local_groups, "wardle.example.com", "v1beta1", &[])),
                ..TestGateway::new()
            }
        }

        /// With a delegate for the paths of `scope`, which has the OpenAPI document of `apps/v1`.
        fn with_delegate(scope: DelegateScope) -> TestGateway {
            let gateway = TestGateway::new();
            let local_groups = LocalGroups {
                delegate: true,
                apiregistration_from_delegate: scope.apiservices,
                ..LocalGroups::default()
            };
            let openapi = relayed_documents(&local_groups, "wardle.example.com", "v1beta1", &["apis/apps/v1"]);
            TestGateway {
                scope,
                catalog: Published::fixed(ResourceCatalog::of_generated(!scope.apiservices, false)),
                table: gateway.table.with_delegate(Some(&renamed(DELEGATE)), &AvailabilityMap::default(), None),
                openapi: Published::fixed(openapi),
                ..gateway
            }
        }

        /// A sidecar with one upstream.
        fn sidecar(path: &str) -> TestGateway {
            let upstream = SidecarUpstream { path: path.to_owned(), api_service: renamed(path) };
            let table = RouteTable::default().with_upstreams(&[upstream], &AvailabilityMap::default(), None);
            TestGateway { serves_locally: false, table, ..TestGateway::new() }
        }

        /// The destination of `method path`, in words.
        fn destination(&self, request_line: &str) -> String {
            let (method, path) = request_line.split_once(' ').unwrap();
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let query = Query::parse("");
            let Ok(path) = CanonicalPath::parse(path) else { return "400".to_owned() };
            let Ok(info) = RequestInfo::parse(&method, &path, &query) else { return "400".to_owned() };
            let settings = RoutingSettings {
                health: &self.health,
                delegate: self.scope,
                serves_reviews: self.serves_reviews,
                issues_tokens: self.serves_reviews,
                serves_locally: self.serves_locally,
            };
            let request = RoutingRequest {
                method: &method,
                info: &info,
                is_preflight: method == Method::OPTIONS && self.allows_origin,
                table: &self.table,
                route: self.table.find_path(path.decoded()),
            };
            in_words(&RequestDestination::find(&settings, &request, || LocalSnapshots {
                catalog: self.catalog.load(),
                discovery: self.discovery.load(),
                openapi: self.openapi.load(),
            }))
        }

        #[track_caller]
        fn assert_destinations(&self, table: &[(&str, &str)]) {
            for (request_line, expected) in table {
                assert_eq!(self.destination(request_line), *expected, "{request_line}");
            }
        }
    }

    fn in_words(destination: &RequestDestination<'_>) -> String {
        match destination {
            RequestDestination::Health(RequestedChecks::All(checks)) => format!("health checks {}", checks.name()),
            RequestDestination::Health(RequestedChecks::One(_)) => "health check".to_owned(),
            RequestDestination::Preflight => "preflight".to_owned(),
            RequestDestination::Backend(route) => format!("backend {}", route.api_service.name),
            RequestDestination::Local(local) => match local {
                LocalDestination::SelfReview(review) => format!("self review {review:?}"),
                LocalDestination::Delegation(delegation) => format!("delegation {delegation:?}"),
                LocalDestination::Object => "object".to_owned(),
                LocalDestination::Discovery(_) => "discovery".to_owned(),
                LocalDestination::OpenApiV2 => "OpenAPI v2".to_owned(),
                LocalDestination::OpenApiV3(_) => "OpenAPI v3".to_owned(),
                LocalDestination::PathIndex(_) => "path index".to_owned(),
                LocalDestination::Version => "version".to_owned(),
                LocalDestination::Metrics => "metrics".to_owned(),
                LocalDestination::OpenIdConfiguration => "OpenID configuration".to_owned(),
                LocalDestination::TokenKeys => "token keys".to_owned(),
            },
            RequestDestination::Refused(error) => match error {
                RoutingError::NoUpstream => "no upstream".to_owned(),
                RoutingError::RegistryIncomplete => "registry incomplete".to_owned(),
                RoutingError::UnknownDocument => "unknown document".to_owned(),
                RoutingError::UnknownPath(_) => "unknown path".to_owned(),
            },
        }
    }

    #[test]
    fn destination_of_every_path_of_a_gateway() {
        TestGateway::new().assert_destinations(&[
            // Health checks.
            ("GET /livez", "health checks livez"),
            ("GET /readyz", "health checks readyz"),
            ("HEAD /readyz/", "health checks readyz"),
            ("GET /healthz", "health checks healthz"),
            ("GET /readyz/ping", "health check"),
            ("GET /readyz/etcd", "unknown path"),
            ("POST /livez", "unknown path"),
            ("GET /livezz", "unknown path"),
            // APIServices.
            ("GET /apis/wardle.example.com/v1beta1", "backend v1beta1.wardle.example.com"),
            ("GET /apis/wardle.example.com/v1beta1/flunders", "backend v1beta1.wardle.example.com"),
            ("POST /apis/wardle.example.com/v1beta1/namespaces/a/flunders", "backend v1beta1.wardle.example.com"),
            ("GET /openapi/v3/apis/wardle.example.com/v1beta1", "backend v1beta1.wardle.example.com"),
            ("OPTIONS /apis/wardle.example.com/v1beta1", "backend v1beta1.wardle.example.com"),
            ("GET /apis/wardle.example.com/v2/flunders", "unknown path"),
            // Documents.
            ("GET /", "path index"),
            ("GET /api", "discovery"),
            ("GET /api/", "discovery"),
            ("GET /apis", "discovery"),
            ("POST /apis", "discovery"),
            ("GET /apis/wardle.example.com", "discovery"),
            ("GET /apis/apiregistration.k8s.io", "discovery"),
            ("GET /apis/apiregistration.k8s.io/v1", "discovery"),
            ("GET /apis/apps", "unknown path"),
            ("GET /api/v1", "unknown path"),
            ("GET /openapi/v2", "OpenAPI v2"),
            ("GET /openapi/v2/", "OpenAPI v2"),
            ("GET /openapi/v3", "OpenAPI v3"),
            ("GET /openapi/v3/", "OpenAPI v3"),
            ("GET /openapi/v3/apis/apiregistration.k8s.io/v1", "OpenAPI v3"),
            ("GET /openapi/v3/apis/apps/v1", "unknown document"),
            ("GET /openapi", "unknown path"),
            ("GET /version", "version"),
            ("GET /version/", "version"),
            ("GET /metrics", "metrics"),
            ("GET /metrics/slis", "unknown path"),
            // Objects, which the gateway generates.
            ("GET /apis/apiregistration.k8s.io/v1/apiservices", "object"),
            ("DELETE /apis/apiregistration.k8s.io/v1/apiservices/v1.apps", "object"),
            ("GET /apis/apiregistration.k8s.io/v1/widgets", "unknown path"),
            ("GET /api/v1/namespaces/a", "unknown path"),
            // Reviews.
            ("POST /apis/authentication.k8s.io/v1/selfsubjectreviews", "self review Subject"),
            ("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "self review Access"),
            ("POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "self review Rules"),
            ("POST /apis/authentication.k8s.io/v1/tokenreviews", "unknown path"),
            ("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", "unknown path"),
            // No path of an API server.
            ("GET /index.html", "unknown path"),
            ("GET /apis/wardle.example.com/v1beta1/../v2", "400"),
            ("GET /apis/wardle.example.com%2Fv1beta1/x", "400"),
            ("GET /api/v1/watch", "400"),
        ]);
    }

    #[test]
    fn destination_of_preflight_requests() {
        TestGateway { allows_origin: true, ..TestGateway::new() }.assert_destinations(&[
            ("OPTIONS /apis/wardle.example.com/v1beta1/flunders", "preflight"),
            ("OPTIONS /apis", "preflight"),
            ("OPTIONS /livez", "preflight"),
            ("OPTIONS /index.html", "preflight"),
            ("GET /apis", "discovery"),
        ]);
    }

    #[test]
    fn destination_with_embedded_api() {
        TestGateway::with_embedded_api().assert_destinations(&[
            ("GET /livez", "health checks livez"),
            ("GET /api/v1/namespaces/a/configmaps", "object"),
            ("PUT /api/v1/namespaces/a/configmaps/b", "object"),
            ("GET /api/v1/watch/configmaps", "object"),
            ("GET /apis/apps/v1/deployments", "object"),
            ("GET /apis/apiregistration.k8s.io/v1/apiservices", "object"),
            ("GET /apis/apps/v1/widgets", "unknown path"),
            ("GET /apis/wardle.example.com/v1beta1/flunders", "backend v1beta1.wardle.example.com"),
            ("GET /api/v1", "discovery"),
            ("GET /apis/apps", "discovery"),
            ("GET /apis/apps/v1", "discovery"),
            ("GET /openapi/v3/api/v1", "OpenAPI v3"),
            ("GET /openapi/v3/apis/apps/v1", "OpenAPI v3"),
            ("GET /openapi/v3/apis/wardle.example.com/v1beta1", "backend v1beta1.wardle.example.com"),
            ("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "self review Access"),
            ("POST /apis/authentication.k8s.io/v1/tokenreviews", "unknown path"),
        ]);
    }

    #[test]
    fn destination_with_served_delegation() {
        TestGateway { serves_reviews: true, ..TestGateway::new() }.assert_destinations(&[
            ("POST /apis/authentication.k8s.io/v1/tokenreviews", "delegation TokenReview"),
            ("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", "delegation SubjectAccessReview"),
            ("POST /apis/authentication.k8s.io/v1/selfsubjectreviews", "self review Subject"),
            (
                "POST /apis/authorization.k8s.io/v1/namespaces/a/localsubjectaccessreviews",
                "delegation LocalSubjectAccessReview",
            ),
        ]);
    }

    #[test]
    fn destination_before_a_kube_apiserver() {
        let scope = DelegateScope { all: true, apiservices: true, metrics: true };
        TestGateway::with_delegate(scope).assert_destinations(&[
            ("GET /livez", "health checks livez"),
            ("GET /readyz/ping", "health check"),
            ("GET /readyz/etcd", "backend delegate"),
            ("GET /apis/wardle.example.com/v1beta1/flunders", "backend v1beta1.wardle.example.com"),
            ("GET /api/v1/pods", "backend delegate"),
            ("GET /api/v1", "backend delegate"),
            ("GET /apis/apps/v1/deployments", "backend delegate"),
            ("GET /apis/apiregistration.k8s.io/v1/apiservices", "backend delegate"),
            ("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "backend delegate"),
            ("POST /apis/authentication.k8s.io/v1/tokenreviews", "backend delegate"),
            ("GET /openapi/v3/apis/apps/v1", "backend delegate"),
            ("GET /openapi/v3/apis/wardle.example.com/v1beta1", "backend v1beta1.wardle.example.com"),
            ("GET /openapi/v3/apis/batch/v1", "backend delegate"),
            ("GET /openapi/v3//", "backend delegate"),
            ("GET /version", "backend delegate"),
            ("GET /metrics", "backend delegate"),
            ("GET /logs", "backend delegate"),
            ("GET /", "path index"),
            ("GET /api", "discovery"),
            ("GET /apis", "discovery"),
            ("GET /apis/wardle.example.com", "discovery"),
            ("GET /openapi/v2", "OpenAPI v2"),
            ("GET /openapi/v3", "OpenAPI v3"),
        ]);
        // `--serving-metrics=gateway`, and no `--kubeconfig`.
        let scope = DelegateScope { all: true, apiservices: false, metrics: false };
        TestGateway::with_delegate(scope).assert_destinations(&[
            ("GET /metrics", "metrics"),
            ("GET /apis/apiregistration.k8s.io/v1/apiservices", "object"),
            ("GET /apis/apiregistration.k8s.io/v1/widgets", "unknown path"),
            ("GET /api/v1/pods", "backend delegate"),
        ]);
    }

    #[test]
    fn destination_with_registry_in_a_cluster() {
        let scope = DelegateScope { all: false, apiservices: true, metrics: false };
        TestGateway::with_delegate(scope).assert_destinations(&[
            ("GET /apis/apiregistration.k8s.io/v1/apiservices", "backend delegate"),
            ("POST /apis/apiregistration.k8s.io/v1/apiservices", "backend delegate"),
            ("GET /apis/wardle.example.com/v1beta1/flunders", "backend v1beta1.wardle.example.com"),
            ("GET /api/v1/pods", "unknown path"),
            ("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "self review Access"),
            ("GET /version", "version"),
            ("GET /metrics", "metrics"),
        ]);
    }

    #[test]
    fn destination_while_registry_is_incomplete() {
        let incomplete = [
            ("GET /livez", "health checks livez"),
            ("GET /apis/wardle.example.com/v1beta1/flunders", "backend v1beta1.wardle.example.com"),
            ("GET /apis", "discovery"),
            ("GET /openapi/v3", "OpenAPI v3"),
            ("GET /apis/metrics.k8s.io/v1beta1/pods", "registry incomplete"),
            ("GET /api/v1/pods", "registry incomplete"),
            ("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "registry incomplete"),
            ("GET /logs", "registry incomplete"),
        ];
        let scope = DelegateScope { all: true, apiservices: true, metrics: true };
        for mut gateway in [TestGateway::new(), TestGateway::with_delegate(scope)] {
            gateway.table.complete = false;
            gateway.assert_destinations(&incomplete);
        }
        let mut gateway = TestGateway::new();
        gateway.table.complete = false;
        gateway.assert_destinations(&[
            ("GET /version", "version"),
            ("GET /metrics", "metrics"),
            ("GET /apis/apiregistration.k8s.io/v1/apiservices", "object"),
            ("GET /apis/apiregistration.k8s.io/v1/widgets", "unknown path"),
        ]);
    }

    #[test]
    fn destination_of_every_path_of_a_sidecar() {
        TestGateway::sidecar("/app").assert_destinations(&[
            ("GET /livez", "health checks livez"),
            ("POST /livez", "no upstream"),
            ("GET /app", "backend /app"),
            ("POST /app/orders", "backend /app"),
            ("GET /application", "no upstream"),
            ("GET /metrics", "no upstream"),
            ("GET /apis", "no upstream"),
            ("GET /openapi/v3/apis/wardle.example.com/v1beta1", "no upstream"),
        ]);
        TestGateway::sidecar("/").assert_destinations(&[
            ("GET /livez", "health checks livez"),
            ("POST /livez", "backend /"),
            ("GET /metrics", "backend /"),
            ("GET /apis", "backend /"),
        ]);
    }
}
