//! Serves `/api`, `/apis` and `/apis/<group>` in the format and encoding that the client prefers.

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, VARY};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use kubeapi::Status;

use super::encoded_document::{AlternateEncoding, EncodedDocument};
use super::media::{DiscoveryFormat, accepted, matches_etag};
use super::snapshot::{DiscoverySnapshot, GroupEntry, LocalListDocument, Root};
use crate::message::negotiate::{MediaRange, accepts_gzip};
use crate::message::{Blame, Body, Refusal};

/// A discovery document, as found at its path.
pub struct DiscoveryDocument(DiscoveryPage);

enum DiscoveryPage {
    List(Arc<DiscoverySnapshot>, Root),
    Group(Arc<GroupEntry>),
    LocalResources(Arc<LocalListDocument>),
}

impl DiscoverySnapshot {
    /// The discovery document at `path` (decoded, canonical).
    ///
    /// Below `/apis/<group>` only local groups and groups with an APIService have one.
    pub fn find_document(self: &Arc<Self>, path: &str) -> Option<DiscoveryDocument> {
        let page = match path.strip_suffix('/').unwrap_or(path) {
            "/api" => DiscoveryPage::List(self.clone(), Root::Core),
            "/apis" => DiscoveryPage::List(self.clone(), Root::Named),
            path => match self.local_document(path) {
                Some(document) => DiscoveryPage::LocalResources(document.clone()),
                None => DiscoveryPage::Group(self.group(path.strip_prefix("/apis/")?)?.clone()),
            },
        };
        Some(DiscoveryDocument(page))
    }
}

impl DiscoveryDocument {
    /// The response to a request for the document, in the format and encoding that the client prefers.
    ///
    /// # Errors
    /// 405 and 406 for an unsupported method or media type.
    pub fn respond(&self, method: &Method, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
        if method != Method::GET && method != Method::HEAD {
            return Err(not_allowed());
        }
        let Some((document, form, encoding)) = self.0.negotiate(accepted(headers)) else {
            return Err(not_acceptable("application/json, application/yaml, application/vnd.kubernetes.protobuf"));
        };
        Ok(respond(document, form, encoding, method, headers))
    }
}

/// 405 for a read-only document.
pub(crate) fn not_allowed() -> Refusal {
    Refusal::new(Blame::Client, Status::method_not_allowed("this document can only be read: GET and HEAD are allowed"))
}

/// 406 that names the supported media types.
pub(crate) fn not_acceptable(types: &str) -> Refusal {
    let message = format!("only the following media types are accepted: {types}");
    Refusal::new(Blame::Client, Status::not_acceptable(message))
}

#[derive(Clone, Copy, PartialEq)]
enum DocumentEncoding {
    Json,
    Yaml,
    Protobuf,
}

impl DiscoveryPage {
    /// The first supported clause wins, as in Kubernetes' `NegotiateOutputMediaType`.
    fn negotiate(
        &self,
        clauses: Option<Vec<MediaRange<'_>>>,
    ) -> Option<(&EncodedDocument, DiscoveryFormat, DocumentEncoding)> {
        let Some(clauses) = clauses else {
            return Some((self.document(DiscoveryFormat::Plain)?, DiscoveryFormat::Plain, DocumentEncoding::Json));
        };
        clauses.iter().find_map(|clause| {
            let encoding = match clause {
                json if json.covers("application", "json") => DocumentEncoding::Json,
                yaml if yaml.covers("application", "yaml") => DocumentEncoding::Yaml,
                binary if binary.covers("application", "vnd.kubernetes.protobuf") => DocumentEncoding::Protobuf,
                _ => return None,
            };
            let form = DiscoveryFormat::from_clause(clause)?;
            Some((self.document(form)?, form, encoding))
        })
    }

    fn document(&self, form: DiscoveryFormat) -> Option<&EncodedDocument> {
        match (self, form) {
            (DiscoveryPage::List(documents, root), form) => Some(documents.list(*root, form)),
            (DiscoveryPage::Group(entry), DiscoveryFormat::Plain) => Some(&entry.document),
            (DiscoveryPage::LocalResources(document), DiscoveryFormat::Plain) => Some(document.get()),
            (DiscoveryPage::Group(_) | DiscoveryPage::LocalResources(_), _) => None,
        }
    }
}

