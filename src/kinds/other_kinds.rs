//! Kinds that differ in facts alone, or in a line.

use kubeapi::GoQuoted;

use super::selectable_fields::SelectableFields;
use super::{DependentsRule, GenerationRule, KindRules};
use crate::resources::custom::cells::scale_cells;

/// Their rules, by group and plural name.
pub(super) static RULES: [KindRules; 9] = [
    KindRules { generation: GenerationRule::of(&["template"]), ..returning_deleted("", "podtemplates") },
    KindRules {
        dependents: DependentsRule::Orphan,
        selectable: SelectableFields::of(&["status.replicas"]),
        ..counting_spec("", "replicationcontrollers")
    },
    counting_spec("apps", "daemonsets"),
    KindRules {
        generation: GenerationRule { metadata_field: Some("annotations"), ..GenerationRule::SPEC },
        ..KindRules::of("apps", "deployments")
    },
    counting_spec("apps", "replicasets"),
    counting_spec("apps", "statefulsets"),
    // Only the subresource `scale`.
    KindRules { cells: |printer| scale_cells(printer.object, printer.now), ..KindRules::of("autoscaling", "scales") },
    counting_spec("batch", "cronjobs"),
    KindRules {
        dependents: DependentsRule::Orphan,
        selectable: SelectableFields {
            labels: &["status.successful"],
            paths: &[("status.successful", &["status.succeeded"])],
            unsupported: |_, label| format!("field label {} not supported for Job", GoQuoted(label)),
            ..SelectableFields::NONE
        },
        ..counting_spec("batch", "jobs")
    },
];

const fn returning_deleted(group: &'static str, plural: &'static str) -> KindRules {
    KindRules { returns_deleted_object: true, ..KindRules::of(group, plural) }
}

const fn counting_spec(group: &'static str, plural: &'static str) -> KindRules {
    KindRules { generation: GenerationRule::SPEC, ..KindRules::of(group, plural) }
}
