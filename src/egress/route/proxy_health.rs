//! Health of the proxies of a selection, shared by all threads.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::egress::proxy_fault::ProxyFault;
use crate::observe::metrics::CallHealth;

/// Health of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyState {
    /// Not used yet.
    #[default]
    Untried,
    /// The last dial succeeded, or failed for a reason that may lie with the destination.
    Healthy,
    /// Dials through the proxy fail.
    Failing {
        /// Kind of failure.
        fault: ProxyFault,
        /// Detailed cause, for the operator.
        cause: String,
        /// Time of the first failure.
        since: SystemTime,
    },
}

/// Consecutive timeouts after which a healthy proxy counts as failing: a single one may be the destination's.
const TIMEOUTS_TO_FAIL: u32 = 3;

/// Health of all proxies of a selection, in their order.
pub(in crate::egress) struct ProxyHealth {
    /// Index of the proxy that connected last.
    preferred: AtomicUsize,
    records: Box<[Mutex<TrackedProxy>]>,
    call_health: Box<[OnceLock<Arc<CallHealth>>]>,
}

#[derive(Default)]
struct TrackedProxy {
    state: ProxyState,
    /// Number of consecutive timeouts, and when the first one occurred.
    timeouts: Option<(u32, SystemTime)>,
}

/// Change of a proxy's health by one dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::egress) enum ProxyHealthChange {
    /// No change.
    Unchanged,
    /// The proxy became failing.
    Failed,
    /// The proxy recovered.
    Recovered,
}

impl ProxyHealth {
    pub(in crate::egress) fn new(proxies: usize) -> ProxyHealth {
        ProxyHealth {
            preferred: AtomicUsize::new(0),
            records: (0..proxies).map(|_| Mutex::default()).collect(),
            call_health: (0..proxies).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Indexes of the proxies in the order to try them: the one that connected last, those after it, those before it.
    pub(in crate::egress) fn in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.records.len();
        let first = self.preferred.load(Relaxed).min(count);
        (first..count).chain(0..first)
    }

    /// Records that proxy `number` connected; returns whether another one was preferred.
    pub(in crate::egress) fn set_preferred(&self, number: usize) -> bool {
        self.preferred.swap(number, Relaxed) != number
    }

    /// Records the result of a dial through proxy `number`. A fault that may be the destination's counts only until the
    /// proxy has succeeded once; otherwise one dead destination of many would be logged each time. Timeouts count when
    /// consecutive.
    pub(in crate::egress) fn record(&self, number: usize, fault: Option<(ProxyFault, &str)>) -> ProxyHealthChange {
        let Some(entry) = self.records.get(number) else { return ProxyHealthChange::Unchanged };
        let mut record = entry.lock();
        let mut since = SystemTime::now();
        record.timeouts = match (fault, record.timeouts) {
            (Some((ProxyFault::TimedOut, _)), None) => Some((1, since)),
            (Some((ProxyFault::TimedOut, _)), Some((times, first))) => {
                since = first;
                Some((times.saturating_add(1), first))
            }
            _ => None,
        };
        let silent = record.timeouts.is_some_and(|(times, _)| times >= TIMEOUTS_TO_FAIL);
        match (fault, &mut record.state) {
            (None, ProxyState::Healthy) => ProxyHealthChange::Unchanged,
            (Some((fault, _)), ProxyState::Healthy) if !fault.is_destination_independent() && !silent => {
                ProxyHealthChange::Unchanged
            }
            (None, before) => {
                let failed = matches!(before, ProxyState::Failing { .. });
                *before = ProxyState::Healthy;
                if failed { ProxyHealthChange::Recovered } else { ProxyHealthChange::Unchanged }
            }
            (Some((now, why)), ProxyState::Failing { fault, cause, .. }) => {
                if *fault != now {
                    (*fault, *cause) = (now, why.to_owned());
                }
                ProxyHealthChange::Unchanged
            }
            (Some((fault, cause)), before) => {
                *before = ProxyState::Failing { fault, cause: cause.to_owned(), since };
                ProxyHealthChange::Failed
            }
        }
    }

    /// Call metrics of proxy `number`, which must exist; registered by the first call.
    pub(in crate::egress) fn call_health(
        &self,
        number: usize,
        register: impl FnOnce() -> Arc<CallHealth>,
    ) -> &Arc<CallHealth> {
        self.call_health[number].get_or_init(register)
    }

    pub(in crate::egress) fn state(&self, number: usize) -> ProxyState {
        self.records.get(number).map(|record| record.lock().state.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_health_fails_after_consecutive_timeouts() {
        let health = ProxyHealth::new(1);
        let late = Some((ProxyFault::TimedOut, "no answer within 8s"));
        assert_eq!(health.record(0, None), ProxyHealthChange::Unchanged);
        for answer in [None, Some((ProxyFault::HostUnreachable, "one of many"))] {
            assert_eq!([late, late, answer].map(|it| health.record(0, it)), [ProxyHealthChange::Unchanged; 3]);
            assert_eq!(health.state(0), ProxyState::Healthy);
        }
        let before = SystemTime::now();
        assert_eq!(
            [late, late, late, late].map(|it| health.record(0, it)),
            [
                ProxyHealthChange::Unchanged,
                ProxyHealthChange::Unchanged,
                ProxyHealthChange::Failed,
                ProxyHealthChange::Unchanged
            ]
        );
        let ProxyState::Failing { fault: ProxyFault::TimedOut, since, .. } = health.state(0) else {
            panic!("it is silent")
        };
        assert!(before <= since && since <= SystemTime::now());
        assert_eq!((health.record(0, None), health.state(0)), (ProxyHealthChange::Recovered, ProxyState::Healthy));
    }

    #[test]
    fn proxy_health_prefers_last_working_and_reports_changes_once() {
        let health = ProxyHealth::new(3);
        let order = || health.in_order().collect::<Vec<_>>();
        assert_eq!(order(), [0, 1, 2]);
        assert!(health.set_preferred(1) && !health.set_preferred(1));
        assert_eq!(order(), [1, 2, 0]);
        let fault = Some((ProxyFault::Unreachable, "gone"));
        assert_eq!(health.record(1, fault), ProxyHealthChange::Failed);
        assert_eq!(health.record(1, fault), ProxyHealthChange::Unchanged);
        assert!(matches!(health.state(1), ProxyState::Failing { cause, .. } if cause == "gone"));
        assert_eq!(health.record(1, Some((ProxyFault::InvalidResponse, "odd"))), ProxyHealthChange::Unchanged);
        assert!(matches!(health.state(1), ProxyState::Failing { fault: ProxyFault::InvalidResponse, .. }));
        assert_eq!(
            (health.record(1, None), health.record(1, None)),
            (ProxyHealthChange::Recovered, ProxyHealthChange::Unchanged)
        );
        assert_eq!(health.record(1, Some((ProxyFault::HostUnreachable, "one of many"))), ProxyHealthChange::Unchanged);
        assert_eq!(health.state(1), ProxyState::Healthy);
        assert_eq!(
            (health.record(0, None), health.state(0), health.state(2)),
            (ProxyHealthChange::Unchanged, ProxyState::Healthy, ProxyState::Untried)
        );
    }
}
