//! The embedded API server: objects of built-in kinds are created, read, watched, changed and deleted in the store.
//!
//! One function per verb. The order of the checks is Kubernetes' (`k8s.io/apiserver/pkg/endpoints/handlers` and
//! `pkg/registry/generic/registry/store.go`) and is what clients see.

mod bootstrap;
mod compute;
mod conversion;
#[cfg(test)]
mod cost_tests;
mod crd_controller;
#[cfg(test)]
mod crd_tests;
mod create;
#[cfg(test)]
mod custom_resource_tests;
mod delete;
mod delete_options;
mod errors;
mod leftovers;
mod local_api_services;
mod metadata;
mod namespace;
mod namespace_conditions;
mod object_publisher;
mod object_removal;
mod object_type;
mod patch;
mod read;
mod removals;
mod representation;
mod request_body;
mod scale;
mod schema_work;
mod target;
mod update;
mod warnings;
mod watch;
mod webhook_client;
mod write_options;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Map, Value};

pub use self::bootstrap::create_initial_objects;
pub use self::crd_controller::CrdController;
pub use self::object_publisher::ObjectPublisher;
pub use self::webhook_client::{WebhookCalls, WebhookClient, WebhookThread};
pub use self::write_options::FieldValidation;

use self::compute::{ComputeContext, ComputeQueue};
use self::conversion::ObjectConverter;
use self::errors::status_of;
use self::removals::{RemovalTarget, Removals};
use self::representation::{EventViewCache, OutputMediaType, ReplyContent};
use self::target::ObjectTarget;
use crate::authorize::CreateAuthorization;
use crate::kinds::crd;
use crate::kinds::custom_resource;
use crate::kinds::selectable_fields::{declared_fields, stored_labels};
use crate::kinds::{ValidationSettings, deprecation_warning};
use crate::kubeapi::{Query, RequestInfo, Status};
use crate::message::Body;
use crate::observe::metrics::{ComputeMetrics, ConversionMetrics};
use crate::process::{Drain, Published, Publisher};
use crate::resources::Resource;
use crate::resources::builtin::builtin_kinds;
use crate::resources::builtin::event_conversion::{is_stored_as_other, stored_resource};
use crate::resources::catalog::{CatalogEntry, ResourceCatalog};
use crate::resources::custom::CustomResource;
use crate::resources::definition_upgrade::upgrade_stored_definition;
use crate::route::Hand;
use crate::storage::{KeyError, Prefix};
use crate::watch_cache::{
    CollectionSettings, Collections, DeclaredField, Notifier, ResourceCollection, Stored, ValueUpgrade,
};

/// Largest request body in bytes, kube-apiserver's `MaxRequestBodyBytes`.
pub const MAX_BODY_BYTES: usize = 3 << 20;

/// Minutes after which the schema of a custom resource that is not used is dropped.
const IDLE_MINUTES: u32 = 10;

/// Root of all keys, kube-apiserver's default of `--etcd-prefix`.
const KEY_ROOT: &str = "/registry";

/// Settings of the embedded API server.
#[derive(Clone, Debug)]
pub struct ApiServerSettings {
    /// How long Events are kept (`--event-ttl`).
    pub event_ttl: Duration,
    /// Shortest duration of a watch without `timeoutSeconds`; the longest is twice that (`--min-request-timeout`).
    pub min_request_timeout: Duration,
    /// The built-in resources that are served.
    pub catalog: Arc<ResourceCatalog>,
    /// Longest duration of a request that is no watch (`--request-timeout`).
    pub request_timeout: Duration,
    /// Settings of the validation of objects.
    pub validation: ValidationSettings,
}

