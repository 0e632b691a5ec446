//! The objects that a kube-apiserver makes at its start: system PriorityClasses (`pkg/registry/scheduling/rest`), the
//! configuration of flow control (`k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap`), and the roles and bindings of RBAC
//! (`pkg/registry/rbac/rest/storage_rbac.go`), to which what is missing is added.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::ObjectMetaView;
use kubeapi::{GoQuoted, Status};
use serde_json::{Map, Value, json};
use store::Key;
use store::watch_cache::{ResourceCollection, Stored};

use super::policy_reconciliation::{Reconciliation, reconcile};
use super::runner::Controller;
use super::{builtin_collection, read_latest};
use crate::conversion::stored_object;
use crate::observe::metrics::WorkQueueRegistry;
use crate::resources::ServedKind;
use crate::resources::builtin::builtin_kinds;
use crate::rest::{ApiServer, finish_write, new_object, now, unavailable};
use crate::work_queue::{BackOff, WorkQueue};

/// Written by `tests/interop/kinds`: an object a line.
const OBJECTS: [&str; 2] = [include_str!("bootstrap_policy.jsonl"), include_str!("bootstrap_objects.jsonl")];

/// The controller that creates the objects that do not exist, once at the start. A key is kind, namespace and name of
/// one.
pub(super) struct BootstrapObjectController {
    api: ApiServer,
    lines: BTreeMap<String, &'static str>,
    /// Keys that were not reconciled yet.
    missing: RefCell<BTreeSet<String>>,
    queue: WorkQueue<String>,
}

struct BootstrapObject {
    kind: ServedKind,
    object: Map<String, Value>,
}

impl BootstrapObjectController {
    /// Creates all objects of kinds that are served, and queues those that cannot be stored now.
    pub(super) async fn start(api: &ApiServer, metrics: &WorkQueueRegistry) -> BootstrapObjectController {
        let queue = WorkQueue::new(BackOff::default(), metrics.register("bootstrap_objects"));
        let catalog = &api.settings().catalog;
        let mut lines = BTreeMap::new();
        for line in OBJECTS.iter().flat_map(|lines| lines.lines()) {
            let Some(one) = BootstrapObject::parse(line) else { continue };
            let (group, plural) = one.kind.resource.group_resource();
            if catalog.find(group, &one.kind.version.version, plural).is_some() {
                let meta = one.meta();
                let key = format!("{} {}/{}", one.kind.resource.kind, meta.namespace(), meta.name());
                lines.insert(key, line);
            }
        }
        if lines.is_empty() {
            api.note_bootstrap_objects();
        }
        let missing = RefCell::new(lines.keys().cloned().collect());
        let controller = BootstrapObjectController { api: api.clone(), lines, missing, queue };
        // At once: the store commits them together.
        let outcomes = join_all(controller.lines.keys().map(async |key| (key, controller.reconcile(key).await))).await;
        for (key, outcome) in outcomes {
            if let Err(status) = outcome {
                tracing::warn!(key, "object that every server has cannot be stored, tried again: {}", status.message);
                controller.queue.add(key.clone());
            }
        }
        controller
    }
}

impl BootstrapObject {
    /// Reads a line, which a test does with all of them.
    fn parse(line: &str) -> Option<BootstrapObject> {
        let object: Map<String, Value> = serde_json::from_str(line).ok()?;
        let (group, version) = object.get("apiVersion")?.as_str()?.rsplit_once('/')?;
        let kind = builtin_kinds().find_kind(group, version, object.get("kind")?.as_str()?)?;
        Some(BootstrapObject { kind, object })
    }

    fn meta(&self) -> ObjectMetaView<'_> {
        ObjectMetaView::of_map(&self.object)
    }

    /// Creates the object.
    async fn create(&self, collection: &ResourceCollection, key: &Key) -> Result<(), Status> {
        let (group, plural) = self.kind.resource.group_resource();
        let mut object = self.object.clone();
        if &*self.kind.resource.kind == "FlowSchema" {
            object.insert("status".to_owned(), flow_schema_status(&object));
        }
        let value = new_object(group, &self.kind.version.version, plural, object)?;
        finish_write(collection.create(key, value, None).await)
    }

    /// Adds what is missing to a stored role or binding.
    async fn add_missing(&self, collection: &ResourceCollection, stored: &Arc<Stored>) -> Result<(), Status> {
        if self.kind.resource.group != "rbac.authorization.k8s.io" {
            return Ok(());
        }
        let (key, revision) = (stored.key(), stored.revision());
        let outcome = match reconcile(&stored_object(stored).await?, &self.object)? {
            Reconciliation::Unchanged => return Ok(()),
            Reconciliation::Update(object) => {
                let value = write_stored_json(&object).bytes;
                collection.update(key, revision, value.into(), None).await.map(drop)
            }
            Reconciliation::Recreate => match collection.delete(key, revision).await {
                Ok(_) => return self.create(collection, key).await,
                Err(error) => Err(error),
            },
        };
        outcome.map_err(|error| unavailable(&error))
    }
}

/// The status of a FlowSchema whose priority level exists, as those of the bootstrap configuration do (`syncOne` and
/// `buildFlowSchemas` in `k8s.io/apiserver/pkg/util/flowcontrol/apf_controller.go`).
fn flow_schema_status(object: &Map<String, Value>) -> Value {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let level = spec["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default();
    let message = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named {} and it exists",
        GoQuoted(level)
    );
    json!({"conditions": [{
        "type": "Dangling", "status": "False", "lastTransitionTime": now(), "reason": "Found", "message": message,
    }]})
}

impl Controller for BootstrapObjectController {
    type Key = String;

    const CONCURRENCY: usize = 8;

    fn queue(&self) -> &WorkQueue<String> {
        &self.queue
    }

    async fn reconcile(&self, name: &String) -> Result<(), Status> {
        let Some(one) = self.lines.get(name).and_then(|line| BootstrapObject::parse(line)) else { return Ok(()) };
        let (group, plural) = one.kind.resource.group_resource();
        let collection = builtin_collection(&self.api, group, plural)?;
        let meta = one.meta();
        let (key, stored) = read_latest(&collection, meta.namespace(), meta.name()).await?;
        match stored {
            Some(stored) => one.add_missing(&collection, &stored).await?,
            None => one.create(&collection, &key).await?,
        }
        let mut missing = self.missing.borrow_mut();
        missing.remove(name);
        if missing.is_empty() {
            self.api.note_bootstrap_objects();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_objects_are_of_builtin_kinds() {
        let lines = OBJECTS.iter().flat_map(|lines| lines.lines());
        let parsed = lines.map(|line| BootstrapObject::parse(line).unwrap_or_else(|| panic!("{line}")));
        let mut kinds: Vec<String> = parsed.map(|one| one.kind.resource.kind.to_string()).collect();
        kinds.dedup();
        let expected = [
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "PriorityClass",
            "PriorityLevelConfiguration",
            "FlowSchema",
        ];
        assert_eq!(kinds, expected);
    }
}
