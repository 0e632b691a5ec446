//! Merges the contents of all backends in the order that clients prefer. Pure.
//!
//! Only the groups affected by a change are merged again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kubeapi::{compare_by_priority, compare_kube_aware};

use super::claim::{ApiServiceClaim, ServedBy};
use super::local_groups::{self, LocalGroup, LocalGroups};
use super::model::DiscoveryResource;
use super::parse::GroupVersionListing;
use super::polling::poller::ClaimMap;
use crate::registry::DELEGATE;

/// A group; its most preferred version comes first.
#[derive(Debug, PartialEq)]
pub(super) struct MergedGroup {
    /// Name; empty for the core group.
    pub(super) name: String,
    /// Versions; never empty.
    pub(super) versions: Vec<MergedVersion>,
}

/// A version of a group.
#[derive(Debug, PartialEq)]
pub(super) struct MergedVersion {
    /// Name.
    pub(super) version: String,
    /// Resources of the last good response.
    pub(super) resources: Arc<Vec<DiscoveryResource>>,
    /// Whether the backend currently reports them.
    pub(super) current: bool,
}

/// Access to the contents that are merged.
pub(super) trait ContentStore {
    /// The last good resources of `one`, and whether they are current.
    fn resources_of(&self, one: &ApiServiceClaim) -> (Arc<Vec<DiscoveryResource>>, bool);
    /// The delegate's last good listings in its own order, and whether they are current.
    fn delegate_listings(&self) -> (Vec<&GroupVersionListing>, bool);
}

/// No backend has any content yet.
pub(super) struct NoContents;

impl ContentStore for NoContents {
    fn resources_of(&self, _: &ApiServiceClaim) -> (Arc<Vec<DiscoveryResource>>, bool) {
        Default::default()
    }

    fn delegate_listings(&self) -> (Vec<&GroupVersionListing>, bool) {
        Default::default()
    }
}

/// Priorities of a group and version that no APIService registers while others are registered (as in `crdregistration`
/// and `aggregated/handler.go` of kube-apiserver).
const UNREGISTERED_PRIORITIES: (i32, i32) = (1000, 15);

/// Rank of a group; equal ranks are ordered by name. The local `apiregistration.k8s.io` group comes first, other local
/// groups last unless a backend serves them.
pub(super) type GroupRank = (u8, Reverse<i32>, usize);

/// Merges contents by group.
///
/// Groups are ordered by the greatest `groupPriorityMinimum` among their versions, then by name; versions by
/// `versionPriority`, then as Kubernetes orders versions.
///
/// The delegate's groups are ordered by its Local APIServices, where these are registered. Without any (the registry is
/// a directory), its groups come first and in its own order: a name that both have belongs to the cluster, as it did
/// before there was a gateway.
pub(super) struct GroupMerger {
    local_groups: LocalGroups,
    /// What `local_groups` describes.
    served: Vec<Arc<LocalGroup>>,
    /// Names of the APIServices of each group.
    claims: BTreeMap<String, BTreeSet<String>>,
    /// Local APIServices, which only order the delegate's groups.
    locals: BTreeSet<String>,
    /// `None` without a delegate, else whether its listings are current.
    delegate: Option<bool>,
    /// The delegate's listings by group, with their position in its order.
    offers: BTreeMap<String, Vec<(i32, GroupVersionListing)>>,
    /// Whether anything was merged.
    is_started: bool,
    /// Groups whose local versions changed since the last merge.
    changed_locals: BTreeSet<String>,
}

impl GroupMerger {
    pub(super) fn new(own: LocalGroups) -> GroupMerger {
        GroupMerger {
            served: own.groups(),
            local_groups: own,
            claims: BTreeMap::new(),
            locals: BTreeSet::new(),
            delegate: None,
            offers: BTreeMap::new(),
            is_started: false,
            changed_locals: BTreeSet::new(),
        }
    }

