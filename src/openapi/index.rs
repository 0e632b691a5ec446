//! The index at `/openapi/v3`: which documents there are, and whose. Values in, values out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::own;
use crate::discovery::{Document, FetchError, Known};

/// The merged index at one moment.
#[derive(Debug)]
pub struct Index {
    /// What is served at `/openapi/v3`.
    pub(super) document: Document,
    /// Our own document.
    pub(super) own: Document,
    /// Name of the APIService by key (`apis/<group>/<version>`), and whether its backend has listed the document.
    owners: BTreeMap<String, (String, bool)>,
}

/// What a backend's index says about one group and version: the hash of its document; empty when it gives none.
pub(super) type Hash = String;

impl Index {
    /// The index of what is `known`; `hash` gives what the backend said last, if it listed the document at all.
    pub(super) fn new<'h>(known: &[Known], hash: impl Fn(&Known) -> Option<&'h Hash>) -> Index {
        let own = own::document();
        let mut paths = BTreeMap::new();
        let mut owners = BTreeMap::new();
        for one in known {
            let key = key(one);
            let hash = hash(one);
            if let Some(hash) = hash {
                paths.insert(key.clone(), entry(&key, hash));
            }
            owners.insert(key, (one.name.clone(), hash.is_some()));
        }
        paths.insert(own::KEY.to_owned(), entry(own::KEY, own.etag.to_str().unwrap_or_default().trim_matches('"')));
        owners.remove(own::KEY);
        Index { document: Document::of(&Paths { paths }), own, owners }
    }

    /// The APIService whose backend has the document at `path`, if it is `/openapi/v3/<key>` of one that is
    /// registered. Relay such a request to it with what [`super::split_hash`] leaves of the query.
    pub fn owner(&self, path: &str) -> Option<&str> {
        let key = path.strip_prefix("/openapi/v3/")?;
        self.owners.get(key.strip_suffix('/').unwrap_or(key)).map(|(name, _)| name.as_str())
    }

    /// Whether the document of `key` (`apis/<group>/<version>`) is in the index, because its backend has listed it.
    pub fn lists(&self, key: &str) -> bool {
        self.owners.get(key).is_some_and(|(_, listed)| *listed)
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
        let rest = entry.server_relative_url.strip_prefix("/openapi/v3/").and_then(|url| url.strip_prefix(&*key));
        let hash = match rest {
            Some("") => "",
            Some(query) => query.strip_prefix("?hash=").filter(|hash| is_hash(hash)).unwrap_or_default(),
            None => return Err(FetchError(format!("the URL it lists for {key} is another's"))),
        };
        found.insert(claim.name.clone(), hash.to_owned());
    }
    Ok(found)
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
        let hash = "ABC".to_owned();
        let known = [
            known("g", "v1", "a"),
            known("g", "v2", "a"),
            known("", "v1", "a"),
            known("apiregistration.k8s.io", "v1", "evil"),
        ];
        let index = Index::new(&known, |one| (one.version == "v1").then_some(&hash));
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
    fn no_bytes_make_it_panic() {
        bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
            let _ = parse(bytes, &[known("g", "v1", "a")]);
        });
    }
}
