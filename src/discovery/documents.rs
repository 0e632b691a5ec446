//! Snapshot of all discovery documents. The next snapshot shares what did not change.
//!
//! The document of a group is written when it changes. The lists of all groups are assembled on the first request after
//! a change: a change costs its own size, and a list is written once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest;
use bytes::Bytes;
use http::HeaderValue;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::aggregation::Content;
use super::document::Resource;
use super::keeper::Contents;
use super::media::Form;
use super::merge::{Group, Merging, Rank};
use super::own::{self, Own};
use super::protobuf;
use crate::process::{Published, Sharded};

/// Minimum size for gzip (upstream's `defaultGzipThresholdBytes`).
const WORTH_PACKING: usize = 128 << 10;

/// All discovery documents at one moment.
#[derive(Clone)]
pub struct Documents {
    /// Groups by name; that of the core group is empty.
    groups: Sharded<Arc<Entry>>,
    /// `/api` for the core group and `/apis` for all others, written on demand.
    lists: Arc<[Forms; 2]>,
    /// Local groups by path: `/apis/apiregistration.k8s.io/v1` and others.
    own: Arc<BTreeMap<&'static str, Document>>,
    /// State of each APIService, by name.
    sources: Sharded<Arc<Source>>,
    /// Whether the registry has been read.
    told: bool,
}

/// Maximum number of resources and subresources per group and version that have metrics labels of their own. A backend
/// chooses how many it has, and each requested one is some forty samples.
const MAX_COUNTED: usize = 100;
/// Maximum length of such a name in bytes.
const MAX_COUNTED_NAME: usize = 256;

/// A group with its documents.
struct Entry {
    rank: Rank,
    group: Group,
    /// Names of resources and subresources (`resource/subresource`) by version; the first [`MAX_COUNTED`].
    names: BTreeMap<String, BTreeSet<String>>,
    /// The group as an item of an aggregated list.
    item: Box<RawValue>,
    /// `/apis/<group>`.
    document: Document,
}

/// State of one APIService in discovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Name of the APIService.
    pub apiservice: String,
    /// Whether its backend was polled at least once since start.
    pub asked: bool,
    /// Whether the served content is that of the backend's last response.
    pub current: bool,
    /// Number of resources served.
    pub resources: usize,
    /// Why it is not current; empty if it is. For operators, not for clients.
    pub problem: String,
    /// Whether the availability probe fails for the same reason.
    #[serde(skip)]
    pub seen_by_probe: bool,
    /// Time of the last change of `current`.
    #[serde(skip)]
    pub since: Option<SystemTime>,
    /// Time of the last successful poll.
    #[serde(skip)]
    pub fetched: Moment,
}

/// `problem` with the note that a last good response `is_served`, if it is.
pub(crate) fn with_last_good(problem: &str, is_served: bool) -> String {
    format!("{problem}{}", if is_served { "; its last good answer is served" } else { "" })
}

/// Time of the last occurrence, shared by its clones. All values are equal, so a new occurrence is no change.
#[derive(Clone, Debug, Default)]
pub struct Moment(Arc<AtomicU64>);

impl Moment {
    /// Records the current time.
    pub(super) fn is_now(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.0.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The recorded time.
    pub fn last(&self) -> Option<SystemTime> {
        let millis = self.0.load(Ordering::Relaxed);
        (millis > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_millis(millis))
    }
}

impl PartialEq for Moment {
    fn eq(&self, _: &Moment) -> bool {
        true
    }
}

impl Eq for Moment {}

/// The list of one root in the three formats, written on demand.
#[derive(Default)]
struct Forms {
    /// `apidiscovery.k8s.io/v2`.
    v2: OnceLock<Document>,
    /// `apidiscovery.k8s.io/v2beta1`, for clients before Kubernetes 1.30.
    v2beta1: OnceLock<Document>,
    /// `APIVersions` or `APIGroupList`.
    plain: OnceLock<Document>,
}

/// A path that lists groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// `/api`.
    Core,
    /// `/apis`.
    Named,
}

