//! Templates of authorization attributes, and their values from a request.

use http::{HeaderMap, Method};
use kubeapi::{Query, RequestInfo};

use super::value::{Template, ValueSources};
use super::{PermissionSet, RequiredPermissions, UnreviewableRequest};

/// How the attributes of a request are determined.
#[derive(Debug, Default)]
pub(super) enum AttributeTemplate {
    /// From the path.
    #[default]
    Path,
    /// Constant: `resourceAttributes` without `rewrites`. Templates in it are used literally.
    Resource(RbacProxyResource),
    /// For each value in the request: `resourceAttributes` with `rewrites`.
    Values { sources: ValueSources, templates: Box<ResourceTemplates> },
}

/// `resourceAttributes` with all values filled in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RbacProxyResource {
    pub(super) namespace: String,
    pub(super) api_group: String,
    pub(super) api_version: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) name: String,
}

/// `resourceAttributes` with templates.
#[derive(Debug, Default)]
pub(super) struct ResourceTemplates {
    pub(super) namespace: Template,
    pub(super) api_group: Template,
    pub(super) api_version: Template,
    pub(super) resource: Template,
    pub(super) subresource: Template,
    pub(super) name: Template,
}

impl AttributeTemplate {
    pub(super) fn required_permissions<'r>(
        &'r self,
        verb: &'r str,
        path: &'r str,
        query: &Query<'_>,
        headers: &HeaderMap,
    ) -> Result<RequiredPermissions<'r>, UnreviewableRequest> {
        Ok(RequiredPermissions(match self {
            AttributeTemplate::Path => {
                PermissionSet::Single(RequestInfo { path, verb: verb.into(), ..RequestInfo::default() })
            }
            AttributeTemplate::Resource(resource) => PermissionSet::Single(resource.to_request_info(verb)),
            AttributeTemplate::Values { sources, templates } => {
                let values = sources.values(query, headers, RequiredPermissions::MAX)?;
                PermissionSet::PerValue { verb, resources: values.iter().map(|value| templates.fill(value)).collect() }
            }
        }))
    }
}

impl RbacProxyResource {
    pub(super) fn to_request_info<'r>(&'r self, verb: &'r str) -> RequestInfo<'r> {
        RequestInfo {
            is_resource_request: true,
            verb: verb.into(),
            api_prefix: if self.api_group.is_empty() { "api" } else { "apis" },
            api_group: &self.api_group,
            api_version: &self.api_version,
            namespace: &self.namespace,
            resource: &self.resource,
            subresource: &self.subresource,
            name: self.name.as_str().into(),
            ..RequestInfo::default()
        }
    }
}

impl ResourceTemplates {
    fn fill(&self, value: &str) -> RbacProxyResource {
        RbacProxyResource {
            namespace: self.namespace.fill(value),
            api_group: self.api_group.fill(value),
            api_version: self.api_version.fill(value),
            resource: self.resource.fill(value),
            subresource: self.subresource.fill(value),
            name: self.name.fill(value),
        }
    }
}

/// Returns the verb of a method; `*` for a method without one. There is neither `list` nor `watch`; HEAD is `get`.
pub(super) fn verb_of(method: &Method) -> &'static str {
    match kubeapi::verb_of(method) {
        "" => "*",
        verb => verb,
    }
}
