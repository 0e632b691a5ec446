//! Kinds that differ in facts alone, or in a line.

use super::selectable_fields::{SelectableFields, unsupported_with_kind};
use super::{GenerationRule, KindRules};
use crate::resources::custom::cells::scale_cells;

/// Their rules, by group and plural name.
pub(super) static RULES: [KindRules; 5] = [
    // Only the subresource `scale`.
    KindRules { cells: |printer| scale_cells(printer.object, printer.now), ..KindRules::of("autoscaling", "scales") },
    KindRules { generation: GenerationRule::SPEC, ..returning_deleted("resource.k8s.io", "deviceclasses") },
    returning_deleted("resource.k8s.io", "resourceclaims"),
    returning_deleted("resource.k8s.io", "resourceclaimtemplates"),
    KindRules {
        generation: GenerationRule::SPEC,
        selectable: SelectableFields {
            labels: &["spec.driver", "spec.nodeName"],
            unsupported: unsupported_with_kind,
            ..SelectableFields::NONE
        },
        ..returning_deleted("resource.k8s.io", "resourceslices")
    },
];

const fn returning_deleted(group: &'static str, plural: &'static str) -> KindRules {
    KindRules { returns_deleted_object: true, ..KindRules::of(group, plural) }
}
