//! Answers for `/openapi/v2`, in JSON and in gnostic's protobuf, packed as the client takes it.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, VARY};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use tokio::sync::{Notify, OnceCell};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::protobuf;
use crate::discovery::{Document, accepted, matches_etag, not_acceptable, not_allowed};
use crate::kubeapi::Status;
use crate::message::coding::{self, Coding};
use crate::message::{Blame, Body, Refusal};
use crate::process::Published;

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// What kubectl asks for: the name before it was made a valid one.
const PROTOBUF_ONCE: &str = "com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// How long who asks first waits for all sources to be asked and merged.
const PATIENCE: Duration = Duration::from_secs(10);

/// The merged document, as workers have it.
#[derive(Clone, Debug)]
pub struct Version2 {
    pub(super) built: Published<Option<Arc<Built>>>,
    pub(super) demand: Arc<Demand>,
}

/// Says that somebody wants the document.
#[derive(Debug, Default)]
pub(super) struct Demand {
    pub(super) notify: Notify,
}

/// The document at one moment, in the forms that were asked for.
#[derive(Debug)]
pub(super) struct Built {
    json: Document,
    protobuf: OnceCell<Bytes>,
    /// By form and coding.
    packed: [[OnceCell<Bytes>; 2]; 2],
    problems: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Json,
    Protobuf,
}

impl Version2 {
    /// Whether `path` (decoded, judged) is the document's.
    pub fn is(path: &str) -> bool {
        matches!(path, "/openapi/v2" | "/openapi/v2/")
    }

    /// Answers a request for the document.
    ///
    /// Who asks first waits until it is made, but no thread does.
    ///
    /// # Errors
    /// 405 and 406 for what cannot be had, 503 when it was not made in time.
    pub async fn answer(&self, method: &Method, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
        if method != Method::GET && method != Method::HEAD {
            return Err(not_allowed());
        }
        let form = negotiate(headers)?;
        self.demand.notify.notify_one();
        let later = || {
            let status = Status::service_unavailable("the OpenAPI documents are being merged").with_retry_after(1);
            Refusal::new(Blame::Gateway, status)
        };
        let built = timeout(PATIENCE, self.built()).await.map_err(|_| later())?;
        built.respond(form, method, headers).await.ok_or_else(later)
    }

    /// What is wrong with the documents of APIServices, by name, as far as anybody wanted the document.
    pub fn problems(&self) -> BTreeMap<String, String> {
        let built = self.built.load();
        built.as_ref().as_ref().map(|built| built.problems.clone()).unwrap_or_default()
    }

    async fn built(&self) -> Arc<Built> {
        let mut changes = self.built.clone();
        loop {
            if let Some(built) = &**self.built.load() {
                return built.clone();
            }
            changes.changed().await;
        }
    }
}

fn negotiate(headers: &HeaderMap) -> Result<Form, Refusal> {
    let Some(clauses) = accepted(headers) else { return Ok(Form::Json) };
    let form = clauses.iter().find_map(|clause| match clause {
        json if json.covers("application", "json") => Some(Form::Json),
        binary
            if binary.covers("application", PROTOBUF_ONCE)
                || binary.covers("application", PROTOBUF.trim_start_matches("application/")) =>
        {
            Some(Form::Protobuf)
        }
        _ => None,
    });
    form.ok_or_else(|| not_acceptable(&format!("application/json, {PROTOBUF}")))
}

impl Built {
    pub(super) fn new(json: String, problems: BTreeMap<String, String>) -> Built {
        Built {
            json: Document::from_json(json.into()),
            protobuf: OnceCell::new(),
            packed: Default::default(),
            problems,
        }
    }

    /// 200, or 304 when the client has it already; `None` if it could not be written.
    async fn respond(self: Arc<Self>, form: Form, method: &Method, headers: &HeaderMap) -> Option<Response<Body>> {
        let mut response = Response::new(Body::Empty);
        let to = response.headers_mut();
        // One tag for all forms, as upstream has it: `Vary` tells them apart.
        to.insert(ETAG, self.json.etag.clone());
        to.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        to.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
        if self.json.etag.to_str().is_ok_and(|etag| matches_etag(headers, etag)) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return Some(response);
        }
        let coding = if self.json.is_large() { coding::wanted(headers) } else { None };
        let content_type = if form == Form::Json { "application/json" } else { PROTOBUF };
        to.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(coding) = coding {
            to.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
        }
        let body = self.body(form, coding).await?;
        to.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        if method != Method::HEAD {
            *response.body_mut() = body.into();
        }
        Some(response)
    }

    /// The bytes, made when first asked for, on a thread of their own.
    async fn body(self: &Arc<Self>, form: Form, coding: Option<Coding>) -> Option<Bytes> {
        let plain = match form {
            Form::Json => self.json.json.clone(),
            Form::Protobuf => {
                let json = self.json.json.clone();
                let make = move || protobuf::encode(&json).map(Bytes::from);
                self.protobuf.get_or_try_init(|| elsewhere(make)).await.ok()?.clone()
            }
        };
        let Some(coding) = coding else { return Some(plain) };
        let packed = &self.packed[form as usize][coding as usize];
        packed.get_or_try_init(|| elsewhere(move || pack(coding, &plain))).await.ok().cloned()
    }
}

async fn elsewhere(make: impl FnOnce() -> Option<Bytes> + Send + 'static) -> Result<Bytes, ()> {
    spawn_blocking(make).await.ok().flatten().ok_or(())
}

fn pack(coding: Coding, plain: &[u8]) -> Option<Bytes> {
    match coding {
        Coding::Gzip => {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(4));
            packer.write_all(plain).ok()?;
            packer.finish().ok().map(Bytes::from)
        }
        Coding::Zstd => zstd::bulk::compress(plain, 3).ok().map(Bytes::from),
    }
}
