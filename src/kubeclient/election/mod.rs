//! Leader election by a Lease: one of several replicas does what only one may do.

mod candidate;
mod lease;

use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::Method;
use tokio::time::{sleep_until, timeout_at};

use super::{CallPolicy, Client};
use crate::observe::metrics::CallHealth;
use crate::process::{Drain, Publisher, ShutdownPhase};
use candidate::{Candidate, retry_delay};
pub use candidate::{LeaseRequest, LeaseResponse};
pub use lease::{Lease, micro_time};

/// Where the Lease is.
pub trait LeaseTarget {
    /// The name of the server, for metrics.
    fn server(&self) -> String;

    /// Sends one request. A 404 is [`LeaseResponse::Missing`], a 409 [`LeaseResponse::Failed`].
    ///
    /// # Errors
    /// Why it failed, for the log.
    fn send(&self, settings: &Settings, request: &LeaseRequest) -> impl Future<Output = Result<LeaseResponse, String>>;
}

/// Settings of leader election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time after which candidates take a Lease that is not renewed (`--leader-elect-lease-duration`).
    pub lease_duration: Duration,
    /// Time after which a leader that cannot renew stops leading (`--leader-elect-renew-deadline`).
    pub renew_deadline: Duration,
    /// Interval between attempts (`--leader-elect-retry-period`).
    pub retry_period: Duration,
    /// Name of the Lease.
    pub name: String,
    /// Namespace of the Lease.
    pub namespace: String,
}

/// Result of leader election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Identity of this candidate; empty without leader election.
    pub identity: String,
    /// Whether this candidate is the leader.
    pub is_leader: bool,
    /// Identity of the leader, if known.
    pub leader: Option<String>,
}

impl Default for Settings {
    /// The defaults of kube-controller-manager.
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
    /// Without leader election: this process always leads.
    pub fn without_election() -> Leadership {
        Leadership { is_leader: true, ..Leadership::default() }
    }

    /// A candidate before its first attempt.
    pub fn candidate(identity: String) -> Leadership {
        Leadership { identity, ..Leadership::default() }
    }
}

/// A unique identity: the host name and a random UUID.
pub fn new_identity() -> String {
    let mut identity = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let _ = write!(identity, "_{}", uuid::Uuid::new_v4());
    identity
}

/// Runs leader election until the process drains, then releases the Lease.
///
/// Publishes whether this process leads, never for longer than `renew_deadline` after the last renewal. `health`
/// records the result of each call.
pub async fn stand(
    target: impl LeaseTarget,
    settings: Settings,
    leadership: Publisher<Leadership>,
    health: Arc<CallHealth>,
    mut drain: Drain,
) {
    let identity = leadership.reader().get().identity.clone();
    let candidate = Candidate::new(settings.clone(), identity, Instant::now());
    let mut elector = LeaderElector { target, settings, candidate, leadership, health, last_failure: None };
    tokio::select! {
        () = elector.run() => {}
        () = drain.wait_for(ShutdownPhase::Leaving) => elector.release().await,
    }
}

struct LeaderElector<T> {
    target: T,
    settings: Settings,
    candidate: Candidate,
    leadership: Publisher<Leadership>,
    health: Arc<CallHealth>,
    /// The failure logged last.
    last_failure: Option<String>,
}

impl<T: LeaseTarget> LeaderElector<T> {
    async fn run(&mut self) {
        loop {
            self.attempt().await;
            self.publish();
            let now = Instant::now();
            let leads_until = self.candidate.leads_until(now);
            let next = now + retry_delay(&self.settings, leads_until.is_some(), fastrand::f64());
            sleep_until(leads_until.map_or(next, |end| next.min(end)).into()).await;
            self.publish();
        }
    }

    async fn attempt(&mut self) {
        let mut ask = Some(self.candidate.begin_attempt(Instant::now(), SystemTime::now()));
        while let Some(asked) = ask {
            let now = Instant::now();
            let leads_until = self.candidate.leads_until(now);
            let response = {
                let mut sending = std::pin::pin!(send_recorded(&self.target, &self.settings, &self.health, &asked));
                match leads_until {
                    None => sending.await,
                    // Leadership ends at this time, even if the call takes longer.
                    Some(end) => match timeout_at(end.into(), &mut sending).await {
                        Ok(response) => response,
                        Err(_) => {
                            let (candidate, leadership) = (&self.candidate, &self.leadership);
                            publish(candidate, leadership, &self.settings, &mut self.last_failure);
                            sending.await
                        }
                    },
                }
            };
            let response = response.unwrap_or_else(|why| {
                self.log_failure(why);
                LeaseResponse::Failed
            });
            ask = self.candidate.handle_response(response, Instant::now(), SystemTime::now());
        }
    }

