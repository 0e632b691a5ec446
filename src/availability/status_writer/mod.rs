//! Writes the `Available` conditions of APIServices to their kube-apiserver while this replica is the leader.

mod plan;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use kubeapi::json::write_stored_json;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use store::watch_cache::{self, ResourceCollection};
use tokio::time::sleep;

use super::AvailabilityMap;
use crate::kubeclient::election::Leadership;
use crate::kubeclient::{CallPolicy, Client};
use crate::observe::metrics::CallHealth;
use crate::process::{Drain, Published, ShutdownPhase};
use crate::registry::{ApiService, ApiServiceBackend, ApiServiceStatuses, ObjectSource, Registry};
use plan::{StatusPlan, StatusPlanner};

/// Changes within this time are handled together.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// Interval of a full pass, for postponed writes.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// Pause after a write was forbidden (403).
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(300);
const CALL_TIMEOUTS: CallPolicy = CallPolicy {
    attempt_timeout: Duration::from_secs(5),
    total_timeout: Duration::from_secs(5),
    max_attempts: 1,
    initial_backoff: Duration::from_millis(500),
};

/// Where statuses are written.
pub enum StatusTarget {
    /// A kube-apiserver.
    Client(Rc<Client>),
    /// The APIServices of the embedded API server.
    Store(ResourceCollection),
}

/// Status writer and what it needs.
pub struct StatusWriter {
    /// Where the statuses are written.
    pub target: StatusTarget,
    /// The registered APIServices.
    pub registry: Published<Registry>,
    /// The current statuses on the kube-apiserver.
    pub statuses: ApiServiceStatuses,
    /// The computed conditions.
    pub availability: AvailabilityMap,
    /// Whether this replica is the leader.
    pub leadership: Published<Leadership>,
    /// Records the result of each write.
    pub health: Arc<CallHealth>,
}

impl StatusWriter {
    /// Writes changed conditions while this replica leads, until the process exits.
    pub async fn run(mut self, mut drain: Drain) {
        let mut planner = StatusPlanner::default();
        let (mut board, mut statuses) = (self.availability.changes(), self.statuses.subscribe());
        let mut silent_until: Option<Instant> = None;
        let mut seen_versions = (0, 0);
        let mut pending = PendingApiServices::All;
        loop {
            let changed_conditions = self.availability.changed_since(seen_versions.0);
            let changed_statuses = self.statuses.changed_since(seen_versions.1);
            seen_versions = (changed_conditions.0, changed_statuses.0);
            pending.add(changed_conditions.1);
            pending.add(changed_statuses.1);
            if self.leadership.load().is_leader && silent_until.is_none_or(|until| Instant::now() >= until) {
                silent_until = self
                    .write_pending(&mut planner, &mut pending)
                    .await
                    .err()
                    .map(|WriteForbidden| Instant::now() + FORBIDDEN_PAUSE);
            }
            tokio::select! {
                Ok(()) = board.changed() => {}
                Ok(()) = statuses.changed() => {}
                () = self.leadership.changed() => pending = PendingApiServices::All,
                () = sleep(RESYNC_INTERVAL) => pending = PendingApiServices::All,
                () = drain.wait_for(ShutdownPhase::Leaving) => return,
            }
            sleep(BATCH_DELAY).await;
        }
    }

