//! Admission plugins that a kube-apiserver has on by default (`pkg/kubeapiserver/options/plugins.go`,
//! `plugin/pkg/admission`): they complete or refuse an object before it is prepared and validated.

mod certificates;
mod default_class;
mod pods;
mod storage;

use std::collections::BTreeSet;
use std::sync::Arc;

use kubeapi::Status;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value, json};
use store::watch_cache::ResourceCollection;

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::target::ObjectTarget;
use crate::conversion::stored_object;

/// The resource whose objects say who made them.
pub(super) const CERTIFICATE_REQUESTS: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests");

/// An admission plugin that acts here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AdmissionPlugin {
    CertificateSubjectRestriction,
    DefaultIngressClass,
    DefaultStorageClass,
    DefaultTolerationSeconds,
    PersistentVolumeClaimResize,
    Priority,
    RuntimeClass,
    StorageObjectInUseProtection,
    TaintNodesByCondition,
}

/// All plugins of a kube-apiserver, and those that act here.
const PLUGINS: [(&str, Option<AdmissionPlugin>); 44] = [
    ("AlwaysAdmit", None),
    ("AlwaysDeny", None),
    ("AlwaysPullImages", None),
    ("CertificateApproval", None),
    ("CertificateSigning", None),
    ("CertificateSubjectRestriction", Some(AdmissionPlugin::CertificateSubjectRestriction)),
    ("ClusterTrustBundleAttest", None),
    ("DefaultIngressClass", Some(AdmissionPlugin::DefaultIngressClass)),
    ("DefaultStorageClass", Some(AdmissionPlugin::DefaultStorageClass)),
    ("DefaultTolerationSeconds", Some(AdmissionPlugin::DefaultTolerationSeconds)),
    ("DenyServiceExternalIPs", None),
    ("EventRateLimit", None),
    ("ExtendedResourceToleration", None),
    ("ImagePolicyWebhook", None),
    ("JobValidation", None),
    ("LimitPodHardAntiAffinityTopology", None),
    ("LimitRanger", None),
    ("MutatingAdmissionPolicy", None),
    ("MutatingAdmissionWebhook", None),
    ("NamespaceAutoProvision", None),
    ("NamespaceExists", None),
    ("NamespaceLifecycle", None),
    ("NodeDeclaredFeatureValidator", None),
    ("NodeRestriction", None),
    ("OwnerReferencesPermissionEnforcement", None),
    ("PersistentVolumeClaimResize", Some(AdmissionPlugin::PersistentVolumeClaimResize)),
    ("PersistentVolumeLabel", None),
    ("PodGroupProtection", None),
    ("PodGroupWorkloadExists", None),
    ("PodNodeSelector", None),
    ("PodResizeValidator", None),
    ("PodSecurity", None),
    ("PodTolerationRestriction", None),
    ("PodTopologyLabels", None),
    ("Priority", Some(AdmissionPlugin::Priority)),
    ("ResourceQuota", None),
    ("RuntimeClass", Some(AdmissionPlugin::RuntimeClass)),
    ("SecurityContextDeny", None),
    ("ServiceAccount", None),
    ("ServiceAccountIssuerDiscovery", None),
    ("StorageObjectInUseProtection", Some(AdmissionPlugin::StorageObjectInUseProtection)),
    ("TaintNodesByCondition", Some(AdmissionPlugin::TaintNodesByCondition)),
    ("ValidatingAdmissionPolicy", None),
    ("ValidatingAdmissionWebhook", None),
];

/// The plugins that are turned off (`--disable-admission-plugins`).
#[derive(Clone, Debug, Default)]
pub struct DisabledPlugins(BTreeSet<AdmissionPlugin>);

impl DisabledPlugins {
    /// Reads the names of plugins. Those that do not act here are accepted.
    ///
    /// # Errors
    /// A name of no plugin.
    pub fn parse(names: &[String]) -> Result<DisabledPlugins, String> {
        let find = |name: &String| {
            let found = PLUGINS.iter().find(|(known, _)| known == name);
            found.map(|(_, plugin)| *plugin).ok_or_else(|| format!("admission-control plugin {name:?} is unknown"))
        };
        let plugins: Result<Vec<_>, String> = names.iter().map(find).collect();
        Ok(DisabledPlugins(plugins?.into_iter().flatten().collect()))
    }
}

impl ApiServer {
    fn has_plugin(&self, plugin: AdmissionPlugin) -> bool {
        !self.settings.disabled_plugins.0.contains(&plugin)
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
        if !target.subresource.is_empty() {
            return Ok(());
        }
        let write = AdmittedWrite { api: self, target, old: Some(old) };
        write.admit(object).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_turned_off_by_name() {
        let parse = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            DisabledPlugins::parse(&names).map(|disabled| disabled.0.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(parse(&["ServiceAccount", "Priority"]), Ok(vec![AdmissionPlugin::Priority]));
        assert_eq!(parse(&["priority"]), Err("admission-control plugin \"priority\" is unknown".to_owned()));
    }
}
