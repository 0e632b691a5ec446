//! Circuit breaker of an APIService: open while its requests get no answer, whichever user sends them.
//!
//! Pure; the time is an argument. It opens after consecutive requests that were sent and got no answer, for a minimum
//! time; never on errors that a backend answers with, and never because it is slow. While it is open one request at a
//! time is admitted as a trial. While it recovers, the number of requests in flight is limited to those answered since
//! and a few more each second, so that waiting clients do not overload the backend again. No user takes what is left to
//! the others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::observe::metrics;

/// Consecutive requests without an answer that open the circuit.
const CONSECUTIVE_FAILURES: u32 = 10;
/// Minimum time of such failures: requests in flight to a backend that died fail all at once.
const MIN_FAILURE_TIME: Duration = Duration::from_secs(1);
/// Time until the first trial after opening, and the maximum between trials.
const TRIAL_WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Requests in flight beyond those answered, in the first second of recovery; each further second adds as many.
const RECOVERY_BASE: usize = 32;
/// Number of answers that ends recovery.
const RECOVERY_ANSWERS: usize = 500;
/// Time that ends recovery.
const RECOVERY_TIME: Duration = Duration::from_secs(10);

/// Circuit breaker of one APIService.
#[derive(Clone, Debug, Default)]
pub(super) struct CircuitBreaker {
    state: State,
    failures: ConsecutiveFailures,
    in_flight: RecoveryLimit,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Requests are admitted.
    #[default]
    Closed,
    /// No endpoint can be reached. Requests are admitted: each fails at once.
    Unreachable { since: Instant },
    /// No request is admitted until `next`. `trial` is true while the last admitted request has no result.
    Open { next: Instant, wait: Duration, trial: bool },
    /// The backend answers again.
    Recovering { since: Instant, answers: usize },
}

/// Consecutive requests without an answer.
#[derive(Clone, Copy, Debug, Default)]
struct ConsecutiveFailures {
    count: u32,
    since: Option<Instant>,
}

/// Requests in flight that were admitted while the circuit was not closed, long-running ones too, until their response
/// begins.
#[derive(Clone, Debug, Default)]
struct RecoveryLimit {
    total: usize,
    by_user: HashMap<u16, usize>,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendOutcome {
    /// The backend answered, perhaps with an error.
    Answered,
    /// The request was sent and got no valid answer.
    NoAnswer,
    /// No endpoint could be reached.
    Unreachable,
}

/// Ticket of a request that was admitted while the circuit was not closed. It must be returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CircuitTicket {
    user: u16,
    /// Time of the following trial, if this request is one.
    trial: Option<Instant>,
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CircuitRejection {
    /// The circuit is open; time until the next trial.
    Open(Duration),
    /// The backend is recovering, and the limit is reached.
    Recovering,
}

impl CircuitBreaker {
    /// An open circuit; its first trial is due.
    #[cfg(test)]
    pub(super) fn open_with_trial_due(now: Instant) -> CircuitBreaker {
        CircuitBreaker {
            state: State::Open { next: now, wait: TRIAL_WAIT.0, trial: false },
            ..CircuitBreaker::default()
        }
    }

    /// Whether the circuit is closed without recent failures.
    pub(super) fn is_clean(&self) -> bool {
        matches!(self.state, State::Closed) && self.failures.count == 0
    }

    /// Whether the circuit is open: requests get no answer, or no endpoint can be reached.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. } | State::Unreachable { .. })
    }

    /// The state for metrics.
    pub(super) fn state(&self, now: Instant) -> metrics::CircuitState {
        match self.state {
            State::Recovering { since, .. } if now.saturating_duration_since(since) < RECOVERY_TIME => {
                metrics::CircuitState::HalfOpen
            }
            State::Closed | State::Recovering { .. } => metrics::CircuitState::Closed,
            State::Open { .. } | State::Unreachable { .. } => metrics::CircuitState::Open,
        }
    }

    /// Admits or rejects a request of this user. A ticket must be returned.
    pub(super) fn admit(
        &mut self,
        user: impl FnOnce() -> u16,
        now: Instant,
    ) -> Result<Option<CircuitTicket>, CircuitRejection> {
        let (user, trial) = match &mut self.state {
            State::Closed => return Ok(None),
            State::Unreachable { .. } => (user(), None),
            State::Open { next, .. } if now < *next => return Err(CircuitRejection::Open(*next - now)),
            State::Open { next, wait, trial } => {
                (*next, *trial) = (now + *wait, true);
                (user(), Some(*next))
            }
            State::Recovering { since, answers } => {
                let passed = now.saturating_duration_since(*since);
                if *answers >= RECOVERY_ANSWERS || passed >= RECOVERY_TIME {
                    self.state = State::Closed;
                    return Ok(None);
                }
                let limit = RECOVERY_BASE.saturating_mul(1 + passed.as_secs() as usize) + *answers;
                let user = user();
                if !self.in_flight.allows(user, limit) {
                    return Err(CircuitRejection::Recovering);
                }
                (user, None)
            }
        };
        self.in_flight.add(user);
        Ok(Some(CircuitTicket { user, trial }))
    }