/// One document in several encodings.
#[derive(Debug)]
pub(crate) struct Document {
    /// JSON, with a newline at the end.
    pub(crate) json: Bytes,
    /// Entity tag with quotes: upper-case hexadecimal SHA-512 of the JSON, as upstream.
    pub(crate) etag: HeaderValue,
    packed: OnceLock<Option<Bytes>>,
    yaml: OnceLock<Option<Written>>,
    protobuf: OnceLock<Option<Written>>,
}

/// A document in another encoding than JSON.
#[derive(Debug)]
pub(crate) struct Written {
    /// The complete document.
    pub(crate) bytes: Bytes,
    packed: OnceLock<Option<Bytes>>,
}

impl Written {
    fn new(bytes: impl Into<Bytes>) -> Written {
        Written { bytes: bytes.into(), packed: OnceLock::new() }
    }

    /// Whether it may be sent with gzip.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.len() >= WORTH_PACKING
    }

    /// As [`Document::packed`].
    pub(crate) fn packed(&self) -> Option<Bytes> {
        self.packed.get_or_init(|| packed(&self.bytes)).clone()
    }
}

/// `bytes` compressed with gzip; `None` below the threshold.
fn packed(bytes: &[u8]) -> Option<Bytes> {
    if bytes.len() < WORTH_PACKING {
        return None;
    }
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(4));
    packer.write_all(bytes).ok()?;
    packer.finish().ok().map(Bytes::from)
}

impl Documents {
    /// The documents before the registry is read: the local groups.
    pub fn empty(own: Own) -> Documents {
        let served = own.served().iter().map(|served| (served.path, served.resource_list()));
        let registrations = own.has_registrations().then(|| (own::PATH, own::resource_list()));
        let all = registrations.into_iter().chain(served).map(|(path, list)| (path, Document::of(&list)));
        let nothing = Documents {
            groups: Sharded::default(),
            lists: Arc::default(),
            own: Arc::new(all.collect()),
            sources: Sharded::default(),
            told: false,
        };
        let contents: Contents<Content> = Contents::new();
        let groups = Merging::new(own).look(&BTreeMap::new(), &BTreeSet::new(), &contents);
        Documents { told: false, ..nothing.with(groups, BTreeMap::new()) }
    }

    /// A snapshot of the local groups that never changes.
    pub fn fixed_empty() -> Published<Documents> {
        Published::fixed(Documents::empty(Own::default()))
    }

