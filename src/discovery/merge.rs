//! What all backends say, put in the order that clients prefer. Values in, values out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::document::Resource;
use super::known::Known;
use super::own::{self, Own};
use crate::kubeapi::version::compare_kube_aware;

/// A group, its most preferred version first.
#[derive(Debug)]
pub(super) struct Group {
    /// Its name; empty for the core group.
    pub(super) name: String,
    /// Never empty.
    pub(super) versions: Vec<Version>,
}

/// A version of a group.
#[derive(Debug)]
pub(super) struct Version {
    /// Its name.
    pub(super) version: String,
    /// What it holds, as last heard.
    pub(super) resources: Arc<Vec<Resource>>,
    /// Whether that is what the backend says now.
    pub(super) current: bool,
}

/// All groups in order: by the greatest `groupPriorityMinimum` among their versions, then by name; versions by
/// `versionPriority`, then as Kubernetes orders versions. Our own group comes first, and what else is
/// ours comes last, unless a backend has it.
///
/// `own` says what else is ours; `content` gives what is known of each: its resources, and whether they are current.
pub(super) fn merge(known: &[Known], own: Own, content: impl Fn(&Known) -> (Arc<Vec<Resource>>, bool)) -> Vec<Group> {
    let mut groups: BTreeMap<&str, Vec<&Known>> = BTreeMap::new();
    for one in known.iter().filter(|one| one.group != own::GROUP) {
        groups.entry(&one.group).or_default().push(one);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups
        .sort_by_key(|(name, versions)| (Reverse(versions.iter().map(|one| one.group_priority_minimum).max()), *name));
    let registrations = Group {
        name: own::GROUP.into(),
        versions: vec![Version { version: own::VERSION.into(), resources: Arc::new(own::resources()), current: true }],
    };
    let theirs = groups.into_iter().map(|(name, mut versions)| {
        versions.sort_by(|a, b| {
            b.version_priority.cmp(&a.version_priority).then_with(|| compare_kube_aware(&b.version, &a.version))
        });
        versions.dedup_by(|a, b| a.version == b.version);
        let versions = versions.into_iter().map(|one| {
            let (resources, current) = content(one);
            Version { version: one.version.clone(), resources, current }
        });
        Group { name: name.into(), versions: versions.collect() }
    });
    let mut groups: Vec<Group> = std::iter::once(registrations).chain(theirs).collect();
    for served in own.served() {
        let ours = || Version { version: own::VERSION.into(), resources: Arc::new(served.resources()), current: true };
        match groups.iter_mut().find(|group| group.name == served.group) {
            Some(group) if group.versions.iter().any(|version| version.version == own::VERSION) => {}
            Some(group) => group.versions.push(ours()),
            None => groups.push(Group { name: served.group.into(), versions: vec![ours()] }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(group: &str, version: &str, group_priority_minimum: i32, version_priority: i32) -> Known {
        Known {
            name: format!("{version}.{group}"),
            group: group.into(),
            version: version.into(),
            group_priority_minimum,
            version_priority,
            service_key: "a".into(),
        }
    }

    fn order(known: &[Known]) -> Vec<String> {
        merge(known, Own::default(), |_| Default::default())
            .iter()
            .flat_map(|group| group.versions.iter().map(move |version| format!("{}/{}", group.name, version.version)))
            .collect()
    }

    #[test]
    fn groups_by_greatest_priority_then_name_versions_by_priority_then_kube_aware() {
        let known = [
            known("b", "v1", 100, 15),
            known("a", "v1", 100, 15),
            known("c", "v1beta1", 50, 15),
            known("c", "v2alpha1", 200, 15),
            known("c", "v1", 50, 15),
            known("c", "odd", 50, 20),
        ];
        let expected = [
            "apiregistration.k8s.io/v1",
            "c/odd",
            "c/v1",
            "c/v1beta1",
            "c/v2alpha1",
            "a/v1",
            "b/v1",
            "authentication.k8s.io/v1",
            "authorization.k8s.io/v1",
        ];
        assert_eq!(order(&known), expected);
    }

    #[test]
    fn nobody_else_speaks_for_our_group() {
        let known = [known("apiregistration.k8s.io", "v1", 20000, 100), known("apiregistration.k8s.io", "v2", 1, 1)];
        let groups = merge(&known, Own::default(), |_| panic!("never asked"));
        assert_eq!(groups[0].name, "apiregistration.k8s.io");
        assert_eq!((groups[0].versions.len(), groups.len()), (1, 3));
        assert_eq!(groups[0].versions[0].resources[0].resource, "apiservices");
    }

    #[test]
    fn who_answers_questions_about_oneself_is_listed_once() {
        let known = [known("authentication.k8s.io", "v1", 1, 1), known("authorization.k8s.io", "v1beta1", 1, 1)];
        let expected = [
            "apiregistration.k8s.io/v1",
            "authentication.k8s.io/v1",
            "authorization.k8s.io/v1beta1",
            "authorization.k8s.io/v1",
        ];
        assert_eq!(order(&known), expected);
        let groups = merge(&known, Own::default(), |_| Default::default());
        assert!(groups[1].versions[0].resources.is_empty(), "the backend's, not ours");
        assert_eq!(groups[2].versions[1].resources.len(), 2);
    }
}
