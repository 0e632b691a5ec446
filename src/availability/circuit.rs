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
const ROW: u32 = 10;
/// Minimum time of such failures: requests in flight to a backend that died fail all at once.
const SUSTAINED: Duration = Duration::from_secs(1);
/// Time until the first trial after opening, and the maximum between trials.
const TRIAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Requests in flight beyond those answered, in the first second of recovery; each further second adds as many.
const FIRST: usize = 32;
/// Number of answers that ends recovery.
const ENOUGH: usize = 500;
/// Time that ends recovery.
const LONGEST: Duration = Duration::from_secs(10);

/// Circuit breaker of one APIService.
#[derive(Clone, Debug, Default)]
pub(super) struct Circuit {
    state: State,
    losses: Losses,
    crowd: Crowd,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Requests are admitted.
    #[default]
    Closed,
    /// No endpoint can be reached. Requests are admitted: each fails at once.
    Away { since: Instant },
    /// No request is admitted until `next`. `trial` is true while the last admitted request has no result.
    Open { next: Instant, wait: Duration, trial: bool },
    /// The backend answers again.
    Recovering { since: Instant, answers: usize },
}

/// Consecutive requests without an answer.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    row: u32,
    since: Option<Instant>,
}

/// Requests in flight that were admitted while the circuit was not closed, long-running ones too, until their response
/// begins.
#[derive(Clone, Debug, Default)]
struct Crowd {
    all: usize,
    by_user: HashMap<u16, usize>,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The backend answered, perhaps with an error.
    Answered,
    /// The request was sent and got no valid answer.
    Lost,
    /// No endpoint could be reached.
    Unreachable,
}

/// Ticket of a request that was admitted while the circuit was not closed. It must be returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    user: u16,
    /// Time of the following trial, if this request is one.
    trial: Option<Instant>,
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// The circuit is open; time until the next trial.
    Open(Duration),
    /// The backend is recovering, and the limit is reached.
    Recovering,
}

impl Circuit {
    /// An open circuit; its first trial is due.
    #[cfg(test)]
    pub(super) fn opened_before(now: Instant) -> Circuit {
        Circuit { state: State::Open { next: now, wait: TRIAL.0, trial: false }, ..Circuit::default() }
    }

