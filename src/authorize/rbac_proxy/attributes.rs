//! From a request to the questions about it.

use http::{HeaderMap, Method};

use super::value::{Sources, Template};
use super::{Asked, Malformed, Questions};
use crate::kubeapi::{self, Query, RequestInfo};

/// How a question is made.
#[derive(Debug, Default)]
pub(super) enum Asking {
    /// By the path.
    #[default]
    Path,
    /// Always the same: `resourceAttributes` alone. What looks like a template is none then.
    Resource(Resource),
    /// One for each value that the request brings: `resourceAttributes` with `rewrites`.
    Values { sources: Sources, templates: Box<Templates> },
}

/// `resourceAttributes`, as they are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) namespace: String,
    pub(super) api_group: String,
    pub(super) api_version: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) name: String,
}

/// `resourceAttributes`, before the value is in them.
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

/// The verb of a method. There is neither `list` nor `watch`, and `*` for every method without one. Whoever may have all
/// of it may have its head.
pub(super) fn verb_of(method: &Method) -> &'static str {
    match kubeapi::verb_of(method) {
        "" => "*",
        verb => verb,
    }
}
