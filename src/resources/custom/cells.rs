//! Cells of a Table of custom resources (`pkg/registry/customresource/tableconvertor/tableconvertor.go` of
//! apiextensions-apiserver).

use std::borrow::Cow;
use std::iter;
use std::time::SystemTime;

use kubeapi::human_duration::age_of;
use kubeapi::json_path::{JsonPath, print_json_path_value};
use serde_json::Value;

use super::crd::{CrdVersion, PrinterColumn};
use crate::resources::ResourceColumn;
use crate::resources::row_budget::RowBudget;

/// Description of `metadata.name`, as upstream prints it.
const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although \
    some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily \
    intended for creation idempotence and configuration definition. Cannot be updated. More info: \
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
/// Description of the default column, as upstream prints it.
const AGE_DESCRIPTION: &str = "CreationTimestamp is a timestamp representing the server time when this object was \
    created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this \
    value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More \
    info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// Values that the paths of all columns visit at most for one row.
const MAX_ROW_VISITS: usize = 1_000_000;

/// Columns of a Table: the name, then those of the CRD, or the age.
pub(super) fn table_columns(version: &CrdVersion) -> Vec<ResourceColumn> {
    named_columns(usable_columns(version).into_iter().map(|(column, _)| column))
}

/// Columns of a Table of the subresource `scale`.
pub fn scale_columns() -> Vec<ResourceColumn> {
    named_columns(scale_printer_columns().into_iter())
}

/// Cells of a Table of the subresource `scale`.
pub fn scale_cells(scale: &Value, now: SystemTime) -> Vec<Value> {
    custom_cells(&parsed_columns(&scale_printer_columns()).map(typed_path).collect::<Vec<_>>(), scale, now)
}

/// `getScaleColumnsForVersion` in apiextensions-apiserver's `pkg/apiserver/helpers.go`.
fn scale_printer_columns() -> [PrinterColumn; 3] {
    let replicas = |name: &str, description: &str, path: &str| PrinterColumn {
        name: name.to_owned(),
        column_type: "integer".to_owned(),
        format: String::new(),
        description: description.to_owned(),
        priority: 0,
        json_path: path.to_owned(),
    };
    [
        replicas("Desired", "Number of desired replicas", ".spec.replicas"),
        replicas("Available", "Number of actual replicas", ".status.replicas"),
        age_column(),
    ]
}

fn age_column() -> PrinterColumn {
    PrinterColumn {
        name: "Age".to_owned(),
        column_type: "date".to_owned(),
        format: String::new(),
        description: AGE_DESCRIPTION.to_owned(),
        priority: 0,
        json_path: ".metadata.creationTimestamp".to_owned(),
    }
}

/// The name and these columns.
fn named_columns(columns: impl Iterator<Item = PrinterColumn>) -> Vec<ResourceColumn> {
    let name = ResourceColumn {
        name: "Name".into(),
        column_type: "string".into(),
        format: "name".into(),
        description: NAME_DESCRIPTION.to_owned(),
        priority: 0,
    };
    let own = columns.map(|column| ResourceColumn {
        description: match column.description.is_empty() {
            true => format!("Custom resource definition column (in JSONPath format): {}", column.json_path),
            false => column.description,
        },
        priority: column.priority,
        name: Cow::Owned(column.name),
        column_type: Cow::Owned(column.column_type),
        format: Cow::Owned(column.format),
    });
    iter::once(name).chain(own).collect()
}

/// JSON paths of the columns after the name, with their types.
pub(super) fn column_paths(version: &CrdVersion) -> Vec<(JsonPath, String)> {
    usable_columns(version).into_iter().map(typed_path).collect()
}

fn typed_path((column, path): (PrinterColumn, JsonPath)) -> (JsonPath, String) {
    (path, column.column_type)
}

/// The columns of the CRD before the first one whose path cannot be parsed; the age if it has none.
fn usable_columns(version: &CrdVersion) -> Vec<(PrinterColumn, JsonPath)> {
    match version.additional_printer_columns.as_deref().unwrap_or_default() {
        [] => parsed_columns(&[age_column()]).collect(),
        own => parsed_columns(own).collect(),
    }
}

fn parsed_columns(columns: &[PrinterColumn]) -> impl Iterator<Item = (PrinterColumn, JsonPath)> {
    columns.iter().map_while(|column| Some((column.clone(), JsonPath::parse(&column.json_path).ok()?)))
}

/// The cells of an object: its name, then one for each column after it.
pub fn custom_cells(column_paths: &[(JsonPath, String)], object: &Value, now: SystemTime) -> Vec<Value> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let (mut visits, mut budget) = (MAX_ROW_VISITS, RowBudget::default());
    let own = column_paths.iter().map(|(path, column_type)| {
        let found = path.find_first(object, &mut visits);
        found.map_or(Value::Null, |value| cell(value, column_type, now, &mut budget))
    });
    iter::once(Value::from(name)).chain(own).collect()
}

/// A value as a cell of a column's type; null if it has another type.
fn cell(value: &Value, column_type: &str, now: SystemTime, budget: &mut RowBudget) -> Value {
    match (column_type, value) {
        ("string", Value::String(text)) => budget.cut(text).into(),
        // What is not printed costs nothing.
        ("string", Value::Array(_) | Value::Object(_)) if budget.is_spent() => RowBudget::REST.into(),
        ("string", value) => budget.cut(&print_json_path_value(value)).into(),
        ("integer", Value::Number(number)) => {
            number.as_i64().unwrap_or_else(|| truncate(number.as_f64().unwrap_or_default())).into()
        }
        ("number", Value::Number(number)) => number.as_f64().map_or(Value::Null, Value::from),
        ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) if text.is_empty() => "<unknown>".into(),
        ("date", Value::String(text)) => age_of(text, now).unwrap_or_else(|| "<invalid>".to_owned()).into(),
        _ => Value::Null,
    }
}

