//! Templates of authorization attributes, and their values from a request.

use http::{HeaderMap, Method};

use super::value::{Sources, Template};
use super::{Asked, Malformed, Questions};
use crate::kubeapi::{self, Query, RequestInfo};

/// How the attributes of a request are determined.
#[derive(Debug, Default)]
pub(super) enum Asking {
    /// From the path.
    #[default]
    Path,
    /// Constant: `resourceAttributes` without `rewrites`. Templates in it are used literally.
    Resource(Resource),
    /// For each value in the request: `resourceAttributes` with `rewrites`.
    Values { sources: Sources, templates: Box<Templates> },
}

/// `resourceAttributes` with all values filled in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) namespace: String,
    pub(super) api_group: String,
    pub(super) api_version: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) name: String,
}

/// `resourceAttributes` with templates.
#[derive(Debug, Default)]
pub(super) struct Templates {
    pub(super) namespace: Template,
    pub(super) api_group: Template,
    pub(super) api_version: Template,
    pub(super) resource: Template,
    pub(super) subresource: Template,
    pub(super) name: Template,
}

impl Asking {
    pub(super) fn questions<'r>(
        &'r self,
        verb: &'r str,
        path: &'r str,
        query: &Query<'_>,
        headers: &HeaderMap,
    ) -> Result<Questions<'r>, Malformed> {
        Ok(Questions(match self {
            Asking::Path => Asked::One(RequestInfo { path, verb: verb.into(), ..RequestInfo::default() }),
            Asking::Resource(resource) => Asked::One(resource.asked(verb)),
            Asking::Values { sources, templates } => {
                let values = sources.values(query, headers, Questions::MOST)?;
                Asked::Filled { verb, resources: values.iter().map(|value| templates.fill(value)).collect() }
            }
        }))
    }
}

impl Resource {
    pub(super) fn asked<'r>(&'r self, verb: &'r str) -> RequestInfo<'r> {
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

impl Templates {
    fn fill(&self, value: &str) -> Resource {
        Resource {
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