    /// Whether the circuit is closed without recent failures.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.state, State::Closed) && self.losses.row == 0
    }

    /// Whether the circuit is open: requests get no answer, or no endpoint can be reached.
    pub(super) fn is_against(&self) -> bool {
        matches!(self.state, State::Open { .. } | State::Away { .. })
    }

    /// The state for metrics.
    pub(super) fn state(&self, now: Instant) -> metrics::Circuit {
        match self.state {
            State::Recovering { since, .. } if now.saturating_duration_since(since) < LONGEST => {
                metrics::Circuit::HalfOpen
            }
            State::Closed | State::Recovering { .. } => metrics::Circuit::Closed,
            State::Open { .. } | State::Away { .. } => metrics::Circuit::Open,
        }
    }

    /// Admits or rejects a request of this user. A ticket must be returned.
    pub(super) fn pass(&mut self, user: impl FnOnce() -> u16, now: Instant) -> Result<Option<Pass>, Held> {
        let (user, trial) = match &mut self.state {
            State::Closed => return Ok(None),
            State::Away { .. } => (user(), None),
            State::Open { next, .. } if now < *next => return Err(Held::Open(*next - now)),
            State::Open { next, wait, trial } => {
                (*next, *trial) = (now + *wait, true);
                (user(), Some(*next))
            }
            State::Recovering { since, answers } => {
                let passed = now.saturating_duration_since(*since);
                if *answers >= ENOUGH || passed >= LONGEST {
                    self.state = State::Closed;
                    return Ok(None);
                }
                let most = FIRST.saturating_mul(1 + passed.as_secs() as usize) + *answers;
                let user = user();
                if !self.crowd.has_room(user, most) {
                    return Err(Held::Recovering);
                }
                (user, None)
            }
        };
        self.crowd.enter(user);
        Ok(Some(Pass { user, trial }))
    }

    /// Returns a ticket: the request is over, or its response has begun. `sent` if it may have reached the backend. One
    /// that was rejected on its way was no trial, so the next request is one: requests that never reach the backend
    /// must not block others. One that was sent and canceled has no result: the next trial is due soon.
    pub(super) fn give_back(&mut self, pass: Pass, sent: bool, now: Instant) {
        self.crowd.leave(pass.user);
        if let State::Open { next, trial, .. } = &mut self.state
            && *trial
            && pass.trial == Some(*next)
        {
            *trial = false;
            *next = if sent { (now + TRIAL.0).min(*next) } else { now };
        }
    }

    /// Records the outcome of a request.
    pub(super) fn hear(&mut self, fate: Fate, now: Instant) {
        let enough = match fate {
            Fate::Lost => self.losses.add(now),
            Fate::Answered => {
                self.losses = Losses::default();
                false
            }
            Fate::Unreachable => false,
        };
        self.state = match (self.state, fate) {
            (State::Open { wait, trial: true, .. }, Fate::Lost) => {
                let wait = (wait * 2).min(TRIAL.1);
                State::Open { next: now + wait, wait, trial: false }
            }
            (State::Closed | State::Away { .. } | State::Recovering { .. }, Fate::Lost) if enough => {
                self.losses = Losses::default();
                State::Open { next: now + TRIAL.0, wait: TRIAL.0, trial: false }
            }
            (State::Closed | State::Recovering { .. }, Fate::Unreachable) => State::Away { since: now },
            // A short absence needs no recovery limit.
            (State::Away { since }, Fate::Answered) if now.saturating_duration_since(since) < SUSTAINED => {
                State::Closed
            }
            (State::Away { .. } | State::Open { .. }, Fate::Answered) => State::Recovering { since: now, answers: 0 },
            (State::Recovering { since, answers }, Fate::Answered) => State::Recovering { since, answers: answers + 1 },
            (state, _) => state,
        };
    }

    /// Records a successful probe: a few requests are admitted at once. A single trial would not do: it may be a
    /// request that never reaches the backend, and the circuit would stay open for all others.
    pub(super) fn vouched_for(&mut self, now: Instant) {
        match &mut self.state {
            State::Open { .. } => self.recover(now),
            State::Away { .. } => self.hear(Fate::Answered, now),
            State::Closed | State::Recovering { .. } => {}
        }
    }

    /// Starts recovery: the backend was unavailable, and is back.
    pub(super) fn recover(&mut self, now: Instant) {
        self.losses = Losses::default();
        self.state = State::Recovering { since: now, answers: 0 };
    }
}

impl Losses {
    /// Counts one failure. Returns whether the circuit should open.
    fn add(&mut self, now: Instant) -> bool {
        self.row = self.row.saturating_add(1);
        let since = *self.since.get_or_insert(now);
        self.row >= ROW && now.saturating_duration_since(since) >= SUSTAINED
    }
}

impl Crowd {
    /// Whether one more request of this user fits within `most`: its requests must be fewer than the room left to
    /// others.
    fn has_room(&self, user: u16, most: usize) -> bool {
        let of_user = self.by_user.get(&user).copied().unwrap_or_default();
        of_user < most.saturating_sub(self.all)
    }

    fn enter(&mut self, user: u16) {
        self.all += 1;
        *self.by_user.entry(user).or_default() += 1;
    }

