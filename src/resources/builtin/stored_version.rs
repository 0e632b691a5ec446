//! Kinds that are another view of what is stored: Events of `events.k8s.io/v1`, and HorizontalPodAutoscalers of
//! `autoscaling/v1`.

use serde_json::{Map, Value};

use super::autoscaler_conversion::{convert_autoscaler_to_v1, convert_autoscaler_to_v2};
use super::event_conversion::{convert_event_from_stored, convert_event_to_stored, is_event_view};
use crate::resources::ServedKind;

/// Whether objects of the kind are stored in another version or group.
pub fn is_stored_as_other(kind: &ServedKind) -> bool {
    is_event_view(&kind.resource) || is_older_autoscaler(kind)
}

/// Converts an object of a kind to its stored version; one that is in it already stays as it is.
pub fn convert_to_stored(kind: &ServedKind, object: &mut Map<String, Value>) {
    convert_event_to_stored(&kind.resource, object);
    if is_older_autoscaler(kind) {
        convert_autoscaler_to_v2(object);
    }
}

/// Converts an object of the stored version to that of a kind; one that is in it already stays as it is.
pub fn convert_from_stored(kind: &ServedKind, object: &mut Map<String, Value>) {
    convert_event_from_stored(&kind.resource, object);
    if is_older_autoscaler(kind) {
        convert_autoscaler_to_v1(object);
    }
}

fn is_older_autoscaler(kind: &ServedKind) -> bool {
    kind.resource.group_resource() == ("autoscaling", "horizontalpodautoscalers") && kind.version.version == "v1"
}
