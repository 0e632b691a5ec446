//! Authorization and identity headers in which a sidecar differs from a gateway.

use std::path::PathBuf;

use crate::authorize::rbac_proxy::PathFilter;
use crate::forward::IdentityHeaderFormat;

/// Settings of a sidecar that are fixed for a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SidecarAuth {
    /// Source of the attributes to authorize.
    pub attribute_source: AttributeSource,
    /// Allowed and ignored paths.
    pub path_filter: PathFilter,
    /// Whether `%2F` in a path is sent on as it is, rather than as a slash.
    pub keeps_escaped_slashes: bool,
    /// Identity headers sent to the upstream.
    pub identity_headers: IdentityHeaderFormat,
    /// Whether `/livez`, `/readyz` and `/healthz` are served here rather than relayed to the upstream.
    pub serves_health: bool,
    /// Groups with all permissions.
    pub privileged_groups: Vec<String>,
}

/// Source of the attributes to authorize (`--authorization-attributes`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AttributeSource {
    /// The request, as k8s.io/apiserver reads it: verb, group, resource, namespace, name.
    #[default]
    Request,
    /// kube-rbac-proxy's file, or the request's path without a file.
    RbacProxy(Option<PathBuf>),
}

impl SidecarAuth {
    /// The settings of a gateway.
    pub fn for_gateway(forward_uid: bool) -> SidecarAuth {
        SidecarAuth {
            identity_headers: IdentityHeaderFormat { remote: true, uid: forward_uid, joined: None, names: None },
            serves_health: true,
            privileged_groups: vec!["system:masters".to_owned()],
            ..SidecarAuth::default()
        }
    }
}