    /// Replaces the local groups.
    pub(super) fn set_local_groups(&mut self, own: LocalGroups) {
        let before = std::mem::replace(&mut self.served, own.groups());
        let changed = |one: &[Arc<LocalGroup>], other: &[Arc<LocalGroup>]| -> Vec<String> {
            let other: HashMap<&str, &LocalGroup> =
                other.iter().map(|group| (group.list_path.as_str(), &**group)).collect();
            let is_other = |group: &&Arc<LocalGroup>| other.get(group.list_path.as_str()) != Some(&&***group);
            one.iter().filter(is_other).map(|group| group.group.to_string()).collect()
        };
        self.changed_locals.extend(changed(&before, &self.served));
        self.changed_locals.extend(changed(&self.served, &before));
        self.local_groups = own;
    }

    /// The local groups, by version.
    pub(super) fn served(&self) -> &[Arc<LocalGroup>] {
        &self.served
    }

    /// Updates the groups of the `changed` APIServices. Returns the affected groups by name; `None` for removed ones.
    pub(super) fn update(
        &mut self,
        claims_by_name: &ClaimMap,
        changed: &BTreeSet<String>,
        contents: &impl ContentStore,
    ) -> BTreeMap<String, Option<(GroupRank, MergedGroup)>> {
        let mut groups = std::mem::take(&mut self.changed_locals);
        let registered = !self.locals.is_empty();
        for name in changed.iter().filter(|name| *name != DELEGATE) {
            // A version has no dot.
            let group = name.split_once('.').map_or("", |(_, group)| group);
            let one = claims_by_name.get(name);
            match one.is_some_and(|one| one.served_by == ServedBy::Delegate) {
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
        let mut all = !std::mem::replace(&mut self.is_started, true) || registered == self.locals.is_empty();
        if changed.contains(DELEGATE) {
            all = true;
            groups.extend(std::mem::take(&mut self.offers).into_keys());
            let (offered, current) = contents.delegate_listings();
            self.delegate = claims_by_name.contains_key(DELEGATE).then_some(current);
            for (position, one) in (0..).zip(offered) {
                self.offers.entry(one.group.clone()).or_default().push((position, one.clone()));
            }
        }
        if all {
            groups.extend(self.claims.keys().chain(self.offers.keys()).cloned());
            groups.extend(self.served.iter().map(|served| served.group.to_string()));
            groups.extend(self.local_groups.has_registrations().then(|| local_groups::GROUP.to_owned()));
        }
        groups.into_iter().map(|group| (group.clone(), self.group(&group, claims_by_name, contents))).collect()
    }

    fn group(
        &self,
        name: &str,
        claim_map: &ClaimMap,
        contents: &impl ContentStore,
    ) -> Option<(GroupRank, MergedGroup)> {
        if self.local_groups.is_reserved(name) {
            let resources = Arc::new(self.local_groups.registrations().resources());
            let version = MergedVersion { version: local_groups::VERSION.into(), resources, current: true };
            return Some(((0, Reverse(0), 0), MergedGroup { name: name.into(), versions: vec![version] }));
        }
        let claims = || self.claims.get(name).into_iter().flatten().filter_map(|name| claim_map.get(name));
        let offers = self.offers.get(name).map(Vec::as_slice).unwrap_or_default();
        let mut versions: Vec<RankedVersion> = claims()
            .filter(|one| one.served_by == ServedBy::Backend)
            .map(|one| RankedVersion::new(one, contents.resources_of(one)))
            .collect();
        for (position, one) in offers {
            let priorities = match claims().find(|claim| claim.version == one.version) {
                Some(claim) if claim.served_by == ServedBy::Backend => continue,
                Some(claim) => (claim.group_priority_minimum, claim.version_priority),
                None if !self.locals.is_empty() => UNREGISTERED_PRIORITIES,
                None => (i32::MAX - position, i32::MAX - position),
            };
            let current = one.current && self.delegate == Some(true);
            let version = MergedVersion { version: one.version.clone(), resources: one.resources.clone(), current };
            versions.push(RankedVersion { priorities, version });
        }
        // Registered but not (yet) listed: shown without resources, so that clients ask again.
        if self.delegate.is_some() {
            let offered = |one: &ApiServiceClaim| offers.iter().any(|(_, it)| it.version == one.version);
            let missing = claims().filter(|one| one.served_by == ServedBy::Delegate && !offered(one));
            versions.extend(missing.map(|one| RankedVersion::new(one, Default::default())));
        }
        versions.sort_by(|a, b| {
            compare_by_priority((a.priorities.1, &a.version.version), (b.priorities.1, &b.version.version))
        });
        versions.dedup_by(|a, b| a.version.version == b.version.version);
        let mut greatest = versions.iter().map(|one| one.priorities.0).max();
        if self.local_groups.embedded.is_some() {
            // Groups of the embedded API server have Local APIServices.
            greatest = greatest.max(claims().map(|one| one.group_priority_minimum).max());
        }
        let mut versions: Vec<MergedVersion> = versions.into_iter().map(|one| one.version).collect();
        let position = self.served.iter().position(|served| served.group == name);
        let mut local: Vec<&Arc<LocalGroup>> = self.served.iter().filter(|served| served.group == name).collect();
        local.sort_by(|a, b| compare_kube_aware(&b.version, &a.version));
        for served in local {
            if !versions.iter().any(|version| version.version == served.version) {
                let resources = Arc::new(served.resources());
                versions.push(MergedVersion { version: served.version.to_string(), resources, current: true });
            }
        }
        let rank = match (greatest, position) {
            (Some(greatest), _) => (1, Reverse(greatest), 0),
            (None, Some(place)) => (2, Reverse(0), place),
            (None, None) => return None,
        };
        Some((rank, MergedGroup { name: name.into(), versions }))
    }
}

/// A version with the priorities of its group and of itself.
struct RankedVersion {
    priorities: (i32, i32),
    version: MergedVersion,
}

impl RankedVersion {
    fn new(one: &ApiServiceClaim, (resources, current): (Arc<Vec<DiscoveryResource>>, bool)) -> RankedVersion {
        RankedVersion {
            priorities: (one.group_priority_minimum, one.version_priority),
            version: MergedVersion { version: one.version.clone(), resources, current },
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// All groups in order.
    fn merge(known: &[ApiServiceClaim], own: LocalGroups, contents: &impl ContentStore) -> Vec<MergedGroup> {
        let known: ClaimMap = known.iter().map(|one| (one.name.clone(), one.clone())).collect();
        let mut changed: BTreeSet<String> = known.keys().cloned().collect();
        // In these tests the delegate's listings count whether it is registered or not.
        changed.insert(DELEGATE.to_owned());
        let groups = GroupMerger::new(own).update(&known, &changed, contents);
        let mut groups: Vec<(GroupRank, MergedGroup)> = groups.into_values().flatten().collect();
        groups.sort_by(|(a, one), (b, other)| (a, &one.name).cmp(&(b, &other.name)));
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Only the delegate has contents, if there is one.
    #[derive(Default)]
    pub(in super::super) struct DelegateContents(pub(in super::super) Vec<GroupVersionListing>);

    impl ContentStore for DelegateContents {
        fn resources_of(&self, _: &ApiServiceClaim) -> (Arc<Vec<DiscoveryResource>>, bool) {
            Default::default()
        }

        fn delegate_listings(&self) -> (Vec<&GroupVersionListing>, bool) {
            (self.0.iter().collect(), true)
        }
    }

    /// Contents from a function; there is no delegate.
    pub(in super::super) struct ContentsFrom<F>(pub(in super::super) F);

    impl<F: Fn(&ApiServiceClaim) -> (Arc<Vec<DiscoveryResource>>, bool)> ContentStore for ContentsFrom<F> {
        fn resources_of(&self, one: &ApiServiceClaim) -> (Arc<Vec<DiscoveryResource>>, bool) {
            self.0(one)
        }

        fn delegate_listings(&self) -> (Vec<&GroupVersionListing>, bool) {
            (Vec::new(), false)
        }
    }

    fn known(group: &str, version: &str, group_priority_minimum: i32, version_priority: i32) -> ApiServiceClaim {
        ApiServiceClaim {
            name: format!("{version}.{group}"),
            group: group.into(),
            version: version.into(),
            group_priority_minimum,
            version_priority,
            service_key: "a".into(),
            backend: "a".into(),
            served_by: ServedBy::Backend,
        }
    }

    fn order(known: &[ApiServiceClaim]) -> Vec<String> {
        named(&merge(known, LocalGroups::default(), &DelegateContents::default()))
    }

    fn named(groups: &[MergedGroup]) -> Vec<String> {
        groups
            .iter()
            .flat_map(|group| group.versions.iter().map(move |version| format!("{}/{}", group.name, version.version)))
            .collect()
    }

    #[test]
    fn discovery_order_groups_by_priority_then_name_versions_kube_aware() {
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
    fn discovery_local_group_ignores_other_claims() {
        let known = [known("apiregistration.k8s.io", "v1", 20000, 100), known("apiregistration.k8s.io", "v2", 1, 1)];
        let groups = merge(&known, LocalGroups::default(), &DelegateContents::default());
        assert_eq!(groups[0].name, "apiregistration.k8s.io");
        assert_eq!((groups[0].versions.len(), groups.len()), (1, 3));
        assert_eq!(groups[0].versions[0].resources[0].resource, "apiservices");
    }

    #[test]
    fn discovery_self_review_groups_listed_once() {
        let known = [known("authentication.k8s.io", "v1", 1, 1), known("authorization.k8s.io", "v1beta1", 1, 1)];
        let expected = [
            "apiregistration.k8s.io/v1",
            "authentication.k8s.io/v1",
            "authorization.k8s.io/v1beta1",
            "authorization.k8s.io/v1",
        ];
        assert_eq!(order(&known), expected);
        let groups = merge(&known, LocalGroups::default(), &DelegateContents::default());
        assert!(groups[1].versions[0].resources.is_empty(), "the backend's, not ours");
        assert_eq!(groups[2].versions[1].resources.len(), 2);
    }

    fn offered(names: &[&str]) -> DelegateContents {
        let one = |name: &&str| {
            let (group, version) = name.split_once('/').unwrap();
            GroupVersionListing {
                group: group.into(),
                version: version.into(),
                resources: Arc::default(),
                current: true,
            }
        };
        DelegateContents(names.iter().map(one).collect())
    }

    const BEFORE_A_CLUSTER: LocalGroups = LocalGroups {
        reviews: false,
        delegate: true,
        embedded: None,
        apiregistration_from_delegate: false,
        path_prefix: None,
    };

    #[test]
    fn discovery_delegate_groups_first_in_own_order() {
        let known = [known("example.com", "v1", 20_000, 100)];
        let offers = offered(&["apps/v1", "batch/v1", "batch/v1beta1", "apiregistration.k8s.io/v1", "example.com/v1"]);
        let groups = merge(&known, BEFORE_A_CLUSTER, &offers);
        let expected = ["apiregistration.k8s.io/v1", "apps/v1", "batch/v1", "batch/v1beta1", "example.com/v1"];
        assert_eq!(named(&groups), expected);
        assert!(!groups[3].versions[0].current, "a backend of its own has it, not the delegate");
    }

    #[test]
    fn discovery_delegate_groups_ordered_by_local_apiservices() {
        let delegated =
            |group, version, a, b| ApiServiceClaim { served_by: ServedBy::Delegate, ..known(group, version, a, b) };
        let itself =
            ApiServiceClaim { served_by: ServedBy::DelegateItself, name: "delegate".into(), ..known("", "", 0, 0) };
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
        let own = LocalGroups { apiregistration_from_delegate: true, ..BEFORE_A_CLUSTER };
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