    fn leave(&mut self, user: u16) {
        self.all = self.all.saturating_sub(1);
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

    fn opened(start: Instant) -> Circuit {
        let mut circuit = Circuit::default();
        for number in 0..=ROW {
            circuit.hear(Fate::Lost, start + SUSTAINED * number / ROW);
        }
        assert_eq!(circuit.state(start), metrics::Circuit::Open);
        circuit
    }

    #[test]
    fn what_falls_all_at_once_does_not_open_it_and_an_answer_clears_it() {
        let at = millis(Instant::now());
        let mut circuit = Circuit::default();
        for _ in 0..100 {
            circuit.hear(Fate::Lost, at(5));
        }
        assert_eq!((circuit.state(at(5)), circuit.is_plain()), (metrics::Circuit::Closed, false));
        circuit.hear(Fate::Answered, at(900));
        assert!(circuit.is_plain());
        for number in 1..ROW {
            circuit.hear(Fate::Lost, at(1000 * u64::from(number)));
        }
        assert_eq!(circuit.state(at(9000)), metrics::Circuit::Closed, "too few");
        circuit.hear(Fate::Lost, at(100_000));
        assert_eq!(circuit.state(at(100_000)), metrics::Circuit::Open);
    }

    #[test]
    fn open_it_lets_one_through_at_least_every_ten_seconds() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        assert_eq!(circuit.pass(one, at(1000)), Err(Held::Open(Duration::from_secs(1))));
        let mut trials = Vec::new();
        for second in 2..60 {
            if circuit.pass(one, at(second * 1000)).is_ok() {
                assert!(circuit.pass(one, at(second * 1000)).is_err(), "one, not two");
                circuit.hear(Fate::Lost, at(second * 1000));
                trials.push(second);
            }
        }
        assert_eq!(trials, [2, 4, 8, 16, 26, 36, 46, 56]);
        // A trial without a result is followed by the next one.
        let mut circuit = opened(at(0));
        assert!(circuit.pass(one, at(2000)).is_ok() && circuit.pass(one, at(3000)).is_ok());
        circuit.vouched_for(at(3100));
        assert!(circuit.pass(one, at(3100)).is_ok() && circuit.pass(one, at(3100)).is_ok(), "more than one trial");
        assert_eq!(circuit.state(at(3100)), metrics::Circuit::HalfOpen);
    }

