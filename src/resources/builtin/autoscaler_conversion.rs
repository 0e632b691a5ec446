//! HorizontalPodAutoscalers of `autoscaling/v1`: a view of those of `autoscaling/v2`, which is the stored version
//! (`pkg/apis/autoscaling/v1/conversion.go`). What `v1` has no fields for is in annotations.

use kubeapi::json::write_json;
use kubeapi::protobuf::normalize::normalize;
use kubeapi::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::{builtin_kinds, set_defaults};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// Annotations that only the conversion writes.
const ANNOTATIONS: [&str; 6] = [
    METRICS,
    CURRENT_METRICS,
    CONDITIONS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

/// Fields with the same name in both versions.
const SPEC_FIELDS: [&str; 3] = ["scaleTargetRef", "minReplicas", "maxReplicas"];
const STATUS_FIELDS: [&str; 4] = ["observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas"];

/// Types of metrics with the fields that have their sources, in the order of `v1`.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
    ("External", "external"),
];

/// Drops annotations that only the conversion writes (`DropRoundTripHorizontalPodAutoscalerAnnotations`).
pub fn drop_conversion_annotations(object: &mut Map<String, Value>) {
    let annotations = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"));
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !ANNOTATIONS.contains(&name.as_str()));
        if annotations.is_empty()
            && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.remove("annotations");
        }
    }
}

/// Converts an object of `autoscaling/v2` to `autoscaling/v1`; one of another version stays as it is.
pub fn convert_autoscaler_to_v1(object: &mut Map<String, Value>) {
    if object.get("apiVersion").is_none_or(|version| version != "autoscaling/v2") {
        return;
    }
    drop_conversion_annotations(object);
    let spec = object.remove("spec").unwrap_or_default();
    let status = object.remove("status").unwrap_or_default();
    let metrics = list(&spec, "metrics");
    let utilization = metrics.iter().find_map(cpu_utilization);
    let others: Vec<String> = metrics
        .iter()
        .filter(|metric| cpu_utilization(metric).is_none())
        .map(|metric| metric_text(metric, false))
        .collect();
    let current: Vec<String> = list(&status, "currentMetrics").iter().map(|metric| metric_text(metric, true)).collect();
    let conditions: Vec<String> = list(&status, "conditions").iter().map(condition_text).collect();
    for (annotation, texts) in [(METRICS, others), (CURRENT_METRICS, current), (CONDITIONS, conditions)] {
        if !texts.is_empty() {
            annotate(object, annotation, format!("[{}]", texts.join(",")));
        }
    }
    if !spec["behavior"].is_null() {
        annotate(object, BEHAVIOR, behavior_text(&spec["behavior"]));
    }
    let mut new_spec = copied(&spec, &SPEC_FIELDS);
    if let Some(percent) = utilization {
        new_spec.insert("targetCPUUtilizationPercentage".to_owned(), percent);
    }
    let mut new_status = copied(&status, &STATUS_FIELDS);
    let of_cpu = list(&status, "currentMetrics").iter().filter(|metric| is_cpu(metric));
    let percent = of_cpu.map(|metric| &metric["resource"]["current"]["averageUtilization"]).rfind(|p| !p.is_null());
    if let Some(percent) = percent {
        new_status.insert("currentCPUUtilizationPercentage".to_owned(), percent.clone());
    }
    object.insert("spec".to_owned(), new_spec.into());
    object.insert("status".to_owned(), new_status.into());
    finish(object, "v1");
}

