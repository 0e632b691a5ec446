//! The conditions of APIServices, written to the kube-apiserver that they come from, by the one who leads.

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

/// Changes that come together are looked at together.
const TOGETHER: Duration = Duration::from_millis(100);
/// Looked at again although nobody said anything: for what was put off.
const AGAIN: Duration = Duration::from_secs(30);
/// Nothing is written for so long after we were told that we may not.
const FORBIDDEN: Duration = Duration::from_secs(300);
const PATIENCE: Patience = Patience {
    attempt: Duration::from_secs(5),
    whole: Duration::from_secs(5),
    attempts: 1,
    pause: Duration::from_millis(500),
};

/// Whatever is needed to write.
pub struct Announcer {
    /// Speaks to the kube-apiserver.
    pub client: Rc<Client>,
    /// What is registered there.
    pub registry: Published<Registry>,
    /// What stands there.
    pub statuses: Statuses,
    /// What we know.
    pub board: Board,
    /// Whether it is for us to write.
    pub leadership: Published<Leadership>,
    /// Gets the result of each write.
    pub health: Arc<CallHealth>,
}

impl Announcer {
    /// Writes what changes while we lead, until the process leaves.
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

    /// Writes what is to be written of those that are pending. Who stays so was not looked at.
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
            // Those that are served by whoever owns the unclaimed paths are that server's to judge.
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
                    "somebody else overwrites the condition that we write; it is left to them for {leave:?} at first"
                ),
                Verdict::Write { version, conditions } => {
                    if !self.leadership.load().leads {
                        *pending = Pending::Everybody;
                        return Ok(());
                    }
                    match self.put(&one.name, &version, conditions).await {
                        Ok(Some(version)) => desk.wrote(&one.name, &condition, version, Instant::now()),
                        Ok(None) => {}
                        // The others would find it away, too.
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

    /// Writes a status; gives the version that the APIService has by it, if it was taken.
    async fn put(
        &self,
        name: &str,
        version: &str,
        conditions: Vec<serde_json::Value>,
    ) -> Result<Option<String>, Refused> {
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}/status");
        // Of all else an update of the status takes nothing.
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
                tracing::debug!(apiservice = name, "its condition is written");
                Ok(Some(version_of(&answer.body)))
            }
            // Changed or gone meanwhile: a watch will say so, and then it is looked at again.
            Ok(answer) if matches!(answer.status, 404 | 409) => Ok(None),
            Ok(answer) if answer.status == 403 => {
                let why = answer.describe();
                tracing::warn!(why, "conditions of APIServices cannot be written; asked again in {FORBIDDEN:?}");
                Err(Refused::Forbidden)
            }
            Ok(answer) => {
                tracing::warn!(apiservice = name, why = answer.describe(), "its condition was not taken");
                Ok(None)
            }
            Err(error) => {
                tracing::debug!(apiservice = name, %error, "its condition could not be written");
                Err(Refused::Away)
            }
        }
    }
}

/// Who is to be looked at.
enum Pending {
    These(BTreeSet<Arc<str>>),
    Everybody,
}

impl Pending {
    /// These, too; without names everybody.
    fn add(&mut self, names: Option<BTreeSet<Arc<str>>>) {
        match (&mut *self, names) {
            (Pending::These(pending), Some(mut names)) => pending.append(&mut names),
            (_, None) => *self = Pending::Everybody,
            (Pending::Everybody, _) => {}
        }
    }
}

/// We may not write.
struct Forbidden;

/// Why nothing more is written for now.
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
