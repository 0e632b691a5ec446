//! What the CustomResourceDefinitions of the store make of the catalog: their names, the groups that are registered, and
//! what of them changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use serde_json::{Map, Value};
use store::Revision;
use store::watch_cache::{ResourceCollection, Stored};

use super::conditions::{NON_STRUCTURAL, set_approval_condition, set_structural_condition};
use super::names::{TakenNames, accept_names};
use crate::controllers::crd_removal::needs_cleanup;
use crate::controllers::local_api_services::api_service_name;
use crate::conversion::stored_object;
use crate::resources::catalog::CatalogEntry;
use crate::resources::custom::{Crd, custom_entries};
use crate::rest::{ApiServer, CrdIdentity, finish_write};
use crate::work_queue::WorkQueue;

/// Longest wait for discovery and OpenAPI before CRDs are established: with many backends, discovery is published
/// with pauses of seconds.
const DOCUMENTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for the Local APIServices of new group-versions. The catalog is published without them; statuses wait.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The CRDs as they were read, with what is not dealt with yet.
pub(super) struct CrdReconciler {
    api: ApiServer,
    crds: ResourceCollection,
    /// Names of the Local APIServices to be looked at.
    api_services: WorkQueue<String>,
    loaded: BTreeMap<String, LoadedCrd>,
    /// Names of CRDs whose schemas were checked, with uids and generations.
    checked: HashMap<String, (String, i64)>,
    /// Groups with CRDs that changed since names were accepted.
    changed_groups: BTreeSet<String>,
    /// Whether something changed that is not dealt with: a write failed.
    is_behind: bool,
    /// Group-versions that are registered.
    registered: BTreeSet<(String, String)>,
}

/// The field of a schema with rules, as objects are stored.
const RULES_FIELD: &str = "\"x-kubernetes-validations\":[{";

/// A CRD as it is stored, and read.
type StoredCrd = (Arc<Stored>, Arc<Crd>);

/// A CRD, and what it makes of the catalog.
struct LoadedCrd {
    revision: Revision,
    crd: Arc<Crd>,
    /// The CRD of which `entries` are made: with names that are accepted but not written yet.
    served: Arc<Crd>,
    entries: Vec<CatalogEntry>,
}

impl CrdReconciler {
    /// Reads the CRDs of the store and publishes the catalog. `crds` is loaded.
    pub(super) fn new(api: &ApiServer, crds: &ResourceCollection, api_services: WorkQueue<String>) -> CrdReconciler {
        let mut reconciler = CrdReconciler {
            api: api.clone(),
            crds: crds.clone(),
            api_services,
            loaded: BTreeMap::new(),
            checked: HashMap::new(),
            changed_groups: BTreeSet::new(),
            // The last process may have ended before it dealt with what it stored.
            is_behind: true,
            registered: BTreeSet::new(),
        };
        reconciler.update_catalog();
        reconciler.registered = reconciler.served_versions();
        reconciler
    }

    /// Brings the status of every CRD, the catalog and the registered groups up to date.
    pub(super) async fn reconcile(&mut self) -> Result<(), Status> {
        if self.api.settings().is_read_only {
            // Another server keeps their statuses.
            self.update_catalog();
            return Ok(());
        }
        self.is_behind |= self.read_changes();
        while self.is_behind {
            let groups = std::mem::take(&mut self.changed_groups);
            let accepted = self.accept_all_names(&groups);
            if let Err(status) = self.publish(&accepted).await {
                self.changed_groups.extend(groups);
                return Err(status);
            }
            self.read_changes();
            self.queue_terminating_crds();
            // What was read since names were accepted: no event tells of it again.
            self.is_behind = !self.changed_groups.is_empty();
        }
        Ok(())
    }

