//! Defaults of built-in kinds: those of `kinds.json`, and those that Kubernetes sets in code
//! (`pkg/apis/core/v1/defaults.go`, `pkg/apis/discovery/v1/defaults.go`, kube-aggregator's `defaults.go`).

use kubeapi::protobuf::table::{GoType, MessageId, MessageTable};
use kubeapi::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::cluster_defaults::set_cluster_defaults;
use super::workload_defaults::set_struct_defaults;

/// Sets the defaults of an object that `normalize` has accepted, as a kube-apiserver does when it decodes one.
///
/// Code exists for Namespace, Secret, Service, Endpoints, EndpointSlice, APIService and CustomResourceDefinition. ConfigMap, ServiceAccount,
/// Event and Lease have no default that is seen in JSON. For pods and workloads see `workload_defaults`, for other kinds
/// `cluster_defaults`. All kinds get the defaults that OpenAPI declares.
pub fn set_defaults(table: &MessageTable, message: MessageId, object: &mut Value) {
    set_declared_defaults(table, &GoType::Message(message), object);
    let Some(map) = object.as_object_mut() else { return };
    match table.message(message).name {
        "io.k8s.api.core.v1.Namespace" => set_namespace_defaults(map),
        "io.k8s.api.core.v1.Secret" => set_absent(map, "type", || json!("Opaque")),
        "io.k8s.api.core.v1.Service" => set_service_defaults(map),
        "io.k8s.api.core.v1.Endpoints" => {
            for port in items(map.get_mut("subsets")).flat_map(|subset| items(subset.get_mut("ports"))) {
                set_absent(port, "protocol", || json!("TCP"));
            }
        }
        "io.k8s.api.discovery.v1.EndpointSlice" => {
            for port in items(map.get_mut("ports")) {
                set_absent(port, "name", || json!(""));
                set_absent(port, "protocol", || json!("TCP"));
            }
        }
        "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService" => {
            let service = map.get_mut("spec").and_then(|spec| spec.get_mut("service"));
            if let Some(service) = service.and_then(Value::as_object_mut) {
                set_absent(service, "port", || json!(443));
            }
        }
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition" => {
            set_crd_defaults(map);
        }
        _ => {}
    }
}

/// Sets the defaults of a CustomResourceDefinition (`pkg/apis/apiextensions/v1/defaults.go` of apiextensions-apiserver).
fn set_crd_defaults(map: &mut Map<String, Value>) {
    let Some(spec) = map.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut set_name = |field: &str, value: String| {
            if !kind.is_empty() && names.get(field).and_then(Value::as_str).unwrap_or_default().is_empty() {
                names.insert(field.to_owned(), value.into());
            }
        };
        set_name("singular", kind.to_lowercase());
        set_name("listKind", format!("{kind}List"));
    }
    set_absent(spec, "conversion", || json!({"strategy": "None"}));
    let service = spec.get_mut("conversion").and_then(|conversion| {
        conversion.get_mut("webhook")?.get_mut("clientConfig")?.get_mut("service")?.as_object_mut()
    });
    if let Some(service) = service {
        set_absent(service, "port", || json!(443));
    }
    let versions = spec.get("versions").and_then(Value::as_array);
    let storage = versions.and_then(|versions| versions.iter().find(|version| version["storage"] == true));
    let storage = storage.and_then(|version| version["name"].as_str()).map(str::to_owned);
    let stored = map.get_mut("status").and_then(|status| status.get_mut("storedVersions"));
    if let (Some(stored), Some(storage)) = (stored, storage)
        && stored.as_array().is_none_or(Vec::is_empty)
    {
        *stored = json!([storage]);
    }
}

/// Sets the defaults that OpenAPI declares, in every struct that the object has.
fn set_declared_defaults(table: &MessageTable, go_type: &GoType, value: &mut Value) {
    match (go_type, value) {
        (GoType::Pointer(target), value) => set_declared_defaults(table, target, value),
        (GoType::List(item), Value::Array(items)) => {
            items.iter_mut().for_each(|one| set_declared_defaults(table, item, one));
        }
        (GoType::Map(item), Value::Object(map)) => {
            map.values_mut().for_each(|one| set_declared_defaults(table, item, one));
        }
        (GoType::Message(message), Value::Object(map)) => set_message_defaults(table, *message, map),
        _ => {}
    }
}

