//! Warnings about Pods and templates of Pods (`pkg/api/pod/warnings.go`). Those about paths of files in volumes that overlap
//! are not given.

use std::collections::{HashMap, HashSet};

use kubeapi::GoQuoted;
use kubeapi::field_error::FieldPath;
use kubeapi::ip_address::ip_warning;
use kubeapi::names::check_dns1123_label;
use serde_json::{Map, Value};

use super::paths::visit_containers;
use super::{SPEC, pod_terms};
use crate::kinds::Object;
use crate::kinds::node_selector::{deprecated_label_text, node_selector_warnings};
use crate::kinds::resource_names::amount_of;
use crate::kinds::validation::{items, text, texts};

/// Kinds of volumes that do not work any more.
const DEPRECATED_VOLUMES: [(&str, &str, &str); 8] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
];
/// Number of warnings from which on ports are not compared: an answer has fewer.
const MAX_PORT_WARNINGS: usize = 1000;

/// Most earlier definitions with which a port is compared.
const MAX_COMPARED_PORTS: usize = 16;
const NO_POD: &str = "a null labelSelector results in matching no pod";

/// Warnings about a new Pod.
pub(super) fn pod_warnings(object: &Object) -> Vec<String> {
    let field = |name: &str| object.get(name).unwrap_or(&Value::Null);
    let sentences = check_dns1123_label(text(field("metadata"), "name"));
    let mut warnings = Vec::new();
    if !sentences.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
             recommended: [{}]",
            sentences.join(" ")
        ));
    }
    add_spec_warnings(field("spec"), &SPEC, &mut warnings);
    warnings
}

/// Warnings about a template.
pub(in crate::kinds) fn template_warnings(template: &Value, path: &FieldPath<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    add_spec_warnings(&template["spec"], &path.child("spec"), &mut warnings);
    warnings
}

fn add_spec_warnings(spec: &Value, path: &FieldPath<'_>, warnings: &mut Vec<String>) {
    add_selector_warnings(spec, path, warnings);
    let volumes = path.child("volumes");
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        for (_, shown, why) in DEPRECATED_VOLUMES.iter().filter(|(field, _, _)| !volume[*field].is_null()) {
            warnings.push(format!("{}: {why}", volumes.index(index).child(shown)));
        }
        if !volume["rbd"].is_null() {
            let why = "deprecated in v1.28, non-functional in v1.31+";
            warnings.push(format!("{}: {why}", volumes.index(index).child("rbd")));
        }
    }
    for volume in items(spec, "volumes") {
        let name = GoQuoted(text(volume, "name"));
        let sources = items(&volume["projected"], "sources").iter();
        for _ in sources.filter(|source| source.as_object().is_none_or(Map::is_empty)) {
            warnings.push(format!("volume {name} (Projected) has no sources provided"));
        }
    }
    add_duplicate_warnings(spec, path, warnings);
    add_fraction_warnings(&spec["overhead"], &path.child("overhead"), warnings);
    visit_containers(spec, path, |container, path| {
        let resources = path.child("resources");
        for list in ["limits", "requests"] {
            add_fraction_warnings(&container["resources"][list], &resources.child(list), warnings);
        }
        add_environment_warnings(items(container, "env"), &path.child("env"), warnings);
    });
    add_port_warnings(spec, path, warnings);
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        let why = "must be >= 0; negative values are invalid and will be treated as 1";
        warnings.push(format!("{}: {why}", path.child("terminationGracePeriodSeconds")));
    }
    add_affinity_warnings(spec, path, warnings);
    let config = path.child("dnsConfig");
    let servers = config.child("nameservers");
    for (index, server) in texts(&spec["dnsConfig"], "nameservers").into_iter().enumerate() {
        warnings.extend(ip_warning(&servers.index(index), server));
    }
    let aliases = path.child("hostAliases");
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        warnings.extend(ip_warning(&aliases.index(index).child("ip"), text(alias, "ip")));
    }
}

/// Warnings about labels of nodes that are deprecated, and selectors that select nothing.
fn add_selector_warnings(spec: &Value, path: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let selector = path.child("nodeSelector");
    for (key, _) in spec["nodeSelector"].as_object().into_iter().flatten() {
        warnings.extend(deprecated_label_text(key).map(|why| format!("{}: {why}", selector.key(key))));
    }
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let path_of_terms = path.child("affinity");
    let path_of_terms = path_of_terms.child("nodeAffinity");
    let path_of_terms = path_of_terms.child(required);
    let terms = items(&spec["affinity"]["nodeAffinity"][required], "nodeSelectorTerms");
    warnings.extend(node_selector_warnings(terms, &path_of_terms.child("nodeSelectorTerms")));
    let spread = path.child("topologySpreadConstraints");
    for (index, constraint) in items(spec, "topologySpreadConstraints").iter().enumerate() {
        let path = spread.index(index);
        let key = text(constraint, "topologyKey");
        let warning = |why| format!("{}: {key} is {why}", path.child("topologyKey"));
        warnings.extend(deprecated_label_text(key).map(warning));
        if constraint["labelSelector"].is_null() {
            warnings.push(format!("{}: {NO_POD}", path.child("labelSelector")));
        }
    }
}

