//! The Service `kubernetes` in the namespace `default`, by which clients in the cluster reach this server, and its endpoints
//! (`pkg/controlplane/controller/kubernetesservice`, `pkg/controlplane/reconcilers`).
//!
//! The Service is created if there is none, and is otherwise left alone. Its Endpoints and EndpointSlice are kept at the
//! address of this server; where several have the store, at that of the leader.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::change_metadata;
use serde_json::{Map, Value, json};
use store::watch_cache::{Error, ResourceCollection, WatchEventKind};

use super::runner::{Controller, FeedEvent};
use super::{builtin_collection, read_latest};
use crate::conversion::stored_object;
use crate::observe::metrics::WorkQueueRegistry;
use crate::rest::{ApiServer, ServiceName, new_object, unavailable};
use crate::work_queue::{BackOff, WorkQueue};

const NAMESPACE: &str = "default";

/// The name of all three objects.
const NAME: &str = "kubernetes";

/// The name of the only port.
const PORT_NAME: &str = "https";

/// Label by which a controller that mirrors Endpoints leaves these out.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

/// Pauses after failures, at most the interval of kube-apiserver.
const BACK_OFF: BackOff = BackOff { initial: Duration::from_secs(1), max: Duration::from_secs(10) };

/// The controller of the Service `kubernetes`. Its only key is the name of the Service.
pub(super) struct KubernetesServiceController {
    api: ApiServer,
    services: ResourceCollection,
    endpoints: ResourceCollection,
    endpoint_slices: ResourceCollection,
    /// Where this server is reached; none if it does not listen.
    address: Option<SocketAddr>,
    /// Whether this server has begun to lead and has not written its port yet.
    is_starting: Cell<bool>,
    queue: WorkQueue<&'static str>,
}

impl KubernetesServiceController {
    /// Creates the Service and its endpoints. What fails is tried again when the controller runs.
    ///
    /// # Errors
    /// 500 if the server has no Services or endpoints.
    pub(super) async fn start(
        api: &ApiServer,
        metrics: &WorkQueueRegistry,
    ) -> Result<KubernetesServiceController, Status> {
        let controller = KubernetesServiceController {
            api: api.clone(),
            services: builtin_collection(api, "", "services")?,
            endpoints: builtin_collection(api, "", "endpoints")?,
            endpoint_slices: builtin_collection(api, "discovery.k8s.io", "endpointslices")?,
            address: api.settings().services.public_address(),
            is_starting: Cell::new(false),
            queue: WorkQueue::new(BACK_OFF, metrics.register("kubernetes_service")),
        };
        if let Err(status) = controller.create().await {
            tracing::warn!("Service {NAMESPACE}/{NAME} not created, tried again: {}", status.message);
            controller.queue.add(NAME);
        }
        Ok(controller)
    }

    /// The Endpoints and EndpointSlices, whose changes are observed.
    pub(super) fn endpoints(&self) -> [&ResourceCollection; 2] {
        [&self.endpoints, &self.endpoint_slices]
    }

    /// Adds the key when the Service is deleted.
    pub(super) fn observe_service(&self, event: &FeedEvent<'_>) {
        if let FeedEvent::Object(event) = event
            && event.kind == WatchEventKind::Deleted
        {
            self.observe(&FeedEvent::Object(event));
        }
    }

    /// Adds the key when an object of its name changes, and when the watch starts.
    pub(super) fn observe(&self, event: &FeedEvent<'_>) {
        let is_of_key = match event {
            FeedEvent::Started => true,
            FeedEvent::Object(event) => {
                event.object.as_ref().is_some_and(|object| object.namespace() == NAMESPACE && object.name() == NAME)
            }
        };
        if matches!(event, FeedEvent::Started) && self.api.settings().shares_store {
            // Another server had its own port there.
            self.is_starting.set(true);
        }
        if is_of_key && self.address.is_some() {
            self.queue.add(NAME);
        }
    }

    /// Creates what is missing at the start. Where several servers have the store, the leader writes the endpoints.
    async fn create(&self) -> Result<(), Status> {
        match self.address.filter(|_| self.api.settings().shares_store) {
            Some(address) => self.ensure_service(address).await,
            None => self.sync(true).await,
        }
    }

