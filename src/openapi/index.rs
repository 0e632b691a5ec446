//! The index at `/openapi/v3`: which documents there are, and whose. Values in, values out.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::own;
use crate::discovery::{By, Document, FetchError, Known, Own};
use crate::process::Sharded;
use crate::registry::DELEGATE;

/// The merged index at one moment. The next shares with it what did not change, and its document is written when the
/// first client asks for it.
#[derive(Clone)]
pub struct Index {
    /// Our own document, unless another server has it.
    pub(super) own: Option<Arc<Document>>,
    /// What APIServices with a backend of their own claim, by key (`apis/<group>/<version>`).
    claimed: Sharded<Arc<Claim>>,
    /// What the delegate has, whoever claims it.
    offered: Arc<Hashes>,
    /// What is wrong with what APIServices' backends say, by name.
    problems: Sharded<Arc<str>>,
    document: Arc<OnceLock<Document>>,
}

/// What there is to say of an APIService with a backend of its own.
#[derive(Clone, Default)]
pub(super) struct Claim {
    /// Its name.
    pub(super) name: String,
    /// The hash of its document, if its backend lists one.
    pub(super) hash: Option<Hash>,
    /// One that was made here of a document of version 2.
    pub(super) made: Option<Arc<Document>>,
}

/// What became of an APIService.
pub(super) struct Change {
    /// Nothing of one that has no backend of its own, or is gone.
    pub(super) claim: Option<Claim>,
    /// What is wrong with what its backend says.
    pub(super) problem: Option<Arc<str>>,
}

/// What a backend's index says about one group and version: the hash of its document; empty when it gives none.
pub(super) type Hash = String;

/// The hashes of a server's documents by their keys.
pub(super) type Hashes = BTreeMap<String, Hash>;

impl Index {
    /// The index of nobody else.
    pub(super) fn empty(ours: Own) -> Index {
        Index {
            own: ours.has_registrations().then(|| Arc::new(own::document())),
            claimed: Sharded::default(),
            offered: Arc::default(),
            problems: Sharded::default(),
            document: Arc::default(),
        }
    }

