//! The work of a request grows as its size: for each list-like field that a client can fill, of all kinds, 10 times the
//! items cost at most 12 times the instructions.
//!
//! Instructions are counted by valgrind, which runs one test of this program below itself and writes what each call of
//! [`counted_call`] took. It takes minutes: `just list-costs`.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use kubeapi::Status;
use kubeapi::json::{read_json, write_stored_json};
use kubeapi::patch::{JsonPatch, MergePatch, StrategicPatch};
use kubeapi::protobuf::table::{GoType, MessageId};
use serde_json::{Map, Value, json};

use super::metadata;
use super::request_body::{BodyFindings, check_object};
use super::target::ObjectTarget;
use super::warnings::bounded_warnings;
use super::write_options::FieldValidation;
use crate::compute::WorkLimit;
use crate::kinds::{ObjectUpdate, ValidationSettings, object_warnings, validate_new, validate_replacement};
use crate::resources::ServedKind;
use crate::resources::builtin::{builtin_kinds, merge_schema};
use crate::resources::custom::testing::served_kind;

/// Items of the smaller object; the larger one has ten times as many.
const ITEMS: usize = 150;
/// How many times the instructions the larger object may take, in tenths.
const MOST_TENTHS: u64 = 120;
/// Name of the test that valgrind runs.
const MEASURED_TEST: &str = "rest::cost_tests::lists_of_all_kinds_go_through_the_chain";

/// The value of a field with a number of items.
type FieldValue = fn(&FieldCase, usize) -> Value;

