//! The circuit of an APIService: open while its requests get no answer, whoever asks.
//!
//! Pure; the time is an argument. It opens on requests that were sent and got nothing that is an answer, many in a
//! row and for a while: never on errors that a backend answers with, and never because it is slow. While it is open,
//! one request at a time is let through to see. When there is an answer again, as many requests may be under way as
//! have been answered since, and a few more: whoever waited for a backend to come back must not end it by coming.

use std::time::{Duration, Instant};

use crate::observe::metrics;

/// Requests in a row without an answer that open it,
const ROW: u32 = 10;
/// if that has been so for this long: what was under way to a backend that died falls all at once.
const SUSTAINED: Duration = Duration::from_secs(1);
/// How long after it opened the first request is let through, and how long it ever takes until the next.
const TRIAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// What may be under way besides what was answered, at first.
const FIRST: usize = 8;
/// After so many answers, or so much time, nothing is held back any more.
const ENOUGH: usize = 500;
const LONGEST: Duration = Duration::from_secs(10);

/// One APIService's circuit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Circuit(State);

#[derive(Clone, Copy, Debug)]
enum State {
    /// Requests go through.
    Closed {
        /// How many in a row got no answer, and since when.
        row: u32,
        since: Option<Instant>,
    },
    /// No endpoint can be reached. Requests go through: each learns at once that there is nobody.
    Away { since: Instant },
    /// Nothing goes through until `next`; the trial is the request that was let through last, as long as nothing is
    /// known of it.
    Open { next: Instant, wait: Duration, trial: bool },
    /// It answers again.
    Recovering { since: Instant, answers: usize },
}

impl Default for State {
    fn default() -> State {
        State::Closed { row: 0, since: None }
    }
}

impl State {
    fn opened(now: Instant) -> State {
        State::Open { next: now + TRIAL.0, wait: TRIAL.0, trial: false }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The backend said something, an error perhaps.
    Answered,
    /// It was sent, and what came back is no answer.
    Lost,
    /// There was nobody to send it to.
    Unreachable,
}

/// What a request is let through with, if the backend is in doubt. To be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    /// When the next trial would follow, if this is one.
    trial: Instant,
}

/// Why a request is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Nothing came back of late; the next trial is this far off.
    Open(Duration),
    /// It is just coming back.
    Recovering,
}

impl Circuit {
    /// One that is open, and of which the first trial is due.
    #[cfg(test)]
    pub(super) fn opened_before(now: Instant) -> Circuit {
        Circuit(State::Open { next: now, wait: TRIAL.0, trial: false })
    }

