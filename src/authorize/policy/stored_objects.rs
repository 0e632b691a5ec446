//! Roles and bindings as they are stored: validated, so that nothing is checked again.

use serde::Deserialize;

use super::PolicyRule;
use super::manifests::{Binding, RoleReference, Subject};
use super::rule::null_as_default;

#[derive(Deserialize, Default)]
#[serde(default)]
struct StoredRole {
    #[serde(deserialize_with = "null_as_default")]
    rules: Vec<PolicyRule>,
}

#[derive(Deserialize)]
struct StoredBinding {
    #[serde(rename = "roleRef")]
    role: StoredReference,
    #[serde(default, deserialize_with = "null_as_default")]
    subjects: Vec<StoredReference>,
}

/// A role or a subject.
#[derive(Deserialize)]
struct StoredReference {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

/// The rules of a stored Role or ClusterRole.
///
/// # Errors
/// The bytes are of no role.
pub fn read_role(bytes: &[u8]) -> serde_json::Result<Vec<PolicyRule>> {
    Ok(serde_json::from_slice::<StoredRole>(bytes)?.rules)
}

/// A stored RoleBinding, or a ClusterRoleBinding with an empty namespace.
///
/// # Errors
/// The bytes are of no binding.
pub fn read_binding(namespace: &str, name: &str, bytes: &[u8]) -> serde_json::Result<Binding> {
    let stored: StoredBinding = serde_json::from_slice(bytes)?;
    let role = match &*stored.role.kind {
        "ClusterRole" => RoleReference::ClusterRole(stored.role.name),
        "Role" if !namespace.is_empty() => RoleReference::Role(stored.role.name),
        kind => return Err(serde::de::Error::custom(format_args!("roleRef: unsupported kind {kind:?}"))),
    };
    let subjects = stored.subjects.into_iter().filter_map(|subject| read_subject(subject, namespace));
    Ok(Binding { namespace: namespace.to_owned(), name: name.to_owned(), role, subjects: subjects.collect() })
}

/// As `appliesToUser` in `pkg/registry/rbac/validation/rule.go`: an account without a namespace is in that of the binding.
fn read_subject(subject: StoredReference, binding_namespace: &str) -> Option<Subject> {
    let StoredReference { kind, name, namespace } = subject;
    match &*kind {
        "User" => Some(Subject::User(name)),
        "Group" => Some(Subject::Group(name)),
        "ServiceAccount" => {
            let namespace = if namespace.is_empty() { binding_namespace.to_owned() } else { namespace };
            (!namespace.is_empty()).then_some(Subject::ServiceAccount { namespace, name })
        }
        _ => None,
    }
}
