//! A `coordination.k8s.io/v1` Lease as leader election uses it (client-go, `resourcelock/leaselock.go`).

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::{Value, json};

/// Spec of a Lease: its holder and times.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeaderElectionRecord {
    /// Empty if the Lease has no holder.
    pub(super) holder_identity: String,
    pub(super) lease_duration_seconds: i64,
    pub(super) acquire_time: Option<String>,
    pub(super) renew_time: Option<String>,
    pub(super) lease_transitions: i64,
}

/// A Lease as read from the API server.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Lease {
    metadata: Metadata,
    pub(super) spec: LeaderElectionRecord,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    resource_version: String,
}

impl Lease {
    /// Parses a Lease. `None` if `text` is not one.
    pub fn parse(text: &[u8]) -> Option<Lease> {
        // A Go server writes empty fields as null, others omit them.
        let mut value: Value = serde_json::from_slice(text).ok()?;
        if let Some(Value::Object(spec)) = value.get_mut("spec") {
            spec.retain(|_, value| !value.is_null());
        }
        if value.get("spec").is_some_and(Value::is_null) {
            value["spec"] = json!({});
        }
        serde_json::from_value(value).ok()
    }

    /// The Lease's `resourceVersion`.
    pub fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl LeaderElectionRecord {
    /// The Lease to create, or to update if `version` is not empty.
    pub(super) fn to_lease(&self, namespace: &str, name: &str, version: &str) -> Value {
        let mut metadata = json!({"namespace": namespace, "name": name});
        if !version.is_empty() {
            metadata["resourceVersion"] = version.into();
        }
        // A kube-apiserver rejects an empty name: a Lease without a holder has no such field.
        let identity = Some(&self.holder_identity).filter(|identity| !identity.is_empty());
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": identity,
                "leaseDurationSeconds": self.lease_duration_seconds,
                "acquireTime": self.acquire_time,
                "renewTime": self.renew_time,
                "leaseTransitions": self.lease_transitions,
            },
        })
    }

    /// Duration of the lease.
    pub(super) fn duration(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.lease_duration_seconds).unwrap_or_default())
    }
}

/// Formats a time as `metav1.MicroTime`.
pub fn micro_time(now: SystemTime) -> String {
    jiff::Timestamp::try_from(now).map(|time| time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_round_trips() {
        let record = LeaderElectionRecord {
            holder_identity: "a".to_owned(),
            lease_duration_seconds: 15,
            acquire_time: Some(micro_time(SystemTime::UNIX_EPOCH)),
            renew_time: Some(micro_time(SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_000))),
            lease_transitions: 3,
        };
        let object = record.to_lease("kube-system", "narthex", "7");
        assert_eq!(object["spec"]["acquireTime"], "1970-01-01T00:00:00.000000Z");
        assert_eq!(object["spec"]["renewTime"], "1970-01-01T00:00:01.500000Z");
        let lease = Lease::parse(object.to_string().as_bytes()).unwrap();
        assert_eq!((lease.resource_version(), &lease.spec), ("7", &record));
        assert_eq!(lease.spec.duration(), Duration::from_secs(15));
    }

    #[test]
    fn lease_without_holder_parsed() {
        for text in [
            r#"{"metadata":{"resourceVersion":"1"},"spec":{}}"#,
            r#"{"metadata":{"resourceVersion":"1"},"spec":null}"#,
            r#"{"metadata":{"resourceVersion":"1"},"spec":{"holderIdentity":null,"leaseDurationSeconds":null}}"#,
        ] {
            assert_eq!(Lease::parse(text.as_bytes()).unwrap().spec, LeaderElectionRecord::default(), "{text}");
        }
        assert_eq!(Lease::parse(b"no"), None);
        let negative = LeaderElectionRecord { lease_duration_seconds: -5, ..LeaderElectionRecord::default() };
        assert_eq!(negative.duration(), Duration::ZERO);
    }
}