/// The embedded API server. Cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    collections: Collections,
    settings: Arc<ApiServerSettings>,
    catalog: Published<ResourceCatalog>,
    catalog_publisher: Arc<Publisher<ResourceCatalog>>,
    drain: Drain,
    event_views: EventViewCache,
    converter: ObjectConverter,
    /// Names of the CustomResourceDefinitions with rules, which are not enforced.
    unenforced: Arc<Mutex<BTreeSet<String>>>,
    removals: Removals,
    /// Prefixes of objects whose definition does not exist.
    orphaned: Arc<Mutex<BTreeSet<Prefix>>>,
    compute: ComputeQueue,
}

/// A request for objects, with the whole body.
pub struct ApiRequest<'r> {
    /// Request info that was authorized: verb, resource, namespace, name.
    pub info: &'r RequestInfo<'r>,
    /// The query.
    pub query: &'r Query<'r>,
    /// Headers of the request.
    pub headers: &'r HeaderMap,
    /// The body, at most [`MAX_BODY_BYTES`].
    pub body: Bytes,
    /// Whether the request may create an object, whatever its verb is.
    pub creation: &'r CreateAuthorization<'r>,
    /// The user, who shares compute threads with others.
    pub hand: Hand,
    /// When the request is given up.
    pub deadline: Option<Instant>,
}

/// A request that failed.
#[derive(Debug)]
pub struct FailedRequest {
    /// What the client gets, with Kubernetes' reason and text.
    pub status: Status,
    /// Texts of `Warning` headers.
    pub warnings: Vec<String>,
}

/// What a verb is answered with: an object, a list or a Status.
struct VerbReply {
    code: StatusCode,
    content: ReplyContent,
}

impl VerbReply {
    fn ok(content: ReplyContent) -> VerbReply {
        VerbReply { code: StatusCode::OK, content }
    }
}

impl ApiServer {
    /// Creates an API server above a watch cache. Watches end when `drain` begins.
    pub fn new(collections: Collections, settings: ApiServerSettings, drain: Drain) -> ApiServer {
        let (publisher, catalog) = Published::new(ResourceCatalog::clone(&settings.catalog));
        ApiServer {
            collections,
            settings: Arc::new(settings),
            catalog,
            catalog_publisher: Arc::new(publisher),
            drain,
            event_views: EventViewCache::default(),
            converter: ObjectConverter::default(),
            unenforced: Arc::default(),
            removals: Removals::default(),
            orphaned: Arc::default(),
            compute: ComputeQueue::default(),
        }
    }

    /// This server with metrics of its compute threads.
    pub fn with_compute_metrics(self, metrics: Arc<ComputeMetrics>) -> ApiServer {
        ApiServer { compute: ComputeQueue::new(metrics), ..self }
    }

    /// This server with conversion of custom objects by webhooks.
    pub fn with_conversion_webhooks(self, client: WebhookClient, metrics: Arc<ConversionMetrics>) -> ApiServer {
        ApiServer { converter: ObjectConverter::new(client, metrics), ..self }
    }

    /// Drops the schemas of custom resources that were not used for some time. Called every minute.
    pub fn drop_idle_schemas(&self) {
        let catalog = self.catalog.get();
        for (custom, _) in custom_resources(&catalog).into_values() {
            custom.versions.iter().for_each(|version| version.drop_idle_schema(IDLE_MINUTES));
        }
    }

    /// The watch cache.
    pub fn collections(&self) -> &Collections {
        &self.collections
    }

    /// The settings.
    pub fn settings(&self) -> &ApiServerSettings {
        &self.settings
    }

    /// The resources that are served, those of CustomResourceDefinitions included.
    pub fn catalog(&self) -> &Published<ResourceCatalog> {
        &self.catalog
    }

    /// Names of the CustomResourceDefinitions with rules (`x-kubernetes-validations`), which are not enforced.
    pub fn unenforced_definitions(&self) -> Vec<String> {
        self.unenforced.lock().iter().cloned().collect()
    }