    /// A new snapshot with changed groups and sources; `None` removes one.
    pub(super) fn with(
        &self,
        groups: BTreeMap<String, Option<(Rank, Group)>>,
        sources: BTreeMap<String, Option<Source>>,
    ) -> Documents {
        let mut next = Documents { told: true, ..self.clone() };
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
                Some((rank, group)) => next.groups.insert(&name, Arc::new(Entry::new(rank, group))),
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
    pub fn source(&self, apiservice: &str) -> Option<&Source> {
        self.sources.get(apiservice).map(AsRef::as_ref)
    }

    /// State of all APIServices sorted by name. Sorts on each call.
    pub fn sources(&self) -> Vec<&Source> {
        let mut all: Vec<&Source> = self.sources.values().map(AsRef::as_ref).collect();
        all.sort_unstable_by(|a, b| a.apiservice.cmp(&b.apiservice));
        all
    }

    /// `/api`, `/apis/<group>` and `/apis/<group>/<version>` of all groups.
    pub fn group_paths(&self) -> impl Iterator<Item = String> {
        let mut all: Vec<&Group> = self.groups.values().map(|entry| &entry.group).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all.into_iter().flat_map(|Group { name, versions }| {
            versions.iter().flat_map(move |version| match &**name {
                "" => ["/api".to_owned(), format!("/api/{}", version.version)],
                group => [format!("/apis/{group}"), format!("/apis/{group}/{}", version.version)],
            })
        })
    }

    /// Whether every registered backend was polled at least once (readiness waits for it, KEP-3352).
    pub fn all_asked(&self) -> bool {
        self.told && self.sources.values().all(|source| source.asked)
    }

    /// Whether discovery lists this resource among the first [`MAX_COUNTED`], and this subresource if it is not empty.
    /// Only listed names may become metrics labels; others may be invented by clients.
    pub fn knows(&self, group: &str, version: &str, resource: &str, subresource: &str) -> bool {
        let Some(names) = self.groups.get(group).and_then(|entry| entry.names.get(version)) else { return false };
        if subresource.is_empty() {
            names.contains(resource)
        } else {
            names.contains(&format!("{resource}/{subresource}"))
        }
    }

    /// The document of `/apis/<group>`.
    pub(super) fn group(&self, name: &str) -> Option<&Document> {
        self.groups.get(name).filter(|_| !name.is_empty()).map(|entry| &entry.document)
    }

    /// The document of a local group and version, by its path.
    pub(super) fn own(&self, path: &str) -> Option<&Document> {
        self.own.get(path)
    }

    /// The list of all groups below `root`, in this format.
    pub(super) fn list(&self, root: Root, form: Form) -> &Document {
        let forms = &self.lists[root as usize];
        match form {
            Form::V2 => forms.v2.get_or_init(|| self.aggregated(root, "apidiscovery.k8s.io/v2")),
            Form::V2beta1 => forms.v2beta1.get_or_init(|| self.aggregated(root, "apidiscovery.k8s.io/v2beta1")),
            Form::Plain => forms.plain.get_or_init(|| self.plain(root)),
        }
    }

    fn in_order(&self, root: Root) -> Vec<&Entry> {
        let below = |entry: &&Entry| (root == Root::Core) == entry.group.name.is_empty();
        let mut all: Vec<&Entry> = self.groups.values().map(AsRef::as_ref).filter(below).collect();
        all.sort_unstable_by(|a, b| (a.rank, &a.group.name).cmp(&(b.rank, &b.group.name)));
        all
    }

    fn aggregated(&self, root: Root, api_version: &'static str) -> Document {
        let items: Vec<&RawValue> = self.in_order(root).into_iter().map(|entry| &*entry.item).collect();
        list_of(&items, api_version)
    }

    fn plain(&self, root: Root) -> Document {
        let entries = self.in_order(root);
        match root {
            Root::Core => Document::of(&ApiVersions {
                kind: "APIVersions",
                versions: entries.iter().flat_map(|entry| &entry.group.versions).map(|one| &*one.version).collect(),
                server_address_by_client_cidrs: [],
            }),
            Root::Named => {
                let groups: Vec<PlainGroup<'_>> = entries.iter().map(|entry| PlainGroup::of(&entry.group)).collect();
                let rest = PlainGroups { groups: &groups };
                Document::of(&Typed { kind: "APIGroupList", api_version: "v1", rest })
            }
        }
    }
}

impl Entry {
    fn new(rank: Rank, group: Group) -> Entry {
        let of_resource = |resource: &Resource| {
            let below = resource.subresources.iter().map(|sub| format!("{}/{}", resource.resource, sub.subresource));
            std::iter::once(resource.resource.clone()).chain(below).collect::<Vec<_>>()
        };
        let names = group.versions.iter().map(|version| {
            let all = version.resources.iter().flat_map(of_resource);
            let all = all.filter(|name| name.len() <= MAX_COUNTED_NAME).take(MAX_COUNTED).collect();
            (version.version.clone(), all)
        });
        let rest = PlainGroup::of(&group);
        Entry {
            names: names.collect(),
            item: item(&group),
            document: Document::of(&Typed { kind: "APIGroup", api_version: "v1", rest }),
            rank,
            group,
        }
    }
}

impl Document {
    /// Serializes `value`, which must consist of plain structs, strings, numbers and lists.
    pub(crate) fn of(value: &impl Serialize) -> Document {
        // serde_json cannot fail on plain structs of strings, numbers and lists.
        let mut json = serde_json::to_vec(value).unwrap_or_default();
        json.push(b'\n');
        Document::from_json(json.into())
    }