    /// Returns a ticket: the request is over, or its response has begun. `sent` if it may have reached the backend. One
    /// that was rejected on its way was no trial, so the next request is one: requests that never reach the backend
    /// must not block others. One that was sent and canceled has no result: the next trial is due soon.
    pub(super) fn release(&mut self, pass: CircuitTicket, sent: bool, now: Instant) {
        self.in_flight.remove(pass.user);
        if let State::Open { next, trial, .. } = &mut self.state
            && *trial
            && pass.trial == Some(*next)
        {
            *trial = false;
            *next = if sent { (now + TRIAL_WAIT.0).min(*next) } else { now };
        }
    }

    /// Records the outcome of a request.
    pub(super) fn record(&mut self, fate: BackendOutcome, now: Instant) {
        let enough = match fate {
            BackendOutcome::NoAnswer => self.failures.add(now),
            BackendOutcome::Answered => {
                self.failures = ConsecutiveFailures::default();
                false
            }
            BackendOutcome::Unreachable => false,
        };
        self.state = match (self.state, fate) {
            (State::Open { wait, trial: true, .. }, BackendOutcome::NoAnswer) => {
                let wait = (wait * 2).min(TRIAL_WAIT.1);
                State::Open { next: now + wait, wait, trial: false }
            }
            (State::Closed | State::Unreachable { .. } | State::Recovering { .. }, BackendOutcome::NoAnswer)
                if enough =>
            {
                self.failures = ConsecutiveFailures::default();
                State::Open { next: now + TRIAL_WAIT.0, wait: TRIAL_WAIT.0, trial: false }
            }
            (State::Closed | State::Recovering { .. }, BackendOutcome::Unreachable) => {
                State::Unreachable { since: now }
            }
            // A short absence needs no recovery limit.
            (State::Unreachable { since }, BackendOutcome::Answered)
                if now.saturating_duration_since(since) < MIN_FAILURE_TIME =>
            {
                State::Closed
            }
            (State::Unreachable { .. } | State::Open { .. }, BackendOutcome::Answered) => {
                State::Recovering { since: now, answers: 0 }
            }
            (State::Recovering { since, answers }, BackendOutcome::Answered) => {
                State::Recovering { since, answers: answers + 1 }
            }
            (state, _) => state,
        };
    }

    /// Records a successful probe: a few requests are admitted at once. A single trial would not do: it may be a
    /// request that never reaches the backend, and the circuit would stay open for all others.
    pub(super) fn record_probe_success(&mut self, now: Instant) {
        match &mut self.state {
            State::Open { .. } => self.start_recovery(now),
            State::Unreachable { .. } => self.record(BackendOutcome::Answered, now),
            State::Closed | State::Recovering { .. } => {}
        }
    }

    /// Starts recovery: the backend was unavailable, and is back.
    pub(super) fn start_recovery(&mut self, now: Instant) {
        self.failures = ConsecutiveFailures::default();
        self.state = State::Recovering { since: now, answers: 0 };
    }
}

impl ConsecutiveFailures {
    /// Counts one failure. Returns whether the circuit should open.
    fn add(&mut self, now: Instant) -> bool {
        self.count = self.count.saturating_add(1);
        let since = *self.since.get_or_insert(now);
        self.count >= CONSECUTIVE_FAILURES && now.saturating_duration_since(since) >= MIN_FAILURE_TIME
    }
}

impl RecoveryLimit {
    /// Whether one more request of this user fits within `limit`: its requests must be fewer than the room left to
    /// others.
    fn allows(&self, user: u16, limit: usize) -> bool {
        let of_user = self.by_user.get(&user).copied().unwrap_or_default();
        of_user < limit.saturating_sub(self.total)
    }

    fn add(&mut self, user: u16) {
        self.total += 1;
        *self.by_user.entry(user).or_default() += 1;
    }

