//! Fields of a Service that follow from others: plural and single cluster IP, families, what a change of the type makes
//! void (`pkg/registry/core/service/storage`, `pkg/registry/core/service/strategy.go`).
//!
//! Unlike in a kube-apiserver, neither addresses nor node ports are allocated, and both address families are available.

use std::collections::{HashMap, HashSet};

use kubeapi::Status;
use kubeapi::field_error::{FieldError, FieldErrors, invalid_fields_status};
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value, json};

use super::addresses::cluster_ip_errors;

const IPV4: &str = "IPv4";
const IPV6: &str = "IPv6";

/// Completes a new Service, before it is validated (`beginCreate`).
///
/// # Errors
/// 422 for addresses and families that contradict each other.
pub(super) fn complete_new_service(object: &mut Map<String, Value>) -> Result<(), Status> {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    if is_set(spec, "clusterIP") && !is_set(spec, "clusterIPs") {
        spec.insert("clusterIPs".to_owned(), json!([spec["clusterIP"]]));
    }
    complete_families(object, &Value::Null)
}

/// Completes a Service that replaces another one, before it is validated (`beginUpdate`).
///
/// # Errors
/// 422 for addresses and families that contradict each other.
pub(super) fn complete_replacing_service(
    old: &Map<String, Value>,
    object: &mut Map<String, Value>,
) -> Result<(), Status> {
    let empty = Map::new();
    let old_spec = old.get("spec").and_then(Value::as_object).unwrap_or(&empty);
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    if needs_cluster_ip(old_spec) && needs_cluster_ip(spec) {
        for field in ["clusterIP", "clusterIPs", "ipFamilies"] {
            keep_if_unset(old_spec, spec, field);
        }
    }
    if needs_node_port(old_spec) && needs_node_port(spec) {
        keep_node_ports(old_spec, spec);
    }
    if needs_health_check(old_spec) && needs_health_check(spec) {
        keep_if_unset(old_spec, spec, "healthCheckNodePort");
    }
    follow_cluster_ip(old_spec, spec);
    complete_families(object, old.get("spec").unwrap_or(&Value::Null))
}

/// Removes what a change of the type makes void, unless the client changed it, too (`dropTypeDependentFields`).
pub(super) fn drop_type_dependent_fields(old: &Map<String, Value>, object: &mut Map<String, Value>) {
    let empty = Map::new();
    let old = old.get("spec").and_then(Value::as_object).unwrap_or(&empty);
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if needs_cluster_ip(old) && !needs_cluster_ip(spec) {
        if ["clusterIP", "clusterIPs"].iter().all(|field| old.get(*field) == spec.get(*field)) {
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            remove_if_same(old, spec, field);
        }
    }
    if needs_node_port(old) && !needs_node_port(spec) && node_ports(spec).is_subset(&node_ports(old)) {
        for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            port.as_object_mut().map(|port| port.remove("nodePort"));
        }
    }
    let void_fields = [
        (needs_health_check(old) && !needs_health_check(spec), "healthCheckNodePort"),
        (is_load_balancer(old) && !is_load_balancer(spec), "allocateLoadBalancerNodePorts"),
        (is_load_balancer(old) && !is_load_balancer(spec), "loadBalancerClass"),
        (is_externally_accessible(old) && !is_externally_accessible(spec), "externalTrafficPolicy"),
    ];
    for (_, field) in void_fields.into_iter().filter(|(is_void, _)| *is_void) {
        remove_if_same(old, spec, field);
    }
    if !is_load_balancer(spec) {
        object.insert("status".to_owned(), json!({"loadBalancer": {}}));
    }
}

/// Sets the plural cluster IPs of a client that changed the single one only (`normalizeClusterIPs`).
fn follow_cluster_ip(old: &Map<String, Value>, spec: &mut Map<String, Value>) {
    let is_changed = old.get("clusterIP") != spec.get("clusterIP");
    if !is_changed || old.get("clusterIPs") != spec.get("clusterIPs") {
        return;
    }
    match is_set(spec, "clusterIP") {
        true => spec.insert("clusterIPs".to_owned(), json!([spec["clusterIP"]])),
        false => spec.remove("clusterIPs"),
    };
}