    fn publish(&mut self) {
        publish(&self.candidate, &self.leadership, &self.settings, &mut self.last_failure);
    }

    fn log_failure(&mut self, why: String) {
        if self.last_failure.as_ref() != Some(&why) {
            tracing::warn!(why, lease = self.settings.name, "the Lease cannot be read or written");
            self.last_failure = Some(why);
        }
    }

    async fn release(&mut self) {
        let release = self.candidate.release(Instant::now(), SystemTime::now());
        self.publish();
        let Some(release) = release else { return };
        match send_recorded(&self.target, &self.settings, &self.health, &release).await {
            Ok(LeaseResponse::Lease(_)) => tracing::info!("Lease released"),
            Ok(_) => {}
            Err(why) => tracing::warn!(why, "the Lease could not be released; it will expire"),
        }
    }
}

/// Publishes and logs what changed for a candidate.
fn publish(
    candidate: &Candidate,
    leadership: &Publisher<Leadership>,
    settings: &Settings,
    last_failure: &mut Option<String>,
) {
    let before = leadership.reader().get();
    let leads = candidate.leads_until(Instant::now()).is_some();
    let leader = candidate.leader().map(str::to_owned).filter(|leader| leads || *leader != before.identity);
    let next = Leadership { identity: before.identity.clone(), is_leader: leads, leader };
    if *before == next {
        return;
    }
    match (before.is_leader, next.is_leader) {
        (false, true) => tracing::info!(lease = settings.name, identity = next.identity, "acquired leadership"),
        (true, false) => tracing::warn!(lease = settings.name, "lost leadership"),
        (false, false) if next.leader.is_some() => {
            tracing::info!(lease = settings.name, leader = next.leader, "new leader elected");
        }
        _ => {}
    }
    if next.leader.is_some() {
        *last_failure = None;
    }
    leadership.publish(Arc::new(next));
}

/// Sends one request and records its result. The error is for the log.
async fn send_recorded(
    target: &impl LeaseTarget,
    settings: &Settings,
    health: &CallHealth,
    ask: &LeaseRequest,
) -> Result<LeaseResponse, String> {
    let began = Instant::now();
    let result = target.send(settings, ask).await;
    // The caller logs failures.
    health.record_quietly(target.server(), result.as_ref().map(drop).map_err(String::as_str), began.elapsed());
    result
}

impl LeaseTarget for Rc<Client> {
    fn server(&self) -> String {
        Client::server(self)
    }

    async fn send(&self, settings: &Settings, request: &LeaseRequest) -> Result<LeaseResponse, String> {
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", settings.namespace);
        let one = format!("{all}/{}", settings.name);
        let (method, path, body) = match request {
            LeaseRequest::Get => (Method::GET, one, None),
            LeaseRequest::Create(object) => (Method::POST, all, Some(object)),
            LeaseRequest::Update(object) => (Method::PUT, one, Some(object)),
        };
        let body = body.map(|object| Bytes::from(object.to_string()));
        // Several requests and a pause must fit into the renew deadline.
        let patience = settings.renew_deadline / 2;
        let patience = CallPolicy {
            attempt_timeout: patience,
            total_timeout: patience,
            max_attempts: 1,
            initial_backoff: Duration::ZERO,
        };
        let answer = self.call(method, &path, body, patience, |_, _| {}).await.map_err(|error| error.to_string())?;
        match answer.status {
            404 => Ok(LeaseResponse::Missing),
            // Another candidate was faster.
            409 => Ok(LeaseResponse::Failed),
            _ if answer.is_success() => Lease::parse(&answer.body)
                .map(LeaseResponse::Lease)
                .ok_or_else(|| "the API server's object is not a Lease".to_owned()),
            _ => Err(answer.describe()),
        }
    }
}
