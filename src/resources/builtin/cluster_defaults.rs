//! Defaults of the kinds of RBAC, admission, autoscaling, networking, storage, scheduling, flow control and devices
//! (`pkg/apis/*/v1/defaults.go`).

use serde_json::{Map, Value, json};

/// Sets the defaults of one struct, before those of the structs in it.
pub(super) fn set_cluster_defaults(name: &str, map: &mut Map<String, Value>) {
    let Some((group, name)) = name.strip_prefix("io.k8s.api.").and_then(|name| name.split_once('.')) else { return };
    match group {
        "admissionregistration" => set_admission_defaults(name, map),
        "autoscaling" => set_autoscaling_defaults(name, map),
        "core" => set_core_defaults(name, map),
        "flowcontrol" => set_flow_control_defaults(name, map),
        "networking" => set_networking_defaults(name, map),
        "rbac" => set_rbac_defaults(name, map),
        "resource" => set_device_defaults(name, map),
        "scheduling" if name == "v1.PriorityClass" => {
            set_absent(map, "preemptionPolicy", || json!("PreemptLowerPriority"));
        }
        "storage" => set_storage_defaults(name, map),
        _ => {}
    }
}

/// Sets a field that is absent or `null`.
fn set_absent(map: &mut Map<String, Value>, field: &str, default: impl FnOnce() -> Value) {
    if map.get(field).is_none_or(Value::is_null) {
        map.insert(field.to_owned(), default());
    }
}

/// Sets a field that is absent, empty or zero.
fn set_zero(map: &mut Map<String, Value>, field: &str, default: impl FnOnce() -> Value) {
    let is_zero = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    if map.get(field).is_none_or(is_zero) {
        map.insert(field.to_owned(), default());
    }
}

/// A field that is an object.
fn object<'m>(map: &'m mut Map<String, Value>, field: &str) -> Option<&'m mut Map<String, Value>> {
    map.get_mut(field).and_then(Value::as_object_mut)
}

fn set_admission_defaults(name: &str, map: &mut Map<String, Value>) {
    match name {
        "v1.MutatingWebhook" | "v1.ValidatingWebhook" => {
            set_absent(map, "failurePolicy", || json!("Fail"));
            set_match_defaults(map);
            set_absent(map, "timeoutSeconds", || json!(10));
            if name == "v1.MutatingWebhook" {
                set_absent(map, "reinvocationPolicy", || json!("Never"));
            }
        }
        "v1.MatchResources" => set_match_defaults(map),
        "v1.MutatingAdmissionPolicySpec" | "v1.ValidatingAdmissionPolicySpec" => {
            set_absent(map, "failurePolicy", || json!("Fail"));
        }
        "v1.Rule" => set_absent(map, "scope", || json!("*")),
        "v1.ServiceReference" => set_absent(map, "port", || json!(443)),
        _ => {}
    }
}

fn set_match_defaults(map: &mut Map<String, Value>) {
    set_absent(map, "matchPolicy", || json!("Equivalent"));
    set_absent(map, "namespaceSelector", || json!({}));
    set_absent(map, "objectSelector", || json!({}));
}

/// The version `v1` gets its metrics when it is converted.
fn set_autoscaling_defaults(name: &str, map: &mut Map<String, Value>) {
    if !name.ends_with(".HorizontalPodAutoscaler") {
        return;
    }
    let Some(spec) = object(map, "spec") else { return };
    set_absent(spec, "minReplicas", || json!(1));
    if name != "v2.HorizontalPodAutoscaler" {
        return;
    }
    let target = json!({"type": "Utilization", "averageUtilization": 80});
    set_zero(spec, "metrics", || json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
    let Some(behavior) = object(spec, "behavior") else { return };
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    set_absent(behavior, "scaleUp", || json!({}));
    set_absent(behavior, "scaleDown", || json!({}));
    if let Some(rules) = object(behavior, "scaleUp") {
        set_absent(rules, "stabilizationWindowSeconds", || json!(0));
        set_absent(rules, "policies", || json!([pods, percent.clone()]));
        set_absent(rules, "selectPolicy", || json!("Max"));
    }
    if let Some(rules) = object(behavior, "scaleDown") {
        set_absent(rules, "policies", || json!([percent]));
        set_absent(rules, "selectPolicy", || json!("Max"));
    }
}

fn set_core_defaults(name: &str, map: &mut Map<String, Value>) {
    match name {
        "v1.PersistentVolume" => {
            set_absent(map, "status", || json!({}));
            if let Some(status) = object(map, "status") {
                set_zero(status, "phase", || json!("Pending"));
            }
            // The volume in a VolumeAttachment has no defaults.
            set_absent(map, "spec", || json!({}));
            if let Some(spec) = object(map, "spec") {
                set_zero(spec, "persistentVolumeReclaimPolicy", || json!("Retain"));
                set_absent(spec, "volumeMode", || json!("Filesystem"));
            }
        }
        "v1.NodeStatus" => {
            if let Some(capacity) = map.get("capacity").filter(|capacity| !capacity.is_null()).cloned() {
                set_absent(map, "allocatable", || capacity);
            }
        }
        "v1.LimitRangeItem" if map.get("type").is_some_and(|name| name == "Container") => {
            // Defaults of limits are the maxima; those of requests are the limits, or the minima.
            for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
                let amounts = object(map, from).cloned().unwrap_or_default();
                set_absent(map, to, || json!({}));
                if let Some(defaults) = object(map, to) {
                    for (resource, amount) in amounts {
                        defaults.entry(resource).or_insert(amount);
                    }
                }
            }
            for field in ["default", "defaultRequest"] {
                if object(map, field).is_some_and(|amounts| amounts.is_empty()) {
                    map.remove(field);
                }
            }
        }
        _ => {}
    }
}

