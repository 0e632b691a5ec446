//! Merges the contents of all backends in the order that clients prefer. Pure.
//!
//! Only the groups affected by a change are merged again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::document::Resource;
use super::keeper::All;
use super::known::{By, Known};
use super::own::{self, Own};
use super::parse::Offered;
use crate::kubeapi::version::compare_kube_aware;
use crate::registry::DELEGATE;

/// A group; its most preferred version comes first.
#[derive(Debug, PartialEq)]
pub(super) struct Group {
    /// Name; empty for the core group.
    pub(super) name: String,
    /// Versions; never empty.
    pub(super) versions: Vec<Version>,
}

/// A version of a group.
#[derive(Debug, PartialEq)]
pub(super) struct Version {
    /// Name.
    pub(super) version: String,
    /// Resources of the last good response.
    pub(super) resources: Arc<Vec<Resource>>,
    /// Whether the backend currently reports them.
    pub(super) current: bool,
}

/// Access to the contents that are merged.
pub(super) trait Contents {
    /// The last good resources of `one`, and whether they are current.
    fn of(&self, one: &Known) -> (Arc<Vec<Resource>>, bool);
    /// The delegate's last good listings in its own order, and whether they are current.
    fn of_delegate(&self) -> (Vec<&Offered>, bool);
}

/// Priorities of a group and version that no APIService registers while others are registered (as in `crdregistration`
/// and `aggregated/handler.go` of kube-apiserver).
const UNREGISTERED: (i32, i32) = (1000, 15);

/// Rank of a group; equal ranks are ordered by name. The local `apiregistration.k8s.io` group comes first, other local
/// groups last unless a backend serves them.
pub(super) type Rank = (u8, Reverse<i32>, usize);

/// Merges contents by group.
///
/// Groups are ordered by the greatest `groupPriorityMinimum` among their versions, then by name; versions by
/// `versionPriority`, then as Kubernetes orders versions.
///
/// The delegate's groups are ordered by its Local APIServices, where these are registered. Without any (the registry is
/// a directory), its groups come first and in its own order: a name that both have belongs to the cluster, as it did
/// before there was a gateway.
pub(super) struct Merging {
    own: Own,
    /// Names of the APIServices of each group.
    claims: BTreeMap<String, BTreeSet<String>>,
    /// Local APIServices, which only order the delegate's groups.
    locals: BTreeSet<String>,
    /// `None` without a delegate, else whether its listings are current.
    delegate: Option<bool>,
    /// The delegate's listings by group, with their position in its order.
    offers: BTreeMap<String, Vec<(i32, Offered)>>,
    /// Whether anything was merged.
    begun: bool,
}

impl Merging {
    pub(super) fn new(own: Own) -> Merging {
        Merging {
            own,
            claims: BTreeMap::new(),
            locals: BTreeSet::new(),
            delegate: None,
            offers: BTreeMap::new(),
            begun: false,
        }
    }

    /// Updates the groups of the `changed` APIServices. Returns the affected groups by name; `None` for removed ones.
    pub(super) fn look(
        &mut self,
        known: &All,
        changed: &BTreeSet<String>,
        contents: &impl Contents,
    ) -> BTreeMap<String, Option<(Rank, Group)>> {
        let mut groups = BTreeSet::new();
        let registered = !self.locals.is_empty();
        for name in changed.iter().filter(|name| *name != DELEGATE) {
            // A version has no dot.
            let group = name.split_once('.').map_or("", |(_, group)| group);
            let one = known.get(name);
            match one.is_some_and(|one| one.by == By::Delegate) {
                true => self.locals.insert(name.clone()),
                false => self.locals.remove(name),
            };
            let claims = self.claims.entry(group.to_owned()).or_default();
            match one {
                Some(_) => claims.insert(name.clone()),
                None => claims.remove(name),
            };
            if claims.is_empty() {
                self.claims.remove(group);
            }
            groups.insert(group.to_owned());
        }
        let mut all = !std::mem::replace(&mut self.begun, true) || registered == self.locals.is_empty();
        if changed.contains(DELEGATE) {
            all = true;
            groups.extend(std::mem::take(&mut self.offers).into_keys());
            let (offered, current) = contents.of_delegate();
            self.delegate = known.contains_key(DELEGATE).then_some(current);
            for (place, one) in (0..).zip(offered) {
                self.offers.entry(one.group.clone()).or_default().push((place, one.clone()));
            }
        }
        if all {
            groups.extend(self.claims.keys().chain(self.offers.keys()).cloned());
            groups.extend(self.own.served().iter().map(|served| served.group.to_owned()));
            groups.extend(self.own.has_registrations().then(|| own::GROUP.to_owned()));
        }
        groups.into_iter().map(|group| (group.clone(), self.group(&group, known, contents))).collect()
    }

