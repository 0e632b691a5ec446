//! Where a Pod may run: affinity, tolerations, spread over topologies, gates (`validateAffinity`, `ValidateTolerations`,
//! `validateTopologySpreadConstraints`).

use std::collections::{HashMap, HashSet};

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_label_value, check_qualified_name};
use serde_json::{Value, json};

use super::PodSpecOptions;
use super::paths::check_supported;
use crate::kinds::field_rules::label_selector_errors;
use crate::kinds::node_selector::node_selector_errors;
use crate::kinds::validation::{invalid_for, items, text, texts};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const ACTIONS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];

/// Errors of the affinity to nodes and to other Pods.
pub(super) fn check_affinity(
    affinity: &Value,
    options: &PodSpecOptions<'_>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let (nodes, nodes_path) = (&affinity["nodeAffinity"], path.child("nodeAffinity"));
    if !nodes[REQUIRED].is_null() {
        let allows_any = options.allows_any_node_value;
        errors.append(node_selector_errors(&nodes[REQUIRED], allows_any, &nodes_path.child(REQUIRED)));
    }
    let preferred = nodes_path.child(PREFERRED);
    for (index, term) in items(nodes, PREFERRED).iter().enumerate() {
        let path = preferred.index(index);
        check_weight(term, &path, errors);
        check_node_term(&term["preference"], &path.child("preference"), errors);
    }
    for field in ["podAffinity", "podAntiAffinity"] {
        let path = path.child(field);
        let (required, preferred) = (path.child(REQUIRED), path.child(PREFERRED));
        for (index, term) in items(&affinity[field], REQUIRED).iter().enumerate() {
            check_pod_term(term, options, &required.index(index), errors);
        }
        for (index, weighted) in items(&affinity[field], PREFERRED).iter().enumerate() {
            let path = preferred.index(index);
            check_weight(weighted, &path, errors);
            check_pod_term(&weighted["podAffinityTerm"], options, &path.child("podAffinityTerm"), errors);
        }
    }
}

fn check_weight(term: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let weight = term["weight"].as_i64().unwrap_or_default();
    if !(1..=100).contains(&weight) {
        errors.push(FieldError::invalid(path.child("weight"), weight, "must be in the range 1-100"));
    }
}

/// Errors of a preferred term, whose values may be any.
fn check_node_term(term: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let selector = json!({"nodeSelectorTerms": [term]});
    let prefix = format!("{}.", FieldPath::root("nodeSelectorTerms").index(0));
    let found = node_selector_errors(&selector, true, &FieldPath::root(""));
    errors.append(found.map(|mut error| {
        if let Some((_, rest)) = error.field.split_once(&prefix) {
            error.field = format!("{path}.{rest}");
        }
        error
    }));
}

fn check_pod_term(term: &Value, options: &PodSpecOptions<'_>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let allows_any = options.allows_any_selector_value;
    for field in ["labelSelector", "namespaceSelector"] {
        errors.append(label_selector_errors(&term[field], allows_any, &path.child(field)));
    }
    for name in texts(term, "namespaces") {
        errors.extend(invalid_for(path.child("namespace"), name, check_dns1123_label(name)));
    }
    check_label_keys(term, path, errors);
    let key = text(term, "topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(path.child("topologyKey"), "can not be empty"));
    }
    errors.extend(invalid_for(path.child("topologyKey"), key, check_qualified_name(key)));
}

/// Errors of keys of labels whose values are those of the Pod (`ValidateMatchLabelKeysAndMismatchLabelKeys`).
fn check_label_keys(term: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let selector = &term["labelSelector"];
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let (keys, path) = (texts(term, field), path.child(field));
        if !keys.is_empty() && selector.is_null() {
            errors.push(FieldError::forbidden(path, "must not be specified when labelSelector is not set"));
            continue;
        }
        for (index, key) in keys.into_iter().enumerate() {
            errors.extend(invalid_for(path.index(index), key, check_qualified_name(key)));
        }
    }
    let keys = texts(term, "matchLabelKeys");
    let positions: HashMap<&str, usize> = keys.iter().enumerate().map(|(index, key)| (*key, index)).collect();
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut selected: HashSet<&str> = labels.map(|(key, _)| key.as_str()).collect();
    for expression in items(selector, "matchExpressions") {
        let key = text(expression, "key");
        if let Some(index) = positions.get(key)
            && selected.contains(key)
        {
            let why = "exists in both matchLabelKeys and labelSelector";
            errors.push(FieldError::invalid(path.index(*index), key, why));
        }
        selected.insert(key);
    }
    let mismatched: HashSet<&str> = texts(term, "mismatchLabelKeys").into_iter().collect();
    let path = path.child("matchLabelKeys");
    for (index, key) in keys.iter().enumerate().filter(|(_, key)| mismatched.contains(*key)) {
        let why = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.push(FieldError::invalid(path.index(index), *key, why));
    }
}

