//! Defaults and status of APIServices (`k8s.io/kube-aggregator/pkg/registry/apiservice/strategy.go`).

use serde_json::{Map, Value, json};

use crate::kubeapi::object_meta::ObjectMetaView;
use crate::registry;

/// Port of a Service reference without one (`SetDefaults_ServiceReference`).
const DEFAULT_PORT: u16 = 443;

/// Drops the status of a new APIService. One without a backend is available from the start.
pub(super) fn prepare_new(object: &mut Map<String, Value>) {
    set_defaults(object);
    let mut status = json!({});
    if !has_backend(object) {
        status = json!({"conditions": [{
            "type": "Available",
            "status": "True",
            "lastTransitionTime": ObjectMetaView::of_map(object).creation_timestamp(),
            "reason": "Local",
            "message": "Local APIServices are always available",
        }]});
    }
    object.insert("status".to_owned(), status);
}

/// Sets the default port.
pub(super) fn set_defaults(object: &mut Map<String, Value>) {
    let service = object.get_mut("spec").and_then(|spec| spec.get_mut("service")).and_then(Value::as_object_mut);
    if let Some(service) = service
        && service.get("port").is_none_or(Value::is_null)
    {
        service.insert("port".to_owned(), json!(DEFAULT_PORT));
    }
}

/// Whether the APIService has a server of its own: a Service, or the URL in its annotation.
pub(super) fn has_backend(object: &Map<String, Value>) -> bool {
    let has_service = object.get("spec").is_some_and(|spec| spec["service"].is_object());
    has_service || ObjectMetaView::of_map(object).annotation(registry::URL_ANNOTATION).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_service_without_service_is_available_from_the_start() {
        let mut object = Map::from_iter([("spec".to_owned(), json!({"group": "", "version": "v1"}))]);
        prepare_new(&mut object);
        assert_eq!(object["status"]["conditions"][0]["reason"], "Local");
        object.insert("spec".to_owned(), json!({"service": {"namespace": "a", "name": "b"}}));
        prepare_new(&mut object);
        assert_eq!((&object["status"], &object["spec"]["service"]["port"]), (&json!({}), &json!(443)));
    }
}