    #[test]
    fn a_trial_that_never_got_there_was_none() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        let take = |circuit: &mut Circuit, millis| circuit.pass(one, at(millis)).unwrap().unwrap();
        for _ in 0..100 {
            let refused = take(&mut circuit, 2000);
            assert!(circuit.pass(one, at(2000)).is_err());
            circuit.give_back(refused, false, at(2000));
        }
        // A late failure of an earlier request was no trial.
        circuit.hear(Fate::Lost, at(2000));
        let lost = take(&mut circuit, 2000);
        circuit.hear(Fate::Lost, at(2100));
        circuit.give_back(lost, true, at(2100));
        assert_eq!(circuit.pass(one, at(2100)), Err(Held::Open(Duration::from_secs(2))));
        circuit.hear(Fate::Lost, at(2200));
        assert_eq!(circuit.pass(one, at(2200)), Err(Held::Open(Duration::from_millis(1900))));
        // A canceled trial: others do not wait long for the next one.
        for second in [10, 20] {
            let trial = take(&mut circuit, second * 1000);
            circuit.hear(Fate::Lost, at(second * 1000));
            circuit.give_back(trial, true, at(second * 1000));
        }
        let left = take(&mut circuit, 30_000);
        circuit.give_back(left, true, at(30_500));
        assert_eq!(circuit.pass(one, at(30_500)), Err(Held::Open(Duration::from_secs(1))));
        // A trial that took longer than the wait does not affect the next one.
        let (slow, next) = (take(&mut circuit, 31_500), take(&mut circuit, 60_000));
        circuit.give_back(slow, false, at(60_001));
        assert!(circuit.pass(one, at(60_001)).is_err());
        circuit.hear(Fate::Answered, at(60_002));
        circuit.give_back(next, true, at(60_002));
        assert_eq!(circuit.state(at(60_002)), metrics::Circuit::HalfOpen);
    }

    /// Number of requests admitted, each of another user.
    fn enter(circuit: &mut Circuit, mut users: std::ops::RangeFrom<u16>, now: Instant) -> Vec<Pass> {
        std::iter::from_fn(|| circuit.pass(|| users.next().unwrap(), now).ok().flatten()).collect()
    }

    #[test]
    fn who_comes_back_gets_as_much_as_it_has_answered_and_a_few_more_each_second() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        circuit.hear(Fate::Answered, at(2000));
        assert_eq!(circuit.state(at(2000)), metrics::Circuit::HalfOpen);
        let first = enter(&mut circuit, 1000.., at(2000));
        assert_eq!((first.len(), circuit.pass(one, at(2000))), (FIRST, Err(Held::Recovering)));
        for _ in 0..100 {
            circuit.hear(Fate::Answered, at(2100));
        }
        assert_eq!(enter(&mut circuit, 2000.., at(2100)).len(), 100);
        // A request without an answer does not block others for long.
        assert_eq!(enter(&mut circuit, 3000.., at(3100)).len(), FIRST);
        first.into_iter().for_each(|pass| circuit.give_back(pass, true, at(3100)));
        assert_eq!(enter(&mut circuit, 4000.., at(3100)).len(), FIRST);
        let mut late = circuit.clone();
        assert!(late.pass(one, at(13_000)) == Ok(None) && late.is_plain());
        for _ in 0..ENOUGH {
            circuit.hear(Fate::Answered, at(3200));
        }
        assert!(circuit.pass(one, at(3200)) == Ok(None) && circuit.is_plain());
    }

    #[test]
    fn while_it_comes_back_no_user_takes_what_is_left_to_others() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        circuit.hear(Fate::Answered, at(2000));
        let mut all = |user: u16| -> Vec<Pass> {
            std::iter::from_fn(|| circuit.pass(|| user, at(2000)).ok().flatten()).collect()
        };
        let [mut first, second, third] = [all(1), all(2), all(3)];
        assert_eq!([&first, &second, &third].map(Vec::len), [FIRST / 2, FIRST / 4, FIRST / 8]);
        assert!(all(1).is_empty());
        circuit.give_back(first.pop().unwrap(), true, at(2000));
        assert_eq!(circuit.pass(|| 1, at(2000)), Err(Held::Recovering));
        assert!(circuit.pass(|| 4, at(2000)).is_ok());
        [first, second, third].into_iter().flatten().for_each(|pass| circuit.give_back(pass, true, at(2000)));
        assert_eq!((circuit.crowd.all, circuit.crowd.by_user.len()), (1, 1));
    }

    #[test]
    fn while_it_comes_back_it_is_judged_as_ever() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        circuit.hear(Fate::Answered, at(2000));
        for number in 0..100 {
            circuit.hear(Fate::Lost, at(2000 + number));
        }
        circuit.hear(Fate::Answered, at(2500));
        for number in 0..u64::from(ROW) {
            circuit.hear(Fate::Lost, at(3000 + 100 * number));
        }
        assert_eq!(circuit.state(at(3900)), metrics::Circuit::HalfOpen);
        let mut away = circuit.clone();
        circuit.hear(Fate::Lost, at(4000));
        assert_eq!(circuit.state(at(4000)), metrics::Circuit::Open);
        assert_eq!(circuit.pass(one, at(4000)), Err(Held::Open(TRIAL.0)));
        // An unreachable backend is another state.
        away.hear(Fate::Unreachable, at(4000));
        assert_eq!(away.state(at(4000)), metrics::Circuit::Open);
        assert!(away.pass(one, at(4000)).is_ok());
    }

    #[test]
    fn who_is_away_for_long_comes_back_slowly_and_is_asked_meanwhile() {
        let at = millis(Instant::now());
        let mut circuit = Circuit::default();
        circuit.hear(Fate::Unreachable, at(0));
        assert_eq!(circuit.state(at(0)), metrics::Circuit::Open);
        let crowd: Vec<Pass> = (0..1000).map(|_| circuit.pass(one, at(1)).unwrap().unwrap()).collect();
        circuit.hear(Fate::Unreachable, at(500));
        let mut short = circuit.clone();
        short.hear(Fate::Answered, at(900));
        assert!(short.is_plain());
        circuit.hear(Fate::Answered, at(1100));
        assert_eq!(circuit.pass(|| 2, at(1100)), Err(Held::Recovering));
        crowd.into_iter().for_each(|pass| circuit.give_back(pass, true, at(1100)));
        assert!(circuit.pass(|| 2, at(1100)).is_ok());
    }

    #[test]
    fn who_is_away_and_then_answers_nothing_is_open() {
        let at = millis(Instant::now());
        let mut circuit = Circuit::default();
        circuit.hear(Fate::Unreachable, at(0));
        for number in 0..=ROW {
            circuit.hear(Fate::Lost, at(u64::from(number) * 100));
        }
        assert!(matches!(circuit.pass(one, at(1000)), Err(Held::Open(_))));
    }
}
