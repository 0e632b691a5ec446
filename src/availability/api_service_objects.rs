//! The APIServices of the registry as API objects with the computed condition, as `kubectl get apiservices` reads them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::{AvailabilityCondition, AvailabilityMap};
use crate::process::{Drain, Published, ShutdownPhase};
use crate::registry::{ApiService, ApiServiceBackend, Registry, Revision};

/// Publishes the object of each APIService when it or its condition changes, until the process ends; none for an
/// APIService that is gone.
pub async fn publish_api_services(
    mut registry: Published<Registry>,
    availability: AvailabilityMap,
    publish: impl AsyncFn(&str, Option<Map<String, Value>>),
    mut drain: Drain,
) {
    let mut changes = availability.changes();
    let mut published: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut published_versions: Option<(Revision, u64)> = None;
    loop {
        let current = registry.get();
        let since = published_versions
            .as_ref()
            .map(|(revision, version)| (current.changes_since(revision), availability.changed_since(*version)));
        let names: BTreeSet<Arc<str>> = match &since {
            // The object of an APIService does not depend on its endpoints.
            Some((Some(registered), (_, Some(conditions)))) => {
                registered.api_services.iter().map(|name| Arc::from(*name)).chain(conditions.iter().cloned()).collect()
            }
            _ => current.api_services().map(|one| one.name.as_str().into()).chain(published.iter().cloned()).collect(),
        };
        let version = match since {
            Some((_, (version, _))) => version,
            None => availability.changed_since(0).0,
        };
        published_versions = Some((current.revision(), version));
        for name in names {
            let api_service = current.api_service(&name);
            match api_service {
                Some(_) => published.insert(name.clone()),
                None => published.remove(&name),
            };
            let condition = || availability.get_or_insert(&name).condition();
            publish(&name, api_service.map(|api_service| api_service_object(api_service, &condition()))).await;
        }
        tokio::select! {
            () = registry.changed() => {}
            Ok(()) = changes.changed() => {}
            () = drain.wait_for(ShutdownPhase::Ending) => return,
        }
    }
}

/// The APIService as an object, without `resourceVersion`.
fn api_service_object(api_service: &ApiService, condition: &AvailabilityCondition) -> Map<String, Value> {
    let manifest = &api_service.manifest;
    let mut metadata = manifest.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    for foreign in ["managedFields", "selfLink", "generation", "deletionTimestamp", "ownerReferences"] {
        metadata.remove(foreign);
    }
    metadata.insert("uid".to_owned(), json!(api_service.uid));
    metadata.insert("creationTimestamp".to_owned(), json!(timestamp(api_service.created)));
    let mut spec = manifest.get("spec").cloned().unwrap_or_default();
    if let (ApiServiceBackend::Service(reference), Some(service)) =
        (&api_service.backend, spec.get_mut("service").and_then(Value::as_object_mut))
    {
        service.insert("port".to_owned(), json!(reference.port));
    }
    let condition = json!({
        "type": "Available",
        "status": condition.status.as_str(),
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": timestamp(condition.since),
    });
    Map::from_iter([
        ("apiVersion".to_owned(), json!("apiregistration.k8s.io/v1")),
        ("kind".to_owned(), json!("APIService")),
        ("metadata".to_owned(), Value::Object(metadata)),
        ("spec".to_owned(), spec),
        ("status".to_owned(), json!({ "conditions": [condition] })),
    ])
}

/// RFC 3339 in whole seconds, as `metav1.Time`.
fn timestamp(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::availability::ConditionStatus;
    use crate::process::Publisher;
    use crate::registry::snapshot::tests::{api_service, registry};

    fn registry_of(names: &[&str]) -> Registry {
        let text: String =
            names.iter().map(|name| api_service(name, "groupPriorityMinimum: 1, versionPriority: 2")).collect();
        registry(&text)
    }

    #[test]
    fn apiservice_object_has_spec_and_computed_condition() {
        let registry = registry(&api_service(
            "v1.a.io",
            "groupPriorityMinimum: 1, versionPriority: 2, service: {name: api, namespace: ns}",
        ));
        let unknown = AvailabilityMap::default().get_or_insert("v1.a.io").condition();
        let condition = AvailabilityCondition {
            status: ConditionStatus::False,
            reason: "FailedDiscoveryCheck".into(),
            since: UNIX_EPOCH + Duration::from_millis(61_500),
            detail: "10.0.0.1".to_owned(),
            ..AvailabilityCondition::clone(&unknown)
        };
        let object = Value::Object(api_service_object(&registry.sorted_api_services()[0], &condition));
        assert_eq!((&object["kind"], &object["spec"]["service"]["port"]), (&json!("APIService"), &json!(443)));
        assert_eq!(object["spec"]["versionPriority"], 2);
        assert_eq!(object["metadata"]["creationTimestamp"], "1970-01-01T00:00:00Z");
        let condition = &object["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["status"]), (&json!("Available"), &json!("False")));
        assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:01:01Z");
        assert!(!object.to_string().contains("10.0.0.1"), "the private detail is not shown");
    }

    /// The names that are published until the registry has `expected` of them; a minus sign for one that is gone.
    async fn published(names: &RefCell<Vec<String>>, expected: &[&str]) {
        while names.borrow().len() < expected.len() {
            tokio::task::yield_now().await;
        }
        assert_eq!(names.take(), expected);
    }

    #[tokio::test]
    async fn apiservice_objects_published_by_name_when_they_change() {
        let (publisher, registry): (Publisher<Registry>, _) = Published::new(registry_of(&["v1.a.io", "v1.b.io"]));
        let (_drainer, drain) = Drain::new();
        let names = RefCell::new(Vec::new());
        let publish = async |name: &str, object: Option<Map<String, Value>>| {
            names.borrow_mut().push(format!("{}{name}", if object.is_some() { "" } else { "-" }));
        };
        let publishing = publish_api_services(registry, AvailabilityMap::default(), publish, drain);
        let test = async {
            published(&names, &["v1.a.io", "v1.b.io"]).await;
            publisher.publish(Arc::new(registry_of(&["v1.a.io"])));
            published(&names, &["v1.a.io", "-v1.b.io"]).await;
        };
        tokio::select! {
            () = publishing => unreachable!("ended"),
            () = test => {}
        }
    }
}
