//! Requests about objects of every built-in kind, made of the objects in `tests/interop/kinds/objects`: each object is
//! created, read as a Table, replaced and deleted, and so are objects that are broken in one place.
//!
//! What would be stored only if it were valid is sent with `dryRun=All`, so that each request meets the same objects.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::request_file::RequestRow;

/// An item of a file in `tests/interop/kinds/objects`: an object and changes, or an object that is printed.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ObjectEntry {
    /// Valid object as a client sends it.
    object: Option<Value>,
    /// JSON merge patches: each makes another object to create.
    patches: Vec<Value>,
    /// JSON merge patches of the created object.
    updates: Vec<Value>,
    /// JSON merge patches of the created object's subresource `status`.
    status_updates: Vec<Value>,
    /// Whether the object gets no systematic changes.
    unchanged: bool,
    /// Object with a status, of which only the Table is compared.
    print: Option<Value>,
}

/// Numbers of systematic changes of an object, by what is done with it.
struct SampleSizes {
    values: usize,
    types: usize,
    unknown_fields: usize,
    replaced: usize,
    patched: usize,
}

const FULL_SAMPLE: SampleSizes = SampleSizes { values: 16, types: 6, unknown_fields: 4, replaced: 6, patched: 6 };

/// Set to `all` for every systematic change instead of a sample: hours.
const SAMPLE_VARIABLE: &str = "NARTHEX_KIND_CHANGES";

/// Kinds whose objects change what the API server does with others. They come last.
const EFFECTIVE_KINDS: [&str; 14] = [
    "apiservices",
    "customresourcedefinitions",
    "flowschemas",
    "ingressclasses",
    "limitranges",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "mutatingwebhookconfigurations",
    "prioritylevelconfigurations",
    "resourcequotas",
    "storageclasses",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "validatingwebhookconfigurations",
];

/// The requests of all kinds, in order.
pub(super) fn kind_requests() -> Vec<RequestRow> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/kinds/objects");
    let kinds: Value = serde_json::from_str(include_str!("../../../../src/resources/builtin/kinds.json")).unwrap();
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().to_string_lossy().trim_end_matches(".yaml").to_owned())
        .collect();
    files.sort_by_key(|name| (EFFECTIVE_KINDS.contains(&name.as_str()), name.clone()));
    assert_complete(&kinds, &files);
    let mut rows = Vec::new();
    for name in &files {
        let path = folder.join(format!("{name}.yaml"));
        let text = std::fs::read_to_string(&path).unwrap();
        let entries: Vec<ObjectEntry> =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (index, entry) in entries.iter().enumerate() {
            entry_requests(&kinds, &format!("{name} {index}"), index == 0, entry, &mut rows);
        }
    }
    rows
}

/// Asserts that each kind that can be created has objects.
fn assert_complete(kinds: &Value, files: &[String]) {
    for resource in kinds["resources"].as_array().unwrap() {
        let (group, plural) = (resource["group"].as_str().unwrap(), resource["plural"].as_str().unwrap());
        let is_created = |version: &Value| has_verb(version, "create");
        let has_file = files.iter().any(|file| file == plural || *file == format!("{plural}.{group}"));
        assert!(
            has_file || !resource["versions"].as_array().unwrap().iter().any(is_created),
            "no file in tests/interop/kinds/objects for {plural} {group}"
        );
    }
}

