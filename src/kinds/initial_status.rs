//! The status of a new object of a built-in kind, which clients cannot choose (`PrepareForCreate` in
//! `pkg/registry/*/strategy.go`).

use kubeapi::protobuf::normalize::normalize;
use serde_json::{Value, json};

use super::Object;
use crate::resources::ServedKind;
use crate::resources::builtin::{builtin_kinds, set_defaults};

/// Replaces the status with that of an object that no controller has seen: `initial`, and defaults.
pub(super) fn reset_status(kind: &ServedKind, object: &mut Object, initial: &Value) {
    let (true, Some(message)) = (kind.version.subresource("status").is_some(), kind.version.message()) else { return };
    let kinds = builtin_kinds();
    let mut whole = json!({"apiVersion": kind.api_version(), "kind": kind.resource.kind, "status": initial});
    // The types of the fields are right, so that nothing can be wrong.
    let _ = normalize(&kinds.messages, message, &mut whole);
    set_defaults(&kinds.messages, message, &mut whole);
    match whole.get_mut("status").map(Value::take) {
        Some(status) => drop(object.insert("status".to_owned(), status)),
        None => drop(object.remove("status")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::kinds::rules;

    fn status_after(group: &str, plural: &str, status: Value) -> Option<Value> {
        let metadata = json!({"creationTimestamp": "2026-01-01T00:00:00Z"});
        let mut object = Map::from_iter([("metadata".to_owned(), metadata), ("status".to_owned(), status)]);
        let kind = builtin_kinds().find(group, "v1", plural).unwrap();
        (rules(&kind.resource).prepare_new)(&kind, &mut object);
        object.remove("status")
    }

    #[test]
    fn status_of_new_object_is_not_the_clients() {
        let pod = status_after("", "pods", json!({"phase": "Running", "podIP": "10.0.0.1"}));
        assert_eq!(pod, Some(json!({"phase": "Pending", "qosClass": "BestEffort"})));
        let claim = status_after("", "persistentvolumeclaims", json!({"phase": "Bound"}));
        assert_eq!(claim, Some(json!({"phase": "Pending"})));
        let volume = status_after("", "persistentvolumes", json!({"phase": "Bound", "reason": "r"})).unwrap();
        assert!(volume["phase"] == "Pending" && volume["reason"].is_null());
        assert_eq!(volume["lastPhaseTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(status_after("batch", "jobs", json!({"succeeded": 3})), Some(json!({})));
        let daemon_set = status_after("apps", "daemonsets", json!({"numberReady": 3})).unwrap();
        assert_eq!(daemon_set["numberReady"], 0);
        // A kubelet's own.
        assert_eq!(status_after("", "nodes", json!({"phase": "Running"})), Some(json!({"phase": "Running"})));
        assert_eq!(status_after("", "configmaps", json!({"phase": "x"})), Some(json!({"phase": "x"})));
    }
}
