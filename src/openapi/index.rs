//! The index at `/openapi/v3`: which documents exist, and which backend has each. Pure.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::builtin::{LocalDocument, REGISTRATIONS};
use crate::discovery::{ApiServiceClaim, EncodedDocument, FetchError, LocalGroups, ServedBy};
use crate::process::ShardedMap;
use crate::registry::DELEGATE;

/// Snapshot of the merged index. The next snapshot shares what did not change. The document is written on the first
/// request.
#[derive(Clone)]
pub struct Index {
    /// Documents of what is served locally, by key.
    local_documents: Arc<BTreeMap<String, Arc<LocalDocument>>>,
    /// Whether the document of APIServices is local even if an APIService claims it.
    reserves_registrations: bool,
    /// Documents of APIServices with a backend of their own, by key (`apis/<group>/<version>`).
    claimed: ShardedMap<Arc<ClaimedDocument>>,
    /// Documents of the delegate, including those that APIServices claim.
    delegate_hashes: Arc<Hashes>,
    /// Problems of APIServices' backends, by name.
    problems: ShardedMap<Arc<str>>,
    /// Prefix of the URLs in the document.
    path_prefix: Option<Arc<str>>,
    document: Arc<OnceLock<EncodedDocument>>,
}

/// The document of an APIService with a backend of its own.
#[derive(Clone, Default)]
pub(super) struct ClaimedDocument {
    /// Name of the APIService.
    pub(super) name: String,
    /// Hash of its document, if its backend lists one.
    pub(super) hash: Option<Hash>,
    /// The document converted here from OpenAPI v2.
    pub(super) converted: Option<Arc<EncodedDocument>>,
}

/// New state of an APIService.
pub(super) struct IndexChange {
    /// `None` if it has no backend of its own, or is gone.
    pub(super) claim: Option<ClaimedDocument>,
    /// Problem of its backend.
    pub(super) problem: Option<Arc<str>>,
}

/// Hash of a document in a backend's index; empty if there is none.
pub(super) type Hash = String;

/// Hashes of a server's documents, by key.
pub(super) type Hashes = BTreeMap<String, Hash>;

impl Index {
    /// An index of the local documents alone.
    pub(super) fn empty(local_groups: &LocalGroups) -> Index {
        Index {
            local_documents: Arc::new(local_documents(local_groups, &BTreeMap::new())),
            reserves_registrations: local_groups.has_registrations(),
            claimed: ShardedMap::default(),
            delegate_hashes: Arc::default(),
            problems: ShardedMap::default(),
            path_prefix: local_groups.path_prefix.clone(),
            document: Arc::default(),
        }
    }

    /// A snapshot with other local documents. Those that are the same stay built.
    pub(super) fn with_local_groups(&self, local_groups: &LocalGroups) -> Index {
        let documents = local_documents(local_groups, &self.local_documents);
        Index { local_documents: Arc::new(documents), document: Arc::default(), ..self.clone() }
    }

    /// A new snapshot with changed APIServices, and with `offered`, the delegate's documents, if they changed.
    pub(super) fn updated(&self, changes: Vec<(String, IndexChange)>, offered: Option<Hashes>) -> Index {
        let mut next = self.clone();
        if let Some(offered) = offered {
            next.delegate_hashes = Arc::new(offered);
            next.document = Arc::default();
        }
        for (name, IndexChange { claim, problem }) in changes {
            match problem {
                Some(problem) => next.problems.insert(&name, problem),
                None => next.problems.remove(&name),
            }
            let key = key_from_name(&name);
            let before = next.claimed.get(&key);
            let same = before.map(|before| &before.hash) == claim.as_ref().map(|claim| &claim.hash);
            if !same {
                next.document = Arc::default();
            }
            match claim {
                Some(claim) => next.claimed.insert(&key, Arc::new(claim)),
                None => next.claimed.remove(&key),
            }
        }
        next
    }

