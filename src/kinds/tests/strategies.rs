//! Defaults, preparation, validation, warnings and cells, compared with what a kube-apiserver's strategies made of the
//! same objects: `testdata/validation`, which `tests/interop/kinds --validation` writes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kubeapi::patch::MergePatch;
use kubeapi::protobuf::normalize::normalize;
use serde_json::{Map, Value, json};

use super::UnlimitedBudget;
use crate::kinds::cells::table_cells;
use crate::kinds::{
    ObjectUpdate, ValidationSettings, changes_generation, has_generation, kind_errors, object_warnings, rules,
};
use crate::resources::ServedKind;
use crate::resources::builtin::{builtin_kinds, set_defaults};

/// The cases of the kinds, by the name of their file.
const CASES: &[(&str, &str)] = &[
    ("certificatesigningrequests", include_str!("../testdata/validation/certificatesigningrequests.jsonl")),
    ("clusterrolebindings", include_str!("../testdata/validation/clusterrolebindings.jsonl")),
    ("clusterroles", include_str!("../testdata/validation/clusterroles.jsonl")),
    ("controllerrevisions", include_str!("../testdata/validation/controllerrevisions.jsonl")),
    ("cronjobs", include_str!("../testdata/validation/cronjobs.jsonl")),
    ("csidrivers", include_str!("../testdata/validation/csidrivers.jsonl")),
    ("csinodes", include_str!("../testdata/validation/csinodes.jsonl")),
    ("csistoragecapacities", include_str!("../testdata/validation/csistoragecapacities.jsonl")),
    ("daemonsets", include_str!("../testdata/validation/daemonsets.jsonl")),
    ("deployments", include_str!("../testdata/validation/deployments.jsonl")),
    ("deviceclasses", include_str!("../testdata/validation/deviceclasses.jsonl")),
    ("flowschemas", include_str!("../testdata/validation/flowschemas.jsonl")),
    ("horizontalpodautoscalers", include_str!("../testdata/validation/horizontalpodautoscalers.jsonl")),
    ("ingressclasses", include_str!("../testdata/validation/ingressclasses.jsonl")),
    ("ingresses", include_str!("../testdata/validation/ingresses.jsonl")),
    ("ipaddresses", include_str!("../testdata/validation/ipaddresses.jsonl")),
    ("jobs", include_str!("../testdata/validation/jobs.jsonl")),
    ("limitranges", include_str!("../testdata/validation/limitranges.jsonl")),
    ("mutatingadmissionpolicies", include_str!("../testdata/validation/mutatingadmissionpolicies.jsonl")),
    ("mutatingadmissionpolicybindings", include_str!("../testdata/validation/mutatingadmissionpolicybindings.jsonl")),
    ("mutatingwebhookconfigurations", include_str!("../testdata/validation/mutatingwebhookconfigurations.jsonl")),
    ("networkpolicies", include_str!("../testdata/validation/networkpolicies.jsonl")),
    ("nodes", include_str!("../testdata/validation/nodes.jsonl")),
    ("persistentvolumeclaims", include_str!("../testdata/validation/persistentvolumeclaims.jsonl")),
    ("persistentvolumes", include_str!("../testdata/validation/persistentvolumes.jsonl")),
    ("poddisruptionbudgets", include_str!("../testdata/validation/poddisruptionbudgets.jsonl")),
    ("pods", include_str!("../testdata/validation/pods.jsonl")),
    ("podtemplates", include_str!("../testdata/validation/podtemplates.jsonl")),
    ("priorityclasses", include_str!("../testdata/validation/priorityclasses.jsonl")),
    ("prioritylevelconfigurations", include_str!("../testdata/validation/prioritylevelconfigurations.jsonl")),
    ("replicasets", include_str!("../testdata/validation/replicasets.jsonl")),
    ("replicationcontrollers", include_str!("../testdata/validation/replicationcontrollers.jsonl")),
    ("resourceclaims", include_str!("../testdata/validation/resourceclaims.jsonl")),
    ("resourceclaimtemplates", include_str!("../testdata/validation/resourceclaimtemplates.jsonl")),
    ("resourcequotas", include_str!("../testdata/validation/resourcequotas.jsonl")),
    ("resourceslices", include_str!("../testdata/validation/resourceslices.jsonl")),
    ("rolebindings", include_str!("../testdata/validation/rolebindings.jsonl")),
    ("roles", include_str!("../testdata/validation/roles.jsonl")),
    ("runtimeclasses", include_str!("../testdata/validation/runtimeclasses.jsonl")),
    ("servicecidrs", include_str!("../testdata/validation/servicecidrs.jsonl")),
    ("statefulsets", include_str!("../testdata/validation/statefulsets.jsonl")),
    ("storageclasses", include_str!("../testdata/validation/storageclasses.jsonl")),
    ("validatingadmissionpolicies", include_str!("../testdata/validation/validatingadmissionpolicies.jsonl")),
    (
        "validatingadmissionpolicybindings",
        include_str!("../testdata/validation/validatingadmissionpolicybindings.jsonl"),
    ),
    ("validatingwebhookconfigurations", include_str!("../testdata/validation/validatingwebhookconfigurations.jsonl")),
    ("volumeattachments", include_str!("../testdata/validation/volumeattachments.jsonl")),
    ("volumeattributesclasses", include_str!("../testdata/validation/volumeattributesclasses.jsonl")),
];

