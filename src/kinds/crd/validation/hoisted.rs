//! The form of a CustomResourceDefinition that is validated: what all versions have in common stands beside them, as in
//! the internal version of Kubernetes (`pkg/apis/apiextensions/v1/conversion.go`). Paths of errors are those of this form.

use kubeapi::schema::props::{JsonSchemaProps, go_json};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kinds::validation::NULL;
use crate::resources::custom::CrdNames;

/// The specification of a CustomResourceDefinition in the form that is validated.
#[derive(Clone, Debug)]
pub(super) struct HoistedSpec<'v> {
    pub(super) group: String,
    /// Name of the first version.
    pub(super) version: String,
    pub(super) names: CrdNames,
    pub(super) scope: String,
    /// The schema of all versions.
    pub(super) validation: Option<VersionSchemaField>,
    pub(super) subresources: Option<SubresourcesField>,
    /// Absent if null.
    pub(super) versions: Option<Vec<HoistedVersion>>,
    pub(super) additional_printer_columns: Vec<ColumnField>,
    pub(super) selectable_fields: Vec<SelectableFieldPath>,
    pub(super) conversion: Option<ConversionField>,
    pub(super) preserve_unknown_fields: bool,
    /// The versions as they stand in the object.
    written_versions: &'v Value,
}

/// A schema of a CRD.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrdSchema<'v> {
    pub(super) props: &'v JsonSchemaProps,
    /// As it stands in the object.
    pub(super) written: &'v Value,
}

/// The specification as it stands in the object.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WrittenSpec {
    group: String,
    names: CrdNames,
    scope: String,
    versions: Option<Vec<HoistedVersion>>,
    conversion: Option<ConversionField>,
    preserve_unknown_fields: bool,
}

/// A version of a CRD, without what all versions have in common.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all(deserialize = "camelCase", serialize = "PascalCase"))]
pub(super) struct HoistedVersion {
    pub(super) name: String,
    pub(super) served: bool,
    pub(super) storage: bool,
    pub(super) deprecated: bool,
    pub(super) deprecation_warning: Option<String>,
    pub(super) schema: Option<VersionSchemaField>,
    pub(super) subresources: Option<SubresourcesField>,
    #[serde(serialize_with = "go_json::list")]
    pub(super) additional_printer_columns: Vec<ColumnField>,
    #[serde(serialize_with = "go_json::list")]
    pub(super) selectable_fields: Vec<SelectableFieldPath>,
}

/// The field `schema`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(super) struct VersionSchemaField {
    #[serde(rename(deserialize = "openAPIV3Schema", serialize = "OpenAPIV3Schema"))]
    pub(super) schema: Option<JsonSchemaProps>,
}

/// The field `subresources`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all(deserialize = "camelCase", serialize = "PascalCase"))]
pub(super) struct SubresourcesField {
    pub(super) status: Option<StatusField>,
    pub(super) scale: Option<ScaleField>,
}

/// The field `subresources.status`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct StatusField {}

/// The field `subresources.scale`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all(deserialize = "camelCase", serialize = "PascalCase"))]
pub(super) struct ScaleField {
    pub(super) spec_replicas_path: String,
    pub(super) status_replicas_path: String,
    pub(super) label_selector_path: Option<String>,
}

/// An item of `additionalPrinterColumns`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all(deserialize = "camelCase", serialize = "PascalCase"))]
pub(super) struct ColumnField {
    pub(super) name: String,
    #[serde(rename(deserialize = "type", serialize = "Type"))]
    pub(super) column_type: String,
    pub(super) format: String,
    pub(super) description: String,
    pub(super) priority: i32,
    #[serde(rename(serialize = "JSONPath"))]
    pub(super) json_path: String,
}

/// An item of `selectableFields`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all(deserialize = "camelCase"))]
pub(super) struct SelectableFieldPath {
    #[serde(rename(serialize = "JSONPath"))]
    pub(super) json_path: String,
}

/// The field `conversion`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConversionField {
    pub(super) strategy: String,
    pub(super) webhook: Option<WebhookField>,
}

/// The field `conversion.webhook`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WebhookField {
    pub(super) client_config: Option<ClientConfigField>,
    pub(super) conversion_review_versions: Option<Vec<String>>,
}

/// The field `conversion.webhook.clientConfig`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClientConfigField {
    pub(super) url: Option<String>,
    pub(super) service: Option<ServiceField>,
    /// In base64.
    pub(super) ca_bundle: String,
}

