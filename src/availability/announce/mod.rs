//! Writes the `Available` conditions of APIServices to their kube-apiserver while this replica is the leader.

mod desk;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;

use super::Board;
use crate::kubeclient::election::Leadership;
use crate::kubeclient::{Client, Patience};
use crate::observe::metrics::CallHealth;
use crate::process::{Drain, Phase, Published};
use crate::registry::{ApiService, Backend, Origin, Registry, Statuses};
use desk::{Desk, Verdict};

/// Changes within this time are handled together.
const TOGETHER: Duration = Duration::from_millis(100);
/// Interval of a full pass, for postponed writes.
const AGAIN: Duration = Duration::from_secs(30);
/// Pause after a write was forbidden (403).
const FORBIDDEN: Duration = Duration::from_secs(300);
const PATIENCE: Patience = Patience {
    attempt: Duration::from_secs(5),
    whole: Duration::from_secs(5),
    attempts: 1,
    pause: Duration::from_millis(500),
};

/// Status writer and what it needs.
pub struct Announcer {
    /// Client of the kube-apiserver.
    pub client: Rc<Client>,
    /// The registered APIServices.
    pub registry: Published<Registry>,
    /// The current statuses on the kube-apiserver.
    pub statuses: Statuses,
    /// The computed conditions.
    pub board: Board,
    /// Whether this replica is the leader.
    pub leadership: Published<Leadership>,
    /// Records the result of each write.
    pub health: Arc<CallHealth>,
}

impl Announcer {
    /// Writes changed conditions while this replica leads, until the process exits.
    pub async fn run(mut self, mut drain: Drain) {
        let mut desk = Desk::default();
        let (mut board, mut statuses) = (self.board.changes(), self.statuses.changes());
        let mut silent_until: Option<Instant> = None;
        let mut seen = (0, 0);
        let mut pending = Pending::Everybody;
        loop {
            let judged = self.board.changed_since(seen.0);
            let stands = self.statuses.changed_since(seen.1);
            seen = (judged.0, stands.0);
            pending.add(judged.1);
            pending.add(stands.1);
            if self.leadership.load().leads && silent_until.is_none_or(|until| Instant::now() >= until) {
                silent_until =
                    self.write(&mut desk, &mut pending).await.err().map(|Forbidden| Instant::now() + FORBIDDEN);
            }
            tokio::select! {
                Ok(()) = board.changed() => {}
                Ok(()) = statuses.changed() => {}
                () = self.leadership.changed() => pending = Pending::Everybody,
                () = sleep(AGAIN) => pending = Pending::Everybody,
                () = drain.reached(Phase::Leaving) => return,
            }
            sleep(TOGETHER).await;
        }
    }

    /// Writes the status of pending APIServices. What stays in `pending` was not processed.
    async fn write(&self, desk: &mut Desk, pending: &mut Pending) -> Result<(), Forbidden> {
        let registry = self.registry.get();
        let mut names = match std::mem::replace(pending, Pending::These(BTreeSet::new())) {
            Pending::These(names) => names,
            Pending::Everybody => {
                desk.retain(|name| self.statuses.of(name).is_some());
                registry.api_services().map(|one| one.name.as_str().into()).collect()
            }
        };
        while let Some(name) = names.pop_first() {
            // Local APIServices are served by the delegate, which writes their conditions.
            let theirs = |one: &&Arc<ApiService>| one.origin == Origin::Cluster && one.backend != Backend::Local;
            let Some(one) = registry.api_service(&name).filter(theirs) else { continue };
            let Some(stands) = self.statuses.of(&one.name) else { continue };
            let availability = self.board.of(&one.name);
            let condition = availability.condition();
            match desk.judge(&one.name, &condition, availability.asked(), &stands, Instant::now()) {
                Verdict::Fine => {}
                Verdict::AskFirst => availability.want(),
                Verdict::LeaveIt(leave) => tracing::warn!(
                    apiservice = one.name,
                    ours = %condition.reason,
                    "another writer overwrites the Available condition; status not written for {leave:?}"
                ),
                Verdict::Write { version, conditions } => {
                    if !self.leadership.load().leads {
                        *pending = Pending::Everybody;
                        return Ok(());
                    }
                    match self.put(&one.name, &version, conditions).await {
                        Ok(Some(version)) => desk.wrote(&one.name, &condition, version, Instant::now()),
                        Ok(None) => {}
                        // The remaining writes would fail, too.
                        Err(Refused::Away) => {
                            names.insert(name);
                            *pending = Pending::These(names);
                            return Ok(());
                        }
                        Err(Refused::Forbidden) => {
                            *pending = Pending::Everybody;
                            return Err(Forbidden);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes a status. Returns the new `resourceVersion` of the APIService if it was accepted.
    async fn put(
        &self,
        name: &str,
        version: &str,
        conditions: Vec<serde_json::Value>,
    ) -> Result<Option<String>, Refused> {
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}/status");
        // An update of the status subresource ignores all other fields.
        let body = json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": name, "resourceVersion": version},
            "status": {"conditions": conditions},
        });
        let (began, body) = (Instant::now(), Some(Bytes::from(body.to_string())));
        let answer = self.client.call(Method::PUT, &path, body, PATIENCE, |_, _| {}).await;
        let result = match &answer {
            Ok(answer) if answer.is_success() || matches!(answer.status, 404 | 409) => Ok(()),
            Ok(answer) => Err(answer.describe()),
            Err(error) => Err(error.to_string()),
        };
        self.health.record_quietly(
            self.client.server(),
            result.as_ref().copied().map_err(String::as_str),
            began.elapsed(),
        );
        match answer {
            Ok(answer) if answer.is_success() => {
                tracing::debug!(apiservice = name, "Available condition written");
                Ok(Some(version_of(&answer.body)))
            }
            // Changed or deleted meanwhile: the watch will show it, and the APIService becomes pending again.
            Ok(answer) if matches!(answer.status, 404 | 409) => Ok(None),
            Ok(answer) if answer.status == 403 => {
                let why = answer.describe();
                tracing::warn!(why, "writing APIService status forbidden; retried in {FORBIDDEN:?}");
                Err(Refused::Forbidden)
            }
            Ok(answer) => {
                tracing::warn!(apiservice = name, why = answer.describe(), "Available condition rejected");
                Ok(None)
            }
            Err(error) => {
                tracing::debug!(apiservice = name, %error, "Available condition not written");
                Err(Refused::Away)
            }
        }
    }
}

/// APIServices to process.
enum Pending {
    These(BTreeSet<Arc<str>>),
    Everybody,
}

impl Pending {
    /// Adds `names`; `None` means all.
    fn add(&mut self, names: Option<BTreeSet<Arc<str>>>) {
        match (&mut *self, names) {
            (Pending::These(pending), Some(mut names)) => pending.append(&mut names),
            (_, None) => *self = Pending::Everybody,
            (Pending::Everybody, _) => {}
        }
    }
}

/// The kube-apiserver forbids the write.
struct Forbidden;

/// Why writing stops for now.
enum Refused {
    Away,
    Forbidden,
}

fn version_of(object: &[u8]) -> String {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata {
        resource_version: String,
    }
    serde_json::from_slice::<Object>(object).unwrap_or_default().metadata.resource_version
}
