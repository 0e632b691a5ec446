//! Events of `events.k8s.io/v1`: another view of the Events of `v1`, which is the stored version
//! (`pkg/apis/events/v1/conversion.go`).

use std::sync::Arc;

use kubeapi::protobuf::normalize::normalize;
use serde_json::{Map, Value};

use super::autoscaler_conversion::convert_autoscaler_to_v2;
use super::builtin_kinds;
use crate::resources::Resource;

/// Group of the view.
const VIEW_GROUP: &str = "events.k8s.io";

/// Names of the same field in `v1` and in `events.k8s.io/v1`. Other fields have the same name in both.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Whether objects of the resource are stored as those of another resource.
pub fn is_stored_as_other(resource: &Resource) -> bool {
    resource.group == VIEW_GROUP && resource.plural == "events"
}

/// The resource as which objects of a resource are stored.
pub fn stored_resource(resource: &Arc<Resource>) -> &Arc<Resource> {
    let stored = if is_stored_as_other(resource) { builtin_kinds().resource("", &resource.plural) } else { None };
    stored.unwrap_or(resource)
}

/// Converts an object of a resource to its stored version; one that is in it already stays as it is.
pub fn convert_to_stored(resource: &Resource, object: &mut Map<String, Value>) {
    if is_stored_as_other(resource) {
        convert(object, "", RENAMED.map(|(stored, view)| (view, stored)));
    } else if resource.group == "autoscaling" && resource.plural == "horizontalpodautoscalers" {
        convert_autoscaler_to_v2(object);
    }
}

/// Converts an object of the stored version to that of a resource; one that is in it already stays as it is.
pub fn convert_from_stored(resource: &Resource, object: &mut Map<String, Value>) {
    if is_stored_as_other(resource) {
        convert(object, VIEW_GROUP, RENAMED);
    }
}

/// The name of a selectable field in the stored version (`AddFieldLabelConversionsForEvent`).
pub fn stored_field_name(resource: &Resource, name: &str) -> String {
    if !is_stored_as_other(resource) {
        return name.to_owned();
    }
    let (first, rest) = name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)));
    let first = RENAMED.iter().find(|(_, view)| *view == first).map_or(first, |(stored, _)| stored);
    rest.map_or_else(|| first.to_owned(), |rest| format!("{first}.{rest}"))
}

/// Renames fields, and makes the object what Go would write of the version in `group`.
fn convert(object: &mut Map<String, Value>, group: &str, renamed: [(&str, &str); 7]) {
    let kinds = builtin_kinds();
    let Some(message) = kinds.find(group, "v1", "events").and_then(|kind| kind.version.message()) else { return };
    let api_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    if object.get("apiVersion").is_some_and(|found| *found == api_version) {
        return;
    }
    for (from, to) in renamed {
        if let Some(value) = object.remove(from) {
            object.insert(to.to_owned(), value);
        }
    }
    object.insert("apiVersion".to_owned(), api_version.into());
    let mut value = Value::Object(std::mem::take(object));
    // The types of the fields are the same, so that nothing can be wrong.
    let _ = normalize(&kinds.messages, message, &mut value);
    if let Value::Object(converted) = value {
        *object = converted;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn resource(group: &str) -> &'static Resource {
        builtin_kinds().resource(group, "events").unwrap()
    }

    #[test]
    fn event_converted_to_new_group_and_back() {
        let stored = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "n"}, "reason": "r", "type": "Normal",
            "involvedObject": {"kind": "Pod", "name": "p"}, "message": "m", "source": {"component": "c", "host": "h"},
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": null, "count": 2, "eventTime": null,
            "series": {"count": 3, "lastObservedTime": "2026-01-01T00:00:00.000001Z"}, "action": "a",
            "related": {"name": "o"}, "reportingComponent": "", "reportingInstance": "i",
        });
        let Value::Object(mut object) = stored.clone() else { unreachable!() };
        convert_from_stored(resource("events.k8s.io"), &mut object);
        let expected = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "n"}, "reason": "r",
            "type": "Normal", "regarding": {"kind": "Pod", "name": "p"}, "note": "m",
            "deprecatedSource": {"component": "c", "host": "h"}, "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z",
            "deprecatedLastTimestamp": null, "deprecatedCount": 2, "eventTime": null, "action": "a",
            "series": {"count": 3, "lastObservedTime": "2026-01-01T00:00:00.000001Z"}, "related": {"name": "o"},
            "reportingInstance": "i",
        });
        assert_eq!(Value::Object(object.clone()), expected);
        convert_from_stored(resource("events.k8s.io"), &mut object);
        assert_eq!(Value::Object(object.clone()), expected);
        convert_to_stored(resource("events.k8s.io"), &mut object);
        assert_eq!(Value::Object(object.clone()), stored);
        convert_to_stored(resource(""), &mut object);
        assert_eq!(Value::Object(object), stored);
    }

    #[test]
    fn event_fields_selected_by_their_stored_names() {
        let name = |group: &str, name: &str| stored_field_name(resource(group), name);
        assert_eq!(name("events.k8s.io", "regarding.uid"), "involvedObject.uid");
        assert_eq!(name("events.k8s.io", "reportingController"), "reportingComponent");
        assert_eq!(name("events.k8s.io", "metadata.name"), "metadata.name");
        assert_eq!(name("", "involvedObject.uid"), "involvedObject.uid");
    }
}