    /// The document at `/openapi/v3`.
    pub(super) fn document(&self) -> &EncodedDocument {
        self.document.get_or_init(|| {
            let mut paths = BTreeMap::new();
            let prefix = self.path_prefix.as_deref().unwrap_or_default();
            let entry = |key: &str, hash: &str| entry(prefix, key, hash);
            for (key, hash) in self.delegate_hashes.iter().filter(|(key, _)| self.claimed.get(key).is_none()) {
                paths.insert(key.clone(), entry(key, hash));
            }
            for claim in self.claimed.values() {
                if let Some(hash) = &claim.hash {
                    let key = key_from_name(&claim.name);
                    paths.insert(key.clone(), entry(&key, hash));
                }
            }
            for (key, own) in self.local_documents.iter().filter(|(key, _)| self.is_local(key)) {
                paths.insert(key.clone(), entry(key, &own.hash));
            }
            EncodedDocument::from_value(&IndexPaths { paths })
        })
    }

    /// Problems of APIServices' backends by name; each says whether a last good answer is served.
    pub fn problems(&self) -> BTreeMap<&str, &str> {
        self.problems.names().filter_map(|name| Some((name, self.problems.get(name)?.as_ref()))).collect()
    }

    /// The owner of the document at `path`, an APIService, if that is `/openapi/v3/<key>` of a registered one.
    pub(super) fn owner(&self, path: &str) -> Option<&str> {
        let key = key_from_path(path)?;
        if self.is_local(key) {
            return None;
        }
        match self.claimed.get(key) {
            Some(claim) => claim.converted.is_none().then_some(&claim.name),
            None => self.delegate_hashes.contains_key(key).then_some(DELEGATE),
        }
    }

    /// Whether `path` is a local document.
    pub fn has_document_at(&self, path: &str) -> bool {
        key_from_path(path).is_some_and(|key| self.is_local(key) || self.converted(key).is_some())
    }

    /// The document of `key` if it was converted from OpenAPI v2.
    pub(super) fn converted(&self, key: &str) -> Option<&Arc<EncodedDocument>> {
        self.claimed.get(key)?.converted.as_ref()
    }

    /// The local document of `key`.
    pub(super) fn local_document(&self, key: &str) -> Option<&Arc<LocalDocument>> {
        self.local_documents.get(key).filter(|_| self.is_local(key))
    }

    fn is_local(&self, key: &str) -> bool {
        let is_reserved = self.reserves_registrations && key == REGISTRATIONS;
        self.local_documents.contains_key(key) && (is_reserved || self.claimed.get(key).is_none())
    }
}

/// The key in the path of a document.
fn key_from_path(path: &str) -> Option<&str> {
    let key = path.strip_prefix("/openapi/v3/")?;
    Some(key.strip_suffix('/').unwrap_or(key))
}

/// The key of the document of the APIService `name`. A version has no dot.
fn key_from_name(name: &str) -> String {
    match name.split_once('.') {
        Some((version, group)) if !group.is_empty() => format!("apis/{group}/{version}"),
        Some((version, _)) => format!("api/{version}"),
        None => name.to_owned(),
    }
}

/// The key of the document of `claim`.
pub(super) fn key(claim: &ApiServiceClaim) -> String {
    key_from_name(&claim.name)
}

/// Parses the index of a backend. Returns the hashes of the documents of `claims` by name of the APIService.
///
/// Other keys are ignored. In kube-aggregator any backend can take any key, and which one wins depends on the order of
/// a Go map.
pub(super) fn parse(body: &[u8], claims: &[ApiServiceClaim]) -> Result<BTreeMap<String, Hash>, FetchError> {
    let index: IndexPaths = serde_json::from_slice(body).map_err(|error| FetchError::unreadable(&error))?;
    let mut found = BTreeMap::new();
    for claim in claims {
        let key = key(claim);
        let Some(entry) = index.paths.get(&key) else { continue };
        let hash =
            entry.hash(&key).ok_or_else(|| FetchError::new(format!("the URL it lists for {key} is another key's")))?;
        found.insert(claim.name.clone(), hash.to_owned());
    }
    Ok(found)
}

/// Parses the index of the delegate, which may have documents of any key. Entries with a foreign URL are ignored.
pub(super) fn parse_delegate(body: &[u8]) -> Result<Hashes, FetchError> {
    let index: IndexPaths = serde_json::from_slice(body).map_err(|error| FetchError::unreadable(&error))?;
    let keys = index.paths.iter().filter(|(key, _)| is_url_safe(key));
    Ok(keys.filter_map(|(key, entry)| Some((key.clone(), entry.hash(key)?.to_owned()))).collect())
}

