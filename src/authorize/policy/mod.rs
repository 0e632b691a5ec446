//! RBAC objects, from a file or stored, evaluated like `plugin/pkg/auth/authorizer/rbac` of kube-apiserver.

mod aggregate;
mod coverage;
mod index;
mod manifests;
mod rule;
mod rule_text;
mod stored_objects;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use arc_swap::Guard;
use kubeapi::User;
use rpds::{HashTrieMapSync, RedBlackTreeMapSync};

pub use self::coverage::{RulePart, TooManySteps, uncovered_parts};
pub use self::index::PolicyIndex;
use self::index::RoleRules;
use self::manifests::Manifests;
pub use self::rule::PolicyRule;
pub use self::rule_text::{describe_parts, format_go_list};
pub use self::stored_objects::{read_binding, read_role};
use super::Attributes;
use crate::process::{Problem, Problems, Published, WatchedFile, WatchedFileContent, is_json, read_text_file};

/// Maximum number of missing roles that a reason names.
const MAX_MISSING_ROLES: usize = 20;

/// The maximum size of a policy file.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// An RBAC policy of ClusterRoles, Roles and bindings.
///
/// Indexed by subject, so that a decision evaluates only the rules of the user and its groups. A decision allocates
/// nothing unless a binding refers to a missing role. A copy shares its content with the original.
#[derive(Clone, Debug, Default)]
pub struct RbacPolicy {
    users: HashTrieMapSync<String, Grants>,
    groups: HashTrieMapSync<String, Grants>,
    /// Valid but suspicious contents.
    warnings: Vec<Problem>,
    bindings: usize,
}

/// All grants of one subject.
#[derive(Clone, Debug, Default)]
struct Grants {
    cluster_wide: BindingGrants,
    namespaces: HashTrieMapSync<String, BindingGrants>,
}

/// Grants by the names of their bindings.
type BindingGrants = RedBlackTreeMapSync<String, Grant>;

/// One role, granted by one binding.
#[derive(Clone, Debug)]
struct Grant {
    role: Arc<RoleRules>,
    /// The reason of an allowed decision, in Kubernetes' words: binding, role and subject.
    reason: Arc<str>,
}

impl RbacPolicy {
    /// Reads a policy file: YAML with any number of documents, or JSON by its suffix. Reports all errors at once.
    pub fn load(path: &Path) -> Result<RbacPolicy, Problems> {
        let text = read_text_file(path, MAX_FILE_BYTES)?;
        RbacPolicy::parse(&path.display().to_string(), &text, is_json(path))
    }

    /// Parses the text of a policy; `location` is the file name in problems.
    pub fn parse(location: &str, text: &str, json: bool) -> Result<RbacPolicy, Problems> {
        let mut manifests = Manifests::parse(location, text, json)?;
        aggregate::aggregate(&mut manifests.cluster_roles);
        let mut index = PolicyIndex::default();
        for role in manifests.cluster_roles {
            index.set_role("", &role.name, Some(role.rules));
        }
        for role in manifests.roles {
            index.set_role(&role.namespace, &role.name, Some(role.rules));
        }
        let mut warnings = Vec::new();
        for (location, binding) in manifests.bindings {
            if let Err(why) = index.rules_of(&binding) {
                warnings.push(Problem::at_field(&location, "roleRef", format_args!("{why}; nothing is granted")));
            }
            index.set_binding(binding);
        }
        Ok(RbacPolicy { warnings, ..index.policy().clone() })
    }

    /// Returns the reason if the request is allowed: binding, role and subject, in Kubernetes' words.
    pub fn allows(&self, attributes: Attributes<'_>) -> Option<&Arc<str>> {
        let request = attributes.request;
        self.grants(attributes.user, request.namespace)
            .find(|grant| grant.role.get().as_ref().is_some_and(|rules| rules.iter().any(|rule| rule.allows(request))))
            .map(|grant| &grant.reason)
    }

