//! Events (`pkg/registry/core/event/strategy.go`, `pkg/apis/core/validation/events.go`). An event of `events.k8s.io/v1` has
//! been converted to `v1`, so that errors name the fields of that version, as in Kubernetes.

use kubeapi::field_error::{BadValue, FieldError, FieldErrors};
use kubeapi::json::{quote_json_into, write_json};
use kubeapi::names::{check_dns1123_subdomain, check_qualified_name};
use serde_json::Value;

use super::cells::{CellPrinter, first_non_empty, text_at, unknown};
use super::selectable_fields::SelectableFields;
use super::validation::{ValidationInput, text};
use super::{DependentsRule, KindRules};

/// The rules of `v1`.
pub(super) static CORE_RULES: KindRules = KindRules {
    selectable: SelectableFields {
        labels: &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        paths: &[("source", &["source.component", "reportingComponent"])],
        ..SelectableFields::NONE
    },
    validate: |input| validate_event(input, false),
    cells: |printer| print_event(printer, &CORE_EVENT),
    ..event_rules("")
};

/// The rules of `events.k8s.io/v1`.
pub(super) static RULES: KindRules = KindRules {
    selectable: SelectableFields::of(&[
        "reason",
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reportingController",
        "type",
    ]),
    validate: |input| validate_event(input, true),
    cells: |printer| print_event(printer, &NEW_EVENT),
    ..event_rules("events.k8s.io")
};

const fn event_rules(group: &'static str) -> KindRules {
    KindRules {
        creates_on_update: true,
        expires: true,
        dependents: DependentsRule::Unsupported,
        ..KindRules::of(group, "events")
    }
}

/// Longest `reportingInstance`, `action` and `reason` in bytes.
const MAX_TEXT: usize = 128;
/// Longest message in bytes.
const MAX_MESSAGE: usize = 1024;

/// JSON names of the fields of `ObjectReference`, in the order of Go's struct.
const REFERENCE_FIELDS: [(&str, &str); 7] = [
    ("kind", "Kind"),
    ("namespace", "Namespace"),
    ("name", "Name"),
    ("uid", "UID"),
    ("apiVersion", "APIVersion"),
    ("resourceVersion", "ResourceVersion"),
    ("fieldPath", "FieldPath"),
];
/// The fields of `EventSource`.
const SOURCE_FIELDS: [(&str, &str); 2] = [("component", "Component"), ("host", "Host")];

/// Validates an Event; strictly if the request is one for `events.k8s.io/v1`.
fn validate_event(input: &ValidationInput<'_>, is_strict: bool) -> FieldErrors {
    let mut errors: FieldErrors = match input.field("eventTime").is_null() {
        true => involved_namespace_error(input).into_iter().collect(),
        false => timed_event_errors(input, is_strict).into(),
    };
    let namespace = input.metadata().namespace();
    let sentences = check_dns1123_subdomain(namespace);
    errors.extend(sentences.into_iter().map(|why| FieldError::invalid("namespace", namespace, why)));
    if is_strict {
        errors.append(match input.old {
            None => strict_errors(input),
            Some(_) => strict_update_errors(input),
        });
    }
    errors
}

fn involved_error(namespace: &str) -> FieldError {
    FieldError::invalid("involvedObject.namespace", namespace, "does not match event.namespace")
}

/// The namespaces of the event and of the object must agree.
fn involved_namespace_error(input: &ValidationInput<'_>) -> Option<FieldError> {
    let (involved, own) = (text(input.field("involvedObject"), "namespace"), input.metadata().namespace());
    let agrees = match involved {
        "" => matches!(own, "" | "default"),
        involved => involved == own,
    };
    (!agrees).then(|| involved_error(involved))
}

/// Errors of an event with an `eventTime`.
fn timed_event_errors(input: &ValidationInput<'_>, is_strict: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let involved = text(input.field("involvedObject"), "namespace");
    if involved.is_empty() && !matches!(input.metadata().namespace(), "default" | "kube-system") {
        errors.push(involved_error(involved));
    }
    let value = |field: &str| input.field(field).as_str().unwrap_or_default();
    let controller_field = if is_strict { "reportingController" } else { "reportingComponent" };
    let controller = value("reportingComponent");
    if controller.is_empty() {
        errors.push(FieldError::required(controller_field, ""));
    }
    let sentences = check_qualified_name(controller);
    errors.extend(sentences.into_iter().map(|why| FieldError::invalid(controller_field, controller, why)));
    for field in ["reportingInstance", "action", "reason"] {
        if value(field).is_empty() {
            errors.push(FieldError::required(field, ""));
        }
        errors.extend(length_error(field, value(field), MAX_TEXT));
    }
    errors.extend(length_error("message", value("message"), MAX_MESSAGE));
    errors
}

fn length_error(field: &str, value: &str, limit: usize) -> Option<FieldError> {
    (value.len() > limit).then(|| FieldError::invalid(field, "", format!("can have at most {limit} characters")))
}

