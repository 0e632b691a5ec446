//! Containers of all kinds (`validateContainers`, `validateInitContainers`, `validateEphemeralContainers`).

use std::collections::{BTreeSet, HashMap, HashSet};

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_port_name, check_port_number};
use serde_json::Value;

use super::environment::{check_environment, check_environment_sources};
use super::mounts::check_mounts;
use super::paths::{check_choice, check_supported};
use super::probes::{check_lifecycle, check_probes};
use super::resources::{ResourceOwner, check_resize_policy, check_resources};
use super::security::check_container_security;
use super::volumes::PULL_POLICIES;
use crate::kinds::internal_json::internal_json;
use crate::kinds::validation::{PROTOCOLS, invalid_for, items, text};

const MESSAGE_POLICIES: [&str; 2] = ["File", "FallbackToLogsOnError"];
const RESTART_POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
const MAX_RESTART_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
/// Fields that an ephemeral container may not have, in Go's order.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

/// What the containers of a Pod have in common.
pub(super) struct ContainerScope<'s> {
    pub(super) spec: &'s Value,
    /// Volumes that are valid, by name.
    pub(super) volumes: &'s HashMap<&'s str, &'s Value>,
    /// Names of the claims of resources.
    pub(super) claims: &'s BTreeSet<&'s str>,
}

impl ContainerScope<'_> {
    fn grace_period(&self) -> Option<i64> {
        self.spec["terminationGracePeriodSeconds"].as_i64()
    }

    /// Errors of all containers.
    pub(super) fn check(&self, path: &FieldPath<'_>, errors: &mut FieldErrors) {
        self.check_regular(&path.child("containers"), errors);
        self.check_init(&path.child("initContainers"), errors);
        self.check_ephemeral(&path.child("ephemeralContainers"), errors);
    }

    fn check_regular(&self, path: &FieldPath<'_>, errors: &mut FieldErrors) {
        let containers = items(self.spec, "containers");
        if containers.is_empty() {
            errors.push(FieldError::required(path, ""));
            return;
        }
        let mut names = HashSet::new();
        for (index, container) in containers.iter().enumerate() {
            let path = path.index(index);
            self.check_common(container, &path, errors);
            if !names.insert(text(container, "name")) {
                errors.push(FieldError::duplicate(path.child("name"), text(container, "name")));
            }
            self.check_running(container, &path, errors);
            check_restart_policy(container, &path, errors);
        }
        check_host_ports(containers.iter().enumerate(), path, errors);
    }

    fn check_init(&self, path: &FieldPath<'_>, errors: &mut FieldErrors) {
        let mut names: HashSet<&str> =
            items(self.spec, "containers").iter().map(|container| text(container, "name")).collect();
        for (index, container) in items(self.spec, "initContainers").iter().enumerate() {
            let list = path;
            let path = path.index(index);
            self.check_common(container, &path, errors);
            check_init_restart_policy(container, &path, errors);
            let name = text(container, "name");
            if names.contains(name) {
                errors.push(FieldError::duplicate(path.child("name"), name));
            } else if !name.is_empty() {
                names.insert(name);
            }
            check_host_ports([(0, container)].into_iter(), list, errors);
            let is_sidecar = text(container, "restartPolicy") == "Always";
            if is_sidecar {
                self.check_running(container, &path, errors);
                continue;
            }
            for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if !container[field].is_null() {
                    let why = "may not be set for init containers without restartPolicy=Always";
                    errors.push(FieldError::forbidden(path.child(field), why));
                }
            }
            let policies = path.child("resizePolicy");
            for (index, policy) in items(container, "resizePolicy").iter().enumerate() {
                if text(policy, "restartPolicy") == "RestartContainer" {
                    let path = policies.index(index);
                    let why = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                    errors.push(FieldError::invalid(path.child("restartPolicy"), "RestartContainer", why));
                }
            }
        }
    }

    fn check_ephemeral(&self, path: &FieldPath<'_>, errors: &mut FieldErrors) {
        let names = ["containers", "initContainers"].into_iter().flat_map(|list| items(self.spec, list));
        let others: HashSet<&str> = names.map(|container| text(container, "name")).collect();
        let mut all = others.clone();
        for (index, container) in items(self.spec, "ephemeralContainers").iter().enumerate() {
            let path = path.index(index);
            self.check_common(container, &path, errors);
            check_image_whitespace(container, &path, errors);
            let (name, target) = (text(container, "name"), text(container, "targetContainerName"));
            if !all.insert(name) {
                errors.push(FieldError::duplicate(path.child("name"), name));
            }
            if !target.is_empty() && !others.contains(target) {
                errors.push(FieldError::not_found(path.child("targetContainerName"), target));
            }
            let why = "cannot be set for an Ephemeral Container";
            let no_resources = internal_json("core.ResourceRequirements", &Value::Null);
            for field in NOT_EPHEMERAL {
                let is_set = match field {
                    "resources" => internal_json("core.ResourceRequirements", &container[field]) != no_resources,
                    field => !container[field].is_null(),
                };
                if is_set {
                    errors.push(FieldError::forbidden(path.child(field), why));
                }
            }
            let mounts = path.child("volumeMounts");
            for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
                let path = mounts.index(index);
                for field in ["subPath", "subPathExpr"] {
                    if !text(mount, field).is_empty() {
                        errors.push(FieldError::forbidden(path.child(field), why));
                    }
                }
            }
        }
    }

    /// Errors of what containers of all kinds have.
    fn check_common(&self, container: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
        match text(container, "name") {
            "" => errors.push(FieldError::required(path.child("name"), "")),
            name => errors.extend(invalid_for(path.child("name"), name, check_dns1123_label(name))),
        }
        if text(container, "image").is_empty() {
            errors.push(FieldError::required(path.child("image"), ""));
        }
        let message_policy = text(container, "terminationMessagePolicy");
        check_choice(message_policy, &MESSAGE_POLICIES, &path.child("terminationMessagePolicy"), errors);
        check_ports(items(container, "ports"), &path.child("ports"), errors);
        check_environment(items(container, "env"), &path.child("env"), errors);
        check_environment_sources(items(container, "envFrom"), &path.child("envFrom"), errors);
        check_mounts(container, self.volumes, path, errors);
        let pull_policy = text(container, "imagePullPolicy");
        check_choice(pull_policy, &PULL_POLICIES, &path.child("imagePullPolicy"), errors);
        let owner = ResourceOwner::Container;
        check_resources(&container["resources"], owner, self.claims, &path.child("resources"), errors);
        let pod_policy = text(self.spec, "restartPolicy");
        check_resize_policy(items(container, "resizePolicy"), pod_policy, &path.child("resizePolicy"), errors);
        let uses_host_users = self.spec["hostUsers"] != Value::Bool(false);
        check_container_security(
            &container["securityContext"],
            uses_host_users,
            &path.child("securityContext"),
            errors,
        );
    }

    /// Errors of what containers have that run as long as the Pod.
    fn check_running(&self, container: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
        let around = (self.grace_period(), &self.spec["os"]);
        check_lifecycle(&container["lifecycle"], around, &path.child("lifecycle"), errors);
        check_probes(container, self.grace_period(), path, errors);
    }
}

