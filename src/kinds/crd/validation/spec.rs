//! The specification of a CustomResourceDefinition (`validateCustomResourceDefinitionSpec`).

use std::collections::{HashMap, HashSet};

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1035_label, check_dns1123_subdomain};
use kubeapi::schema::props::{JsonSchemaProps, go_json};
use kubeapi::schema::{PatternBudget, StepBudget};

use super::conversion::conversion_errors;
use super::hoisted::{HoistedSpec, HoistedVersion, SubresourcesField};
use super::names::{missing_name_errors, name_errors};
use super::options::{CrdBudget, ValidationRules};
use super::schema::schema_errors;
use super::selectable::selectable_field_errors;
use super::version_fields::{column_errors, deprecation_warning_errors, subresource_errors};

const SPEC: FieldPath<'static> = FieldPath::root("spec");
const VERSIONS: FieldPath<'static> = SPEC.child("versions");

/// The errors of a specification.
pub(super) fn spec_errors(spec: &HoistedSpec<'_>, rules: &ValidationRules, steps: &dyn StepBudget) -> FieldErrors {
    let mut errors = group_errors(spec);
    errors.append(missing_schema_errors(spec, rules));
    let has_defaults = spec.any_schema(|schema| schema.default.is_some());
    if has_defaults && spec.preserve_unknown_fields {
        let why = "must be false in order to use defaults in the schema";
        errors.push(FieldError::invalid(SPEC.child("preserveUnknownFields"), true, why));
    }
    let requires_structural = rules.requires_structural
        || !spec.preserve_unknown_fields
        || has_defaults
        || spec.any_schema(has_kubernetes_extension);
    let mut budget = CrdBudget { patterns: PatternBudget::default(), steps };
    let statuses = statuses(spec);
    for index in 0..spec.versions().len() {
        errors.append(version_errors(spec, index, &statuses, rules, requires_structural, &mut budget));
    }
    errors.append(version_list_errors(spec));
    let names = SPEC.child("names");
    errors.append(missing_name_errors(&spec.names, &names));
    errors.append(name_errors(&spec.names, &names));
    errors.append(common_field_errors(spec, rules, requires_structural, &mut budget));
    let conversion = SPEC.child("conversion");
    let strategy = spec.conversion.as_ref().map(|conversion| &*conversion.strategy);
    if let Some(strategy) = strategy.filter(|strategy| *strategy != "None" && spec.preserve_unknown_fields) {
        let why = "must be None if spec.preserveUnknownFields is true";
        errors.push(FieldError::invalid(conversion.child("strategy"), strategy, why));
    }
    errors.append(conversion_errors(spec.conversion.as_ref(), rules, &conversion));
    errors
}

/// The errors of a specification that replaces `old`.
pub(super) fn spec_update_errors(
    spec: &HoistedSpec<'_>,
    old: &HoistedSpec<'_>,
    rules: &ValidationRules,
    steps: &dyn StepBudget,
) -> FieldErrors {
    let mut errors = spec_errors(spec, rules, steps);
    let names = SPEC.child("names");
    let mut keep = |path: FieldPath<'_>, value: &str, before: &str| {
        if value != before {
            errors.push(FieldError::invalid(path, value, "field is immutable"));
        }
    };
    if rules.requires_immutable_names {
        keep(SPEC.child("scope"), &spec.scope, &old.scope);
        keep(names.child("kind"), &spec.names.kind, &old.names.kind);
    }
    keep(SPEC.child("group"), &spec.group, &old.group);
    keep(names.child("plural"), &spec.names.plural, &old.names.plural);
    errors
}

