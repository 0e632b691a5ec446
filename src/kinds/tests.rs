//! Messages of invalid objects; `tests/interop/requests/validation.http` compares more of them with a kube-apiserver.

mod strategies;

use kubeapi::Status;
use kubeapi::schema::StepBudget;
use serde_json::{Map, Value, json};

use crate::registry;
use crate::resources::ServedKind;
use crate::resources::builtin::builtin_kinds;

/// As many steps as are wanted.
struct UnlimitedBudget;

impl StepBudget for UnlimitedBudget {
    fn spend(&self, _steps: usize) -> bool {
        true
    }
}

/// A kind, and the subresource that is written.
type Written = (ServedKind, &'static str);

fn written(group: &str, plural: &str) -> Written {
    (builtin_kinds().find(group, "v1", plural).unwrap(), "")
}

fn object(mut fields: Value) -> Map<String, Value> {
    if fields.get("metadata").is_none() {
        fields["metadata"] = json!({"name": "a", "namespace": "n", "resourceVersion": "1"});
    }
    let Value::Object(object) = fields else { panic!("no object") };
    object
}

fn validate_new((kind, subresource): &Written, object: &Map<String, Value>) -> Result<(), Status> {
    super::validate_new(
        (&super::ValidationSettings::default(), &UnlimitedBudget),
        (kind, subresource),
        &mut object.clone(),
    )
}

fn validate_replacement(
    (kind, subresource): &Written,
    old: &Map<String, Value>,
    object: &Map<String, Value>,
) -> Result<(), Status> {
    super::validate_replacement(
        (&super::ValidationSettings::default(), &UnlimitedBudget),
        (kind, subresource),
        &mut old.clone(),
        &mut object.clone(),
    )
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
        assert_eq!(causes(validate_new(&written(group, plural), &object(fields))), expected, "{plural}");
    }
}

#[test]
fn validation_of_data_counts_decoded_bytes() {
    let secret =
        |bytes: usize| object(json!({"data": {"a": "YWFh".repeat(bytes / 3) + ["", "YQ==", "YWE="][bytes % 3]}}));
    assert_eq!(causes(validate_new(&written("", "secrets"), &secret(1 << 20))), [""; 0]);
    let too_long = "data: Too long: may not be more than 1048576 bytes";
    assert_eq!(causes(validate_new(&written("", "secrets"), &secret((1 << 20) + 1))), [too_long]);
}

#[test]
fn validation_of_replacement_repeats_metadata_and_refuses_immutable_fields() {
    let old = object(json!({"type": "a", "immutable": true, "data": {"k": "eA=="}}));
    let new = object(json!({"type": "b", "data": {"k": "eQ=="}}));
    assert_eq!(
        causes(validate_replacement(&written("", "secrets"), &old, &new)),
        [
            "type: Invalid value: \"b\": field is immutable",
            "immutable: Forbidden: field is immutable when `immutable` is set",
            "data: Forbidden: field is immutable when `immutable` is set",
        ]
    );
    let slice = |kind: &str| object(json!({"addressType": kind, "endpoints": [{"addresses": ["10.0.0.1"]}]}));
    let changed =
        causes(validate_replacement(&written("discovery.k8s.io", "endpointslices"), &slice("IPv4"), &slice("IPv6")));
    assert_eq!(changed, ["addressType: Invalid value: \"IPv6\": field is immutable"]);
    let metadata = json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "1", "labels": {"a": "b c"}}});
    let repeated = causes(validate_replacement(&written("", "serviceaccounts"), &object(json!({})), &object(metadata)));
    assert_eq!((repeated.len(), repeated.iter().filter(|cause| **cause == repeated[0]).count()), (4, 4));
}

#[test]
fn validation_of_event_in_new_group_is_strict() {
    let event = |reason: &str| {
        object(json!({"eventTime": "2026-01-01T00:00:00.000000Z", "involvedObject": {"kind": "Pod", "namespace": "n"},
            "reportingComponent": "c", "reportingInstance": "i", "action": "a", "reason": reason, "type": "Normal"}))
    };
    let new_group = written("events.k8s.io", "events");
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
    assert_eq!(causes(validate_new(&written("", "events"), &counted)), [""; 0]);
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
    assert_eq!(causes(validate_replacement(&written("", "events"), &event("r"), &other)), [""; 0]);
}

#[test]
fn annotations_of_api_services_refused_by_the_registry_parser_unless_unchanged() {
    let api_service = |annotations: Value, service: Value| {
        object(json!({
            "metadata": {"name": "v1.a.io", "resourceVersion": "1", "annotations": annotations},
            "spec": {"group": "a.io", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 1, "service": service},
        }))
    };
    let of = |subresource| (written("apiregistration.k8s.io", "apiservices").0, subresource);
    let service = json!({"namespace": "default", "name": "api", "port": 443});
    let wrong = json!({
        "example.com/retry": "always", "narthex.dev/egress": "", "narthex.dev/max-inflight": "7",
        "narthex.dev/request-timout": "1s", "narthex.dev/retry": " always ", "narthex.dev/url": "https://a.io",
    });
    let errors = [
        "metadata.annotations[narthex.dev/egress]: Invalid value: \"\": must name an egress selection",
        "metadata.annotations[narthex.dev/request-timout]: Invalid value: \"1s\": unknown annotation, did you mean \
         narthex.dev/request-timeout?",
        "metadata.annotations[narthex.dev/retry]: Invalid value: \" always \": is neither \"safe\" nor \"never\"",
        "metadata.annotations[narthex.dev/url]: Invalid value: \"https://a.io\": spec.service is set too: only one of them \
         can be the backend",
    ];
    let refused = api_service(wrong.clone(), service.clone());
    assert_eq!(causes(validate_new(&of(""), &refused)), errors);
    let valid = api_service(json!({"narthex.dev/retry": "never"}), service.clone());
    assert_eq!(causes(validate_new(&of(""), &valid)), [""; 0]);
    assert_eq!(causes(validate_replacement(&of(""), &valid, &refused)), errors);
    assert_eq!(causes(validate_replacement(&of("status"), &valid, &refused)), [""; 0]);

    // What is stored already stays, until it is changed.
    assert_eq!(causes(validate_replacement(&of(""), &refused, &refused)), [""; 0]);
    let mut changed = wrong;
    changed["narthex.dev/retry"] = json!("sometimes");
    let changed = causes(validate_replacement(&of(""), &refused, &api_service(changed, service.clone())));
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert!(changed[0].starts_with("metadata.annotations[narthex.dev/retry]: Invalid value: \"sometimes\": "));

    // A URL depends on a flag, and on the Service.
    let url = json!({"narthex.dev/url": "https://a.io"});
    let by_url = api_service(url.clone(), Value::Null);
    let forbidden = causes(validate_new(&of(""), &by_url));
    assert!(forbidden.len() == 1 && forbidden[0].contains("--allow-url-backends"), "{forbidden:?}");
    assert_eq!(causes(validate_replacement(&of(""), &by_url, &by_url)), [""; 0]);
    let both = causes(validate_replacement(&of(""), &by_url, &api_service(url, service)));
    assert!(both.len() == 1 && both[0].contains("spec.service is set too"), "{both:?}");
    let registry = registry::Settings { allow_url_backends: true, ..registry::Settings::default() };
    let settings = super::ValidationSettings { registry, ..super::ValidationSettings::default() };
    let mut by_url = by_url;
    let result = super::validate_new((&settings, &UnlimitedBudget), (&of("").0, ""), &mut by_url);
    assert_eq!(causes(result), [""; 0]);
}