/// Errors of the spread of Pods over topologies.
pub(super) fn check_topology_spread(
    constraints: &[Value],
    options: &PodSpecOptions<'_>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let pair = |constraint: &Value| {
        (text(constraint, "topologyKey").to_owned(), text(constraint, "whenUnsatisfiable").to_owned())
    };
    let mut left: HashMap<(String, String), usize> = HashMap::new();
    constraints.iter().for_each(|constraint| *left.entry(pair(constraint)).or_insert(0) += 1);
    for (index, constraint) in constraints.iter().enumerate() {
        let path = path.index(index);
        check_positive(constraint, "maxSkew", &path, errors);
        let (key, action) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        if key.is_empty() {
            errors.push(FieldError::required(path.child("topologyKey"), "can not be empty"));
        }
        check_supported(action, &ACTIONS, &path.child("whenUnsatisfiable"), errors);
        if let Some(count) = left.get_mut(&pair(constraint)) {
            *count -= 1;
            if *count > 0 {
                let path = path.child("{topologyKey, whenUnsatisfiable}");
                errors.push(FieldError::duplicate(path, &format!("{{{key}, {action}}}")));
            }
        }
        if let Some(count) = constraint["minDomains"].as_i64() {
            check_positive(constraint, "minDomains", &path, errors);
            if action != "DoNotSchedule" {
                let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.push(FieldError::invalid(path.child("minDomains"), count, why));
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = constraint[field].as_str() {
                check_supported(policy, &["Honor", "Ignore"], &path.child(field), errors);
            }
        }
        check_label_keys(constraint, &path, errors);
        if !options.allows_any_spread_value {
            let selector = &constraint["labelSelector"];
            errors.append(label_selector_errors(selector, false, &path.child("labelSelector")));
        }
    }
}

fn check_positive(object: &Value, field: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let number = object[field].as_i64().unwrap_or_default();
    if number <= 0 {
        errors.push(FieldError::invalid(path.child(field), number, "must be greater than zero"));
    }
}

/// Errors of tolerations.
pub(super) fn check_tolerations(tolerations: &[Value], path: &FieldPath<'_>, errors: &mut FieldErrors) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = path.index(index);
        let operator_path = path.child("operator");
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        let (value, effect) = (text(toleration, "value"), text(toleration, "effect"));
        if !key.is_empty() {
            errors.extend(invalid_for(path.child("key"), key, check_qualified_name(key)));
        } else if operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(operator_path, operator, why));
        }
        if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(path.child("effect"), effect, why));
        }
        match operator {
            "" | "Equal" => {
                let sentences = check_label_value(value);
                if !sentences.is_empty() {
                    errors.push(FieldError::invalid(operator_path, value, sentences.join(";")));
                }
            }
            "Exists" => {
                if !value.is_empty() {
                    let why = "value must be empty when `operator` is 'Exists'";
                    errors.push(FieldError::invalid(operator_path, value, why));
                }
            }
            // Their feature is off.
            "Lt" | "Gt" => {
                let supported = ["Equal", "Exists", "Lt", "Gt"];
                errors.push(FieldError::not_supported(operator_path, operator, &supported));
            }
            other => check_supported(other, &["Equal", "Exists"], &operator_path, errors),
        }
        if !effect.is_empty() {
            check_supported(effect, &EFFECTS, &path.child("effect"), errors);
        }
    }
}

/// Errors of gates of scheduling.
pub(super) fn check_scheduling_gates(gates: &[Value], path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let mut seen = HashSet::new();
    for (index, gate) in gates.iter().enumerate() {
        let name = text(gate, "name");
        errors.extend(invalid_for(path.index(index), name, check_qualified_name(name)));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(path.index(index), name));
        }
    }
}
