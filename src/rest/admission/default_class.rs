//! Plugins that give an object the default class: `DefaultStorageClass`, `DefaultIngressClass`.

use std::cmp::Reverse;

use kubeapi::Status;
use serde_json::{Map, Value, json};

use super::storage::CLASS_ANNOTATION;
use super::{AdmittedWrite, annotation, text};
use crate::rest::admission_plugins::AdmissionPlugin;

impl AdmittedWrite<'_> {
    pub(super) async fn set_storage_class(self, claim: &mut Map<String, Value>) -> Result<(), Status> {
        let has_class = annotation(claim, CLASS_ANNOTATION).is_some()
            || claim.get("spec").is_some_and(|spec| !spec["storageClassName"].is_null());
        if has_class || !self.has_plugin(AdmissionPlugin::DefaultStorageClass) {
            return Ok(());
        }
        let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
        let class = self.default_class("storage.k8s.io", "storageclasses", &marks).await?;
        set_class(claim, "storageClassName", class);
        Ok(())
    }

    pub(super) async fn set_ingress_class(self, ingress: &mut Map<String, Value>) -> Result<(), Status> {
        let has_class = annotation(ingress, "kubernetes.io/ingress.class").is_some()
            || ingress.get("spec").is_some_and(|spec| !spec["ingressClassName"].is_null());
        if has_class || !self.has_plugin(AdmissionPlugin::DefaultIngressClass) {
            return Ok(());
        }
        let marks = ["ingressclass.kubernetes.io/is-default-class"];
        let class = self.default_class("networking.k8s.io", "ingressclasses", &marks).await?;
        set_class(ingress, "ingressClassName", class);
        Ok(())
    }

    /// The name of the newest class that is marked as default; of several the first by name.
    async fn default_class(self, group: &str, plural: &str, marks: &[&str]) -> Result<Option<String>, Status> {
        let classes = self.all(group, plural).await?;
        let is_default = |class: &&Map<String, Value>| marks.iter().any(|mark| annotation(class, mark) == Some("true"));
        let newest_first = |class: &&Map<String, Value>| {
            let created = text(class, "metadata", "creationTimestamp").to_owned();
            (Reverse(created), text(class, "metadata", "name").to_owned())
        };
        let found = classes.iter().filter(is_default).min_by_key(newest_first);
        Ok(found.map(|class| text(class, "metadata", "name").to_owned()))
    }
}

fn set_class(object: &mut Map<String, Value>, field: &str, class: Option<String>) {
    if let (Some(class), Some(spec)) = (class, object.get_mut("spec").and_then(Value::as_object_mut)) {
        spec.insert(field.to_owned(), json!(class));
    }
}
