//! `metav1.Table`: columns and rows (`k8s.io/apiserver/pkg/endpoints/handlers/response.go`, `asTable`).

use std::time::SystemTime;

use kubeapi::json::{quote_json_into, write_json, write_json_into};
use serde_json::Value;

use super::negotiate::RowObject;
use super::served_object::ServedObject;
use crate::kinds::cells::{row_conditions, table_cells};
use crate::kinds::rules;
use crate::resources::{ResourceColumn, ServedKind};

/// The JSON of a Table up to its rows. `metadata` is JSON. Columns are null where they were sent before.
pub(super) fn table_head(kind: &ServedKind, api_version: &str, metadata: &str, with_columns: bool) -> String {
    let mut head = String::from("{\"kind\":\"Table\",\"apiVersion\":");
    quote_json_into(&mut head, api_version);
    head.push_str(",\"metadata\":");
    head.push_str(metadata);
    head.push_str(",\"columnDefinitions\":");
    if with_columns {
        write_columns(&mut head, &kind.version.columns);
    } else {
        head.push_str("null");
    }
    head.push_str(",\"rows\":[");
    head
}

fn write_columns(out: &mut String, columns: &[ResourceColumn]) {
    for (index, column) in columns.iter().enumerate() {
        out.push(if index == 0 { '[' } else { ',' });
        let mut start = '{';
        for (name, value) in [
            ("name", &*column.name),
            ("type", &*column.column_type),
            ("format", &*column.format),
            ("description", &*column.description),
        ] {
            out.push(std::mem::replace(&mut start, ','));
            quote_json_into(out, name);
            out.push(':');
            quote_json_into(out, value);
        }
        out.push_str(&format!(",\"priority\":{}}}", column.priority));
    }
    out.push(']');
}

/// Appends the row of an object as JSON. Ages are relative to `now`.
pub(super) fn write_row(
    out: &mut Vec<u8>,
    kind: &ServedKind,
    object: &ServedObject<'_>,
    (api_version, row_object): (&str, RowObject),
    now: SystemTime,
) {
    let mut cells = String::from("{\"cells\":");
    let value = object.value();
    write_json_into(&mut cells, &Value::Array(table_cells(kind, &value, now)));
    let conditions = row_conditions(kind, &value);
    if !conditions.is_empty() {
        cells.push_str(",\"conditions\":");
        cells.push_str(conditions);
    }
    cells.push_str(",\"object\":");
    out.extend_from_slice(cells.as_bytes());
    match row_object {
        RowObject::Absent => out.extend_from_slice(b"null"),
        RowObject::Metadata => match rules(&kind.resource).versioned_annotation {
            None => write_partial_metadata(out, object, api_version),
            Some(annotation) => {
                let mut metadata = Vec::new();
                object.write_metadata(&mut metadata);
                let metadata = serde_json::from_slice(&metadata).unwrap_or(Value::Null);
                let metadata = without_annotation(metadata, annotation);
                out.extend_from_slice(partial_metadata_head(api_version).as_bytes());
                out.extend_from_slice(write_json(&metadata).as_bytes());
                out.push(b'}');
            }
        },
        RowObject::Complete => object.write_json(out),
    }
    out.push(b'}');
}

/// Appends a `PartialObjectMetadata` as JSON.
pub(super) fn write_partial_metadata(out: &mut Vec<u8>, object: &ServedObject<'_>, api_version: &str) {
    out.extend_from_slice(partial_metadata_head(api_version).as_bytes());
    object.write_metadata(out);
    out.push(b'}');
}

/// The JSON of a `PartialObjectMetadata` up to the metadata.
fn partial_metadata_head(api_version: &str) -> String {
    let mut head = String::from("{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":");
    quote_json_into(&mut head, api_version);
    head.push_str(",\"metadata\":");
    head
}

fn without_annotation(mut metadata: Value, name: &str) -> Value {
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.remove(name);
        if annotations.is_empty()
            && let Value::Object(fields) = &mut metadata
        {
            fields.remove("annotations");
        }
    }
    metadata
}
