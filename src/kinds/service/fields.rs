//! Fields of a Service that follow from others: plural and single cluster IP, families, what a change of the type makes
//! void (`pkg/registry/core/service/storage`, `pkg/registry/core/service/strategy.go`).
//!
//! Addresses and node ports are allocated afterwards, when the families are complete (`rest/service_allocation`).

use std::collections::{HashMap, HashSet};

use kubeapi::Status;
use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath, invalid_fields_status};
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value, json};

use super::addresses::cluster_ip_errors;
use crate::kinds::service_families::{IPV4, IPV6, ServiceFamilies};
use crate::kinds::validation::texts;

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// Completes a new Service, before it is validated (`beginCreate`).
///
/// # Errors
/// 422 for addresses and families that contradict each other.
pub(super) fn complete_new_service(families: &ServiceFamilies, object: &mut Map<String, Value>) -> Result<(), Status> {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    if is_set(spec, "clusterIP") && !is_set(spec, "clusterIPs") {
        spec.insert("clusterIPs".to_owned(), json!([spec["clusterIP"]]));
    }
    complete_families(families, object, None)
}

/// Completes a Service that replaces another one, before it is validated (`beginUpdate`).
///
/// # Errors
/// 422 for addresses and families that contradict each other.
pub(super) fn complete_replacing_service(
    families: &ServiceFamilies,
    old: &Map<String, Value>,
    object: &mut Map<String, Value>,
) -> Result<(), Status> {
    let empty = Map::new();
    let old_spec = old.get("spec").and_then(Value::as_object).unwrap_or(&empty);
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    if needs_cluster_ip(old_spec) && needs_cluster_ip(spec) {
        for field in ["clusterIP", "clusterIPs"] {
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
    complete_families(families, object, Some(old.get("spec").unwrap_or(&Value::Null)))
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
    if may_have_node_port(old) && !may_have_node_port(spec) && node_ports(spec).is_subset(&node_ports(old)) {
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
fn complete_families(
    families: &ServiceFamilies,
    object: &mut Map<String, Value>,
    old_spec: Option<&Value>,
) -> Result<(), Status> {
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
    if old_spec.is_some_and(|old| keeps_preferred_families(value, old)) {
        return Ok(());
    }
    let is_free = value["clusterIP"] == "None" && value["selector"].as_object().is_none_or(Map::is_empty);
    if value["ipFamilyPolicy"].as_str().is_none_or(str::is_empty) {
        let policy = match old_spec.and_then(|old| old["ipFamilyPolicy"].as_str()) {
            Some(policy) => policy,
            None if is_free => "RequireDualStack",
            None => "SingleStack",
        };
        value["ipFamilyPolicy"] = json!(policy);
    }
    let errors = cluster_ip_errors(value, old_spec.unwrap_or(&Value::Null));
    if !errors.is_empty() {
        return invalid(errors);
    }
    let policy = value["ipFamilyPolicy"].as_str().unwrap_or_default().to_owned();
    let (mut ips, mut chosen) = (owned_texts(value, "clusterIPs"), owned_texts(value, "ipFamilies"));
    let mut errors = match old_spec {
        Some(old) => follow_policy(&policy, old, &mut ips, &mut chosen),
        None => FieldErrors::new(),
    };
    errors.extend(single_stack_errors(&policy, &ips, &chosen));
    // Validated before: addresses and families match.
    let all_ips = BadValue::from(&json!(ips));
    for (index, ip) in ips.iter().enumerate().take_while(|(_, ip)| *ip != "None").skip(chosen.len()) {
        let family = if ip.contains(':') { IPV6 } else { IPV4 };
        if families.has(family) {
            chosen.push(family.to_owned());
        } else {
            let why = format!("{family} is not configured on this cluster");
            errors.push(FieldError::invalid(SPEC.child("clusterIPs").index(index), all_ips.clone(), why));
        }
    }
    if !errors.is_empty() {
        return invalid(errors);
    }
    // Endpoints of a Service without addresses and without a selector are of any family.
    if !is_free {
        let errors = unavailable_families(families, &policy, &chosen);
        if !errors.is_empty() {
            return invalid(errors);
        }
    }
    if chosen.is_empty() {
        chosen.push(families.first().to_owned());
    }
    if let [only] = chosen.as_slice()
        && policy != "SingleStack"
        && (is_free || families.has_both)
    {
        let other = if only == IPV4 { IPV6 } else { IPV4 };
        chosen.push(other.to_owned());
    }
    if !ips.is_empty() {
        value["clusterIPs"] = json!(ips);
    }
    value["ipFamilies"] = json!(chosen);
    Ok(())
}

/// Whether a Service keeps the families that it has, because it prefers both and neither its type, addresses nor families
/// change (`isMatchingPreferDualStackClusterIPFields`): a cluster that gets a second family does not change it.
fn keeps_preferred_families(spec: &Value, old: &Value) -> bool {
    const PREFERS_BOTH: &str = "PreferDualStack";
    let same = |field: &str| owned_texts(spec, field) == owned_texts(old, field);
    spec["type"] == old["type"]
        && matches!(spec["type"].as_str(), Some("ClusterIP" | "NodePort" | "LoadBalancer"))
        && spec["ipFamilyPolicy"] == PREFERS_BOTH
        && (old["ipFamilyPolicy"].is_null() || old["ipFamilyPolicy"] == PREFERS_BOTH)
        && same("clusterIPs")
        && same("ipFamilies")
}

/// Lets what did not change follow a policy that has become `SingleStack`; another policy releases nothing.
fn follow_policy(policy: &str, old: &Value, ips: &mut Vec<String>, families: &mut Vec<String>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for (field, list, what) in [("clusterIPs", ips, "cluster IP"), ("ipFamilies", families, "IP family")] {
        let old_list = owned_texts(old, field);
        if policy == "SingleStack" {
            if *list == old_list {
                list.truncate(1);
            }
        } else if !list.is_empty() && list.len() < old_list.len() {
            let why = format!("must be 'SingleStack' to release the secondary {what}");
            errors.push(FieldError::invalid(SPEC.child("ipFamilyPolicy"), policy, why));
        }
    }
    errors
}

fn single_stack_errors(policy: &str, ips: &[String], families: &[String]) -> Vec<FieldError> {
    let counts = [(ips.len(), "cluster IPs"), (families.len(), "IP families")];
    let several = counts.into_iter().filter(|(count, _)| policy == "SingleStack" && *count == 2);
    several
        .map(|(_, what)| {
            let why = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            FieldError::invalid(SPEC.child("ipFamilyPolicy"), policy, why)
        })
        .collect()
}

/// Errors of families that cluster IPs cannot have here.
fn unavailable_families(families: &ServiceFamilies, policy: &str, chosen: &[String]) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if policy == "RequireDualStack" && !families.has_both {
        let why = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid(SPEC.child("ipFamilyPolicy"), policy, why));
    }
    for (index, family) in chosen.iter().enumerate().filter(|(_, family)| !families.has(family)) {
        let path = SPEC.child("ipFamilies");
        errors.push(FieldError::invalid(path.index(index), family.as_str(), "not configured on this cluster"));
    }
    errors
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

fn owned_texts(spec: &Value, field: &str) -> Vec<String> {
    texts(spec, field).into_iter().map(str::to_owned).collect()
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
    let allocates = || spec.get("allocateLoadBalancerNodePorts").is_none_or(|allocates| *allocates != false);
    service_type(spec) == "NodePort" || is_load_balancer(spec) && allocates()
}

/// Whether ports of a Service of this type can have a node port (upstream's `needsNodePort` in `strategy.go`).
fn may_have_node_port(spec: &Map<String, Value>) -> bool {
    matches!(service_type(spec), "NodePort" | "LoadBalancer")
}

fn is_load_balancer(spec: &Map<String, Value>) -> bool {
    service_type(spec) == "LoadBalancer"
}

fn needs_health_check(spec: &Map<String, Value>) -> bool {
    is_load_balancer(spec) && spec.get("externalTrafficPolicy").is_some_and(|policy| policy == "Local")
}

fn is_externally_accessible(spec: &Map<String, Value>) -> bool {
    matches!(service_type(spec), "NodePort" | "LoadBalancer")
        || service_type(spec) == "ClusterIP" && is_set(spec, "externalIPs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: &Value) -> Map<String, Value> {
        let Value::Object(object) = json!({"metadata": {"name": "a"}, "spec": spec}) else { unreachable!() };
        object
    }

    const ONE: ServiceFamilies = ServiceFamilies { is_ipv6_first: false, has_both: false };
    const BOTH: ServiceFamilies = ServiceFamilies { is_ipv6_first: false, has_both: true };

    fn created(families: ServiceFamilies, spec: &Value) -> Result<Value, String> {
        let mut object = object(spec);
        complete_new_service(&families, &mut object).map_err(|status| status.message)?;
        Ok(object["spec"].clone())
    }

    fn updated(families: ServiceFamilies, old: &Value, new: &Value) -> Result<Value, String> {
        let (old, mut new) = (object(old), object(new));
        complete_replacing_service(&families, &old, &mut new).map_err(|status| status.message)?;
        Ok(new["spec"].clone())
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
            let spec = created(BOTH, &given).unwrap();
            assert_eq!((&spec["ipFamilies"], &spec["ipFamilyPolicy"]), (&families, &json!(policy)), "{given}");
        }
        assert_eq!(created(BOTH, &json!({"clusterIP": "None"})).unwrap()["clusterIPs"], json!(["None"]));
        assert_eq!(created(BOTH, &json!({"type": "ExternalName"})).unwrap(), json!({"type": "ExternalName"}));
        let both = json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "SingleStack"});
        let why = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified";
        assert!(created(BOTH, &both).unwrap_err().ends_with(why));
    }

    #[test]
    fn service_families_are_those_of_the_cluster() {
        let (ipv6, dual) = (ServiceFamilies { is_ipv6_first: true, has_both: false }, "RequireDualStack");
        assert_eq!(created(ipv6, &json!({})).unwrap()["ipFamilies"], json!(["IPv6"]));
        let free = created(ONE, &json!({"clusterIP": "None"})).unwrap();
        assert_eq!((&free["ipFamilies"], &free["ipFamilyPolicy"]), (&json!(["IPv4", "IPv6"]), &json!(dual)));
        assert_eq!(created(ONE, &json!({"ipFamilyPolicy": "PreferDualStack"})).unwrap()["ipFamilies"], json!(["IPv4"]));
        assert_eq!(
            created(BOTH, &json!({"ipFamilyPolicy": "PreferDualStack"})).unwrap()["ipFamilies"],
            json!(["IPv4", "IPv6"])
        );
        for (spec, why) in [
            (
                json!({"clusterIP": "fd00::1"}),
                "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster",
            ),
            (
                json!({"ipFamilyPolicy": dual}),
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack \
                 services",
            ),
            (
                json!({"ipFamilies": ["IPv6"]}),
                "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
            ),
        ] {
            let message = created(ONE, &spec).unwrap_err();
            assert!(message.ends_with(why), "{message}");
        }
    }

    #[test]
    fn service_families_change_with_the_policy() {
        let both = json!({
            "type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
        });
        let mut single = both.clone();
        single["ipFamilyPolicy"] = json!("SingleStack");
        let spec = updated(BOTH, &both, &single).unwrap();
        assert_eq!((&spec["clusterIPs"], &spec["ipFamilies"]), (&json!(["10.0.0.1"]), &json!(["IPv4"])));
        let mut reduced = both.clone();
        reduced["clusterIPs"] = json!(["10.0.0.1"]);
        reduced["ipFamilies"] = json!(["IPv4"]);
        let message = updated(BOTH, &both, &reduced).unwrap_err();
        for what in ["cluster IP", "IP family"] {
            let why = format!(
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary {what}"
            );
            assert!(message.contains(&why), "{message}");
        }
        // A cluster that got a second family changes nothing that prefers both, unless it is asked to.
        let preferred = json!({
            "type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "PreferDualStack",
        });
        assert_eq!(updated(BOTH, &preferred, &preferred).unwrap(), preferred);
        single["clusterIPs"] = json!(["10.0.0.1"]);
        single["ipFamilies"] = json!(["IPv4"]);
        assert_eq!(updated(BOTH, &single, &preferred).unwrap()["ipFamilies"], json!(["IPv4", "IPv6"]));
    }

    #[test]
    fn service_that_becomes_external_loses_addresses() {
        let old = object(&json!({
            "type": "NodePort", "clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "externalTrafficPolicy": "Cluster", "ports": [{"port": 80, "nodePort": 30000}],
        }));
        let mut new = old.clone();
        new["spec"]["type"] = json!("ExternalName");
        complete_replacing_service(&ONE, &old, &mut new).unwrap();
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
        complete_replacing_service(&ONE, &old, &mut new).unwrap();
        let mut expected = old["spec"].clone();
        expected["ports"][0]["port"] = json!(81);
        assert_eq!(new["spec"], expected);
    }
}
