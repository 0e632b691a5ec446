//! Snapshot of all discovery documents. The next snapshot shares what did not change.
//!
//! The document of a group is written when it changes. The lists of all groups are assembled on the first request after
//! a change: a change costs its own size, and a list is written once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::encoded_document::EncodedDocument;
use super::local_groups::{LocalGroup, LocalGroups};
use super::media::DiscoveryFormat;
use super::merge::{GroupMerger, GroupRank, MergedGroup, NoContents};
use super::model::DiscoveryResource;
use crate::process::{Published, ShardedMap};

/// All discovery documents at one moment.
#[derive(Clone)]
pub struct DiscoverySnapshot {
    /// Groups by name; that of the core group is empty.
    groups: ShardedMap<Arc<GroupEntry>>,
    /// `/api` for the core group and `/apis` for all others, written on demand.
    lists: Arc<[ListDocuments; 2]>,
    /// Local groups by path: `/apis/apiregistration.k8s.io/v1` and others.
    local_documents: Arc<BTreeMap<String, Arc<LocalListDocument>>>,
    /// State of each APIService, by name.
    sources: ShardedMap<Arc<SourceStatus>>,
    /// Whether the registry has been read.
    is_registry_read: bool,
}

/// The resource list of a local group and version, written on demand.
pub(super) struct LocalListDocument {
    group: Arc<LocalGroup>,
    document: OnceLock<EncodedDocument>,
}

/// Maximum number of resources and subresources per group and version that have metrics labels of their own. A backend
/// chooses how many it has, and each requested one is some forty samples.
const MAX_COUNTED: usize = 100;
/// Maximum length of such a name in bytes.
const MAX_COUNTED_NAME: usize = 256;

/// A group with its documents.
pub(super) struct GroupEntry {
    rank: GroupRank,
    group: MergedGroup,
    /// Names of resources and subresources (`resource/subresource`) by version; the first [`MAX_COUNTED`].
    resource_names: BTreeMap<String, BTreeSet<String>>,
    /// The group as an item of an aggregated list.
    item: Box<RawValue>,
    /// Document served at `/apis/<group>`.
    pub(super) document: EncodedDocument,
}

/// State of one APIService in discovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// Name of the APIService.
    pub apiservice: String,
    /// Whether its backend was polled at least once since start.
    pub is_polled: bool,
    /// Whether the served content is that of the backend's last response.
    pub current: bool,
    /// Number of resources served.
    pub resources: usize,
    /// Reason if the content is not current; else empty. For operators, not for clients.
    pub problem: String,
    /// Whether the availability probe fails for the same reason.
    #[serde(skip)]
    pub seen_by_probe: bool,
    /// Time of the last change of `current`.
    #[serde(skip)]
    pub since: Option<SystemTime>,
    /// Time of the last successful poll.
    #[serde(skip)]
    pub fetched: LastFetched,
}

/// `problem` with the note that a last good response `is_served`, if it is.
pub(crate) fn with_last_good(problem: &str, is_served: bool) -> String {
    format!("{problem}{}", if is_served { "; its last good answer is served" } else { "" })
}

/// Time of the last occurrence, shared by its clones. All values are equal, so a new occurrence is no change.
#[derive(Clone, Debug, Default)]
pub struct LastFetched(Arc<AtomicU64>);

impl LastFetched {
    /// Records the current time.
    pub(super) fn record(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.0.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The recorded time.
    pub fn get(&self) -> Option<SystemTime> {
        let millis = self.0.load(Ordering::Relaxed);
        (millis > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_millis(millis))
    }
}

impl PartialEq for LastFetched {
    fn eq(&self, _: &LastFetched) -> bool {
        true
    }
}

impl Eq for LastFetched {}

/// The list of one root in the three formats, written on demand.
#[derive(Default)]
struct ListDocuments {
    /// Document of type `apidiscovery.k8s.io/v2`.
    v2: OnceLock<EncodedDocument>,
    /// Document of type `apidiscovery.k8s.io/v2beta1`, for clients before Kubernetes 1.30.
    v2beta1: OnceLock<EncodedDocument>,
    /// Unaggregated document: `APIVersions` or `APIGroupList`.
    plain: OnceLock<EncodedDocument>,
}

/// A path that lists groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// The path `/api`, which lists the core group.
    Core,
    /// The path `/apis`, which lists all other groups.
    Named,
}