/// Sets the families of addresses and their policy (`initIPFamilyFields`).
fn complete_families(object: &mut Map<String, Value>, old_spec: &Value) -> Result<(), Status> {
    let name = ObjectMetaView::of_map(object).name().to_owned();
    let invalid = |errors: FieldErrors| Err(invalid_fields_status("", "Service", &name, errors));
    let Some(value) = object.get_mut("spec") else { return Ok(()) };
    let Some(spec) = value.as_object_mut() else { return Ok(()) };
    if !needs_cluster_ip(spec) {
        // A kube-apiserver drops it when it is read (`defaultOnReadInternalTrafficPolicy`).
        if spec.get("internalTrafficPolicy").is_some_and(|policy| policy == "Cluster" || policy == "Local") {
            spec.remove("internalTrafficPolicy");
        }
        return Ok(());
    }
    let is_headless = spec.get("clusterIP").is_some_and(|ip| ip == "None");
    let has_selector = spec.get("selector").and_then(Value::as_object).is_some_and(|selector| !selector.is_empty());
    if !is_set(spec, "ipFamilyPolicy") {
        let policy = match &old_spec["ipFamilyPolicy"] {
            Value::String(policy) => policy,
            _ if is_headless && !has_selector => "RequireDualStack",
            _ => "SingleStack",
        };
        spec.insert("ipFamilyPolicy".to_owned(), json!(policy));
    }
    let errors = cluster_ip_errors(value, old_spec);
    if !errors.is_empty() {
        return invalid(errors);
    }
    let policy = value["ipFamilyPolicy"].as_str().unwrap_or_default().to_owned();
    let texts = |field: &str| -> Vec<String> {
        let list = value[field].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (mut ips, mut families) = (texts("clusterIPs"), texts("ipFamilies"));
    if policy == "SingleStack" {
        // What did not change follows the policy.
        for (field, list) in [("clusterIPs", &mut ips), ("ipFamilies", &mut families)] {
            if value[field] == old_spec[field] {
                list.truncate(1);
            }
        }
        let path = "spec.ipFamilyPolicy";
        let several = [(ips.len(), "cluster IPs"), (families.len(), "IP families")];
        let errors: FieldErrors = several
            .into_iter()
            .filter(|(count, _)| *count == 2)
            .map(|(_, what)| {
                let why = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
                FieldError::invalid(path, &*policy, why)
            })
            .collect();
        if !errors.is_empty() {
            return invalid(errors);
        }
    }
    for ip in ips.iter().skip(families.len()).filter(|ip| *ip != "None") {
        families.push(if ip.contains(':') { IPV6 } else { IPV4 }.to_owned());
    }
    if families.is_empty() {
        families.push(IPV4.to_owned());
    }
    if families.len() == 1 && policy == "RequireDualStack" {
        families.push(if families[0] == IPV4 { IPV6 } else { IPV4 }.to_owned());
    }
    if !ips.is_empty() {
        value["clusterIPs"] = json!(ips);
    }
    value["ipFamilies"] = json!(families);
    Ok(())
}

/// Keeps the node ports of ports whose name did not change (`patchAllocatedValues`).
fn keep_node_ports(old: &Map<String, Value>, spec: &mut Map<String, Value>) {
    let (old_ports, new_ports) = (node_ports(old), node_ports(spec));
    let used: HashSet<i64> = old_ports.intersection(&new_ports).copied().collect();
    let name_of = |port: &Value| port["name"].as_str().map(str::to_owned);
    // Of equal names, the last.
    let named: HashMap<Option<String>, &Value> =
        ports(old).iter().map(|port| (name_of(port), &port["nodePort"])).collect();
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if port["nodePort"].as_i64().unwrap_or_default() == 0
            && let Some(kept) = named.get(&name_of(port)).copied()
            && kept.as_i64().is_some_and(|number| number != 0 && !used.contains(&number))
        {
            port["nodePort"] = kept.clone();
        }
    }
}