    /// Replaces the resources of CustomResourceDefinitions. A collection whose definition is another one, or whose fields
    /// for selectors changed, is dropped: the next request makes it again.
    fn publish_custom(&self, entries: Vec<CatalogEntry>) {
        let before = self.catalog.get();
        let catalog = before.with_custom(entries);
        let served = custom_resources(&catalog);
        for (name, (custom, resource)) in custom_resources(&before) {
            let is_same = served.get(name).is_some_and(|(now, new_resource)| {
                Arc::ptr_eq(new_resource, resource)
                    || now.uid == custom.uid && stored_labels(new_resource) == stored_labels(resource)
            });
            if !is_same && let Ok(prefix) = resource_prefix(resource) {
                self.collections.remove(&prefix);
            }
        }
        self.catalog_publisher.publish(Arc::new(catalog));
    }

    /// Whether the server has resources of its own in a group. Definitions of such a group are not served.
    pub fn has_builtin_group(&self, group: &str) -> bool {
        self.settings.catalog.entries().iter().any(|entry| entry.kind.resource.group == group)
    }

    /// The resources that are stored as themselves, each with its collection.
    ///
    /// # Errors
    /// 500 for a name that cannot be part of a key.
    pub fn stored_resources(&self) -> Result<Vec<(Arc<Resource>, ResourceCollection)>, Status> {
        let is_own = |entry: &&CatalogEntry| entry.is_stored() && !is_stored_as_other(&entry.kind.resource);
        let catalog = self.catalog.get();
        let stored = catalog.entries().iter().filter(is_own);
        stored.map(|entry| Ok((entry.kind.resource.clone(), self.collection(&entry.kind.resource)?))).collect()
    }

    /// The custom resources that were used, each with its collection. They come and go.
    pub fn custom_collections(&self) -> Vec<(Arc<Resource>, ResourceCollection)> {
        let catalog = self.catalog.get();
        let custom = custom_resources(&catalog).into_values();
        let used = custom.filter_map(|(_, resource)| {
            Some((resource.clone(), self.collections.get(&resource_prefix(resource).ok()?)?))
        });
        let mut used: Vec<(Arc<Resource>, ResourceCollection)> = used.collect();
        used.sort_by(|(a, _), (b, _)| a.group_resource().cmp(&b.group_resource()));
        used
    }

    /// The response to a request for a resource of the catalog.
    ///
    /// # Errors
    /// A Status with Kubernetes' reason and text, and the warnings until then.
    pub async fn respond(
        &self,
        request: &ApiRequest<'_>,
        notifier: &Notifier,
    ) -> Result<Response<Body>, FailedRequest> {
        let mut warnings = Vec::new();
        let context = ComputeContext::new(&self.compute, Some(request.hand), request.deadline);
        let _cancel = context.cancel_on_drop();
        match context.scope(Box::pin(self.call_verb(request, notifier, &mut warnings))).await {
            Ok(mut response) => {
                warnings::add_warnings(response.headers_mut(), &warnings);
                Ok(response)
            }
            Err(status) => Err(FailedRequest { status, warnings: warnings::bounded_warnings(&warnings) }),
        }
    }

    async fn call_verb(
        &self,
        request: &ApiRequest<'_>,
        notifier: &Notifier,
        warnings: &mut Vec<String>,
    ) -> Result<Response<Body>, Status> {
        let target = ObjectTarget::parse(&self.catalog.get(), request.info)?;
        let collection = self.collection(&target.kind.resource)?;
        let _schemas = schema_work::compile_schemas(&target.kind).await?;
        let verb = &*request.info.verb;
        warnings.extend(deprecation_warning(&target.kind).map(str::to_owned));
        if let Some(kind) = scale::scale_kind().filter(|_| target.subresource == "scale") {
            let media_type = OutputMediaType::negotiate(kind, verb, request.query, request.headers)?;
            let reply = scale::scale(self, &collection, &target, kind, request, warnings).await?;
            return representation::respond(kind, media_type, reply.code, reply.content).await;
        }
        let media_type = OutputMediaType::negotiate(&target.kind, verb, request.query, request.headers)?;
        let reply = match verb {
            "get" => VerbReply::ok(read::get(&collection, &target, request).await?),
            "list" => VerbReply::ok(read::list(self, &collection, &target, request).await?),
            "watch" => return watch::watch(self, &collection, &target, request, (media_type, notifier)).await,
            "create" => create::create(self, &collection, &target, request, warnings).await?,
            "update" => update::update(self, &collection, &target, request, warnings).await?,
            "patch" => patch::patch(self, &collection, &target, request, warnings).await?,
            "delete" => delete::delete(self, &collection, &target, request).await?,
            "deletecollection" => delete::delete_collection(self, &collection, &target, request).await?,
            _ => return Err(target.method_not_allowed(verb)),
        };
        let content = self.converter.convert_reply(&target.kind, &collection, reply.content).await?;
        representation::respond(&target.kind, media_type, reply.code, content).await
    }

