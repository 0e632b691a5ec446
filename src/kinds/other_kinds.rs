//! Kinds that differ in facts alone, or in a line.

use serde_json::Value;

use super::KindRules;
use super::cells::{CellPrinter, items_at, text_at};
use crate::resources::custom::cells::scale_cells;

/// Their rules, by group and plural name.
pub(super) static RULES: [KindRules; 2] = [
    // Only the subresource `scale`.
    KindRules { cells: |printer| scale_cells(printer.object, printer.now), ..KindRules::of("autoscaling", "scales") },
    KindRules {
        deprecation_warning: Some("v1 ComponentStatus is deprecated in v1.19+"),
        cells: print_component_status,
        ..KindRules::of("", "componentstatuses")
    },
];

/// Name, status, message and error (`printComponentStatus`).
fn print_component_status(printer: &CellPrinter<'_>) -> Vec<Value> {
    let conditions = items_at(printer.object, "/conditions");
    let Some(healthy) = conditions.iter().find(|condition| text_at(condition, "/type") == "Healthy") else {
        return vec![printer.name(), "Unknown".into(), "".into(), "".into()];
    };
    let status = if text_at(healthy, "/status") == "True" { "Healthy" } else { "Unhealthy" };
    vec![printer.name(), status.into(), text_at(healthy, "/message").into(), text_at(healthy, "/error").into()]
}
