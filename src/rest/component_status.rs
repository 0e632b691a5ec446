//! ComponentStatuses, which are deprecated: what the components of a control plane say of their health
//! (`pkg/registry/core/componentstatus`, `serversToValidate` in `pkg/registry/core/rest/storage_core.go`).

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::{HOST, USER_AGENT};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use kubeapi::Status;
use kubeapi::list_options::ListOptions;
use serde_json::{Value, json};
use store::watch_cache::{Selection, Stored, StoredList};
use store::{FIRST_REVISION, KeyValue, Prefix, Revision};
use tokio::net::TcpStream;

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::representation::{OutputMediaType, ReplyContent, ReplyObject, respond};
use super::request::ApiRequest;
use super::target::ObjectTarget;
use crate::message::Body;
use crate::tls::ClientTlsStream;
use crate::tls::client::{ClientSettings, build_config, server_name};

/// The components by their names, with the port of their health checks on this machine; none for the store, in which
/// clients expect an etcd.
const COMPONENTS: [(&str, Option<u16>); 3] =
    [("controller-manager", Some(10257)), ("etcd-0", None), ("scheduler", Some(10259))];

/// Timeout of one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum size of a component's answer.
const MAX_ANSWER_BYTES: usize = 10 << 10;

/// Returns one ComponentStatus, or all that are selected.
///
/// # Errors
/// 404 for another component; as a list of stored objects.
pub(super) async fn read(
    api: &ApiServer,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
) -> Result<Response<Body>, Status> {
    let verb = &*request.info.verb;
    let media_type = OutputMediaType::negotiate(&target.kind, verb, request.query, request.headers)?;
    let namespaces = api.builtin_collection("", "namespaces").ok_or_else(Status::not_found)?;
    let store = namespaces.wait_for_acknowledged().await.map_err(|error| error.to_string());
    let content = if verb == "get" {
        let component = COMPONENTS.iter().find(|component| component.0 == target.name);
        // As upstream, in the singular.
        let (name, port) = *component.ok_or_else(|| Status::object_not_found("", "componentstatus", &target.name))?;
        ReplyContent::Object(ReplyObject::Unstored(check(&store, name, port).await))
    } else {
        let options = ListOptions::parse(request.query)?;
        let selection = Selection::new(options.label_selector, &options.field_selector, &[]);
        let selection = selection.map_err(|error| cache_error(target, error))?;
        let prefix = Prefix::parse("/componentstatuses/").map_err(Status::internal_error)?;
        let revision = *store.as_ref().unwrap_or(&FIRST_REVISION);
        let statuses = join_all(COMPONENTS.map(|(name, port)| check(&store, name, port))).await;
        let mut objects = Vec::new();
        for (status, (name, _)) in statuses.into_iter().zip(COMPONENTS) {
            let key = prefix.key("", name).map_err(Status::internal_error)?;
            let value = status.to_string().into();
            let record = KeyValue { key, value, created: revision, revision, expires: None };
            objects.push(Arc::new(Stored::new(Arc::new(record), &prefix, &[])));
        }
        objects.retain(|object| selection.matches(object));
        ReplyContent::List(StoredList { revision, objects, next: None, remaining: None })
    };
    respond(&target.kind, media_type, StatusCode::OK, content).await
}

/// The ComponentStatus of a component, which is checked now if it has a port.
async fn check(store: &Result<Revision, String>, name: &str, port: Option<u16>) -> Value {
    let outcome = match port {
        Some(port) => {
            let timed_out = |_| Err(format!("no answer within {} s", CHECK_TIMEOUT.as_secs()));
            let answer = tokio::time::timeout(CHECK_TIMEOUT, ask(port)).await.unwrap_or_else(timed_out);
            answer.map_err(|why| format!("Get \"https://127.0.0.1:{port}/healthz\": {why}"))
        }
        None => store.as_ref().map(|_| "ok".to_owned()).map_err(String::clone),
    };
    let (status, message) = match outcome {
        Ok(message) => ("True", message),
        Err(message) => ("False", message),
    };
    json!({
        "apiVersion": "v1",
        "kind": "ComponentStatus",
        "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": status, "message": message}],
    })
}

/// The answer of the health check on a port of this machine, whatever its certificate.
async fn ask(port: u16) -> Result<String, String> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let stream = stream.await.map_err(|error| {
        let reason = match error.kind() {
            ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
            _ => error.to_string(),
        };
        format!("dial tcp 127.0.0.1:{port}: {reason}")
    })?;
    let settings = ClientSettings { ca_bundle: None, insecure_skip_verify: true, identity: None, alpn: Vec::new() };
    let config = build_config(&settings).map_err(|problem| problem.to_string())?;
    let name = server_name("127.0.0.1").map_err(|problem| problem.to_string())?;
    let stream = ClientTlsStream::connect(config, name, stream).await.map_err(|error| error.to_string())?;
    let text = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(text)?;
    let request = Request::get("/healthz").header(HOST, format!("127.0.0.1:{port}"));
    let request = request.header(USER_AGENT, "kube-probe/1.36").body(Empty::<Bytes>::new());
    let exchange = async {
        let response = sender.send_request(request.map_err(|error| error.to_string())?).await.map_err(text)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        match status.is_success() || status.is_redirection() {
            true => Ok(String::from_utf8_lossy(&body).into_owned()),
            false => Err(format!("HTTP probe failed with statuscode: {}", status.as_u16())),
        }
    };
    tokio::select! {
        answer = exchange => answer,
        // It ends with the last byte at the latest, which the exchange has then.
        Err(error) = connection => Err(error.to_string()),
    }
}