/// How many cases of a kind differ from a kube-apiserver. Kinds that are not named here agree in all.
const DIFFERENCES: &[(&str, usize)] = &[
    // Empty lists are null, as after the way through protobuf that a kube-apiserver's store is; here the strategies' are JSON.
    ("csinodes", 1),
    // The compiled-in printer's cells, which no kube-apiserver prints.
    ("csistoragecapacities", 1),
    ("daemonsets", 6),
    ("deployments", 5),
    ("deviceclasses", 5),
    ("horizontalpodautoscalers", 2),
    ("ingresses", 1),
    ("jobs", 3),
    ("limitranges", 1),
    ("mutatingadmissionpolicies", 3),
    ("persistentvolumeclaims", 2),
    ("persistentvolumes", 3),
    ("pods", 10),
    ("replicasets", 4),
    ("replicationcontrollers", 3),
    ("resourceclaims", 2),
    ("resourceclaimtemplates", 1),
    ("resourceslices", 1),
    ("servicecidrs", 2),
    ("statefulsets", 4),
    ("validatingadmissionpolicies", 7),
    ("validatingwebhookconfigurations", 2),
];

/// Maximum number of differences that a failed test shows of a kind.
const MAX_SHOWN: usize = 40;

/// What becomes of a write.
#[derive(Default)]
struct WriteOutcome {
    object: Value,
    errors: Vec<String>,
    warnings: Vec<String>,
}

/// The object that the lines after it change.
struct BaseObject {
    kind: ServedKind,
    sent: Value,
    created: Value,
}

fn kind_of(object: &Value) -> ServedKind {
    let (api_version, name) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    builtin_kinds().find_kind(group, version, name).unwrap_or_else(|| panic!("no {name} in {api_version}"))
}

/// Decodes an object as that of a request.
fn decode(kind: &ServedKind, mut sent: Value) -> Map<String, Value> {
    let (messages, message) = (&builtin_kinds().messages, kind.version.message().unwrap());
    normalize(messages, message, &mut sent).unwrap_or_else(|error| panic!("{error}: {sent}"));
    set_defaults(messages, message, &mut sent);
    let Value::Object(mut object) = sent else { panic!("no object") };
    (rules(&kind.resource).convert_body)(&mut object);
    object
}

fn set_metadata(object: &mut Map<String, Value>, field: &str, value: Value) {
    object.entry("metadata").or_insert_with(|| json!({}))[field] = value;
}

fn outcome(
    kind: &ServedKind,
    subresource: &str,
    old: Option<&Map<String, Value>>,
    mut object: Map<String, Value>,
) -> WriteOutcome {
    let settings = ValidationSettings::default();
    let errors = kind_errors((&settings, &UnlimitedBudget), (kind, subresource), (old, &object));
    let warnings = match errors.is_empty() {
        true => object_warnings(&kind.resource, subresource, old, &object),
        false => Vec::new(),
    };
    if old.is_some() {
        object.get_mut("metadata").and_then(Value::as_object_mut).unwrap().remove("resourceVersion");
    }
    WriteOutcome { object: Value::Object(object), errors: errors.iter().map(ToString::to_string).collect(), warnings }
}

fn create(kind: &ServedKind, mut sent: Value) -> WriteOutcome {
    // The server gives the UID after it has decoded the object.
    let uid = sent["metadata"].as_object_mut().and_then(|metadata| metadata.remove("uid"));
    let mut object = decode(kind, sent);
    if let Some(uid) = uid {
        set_metadata(&mut object, "uid", uid);
    }
    if has_generation(&kind.resource) {
        set_metadata(&mut object, "generation", json!(1));
    }
    let rules = rules(&kind.resource);
    if let Err(status) = (rules.begin_create)(&ValidationSettings::default(), &mut object) {
        let causes = status.details.into_iter().flat_map(|details| details.causes);
        let errors = causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        return WriteOutcome { errors, ..WriteOutcome::default() };
    }
    (rules.prepare_new)(kind, &mut object);
    outcome(kind, "", None, object)
}

fn update(kind: &ServedKind, subresource: &str, old: Value, sent: Value) -> WriteOutcome {
    let (mut old, mut object) = (decode(kind, old), decode(kind, sent));
    let generation = old["metadata"]["generation"].as_i64();
    let changes_content = subresource.is_empty() && changes_generation(kind, &old, &object);
    if generation.is_some() || changes_content {
        set_metadata(&mut object, "generation", json!(generation.unwrap_or(0) + i64::from(changes_content)));
    }
    for one in [&mut old, &mut object] {
        set_metadata(one, "resourceVersion", json!("1"));
    }
    let update = ObjectUpdate { kind, subresource, old: &old };
    let rules = rules(&kind.resource);
    (rules.begin_update)(&ValidationSettings::default(), &update, &mut object).unwrap();
    (rules.prepare_replacement)(&update, &mut object);
    outcome(kind, subresource, Some(&old), object)
}

