//! Audit policy (`audit.k8s.io/v1`): selects the audit level of each request, with the same matching as
//! `k8s.io/apiserver/pkg/audit/policy`.

mod parse;

use std::path::Path;

use kubeapi::{RequestInfo, User};

use super::AuditLevel;
use crate::process::{Problems, WatchedFile, WatchedFileContent};

/// A watched policy file.
pub type AuditPolicyFile = WatchedFile<AuditPolicy>;

/// Audit stage: when an event is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditStage {
    /// After authentication.
    RequestReceived,
    /// With the response headers of a long-running request.
    ResponseStarted,
    /// At the end of the response.
    ResponseComplete,
    /// After a panic in this process.
    Panic,
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditStages(u8);

/// An audit policy; the first matching rule applies.
#[derive(Debug, Default)]
pub struct AuditPolicy {
    rules: Vec<AuditRule>,
}

/// The audit configuration that applies to one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestAuditConfig {
    /// Audit level.
    pub level: AuditLevel,
    /// Stages without an event.
    pub omit: AuditStages,
    /// Whether `metadata.managedFields` is removed from objects.
    pub omit_managed_fields: bool,
}

/// A rule of the policy. Empty lists match everything.
#[derive(Debug, Default)]
struct AuditRule {
    config: RequestAuditConfig,
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    paths: Vec<String>,
}

#[derive(Debug, Default)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

impl AuditStage {
    const ALL: [AuditStage; 4] =
        [AuditStage::RequestReceived, AuditStage::ResponseStarted, AuditStage::ResponseComplete, AuditStage::Panic];

    /// Name of the stage.
    pub fn as_str(self) -> &'static str {
        ["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"][self as usize]
    }
}

impl AuditStages {
    /// Whether the set contains `stage`.
    pub fn contains(self, stage: AuditStage) -> bool {
        self.0 & 1 << stage as u8 != 0
    }

    /// The set with `stage` added.
    #[must_use]
    pub fn with(self, stage: AuditStage) -> AuditStages {
        AuditStages(self.0 | 1 << stage as u8)
    }
}

impl AuditPolicy {
    /// Reads a policy file: YAML, or JSON if its name ends in `.json`. Reports all problems at once.
    pub fn load(path: &Path) -> Result<AuditPolicy, Problems> {
        let text = crate::process::read_text_file(path, parse::MAX_POLICY_SIZE)?;
        parse::parse_policy(&path.display().to_string(), &text, crate::process::is_json(path))
    }

    /// Parses the text of a policy; `location` is the location in problems.
    pub fn parse(location: &str, text: &str) -> Result<AuditPolicy, Problems> {
        parse::parse_policy(location, text, false)
    }

    /// Number of rules.
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// Evaluates the policy for a request of `user`; `None` before authentication. Without a matching rule the level is
    /// [`AuditLevel::None`].
    pub fn evaluate(&self, user: Option<&User>, request: &RequestInfo<'_>) -> RequestAuditConfig {
        self.rules.iter().find(|rule| rule.matches(user, request)).map(|rule| rule.config).unwrap_or_default()
    }
}

impl WatchedFileContent for AuditPolicy {
    const UNUSABLE: &'static str = "audit policy changed and is invalid; the last good policy stays in use";

    fn read(path: &Path) -> Result<AuditPolicy, Problems> {
        AuditPolicy::load(path)
    }

    fn log_reload(&self, path: &Path) {
        tracing::info!(file = %path.display(), rules = self.rules.len(), "audit policy reloaded");
    }
}

impl AuditRule {
    fn matches(&self, user: Option<&User>, request: &RequestInfo<'_>) -> bool {
        if !self.users.is_empty() && !user.is_some_and(|user| self.users.contains(&user.name)) {
            return false;
        }
        if !self.groups.is_empty()
            && !user.is_some_and(|user| user.groups.iter().any(|group| self.groups.contains(group)))
        {
            return false;
        }
        if !self.verbs.is_empty() && !self.verbs.iter().any(|verb| *verb == request.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return request.is_resource_request
                && (self.namespaces.is_empty() || has(&self.namespaces, request.namespace))
                && (self.resources.is_empty() || self.resources.iter().any(|one| one.matches(request)));
        }
        self.paths.is_empty()
            || !request.is_resource_request && self.paths.iter().any(|path| path_matches(path, request.path))
    }
}

impl GroupResources {
    fn matches(&self, request: &RequestInfo<'_>) -> bool {
        if self.group != "*" && self.group != request.api_group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        (self.names.is_empty() || has(&self.names, &request.name))
            && self.resources.iter().any(|resource| resource_matches(resource, request))
    }
}

/// `pods`, `pods/log`, `pods/*`, `*/scale`, `*`. As in Kubernetes, `pods/*` matches `pods` itself, too.
fn resource_matches(pattern: &str, request: &RequestInfo<'_>) -> bool {
    if pattern == "*" {
        return true;
    }
    match pattern.split_once('/') {
        None => request.subresource.is_empty() && pattern == request.resource,
        Some((resource, "*")) if resource == request.resource => true,
        Some(("*", subresource)) => !request.subresource.is_empty() && subresource == request.subresource,
        Some((resource, subresource)) => {
            !request.subresource.is_empty() && (resource, subresource) == (request.resource, request.subresource)
        }
    }
}

/// Whether `pattern` is `path`, or its prefix up to a star at the end.
fn path_matches(pattern: &str, path: &str) -> bool {
    pattern == path || pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*'))
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|one| one == value)
}

#[cfg(test)]
mod tests;
