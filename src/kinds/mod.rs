//! Rules of the kinds: what differs between them when an object is selected, written, printed or removed
//! (`pkg/registry/*/strategy.go`, `pkg/apis/*/validation`, `pkg/printers`).
//!
//! A kind that differs has a file here with its [`KindRules`], which [`rules`] finds. Everything else of a built-in kind is
//! in `resources/builtin/kinds.json`.

mod admission_registration;
mod api_service;
/// Cells of a Table.
pub mod cells;
mod certificate_signing_request;
mod config_map;
/// CustomResourceDefinitions.
pub mod crd;
/// Objects of custom resources.
pub mod custom_resource;
mod devices;
mod endpoint_slice;
mod endpoints;
mod event;
mod field_rules;
mod flow_control;
mod horizontal_pod_autoscaler;
mod initial_status;
mod internal_json;
mod lease;
mod namespace;
mod networking;
mod node;
mod node_selector;
mod other_kinds;
mod pod;
mod pod_disruption_budget;
mod priority_class;
mod rbac;
mod resource_limits;
mod resource_names;
mod runtime_class;
mod secret;
/// Fields that field selectors may name.
pub mod selectable_fields;
mod service;
mod service_account;
mod service_families;
mod status_conditions;
mod storage;
#[cfg(test)]
mod tests;
mod unified_diff;
mod validation;
mod webhook_address;
mod workloads;

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

pub use self::api_service::prepare_new as prepare_new_api_service;
pub use self::certificate_signing_request::{read_certificate_request, set_requester};
pub use self::field_rules::{label_selector_text, parse_group_version};
pub use self::service_families::ServiceFamilies;
pub use self::status_conditions::{is_pod_ready, set_disruptions_exhausted, set_pod_condition};
#[cfg(test)]
pub use self::validation::kind_errors;
pub use self::validation::{ValidationSettings, validate_new, validate_replacement};

use kubeapi::Status;
use kubeapi::field_error::FieldErrors;
use kubeapi::names::NameRule;

use self::cells::CellPrinter;
use self::initial_status::reset_status;
use self::selectable_fields::SelectableFields;
use self::validation::{ValidationInput, validate_metadata};
use crate::resources::{Resource, ServedKind};

/// An object: its fields by name.
type Object = Map<String, Value>;

/// What a kind does in its own way. A kind states only what differs from [`KindRules::PLAIN`].
pub struct KindRules {
    /// Group and plural name; both empty for all custom resources.
    pub group_resource: (&'static str, &'static str),
    /// The rule that names of objects must follow.
    pub name_rule: NameRule,
    /// The warning about a kind that is deprecated (`APILifecycleDeprecated` in `k8s.io/api`).
    pub deprecation_warning: Option<&'static str>,
    /// What `metadata.generation` counts.
    pub generation: GenerationRule,
    /// Whether PUT creates an object that does not exist (`AllowCreateOnUpdate`).
    pub creates_on_update: bool,
    /// Whether PUT without a resourceVersion replaces whatever there is (`AllowUnconditionalUpdate`).
    pub allows_unconditional_update: bool,
    /// Whether DELETE is answered with the object instead of a Status (`ReturnDeletedObject`).
    pub returns_deleted_object: bool,
    /// Whether objects are deleted after `--event-ttl`.
    pub expires: bool,
    /// What is removed together with an object.
    pub removal: RemovalRule,
    /// What becomes of the objects that an object owns (`DefaultGarbageCollectionPolicy`).
    pub dependents: DependentsRule,
    /// Seconds that an object has to end by itself once it is deleted, from the object and what the request says; none if
    /// objects of the kind are deleted at once (`CheckGracefulDelete`).
    pub deletion_grace: Option<fn(&Object, Option<i64>) -> i64>,
    /// Fields that field selectors may name, of a built-in kind.
    pub selectable: SelectableFields,
    /// Changes the body of a request (`Convert_v1_*` in `pkg/apis/*/v1/conversion.go`).
    pub convert_body: fn(&mut Object),
    /// Whether its objects get addresses and ports, as Services do.
    pub allocates_addresses: bool,
    /// Completes fields of a new object that depend on each other, before everything else (`BeginCreate`).
    pub begin_create: fn(&ValidationSettings, &mut Object) -> Result<(), Status>,
    /// Completes fields of an object that replaces another one, before everything else (`BeginUpdate`).
    pub begin_update: fn(&ValidationSettings, &ObjectUpdate<'_>, &mut Object) -> Result<(), Status>,
    /// Sets fields of a new object that clients cannot choose, and defaults (`PrepareForCreate`).
    pub prepare_new: fn(&ServedKind, &mut Object),
    /// Restores fields that a write to the object or to a subresource cannot change (`PrepareForUpdate`).
    pub prepare_replacement: fn(&ObjectUpdate<'_>, &mut Object),
    /// Errors of an object (`Validate`, `ValidateUpdate`).
    validate: fn(&ValidationInput<'_>) -> FieldErrors,
    /// Warnings about a valid object that is new or replaces another one (`WarningsOnCreate`, `WarningsOnUpdate`).
    warnings: fn(&WrittenObject<'_>) -> Vec<String>,
    /// The cells of an object, one for each column.
    cells: fn(&CellPrinter<'_>) -> Vec<Value>,
    /// An annotation that only the served version has, and rows of a Table do not.
    pub versioned_annotation: Option<&'static str>,
    /// JSON of the conditions of a row in a Table; empty if it has none.
    row_conditions: fn(&Value) -> &'static str,
    /// The warning about a deletion that does not say what becomes of the dependents.
    pub deletion_warning: Option<&'static str>,
}

/// What `metadata.generation` of a built-in kind counts: changes of fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenerationRule {
    /// Whether new objects have the generation 1.
    pub begins: bool,
    /// Fields of the object.
    pub fields: &'static [&'static str],
    /// A field of its metadata.
    pub metadata_field: Option<&'static str>,
}

/// What is removed together with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalRule {
    /// Nothing.
    Alone,
    /// The objects in a namespace.
    Namespace,
    /// The objects of a CustomResourceDefinition.
    CustomResourceDefinition,
}

/// What becomes of the objects that a deleted object owns, if the request does not say
/// (`k8s.io/apiserver/pkg/registry/rest/delete.go`, `GarbageCollectionPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependentsRule {
    /// They are deleted.
    Delete,
    /// They lose their owner.
    Orphan,
    /// The request may not say it: objects of the kind own nothing.
    Unsupported,
}

/// A write that replaces an object, or a part of it.
#[derive(Clone, Copy)]
pub struct ObjectUpdate<'o> {
    /// The kind of the object.
    pub kind: &'o ServedKind,
    /// The subresource that is written; empty for the object itself.
    pub subresource: &'o str,
    /// The object that is replaced.
    pub old: &'o Object,
}

