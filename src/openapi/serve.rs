//! Serves `/openapi/v3` and the local documents below it.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, Method, Response};
use kubeapi::Status;

use super::builtin::LocalDocument;
use super::document_hash::{mark_immutable, split_hash};
use super::index::Index;
use crate::discovery::{DocumentReply, EncodedDocument, accepted, not_acceptable, not_allowed};
use crate::message::{Blame, Body, Refusal};

/// A document below `/openapi/v3` that the gateway has itself.
pub struct OpenApiDocument(OpenApiSource);

enum OpenApiSource {
    Index(Arc<Index>),
    Local(Arc<LocalDocument>),
    /// Converted from OpenAPI v2.
    Converted(Arc<EncodedDocument>),
}

/// What is at a path below `/openapi/v3`.
pub enum OpenApiPath<'i> {
    /// The index, or a document that the gateway has itself.
    Document(OpenApiDocument),
    /// A document to be relayed to this APIService, with the query that [`split_hash`] returns.
    Relayed(&'i str),
    /// No document.
    Unknown,
}

impl Index {
    /// What is at `path` (decoded); `None` if it is not below `/openapi/v3`.
    pub fn find(self: &Arc<Self>, path: &str) -> Option<OpenApiPath<'_>> {
        let key = path.strip_prefix("/openapi/v3").filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
        if let Some(owner) = self.owner(path) {
            return Some(OpenApiPath::Relayed(owner));
        }
        let key = key.trim_start_matches('/');
        let key = key.strip_suffix('/').unwrap_or(key);
        let source = match (key, self.local_document(key)) {
            ("", _) => OpenApiSource::Index(self.clone()),
            (_, Some(local)) => OpenApiSource::Local(local.clone()),
            (key, None) => match self.converted(key) {
                Some(converted) => OpenApiSource::Converted(converted.clone()),
                None => return Some(OpenApiPath::Unknown),
            },
        };
        Some(OpenApiPath::Document(OpenApiDocument(source)))
    }
}

impl OpenApiDocument {
    /// The response to a request for the document, which is built first if it must be.
    ///
    /// # Errors
    /// 503 if it could not be built, 405 and 406 for an unsupported method or media type.
    pub async fn respond(
        &self,
        method: &Method,
        query: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Refusal> {
        let document = match &self.0 {
            OpenApiSource::Index(index) => index.document(),
            OpenApiSource::Converted(converted) => converted,
            OpenApiSource::Local(local) => {
                local.build().await;
                local.built().ok_or_else(|| {
                    let status = Status::service_unavailable("the OpenAPI document could not be built");
                    Refusal::new(Blame::Gateway, status)
                })?
            }
        };
        if method != Method::GET && method != Method::HEAD {
            return Err(not_allowed());
        }
        // There is no protobuf format of the index, and kubectl requests documents as JSON.
        if accepted(headers).is_some_and(|clauses| !clauses.iter().any(|clause| clause.covers("application", "json"))) {
            return Err(not_acceptable("application/json"));
        }
        Ok(respond(document, method, query, headers))
    }
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
        let index = Arc::new(index(&[known("g", "v1", "a")], &LocalGroups::default(), |_| None));
        let headers = header.into_iter().map(|(name, value)| (name, value.clone())).collect();
        let OpenApiPath::Document(document) = index.find(path)? else { return None };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Some(runtime.block_on(document.respond(method, query, &headers)))
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
    fn openapi_paths_found_in_index() {
        let index = Arc::new(index(&[known("g", "v1", "a")], &LocalGroups::default(), |_| None));
        for (path, expected) in [
            ("/openapi/v3", Some("document")),
            ("/openapi/v3/", Some("document")),
            ("/openapi/v3/apis/apiregistration.k8s.io/v1", Some("document")),
            ("/openapi/v3/apis/apiregistration.k8s.io/v1/", Some("document")),
            ("/openapi/v3/apis/g/v1", Some("v1.g")),
            ("/openapi/v3/apis/g/v1/", Some("v1.g")),
            ("/openapi/v3/apis/apps/v1", Some("unknown")),
            ("/openapi/v3/apis/g", Some("unknown")),
            ("/openapi/v30", None),
            ("/openapi/v2", None),
        ] {
            let found = index.find(path).map(|found| match found {
                OpenApiPath::Document(_) => "document",
                OpenApiPath::Relayed(owner) => owner,
                OpenApiPath::Unknown => "unknown",
            });
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn openapi_unsupported_method_or_type_refused() {
        let code = |method: &Method, path, accept: Option<&'static str>| {
            let accept = accept.map(HeaderValue::from_static);
            let answer = request(method, path, None, accept.as_ref().map(|accept| (ACCEPT, accept))).unwrap();
            answer.map_or_else(|refusal| refusal.status().code, |response| response.status().as_u16())
        };
        for (method, path, accept, expected) in [
            (Method::POST, "/openapi/v3", None, 405),
            (Method::HEAD, "/openapi/v3", None, 200),
            (Method::GET, "/openapi/v3", Some("application/com.github.proto-openapi.spec.v3.v1.0+protobuf"), 406),
            (Method::GET, "/openapi/v3", Some("*/*"), 200),
        ] {
            assert_eq!(code(&method, path, accept), expected, "{method} {path}");
        }
    }
}
