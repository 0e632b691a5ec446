//! Plugins of volumes: `StorageObjectInUseProtection`, `PersistentVolumeClaimResize`.

use kubeapi::Status;
use kubeapi::object_meta::change_metadata;
use kubeapi::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::{AdmittedWrite, annotation, text};
use crate::rest::admission_plugins::AdmissionPlugin;

/// The annotation that names a storage class, before there was a field.
pub(super) const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

impl AdmittedWrite<'_> {
    /// An object is not removed while something uses it.
    pub(super) fn add_finalizer(self, object: &mut Map<String, Value>, finalizer: &str) {
        if !self.has_plugin(AdmissionPlugin::StorageObjectInUseProtection) {
            return;
        }
        change_metadata(object, |metadata| {
            if let Value::Array(all) = metadata.entry("finalizers").or_insert_with(|| json!([]))
                && !all.iter().any(|one| one == finalizer)
            {
                all.push(json!(finalizer));
            }
        });
    }

    /// Refuses to let a claim grow that cannot.
    pub(super) async fn check_resize(self, old: &Map<String, Value>, claim: &Map<String, Value>) -> Result<(), Status> {
        let size = |claim: &Map<String, Value>| {
            let spec = claim.get("spec").unwrap_or(&Value::Null);
            Quantity::parse(spec["resources"]["requests"]["storage"].as_str().unwrap_or("0")).ok()
        };
        let grows = size(claim) > size(old);
        if !grows || !self.has_plugin(AdmissionPlugin::PersistentVolumeClaimResize) {
            return Ok(());
        }
        if text(old, "status", "phase") != "Bound" {
            return Err(self.forbidden(claim, "Only bound persistent volume claims can be expanded"));
        }
        let class = |claim: &Map<String, Value>| {
            let name = annotation(claim, CLASS_ANNOTATION).unwrap_or_else(|| text(claim, "spec", "storageClassName"));
            name.to_owned()
        };
        let (name, old_name) = (class(claim), class(old));
        let is_same = !name.is_empty() && name == old_name;
        let found = if is_same { self.find("storage.k8s.io", "storageclasses", &name).await? } else { None };
        if found.is_some_and(|class| class.get("allowVolumeExpansion") == Some(&json!(true))) {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                   support resize";
        Err(self.forbidden(claim, why))
    }
}
