//! Serves ConfigMap requests, for the one ConfigMap there is.

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Response};
use serde_json::{Value, json};

use super::AuthConfigMap;
use super::config_map::{NAME, NAMESPACE};
use crate::kubeapi::{FieldSelector, LabelSelector, Query, RequestInfo, Status, WatchOptions, resource_version};
use crate::message::{Blame, Body, Refusal, WatchEvents, WatchSource, WatchStream, negotiate};
use crate::process::{Drain, Published};

const RESOURCE: &str = "configmaps";

/// State of the delegation server.
pub struct DelegationServer {
    /// The served ConfigMap.
    pub config_map: Published<AuthConfigMap>,
    /// Ends watches on shutdown.
    pub drain: Drain,
}

/// Serves get, list and watch of ConfigMaps.
///
/// # Errors
/// 404 for other ConfigMaps, 405 for writes, and errors in the request.
pub fn handle_config_map(
    reviewer: &DelegationServer,
    info: &RequestInfo<'_>,
    query: &Query<'_>,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    handle(reviewer, info, query, headers).map_err(|status| Refusal::new(Blame::Client, status))
}

fn handle(
    reviewer: &DelegationServer,
    info: &RequestInfo<'_>,
    query: &Query<'_>,
    headers: &HeaderMap,
) -> Result<Response<Body>, Status> {
    if !matches!(&*info.verb, "get" | "list" | "watch") {
        let message = "this ConfigMap is generated from the gateway's configuration and is read-only";
        return Err(Status::method_not_allowed(message).with_resource("", RESOURCE, &info.name));
    }
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let json =
        |clause: &negotiate::MediaRange<'_>| clause.covers("application", "json") && clause.parameter("as").is_none();
    if !accept.trim().is_empty() && !negotiate::parse_accept(accept).iter().any(json) {
        return Err(Status::not_acceptable("only the following media types are accepted: application/json"));
    }
    let config_map = reviewer.config_map.get();
    let here = info.namespace.is_empty() || info.namespace == NAMESPACE;
    if info.verb == "get" {
        return match here && info.name == NAME {
            true => Ok(respond(&config_map.to_json())),
            false => Err(Status::object_not_found("", RESOURCE, &info.name)),
        };
    }
    let selected = here && is_selected(info)?;
    if info.verb == "list" {
        resource_version(query, config_map.resource_version)?;
        let items: Vec<Value> = selected.then(|| config_map.to_list_item()).into_iter().collect();
        return Ok(respond(&json!({
            "kind": "ConfigMapList", "apiVersion": "v1",
            "metadata": {"resourceVersion": config_map.resource_version.to_string()}, "items": items,
        })));
    }
    let options = WatchOptions::parse(query, config_map.resource_version)?;
    let source = ConfigMapEvents { is_selected: selected };
    let watch = WatchStream::new(source, reviewer.config_map.clone(), reviewer.drain.clone(), options);
    Ok(with_headers(Body::stream(watch)))
}

/// The events of a watch of the ConfigMap.
struct ConfigMapEvents {
    /// Whether the object matches the client's selectors.
    is_selected: bool,
}

impl ConfigMapEvents {
    fn push(&self, kind: &str, object: &AuthConfigMap, events: &mut WatchEvents) -> u64 {
        if self.is_selected {
            events.push(kind, &object.to_json());
        }
        object.resource_version
    }
}

impl WatchSource for ConfigMapEvents {
    type Snapshot = AuthConfigMap;

    fn initial_events(&mut self, object: &AuthConfigMap, events: &mut WatchEvents) -> u64 {
        self.push("ADDED", object, events)
    }

    /// The ConfigMap is never deleted, so a client with an older version has only missed modifications.
    fn changes(&mut self, object: &AuthConfigMap, since: u64, events: &mut WatchEvents) -> Result<u64, Status> {
        Ok(if object.resource_version > since { self.push("MODIFIED", object, events) } else { since })
    }

    fn bookmark(&self, _: u64, metadata: Value) -> Value {
        json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata })
    }
}

/// Whether the selectors of a list or watch, and a name in its path, match the object.
fn is_selected(info: &RequestInfo<'_>) -> Result<bool, Status> {
    let bad = |error| Status::bad_request(format!("{error}"));
    let fields = FieldSelector::parse(&info.field_selector).map_err(bad)?;
    if let Some(term) = fields.terms.iter().find(|term| !matches!(&*term.field, "metadata.name" | "metadata.namespace"))
    {
        return Err(Status::bad_request(format!("field label not supported: {}", term.field)));
    }
    let labels = LabelSelector::parse(&info.label_selector).map_err(bad)?;
    let named = info.name.is_empty() || info.name == NAME;
    let matched = fields.matches(|field| if field == "metadata.name" { NAME } else { NAMESPACE });
    Ok(named && matched && labels.matches(|_| None))
}

fn respond(value: &Value) -> Response<Body> {
    with_headers(format!("{value}\n").into())
}

fn with_headers(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