/// A field that is measured: the kind, and the way to the field.
#[derive(Clone, Debug)]
struct FieldCase {
    kind: ServedKind,
    path: Vec<MeasuredStep>,
    /// The list or map, with as many items as wanted.
    fill: FieldValue,
    item: GoType,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum MeasuredStep {
    Field(&'static str),
    Item,
    Key,
}

impl FieldCase {
    fn name(&self) -> String {
        let mut text = format!("{} {}", self.kind.api_version(), self.kind.resource.kind);
        for step in &self.path {
            match step {
                MeasuredStep::Field(name) => text.push_str(&format!(".{name}")),
                MeasuredStep::Item => text.push_str("[]"),
                MeasuredStep::Key => text.push_str("{}"),
            }
        }
        text
    }

    /// An object that has nothing but metadata and the field.
    fn object(&self, items: usize) -> Value {
        let filled = self.path.iter().rev().fold((self.fill)(self, items), |inner, step| match step {
            MeasuredStep::Field(name) => json!({ *name: inner }),
            MeasuredStep::Item => json!([inner]),
            MeasuredStep::Key => json!({ "key": inner }),
        });
        let namespace = if self.kind.resource.is_namespaced { "n" } else { "" };
        let metadata = json!({"name": "a", "namespace": namespace, "resourceVersion": "1"});
        let mut object =
            json!({"apiVersion": self.kind.api_version(), "kind": self.kind.resource.kind, "metadata": metadata});
        merge(&mut object, filled);
        object
    }
}

fn merge(into: &mut Value, other: Value) {
    match (into, other) {
        (Value::Object(into), Value::Object(other)) => {
            for (key, value) in other {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, other) => *into = other,
    }
}

/// A text: of three, one is different from all others, one is the same as others, and one is invalid nearly everywhere.
fn text(at: usize) -> String {
    match at % 3 {
        0 => format!("a{at}"),
        1 => format!("same{}", at % 2),
        _ => format!("!{at}"),
    }
}

fn value_of(go_type: &GoType, at: usize, depth: usize) -> Value {
    match go_type {
        GoType::Text => json!(text(at)),
        GoType::Bool => json!(true),
        GoType::Int32 | GoType::Int64 | GoType::Double | GoType::IntOrString => json!(at % 1000),
        GoType::Bytes => json!("YQ=="),
        GoType::Time | GoType::MicroTime => json!("2026-01-01T00:00:00Z"),
        GoType::Quantity => json!("1"),
        GoType::RawJson | GoType::FieldsV1 | GoType::Schema(..) => json!({}),
        GoType::Pointer(target) => value_of(target, at, depth),
        GoType::List(item) | GoType::WrappedList(item) if depth > 0 => json!([value_of(item, at, depth - 1)]),
        GoType::Map(item) if depth > 0 => json!({ text(at): value_of(item, at, depth - 1) }),
        GoType::List(_) | GoType::WrappedList(_) => json!([]),
        GoType::Map(_) => json!({}),
        GoType::Message(_) if depth == 0 => json!({}),
        GoType::Message(message) => {
            let fields = &builtin_kinds().messages.message(*message).fields;
            let named = fields.iter().filter(|field| !field.name.is_empty()).take(8);
            let scalar =
                named.filter(|field| !matches!(field.go_type.target(), GoType::Message(_) | GoType::Schema(..)));
            scalar
                .map(|field| (field.name.to_owned(), value_of(&field.go_type, at, depth - 1)))
                .collect::<Map<_, _>>()
                .into()
        }
    }
}

fn list(case: &FieldCase, items: usize) -> Value {
    (0..items).map(|at| value_of(&case.item, at, 2)).collect()
}

fn map(case: &FieldCase, items: usize) -> Value {
    let entry =
        |at: usize| (format!("{}{at}", if at.is_multiple_of(2) { "k" } else { "!" }), value_of(&case.item, at, 1));
    Value::Object((0..items).map(entry).collect())
}

/// The list-like fields of a message, each once.
fn collect_fields(
    kind: &ServedKind,
    message: MessageId,
    path: &mut Vec<MeasuredStep>,
    seen: &mut HashSet<(MessageId, &'static str)>,
    cases: &mut Vec<FieldCase>,
) {
    for field in &builtin_kinds().messages.message(message).fields {
        let has_name = !field.name.is_empty();
        if has_name && !seen.insert((message, field.name)) || path.len() > 12 {
            continue;
        }
        let length = path.len();
        path.extend(has_name.then_some(MeasuredStep::Field(field.name)));
        collect_type(kind, &field.go_type, path, seen, cases);
        path.truncate(length);
    }
}

fn collect_type(
    kind: &ServedKind,
    go_type: &GoType,
    path: &mut Vec<MeasuredStep>,
    seen: &mut HashSet<(MessageId, &'static str)>,
    cases: &mut Vec<FieldCase>,
) {
    let (fill, item, step): (FieldValue, _, _) = match go_type {
        GoType::Pointer(target) => return collect_type(kind, target, path, seen, cases),
        GoType::Message(message) => return collect_fields(kind, *message, path, seen, cases),
        GoType::List(item) | GoType::WrappedList(item) => (list, item, MeasuredStep::Item),
        GoType::Map(item) => (map, item, MeasuredStep::Key),
        _ => return,
    };
    cases.push(FieldCase { kind: kind.clone(), path: path.clone(), fill, item: (**item).clone() });
    path.push(step);
    collect_type(kind, item, path, seen, cases);
    path.pop();
}

/// Kinds whose validation is their own; fields of the others go through the same code for all.
const OWN_VALIDATION: [&str; 11] = [
    "APIService",
    "ConfigMap",
    "CustomResourceDefinition",
    "EndpointSlice",
    "Endpoints",
    "Event",
    "Lease",
    "Namespace",
    "Secret",
    "Service",
    "ServiceAccount",
];

fn builtin_cases() -> Vec<FieldCase> {
    let mut cases = Vec::new();
    let mut seen_elsewhere = HashSet::new();
    for resource in builtin_kinds().resources() {
        let Some(version) = resource.versions.first() else { continue };
        let Some(message) = version.message() else { continue };
        let kind = ServedKind { resource: resource.clone(), version: version.clone() };
        let is_own = OWN_VALIDATION.contains(&&*resource.kind);
        let mut seen_here = HashSet::new();
        let seen = if is_own { &mut seen_here } else { &mut seen_elsewhere };
        collect_fields(&kind, message, &mut Vec::new(), seen, &mut cases);
    }
    cases
}

/// Lists of every type in a custom resource, and fields of metadata.
fn custom_cases() -> Vec<FieldCase> {
    let names = json!({"plural": "as", "singular": "a", "kind": "A", "listKind": "AList"});
    let item = json!({"type": "object", "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]+$"}, "other": {"type": "string", "default": "x", "enum": ["x", "y"]},
    }, "required": ["name"]});
    let of_type =
        |list_type: &str, items: &Value| json!({"type": "array", "x-kubernetes-list-type": list_type, "items": items});
    let texts = json!({"type": "string", "maxLength": 100, "enum": (0..200).map(text).collect::<Vec<_>>()});
    let mut map_list = of_type("map", &item);
    map_list["x-kubernetes-list-map-keys"] = json!(["name"]);
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "set": of_type("set", &texts), "map": map_list, "atomic": of_type("atomic", &item),
        "unique": {"type": "array", "uniqueItems": true, "items": {"type": "string"}},
        "values": {"type": "object", "additionalProperties": item},
        "any": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}], "x-kubernetes-int-or-string": true}},
        "embedded": of_type("atomic", &json!({"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true})),
    }}}});
    let kind = served_kind(&json!({
        "metadata": {"name": "as.b.io"},
        "spec": {"group": "b.io", "names": names, "scope": "Namespaced", "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
        ]},
        "status": {"acceptedNames": names},
    }));
    let objects: FieldValue = |_, items| (0..items).map(|at| json!({"name": text(at), "unknown": at})).collect();
    let objects_by_key: FieldValue =
        |_, items| Value::Object((0..items).map(|at| (format!("k{at}"), json!({"name": text(at)}))).collect());
    let embedded: FieldValue = |_, items| {
        (0..items).map(|at| json!({"kind": text(at), "metadata": {"labels": {"a": text(at)}, "x": 1}})).collect()
    };
    let owners: FieldValue = |_, items| {
        let owner =
            |at: usize| json!({"apiVersion": "v1", "kind": "A", "name": text(at), "uid": text(at), "controller": true});
        (0..items).map(owner).collect()
    };
    let managers: FieldValue = |_, items| json!([{"manager": "\u{7}".repeat(items), "operation": "Apply"}]);
    let spec =
        |name: &'static str, fill: FieldValue| (vec![MeasuredStep::Field("spec"), MeasuredStep::Field(name)], fill);
    let meta =
        |name: &'static str, fill: FieldValue| (vec![MeasuredStep::Field("metadata"), MeasuredStep::Field(name)], fill);
    let fields: Vec<(Vec<MeasuredStep>, FieldValue)> = vec![
        spec("set", list),
        spec("map", objects),
        spec("atomic", objects),
        spec("unique", list),
        spec("values", objects_by_key),
        spec("any", list),
        spec("embedded", embedded),
        spec("unknown", list),
        (vec![MeasuredStep::Field("other")], map),
        meta("labels", map),
        meta("annotations", map),
        meta("finalizers", list),
        meta("ownerReferences", owners),
        meta("managedFields", managers),
        meta("unknown", map),
    ];
    fields.into_iter().map(|(path, fill)| FieldCase { kind: kind.clone(), path, fill, item: GoType::Text }).collect()
}

