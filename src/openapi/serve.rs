//! Serves `/openapi/v3` and the local documents below it.

use std::time::SystemTime;

use http::{HeaderMap, Method, Response};

use super::document_hash::{mark_immutable, split_hash};
use super::index::Index;
use crate::discovery::{DocumentReply, EncodedDocument, accepted, not_acceptable, not_allowed};
use crate::kubeapi::Status;
use crate::message::{Blame, Body, Refusal};

/// Answers a request below `/openapi/v3`; `None` if `path` (decoded, canonical) is elsewhere, or a document to be
/// relayed to its [`Index::owner`].
///
/// An unknown document is 404. A local one is to be built before ([`Index::unbuilt_document`]).
pub fn answer(
    index: &Index,
    method: &Method,
    path: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Option<Result<Response<Body>, Refusal>> {
    let key = path.strip_prefix("/openapi/v3").filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
    if index.owner(path).is_some() {
        return None;
    }
    let key = key.trim_start_matches('/');
    let key = key.strip_suffix('/').unwrap_or(key);
    let local = index.local_document(key);
    let document = match (key, local) {
        ("", _) => Some(index.document()),
        (_, Some(local)) => local.built(),
        (key, None) => index.converted(key),
    };
    if local.is_some() && document.is_none() {
        let status = Status::service_unavailable("the OpenAPI document could not be built");
        return Some(Err(Refusal::new(Blame::Gateway, status)));
    }
    let Some(document) = document else {
        return Some(Err(Refusal::new(Blame::Client, Status::not_found())));
    };
    if method != Method::GET && method != Method::HEAD {
        return Some(Err(not_allowed()));
    }
    // There is no protobuf format of the index, and kubectl requests documents as JSON.
    if accepted(headers).is_some_and(|clauses| !clauses.iter().any(|clause| clause.covers("application", "json"))) {
        return Some(Err(not_acceptable("application/json")));
    }
    Some(Ok(respond(document, method, query, headers)))
}

fn respond(document: &EncodedDocument, method: &Method, query: Option<&str>, headers: &HeaderMap) -> Response<Body> {
    let reply =
        DocumentReply { content_type: "application/json", cache: "no-cache, private", document, alternate: None };
    let mut response = reply.into_response(method, headers);
    mark_immutable(response.headers_mut(), split_hash(query).1, SystemTime::now());
    response
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, IF_NONE_MATCH};
    use http::{HeaderName, HeaderValue};

    use super::super::index::tests::{index, known};
    use super::*;
    use crate::discovery::LocalGroups;

    fn request(
        method: &Method,
        path: &str,
        query: Option<&str>,
        header: Option<(HeaderName, &HeaderValue)>,
    ) -> Option<Result<Response<Body>, Refusal>> {
        let index = index(&[known("g", "v1", "a")], &LocalGroups::default(), |_| None);
        if let Some(document) = index.unbuilt_document(path) {
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(document.build());
        }
        let headers = header.into_iter().map(|(name, value)| (name, value.clone())).collect();
        answer(&index, method, path, query, &headers)
    }

    fn json(response: Response<Body>) -> serde_json::Value {
        match response.into_body() {
            Body::Full(bytes) => serde_json::from_slice(&bytes).unwrap(),
            _ => serde_json::Value::Null,
        }
    }

    #[test]
    fn openapi_index_has_etag_and_content_type() {
        let first = request(&Method::GET, "/openapi/v3", None, None).unwrap().unwrap();
        assert_eq!(first.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(first.headers()[CACHE_CONTROL], "no-cache, private");
        let etag = first.headers()[ETAG].clone();
        let again = request(&Method::GET, "/openapi/v3/", None, Some((IF_NONE_MATCH, &etag))).unwrap().unwrap();
        assert_eq!(again.status(), 304);
        assert!(json(first)["paths"]["apis/apiregistration.k8s.io/v1"].is_object());
    }

    #[test]
    fn openapi_local_document_immutable_under_its_hash() {
        let path = "/openapi/v3/apis/apiregistration.k8s.io/v1";
        let plain = request(&Method::GET, path, None, None).unwrap().unwrap();
        assert!(!plain.headers().contains_key(EXPIRES));
        let hash = plain.headers()[ETAG].to_str().unwrap().trim_matches('"').to_owned();
        let current = request(&Method::GET, path, Some(&format!("hash={hash}")), None).unwrap().unwrap();
        assert_eq!(current.headers()[CACHE_CONTROL], "public, immutable");
        let old = request(&Method::GET, path, Some("hash=OLD"), None).unwrap().unwrap();
        assert_eq!((old.status().as_u16(), old.headers().contains_key(EXPIRES)), (200, false), "no redirect");

        let document = json(current);
        assert_eq!(document["openapi"], "3.0.0");
        let kind = "x-kubernetes-group-version-kind";
        assert_eq!(document["paths"]["/apis/apiregistration.k8s.io/v1/apiservices"]["get"][kind]["kind"], "APIService");
        for reference in references(&document) {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }

    fn references(value: &serde_json::Value) -> Vec<String> {
        match value {
            serde_json::Value::Object(fields) => {
                let own = fields.get("$ref").and_then(|it| it.as_str()).map(str::to_owned);
                own.into_iter().chain(fields.values().flat_map(references)).collect()
            }
            serde_json::Value::Array(entries) => entries.iter().flat_map(references).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn openapi_other_paths_relayed_or_refused() {
        let code = |method: &Method, path, accept: Option<&'static str>| {
            let accept = accept.map(HeaderValue::from_static);
            let answer = request(method, path, None, accept.as_ref().map(|accept| (ACCEPT, accept)));
            answer.map(|answer| {
                answer.map_or_else(|refusal| refusal.status().code, |response| response.status().as_u16())
            })
        };
        for (method, path, accept, expected) in [
            (Method::GET, "/openapi/v3/apis/g/v1", None, None),
            (Method::GET, "/openapi/v30", None, None),
            (Method::GET, "/openapi/v3/apis/apps/v1", None, Some(404)),
            (Method::GET, "/openapi/v3/apis/g", None, Some(404)),
            (Method::POST, "/openapi/v3", None, Some(405)),
            (Method::HEAD, "/openapi/v3", None, Some(200)),
            (Method::GET, "/openapi/v3", Some("application/com.github.proto-openapi.spec.v3.v1.0+protobuf"), Some(406)),
            (Method::GET, "/openapi/v3", Some("*/*"), Some(200)),
        ] {
            assert_eq!(code(&method, path, accept), expected, "{method} {path}");
        }
    }
}