/// A float as an integer, as Go converts it on amd64: without its fraction, and all that is out of range as the minimum.
fn truncate(float: f64) -> i64 {
    // 2^63 is the first float beyond the range.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    #[allow(clippy::cast_possible_truncation)]
    match float.abs() < LIMIT {
        true => float as i64,
        false => i64::MIN,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use kubeapi::json::{read_json, write_json};
    use serde::Deserialize;
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;
    use crate::resources::custom::testing::served_kind;

    /// A question to the oracle, and its answer. See `tests/interop/oracle/main.go`.
    #[derive(Deserialize)]
    struct Case {
        columns: Option<Value>,
        object: Box<RawValue>,
        now: String,
        answer: Answer,
    }

    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        error: String,
        columns: Option<Value>,
        cells: Box<RawValue>,
    }

    /// Cases that differ, by a part of them, and why.
    const KNOWN_DIFFERENCES: [(&str, &str); 2] = [
        (r#""columns":[],"object""#, "the handler of Kubernetes gives the default for an empty list"),
        (
            r#""jsonPath":"5","name":"C","type":"integer""#,
            "an integer in the path is none of those that Kubernetes prints",
        ),
    ];

    /// Differences between the answer of Narthex and that of the oracle.
    fn differences(case: &Case) -> Vec<String> {
        let names = json!({"plural": "cases", "kind": "Case"});
        let kind =
            served_kind(&json!({"metadata": {"name": "cases.a.io"}, "status": {"acceptedNames": names}, "spec": {
                "group": "a.io", "names": names, "scope": "Cluster",
                "versions": [{"name": "v1", "served": true, "storage": true, "additionalPrinterColumns": case.columns}],
            }}));
        let canonical = |text: &str| write_json(&read_json(text.as_bytes()).unwrap().0);
        let (object, _) = read_json(case.object.get().as_bytes()).unwrap();
        let now: Timestamp = case.now.parse().unwrap();
        let cells = canonical(&write_json(&Value::Array(custom_cells(
            &kind.version.custom().unwrap().column_paths,
            &object,
            now.into(),
        ))));
        let mut all = Vec::new();
        let mut compare = |expected: String, found: String| {
            if expected != found {
                all.push(format!("  expected {expected}\n  found    {found}"));
            }
        };
        compare(canonical(case.answer.cells.get()), cells);
        let column = |column: &ResourceColumn| {
            json!({"name": column.name, "type": column.column_type, "format": column.format,
                   "description": column.description, "priority": column.priority})
        };
        let columns: Vec<Value> = kind.version.columns.iter().skip(1).map(column).collect();
        match &case.answer.columns {
            Some(expected) => compare(write_json(expected), write_json(&columns.into())),
            // The oracle leaves out columns that repeat the question.
            None if case.answer.error.is_empty() => {
                let given = case.columns.as_ref().and_then(Value::as_array).map_or(1, Vec::len);
                compare(given.to_string(), columns.len().to_string());
            }
            None => compare("0".to_owned(), columns.len().to_string()),
        }
        all
    }

    #[test]
    fn custom_table_cells_are_those_of_kube_apiserver() {
        let (mut count, mut unknown) = (0, 0);
        let mut used = [false; KNOWN_DIFFERENCES.len()];
        for line in include_str!("../testdata/custom_tables.jsonl").lines() {
            count += 1;
            let differences = differences(&serde_json::from_str(line).unwrap());
            let known = KNOWN_DIFFERENCES.iter().position(|(part, _)| line.contains(part));
            match known.filter(|_| !differences.is_empty()) {
                Some(place) => used[place] = true,
                None => {
                    unknown += differences.len();
                    differences.iter().for_each(|text| println!("{line}\n{text}"));
                }
            }
        }
        assert!(count > 700);
        assert_eq!((unknown, used), (0, [true; KNOWN_DIFFERENCES.len()]));
    }

    #[test]
    fn custom_table_row_prints_and_visits_bounded_amounts() {
        let large = json!({"metadata": {"name": "a"}, "spec": vec!["0123456789"; 100_000]});
        let column = |path: &str| (JsonPath::parse(path).unwrap(), "string".to_owned());
        let cells = custom_cells(&vec![column(".spec"); 3000], &large, SystemTime::UNIX_EPOCH);
        assert_eq!(
            (cells.len(), &cells[0], &cells[2], &cells[3000]),
            (3001, &json!("a"), &json!("..."), &json!("..."))
        );
        let bytes = write_json(&Value::Array(cells)).len();
        assert!(bytes < 48 << 10, "{bytes} bytes");
        // Each of these paths visits 100,000 values or fails.
        let (path, _) = column("..x");
        let mut remaining = MAX_ROW_VISITS;
        let visited = (0..3000).filter(|_| {
            let before = remaining;
            path.find_first(&large, &mut remaining);
            remaining < before
        });
        assert!(visited.count() <= 11);
    }

    #[test]
    fn table_of_scale_has_replicas_and_age() {
        let names: Vec<String> = scale_columns().iter().map(|column| column.name.to_string()).collect();
        assert_eq!(names, ["Name", "Desired", "Available", "Age"]);
        let created: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let scale = json!({"metadata": {"name": "a", "creationTimestamp": created.to_string()},
            "spec": {"replicas": 3}, "status": {"replicas": 2}});
        let now = SystemTime::from(created) + std::time::Duration::from_secs(5);
        assert_eq!(scale_cells(&scale, now), [json!("a"), json!(3), json!(2), json!("5s")]);
        assert_eq!(scale_cells(&json!({}), now), [json!(""), json!(null), json!(null), json!(null)]);
    }
}