/// Sets the value at a JSON pointer; null removes it.
fn set_at(tree: &mut Value, pointer: &str, value: &Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let key = key.replace("~1", "/").replace("~0", "~");
    match (tree.pointer_mut(parent).unwrap(), value) {
        (Value::Object(map), Value::Null) => drop(map.remove(&key)),
        (Value::Object(map), value) => drop(map.insert(key, value.clone())),
        (Value::Array(items), Value::Null) => drop(items.remove(key.parse().unwrap())),
        (Value::Array(items), value) => items[key.parse::<usize>().unwrap()] = value.clone(),
        (other, _) => panic!("{pointer} in {other}"),
    }
}

/// The object that a line sends: the base, changed.
fn changed(base: &Value, line: &Value) -> Value {
    let mut changed = base.clone();
    if let Some(pointer) = line["at"].as_str() {
        set_at(&mut changed, pointer, &line["value"]);
    }
    match (&line["patch"], changed) {
        (Value::Object(fields), Value::Object(object)) => {
            Value::Object(MergePatch { fields: fields.clone() }.apply(object))
        }
        (_, changed) => changed,
    }
}

fn texts(line: &Value, field: &str) -> Vec<String> {
    let texts = line[field].as_array().into_iter().flatten();
    texts.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// What differs in the cells of an object.
fn cell_difference(kind: &ServedKind, object: &Value, line: &Value) -> Option<String> {
    // Without a printer of its own a kind has its name and when it was created.
    let now: Timestamp = line["now"].as_str()?.parse().unwrap();
    let (cells, expected) = (Value::Array(table_cells(kind, object, now.into())), &line["cells"]);
    (cells != *expected).then(|| format!("cells {cells}\n      not {expected}"))
}

/// What differs between the outcome of a write and that of a line.
fn outcome_difference(mut outcome: WriteOutcome, line: &Value, object_field: &str) -> Option<String> {
    let mut all = Vec::new();
    if line["unordered"] == true {
        outcome.errors.sort();
    }
    for (what, found) in [("errors", outcome.errors), ("warnings", outcome.warnings)] {
        let expected = texts(line, what);
        if found != expected {
            all.push(format!("{what} {found:#?}\n      not {expected:#?}"));
        }
    }
    if let Some(expected) = line.get(object_field)
        && *expected != outcome.object
    {
        all.push(format!("{object_field} {}\n      not {expected}", outcome.object));
    }
    (!all.is_empty()).then(|| all.join("\n    "))
}

/// What differs in the lines of a file, and the number of lines.
fn differences(text: &str) -> (Vec<String>, usize) {
    let (mut all, mut count, mut base) = (Vec::new(), 0, None::<BaseObject>);
    for (index, text) in text.lines().enumerate() {
        let line: Value = serde_json::from_str(text).unwrap();
        count += 1;
        let difference = if let Some(object) = line.get("print") {
            let kind = kind_of(object);
            let decoded = Value::Object(decode(&kind, object.clone()));
            cell_difference(&kind, &decoded, &line)
        } else if let Some(sent) = line.get("object") {
            let (kind, created) = (kind_of(sent), line["created"].clone());
            let cells = cell_difference(&kind, &created, &line);
            let written = outcome_difference(create(&kind, sent.clone()), &line, "created");
            base = Some(BaseObject { kind, sent: sent.clone(), created });
            written.or(cells)
        } else {
            let BaseObject { kind, sent, created } = base.as_ref().unwrap();
            match line["update"].as_str() {
                None => outcome_difference(create(kind, changed(sent, &line)), &line, "created"),
                Some(part) => {
                    let subresource = if part == "status" { "status" } else { "" };
                    let outcome = update(kind, subresource, created.clone(), changed(created, &line));
                    outcome_difference(outcome, &line, "updated")
                }
            }
        };
        let change: String = text.chars().take(300).collect();
        all.extend(difference.map(|difference| format!("line {}: {change}\n    {difference}", index + 1)));
    }
    (all, count)
}

#[test]
fn kinds_create_replace_and_print_as_the_strategies_of_kube_apiserver() {
    let accepted: BTreeMap<&str, usize> = DIFFERENCES.iter().copied().collect();
    let (mut wrong, mut total, mut different) = (Vec::new(), 0, 0);
    for (name, text) in CASES {
        let (differences, count) = differences(text);
        total += count;
        different += differences.len();
        let expected = accepted.get(name).copied().unwrap_or(0);
        if differences.len() != expected {
            let shown = differences.iter().take(MAX_SHOWN).map(String::as_str).collect::<Vec<_>>().join("\n  ");
            wrong.push(format!("{name}: {} of {count} cases differ, not {expected}\n  {shown}", differences.len()));
        }
    }
    println!("{} of {total} cases agree", total - different);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