fn all_cases() -> Vec<FieldCase> {
    custom_cases().into_iter().chain(builtin_cases()).collect()
}

/// The calls that valgrind counts. It has no closures, whose names would be counted, too.
#[inline(never)]
fn counted_call(case: &FieldCase, body: &Bytes) -> usize {
    chain(case, body)
}

/// What a request with the body goes through, and a patch with the same content.
fn chain(case: &FieldCase, body: &Bytes) -> usize {
    let (kind, namespace) = (&case.kind, if case.kind.resource.is_namespaced { "n" } else { "" });
    let target = ObjectTarget::new(kind.clone(), namespace, "a", "");
    let settings = ValidationSettings::default();
    let decode = |bytes: &Bytes| {
        let (value, findings) = read_json(bytes).unwrap();
        check_object(kind, value, BodyFindings::Json(bytes.clone(), findings), FieldValidation::Warn)
    };
    let decoded = match decode(body) {
        Ok(decoded) => decoded,
        Err(error) => return size_of_status(&error.body_status(kind, body)),
    };
    let (mut object, mut warnings) = (decoded.object, decoded.warnings);
    warnings.extend(metadata::deduplicate_owners(&mut object, false));
    let mut new = object.clone();
    metadata::fill_new_object(&target, &mut new);
    let mut size = (target.rules.begin_create)(&settings, &mut new).err().as_ref().map_or(0, size_of_status);
    (target.rules.prepare_new)(kind, &mut new);
    size += validate_new((&settings, &WorkLimit::for_server()), (kind, ""), &mut new)
        .err()
        .as_ref()
        .map_or(0, size_of_status);
    warnings.extend(object_warnings(&kind.resource, "", None, &new));
    let stored = write_stored_json(&new).bytes;
    size += stored.len();
    // The same object, and one of which all items are new.
    let mut deleted = new.clone();
    deleted["metadata"] = json!({"name": "a", "namespace": namespace, "deletionTimestamp": "2026-01-01T00:00:00Z"});
    for mut old in [new, deleted] {
        let mut replacing = object.clone();
        metadata::fill_replacement(&target, &old, &mut replacing);
        size +=
            (target.rules.begin_update)(&settings, &ObjectUpdate { kind, subresource: "", old: &old }, &mut replacing)
                .err()
                .as_ref()
                .map_or(0, size_of_status);
        (target.rules.prepare_replacement)(&ObjectUpdate { kind, subresource: "", old: &old }, &mut replacing);
        size += validate_replacement((&settings, &WorkLimit::for_server()), (kind, ""), &mut old, &mut replacing)
            .err()
            .as_ref()
            .map_or(0, size_of_status);
        warnings.extend(object_warnings(&kind.resource, "", Some(&old), &replacing));
    }
    size += patched_size(case, body, &object);
    size + bounded_warnings(&warnings).len()
}

