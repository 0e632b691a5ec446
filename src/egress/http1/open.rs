//! All HTTP/1.1 connections to one endpoint, and whether it still lives.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::wire::{Closed, Wire};
use crate::egress::channel::Channel;
use crate::egress::silence::{Patience, Silence, Verdict};

/// While a request waits for its answer.
const AWAITED: Patience =
    Patience { ask: Duration::from_secs(2), doubt: Duration::from_secs(3), end: Duration::from_secs(6) };

/// All HTTP/1.1 connections to one endpoint, as long as they last.
#[derive(Default)]
pub(in crate::egress) struct Open {
    /// How often bytes came on any of them, or an end.
    heard: Rc<Cell<u64>>,
    wires: RefCell<Vec<Weak<Wire>>>,
    /// Requests that wait for the head of their answer.
    waiting: Cell<u32>,
    silence: Cell<Option<Silence>>,
    /// Signs of life that came some other way since bytes were last heard, and how often they had been by then.
    signs: Cell<u32>,
    before: Cell<u64>,
}

/// A request that waits for the head of its answer, until dropped.
pub(in crate::egress) struct Awaiting<'o>(&'o Open);

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Open {
    /// A request begins to wait.
    pub(in crate::egress) fn awaits(&self) -> Awaiting<'_> {
        self.waiting.set(self.waiting.get() + 1);
        Awaiting(self)
    }

    /// What to do when nothing comes on any connection although a request waits.
    pub(in crate::egress) fn judge(&self, now: Instant) -> Verdict {
        if self.waiting.get() == 0 {
            self.silence.set(None);
            return Verdict::Fine;
        }
        let heard = self.heard.get();
        if self.before.replace(heard) != heard {
            self.signs.set(0);
        }
        // One that says again and again that it lives, and is only slow, is asked less and less often: it costs a
        // handshake each time.
        let patience = Patience { ask: AWAITED.ask * (1 << self.signs.get().min(4)), ..AWAITED };
        let mut silence = self.silence.get().unwrap_or_else(|| Silence::new(now));
        // Of both together, so that it is another whenever either is.
        let both = heard << 32 | u64::from(self.signs.get());
        let verdict = silence.judge(both, patience, now);
        self.silence.set(Some(silence));
        verdict
    }

    /// How long nothing has come although a request waits.
    pub(in crate::egress) fn silent_for(&self) -> Duration {
        self.silence.get().map_or(Duration::ZERO, |silence| silence.lasts(Instant::now()))
    }

    /// A sign of life that came some other way.
    pub(in crate::egress) fn hear(&self) {
        self.signs.set(self.signs.get().saturating_add(1));
    }

    /// One more.
    pub(super) fn enter(&self, stream: Channel) -> Rc<Wire> {
        let wire = Rc::new(Wire::new(stream, self.heard.clone()));
        let mut wires = self.wires.borrow_mut();
        // Those that ended go before there is no more room for others.
        if wires.len() == wires.capacity() {
            wires.retain(|wire| wire.strong_count() > 0);
        }
        wires.push(Rc::downgrade(&wire));
        wire
    }

    /// Whether there are `most` or more.
    pub(in crate::egress) fn has(&self, most: usize) -> bool {
        let mut wires = self.wires.borrow_mut();
        if wires.len() < most {
            return false;
        }
        wires.retain(|wire| wire.strong_count() > 0);
        wires.len() >= most
    }

    /// Ends them all; whoever waits for an answer on one of them waits no longer.
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
        assert_eq!(judge(100), Verdict::Fine, "nobody waits");
        let _awaiting = open.awaits();
        let mut asked = Vec::new();
        for second in 0..100 {
            if judge(second) == Verdict::Ask {
                asked.push(second);
                open.hear();
            }
        }
        // The sign is seen a second later.
        assert_eq!(asked, [2, 7, 16, 33, 66, 99]);
        // Bytes that come just as a sign did are life, too.
        open.heard.set(open.heard.get() + 1);
        assert_eq!((100..110).find(|second| judge(*second) == Verdict::Ask), Some(102));
        assert_eq!((102..120).find(|second| judge(*second) == Verdict::End), Some(108), "one who does not say so");
    }
}