    /// The same after these APIServices changed, and with what the delegate has now, if it did.
    pub(super) fn with(&self, changes: Vec<(String, Change)>, offered: Option<Hashes>) -> Index {
        let mut next = self.clone();
        if let Some(offered) = offered {
            next.offered = Arc::new(offered);
            next.document = Arc::default();
        }
        for (name, Change { claim, problem }) in changes {
            match problem {
                Some(problem) => next.problems.insert(&name, problem),
                None => next.problems.remove(&name),
            }
            let key = key_of(&name);
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

    /// What is served at `/openapi/v3`.
    pub(super) fn document(&self) -> &Document {
        self.document.get_or_init(|| {
            let mut paths = BTreeMap::new();
            for (key, hash) in self.offered.iter().filter(|(key, _)| self.claimed.get(key).is_none()) {
                paths.insert(key.clone(), entry(key, hash));
            }
            for claim in self.claimed.values() {
                if let Some(hash) = &claim.hash {
                    let key = key_of(&claim.name);
                    paths.insert(key.clone(), entry(&key, hash));
                }
            }
            if let Some(own) = &self.own {
                let hash = own.etag.to_str().unwrap_or_default().trim_matches('"');
                paths.insert(own::KEY.to_owned(), entry(own::KEY, hash));
            }
            Document::of(&Paths { paths })
        })
    }

    /// What is wrong with what backends say, by name of the APIService, and whether a last good answer is served.
    pub fn problems(&self) -> BTreeMap<&str, &str> {
        self.problems.names().filter_map(|name| Some((name, self.problems.get(name)?.as_ref()))).collect()
    }

    /// The APIService whose backend has the document at `path`, if it is `/openapi/v3/<key>` of one that is
    /// registered. Relay such a request to it with what [`super::split_hash`] leaves of the query.
    pub fn owner(&self, path: &str) -> Option<&str> {
        let key = key_in(path)?;
        if self.is_own(key) {
            return None;
        }
        match self.claimed.get(key) {
            Some(claim) => claim.made.is_none().then_some(&claim.name),
            None => self.offered.contains_key(key).then_some(DELEGATE),
        }
    }

    /// Whether `path` is a document that we have ourselves.
    pub fn answer_for(&self, path: &str) -> bool {
        key_in(path).is_some_and(|key| self.is_own(key) || self.made(key).is_some())
    }

    /// Whether the document of `key` (`apis/<group>/<version>`) is in the index, because its backend has listed it.
    pub fn lists(&self, key: &str) -> bool {
        match self.claimed.get(key) {
            _ if self.is_own(key) => false,
            Some(claim) => claim.hash.is_some() || claim.made.is_some(),
            None => self.offered.contains_key(key),
        }
    }

    /// The document of `key` that was made here of another's.
    pub(super) fn made(&self, key: &str) -> Option<&Document> {
        self.claimed.get(key)?.made.as_deref()
    }

    fn is_own(&self, key: &str) -> bool {
        self.own.is_some() && key == own::KEY
    }
}

/// The key in the path of a document.
fn key_in(path: &str) -> Option<&str> {
    let key = path.strip_prefix("/openapi/v3/")?;
    Some(key.strip_suffix('/').unwrap_or(key))
}

/// The key under which an index lists the document of the APIService `name`; a version has no dot.
fn key_of(name: &str) -> String {
    match name.split_once('.') {
        Some((version, group)) if !group.is_empty() => format!("apis/{group}/{version}"),
        Some((version, _)) => format!("api/{version}"),
        None => name.to_owned(),
    }
}

/// The key under which an index lists the document of `known`.
pub(super) fn key(known: &Known) -> String {
    key_of(&known.name)
}

/// Reads the index of a backend: the hashes of the documents of `claims` that it lists, by name of the APIService.
///
/// Every other key is passed over: with kube-aggregator any backend can take any key, and which one wins is left
/// to the order of a Go map.
pub(super) fn parse(body: &[u8], claims: &[Known]) -> Result<BTreeMap<String, Hash>, FetchError> {
    let index: Paths = serde_json::from_slice(body).map_err(|error| FetchError::unreadable(&error))?;
    let mut found = BTreeMap::new();
    for claim in claims {
        let key = key(claim);
        let Some(entry) = index.paths.get(&key) else { continue };
        let hash =
            entry.hash(&key).ok_or_else(|| FetchError::new(format!("the URL it lists for {key} is another's")))?;
        found.insert(claim.name.clone(), hash.to_owned());
    }
    Ok(found)
}

/// Reads the index of the delegate, which may have documents of any key. One whose URL leads elsewhere is passed over.
pub(super) fn parse_whole(body: &[u8]) -> Result<Hashes, FetchError> {
    let index: Paths = serde_json::from_slice(body).map_err(|error| FetchError::unreadable(&error))?;
    let keys = index.paths.iter().filter(|(key, _)| is_plain(key));
    Ok(keys.filter_map(|(key, entry)| Some((key.clone(), entry.hash(key)?.to_owned()))).collect())
}

/// Reads the hashes that were kept of `known`, as far as they could be its own.
pub(super) fn recalled(kept: &[u8], known: &Known) -> Option<Hashes> {
    let mut hashes: Hashes = serde_json::from_slice(kept).ok()?;
    let own = key(known);
    hashes.retain(|key, hash| {
        (hash.is_empty() || is_hash(hash)) && if known.by == By::Itself { is_plain(key) } else { *key == own }
    });
    Some(hashes)
}

/// Whether a key can stand in a URL as it is.
fn is_plain(key: &str) -> bool {
    let segment = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
    key.len() <= 512
        && key.split('/').all(segment)
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte))
}

impl Entry {
    /// The hash in its URL, or nothing if it has none that could be one; `None` if it does not lead to `key`.
    fn hash(&self, key: &str) -> Option<&str> {
        match self.server_relative_url.strip_prefix("/openapi/v3/").and_then(|url| url.strip_prefix(key))? {
            "" => Some(""),
            query => Some(query.strip_prefix("?hash=").filter(|hash| is_hash(hash)).unwrap_or_default()),
        }
    }
}

