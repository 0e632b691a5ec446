//! API groups and versions, and the order of versions.

use std::cmp::{Ordering, Reverse};
use std::fmt;

/// An API group and version. The core group is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// For example `apps`; empty for the core group.
    pub group: String,
    /// For example `v1`.
    pub version: String,
}

impl GroupVersion {
    /// The pair of `group` and `version`.
    pub fn new(group: impl Into<String>, version: impl Into<String>) -> GroupVersion {
        GroupVersion { group: group.into(), version: version.into() }
    }

    /// Parses an `apiVersion`: `v1` or `group/v1`. `None` with more than one slash, an empty group before a slash, or
    /// an empty version.
    pub fn parse(api_version: &str) -> Option<GroupVersion> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let no_shape = version.is_empty() || version.contains('/') || group.is_empty() && api_version.contains('/');
        (!no_shape).then(|| GroupVersion::new(group, version))
    }

    /// Path of the version: `/api/v1` or `/apis/<group>/<version>`.
    pub fn path(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }
}

impl fmt::Display for GroupVersion {
    /// Writes an `apiVersion`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.version) } else { write!(f, "{}/{}", self.group, self.version) }
    }
}

/// Orders versions by Kubernetes' preference (`k8s.io/apimachinery/pkg/version.CompareKubeAwareVersionStrings`).
///
/// The preferred version is the greater: `sort_by(|a, b| compare_kube_aware(b, a))` puts it first. GA is above beta
/// above alpha, then major, then minor. Other strings are below all of them, in reverse alphabetical order.
pub fn compare_kube_aware(a: &str, b: &str) -> Ordering {
    match (KubeVersion::parse(a), KubeVersion::parse(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => Reverse(a).cmp(&Reverse(b)),
    }
}

/// Orders two versions of a group, each with its `versionPriority`: the preferred one is less. The greater priority is
/// preferred, then [`compare_kube_aware`] decides.
pub fn compare_by_priority((a_priority, a): (i32, &str), (b_priority, b): (i32, &str)) -> Ordering {
    b_priority.cmp(&a_priority).then_with(|| compare_kube_aware(b, a))
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Stability {
    Alpha,
    Beta,
    Stable,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct KubeVersion {
    stability: Stability,
    major: i64,
    minor: i64,
}

impl KubeVersion {
    fn parse(text: &str) -> Option<KubeVersion> {
        let (major, rest) = leading_number(text.strip_prefix('v')?)?;
        if rest.is_empty() {
            return Some(KubeVersion { stability: Stability::Stable, major, minor: 0 });
        }
        let (stability, rest) = match rest.strip_prefix("alpha") {
            Some(rest) => (Stability::Alpha, rest),
            None => (Stability::Beta, rest.strip_prefix("beta")?),
        };
        let (minor, rest) = leading_number(rest)?;
        rest.is_empty().then_some(KubeVersion { stability, major, minor })
    }
}

/// Parses the number at the start of `text`. One that overflows is invalid, as with Go's `Atoi`.
fn leading_number(text: &str) -> Option<(i64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sorted_as_documented() {
        let mut versions =
            vec!["foo10", "v1", "v12alpha1", "v10beta3", "foo1", "v2", "v3beta1", "v11alpha2", "v10", "v11beta2"];
        versions.sort_by(|a, b| compare_kube_aware(b, a));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]
        );
    }

    #[test]
    fn versions_malformed_sort_last() {
        for odd in ["v", "1", "V1", "v1alpha", "v1beta", "v1gamma1", "v1alpha1x", "v99999999999999999999", "v1 ", "v-1"]
        {
            assert_eq!(compare_kube_aware(odd, "v1alpha1"), Ordering::Less, "{odd}");
            assert_eq!(compare_kube_aware("v1alpha1", odd), Ordering::Greater, "{odd}");
            assert_eq!(compare_kube_aware(odd, odd), Ordering::Equal, "{odd}");
        }
    }

    #[test]
    fn group_version_round_trips() {
        for (text, path) in [("v1", "/api/v1"), ("apps/v1", "/apis/apps/v1")] {
            let version = GroupVersion::parse(text).unwrap();
            assert_eq!(version.to_string(), text);
            assert_eq!(version.path(), path);
        }
        for odd in ["", "/", "a/", "/v1", "a/b/c"] {
            assert_eq!(GroupVersion::parse(odd), None, "{odd}");
        }
    }
}
