//! The objects that a kube-apiserver makes at its start: system PriorityClasses (`pkg/registry/scheduling/rest`) and the
//! configuration of flow control (`k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap`).

use std::collections::BTreeMap;

use kubeapi::Status;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value};
use store::watch_cache::Error;

use super::builtin_collection;
use super::runner::Controller;
use crate::observe::metrics::WorkQueueRegistry;
use crate::resources::ServedKind;
use crate::resources::builtin::builtin_kinds;
use crate::rest::{ApiServer, new_object, unavailable};
use crate::work_queue::{BackOff, WorkQueue};

/// Written by `tests/interop/kinds`: an object a line.
const OBJECTS: &str = include_str!("bootstrap_objects.jsonl");

/// The controller that creates the objects that do not exist, once after the start. A key is kind and name of one.
pub(super) struct BootstrapObjectController {
    api: ApiServer,
    objects: BTreeMap<String, BootstrapObject>,
    queue: WorkQueue<String>,
}

struct BootstrapObject {
    kind: ServedKind,
    name: String,
    object: Map<String, Value>,
}

impl BootstrapObjectController {
    /// Queues all objects of kinds that are served.
    pub(super) fn start(api: &ApiServer, metrics: &WorkQueueRegistry) -> BootstrapObjectController {
        let queue = WorkQueue::new(BackOff::default(), metrics.register("bootstrap_objects"));
        let catalog = &api.settings().catalog;
        let is_served = |one: &BootstrapObject| {
            let (group, plural) = one.kind.resource.group_resource();
            catalog.find(group, &one.kind.version.version, plural).is_some()
        };
        let served = OBJECTS.lines().filter_map(BootstrapObject::parse).filter(is_served);
        let objects: BTreeMap<String, BootstrapObject> =
            served.map(|one| (format!("{} {}", one.kind.resource.kind, one.name), one)).collect();
        objects.keys().for_each(|key| queue.add(key.clone()));
        BootstrapObjectController { api: api.clone(), objects, queue }
    }
}

impl BootstrapObject {
    /// Reads a line, which a test does with all of them.
    fn parse(line: &str) -> Option<BootstrapObject> {
        let object: Map<String, Value> = serde_json::from_str(line).ok()?;
        let (group, version) = object.get("apiVersion")?.as_str()?.rsplit_once('/')?;
        let kind = builtin_kinds().find_kind(group, version, object.get("kind")?.as_str()?)?;
        let name = ObjectMetaView::of_map(&object).name().to_owned();
        Some(BootstrapObject { kind, name, object })
    }
}

impl Controller for BootstrapObjectController {
    type Key = String;

    const CONCURRENCY: usize = 8;

    fn queue(&self) -> &WorkQueue<String> {
        &self.queue
    }

    async fn reconcile(&self, key: &String) -> Result<(), Status> {
        let Some(BootstrapObject { kind, name, object }) = self.objects.get(key) else { return Ok(()) };
        let (group, plural) = kind.resource.group_resource();
        let collection = builtin_collection(&self.api, group, plural)?;
        let key = collection.prefix().key("", name).map_err(Status::internal_error)?;
        if collection.get_latest(&key).await.map_err(|error| unavailable(&error))?.is_some() {
            return Ok(());
        }
        let value = new_object(group, &kind.version.version, plural, object.clone())?;
        match collection.create(&key, value, None).await {
            Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(unavailable(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_objects_are_of_builtin_kinds() {
        let parsed = OBJECTS.lines().map(|line| BootstrapObject::parse(line).unwrap_or_else(|| panic!("{line}")));
        let mut kinds: Vec<String> = parsed.map(|one| one.kind.resource.kind.to_string()).collect();
        kinds.dedup();
        assert_eq!(kinds, ["PriorityClass", "PriorityLevelConfiguration", "FlowSchema"]);
    }
}