/// The sizes of the object with its own content as a patch.
fn patched_size(case: &FieldCase, body: &Bytes, object: &Map<String, Value>) -> usize {
    let (merge_patch, _) = MergePatch::parse(body).unwrap();
    let mut size = merge_patch.apply(object.clone()).len();
    let replace = json!([{"op": "test", "path": "", "value": object}, {"op": "replace", "path": "", "value": object}]);
    let (json_patch, _) = JsonPatch::parse(replace.to_string().as_bytes(), true).unwrap();
    size += json_patch.apply(Value::Object(object.clone())).unwrap().as_object().unwrap().len();
    if let Some(schema) = case.kind.version.message().and_then(merge_schema) {
        let (patch, _) = StrategicPatch::parse(body).unwrap();
        size += patch.apply(object.clone(), schema).map_or_else(|error| error.to_string().len(), |merged| merged.len());
    }
    size
}

/// Checks that the answer is bounded.
fn size_of_status(status: &Status) -> usize {
    let causes = status.details.as_ref().map_or(0, |details| details.causes.len());
    assert!(causes <= 256 && status.message.len() < 1 << 20, "{causes} causes, {} bytes", status.message.len());
    causes + status.message.len()
}

#[test]
fn lists_of_all_kinds_go_through_the_chain() {
    // With many items the answer is bounded; below valgrind, the instructions are counted.
    let is_counted = std::env::var_os("NARTHEX_COUNT_INSTRUCTIONS").is_some();
    let cases = all_cases();
    assert!(cases.len() > 100, "{}", cases.len());
    // Tables that are made once are not counted.
    chain(&cases[0], &Bytes::from(cases[0].object(1).to_string()));
    for case in &cases {
        let is_own = case.kind.version.custom().is_some() || OWN_VALIDATION.contains(&&*case.kind.resource.kind);
        let counts = match is_counted {
            true => [ITEMS, 10 * ITEMS],
            false => [1, if is_own { 300 } else { 10 }],
        };
        for items in counts {
            let body = Bytes::from(case.object(items).to_string());
            std::hint::black_box(counted_call(case, &body));
        }
    }
}

#[test]
#[ignore = "takes minutes below valgrind; run it with --ignored"]
fn instructions_of_lists_grow_as_the_lists() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--dump-after=*cost_tests*counted_call*", "--zero-before=*cost_tests*counted_call*"])
        .arg(format!("--callgrind-out-file={}", folder.path().join("out").display()))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", MEASURED_TEST, "--test-threads=1"])
        .env("NARTHEX_COUNT_INSTRUCTIONS", "1")
        .output()
        .expect("valgrind, which counts the instructions: install it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let cases = all_cases();
    let mut counts = (1..).map(|at| count_of_dump(&folder.path().join(format!("out.{at}"))));
    let mut steep = Vec::new();
    for case in &cases {
        let (Some(small), Some(large)) = (counts.next().flatten(), counts.next().flatten()) else {
            panic!("{} was not counted", case.name());
        };
        if large * 10 > small * MOST_TENTHS {
            steep.push(format!("{}: {small} and {large}", case.name()));
        }
    }
    println!("instructions of {} fields counted", cases.len());
    assert!(steep.is_empty(), "10 times the items take more than 12 times the instructions:\n{}", steep.join("\n"));
}

/// The number of instructions in a file of callgrind.
fn count_of_dump(path: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let total = |line: &str| line.strip_prefix("totals: ")?.trim().split(' ').next()?.parse().ok();
    text.lines().rev().find_map(total)
}
