//! Plugins that complete Pods: `Priority`, `DefaultTolerationSeconds`, `RuntimeClass`.

use std::collections::HashSet;

use kubeapi::json::write_json;
use kubeapi::{GoQuoted, Status};
use serde_json::{Map, Value, json};

use super::AdmittedWrite;
use crate::rest::admission_plugins::AdmissionPlugin;

/// Seconds that a Pod stays on a node that is not ready or not reachable.
const TOLERATION_SECONDS: i64 = 300;

/// What a PriorityClass gives a Pod.
struct PodPriority {
    class: String,
    value: i64,
    preemption: Option<String>,
}

impl AdmittedWrite<'_> {
    pub(super) async fn admit_pod(self, pod: &mut Map<String, Value>) -> Result<(), Status> {
        self.apply_service_account(pod).await?;
        if self.has_plugin(AdmissionPlugin::Priority) {
            self.set_priority(pod).await?;
        }
        if self.has_plugin(AdmissionPlugin::DefaultTolerationSeconds) {
            add_tolerations(pod);
        }
        if self.has_plugin(AdmissionPlugin::RuntimeClass) && self.old.is_none() {
            self.apply_runtime_class(pod).await?;
        }
        Ok(())
    }

    async fn set_priority(self, pod: &mut Map<String, Value>) -> Result<(), Status> {
        if let Some(old) = self.old {
            // What the server has set stays if a client leaves it out.
            for field in ["priority", "preemptionPolicy"] {
                let kept = old.get("spec").map_or(Value::Null, |spec| spec[field].clone());
                if let Some(spec) = pod.get_mut("spec").filter(|spec| spec[field].is_null() && !kept.is_null()) {
                    spec[field] = kept;
                }
            }
            return Ok(());
        }
        let spec = pod.get("spec").unwrap_or(&Value::Null);
        let class = spec["priorityClassName"].as_str().filter(|name| !name.is_empty());
        let priority = match class {
            None => self.default_priority().await?,
            Some(name) => {
                let class = self.find("scheduling.k8s.io", "priorityclasses", name).await?;
                let why = || format!("no PriorityClass with name {name} was found");
                pod_priority(&class.ok_or_else(|| self.forbidden(pod, why()))?)
            }
        };
        const COMPUTED: &str = "must not be provided in pod spec; priority admission controller computed";
        if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority.value) {
            let computed = priority.value;
            let why = format!(
                "the integer value of priority ({given}) {COMPUTED} {computed} from the given PriorityClass name"
            );
            return Err(self.forbidden(pod, why));
        }
        let given = spec["preemptionPolicy"].as_str();
        if let (Some(given), Some(computed)) = (given, &priority.preemption)
            && given != computed
        {
            let why = format!(
                "the string value of PreemptionPolicy ({given}) {COMPUTED} {computed} from the given PriorityClass name"
            );
            return Err(self.forbidden(pod, why));
        }
        if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
            spec.insert("priority".to_owned(), json!(priority.value));
            if !priority.class.is_empty() {
                spec.insert("priorityClassName".to_owned(), json!(priority.class));
            }
            if let Some(preemption) = priority.preemption {
                spec.insert("preemptionPolicy".to_owned(), json!(preemption));
            }
        }
        Ok(())
    }

    /// That of the default class with the lowest value; 0 without one.
    async fn default_priority(self) -> Result<PodPriority, Status> {
        let classes = self.all("scheduling.k8s.io", "priorityclasses").await?;
        let defaults = classes.iter().filter(|class| class.get("globalDefault") == Some(&json!(true)));
        let none = PodPriority { class: String::new(), value: 0, preemption: Some("PreemptLowerPriority".to_owned()) };
        Ok(defaults.map(pod_priority).min_by_key(|priority| priority.value).unwrap_or(none))
    }

    /// Refuses a second default class.
    pub(super) async fn check_priority_class(self, class: &mut Map<String, Value>) -> Result<(), Status> {
        if !self.has_plugin(AdmissionPlugin::Priority) || class.get("globalDefault") != Some(&json!(true)) {
            return Ok(());
        }
        let default = self.default_priority().await?.class;
        if default.is_empty() || default == super::text(class, "metadata", "name") {
            return Ok(());
        }
        let why = format!("PriorityClass {default} is already marked as default. Only one default can exist");
        Err(self.forbidden(class, why))
    }

    async fn apply_runtime_class(self, pod: &mut Map<String, Value>) -> Result<(), Status> {
        let spec = pod.get("spec").unwrap_or(&Value::Null);
        let class = match spec["runtimeClassName"].as_str() {
            None => None,
            Some(name) => {
                let class = self.find("node.k8s.io", "runtimeclasses", name).await?;
                let why = || format!("pod rejected: RuntimeClass {} not found", GoQuoted(name));
                Some(class.ok_or_else(|| self.forbidden(pod, why()))?)
            }
        };
        let overhead = class.as_ref().and_then(|class| class.get("overhead")).map(|overhead| &overhead["podFixed"]);
        let own = spec["overhead"].as_object().filter(|own| !own.is_empty());
        match (overhead, own) {
            (None, Some(_)) => {
                let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
                return Err(self.forbidden(pod, why));
            }
            (Some(overhead), Some(own)) if overhead.as_object() != Some(own) => {
                let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
                return Err(self.forbidden(pod, why));
            }
            _ => {}
        }
        let overhead = overhead.filter(|overhead| overhead.is_object()).cloned();
        let scheduling = class.as_ref().and_then(|class| class.get("scheduling")).cloned().unwrap_or_default();
        if let Some(overhead) = overhead
            && let Some(spec) = pod.get_mut("spec")
        {
            spec["overhead"] = overhead;
        }
        for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
            let selector = pod.get("spec").map_or(&Value::Null, |spec| &spec["nodeSelector"]);
            let (own, wanted) = (selector[key].as_str(), value.as_str().unwrap_or_default());
            if let Some(own) = own.filter(|own| *own != wanted) {
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {own}"
                );
                return Err(self.forbidden(pod, why));
            }
            if let Some(spec) = pod.get_mut("spec") {
                spec["nodeSelector"][key] = value.clone();
            }
        }
        let added = scheduling["tolerations"].as_array().cloned().unwrap_or_default();
        if !added.is_empty()
            && let Some(tolerations) = tolerations(pod)
        {
            let mut seen: HashSet<String> = tolerations.iter().map(write_json).collect();
            tolerations.extend(added.into_iter().filter(|toleration| seen.insert(write_json(toleration))));
        }
        Ok(())
    }
}

