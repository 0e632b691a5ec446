//! State machine of a candidate: the next request for the Lease, and whether the candidate leads. No I/O.
//!
//! As client-go's `leaderelection`: clocks of other candidates are not trusted. A Lease expires when it is unchanged
//! for its duration since it was first observed. Its holder stops leading earlier, when it cannot renew for
//! `renew_deadline`.

use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::Settings;
use super::lease::{LeaderElectionRecord, Lease, micro_time};

/// A request for the Lease.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseRequest {
    /// Read it.
    Get,
    /// Create this Lease.
    Create(Value),
    /// Update it to this Lease.
    Update(Value),
}

/// Result of a request.
#[derive(Debug)]
pub enum LeaseResponse {
    /// The Lease as stored now.
    Lease(Lease),
    /// The Lease does not exist.
    Missing,
    /// Another candidate was faster, or the call failed.
    Failed,
}

/// A candidate for leadership.
pub(super) struct Candidate {
    settings: Settings,
    identity: String,
    observed: Option<ObservedLease>,
    /// Start of the last attempt that acquired or renewed the Lease.
    renewed: Option<Instant>,
    attempt: Attempt,
}

/// The Lease as last observed.
struct ObservedLease {
    lease: Lease,
    /// Time at which the Lease was first observed in this state.
    at: Instant,
}

/// An attempt to acquire or renew the Lease.
struct Attempt {
    began: Instant,
    /// The request in flight.
    stage: AttemptStage,
}

#[derive(Clone, Copy, PartialEq)]
enum AttemptStage {
    /// Update of our own Lease without reading it first.
    Renew,
    Read,
    Write,
}

impl Candidate {
    pub(super) fn new(settings: Settings, identity: String, now: Instant) -> Candidate {
        let attempt = Attempt { began: now, stage: AttemptStage::Read };
        Candidate { settings, identity, observed: None, renewed: None, attempt }
    }

    /// End of the leadership, if this candidate leads.
    pub(super) fn leads_until(&self, now: Instant) -> Option<Instant> {
        let until = self.renewed? + self.settings.renew_deadline;
        (until > now).then_some(until)
    }

    /// Identity of the leader, if known.
    pub(super) fn leader(&self) -> Option<&str> {
        let observed = self.observed.as_ref()?;
        Some(observed.lease.spec.holder_identity.as_str()).filter(|identity| !identity.is_empty())
    }

    /// Begins an attempt to acquire or renew the Lease.
    pub(super) fn begin_attempt(&mut self, now: Instant, clock: SystemTime) -> LeaseRequest {
        let held_lease = self.leads_until(now).and(self.observed.as_ref()).map(|observed| observed.lease.clone());
        match held_lease {
            Some(lease) => {
                self.attempt = Attempt { began: now, stage: AttemptStage::Renew };
                LeaseRequest::Update(self.next_record(Some(&lease.spec), clock).to_lease(
                    &self.settings.namespace,
                    &self.settings.name,
                    lease.resource_version(),
                ))
            }
            None => {
                self.attempt = Attempt { began: now, stage: AttemptStage::Read };
                LeaseRequest::Get
            }
        }
    }

    /// Handles the result of a request. Returns the next request of this attempt, `None` when it is over.
    pub(super) fn handle_response(
        &mut self,
        response: LeaseResponse,
        now: Instant,
        clock: SystemTime,
    ) -> Option<LeaseRequest> {
        match (self.attempt.stage, response) {
            (AttemptStage::Renew | AttemptStage::Write, LeaseResponse::Lease(lease)) => {
                self.renewed = Some(self.attempt.began);
                self.observed = Some(ObservedLease { lease, at: now });
                None
            }
            // The Lease was changed: read it.
            (AttemptStage::Renew, LeaseResponse::Missing | LeaseResponse::Failed) => {
                self.attempt.stage = AttemptStage::Read;
                Some(LeaseRequest::Get)
            }
            (AttemptStage::Read, LeaseResponse::Lease(lease)) => self.evaluate_lease(lease, now, clock),
            (AttemptStage::Read, LeaseResponse::Missing) => {
                self.attempt.stage = AttemptStage::Write;
                self.observed = None;
                let record = self.next_record(None, clock);
                Some(LeaseRequest::Create(record.to_lease(&self.settings.namespace, &self.settings.name, "")))
            }
            (AttemptStage::Read, LeaseResponse::Failed)
            | (AttemptStage::Write, LeaseResponse::Missing | LeaseResponse::Failed) => None,
        }
    }

    /// The update that releases the Lease, if this candidate leads.
    pub(super) fn release(&mut self, now: Instant, clock: SystemTime) -> Option<LeaseRequest> {
        self.leads_until(now)?;
        self.renewed = None;
        let lease = &self.observed.as_ref()?.lease;
        let record = LeaderElectionRecord {
            holder_identity: String::new(),
            lease_duration_seconds: 1,
            acquire_time: Some(micro_time(clock)),
            renew_time: Some(micro_time(clock)),
            lease_transitions: lease.spec.lease_transitions,
        };
        Some(LeaseRequest::Update(record.to_lease(
            &self.settings.namespace,
            &self.settings.name,
            lease.resource_version(),
        )))
    }

