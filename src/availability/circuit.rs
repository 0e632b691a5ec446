//! The circuit of an APIService: open while its requests get no answer, whoever asks.
//!
//! Pure; the time is an argument. It opens on requests that were sent and got nothing that is an answer, many in a
//! row and for a while: never on errors that a backend answers with, and never because it is slow. While it is open,
//! one request at a time is let through to see. When there is an answer again, as many requests may be under way as
//! have been answered since, and a few more each second: whoever waited for a backend to come back must not end it by
//! coming. No user takes what is left to the others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::observe::metrics;

/// Requests in a row without an answer that open it,
const ROW: u32 = 10;
/// if that has been so for this long: what was under way to a backend that died falls all at once.
const SUSTAINED: Duration = Duration::from_secs(1);
/// How long after it opened the first request is let through, and how long it ever takes until the next.
const TRIAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// What may be under way besides what was answered, in the first second; each further one brings as many.
const FIRST: usize = 32;
/// After so many answers, or so much time, nothing is held back any more.
const ENOUGH: usize = 500;
const LONGEST: Duration = Duration::from_secs(10);

/// One APIService's circuit.
#[derive(Clone, Debug, Default)]
pub(super) struct Circuit {
    state: State,
    losses: Losses,
    crowd: Crowd,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Requests go through.
    #[default]
    Closed,
    /// No endpoint can be reached. Requests go through: each learns at once that there is nobody.
    Away { since: Instant },
    /// Nothing goes through until `next`; the trial is the request that was let through last, as long as nothing is
    /// known of it.
    Open { next: Instant, wait: Duration, trial: bool },
    /// It answers again.
    Recovering { since: Instant, answers: usize },
}

/// Requests in a row that got no answer.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    row: u32,
    since: Option<Instant>,
}

/// Requests that were let through to a backend in doubt, long-running ones too, until their answer begins.
#[derive(Clone, Debug, Default)]
struct Crowd {
    all: usize,
    by_user: HashMap<u16, usize>,
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
    user: u16,
    /// When the next trial would follow, if this is one.
    trial: Option<Instant>,
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
        Circuit { state: State::Open { next: now, wait: TRIAL.0, trial: false }, ..Circuit::default() }
    }

    /// Whether nothing is known against the backend.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.state, State::Closed) && self.losses.row == 0
    }

    /// Whether requests get no answer now.
    pub(super) fn is_against(&self) -> bool {
        matches!(self.state, State::Open { .. } | State::Away { .. })
    }

    /// What an operator is told of it.
    pub(super) fn state(&self, now: Instant) -> metrics::Circuit {
        match self.state {
            State::Recovering { since, .. } if now.saturating_duration_since(since) < LONGEST => {
                metrics::Circuit::HalfOpen
            }
            State::Closed | State::Recovering { .. } => metrics::Circuit::Closed,
            State::Open { .. } | State::Away { .. } => metrics::Circuit::Open,
        }
    }

    /// Lets a request of this user through, or not. What it is let through with is to be given back.
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

    /// A request is over, or its answer has begun, whatever was heard of it before; `sent` if it may have reached the
    /// backend. One that was refused on its way was no trial, and the next is: whoever asks what never gets there must
    /// not keep others off. Of one that was sent and nobody waited for nothing is known: the next need not wait for long.
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

    /// Hears what became of a request.
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
            // A moment's absence brings no crowd.
            (State::Away { since }, Fate::Answered) if now.saturating_duration_since(since) < SUSTAINED => {
                State::Closed
            }
            (State::Away { .. } | State::Open { .. }, Fate::Answered) => State::Recovering { since: now, answers: 0 },
            (State::Recovering { since, answers }, Fate::Answered) => State::Recovering { since, answers: answers + 1 },
            (state, _) => state,
        };
    }

    /// A question of our own was answered: a few are let through at once. One trial would not do: whoever takes it may
    /// ask what never reaches the backend, and so keep it closed to everybody else.
    pub(super) fn vouched_for(&mut self, now: Instant) {
        match &mut self.state {
            State::Open { .. } => self.recover(now),
            State::Away { .. } => self.hear(Fate::Answered, now),
            State::Closed | State::Recovering { .. } => {}
        }
    }

    /// It was away, and is back.
    pub(super) fn recover(&mut self, now: Instant) {
        self.losses = Losses::default();
        self.state = State::Recovering { since: now, answers: 0 };
    }
}

impl Losses {
    /// One more; true if that is enough.
    fn add(&mut self, now: Instant) -> bool {
        self.row = self.row.saturating_add(1);
        let since = *self.since.get_or_insert(now);
        self.row >= ROW && now.saturating_duration_since(since) >= SUSTAINED
    }
}

impl Crowd {
    /// Whether one more of this user may come, where there is room for so many: as long as they are fewer than what is
    /// left to the others.
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
        // A trial that nothing is heard of is followed by the next.
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
        // What was lost late was no trial.
        circuit.hear(Fate::Lost, at(2000));
        let lost = take(&mut circuit, 2000);
        circuit.hear(Fate::Lost, at(2100));
        circuit.give_back(lost, true, at(2100));
        assert_eq!(circuit.pass(one, at(2100)), Err(Held::Open(Duration::from_secs(2))));
        circuit.hear(Fate::Lost, at(2200));
        assert_eq!(circuit.pass(one, at(2200)), Err(Held::Open(Duration::from_millis(1900))));
        // Nobody waited for it to the end, nor may the others for the one that follows.
        for second in [10, 20] {
            let trial = take(&mut circuit, second * 1000);
            circuit.hear(Fate::Lost, at(second * 1000));
            circuit.give_back(trial, true, at(second * 1000));
        }
        let left = take(&mut circuit, 30_000);
        circuit.give_back(left, true, at(30_500));
        assert_eq!(circuit.pass(one, at(30_500)), Err(Held::Open(Duration::from_secs(1))));
        // One that took longer than the wait gives back nothing of the next one's.
        let (slow, next) = (take(&mut circuit, 31_500), take(&mut circuit, 60_000));
        circuit.give_back(slow, false, at(60_001));
        assert!(circuit.pass(one, at(60_001)).is_err());
        circuit.hear(Fate::Answered, at(60_002));
        circuit.give_back(next, true, at(60_002));
        assert_eq!(circuit.state(at(60_002)), metrics::Circuit::HalfOpen);
    }

    /// How many come in, each another user's.
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
        // Whoever waits for an answer that does not come holds nobody off for long.
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
        // Nobody there is another matter.
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
