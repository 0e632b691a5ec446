//! Specifications of Pods, alone and in templates (`ValidatePodSpec`, `ValidatePodTemplateSpec`).

use std::collections::{BTreeSet, HashSet};

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::check_ip;
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain, check_qualified_name, pattern_error};
use kubeapi::object_meta::{ObjectMetaView, validate_annotations, validate_labels};
use serde_json::{Map, Value, json};

use super::PodSpecOptions;
use super::annotations::{check_pod_annotations, check_profile_annotations};
use super::containers::ContainerScope;
use super::environment::check_file_volumes;
use super::paths::{check_choice, is_true};
use super::resources::{ResourceOwner, check_resources};
use super::scheduling::{check_affinity, check_scheduling_gates, check_tolerations, check_topology_spread};
use super::security::{check_host_processes, check_host_users, check_operating_system, check_pod_security};
use super::volumes::check_volumes;
use crate::kinds::internal_json::internal_value;
use crate::kinds::validation::{invalid_for, items, text, texts};

const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;
const MAX_HOSTNAME: usize = 64;

/// Errors of the specification of a Pod.
pub(in crate::kinds) fn check_pod_spec(
    spec: &Value,
    options: &PodSpecOptions<'_>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    if spec["terminationGracePeriodSeconds"].is_null() {
        errors.push(FieldError::required(path.child("terminationGracePeriodSeconds"), ""));
    }
    let volumes = check_volumes(items(spec, "volumes"), &path.child("volumes"), options, errors);
    let claims = items(spec, "resourceClaims");
    check_resource_claims(claims, &path.child("resourceClaims"), errors);
    let claims: BTreeSet<&str> =
        claims.iter().map(|claim| text(claim, "name")).filter(|name| !name.is_empty()).collect();
    ContainerScope { spec, volumes: &volumes, claims: &claims }.check(path, errors);
    check_pod_resources(spec, &claims, path, errors);
    check_host_ports(spec, options, path, errors);
    check_choice(text(spec, "restartPolicy"), &RESTART_POLICIES, &path.child("restartPolicy"), errors);
    check_choice(text(spec, "dnsPolicy"), &DNS_POLICIES, &path.child("dnsPolicy"), errors);
    let selector = spec["nodeSelector"].as_object().into_iter().flatten();
    let selector = selector.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
    validate_labels(selector, &path.child("nodeSelector"), errors);
    check_pod_security(spec, &path.child("securityContext"), errors);
    check_affinity(&spec["affinity"], options, &path.child("affinity"), errors);
    check_dns_config(spec, &path.child("dnsConfig"), errors);
    let gates = path.child("readinessGates");
    for (index, gate) in items(spec, "readinessGates").iter().enumerate() {
        let condition = text(gate, "conditionType");
        let path = gates.index(index);
        errors.extend(invalid_for(path.child("conditionType"), condition, check_qualified_name(condition)));
    }
    check_scheduling_gates(items(spec, "schedulingGates"), &path.child("schedulingGates"), errors);
    let spread = items(spec, "topologySpreadConstraints");
    check_topology_spread(spread, options, &path.child("topologySpreadConstraints"), errors);
    check_host_processes(spec, path, errors);
    check_host_users(spec, path, errors);
    check_hostname_override(spec, path, errors);
    check_names(spec, path, errors);
    check_operating_system(spec, path, errors);
    check_scheduling_group(&spec["schedulingGroup"], &path.child("schedulingGroup"), errors);
    check_file_volumes(spec, path, errors);
}

