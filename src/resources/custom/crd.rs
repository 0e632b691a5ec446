//! The fields of a CustomResourceDefinition that the server reads (`apiextensions.k8s.io/v1`). Schemas are read by
//! [`CustomVersion`](super::CustomVersion) when they are needed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use store::watch_cache::Stored;

use crate::resources::webhook_config::{WebhookClientConfig, ca_bundle_error};

/// A CustomResourceDefinition.
#[derive(Clone, Debug, Deserialize)]
pub struct Crd {
    /// Metadata.
    pub metadata: CrdMetadata,
    /// What its author wants.
    pub spec: CrdSpec,
    /// What the server made of it.
    #[serde(default)]
    pub status: CrdStatus,
}

/// Metadata of a CRD.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CrdMetadata {
    /// Plural name and group.
    pub name: String,
    /// The uid.
    pub uid: String,
    /// Counts changes of the specification.
    pub generation: i64,
    /// When deletion began.
    pub deletion_timestamp: Option<String>,
    /// Names of the finalizers.
    pub finalizers: Option<Vec<String>>,
    /// Annotations.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Specification of a CRD.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CrdSpec {
    /// API group.
    pub group: String,
    /// Names that the author wants.
    pub names: CrdNames,
    /// `Namespaced` or `Cluster`.
    #[serde(default)]
    pub scope: String,
    /// Versions, in the order of the author.
    #[serde(default)]
    pub versions: Vec<CrdVersion>,
    /// How objects are converted between versions.
    pub conversion: Option<CrdConversion>,
    /// A relic of v1beta1: unknown fields are kept everywhere.
    #[serde(default)]
    pub preserve_unknown_fields: bool,
}

/// Names of a custom resource.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct CrdNames {
    /// Name in paths.
    pub plural: String,
    /// Singular name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub singular: String,
    /// Short names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_names: Option<Vec<String>>,
    /// Kind of an object.
    pub kind: String,
    /// Kind of a list.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub list_kind: String,
    /// Categories, such as `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub categories: Option<Vec<String>>,
}

/// A version of a custom resource.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CrdVersion {
    /// Name of the version.
    pub name: String,
    /// Whether the version is served.
    #[serde(default)]
    pub served: bool,
    /// Whether objects are stored in the version.
    #[serde(default)]
    pub storage: bool,
    /// Whether requests get a warning.
    #[serde(default)]
    pub deprecated: bool,
    /// The text of that warning, if the author gave one.
    pub deprecation_warning: Option<String>,
    /// A number that differs for different schemas.
    #[serde(default, deserialize_with = "schema_hash", rename = "schema")]
    pub schema_hash: u64,
    /// Subresources.
    pub subresources: Option<CrdSubresources>,
    /// Columns of a Table.
    pub additional_printer_columns: Option<Vec<PrinterColumn>>,
    /// Fields that field selectors may name.
    pub selectable_fields: Option<Vec<SelectableField>>,
}

/// The hash of a value that is read elsewhere, so that a change of it is a change of the CRD.
fn schema_hash<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = Box::<RawValue>::deserialize(deserializer)?;
    let mut hasher = DefaultHasher::new();
    text.get().hash(&mut hasher);
    Ok(hasher.finish())
}

/// Subresources of a version.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CrdSubresources {
    /// Present if there is a subresource `status`.
    pub status: Option<IgnoredAny>,
    /// Present if there is a subresource `scale`.
    pub scale: Option<ScalePaths>,
}

/// Where the fields of a `Scale` are in an object.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ScalePaths {
    /// JSON path of the wanted number of replicas.
    pub spec_replicas_path: String,
    /// JSON path of the observed number of replicas.
    pub status_replicas_path: String,
    /// JSON path of the label selector as text.
    pub label_selector_path: Option<String>,
}

/// A column of a Table.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct PrinterColumn {
    /// Heading.
    pub name: String,
    /// Type of the cells.
    #[serde(rename = "type")]
    pub column_type: String,
    /// Format of the cells; may be empty.
    pub format: String,
    /// Description; may be empty.
    pub description: String,
    /// Above 0, kubectl prints the column only with `-o wide`.
    pub priority: i32,
    /// JSON path of the cell.
    pub json_path: String,
}

/// A field that field selectors may name.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SelectableField {
    /// JSON path of the field.
    pub json_path: String,
}

/// How objects are converted between versions.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CrdConversion {
    /// `None` or `Webhook`.
    pub strategy: String,
    /// The webhook of the strategy `Webhook`.
    pub webhook: Option<CrdWebhook>,
}

/// The webhook that converts objects.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CrdWebhook {
    /// How it is reached.
    pub client_config: Option<WebhookClientConfig>,
    /// Versions of `ConversionReview` that it knows, the preferred one first.
    #[serde(default)]
    pub conversion_review_versions: Vec<String>,
}

/// Status of a CRD.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CrdStatus {
    /// Conditions.
    pub conditions: Option<Vec<CrdCondition>>,
    /// Names that the resource has.
    pub accepted_names: CrdNames,
    /// Versions in which objects may be stored.
    pub stored_versions: Option<Vec<String>>,
}

/// A condition of a CRD.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CrdCondition {
    /// Type, such as `Established`.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// When the status changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    /// Reason in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Reason for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Generation that was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl Crd {
    /// Reads a stored CRD.
    ///
    /// # Errors
    /// The stored value is no CRD.
    pub fn read(stored: &Stored) -> Result<Crd, serde_json::Error> {
        serde_json::from_slice(stored.bytes())
    }

    /// Whether a condition is true.
    pub fn has_condition(&self, condition_type: &str) -> bool {
        self.condition(condition_type).is_some_and(|condition| condition.status == "True")
    }

    /// Whether the CA bundle of the conversion webhook can be read. True without one.
    pub fn has_valid_ca_bundle(&self) -> bool {
        let webhook = self.spec.conversion.as_ref().and_then(|conversion| conversion.webhook.as_ref());
        let Some(config) = webhook.and_then(|webhook| webhook.client_config.as_ref()) else { return true };
        match config.ca_bundle_pem() {
            Ok(pem) => pem.is_none_or(|pem| ca_bundle_error(&pem).is_none()),
            Err(_) => false,
        }
    }

    /// Finds a condition.
    pub fn condition(&self, condition_type: &str) -> Option<&CrdCondition> {
        self.status.conditions.iter().flatten().find(|condition| condition.condition_type == condition_type)
    }
}
