//! Local APIServices of the groups that the embedded API server serves itself
//! (`k8s.io/kube-aggregator/pkg/controllers/autoregister`): created, updated and deleted at start, and when a
//! CustomResourceDefinition comes, changes or goes. Those of CustomResourceDefinitions are also created or updated when
//! somebody deletes or changes them.

use std::collections::BTreeSet;
use std::time::Duration;

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value, json};
use store::watch_cache::{Error, ResourceCollection};

use super::runner::{Controller, FeedEvent};
use super::{builtin_collection, read_latest};
use crate::conversion::stored_object;
use crate::kinds::prepare_new_api_service;
use crate::observe::metrics::WorkQueueRegistry;
use crate::resources::custom::Crd;
use crate::rest::{ApiServer, new_object, unavailable};
use crate::work_queue::{BackOff, WorkQueue};

/// Label of the APIServices that the server manages (`autoregister.AutoRegisterManagedLabel`).
const MANAGED_LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Value of the label: managed at start only.
const MANAGED_ON_START: &str = "onstart";
/// Value of the label for the groups of CustomResourceDefinitions: managed always.
const MANAGED: &str = "true";
/// Priorities of these groups and their versions (`crdregistration_controller.go` of kube-aggregator).
const CUSTOM_PRIORITIES: (i32, i32) = (1000, 100);

/// Groups in kube-apiserver's order, the first has the greatest priority, with the priority of the group
/// (`pkg/controlplane/apiserver/aggregator.go`, `cmd/kube-apiserver/app/aggregator.go`).
const GROUP_PRIORITIES: [(&str, i32); 21] = [
    ("", 18_000),
    ("apps", 17_800),
    ("events.k8s.io", 17_750),
    ("authentication.k8s.io", 17_700),
    ("authorization.k8s.io", 17_600),
    ("autoscaling", 17_500),
    ("batch", 17_400),
    ("certificates.k8s.io", 17_300),
    ("networking.k8s.io", 17_200),
    ("policy", 17_100),
    ("rbac.authorization.k8s.io", 17_000),
    ("storage.k8s.io", 16_800),
    ("apiextensions.k8s.io", 16_700),
    ("admissionregistration.k8s.io", 16_700),
    ("scheduling.k8s.io", 16_600),
    ("coordination.k8s.io", 16_500),
    ("node.k8s.io", 16_300),
    ("discovery.k8s.io", 16_200),
    ("flowcontrol.apiserver.k8s.io", 16_100),
    ("internal.apiserver.k8s.io", 16_000),
    ("resource.k8s.io", 15_900),
];

/// Priority of a version that has none of its own.
const VERSION_PRIORITY: i32 = 15;

/// Priorities of the versions that are not [`VERSION_PRIORITY`].
const VERSION_PRIORITIES: [(&str, &str, i32); 3] =
    [("", "v1", 1), ("autoscaling", "v2", 30), ("flowcontrol.apiserver.k8s.io", "v1", 21)];

/// Pause after a failure: CRDs wait for their APIServices.
const PAUSE: Duration = Duration::from_secs(1);

/// The controller of Local APIServices. Its keys are their names, also of those that no longer have a reason.
pub(super) struct LocalApiServiceController {
    api: ApiServer,
    api_services: ResourceCollection,
    crds: ResourceCollection,
    queue: WorkQueue<String>,
}

impl LocalApiServiceController {
    /// # Errors
    /// 500 if the server has no APIServices.
    pub(super) fn new(api: &ApiServer, metrics: &WorkQueueRegistry) -> Result<LocalApiServiceController, Status> {
        let api_services = builtin_collection(api, "apiregistration.k8s.io", "apiservices")?;
        let queue = WorkQueue::new(BackOff { initial: PAUSE, max: PAUSE }, metrics.register("autoregister"));
        let crds = builtin_collection(api, "apiextensions.k8s.io", "customresourcedefinitions")?;
        Ok(LocalApiServiceController { api: api.clone(), api_services, crds, queue })
    }

    /// Brings all Local APIServices up to date: those of served groups, and those of an earlier start.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub(super) async fn start(&self) -> Result<(), Status> {
        self.api_services.ensure_loaded().await.map_err(|error| unavailable(&error))?;
        let snapshot = self.api_services.snapshot();
        let stored = snapshot.range(self.api_services.prefix(), None).map(|stored| stored.name().to_owned());
        let names: BTreeSet<String> = stored.chain(served_api_services(&self.api)).collect();
        for name in names {
            while !self.sync(&name, true).await? {}
        }
        Ok(())
    }

    /// The APIServices.
    pub(super) fn collection(&self) -> &ResourceCollection {
        &self.api_services
    }

    /// Adds an APIService that a client changed or deleted; those of all served groups when the watch starts.
    pub(super) fn observe(&self, event: &FeedEvent<'_>) {
        match event {
            FeedEvent::Started => served_api_services(&self.api).into_iter().for_each(|name| self.queue.add(name)),
            FeedEvent::Object(event) => event.object.iter().for_each(|object| self.queue.add(object.name().to_owned())),
        }
    }

    /// Creates, updates or deletes an APIService, as it is served and managed. After the start, those that are managed at
    /// start only are left alone. Returns false if another writer was faster.
    async fn sync(&self, name: &str, is_starting: bool) -> Result<bool, Status> {
        let served = find_served(&self.api, name);
        if served.as_ref().is_some_and(|served| !served.is_custom && !is_starting) {
            return Ok(true);
        }
        let (key, current) = read_latest(&self.api_services, "", name).await?;
        if self.is_ahead_of_catalog(name, served.as_ref(), current.is_some()) {
            return Ok(true);
        }
        let written = match (current, served) {
            (None, None) => return Ok(true),
            (None, Some(served)) => {
                let object = local_api_service(name, &served);
                let value = new_object("apiregistration.k8s.io", "v1", "apiservices", object)?;
                self.api_services.create(&key, value, None).await.map(drop)
            }
            (Some(current), served) => {
                let mut object = stored_object(&current).await?;
                let label = ObjectMetaView::of_map(&object).label(MANAGED_LABEL);
                if label != Some(MANAGED) && (label != Some(MANAGED_ON_START) || !is_starting) {
                    return Ok(true);
                }
                match served {
                    None => self.api_services.delete(&key, current.revision()).await.map(drop),
                    Some(served) => {
                        let spec = local_api_service(name, &served).remove("spec");
                        if object.get("spec") == spec.as_ref() {
                            return Ok(true);
                        }
                        object.insert("spec".to_owned(), spec.unwrap_or_default());
                        prepare_new_api_service(&mut object);
                        let value = write_stored_json(&object).bytes;
                        self.api_services.update(&key, current.revision(), value.into(), None).await.map(drop)
                    }
                }
            }
        };
        match written {
            Ok(()) => Ok(true),
            Err(Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(unavailable(&error)),
        }
    }
}