fn group_errors(spec: &HoistedSpec<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let path = SPEC.child("group");
    let sentences = check_dns1123_subdomain(&spec.group);
    if spec.group.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !sentences.is_empty() {
        errors.push(FieldError::invalid(path, &spec.group, sentences.join(",")));
    } else if !spec.group.contains('.') {
        errors.push(FieldError::invalid(path, &spec.group, "should be a domain with at least one dot"));
    }
    match &*spec.scope {
        "" => errors.push(FieldError::required(SPEC.child("scope"), "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(FieldError::not_supported(SPEC.child("scope"), other, &["Cluster", "Namespaced"])),
    }
    errors
}

fn missing_schema_errors(spec: &HoistedSpec<'_>, rules: &ValidationRules) -> FieldErrors {
    if spec.common_schema().is_some() || !rules.requires_schema && spec.preserve_unknown_fields {
        return FieldErrors::new();
    }
    let mut errors = FieldErrors::new();
    for (index, version) in spec.versions().iter().enumerate() {
        let is_needed = rules.requires_schema || version.served;
        if is_needed && version.own_schema().is_none() {
            let why = if rules.requires_schema { "" } else { "because otherwise all fields are pruned" };
            let path = VERSIONS.index(index);
            errors.push(FieldError::required(path.child("schema").child("openAPIV3Schema"), why));
        }
    }
    errors
}

/// Whether a schema has an extension that only structural schemas may have.
fn has_kubernetes_extension(schema: &JsonSchemaProps) -> bool {
    schema.embedded_resource
        || schema.preserve_unknown_fields.is_some()
        || schema.int_or_string
        || !schema.list_map_keys.is_empty()
        || schema.list_type.is_some()
        || !schema.validations.is_empty()
}

fn has_status(subresources: Option<&SubresourcesField>) -> bool {
    subresources.is_some_and(|subresources| subresources.status.is_some())
}

/// Which versions have a subresource `status`. Kubernetes looks a version up by its name, which may not be unique yet: the
/// first one counts.
fn statuses<'s>(spec: &'s HoistedSpec<'_>) -> HashMap<&'s str, bool> {
    let has_own = spec.versions().iter().any(|version| version.subresources.is_some());
    let mut statuses = HashMap::new();
    for version in spec.versions() {
        let subresources = if has_own { version.subresources.as_ref() } else { spec.subresources.as_ref() };
        statuses.entry(&*version.name).or_insert_with(|| has_status(subresources));
    }
    statuses
}

/// The errors of one version.
fn version_errors(
    spec: &HoistedSpec<'_>,
    index: usize,
    statuses: &HashMap<&str, bool>,
    rules: &ValidationRules,
    requires_structural: bool,
    budget: &mut CrdBudget<'_>,
) -> FieldErrors {
    let Some(version) = spec.versions().get(index) else { return FieldErrors::new() };
    let path = VERSIONS.index(index);
    let mut errors = FieldErrors::new();
    let sentences = check_dns1035_label(&version.name);
    if !sentences.is_empty() {
        errors.push(FieldError::invalid(path.child("name"), &version.name, sentences.join(",")));
    }
    let warning = version.deprecation_warning.as_deref();
    errors.extend(deprecation_warning_errors(version.deprecated, warning, &path.child("deprecationWarning")));
    let has_status = statuses.get(&*version.name).copied().unwrap_or_default();
    let schema = spec.crd_schema(index);
    let schema_path = path.child("schema");
    errors.append(schema_errors(schema, has_status, rules, requires_structural, budget, &schema_path));
    errors.extend(subresource_errors(version.subresources.as_ref(), &path.child("subresources")));
    errors.append(column_errors(&version.additional_printer_columns, &path.child("additionalPrinterColumns")));
    if version.selectable_fields.is_empty() {
        return errors;
    }
    match version.own_schema() {
        Some(schema) => {
            let allows_many = rules.crowded_versions.contains(&version.name);
            errors.append(selectable_field_errors(&version.selectable_fields, schema, allows_many, &path));
        }
        None => {
            let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
            errors.push(FieldError::invalid(path.child("selectableFields"), "", why));
        }
    }
    errors
}

/// The errors of versions that do not go together.
fn version_list_errors(spec: &HoistedSpec<'_>) -> FieldErrors {
    let versions = spec.versions();
    let mut errors = FieldErrors::new();
    let invalid = |why: &str| FieldError::invalid(VERSIONS, go_json::bad_value(&spec.versions), why);
    let mut names = HashSet::new();
    if !versions.iter().all(|version| names.insert(&version.name)) {
        errors.push(invalid("must contain unique version names"));
    }
    if versions.iter().filter(|version| version.storage).count() != 1 {
        errors.push(invalid("must have exactly one version marked as storage version"));
    }
    let sentences = check_dns1035_label(&spec.version);
    if !spec.version.is_empty() && !sentences.is_empty() {
        errors.push(FieldError::invalid(SPEC.child("version"), &spec.version, sentences.join(",")));
    }
    errors
}

/// The errors of what all versions have in common.
fn common_field_errors(
    spec: &HoistedSpec<'_>,
    rules: &ValidationRules,
    requires_structural: bool,
    budget: &mut CrdBudget<'_>,
) -> FieldErrors {
    let has_status = has_status(spec.subresources.as_ref())
        || spec.versions().iter().any(|version| has_status(version.subresources.as_ref()));
    let schema = spec.common_crd_schema();
    let mut errors = schema_errors(schema, has_status, rules, requires_structural, budget, &SPEC.child("validation"));
    errors.extend(subresource_errors(spec.subresources.as_ref(), &SPEC.child("subresources")));
    errors.append(column_errors(&spec.additional_printer_columns, &SPEC.child("additionalPrinterColumns")));
    if spec.selectable_fields.is_empty() {
        return errors;
    }
    match spec.common_schema() {
        Some(schema) => {
            let allows_many = rules.crowded_versions.contains("");
            errors.append(selectable_field_errors(&spec.selectable_fields, schema, allows_many, &SPEC));
        }
        None => {
            let why = "may only be set when validations.schema is included";
            errors.push(FieldError::invalid(SPEC.child("selectableFields"), "", why));
        }
    }
    errors
}

/// The errors of `status.storedVersions` (`ValidateCustomResourceDefinitionStoredVersions`).
pub(super) fn stored_version_errors(stored: Option<&[String]>, versions: &[HoistedVersion]) -> FieldErrors {
    const PATH: FieldPath<'static> = FieldPath::root("status.storedVersions");
    let names = stored.unwrap_or_default();
    let value = stored.map_or(BadValue::null(), BadValue::from);
    if names.is_empty() {
        return FieldError::invalid(PATH, value, "must have at least one stored version").into();
    }
    let stored_names: HashSet<&String> = names.iter().collect();
    // Names with the place of their first version, and their last place in the status.
    let mut versions_by_name = HashMap::new();
    for (index, version) in versions.iter().enumerate() {
        versions_by_name.entry(&version.name).or_insert(index);
    }
    let last_places: HashMap<&String, usize> = names.iter().enumerate().map(|(index, name)| (name, index)).collect();
    let mut errors = FieldErrors::new();
    for (index, version) in versions.iter().enumerate().filter(|(_, version)| version.storage) {
        // A stored version is that of the first version with its name.
        let is_first = versions_by_name.get(&version.name) == Some(&index);
        if !is_first || !stored_names.contains(&version.name) {
            let why = format!("must have the storage version {}", version.name);
            errors.push(FieldError::invalid(PATH, value.clone(), why));
        }
    }
    for (index, name) in names.iter().enumerate() {
        let is_last = last_places.get(name) == Some(&index);
        if is_last && !versions_by_name.contains_key(name) {
            let why = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {name} and removes {name} from \
                 status.storedVersions"
            );
            errors.push(FieldError::invalid(PATH.index(index), name, why));
        }
    }
    errors
}