/// Parses the cached hashes of `claim`, and drops those that it may not have.
pub(super) fn parse_cached(cached: &[u8], claim: &ApiServiceClaim) -> Option<Hashes> {
    let mut hashes: Hashes = serde_json::from_slice(cached).ok()?;
    let own = key(claim);
    hashes.retain(|key, hash| {
        (hash.is_empty() || is_hash(hash))
            && if claim.served_by == ServedBy::DelegateItself { is_url_safe(key) } else { *key == own }
    });
    Some(hashes)
}

/// Whether a key is valid in a URL without escaping.
fn is_url_safe(key: &str) -> bool {
    let segment = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
    key.len() <= 512
        && key.split('/').all(segment)
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte))
}

impl IndexEntry {
    /// The hash in its URL; empty if absent or invalid. `None` if the URL does not lead to `key`.
    fn hash(&self, key: &str) -> Option<&str> {
        match self.server_relative_url.strip_prefix("/openapi/v3/").and_then(|url| url.strip_prefix(key))? {
            "" => Some(""),
            query => Some(query.strip_prefix("?hash=").filter(|hash| is_hash(hash)).unwrap_or_default()),
        }
    }
}

/// The documents of what is served locally, by key. Those of `before` that are the same are taken over.
fn local_documents(
    local_groups: &LocalGroups,
    before: &BTreeMap<String, Arc<LocalDocument>>,
) -> BTreeMap<String, Arc<LocalDocument>> {
    let mut documents = match &local_groups.embedded {
        Some(catalog) => LocalDocument::of_catalog(catalog, before),
        None => BTreeMap::new(),
    };
    if local_groups.has_registrations() && !documents.contains_key(REGISTRATIONS) {
        documents.insert(REGISTRATIONS.to_owned(), LocalDocument::of_registrations());
    }
    documents
}

