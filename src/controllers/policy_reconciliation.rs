//! What of a bootstrap role or binding is missing in the stored one: it is added, and nothing is removed
//! (`k8s.io/component-helpers/auth/rbac/reconciliation`).

use kubeapi::Status;
use kubeapi::object_meta::change_metadata;
use serde_json::{Map, Value, json};

use crate::authorize::policy::{PolicyRule, RulePart, uncovered_parts};
use crate::compute::WorkLimit;

type Object = Map<String, Value>;

/// What is to be done with a stored role or binding.
#[derive(Debug, PartialEq)]
pub(super) enum Reconciliation {
    /// It has all, or its annotation `rbac.authorization.kubernetes.io/autoupdate` forbids changes.
    Unchanged,
    /// It becomes this object.
    Update(Object),
    /// It is a binding of another role, which cannot change: it is deleted, and the expected one created.
    Recreate,
}

/// Compares a stored role or binding with the one that is expected.
///
/// # Errors
/// The rules of the stored role cannot be read.
pub(super) fn reconcile(stored: &Object, expected: &Object) -> Result<Reconciliation, Status> {
    if stored.get("metadata").is_some_and(|meta| meta["annotations"][AUTO_UPDATE] == "false") {
        return Ok(Reconciliation::Unchanged);
    }
    if stored.get("roleRef") != expected.get("roleRef") {
        return Ok(Reconciliation::Recreate);
    }
    let mut object = stored.clone();
    for field in ["labels", "annotations"] {
        let Some(entries) = expected.get("metadata").and_then(|meta| meta[field].as_object()) else { continue };
        change_metadata(&mut object, |meta| {
            let found = meta.entry(field).or_insert_with(|| json!({}));
            for (key, value) in entries {
                if found.get(key).is_none() {
                    found[key] = value.clone();
                }
            }
        });
    }
    let missing_rules = missing_rules(stored, expected)?;
    add_items(&mut object, "rules", missing_rules);
    let subjects = |of: &Object| of.get("subjects").cloned().unwrap_or_default();
    add_items(&mut object, "subjects", missing_items(&subjects(stored), &subjects(expected)));
    let selectors = |of: &Object| of.get("aggregationRule").map(|rule| rule["clusterRoleSelectors"].clone());
    match (selectors(stored), selectors(expected)) {
        (Some(_), None) => drop(object.remove("aggregationRule")),
        (found, Some(required)) => {
            let missing = missing_items(&found.unwrap_or_default(), &required);
            if !missing.is_empty() {
                let rule = object.entry("aggregationRule").or_insert_with(|| json!({}));
                if let Some(rule) = rule.as_object_mut() {
                    add_items(rule, "clusterRoleSelectors", missing);
                }
            }
        }
        (None, None) => {}
    }
    Ok(if object == *stored { Reconciliation::Unchanged } else { Reconciliation::Update(object) })
}

const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

fn missing_rules(stored: &Object, expected: &Object) -> Result<Vec<Value>, Status> {
    let rules = |of: &Object| -> Result<Vec<PolicyRule>, Status> {
        let rules = of.get("rules").filter(|rules| !rules.is_null()).cloned().unwrap_or_else(|| json!([]));
        serde_json::from_value(rules).map_err(Status::internal_error)
    };
    let (found, required) = (rules(stored)?, rules(expected)?);
    let missing = uncovered_parts(found.iter(), &required, &WorkLimit::for_server());
    let missing = missing.map_err(|_| Status::internal_error("its rules are too many to be compared"))?;
    Ok(missing.into_iter().map(|part| RulePart::to_rule(part).to_json()).collect())
}

fn missing_items(found: &Value, expected: &Value) -> Vec<Value> {
    let found = found.as_array().map(Vec::as_slice).unwrap_or_default();
    expected.as_array().into_iter().flatten().filter(|one| !found.contains(one)).cloned().collect()
}

fn add_items(object: &mut Object, field: &str, items: Vec<Value>) {
    if items.is_empty() {
        return;
    }
    match object.entry(field).or_insert_with(|| json!([])) {
        Value::Array(list) => list.extend(items),
        other => *other = items.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: &Value) -> Object {
        value.as_object().cloned().unwrap()
    }

    fn role(rules: &Value) -> Value {
        json!({"metadata": {"name": "r", "labels": {"a": "1"}, "annotations": {AUTO_UPDATE: "true"}}, "rules": rules})
    }

    fn reconciled(stored: &Value, expected: &Value) -> Value {
        match reconcile(&object(stored), &object(expected)).unwrap() {
            Reconciliation::Update(object) => object.into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn missing_rules_labels_and_selectors_are_added_and_others_stay() {
        let get = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
        let own = json!({"apiGroups": ["g"], "resources": ["things"], "verbs": ["*"]});
        let both = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]});
        let expected = role(&json!([both]));
        let mut stored = role(&json!([own, get]));
        stored["metadata"]["labels"] = json!({"a": "2"});
        let list = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]});
        let found = reconciled(&stored, &expected);
        assert_eq!(found["rules"], json!([own, get, list]));
        assert_eq!(found["metadata"]["labels"], json!({"a": "2"}), "what is set stays");
        assert_eq!(reconcile(&object(&found), &object(&expected)).unwrap(), Reconciliation::Unchanged);
        stored["metadata"]["annotations"][AUTO_UPDATE] = "false".into();
        assert_eq!(reconcile(&object(&stored), &object(&expected)).unwrap(), Reconciliation::Unchanged);

        let selector = json!({"matchLabels": {"x": "true"}});
        let aggregated = json!({"metadata": {"name": "r"}, "aggregationRule": {"clusterRoleSelectors": [selector]}});
        let plain = json!({"metadata": {"name": "r"}, "rules": [get]});
        let found = reconciled(&plain, &aggregated);
        assert_eq!((&found["aggregationRule"], &found["rules"]), (&aggregated["aggregationRule"], &json!([get])));
        assert_eq!(reconciled(&aggregated, &plain)["aggregationRule"], Value::Null);
    }

    #[test]
    fn binding_of_another_role_is_made_again() {
        let subject = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name});
        let binding = |role: &str, subjects: &Value| json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": subjects});
        let expected = binding("r", &json!([subject("a"), subject("b")]));
        let found = reconciled(&binding("r", &json!([subject("c"), subject("b")])), &expected);
        assert_eq!(found["subjects"], json!([subject("c"), subject("b"), subject("a")]));
        let other = object(&binding("other", &json!([subject("a")])));
        assert_eq!(reconcile(&other, &object(&expected)).unwrap(), Reconciliation::Recreate);
    }
}