impl DiscoverySnapshot {
    /// The documents before the registry is read: the local groups.
    pub fn empty(own: &LocalGroups) -> DiscoverySnapshot {
        let nothing = DiscoverySnapshot {
            groups: ShardedMap::default(),
            lists: Arc::default(),
            local_documents: Arc::new(local_documents(own, &own.groups(), &BTreeMap::new())),
            sources: ShardedMap::default(),
            is_registry_read: false,
        };
        let groups = GroupMerger::new(own.clone()).update(&BTreeMap::new(), &BTreeSet::new(), &NoContents);
        DiscoverySnapshot { is_registry_read: false, ..nothing.updated(groups, BTreeMap::new()) }
    }

    /// A snapshot of the local groups that never changes.
    pub fn fixed_empty() -> Published<DiscoverySnapshot> {
        Published::fixed(DiscoverySnapshot::empty(&LocalGroups::default()))
    }

    /// A snapshot with the documents of other local groups, which are `served`. Those that are the same stay written.
    pub(super) fn with_local_groups(&self, own: &LocalGroups, served: &[Arc<LocalGroup>]) -> DiscoverySnapshot {
        let documents = local_documents(own, served, &self.local_documents);
        DiscoverySnapshot { local_documents: Arc::new(documents), ..self.clone() }
    }

    /// A new snapshot with changed groups and sources; `None` removes one.
    pub(super) fn updated(
        &self,
        groups: BTreeMap<String, Option<(GroupRank, MergedGroup)>>,
        sources: BTreeMap<String, Option<SourceStatus>>,
    ) -> DiscoverySnapshot {
        let mut next = DiscoverySnapshot { is_registry_read: true, ..self.clone() };
        for (name, now) in groups {
            let before = next.groups.get(&name);
            let same = match (&now, before) {
                (Some((rank, group)), Some(before)) => (rank, group) == (&before.rank, &before.group),
                (now, before) => now.is_none() && before.is_none(),
            };
            if same {
                continue;
            }
            match now {
                Some((rank, group)) => next.groups.insert(&name, Arc::new(GroupEntry::new(rank, group))),
                None => next.groups.remove(&name),
            }
            next.lists = Arc::default();
        }
        for (name, now) in sources {
            match now {
                Some(source) => next.sources.insert(&name, Arc::new(source)),
                None => next.sources.remove(&name),
            }
        }
        next
    }

    /// State of an APIService.
    pub fn source(&self, apiservice: &str) -> Option<&SourceStatus> {
        self.sources.get(apiservice).map(AsRef::as_ref)
    }

    /// State of all APIServices sorted by name. Sorts on each call.
    pub fn sources(&self) -> Vec<&SourceStatus> {
        let mut all: Vec<&SourceStatus> = self.sources.values().map(AsRef::as_ref).collect();
        all.sort_unstable_by(|a, b| a.apiservice.cmp(&b.apiservice));
        all
    }

    /// `/api`, `/apis/<group>` and `/apis/<group>/<version>` of all groups.
    pub fn group_paths(&self) -> impl Iterator<Item = String> {
        let mut all: Vec<&MergedGroup> = self.groups.values().map(|entry| &entry.group).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all.into_iter().flat_map(|MergedGroup { name, versions }| {
            versions.iter().flat_map(move |version| match &**name {
                "" => ["/api".to_owned(), format!("/api/{}", version.version)],
                group => [format!("/apis/{group}"), format!("/apis/{group}/{}", version.version)],
            })
        })
    }

    /// Whether every registered backend was polled at least once (readiness waits for it, KEP-3352).
    pub fn all_asked(&self) -> bool {
        self.is_registry_read && self.sources.values().all(|source| source.is_polled)
    }

    /// Whether discovery lists this resource among the first [`MAX_COUNTED`], and this subresource if it is not empty.
    /// Only listed names may become metrics labels; others may be invented by clients.
    pub fn has_resource(&self, group: &str, version: &str, resource: &str, subresource: &str) -> bool {
        let Some(names) = self.groups.get(group).and_then(|entry| entry.resource_names.get(version)) else {
            return false;
        };
        if subresource.is_empty() {
            names.contains(resource)
        } else {
            names.contains(&format!("{resource}/{subresource}"))
        }
    }

    /// The group of `/apis/<group>`.
    pub(super) fn group(&self, name: &str) -> Option<&Arc<GroupEntry>> {
        self.groups.get(name).filter(|_| !name.is_empty())
    }

    /// The document of a local group and version, by its path.
    pub(super) fn local_document(&self, path: &str) -> Option<&Arc<LocalListDocument>> {
        self.local_documents.get(path)
    }

