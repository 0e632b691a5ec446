//! How requests are interpreted and served: the differences between gateway and sidecar, chosen at start.

use std::sync::Arc;

use http::Method;
use kubeapi::{CanonicalPath, Query, RequestInfo, Status, User};

use crate::authenticate::ANONYMOUS;
use crate::authorize::rbac_proxy::{PathFilter, RbacProxyRules};
use crate::config::GatewayConfig;
use crate::forward::IdentityHeaderFormat;
use crate::process::Published;

/// How requests are interpreted and served.
pub(super) struct RequestPolicy {
    backend_api: BackendApi,
    /// kube-rbac-proxy rules that define the attributes, instead of the request itself.
    pub(super) rules: Option<Published<RbacProxyRules>>,
    /// Paths of a sidecar may be hidden, or served without authentication and authorization.
    pub(super) paths: PathFilter,
    keeps_escaped_slashes: bool,
    pub(super) identity_header_format: IdentityHeaderFormat,
    /// The user of requests to paths served without authentication and authorization.
    pub(super) open_path_user: Arc<User>,
}

/// The API of the backends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BackendApi {
    /// The Kubernetes API: query parameters and documents are known by path, and paths that no backend claims are served
    /// locally.
    Kubernetes,
    /// Any HTTP API. All paths belong to the upstreams, and query parameters of other than resource requests.
    Any,
}

impl RequestPolicy {
    /// The policy of the gateway or sidecar that `config` describes.
    pub(super) fn new(config: &GatewayConfig, rules: Option<Published<RbacProxyRules>>) -> RequestPolicy {
        RequestPolicy {
            backend_api: if config.is_sidecar() { BackendApi::Any } else { BackendApi::Kubernetes },
            rules,
            paths: config.sidecar.path_filter.clone(),
            keeps_escaped_slashes: config.sidecar.keeps_escaped_slashes,
            identity_header_format: config.sidecar.identity_headers.clone(),
            open_path_user: Arc::new(User { name: ANONYMOUS.to_owned(), ..User::default() }),
        }
    }

    /// Parses the path; the result is used for authorization, routing and forwarding.
    ///
    /// # Errors
    /// 400 for a path that an API server (or, with rules, any server) could interpret differently.
    pub(super) fn parse_path<'u>(&self, raw: &'u str) -> Result<CanonicalPath<'u>, Status> {
        let path = match (&self.rules, self.backend_api) {
            (Some(_), _) => CanonicalPath::parse_non_kubernetes(raw),
            (None, BackendApi::Any) => CanonicalPath::parse_without_proxy(raw),
            (None, BackendApi::Kubernetes) => CanonicalPath::parse(raw),
        }?;
        Ok(if self.keeps_escaped_slashes { path.keep_escaped_slashes() } else { path })
    }

    /// Parses the request info; only the path if kube-rbac-proxy rules define the attributes.
    ///
    /// # Errors
    /// 400 for a request that kube-apiserver rejects.
    pub(super) fn parse_info<'r>(
        &self,
        method: &Method,
        path: &'r CanonicalPath<'_>,
        query: &'r Query<'_>,
    ) -> Result<RequestInfo<'r>, Status> {
        match self.rules {
            Some(_) => Ok(RequestInfo::non_resource(method, path)),
            None => RequestInfo::parse(method, path, query),
        }
    }

    /// Whether the query parameter `timeout` of the request is the Kubernetes API's.
    pub(super) fn honors_timeout_parameter(&self, info: &RequestInfo<'_>) -> bool {
        self.backend_api == BackendApi::Kubernetes || info.is_resource_request
    }

    /// Whether an invalid `timeout` is rejected, rather than left to the upstream.
    pub(super) fn validates_timeout_parameter(&self) -> bool {
        self.backend_api == BackendApi::Kubernetes
    }

    /// Whether the response at `path` is an OpenAPI v3 document.
    pub(super) fn is_openapi_document(&self, path: &str) -> bool {
        self.backend_api == BackendApi::Kubernetes && path.starts_with("/openapi/v3/")
    }

    /// Whether a response of a streaming type makes its request long-running; in the Kubernetes API the verb and the
    /// subresource do.
    pub(super) fn streams_by_type(&self) -> bool {
        self.backend_api == BackendApi::Any
    }

    /// Whether requests without a route are answered locally.
    pub(super) fn serves_locally(&self) -> bool {
        self.backend_api == BackendApi::Kubernetes
    }
}
