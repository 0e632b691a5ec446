//! The set of HTTP/1.1 connections to one endpoint, and the endpoint's liveness.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::stream::{Http1CloseReason, Http1Stream};
use crate::egress::dial::maybe_tls_stream::MaybeTlsStream;
use crate::egress::http::liveness::{LivenessAction, LivenessTimeouts, LivenessTracker};

/// Liveness timeouts while a request awaits its response.
const AWAITED_TIMEOUTS: LivenessTimeouts =
    LivenessTimeouts { probe: Duration::from_secs(2), suspect: Duration::from_secs(3), close: Duration::from_secs(6) };

/// All open HTTP/1.1 connections to one endpoint.
#[derive(Default)]
pub(in crate::egress) struct Http1ConnectionSet {
    /// Number of reads on any of the connections.
    activity: Rc<Cell<u64>>,
    streams: RefCell<Vec<Weak<Http1Stream>>>,
    /// Requests that await their response head.
    awaited_responses: Cell<u32>,
    liveness: Cell<Option<LivenessTracker>>,
    /// Successful probes since the last read, and the number of reads at that time.
    liveness_signs: Cell<u32>,
    seen_activity: Cell<u64>,
}

/// Counts a request that awaits its response head, until dropped.
pub(in crate::egress) struct AwaitedResponse<'o>(&'o Http1ConnectionSet);

impl Drop for AwaitedResponse<'_> {
    fn drop(&mut self) {
        self.0.awaited_responses.set(self.0.awaited_responses.get() - 1);
    }
}

impl Http1ConnectionSet {
    /// Counts a request that begins to await its response head.
    pub(in crate::egress) fn begin_wait(&self) -> AwaitedResponse<'_> {
        self.awaited_responses.set(self.awaited_responses.get() + 1);
        AwaitedResponse(self)
    }

    /// The liveness action to take now; none is needed unless a request waits.
    pub(in crate::egress) fn check_liveness(&self, now: Instant) -> LivenessAction {
        if self.awaited_responses.get() == 0 {
            self.liveness.set(None);
            return LivenessAction::Healthy;
        }
        let activity = self.activity.get();
        if self.seen_activity.replace(activity) != activity {
            self.liveness_signs.set(0);
        }
        // An endpoint that passes its probes and is only slow is probed less and less often: each probe costs a
        // handshake.
        let patience = LivenessTimeouts {
            probe: AWAITED_TIMEOUTS.probe * (1 << self.liveness_signs.get().min(4)),
            ..AWAITED_TIMEOUTS
        };
        let mut silence = self.liveness.get().unwrap_or_else(|| LivenessTracker::new(now));
        // Both counts in one number, so that it changes whenever either does.
        let both = activity << 32 | u64::from(self.liveness_signs.get());
        let verdict = silence.observe(both, patience, now);
        self.liveness.set(Some(silence));
        verdict
    }

    /// How long nothing was read although a request waits.
    pub(in crate::egress) fn unresponsive_for(&self) -> Duration {
        self.liveness.get().map_or(Duration::ZERO, |silence| silence.duration(Instant::now()))
    }

    /// Records a successful probe.
    pub(in crate::egress) fn record_liveness_sign(&self) {
        self.liveness_signs.set(self.liveness_signs.get().saturating_add(1));
    }

    /// Adds a connection.
    pub(super) fn add(&self, stream: MaybeTlsStream) -> Rc<Http1Stream> {
        let wire = Rc::new(Http1Stream::new(stream, self.activity.clone()));
        let mut wires = self.streams.borrow_mut();
        // Closed connections are removed before the list grows.
        if wires.len() == wires.capacity() {
            wires.retain(|wire| wire.strong_count() > 0);
        }
        wires.push(Rc::downgrade(&wire));
        wire
    }

    /// Whether at least `count` connections are open.
    pub(in crate::egress) fn has_at_least(&self, count: usize) -> bool {
        let mut wires = self.streams.borrow_mut();
        if wires.len() < count {
            return false;
        }
        wires.retain(|wire| wire.strong_count() > 0);
        wires.len() >= count
    }

    /// Closes all connections; requests that wait on them fail.
    pub(in crate::egress) fn abort_all(&self) {
        for wire in self.streams.borrow_mut().drain(..).filter_map(|wire| wire.upgrade()) {
            wire.abort(Http1CloseReason::EndpointUnresponsive);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http1_liveness_probes_back_off_while_endpoint_is_slow() {
        let (open, start) = (Http1ConnectionSet::default(), Instant::now());
        let judge = |second: u64| open.check_liveness(start + Duration::from_secs(second));
        assert_eq!(judge(100), LivenessAction::Healthy, "no request waits");
        let _awaiting = open.begin_wait();
        let mut asked = Vec::new();
        for second in 0..100 {
            if judge(second) == LivenessAction::Probe {
                asked.push(second);
                open.record_liveness_sign();
            }
        }
        // The probe is noticed a second later.
        assert_eq!(asked, [2, 7, 16, 33, 66, 99]);
        // Reads count as activity, too.
        open.activity.set(open.activity.get() + 1);
        assert_eq!((100..110).find(|second| judge(*second) == LivenessAction::Probe), Some(102));
        assert_eq!((102..120).find(|second| judge(*second) == LivenessAction::Close), Some(108), "no probe succeeds");
    }
}
