//! The roles and bindings of a policy by their names: a change of one costs its own size.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use kubeapi::GoQuoted;

use super::manifests::{Binding, RoleReference, Subject};
use super::{BindingGrants, Grant, Grants, PolicyRule, RbacPolicy};

/// The rules of a role, which its bindings share.
#[derive(Debug)]
pub(super) struct RoleRules {
    /// None while there is no such role.
    rules: ArcSwapOption<Vec<PolicyRule>>,
    /// The error of Kubernetes' role lister for a role that does not exist.
    absence: String,
}

/// Namespace and name; the namespace of a ClusterRole and ClusterRoleBinding is empty.
type NamespacedName = (String, String);

/// A policy with the objects that it is made of.
#[derive(Debug, Default)]
pub struct PolicyIndex {
    policy: RbacPolicy,
    /// Roles that exist, or that a binding refers to.
    roles: HashMap<NamespacedName, IndexedRole>,
    bindings: HashMap<NamespacedName, Binding>,
}

/// A role with the number of bindings that refer to it.
#[derive(Debug)]
struct IndexedRole {
    rules: Arc<RoleRules>,
    bindings: usize,
}

impl IndexedRole {
    fn absent((namespace, name): &NamespacedName) -> IndexedRole {
        IndexedRole { rules: Arc::new(RoleRules::absent(namespace, name)), bindings: 0 }
    }
}

impl RoleRules {
    fn absent(namespace: &str, name: &str) -> RoleRules {
        let kind = if namespace.is_empty() { "clusterrole" } else { "role" };
        let absence = format!("{kind}.rbac.authorization.k8s.io {} not found", GoQuoted(name));
        RoleRules { rules: ArcSwapOption::empty(), absence }
    }

    /// The rules now.
    pub(super) fn get(&self) -> Guard<Option<Arc<Vec<PolicyRule>>>> {
        self.rules.load()
    }

    /// What is said of the role when it does not exist.
    pub(super) fn absence(&self) -> &str {
        &self.absence
    }
}

impl Binding {
    fn role_key(&self) -> NamespacedName {
        match &self.role {
            RoleReference::ClusterRole(name) => (String::new(), name.clone()),
            RoleReference::Role(name) => (self.namespace.clone(), name.clone()),
        }
    }
}

impl PolicyIndex {
    /// The policy.
    pub fn policy(&self) -> &RbacPolicy {
        &self.policy
    }

    /// Sets the rules of a role; none if it does not exist. They count at once, also in copies of the policy.
    pub fn set_role(&mut self, namespace: &str, name: &str, rules: Option<Vec<PolicyRule>>) {
        let key = (namespace.to_owned(), name.to_owned());
        let role = self.roles.entry(key.clone()).or_insert_with_key(IndexedRole::absent);
        role.rules.rules.store(rules.map(Arc::new));
        self.forget_unused(&key);
    }

    /// Removes the roles or ClusterRoles that `exists` does not have.
    pub fn retain_roles(&mut self, is_namespaced: bool, exists: impl Fn(&str, &str) -> bool) {
        for (namespace, name) in absent_keys(&self.roles, is_namespaced, exists) {
            self.set_role(&namespace, &name, None);
        }
    }

    /// The rules of the role that a binding refers to.
    ///
    /// # Errors
    /// Kubernetes' text if there is no such role.
    pub fn rules_of(&self, binding: &Binding) -> Result<Arc<Vec<PolicyRule>>, String> {
        let key = binding.role_key();
        let found = self.roles.get(&key).and_then(|role| role.rules.get().clone());
        found.ok_or_else(|| RoleRules::absent(&key.0, &key.1).absence)
    }

    /// Adds a binding, or replaces the one of its name.
    pub fn set_binding(&mut self, binding: Binding) {
        self.remove_binding(&binding.namespace, &binding.name);
        let role = self.roles.entry(binding.role_key()).or_insert_with_key(IndexedRole::absent);
        role.bindings += 1;
        for subject in binding.subjects.iter().collect::<HashSet<_>>() {
            let reason = format!("RBAC: allowed by {}", describe(&binding, subject)).into();
            let grant = Grant { role: role.rules.clone(), reason };
            self.policy.change_grants(subject, &binding.namespace, |grants| {
                grants.insert_mut(binding.name.clone(), grant);
            });
        }
        self.bindings.insert((binding.namespace.clone(), binding.name.clone()), binding);
        self.policy.bindings = self.bindings.len();
    }

    /// Removes a binding, if it exists.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        let Some(binding) = self.bindings.remove(&(namespace.to_owned(), name.to_owned())) else { return };
        for subject in &binding.subjects {
            self.policy.change_grants(subject, namespace, |grants| {
                grants.remove_mut(name);
            });
        }
        self.policy.bindings = self.bindings.len();
        let key = binding.role_key();
        if let Some(role) = self.roles.get_mut(&key) {
            role.bindings -= 1;
        }
        self.forget_unused(&key);
    }

    /// Removes the RoleBindings or ClusterRoleBindings that `exists` does not have.
    pub fn retain_bindings(&mut self, is_namespaced: bool, exists: impl Fn(&str, &str) -> bool) {
        for (namespace, name) in absent_keys(&self.bindings, is_namespaced, exists) {
            self.remove_binding(&namespace, &name);
        }
    }

    /// Forgets a role that does not exist and that no binding refers to.
    fn forget_unused(&mut self, key: &NamespacedName) {
        if self.roles.get(key).is_some_and(|role| role.bindings == 0 && role.rules.get().is_none()) {
            self.roles.remove(key);
        }
    }
}

/// The keys of namespaced objects, or of the others, that `exists` does not have.
fn absent_keys<T>(
    objects: &HashMap<NamespacedName, T>,
    is_namespaced: bool,
    exists: impl Fn(&str, &str) -> bool,
) -> Vec<NamespacedName> {
    let is_absent =
        |(namespace, name): &&NamespacedName| namespace.is_empty() != is_namespaced && !exists(namespace, name);
    objects.keys().filter(is_absent).cloned().collect()
}

impl RbacPolicy {
    /// Changes the grants of a subject in a namespace, or its cluster-wide ones. One without grants is removed.
    fn change_grants(&mut self, subject: &Subject, namespace: &str, change: impl FnOnce(&mut BindingGrants)) {
        let (subjects, name) = match subject {
            Subject::User(name) => (&mut self.users, name.clone()),
            Subject::Group(name) => (&mut self.groups, name.clone()),
            Subject::ServiceAccount { namespace, name } => {
                (&mut self.users, format!("system:serviceaccount:{namespace}:{name}"))
            }
        };
        // Copies share their content.
        let mut grants = subjects.get(&name).cloned().unwrap_or_else(Grants::default);
        if namespace.is_empty() {
            change(&mut grants.cluster_wide);
        } else {
            let mut inside = grants.namespaces.get(namespace).cloned().unwrap_or_default();
            change(&mut inside);
            if inside.is_empty() {
                grants.namespaces.remove_mut(namespace);
            } else {
                grants.namespaces.insert_mut(namespace.to_owned(), inside);
            }
        }
        if grants.cluster_wide.is_empty() && grants.namespaces.is_empty() {
            subjects.remove_mut(&name);
        } else {
            subjects.insert_mut(name, grants);
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
