//! Leader election by a Lease: of several that do the same, one does what only one may.

mod candidate;
mod lease;

use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::Method;
use tokio::time::{sleep_until, timeout_at};

use super::{Client, Patience};
use crate::observe::metrics::CallHealth;
use crate::process::{Drain, Phase, Publisher};
use candidate::{Ask, Candidate, Heard, pause};
use lease::Lease;

/// How leadership is kept, and by which Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long those who wait, wait after they last saw the Lease renewed (`--leader-elect-lease-duration`).
    pub lease_duration: Duration,
    /// How long a leader that cannot renew goes on (`--leader-elect-renew-deadline`).
    pub renew_deadline: Duration,
    /// Between attempts (`--leader-elect-retry-period`).
    pub retry_period: Duration,
    /// Name of the Lease.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
}

/// Whether we lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Who we are to the others; empty if nobody is elected.
    pub identity: String,
    /// Whether it is us.
    pub leads: bool,
    /// Who it is, as far as we know.
    pub leader: Option<String>,
}

impl Default for Settings {
    /// As kube-controller-manager has it.
    fn default() -> Settings {
        Settings {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            name: "narthex".to_owned(),
            namespace: "kube-system".to_owned(),
        }
    }
}

impl Leadership {
    /// Where nobody is elected, we do it.
    pub fn alone() -> Leadership {
        Leadership { leads: true, ..Leadership::default() }
    }

    /// One of several, who knows nothing yet.
    pub fn candidate(identity: String) -> Leadership {
        Leadership { identity, ..Leadership::default() }
    }
}

/// A name that nobody else has: the machine's, and chance.
pub fn identity() -> String {
    let mut identity = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let _ = write!(identity, "_{}", uuid::Uuid::new_v4());
    identity
}

/// Stands for election until the process leaves, then gives the Lease back. Publishes whether we lead; never says so
/// longer than `renew_deadline` after the Lease was last renewed. `health` gets the result of each call.
pub async fn stand(
    client: Rc<Client>,
    settings: Settings,
    leadership: Publisher<Leadership>,
    health: Arc<CallHealth>,
    mut drain: Drain,
) {
    let identity = leadership.reader().get().identity.clone();
    let candidate = Candidate::new(settings.clone(), identity, Instant::now());
    let mut standing = Standing { client, settings, candidate, leadership, health, told: None };
    tokio::select! {
        () = standing.stand() => {}
        () = drain.reached(Phase::Leaving) => standing.leave().await,
    }
}

struct Standing {
    client: Rc<Client>,
    settings: Settings,
    candidate: Candidate,
    leadership: Publisher<Leadership>,
    health: Arc<CallHealth>,
    /// The failure that the log was told last.
    told: Option<String>,
}

impl Standing {
    async fn stand(&mut self) {
        loop {
            self.attempt().await;
            self.publish();
            let now = Instant::now();
            let over = self.candidate.leads_until(now);
            let next = now + pause(&self.settings, over.is_some(), fastrand::f64());
            sleep_until(over.map_or(next, |over| next.min(over)).into()).await;
            self.publish();
        }
    }

    async fn attempt(&mut self) {
        let mut ask = Some(self.candidate.begin(Instant::now(), SystemTime::now()));
        while let Some(asked) = ask {
            let now = Instant::now();
            let over = self.candidate.leads_until(now);
            let (client, settings, health) = (self.client.clone(), self.settings.clone(), self.health.clone());
            let mut asking = std::pin::pin!(put(&client, &settings, &health, &asked));
            let heard = match over {
                None => asking.await,
                // Whatever becomes of the question, we lead no longer than this.
                Some(over) => match timeout_at(over.into(), &mut asking).await {
                    Ok(heard) => heard,
                    Err(_) => {
                        self.publish();
                        asking.await
                    }
                },
            };
            let heard = heard.unwrap_or_else(|why| {
                self.tell(why);
                Heard::Failed
            });
            ask = self.candidate.hear(heard, Instant::now(), SystemTime::now());
        }
    }

    fn publish(&mut self) {
        let before = self.leadership.reader().get();
        let leads = self.candidate.leads_until(Instant::now()).is_some();
        let leader = self.candidate.leader().map(str::to_owned).filter(|leader| leads || *leader != before.identity);
        let next = Leadership { identity: before.identity.clone(), leads, leader };
        if *before == next {
            return;
        }
        match (before.leads, next.leads) {
            (false, true) => tracing::info!(lease = self.settings.name, identity = next.identity, "we lead"),
            (true, false) => tracing::warn!(lease = self.settings.name, "we do not lead any more"),
            (false, false) if next.leader.is_some() => {
                tracing::info!(lease = self.settings.name, leader = next.leader, "somebody else leads");
            }
            _ => {}
        }
        if next.leader.is_some() {
            self.told = None;
        }
        self.leadership.publish(Arc::new(next));
    }

    fn tell(&mut self, why: String) {
        if self.told.as_ref() != Some(&why) {
            tracing::warn!(why, lease = self.settings.name, "the Lease cannot be read or written");
            self.told = Some(why);
        }
    }

    async fn leave(&mut self) {
        let release = self.candidate.release(Instant::now(), SystemTime::now());
        self.publish();
        let Some(release) = release else { return };
        match put(&self.client, &self.settings, &self.health, &release).await {
            Ok(Heard::Lease(_)) => tracing::info!("the Lease is given back"),
            Ok(_) => {}
            Err(why) => tracing::warn!(why, "the Lease could not be given back; it will run out"),
        }
    }
}

/// Asks once, and records how that went. The error is for the log.
async fn put(client: &Client, settings: &Settings, health: &CallHealth, ask: &Ask) -> Result<Heard, String> {
    let began = Instant::now();
    let result = call(client, settings, ask).await;
    // Its failures are logged by who asked.
    health.record_quietly(client.server(), result.as_ref().map(drop).map_err(String::as_str), began.elapsed());
    result
}

async fn call(client: &Client, settings: &Settings, ask: &Ask) -> Result<Heard, String> {
    let all = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", settings.namespace);
    let one = format!("{all}/{}", settings.name);
    let (method, path, body) = match ask {
        Ask::Get => (Method::GET, one, None),
        Ask::Create(object) => (Method::POST, all, Some(object)),
        Ask::Update(object) => (Method::PUT, one, Some(object)),
    };
    let body = body.map(|object| Bytes::from(object.to_string()));
    // Several questions, and a pause, must fit into the time that a leader has.
    let patience = settings.renew_deadline / 2;
    let patience = Patience { attempt: patience, whole: patience, attempts: 1, pause: Duration::ZERO };
    let answer = client.call(method, &path, body, patience, |_, _| {}).await.map_err(|error| error.to_string())?;
    match answer.status {
        404 => Ok(Heard::Missing),
        // Somebody was faster; that is what this is for.
        409 => Ok(Heard::Failed),
        _ if answer.is_success() => {
            Lease::read(&answer.body).map(Heard::Lease).ok_or_else(|| "what the API server has is no Lease".to_owned())
        }
        _ => Err(answer.describe()),
    }
}