    /// Evaluates the Lease. Takes it if it is ours, has no holder, or was not renewed for its duration.
    fn evaluate_lease(&mut self, lease: Lease, now: Instant, clock: SystemTime) -> Option<LeaseRequest> {
        let at = match &self.observed {
            Some(observed) if observed.lease == lease => observed.at,
            _ => now,
        };
        let is_held = lease.spec.holder_identity == self.identity;
        let free = lease.spec.holder_identity.is_empty() || at + lease.spec.duration() <= now;
        let record = self.next_record(Some(&lease.spec), clock);
        let update = record.to_lease(&self.settings.namespace, &self.settings.name, lease.resource_version());
        self.observed = Some(ObservedLease { lease, at });
        if !is_held {
            self.renewed = None;
        }
        if !is_held && !free {
            return None;
        }
        self.attempt.stage = AttemptStage::Write;
        Some(LeaseRequest::Update(update))
    }

    /// The record to write, after `before`.
    fn next_record(&self, before: Option<&LeaderElectionRecord>, clock: SystemTime) -> LeaderElectionRecord {
        let held = before.filter(|before| before.holder_identity == self.identity);
        let transitions = before.map_or(0, |before| before.lease_transitions.saturating_add(i64::from(held.is_none())));
        LeaderElectionRecord {
            holder_identity: self.identity.clone(),
            lease_duration_seconds: i64::try_from(self.settings.lease_duration.as_secs()).unwrap_or(i64::MAX),
            acquire_time: held.map_or_else(|| Some(micro_time(clock)), |held| held.acquire_time.clone()),
            renew_time: Some(micro_time(clock)),
            lease_transitions: transitions,
        }
    }
}

