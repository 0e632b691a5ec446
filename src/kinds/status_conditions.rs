//! Conditions that subresources write (`pkg/api/pod/util.go`, `k8s.io/component-helpers/apps/poddisruptionbudget`).

use serde_json::{Map, Value, json};

use super::Object;

/// Sets a condition of a Pod. Its time of transition stays if its status does (`UpdatePodCondition`).
pub fn set_pod_condition(pod: &mut Object, condition: &Value, now: &str) {
    let mut condition = condition.clone();
    condition["lastProbeTime"] = Value::Null;
    if let Some(status) = pod.entry("status").or_insert_with(|| json!({})).as_object_mut() {
        set_condition(status, condition, now);
    }
}

/// Whether the containers of a Pod are ready.
pub fn is_pod_ready(pod: &Object) -> bool {
    let conditions = pod.get("status").and_then(|status| status["conditions"].as_array());
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// Sets the condition of a PodDisruptionBudget that allows no more evictions (`UpdateDisruptionAllowedCondition`).
pub fn set_disruptions_exhausted(status: &mut Map<String, Value>, now: &str) {
    let mut condition = json!({
        "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
    });
    if let Some(generation) = status.get("observedGeneration") {
        condition["observedGeneration"] = generation.clone();
    }
    set_condition(status, condition, now);
}

/// Sets a condition of a status, by its type.
fn set_condition(status: &mut Map<String, Value>, mut condition: Value, now: &str) {
    let Value::Array(conditions) = status.entry("conditions").or_insert_with(|| json!([])) else { return };
    let old = conditions.iter_mut().find(|one| one["type"] == condition["type"]);
    let same = old.as_deref().filter(|old| old["status"] == condition["status"]);
    condition["lastTransitionTime"] = same.map_or_else(|| json!(now), |old| old["lastTransitionTime"].clone());
    match old {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_keeps_its_time_while_its_status_stays() {
        let mut pod = Object::new();
        let condition = |status: &str| json!({"type": "Ready", "status": status});
        set_pod_condition(&mut pod, &condition("True"), "t1");
        set_pod_condition(&mut pod, &condition("True"), "t2");
        assert!(is_pod_ready(&pod));
        let ready = json!({"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": "t1"});
        assert_eq!(pod["status"]["conditions"], json!([ready]));
        set_pod_condition(&mut pod, &condition("False"), "t3");
        assert_eq!(pod["status"]["conditions"][0]["lastTransitionTime"], "t3");
        assert!(!is_pod_ready(&pod));
    }
}
