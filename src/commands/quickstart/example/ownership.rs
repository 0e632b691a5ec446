//! Field ownership (`metadata.managedFields`) and server-side apply.
//!
//! A reduced structured-merge-diff: below `spec`, `labels` and `annotations` every field is a leaf, and lists are
//! atomic (`x-kubernetes-list-type: atomic`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::api_errors;
use super::object;
use super::resource::ExampleResource;
use crate::kubeapi::{Status, StatusCause};

type FieldPath = Vec<String>;

/// The managers of one object and the fields each owns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ownership(Vec<ManagedFieldsEntry>);

#[derive(Clone, Debug, PartialEq)]
struct ManagedFieldsEntry {
    manager: String,
    operation: Operation,
    api_version: String,
    time: String,
    fields: BTreeSet<FieldPath>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Apply,
    Update,
}

impl Ownership {
    /// Reads the managers of `object`; invalid entries are ignored.
    pub(super) fn read(object: &Value) -> Ownership {
        let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
        Ownership(entries.into_iter().flatten().filter_map(ManagedFieldsEntry::read).collect())
    }

    /// Writes the managers into `object`.
    pub(super) fn write(&self, object: &mut Value) {
        let entries: Vec<Value> = self.0.iter().map(ManagedFieldsEntry::write).collect();
        object::set_metadata(object, "managedFields", (!entries.is_empty()).then_some(Value::Array(entries)));
    }

    /// Records a create, update or patch from `before` to `after`: `manager` owns the changed fields.
    pub(super) fn record_update(
        &mut self,
        resource: &ExampleResource,
        manager: &str,
        before: Option<&Value>,
        after: &Value,
    ) {
        let (old, new) = (before.map(leaves).unwrap_or_default(), leaves(after));
        let changed: BTreeSet<FieldPath> =
            new.iter().filter(|(path, value)| old.get(*path) != Some(*value)).map(|(path, _)| path.clone()).collect();
        let gone: BTreeSet<FieldPath> = old.keys().filter(|path| !new.contains_key(*path)).cloned().collect();
        for entry in &mut self.0 {
            let own = entry.operation == Operation::Update && entry.manager == manager;
            entry.fields.retain(|path| !gone.contains(path) && (own || !changed.contains(path)));
        }
        if !changed.is_empty() {
            let entry = self.entry(resource, manager, Operation::Update);
            entry.fields.extend(changed);
            entry.time = object::now();
        }
        self.normalize();
    }

    /// Server-side apply of `applied` onto `live`; returns the merged object. Fields that `manager` applied before and
    /// no longer applies are removed, unless another manager owns them, too. A different value for another manager's
    /// field is a conflict; with `force` the field changes its owner.
    pub(super) fn apply(
        &mut self,
        resource: &ExampleResource,
        manager: &str,
        live: Option<&Value>,
        applied: &Value,
        force: bool,
    ) -> Result<Value, Status> {
        let wanted = leaves(applied);
        let present = live.map(leaves).unwrap_or_default();
        let is_own = |entry: &ManagedFieldsEntry| entry.operation == Operation::Apply && entry.manager == manager;
        let contested = |path: &FieldPath| present.get(path).is_some_and(|value| wanted.get(path) != Some(value));
        let mut conflicts = Vec::new();
        for entry in self.0.iter_mut().filter(|entry| !is_own(entry)) {
            let lost: Vec<FieldPath> =
                wanted.keys().filter(|path| entry.fields.contains(*path) && contested(path)).cloned().collect();
            if force {
                entry.fields.retain(|path| !lost.contains(path));
            } else {
                conflicts.extend(lost.into_iter().map(|path| (entry.describe(), path)));
            }
        }
        if !conflicts.is_empty() {
            return Err(conflict_status(conflicts));
        }
        let previous = self.0.iter().find(|entry| is_own(entry)).map(|entry| entry.fields.clone()).unwrap_or_default();
        let mut merged = live.cloned().unwrap_or_else(|| applied.clone());
        for path in previous.iter().filter(|path| !wanted.contains_key(*path)) {
            let shared = self
                .0
                .iter()
                .filter(|entry| !is_own(entry))
                .any(|entry| entry.fields.iter().any(|other| other.starts_with(path) || path.starts_with(other)));
            if !shared {
                remove(&mut merged, path);
            }
        }
        for part in ["metadata", "spec"] {
            if let Some(value) = applied.get(part) {
                merge(&mut merged[part], value);
            }
        }
        let fields: BTreeSet<FieldPath> = wanted.into_keys().collect();
        let entry = self.entry(resource, manager, Operation::Apply);
        if entry.fields != fields {
            entry.fields = fields;
            entry.time = object::now();
        }
        self.normalize();
        Ok(merged)
    }