fn ports(spec: &Map<String, Value>) -> &[Value] {
    spec.get("ports").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn node_ports(spec: &Map<String, Value>) -> HashSet<i64> {
    ports(spec).iter().filter_map(|port| port["nodePort"].as_i64()).filter(|number| *number != 0).collect()
}

fn is_set(spec: &Map<String, Value>, field: &str) -> bool {
    spec.get(field).is_some_and(|value| !value.is_null() && *value != json!("") && *value != json!([]))
}

fn keep_if_unset(old: &Map<String, Value>, spec: &mut Map<String, Value>, field: &str) {
    if !is_set(spec, field)
        && let Some(value) = old.get(field)
    {
        spec.insert(field.to_owned(), value.clone());
    }
}

fn remove_if_same(old: &Map<String, Value>, spec: &mut Map<String, Value>, field: &str) {
    if old.get(field) == spec.get(field) {
        spec.remove(field);
    }
}

fn service_type(spec: &Map<String, Value>) -> &str {
    spec.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn needs_cluster_ip(spec: &Map<String, Value>) -> bool {
    service_type(spec) != "ExternalName"
}

fn needs_node_port(spec: &Map<String, Value>) -> bool {
    matches!(service_type(spec), "NodePort" | "LoadBalancer")
}

fn is_load_balancer(spec: &Map<String, Value>) -> bool {
    service_type(spec) == "LoadBalancer"
}

fn needs_health_check(spec: &Map<String, Value>) -> bool {
    is_load_balancer(spec) && spec.get("externalTrafficPolicy").is_some_and(|policy| policy == "Local")
}

fn is_externally_accessible(spec: &Map<String, Value>) -> bool {
    needs_node_port(spec) || service_type(spec) == "ClusterIP" && is_set(spec, "externalIPs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: &Value) -> Map<String, Value> {
        let Value::Object(object) = json!({"metadata": {"name": "a"}, "spec": spec}) else { unreachable!() };
        object
    }

    fn created(spec: &Value) -> Result<Value, String> {
        let mut object = object(spec);
        complete_new_service(&mut object).map_err(|status| status.message)?;
        Ok(object["spec"].clone())
    }

    #[test]
    fn service_families_follow_addresses_and_policy() {
        for (given, families, policy) in [
            (json!({"type": "ClusterIP"}), json!(["IPv4"]), "SingleStack"),
            (json!({"clusterIP": "None", "selector": {"a": "b"}}), json!(["IPv4"]), "SingleStack"),
            (json!({"clusterIP": "None"}), json!(["IPv4", "IPv6"]), "RequireDualStack"),
            (json!({"clusterIP": "fd00::1"}), json!(["IPv6"]), "SingleStack"),
            (
                json!({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "RequireDualStack"}),
                json!(["IPv6", "IPv4"]),
                "RequireDualStack",
            ),
        ] {
            let spec = created(&given).unwrap();
            assert_eq!((&spec["ipFamilies"], &spec["ipFamilyPolicy"]), (&families, &json!(policy)), "{given}");
        }
        assert_eq!(created(&json!({"clusterIP": "None"})).unwrap()["clusterIPs"], json!(["None"]));
        assert_eq!(created(&json!({"type": "ExternalName"})).unwrap(), json!({"type": "ExternalName"}));
        let both = json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "SingleStack"});
        let why = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified";
        assert!(created(&both).unwrap_err().ends_with(why));
    }

    #[test]
    fn service_that_becomes_external_loses_addresses() {
        let old = object(&json!({
            "type": "NodePort", "clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "externalTrafficPolicy": "Cluster", "ports": [{"port": 80, "nodePort": 30000}],
        }));
        let mut new = old.clone();
        new["spec"]["type"] = json!("ExternalName");
        complete_replacing_service(&old, &mut new).unwrap();
        drop_type_dependent_fields(&old, &mut new);
        assert_eq!(new["spec"], json!({"type": "ExternalName", "ports": [{"port": 80}]}));
    }

    #[test]
    fn service_replaced_without_addresses_keeps_them() {
        let old = object(&json!({
            "type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "ports": [{"name": "a", "port": 80, "nodePort": 30000}],
        }));
        let mut new = object(&json!({"type": "NodePort", "ports": [{"name": "a", "port": 81}]}));
        complete_replacing_service(&old, &mut new).unwrap();
        let mut expected = old["spec"].clone();
        expected["ports"][0]["port"] = json!(81);
        assert_eq!(new["spec"], expected);
    }
}