fn set_message_defaults(table: &MessageTable, message: MessageId, map: &mut Map<String, Value>) {
    set_struct_defaults(table.message(message).name, map);
    set_cluster_defaults(table.message(message).name, map);
    for field in &table.message(message).fields {
        if let Some(embedded) = field.embedded() {
            set_message_defaults(table, embedded, map);
            continue;
        }
        if let Some(default) = &field.default {
            set_absent(map, field.name, || default.clone());
        }
        if let Some(value) = map.get_mut(field.name) {
            if matches!(&field.go_type, GoType::Map(item) if **item == GoType::Quantity) {
                round_up_amounts(value);
            }
            set_declared_defaults(table, &field.go_type, value);
        }
    }
}

/// Rounds the amounts of a list of resources up to thousandths.
fn round_up_amounts(amounts: &mut Value) {
    for amount in amounts.as_object_mut().into_iter().flat_map(|amounts| amounts.values_mut()) {
        if let Some(Ok(quantity)) = amount.as_str().map(Quantity::parse) {
            *amount = quantity.round_up_to_milli().to_string().into();
        }
    }
}

/// Sets a field that is absent or `null`.
fn set_absent(map: &mut Map<String, Value>, name: &str, default: impl FnOnce() -> Value) {
    if map.get(name).is_none_or(Value::is_null) {
        map.insert(name.to_owned(), default());
    }
}

/// The objects of a list.
fn items(list: Option<&mut Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    list.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn set_namespace_defaults(map: &mut Map<String, Value>) {
    set_absent(map, "status", || json!({}));
    if let Some(status) = map.get_mut("status").and_then(Value::as_object_mut) {
        set_absent(status, "phase", || json!("Active"));
    }
    let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let Some(name) = metadata.get("name").filter(|name| name.as_str().is_some_and(|name| !name.is_empty())) else {
        return;
    };
    let name = name.clone();
    set_absent(metadata, "labels", || json!({}));
    if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
        labels.insert("kubernetes.io/metadata.name".to_owned(), name);
    }
}

fn set_service_defaults(map: &mut Map<String, Value>) {
    set_absent(map, "spec", || json!({}));
    let Some(spec) = map.get_mut("spec").and_then(Value::as_object_mut) else { return };
    set_session_affinity(spec);
    set_absent(spec, "type", || json!("ClusterIP"));
    for port in items(spec.get_mut("ports")) {
        set_absent(port, "protocol", || json!("TCP"));
        let target = port.get("targetPort");
        if target.is_none_or(|target| target.is_null() || *target == json!(0) || *target == json!("")) {
            let number = port.get("port").cloned().unwrap_or(json!(0));
            port.insert("targetPort".to_owned(), number);
        }
    }
    let service_type = spec.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let has_external_ips = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
    let is_external = match &*service_type {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => has_external_ips,
        _ => false,
    };
    if is_external {
        set_absent(spec, "externalTrafficPolicy", || json!("Cluster"));
    }
    if matches!(&*service_type, "NodePort" | "LoadBalancer" | "ClusterIP") {
        set_absent(spec, "internalTrafficPolicy", || json!("Cluster"));
    }
    if service_type == "LoadBalancer" {
        set_absent(spec, "allocateLoadBalancerNodePorts", || json!(true));
        let balancer = map.get_mut("status").and_then(|status| status.get_mut("loadBalancer"));
        for ingress in items(balancer.and_then(|balancer| balancer.get_mut("ingress"))) {
            if ingress.get("ip").and_then(Value::as_str).is_some_and(|ip| !ip.is_empty()) {
                set_absent(ingress, "ipMode", || json!("VIP"));
            }
        }
    }
}

fn set_session_affinity(spec: &mut Map<String, Value>) {
    set_absent(spec, "sessionAffinity", || json!("None"));
    match spec.get("sessionAffinity").and_then(Value::as_str) {
        Some("None") => drop(spec.remove("sessionAffinityConfig")),
        Some("ClientIP") => {
            let timeout =
                spec.get("sessionAffinityConfig").and_then(|config| config.pointer("/clientIP/timeoutSeconds"));
            if timeout.is_none_or(Value::is_null) {
                let config = json!({"clientIP": {"timeoutSeconds": 10_800}});
                spec.insert("sessionAffinityConfig".to_owned(), config);
            }
        }
        _ => {}
    }
}
