//! Local APIServices of the groups that the embedded API server serves itself
//! (`k8s.io/kube-aggregator/pkg/controllers/autoregister`): created, updated and deleted at start, and when a
//! CustomResourceDefinition comes, changes or goes.

use std::collections::BTreeMap;

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value, json};
use store::watch_cache::Error;

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::metadata;
use super::target::ObjectTarget;
use crate::conversion::stored_object;
use crate::kinds::prepare_new_api_service;
use crate::resources::builtin::builtin_kinds;

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

/// Creates the Local APIServices of all served groups, gives those of an earlier start the current specification, and
/// deletes those of groups that are no longer served.
///
/// # Errors
/// The store cannot be read or written.
pub(super) async fn register_local_groups(api: &ApiServer) -> Result<(), Status> {
    register_selected_groups(api, |_| true).await
}

/// As [`register_local_groups`], of the APIServices that `is_selected` accepts by name.
///
/// # Errors
/// The store cannot be read or written.
pub(super) async fn register_selected_groups(
    api: &ApiServer,
    is_selected: impl Fn(&str) -> bool,
) -> Result<(), Status> {
    let Some(kind) = builtin_kinds().find("apiregistration.k8s.io", "v1", "apiservices") else {
        return Ok(());
    };
    let collection = api.collection(&kind.resource)?;
    let unavailable = |error: Error| Status::service_unavailable(error.to_string());
    collection.ensure_loaded().await.map_err(unavailable)?;
    let served = served_versions(api).into_iter().map(|served| (served.api_service_name(), served));
    let served: BTreeMap<String, ServedVersion> = served.filter(|(name, _)| is_selected(name)).collect();
    for (name, served) in &served {
        let target = ObjectTarget::new(kind.clone(), "", name.as_str(), "");
        let key = target.key(&collection)?;
        let result = match collection.get(&key) {
            None => {
                let mut object = local_api_service(name, served);
                metadata::fill_new_object(&target, &mut object);
                (target.rules.prepare_new)(&target.kind, &mut object);
                collection.create(&key, write_stored_json(&object).bytes.into(), None).await.map(drop)
            }
            Some(current) => {
                let mut object = stored_object(&current).await?;
                let spec = local_api_service(name, served).remove("spec");
                if !is_managed(&object) || object.get("spec") == spec.as_ref() {
                    continue;
                }
                object.insert("spec".to_owned(), spec.unwrap_or_default());
                prepare_new_api_service(&mut object);
                let value = write_stored_json(&object).bytes;
                collection.update(&key, current.revision(), value.into(), None).await.map(drop)
            }
        };
        match result {
            Ok(()) | Err(Error::Conflict { .. }) => {}
            Err(error) => return Err(cache_error(&target, error)),
        }
    }
    let all = collection.list(&Default::default()).await.map_err(unavailable)?;
    for current in all.objects {
        let is_served = served.contains_key(current.name());
        if !is_served && is_selected(current.name()) && is_managed(&stored_object(&current).await?) {
            let key = collection.prefix().key("", current.name()).map_err(Status::internal_error)?;
            collection.delete(&key, current.revision()).await.map_err(unavailable)?;
        }
    }
    Ok(())
}

/// A group and version that is served here.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ServedVersion {
    group: String,
    version: String,
    /// Whether it is of a CustomResourceDefinition.
    is_custom: bool,
}

impl ServedVersion {
    fn api_service_name(&self) -> String {
        api_service_name(&self.group, &self.version)
    }
}

/// The name of the APIService of a group and version.
pub(super) fn api_service_name(group: &str, version: &str) -> String {
    format!("{version}.{group}")
}

/// Group and version of everything that is served here, except `apiregistration.k8s.io`: as in a kube-apiserver, that
/// cannot be registered.
fn served_versions(api: &ApiServer) -> Vec<ServedVersion> {
    let catalog = api.catalog.get();
    let stored = catalog
        .entries()
        .iter()
        .map(|entry| (&*entry.kind.resource.group, &*entry.kind.version.version, entry.is_custom()));
    // Self-reviews are served, and not in the catalog.
    let reviews = [("authentication.k8s.io", "v1", false), ("authorization.k8s.io", "v1", false)];
    let mut served: Vec<ServedVersion> = stored
        .chain(reviews)
        .filter(|(group, ..)| *group != "apiregistration.k8s.io")
        .map(|(group, version, is_custom)| ServedVersion {
            group: group.to_owned(),
            version: version.to_owned(),
            is_custom,
        })
        .collect();
    served.sort();
    served.dedup();
    served
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

fn is_managed(object: &Map<String, Value>) -> bool {
    matches!(ObjectMetaView::of_map(object).label(MANAGED_LABEL), Some(MANAGED_ON_START | MANAGED))
}