/// An object that is written.
#[derive(Clone, Copy)]
struct WrittenObject<'o> {
    subresource: &'o str,
    /// The object that is replaced; none for a new one.
    old: Option<&'o Object>,
    object: &'o Object,
}

impl GenerationRule {
    /// Counts nothing.
    const NONE: GenerationRule = GenerationRule { begins: false, fields: &[], metadata_field: None };
    /// Counts changes of `spec`.
    const SPEC: GenerationRule = GenerationRule::of(&["spec"]);

    /// Counts changes of some fields.
    const fn of(fields: &'static [&'static str]) -> GenerationRule {
        GenerationRule { begins: true, fields, metadata_field: None }
    }

    /// Whether a write changes what is counted.
    fn counts(&self, old: &Object, new: &Object) -> bool {
        let of_metadata = |object: &Object, field: &str| object.get("metadata")?.get(field).cloned();
        self.fields.iter().any(|field| old.get(*field) != new.get(*field))
            || self.metadata_field.is_some_and(|field| of_metadata(old, field) != of_metadata(new, field))
    }
}

impl KindRules {
    /// The rules of a built-in kind that differs in nothing.
    const PLAIN: KindRules = KindRules {
        group_resource: ("", ""),
        name_rule: NameRule::DnsSubdomain,
        deprecation_warning: None,
        generation: GenerationRule::NONE,
        creates_on_update: false,
        allows_unconditional_update: true,
        returns_deleted_object: false,
        expires: false,
        removal: RemovalRule::Alone,
        dependents: DependentsRule::Delete,
        deletion_grace: None,
        selectable: SelectableFields::NONE,
        convert_body: |_| {},
        allocates_addresses: false,
        begin_create: |_, _| Ok(()),
        begin_update: |_, _, _| Ok(()),
        prepare_new: |kind, object| reset_status(kind, object, &Value::Object(Object::new())),
        prepare_replacement: |update, object| update.keep_other_part(object),
        validate: validate_metadata,
        warnings: |_| Vec::new(),
        cells: |printer| printer.unprinted_cells(),
        versioned_annotation: None,
        row_conditions: |_| "",
        deletion_warning: None,
    };

    /// Those of a group and a resource.
    const fn of(group: &'static str, plural: &'static str) -> KindRules {
        KindRules { group_resource: (group, plural), ..KindRules::PLAIN }
    }
}

