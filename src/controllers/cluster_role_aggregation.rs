//! The rules of aggregated ClusterRoles: those of the ClusterRoles that their selectors have
//! (`pkg/controller/clusterroleaggregation`).

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use kubeapi::json::write_stored_json;
use kubeapi::{LabelSelector, Status};
use serde_json::{Map, Value};
use store::watch_cache::{ResourceCollection, Stored, WatchEventKind};

use super::runner::{Controller, FeedEvent};
use super::{builtin_collection, read_latest};
use crate::conversion::stored_object;
use crate::observe::metrics::WorkQueueRegistry;
use crate::rest::{ApiServer, finish_write};
use crate::work_queue::{BackOff, WorkQueue};

/// The controller that writes the rules. A key is the name of an aggregated ClusterRole.
pub(super) struct ClusterRoleAggregationController {
    roles: ResourceCollection,
    /// Names of the ClusterRoles with a rule for aggregation.
    aggregated: RefCell<BTreeSet<String>>,
    queue: WorkQueue<String>,
}

impl ClusterRoleAggregationController {
    /// A controller that has to be fed and run.
    ///
    /// # Errors
    /// There are no ClusterRoles.
    pub(super) fn new(
        api: &ApiServer,
        metrics: &WorkQueueRegistry,
    ) -> Result<ClusterRoleAggregationController, Status> {
        Ok(ClusterRoleAggregationController {
            roles: builtin_collection(api, "rbac.authorization.k8s.io", "clusterroles")?,
            aggregated: RefCell::default(),
            queue: WorkQueue::new(BackOff::default(), metrics.register("cluster_role_aggregation")),
        })
    }

    /// The ClusterRoles, which are to be followed.
    pub(super) fn roles(&self) -> &ResourceCollection {
        &self.roles
    }

    /// Adds all aggregated ClusterRoles: any of them may select the one that changed.
    pub(super) fn observe(&self, event: &FeedEvent<'_>) {
        let mut aggregated = self.aggregated.borrow_mut();
        if let FeedEvent::Object(event) = event
            && let Some(role) = &event.object
        {
            match event.kind != WatchEventKind::Deleted && has_selectors(role) {
                true => drop(aggregated.insert(role.name().to_owned())),
                false => drop(aggregated.remove(role.name())),
            }
        }
        aggregated.iter().for_each(|name| self.queue.add(name.clone()));
    }

    /// The rules that the selectors of a role have now, in upstream's order.
    async fn gather(&self, name: &str, role: &Map<String, Value>) -> Result<Vec<Value>, Status> {
        let selectors = role.get("aggregationRule").and_then(|rule| rule["clusterRoleSelectors"].as_array());
        let snapshot = self.roles.snapshot();
        let (mut rules, mut known) = (Vec::new(), HashSet::new());
        for selector in selectors.into_iter().flatten() {
            // Validation excludes others.
            let Some(selector) = LabelSelector::of_object(selector) else { continue };
            // By name.
            for selected in snapshot.range(self.roles.prefix(), None) {
                if selected.name() == name || !selector.matches(|key| selected.label(key)) {
                    continue;
                }
                let selected = stored_object(selected).await?;
                for rule in selected.get("rules").and_then(Value::as_array).into_iter().flatten() {
                    if known.insert(rule.to_string()) {
                        rules.push(rule.clone());
                    }
                }
            }
        }
        Ok(rules)
    }
}

/// Whether a stored ClusterRole has a rule for aggregation.
fn has_selectors(role: &Arc<Stored>) -> bool {
    const FIELD: &[u8] = b"\"aggregationRule\":{";
    role.bytes().windows(FIELD.len()).any(|part| part == FIELD)
}

impl Controller for ClusterRoleAggregationController {
    type Key = String;

    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &WorkQueue<String> {
        &self.queue
    }

    async fn reconcile(&self, name: &String) -> Result<(), Status> {
        let (key, stored) = read_latest(&self.roles, "", name).await?;
        let Some(stored) = stored else { return Ok(()) };
        let mut role = stored_object(&stored).await?;
        if role.get("aggregationRule").is_none_or(Value::is_null) {
            return Ok(());
        }
        let rules = self.gather(name, &role).await?;
        if role.get("rules").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default() == rules {
            return Ok(());
        }
        // As upstream's controller, which has null for none.
        let rules = if rules.is_empty() { Value::Null } else { rules.into() };
        role.insert("rules".to_owned(), rules);
        let value = write_stored_json(&role).bytes;
        finish_write(self.roles.update(&key, stored.revision(), value.into(), None).await)
    }
}