    /// A document from its JSON.
    pub(crate) fn from_json(json: Bytes) -> Document {
        let digest = digest::digest(&digest::SHA512, &json);
        let mut etag = String::with_capacity(130);
        etag.push('"');
        const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
        for byte in digest.as_ref() {
            etag.extend([byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]));
        }
        etag.push('"');
        let etag = HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\""));
        Document { json, etag, packed: OnceLock::new(), yaml: OnceLock::new(), protobuf: OnceLock::new() }
    }

    /// Whether it may be sent with gzip.
    pub(crate) fn is_large(&self) -> bool {
        self.json.len() >= WORTH_PACKING
    }

    /// The JSON compressed with gzip on the first call; `None` below the threshold.
    pub(crate) fn packed(&self) -> Option<Bytes> {
        self.packed.get_or_init(|| packed(&self.json)).clone()
    }

    /// The document as YAML, converted on the first call; `None` if that fails.
    pub(super) fn yaml(&self) -> Option<&Written> {
        let write = || {
            let value: serde_json::Value = serde_json::from_slice(&self.json).ok()?;
            serde_saphyr::to_string(&value).ok().map(Written::new)
        };
        self.yaml.get_or_init(write).as_ref()
    }

    /// The document as Kubernetes protobuf, encoded on the first call; `None` if it is not a discovery document.
    pub(super) fn protobuf(&self) -> Option<&Written> {
        self.protobuf.get_or_init(|| protobuf::encode(&self.json).map(Written::new)).as_ref()
    }
}

/// The groups as a list of `api_version`.
pub(super) fn aggregated(groups: &[Group], api_version: &'static str) -> Document {
    let items: Vec<Box<RawValue>> = groups.iter().map(item).collect();
    list_of(&items.iter().map(AsRef::as_ref).collect::<Vec<_>>(), api_version)
}

fn list_of(items: &[&RawValue], api_version: &'static str) -> Document {
    #[derive(Serialize)]
    struct List<'g> {
        metadata: Nothing,
        items: &'g [&'g RawValue],
    }
    #[derive(Serialize)]
    struct Nothing {}

    Document::of(&Typed { kind: "APIGroupDiscoveryList", api_version, rest: List { metadata: Nothing {}, items } })
}

