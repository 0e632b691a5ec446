//! The embedded API server: its catalog, its collections, and what the verbs share.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kubeapi::Status;
use parking_lot::Mutex;
use store::watch_cache::{CollectionSettings, Collections, DeclaredField, ResourceCollection, ValueUpgrade};
use store::{KeyError, Prefix};
use tokio::sync::SetOnce;

use super::admission_plugins::DisabledPlugins;
use super::removal_queues::{CrdIdentity, RemovalQueues};
use super::representation::EventViewCache;
use super::service_allocator::ServiceAllocator;
use super::service_settings::ServiceSettings;
use super::target::ObjectTarget;
use super::unenforced_kinds::UnenforcedKinds;
use crate::authenticate::service_accounts::TokenIssuer;
use crate::authorize::RbacPolicy;
use crate::compute::ComputeQueue;
use crate::conversion::ObjectConverter;
use crate::kinds::ValidationSettings;
use crate::kinds::crd;
use crate::kinds::custom_resource;
use crate::kinds::selectable_fields::{declared_fields, stored_labels};
use crate::observe::metrics::{ComputeMetrics, ConversionMetrics, WorkQueueRegistry};
use crate::process::{Drain, Published, Publisher};
use crate::registry::ApiServiceBackend;
use crate::resources::Resource;
use crate::resources::builtin::builtin_kinds;
use crate::resources::builtin::event_conversion::stored_resource;
use crate::resources::builtin::stored_protobuf::read_stored_protobuf;
use crate::resources::builtin::stored_version::is_stored_as_other;
use crate::resources::catalog::{CatalogEntry, ResourceCatalog};
use crate::resources::crd_upgrade::upgrade_stored_crd;
use crate::resources::custom::CustomResource;
use crate::route::RouteTable;
use crate::webhook_client::WebhookClient;

/// Minutes after which the schema of a custom resource that is not used is dropped.
const IDLE_MINUTES: u32 = 10;

/// What all keys begin with, kube-apiserver's default of `--etcd-prefix`.
pub const DEFAULT_KEY_ROOT: &str = "/registry";

/// Settings of the embedded API server.
#[derive(Clone, Debug)]
pub struct ApiServerSettings {
    /// What all keys begin with, without a slash at the end (`--etcd-prefix`).
    pub key_root: Arc<str>,
    /// Whether other servers write to the store, too.
    pub shares_store: bool,
    /// Whether requests that write are refused, and no controller runs (`--etcd-access=read-only`).
    pub is_read_only: bool,
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
    /// Whether a garbage collector runs, so that `Foreground` and `Orphan` become finalizers (`--enable-garbage-collector`).
    pub has_collector: bool,
    /// Whether a new object of a kind that is not enforced gets a `Warning` (`--unenforced-warnings`).
    pub warns_unenforced: bool,
    /// The admission plugins that are turned off (`--disable-admission-plugins`).
    pub disabled_plugins: DisabledPlugins,
    /// What is made for Services.
    pub services: ServiceSettings,
}

/// The embedded API server. Cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    pub(super) collections: Collections,
    pub(super) settings: Arc<ApiServerSettings>,
    pub(super) catalog: Published<ResourceCatalog>,
    pub(super) catalog_publisher: Arc<Publisher<ResourceCatalog>>,
    policy: Published<RbacPolicy>,
    policy_publisher: Arc<Publisher<RbacPolicy>>,
    pub(super) drain: Drain,
    pub(super) event_views: EventViewCache,
    pub(super) converter: ObjectConverter,
    /// Names of the CustomResourceDefinitions with rules, which are not enforced.
    pub(super) unenforced: Arc<Mutex<BTreeSet<String>>>,
    pub(super) unenforced_kinds: Arc<UnenforcedKinds>,
    pub(super) removal_queues: RemovalQueues,
    pub(super) service_allocator: ServiceAllocator,
    /// Prefixes of objects whose CRD does not exist.
    pub(super) orphaned: Arc<Mutex<BTreeSet<Prefix>>>,
    pub(super) compute: ComputeQueue,
    token_issuer: Option<Arc<TokenIssuer>>,
    /// Routes of the gateway that the server is a part of.
    routes: Arc<SetOnce<Published<RouteTable>>>,
    has_bootstrap_objects: Arc<AtomicBool>,
    has_ended_controller: Arc<AtomicBool>,
}

