//! Representations of objects: complete, partial metadata, or rows of a Table.

use std::sync::Arc;

use http::HeaderMap;
use http::header::ACCEPT;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::api_errors;
use super::object;
use super::options::Parameters;
use super::resource::ExampleResource;
use crate::kubeapi::Status;
use crate::kubeapi::human_duration::human_duration;
use crate::message::negotiate::{MediaRange, parse_accept};

/// The representation requested by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Representation {
    Whole,
    /// `PartialObjectMetadata` and its list.
    Partial,
    Table(IncludeObject),
}

/// The object in each row of a Table (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IncludeObject {
    Nothing,
    Metadata,
    Object,
}

impl Representation {
    /// Negotiates by the `Accept` header; `many` if the response is a list. 406 if nothing acceptable is supported.
    pub(super) fn negotiate(headers: &HeaderMap, query: &Parameters, many: bool) -> Result<Representation, Status> {
        let partial = if many { "PartialObjectMetadataList" } else { "PartialObjectMetadata" };
        for wish in &json_clauses(&accept_header(headers)) {
            let ours = wish.parameter("g") == Some("meta.k8s.io") && wish.parameter("v") == Some("v1");
            match wish.parameter("as") {
                None => return Ok(Representation::Whole),
                Some("Table") if ours => return Ok(Representation::Table(IncludeObject::read(query)?)),
                Some(kind) if kind == partial && ours => return Ok(Representation::Partial),
                Some(_) => {}
            }
        }
        Err(Status::not_acceptable("only the following media types are accepted: application/json"))
    }

    /// Renders one object.
    pub(super) fn render(self, resource: &ExampleResource, object: &Value) -> Value {
        match self {
            Representation::Whole => object.clone(),
            Representation::Partial => partial(object),
            Representation::Table(include) => {
                let metadata = json!({"resourceVersion": object::metadata_text(object, "resourceVersion")});
                table(resource, [object], &metadata, include, true)
            }
        }
    }

    /// Renders one object of a watch: a Table contains its columns only in the `first` event.
    pub(super) fn render_event(self, resource: &ExampleResource, object: &Value, first: bool) -> Value {
        match self {
            Representation::Table(include) => {
                let metadata = json!({"resourceVersion": object::metadata_text(object, "resourceVersion")});
                table(resource, [object], &metadata, include, first)
            }
            other => other.render(resource, object),
        }
    }

    /// Renders a list with its metadata.
    pub(super) fn render_list(self, resource: &ExampleResource, objects: &[Arc<Value>], metadata: &Value) -> Value {
        let objects = objects.iter().map(AsRef::as_ref);
        match self {
            Representation::Whole => json!({"apiVersion": resource.group_version(), "kind": resource.list_kind(),
                "metadata": metadata, "items": objects.collect::<Vec<&Value>>()}),
            Representation::Partial => json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                "metadata": metadata, "items": objects.map(partial).collect::<Vec<Value>>()}),
            Representation::Table(include) => table(resource, objects, metadata, include, true),
        }
    }
}

/// All `Accept` headers joined; `*/*` without one.
pub(super) fn accept_header(headers: &HeaderMap) -> String {
    let lines: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok()).collect();
    if lines.is_empty() { "*/*".to_owned() } else { lines.join(",") }
}

/// The clauses of an `Accept` header that accept JSON, preferred first.
pub(super) fn json_clauses(accept: &str) -> Vec<MediaRange<'_>> {
    parse_accept(accept).into_iter().filter(|clause| clause.covers("application", "json")).collect()
}

impl IncludeObject {
    fn read(query: &Parameters) -> Result<IncludeObject, Status> {
        match query.get("includeObject") {
            "None" => Ok(IncludeObject::Nothing),
            "" | "Metadata" => Ok(IncludeObject::Metadata),
            "Object" => Ok(IncludeObject::Object),
            other => {
                let error = api_errors::unsupported_field("includeObject", other, &["Metadata", "None", "Object"]);
                Err(api_errors::invalid_options("TableOptions", vec![error]))
            }
        }
    }
}