fn pod_priority(class: &Map<String, Value>) -> PodPriority {
    PodPriority {
        class: super::text(class, "metadata", "name").to_owned(),
        value: class.get("value").and_then(Value::as_i64).unwrap_or_default(),
        preemption: class.get("preemptionPolicy").and_then(Value::as_str).map(str::to_owned),
    }
}

/// The tolerations of a Pod, made if there are none.
fn tolerations(pod: &mut Map<String, Value>) -> Option<&mut Vec<Value>> {
    let spec = pod.entry("spec").or_insert_with(|| json!({})).as_object_mut()?;
    spec.entry("tolerations").or_insert_with(|| json!([])).as_array_mut()
}

/// A Pod stays some minutes on a node that is not ready or not reachable.
fn add_tolerations(pod: &mut Map<String, Value>) {
    let Some(tolerations) = tolerations(pod) else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let is_tolerated = tolerations.iter().any(|one| {
            let text = |field: &str| one[field].as_str().unwrap_or_default();
            (text("key").is_empty() || text("key") == key) && matches!(text("effect"), "" | "NoExecute")
        });
        if !is_tolerated {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_tolerates_nodes_for_minutes_unless_it_says_otherwise() {
        let tolerations = |given: Value| {
            let Value::Object(mut pod) = json!({"spec": {"tolerations": given}}) else { unreachable!() };
            add_tolerations(&mut pod);
            let all = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
            all.iter().map(|one| one["key"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        const NOT_READY: &str = "node.kubernetes.io/not-ready";
        const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
        assert_eq!(tolerations(json!([])), [NOT_READY, UNREACHABLE]);
        assert_eq!(tolerations(json!([{"operator": "Exists"}])), [""]);
        let other = json!([{"key": NOT_READY, "effect": "NoSchedule"}, {"key": UNREACHABLE, "effect": "NoExecute"}]);
        assert_eq!(tolerations(other), [NOT_READY, UNREACHABLE, NOT_READY]);
    }
}
