//! Authorization like kube-rbac-proxy: its authorization file, and the permissions that a request requires by it.
//!
//! One request may require several permissions, and all must be allowed; see
//! [`Authorizer::authorize_all`](super::Authorizer::authorize_all). Behavior is that of kube-rbac-proxy v0.19.1
//! (`pkg/proxy/proxy.go`, `pkg/authz/auth.go`). Intended differences:
//!
//! * `HEAD` is `get`; in kube-rbac-proxy it has no verb and becomes `*`.
//! * `groups` of a static rule are compared; kube-rbac-proxy has them parsed and ignored.
//! * `parse_rules`: several resources by path and method; in kube-rbac-proxy one resource is used for all requests.
//! * Values that the backend could parse differently are rejected, and no request requires more than
//!   [`RequiredPermissions::MAX`] permissions.
//! * An error in the file is reported at start, or keeps the last good file. kube-rbac-proxy skips an unknown field,
//!   fails every request on an invalid template, and crashes on a file without `authorization`.

mod attributes;
mod file;
mod glob;
mod lint;
mod paths;
mod static_rule;
mod value;

use std::sync::Arc;

use http::{HeaderMap, Method};

pub use file::RulesFile;
pub use paths::{OpenPath, PathAccess, PathFilter};

use kubeapi::{CanonicalPath, Query, RequestInfo, Status};

use self::attributes::{AttributeTemplate, RbacProxyResource, verb_of};
use self::glob::Glob;
use self::static_rule::StaticRule;
use super::Attributes;
use crate::message::hop_by_hop::is_same_normalized_name;
use crate::message::{Blame, Refusal};
use crate::process::Problem;

/// The rules of an authorization file.
///
/// Without a file, every request is authorized by its path.
#[derive(Debug, Default)]
pub struct RbacProxyRules {
    /// Rules by path and method; the first match counts.
    by_path: Vec<PathRule>,
    /// The template for all other requests.
    template: AttributeTemplate,
    static_rules: Vec<StaticRule>,
    warnings: Vec<Problem>,
}

/// A rule for requests to some paths: an extension of the file format.
#[derive(Debug)]
struct PathRule {
    paths: Vec<Glob>,
    /// Methods; empty for all.
    methods: Vec<Method>,
    verb: Option<String>,
    template: AttributeTemplate,
}

/// The permissions that one request requires; never empty.
#[derive(Debug)]
pub struct RequiredPermissions<'r>(PermissionSet<'r>);

#[derive(Debug)]
enum PermissionSet<'r> {
    Single(RequestInfo<'r>),
    /// One permission for each value in the request.
    PerValue {
        verb: &'r str,
        resources: Vec<RbacProxyResource>,
    },
}

/// A request without authorization attributes that can be determined. Becomes the 400 of kube-rbac-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreviewableRequest(&'static str);

impl RbacProxyRules {
    /// Returns the permissions that a request requires. Call it before hop-by-hop and identity headers are stripped.
    ///
    /// Copies only values that are put into a template.
    ///
    /// # Errors
    /// When the request has none of the configured values, too many, or an ambiguous one.
    pub fn required_permissions<'r>(
        &'r self,
        method: &'r Method,
        path: &'r CanonicalPath<'_>,
        query: &Query<'_>,
        headers: &HeaderMap,
    ) -> Result<RequiredPermissions<'r>, UnreviewableRequest> {
        let mut rule = None;
        if !self.by_path.is_empty() {
            if !paths::is_unambiguous(path) {
                return Err(UnreviewableRequest("the path is ambiguous"));
            }
            rule = self.by_path.iter().find(|rule| rule.matches(method, path.decoded()));
        }
        let template = rule.map_or(&self.template, |rule| &rule.template);
        let verb = rule.and_then(|rule| rule.verb.as_deref()).unwrap_or_else(|| verb_of(method));
        template.required_permissions(verb, path.decoded(), query, headers)
    }

    /// Whether any template uses a query parameter. If not, the query is forwarded unchanged.
    pub fn reads_query_parameters(&self) -> bool {
        self.templates().any(
            |template| matches!(template, AttributeTemplate::Values { sources, .. } if sources.parameter.is_some()),
        )
    }

    /// Whether any template uses the header `name`, in any spelling.
    pub fn reads_header(&self, name: &str) -> bool {
        self.templates().any(|template| match template {
            AttributeTemplate::Values { sources, .. } => {
                sources.header.as_ref().is_some_and(|header| is_same_normalized_name(name, header.as_str()))
            }
            AttributeTemplate::Path | AttributeTemplate::Resource(_) => false,
        })
    }

    /// All attribute templates of the rule.
    fn templates(&self) -> impl Iterator<Item = &AttributeTemplate> {
        std::iter::once(&self.template).chain(self.by_path.iter().map(|rule| &rule.template))
    }

    /// Returns the reason if a static rule allows the request.
    pub(super) fn allows(&self, attributes: Attributes<'_>) -> Option<&Arc<str>> {
        self.static_rules.iter().find(|rule| rule.allows(attributes)).map(|rule| &rule.reason)
    }

    /// Whether there are static rules. If not, the mode is not needed in the chain.
    pub fn has_static_rules(&self) -> bool {
        !self.static_rules.is_empty()
    }

    /// Lint warnings, for the operator.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Logs that the file was loaded, and its warnings.
    pub fn log(&self) {
        tracing::info!(paths = self.by_path.len(), statics = self.static_rules.len(), "authorization file loaded");
        for warning in &self.warnings {
            tracing::warn!(%warning, "authorization file has a probable mistake");
        }
    }
}

impl PathRule {
    fn matches(&self, method: &Method, path: &str) -> bool {
        self.matches_method(method) && self.paths.iter().any(|glob| glob.matches(path))
    }

    /// Whether the rule is for a method. GET includes HEAD.
    fn matches_method(&self, method: &Method) -> bool {
        self.methods.is_empty()
            || self.methods.contains(method)
            || *method == Method::HEAD && self.methods.contains(&Method::GET)
    }
}

impl<'r> RequiredPermissions<'r> {
    /// The maximum number of permissions of one request: a client could cause thousands of reviews.
    pub const MAX: usize = 64;

    /// Returns the permissions, in the order of their authorization.
    pub fn iter(&self) -> impl Iterator<Item = RequestInfo<'_>> {
        let (one, verb, resources): (_, &str, &[RbacProxyResource]) = match &self.0 {
            PermissionSet::Single(one) => (Some(one.clone()), "", &[]),
            PermissionSet::PerValue { verb, resources } => (None, verb, resources),
        };
        one.into_iter().chain(resources.iter().map(move |resource| resource.to_request_info(verb)))
    }
}

impl From<UnreviewableRequest> for Refusal {
    fn from(malformed: UnreviewableRequest) -> Refusal {
        let status = Status::bad_request(format!("authorization attributes cannot be determined: {}", malformed.0));
        Refusal::new(Blame::Client, status)
            .with_rbac_proxy_text("Bad Request. The request or configuration is malformed.")
    }
}

#[cfg(test)]
mod tests;
