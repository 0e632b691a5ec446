//! The finished documents: one immutable snapshot of bytes, made when something changed, never per request.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::OnceLock;
use std::time::SystemTime;

use aws_lc_rs::digest;
use bytes::Bytes;
use http::HeaderValue;
use serde::Serialize;

use super::aggregation::Content;
use super::document::Resource;
use super::keeper::Contents;
use super::merge::{Group, merge};
use super::own::{self, Own};
use super::protobuf;
use crate::process::Published;

/// Below this, packing costs more than it saves (upstream's `defaultGzipThresholdBytes`).
const WORTH_PACKING: usize = 128 << 10;

/// All discovery documents at one moment.
#[derive(Debug)]
pub struct Documents {
    /// `/api`: the core group, if an APIService has it.
    pub(super) core: Forms,
    /// `/apis`: all other groups.
    pub(super) groups: Forms,
    /// `/apis/<group>` by name.
    pub(super) group: BTreeMap<String, Document>,
    /// What we serve ourselves, by path: `/apis/apiregistration.k8s.io/v1` and its like.
    pub(super) own: BTreeMap<&'static str, Document>,
    /// What each APIService contributed, by name.
    pub sources: Vec<Source>,
    /// Whether that is all there is: what is registered has been read.
    told: bool,
    /// The resources there are, and their subresources as `resource/subresource`, by group and version.
    names: BTreeMap<(String, String), BTreeSet<String>>,
}

/// What one APIService contributed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Its name.
    pub apiservice: String,
    /// Whether its backend was asked at least once since start.
    pub asked: bool,
    /// Whether what is served for it is what its backend said when last asked.
    pub current: bool,
    /// How many resources are served for it.
    pub resources: usize,
    /// Why it is not current; empty when it is. For the operator, not for clients.
    pub problem: String,
    /// When `current` became what it is.
    #[serde(skip)]
    pub since: Option<SystemTime>,
}

/// One path in the three forms that clients may ask for.
#[derive(Debug)]
pub(super) struct Forms {
    /// `apidiscovery.k8s.io/v2`.
    pub(super) v2: Document,
    /// `apidiscovery.k8s.io/v2beta1`, for clients before Kubernetes 1.30.
    pub(super) v2beta1: Document,
    /// `APIVersions` or `APIGroupList`.
    pub(super) plain: Document,
}

/// One document.
#[derive(Debug)]
pub(crate) struct Document {
    /// As JSON, with a newline at the end.
    pub(crate) json: Bytes,
    /// Its entity tag with quotes: upper-case hexadecimal SHA-512 of the JSON, as upstream has it.
    pub(crate) etag: HeaderValue,
    packed: OnceLock<Option<Bytes>>,
    yaml: OnceLock<Option<Written>>,
    protobuf: OnceLock<Option<Written>>,
}

/// A document in another encoding than JSON.
#[derive(Debug)]
pub(crate) struct Written {
    /// The whole of it.
    pub(crate) bytes: Bytes,
    packed: OnceLock<Option<Bytes>>,
}

impl Written {
    fn new(bytes: impl Into<Bytes>) -> Written {
        Written { bytes: bytes.into(), packed: OnceLock::new() }
    }

    /// Whether it may be sent packed.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.len() >= WORTH_PACKING
    }

    /// As [`Document::packed`].
    pub(crate) fn packed(&self) -> Option<Bytes> {
        self.packed.get_or_init(|| packed(&self.bytes)).clone()
    }
}

/// `bytes` packed with gzip, where that is worth it.
fn packed(bytes: &[u8]) -> Option<Bytes> {
    if bytes.len() < WORTH_PACKING {
        return None;
    }
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(4));
    packer.write_all(bytes).ok()?;
    packer.finish().ok().map(Bytes::from)
}

impl Documents {
    /// What is served before any registry was read: our own groups.
    pub fn empty(own: Own) -> Documents {
        const NOTHING: Contents<Content> = Contents::new();
        Documents { told: false, ..Documents::new(&merge(&[], own, &NOTHING), own, Vec::new()) }
    }

    /// A snapshot that never changes, of our own group alone.
    pub fn fixed_empty() -> Published<Documents> {
        Published::fixed(Documents::empty(Own::default()))
    }