/// Rules for a new event of `events.k8s.io/v1`.
fn strict_errors(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_errors();
    errors.extend(series_errors(input));
    if input.field("eventTime").is_null() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let event_type = input.field("type").as_str().unwrap_or_default();
    if !matches!(event_type, "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", "", format!("has invalid value: {event_type}")));
    }
    let is_set = |field: &str| match input.field(field) {
        Value::Null => false,
        Value::Object(source) => source.values().any(|value| value != ""),
        value => value != 0,
    };
    let unwanted = ["firstTimestamp", "lastTimestamp", "count", "source"].into_iter().filter(|field| is_set(field));
    errors.extend(unwanted.map(|field| FieldError::invalid(field, "", "needs to be unset")));
    errors
}

/// Rules for a replacement in `events.k8s.io/v1`: only the metadata and the series may change.
fn strict_update_errors(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    if input.field("series") != input.old_field("series") {
        errors.extend(series_errors(input));
    }
    // The reason occurs twice, as in Kubernetes.
    let immutable = [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    let changed = immutable.into_iter().filter(|(field, _)| input.field(field) != input.old_field(field));
    errors.extend(
        changed
            .map(|(field, path)| FieldError::invalid(path, go_value(field, input.field(field)), "field is immutable")),
    );
    errors
}

/// Rules for a series (`validateV1EventSeries`).
fn series_errors(input: &ValidationInput<'_>) -> Vec<FieldError> {
    let series = input.field("series");
    let mut errors = Vec::new();
    if series.is_null() {
        return errors;
    }
    if series["count"].as_i64().unwrap_or_default() < 2 {
        errors.push(FieldError::invalid("series.count", "", "should be at least 2"));
    }
    if series["lastObservedTime"].is_null() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
    errors
}

/// The value of a field as Kubernetes shows that of its internal type.
fn go_value(field: &str, value: &Value) -> BadValue {
    let fields: &[(&str, &str)] = match field {
        "involvedObject" | "related" => &REFERENCE_FIELDS,
        "source" => &SOURCE_FIELDS,
        "count" => return BadValue::from(value.as_i64().unwrap_or_default()),
        "firstTimestamp" | "lastTimestamp" | "eventTime" => return BadValue::from_json(write_json(value)),
        _ => return BadValue::from(value.as_str().unwrap_or_default()),
    };
    if value.is_null() && field == "related" {
        return BadValue::null();
    }
    let mut json = String::new();
    for (name, go_name) in fields {
        json.push_str(if json.is_empty() { "{\"" } else { ",\"" });
        json.push_str(go_name);
        json.push_str("\":");
        quote_json_into(&mut json, text(value, name));
    }
    json.push('}');
    BadValue::from_json(json)
}

/// Pointers to the same data in the two versions of Event.
struct EventFields {
    involved: &'static str,
    source: &'static str,
    first: &'static str,
    last: &'static str,
    count: &'static str,
    message: &'static str,
    component: &'static str,
}

const CORE_EVENT: EventFields = EventFields {
    involved: "/involvedObject",
    source: "/source",
    first: "/firstTimestamp",
    last: "/lastTimestamp",
    count: "/count",
    message: "/message",
    component: "/reportingComponent",
};

const NEW_EVENT: EventFields = EventFields {
    involved: "/regarding",
    source: "/deprecatedSource",
    first: "/deprecatedFirstTimestamp",
    last: "/deprecatedLastTimestamp",
    count: "/deprecatedCount",
    message: "/note",
    component: "/reportingController",
};

fn print_event(printer: &CellPrinter<'_>, fields: &EventFields) -> Vec<Value> {
    let object = printer.object;
    let first = printer.since(fields.first).or_else(|| printer.since("/eventTime")).unwrap_or_else(unknown);
    let mut last = printer.since(fields.last).unwrap_or_else(|| first.clone());
    let mut count = object.pointer(fields.count).and_then(Value::as_i64).filter(|count| *count != 0).unwrap_or(1);
    if let Some(series) = object.get("series").filter(|series| !series.is_null()) {
        last = printer.since("/series/lastObservedTime").unwrap_or_else(unknown);
        count = series.get("count").and_then(Value::as_i64).unwrap_or_default();
    }
    let involved = object.pointer(fields.involved).unwrap_or(&Value::Null);
    let kind = text_at(involved, "/kind").to_lowercase();
    let target = match text_at(involved, "/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let source = object.pointer(fields.source).unwrap_or(&Value::Null);
    let component = first_non_empty(text_at(source, "/component"), text_at(object, fields.component));
    let instance = first_non_empty(text_at(source, "/host"), text_at(object, "/reportingInstance"));
    let source = if instance.is_empty() { component.to_owned() } else { format!("{component}, {instance}") };
    vec![
        last.into(),
        text_at(object, "/type").into(),
        text_at(object, "/reason").into(),
        target.into(),
        text_at(involved, "/fieldPath").into(),
        source.into(),
        text_at(object, fields.message).trim().into(),
        first.into(),
        count.into(),
        printer.name(),
    ]
}