    /// The list of all groups below `root`, in this format.
    pub(super) fn list(&self, root: Root, form: DiscoveryFormat) -> &EncodedDocument {
        let forms = &self.lists[root as usize];
        match form {
            DiscoveryFormat::V2 => forms.v2.get_or_init(|| self.aggregated(root, "apidiscovery.k8s.io/v2")),
            DiscoveryFormat::V2beta1 => {
                forms.v2beta1.get_or_init(|| self.aggregated(root, "apidiscovery.k8s.io/v2beta1"))
            }
            DiscoveryFormat::Plain => forms.plain.get_or_init(|| self.plain(root)),
        }
    }

    fn sorted_entries(&self, root: Root) -> Vec<&GroupEntry> {
        let below = |entry: &&GroupEntry| (root == Root::Core) == entry.group.name.is_empty();
        let mut all: Vec<&GroupEntry> = self.groups.values().map(AsRef::as_ref).filter(below).collect();
        all.sort_unstable_by(|a, b| (a.rank, &a.group.name).cmp(&(b.rank, &b.group.name)));
        all
    }

    fn aggregated(&self, root: Root, api_version: &'static str) -> EncodedDocument {
        let items: Vec<&RawValue> = self.sorted_entries(root).into_iter().map(|entry| &*entry.item).collect();
        aggregated_list(&items, api_version)
    }

    fn plain(&self, root: Root) -> EncodedDocument {
        let entries = self.sorted_entries(root);
        match root {
            Root::Core => EncodedDocument::from_value(&ApiVersions {
                kind: "APIVersions",
                versions: entries.iter().flat_map(|entry| &entry.group.versions).map(|one| &*one.version).collect(),
                server_address_by_client_cidrs: [],
            }),
            Root::Named => {
                let groups: Vec<PlainGroup<'_>> = entries.iter().map(|entry| PlainGroup::new(&entry.group)).collect();
                let rest = PlainGroups { groups: &groups };
                EncodedDocument::from_value(&WithTypeMeta { kind: "APIGroupList", api_version: "v1", rest })
            }
        }
    }
}

impl LocalListDocument {
    pub(super) fn get(&self) -> &EncodedDocument {
        self.document.get_or_init(|| EncodedDocument::from_value(&self.group.resource_list()))
    }
}

impl GroupEntry {
    fn new(rank: GroupRank, group: MergedGroup) -> GroupEntry {
        let of_resource = |resource: &DiscoveryResource| {
            let below = resource.subresources.iter().map(|sub| format!("{}/{}", resource.resource, sub.subresource));
            std::iter::once(resource.resource.clone()).chain(below).collect::<Vec<_>>()
        };
        let names = group.versions.iter().map(|version| {
            let all = version.resources.iter().flat_map(of_resource);
            let all = all.filter(|name| name.len() <= MAX_COUNTED_NAME).take(MAX_COUNTED).collect();
            (version.version.clone(), all)
        });
        let rest = PlainGroup::new(&group);
        GroupEntry {
            resource_names: names.collect(),
            item: item(&group),
            document: EncodedDocument::from_value(&WithTypeMeta { kind: "APIGroup", api_version: "v1", rest }),
            rank,
            group,
        }
    }
}

/// The resource lists of local groups, by path. Those of `before` that are the same are taken over.
fn local_documents(
    own: &LocalGroups,
    served: &[Arc<LocalGroup>],
    before: &BTreeMap<String, Arc<LocalListDocument>>,
) -> BTreeMap<String, Arc<LocalListDocument>> {
    let registrations = own.has_registrations().then(|| Arc::new(own.registrations()));
    let all = registrations.into_iter().chain(served.iter().cloned());
    let document = |group: Arc<LocalGroup>| {
        let path = group.list_path.clone();
        let document = match before.get(&path).filter(|before| before.group == group) {
            Some(same) => same.clone(),
            None => Arc::new(LocalListDocument { group, document: OnceLock::new() }),
        };
        (path, document)
    };
    all.map(document).collect()
}

/// The groups as a list of `api_version`.
pub(super) fn aggregated(groups: &[MergedGroup], api_version: &'static str) -> EncodedDocument {
    let items: Vec<Box<RawValue>> = groups.iter().map(item).collect();
    aggregated_list(&items.iter().map(AsRef::as_ref).collect::<Vec<_>>(), api_version)
}

