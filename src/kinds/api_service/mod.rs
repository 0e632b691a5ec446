//! APIServices (`k8s.io/kube-aggregator/pkg/registry/apiservice`).

mod validation;

use kubeapi::names::NameRule;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Value, json};

use self::validation::validate_api_service;
use super::cells::{items_at, text_at};
use super::{KindRules, Object, ObjectUpdate};
use crate::registry;

pub(super) static RULES: KindRules = KindRules {
    name_rule: NameRule::PathSegment,
    allows_unconditional_update: false,
    prepare_new: |_, object| prepare_new(object),
    prepare_replacement,
    validate: validate_api_service,
    cells: |printer| {
        let object = printer.object;
        vec![printer.name(), backend(object).into(), availability(object).into(), printer.age()]
    },
    ..KindRules::of("apiregistration.k8s.io", "apiservices")
};

/// Port of a Service reference without one (`SetDefaults_ServiceReference`).
const DEFAULT_PORT: u16 = 443;

/// Drops the status of a new APIService. One without a backend is available from the start.
pub fn prepare_new(object: &mut Object) {
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

/// Only `status` changes the status, and that alone.
fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    update.keep_other_part(object);
    if update.subresource == "status" {
        update.keep_metadata(object);
    }
    set_defaults(object);
}

/// Sets the default port.
fn set_defaults(object: &mut Object) {
    let service = object.get_mut("spec").and_then(|spec| spec.get_mut("service")).and_then(Value::as_object_mut);
    if let Some(service) = service
        && service.get("port").is_none_or(Value::is_null)
    {
        service.insert("port".to_owned(), json!(DEFAULT_PORT));
    }
}

/// Whether the APIService has a server of its own: a Service, or the URL in its annotation.
fn has_backend(object: &Object) -> bool {
    let has_service = object.get("spec").is_some_and(|spec| spec["service"].is_object());
    has_service || ObjectMetaView::of_map(object).annotation(registry::URL_ANNOTATION).is_some()
}

fn backend(api_service: &Value) -> String {
    match api_service.pointer("/spec/service").filter(|service| !service.is_null()) {
        Some(service) => format!("{}/{}", text_at(service, "/namespace"), text_at(service, "/name")),
        None => "Local".to_owned(),
    }
}

fn availability(api_service: &Value) -> String {
    let conditions = items_at(api_service, "/status/conditions");
    match conditions.iter().find(|condition| text_at(condition, "/type") == "Available") {
        None => "Unknown".to_owned(),
        Some(condition) => match (text_at(condition, "/status"), text_at(condition, "/reason")) {
            ("True", _) => "True".to_owned(),
            (status, "") => status.to_owned(),
            (status, reason) => format!("{status} ({reason})"),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

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
