//! CustomResourceDefinitions that an older kube-apiserver stored as v1beta1
//! (`k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1`).

use std::borrow::Cow;

use bytes::Bytes;
use kubeapi::json::write_stored_json;
use kubeapi::protobuf::normalize::{NormalizeError, normalize};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::builtin::{builtin_kinds, set_defaults};

const V1: &str = "apiextensions.k8s.io/v1";
const V1BETA1: &str = "apiextensions.k8s.io/v1beta1";
/// Fields of the specification that became fields of each version, with their names there.
const VERSION_FIELDS: [(&str, &str); 4] = [
    ("subresources", "subresources"),
    ("validation", "schema"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

/// The bytes of a CRD in v1, if they are stored as v1beta1. None if they are not, or cannot be read: the reason is
/// found when the CRD is read.
pub fn upgrade_stored_crd(stored: &Bytes) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct ObjectType<'s> {
        #[serde(borrow, rename = "apiVersion")]
        api_version: Cow<'s, str>,
    }
    let found: ObjectType<'_> = serde_json::from_slice(stored).ok()?;
    if found.api_version != V1BETA1 {
        return None;
    }
    match crd_as_v1(serde_json::from_slice(stored).ok()?) {
        Ok(Value::Object(object)) => Some(write_stored_json(&object).bytes.into()),
        _ => None,
    }
}

/// A stored CRD in v1 with defaults.
///
/// # Errors
/// A field has the wrong type.
pub fn crd_as_v1(mut crd: Value) -> Result<Value, NormalizeError> {
    if crd["apiVersion"] == V1BETA1 {
        crd["apiVersion"] = json!(V1);
        if let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) {
            convert_spec(spec);
        }
    }
    let kinds = builtin_kinds();
    let kind = kinds.find("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    if let Some(message) = kind.and_then(|kind| kind.version.message()) {
        normalize(&kinds.messages, message, &mut crd)?;
        set_defaults(&kinds.messages, message, &mut crd);
    }
    Ok(crd)
}

/// Changes a specification with its defaults to v1.
fn convert_spec(spec: &mut Map<String, Value>) {
    let is_empty = |value: Option<&Value>| {
        value.is_none_or(|value| value.is_null() || *value == "" || value.as_array().is_some_and(Vec::is_empty))
    };
    if is_empty(spec.get("scope")) {
        spec.insert("scope".to_owned(), json!("Namespaced"));
    }
    if is_empty(spec.get("preserveUnknownFields")) {
        spec.insert("preserveUnknownFields".to_owned(), json!(true));
    }
    let version = spec.remove("version");
    if is_empty(spec.get("versions")) && !is_empty(version.as_ref()) {
        spec.insert("versions".to_owned(), json!([{"name": version, "served": true, "storage": true}]));
    }
    let common = VERSION_FIELDS.map(|(name, new_name)| (new_name, spec.remove(name).filter(|value| !value.is_null())));
    for version in spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(version) = version.as_object_mut() else { continue };
        for (name, value) in &common {
            if let Some(value) = value {
                version.insert((*name).to_owned(), value.clone());
            }
        }
        for column in version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(column) = column.as_object_mut()
                && let Some(path) = column.remove("JSONPath")
            {
                column.insert("jsonPath".to_owned(), path);
            }
        }
    }
    if let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) {
        convert_conversion(conversion);
    }
}

/// Moves the fields of the webhook into an object of their own.
fn convert_conversion(conversion: &mut Map<String, Value>) {
    let client_config = conversion.remove("webhookClientConfig").filter(|config| !config.is_null());
    let mut versions = conversion.remove("conversionReviewVersions").filter(|versions| !versions.is_null());
    let is_webhook = conversion.get("strategy").is_some_and(|strategy| strategy == "Webhook");
    if is_webhook && versions.as_ref().and_then(Value::as_array).is_none_or(Vec::is_empty) {
        versions = Some(json!(["v1beta1"]));
    }
    if client_config.is_none() && versions.is_none() {
        return;
    }
    let mut webhook = json!({"conversionReviewVersions": versions});
    if let Some(config) = client_config {
        webhook["clientConfig"] = config;
    }
    conversion.insert("webhook".to_owned(), webhook);
}
