//! Rules for a CRD that replaces another: it may keep the defects that the replaced one has.

use std::collections::{HashMap, HashSet};

use kubeapi::field_error::FieldPath;
use kubeapi::schema::PatternBudget;
use kubeapi::schema::props::JsonSchemaProps;
use kubeapi::schema::structural::{conversion_error, validate_structural};

use super::conversion::{is_valid_ca_bundle, recognizes_review_version};
use super::defaults::has_unpruned_defaults;
use super::hoisted::{HoistedSpec, HoistedVersion};
use super::options::{MAX_SELECTABLE_FIELDS, SCHEMA_TYPES, ValidationRules};
use super::schema_lists::{has_map_list_errors, is_set_of_non_atomic};

/// The rules for a CRD that replaces `old`.
pub(super) fn rules_for_replacement(
    spec: &HoistedSpec<'_>,
    old: &HoistedSpec<'_>,
    is_established: bool,
) -> ValidationRules {
    let webhook = old.conversion.as_ref().and_then(|conversion| conversion.webhook.as_ref());
    let versions = webhook.and_then(|webhook| webhook.conversion_review_versions.as_deref()).unwrap_or_default();
    let ca_bundle = webhook.and_then(|webhook| Some(&*webhook.client_config.as_ref()?.ca_bundle));
    let ca_bundle = ca_bundle.unwrap_or_default();
    let mut patterns = PatternBudget::default();
    ValidationRules {
        requires_review_version: versions.is_empty() || recognizes_review_version(versions),
        requires_immutable_names: is_established,
        requires_schema: old.common_schema().is_some()
            || old.versions().iter().all(|version| version.own_schema().is_some()),
        requires_valid_types: !old.any_schema(has_invalid_type),
        requires_structural: !old.schemas().any(|schema| is_non_structural(schema.props, &mut patterns)),
        requires_pruned_defaults: !old.schemas().any(|schema| has_unpruned_defaults(schema.written)),
        requires_atomic_sets: !old.any_schema(is_set_of_non_atomic),
        requires_map_list_rules: !old.any_schema(has_map_list_errors),
        allows_invalid_ca_bundle: !is_established || !ca_bundle.is_empty() && !is_valid_ca_bundle(ca_bundle),
        crowded_versions: crowded_versions(spec, old),
    }
}

fn has_invalid_type(schema: &JsonSchemaProps) -> bool {
    !schema.value_type.is_empty() && !SCHEMA_TYPES.contains(&&*schema.value_type)
}

fn is_non_structural(schema: &JsonSchemaProps, patterns: &mut PatternBudget) -> bool {
    conversion_error(schema).is_some() || !validate_structural(schema, &FieldPath::root(""), patterns).is_empty()
}

/// Versions that keep the selectable fields that were too many before.
fn crowded_versions(spec: &HoistedSpec<'_>, old: &HoistedSpec<'_>) -> HashSet<String> {
    let mut crowded = HashSet::new();
    if old.selectable_fields.len() > MAX_SELECTABLE_FIELDS && spec.selectable_fields == old.selectable_fields {
        crowded.insert(String::new());
    }
    // Of equal names, the last.
    let before: HashMap<&str, &HoistedVersion> =
        old.versions().iter().map(|version| (&*version.name, version)).collect();
    let is_kept = |version: &&HoistedVersion| {
        before.get(&*version.name).is_some_and(|before| {
            before.selectable_fields.len() > MAX_SELECTABLE_FIELDS
                && before.selectable_fields == version.selectable_fields
        })
    };
    crowded.extend(spec.versions().iter().filter(is_kept).map(|version| version.name.clone()));
    crowded
}