    /// Publishes the catalog and registers its groups, then writes the status of CRDs: who sees that names are
    /// accepted, or that a CRD is established, finds it served.
    async fn publish(&mut self, accepted: &[Crd]) -> Result<(), Status> {
        self.update_catalog();
        let served = self.served_versions();
        if served != self.registered {
            let changed = served.symmetric_difference(&self.registered);
            let changed: Vec<String> = changed.map(|(group, version)| api_service_name(group, version)).collect();
            changed.iter().for_each(|name| self.api_services.add(name.clone()));
            let registered = self.api_services.wait_until_finished(changed);
            let timed_out = |_| Status::service_unavailable("Local APIServices cannot be written");
            tokio::time::timeout(REGISTRATION_TIMEOUT, registered).await.map_err(timed_out)?;
            self.registered = served;
        }
        if !accepted.is_empty() {
            let documented = self.api.catalog_publisher().wait_until_applied();
            if tokio::time::timeout(DOCUMENTS_TIMEOUT, documented).await.is_err() {
                tracing::warn!(
                    "discovery does not have the latest CustomResourceDefinitions; they are served nevertheless"
                );
            }
        }
        for crd in accepted {
            self.write_status(crd).await?;
        }
        Ok(())
    }

    /// Reads the CRDs that changed. Returns whether any did.
    fn read_changes(&mut self) -> bool {
        let snapshot = self.crds.snapshot();
        let stored: HashMap<&str, &Arc<Stored>> =
            snapshot.range(self.crds.prefix(), None).map(|stored| (stored.name(), stored)).collect();
        let mut has_changed = false;
        let changed_groups = &mut self.changed_groups;
        self.loaded.retain(|name, loaded| {
            let stays = stored.contains_key(name.as_str());
            if !stays {
                has_changed = true;
                changed_groups.insert(loaded.crd.spec.group.clone());
            }
            stays
        });
        for (name, stored) in stored {
            if self.loaded.get(name).is_some_and(|loaded| loaded.revision == stored.revision()) {
                continue;
            }
            has_changed = true;
            note_unenforced_rules(&self.api, name, stored.bytes());
            match Crd::read(stored) {
                Ok(crd) => {
                    self.changed_groups.insert(crd.spec.group.clone());
                    let entries = self.entries_of(&crd, stored);
                    let (revision, crd) = (stored.revision(), Arc::new(crd));
                    let loaded = LoadedCrd { revision, served: crd.clone(), crd, entries };
                    self.loaded.insert(name.to_owned(), loaded);
                }
                Err(error) => {
                    tracing::error!(crd = name, "stored CustomResourceDefinition cannot be read: {error}");
                    self.loaded.remove(name);
                }
            }
        }
        self.api.retain_unenforced(|name| self.loaded.contains_key(name));
        has_changed
    }

    /// The entries of a CRD: those that it has, unless something changed that they depend on. So a schema is
    /// compiled once, and watches go on while the specification stays the same.
    fn entries_of(&self, crd: &Crd, stored: &Arc<Stored>) -> Vec<CatalogEntry> {
        if !crd.has_condition("Established") {
            return Vec::new();
        }
        // Its objects would be those of the server, and be deleted with the CRD.
        if self.api.has_builtin_group(&crd.spec.group) {
            let (name, group) = (&crd.metadata.name, &crd.spec.group);
            tracing::warn!(crd = name, group, "CustomResourceDefinition not served: its group is built in");
            return Vec::new();
        }
        let loaded = self.loaded.get(&crd.metadata.name).filter(|loaded| {
            let (before, now) = (&loaded.served, crd);
            (&before.metadata.uid, &before.spec, &before.status.accepted_names)
                == (&now.metadata.uid, &now.spec, &now.status.accepted_names)
        });
        let Some((loaded, first)) = loaded.and_then(|loaded| Some((loaded, loaded.entries.first()?))) else {
            return custom_entries(crd, stored, None);
        };
        if loaded.served.metadata.deletion_timestamp == crd.metadata.deletion_timestamp {
            return loaded.entries.clone();
        }
        custom_entries(crd, stored, first.kind.resource.custom.as_ref())
    }

    /// Accepts the names of every CRD of some groups, the older ones first, checks schemas and approvals. Returns
    /// the CRDs whose status changed.
    fn accept_all_names(&mut self, changed_groups: &BTreeSet<String>) -> Vec<Crd> {
        self.checked.retain(|name, _| self.loaded.contains_key(name));
        // Names are taken within a group.
        let mut groups: BTreeMap<String, Vec<StoredCrd>> = BTreeMap::new();
        let snapshot = self.crds.snapshot();
        for stored in snapshot.range(self.crds.prefix(), None) {
            let Some(loaded) = self.loaded.get(stored.name()) else { continue };
            if changed_groups.contains(&loaded.crd.spec.group) {
                let group = groups.entry(loaded.crd.spec.group.clone()).or_default();
                group.push((stored.clone(), loaded.crd.clone()));
            }
        }
        let mut accepted = Vec::new();
        for mut members in groups.into_values() {
            members.sort_by_key(|(stored, _)| (stored.created(), stored.name().to_owned()));
            self.accept_names_of_group(&members, &mut accepted);
        }
        accepted
    }

