//! Liveness of a backend that is silent while a request waits. No I/O; the time is an argument.
//!
//! Slow is not dead: a backend that needs minutes for a response still answers a probe. A stopped process or a lost
//! machine does not, while the kernel on the other side may go on accepting data.

use std::time::{Duration, Instant};

/// Since when there is no activity, and when a probe was sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::egress) struct LivenessTracker {
    /// Activity count at the last update.
    activity: u64,
    since: Instant,
    probed: Option<Instant>,
}

/// Delay before each liveness action.
#[derive(Clone, Copy, Debug)]
pub(in crate::egress) struct LivenessTimeouts {
    /// From the last activity to the probe.
    pub(in crate::egress) probe: Duration,
    /// From the probe to suspecting the backend.
    pub(in crate::egress) suspect: Duration,
    /// From the probe to closing the connection.
    pub(in crate::egress) close: Duration,
}

/// Action to take on a silent connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::egress) enum LivenessAction {
    /// None.
    Healthy,
    /// Send a probe.
    Probe,
    /// The probe is unanswered: send no new requests.
    Suspect,
    /// Stop waiting and close.
    Close,
}

impl LivenessTracker {
    pub(in crate::egress) fn new(now: Instant) -> LivenessTracker {
        LivenessTracker { activity: 0, since: now, probed: None }
    }

    /// Duration of the silence.
    pub(in crate::egress) fn duration(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Updates the state with the current activity count and returns the action to take.
    pub(in crate::egress) fn observe(
        &mut self,
        activity: u64,
        patience: LivenessTimeouts,
        now: Instant,
    ) -> LivenessAction {
        if activity != self.activity {
            *self = LivenessTracker { activity, since: now, probed: None };
            return LivenessAction::Healthy;
        }
        let Some(asked) = self.probed else {
            if now.saturating_duration_since(self.since) < patience.probe {
                return LivenessAction::Healthy;
            }
            self.probed = Some(now);
            return LivenessAction::Probe;
        };
        match now.saturating_duration_since(asked) {
            waited if waited >= patience.close => LivenessAction::Close,
            waited if waited >= patience.suspect => LivenessAction::Suspect,
            _ => LivenessAction::Healthy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: LivenessTimeouts = LivenessTimeouts {
        probe: Duration::from_secs(2),
        suspect: Duration::from_secs(4),
        close: Duration::from_secs(10),
    };

    #[test]
    fn liveness_probes_suspects_and_closes_until_activity() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut silence = LivenessTracker::new(start);
        let mut verdicts: Vec<LivenessAction> =
            (0..14).map(|second| silence.observe(0, PATIENCE, at(second))).collect();
        verdicts.dedup();
        assert_eq!(
            verdicts,
            [
                LivenessAction::Healthy,
                LivenessAction::Probe,
                LivenessAction::Healthy,
                LivenessAction::Suspect,
                LivenessAction::Close
            ]
        );
        assert_eq!(silence.observe(1, PATIENCE, at(14)), LivenessAction::Healthy);
        assert_eq!(silence.observe(1, PATIENCE, at(15)), LivenessAction::Healthy);
        assert_eq!(silence.observe(1, PATIENCE, at(16)), LivenessAction::Probe, "a new silence begins with a question");
    }
}