/// A group as an item of an aggregated list.
fn item(group: &Group) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Item<'g> {
        metadata: Metadata<'g>,
        versions: Vec<Version<'g>>,
    }
    #[derive(Serialize)]
    struct Metadata<'g> {
        // The core group has no name, and upstream omits it.
        #[serde(skip_serializing_if = "str::is_empty")]
        name: &'g str,
    }
    #[derive(Serialize)]
    struct Version<'g> {
        version: &'g str,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        resources: &'g [Resource],
        freshness: &'static str,
    }

    let versions = group.versions.iter().map(|version| Version {
        version: &version.version,
        resources: &version.resources,
        freshness: if version.current { "Current" } else { "Stale" },
    });
    // serde_json cannot fail on plain structs of strings, numbers and lists.
    to_raw_value(&Item { metadata: Metadata { name: &group.name }, versions: versions.collect() }).unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Typed<T> {
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
    fn of(group: &'g Group) -> PlainGroup<'g> {
        let versions: Vec<_> = group
            .versions
            .iter()
            .map(|one| PlainVersion { group_version: format!("{}/{}", group.name, one.version), version: &one.version })
            .collect();
        PlainGroup { name: &group.name, preferred_version: versions.first().cloned(), versions }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::document::Resource;
    use super::super::known::{By, Known};
    use super::super::merge::tests::{Each, Nothing};
    use super::*;

    fn known(group: &str, version: &str, group_priority_minimum: i32) -> Known {
        Known {
            name: format!("{version}.{group}"),
            group: group.into(),
            version: version.into(),
            group_priority_minimum,
            version_priority: 15,
            service_key: "a".into(),
            backend: "a".into(),
            by: By::Backend,
        }
    }

    fn documents() -> Documents {
        let known = [
            known("", "v1", 18000),
            known("wardle.example.com", "v1alpha1", 1000),
            known("wardle.example.com", "v1beta1", 1000),
            known("example.narthex.dev", "v1", 2000),
        ];
        let flunders: Vec<Resource> = serde_json::from_str(
            r#"[{"resource":"flunders","responseKind":{"group":"wardle.example.com","version":"v1alpha1","kind":"Flunder"},
                "scope":"Namespaced","singularResource":"flunder","verbs":["get","list"],"shortNames":["fl"],"categories":["all"],
                "subresources":[{"subresource":"status","responseKind":{"kind":"Flunder"},
                    "acceptedTypes":[{"group":"autoscaling","version":"v1","kind":"Scale"}],"verbs":["get"]}]}]"#,
        )
        .unwrap();
        let flunders = Arc::new(flunders);
        let contents = Each(|one: &Known| match one.name.as_str() {
            "v1alpha1.wardle.example.com" => (flunders.clone(), true),
            "v1beta1.wardle.example.com" => (flunders.clone(), false),
            _ => (Arc::default(), one.group.is_empty()),
        });
        let known = BTreeMap::from(known.map(|one| (one.name.clone(), one)));
        let groups = Merging::new(Own::default()).look(&known, &known.keys().cloned().collect(), &contents);
        Documents::empty(Own::default()).with(groups, BTreeMap::new())
    }

    fn text(document: &Document) -> &str {
        std::str::from_utf8(&document.json).unwrap()
    }

    #[test]
    fn documents_are_as_written_down() {
        let documents = documents();
        insta::assert_snapshot!("apis_v2", text(documents.list(Root::Named, Form::V2)));
        insta::assert_snapshot!("apis_plain", text(documents.list(Root::Named, Form::Plain)));
        insta::assert_snapshot!("apis_group", text(documents.group("wardle.example.com").unwrap()));
        insta::assert_snapshot!("api_v2", text(documents.list(Root::Core, Form::V2)));
        insta::assert_snapshot!("api_plain", text(documents.list(Root::Core, Form::Plain)));
        assert_eq!(
            text(documents.list(Root::Named, Form::V2beta1)),
            text(documents.list(Root::Named, Form::V2)).replacen(
                "apidiscovery.k8s.io/v2",
                "apidiscovery.k8s.io/v2beta1",
                1
            )
        );
    }

    #[test]
    fn metrics_names_of_one_group_version_are_bounded() {
        let name = |n: usize| format!("things{n:04}");
        let long = "x".repeat(MAX_COUNTED_NAME + 1);
        let names = std::iter::once(long.clone()).chain((0..600).map(name));
        let resources: Vec<serde_json::Value> =
            names.map(|name| serde_json::json!({"resource": name, "scope": "Namespaced", "verbs": ["get"]})).collect();
        let resources: Arc<Vec<Resource>> = Arc::new(serde_json::from_value(resources.into()).unwrap());
        let contents = Each(|_: &Known| (resources.clone(), true));
        let known = BTreeMap::from([("v1.a".to_owned(), known("a", "v1", 1000))]);
        let groups = Merging::new(Own::default()).look(&known, &known.keys().cloned().collect(), &contents);
        let documents = Documents::empty(Own::default()).with(groups, BTreeMap::new());
        assert_eq!((0..600).filter(|n| documents.knows("a", "v1", &name(*n), "")).count(), MAX_COUNTED);
        assert!(!documents.knows("a", "v1", &long, ""));
        // The document lists all of them.
        assert!(text(documents.list(Root::Named, Form::V2)).contains("\"things0599\""));
    }

    #[test]
    fn before_anything_is_known_there_is_our_own_group_and_no_core() {
        let documents = Documents::empty(Own::default());
        assert_eq!(
            text(documents.list(Root::Core, Form::V2)),
            "{\"kind\":\"APIGroupDiscoveryList\",\"apiVersion\":\"apidiscovery.k8s.io/v2\",\"metadata\":{},\"items\":[]}\n"
        );
        assert_eq!(
            text(documents.list(Root::Core, Form::Plain)),
            "{\"kind\":\"APIVersions\",\"versions\":[],\"serverAddressByClientCIDRs\":[]}\n"
        );
        let ours = ["apiregistration.k8s.io", "authentication.k8s.io", "authorization.k8s.io"];
        let mut names: Vec<&str> = documents.groups.names().collect();
        names.sort_unstable();
        assert_eq!(names, ours);
        assert!(!documents.all_asked(), "the registry was not read yet");
    }

    #[test]
    fn what_did_not_change_is_shared_and_a_list_is_written_for_the_first_who_asks() {
        let first = documents();
        let list = |documents: &Documents| text(documents.list(Root::Named, Form::V2)).to_owned();
        let before = list(&first);
        let source = Source {
            apiservice: "v1.a".into(),
            asked: true,
            current: false,
            resources: 0,
            problem: "it is slow".into(),
            seen_by_probe: false,
            since: None,
            fetched: Moment::default(),
        };
        let second = first.with(BTreeMap::new(), BTreeMap::from([("v1.a".into(), Some(source))]));
        assert!(Arc::ptr_eq(&first.lists, &second.lists), "no document changed");
        assert_eq!(second.source("v1.a").unwrap().problem, "it is slow");
        let gone = BTreeMap::from([("wardle.example.com".to_owned(), None)]);
        let third = second.with(gone, BTreeMap::from([("v1.a".into(), None)]));
        assert!(before.contains("flunders") && list(&first) == before && !list(&third).contains("flunders"));
        let entry = |documents: &Documents| documents.groups.get("example.narthex.dev").unwrap().clone();
        assert!(Arc::ptr_eq(&entry(&first), &entry(&third)) && third.sources().is_empty());
    }

    proptest::proptest! {
        #[test]
        fn change_by_change_they_are_as_if_they_were_made_anew(
            steps in proptest::collection::vec((0..9usize, proptest::option::of(0..5i32), 0..3u8), 0..40),
            elsewhere in proptest::bool::ANY,
        ) {
            let own = Own { delegation: false, delegate: elsewhere, registrations_elsewhere: elsewhere };
            let groups = ["a.io", "b.io", "authentication.k8s.io"];
            let mut all = BTreeMap::new();
            let (mut merging, mut documents) = (Merging::new(own), Documents::empty(own));
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
                        let by = [By::Backend, By::Delegate, By::Itself][usize::from(by)];
                        all.insert(name.clone(), Known { name, by, ..known(group, version, priority) });
                        if by == By::Itself {
                            let (group, version) = (group.to_owned(), version.to_owned());
                            let resources = Arc::default();
                            offers.push(super::super::parse::Offered { group, version, resources, current: true });
                            offers.truncate(4);
                        }
                    }
                }
                let delegated = all.contains_key(crate::registry::DELEGATE);
                let contents = Nothing(if delegated { offers.clone() } else { Vec::new() });
                documents = documents.with(merging.look(&all, &changed, &contents), BTreeMap::new());
                let anew: BTreeSet<String> =
                    all.keys().cloned().chain([crate::registry::DELEGATE.to_owned()]).collect();
                let anew = Documents::empty(own).with(Merging::new(own).look(&all, &anew, &contents), BTreeMap::new());
                for (root, form) in [(Root::Named, Form::V2), (Root::Named, Form::Plain), (Root::Core, Form::V2)] {
                    proptest::prop_assert_eq!(text(documents.list(root, form)), text(anew.list(root, form)));
                }
            }
        }
    }

    #[test]
    fn the_tag_is_the_hash_of_the_bytes() {
        let tag = Document::of(&"x").etag;
        // printf '"x"\n' | sha512sum
        assert_eq!(tag.len(), 130);
        assert_eq!(tag, Document::of(&"x").etag);
        assert_ne!(tag, Document::of(&"y").etag);
        assert!(tag.to_str().unwrap().bytes().all(|b| matches!(b, b'"' | b'0'..=b'9' | b'A'..=b'F')));
    }

    #[test]
    fn large_documents_are_packed_and_small_ones_not() {
        use std::io::Read;
        assert_eq!(Document::of(&"small").packed(), None);
        let document = Document::of(&"large ".repeat(50_000));
        let packed = document.packed().unwrap();
        assert!(packed.len() < document.json.len() / 10);
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, document.json);
        // Other encodings, too.
        let yaml = document.yaml().unwrap();
        assert!(yaml.is_large() && yaml.packed().unwrap().len() < yaml.bytes.len() / 10);
    }

    #[test]
    fn yaml_says_the_same() {
        let documents = documents();
        let document = documents.list(Root::Named, Form::Plain);
        let yaml = document.yaml().unwrap();
        let back: serde_json::Value = serde_saphyr::from_slice(&yaml.bytes).unwrap();
        assert_eq!(back, serde_json::from_slice::<serde_json::Value>(&document.json).unwrap());
    }
}