fn add_affinity_warnings(spec: &Value, path: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let affinity_path = path.child("affinity");
    for field in ["podAffinity", "podAntiAffinity"] {
        let (affinity, path) = (&spec["affinity"][field], affinity_path.child(field));
        let required = items(affinity, "requiredDuringSchedulingIgnoredDuringExecution").len();
        let (first, second) = (
            path.child("requiredDuringSchedulingIgnoredDuringExecution"),
            path.child("preferredDuringSchedulingIgnoredDuringExecution"),
        );
        for (index, _) in pod_terms(affinity).enumerate().filter(|(_, term)| term["labelSelector"].is_null()) {
            warnings.push(match index.checked_sub(required) {
                None => format!("{}: {NO_POD}", first.index(index).child("labelSelector")),
                Some(index) => {
                    let path = second.index(index);
                    let path = path.child("podAffinityTerm");
                    format!("{}: {NO_POD}", path.child("labelSelector"))
                }
            });
        }
    }
}

fn add_duplicate_warnings(spec: &Value, path: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let (aliases, secrets) = (path.child("hostAliases"), path.child("imagePullSecrets"));
    let mut seen = HashSet::new();
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        let ip = text(alias, "ip");
        if !seen.insert(ip) {
            warnings.push(format!("{}: duplicate ip {}", aliases.index(index).child("ip"), GoQuoted(ip)));
        }
    }
    let mut seen = HashSet::new();
    for (index, secret) in items(spec, "imagePullSecrets").iter().enumerate() {
        let name = text(secret, "name");
        if !seen.insert(name) {
            warnings.push(format!("{}: duplicate name {}", secrets.index(index).child("name"), GoQuoted(name)));
        }
    }
    for (index, secret) in items(spec, "imagePullSecrets").iter().enumerate() {
        if text(secret, "name").is_empty() {
            warnings.push(format!("{}: invalid empty name \"\"", secrets.index(index).child("name")));
        }
    }
}

/// Warnings about fractions of bytes.
fn add_fraction_warnings(list: &Value, path: &FieldPath<'_>, warnings: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        if let Some(amount) = amount_of(list, name).filter(|amount| amount.milli_value() % 1000 != 0) {
            let shown = amount.to_string();
            let why = "is invalid, must be an integer";
            warnings.push(format!("{}: fractional byte value {} {why}", path.key(name), GoQuoted(&shown)));
        }
    }
}

/// Warnings about variables that hide others of their name.
fn add_environment_warnings(variables: &[Value], path: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for (index, variable) in variables.iter().enumerate() {
        let (name, value) = (text(variable, "name"), text(variable, "value"));
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        let is_bad = !variable["valueFrom"].is_null() || value == reference || !value.contains(&reference);
        if is_bad {
            let why = "which may be dropped when using apply";
            let name = GoQuoted(name);
            warnings.push(format!("{}: hides previous definition of {name}, {why}", path.index(index)));
        }
    }
}

/// The path, address and number of a port.
type OwnPort = (String, String, i64);

/// Warnings about ports that are defined twice.
fn add_port_warnings(spec: &Value, path: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let mut ports: HashMap<(i64, String), Vec<OwnPort>> = HashMap::new();
    let mut name_warnings = Vec::new();
    let mut names: HashMap<String, String> = HashMap::new();
    visit_containers(spec, path, |container, path| {
        let path = path.child("ports");
        for (index, port) in items(container, "ports").iter().enumerate() {
            if warnings.len() + name_warnings.len() >= MAX_PORT_WARNINGS {
                break;
            }
            let shown = path.index(index).to_string();
            let number = |field: &str| port[field].as_i64().unwrap_or_default();
            let (address, host, own) = (text(port, "hostIP"), number("hostPort"), number("containerPort"));
            let (name, protocol) = (text(port, "name"), text(port, "protocol"));
            if !address.is_empty() && host == 0 {
                warnings.push(format!(
                    "{shown}: hostIP set without hostPort: {{Name:{name} HostPort:{host} ContainerPort:{own} \
                     Protocol:{protocol} HostIP:{address}}}"
                ));
            }
            let others = ports.entry((own, protocol.to_owned())).or_default();
            for (other, other_address, other_host) in others.iter() {
                let has_one_address = address.is_empty() != other_address.is_empty();
                if address == other_address && host == *other_host {
                    warnings.push(format!("{shown}: duplicate port definition with {other}"));
                } else if host == 0 || *other_host == 0 {
                    warnings.push(format!("{shown}: overlapping port definition with {other}"));
                } else if host == *other_host && has_one_address {
                    warnings.push(format!("{shown}: dangerously ambiguous port definition with {other}"));
                }
            }
            if others.len() < MAX_COMPARED_PORTS {
                others.push((shown.clone(), address.to_owned(), host));
            }
            if name.is_empty() {
                continue;
            }
            match names.get(name) {
                Some(other) => name_warnings.push(format!(
                    "{shown}: duplicate port name {} with {other}, services and probes that select ports by name will \
                     use {other}",
                    GoQuoted(name)
                )),
                None => drop(names.insert(name.to_owned(), shown)),
            }
        }
    });
    warnings.append(&mut name_warnings);
}
