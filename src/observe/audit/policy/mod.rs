//! Which requests are audited, and how much of them: an `audit.k8s.io/v1` Policy, matched as
//! `k8s.io/apiserver/pkg/audit/policy` matches it.

mod read;

use std::path::Path;

use crate::kubeapi::{RequestInfo, User};
use crate::process::{Followed, FollowedFile, Problems};

/// A policy file, followed.
pub type PolicyFile = FollowedFile<Policy>;

/// How much is written of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// Who, what, when and with which answer.
    Metadata,
    /// The object that was sent, too.
    Request,
    /// The object that was answered, too.
    RequestResponse,
}

/// When an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// As soon as it is known who asks.
    RequestReceived,
    /// With the head of an answer that goes on for long.
    ResponseStarted,
    /// With the end of the answer.
    ResponseComplete,
    /// When a defect of ours ended it.
    Panic,
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages(u8);

/// Rules; the first that matches a request says what is written of it.
#[derive(Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
}

/// What a policy says of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// How much is written.
    pub level: Level,
    /// Stages of which nothing is written.
    pub omit: Stages,
    /// Whether `metadata.managedFields` are left out of what is written.
    pub omit_managed_fields: bool,
}

/// Empty lists match everything.
#[derive(Debug, Default)]
struct Rule {
    verdict: Verdict,
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

impl Level {
    pub(in crate::observe) const ALL: [Level; 4] =
        [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        ["None", "Metadata", "Request", "RequestResponse"][self as usize]
    }
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        ["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"][self as usize]
    }
}

impl Stages {
    /// Whether `stage` is among them.
    pub fn has(self, stage: Stage) -> bool {
        self.0 & 1 << stage as u8 != 0
    }

    /// These and `stage`.
    #[must_use]
    pub fn and(self, stage: Stage) -> Stages {
        Stages(self.0 | 1 << stage as u8)
    }
}

impl Policy {
    /// Reads a policy file: YAML, or JSON when its name ends so. All mistakes at once.
    pub fn load(path: &Path) -> Result<Policy, Problems> {
        let text = crate::process::text_of(path, read::LARGEST)?;
        read::policy(&path.display().to_string(), &text, crate::process::is_json(path))
    }

    /// Reads the text of a policy; `place` is what problems name.
    pub fn parse(place: &str, text: &str) -> Result<Policy, Problems> {
        read::policy(place, text, false)
    }

    /// How many rules there are.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// What is to be written of a request of `user`, who is not known when a request is turned away before that.
    /// Where no rule matches, nothing is.
    pub fn judge(&self, user: Option<&User>, request: &RequestInfo<'_>) -> Verdict {
        self.rules.iter().find(|rule| rule.matches(user, request)).map(|rule| rule.verdict).unwrap_or_default()
    }
}

impl Followed for Policy {
    const UNUSABLE: &'static str = "the audit policy changed and is not usable; the last good one stays";

    fn read(path: &Path) -> Result<Policy, Problems> {
        Policy::load(path)
    }

    fn tell_read_again(&self, path: &Path) {
        tracing::info!(file = %path.display(), rules = self.rules.len(), "the audit policy was read again");
    }
}

impl Rule {
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

/// `pods`, `pods/log`, `pods/*`, `*/scale`, `*`. As upstream, `pods/*` matches `pods` itself, too.
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

/// The path itself, or what begins like it up to the star at its end.
fn path_matches(pattern: &str, path: &str) -> bool {
    pattern == path || pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*'))
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|one| one == value)
}

#[cfg(test)]
mod tests;
