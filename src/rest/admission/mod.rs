//! Admission plugins that a kube-apiserver has on by default (`pkg/kubeapiserver/options/plugins.go`,
//! `plugin/pkg/admission`): they complete or refuse an object before it is prepared and validated.

mod certificates;
mod default_class;
mod pods;
mod service_account;
mod storage;

use std::sync::Arc;

use kubeapi::Status;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value, json};
use store::watch_cache::ResourceCollection;

use super::admission_plugins::AdmissionPlugin;
use super::api_server::ApiServer;
use super::errors::cache_error;
use super::target::ObjectTarget;
use crate::conversion::stored_object;

/// The resource whose objects name their requester.
pub(super) const CERTIFICATE_REQUESTS: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests");

impl ApiServer {
    /// Whether a plugin is on.
    pub(super) fn has_plugin(&self, plugin: AdmissionPlugin) -> bool {
        !self.settings.disabled_plugins.contains(plugin)
    }

    /// Completes a new object.
    ///
    /// # Errors
    /// 403 with the reason of the plugin that refuses the object.
    pub(super) async fn admit_new(
        &self,
        target: &ObjectTarget<'_>,
        object: &mut Map<String, Value>,
    ) -> Result<(), Status> {
        let write = AdmittedWrite { api: self, target, old: None };
        write.admit(object).await
    }

    /// Completes an object that replaces `old`.
    ///
    /// # Errors
    /// 403 with the reason of the plugin that refuses the object.
    pub(super) async fn admit_replacement(
        &self,
        target: &ObjectTarget<'_>,
        old: &Map<String, Value>,
        object: &mut Map<String, Value>,
    ) -> Result<(), Status> {
        let write = AdmittedWrite { api: self, target, old: Some(old) };
        match target.subresource {
            "" => write.admit(object).await,
            "ephemeralcontainers" => write.check_ephemeral_containers(object).await,
            _ => Ok(()),
        }
    }
}

/// A write that plugins look at.
#[derive(Clone, Copy)]
struct AdmittedWrite<'w> {
    api: &'w ApiServer,
    target: &'w ObjectTarget<'w>,
    /// The object that is replaced; none for a new one.
    old: Option<&'w Map<String, Value>>,
}

impl AdmittedWrite<'_> {
    /// In the order of the plugins.
    async fn admit(self, object: &mut Map<String, Value>) -> Result<(), Status> {
        match (self.target.kind.resource.group_resource(), self.old) {
            (("", "pods"), _) => self.admit_pod(object).await,
            (("scheduling.k8s.io", "priorityclasses"), _) => self.check_priority_class(object).await,
            (("", "nodes"), None) => {
                self.add_node_taint(object);
                Ok(())
            }
            (("", "persistentvolumeclaims"), None) => {
                self.set_storage_class(object).await?;
                self.add_finalizer(object, "kubernetes.io/pvc-protection");
                Ok(())
            }
            (("", "persistentvolumeclaims"), Some(old)) => self.check_resize(old, object).await,
            (("", "persistentvolumes"), None) => {
                self.add_finalizer(object, "kubernetes.io/pv-protection");
                Ok(())
            }
            (("storage.k8s.io", "volumeattributesclasses"), None) => {
                self.add_finalizer(object, "kubernetes.io/vac-protection");
                Ok(())
            }
            (("networking.k8s.io", "ingresses"), None) => self.set_ingress_class(object).await,
            (CERTIFICATE_REQUESTS, None) => self.check_certificate_subject(object),
            _ => Ok(()),
        }
    }

    fn has_plugin(self, plugin: AdmissionPlugin) -> bool {
        self.api.has_plugin(plugin)
    }

    /// 403 with the reason of a plugin.
    fn forbidden(self, object: &Map<String, Value>, why: impl std::fmt::Display) -> Status {
        let (group, plural) = self.target.kind.resource.group_resource();
        let meta = ObjectMetaView::of_map(object);
        let name = [meta.name(), meta.generate_name(), "Unknown"].into_iter().find(|name| !name.is_empty());
        Status::object_forbidden(group, plural, name.unwrap_or_default(), why)
    }

    /// A new node is not used before its conditions say that it is ready.
    fn add_node_taint(self, node: &mut Map<String, Value>) {
        const KEY: &str = "node.kubernetes.io/not-ready";
        if !self.has_plugin(AdmissionPlugin::TaintNodesByCondition) {
            return;
        }
        let spec = node.entry("spec").or_insert_with(|| json!({}));
        let Some(spec) = spec.as_object_mut() else { return };
        let Value::Array(taints) = spec.entry("taints").or_insert_with(|| json!([])) else { return };
        if !taints.iter().any(|taint| taint["key"] == KEY && taint["effect"] == "NoSchedule") {
            taints.push(json!({"key": KEY, "effect": "NoSchedule"}));
        }
    }

    async fn collection(self, group: &str, plural: &str) -> Result<ResourceCollection, Status> {
        let collection = self.api.builtin_collection(group, plural);
        let collection = collection.ok_or_else(|| Status::internal_error(format_args!("no {plural}")))?;
        collection.ensure_loaded().await.map_err(|error| cache_error(self.target, error))?;
        Ok(collection)
    }

    /// All objects of a cluster-scoped kind.
    async fn all(self, group: &str, plural: &str) -> Result<Vec<Map<String, Value>>, Status> {
        let collection = self.collection(group, plural).await?;
        let snapshot = collection.snapshot();
        let stored: Vec<_> = snapshot.range(collection.prefix(), None).map(Arc::clone).collect();
        let mut objects = Vec::with_capacity(stored.len());
        for one in stored {
            objects.push(stored_object(&one).await?);
        }
        Ok(objects)
    }

    /// An object of a cluster-scoped kind, if it exists.
    async fn find(self, group: &str, plural: &str, name: &str) -> Result<Option<Map<String, Value>>, Status> {
        let collection = self.collection(group, plural).await?;
        let Ok(key) = collection.prefix().key("", name) else { return Ok(None) };
        match collection.get_latest(&key).await.map_err(|error| cache_error(self.target, error))? {
            Some(stored) => Ok(Some(stored_object(&stored).await?)),
            None => Ok(None),
        }
    }
}

/// A text of a part of an object; empty if absent.
fn text<'o>(object: &'o Map<String, Value>, part: &str, field: &str) -> &'o str {
    object.get(part).and_then(|part| part[field].as_str()).unwrap_or_default()
}

/// An annotation of an object.
fn annotation<'o>(object: &'o Map<String, Value>, name: &str) -> Option<&'o str> {
    object.get("metadata").and_then(|metadata| metadata["annotations"][name].as_str())
}
