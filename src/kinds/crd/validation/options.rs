//! Which rules hold for a CRD.

use std::collections::HashSet;

use kubeapi::schema::{PatternBudget, StepBudget};

/// Types of schemas.
pub(super) const SCHEMA_TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// Maximum number of selectable fields.
pub(super) const MAX_SELECTABLE_FIELDS: usize = 8;

/// Which rules hold (`validationOptions`).
#[derive(Debug)]
pub(super) struct ValidationRules {
    pub(super) requires_review_version: bool,
    pub(super) requires_immutable_names: bool,
    pub(super) requires_schema: bool,
    pub(super) requires_valid_types: bool,
    pub(super) requires_structural: bool,
    pub(super) requires_pruned_defaults: bool,
    pub(super) requires_atomic_sets: bool,
    pub(super) requires_map_list_rules: bool,
    pub(super) allows_invalid_ca_bundle: bool,
    /// Versions whose selectable fields may be too many; empty for those of all versions.
    pub(super) crowded_versions: HashSet<String>,
}

/// What the schemas of one CRD may take together.
pub(super) struct CrdBudget<'b> {
    pub(super) patterns: PatternBudget,
    /// Of the validation of defaults.
    pub(super) steps: &'b dyn StepBudget,
}

impl ValidationRules {
    /// The rules for a new CRD.
    pub(super) fn for_new() -> ValidationRules {
        ValidationRules {
            requires_review_version: true,
            requires_immutable_names: false,
            requires_schema: true,
            requires_valid_types: true,
            requires_structural: true,
            requires_pruned_defaults: true,
            requires_atomic_sets: true,
            requires_map_list_rules: true,
            // It is not used before the CRD is established.
            allows_invalid_ca_bundle: true,
            crowded_versions: HashSet::new(),
        }
    }
}