/// Converts an object of `autoscaling/v1` to `autoscaling/v2`, with its defaults; one of another version stays as it is.
pub fn convert_autoscaler_to_v2(object: &mut Map<String, Value>) {
    if object.get("apiVersion").is_none_or(|version| version != "autoscaling/v1") {
        return;
    }
    let annotated = |object: &Map<String, Value>, name: &str| -> Option<Value> {
        serde_json::from_str(object.get("metadata")?.get("annotations")?.get(name)?.as_str()?).ok()
    };
    let cpu = |field: &str, percent: &Value| match field {
        "target" => json!({"type": "Utilization", "averageUtilization": percent}),
        _ => json!({"averageUtilization": percent}),
    };
    let of_cpu = |field: &str, percent: &Value| {
        let mut source = json!({"name": "cpu"});
        source[field] = cpu(field, percent);
        json!({"type": "Resource", "resource": source})
    };
    let spec = object.remove("spec").unwrap_or_default();
    let status = object.remove("status").unwrap_or_default();
    let mut new_spec = copied(&spec, &SPEC_FIELDS);
    let mut metrics: Vec<Value> = match annotated(object, METRICS) {
        Some(Value::Array(others)) => others.iter().map(metric_of_v1).collect(),
        _ => Vec::new(),
    };
    let percent = &spec["targetCPUUtilizationPercentage"];
    if !percent.is_null() {
        metrics.push(of_cpu("target", percent));
    }
    if metrics.is_empty() {
        metrics.push(of_cpu("target", &json!(80)));
    }
    new_spec.insert("metrics".to_owned(), metrics.into());
    let behavior = annotated(object, BEHAVIOR).map(|behavior| behavior_of_internal(&behavior));
    if let Some(behavior) = behavior.filter(|behavior| !behavior.is_empty()) {
        new_spec.insert("behavior".to_owned(), behavior.into());
    }
    let mut new_status = copied(&status, &STATUS_FIELDS);
    let percent = &status["currentCPUUtilizationPercentage"];
    let current = match annotated(object, CURRENT_METRICS) {
        Some(Value::Array(current)) => current.iter().map(current_metric_of_v1).collect(),
        _ if percent.is_null() => Value::Null,
        _ => json!([of_cpu("current", percent)]),
    };
    new_status.insert("currentMetrics".to_owned(), current);
    if let Some(conditions @ Value::Array(_)) = annotated(object, CONDITIONS) {
        new_status.insert("conditions".to_owned(), conditions);
    }
    object.insert("spec".to_owned(), new_spec.into());
    object.insert("status".to_owned(), new_status.into());
    drop_conversion_annotations(object);
    finish(object, "v2");
}

/// Makes the object what Go would write of a version.
fn finish(object: &mut Map<String, Value>, version: &str) {
    let kinds = builtin_kinds();
    let kind = kinds.find("autoscaling", version, "horizontalpodautoscalers");
    let Some(message) = kind.and_then(|kind| kind.version.message()) else { return };
    object.insert("apiVersion".to_owned(), format!("autoscaling/{version}").into());
    let mut value = Value::Object(std::mem::take(object));
    // Fields of annotations may have wrong types: what a decoder refuses is not there.
    if normalize(&kinds.messages, message, &mut value).is_ok() && version == "v2" {
        set_defaults(&kinds.messages, message, &mut value);
    }
    if let Value::Object(converted) = value {
        *object = converted;
    }
}

fn list<'v>(object: &'v Value, field: &str) -> &'v [Value] {
    object[field].as_array().map_or(&[], Vec::as_slice)
}

fn copied(from: &Value, fields: &[&str]) -> Map<String, Value> {
    let present = fields.iter().filter(|field| !from[**field].is_null());
    present.map(|field| ((*field).to_owned(), from[*field].clone())).collect()
}

fn annotate(object: &mut Map<String, Value>, name: &str, text: String) {
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(name.to_owned(), text.into());
        }
    }
}

fn is_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource" && metric["resource"]["name"] == "cpu"
}

/// The utilization that a metric of processors aims at.
fn cpu_utilization(metric: &Value) -> Option<Value> {
    let percent = &metric["resource"]["target"]["averageUtilization"];
    (is_cpu(metric) && !percent.is_null()).then(|| percent.clone())
}

