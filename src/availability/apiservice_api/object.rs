//! One APIService as an API object.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use crate::availability::AvailabilityCondition;
use crate::registry::{ApiService, ApiServiceBackend};

/// An APIService, its condition, and the version of their last change.
pub(super) struct ApiServiceObject {
    pub(super) api_service: Arc<ApiService>,
    pub(super) condition: Arc<AvailabilityCondition>,
    /// The field `metadata.resourceVersion`.
    pub(super) version: u64,
}

/// Which part of an object a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Projection {
    Full,
    /// `PartialObjectMetadata`.
    Metadata,
}

pub(super) const API_VERSION: &str = "apiregistration.k8s.io/v1";

impl ApiServiceObject {
    /// The object with `apiVersion` and `kind`.
    pub(super) fn value(&self, extent: Projection) -> Value {
        let mut value = self.list_item(extent);
        let (api_version, kind) = match extent {
            Projection::Full => (API_VERSION, "APIService"),
            Projection::Metadata => ("meta.k8s.io/v1", "PartialObjectMetadata"),
        };
        value.insert("apiVersion".to_owned(), json!(api_version));
        value.insert("kind".to_owned(), json!(kind));
        Value::Object(value)
    }

    /// The object as an item of a list, without `apiVersion` and `kind`, as Kubernetes' typed lists have it.
    pub(super) fn list_item(&self, extent: Projection) -> Map<String, Value> {
        let written = &self.api_service.manifest;
        let mut metadata = written.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
        for foreign in ["managedFields", "selfLink", "generation", "deletionTimestamp", "ownerReferences"] {
            metadata.remove(foreign);
        }
        metadata.insert("uid".to_owned(), json!(self.api_service.uid));
        metadata.insert("resourceVersion".to_owned(), json!(self.version.to_string()));
        metadata.insert("creationTimestamp".to_owned(), json!(timestamp(self.api_service.created)));
        let mut value = Map::new();
        value.insert("metadata".to_owned(), Value::Object(metadata));
        if extent == Projection::Full {
            let mut spec = written.get("spec").cloned().unwrap_or_default();
            if let (ApiServiceBackend::Service(reference), Some(service)) =
                (&self.api_service.backend, spec.get_mut("service").and_then(Value::as_object_mut))
            {
                service.insert("port".to_owned(), json!(reference.port));
            }
            value.insert("spec".to_owned(), spec);
            value.insert("status".to_owned(), json!({ "conditions": [self.condition()] }));
        }
        value
    }

    fn condition(&self) -> Value {
        json!({
            "type": "Available",
            "status": self.condition.status.as_str(),
            "reason": self.condition.reason,
            "message": self.condition.message,
            "lastTransitionTime": timestamp(self.condition.since),
        })
    }
}

/// RFC 3339 in whole seconds, as `metav1.Time`.
fn timestamp(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::availability::{AvailabilityMap, ConditionStatus};
    use crate::registry::snapshot::tests::{api_service, registry};

    pub(crate) fn object(name: &str, rest: &str, status: ConditionStatus, version: u64) -> ApiServiceObject {
        let registry = registry(&api_service(name, &format!("groupPriorityMinimum: 1, versionPriority: 2{rest}")));
        let mut condition = AvailabilityCondition::clone(&AvailabilityMap::default().get_or_insert(name).condition());
        condition.status = status;
        condition.reason = "FailedDiscoveryCheck".into();
        condition.since = SystemTime::UNIX_EPOCH + Duration::from_millis(61_500);
        condition.detail = "10.0.0.1".to_owned();
        ApiServiceObject {
            api_service: registry.sorted_api_services()[0].clone(),
            condition: Arc::new(condition),
            version,
        }
    }

    #[test]
    fn apiservice_object_has_spec_and_computed_condition() {
        let object = object("v1.a.io", ", service: {name: api, namespace: ns}", ConditionStatus::False, 7);
        let value = object.value(Projection::Full);
        assert_eq!(value["kind"], "APIService");
        assert_eq!(value["spec"]["service"]["port"], 443);
        assert_eq!(value["spec"]["versionPriority"], 2);
        assert_eq!(value["metadata"]["resourceVersion"], "7");
        assert_eq!(value["metadata"]["creationTimestamp"], "1970-01-01T00:00:00Z");
        let condition = &value["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["status"]), (&json!("Available"), &json!("False")));
        assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:01:01Z");
        assert!(!value.to_string().contains("10.0.0.1"), "the private detail is not shown");
        let partial = object.value(Projection::Metadata);
        assert_eq!((&partial["kind"], partial.get("spec")), (&json!("PartialObjectMetadata"), None));
    }
}