fn aggregated_list(items: &[&RawValue], api_version: &'static str) -> EncodedDocument {
    #[derive(Serialize)]
    struct AggregatedList<'g> {
        metadata: EmptyListMeta,
        items: &'g [&'g RawValue],
    }
    #[derive(Serialize)]
    struct EmptyListMeta {}

    EncodedDocument::from_value(&WithTypeMeta {
        kind: "APIGroupDiscoveryList",
        api_version,
        rest: AggregatedList { metadata: EmptyListMeta {}, items },
    })
}

/// A group as an item of an aggregated list.
fn item(group: &MergedGroup) -> Box<RawValue> {
    #[derive(Serialize)]
    struct AggregatedItem<'g> {
        metadata: Metadata<'g>,
        versions: Vec<Version<'g>>,
    }
    #[derive(Serialize)]
    struct Metadata<'g> {
        // The core group has no name, and Kubernetes omits it.
        #[serde(skip_serializing_if = "str::is_empty")]
        name: &'g str,
    }
    #[derive(Serialize)]
    struct Version<'g> {
        version: &'g str,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        resources: &'g [DiscoveryResource],
        freshness: &'static str,
    }

    let versions = group.versions.iter().map(|version| Version {
        version: &version.version,
        resources: &version.resources,
        freshness: if version.current { "Current" } else { "Stale" },
    });
    // serde_json cannot fail on plain structs of strings, numbers and lists.
    to_raw_value(&AggregatedItem { metadata: Metadata { name: &group.name }, versions: versions.collect() })
        .unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WithTypeMeta<T> {
    kind: &'static str,
    api_version: &'static str,
    #[serde(flatten)]
    rest: T,
}

#[derive(Serialize)]
struct ApiVersions<'g> {
    kind: &'static str,
    versions: Vec<&'g str>,
    #[serde(rename = "serverAddressByClientCIDRs")]
    server_address_by_client_cidrs: [(); 0],
}

#[derive(Serialize)]
struct PlainGroups<'g> {
    groups: &'g [PlainGroup<'g>],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlainGroup<'g> {
    name: &'g str,
    versions: Vec<PlainVersion<'g>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preferred_version: Option<PlainVersion<'g>>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlainVersion<'g> {
    group_version: String,
    version: &'g str,
}

impl<'g> PlainGroup<'g> {
    fn new(group: &'g MergedGroup) -> PlainGroup<'g> {
        let versions: Vec<_> = group
            .versions
            .iter()
            .map(|one| PlainVersion { group_version: format!("{}/{}", group.name, one.version), version: &one.version })
            .collect();
        PlainGroup { name: &group.name, preferred_version: versions.first().cloned(), versions }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::super::claim::{ApiServiceClaim, ServedBy};
    use super::super::merge::tests::{ContentsFrom, DelegateContents};
    use super::super::model::DiscoveryResource;
    use super::*;

    fn known(group: &str, version: &str, group_priority_minimum: i32) -> ApiServiceClaim {
        ApiServiceClaim {
            name: format!("{version}.{group}"),
            group: group.into(),
            version: version.into(),
            group_priority_minimum,
            version_priority: 15,
            service_key: "a".into(),
            backend: "a".into(),
            served_by: ServedBy::Backend,
        }
    }

    /// Documents of the core group and two groups of APIServices. Also used by tests of other modules.
    pub(crate) fn documents() -> DiscoverySnapshot {
        let known = [
            known("", "v1", 18000),
            known("wardle.example.com", "v1alpha1", 1000),
            known("wardle.example.com", "v1beta1", 1000),
            known("example.narthex.dev", "v1", 2000),
        ];
        let flunders: Vec<DiscoveryResource> = serde_json::from_str(
            r#"[{"resource":"flunders","responseKind":{"group":"wardle.example.com","version":"v1alpha1","kind":"Flunder"},
                "scope":"Namespaced","singularResource":"flunder","verbs":["get","list"],"shortNames":["fl"],"categories":["all"],
                "subresources":[{"subresource":"status","responseKind":{"kind":"Flunder"},
                    "acceptedTypes":[{"group":"autoscaling","version":"v1","kind":"Scale"}],"verbs":["get"]}]}]"#,
        )
        .unwrap();
        let flunders = Arc::new(flunders);
        let contents = ContentsFrom(|one: &ApiServiceClaim| match one.name.as_str() {
            "v1alpha1.wardle.example.com" => (flunders.clone(), true),
            "v1beta1.wardle.example.com" => (flunders.clone(), false),
            _ => (Arc::default(), one.group.is_empty()),
        });
        let known = BTreeMap::from(known.map(|one| (one.name.clone(), one)));
        let groups =
            GroupMerger::new(LocalGroups::default()).update(&known, &known.keys().cloned().collect(), &contents);
        DiscoverySnapshot::empty(&LocalGroups::default()).updated(groups, BTreeMap::new())
    }