/// Errors of an image with whitespace around it, which templates may have.
pub(super) fn check_image_whitespace(container: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let image = text(container, "image");
    if image.trim() != image {
        let why = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(path.child("image"), image, why));
    }
}

fn check_ports(ports: &[Value], path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let mut names = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let item = path.index(index);
        let name = text(port, "name");
        if !name.is_empty() {
            let sentences = check_port_name(name);
            if !sentences.is_empty() {
                errors.extend(invalid_for(item.child("name"), name, sentences));
            } else if !names.insert(name) {
                errors.push(FieldError::duplicate(item.child("name"), name));
            }
        }
        for field in ["containerPort", "hostPort"] {
            match port[field].as_i64().unwrap_or_default() {
                0 if field == "containerPort" => errors.push(FieldError::required(item.child(field), "")),
                0 => {}
                number => {
                    let why = check_port_number(number);
                    errors.extend(why.map(|why| FieldError::invalid(item.child(field), number, why)));
                }
            }
        }
        check_choice(text(port, "protocol"), &PROTOCOLS, &item.child("protocol"), errors);
    }
}

/// Errors of ports of the host that occur twice (`AccumulateUniqueHostPorts`).
fn check_host_ports<'c>(
    containers: impl Iterator<Item = (usize, &'c Value)>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let mut seen = HashSet::new();
    for (index, container) in containers {
        let path = path.index(index);
        let path = path.child("ports");
        for (index, port) in items(container, "ports").iter().enumerate() {
            let number = port["hostPort"].as_i64().unwrap_or_default();
            if number == 0 {
                continue;
            }
            let shown = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
            let path = path.index(index);
            if seen.contains(&shown) {
                errors.push(FieldError::duplicate(path.child("hostPort"), &shown));
            } else {
                seen.insert(shown);
            }
        }
    }
}

fn check_init_restart_policy(container: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if container["restartPolicy"].is_null() {
        if !items(container, "restartPolicyRules").is_empty() {
            let why = "must specify restartPolicy when restart rules are used";
            errors.push(FieldError::required(path.child("restartPolicy"), why));
        }
        return;
    }
    check_restart_policy(container, path, errors);
}

/// Errors of the restart policy of a container and of its rules (`validateContainerRestartPolicy`).
fn check_restart_policy(container: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let rules = items(container, "restartPolicyRules");
    let policy_path = path.child("restartPolicy");
    match container["restartPolicy"].as_str() {
        None if rules.is_empty() => return,
        None => {
            let why = "must specify restartPolicy when restart rules are used";
            errors.push(FieldError::required(policy_path, why));
        }
        Some(policy) => check_supported(policy, &RESTART_POLICIES, &policy_path, errors),
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > MAX_RESTART_RULES {
        errors.push(FieldError::too_many(path, rules.len(), MAX_RESTART_RULES));
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        let actions = ["Restart", "RestartAllContainers"];
        check_supported(text(rule, "action"), &actions, &path.child("action"), errors);
        let codes = &rule["exitCodes"];
        let path = path.child("exitCodes");
        if codes.is_null() {
            errors.push(FieldError::required(path, "must be specified"));
            continue;
        }
        check_supported(text(codes, "operator"), &["In", "NotIn"], &path.child("operator"), errors);
        let count = items(codes, "values").len();
        if count > MAX_EXIT_CODES {
            errors.push(FieldError::too_many(path.child("values"), count, MAX_EXIT_CODES));
        }
    }
}