    fn entry(&mut self, resource: &ExampleResource, manager: &str, operation: Operation) -> &mut ManagedFieldsEntry {
        let found = self.0.iter().position(|entry| entry.operation == operation && entry.manager == manager);
        let at = found.unwrap_or_else(|| {
            self.0.push(ManagedFieldsEntry {
                manager: manager.to_owned(),
                operation,
                api_version: resource.group_version(),
                time: object::now(),
                fields: BTreeSet::new(),
            });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    fn normalize(&mut self) {
        self.0.retain(|entry| entry.operation == Operation::Apply || !entry.fields.is_empty());
        self.0.sort_by(|a, b| (a.operation, &a.time, &a.manager).cmp(&(b.operation, &b.time, &b.manager)));
    }
}

impl ManagedFieldsEntry {
    fn read(value: &Value) -> Option<ManagedFieldsEntry> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let operation = match value.get("operation")?.as_str()? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let mut fields = BTreeSet::new();
        read_fields(value.get("fieldsV1")?, &mut Vec::new(), &mut fields);
        let (api_version, time) = (text("apiVersion")?, text("time").unwrap_or_default());
        Some(ManagedFieldsEntry { manager: text("manager")?, operation, api_version, time, fields })
    }

    fn write(&self) -> Value {
        let mut fields = json!({});
        for path in &self.fields {
            let mut at = &mut fields;
            for step in path {
                at = match at {
                    Value::Object(fields) => fields.entry(format!("f:{step}")).or_insert_with(|| json!({})),
                    other => other,
                };
            }
        }
        let operation = match self.operation {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        };
        let mut entry = json!({"manager": self.manager, "operation": operation, "apiVersion": self.api_version,
            "fieldsType": "FieldsV1", "fieldsV1": fields});
        if !self.time.is_empty() {
            entry["time"] = json!(self.time);
        }
        entry
    }

    /// The manager as named in conflicts.
    fn describe(&self) -> String {
        match self.operation {
            Operation::Apply => format!("{:?}", self.manager),
            Operation::Update if self.time.is_empty() => format!("{:?} using {}", self.manager, self.api_version),
            Operation::Update => format!("{:?} using {} at {}", self.manager, self.api_version, self.time),
        }
    }
}

fn conflict_status(mut conflicts: Vec<(String, FieldPath)>) -> Status {
    conflicts.sort();
    let dotted = |path: &FieldPath| path.iter().map(|step| format!(".{step}")).collect::<String>();
    let message = if let [(manager, path)] = &conflicts[..] {
        format!("Apply failed with 1 conflict: conflict with {manager}: {}", dotted(path))
    } else {
        let mut by_manager: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (manager, path) in &conflicts {
            by_manager.entry(manager).or_default().push(dotted(path));
        }
        let each =
            by_manager.iter().map(|(manager, paths)| format!("conflicts with {manager}:\n- {}", paths.join("\n- ")));
        format!("Apply failed with {} conflicts: {}", conflicts.len(), each.collect::<Vec<_>>().join("\n"))
    };
    let cause = |(manager, path): &(String, FieldPath)| StatusCause {
        reason: "FieldManagerConflict".into(),
        message: format!("conflict with {manager}"),
        field: dotted(path),
    };
    api_errors::apply_conflict(message, conflicts.iter().map(cause).collect())
}

/// All leaves that can be owned, with their values; fields set by the server are left out.
fn leaves(object: &Value) -> BTreeMap<FieldPath, &Value> {
    fn walk<'o>(value: &'o Value, path: &mut FieldPath, found: &mut BTreeMap<FieldPath, &'o Value>) {
        match value.as_object().filter(|fields| !fields.is_empty()) {
            None => {
                found.insert(path.clone(), value);
            }
            Some(fields) => {
                for (name, value) in fields {
                    path.push(name.clone());
                    walk(value, path, found);
                    path.pop();
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    for part in ["annotations", "finalizers", "labels", "ownerReferences"] {
        if let Some(value) = object.get("metadata").and_then(|metadata| metadata.get(part)) {
            walk(value, &mut vec!["metadata".to_owned(), part.to_owned()], &mut found);
        }
    }
    if let Some(spec) = object.get("spec") {
        walk(spec, &mut vec!["spec".to_owned()], &mut found);
    }
    found
}

fn read_fields(value: &Value, path: &mut FieldPath, found: &mut BTreeSet<FieldPath>) {
    let Some(fields) = value.as_object().filter(|fields| !fields.is_empty()) else {
        if !path.is_empty() {
            found.insert(path.clone());
        }
        return;
    };
    for (name, value) in fields {
        // "." marks a map itself as owned and is not needed for leaves. "k:" and "v:" select list items; lists are
        // atomic here.
        if let Some(step) = name.strip_prefix("f:") {
            path.push(step.to_owned());
            read_fields(value, path, found);
            path.pop();
        }
    }
}

/// Removes the value at `path`, and maps that become empty.
fn remove(value: &mut Value, path: &[String]) {
    let (Some(fields), [step, rest @ ..]) = (value.as_object_mut(), path) else { return };
    if rest.is_empty() {
        fields.remove(step);
    } else if let Some(inner) = fields.get_mut(step) {
        remove(inner, rest);
        if inner.as_object().is_some_and(Map::is_empty) && step != "metadata" {
            fields.remove(step);
        }
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (&mut *into, from) {
        (Value::Object(fields), Value::Object(more)) => {
            for (name, value) in more {
                merge(fields.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        _ => *into = from.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::quickstart::example::resource::RESOURCES;

    fn greeting(spec: &Value) -> Value {
        json!({"metadata": {"name": "a", "labels": {"tone": "warm"}}, "spec": spec})
    }

    fn apply(live: &mut Option<Value>, manager: &str, applied: &Value, force: bool) -> Result<(), Status> {
        let mut owners = live.as_ref().map(Ownership::read).unwrap_or_default();
        let mut merged = owners.apply(&RESOURCES[0], manager, live.as_ref(), applied, force)?;
        owners.write(&mut merged);
        *live = Some(merged);
        Ok(())
    }

    #[test]
    fn apply_removes_fields_no_longer_applied() {
        let mut live = None;
        apply(&mut live, "ann", &greeting(&json!({"message": "hi", "language": "en"})), false).unwrap();
        apply(&mut live, "bob", &json!({"spec": {"language": "en"}}), false).unwrap();
        apply(&mut live, "ann", &json!({"spec": {"message": "hi"}}), false).unwrap();
        let object = live.as_ref().unwrap();
        assert_eq!(object["spec"], json!({"message": "hi", "language": "en"}), "bob still owns the language");
        assert_eq!(object["metadata"].get("labels"), None);
        apply(&mut live, "bob", &json!({"spec": {}}), false).unwrap();
        assert_eq!(live.as_ref().unwrap()["spec"], json!({"message": "hi"}));
    }

    #[test]
    fn apply_conflicts_unless_forced() {
        let mut live = Some(greeting(&json!({"message": "hi"})));
        let mut owners = Ownership::default();
        owners.record_update(&RESOURCES[0], "kubectl-edit", None, live.as_ref().unwrap());
        owners.write(live.as_mut().unwrap());
        let wish = json!({"spec": {"message": "hello"}});
        let status = apply(&mut live, "ann", &wish, false).unwrap_err();
        assert_eq!((status.code, status.reason), (409, "Conflict"));
        let opening = "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using example.narthex.dev/v1 at ";
        assert!(status.message.starts_with(opening), "{}", status.message);
        assert!(status.message.ends_with(": .spec.message"), "{}", status.message);
        assert_eq!(status.details.unwrap().causes[0].field, ".spec.message");
        apply(&mut live, "ann", &wish, true).unwrap();
        let object = live.unwrap();
        assert_eq!(object["spec"]["message"], "hello");
        let fields: Vec<_> =
            object["metadata"]["managedFields"].as_array().unwrap().iter().map(|e| &e["fieldsV1"]).collect();
        let expected = [json!({"f:spec": {"f:message": {}}}), json!({"f:metadata": {"f:labels": {"f:tone": {}}}})];
        assert_eq!(fields, expected.iter().collect::<Vec<_>>());
    }

    #[test]
    fn update_changes_field_ownership() {
        let before = greeting(&json!({"message": "hi", "language": "en"}));
        let mut owners = Ownership::default();
        owners.record_update(&RESOURCES[0], "ann", None, &before);
        owners.record_update(&RESOURCES[0], "bob", Some(&before), &greeting(&json!({"message": "hello"})));
        let owned: Vec<_> = owners.0.iter().map(|entry| (entry.manager.as_str(), entry.fields.len())).collect();
        assert_eq!(owned, [("ann", 1), ("bob", 1)]);
    }
}