    fn text(document: &EncodedDocument) -> &str {
        std::str::from_utf8(&document.json).unwrap()
    }

    #[test]
    fn discovery_documents_match_snapshots() {
        let documents = documents();
        insta::assert_snapshot!("apis_v2", text(documents.list(Root::Named, DiscoveryFormat::V2)));
        insta::assert_snapshot!("apis_plain", text(documents.list(Root::Named, DiscoveryFormat::Plain)));
        insta::assert_snapshot!("apis_group", text(&documents.group("wardle.example.com").unwrap().document));
        insta::assert_snapshot!("api_v2", text(documents.list(Root::Core, DiscoveryFormat::V2)));
        insta::assert_snapshot!("api_plain", text(documents.list(Root::Core, DiscoveryFormat::Plain)));
        assert_eq!(
            text(documents.list(Root::Named, DiscoveryFormat::V2beta1)),
            text(documents.list(Root::Named, DiscoveryFormat::V2)).replacen(
                "apidiscovery.k8s.io/v2",
                "apidiscovery.k8s.io/v2beta1",
                1
            )
        );
    }

    #[test]
    fn discovery_resource_names_for_metrics_bounded() {
        let name = |n: usize| format!("things{n:04}");
        let long = "x".repeat(MAX_COUNTED_NAME + 1);
        let names = std::iter::once(long.clone()).chain((0..600).map(name));
        let resources: Vec<Value> =
            names.map(|name| serde_json::json!({"resource": name, "scope": "Namespaced", "verbs": ["get"]})).collect();
        let resources: Arc<Vec<DiscoveryResource>> = Arc::new(serde_json::from_value(resources.into()).unwrap());
        let contents = ContentsFrom(|_: &ApiServiceClaim| (resources.clone(), true));
        let known = BTreeMap::from([("v1.a".to_owned(), known("a", "v1", 1000))]);
        let groups =
            GroupMerger::new(LocalGroups::default()).update(&known, &known.keys().cloned().collect(), &contents);
        let documents = DiscoverySnapshot::empty(&LocalGroups::default()).updated(groups, BTreeMap::new());
        assert_eq!((0..600).filter(|n| documents.has_resource("a", "v1", &name(*n), "")).count(), MAX_COUNTED);
        assert!(!documents.has_resource("a", "v1", &long, ""));
        // The document lists all of them.
        assert!(text(documents.list(Root::Named, DiscoveryFormat::V2)).contains("\"things0599\""));
    }

    #[test]
    fn discovery_empty_has_local_groups_only() {
        let documents = DiscoverySnapshot::empty(&LocalGroups::default());
        assert_eq!(
            text(documents.list(Root::Core, DiscoveryFormat::V2)),
            "{\"kind\":\"APIGroupDiscoveryList\",\"apiVersion\":\"apidiscovery.k8s.io/v2\",\"metadata\":{},\"items\":[]}\n"
        );
        assert_eq!(
            text(documents.list(Root::Core, DiscoveryFormat::Plain)),
            "{\"kind\":\"APIVersions\",\"versions\":[],\"serverAddressByClientCIDRs\":[]}\n"
        );
        let ours = ["apiregistration.k8s.io", "authentication.k8s.io", "authorization.k8s.io"];
        let mut names: Vec<&str> = documents.groups.names().collect();
        names.sort_unstable();
        assert_eq!(names, ours);
        assert!(!documents.all_asked(), "the registry was not read yet");
    }

    #[test]
    fn discovery_snapshot_shares_unchanged_and_builds_lists_on_demand() {
        let first = documents();
        let list = |documents: &DiscoverySnapshot| text(documents.list(Root::Named, DiscoveryFormat::V2)).to_owned();
        let before = list(&first);
        let source = SourceStatus {
            apiservice: "v1.a".into(),
            is_polled: true,
            current: false,
            resources: 0,
            problem: "it is slow".into(),
            seen_by_probe: false,
            since: None,
            fetched: LastFetched::default(),
        };
        let second = first.updated(BTreeMap::new(), BTreeMap::from([("v1.a".into(), Some(source))]));
        assert!(Arc::ptr_eq(&first.lists, &second.lists), "no document changed");
        assert_eq!(second.source("v1.a").unwrap().problem, "it is slow");
        let gone = BTreeMap::from([("wardle.example.com".to_owned(), None)]);
        let third = second.updated(gone, BTreeMap::from([("v1.a".into(), None)]));
        assert!(before.contains("flunders") && list(&first) == before && !list(&third).contains("flunders"));
        let entry = |documents: &DiscoverySnapshot| documents.groups.get("example.narthex.dev").unwrap().clone();
        assert!(Arc::ptr_eq(&entry(&first), &entry(&third)) && third.sources().is_empty());
    }