/// Whether it can stand in a URL and a header as it is; SHA-512 in hexadecimal has 128 digits.
fn is_hash(text: &str) -> bool {
    (1..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn entry(key: &str, hash: &str) -> Entry {
    let separator = if hash.is_empty() { "" } else { "?hash=" };
    Entry { server_relative_url: format!("/openapi/v3/{key}{separator}{hash}") }
}

#[derive(Serialize, Deserialize)]
struct Paths {
    paths: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    #[serde(rename = "serverRelativeURL")]
    server_relative_url: String,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn known(group: &str, version: &str, service_key: &str) -> Known {
        Known {
            name: format!("{version}.{group}"),
            group: group.into(),
            version: version.into(),
            group_priority_minimum: 1000,
            version_priority: 15,
            service_key: service_key.into(),
            backend: service_key.into(),
            by: By::Backend,
        }
    }

    /// The index of what is `known`; `hashes` gives what the server of one said last of its documents, by their keys.
    pub(in super::super) fn index<'h>(
        known: &[Known],
        ours: Own,
        hashes: impl Fn(&Known) -> Option<&'h Hashes>,
    ) -> Index {
        let claims = known.iter().filter(|one| one.by == By::Backend).map(|one| {
            let hash = hashes(one).and_then(|hashes| hashes.get(&key(one))).cloned();
            let claim = Some(Claim { name: one.name.clone(), hash, made: None });
            (one.name.clone(), Change { claim, problem: None })
        });
        let offered = known.iter().find(|one| one.by == By::Itself).and_then(&hashes).cloned();
        Index::empty(ours).with(claims.collect(), offered)
    }

    fn listing(key: &str, url: &str) -> String {
        format!(r#"{{"paths":{{"{key}":{{"serverRelativeURL":"{url}"}}}}}}"#)
    }

    #[test]
    fn a_backend_is_believed_about_its_own_documents_only() {
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
    fn urls_that_lead_elsewhere_are_refused_and_odd_hashes_dropped() {
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
    fn the_index_names_ours_and_theirs() {
        let known = [
            known("g", "v1", "a"),
            known("g", "v2", "a"),
            known("", "v1", "a"),
            known("apiregistration.k8s.io", "v1", "evil"),
        ];
        let hashes = BTreeMap::from(["apis/g/v1", "api/v1"].map(|key| (key.to_owned(), "ABC".to_owned())));
        let index = index(&known, Own::default(), |_| Some(&hashes));
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
    fn the_delegate_has_what_no_backend_claims() {
        let said = r#"{"paths":{
            "version":{"serverRelativeURL":"/openapi/v3/version?hash=1"},
            "apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=2"},
            "apis/g/v1":{"serverRelativeURL":"/openapi/v3/apis/g/v1?hash=3"},
            "apis/apiregistration.k8s.io/v1":{"serverRelativeURL":"/openapi/v3/apis/apiregistration.k8s.io/v1?hash=4"},
            "apis/evil/v1":{"serverRelativeURL":"https://evil.dev/"},
            "../secret":{"serverRelativeURL":"/openapi/v3/../secret"},
            "a?b":{"serverRelativeURL":"/openapi/v3/a?b"}}}"#;
        let offered = parse_whole(said.as_bytes()).unwrap();
        let claimed = Hashes::from([("apis/g/v1".to_owned(), "OURS".to_owned())]);
        let known = [known("g", "v1", "a"), Known { by: By::Itself, name: DELEGATE.into(), ..known("", "", "d") }];
        let index = |own| index(&known, own, |one| Some(if one.by == By::Itself { &offered } else { &claimed }));
        let listed = |index: &Index| {
            let listed: serde_json::Value = serde_json::from_slice(&index.document().json).unwrap();
            let urls = listed["paths"].as_object().unwrap().values();
            urls.map(|it| it["serverRelativeURL"].as_str().unwrap()["/openapi/v3/".len()..].to_owned())
                .collect::<Vec<_>>()
        };
        let ours = index(Own::default());
        let urls = listed(&ours);
        assert_eq!(urls.len(), 4, "{urls:?}");
        assert_eq!([&urls[1], &urls[2], &urls[3]], ["apis/apps/v1?hash=2", "apis/g/v1?hash=OURS", "version?hash=1"]);
        assert_eq!(ours.owner("/openapi/v3/apis/apps/v1"), Some(DELEGATE));
        assert_eq!(ours.owner("/openapi/v3/apis/g/v1"), Some("v1.g"));
        assert_eq!(ours.owner("/openapi/v3/apis/apiregistration.k8s.io/v1"), None);
        let theirs = index(Own { registrations_elsewhere: true, ..Own::default() });
        assert_eq!(theirs.owner("/openapi/v3/apis/apiregistration.k8s.io/v1"), Some(DELEGATE));
        assert_eq!(listed(&theirs)[0], "apis/apiregistration.k8s.io/v1?hash=4");
    }

    #[test]
    fn a_change_writes_the_document_anew_only_if_it_is_in_it() {
        let change = |hash: &str, problem: Option<&str>| {
            let claim = Claim { name: "v1.g".to_owned(), hash: Some(hash.to_owned()), made: None };
            vec![("v1.g".to_owned(), Change { claim: Some(claim), problem: problem.map(Arc::from) })]
        };
        let first = Index::empty(Own::default()).with(change("A", None), None);
        let second = first.with(change("A", Some("it is slow")), None);
        assert!(std::ptr::eq(first.document(), second.document()));
        assert_eq!(second.problems(), BTreeMap::from([("v1.g", "it is slow")]));
        let third = second.with(change("B", None), None);
        let said = |index: &Index| String::from_utf8(index.document().json.to_vec()).unwrap();
        assert!(said(&second).contains("?hash=A") && said(&third).contains("?hash=B") && third.problems().is_empty());
        let gone = third.with(vec![("v1.g".to_owned(), Change { claim: None, problem: None })], None);
        assert!(!said(&gone).contains("apis/g/v1") && gone.owner("/openapi/v3/apis/g/v1").is_none());
    }

    #[test]
    fn no_bytes_make_it_panic() {
        bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
            let _ = parse(bytes, &[known("g", "v1", "a")]);
            let _ = parse_whole(bytes);
        });
    }
}