impl LocalApiServiceController {
    /// Whether another server already made or removed an APIService, because the definitions of the store changed, and the
    /// catalog of this one does not have that yet. Two servers would create and delete it in turn.
    fn is_ahead_of_catalog(&self, name: &str, served: Option<&ServedVersion>, exists: bool) -> bool {
        let is_builtin = served.is_some_and(|served| !served.is_custom);
        if !self.api.settings().shares_store || is_builtin || served.is_some() == exists {
            return false;
        }
        let defines = |crd: &Crd| {
            let mut served = crd.spec.versions.iter().filter(|version| version.served);
            crd.has_condition("Established")
                && served.any(|version| api_service_name(&crd.spec.group, &version.name) == name)
        };
        let snapshot = self.crds.snapshot();
        let is_defined =
            snapshot.range(self.crds.prefix(), None).any(|stored| Crd::read(stored).is_ok_and(|crd| defines(&crd)));
        is_defined == exists
    }
}

impl Controller for LocalApiServiceController {
    type Key = String;

    const CONCURRENCY: usize = 5;

    fn queue(&self) -> &WorkQueue<String> {
        &self.queue
    }

    async fn reconcile(&self, name: &String) -> Result<(), Status> {
        while !self.sync(name, false).await? {}
        Ok(())
    }
}

/// A group and version that is served here.
#[derive(Debug, PartialEq, Eq)]
struct ServedVersion {
    group: String,
    version: String,
    /// Whether it is of a CustomResourceDefinition.
    is_custom: bool,
}

/// Groups and versions that are served and have no stored objects.
const REVIEW_VERSIONS: [(&str, &str); 2] = [("authentication.k8s.io", "v1"), ("authorization.k8s.io", "v1")];

/// The group that cannot be registered, as in a kube-apiserver.
const UNREGISTERED_GROUP: &str = "apiregistration.k8s.io";

/// The names of the APIServices of everything that is served here.
fn served_api_services(api: &ApiServer) -> BTreeSet<String> {
    let catalog = api.catalog().get();
    let stored = catalog.entries().iter().map(|entry| (&*entry.kind.resource.group, &*entry.kind.version.version));
    let served = stored.chain(REVIEW_VERSIONS).filter(|(group, _)| *group != UNREGISTERED_GROUP);
    served.map(|(group, version)| api_service_name(group, version)).collect()
}

/// The group and version of an APIService, if they are served here.
fn find_served(api: &ApiServer, name: &str) -> Option<ServedVersion> {
    let (version, group) = name.split_once('.').filter(|(_, group)| *group != UNREGISTERED_GROUP)?;
    let catalog = api.catalog().get();
    let entry = catalog.in_group(group).find(|entry| entry.kind.version.version == version);
    let is_custom = match entry {
        Some(entry) => entry.is_custom(),
        None if REVIEW_VERSIONS.contains(&(group, version)) => false,
        None => return None,
    };
    Some(ServedVersion { group: group.to_owned(), version: version.to_owned(), is_custom })
}

/// The name of the APIService of a group and version.
pub(super) fn api_service_name(group: &str, version: &str) -> String {
    format!("{version}.{group}")
}

fn local_api_service(name: &str, served: &ServedVersion) -> Map<String, Value> {
    let ServedVersion { group, version, is_custom } = served;
    let is_of = |name: &str, of: &str| name == group && (of.is_empty() || of == version);
    let last = GROUP_PRIORITIES.last().map_or(1, |(_, priority)| priority - 100);
    let group_priority =
        GROUP_PRIORITIES.iter().find(|(name, _)| is_of(name, "")).map_or(last, |(_, priority)| *priority);
    let own = VERSION_PRIORITIES.iter().find(|(of, name, _)| is_of(of, name));
    let version_priority = own.map_or(VERSION_PRIORITY, |(_, _, priority)| *priority);
    let (group_priority, version_priority) =
        if *is_custom { CUSTOM_PRIORITIES } else { (group_priority, version_priority) };
    let label = if *is_custom { MANAGED } else { MANAGED_ON_START };
    let mut spec = json!({
        "version": version, "groupPriorityMinimum": group_priority, "versionPriority": version_priority,
    });
    if !group.is_empty() {
        spec["group"] = json!(group);
    }
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), json!("apiregistration.k8s.io/v1"));
    object.insert("kind".to_owned(), json!("APIService"));
    object.insert("metadata".to_owned(), json!({"name": name, "labels": {MANAGED_LABEL: label}}));
    object.insert("spec".to_owned(), spec);
    object
}
