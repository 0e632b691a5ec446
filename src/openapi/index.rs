//! The index at `/openapi/v3`: which documents there are, and whose. Values in, values out.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::own;
use crate::discovery::{By, Document, FetchError, Known, Own};
use crate::registry::DELEGATE;

/// The merged index at one moment.
#[derive(Debug)]
pub struct Index {
    /// What is served at `/openapi/v3`.
    pub(super) document: Document,
    /// Our own document, unless another server has it.
    pub(super) own: Option<Document>,
    /// Those made here of documents of version 2, by key.
    pub(super) made: BTreeMap<String, Arc<Document>>,
    /// What is wrong with what APIServices' backends say, by name.
    problems: BTreeMap<String, String>,
    /// Name of the APIService by key (`apis/<group>/<version>`), and whether its backend has listed the document.
    owners: BTreeMap<String, (String, bool)>,
}

/// What a backend's index says about one group and version: the hash of its document; empty when it gives none.
pub(super) type Hash = String;

/// The hashes of a server's documents by their keys.
pub(super) type Hashes = BTreeMap<String, Hash>;

impl Index {
    /// The index of what is `known`; `hashes` gives what the server of one said last of its documents, by their keys.
    pub(super) fn new<'h>(known: &[Known], ours: Own, hashes: impl Fn(&Known) -> Option<&'h Hashes>) -> Index {
        let own = ours.has_registrations().then(own::document);
        let mut paths = BTreeMap::new();
        let mut owners = BTreeMap::new();
        for one in known.iter().filter(|one| one.by == By::Backend) {
            let key = key(one);
            let hash = hashes(one).and_then(|hashes| hashes.get(&key));
            if let Some(hash) = hash {
                paths.insert(key.clone(), entry(&key, hash));
            }
            owners.insert(key, (one.name.clone(), hash.is_some()));
        }
        let delegate = known.iter().find(|one| one.by == By::Itself);
        for (key, hash) in delegate.and_then(&hashes).into_iter().flatten() {
            if !owners.contains_key(key) {
                paths.insert(key.clone(), entry(key, hash));
                owners.insert(key.clone(), (DELEGATE.to_owned(), true));
            }
        }
        if let Some(own) = &own {
            paths.insert(own::KEY.to_owned(), entry(own::KEY, own.etag.to_str().unwrap_or_default().trim_matches('"')));
            owners.remove(own::KEY);
        }
        Index {
            document: Document::of(&Paths { paths }),
            own,
            made: BTreeMap::new(),
            problems: BTreeMap::new(),
            owners,
        }
    }

    /// The same with documents, by their keys, that are ours to serve although they are others'.
    pub(super) fn with_made(mut self, made: BTreeMap<String, Arc<Document>>) -> Index {
        self.owners.retain(|key, _| !made.contains_key(key));
        self.made = made;
        self
    }

    /// The same with what is wrong.
    pub(super) fn with_problems(self, problems: BTreeMap<String, String>) -> Index {
        Index { problems, ..self }
    }

    /// What is wrong with what backends say, by name of the APIService; what they said before is served.
    pub fn problems(&self) -> &BTreeMap<String, String> {
        &self.problems
    }

    /// The APIService whose backend has the document at `path`, if it is `/openapi/v3/<key>` of one that is
    /// registered. Relay such a request to it with what [`super::split_hash`] leaves of the query.
    pub fn owner(&self, path: &str) -> Option<&str> {
        let key = path.strip_prefix("/openapi/v3/")?;
        self.owners.get(key.strip_suffix('/').unwrap_or(key)).map(|(name, _)| name.as_str())
    }

    /// Whether `path` is a document that we have ourselves.
    pub fn answer_for(&self, path: &str) -> bool {
        let Some(key) = path.strip_prefix("/openapi/v3/").map(|key| key.strip_suffix('/').unwrap_or(key)) else {
            return false;
        };
        self.own.is_some() && key == own::KEY || self.made.contains_key(key)
    }

    /// Whether the document of `key` (`apis/<group>/<version>`) is in the index, because its backend has listed it.
    pub fn lists(&self, key: &str) -> bool {
        self.owners.get(key).is_some_and(|(_, listed)| *listed) || self.made.contains_key(key)
    }
}

/// The key under which an index lists the document of `known`.
pub(super) fn key(known: &Known) -> String {
    let version = &known.version;
    if known.group.is_empty() { format!("api/{version}") } else { format!("apis/{}/{version}", known.group) }
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
        let hash = entry.hash(&key).ok_or_else(|| FetchError(format!("the URL it lists for {key} is another's")))?;
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
        let index = Index::new(&known, Own::default(), |_| Some(&hashes));
        let listed: serde_json::Value = serde_json::from_slice(&index.document.json).unwrap();
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
        let index = |own| Index::new(&known, own, |one| Some(if one.by == By::Itself { &offered } else { &claimed }));
        let listed = |index: &Index| {
            let listed: serde_json::Value = serde_json::from_slice(&index.document.json).unwrap();
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
    fn no_bytes_make_it_panic() {
        bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
            let _ = parse(bytes, &[known("g", "v1", "a")]);
            let _ = parse_whole(bytes);
        });
    }
}