impl ApiServer {
    /// Creates an API server above a watch cache. Watches end when `drain` begins.
    pub fn new(collections: Collections, settings: ApiServerSettings, drain: Drain) -> ApiServer {
        let (publisher, catalog) = Published::new(ResourceCatalog::clone(&settings.catalog));
        let (policy_publisher, policy) = Published::new(RbacPolicy::default());
        ApiServer {
            collections,
            settings: Arc::new(settings),
            catalog,
            catalog_publisher: Arc::new(publisher),
            policy,
            policy_publisher: Arc::new(policy_publisher),
            drain,
            event_views: EventViewCache::default(),
            converter: ObjectConverter::default(),
            unenforced: Arc::default(),
            unenforced_kinds: Arc::default(),
            removal_queues: RemovalQueues::new(&WorkQueueRegistry::default()),
            service_allocator: ServiceAllocator::new(&WorkQueueRegistry::default()),
            orphaned: Arc::default(),
            compute: ComputeQueue::default(),
            token_issuer: None,
            routes: Arc::default(),
            has_bootstrap_objects: Arc::default(),
            has_ended_controller: Arc::default(),
        }
    }

    /// This server with metrics of its compute threads.
    pub fn with_compute_metrics(self, metrics: Arc<ComputeMetrics>) -> ApiServer {
        ApiServer { compute: ComputeQueue::new(metrics), ..self }
    }

    /// This server with metrics of the queues that it shares with its controllers.
    pub fn with_work_queue_metrics(self, metrics: &WorkQueueRegistry) -> ApiServer {
        let (removal_queues, service_allocator) = (RemovalQueues::new(metrics), ServiceAllocator::new(metrics));
        ApiServer { removal_queues, service_allocator, ..self }
    }

    /// This server with tokens for ServiceAccounts.
    pub fn with_token_issuer(self, issuer: Arc<TokenIssuer>) -> ApiServer {
        ApiServer { token_issuer: Some(issuer), ..self }
    }

