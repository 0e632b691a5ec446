//! A small extension API server, the backend of `narthex quickstart`.
//!
//! Group `example.narthex.dev`: namespaced `greetings` in `v1`, cluster-scoped `doors` in `v1alpha1`, stored in memory.
//! TLS, authentication and authorization are done by the sidecar in front of it, which adds identity headers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

mod api_errors;
mod delete;
mod discovery;
mod object;
mod openapi;
mod options;
mod ownership;
mod patch;
mod read;
mod representation;
mod request;
mod resource;
mod respond;
mod selector;
mod serve;
mod store;
mod watch;
mod write;

#[cfg(test)]
mod tests;

pub use serve::serve;

/// Number of changes kept for watches and exact lists.
const HISTORY: usize = 1024;
/// Interval of bookmarks, as in kube-apiserver's watch cache.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// The objects and documents of the example API; clones share them.
#[derive(Clone)]
pub struct ExampleApi(Arc<ExampleState>);

struct ExampleState {
    store: Arc<store::ObjectStore>,
    discovery: discovery::CachedDocument,
    openapi_index: discovery::CachedDocument,
    /// In the order of [`resource::RESOURCES`].
    openapi: Vec<discovery::CachedDocument>,
    bookmark_every: Duration,
}

impl ExampleApi {
    /// Creates the API with its initial objects.
    ///
    /// Revisions start at the clock's seconds, so that a watch from an earlier process gets "too old resource version"
    /// instead of waiting.
    pub fn new() -> ExampleApi {
        let seconds = jiff::Timestamp::now().as_second();
        ExampleApi::with(u64::try_from(seconds).unwrap_or(1), HISTORY, BOOKMARK_EVERY)
    }

    fn with(revision: u64, history: usize, bookmark_every: Duration) -> ExampleApi {
        let store = Arc::new(store::ObjectStore::new(revision, history));
        for (resource, namespace, name, labels, spec) in initial_objects() {
            let key = (resource.plural, namespace.to_owned(), name.to_owned());
            let object = build_initial_object(resource, namespace, name, &labels, &spec);
            let Ok(_) = store.change::<std::convert::Infallible>(&key, false, |_| Ok(store::StoreAction::Put(object)));
        }
        let openapi: Vec<_> =
            resource::RESOURCES.iter().map(|one| discovery::CachedDocument::new(&openapi::document(one))).collect();
        ExampleApi(Arc::new(ExampleState {
            store,
            discovery: discovery::CachedDocument::new(&discovery::aggregated()),
            openapi_index: discovery::CachedDocument::new(&openapi::index(resource::RESOURCES.iter().zip(&openapi))),
            openapi,
            bookmark_every,
        }))
    }
}

impl Default for ExampleApi {
    fn default() -> ExampleApi {
        ExampleApi::new()
    }
}

type InitialObject = (&'static resource::ExampleResource, &'static str, &'static str, Value, Value);

fn initial_objects() -> [InitialObject; 5] {
    let [greetings, doors] = &resource::RESOURCES;
    let greeting = |message, language| json!({"message": message, "language": language});
    [
        (greetings, "default", "hello", json!({"tone": "warm"}), greeting("Hello, and welcome in", "en")),
        (greetings, "default", "kalimera", json!({"tone": "warm"}), greeting("Καλημέρα", "el")),
        (greetings, "default", "moin", json!({"tone": "short"}), greeting("Moin", "nds")),
        (doors, "", "nave", json!({}), json!({"leadsTo": "the nave", "open": true})),
        (doors, "", "street", json!({}), json!({"leadsTo": "the street", "open": false})),
    ]
}

fn build_initial_object(
    resource: &resource::ExampleResource,
    namespace: &str,
    name: &str,
    labels: &Value,
    spec: &Value,
) -> Value {
    let mut object = json!({
        "apiVersion": resource.group_version(), "kind": resource.kind,
        "metadata": {"name": name, "uid": uuid::Uuid::new_v4().to_string(), "creationTimestamp": object::now(), "generation": 1},
        "spec": spec, "status": {"createdBy": "narthex quickstart"},
    });
    if !namespace.is_empty() {
        object::set_metadata(&mut object, "namespace", Some(json!(namespace)));
    }
    if labels.as_object().is_some_and(|labels| !labels.is_empty()) {
        object::set_metadata(&mut object, "labels", Some(labels.clone()));
    }
    let mut owners = ownership::Ownership::default();
    owners.record_update(resource, "narthex", None, &object);
    owners.write(&mut object);
    object
}
