//! A request for objects, the input of the verbs.

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, USER_AGENT};
use serde_json::Value;

use super::options::Parameters;
use super::resource::{ExampleResource, RESOURCES};
use super::store::ObjectKey;
use super::{ExampleState, api_errors};
use crate::kubeapi::{Status, read_bounded_yaml};
use crate::process::Drain;

/// A request for objects.
pub(super) struct ExampleRequest<'c> {
    pub(super) api: &'c ExampleState,
    pub(super) drain: &'c Drain,
    pub(super) headers: &'c HeaderMap,
    pub(super) query: Parameters,
    pub(super) body: Bytes,
    /// The user from the front proxy's headers.
    pub(super) user: String,
}

impl ExampleRequest<'_> {
    pub(super) fn user_agent(&self) -> &str {
        self.headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub(super) fn content_type(&self) -> &str {
        self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// The objects that a path names.
pub(super) struct ExampleTarget {
    pub(super) resource: &'static ExampleResource,
    /// `None` for cluster-scoped objects, and for all namespaces.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
}

impl ExampleTarget {
    /// The store key of the object `name`.
    pub(super) fn key(&self, name: &str) -> ObjectKey {
        (self.resource.plural, self.namespace.clone().unwrap_or_default(), name.to_owned())
    }

    /// Parses `namespaces/<ns>/greetings[/<name>]`, `greetings`, `doors[/<name>]` below the version.
    pub(super) fn parse(version: &str, rest: &[&str]) -> Option<ExampleTarget> {
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !namespace.is_empty() => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let (plural, name) = match rest {
            [plural] => (plural, None),
            [plural, name] => (plural, Some((*name).to_owned())),
            _ => return None,
        };
        let resource = RESOURCES.iter().find(|one| one.version == version && one.plural == *plural)?;
        let placed = namespace.is_some() == resource.namespaced || (name.is_none() && namespace.is_none());
        placed.then_some(ExampleTarget { resource, namespace, name })
    }
}

/// Parses the body as JSON or YAML; 415 for other content types.
pub(super) fn read_body(call: &ExampleRequest<'_>, target: &ExampleTarget) -> Result<Value, Status> {
    match call.content_type().split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        "" | "application/json" => read_json(call, target),
        "application/yaml" => read_yaml(call, target),
        _ => Err(api_errors::unsupported_media_type("application/json, application/yaml")),
    }
}

/// Parses the body of an apply patch. JSON is valid YAML, and kubectl sends it: the faster JSON parser comes first.
pub(super) fn read_apply(call: &ExampleRequest<'_>, target: &ExampleTarget) -> Result<Value, Status> {
    read_json(call, target).or_else(|_| read_yaml(call, target))
}

fn read_json(call: &ExampleRequest<'_>, target: &ExampleTarget) -> Result<Value, Status> {
    serde_json::from_slice(&call.body).map_err(|error| unrecognized(target, "json", &error.to_string()))
}

fn read_yaml(call: &ExampleRequest<'_>, target: &ExampleTarget) -> Result<Value, Status> {
    let text = std::str::from_utf8(&call.body).map_err(|error| unrecognized(target, "yaml", &error.to_string()))?;
    read_bounded_yaml(text).map_err(|error| unrecognized(target, "yaml", &error.to_string()))
}

fn unrecognized(target: &ExampleTarget, form: &str, why: &str) -> Status {
    let kind = target.resource.kind;
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; {form} parse error: \
         {why}"
    ))
}