/// The pause before the next attempt, as in client-go. Candidates that do not lead add jitter (`JitterFactor` 1.2), so
/// that they do not all retry at once.
pub(super) fn retry_delay(settings: &Settings, leads: bool, chance: f64) -> Duration {
    if leads { settings.retry_period } else { settings.retry_period.mul_f64(1.0 + 1.2 * chance) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: SystemTime = SystemTime::UNIX_EPOCH;

    /// A server with a Lease, and a clock.
    struct FakeLeaseServer {
        lease: Option<Value>,
        version: u64,
        now: Instant,
    }

    impl FakeLeaseServer {
        fn new() -> FakeLeaseServer {
            FakeLeaseServer { lease: None, version: 0, now: Instant::now() }
        }

        fn later(&mut self, seconds: f64) {
            self.now += Duration::from_secs_f64(seconds);
        }

        fn candidate(&self, name: &str) -> Candidate {
            Candidate::new(Settings::default(), name.to_owned(), self.now)
        }

        fn answer(&mut self, ask: &LeaseRequest) -> LeaseResponse {
            let write = |world: &mut FakeLeaseServer, object: &Value| {
                world.version += 1;
                let mut object = object.clone();
                object["metadata"]["resourceVersion"] = world.version.to_string().into();
                world.lease = Some(object);
            };
            match (ask, &self.lease) {
                (LeaseRequest::Get, None) | (LeaseRequest::Update(_), None) => return LeaseResponse::Missing,
                (LeaseRequest::Get, Some(_)) => {}
                (LeaseRequest::Create(_), Some(_)) => return LeaseResponse::Failed,
                (LeaseRequest::Create(object), None) => write(self, object),
                (LeaseRequest::Update(object), Some(known)) => {
                    if known["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                        return LeaseResponse::Failed;
                    }
                    write(self, object);
                }
            }
            LeaseResponse::Lease(Lease::parse(self.lease.as_ref().unwrap().to_string().as_bytes()).unwrap())
        }

        /// Runs one attempt. Returns whether the candidate leads after it.
        fn attempt(&mut self, candidate: &mut Candidate) -> bool {
            let mut ask = Some(candidate.begin_attempt(self.now, CLOCK));
            while let Some(asked) = ask {
                let heard = self.answer(&asked);
                ask = candidate.handle_response(heard, self.now, CLOCK);
            }
            candidate.leads_until(self.now).is_some()
        }

        /// Runs an attempt with failing requests only.
        fn unanswered(&self, candidate: &mut Candidate) -> bool {
            let mut ask = Some(candidate.begin_attempt(self.now, CLOCK));
            while ask.is_some() {
                ask = candidate.handle_response(LeaseResponse::Failed, self.now, CLOCK);
            }
            candidate.leads_until(self.now).is_some()
        }

        fn spec(&self, field: &str) -> Value {
            self.lease.as_ref().unwrap()["spec"][field].clone()
        }
    }

    #[test]
    fn election_first_candidate_leads_and_renews() {
        let mut world = FakeLeaseServer::new();
        let (mut a, mut b) = (world.candidate("a"), world.candidate("b"));
        assert!(world.attempt(&mut a));
        for _ in 0..30 {
            world.later(2.0);
            assert!(world.attempt(&mut a) && !world.attempt(&mut b));
        }
        assert_eq!((a.leader(), b.leader()), (Some("a"), Some("a")));
        assert_eq!((world.spec("leaseTransitions"), world.spec("leaseDurationSeconds")), (0.into(), 15.into()));
    }

    #[test]
    fn election_never_has_two_leaders() {
        let mut world = FakeLeaseServer::new();
        let (mut a, mut b) = (world.candidate("a"), world.candidate("b"));
        assert!(world.attempt(&mut a));
        world.later(1.0);
        assert!(!world.attempt(&mut b));
        // From here on all requests of a fail. It stops leading ten seconds after its last renewal; b waits for
        // fifteen seconds after it observed that.
        let (mut stopped, mut took) = (None, None);
        for half in 1..60 {
            world.later(0.5);
            if stopped.is_none() && !world.unanswered(&mut a) {
                stopped = Some(half);
            }
            if took.is_none() && world.attempt(&mut b) {
                took = Some(half);
            }
            assert!(a.leads_until(world.now).is_none() || b.leads_until(world.now).is_none());
        }
        assert_eq!((stopped, took), (Some(18), Some(30)));
        assert_eq!(world.spec("leaseTransitions"), 1);
        // It returns and finds another leader.
        assert!(!world.attempt(&mut a));
        assert_eq!(a.leader(), Some("b"));
    }

    #[test]
    fn election_lease_expiry_counts_from_observation() {
        let mut world = FakeLeaseServer::new();
        let (mut a, mut b) = (world.candidate("a"), world.candidate("b"));
        world.attempt(&mut a);
        // The times in the Lease are ignored: b observes it only now.
        world.later(100.0);
        assert!(!world.attempt(&mut b));
        world.later(14.0);
        assert!(!world.attempt(&mut b));
        world.later(1.0);
        assert!(world.attempt(&mut b));
    }

    #[test]
    fn election_released_lease_taken_at_once() {
        let mut world = FakeLeaseServer::new();
        let (mut a, mut b) = (world.candidate("a"), world.candidate("b"));
        world.attempt(&mut a);
        assert!(!world.attempt(&mut b));
        assert!(b.release(world.now, CLOCK).is_none(), "what is not ours is not given back");
        let release = a.release(world.now, CLOCK).unwrap();
        assert!(a.leads_until(world.now).is_none(), "before the Lease is updated");
        world.answer(&release);
        assert_eq!((world.spec("holderIdentity"), world.spec("leaseTransitions")), (Value::Null, 0.into()));
        assert!(world.attempt(&mut b));
        assert_eq!(world.spec("leaseTransitions"), 1);
    }

    #[test]
    fn election_restart_with_same_identity_keeps_lease() {
        let mut world = FakeLeaseServer::new();
        let mut a = world.candidate("a");
        world.attempt(&mut a);
        let acquired = world.spec("acquireTime");
        let mut again = world.candidate("a");
        world.later(3.0);
        assert!(world.attempt(&mut again));
        assert_eq!((world.spec("leaseTransitions"), world.spec("acquireTime")), (0.into(), acquired));
    }

    #[test]
    fn election_deleted_or_edited_lease_detected() {
        let mut world = FakeLeaseServer::new();
        let mut a = world.candidate("a");
        world.attempt(&mut a);
        world.lease = None;
        world.later(2.0);
        assert!(world.attempt(&mut a), "made anew");
        let mut edited = world.lease.clone().unwrap();
        edited["spec"]["holderIdentity"] = "b".into();
        edited["metadata"]["resourceVersion"] = "99".into();
        world.lease = Some(edited);
        world.later(2.0);
        assert!(!world.attempt(&mut a), "lost at once, even after a recent renewal");
    }

    #[test]
    fn election_concurrent_create_has_one_winner() {
        let mut world = FakeLeaseServer::new();
        let (mut a, mut b) = (world.candidate("a"), world.candidate("b"));
        let (asked_a, asked_b) = (a.begin_attempt(world.now, CLOCK), b.begin_attempt(world.now, CLOCK));
        let (heard_a, heard_b) = (world.answer(&asked_a), world.answer(&asked_b));
        let (asked_a, asked_b) =
            (a.handle_response(heard_a, world.now, CLOCK), b.handle_response(heard_b, world.now, CLOCK));
        let (heard_a, heard_b) = (world.answer(&asked_a.unwrap()), world.answer(&asked_b.unwrap()));
        assert!(
            a.handle_response(heard_a, world.now, CLOCK).is_none()
                && b.handle_response(heard_b, world.now, CLOCK).is_none()
        );
        assert!(a.leads_until(world.now).is_some() && b.leads_until(world.now).is_none());
    }

    #[test]
    fn election_retry_delay_has_jitter() {
        let settings = Settings::default();
        assert_eq!(retry_delay(&settings, true, 0.9), Duration::from_secs(2));
        assert_eq!(retry_delay(&settings, false, 0.0), Duration::from_secs(2));
        assert_eq!(retry_delay(&settings, false, 1.0), Duration::from_millis(4400));
    }
}