/// A JSON object with its fields in order; those without a value are left out.
fn object_text(fields: &[(&str, Option<String>)]) -> String {
    let fields = fields.iter().filter_map(|(name, text)| text.as_ref().map(|text| format!("\"{name}\":{text}")));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

/// The text of a field that is left out if it is absent.
fn optional(value: &Value) -> Option<String> {
    (!value.is_null()).then(|| write_json(value))
}

/// The text of a field that is always there.
fn text_or(value: &Value, zero: &str) -> Option<String> {
    Some(optional(value).unwrap_or_else(|| zero.to_owned()))
}

fn selector_text(selector: &Value) -> Option<String> {
    let fields = ["matchLabels", "matchExpressions"].map(|field| (field, optional(&selector[field])));
    (!selector.is_null()).then(|| object_text(&fields))
}

fn reference_text(reference: &Value) -> Option<String> {
    Some(object_text(&[
        ("kind", text_or(&reference["kind"], "\"\"")),
        ("name", text_or(&reference["name"], "\"\"")),
        ("apiVersion", optional(&reference["apiVersion"]).filter(|text| text != "\"\"")),
    ]))
}

/// A metric of `v1` as JSON: a target, or a current value.
fn metric_text(metric: &Value, is_current: bool) -> String {
    const ZERO: &str = "\"0\"";
    let mut fields = vec![("type", text_or(&metric["type"], "\"\""))];
    for (_, field) in SOURCES.into_iter().filter(|(_, field)| !metric[*field].is_null()) {
        let source = &metric[field];
        let value = if is_current { &source["current"] } else { &source["target"] };
        let name = text_or(&source["metric"]["name"], "\"\"");
        let selector = selector_text(&source["metric"]["selector"]);
        let resource_name = text_or(&source["name"], "\"\"");
        let average = optional(&value["averageValue"]);
        let text = match (field, is_current) {
            ("object", _) => {
                let amount = if is_current { "currentValue" } else { "targetValue" };
                object_text(&[
                    ("target", reference_text(&source["describedObject"])),
                    ("metricName", name),
                    (amount, text_or(&value["value"], ZERO)),
                    ("selector", selector),
                    ("averageValue", average),
                ])
            }
            ("pods", _) => {
                let amount = if is_current { "currentAverageValue" } else { "targetAverageValue" };
                object_text(&[
                    ("metricName", name),
                    (amount, text_or(&value["averageValue"], ZERO)),
                    ("selector", selector),
                ])
            }
            ("external", false) => object_text(&[
                ("metricName", name),
                ("metricSelector", selector),
                ("targetValue", optional(&value["value"])),
                ("targetAverageValue", average),
            ]),
            ("external", true) => object_text(&[
                ("metricName", name),
                ("metricSelector", selector),
                ("currentValue", text_or(&value["value"], ZERO)),
                ("currentAverageValue", average),
            ]),
            (_, false) => object_text(&[
                ("name", resource_name),
                ("targetAverageUtilization", optional(&value["averageUtilization"])),
                ("targetAverageValue", average),
                ("container", container_text(field, source)),
            ]),
            (_, true) => object_text(&[
                ("name", resource_name),
                ("currentAverageUtilization", optional(&value["averageUtilization"])),
                ("currentAverageValue", text_or(&value["averageValue"], ZERO)),
                ("container", container_text(field, source)),
            ]),
        };
        fields.push((field, Some(text)));
    }
    object_text(&fields)
}

fn container_text(field: &str, source: &Value) -> Option<String> {
    if field == "containerResource" { text_or(&source["container"], "\"\"") } else { None }
}

fn condition_text(condition: &Value) -> String {
    object_text(&[
        ("type", text_or(&condition["type"], "\"\"")),
        ("status", text_or(&condition["status"], "\"\"")),
        ("lastTransitionTime", text_or(&condition["lastTransitionTime"], "null")),
        ("reason", optional(&condition["reason"]).filter(|text| text != "\"\"")),
        ("message", optional(&condition["message"]).filter(|text| text != "\"\"")),
    ])
}

/// Rules for scaling as Go writes its internal struct, whose fields have no names for JSON.
fn behavior_text(behavior: &Value) -> String {
    let policy = |policy: &Value| {
        object_text(&[
            ("Type", text_or(&policy["type"], "\"\"")),
            ("Value", text_or(&policy["value"], "0")),
            ("PeriodSeconds", text_or(&policy["periodSeconds"], "0")),
        ])
    };
    let rules = |rules: &Value| {
        if rules.is_null() {
            return Some("null".to_owned());
        }
        let policies: Vec<String> = list(rules, "policies").iter().map(policy).collect();
        let policies =
            if rules["policies"].is_null() { "null".to_owned() } else { format!("[{}]", policies.join(",")) };
        Some(object_text(&[
            ("StabilizationWindowSeconds", text_or(&rules["stabilizationWindowSeconds"], "null")),
            ("SelectPolicy", text_or(&rules["selectPolicy"], "null")),
            ("Policies", Some(policies)),
            ("Tolerance", text_or(&rules["tolerance"], "null")),
        ]))
    };
    object_text(&[("ScaleUp", rules(&behavior["scaleUp"])), ("ScaleDown", rules(&behavior["scaleDown"]))])
}

/// Rules for scaling from Go's internal struct: the case of names does not matter.
fn behavior_of_internal(behavior: &Value) -> Map<String, Value> {
    let field = |object: &Value, name: &str| -> Value {
        let mut fields = object.as_object().into_iter().flatten();
        let found = fields.find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let renamed = |object: &Value, names: &[&str]| -> Map<String, Value> {
        let fields = names.iter().map(|name| ((*name).to_owned(), field(object, name)));
        fields.filter(|(_, value)| !value.is_null()).collect()
    };
    let mut result = renamed(behavior, &["scaleUp", "scaleDown"]);
    for rules in result.values_mut() {
        let mut fields = renamed(rules, &["stabilizationWindowSeconds", "selectPolicy", "policies", "tolerance"]);
        if let Some(policies) = fields.get_mut("policies").and_then(Value::as_array_mut) {
            for policy in policies {
                *policy = renamed(policy, &["type", "value", "periodSeconds"]).into();
            }
        }
        *rules = fields.into();
    }
    result
}

/// The name and selector of a metric of `v1`.
fn identifier(source: &Value, selector: &str) -> Value {
    let mut identifier = json!({"name": source["metricName"]});
    if !source[selector].is_null() {
        identifier["selector"] = source[selector].clone();
    }
    identifier
}

/// An object of the fields that have values.
fn present<const N: usize>(fields: [(&str, &Value); N]) -> Value {
    let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(fields.map(|(name, value)| (name.to_owned(), value.clone())).collect())
}

fn is_zero(amount: &Value) -> bool {
    let quantity = amount.as_str().map(Quantity::parse);
    quantity.is_none_or(|quantity| quantity.is_ok_and(|quantity| quantity.sign().is_eq()))
}

/// A target of `v2` from a metric of `v1`.
fn metric_of_v1(metric: &Value) -> Value {
    let mut result = json!({"type": metric["type"]});
    let null = Value::Null;
    for (_, field) in SOURCES.into_iter().filter(|(_, field)| !metric[*field].is_null()) {
        let source = &metric[field];
        let of_type = |name: &str| json!(name);
        result[field] = match field {
            "object" => {
                let (value, average) = (&source["targetValue"], &source["averageValue"]);
                let zero = json!("0");
                let (name, value) = match average {
                    Value::Null => ("Value", if value.is_null() { &zero } else { value }),
                    _ if is_zero(value) => ("AverageValue", &null),
                    _ => ("AverageValue", value),
                };
                let target = present([("type", &of_type(name)), ("value", value), ("averageValue", average)]);
                json!({
                    "describedObject": source["target"], "metric": identifier(source, "selector"), "target": target,
                })
            }
            "pods" => {
                let average = &source["targetAverageValue"];
                let average = if average.is_null() { json!("0") } else { average.clone() };
                let target = json!({"type": "AverageValue", "averageValue": average});
                json!({"metric": identifier(source, "selector"), "target": target})
            }
            "external" => {
                let (value, average) = (&source["targetValue"], &source["targetAverageValue"]);
                let name = of_type(if value.is_null() { "AverageValue" } else { "Value" });
                let target = present([("type", &name), ("value", value), ("averageValue", average)]);
                json!({"metric": identifier(source, "metricSelector"), "target": target})
            }
            _ => {
                let (percent, average) = (&source["targetAverageUtilization"], &source["targetAverageValue"]);
                let name = of_type(if percent.is_null() { "AverageValue" } else { "Utilization" });
                let target = present([("type", &name), ("averageValue", average), ("averageUtilization", percent)]);
                present([("name", &source["name"]), ("container", &source["container"]), ("target", &target)])
            }
        };
    }
    result
}

/// A current value of `v2` from one of `v1`.
fn current_metric_of_v1(metric: &Value) -> Value {
    let mut result = json!({"type": metric["type"]});
    let or_zero = |value: &Value| if value.is_null() { json!("0") } else { value.clone() };
    for (_, field) in SOURCES.into_iter().filter(|(_, field)| !metric[*field].is_null()) {
        let source = &metric[field];
        result[field] = match field {
            "object" => {
                let current =
                    present([("value", &or_zero(&source["currentValue"])), ("averageValue", &source["averageValue"])]);
                json!({
                    "describedObject": source["target"], "metric": identifier(source, "selector"), "current": current,
                })
            }
            "pods" => json!({
                "metric": identifier(source, "selector"),
                "current": {"averageValue": or_zero(&source["currentAverageValue"])},
            }),
            "external" => {
                let (value, average) = (or_zero(&source["currentValue"]), &source["currentAverageValue"]);
                let current = present([("value", &value), ("averageValue", average)]);
                json!({"metric": identifier(source, "metricSelector"), "current": current})
            }
            _ => {
                let (average, percent) =
                    (or_zero(&source["currentAverageValue"]), &source["currentAverageUtilization"]);
                let current = present([("averageValue", &average), ("averageUtilization", percent)]);
                present([("name", &source["name"]), ("container", &source["container"]), ("current", &current)])
            }
        };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects of both versions as Kubernetes converts them; `tests/interop/kinds --validation` writes them.
    #[test]
    fn autoscalers_converted_as_kubernetes_converts_them() {
        let mut count = 0;
        for line in include_str!("testdata/autoscalers.jsonl").lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let (Value::Object(mut object), is_to_v1) =
                (case["from"].clone(), case["from"]["apiVersion"] == "autoscaling/v2")
            else {
                panic!("no object")
            };
            match is_to_v1 {
                true => convert_autoscaler_to_v1(&mut object),
                false => convert_autoscaler_to_v2(&mut object),
            }
            assert_eq!(Value::Object(object), case["to"], "{}", case["from"]);
            count += 1;
        }
        assert!(count >= 20, "{count}");
    }

    #[test]
    fn autoscaler_with_malformed_annotations_keeps_its_fields() {
        let mut object = json!({
            "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "a", "annotations": {METRICS: "[{\"type\":1}]", BEHAVIOR: "{", CONDITIONS: "{}"}},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "a"}},
        });
        let object = object.as_object_mut().unwrap();
        convert_autoscaler_to_v2(object);
        assert_eq!(object["spec"]["maxReplicas"], 3);
        assert_eq!(object["apiVersion"], "autoscaling/v2");
        assert!(object["metadata"].get("annotations").is_none());
    }
}