    /// Writes the status of pending APIServices. What stays in `pending` was not processed.
    async fn write_pending(
        &self,
        planner: &mut StatusPlanner,
        pending: &mut PendingApiServices,
    ) -> Result<(), WriteForbidden> {
        let registry = self.registry.get();
        let mut names = match std::mem::replace(pending, PendingApiServices::Names(BTreeSet::new())) {
            PendingApiServices::Names(names) => names,
            PendingApiServices::All => {
                planner.retain(|name| self.statuses.get(name).is_some());
                registry.api_services().map(|one| one.name.as_str().into()).collect()
            }
        };
        while let Some(name) = names.pop_first() {
            // Local APIServices are served by the delegate, which writes their conditions.
            let is_store = matches!(self.target, StatusTarget::Store(_));
            let is_ours_to_write = |one: &&Arc<ApiService>| {
                one.source == ObjectSource::Cluster && (is_store || one.backend != ApiServiceBackend::Local)
            };
            let Some(api_service) = registry.api_service(&name).filter(is_ours_to_write) else { continue };
            let Some(stands) = self.statuses.get(&api_service.name) else { continue };
            let availability = self.availability.get_or_insert(&api_service.name);
            let condition = availability.condition();
            match planner.plan(&api_service.name, &condition, availability.last_probe(), &stands, Instant::now()) {
                StatusPlan::NoChange => {}
                StatusPlan::ProbeFirst => availability.request_probe(),
                StatusPlan::BackOff(leave) => tracing::warn!(
                    apiservice = api_service.name,
                    ours = %condition.reason,
                    "another writer overwrites the Available condition; status not written for {leave:?}"
                ),
                StatusPlan::Write { version, conditions } => {
                    if !self.leadership.load().is_leader {
                        *pending = PendingApiServices::All;
                        return Ok(());
                    }
                    match self.put_status(&api_service.name, &version, conditions).await {
                        Ok(Some(version)) => {
                            planner.record_write(&api_service.name, &condition, version, Instant::now())
                        }
                        Ok(None) => {}
                        // The remaining writes would fail, too.
                        Err(WriteFailure::Unreachable) => {
                            names.insert(name);
                            *pending = PendingApiServices::Names(names);
                            return Ok(());
                        }
                        Err(WriteFailure::Forbidden) => {
                            *pending = PendingApiServices::All;
                            return Err(WriteForbidden);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes a status. Returns the new `resourceVersion` of the APIService if it was accepted.
    async fn put_status(
        &self,
        name: &str,
        version: &str,
        conditions: Vec<Value>,
    ) -> Result<Option<String>, WriteFailure> {
        let client = match &self.target {
            StatusTarget::Client(client) => client,
            StatusTarget::Store(collection) => return store_status(collection, name, version, conditions).await,
        };
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}/status");
        // An update of the status subresource ignores all other fields.
        let body = json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": name, "resourceVersion": version},
            "status": {"conditions": conditions},
        });
        let (began, body) = (Instant::now(), Some(Bytes::from(body.to_string())));
        let answer = client.call(Method::PUT, &path, body, CALL_TIMEOUTS, |_, _| {}).await;
        let result = match &answer {
            // Who installs a gateway may leave out this right: no call fails that should succeed.
            Ok(answer) if answer.is_success() || matches!(answer.status, 403 | 404 | 409) => Ok(()),
            Ok(answer) => Err(answer.describe()),
            Err(error) => Err(error.to_string()),
        };
        self.health.record_quietly(client.server(), result.as_ref().copied().map_err(String::as_str), began.elapsed());
        match answer {
            Ok(answer) if answer.is_success() => {
                tracing::debug!(apiservice = name, "Available condition written");
                Ok(Some(resource_version(&answer.body)))
            }
            // Changed or deleted meanwhile: the watch will show it, and the APIService becomes pending again.
            Ok(answer) if matches!(answer.status, 404 | 409) => Ok(None),
            Ok(answer) if answer.status == 403 => {
                let why = answer.describe();
                tracing::warn!(why, "writing APIService status forbidden; retried in {FORBIDDEN_PAUSE:?}");
                Err(WriteFailure::Forbidden)
            }
            Ok(answer) => {
                tracing::warn!(apiservice = name, why = answer.describe(), "Available condition rejected");
                Ok(None)
            }
            Err(error) => {
                tracing::debug!(apiservice = name, %error, "Available condition not written");
                Err(WriteFailure::Unreachable)
            }
        }
    }
}

/// Stores the conditions of the APIService that has this `version`. Returns its new `resourceVersion`; none if it was
/// changed or deleted meanwhile.
async fn store_status(
    collection: &ResourceCollection,
    name: &str,
    version: &str,
    conditions: Vec<Value>,
) -> Result<Option<String>, WriteFailure> {
    let (Ok(key), Ok(revision)) = (collection.prefix().key("", name), version.parse()) else { return Ok(None) };
    let Some(current) = collection.get(&key).filter(|current| current.revision() == revision) else { return Ok(None) };
    let Ok(mut object) = serde_json::from_slice::<Map<String, Value>>(current.bytes()) else { return Ok(None) };
    object.insert("status".to_owned(), json!({"conditions": conditions}));
    match collection.update(&key, revision, write_stored_json(&object).bytes.into(), None).await {
        Ok(stored) => {
            tracing::debug!(apiservice = name, "Available condition written");
            Ok(Some(stored.revision().to_string()))
        }
        Err(watch_cache::Error::Conflict { .. }) => Ok(None),
        Err(error) => {
            tracing::warn!(apiservice = name, %error, "Available condition not written");
            Err(WriteFailure::Unreachable)
        }
    }
}

/// APIServices to process.
enum PendingApiServices {
    Names(BTreeSet<Arc<str>>),
    All,
}

impl PendingApiServices {
    /// Adds `names`; `None` means all.
    fn add(&mut self, names: Option<BTreeSet<Arc<str>>>) {
        match (&mut *self, names) {
            (PendingApiServices::Names(pending), Some(mut names)) => pending.append(&mut names),
            (_, None) => *self = PendingApiServices::All,
            (PendingApiServices::All, _) => {}
        }
    }
}

/// The kube-apiserver forbids the write.
struct WriteForbidden;

/// Why writing stops for now.
enum WriteFailure {
    Unreachable,
    Forbidden,
}

fn resource_version(object: &[u8]) -> String {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct UpdatedApiService {
        metadata: Metadata,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata {
        resource_version: String,
    }
    serde_json::from_slice::<UpdatedApiService>(object).unwrap_or_default().metadata.resource_version
}
