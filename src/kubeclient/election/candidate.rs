//! State machine of a candidate: the next request for the Lease, and whether the candidate leads. No I/O.
//!
//! As client-go's `leaderelection`: clocks of other candidates are not trusted. A Lease expires when it is unchanged
//! for its duration since it was first observed. Its holder stops leading earlier, when it cannot renew for
//! `renew_deadline`.

use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::Settings;
use super::lease::{Lease, Record, micro_time};

/// A request for the Lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ask {
    /// Read it.
    Get,
    /// Create this Lease.
    Create(Value),
    /// Update it to this Lease.
    Update(Value),
}

/// Result of a request.
#[derive(Debug)]
pub(super) enum Heard {
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
    observed: Option<Observed>,
    /// Start of the last attempt that acquired or renewed the Lease.
    renewed: Option<Instant>,
    attempt: Attempt,
}

/// The Lease as last observed.
struct Observed {
    lease: Lease,
    /// When it was first observed in this state.
    at: Instant,
}

/// An attempt to acquire or renew the Lease.
struct Attempt {
    began: Instant,
    /// The request in flight.
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// Update of our own Lease without reading it first.
    Keep,
    Look,
    Write,
}

impl Candidate {
    pub(super) fn new(settings: Settings, identity: String, now: Instant) -> Candidate {
        let attempt = Attempt { began: now, stage: Stage::Look };
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
        Some(observed.lease.spec.holder_identity.as_str()).filter(|holder| !holder.is_empty())
    }

    /// Begins an attempt to acquire or renew the Lease.
    pub(super) fn begin(&mut self, now: Instant, clock: SystemTime) -> Ask {
        let ours = self.leads_until(now).and(self.observed.as_ref()).map(|observed| observed.lease.clone());
        match ours {
            Some(lease) => {
                self.attempt = Attempt { began: now, stage: Stage::Keep };
                Ask::Update(self.record(Some(&lease.spec), clock).object(
                    &self.settings.namespace,
                    &self.settings.name,
                    lease.version(),
                ))
            }
            None => {
                self.attempt = Attempt { began: now, stage: Stage::Look };
                Ask::Get
            }
        }
    }

    /// Handles the result of a request. Returns the next request of this attempt, `None` when it is over.
    pub(super) fn hear(&mut self, heard: Heard, now: Instant, clock: SystemTime) -> Option<Ask> {
        match (self.attempt.stage, heard) {
            (Stage::Keep | Stage::Write, Heard::Lease(lease)) => {
                self.renewed = Some(self.attempt.began);
                self.observed = Some(Observed { lease, at: now });
                None
            }
            // The Lease was changed: read it.
            (Stage::Keep, Heard::Missing | Heard::Failed) => {
                self.attempt.stage = Stage::Look;
                Some(Ask::Get)
            }
            (Stage::Look, Heard::Lease(lease)) => self.judge(lease, now, clock),
            (Stage::Look, Heard::Missing) => {
                self.attempt.stage = Stage::Write;
                self.observed = None;
                let record = self.record(None, clock);
                Some(Ask::Create(record.object(&self.settings.namespace, &self.settings.name, "")))
            }
            (Stage::Look, Heard::Failed) | (Stage::Write, Heard::Missing | Heard::Failed) => None,
        }
    }

    /// The update that releases the Lease, if this candidate leads.
    pub(super) fn release(&mut self, now: Instant, clock: SystemTime) -> Option<Ask> {
        self.leads_until(now)?;
        self.renewed = None;
        let lease = &self.observed.as_ref()?.lease;
        let record = Record {
            holder_identity: String::new(),
            lease_duration_seconds: 1,
            acquire_time: Some(micro_time(clock)),
            renew_time: Some(micro_time(clock)),
            lease_transitions: lease.spec.lease_transitions,
        };
        Some(Ask::Update(record.object(&self.settings.namespace, &self.settings.name, lease.version())))
    }

    /// Evaluates the Lease. Takes it if it is ours, has no holder, or was not renewed for its duration.
    fn judge(&mut self, lease: Lease, now: Instant, clock: SystemTime) -> Option<Ask> {
        let at = match &self.observed {
            Some(observed) if observed.lease == lease => observed.at,
            _ => now,
        };
        let ours = lease.spec.holder_identity == self.identity;
        let free = lease.spec.holder_identity.is_empty() || at + lease.spec.duration() <= now;
        let record = self.record(Some(&lease.spec), clock);
        let update = record.object(&self.settings.namespace, &self.settings.name, lease.version());
        self.observed = Some(Observed { lease, at });
        if !ours {
            self.renewed = None;
        }
        if !ours && !free {
            return None;
        }
        self.attempt.stage = Stage::Write;
        Some(Ask::Update(update))
    }

    /// The record to write, after `before`.
    fn record(&self, before: Option<&Record>, clock: SystemTime) -> Record {
        let ours = before.filter(|before| before.holder_identity == self.identity);
        let transitions = before.map_or(0, |before| before.lease_transitions.saturating_add(i64::from(ours.is_none())));
        Record {
            holder_identity: self.identity.clone(),
            lease_duration_seconds: i64::try_from(self.settings.lease_duration.as_secs()).unwrap_or(i64::MAX),
            acquire_time: ours.map_or_else(|| Some(micro_time(clock)), |ours| ours.acquire_time.clone()),
            renew_time: Some(micro_time(clock)),
            lease_transitions: transitions,
        }
    }
}

