//! The quality of service of a Pod (`pkg/apis/core/helper/qos`).

use std::collections::BTreeMap;

use kubeapi::quantity::Quantity;
use serde_json::Value;

/// The resources that count for the quality of service.
const COMPUTE_RESOURCES: [&str; 2] = ["cpu", "memory"];

/// Positive amounts of compute resources in nanos, by name.
type Amounts = BTreeMap<&'static str, i128>;

/// The class of a Pod (`ComputePodQOS` in `pkg/apis/core/helper/qos`): by the resources of the Pod, or by those of its
/// containers.
pub(super) fn quality_of_service(spec: &Value) -> &'static str {
    let lists = [&spec["containers"], &spec["initContainers"]];
    let containers = lists.into_iter().filter_map(Value::as_array).flatten().map(|container| &container["resources"]);
    let parts: Vec<&Value> = match &spec["resources"] {
        resources @ Value::Object(_) => vec![resources],
        _ => containers.collect(),
    };
    let (mut requests, mut limits, mut is_guaranteed) = (Amounts::new(), Amounts::new(), true);
    for resources in parts {
        add_amounts(&resources["requests"], &mut requests);
        is_guaranteed &= add_amounts(&resources["limits"], &mut limits) == COMPUTE_RESOURCES.len();
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if is_guaranteed && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Adds the positive amounts of `list`; returns their number.
fn add_amounts(list: &Value, sum: &mut Amounts) -> usize {
    let mut count = 0;
    for name in COMPUTE_RESOURCES {
        if let Some(amount) = list[name].as_str().and_then(nanos).filter(|amount| *amount > 0) {
            let total = sum.entry(name).or_default();
            *total = total.saturating_add(amount);
            count += 1;
        }
    }
    count
}

/// A quantity in nanos; none if it cannot be read or is too large.
fn nanos(quantity: &str) -> Option<i128> {
    Quantity::parse(quantity).ok()?.nanos()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(spec: &Value) -> &'static str {
        quality_of_service(spec)
    }

    fn container(requests: &Value, limits: &Value) -> Value {
        json!({"resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn pod_quality_of_service_as_upstream() {
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let same = json!({"cpu": "1000m", "memory": "1024Mi"});
        assert_eq!(class(&json!({"containers": [{}]})), "BestEffort");
        assert_eq!(
            class(&json!({"containers": [container(&json!({"cpu": "0"}), &json!({"gpu": "1"}))]})),
            "BestEffort"
        );
        assert_eq!(class(&json!({"containers": [container(&full, &same)]})), "Guaranteed");
        assert_eq!(class(&json!({"containers": [container(&full, &same), {}]})), "Burstable");
        assert_eq!(class(&json!({"containers": [container(&json!({"cpu": "1"}), &full)]})), "Burstable");
        let halves = [container(&json!({"cpu": "0.5"}), &json!({})), container(&json!({"cpu": "500m"}), &json!({}))];
        assert_eq!(class(&json!({"containers": halves})), "Burstable");
        let init = json!({"containers": [container(&full, &full)], "initContainers": [{}]});
        assert_eq!(class(&init), "Burstable");
        // The resources of the Pod count before those of its containers.
        assert_eq!(class(&json!({"containers": [{}], "resources": {"requests": full, "limits": same}})), "Guaranteed");
        assert_eq!(class(&json!({"containers": [{}], "resources": {}})), "BestEffort");
    }

    #[test]
    fn quantities_compared_in_nanos() {
        for (text, expected) in [
            ("1", Some(1_000_000_000)),
            ("100m", Some(100_000_000)),
            ("+1.5Ki", Some(1_536_000_000_000)),
            ("1e3", Some(1_000_000_000_000)),
            ("1E-3", Some(1_000_000)),
            ("3n", Some(3)),
            ("-1", Some(-1_000_000_000)),
            ("1E", Some(10_i128.pow(27))),
            (".5", Some(500_000_000)),
            ("", None),
            ("x", None),
            ("1 ", None),
            ("1e999", None),
            ("1e100", None),
        ] {
            assert_eq!(nanos(text), expected, "{text}");
        }
        assert_eq!(nanos(&"9".repeat(60)), None);
    }
}