/// Errors of names, and of what stands among them.
fn check_names(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let check = |field: &str, check: fn(&str) -> Vec<String>, errors: &mut FieldErrors| {
        let name = text(spec, field);
        if !name.is_empty() {
            errors.extend(invalid_for(path.child(field), name, check(name)));
        }
    };
    check("serviceAccountName", check_dns1123_subdomain, errors);
    check("nodeName", check_dns1123_subdomain, errors);
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64()
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let why = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid(path.child("activeDeadlineSeconds"), seconds, why));
    }
    check("hostname", check_dns1123_label, errors);
    check("subdomain", check_dns1123_label, errors);
    check_tolerations(items(spec, "tolerations"), &path.child("tolerations"), errors);
    let aliases = path.child("hostAliases");
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        let path = aliases.index(index);
        errors.extend(check_ip(&path.child("ip"), text(alias, "ip")));
        let path = path.child("hostnames");
        for (index, name) in texts(alias, "hostnames").into_iter().enumerate() {
            errors.extend(invalid_for(path.index(index), name, check_dns1123_subdomain(name)));
        }
    }
    check("priorityClassName", check_dns1123_subdomain, errors);
    if let Some(name) = spec["runtimeClassName"].as_str() {
        errors.extend(invalid_for(path.child("runtimeClassName"), name, check_dns1123_subdomain(name)));
    }
    if let Some(policy) = spec["preemptionPolicy"].as_str() {
        let policies = ["PreemptLowerPriority", "Never"];
        check_choice(policy, &policies, &path.child("preemptionPolicy"), errors);
    }
    if !spec["overhead"].is_null() {
        let overhead = json!({"limits": spec["overhead"]});
        let owner = ResourceOwner::Container;
        check_resources(&overhead, owner, &BTreeSet::new(), &path.child("overhead"), errors);
    }
}

/// Errors of the claims of resources of a Pod.
fn check_resource_claims(claims: &[Value], path: &FieldPath<'_>, errors: &mut FieldErrors) {
    const FIELDS: [&str; 2] = ["resourceClaimName", "resourceClaimTemplateName"];
    let mut seen = HashSet::new();
    for (index, claim) in claims.iter().enumerate() {
        let path = path.index(index);
        let name = text(claim, "name");
        if name.is_empty() {
            errors.push(FieldError::required(path.child("name"), ""));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(path.child("name"), name));
        } else {
            errors.extend(invalid_for(path.child("name"), name, check_dns1123_label(name)));
        }
        let why = match FIELDS.iter().filter(|field| !claim[**field].is_null()).count() {
            0 => Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            1 => None,
            _ => Some("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"),
        };
        let shown = || internal_value("core.PodResourceClaim", claim);
        errors.extend(why.map(|why| FieldError::invalid(path, shown(), why)));
        for field in FIELDS {
            if let Some(name) = claim[field].as_str() {
                errors.extend(invalid_for(path.child(field), name, check_dns1123_subdomain(name)));
            }
        }
    }
}

/// Errors of the resources of a whole Pod.
fn check_pod_resources(spec: &Value, claims: &BTreeSet<&str>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let (resources, path) = (&spec["resources"], path.child("resources"));
    if resources.is_null() {
        return;
    }
    if text(&spec["os"], "name") == "windows" {
        errors.push(FieldError::forbidden(path, "may not be set for a windows pod"));
        return;
    }
    if !resources["claims"].is_null() {
        errors.push(FieldError::forbidden(path.child("claims"), "claims may not be set for Resources at pod-level"));
    }
    check_resources(resources, ResourceOwner::Pod, claims, &path, errors);
}

/// Errors of ports of the host that differ from those of the containers on its network.
fn check_host_ports(spec: &Value, options: &PodSpecOptions<'_>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if !is_true(&spec["hostNetwork"]) {
        return;
    }
    let path = path.child("containers");
    for (index, container) in items(spec, "containers").iter().enumerate() {
        let path = path.index(index);
        let path = path.child("ports");
        for (index, port) in items(container, "ports").iter().enumerate() {
            let number = |field: &str| port[field].as_i64().unwrap_or_default();
            let (host, own) = (number("hostPort"), number("containerPort"));
            if (options.is_pod || host != 0) && host != own {
                let why = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(path.index(index).child("hostPort"), host, why));
            }
        }
    }
}