fn set_flow_control_defaults(name: &str, map: &mut Map<String, Value>) {
    match name {
        "v1.FlowSchemaSpec" => set_zero(map, "matchingPrecedence", || json!(1000)),
        "v1.ExemptPriorityLevelConfiguration" => {
            set_absent(map, "nominalConcurrencyShares", || json!(0));
            set_absent(map, "lendablePercent", || json!(0));
        }
        "v1.LimitedPriorityLevelConfiguration" => {
            set_absent(map, "nominalConcurrencyShares", || json!(30));
            set_absent(map, "lendablePercent", || json!(0));
        }
        "v1.QueuingConfiguration" => {
            set_zero(map, "handSize", || json!(8));
            set_zero(map, "queues", || json!(64));
            set_zero(map, "queueLengthLimit", || json!(50));
        }
        _ => {}
    }
}

fn set_networking_defaults(name: &str, map: &mut Map<String, Value>) {
    match name {
        "v1.NetworkPolicyPort" => set_absent(map, "protocol", || json!("TCP")),
        "v1.NetworkPolicy" => {
            set_absent(map, "spec", || json!({}));
            let Some(spec) = object(map, "spec") else { return };
            let has_egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
            let types = if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            set_zero(spec, "policyTypes", || types);
        }
        "v1.IngressClass" => {
            if let Some(parameters) = object(map, "spec").and_then(|spec| object(spec, "parameters")) {
                set_absent(parameters, "scope", || json!("Cluster"));
            }
        }
        _ => {}
    }
}

fn set_rbac_defaults(name: &str, map: &mut Map<String, Value>) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    match name {
        "v1.ClusterRoleBinding" | "v1.RoleBinding" => {
            if let Some(role) = object(map, "roleRef") {
                set_zero(role, "apiGroup", || json!(GROUP));
            }
        }
        "v1.Subject" if matches!(map.get("kind").and_then(Value::as_str), Some("User" | "Group")) => {
            set_zero(map, "apiGroup", || json!(GROUP));
        }
        _ => {}
    }
}

fn set_device_defaults(name: &str, map: &mut Map<String, Value>) {
    match name {
        "v1.DeviceSubRequest" | "v1.ExactDeviceRequest" => {
            set_zero(map, "allocationMode", || json!("ExactCount"));
            if map.get("allocationMode").is_some_and(|mode| mode == "ExactCount") {
                set_zero(map, "count", || json!(1));
            }
        }
        "v1.DeviceTaint" => {
            let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            set_absent(map, "timeAdded", || json!(now));
        }
        _ => {}
    }
}

fn set_storage_defaults(name: &str, map: &mut Map<String, Value>) {
    match name {
        "v1.StorageClass" => {
            set_absent(map, "reclaimPolicy", || json!("Delete"));
            set_absent(map, "volumeBindingMode", || json!("Immediate"));
        }
        "v1.CSIDriver" => {
            let Some(spec) = object(map, "spec") else { return };
            let flags = [
                ("attachRequired", true),
                ("podInfoOnMount", false),
                ("storageCapacity", false),
                ("requiresRepublish", false),
                ("seLinuxMount", false),
            ];
            for (field, value) in flags {
                set_absent(spec, field, || json!(value));
            }
            set_absent(spec, "fsGroupPolicy", || json!("ReadWriteOnceWithFSType"));
            set_zero(spec, "volumeLifecycleModes", || json!(["Persistent"]));
        }
        _ => {}
    }
}