    proptest::proptest! {
        #[test]
        fn discovery_snapshot_incremental_equals_full(
            steps in proptest::collection::vec((0..9usize, proptest::option::of(0..5i32), 0..3u8), 0..40),
            elsewhere in proptest::bool::ANY,
        ) {
            let own = LocalGroups { reviews: false, delegate: elsewhere, embedded: None, apiregistration_from_delegate: elsewhere, path_prefix: None };
            let groups = ["a.io", "b.io", "authentication.k8s.io"];
            let mut all = BTreeMap::new();
            let (mut merging, mut documents) = (GroupMerger::new(own.clone()), DiscoverySnapshot::empty(&own));
            let mut offers = Vec::new();
            for (which, priority, by) in steps {
                let (group, version) = (groups[which % 3], ["v1", "v2", "v1beta1"][which / 3]);
                let mut changed = BTreeSet::new();
                let name = match by {
                    2 => crate::registry::DELEGATE.to_owned(),
                    _ => format!("{version}.{group}"),
                };
                changed.insert(name.clone());
                match priority {
                    None => drop(all.remove(&name)),
                    Some(priority) => {
                        let by = [ServedBy::Backend, ServedBy::Delegate, ServedBy::DelegateItself][usize::from(by)];
                        all.insert(name.clone(), ApiServiceClaim { name, served_by: by, ..known(group, version, priority) });
                        if by == ServedBy::DelegateItself {
                            let (group, version) = (group.to_owned(), version.to_owned());
                            let resources = Arc::default();
                            offers.push(super::super::parse::GroupVersionListing { group, version, resources, current: true });
                            offers.truncate(4);
                        }
                    }
                }
                let delegated = all.contains_key(crate::registry::DELEGATE);
                let contents = DelegateContents(if delegated { offers.clone() } else { Vec::new() });
                documents = documents.updated(merging.update(&all, &changed, &contents), BTreeMap::new());
                let anew: BTreeSet<String> =
                    all.keys().cloned().chain([crate::registry::DELEGATE.to_owned()]).collect();
                let anew = DiscoverySnapshot::empty(&own).updated(GroupMerger::new(own.clone()).update(&all, &anew, &contents), BTreeMap::new());
                for (root, form) in [(Root::Named, DiscoveryFormat::V2), (Root::Named, DiscoveryFormat::Plain), (Root::Core, DiscoveryFormat::V2)] {
                    proptest::prop_assert_eq!(text(documents.list(root, form)), text(anew.list(root, form)));
                }
            }
        }
    }

    #[test]
    fn discovery_etag_is_hash_of_json() {
        let tag = EncodedDocument::from_value(&"x").etag;
        // printf '"x"\n' | sha512sum
        assert_eq!(tag.len(), 130);
        assert_eq!(tag, EncodedDocument::from_value(&"x").etag);
        assert_ne!(tag, EncodedDocument::from_value(&"y").etag);
        assert!(tag.to_str().unwrap().bytes().all(|b| matches!(b, b'"' | b'0'..=b'9' | b'A'..=b'F')));
    }

    #[test]
    fn discovery_large_documents_gzipped() {
        use std::io::Read;
        assert_eq!(EncodedDocument::from_value(&"small").gzipped(), None);
        let document = EncodedDocument::from_value(&"large ".repeat(50_000));
        let packed = document.gzipped().unwrap();
        assert!(packed.len() < document.json.len() / 10);
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, document.json);
        // Other encodings, too.
        let yaml = document.yaml().unwrap();
        assert!(yaml.is_large() && yaml.gzipped().unwrap().len() < yaml.bytes.len() / 10);
    }

    #[test]
    fn discovery_yaml_equals_json() {
        let documents = documents();
        let document = documents.list(Root::Named, DiscoveryFormat::Plain);
        let yaml = document.yaml().unwrap();
        let back: Value = serde_saphyr::from_slice(&yaml.bytes).unwrap();
        assert_eq!(back, serde_json::from_slice::<Value>(&document.json).unwrap());
    }
}
