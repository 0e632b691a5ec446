//! Messages of invalid objects; `tests/interop/requests/validation.http` compares more of them with a kube-apiserver.

use serde_json::{Map, Value, json};

use super::{validate_new, validate_replacement};
use crate::kubeapi::Status;
use crate::resources::builtin::builtin_kinds;
use crate::rest::target::ObjectTarget;

fn target(group: &str, plural: &str) -> ObjectTarget<'static> {
    let kind = builtin_kinds().find(group, "v1", plural).unwrap();
    ObjectTarget { kind, namespace: "n", name: "a".into(), subresource: "" }
}

fn object(mut fields: Value) -> Map<String, Value> {
    if fields.get("metadata").is_none() {
        fields["metadata"] = json!({"name": "a", "namespace": "n", "resourceVersion": "1"});
    }
    let Value::Object(object) = fields else { panic!("no object") };
    object
}

/// The causes, as `field: message`.
fn causes(result: Result<(), Status>) -> Vec<String> {
    let Err(status) = result else { return Vec::new() };
    let causes = status.details.into_iter().flat_map(|details| details.causes);
    causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

#[test]
fn validation_of_new_objects_has_upstream_texts() {
    let port = json!({"port": 80, "protocol": "TCP", "targetPort": 80});
    let service = |spec: Value| {
        let mut fields = json!({"spec": {"type": "ClusterIP", "sessionAffinity": "None", "ports": [port.clone()],
            "internalTrafficPolicy": "Cluster"}});
        let extended = fields["spec"].as_object_mut().unwrap();
        extended.extend(spec.as_object().unwrap().clone());
        fields
    };
    for (group, plural, fields, expected) in [
        ("", "services", service(json!({})), vec![]),
        ("", "services", service(json!({"ports": []})), vec!["spec.ports: Required value"]),
        (
            "",
            "services",
            service(json!({"ports": [port.clone(), port.clone()]})),
            vec![
                "spec.ports[0].name: Required value",
                "spec.ports[1].name: Required value",
                "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\
                 \"TargetPort\":0,\"NodePort\":0}",
            ],
        ),
        (
            "",
            "services",
            service(
                json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "allocateLoadBalancerNodePorts": true,
                "loadBalancerSourceRanges": ["10.0.0.1/8"]}),
            ),
            vec![
                "spec.LoadBalancerSourceRanges[0]: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the \
                 prefix length",
            ],
        ),
        (
            "",
            "secrets",
            json!({"type": "kubernetes.io/tls"}),
            vec!["data[tls.crt]: Required value", "data[tls.key]: Required value"],
        ),
        (
            "",
            "events",
            json!({"involvedObject": {"namespace": "m"}}),
            vec!["involvedObject.namespace: Invalid value: \"m\": does not match event.namespace"],
        ),
        (
            "",
            "endpoints",
            json!({"subsets": [{}]}),
            vec!["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"],
        ),
        ("discovery.k8s.io", "endpointslices", json!({}), vec!["addressType: Required value"]),
        (
            "coordination.k8s.io",
            "leases",
            json!({"spec": {"leaseDurationSeconds": 0}}),
            vec!["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"],
        ),
    ] {
        assert_eq!(causes(validate_new(&target(group, plural), &object(fields))), expected, "{plural}");
    }
}

#[test]
fn validation_of_data_counts_decoded_bytes() {
    let secret =
        |bytes: usize| object(json!({"data": {"a": "YWFh".repeat(bytes / 3) + ["", "YQ==", "YWE="][bytes % 3]}}));
    assert_eq!(causes(validate_new(&target("", "secrets"), &secret(1 << 20))), [""; 0]);
    let too_long = "data: Too long: may not be more than 1048576 bytes";
    assert_eq!(causes(validate_new(&target("", "secrets"), &secret((1 << 20) + 1))), [too_long]);
}

#[test]
fn validation_of_replacement_repeats_metadata_and_refuses_immutable_fields() {
    let old = object(json!({"type": "a", "immutable": true, "data": {"k": "eA=="}}));
    let new = object(json!({"type": "b", "data": {"k": "eQ=="}}));
    assert_eq!(
        causes(validate_replacement(&target("", "secrets"), &old, &new)),
        [
            "type: Invalid value: \"b\": field is immutable",
            "immutable: Forbidden: field is immutable when `immutable` is set",
            "data: Forbidden: field is immutable when `immutable` is set",
        ]
    );
    let slice = |kind: &str| object(json!({"addressType": kind, "endpoints": [{"addresses": ["10.0.0.1"]}]}));
    let changed =
        causes(validate_replacement(&target("discovery.k8s.io", "endpointslices"), &slice("IPv4"), &slice("IPv6")));
    assert_eq!(changed, ["addressType: Invalid value: \"IPv6\": field is immutable"]);
    let metadata = json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "1", "labels": {"a": "b c"}}});
    let repeated = causes(validate_replacement(&target("", "serviceaccounts"), &object(json!({})), &object(metadata)));
    assert_eq!((repeated.len(), repeated.iter().filter(|cause| **cause == repeated[0]).count()), (4, 4));
}

#[test]
fn validation_of_event_in_new_group_is_strict() {
    let event = |reason: &str| {
        object(json!({"eventTime": "2026-01-01T00:00:00.000000Z", "involvedObject": {"kind": "Pod", "namespace": "n"},
            "reportingComponent": "c", "reportingInstance": "i", "action": "a", "reason": reason, "type": "Normal"}))
    };
    let new_group = target("events.k8s.io", "events");
    assert_eq!(causes(validate_new(&new_group, &event("r"))), [""; 0]);
    let mut counted = event("r");
    counted.insert("count".to_owned(), json!(1));
    counted.insert("series".to_owned(), json!({"count": 1}));
    assert_eq!(
        causes(validate_new(&new_group, &counted)),
        [
            "series.count: Invalid value: \"\": should be at least 2",
            "series.lastObservedTime: Required value",
            "count: Invalid value: \"\": needs to be unset",
        ]
    );
    assert_eq!(causes(validate_new(&target("", "events"), &counted)), [""; 0]);
    let mut other = event("s");
    other["involvedObject"]["name"] = json!("p");
    assert_eq!(
        causes(validate_replacement(&new_group, &event("r"), &other)),
        [
            "involvedObject: Invalid value: {\"Kind\":\"Pod\",\"Namespace\":\"n\",\"Name\":\"p\",\"UID\":\"\",\
             \"APIVersion\":\"\",\"ResourceVersion\":\"\",\"FieldPath\":\"\"}: field is immutable",
            "reason: Invalid value: \"s\": field is immutable",
            "reason: Invalid value: \"s\": field is immutable",
        ]
    );
    assert_eq!(causes(validate_replacement(&target("", "events"), &event("r"), &other)), [""; 0]);
}
