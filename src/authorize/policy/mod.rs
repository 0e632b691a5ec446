//! Static rules: RBAC objects from a file, as `plugin/pkg/auth/authorizer/rbac` of kube-apiserver judges by them.

mod aggregate;
mod follow;
mod read;
mod rule;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use read::{Binding, Manifests, RoleReference, Subject};
pub use rule::Rule;

use super::Attributes;
use crate::kubeapi::{Quoted, User};
use crate::process::{Problem, Problems, is_json, text_of};
pub use follow::PolicyFile;

/// A bigger file is a mistake: every role that ever was would fit into less.
const LARGEST: u64 = 16 << 20;

/// Who may what, by ClusterRoles, Roles and their bindings.
///
/// Indexed by subject, so that a decision looks only at the rules of the user and of the user's groups. It
/// allocates nothing unless a binding points at a role that is not there.
#[derive(Debug, Default)]
pub struct Policy {
    users: HashMap<String, Grants>,
    groups: HashMap<String, Grants>,
    /// What is no mistake but odd.
    warnings: Vec<Problem>,
    bindings: usize,
}

/// All that one subject was granted.
#[derive(Debug, Default)]
struct Grants {
    everywhere: Vec<Grant>,
    namespaces: HashMap<String, Vec<Grant>>,
}

/// One role, granted by one binding.
#[derive(Clone, Debug)]
struct Grant {
    /// The role's rules; for a role that is not there, what upstream says of it.
    rules: Result<Arc<[Rule]>, Arc<str>>,
    /// What to say when it allows something: binding, role and subject in upstream's words.
    why: Arc<str>,
}

impl Policy {
    /// Reads a policy file: YAML with any number of documents, or JSON when its name ends so. All mistakes at
    /// once.
    pub fn load(path: &Path) -> Result<Policy, Problems> {
        let text = text_of(path, LARGEST)?;
        Policy::parse(&path.display().to_string(), &text, is_json(path))
    }

    /// Reads the text of a policy; `place` is what problems name.
    pub fn parse(place: &str, text: &str, json: bool) -> Result<Policy, Problems> {
        let mut manifests = Manifests::read(place, text, json)?;
        aggregate::aggregate(&mut manifests.cluster_roles);
        let mut policy = Policy::default();
        let roles = Roles::of(&manifests);
        for binding in &manifests.bindings {
            policy.bind(binding, &roles);
        }
        Ok(policy)
    }

    /// Why it is allowed, if it is: by which binding, role and subject, in upstream's words.
    pub fn allows(&self, attributes: Attributes<'_>) -> Option<&Arc<str>> {
        self.grants(attributes.user, attributes.request.namespace)
            .find(|grant| grant.rules.iter().any(|rules| rules.iter().any(|rule| rule.allows(attributes.request))))
            .map(|grant| &grant.why)
    }

    /// What to tell somebody who is not allowed: nothing, or which of their roles are missing.
    pub fn why_not(&self, attributes: Attributes<'_>) -> String {
        let missing = self.missing(attributes.user, attributes.request.namespace);
        if missing.is_empty() { missing } else { format!("RBAC: {missing}") }
    }

    /// All rules of a user in a namespace, which may be empty for those that hold everywhere.
    pub fn rules<'p>(&'p self, user: &'p User, namespace: &'p str) -> impl Iterator<Item = &'p Rule> {
        self.grants(user, namespace).filter_map(|grant| grant.rules.as_ref().ok()).flat_map(|rules| rules.iter())
    }

    /// Which roles of a user are not there, as upstream joins such errors; empty if all are.
    pub fn missing(&self, user: &User, namespace: &str) -> String {
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

    /// Writes into the log that it was read, and what is odd about it.
    pub fn tell(&self) {
        tracing::info!(bindings = self.bindings, "authorization policy read");
        for warning in &self.warnings {
            tracing::warn!(%warning, "authorization policy");
        }
    }

    /// What is no mistake but odd.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// How many bindings there are.
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
        subjects().flat_map(|grants| &grants.everywhere).chain(subjects().flat_map(inside))
    }

    fn bind(&mut self, binding: &Binding, roles: &Roles) {
        self.bindings += 1;
        let rules = roles.get(&binding.role, &binding.namespace);
        if let Err(why) = &rules {
            self.warnings.push(Problem::field(&binding.place, "roleRef", format_args!("{why}; nothing is granted")));
        }
        for subject in &binding.subjects {
            let grant =
                Grant { rules: rules.clone(), why: format!("RBAC: allowed by {}", describe(binding, subject)).into() };
            let grants = match subject {
                Subject::User(name) => self.users.entry(name.clone()),
                Subject::Group(name) => self.groups.entry(name.clone()),
                Subject::ServiceAccount { namespace, name } => {
                    self.users.entry(format!("system:serviceaccount:{namespace}:{name}"))
                }
            }
            .or_default();
            match &*binding.namespace {
                "" => grants.everywhere.push(grant),
                namespace => grants.namespaces.entry(namespace.to_owned()).or_default().push(grant),
            }
        }
    }
}

/// `clusterRoleBindingDescriber` and its sibling in `pkg/registry/rbac/validation/rule.go`, with name and
/// namespace in their order there.
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
    format!("{kind} {} of {role_kind} {} to {subject_kind} {}", Quoted(&name), Quoted(role), Quoted(&subject_name))
}

/// The rules of every role, shared by all its bindings.
struct Roles<'m> {
    cluster: HashMap<&'m str, Arc<[Rule]>>,
    namespaced: HashMap<(&'m str, &'m str), Arc<[Rule]>>,
}

impl<'m> Roles<'m> {
    fn of(manifests: &'m Manifests) -> Roles<'m> {
        let cluster = manifests.cluster_roles.iter().map(|role| (&*role.name, role.rules.clone().into())).collect();
        let named = |role: &'m read::Role| ((&*role.namespace, &*role.name), role.rules.clone().into());
        Roles { cluster, namespaced: manifests.roles.iter().map(named).collect() }
    }

    fn get(&self, role: &RoleReference, namespace: &str) -> Result<Arc<[Rule]>, Arc<str>> {
        let (kind, name, rules) = match role {
            RoleReference::ClusterRole(name) => ("clusterrole", name, self.cluster.get(&**name)),
            RoleReference::Role(name) => ("role", name, self.namespaced.get(&(namespace, &**name))),
        };
        rules.cloned().ok_or_else(|| {
            // The error of the lister that upstream looks roles up with.
            format!("{kind}.rbac.authorization.k8s.io {} not found", Quoted(name)).into()
        })
    }
}

#[cfg(test)]
mod tests;