    /// What issues tokens of ServiceAccounts; none if objects are generated.
    pub fn token_issuer(&self) -> Option<&Arc<TokenIssuer>> {
        self.token_issuer.as_ref()
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

    /// Whether a controller has ended, which none should: what it follows is not up to date any more.
    pub fn has_ended_controller(&self) -> bool {
        self.has_ended_controller.load(Ordering::Relaxed)
    }

    /// Notes that a controller has ended.
    pub(crate) fn note_ended_controller(&self) {
        self.has_ended_controller.store(true, Ordering::Relaxed);
    }

    /// Whether the objects that every server has are there.
    pub fn has_bootstrap_objects(&self) -> bool {
        self.has_bootstrap_objects.load(Ordering::Relaxed)
    }

    /// Notes that the objects that every server has are there.
    pub(crate) fn note_bootstrap_objects(&self) {
        self.has_bootstrap_objects.store(true, Ordering::Relaxed);
    }

    /// Gives the server the routes of its gateway, once.
    pub fn set_routes(&self, routes: Published<RouteTable>) {
        let _ = self.routes.set(routes);
    }

    /// Waits until the routes of the gateway are known.
    pub(crate) async fn wait_for_routes(&self) {
        let mut routes = self.routes.wait().await.clone();
        while !routes.get().complete {
            routes.changed().await;
        }
    }

    /// Whether another server answers requests for the resources of a group and version.
    pub(crate) fn is_claimed(&self, group: &str, version: &str) -> bool {
        let routes = self.routes.get().map(Published::load);
        let route = routes.as_ref().and_then(|routes| routes.by_name(&format!("{version}.{group}")));
        route.is_some_and(|route| route.api_service.backend != ApiServiceBackend::Local)
    }

    /// The RBAC policy of the stored roles and bindings. It is empty until a controller publishes it.
    pub fn policy(&self) -> &Published<RbacPolicy> {
        &self.policy
    }

    /// Replaces the RBAC policy.
    pub(crate) fn publish_policy(&self, policy: RbacPolicy) {
        self.policy_publisher.publish(Arc::new(policy));
    }

    /// Names of the CustomResourceDefinitions with rules (`x-kubernetes-validations`), which are not enforced.
    pub fn unenforced_crds(&self) -> Vec<String> {
        self.unenforced.lock().iter().cloned().collect()
    }

    /// Replaces the resources of CustomResourceDefinitions. A collection whose CRD is another one, or whose fields
    /// for selectors changed, is dropped: the next request makes it again.
    pub(crate) fn publish_custom(&self, entries: Vec<CatalogEntry>) {
        let before = self.catalog.get();
        let catalog = before.with_custom(entries);
        let served = custom_resources(&catalog);
        for (name, (custom, resource)) in custom_resources(&before) {
            let is_same = served.get(name).is_some_and(|(now, new_resource)| {
                Arc::ptr_eq(new_resource, resource)
                    || now.uid == custom.uid && stored_labels(new_resource) == stored_labels(resource)
            });
            if !is_same && let Ok(prefix) = self.resource_prefix(resource) {
                self.collections.remove(&prefix);
            }
        }
        self.catalog_publisher.publish(Arc::new(catalog));
    }

    /// Whether the server has resources of its own in a group. CRDs of such a group are not served.
    pub fn has_builtin_group(&self, group: &str) -> bool {
        self.settings.catalog.entries().iter().any(|entry| entry.kind.resource.group == group)
    }

    /// The resources that are stored as themselves, each with its collection.
    ///
    /// # Errors
    /// 500 for a name that cannot be part of a key.
    pub fn stored_resources(&self) -> Result<Vec<(Arc<Resource>, ResourceCollection)>, Status> {
        let is_own = |entry: &&CatalogEntry| entry.is_stored() && !is_stored_as_other(&entry.kind);
        let catalog = self.catalog.get();
        let stored = catalog.entries().iter().filter(is_own);
        stored.map(|entry| Ok((entry.kind.resource.clone(), self.collection(&entry.kind.resource)?))).collect()
    }

    /// The custom resources that were used, each with its collection. They come and go.
    pub fn custom_collections(&self) -> Vec<(Arc<Resource>, ResourceCollection)> {
        let catalog = self.catalog.get();
        let custom = custom_resources(&catalog).into_values();
        let used = custom.filter_map(|(_, resource)| {
            Some((resource.clone(), self.collections.get(&self.resource_prefix(resource).ok()?)?))
        });
        let mut used: Vec<(Arc<Resource>, ResourceCollection)> = used.collect();
        used.sort_by(|(a, _), (b, _)| a.group_resource().cmp(&b.group_resource()));
        used
    }

    /// The collection of a built-in resource; none if there is no such resource.
    pub fn builtin_collection(&self, group: &str, plural: &str) -> Option<ResourceCollection> {
        self.collection(builtin_kinds().resource(group, plural)?).ok()
    }

    /// Tells controllers that an object was removed by a client: what is left may be removable now.
    pub(super) fn note_removed(&self, target: &ObjectTarget<'_>) {
        let RemovalQueues { namespaces, crds } = &self.removal_queues;
        if !namespaces.is_empty() {
            namespaces.retry_soon(&target.namespace.to_owned());
        }
        if let Some(custom) = &target.kind.resource.custom
            && !crds.is_empty()
        {
            crds.retry_soon(&CrdIdentity { name: custom.crd_name.clone(), uid: custom.uid.clone() });
        }
    }

    /// The queues of namespaces and CRDs that are removed.
    pub(crate) fn removal_queues(&self) -> &RemovalQueues {
        &self.removal_queues
    }

    /// Ends what lasts: watches and controllers.
    pub(crate) fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Waits for those who make documents of the catalog.
    pub(crate) fn catalog_publisher(&self) -> &Publisher<ResourceCatalog> {
        &self.catalog_publisher
    }

    /// Notes whether a CRD has rules, which are not enforced. Returns whether it had none before.
    pub(crate) fn set_unenforced(&self, crd: &str, has_rules: bool) -> bool {
        let mut unenforced = self.unenforced.lock();
        match has_rules {
            true => unenforced.insert(crd.to_owned()),
            false => {
                unenforced.remove(crd);
                false
            }
        }
    }

    /// Forgets the CRDs with rules that `exists` does not have.
    pub(crate) fn retain_unenforced(&self, exists: impl Fn(&String) -> bool) {
        self.unenforced.lock().retain(|crd| exists(crd));
    }

    /// Prefix of the keys of a resource.
    pub(super) fn resource_prefix(&self, resource: &Resource) -> Result<Prefix, KeyError> {
        match resource.custom {
            Some(_) => Prefix::of_custom(&self.settings.key_root, &resource.group, &resource.plural),
            None => Prefix::of_builtin(&self.settings.key_root, &resource.group, &resource.plural),
        }
    }

    /// The collection of a resource.
    pub(crate) fn collection(&self, resource: &Arc<Resource>) -> Result<ResourceCollection, Status> {
        let resource = stored_resource(resource);
        let prefix = self.resource_prefix(resource);
        let prefix = prefix.map_err(Status::internal_error)?;
        if let Some(collection) = self.collections.get(&prefix) {
            return Ok(collection);
        }
        let fields: Arc<[DeclaredField]> = declared_fields(resource).into();
        let upgrade = match (crd::is_crd(resource), resource.custom.is_some()) {
            (true, _) => Some(upgrade_stored_crd as ValueUpgrade),
            (false, false) => Some(read_stored_protobuf as ValueUpgrade),
            (false, true) => None,
        };
        let repair = resource.custom.is_some().then_some(custom_resource::repair_metadata as ValueUpgrade);
        Ok(self.collections.collection(&CollectionSettings { prefix, fields, upgrade, repair }))
    }
}

/// The resources of CustomResourceDefinitions, by the name of the CRD.
fn custom_resources(catalog: &ResourceCatalog) -> HashMap<&str, (&CustomResource, &Arc<Resource>)> {
    let resources = catalog.entries().iter().map(|entry| &entry.kind.resource);
    let custom = resources.filter_map(|resource| Some((resource.custom.as_ref()?, resource)));
    custom.map(|(custom, resource)| (custom.crd_name.as_str(), (custom, resource))).collect()
}