    /// Accepts the names of the CRDs of one group.
    fn accept_names_of_group(&mut self, members: &[StoredCrd], accepted: &mut Vec<Crd>) {
        let mut taken = TakenNames::of(members.iter().map(|(_, crd)| &**crd));
        for (stored, before) in members {
            let name = stored.name().to_owned();
            let mut crd = Crd::clone(before);
            accept_names(&mut crd, &taken);
            set_approval_condition(&mut crd);
            let state = (before.metadata.uid.clone(), before.metadata.generation);
            if self.checked.get(&name) != Some(&state) {
                set_structural_condition(&mut crd, stored.bytes());
                // A condition that could not be written is looked at again.
                if crd.condition(NON_STRUCTURAL) == before.condition(NON_STRUCTURAL) {
                    self.checked.insert(name.clone(), state);
                }
            }
            let is_same = crd.status.conditions == before.status.conditions
                && crd.status.accepted_names == before.status.accepted_names;
            if !is_same {
                taken.replace(before, &crd);
                let entries = self.entries_of(&crd, stored);
                if let Some(loaded) = self.loaded.get_mut(&name).filter(|loaded| loaded.revision == stored.revision()) {
                    loaded.entries = entries;
                    loaded.served = Arc::new(crd.clone());
                }
                accepted.push(crd);
            }
        }
    }

    /// Writes names and conditions. A CRD that another writer changed is looked at again with its next event.
    async fn write_status(&self, crd: &Crd) -> Result<(), Status> {
        let name = &crd.metadata.name;
        let key = self.crds.prefix().key("", name).map_err(Status::internal_error)?;
        let Some(stored) = self.crds.get(&key) else { return Ok(()) };
        if self.loaded.get(name).is_none_or(|loaded| loaded.revision != stored.revision()) {
            return Ok(());
        }
        let mut object: Map<String, Value> = stored_object(&stored).await?;
        let to_value = |value: Result<Value, serde_json::Error>| value.map_err(Status::internal_error);
        let status = object.entry("status").or_insert_with(|| Value::Object(Map::new()));
        status["acceptedNames"] = to_value(serde_json::to_value(&crd.status.accepted_names))?;
        status["conditions"] = to_value(serde_json::to_value(&crd.status.conditions))?;
        let value = write_stored_json(&object).bytes;
        finish_write(self.crds.update(&key, stored.revision(), value.into(), None).await)
    }

    fn update_catalog(&mut self) {
        self.read_changes();
        let entries = self.loaded.values().flat_map(|loaded| loaded.entries.iter().cloned());
        self.api.publish_custom(entries.collect());
    }

    fn served_versions(&self) -> BTreeSet<(String, String)> {
        let kinds = self.loaded.values().flat_map(|loaded| &loaded.entries).map(|entry| &entry.kind);
        kinds.map(|kind| (kind.resource.group.to_string(), kind.version.version.to_string())).collect()
    }

    /// Has terminating CRDs removed.
    pub(super) fn queue_terminating_crds(&self) {
        for crd in self.loaded.values().map(|loaded| &loaded.crd).filter(|crd| needs_cleanup(crd)) {
            let (name, uid) = (crd.metadata.name.clone(), crd.metadata.uid.clone());
            self.api.removal_queues().crds.add(CrdIdentity { name, uid });
        }
    }
}

/// Notes whether a CRD has rules. Their expressions are not evaluated here, which is logged once.
fn note_unenforced_rules(api: &ApiServer, name: &str, crd: &[u8]) {
    let count = std::str::from_utf8(crd).map_or(0, |text| text.matches(RULES_FIELD).count());
    if api.set_unenforced(name, count > 0) {
        tracing::warn!(
            crd = name,
            "CustomResourceDefinition with rules that are not enforced: {count} schemas have x-kubernetes-validations; \
             validate objects in the controller"
        );
    }
}
