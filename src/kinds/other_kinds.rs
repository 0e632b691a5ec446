//! Kinds that differ in facts alone, or in a line.

use super::KindRules;
use crate::resources::custom::cells::scale_cells;

/// Their rules, by group and plural name.
pub(super) static RULES: [KindRules; 1] = [
    // Only the subresource `scale`.
    KindRules { cells: |printer| scale_cells(printer.object, printer.now), ..KindRules::of("autoscaling", "scales") },
];