fn has_verb(version: &Value, verb: &str) -> bool {
    version["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|known| known == verb))
}

/// Where requests about an object go.
struct ObjectPaths {
    collection: String,
    object: String,
    field_selector: String,
    /// The kind in `kinds.json`, in the version of the object.
    version: Value,
}

fn object_paths(kinds: &Value, object: &Value) -> ObjectPaths {
    let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let resources = kinds["resources"].as_array().unwrap();
    let resource = resources.iter().find(|resource| resource["group"] == group && resource["kind"] == kind);
    let resource = resource.unwrap_or_else(|| panic!("no kind {kind} in {api_version}"));
    let versions = resource["versions"].as_array().unwrap();
    let version = versions.iter().find(|served| served["version"] == version).unwrap();
    let root = if group.is_empty() { "/api" } else { "/apis" };
    let namespace = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
    let collection = format!("{root}/{api_version}{namespace}/{}", resource["plural"].as_str().unwrap());
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    ObjectPaths {
        object: format!("{collection}/{name}"),
        field_selector: format!("{collection}?fieldSelector=metadata.name%3D{name}"),
        collection,
        version: version.clone(),
    }
}

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// A request with a body of a media type.
fn request(title: String, method: &str, path: String, media_type: &str, body: &Value) -> RequestRow {
    let headers = vec![("content-type".to_owned(), media_type.to_owned())];
    RequestRow { title, method: method.to_owned(), path, headers, body: body.to_string(), ..RequestRow::default() }
}

fn read(title: String, method: &str, path: &str, accept: &str) -> RequestRow {
    let headers = vec![("accept".to_owned(), accept.to_owned())];
    RequestRow { title, method: method.to_owned(), path: path.to_owned(), headers, ..RequestRow::default() }
}

/// The requests about the object of an entry, in order.
fn entry_requests(kinds: &Value, name: &str, is_first: bool, entry: &ObjectEntry, rows: &mut Vec<RequestRow>) {
    if let Some(object) = &entry.print {
        print_requests(name, object, &object_paths(kinds, object), rows);
        return;
    }
    let object = entry.object.as_ref().unwrap_or_else(|| panic!("{name}: no object"));
    let paths = object_paths(kinds, object);
    let dry = |path: &str, more: &str| format!("{path}?dryRun=All{more}");
    let create = |what: String, body: &Value, more: &str| {
        request(format!("{name}: create [{what}]"), "POST", dry(&paths.collection, more), JSON, body)
    };
    for (what, change) in metadata_changes(object).iter().filter(|_| is_first) {
        rows.push(create((*what).to_owned(), &merged(object, change), ""));
    }
    for patch in &entry.patches {
        rows.push(create(shortened(patch), &merged(object, patch), ""));
    }
    let sizes = FULL_SAMPLE;
    let changes = if entry.unchanged { SystematicChanges::default() } else { SystematicChanges::of(object) };
    for change in sample(&changes.values, sizes.values).chain(sample(&changes.types, sizes.types)) {
        rows.push(create(change.text(), &change.apply(object), ""));
    }
    for (index, change) in sample(&changes.unknown_fields, sizes.unknown_fields).enumerate() {
        let more = ["", "&fieldValidation=Strict", "", "&fieldValidation=Ignore"][index % 4];
        rows.push(create(format!("{}{more}", change.text()), &change.apply(object), more));
    }
    rows.push(request(format!("{name}: create"), "POST", paths.collection.clone(), JSON, object));
    if !has_verb(&paths.version, "get") {
        return;
    }
    // A controller of kube-apiserver writes the status.
    let condition = match object["kind"].as_str() {
        Some("APIService") => "\"Available\"",
        Some("CustomResourceDefinition") => "\"Established\"",
        _ => "",
    };
    let until = if condition.is_empty() { Vec::new() } else { vec![condition.to_owned()] };
    rows.push(RequestRow { until, ..read(format!("{name}: get"), "GET", &paths.object, JSON) });
    rows.push(read(format!("{name}: get as a Table"), "GET", &paths.object, TABLE));
    rows.push(read(format!("{name}: list as a Table"), "GET", &paths.field_selector, TABLE));
    for change in sample(&changes.values, sizes.replaced) {
        let title = format!("{name}: replace [{}]", change.text());
        let replacement = merged(&change.apply(object), &json!({"metadata": {"uid": null}}));
        rows.push(request(title, "PUT", dry(&paths.object, ""), JSON, &replacement));
    }
    // Others than those of the objects that are created.
    let shift = changes.values.len() / (2 * sizes.patched);
    for change in sample(changes.values.get(shift..).unwrap_or_default(), sizes.patched) {
        let title = format!("{name}: patch [{}]", change.text());
        rows.push(request(title, "PATCH", dry(&paths.object, ""), JSON_PATCH, &change.json_patch()));
    }
    for patch in &entry.updates {
        let title = format!("{name}: merge patch [{}]", shortened(patch));
        rows.push(request(title, "PATCH", dry(&paths.object, ""), MERGE_PATCH, patch));
    }
    for patch in &entry.status_updates {
        let title = format!("{name}: merge patch of the status [{}]", shortened(patch));
        let path = format!("{}/status", paths.object);
        rows.push(request(title, "PATCH", dry(&path, ""), MERGE_PATCH, patch));
    }
    if let Some(patch) = entry.status_updates.first() {
        let path = format!("{}/status", paths.object);
        rows.push(request(format!("{name}: status"), "PATCH", path, MERGE_PATCH, patch));
        rows.push(read(format!("{name}: get with a status as a Table"), "GET", &paths.object, TABLE));
    }
    rows.push(read(format!("{name}: delete"), "DELETE", &paths.object, JSON));
}

/// Creates an object with a status, and prints it.
fn print_requests(name: &str, object: &Value, paths: &ObjectPaths, rows: &mut Vec<RequestRow>) {
    rows.push(request(format!("{name}: create printed"), "POST", paths.collection.clone(), JSON, object));
    if object["status"].is_object() {
        let path = format!("{}/status", paths.object);
        let patch = json!({"status": object["status"]});
        rows.push(request(format!("{name}: status printed"), "PATCH", path, MERGE_PATCH, &patch));
    }
    rows.push(read(format!("{name}: printed"), "GET", &paths.object, TABLE));
    rows.push(read(format!("{name}: delete printed"), "DELETE", &paths.object, JSON));
}

/// Merge patches of fields that all objects have.
fn metadata_changes(object: &Value) -> Vec<(&'static str, Value)> {
    let mut changes = vec![
        ("no name", json!({"metadata": {"name": null}})),
        ("name that is not valid", json!({"metadata": {"name": "Bad_Name!"}})),
        ("name of 254 bytes", json!({"metadata": {"name": "a".repeat(254)}})),
        ("name of a path", json!({"metadata": {"name": "a/b"}})),
        ("label that is not valid", json!({"metadata": {"labels": {"a b": "c d"}}})),
        ("finalizer that is not valid", json!({"metadata": {"finalizers": ["a b"]}})),
        ("owner without fields", json!({"metadata": {"ownerReferences": [{}]}})),
        ("resourceVersion", json!({"metadata": {"resourceVersion": "1"}})),
        ("another kind", json!({"kind": "Other"})),
        ("another version", json!({"apiVersion": "example.com/v1"})),
        ("unknown metadata", json!({"metadata": {"unknownField": 1}})),
        ("metadata of the wrong type", json!({"metadata": ["a"]})),
    ];
    if object["metadata"]["namespace"].is_string() {
        changes.push(("another namespace", json!({"metadata": {"namespace": "other"}})));
    }
    changes
}

/// One place of an object that is changed.
#[derive(Clone, Debug)]
struct Change {
    pointer: String,
    /// The new value; removed without.
    value: Option<Value>,
}

impl Change {
    fn text(&self) -> String {
        match &self.value {
            Some(value) => format!("{}={}", self.pointer, shortened(value)),
            None => format!("no {}", self.pointer),
        }
    }

    fn apply(&self, object: &Value) -> Value {
        let mut changed = object.clone();
        let (parent, key) = self.pointer.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/").replace("~0", "~");
        match (changed.pointer_mut(parent).unwrap(), &self.value) {
            (Value::Object(fields), None) => drop(fields.remove(&key)),
            (Value::Object(fields), Some(value)) => drop(fields.insert(key, value.clone())),
            (Value::Array(items), None) => drop(items.remove(key.parse().unwrap())),
            (Value::Array(items), Some(value)) => items[key.parse::<usize>().unwrap()] = value.clone(),
            (other, _) => panic!("{} in {other}", self.pointer),
        }
        changed
    }

    fn json_patch(&self) -> Value {
        match &self.value {
            None => json!([{"op": "remove", "path": self.pointer}]),
            Some(value) => json!([{"op": "replace", "path": self.pointer, "value": value}]),
        }
    }
}

/// Changes of each place of an object, in a fixed order.
#[derive(Default)]
struct SystematicChanges {
    /// Other values, and none.
    values: Vec<Change>,
    /// Values of another type.
    types: Vec<Change>,
    unknown_fields: Vec<Change>,
}

impl SystematicChanges {
    fn of(object: &Value) -> SystematicChanges {
        let mut changes = SystematicChanges::default();
        changes.add("", object);
        changes
    }

    fn add(&mut self, pointer: &str, value: &Value) {
        let change = |value: Value| Change { pointer: pointer.to_owned(), value: Some(value) };
        let none = Change { pointer: pointer.to_owned(), value: None };
        match value {
            Value::Object(fields) => {
                if !["", "/metadata"].contains(&pointer) {
                    self.values.push(none);
                    self.values.extend((!fields.is_empty()).then(|| change(json!({}))));
                    self.types.push(change(json!("text")));
                }
                self.unknown_fields
                    .push(Change { pointer: format!("{pointer}/unknownField"), value: Some(json!({"a": 1})) });
                self.add_fields(pointer, fields);
            }
            Value::Array(items) => {
                self.values.extend([none, change(json!([]))]);
                if let Some(first) = items.first() {
                    let repeated: Vec<&Value> = items.iter().chain([first]).collect();
                    self.values.push(change(json!(repeated)));
                }
                self.types.push(change(json!({"a": 1})));
                for (index, item) in items.iter().enumerate() {
                    self.add(&format!("{pointer}/{index}"), item);
                }
            }
            Value::String(text) => {
                self.values.push(none);
                let others = ["", "Bad_Value!", "a-valid-name"].into_iter().filter(|other| other != text);
                self.values.extend(others.map(|other| change(other.into())));
                if self.values.len().is_multiple_of(3) {
                    self.values.push(change("a".repeat(64).into()));
                }
                if text.starts_with(|letter: char| letter.is_ascii_digit()) {
                    self.values.extend(["-1", "100G", "0"].map(|other| change(other.into())));
                }
                self.types.push(change(if self.types.len().is_multiple_of(2) { json!(7) } else { json!(["a"]) }));
            }
            Value::Number(_) => {
                let others = [-1, 0, 1, 70_000, 2_147_483_647_i64].map(Value::from);
                self.values.extend(others.into_iter().filter(|other| other != value).map(change));
                self.values.push(none);
                self.types.extend([json!("text"), json!(1.5), json!(1e20)].map(change));
            }
            Value::Bool(is_set) => {
                self.values.extend([change((!is_set).into()), none]);
                self.types.push(change(json!("true")));
            }
            Value::Null => {}
        }
    }

    fn add_fields(&mut self, pointer: &str, fields: &Map<String, Value>) {
        for (key, value) in fields {
            let is_left = match pointer {
                "" => ["apiVersion", "kind"].contains(&key.as_str()),
                // What all kinds have is in `metadata_changes`.
                "/metadata" => !["labels", "annotations"].contains(&key.as_str()),
                _ => false,
            };
            if !is_left {
                let escaped = key.replace('~', "~0").replace('/', "~1");
                self.add(&format!("{pointer}/{escaped}"), value);
            }
        }
    }
}

/// Some changes, evenly spread.
fn sample(changes: &[Change], count: usize) -> impl Iterator<Item = &Change> {
    let is_whole = std::env::var(SAMPLE_VARIABLE).is_ok_and(|text| text == "all");
    let count = if is_whole { changes.len() } else { count.min(changes.len()) };
    (0..count).map(move |index| &changes[index * changes.len() / count])
}

/// JSON for a title, short enough for a line.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= 120 { text } else { format!("{}...", text.chars().take(110).collect::<String>()) }
}

/// Applies a JSON merge patch.
fn merged(target: &Value, patch: &Value) -> Value {
    let Value::Object(patches) = patch else { return patch.clone() };
    let mut result = target.as_object().cloned().unwrap_or_default();
    for (key, value) in patches {
        match value {
            Value::Null => drop(result.remove(key)),
            value => {
                let value = merged(result.get(key).unwrap_or(&Value::Null), value);
                result.insert(key.clone(), value);
            }
        }
    }
    Value::Object(result)
}