    /// Whether nothing is known against the backend.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.0, State::Closed { row: 0, .. })
    }

    /// What an operator is told of it.
    pub(super) fn state(&self, now: Instant) -> metrics::Circuit {
        match self.0 {
            State::Recovering { since, .. } if now.saturating_duration_since(since) < LONGEST => {
                metrics::Circuit::HalfOpen
            }
            State::Closed { .. } | State::Recovering { .. } => metrics::Circuit::Closed,
            State::Open { .. } | State::Away { .. } => metrics::Circuit::Open,
        }
    }

    /// Lets a request through, or not; `running` are under way. What it is let through with is to be given back.
    pub(super) fn pass(&mut self, running: usize, now: Instant) -> Result<Option<Pass>, Held> {
        match &mut self.0 {
            State::Closed { .. } | State::Away { .. } => Ok(None),
            State::Open { next, .. } if now < *next => Err(Held::Open(*next - now)),
            State::Open { next, wait, trial } => {
                (*next, *trial) = (now + *wait, true);
                Ok(Some(Pass { trial: *next }))
            }
            State::Recovering { since, answers } => {
                if *answers >= ENOUGH || now.saturating_duration_since(*since) >= LONGEST {
                    self.0 = State::default();
                    return Ok(None);
                }
                if running < FIRST + *answers { Ok(None) } else { Err(Held::Recovering) }
            }
        }
    }

    /// A request is over, whatever was heard of it before; `sent` if it may have reached the backend. One that was refused
    /// on its way was no trial, and the next is: whoever asks what never gets there must not keep others off. Of one
    /// that was sent and nobody waited for nothing is known: the next need not wait for long.
    pub(super) fn give_back(&mut self, pass: Pass, sent: bool, now: Instant) {
        if let State::Open { next, trial, .. } = &mut self.0
            && *trial
            && *next == pass.trial
        {
            *trial = false;
            *next = if sent { (now + TRIAL.0).min(*next) } else { now };
        }
    }

    /// Hears what became of a request.
    pub(super) fn hear(&mut self, fate: Fate, now: Instant) {
        self.0 = match (self.0, fate) {
            (State::Closed { .. }, Fate::Answered) => State::default(),
            (State::Closed { row, since }, Fate::Lost) => {
                let (row, since) = (row + 1, since.unwrap_or(now));
                if row >= ROW && now.saturating_duration_since(since) >= SUSTAINED {
                    State::opened(now)
                } else {
                    State::Closed { row, since: Some(since) }
                }
            }
            (State::Closed { .. } | State::Recovering { .. }, Fate::Unreachable) => State::Away { since: now },
            // A moment's absence brings no crowd.
            (State::Away { since }, Fate::Answered) if now.saturating_duration_since(since) < SUSTAINED => {
                State::default()
            }
            (State::Away { .. } | State::Open { .. }, Fate::Answered) => State::Recovering { since: now, answers: 0 },
            (State::Open { wait, trial: true, .. }, Fate::Lost) => {
                let wait = (wait * 2).min(TRIAL.1);
                State::Open { next: now + wait, wait, trial: false }
            }
            (State::Recovering { .. }, Fate::Lost) => State::opened(now),
            (State::Recovering { since, answers }, Fate::Answered) => State::Recovering { since, answers: answers + 1 },
            (State::Away { .. }, _) | (State::Open { .. }, Fate::Unreachable | Fate::Lost) => self.0,
        };
    }

    /// A question of our own was answered: a few are let through at once. One trial would not do: whoever takes it may
    /// ask what never reaches the backend, and so keep it closed to everybody else.
    pub(super) fn vouched_for(&mut self, now: Instant) {
        match &mut self.0 {
            State::Open { .. } => self.recover(now),
            State::Away { .. } => self.hear(Fate::Answered, now),
            State::Closed { .. } | State::Recovering { .. } => {}
        }
    }

    /// It was away, and is back.
    pub(super) fn recover(&mut self, now: Instant) {
        self.0 = State::Recovering { since: now, answers: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(circuit.pass(0, at(1000)), Err(Held::Open(Duration::from_secs(1))));
        let mut trials = Vec::new();
        for second in 2..60 {
            if circuit.pass(0, at(second * 1000)).is_ok() {
                assert!(circuit.pass(0, at(second * 1000)).is_err(), "one, not two");
                circuit.hear(Fate::Lost, at(second * 1000));
                trials.push(second);
            }
        }
        assert_eq!(trials, [2, 4, 8, 16, 26, 36, 46, 56]);
        // A trial that nothing is heard of is followed by the next.
        let mut circuit = opened(at(0));
        assert!(circuit.pass(0, at(2000)).is_ok() && circuit.pass(0, at(3000)).is_ok());
        circuit.vouched_for(at(3100));
        assert!(circuit.pass(0, at(3100)).is_ok() && circuit.pass(1, at(3100)).is_ok(), "more than one trial");
        assert_eq!(circuit.state(at(3100)), metrics::Circuit::HalfOpen);
    }

    #[test]
    fn a_trial_that_never_got_there_was_none() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        let take = |circuit: &mut Circuit, millis| circuit.pass(0, at(millis)).unwrap().unwrap();
        for _ in 0..100 {
            let refused = take(&mut circuit, 2000);
            assert!(circuit.pass(0, at(2000)).is_err());
            circuit.give_back(refused, false, at(2000));
        }
        // What was lost late was no trial.
        circuit.hear(Fate::Lost, at(2000));
        let lost = take(&mut circuit, 2000);
        circuit.hear(Fate::Lost, at(2100));
        circuit.give_back(lost, true, at(2100));
        assert_eq!(circuit.pass(0, at(2100)), Err(Held::Open(Duration::from_secs(2))));
        circuit.hear(Fate::Lost, at(2200));
        assert_eq!(circuit.pass(0, at(2200)), Err(Held::Open(Duration::from_millis(1900))));
        // Nobody waited for it to the end, nor may the others for the one that follows.
        for second in [10, 20] {
            let trial = take(&mut circuit, second * 1000);
            circuit.hear(Fate::Lost, at(second * 1000));
            circuit.give_back(trial, true, at(second * 1000));
        }
        let left = take(&mut circuit, 30_000);
        circuit.give_back(left, true, at(30_500));
        assert_eq!(circuit.pass(0, at(30_500)), Err(Held::Open(Duration::from_secs(1))));
        // One that took longer than the wait gives back nothing of the next one's.
        let (slow, next) = (take(&mut circuit, 31_500), take(&mut circuit, 60_000));
        circuit.give_back(slow, false, at(60_001));
        assert!(circuit.pass(0, at(60_001)).is_err());
        circuit.hear(Fate::Answered, at(60_002));
        circuit.give_back(next, true, at(60_002));
        assert_eq!(circuit.state(at(60_002)), metrics::Circuit::HalfOpen);
    }

    #[test]
    fn who_comes_back_gets_as_much_as_it_has_answered() {
        let at = millis(Instant::now());
        let mut circuit = opened(at(0));
        circuit.hear(Fate::Answered, at(2000));
        assert_eq!(circuit.state(at(2000)), metrics::Circuit::HalfOpen);
        assert_eq!(circuit.pass(FIRST - 1, at(2000)), Ok(None));
        assert_eq!(circuit.pass(FIRST, at(2000)), Err(Held::Recovering));
        for _ in 0..100 {
            circuit.hear(Fate::Answered, at(2100));
        }
        assert_eq!(circuit.pass(FIRST + 99, at(2100)), Ok(None));
        assert_eq!(circuit.pass(FIRST + 100, at(2100)), Err(Held::Recovering));
        let mut late = circuit;
        assert!(late.pass(10_000, at(13_000)).is_ok() && late.is_plain());
        for _ in 0..ENOUGH {
            circuit.hear(Fate::Answered, at(2200));
        }
        assert!(circuit.pass(10_000, at(2200)).is_ok() && circuit.is_plain());
        let mut again = opened(at(0));
        again.hear(Fate::Answered, at(2000));
        again.hear(Fate::Lost, at(2001));
        assert_eq!(again.state(at(2001)), metrics::Circuit::Open);
    }

    #[test]
    fn who_is_away_for_long_comes_back_slowly_and_is_asked_meanwhile() {
        let at = millis(Instant::now());
        let mut circuit = Circuit::default();
        circuit.hear(Fate::Unreachable, at(0));
        assert_eq!((circuit.state(at(0)), circuit.pass(1000, at(1))), (metrics::Circuit::Open, Ok(None)));
        circuit.hear(Fate::Unreachable, at(500));
        let mut short = circuit;
        short.hear(Fate::Answered, at(900));
        assert!(short.is_plain());
        circuit.hear(Fate::Answered, at(1100));
        assert_eq!(circuit.pass(1000, at(1100)), Err(Held::Recovering));
    }
}