/// The pause before the next attempt, as in client-go. Candidates that do not lead add jitter (`JitterFactor` 1.2), so
/// that they do not all retry at once.
pub(super) fn pause(settings: &Settings, leads: bool, chance: f64) -> Duration {
    if leads { settings.retry_period } else { settings.retry_period.mul_f64(1.0 + 1.2 * chance) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: SystemTime = SystemTime::UNIX_EPOCH;

    /// A server with a Lease, and a clock.
    struct World {
        lease: Option<Value>,
        version: u64,
        now: Instant,
    }

    impl World {
        fn new() -> World {
            World { lease: None, version: 0, now: Instant::now() }
        }

        fn later(&mut self, seconds: f64) {
            self.now += Duration::from_secs_f64(seconds);
        }

        fn candidate(&self, name: &str) -> Candidate {
            Candidate::new(Settings::default(), name.to_owned(), self.now)
        }

        fn answer(&mut self, ask: &Ask) -> Heard {
            let write = |world: &mut World, object: &Value| {
                world.version += 1;
                let mut object = object.clone();
                object["metadata"]["resourceVersion"] = world.version.to_string().into();
                world.lease = Some(object);
            };
            match (ask, &self.lease) {
                (Ask::Get, None) | (Ask::Update(_), None) => return Heard::Missing,
                (Ask::Get, Some(_)) => {}
                (Ask::Create(_), Some(_)) => return Heard::Failed,
                (Ask::Create(object), None) => write(self, object),
                (Ask::Update(object), Some(known)) => {
                    if known["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                        return Heard::Failed;
                    }
                    write(self, object);
                }
            }
            Heard::Lease(Lease::read(self.lease.as_ref().unwrap().to_string().as_bytes()).unwrap())
        }

        /// Runs one attempt. Returns whether the candidate leads after it.
        fn attempt(&mut self, candidate: &mut Candidate) -> bool {
            let mut ask = Some(candidate.begin(self.now, CLOCK));
            while let Some(asked) = ask {
                let heard = self.answer(&asked);
                ask = candidate.hear(heard, self.now, CLOCK);
            }
            candidate.leads_until(self.now).is_some()
        }

        /// Runs an attempt with failing requests only.
        fn unanswered(&self, candidate: &mut Candidate) -> bool {
            let mut ask = Some(candidate.begin(self.now, CLOCK));
            while ask.is_some() {
                ask = candidate.hear(Heard::Failed, self.now, CLOCK);
            }
            candidate.leads_until(self.now).is_some()
        }

        fn spec(&self, field: &str) -> Value {
            self.lease.as_ref().unwrap()["spec"][field].clone()
        }
    }

    #[test]
    fn the_first_leads_and_keeps_leading() {
        let mut world = World::new();
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
    fn never_do_two_lead() {
        let mut world = World::new();
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
    fn what_counts_is_when_a_lease_was_seen_not_what_it_says() {
        let mut world = World::new();
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
    fn a_lease_that_is_given_back_is_taken_at_once() {
        let mut world = World::new();
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
    fn who_starts_again_under_the_same_name_goes_on() {
        let mut world = World::new();
        let mut a = world.candidate("a");
        world.attempt(&mut a);
        let acquired = world.spec("acquireTime");
        let mut again = world.candidate("a");
        world.later(3.0);
        assert!(world.attempt(&mut again));
        assert_eq!((world.spec("leaseTransitions"), world.spec("acquireTime")), (0.into(), acquired));
    }

    #[test]
    fn a_lease_that_was_deleted_or_edited_is_seen_for_what_it_is() {
        let mut world = World::new();
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
    fn of_two_who_create_or_take_it_at_once_one_does() {
        let mut world = World::new();
        let (mut a, mut b) = (world.candidate("a"), world.candidate("b"));
        let (asked_a, asked_b) = (a.begin(world.now, CLOCK), b.begin(world.now, CLOCK));
        let (heard_a, heard_b) = (world.answer(&asked_a), world.answer(&asked_b));
        let (asked_a, asked_b) = (a.hear(heard_a, world.now, CLOCK), b.hear(heard_b, world.now, CLOCK));
        let (heard_a, heard_b) = (world.answer(&asked_a.unwrap()), world.answer(&asked_b.unwrap()));
        assert!(a.hear(heard_a, world.now, CLOCK).is_none() && b.hear(heard_b, world.now, CLOCK).is_none());
        assert!(a.leads_until(world.now).is_some() && b.leads_until(world.now).is_none());
    }

    #[test]
    fn those_who_wait_come_at_different_times() {
        let settings = Settings::default();
        assert_eq!(pause(&settings, true, 0.9), Duration::from_secs(2));
        assert_eq!(pause(&settings, false, 0.0), Duration::from_secs(2));
        assert_eq!(pause(&settings, false, 1.0), Duration::from_millis(4400));
    }
}