    fn remove(&mut self, user: u16) {
        self.total = self.total.saturating_sub(1);
        if let Some(count) = self.by_user.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.by_user.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> u16 {
        1
    }

    fn millis(start: Instant) -> impl Fn(u64) -> Instant {
        move |millis| start + Duration::from_millis(millis)
    }

    fn opened(start: Instant) -> CircuitBreaker {
        let mut circuit = CircuitBreaker::default();
        for number in 0..=CONSECUTIVE_FAILURES {
            circuit.record(BackendOutcome::NoAnswer, start + MIN_FAILURE_TIME * number / CONSECUTIVE_FAILURES);
        }
        assert_eq!(circuit.state(start), metrics::CircuitState::Open);
        circuit
    }

    #[test]
    fn circuit_opens_only_after_sustained_failures() {
        let at = millis(Instant::now());
        let mut circuit = CircuitBreaker::default();
        for _ in 0..100 {
            circuit.record(BackendOutcome::NoAnswer, at(5));
        }
        assert_eq!((circuit.state(at(5)), circuit.is_clean()), (metrics::CircuitState::Closed, false));
        circuit.record(BackendOutcome::Answered, at(900));
        assert!(circuit.is_clean());
        for number in 1..CONSECUTIVE_FAILURES {
            circuit.record(BackendOutcome::NoAnswer, at(1000 * u64::from(number)));
        }
        assert_eq!(circuit.state(at(9000)), metrics::CircuitState::Closed, "too few");
        circuit.record(BackendOutcome::NoAnswer, at(100_000));
        assert_eq!(circuit.state(at(100_000)), metrics::CircuitState::Open);
    }

    #[test]
    fn circuit_open_admits_trials_with_backoff() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        assert_eq!(circuit.admit(one, at(1000)), Err(CircuitRejection::Open(Duration::from_secs(1))));
        let mut trials = Vec::new();
        for second in 2..60 {
            if circuit.admit(one, at(second * 1000)).is_ok() {
                assert!(circuit.admit(one, at(second * 1000)).is_err(), "one, not two");
                circuit.record(BackendOutcome::NoAnswer, at(second * 1000));
                trials.push(second);
            }
        }
        assert_eq!(trials, [2, 4, 8, 16, 26, 36, 46, 56]);
        // A trial without a result is followed by the next one.
        let mut circuit = opened(at(0));
        assert!(circuit.admit(one, at(2000)).is_ok() && circuit.admit(one, at(3000)).is_ok());
        circuit.record_probe_success(at(3100));
        assert!(circuit.admit(one, at(3100)).is_ok() && circuit.admit(one, at(3100)).is_ok(), "more than one trial");
        assert_eq!(circuit.state(at(3100)), metrics::CircuitState::HalfOpen);
    }