    /// Creates what is missing, and gives the endpoints the address of this server; at the start also its port.
    async fn sync(&self, is_starting: bool) -> Result<(), Status> {
        let Some(address) = self.address else { return Ok(()) };
        self.ensure_service(address).await?;
        let port = json!({"name": PORT_NAME, "port": address.port(), "protocol": "TCP"});
        let subsets = json!([{"addresses": [{"ip": address.ip()}], "ports": [port]}]);
        let is_current = |object: &Map<String, Value>| {
            object.get("metadata").is_some_and(|metadata| metadata["labels"][SKIP_MIRROR] == "true")
                && object.get("subsets").is_some_and(|found| match found.as_array().map(Vec::as_slice) {
                    Some([one]) if !is_starting => one["addresses"] == subsets[0]["addresses"],
                    _ => *found == subsets,
                })
        };
        let set = |object: &mut Map<String, Value>| {
            set_label(object, SKIP_MIRROR, "true");
            object.insert("subsets".to_owned(), subsets.clone());
        };
        self.write(&self.endpoints, ("", "v1", "Endpoints"), is_current, set).await?;
        let address_type = if address.is_ipv6() { "IPv6" } else { "IPv4" };
        let slice = json!({
            "addressType": address_type,
            "endpoints": [{"addresses": [address.ip()], "conditions": {"ready": true}}],
            "ports": [port],
        });
        let parts = slice.as_object().into_iter().flatten();
        let labels = json!({"kubernetes.io/service-name": NAME});
        let is_current = |object: &Map<String, Value>| {
            object.get("metadata").is_some_and(|metadata| metadata["labels"] == labels)
                && parts.clone().all(|(field, value)| object.get(field) == Some(value))
        };
        let set = |object: &mut Map<String, Value>| {
            object.retain(|field, _| matches!(field.as_str(), "apiVersion" | "kind" | "metadata"));
            object.extend(parts.clone().map(|(field, value)| (field.clone(), value.clone())));
            change_metadata(object, |metadata| metadata.insert("labels".to_owned(), labels.clone()));
        };
        self.write(&self.endpoint_slices, ("discovery.k8s.io", "v1", "EndpointSlice"), is_current, set).await
    }

    /// Creates the Service if there is none.
    async fn ensure_service(&self, address: SocketAddr) -> Result<(), Status> {
        let (key, existing) = read_latest(&self.services, NAMESPACE, NAME).await?;
        if existing.is_some() {
            return Ok(());
        }
        let settings = &self.api.settings().services;
        let ip = settings.kubernetes_ip();
        let mut port = json!({"name": PORT_NAME, "port": 443, "protocol": "TCP", "targetPort": address.port()});
        let mut spec = json!({
            "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilyPolicy": "SingleStack",
            "ipFamilies": [if ip.is_ipv6() { "IPv6" } else { "IPv4" }], "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster",
        });
        if let Some(node_port) = settings.kubernetes_node_port {
            port["nodePort"] = json!(node_port);
            spec["type"] = json!("NodePort");
            spec["externalTrafficPolicy"] = json!("Cluster");
        }
        spec["ports"] = json!([port]);
        let mut object = named_object("v1", "Service");
        set_label(&mut object, "component", "apiserver");
        set_label(&mut object, "provider", "kubernetes");
        object.insert("spec".to_owned(), spec);
        let value = new_object("", "v1", "services", object)?;
        let service = ServiceName { namespace: NAMESPACE.to_owned(), name: NAME.to_owned() };
        let commit = self.api.reserve_for_service(service, ip, settings.kubernetes_node_port).await?;
        match self.services.create(&key, value, None).await {
            Ok(_) => {
                commit();
                Ok(())
            }
            Err(Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// Creates an object of the name, or changes it unless it `is_current`.
    async fn write(
        &self,
        collection: &ResourceCollection,
        (group, version, kind): (&str, &str, &str),
        is_current: impl Fn(&Map<String, Value>) -> bool,
        set: impl Fn(&mut Map<String, Value>),
    ) -> Result<(), Status> {
        let key = collection.prefix().key(NAMESPACE, NAME).map_err(Status::internal_error)?;
        loop {
            let current = collection.get_latest(&key).await.map_err(|error| unavailable(&error))?;
            let written = match current {
                None => {
                    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
                    let mut object = named_object(&api_version, kind);
                    set(&mut object);
                    let plural = if kind == "Endpoints" { "endpoints" } else { "endpointslices" };
                    collection.create(&key, new_object(group, version, plural, object)?, None).await
                }
                Some(current) => {
                    let mut object = stored_object(&current).await?;
                    if is_current(&object) {
                        return Ok(());
                    }
                    set(&mut object);
                    change_metadata(&mut object, |metadata| {
                        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
                            metadata.insert("generation".to_owned(), json!(generation.saturating_add(1)));
                        }
                    });
                    let value = write_stored_json(&object).bytes;
                    collection.update(&key, current.revision(), value.into(), None).await
                }
            };
            match written {
                Ok(_) => return Ok(()),
                Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(unavailable(&error)),
            }
        }
    }
}

impl Controller for KubernetesServiceController {
    type Key = &'static str;

    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &WorkQueue<&'static str> {
        &self.queue
    }

    async fn reconcile(&self, _: &&'static str) -> Result<(), Status> {
        let is_starting = self.is_starting.take();
        let synced = self.sync(is_starting).await;
        if synced.is_err() {
            self.is_starting.set(is_starting);
        }
        synced
    }
}

fn named_object(api_version: &str, kind: &str) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    object.insert("metadata".to_owned(), json!({"name": NAME, "namespace": NAMESPACE}));
    object
}

fn set_label(object: &mut Map<String, Value>, label: &str, value: &str) {
    change_metadata(object, |metadata| {
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        if !labels.is_object() {
            *labels = json!({});
        }
        labels[label] = json!(value);
    });
}
