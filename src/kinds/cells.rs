//! Cells of a Table, as a kube-apiserver prints them (`k8s.io/kubernetes/pkg/printers/internalversion/printers.go`,
//! kube-aggregator's `registry/apiservice/etcd/etcd.go`).

use std::time::SystemTime;

use kubeapi::human_duration::age_of;
use serde_json::{Value, json};

use super::rules;
use crate::resources::ServedKind;
use crate::resources::custom::cells::custom_cells;
use crate::resources::row_budget::bounded_cells;

/// Maximum number of addresses or ports in a cell.
pub(super) const MAX_LISTED: usize = 3;

/// The cells of an object, one for each column of its resource. Ages are relative to `now`.
///
/// Kinds that Narthex has no printer for get their name, their age, and otherwise empty cells. The text of a row is bounded.
pub fn table_cells(kind: &ServedKind, object: &Value, now: SystemTime) -> Vec<Value> {
    match kind.version.custom() {
        Some(version) => custom_cells(&version.column_paths, object, now),
        None => bounded_cells((rules(&kind.resource).cells)(&CellPrinter { kind, object, now })),
    }
}

/// JSON of the conditions of an object's row in a Table; empty if it has none.
pub fn row_conditions(kind: &ServedKind, object: &Value) -> &'static str {
    (rules(&kind.resource).row_conditions)(object)
}

/// An object and the time at which it is printed.
#[derive(Clone, Copy)]
pub(super) struct CellPrinter<'o> {
    kind: &'o ServedKind,
    pub(super) object: &'o Value,
    pub(super) now: SystemTime,
}

impl CellPrinter<'_> {
    pub(super) fn name(&self) -> Value {
        text_at(self.object, "/metadata/name").into()
    }

    pub(super) fn age(&self) -> Value {
        self.since("/metadata/creationTimestamp").unwrap_or_else(unknown).into()
    }

    /// Time since a timestamp of the object, if it has it.
    pub(super) fn since(&self, pointer: &str) -> Option<String> {
        age_of(self.object.pointer(pointer)?.as_str()?, self.now)
    }

    /// The name and the age; what else there are columns for stays empty.
    pub(super) fn unprinted_cells(&self) -> Vec<Value> {
        let cell = |name: &str| match name {
            "Name" => self.name(),
            "Age" => self.age(),
            "Created At" => text_at(self.object, "/metadata/creationTimestamp").into(),
            _ => json!(""),
        };
        self.kind.version.columns.iter().map(|column| cell(&column.name)).collect()
    }
}

pub(super) fn unknown() -> String {
    "<unknown>".to_owned()
}

pub(super) fn text_at<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn items_at<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn length_at(value: &Value, pointer: &str) -> usize {
    value.pointer(pointer).and_then(Value::as_object).map_or(0, serde_json::Map::len)
}

pub(super) fn integer(value: &Value, name: &str) -> i64 {
    value.get(name).and_then(Value::as_i64).unwrap_or_default()
}

pub(super) fn first_non_empty<'t>(first: &'t str, second: &'t str) -> &'t str {
    if first.is_empty() { second } else { first }
}

pub(super) fn with_more(listed: &[String], count: usize) -> String {
    let joined = listed.join(",");
    match count.saturating_sub(MAX_LISTED) {
        0 => joined,
        more => format!("{joined} + {more} more..."),
    }
}

/// List with the number of items that are left out (`listWithMoreString`).
pub(super) fn list_or_unset(listed: &[String], count: usize) -> String {
    match with_more(listed, count) {
        none if none.is_empty() => "<unset>".to_owned(),
        some => some,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::resources::builtin::builtin_kinds;

    #[test]
    fn table_cells_are_those_of_kube_apiserver() {
        let mut rows = 0;
        for line in include_str!("testdata/tables.jsonl").lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let object = &case["object"];
            let (group, version) = text_at(object, "/apiVersion").rsplit_once('/').unwrap_or(("", "v1"));
            let kind = builtin_kinds().find_kind(group, version, text_at(object, "/kind")).unwrap();
            let now: Timestamp = text_at(&case, "/now").parse().unwrap();
            let cells = table_cells(&kind, object, now.into());
            assert_eq!(Value::Array(cells), case["cells"], "{object}");
            assert_eq!(items_at(&case, "/cells").len(), kind.version.columns.len());
            rows += 1;
        }
        assert_eq!(rows, 28);
    }

    #[test]
    fn table_cells_of_objects_without_fields_match_the_columns() {
        for resource in builtin_kinds().resources().iter().filter(|resource| resource.list_kind.is_some()) {
            let kind = ServedKind { resource: resource.clone(), version: resource.versions[0].clone() };
            let cells = table_cells(&kind, &json!({}), SystemTime::UNIX_EPOCH);
            // A kube-apiserver prints the age of an IPAddress, which has no column.
            let further = usize::from(resource.plural == "ipaddresses");
            assert_eq!(cells.len(), kind.version.columns.len() + further, "{}", resource.plural);
        }
    }
}
