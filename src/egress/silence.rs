//! Liveness of a backend that is silent while a request waits. No I/O; the time is an argument.
//!
//! Slow is not dead: a backend that needs minutes for a response still answers a probe. A stopped process or a lost
//! machine does not, while the kernel on the other side may go on accepting data.

use std::time::{Duration, Instant};

/// Since when there is no activity, and when a probe was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// Activity count at the last update.
    heard: u64,
    since: Instant,
    asked: Option<Instant>,
}

/// Delay before each liveness action.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// From the last activity to the probe.
    pub(super) ask: Duration,
    /// From the probe to suspecting the backend.
    pub(super) doubt: Duration,
    /// From the probe to closing the connection.
    pub(super) end: Duration,
}

/// Action to take on a silent connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// None.
    Fine,
    /// Send a probe.
    Ask,
    /// The probe is unanswered: send no new requests.
    Doubt,
    /// Stop waiting and close.
    End,
}

impl Silence {
    pub(super) fn new(now: Instant) -> Silence {
        Silence { heard: 0, since: now, asked: None }
    }

    /// Duration of the silence.
    pub(super) fn lasts(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Updates the state with the current activity count and returns the action to take.
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