impl ObjectUpdate<'_> {
    /// Gives `object` a field as it was.
    fn keep(&self, object: &mut Object, field: &str) {
        match self.old.get(field) {
            Some(value) => drop(object.insert(field.to_owned(), value.clone())),
            None => drop(object.remove(field)),
        }
    }

    /// A write of the status leaves the labels of some kinds as they were.
    fn keep_labels(&self, object: &mut Object) {
        let old = self.old.get("metadata").and_then(|metadata| metadata.get("labels"));
        let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
        match old {
            Some(labels) => drop(metadata.insert("labels".to_owned(), labels.clone())),
            None => drop(metadata.remove("labels")),
        }
    }

    /// Restores the metadata that a write of the status cannot change (`ResetObjectMetaForStatus`).
    fn keep_metadata(&self, object: &mut Object) {
        let old = self.old.get("metadata");
        let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
        for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
            match old.and_then(|old| old.get(field)) {
                Some(value) => drop(metadata.insert(field.to_owned(), value.clone())),
                None => drop(metadata.remove(field)),
            }
        }
    }

    /// A write of the status leaves `spec` as it was; one of the object leaves the status if that is a subresource.
    fn keep_other_part(&self, object: &mut Object) {
        match self.subresource {
            "status" => self.keep(object, "spec"),
            "" if self.kind.version.subresource("status").is_some() => self.keep(object, "status"),
            _ => {}
        }
    }
}

impl<'o> WrittenObject<'o> {
    fn field(&self, name: &str) -> &'o Value {
        self.object.get(name).unwrap_or(&Value::Null)
    }
}

/// The rules of built-in kinds that differ.
static BUILTIN_RULES: LazyLock<HashMap<(&str, &str), &KindRules>> = LazyLock::new(|| {
    let own = [
        &api_service::RULES,
        &certificate_signing_request::RULES,
        &config_map::RULES,
        &crd::RULES,
        &endpoint_slice::RULES,
        &endpoints::RULES,
        &event::CORE_RULES,
        &event::RULES,
        &horizontal_pod_autoscaler::RULES,
        &lease::RULES,
        &namespace::RULES,
        &node::RULES,
        &pod::RULES,
        &pod_disruption_budget::RULES,
        &priority_class::RULES,
        &resource_limits::LIMIT_RANGE_RULES,
        &resource_limits::QUOTA_RULES,
        &runtime_class::RULES,
        &secret::RULES,
        &service::RULES,
        &service_account::RULES,
    ];
    let groups = admission_registration::RULES
        .into_iter()
        .chain(networking::RULES)
        .chain(&rbac::RULES)
        .chain(storage::RULES)
        .chain(&devices::RULES)
        .chain(&flow_control::RULES)
        .chain(workloads::RULES);
    own.into_iter().chain(groups).chain(&other_kinds::RULES).map(|rules| (rules.group_resource, rules)).collect()
});

/// The rules of a resource's kind.
pub fn rules(resource: &Resource) -> &'static KindRules {
    static PLAIN: KindRules = KindRules::PLAIN;
    match resource.custom {
        Some(_) => &custom_resource::RULES,
        None => BUILTIN_RULES.get(&resource.group_resource()).copied().unwrap_or(&PLAIN),
    }
}

/// The warning about a kind that is deprecated.
pub fn deprecation_warning(kind: &ServedKind) -> Option<&str> {
    match kind.version.custom() {
        Some(version) => version.deprecation_warning.as_deref(),
        None => rules(&kind.resource).deprecation_warning,
    }
}

/// Whether new objects have `metadata.generation`.
pub fn has_generation(resource: &Resource) -> bool {
    rules(resource).generation.begins
}

/// Whether a write to an object, not to a subresource, changes what `metadata.generation` counts.
pub fn changes_generation(kind: &ServedKind, old: &Object, new: &Object) -> bool {
    match kind.version.custom() {
        Some(version) => custom_resource::changes_generation(version, old, new),
        None => rules(&kind.resource).generation.counts(old, new),
    }
}

/// Warnings about a valid object, which is new without `old`.
pub fn object_warnings(resource: &Resource, subresource: &str, old: Option<&Object>, object: &Object) -> Vec<String> {
    (rules(resource).warnings)(&WrittenObject { subresource, old, object })
}

/// Sets a text field that is absent or empty.
fn set_default(object: &mut Object, field: &str, value: &str) {
    if object.get(field).is_none_or(|found| found.is_null() || found == "") {
        object.insert(field.to_owned(), value.into());
    }
}
