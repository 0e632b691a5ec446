//! RBAC objects from a file, evaluated like `plugin/pkg/auth/authorizer/rbac` of kube-apiserver.

mod aggregate;
mod manifests;
mod rule;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use manifests::{Binding, Manifests, RoleReference, Subject};
pub use rule::PolicyRule;

use kubeapi::{GoQuoted, User};

use super::Attributes;
use crate::process::{Problem, Problems, WatchedFile, WatchedFileContent, is_json, read_text_file};

/// The maximum size of a policy file.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// An RBAC policy of ClusterRoles, Roles and bindings.
///
/// Indexed by subject, so that a decision evaluates only the rules of the user and its groups. A decision allocates
/// nothing unless a binding refers to a missing role.
#[derive(Debug, Default)]
pub struct RbacPolicy {
    users: HashMap<String, Grants>,
    groups: HashMap<String, Grants>,
    /// Valid but suspicious contents.
    warnings: Vec<Problem>,
    bindings: usize,
}

/// All grants of one subject.
#[derive(Debug, Default)]
struct Grants {
    cluster_wide: Vec<Grant>,
    namespaces: HashMap<String, Vec<Grant>>,
}

/// One role, granted by one binding.
#[derive(Clone, Debug)]
struct Grant {
    /// The role's rules; for a missing role, Kubernetes' error.
    rules: Result<Arc<[PolicyRule]>, Arc<str>>,
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
        let mut policy = RbacPolicy::default();
        let roles = RoleIndex::new(&manifests);
        for binding in &manifests.bindings {
            policy.bind(binding, &roles);
        }
        Ok(policy)
    }

    /// The bootstrap roles and bindings for all users: discovery, health, self-reviews
    /// (`plugin/pkg/auth/authorizer/rbac/bootstrappolicy`).
    pub fn bootstrap() -> RbacPolicy {
        // The text is part of the program, and a test reads it.
        RbacPolicy::parse("bootstrap roles", include_str!("bootstrap.yaml"), false).unwrap_or_default()
    }

    /// Returns the reason if the request is allowed: binding, role and subject, in Kubernetes' words.
    pub fn allows(&self, attributes: Attributes<'_>) -> Option<&Arc<str>> {
        self.grants(attributes.user, attributes.request.namespace)
            .find(|grant| grant.rules.iter().any(|rules| rules.iter().any(|rule| rule.allows(attributes.request))))
            .map(|grant| &grant.reason)
    }

    /// Returns the reason of a denial: the user's missing roles, or the empty string.
    pub fn denial_reason(&self, attributes: Attributes<'_>) -> String {
        let missing = self.missing_roles(attributes.user, attributes.request.namespace);
        if missing.is_empty() { missing } else { format!("RBAC: {missing}") }
    }

    /// Returns all rules of a user in a namespace; with an empty namespace, only cluster-wide ones.
    pub fn rules<'p>(&'p self, user: &'p User, namespace: &'p str) -> impl Iterator<Item = &'p PolicyRule> {
        self.grants(user, namespace).filter_map(|grant| grant.rules.as_ref().ok()).flat_map(|rules| rules.iter())
    }

    /// Returns the missing roles of a user, joined like Kubernetes' errors; empty if there are none.
    pub fn missing_roles(&self, user: &User, namespace: &str) -> String {
        let mut missing: Vec<&str> = Vec::new();
        for grant in self.grants(user, namespace) {
            if let Err(why) = &grant.rules
                && !missing.contains(&&**why)
            {
                missing.push(why);
            }
        }
        match *missing {
            [] => String::new(),
            [one] => one.to_owned(),
            _ => format!("[{}]", missing.join(", ")),
        }
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
            if namespace.is_empty() { None } else { grants.namespaces.get(namespace) }.into_iter().flatten()
        };
        subjects().flat_map(|grants| &grants.cluster_wide).chain(subjects().flat_map(inside))
    }

    fn bind(&mut self, binding: &Binding, roles: &RoleIndex) {
        self.bindings += 1;
        let rules = roles.get(&binding.role, &binding.namespace);
        if let Err(why) = &rules {
            self.warnings.push(Problem::at_field(
                &binding.location,
                "roleRef",
                format_args!("{why}; nothing is granted"),
            ));
        }
        for subject in &binding.subjects {
            let grant = Grant {
                rules: rules.clone(),
                reason: format!("RBAC: allowed by {}", describe(binding, subject)).into(),
            };
            let grants = match subject {
                Subject::User(name) => self.users.entry(name.clone()),
                Subject::Group(name) => self.groups.entry(name.clone()),
                Subject::ServiceAccount { namespace, name } => {
                    self.users.entry(format!("system:serviceaccount:{namespace}:{name}"))
                }
            }
            .or_default();
            match &*binding.namespace {
                "" => grants.cluster_wide.push(grant),
                namespace => grants.namespaces.entry(namespace.to_owned()).or_default().push(grant),
            }
        }
    }
}

/// Describes a grant like `clusterRoleBindingDescriber` and `roleBindingDescriber` in
/// `pkg/registry/rbac/validation/rule.go`, with name and namespace in the same order.
fn describe(binding: &Binding, subject: &Subject) -> String {
    let (kind, name) = match &*binding.namespace {
        "" => ("ClusterRoleBinding", binding.name.clone()),
        namespace => ("RoleBinding", format!("{}/{namespace}", binding.name)),
    };
    let (subject_kind, subject_name) = match subject {
        Subject::User(name) => ("User", name.clone()),
        Subject::Group(name) => ("Group", name.clone()),
        Subject::ServiceAccount { namespace, name } => ("ServiceAccount", format!("{name}/{namespace}")),
    };
    let (role_kind, role) = match &binding.role {
        RoleReference::ClusterRole(name) => ("ClusterRole", name),
        RoleReference::Role(name) => ("Role", name),
    };
    format!(
        "{kind} {} of {role_kind} {} to {subject_kind} {}",
        GoQuoted(&name),
        GoQuoted(role),
        GoQuoted(&subject_name)
    )
}

/// The rules of every role, shared by its bindings.
struct RoleIndex<'m> {
    cluster: HashMap<&'m str, Arc<[PolicyRule]>>,
    namespaced: HashMap<(&'m str, &'m str), Arc<[PolicyRule]>>,
}

impl<'m> RoleIndex<'m> {
    fn new(manifests: &'m Manifests) -> RoleIndex<'m> {
        let cluster = manifests.cluster_roles.iter().map(|role| (&*role.name, role.rules.clone().into())).collect();
        let named = |role: &'m manifests::Role| ((&*role.namespace, &*role.name), role.rules.clone().into());
        RoleIndex { cluster, namespaced: manifests.roles.iter().map(named).collect() }
    }

    fn get(&self, role: &RoleReference, namespace: &str) -> Result<Arc<[PolicyRule]>, Arc<str>> {
        let (kind, name, rules) = match role {
            RoleReference::ClusterRole(name) => ("clusterrole", name, self.cluster.get(&**name)),
            RoleReference::Role(name) => ("role", name, self.namespaced.get(&(namespace, &**name))),
        };
        rules.cloned().ok_or_else(|| {
            // The error of Kubernetes' role lister.
            format!("{kind}.rbac.authorization.k8s.io {} not found", GoQuoted(name)).into()
        })
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