    #[test]
    fn circuit_trial_not_sent_admits_next() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        let take = |circuit: &mut CircuitBreaker, millis| circuit.admit(one, at(millis)).unwrap().unwrap();
        for _ in 0..100 {
            let refused = take(&mut circuit, 2000);
            assert!(circuit.admit(one, at(2000)).is_err());
            circuit.release(refused, false, at(2000));
        }
        // A late failure of an earlier request was no trial.
        circuit.record(BackendOutcome::NoAnswer, at(2000));
        let lost = take(&mut circuit, 2000);
        circuit.record(BackendOutcome::NoAnswer, at(2100));
        circuit.release(lost, true, at(2100));
        assert_eq!(circuit.admit(one, at(2100)), Err(CircuitRejection::Open(Duration::from_secs(2))));
        circuit.record(BackendOutcome::NoAnswer, at(2200));
        assert_eq!(circuit.admit(one, at(2200)), Err(CircuitRejection::Open(Duration::from_millis(1900))));
        // A canceled trial: others do not wait long for the next one.
        for second in [10, 20] {
            let trial = take(&mut circuit, second * 1000);
            circuit.record(BackendOutcome::NoAnswer, at(second * 1000));
            circuit.release(trial, true, at(second * 1000));
        }
        let left = take(&mut circuit, 30_000);
        circuit.release(left, true, at(30_500));
        assert_eq!(circuit.admit(one, at(30_500)), Err(CircuitRejection::Open(Duration::from_secs(1))));
        // A trial that took longer than the wait does not affect the next one.
        let (slow, next) = (take(&mut circuit, 31_500), take(&mut circuit, 60_000));
        circuit.release(slow, false, at(60_001));
        assert!(circuit.admit(one, at(60_001)).is_err());
        circuit.record(BackendOutcome::Answered, at(60_002));
        circuit.release(next, true, at(60_002));
        assert_eq!(circuit.state(at(60_002)), metrics::CircuitState::HalfOpen);
    }

    /// Number of requests admitted, each of another user.
    fn admit_all(
        circuit: &mut CircuitBreaker,
        mut users: std::ops::RangeFrom<u16>,
        now: Instant,
    ) -> Vec<CircuitTicket> {
        std::iter::from_fn(|| circuit.admit(|| users.next().unwrap(), now).ok().flatten()).collect()
    }

    #[test]
    fn circuit_recovery_limit_grows_with_answers_and_time() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        circuit.record(BackendOutcome::Answered, at(2000));
        assert_eq!(circuit.state(at(2000)), metrics::CircuitState::HalfOpen);
        let first = admit_all(&mut circuit, 1000.., at(2000));
        assert_eq!((first.len(), circuit.admit(one, at(2000))), (RECOVERY_BASE, Err(CircuitRejection::Recovering)));
        for _ in 0..100 {
            circuit.record(BackendOutcome::Answered, at(2100));
        }
        assert_eq!(admit_all(&mut circuit, 2000.., at(2100)).len(), 100);
        // A request without an answer does not block others for long.
        assert_eq!(admit_all(&mut circuit, 3000.., at(3100)).len(), RECOVERY_BASE);
        first.into_iter().for_each(|pass| circuit.release(pass, true, at(3100)));
        assert_eq!(admit_all(&mut circuit, 4000.., at(3100)).len(), RECOVERY_BASE);
        let mut late = circuit.clone();
        assert!(late.admit(one, at(13_000)) == Ok(None) && late.is_clean());
        for _ in 0..RECOVERY_ANSWERS {
            circuit.record(BackendOutcome::Answered, at(3200));
        }
        assert!(circuit.admit(one, at(3200)) == Ok(None) && circuit.is_clean());
    }

    #[test]
    fn circuit_recovery_limit_shared_between_users() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        circuit.record(BackendOutcome::Answered, at(2000));
        let mut all = |user: u16| -> Vec<CircuitTicket> {
            std::iter::from_fn(|| circuit.admit(|| user, at(2000)).ok().flatten()).collect()
        };
        let [mut first, second, third] = [all(1), all(2), all(3)];
        assert_eq!([&first, &second, &third].map(Vec::len), [RECOVERY_BASE / 2, RECOVERY_BASE / 4, RECOVERY_BASE / 8]);
        assert!(all(1).is_empty());
        circuit.release(first.pop().unwrap(), true, at(2000));
        assert_eq!(circuit.admit(|| 1, at(2000)), Err(CircuitRejection::Recovering));
        assert!(circuit.admit(|| 4, at(2000)).is_ok());
        [first, second, third].into_iter().flatten().for_each(|pass| circuit.release(pass, true, at(2000)));
        assert_eq!((circuit.in_flight.total, circuit.in_flight.by_user.len()), (1, 1));
    }

    #[test]
    fn circuit_half_open_opens_again_on_failures() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        circuit.record(BackendOutcome::Answered, at(2000));
        for number in 0..100 {
            circuit.record(BackendOutcome::NoAnswer, at(2000 + number));
        }
        circuit.record(BackendOutcome::Answered, at(2500));
        for number in 0..u64::from(CONSECUTIVE_FAILURES) {
            circuit.record(BackendOutcome::NoAnswer, at(3000 + 100 * number));
        }
        assert_eq!(circuit.state(at(3900)), metrics::CircuitState::HalfOpen);
        let mut away = circuit.clone();
        circuit.record(BackendOutcome::NoAnswer, at(4000));
        assert_eq!(circuit.state(at(4000)), metrics::CircuitState::Open);
        assert_eq!(circuit.admit(one, at(4000)), Err(CircuitRejection::Open(TRIAL_WAIT.0)));
        // An unreachable backend is another state.
        away.record(BackendOutcome::Unreachable, at(4000));
        assert_eq!(away.state(at(4000)), metrics::CircuitState::Open);
        assert!(away.admit(one, at(4000)).is_ok());
    }

    #[test]
    fn circuit_unreachable_admits_requests_and_recovers_slowly() {
        let at = millis(Instant::now());
        let mut circuit = CircuitBreaker::default();
        circuit.record(BackendOutcome::Unreachable, at(0));
        assert_eq!(circuit.state(at(0)), metrics::CircuitState::Open);
        let crowd: Vec<CircuitTicket> = (0..1000).map(|_| circuit.admit(one, at(1)).unwrap().unwrap()).collect();
        circuit.record(BackendOutcome::Unreachable, at(500));
        let mut short = circuit.clone();
        short.record(BackendOutcome::Answered, at(900));
        assert!(short.is_clean());
        circuit.record(BackendOutcome::Answered, at(1100));
        assert_eq!(circuit.admit(|| 2, at(1100)), Err(CircuitRejection::Recovering));
        crowd.into_iter().for_each(|pass| circuit.release(pass, true, at(1100)));
        assert!(circuit.admit(|| 2, at(1100)).is_ok());
    }

    #[test]
    fn circuit_unreachable_then_no_answer_opens() {
        let at = millis(Instant::now());
        let mut circuit = CircuitBreaker::default();
        circuit.record(BackendOutcome::Unreachable, at(0));
        for number in 0..=CONSECUTIVE_FAILURES {
            circuit.record(BackendOutcome::NoAnswer, at(u64::from(number) * 100));
        }
        assert!(matches!(circuit.admit(one, at(1000)), Err(CircuitRejection::Open(_))));
    }
}