    /// The collection of a built-in resource; none if there is no such resource.
    pub fn builtin_collection(&self, group: &str, plural: &str) -> Option<ResourceCollection> {
        self.collection(builtin_kinds().resource(group, plural)?).ok()
    }

    /// Tells removals that an object was removed by a client: what is left may be removable now.
    fn note_removed(&self, target: &ObjectTarget<'_>) {
        if self.removals.is_empty() {
            return;
        }
        self.removals.note_progress(&RemovalTarget::Namespace(target.namespace.to_owned()));
        if let Some(custom) = &target.kind.resource.custom {
            self.removals.note_progress(&RemovalTarget::Definition(custom.uid.clone()));
        }
    }

    /// The collection of a resource.
    fn collection(&self, resource: &Arc<Resource>) -> Result<ResourceCollection, Status> {
        let resource = stored_resource(resource);
        let prefix = resource_prefix(resource);
        let prefix = prefix.map_err(Status::internal_error)?;
        let fields: Arc<[DeclaredField]> = declared_fields(resource).into();
        let upgrade = crd::is_crd(resource).then_some(upgrade_stored_definition as ValueUpgrade);
        let repair = resource.custom.is_some().then_some(custom_resource::repair_metadata as ValueUpgrade);
        Ok(self.collections.collection(&CollectionSettings { prefix, fields, upgrade, repair }))
    }
}

/// The resources of CustomResourceDefinitions, by the name of the definition.
fn custom_resources(catalog: &ResourceCatalog) -> HashMap<&str, (&CustomResource, &Arc<Resource>)> {
    let resources = catalog.entries().iter().map(|entry| &entry.kind.resource);
    let custom = resources.filter_map(|resource| Some((resource.custom.as_ref()?, resource)));
    custom.map(|(custom, resource)| (custom.definition.as_str(), (custom, resource))).collect()
}

/// Prefix of the keys of a resource.
fn resource_prefix(resource: &Resource) -> Result<Prefix, KeyError> {
    match resource.custom {
        Some(_) => Prefix::of_custom(KEY_ROOT, &resource.group, &resource.plural),
        None => Prefix::of_builtin(KEY_ROOT, &resource.group, &resource.plural),
    }
}

/// The stored object with its resourceVersion as a value, parsed on a compute thread if it is large.
///
/// # Errors
/// 500 for a value that cannot be read.
async fn stored_object(stored: &Arc<Stored>) -> Result<Map<String, Value>, Status> {
    let (size, stored) = (stored.bytes().len(), stored.clone());
    compute::run_sized(size, move || parse_stored_object(&stored)).await?
}

/// As [`stored_object`], on this thread.
fn parse_stored_object(stored: &Stored) -> Result<Map<String, Value>, Status> {
    let object = serde_json::from_slice(&stored.versioned().concat());
    object.map_err(|error| {
        Status::internal_error(format_args!("stored object {} cannot be parsed: {error}", stored.key()))
    })
}

/// Maps an error of the watch cache for an object of `target`.
fn cache_error(target: &ObjectTarget<'_>, error: crate::watch_cache::Error) -> Status {
    status_of(target, error)
}