    fn group(&self, name: &str, known: &All, contents: &impl Contents) -> Option<(Rank, Group)> {
        if self.own.has(name) {
            let resources = Arc::new(own::resources());
            let version = Version { version: own::VERSION.into(), resources, current: true };
            return Some(((0, Reverse(0), 0), Group { name: name.into(), versions: vec![version] }));
        }
        let claims = || self.claims.get(name).into_iter().flatten().filter_map(|name| known.get(name));
        let offers = self.offers.get(name).map(Vec::as_slice).unwrap_or_default();
        let mut versions: Vec<Ranked> =
            claims().filter(|one| one.by == By::Backend).map(|one| Ranked::new(one, contents.of(one))).collect();
        for (place, one) in offers {
            let priorities = match claims().find(|claim| claim.version == one.version) {
                Some(claim) if claim.by == By::Backend => continue,
                Some(claim) => (claim.group_priority_minimum, claim.version_priority),
                None if !self.locals.is_empty() => UNREGISTERED,
                None => (i32::MAX - place, i32::MAX - place),
            };
            let current = one.current && self.delegate == Some(true);
            let version = Version { version: one.version.clone(), resources: one.resources.clone(), current };
            versions.push(Ranked { priorities, version });
        }
        // Registered but not (yet) listed: shown without resources, so that clients ask again.
        if self.delegate.is_some() {
            let offered = |one: &Known| offers.iter().any(|(_, it)| it.version == one.version);
            let missing = claims().filter(|one| one.by == By::Delegate && !offered(one));
            versions.extend(missing.map(|one| Ranked::new(one, Default::default())));
        }
        versions.sort_by(|a, b| {
            let by_name = || compare_kube_aware(&b.version.version, &a.version.version);
            b.priorities.1.cmp(&a.priorities.1).then_with(by_name)
        });
        versions.dedup_by(|a, b| a.version.version == b.version.version);
        let greatest = versions.iter().map(|one| one.priorities.0).max();
        let mut versions: Vec<Version> = versions.into_iter().map(|one| one.version).collect();
        let served = self.own.served().iter().enumerate().find(|(_, served)| served.group == name);
        if let Some((_, served)) = served
            && !versions.iter().any(|version| version.version == own::VERSION)
        {
            let resources = Arc::new(served.resources());
            versions.push(Version { version: own::VERSION.into(), resources, current: true });
        }
        let rank = match (greatest, served) {
            (Some(greatest), _) => (1, Reverse(greatest), 0),
            (None, Some((place, _))) => (2, Reverse(0), place),
            (None, None) => return None,
        };
        Some((rank, Group { name: name.into(), versions }))
    }
}

/// A version with the priorities of its group and of itself.
struct Ranked {
    priorities: (i32, i32),
    version: Version,
}

