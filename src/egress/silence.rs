//! How long a backend may say nothing while somebody waits for it. Pure; the time is an argument.
//!
//! Slow is not dead: a backend that takes minutes for an answer still says that it is there when it is asked. One that
//! was stopped, or whose machine is gone, does not, and the kernel at the other end goes on taking what we send.

use std::time::{Duration, Instant};

/// Since when nothing is heard, and what was done about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// How often something was heard when it was last looked.
    heard: u64,
    since: Instant,
    asked: Option<Instant>,
}

/// How long is waited before each step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// From the last word to the question whether it still lives.
    pub(super) ask: Duration,
    /// From the question to the doubt.
    pub(super) doubt: Duration,
    /// From the question to the end.
    pub(super) end: Duration,
}

/// What is to be done about a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Fine,
    /// It is to be asked whether it still lives.
    Ask,
    /// It was asked and does not say: nothing new is to go there.
    Doubt,
    /// It is not waited for any longer.
    End,
}

impl Silence {
    pub(super) fn new(now: Instant) -> Silence {
        Silence { heard: 0, since: now, asked: None }
    }

    /// How long it lasts.
    pub(super) fn lasts(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Looks again; `heard` is how often something was heard by now.
    pub(super) fn judge(&mut self, heard: u64, patience: Patience, now: Instant) -> Verdict {
        if heard != self.heard {
            *self = Silence { heard, since: now, asked: None };
            return Verdict::Fine;
        }
        let Some(asked) = self.asked else {
            if now.saturating_duration_since(self.since) < patience.ask {
                return Verdict::Fine;
            }
            self.asked = Some(now);
            return Verdict::Ask;
        };
        match now.saturating_duration_since(asked) {
            waited if waited >= patience.end => Verdict::End,
            waited if waited >= patience.doubt => Verdict::Doubt,
            _ => Verdict::Fine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience =
        Patience { ask: Duration::from_secs(2), doubt: Duration::from_secs(4), end: Duration::from_secs(10) };

    #[test]
    fn who_is_silent_is_asked_doubted_and_given_up_and_one_word_is_enough() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut silence = Silence::new(start);
        let mut verdicts: Vec<Verdict> = (0..14).map(|second| silence.judge(0, PATIENCE, at(second))).collect();
        verdicts.dedup();
        assert_eq!(verdicts, [Verdict::Fine, Verdict::Ask, Verdict::Fine, Verdict::Doubt, Verdict::End]);
        assert_eq!(silence.judge(1, PATIENCE, at(14)), Verdict::Fine);
        assert_eq!(silence.judge(1, PATIENCE, at(15)), Verdict::Fine);
        assert_eq!(silence.judge(1, PATIENCE, at(16)), Verdict::Ask, "a new silence begins with a question");
    }
}