    /// Returns the reason of a denial: the user's missing roles, or the empty string.
    pub fn denial_reason(&self, attributes: Attributes<'_>) -> String {
        match &self.missing_roles(attributes.user, attributes.request.namespace)[..] {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            // Joined like Kubernetes' errors.
            all => format!("RBAC: [{}]", all.join(", ")),
        }
    }

    /// Returns all rules of a user in a namespace, role by role, each role once; with an empty namespace, only
    /// cluster-wide ones.
    pub fn rules(&self, user: &User, namespace: &str) -> Vec<Arc<Vec<PolicyRule>>> {
        let rules = self.grants(user, namespace).filter_map(|grant| grant.role.get().clone());
        let mut seen = HashSet::new();
        rules.filter(|rules| seen.insert(Arc::as_ptr(rules))).collect()
    }

    /// Returns an error for each missing role of a user, in Kubernetes' words. Many are left out.
    pub fn missing_roles(&self, user: &User, namespace: &str) -> Vec<&str> {
        let absent = self.grants(user, namespace).filter(|grant| grant.role.get().is_none());
        let mut seen = HashSet::new();
        let absent = absent.filter(|grant| seen.insert(Arc::as_ptr(&grant.role)));
        absent.map(|grant| grant.role.absence()).take(MAX_MISSING_ROLES).collect()
    }

    /// Logs that the policy was loaded, and its warnings.
    pub fn log(&self) {
        tracing::info!(bindings = self.bindings, "authorization policy loaded");
        for warning in &self.warnings {
            tracing::warn!(%warning, "authorization policy has a probable mistake");
        }
    }

    /// Valid but suspicious contents, for the operator.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// The number of bindings.
    pub fn bindings(&self) -> usize {
        self.bindings
    }

    fn grants<'p, 'q>(&'p self, user: &'q User, namespace: &'q str) -> impl Iterator<Item = &'p Grant> + use<'p, 'q> {
        let subjects = move || {
            let groups = user.groups.iter().filter_map(move |group| self.groups.get(group));
            self.users.get(&user.name).into_iter().chain(groups)
        };
        let inside = move |grants: &'p Grants| {
            let inside = if namespace.is_empty() { None } else { grants.namespaces.get(namespace) };
            inside.into_iter().flat_map(BindingGrants::values)
        };
        subjects().flat_map(|grants| grants.cluster_wide.values()).chain(subjects().flat_map(inside))
    }
}

/// Policies that apply together: that of a file, and that of stored objects.
#[derive(Clone, Debug)]
pub struct RbacPolicies(Arc<[Published<RbacPolicy>]>);

impl RbacPolicies {
    /// The policies together; none if there is none.
    pub fn new(policies: impl IntoIterator<Item = Published<RbacPolicy>>) -> Option<RbacPolicies> {
        let policies: Arc<[Published<RbacPolicy>]> = policies.into_iter().collect();
        (!policies.is_empty()).then_some(RbacPolicies(policies))
    }

    /// The policies now.
    pub fn load(&self) -> impl Iterator<Item = Guard<Arc<RbacPolicy>>> {
        self.0.iter().map(Published::load)
    }

    /// The rules of a user in a namespace, role by role, and an error for each missing role.
    pub fn rules(&self, user: &User, namespace: &str) -> (Vec<Arc<Vec<PolicyRule>>>, Vec<String>) {
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        for policy in self.load() {
            rules.extend(policy.rules(user, namespace));
            errors.extend(policy.missing_roles(user, namespace).into_iter().map(str::to_owned));
        }
        (rules, errors)
    }
}

impl From<RbacPolicy> for RbacPolicies {
    fn from(policy: RbacPolicy) -> RbacPolicies {
        RbacPolicies([Published::fixed(policy)].into())
    }
}

/// A policy file that is reloaded when it changes.
pub type PolicyFile = WatchedFile<RbacPolicy>;

impl WatchedFileContent for RbacPolicy {
    const UNUSABLE: &'static str = "policy file changed and is invalid; the last good policy stays in use";

    fn read(path: &Path) -> Result<RbacPolicy, Problems> {
        RbacPolicy::load(path)
    }

    fn log_reload(&self, _path: &Path) {
        self.log();
    }
}

#[cfg(test)]
mod tests;
