//! APIServices as a `meta.k8s.io/v1 Table` with the columns that kubectl prints.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::object::{ApiServiceObject, Projection};
use crate::availability::ConditionStatus;
use crate::registry::ApiServiceBackend;

/// `includeObject` of a table request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum IncludeObjectPolicy {
    None,
    #[default]
    Metadata,
    Object,
}

/// Format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseFormat {
    Plain(Projection),
    Table(IncludeObjectPolicy),
}

impl IncludeObjectPolicy {
    pub(super) fn parse(text: &str) -> Option<IncludeObjectPolicy> {
        match text {
            "" | "Metadata" => Some(IncludeObjectPolicy::Metadata),
            "None" => Some(IncludeObjectPolicy::None),
            "Object" => Some(IncludeObjectPolicy::Object),
            _ => None,
        }
    }
}

/// A table of these objects. A watch sends the columns only once.
pub(super) fn table(
    objects: &[&ApiServiceObject],
    version: u64,
    include: IncludeObjectPolicy,
    with_columns: bool,
    now: SystemTime,
) -> Value {
    let rows: Vec<Value> = objects.iter().map(|object| row(object, include, now)).collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": { "resourceVersion": version.to_string() },
        "columnDefinitions": if with_columns { columns() } else { json!([]) },
        "rows": rows,
    })
}

fn columns() -> Value {
    let column = |name: &str, format: &str, description: &str| json!({ "name": name, "type": "string", "format": format, "description": description, "priority": 0 });
    json!([
        column("Name", "name", "Version and group: <version>.<group>."),
        column("Service", "", "Backend: namespace and name of a Service, a URL, or Local."),
        column("Available", "", "Whether the backend answers, and if not, why."),
        column("Age", "", "Time since creation."),
    ])
}

fn row(object: &ApiServiceObject, include: IncludeObjectPolicy, now: SystemTime) -> Value {
    let api_service = &object.api_service;
    let backend = match &api_service.backend {
        ApiServiceBackend::Local => "Local".to_owned(),
        ApiServiceBackend::Service(reference) => format!("{}/{}", reference.namespace, reference.name),
        ApiServiceBackend::Url(url) => url.to_string(),
    };
    let available = match (object.condition.status, &object.condition.reason) {
        (ConditionStatus::True, _) => "True".to_owned(),
        (status, reason) => format!("{} ({reason})", status.as_str()),
    };
    let age = now.duration_since(api_service.created).unwrap_or_default();
    let mut row = json!({ "cells": [api_service.name, backend, available, human_duration(age.as_secs())] });
    match include {
        IncludeObjectPolicy::None => {}
        IncludeObjectPolicy::Metadata => row["object"] = object.value(Projection::Metadata),
        IncludeObjectPolicy::Object => row["object"] = object.value(Projection::Full),
    }
    row
}

/// Age as kubectl prints it, for example `5d3h` (`apimachinery/pkg/util/duration`, `HumanDuration`): at most two units,
/// the smaller one only where it matters.
fn human_duration(seconds: u64) -> String {
    const UNITS: [(u64, char); 5] = [(365 * 86_400, 'y'), (86_400, 'd'), (3600, 'h'), (60, 'm'), (1, 's')];
    // Up to this many seconds: index of the unit, and whether the next smaller one is printed, too.
    let (unit, fine) = match seconds {
        0..120 => (4, false),
        120..600 => (3, true),
        600..10_800 => (3, false),
        10_800..28_800 => (2, true),
        28_800..172_800 => (2, false),
        172_800..691_200 => (1, true),
        691_200..63_072_000 => (1, false),
        63_072_000..252_288_000 => (0, true),
        _ => (0, false),
    };
    let (size, letter) = UNITS[unit];
    let rest = seconds % size;
    match UNITS.get(unit + 1) {
        Some((smaller, letter_of_smaller)) if fine && rest / smaller > 0 => {
            format!("{}{letter}{}{letter_of_smaller}", seconds / size, rest / smaller)
        }
        _ => format!("{}{letter}", seconds / size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::availability::apiservice_api::object::tests::object;

    #[test]
    fn apiservices_table_rows_as_kubectl_prints() {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(3 * 86_400);
        let service = object("v1.a.io", ", service: {name: api, namespace: ns}", ConditionStatus::False, 7);
        let local = object("v1.b.io", "", ConditionStatus::True, 8);
        let table = table(&[&service, &local], 9, IncludeObjectPolicy::None, true, now);
        assert_eq!(table["rows"][0]["cells"], json!(["v1.a.io", "ns/api", "False (FailedDiscoveryCheck)", "3d"]));
        assert_eq!(table["rows"][1]["cells"], json!(["v1.b.io", "Local", "True", "3d"]));
        assert_eq!(table["rows"][0].get("object"), None);
        assert_eq!(table["metadata"]["resourceVersion"], "9");
        let names: Vec<&Value> =
            table["columnDefinitions"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["Name", "Service", "Available", "Age"]);
        let with = super::table(&[&local], 9, IncludeObjectPolicy::Metadata, false, now);
        assert_eq!(with["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(with["columnDefinitions"], json!([]));
    }

    #[test]
    fn apiservices_table_age_as_kubectl_prints() {
        let (minute, hour, day, year) = (60, 3600, 86_400, 365 * 86_400);
        for (seconds, words) in [
            (0, "0s"),
            (119, "119s"),
            (2 * minute, "2m"),
            (2 * minute + 1, "2m1s"),
            (599, "9m59s"),
            (600, "10m"),
            (179 * minute + 59, "179m"),
            (3 * hour, "3h"),
            (7 * hour + 59 * minute, "7h59m"),
            (8 * hour + 1, "8h"),
            (47 * hour, "47h"),
            (2 * day, "2d"),
            (7 * day + 23 * hour, "7d23h"),
            (8 * day, "8d"),
            (729 * day, "729d"),
            (2 * year + day, "2y1d"),
            (8 * year + 3 * day, "8y"),
        ] {
            assert_eq!(human_duration(seconds), words);
        }
    }
}
