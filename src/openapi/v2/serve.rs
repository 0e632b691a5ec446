//! Serves `/openapi/v2`, as JSON and as gnostic's protobuf, compressed as the client accepts.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, VARY};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use kubeapi::{RetryAfter, Status};
use tokio::sync::{Notify, OnceCell};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::protobuf;
use crate::discovery::{EncodedDocument, accepted, matches_etag, not_acceptable, not_allowed};
use crate::message::negotiate::accepts_gzip;
use crate::message::{Blame, Body, Refusal};
use crate::process::Published;

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The media type that kubectl requests: the name before it was made a valid one.
const PROTOBUF_LEGACY: &str = "com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Handle of the merged document for workers.
#[derive(Clone, Debug)]
pub struct OpenApiV2 {
    pub(super) document: Published<Option<Arc<MergedDocument>>>,
    pub(super) demand: Arc<DocumentDemand>,
}

/// Notifies the aggregation of a request.
#[derive(Debug, Default)]
pub(super) struct DocumentDemand {
    pub(super) notify: Notify,
}

/// Snapshot of the document, in the formats requested so far.
#[derive(Debug)]
pub(super) struct MergedDocument {
    json: EncodedDocument,
    protobuf: OnceCell<Bytes>,
    /// With gzip, by format.
    compressed: [OnceCell<Bytes>; 2],
    problems: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum OpenApiV2Format {
    Json,
    Protobuf,
}

impl OpenApiV2 {
    /// Whether `path` (decoded, canonical) is that of the document.
    pub fn is_path(path: &str) -> bool {
        matches!(path, "/openapi/v2" | "/openapi/v2/")
    }

    /// Answers a request for the document.
    ///
    /// The first request waits until it is merged, without blocking a thread, for at most `limit`.
    ///
    /// # Errors
    ///
    /// 405 and 406 for an unsupported method or media type, 503 if the merge did not finish in time.
    pub async fn answer(
        &self,
        method: &Method,
        headers: &HeaderMap,
        limit: Duration,
    ) -> Result<Response<Body>, Refusal> {
        if method != Method::GET && method != Method::HEAD {
            return Err(not_allowed());
        }
        let form = negotiate(headers)?;
        self.demand.notify.notify_one();
        let later = || {
            let status = Status::service_unavailable("the OpenAPI documents are being merged");
            let status = status.with_retry_after(RetryAfter::Merging);
            Refusal::new(Blame::Gateway, status)
        };
        let built = timeout(limit, self.document()).await.map_err(|_| later())?;
        built.respond(form, method, headers).await.ok_or_else(later)
    }

    /// Problems of APIServices' documents by name, since the first request.
    pub fn problems(&self) -> BTreeMap<String, String> {
        let built = self.document.load();
        built.as_ref().as_ref().map(|built| built.problems.clone()).unwrap_or_default()
    }

    async fn document(&self) -> Arc<MergedDocument> {
        let mut changes = self.document.clone();
        loop {
            if let Some(built) = &**self.document.load() {
                return built.clone();
            }
            changes.changed().await;
        }
    }
}

fn negotiate(headers: &HeaderMap) -> Result<OpenApiV2Format, Refusal> {
    let Some(clauses) = accepted(headers) else { return Ok(OpenApiV2Format::Json) };
    let form = clauses.iter().find_map(|clause| match clause {
        json if json.covers("application", "json") => Some(OpenApiV2Format::Json),
        binary
            if binary.covers("application", PROTOBUF_LEGACY)
                || binary.covers("application", PROTOBUF.trim_start_matches("application/")) =>
        {
            Some(OpenApiV2Format::Protobuf)
        }
        _ => None,
    });
    form.ok_or_else(|| not_acceptable(&format!("application/json, {PROTOBUF}")))
}

impl MergedDocument {
    pub(super) fn new(json: String, problems: BTreeMap<String, String>) -> MergedDocument {
        MergedDocument {
            json: EncodedDocument::from_json(json.into()),
            protobuf: OnceCell::new(),
            compressed: Default::default(),
            problems,
        }
    }

    /// 200, or 304 if the client has the document; `None` if encoding fails.
    async fn respond(
        self: Arc<Self>,
        form: OpenApiV2Format,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<Response<Body>> {
        let mut response = Response::new(Body::Empty);
        let to = response.headers_mut();
        // One tag for all formats, as in Kubernetes; `Vary` distinguishes them.
        to.insert(ETAG, self.json.etag.clone());
        to.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        to.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
        if self.json.etag.to_str().is_ok_and(|etag| matches_etag(headers, etag)) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return Some(response);
        }
        let gzip = self.json.is_large() && accepts_gzip(headers);
        let content_type = if form == OpenApiV2Format::Json { "application/json" } else { PROTOBUF };
        to.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if gzip {
            to.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let body = self.body(form, gzip).await?;
        to.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        if method != Method::HEAD {
            *response.body_mut() = body.into();
        }
        Some(response)
    }

    /// The bytes, encoded on the first request on a blocking thread.
    async fn body(self: &Arc<Self>, form: OpenApiV2Format, gzip: bool) -> Option<Bytes> {
        let plain = match form {
            OpenApiV2Format::Json => self.json.json.clone(),
            OpenApiV2Format::Protobuf => {
                let json = self.json.json.clone();
                let make = move || protobuf::encode(&json).map(Bytes::from);
                self.protobuf.get_or_try_init(|| run_blocking(make)).await.ok()?.clone()
            }
        };
        if !gzip {
            return Some(plain);
        }
        let packed = &self.compressed[form as usize];
        packed.get_or_try_init(|| run_blocking(move || compress(&plain))).await.ok().cloned()
    }
}

async fn run_blocking(make: impl FnOnce() -> Option<Bytes> + Send + 'static) -> Result<Bytes, ()> {
    spawn_blocking(make).await.ok().flatten().ok_or(())
}

fn compress(plain: &[u8]) -> Option<Bytes> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(4));
    packer.write_all(plain).ok()?;
    packer.finish().ok().map(Bytes::from)
}
