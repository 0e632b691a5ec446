//! RBAC rules and their evaluation.

use kubeapi::RequestInfo;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A `PolicyRule` of `rbac.authorization.k8s.io/v1`; `*` matches all. A rule has resources or paths, never both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    /// Allowed verbs.
    #[serde(deserialize_with = "null_as_default")]
    pub verbs: Vec<String>,
    /// API groups; the core group is the empty string.
    #[serde(deserialize_with = "null_as_default")]
    pub api_groups: Vec<String>,
    /// Resources, such as `pods`, `pods/log`, `*/scale`, `*`.
    #[serde(deserialize_with = "null_as_default")]
    pub resources: Vec<String>,
    /// Names of objects; empty for all.
    #[serde(deserialize_with = "null_as_default")]
    pub resource_names: Vec<String>,
    /// Paths, which may end in a star.
    #[serde(rename = "nonResourceURLs", deserialize_with = "null_as_default")]
    pub non_resource_urls: Vec<String>,
}

impl PolicyRule {
    /// All verbs on all resources.
    pub fn all_resources() -> PolicyRule {
        let any = || vec!["*".to_owned()];
        PolicyRule { verbs: any(), api_groups: any(), resources: any(), ..PolicyRule::default() }
    }

    /// All verbs on all paths.
    pub fn all_paths() -> PolicyRule {
        let any = || vec!["*".to_owned()];
        PolicyRule { verbs: any(), non_resource_urls: any(), ..PolicyRule::default() }
    }

    /// The rule as it is stored: without empty lists.
    pub fn to_json(&self) -> Value {
        let fields = [
            ("apiGroups", &self.api_groups),
            ("nonResourceURLs", &self.non_resource_urls),
            ("resourceNames", &self.resource_names),
            ("resources", &self.resources),
            ("verbs", &self.verbs),
        ];
        let given = fields.into_iter().filter(|(_, list)| !list.is_empty());
        Value::Object(given.map(|(field, list)| (field.to_owned(), list.clone().into())).collect())
    }

    /// Whether the rule allows `request`, like `RuleAllows` of Kubernetes' RBAC authorizer.
    pub fn allows(&self, request: &RequestInfo<'_>) -> bool {
        contains_or_star(&self.verbs, &request.verb)
            && if request.is_resource_request {
                contains_or_star(&self.api_groups, request.api_group)
                    && self.resources.iter().any(|rule| covers_resource(rule, request.resource, request.subresource))
                    && (self.resource_names.is_empty() || self.resource_names.iter().any(|name| *name == request.name))
            } else {
                self.non_resource_urls.iter().any(|rule| covers_path(rule, request.path))
            }
    }
}

/// Reads `null` as an absent field.
pub(super) fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn contains_or_star(list: &[String], value: &str) -> bool {
    list.iter().any(|one| one == "*" || one == value)
}

fn covers_resource(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    if subresource.is_empty() {
        return rule == resource;
    }
    // Not split at the first slash of the rule: a requested resource never contains one, but the rule may.
    rule.strip_suffix(subresource)
        .and_then(|rule| rule.strip_suffix('/'))
        .is_some_and(|rule| rule == resource || rule == "*")
}

fn covers_path(rule: &str, path: &str) -> bool {
    rule == "*" || rule == path || rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn policy_rule_covers_resources_and_subresources() {
        for (rule, resource, subresource, covered) in [
            ("pods", "pods", "", true),
            ("pods", "pods", "log", false),
            ("pods/log", "pods", "log", true),
            ("pods/log", "pods", "", false),
            ("pods/*", "pods", "log", false),
            ("*", "pods", "log", true),
            ("*", "pods", "", true),
            ("*/log", "pods", "log", true),
            ("*/log", "pods", "xlog", false),
            ("*/scale", "pods", "", false),
            ("*/*", "pods", "log", false),
            ("*/*", "pods", "*", true),
            ("pod", "pods", "", false),
            ("", "pods", "", false),
        ] {
            assert_eq!(covers_resource(rule, resource, subresource), covered, "{rule} {resource} {subresource}");
        }
    }

    #[test]
    fn policy_rule_covers_paths() {
        for (rule, path, leads) in [
            ("*", "/x", true),
            ("/x", "/x", true),
            ("/x", "/x/", false),
            ("/x/*", "/x/y/z", true),
            ("/x/*", "/x", false),
            ("/x*", "/xy", true),
            ("/x**", "/xy", true),
            ("/*/x", "/a/x", false),
            ("/api", "/apis", false),
        ] {
            assert_eq!(covers_path(rule, path), leads, "{rule} {path}");
        }
    }

    /// A transcription of Kubernetes' code, with lengths and joined strings.
    fn upstream(rule: &str, resource: &str, subresource: &str) -> bool {
        let combined = if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        rule == "*"
            || rule == combined
            || !subresource.is_empty()
                && rule.len() == subresource.len() + 2
                && rule.starts_with("*/")
                && rule.ends_with(subresource)
    }

    proptest! {
        #[test]
        fn covers_what_upstream_covers(
            rule in "[ab*/]{0,5}", resource in "[ab*]{1,3}", subresource in "[ab*]{0,3}",
        ) {
            prop_assert_eq!(covers_resource(&rule, &resource, &subresource), upstream(&rule, &resource, &subresource));
        }
    }
}