    /// `/api`, `/apis/<group>` and `/apis/<group>/<version>` of all there is.
    pub fn group_paths(&self) -> impl Iterator<Item = String> {
        self.names.keys().flat_map(|(group, version)| match &**group {
            "" => ["/api".to_owned(), format!("/api/{version}")],
            group => [format!("/apis/{group}"), format!("/apis/{group}/{version}")],
        })
    }

    /// Whether every backend known now was asked at least once (what readiness waits for, KEP-3352).
    pub fn all_asked(&self) -> bool {
        self.told && self.sources.iter().all(|source| source.asked)
    }

    /// Whether discovery names this resource, and this subresource if it is not empty: names that a client made
    /// up must not become labels of metrics.
    pub fn knows(&self, group: &str, version: &str, resource: &str, subresource: &str) -> bool {
        let Some(names) = self.names.get(&(group.to_owned(), version.to_owned())) else { return false };
        if subresource.is_empty() {
            names.contains(resource)
        } else {
            names.contains(&format!("{resource}/{subresource}"))
        }
    }

    /// Writes the documents of `groups`, which are in order.
    pub(super) fn new(groups: &[Group], own: Own, sources: Vec<Source>) -> Documents {
        let (core, named): (Vec<&Group>, Vec<&Group>) = groups.iter().partition(|group| group.name.is_empty());
        let core_versions = core.iter().flat_map(|group| &group.versions).map(|v| v.version.as_str()).collect();
        let plain: Vec<PlainGroup<'_>> = named.iter().map(|group| PlainGroup::of(group)).collect();
        Documents {
            core: Forms {
                v2: aggregated(&core, "apidiscovery.k8s.io/v2"),
                v2beta1: aggregated(&core, "apidiscovery.k8s.io/v2beta1"),
                plain: Document::of(&ApiVersions {
                    kind: "APIVersions",
                    versions: core_versions,
                    server_address_by_client_cidrs: [],
                }),
            },
            groups: Forms {
                v2: aggregated(&named, "apidiscovery.k8s.io/v2"),
                v2beta1: aggregated(&named, "apidiscovery.k8s.io/v2beta1"),
                plain: Document::of(&Typed {
                    kind: "APIGroupList",
                    api_version: "v1",
                    rest: PlainGroups { groups: &plain },
                }),
            },
            group: plain
                .iter()
                .map(|group| {
                    let document = Document::of(&Typed { kind: "APIGroup", api_version: "v1", rest: group });
                    (group.name.to_owned(), document)
                })
                .collect(),
            own: own
                .has_registrations()
                .then(|| (own::PATH, own::resource_list()))
                .into_iter()
                .chain(own.served().iter().map(|served| (served.path, served.resource_list())))
                .map(|(path, list)| (path, Document::of(&list)))
                .collect(),
            sources,
            told: true,
            names: names(groups),
        }
    }
}

impl Document {
    /// Writes `value`, which must be of plain structs, strings, numbers and lists.
    pub(crate) fn of(value: &impl Serialize) -> Document {
        // Plain structs of strings, numbers and lists: serde_json has no way to fail on them.
        let mut json = serde_json::to_vec(value).unwrap_or_default();
        json.push(b'\n');
        Document::from_json(json.into())
    }

    /// The document that is `json`.
    pub(crate) fn from_json(json: Bytes) -> Document {
        let digest = digest::digest(&digest::SHA512, &json);
        let mut etag = String::with_capacity(130);
        etag.push('"');
        for byte in digest.as_ref() {
            etag.push_str(&format!("{byte:02X}"));
        }
        etag.push('"');
        let etag = HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\""));
        Document { json, etag, packed: OnceLock::new(), yaml: OnceLock::new(), protobuf: OnceLock::new() }
    }

    /// Whether it may be sent packed.
    pub(crate) fn is_large(&self) -> bool {
        self.json.len() >= WORTH_PACKING
    }

    /// The JSON packed with gzip, where that is worth it; packed when first asked for.
    pub(crate) fn packed(&self) -> Option<Bytes> {
        self.packed.get_or_init(|| packed(&self.json)).clone()
    }

    /// The document as YAML; written when first asked for. `None` if it cannot be.
    pub(super) fn yaml(&self) -> Option<&Written> {
        let write = || {
            let value: serde_json::Value = serde_json::from_slice(&self.json).ok()?;
            serde_saphyr::to_string(&value).ok().map(Written::new)
        };
        self.yaml.get_or_init(write).as_ref()
    }

    /// The document as Kubernetes' protobuf; written when first asked for. `None` if it is no document of discovery.
    pub(super) fn protobuf(&self) -> Option<&Written> {
        self.protobuf.get_or_init(|| protobuf::encode(&self.json).map(Written::new)).as_ref()
    }
}