fn respond(
    document: &EncodedDocument,
    form: DiscoveryFormat,
    encoding: DocumentEncoding,
    method: &Method,
    headers: &HeaderMap,
) -> Response<Body> {
    let other = match encoding {
        DocumentEncoding::Json => None,
        DocumentEncoding::Yaml => document.yaml(),
        DocumentEncoding::Protobuf => document.protobuf(),
    };
    let encoding = if other.is_some() { encoding } else { DocumentEncoding::Json };
    let content_type = match (encoding, form) {
        (DocumentEncoding::Json, DiscoveryFormat::V2) => {
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        }
        (DocumentEncoding::Json, DiscoveryFormat::V2beta1) => {
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
        }
        (DocumentEncoding::Json, DiscoveryFormat::Plain) => "application/json",
        (DocumentEncoding::Yaml, DiscoveryFormat::V2) => {
            "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        }
        (DocumentEncoding::Yaml, DiscoveryFormat::V2beta1) => {
            "application/yaml;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
        }
        (DocumentEncoding::Yaml, DiscoveryFormat::Plain) => "application/yaml",
        (DocumentEncoding::Protobuf, DiscoveryFormat::V2) => {
            "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        }
        (DocumentEncoding::Protobuf, DiscoveryFormat::V2beta1) => {
            "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
        }
        (DocumentEncoding::Protobuf, DiscoveryFormat::Plain) => "application/vnd.kubernetes.protobuf",
    };
    // Aggregated formats as in Kubernetes. Kubernetes sends the plain ones without a tag, and they are never cached.
    let cache = if form == DiscoveryFormat::Plain { "no-cache, private" } else { "public" };
    DocumentReply { content_type, cache, document, alternate: other }.into_response(method, headers)
}

/// A document to be sent.
pub(crate) struct DocumentReply<'d> {
    /// The header `Content-Type`.
    pub(crate) content_type: &'static str,
    /// The header `Cache-Control`.
    pub(crate) cache: &'static str,
    /// The document as JSON.
    pub(crate) document: &'d EncodedDocument,
    /// The document in another encoding, if requested.
    pub(crate) alternate: Option<&'d AlternateEncoding>,
}

impl DocumentReply<'_> {
    /// The response to a GET or HEAD with these `headers`: 200, or 304 if the client has the document.
    pub(crate) fn into_response(self, method: &Method, headers: &HeaderMap) -> Response<Body> {
        let DocumentReply { content_type, cache, document, alternate: other } = self;
        let mut response = Response::new(Body::Empty);
        let to = response.headers_mut();
        to.insert(ETAG, document.etag.clone());
        to.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
        to.insert(VARY, HeaderValue::from_static("Accept"));
        let may_be_packed = other.map_or_else(|| document.is_large(), AlternateEncoding::is_large);
        if may_be_packed {
            to.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        if document.etag.to_str().is_ok_and(|etag| matches_etag(headers, etag)) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        to.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        let packed = || other.map_or_else(|| document.gzipped(), AlternateEncoding::gzipped);
        let packed = if may_be_packed && accepts_gzip(headers) { packed() } else { None };
        if packed.is_some() {
            to.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let body = packed.unwrap_or_else(|| other.map_or(&document.json, |other| &other.bytes).clone());
        to.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        if method != Method::HEAD {
            *response.body_mut() = body.into();
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT, HeaderName, IF_NONE_MATCH};

    use super::*;

    const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    const V2BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

    fn request(method: &Method, path: &str, headers: &[(HeaderName, &str)]) -> Option<Result<Response<Body>, Refusal>> {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        let snapshot = Arc::new(DiscoverySnapshot::empty(&Default::default()));
        Some(snapshot.find_document(path)?.respond(method, &headers))
    }

    fn get(path: &str, headers: &[(HeaderName, &str)]) -> Response<Body> {
        request(&Method::GET, path, headers).unwrap().unwrap()
    }

    fn content_type(response: &Response<Body>) -> &str {
        response.headers()[CONTENT_TYPE].to_str().unwrap()
    }

    fn text(response: Response<Body>) -> String {
        match response.into_body() {
            Body::Full(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => String::new(),
        }
    }

    #[test]
    fn discovery_content_negotiation() {
        // Sent by kubectl 1.32 and 1.36.
        let kubectl = format!("{V2},{V2BETA1},application/json");
        for (accept, expected) in [
            (kubectl.as_str(), V2),
            (&format!("{V2BETA1},application/json"), V2BETA1),
            (&format!("application/json;q=0.9,{V2BETA1}"), V2BETA1),
            ("application/json", "application/json"),
            ("application/json;foo=bar", "application/json"),
            ("*/*", "application/json"),
            ("", "application/json"),
            ("application/yaml", "application/yaml"),
            (&V2.replace("json", "yaml"), "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
            ("application/vnd.kubernetes.protobuf,application/json", "application/vnd.kubernetes.protobuf"),
            (&format!("{},application/json", V2.replace("v=v2", "v=v3")), "application/json"),
            (&format!("{V2};profile=nopeer"), V2),
        ] {
            assert_eq!(content_type(&get("/apis", &[(ACCEPT, accept)])), expected, "{accept}");
        }
        assert_eq!(content_type(&get("/apis/", &[])), "application/json");
    }

    #[test]
    fn discovery_document_of_every_path() {
        for (path, accept, kind) in [
            ("/apis", V2, "APIGroupDiscoveryList"),
            ("/apis", "application/json", "APIGroupList"),
            ("/api", V2, "APIGroupDiscoveryList"),
            ("/api/", "application/json", "APIVersions"),
            ("/apis/apiregistration.k8s.io", "application/json", "APIGroup"),
            ("/apis/apiregistration.k8s.io/", "application/json", "APIGroup"),
        ] {
            let body = text(get(path, &[(ACCEPT, accept)]));
            assert!(body.starts_with(&format!("{{\"kind\":\"{kind}\"")), "{path}: {body}");
        }
        let own = text(get("/apis/apiregistration.k8s.io/v1", &[]));
        assert!(own.contains("\"kind\":\"APIResourceList\""), "{own}");
        for other in [
            "/",
            "",
            "/apis/unknown.dev",
            "/apis/apiregistration.k8s.io/v2",
            "/api/v1",
            "/apisx",
            "/version",
            "/apis//",
        ] {
            assert!(request(&Method::GET, other, &[]).is_none(), "{other}");
        }
    }

    #[test]
    fn discovery_if_none_match_answered_304() {
        let first = get("/apis", &[(ACCEPT, V2)]);
        let etag = first.headers()[ETAG].to_str().unwrap();
        assert_eq!(first.headers()[CACHE_CONTROL], "public");
        assert_eq!(first.headers()[VARY], "Accept");
        for tag in [etag, &format!("W/{etag}"), "*", &format!("\"other\", {etag}")] {
            let again = get("/apis", &[(ACCEPT, V2), (IF_NONE_MATCH, tag)]);
            assert_eq!(again.status(), 304);
            assert_eq!(again.headers()[ETAG], etag);
            assert_eq!(text(again), "");
        }
        assert_eq!(get("/apis", &[(ACCEPT, V2), (IF_NONE_MATCH, "\"other\"")]).status(), 200);
        assert_eq!(
            get("/apis", &[(ACCEPT, V2BETA1), (IF_NONE_MATCH, etag)]).status(),
            200,
            "another form, another tag"
        );
    }

    #[test]
    fn discovery_head_has_headers_without_body() {
        let head = request(&Method::HEAD, "/apis", &[]).unwrap().unwrap();
        let get = get("/apis", &[]);
        assert_eq!(head.headers(), get.headers());
        assert_eq!(head.headers()[CONTENT_LENGTH], text(get).len().to_string());
        assert_eq!(text(head), "");
    }

    #[test]
    fn discovery_unsupported_type_or_method_refused() {
        for accept in ["text/html", "application/cbor", "application/json;as=Table;v=v1;g=meta.k8s.io", "junk"] {
            let refusal = request(&Method::GET, "/apis", &[(ACCEPT, accept)]).unwrap().err().unwrap();
            assert_eq!((refusal.status().code, refusal.blame()), (406, Blame::Client), "{accept}");
        }
        assert!(request(&Method::GET, "/apis/apiregistration.k8s.io", &[(ACCEPT, V2)]).unwrap().is_err());
        for method in [Method::POST, Method::DELETE, Method::OPTIONS] {
            let refusal = request(&method, "/api", &[]).unwrap().err().unwrap();
            assert_eq!((refusal.status().code, refusal.status().reason), (405, "MethodNotAllowed"));
        }
    }
}
