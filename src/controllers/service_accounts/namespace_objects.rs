//! An object that every namespace has: the ServiceAccount `default` (`pkg/controller/serviceaccount`), or the ConfigMap
//! `kube-root-ca.crt` (`pkg/controller/certificates/rootcacertpublisher`).

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use serde_json::{Map, Value, json};
use store::CommitCondition;
use store::watch_cache::{ResourceCollection, WatchEvent, WatchEventKind};

use crate::authenticate::service_accounts::RootCa;
use crate::controllers::runner::{Controller, FeedEvent};
use crate::controllers::{builtin_collection, read_latest};
use crate::conversion::stored_object;
use crate::observe::metrics::WorkQueueRegistry;
use crate::process::Published;
use crate::rest::{ApiServer, finish_write, new_object};
use crate::work_queue::{BackOff, WorkQueue};

/// Name of the ConfigMap with the authorities of the serving certificate.
const ROOT_CA_NAME: &str = "kube-root-ca.crt";

/// What the annotation `kubernetes.io/description` of that ConfigMap says.
const ROOT_CA_DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal \
     service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// The controller that creates an object in each namespace, again when it is deleted. A key is the name of a namespace.
pub(in crate::controllers) struct NamespaceObjectController {
    namespaces: ResourceCollection,
    objects: ResourceCollection,
    content: NamespaceObject,
    queue: WorkQueue<String>,
}

/// Which object it is.
enum NamespaceObject {
    DefaultAccount,
    /// Its data follow the authorities.
    RootCa(Published<RootCa>),
}

impl NamespaceObjectController {
    /// The controller of the ServiceAccount `default`.
    ///
    /// # Errors
    /// There are no ServiceAccounts.
    pub(in crate::controllers) fn default_account(
        api: &ApiServer,
        metrics: &WorkQueueRegistry,
    ) -> Result<Self, Status> {
        NamespaceObjectController::new(api, NamespaceObject::DefaultAccount, metrics)
    }

    /// The controller of the ConfigMap with the authorities of the serving certificate.
    ///
    /// # Errors
    /// There are no ConfigMaps.
    pub(in crate::controllers) fn root_ca(
        api: &ApiServer,
        root_ca: Published<RootCa>,
        metrics: &WorkQueueRegistry,
    ) -> Result<Self, Status> {
        NamespaceObjectController::new(api, NamespaceObject::RootCa(root_ca), metrics)
    }

    fn new(api: &ApiServer, content: NamespaceObject, metrics: &WorkQueueRegistry) -> Result<Self, Status> {
        Ok(NamespaceObjectController {
            namespaces: builtin_collection(api, "", "namespaces")?,
            objects: builtin_collection(api, "", content.plural())?,
            queue: WorkQueue::new(BackOff::default(), metrics.register(content.queue_name())),
            content,
        })
    }

    /// The collection of the objects, which is to be followed.
    pub(in crate::controllers) fn objects(&self) -> &ResourceCollection {
        &self.objects
    }

    /// Adds a namespace that exists.
    pub(in crate::controllers) fn observe_namespace(&self, event: &FeedEvent<'_>) {
        if let FeedEvent::Object(WatchEvent { kind, object: Some(namespace), .. }) = event
            && *kind != WatchEventKind::Deleted
        {
            self.queue.add(namespace.name().to_owned());
        }
    }

    /// Adds the namespace of an object of the name that changed or was deleted.
    pub(in crate::controllers) fn observe_object(&self, event: &FeedEvent<'_>) {
        if let FeedEvent::Object(WatchEvent { object: Some(object), .. }) = event
            && object.name() == self.content.name()
        {
            self.queue.add(object.namespace().to_owned());
        }
    }

    /// Adds all namespaces whenever the authorities change. Does not end.
    pub(in crate::controllers) async fn follow_content(&self) {
        let NamespaceObject::RootCa(root_ca) = &self.content else { return std::future::pending().await };
        let mut root_ca = root_ca.clone();
        loop {
            root_ca.changed().await;
            let snapshot = self.namespaces.snapshot();
            snapshot.range(self.namespaces.prefix(), None).for_each(|one| self.queue.add(one.name().to_owned()));
        }
    }
}

impl NamespaceObject {
    fn plural(&self) -> &'static str {
        match self {
            NamespaceObject::DefaultAccount => "serviceaccounts",
            NamespaceObject::RootCa(_) => "configmaps",
        }
    }

    fn name(&self) -> &'static str {
        match self {
            NamespaceObject::DefaultAccount => "default",
            NamespaceObject::RootCa(_) => ROOT_CA_NAME,
        }
    }

    fn queue_name(&self) -> &'static str {
        match self {
            NamespaceObject::DefaultAccount => "service_account",
            NamespaceObject::RootCa(_) => "root_ca_publisher",
        }
    }

    /// The object as it should be.
    fn object(&self, namespace: &str) -> Map<String, Value> {
        let object = match self {
            NamespaceObject::DefaultAccount => json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace},
            }),
            NamespaceObject::RootCa(root_ca) => json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {
                    "name": ROOT_CA_NAME, "namespace": namespace,
                    "annotations": {"kubernetes.io/description": ROOT_CA_DESCRIPTION},
                },
                "data": {"ca.crt": root_ca.load().pem()},
            }),
        };
        object.as_object().cloned().unwrap_or_default()
    }
}

impl Controller for NamespaceObjectController {
    type Key = String;

    const CONCURRENCY: usize = 5;

    fn queue(&self) -> &WorkQueue<String> {
        &self.queue
    }

    async fn reconcile(&self, namespace: &String) -> Result<(), Status> {
        let (namespace_key, found) = read_latest(&self.namespaces, "", namespace).await?;
        let active = found.filter(|namespace| namespace.metadata().deletion_timestamp.is_none());
        let Some(active) = active else { return Ok(()) };
        let (key, stored) = read_latest(&self.objects, namespace, self.content.name()).await?;
        let wanted = self.content.object(namespace);
        let outcome = match stored {
            None => {
                let value = new_object("", "v1", self.content.plural(), wanted)?;
                let condition = CommitCondition::At(namespace_key, active.revision());
                self.objects.create_if(&key, value, None, vec![condition]).await.map(drop)
            }
            Some(stored) => {
                let Some(data) = wanted.get("data") else { return Ok(()) };
                let mut object = stored_object(&stored).await?;
                if object.get("data") == Some(data) {
                    return Ok(());
                }
                object.insert("data".to_owned(), data.clone());
                let value = write_stored_json(&object).bytes;
                self.objects.update(&key, stored.revision(), value.into(), None).await.map(drop)
            }
        };
        finish_write(outcome)
    }
}