fn names(groups: &[Group]) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut names = BTreeMap::new();
    for group in groups {
        for version in &group.versions {
            let of_resource = |resource: &Resource| {
                let below =
                    resource.subresources.iter().map(|sub| format!("{}/{}", resource.resource, sub.subresource));
                std::iter::once(resource.resource.clone()).chain(below).collect::<Vec<_>>()
            };
            let all = version.resources.iter().flat_map(of_resource).collect();
            names.insert((group.name.clone(), version.version.clone()), all);
        }
    }
    names
}

/// The groups in the form of `api_version`.
pub(super) fn aggregated(groups: &[&Group], api_version: &'static str) -> Document {
    #[derive(Serialize)]
    struct List<'g> {
        metadata: Nothing,
        items: Vec<Item<'g>>,
    }
    #[derive(Serialize)]
    struct Nothing {}
    #[derive(Serialize)]
    struct Item<'g> {
        metadata: Metadata<'g>,
        versions: Vec<Version<'g>>,
    }
    #[derive(Serialize)]
    struct Metadata<'g> {
        // The core group has none, and upstream leaves an empty name out.
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

    let items = groups.iter().map(|group| Item {
        metadata: Metadata { name: &group.name },
        versions: group
            .versions
            .iter()
            .map(|version| Version {
                version: &version.version,
                resources: &version.resources,
                freshness: if version.current { "Current" } else { "Stale" },
            })
            .collect(),
    });
    let rest = List { metadata: Nothing {}, items: items.collect() };
    Document::of(&Typed { kind: "APIGroupDiscoveryList", api_version, rest })
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
    use super::super::merge::merge;
    use super::super::merge::tests::Each;
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
        let groups = merge(&known, Own::default(), &contents);
        Documents::new(&groups, Own::default(), Vec::new())
    }

    fn text(document: &Document) -> &str {
        std::str::from_utf8(&document.json).unwrap()
    }

    #[test]
    fn documents_are_as_written_down() {
        let documents = documents();
        insta::assert_snapshot!("apis_v2", text(&documents.groups.v2));
        insta::assert_snapshot!("apis_plain", text(&documents.groups.plain));
        insta::assert_snapshot!("apis_group", text(&documents.group["wardle.example.com"]));
        insta::assert_snapshot!("api_v2", text(&documents.core.v2));
        insta::assert_snapshot!("api_plain", text(&documents.core.plain));
        assert_eq!(
            text(&documents.groups.v2beta1),
            text(&documents.groups.v2).replacen("apidiscovery.k8s.io/v2", "apidiscovery.k8s.io/v2beta1", 1)
        );
    }

    #[test]
    fn before_anything_is_known_there_is_our_own_group_and_no_core() {
        let documents = Documents::empty(Own::default());
        assert_eq!(
            text(&documents.core.v2),
            "{\"kind\":\"APIGroupDiscoveryList\",\"apiVersion\":\"apidiscovery.k8s.io/v2\",\"metadata\":{},\"items\":[]}\n"
        );
        assert_eq!(
            text(&documents.core.plain),
            "{\"kind\":\"APIVersions\",\"versions\":[],\"serverAddressByClientCIDRs\":[]}\n"
        );
        let ours = ["apiregistration.k8s.io", "authentication.k8s.io", "authorization.k8s.io"];
        assert_eq!(documents.group.keys().collect::<Vec<_>>(), ours);
        assert!(!documents.all_asked(), "nobody said yet whom to ask");
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
        // Every encoding.
        let yaml = document.yaml().unwrap();
        assert!(yaml.is_large() && yaml.packed().unwrap().len() < yaml.bytes.len() / 10);
    }

    #[test]
    fn yaml_says_the_same() {
        let document = &documents().groups.plain;
        let yaml = document.yaml().unwrap();
        let back: serde_json::Value = serde_saphyr::from_slice(&yaml.bytes).unwrap();
        assert_eq!(back, serde_json::from_slice::<serde_json::Value>(&document.json).unwrap());
    }
}
