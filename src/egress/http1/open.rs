//! The set of HTTP/1.1 connections to one endpoint, and the endpoint's liveness.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::wire::{Closed, Wire};
use crate::egress::channel::Channel;
use crate::egress::silence::{Patience, Silence, Verdict};

/// Liveness timeouts while a request awaits its response.
const AWAITED: Patience =
    Patience { ask: Duration::from_secs(2), doubt: Duration::from_secs(3), end: Duration::from_secs(6) };

/// All open HTTP/1.1 connections to one endpoint.
#[derive(Default)]
pub(in crate::egress) struct Open {
    /// Number of reads on any of the connections.
    heard: Rc<Cell<u64>>,
    wires: RefCell<Vec<Weak<Wire>>>,
    /// Requests that await their response head.
    waiting: Cell<u32>,
    silence: Cell<Option<Silence>>,
    /// Successful probes since the last read, and the number of reads at that time.
    signs: Cell<u32>,
    before: Cell<u64>,
}

/// Counts a request that awaits its response head, until dropped.
pub(in crate::egress) struct Awaiting<'o>(&'o Open);

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Open {
    /// Counts a request that begins to await its response head.
    pub(in crate::egress) fn awaits(&self) -> Awaiting<'_> {
        self.waiting.set(self.waiting.get() + 1);
        Awaiting(self)
    }

    /// The liveness action to take now; none is needed unless a request waits.
    pub(in crate::egress) fn judge(&self, now: Instant) -> Verdict {
        if self.waiting.get() == 0 {
            self.silence.set(None);
            return Verdict::Fine;
        }
        let heard = self.heard.get();
        if self.before.replace(heard) != heard {
            self.signs.set(0);
        }
        // An endpoint that passes its probes and is only slow is probed less and less often: each probe costs a
        // handshake.
        let patience = Patience { ask: AWAITED.ask * (1 << self.signs.get().min(4)), ..AWAITED };
        let mut silence = self.silence.get().unwrap_or_else(|| Silence::new(now));
        // Both counts in one number, so that it changes whenever either does.
        let both = heard << 32 | u64::from(self.signs.get());
        let verdict = silence.judge(both, patience, now);
        self.silence.set(Some(silence));
        verdict
    }

    /// How long nothing was read although a request waits.
    pub(in crate::egress) fn silent_for(&self) -> Duration {
        self.silence.get().map_or(Duration::ZERO, |silence| silence.lasts(Instant::now()))
    }

    /// Records a successful probe.
    pub(in crate::egress) fn hear(&self) {
        self.signs.set(self.signs.get().saturating_add(1));
    }

    /// Adds a connection.
    pub(super) fn enter(&self, stream: Channel) -> Rc<Wire> {
        let wire = Rc::new(Wire::new(stream, self.heard.clone()));
        let mut wires = self.wires.borrow_mut();
        // Closed connections are removed before the list grows.
        if wires.len() == wires.capacity() {
            wires.retain(|wire| wire.strong_count() > 0);
        }
        wires.push(Rc::downgrade(&wire));
        wire
    }

    /// Whether at least `most` connections are open.
    pub(in crate::egress) fn has(&self, most: usize) -> bool {
        let mut wires = self.wires.borrow_mut();
        if wires.len() < most {
            return false;
        }
        wires.retain(|wire| wire.strong_count() > 0);
        wires.len() >= most
    }

    /// Closes all connections; requests that wait on them fail.
    pub(in crate::egress) fn cut(&self) {
        for wire in self.wires.borrow_mut().drain(..).filter_map(|wire| wire.upgrade()) {
            wire.cut(Closed::Unanswered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_is_only_slow_is_asked_less_and_less_often() {
        let (open, start) = (Open::default(), Instant::now());
        let judge = |second: u64| open.judge(start + Duration::from_secs(second));
        assert_eq!(judge(100), Verdict::Fine, "no request waits");
        let _awaiting = open.awaits();
        let mut asked = Vec::new();
        for second in 0..100 {
            if judge(second) == Verdict::Ask {
                asked.push(second);
                open.hear();
            }
        }
        // The probe is noticed a second later.
        assert_eq!(asked, [2, 7, 16, 33, 66, 99]);
        // Reads count as activity, too.
        open.heard.set(open.heard.get() + 1);
        assert_eq!((100..110).find(|second| judge(*second) == Verdict::Ask), Some(102));
        assert_eq!((102..120).find(|second| judge(*second) == Verdict::End), Some(108), "no probe succeeds");
    }
}
