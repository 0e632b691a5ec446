//! Health of the proxies of a selection, shared by all threads.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;

use super::proxy_fault::ProxyFault;
use crate::observe::metrics::CallHealth;

/// Health of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyState {
    /// Not used yet.
    #[default]
    Untried,
    /// Its last dial succeeded, or failed for a reason that may lie with the destination.
    Serves,
    /// It fails.
    Fails {
        /// Kind of failure.
        fault: ProxyFault,
        /// Detailed cause, for the operator.
        cause: String,
        /// Time of the first failure.
        since: SystemTime,
    },
}

/// Consecutive timeouts after which a healthy proxy counts as failing: a single one may be the destination's.
const SILENT: u32 = 3;

/// Health of all proxies of a selection, in their order.
pub(super) struct Health {
    /// Index of the proxy that connected last.
    preferred: AtomicUsize,
    each: Box<[Mutex<Known>]>,
    calls: Box<[OnceLock<Arc<CallHealth>>]>,
}

#[derive(Default)]
struct Known {
    state: ProxyState,
    /// Number of consecutive timeouts, and when the first one occurred.
    silence: Option<(u32, SystemTime)>,
}

/// Change of a proxy's health by one dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// No change.
    Nothing,
    /// It became failing.
    Fails,
    /// It recovered.
    Recovers,
}

impl Health {
    pub(super) fn of(proxies: usize) -> Health {
        Health {
            preferred: AtomicUsize::new(0),
            each: (0..proxies).map(|_| Mutex::default()).collect(),
            calls: (0..proxies).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Indexes of the proxies in the order to try them: the one that connected last, those after it, those before it.
    pub(super) fn in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.each.len();
        let first = self.preferred.load(Relaxed).min(count);
        (first..count).chain(0..first)
    }

    /// Records that proxy `number` connected; returns whether another one was preferred.
    pub(super) fn prefer(&self, number: usize) -> bool {
        self.preferred.swap(number, Relaxed) != number
    }

    /// Records the result of a dial through proxy `number`. A fault that may be the destination's counts only until the
    /// proxy has succeeded once; otherwise one dead destination of many would be logged each time. Timeouts count when
    /// consecutive.
    pub(super) fn hear(&self, number: usize, fault: Option<(ProxyFault, &str)>) -> News {
        let Some(known) = self.each.get(number) else { return News::Nothing };
        let mut known = known.lock();
        let mut since = SystemTime::now();
        known.silence = match (fault, known.silence) {
            (Some((ProxyFault::TimedOut, _)), None) => Some((1, since)),
            (Some((ProxyFault::TimedOut, _)), Some((times, first))) => {
                since = first;
                Some((times.saturating_add(1), first))
            }
            _ => None,
        };
        let silent = known.silence.is_some_and(|(times, _)| times >= SILENT);
        match (fault, &mut known.state) {
            (None, ProxyState::Serves) => News::Nothing,
            (Some((fault, _)), ProxyState::Serves) if !fault.is_for_all() && !silent => News::Nothing,
            (None, before) => {
                let failed = matches!(before, ProxyState::Fails { .. });
                *before = ProxyState::Serves;
                if failed { News::Recovers } else { News::Nothing }
            }
            (Some((now, why)), ProxyState::Fails { fault, cause, .. }) => {
                if *fault != now {
                    (*fault, *cause) = (now, why.to_owned());
                }
                News::Nothing
            }
            (Some((fault, cause)), before) => {
                *before = ProxyState::Fails { fault, cause: cause.to_owned(), since };
                News::Fails
            }
        }
    }

    /// Call metrics of proxy `number`, which must exist; registered by the first call.
    pub(super) fn calls(&self, number: usize, register: impl FnOnce() -> Arc<CallHealth>) -> &Arc<CallHealth> {
        self.calls[number].get_or_init(register)
    }

    pub(super) fn state(&self, number: usize) -> ProxyState {
        self.each.get(number).map(|known| known.lock().state.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_news_when_it_lasts_and_any_answer_ends_it() {
        let health = Health::of(1);
        let late = Some((ProxyFault::TimedOut, "no answer within 8s"));
        assert_eq!(health.hear(0, None), News::Nothing);
        for answer in [None, Some((ProxyFault::HostUnreachable, "one of many"))] {
            assert_eq!([late, late, answer].map(|it| health.hear(0, it)), [News::Nothing; 3]);
            assert_eq!(health.state(0), ProxyState::Serves);
        }
        let before = SystemTime::now();
        assert_eq!(
            [late, late, late, late].map(|it| health.hear(0, it)),
            [News::Nothing, News::Nothing, News::Fails, News::Nothing]
        );
        let ProxyState::Fails { fault: ProxyFault::TimedOut, since, .. } = health.state(0) else {
            panic!("it is silent")
        };
        assert!(before <= since && since <= SystemTime::now());
        assert_eq!((health.hear(0, None), health.state(0)), (News::Recovers, ProxyState::Serves));
    }

    #[test]
    fn the_one_that_served_last_comes_first_and_changes_are_news_once() {
        let health = Health::of(3);
        let order = || health.in_order().collect::<Vec<_>>();
        assert_eq!(order(), [0, 1, 2]);
        assert!(health.prefer(1) && !health.prefer(1));
        assert_eq!(order(), [1, 2, 0]);
        let fault = Some((ProxyFault::Unreachable, "gone"));
        assert_eq!(health.hear(1, fault), News::Fails);
        assert_eq!(health.hear(1, fault), News::Nothing);
        assert!(matches!(health.state(1), ProxyState::Fails { cause, .. } if cause == "gone"));
        assert_eq!(health.hear(1, Some((ProxyFault::Nonsense, "odd"))), News::Nothing);
        assert!(matches!(health.state(1), ProxyState::Fails { fault: ProxyFault::Nonsense, .. }));
        assert_eq!((health.hear(1, None), health.hear(1, None)), (News::Recovers, News::Nothing));
        assert_eq!(health.hear(1, Some((ProxyFault::HostUnreachable, "one of many"))), News::Nothing);
        assert_eq!(health.state(1), ProxyState::Serves);
        assert_eq!(
            (health.hear(0, None), health.state(0), health.state(2)),
            (News::Nothing, ProxyState::Serves, ProxyState::Untried)
        );
    }
}