impl Ranked {
    fn new(one: &Known, (resources, current): (Arc<Vec<Resource>>, bool)) -> Ranked {
        Ranked {
            priorities: (one.group_priority_minimum, one.version_priority),
            version: Version { version: one.version.clone(), resources, current },
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// All groups in order.
    fn merge(known: &[Known], own: Own, contents: &impl Contents) -> Vec<Group> {
        let known: All = known.iter().map(|one| (one.name.clone(), one.clone())).collect();
        let mut changed: BTreeSet<String> = known.keys().cloned().collect();
        // In these tests the delegate's listings count whether it is registered or not.
        changed.insert(DELEGATE.to_owned());
        let groups = Merging::new(own).look(&known, &changed, contents);
        let mut groups: Vec<(Rank, Group)> = groups.into_values().flatten().collect();
        groups.sort_by(|(a, one), (b, other)| (a, &one.name).cmp(&(b, &other.name)));
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Only the delegate has contents, if there is one.
    #[derive(Default)]
    pub(in super::super) struct Nothing(pub(in super::super) Vec<Offered>);

    impl Contents for Nothing {
        fn of(&self, _: &Known) -> (Arc<Vec<Resource>>, bool) {
            Default::default()
        }

        fn of_delegate(&self) -> (Vec<&Offered>, bool) {
            (self.0.iter().collect(), true)
        }
    }

    /// Contents from a function; there is no delegate.
    pub(in super::super) struct Each<F>(pub(in super::super) F);

    impl<F: Fn(&Known) -> (Arc<Vec<Resource>>, bool)> Contents for Each<F> {
        fn of(&self, one: &Known) -> (Arc<Vec<Resource>>, bool) {
            self.0(one)
        }

        fn of_delegate(&self) -> (Vec<&Offered>, bool) {
            (Vec::new(), false)
        }
    }

    fn known(group: &str, version: &str, group_priority_minimum: i32, version_priority: i32) -> Known {
        Known {
            name: format!("{version}.{group}"),
            group: group.into(),
            version: version.into(),
            group_priority_minimum,
            version_priority,
            service_key: "a".into(),
            backend: "a".into(),
            by: By::Backend,
        }
    }

    fn order(known: &[Known]) -> Vec<String> {
        named(&merge(known, Own::default(), &Nothing::default()))
    }

    fn named(groups: &[Group]) -> Vec<String> {
        groups
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
        let groups = merge(&known, Own::default(), &Nothing::default());
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
        let groups = merge(&known, Own::default(), &Nothing::default());
        assert!(groups[1].versions[0].resources.is_empty(), "the backend's, not ours");
        assert_eq!(groups[2].versions[1].resources.len(), 2);
    }

    fn offered(names: &[&str]) -> Nothing {
        let one = |name: &&str| {
            let (group, version) = name.split_once('/').unwrap();
            Offered { group: group.into(), version: version.into(), resources: Arc::default(), current: true }
        };
        Nothing(names.iter().map(one).collect())
    }

    const BEFORE_A_CLUSTER: Own = Own { delegation: false, delegate: true, registrations_elsewhere: false };

    #[test]
    fn what_only_the_delegate_has_comes_first_and_in_its_own_order() {
        let known = [known("example.com", "v1", 20_000, 100)];
        let offers = offered(&["apps/v1", "batch/v1", "batch/v1beta1", "apiregistration.k8s.io/v1", "example.com/v1"]);
        let groups = merge(&known, BEFORE_A_CLUSTER, &offers);
        let expected = ["apiregistration.k8s.io/v1", "apps/v1", "batch/v1", "batch/v1beta1", "example.com/v1"];
        assert_eq!(named(&groups), expected);
        assert!(!groups[3].versions[0].current, "a backend of its own has it, not the delegate");
    }

    #[test]
    fn what_the_delegate_has_is_ordered_by_its_own_api_services() {
        let delegated = |group, version, a, b| Known { by: By::Delegate, ..known(group, version, a, b) };
        let itself = Known { by: By::Itself, name: "delegate".into(), ..known("", "", 0, 0) };
        let known = [
            known("metrics.k8s.io", "v1beta1", 100, 100),
            delegated("apps", "v1", 17_800, 15),
            delegated("apiregistration.k8s.io", "v1", 20_001, 18),
            delegated("gone.io", "v1", 500, 15),
            known("apps", "v2", 1, 16),
            itself,
        ];
        let offers =
            offered(&["apiregistration.k8s.io/v1", "new.io/v1", "apps/v1", "metrics.k8s.io/v1beta1", "events/v1"]);
        let own = Own { registrations_elsewhere: true, ..BEFORE_A_CLUSTER };
        let groups = merge(&known, own, &offers);
        let expected = [
            "apiregistration.k8s.io/v1",
            "apps/v2",
            "apps/v1",
            "events/v1",
            "new.io/v1",
            "gone.io/v1",
            "metrics.k8s.io/v1beta1",
        ];
        assert_eq!(named(&groups), expected);
        assert!(groups[1].versions[1].current && !groups[4].versions[0].current, "what it lost is stale");
    }
}