fn partial(object: &Value) -> Value {
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
}

fn table<'o>(
    resource: &ExampleResource,
    objects: impl IntoIterator<Item = &'o Value>,
    metadata: &Value,
    include: IncludeObject,
    columns: bool,
) -> Value {
    let now = Timestamp::now();
    let rows: Vec<Value> = objects
        .into_iter()
        .map(|object| {
            let mut cells = vec![json!(object::name(object))];
            cells.extend(resource.columns.iter().map(|column| column.cell(object)));
            cells.push(json!(age(object, now)));
            match include {
                IncludeObject::Nothing => json!({"cells": cells, "object": null}),
                IncludeObject::Metadata => json!({"cells": cells, "object": partial(object)}),
                IncludeObject::Object => json!({"cells": cells, "object": object}),
            }
        })
        .collect();
    let columns = if columns { column_definitions(resource) } else { Value::Null };
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns, "rows": rows})
}

fn column_definitions(resource: &ExampleResource) -> Value {
    let column = |name: &str, kind: &str, format: &str, description: &str, priority: u8| json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority});
    let mut columns = vec![column("Name", "string", "name", "The name, unique among its kind and namespace.", 0)];
    let own = resource.columns.iter();
    columns.extend(own.map(|own| column(own.title, own.kind, "", own.description, own.priority)));
    columns.push(column("Age", "string", "", "Time since the object was created.", 0));
    Value::Array(columns)
}

fn age(object: &Value, now: Timestamp) -> String {
    match object::metadata_text(object, "creationTimestamp").parse::<Timestamp>() {
        Ok(made) => human_duration(now.as_second() - made.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::quickstart::example::resource::RESOURCES;

    fn view(accept: &str, many: bool) -> Result<Representation, u16> {
        let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
        Representation::negotiate(&headers, &Parameters::parse(""), many).map_err(|status| status.code)
    }

    #[test]
    fn accept_header_selects_first_supported_representation() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(view(kubectl, true), Ok(Representation::Table(IncludeObject::Metadata)));
        assert_eq!(
            view("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", true),
            Ok(Representation::Whole)
        );
        assert_eq!(
            view("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", true),
            Ok(Representation::Partial)
        );
        assert_eq!(view("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", false), Err(406));
        assert_eq!(view("application/vnd.kubernetes.protobuf", true), Err(406));
        assert_eq!(view("application/vnd.kubernetes.protobuf, */*", true), Ok(Representation::Whole));
    }

    #[test]
    fn table_has_cell_for_every_column() {
        let object = json!({"metadata": {"name": "front"}, "spec": {"open": true}});
        for include in [IncludeObject::Nothing, IncludeObject::Metadata, IncludeObject::Object] {
            let table = Representation::Table(include).render(&RESOURCES[1], &object);
            let columns = table["columnDefinitions"].as_array().unwrap();
            let cells = table["rows"][0]["cells"].as_array().unwrap();
            assert_eq!(columns.len(), cells.len());
            assert_eq!((&cells[0], &cells[1], &cells[2]), (&json!("front"), &Value::Null, &json!(true)));
            let kind = &table["rows"][0]["object"]["kind"];
            assert_eq!(*kind == "PartialObjectMetadata", include == IncludeObject::Metadata);
        }
        let later = Representation::Table(IncludeObject::Nothing).render_event(&RESOURCES[1], &object, false);
        assert_eq!(later["columnDefinitions"], Value::Null);
    }

    #[test]
    fn human_duration_matches_kubectl() {
        let said: Vec<_> =
            [-5, 0, 119, 120, 125, 660, 10_800, 10_860, 90_000, 180_000, 800_000, 70_000_000, 300_000_000]
                .map(human_duration)
                .into();
        let expected =
            ["<invalid>", "0s", "119s", "2m", "2m5s", "11m", "3h", "3h1m", "25h", "2d2h", "9d", "2y80d", "9y"];
        assert_eq!(said, expected);
    }
}