fn check_dns_config(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let config = &spec["dnsConfig"];
    let (servers, searches) = (texts(config, "nameservers"), texts(config, "searches"));
    let servers_path = path.child("nameservers");
    if text(spec, "dnsPolicy") == "None" {
        if config.is_null() {
            errors.push(FieldError::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if servers.is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(servers_path, why));
            return;
        }
    }
    if servers.len() > MAX_NAMESERVERS {
        let why = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        errors.push(FieldError::invalid(servers_path, BadValue::from(&config["nameservers"]), why));
    }
    for (index, server) in servers.into_iter().enumerate() {
        errors.extend(check_ip(&servers_path.index(index), server));
    }
    let searches_path = path.child("searches");
    let invalid = |why: String| FieldError::invalid(searches_path, BadValue::from(&config["searches"]), why);
    if searches.len() > MAX_SEARCHES {
        errors.push(invalid(format!("must not have more than {MAX_SEARCHES} search paths")));
    }
    if searches.join(" ").len() > MAX_SEARCH_BYTES {
        errors.push(invalid(format!(
            "must not have more than {MAX_SEARCH_BYTES} characters (including spaces) in the search list"
        )));
    }
    for (index, search) in searches.into_iter().enumerate().filter(|(_, search)| *search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        errors.extend(invalid_for(searches_path.index(index), search, check_search_domain(search)));
    }
    let options = path.child("options");
    for (index, option) in items(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            errors.push(FieldError::required(options.index(index), "must not be empty"));
        }
    }
}

/// Sentences for a domain to search, which may have underscores (`IsDNS1123SubdomainWithUnderscore`).
fn check_search_domain(domain: &str) -> Vec<String> {
    const PATTERN: &str = r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
    let mut sentences = Vec::new();
    if domain.len() > 253 {
        sentences.push("must be no more than 253 bytes".to_owned());
    }
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_label = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        is_end(label.bytes().next())
            && is_end(label.bytes().next_back())
            && label.bytes().all(|byte| is_end(Some(byte)) || b"-_".contains(&byte))
    };
    if !domain.split('.').all(is_label) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', \
                    and must start and end with an alphanumeric character";
        sentences.push(pattern_error(rule, PATTERN, &["example.com"]));
    }
    sentences
}

fn check_hostname_override(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let (Some(name), path) = (spec["hostnameOverride"].as_str(), path.child("hostnameOverride")) else { return };
    for field in ["setHostnameAsFQDN", "hostNetwork"] {
        if is_true(&spec[field]) {
            errors.push(FieldError::forbidden(path, format!("may not be specified when {field} is true")));
        }
    }
    if name.len() > MAX_HOSTNAME {
        errors.push(FieldError::too_long(path, MAX_HOSTNAME));
    }
    errors.extend(invalid_for(path, name, check_dns1123_subdomain(name)));
}

fn check_scheduling_group(group: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let path = path.child("podGroupName");
    match group["podGroupName"].as_str() {
        _ if group.is_null() => {}
        None => errors.push(FieldError::invalid(path, BadValue::null(), "must specify one of: `podGroupName`")),
        Some(name) => errors.extend(invalid_for(path, name, check_dns1123_subdomain(name))),
    }
}

/// Errors of a template of Pods.
pub(in crate::kinds) fn check_pod_template(
    template: &Value,
    options: &PodSpecOptions<'_>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    check_template_metadata(template, options, path, errors);
    let (metadata, spec, spec_path) = (&template["metadata"], &template["spec"], path.child("spec"));
    check_pod_spec(spec, options, &spec_path, errors);
    check_profile_annotations(metadata, spec, &spec_path, errors);
    if !items(spec, "ephemeralContainers").is_empty() {
        let why = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(spec_path.child("ephemeralContainers"), why));
    }
}

/// Errors of the labels and annotations of a template.
pub(in crate::kinds) fn check_template_metadata(
    template: &Value,
    options: &PodSpecOptions<'_>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let empty = Map::new();
    let meta = ObjectMetaView::of_metadata(template["metadata"].as_object().unwrap_or(&empty));
    let annotations = path.child("annotations");
    validate_labels(meta.labels(), &path.child("labels"), errors);
    validate_annotations(meta.annotations(), &annotations, errors);
    let allows_any_cost = options.allows_any_deletion_cost;
    check_pod_annotations(&template["metadata"], &template["spec"], allows_any_cost, &annotations, errors);
}