/// The field `conversion.webhook.clientConfig.service`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceField {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) path: Option<String>,
    pub(super) port: i32,
}

impl<'v> HoistedSpec<'v> {
    /// Reads the field `spec` of an object.
    ///
    /// # Errors
    /// A field has the wrong type. Decoding finds those before.
    pub(super) fn read(spec: &'v Value) -> Result<HoistedSpec<'v>, serde_json::Error> {
        let written = Option::<WrittenSpec>::deserialize(spec)?.unwrap_or_default();
        Ok(HoistedSpec::new(written, &spec["versions"]))
    }

    /// Reads the field `spec` of a stored object. What cannot be read is as if absent.
    pub(super) fn read_stored(spec: &'v Value) -> HoistedSpec<'v> {
        HoistedSpec::read(spec).unwrap_or_else(|_| HoistedSpec::new(WrittenSpec::default(), &NULL))
    }

    fn new(written: WrittenSpec, written_versions: &'v Value) -> HoistedSpec<'v> {
        let mut hoisted = HoistedSpec {
            group: written.group,
            names: written.names,
            scope: written.scope,
            versions: written.versions,
            conversion: written.conversion,
            preserve_unknown_fields: written.preserve_unknown_fields,
            version: String::new(),
            validation: None,
            subresources: None,
            additional_printer_columns: Vec::new(),
            selectable_fields: Vec::new(),
            written_versions,
        };
        hoisted.hoist();
        hoisted
    }

    /// Moves what all versions have in common out of them.
    fn hoist(&mut self) {
        let Some([first, others @ ..]) = self.versions.as_deref_mut() else { return };
        self.version.clone_from(&first.name);
        let all = |is_same: &dyn Fn(&HoistedVersion) -> bool| others.iter().all(is_same);
        let has_same_schema = all(&|other| other.schema == first.schema);
        let has_same_subresources = all(&|other| other.subresources == first.subresources);
        let has_same_columns = all(&|other| other.additional_printer_columns == first.additional_printer_columns);
        let has_same_fields = all(&|other| other.selectable_fields == first.selectable_fields);
        for version in self.versions.iter_mut().flatten() {
            if has_same_schema {
                self.validation = version.schema.take();
            }
            if has_same_subresources {
                self.subresources = version.subresources.take();
            }
            if has_same_columns {
                self.additional_printer_columns = std::mem::take(&mut version.additional_printer_columns);
            }
            if has_same_fields {
                self.selectable_fields = std::mem::take(&mut version.selectable_fields);
            }
        }
    }

    /// The versions.
    pub(super) fn versions(&self) -> &[HoistedVersion] {
        self.versions.as_deref().unwrap_or_default()
    }

    /// The schema of all versions.
    pub(super) fn common_schema(&self) -> Option<&JsonSchemaProps> {
        self.validation.as_ref()?.schema.as_ref()
    }

    /// The schema of all versions, as it is written.
    pub(super) fn common_crd_schema(&self) -> Option<CrdSchema<'_>> {
        Some(CrdSchema { props: self.common_schema()?, written: self.written_schema(0) })
    }

    /// The schema of one version, as it is written.
    pub(super) fn crd_schema(&self, index: usize) -> Option<CrdSchema<'_>> {
        let props = self.versions().get(index)?.own_schema()?;
        Some(CrdSchema { props, written: self.written_schema(index) })
    }

    /// All schemas: that of all versions, then those of single versions.
    pub(super) fn schemas(&self) -> impl Iterator<Item = CrdSchema<'_>> {
        let of_versions = (0..self.versions().len()).filter_map(|index| self.crd_schema(index));
        self.common_crd_schema().into_iter().chain(of_versions)
    }

    fn written_schema(&self, index: usize) -> &Value {
        &self.written_versions[index]["schema"]["openAPIV3Schema"]
    }

    /// Whether a predicate holds for a schema, or for one in it.
    pub(super) fn any_schema(&self, mut predicate: impl FnMut(&JsonSchemaProps) -> bool) -> bool {
        self.schemas().any(|schema| schema.props.any(&mut predicate))
    }
}

impl HoistedVersion {
    /// The schema, unless all versions have it.
    pub(super) fn own_schema(&self) -> Option<&JsonSchemaProps> {
        self.schema.as_ref()?.schema.as_ref()
    }
}