/// Whether a hash is valid in a URL and a header without escaping. SHA-512 in hexadecimal has 128 digits.
fn is_hash(text: &str) -> bool {
    (1..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn entry(prefix: &str, key: &str, hash: &str) -> IndexEntry {
    let separator = if hash.is_empty() { "" } else { "?hash=" };
    IndexEntry { server_relative_url: format!("{prefix}/openapi/v3/{key}{separator}{hash}") }
}

#[derive(Serialize, Deserialize)]
struct IndexPaths {
    paths: BTreeMap<String, IndexEntry>,
}

#[derive(Serialize, Deserialize)]
struct IndexEntry {
    #[serde(rename = "serverRelativeURL")]
    server_relative_url: String,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn known(group: &str, version: &str, service_key: &str) -> ApiServiceClaim {
        ApiServiceClaim {
            name: format!("{version}.{group}"),
            group: group.into(),
            version: version.into(),
            group_priority_minimum: 1000,
            version_priority: 15,
            service_key: service_key.into(),
            backend: service_key.into(),
            served_by: ServedBy::Backend,
        }
    }

    /// The index of `claims`. `hashes` gives the hashes that the server of an APIService listed last, by key.
    pub(in super::super) fn index<'h>(
        claims: &[ApiServiceClaim],
        local_groups: &LocalGroups,
        hashes: impl Fn(&ApiServiceClaim) -> Option<&'h Hashes>,
    ) -> Index {
        let changes = claims.iter().filter(|one| one.served_by == ServedBy::Backend).map(|one| {
            let hash = hashes(one).and_then(|hashes| hashes.get(&key(one))).cloned();
            let claim = Some(ClaimedDocument { name: one.name.clone(), hash, converted: None });
            (one.name.clone(), IndexChange { claim, problem: None })
        });
        let offered = claims.iter().find(|one| one.served_by == ServedBy::DelegateItself).and_then(&hashes).cloned();
        Index::empty(local_groups).updated(changes.collect(), offered)
    }

    /// An index of the document of one APIService and those of the delegate. Also used by tests of other modules.
    pub(crate) fn relayed_documents(
        local_groups: &LocalGroups,
        group: &str,
        version: &str,
        delegate_keys: &[&str],
    ) -> Index {
        let hashes: Hashes = delegate_keys.iter().map(|key| ((*key).to_owned(), String::new())).collect();
        let delegate = ApiServiceClaim { served_by: ServedBy::DelegateItself, ..known("", "v1", "delegate") };
        index(&[known(group, version, "a"), delegate], local_groups, |_| Some(&hashes))
    }

    fn listing(key: &str, url: &str) -> String {
        format!(r#"{{"paths":{{"{key}":{{"serverRelativeURL":"{url}"}}}}}}"#)
    }

    #[test]
    fn openapi_index_keeps_only_claimed_documents() {
        let body = r#"{"paths":{
            ".well-known/x":{"serverRelativeURL":"/openapi/v3/.well-known/x"},
            "apis":{"serverRelativeURL":"/openapi/v3/apis?hash=1"},
            "apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=2"},
            "apis/g/v1":{"serverRelativeURL":"/openapi/v3/apis/g/v1?hash=ABC3","later":true},
            "apis/g/v2":{"serverRelativeURL":"/openapi/v3/apis/g/v2"},
            "api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=4"}}}"#;
        let claims = [known("g", "v1", "a"), known("g", "v2", "a"), known("g", "v3", "a")];
        let found = parse(body.as_bytes(), &claims).unwrap();
        assert_eq!(found, BTreeMap::from([("v1.g".to_owned(), "ABC3".to_owned()), ("v2.g".to_owned(), String::new())]));
        assert_eq!(parse(body.as_bytes(), &[known("", "v1", "a")]).unwrap()["v1."], "4");
    }

    #[test]
    fn openapi_index_foreign_urls_refused_and_odd_hashes_dropped() {
        let claims = [known("g", "v1", "a")];
        for url in ["https://evil.dev/", "//evil.dev", "/openapi/v3/apis/apps/v1", "/openapi/v2", ""] {
            assert!(parse(listing("apis/g/v1", url).as_bytes(), &claims).is_err(), "{url}");
        }
        for rest in
            ["?hash=", "?hash=A%0D%0A", "?other=1", "x", "/../../apps/v1", &format!("?hash={}", "A".repeat(257))]
        {
            let found = parse(listing("apis/g/v1", &format!("/openapi/v3/apis/g/v1{rest}")).as_bytes(), &claims);
            assert_eq!(found.unwrap()["v1.g"], "", "{rest}");
        }
        for body in [
            "",
            "<html>",
            "{}",
            "[]",
            r#"{"paths":[]}"#,
            r#"{"paths":{"apis/g/v1":{}}}"#,
            &"{\"paths\":".repeat(100_000),
        ] {
            assert!(parse(body.as_bytes(), &claims).is_err());
        }
    }

    #[test]
    fn openapi_index_lists_local_and_backend_documents() {
        let known = [
            known("g", "v1", "a"),
            known("g", "v2", "a"),
            known("", "v1", "a"),
            known("apiregistration.k8s.io", "v1", "evil"),
        ];
        let hashes = BTreeMap::from(["apis/g/v1", "api/v1"].map(|key| (key.to_owned(), "ABC".to_owned())));
        let index = index(&known, &LocalGroups::default(), |_| Some(&hashes));
        let listed: serde_json::Value = serde_json::from_slice(&index.document().json).unwrap();
        let keys: Vec<_> = listed["paths"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["api/v1", "apis/apiregistration.k8s.io/v1", "apis/g/v1"]);
        assert_eq!(listed["paths"]["apis/g/v1"]["serverRelativeURL"], "/openapi/v3/apis/g/v1?hash=ABC");
        let own = listed["paths"]["apis/apiregistration.k8s.io/v1"]["serverRelativeURL"].as_str().unwrap();
        assert_eq!(own.len(), "/openapi/v3/apis/apiregistration.k8s.io/v1?hash=".len() + 128);

        assert_eq!(index.owner("/openapi/v3/apis/g/v1"), Some("v1.g"));
        assert_eq!(index.owner("/openapi/v3/apis/g/v2/"), Some("v2.g"), "also what its backend has not listed yet");
        assert_eq!(index.owner("/openapi/v3/api/v1"), Some("v1."));
        for path in [
            "/openapi/v3/apis/apiregistration.k8s.io/v1",
            "/openapi/v3/apis/g",
            "/openapi/v3",
            "/apis/g/v1",
            "/openapi/v3//",
        ] {
            assert_eq!(index.owner(path), None, "{path}");
        }
    }

    #[test]
    fn openapi_index_delegate_owns_unclaimed_documents() {
        let said = r#"{"paths":{
            "version":{"serverRelativeURL":"/openapi/v3/version?hash=1"},
            "apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=2"},
            "apis/g/v1":{"serverRelativeURL":"/openapi/v3/apis/g/v1?hash=3"},
            "apis/apiregistration.k8s.io/v1":{"serverRelativeURL":"/openapi/v3/apis/apiregistration.k8s.io/v1?hash=4"},
            "apis/evil/v1":{"serverRelativeURL":"https://evil.dev/"},
            "../secret":{"serverRelativeURL":"/openapi/v3/../secret"},
            "a?b":{"serverRelativeURL":"/openapi/v3/a?b"}}}"#;
        let offered = parse_delegate(said.as_bytes()).unwrap();
        let claimed = Hashes::from([("apis/g/v1".to_owned(), "OURS".to_owned())]);
        let known = [
            known("g", "v1", "a"),
            ApiServiceClaim { served_by: ServedBy::DelegateItself, name: DELEGATE.into(), ..known("", "", "d") },
        ];
        let index = |own: &LocalGroups| {
            index(&known, own, |one| Some(if one.served_by == ServedBy::DelegateItself { &offered } else { &claimed }))
        };
        let listed = |index: &Index| {
            let listed: serde_json::Value = serde_json::from_slice(&index.document().json).unwrap();
            let urls = listed["paths"].as_object().unwrap().values();
            urls.map(|it| it["serverRelativeURL"].as_str().unwrap()["/openapi/v3/".len()..].to_owned())
                .collect::<Vec<_>>()
        };
        let ours = index(&LocalGroups::default());
        let urls = listed(&ours);
        assert_eq!(urls.len(), 4, "{urls:?}");
        assert_eq!([&urls[1], &urls[2], &urls[3]], ["apis/apps/v1?hash=2", "apis/g/v1?hash=OURS", "version?hash=1"]);
        assert_eq!(ours.owner("/openapi/v3/apis/apps/v1"), Some(DELEGATE));
        assert_eq!(ours.owner("/openapi/v3/apis/g/v1"), Some("v1.g"));
        assert_eq!(ours.owner("/openapi/v3/apis/apiregistration.k8s.io/v1"), None);
        let theirs = index(&LocalGroups { apiregistration_from_delegate: true, ..LocalGroups::default() });
        assert_eq!(theirs.owner("/openapi/v3/apis/apiregistration.k8s.io/v1"), Some(DELEGATE));
        assert_eq!(listed(&theirs)[0], "apis/apiregistration.k8s.io/v1?hash=4");
    }

    #[test]
    fn openapi_index_rebuilt_only_when_hash_changes() {
        let change = |hash: &str, problem: Option<&str>| {
            let claim = ClaimedDocument { name: "v1.g".to_owned(), hash: Some(hash.to_owned()), converted: None };
            vec![("v1.g".to_owned(), IndexChange { claim: Some(claim), problem: problem.map(Arc::from) })]
        };
        let first = Index::empty(&LocalGroups::default()).updated(change("A", None), None);
        let second = first.updated(change("A", Some("it is slow")), None);
        assert!(std::ptr::eq(first.document(), second.document()));
        assert_eq!(second.problems(), BTreeMap::from([("v1.g", "it is slow")]));
        let third = second.updated(change("B", None), None);
        let said = |index: &Index| String::from_utf8(index.document().json.to_vec()).unwrap();
        assert!(said(&second).contains("?hash=A") && said(&third).contains("?hash=B") && third.problems().is_empty());
        let gone = third.updated(vec![("v1.g".to_owned(), IndexChange { claim: None, problem: None })], None);
        assert!(!said(&gone).contains("apis/g/v1") && gone.owner("/openapi/v3/apis/g/v1").is_none());
    }

    #[test]
    fn openapi_index_parse_never_panics() {
        bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
            let _ = parse(bytes, &[known("g", "v1", "a")]);
            let _ = parse_delegate(bytes);
        });
    }
}
