//! The cached keys of one issuer, and the task that refreshes them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::fetch::Origin;
use super::keys::Keys;
use crate::egress::Dialler;
use crate::observe::metrics::CallHealth;
use crate::process::{Drain, Phase, Published, Publisher};

/// The minimum time between two fetches: tokens with made-up key IDs must not cause load on the issuer.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// Keys are fetched again after this time, so that tokens of a withdrawn key become invalid.
const REFRESH: Duration = Duration::from_secs(600);
/// How long a request waits for a refresh of the keys.
const PATIENCE: Duration = Duration::from_secs(10);

/// The cached keys of an issuer; shared by all threads.
#[derive(Debug)]
pub(super) struct Keyring {
    pub(super) origin: Origin,
    known: Published<Known>,
    wanted: Notify,
}

/// The last good keys, and the state of the last fetch.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) keys: Option<Arc<Keys>>,
    /// The number of fetches.
    asked: u64,
    last: Option<Instant>,
    /// The error of the last fetch.
    pub(super) failure: Option<String>,
}

/// Refreshes a [`Keyring`]; its only writer.
pub(super) struct Keeper {
    ring: Arc<Keyring>,
    publisher: Publisher<Known>,
}

impl Keyring {
    pub(super) fn new(origin: Origin) -> (Arc<Keyring>, Keeper) {
        let (publisher, known) = Published::new(Known::default());
        let ring = Arc::new(Keyring { origin, known, wanted: Notify::new() });
        (ring.clone(), Keeper { ring, publisher })
    }

    pub(super) fn known(&self) -> Arc<Known> {
        self.known.get()
    }

    /// Waits for a fetch after that of `before`, and returns its result. Returns the current keys if a fetch is not
    /// allowed yet or takes too long.
    pub(super) async fn newer(&self, before: &Arc<Known>) -> Arc<Known> {
        let now = self.known.get();
        if now.asked > before.asked {
            return now;
        }
        if before.last.is_some_and(|last| last.elapsed() < PAUSE) {
            return now;
        }
        let mut changes = self.known.clone();
        self.wanted.notify_one();
        let waiting = async {
            loop {
                let now = changes.get();
                if now.asked > before.asked {
                    return now;
                }
                changes.changed().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or(now)
    }
}

impl Keeper {
    pub(super) fn origin(&self) -> &Origin {
        &self.ring.origin
    }

    /// Fetches the keys at once, on request and periodically, until the process ends.
    pub(super) async fn keep(self, dialler: Dialler, health: Arc<CallHealth>, mut drain: Drain) {
        let issuer = self.ring.origin.issuer.clone();
        loop {
            let began = Instant::now();
            let fetched = tokio::select! {
                fetched = self.ring.origin.fetch(&dialler) => fetched,
                () = drain.reached(Phase::Ending) => return,
            };
            let result = fetched.as_ref().map(drop).map_err(String::as_str);
            // Changes are logged below.
            health.record_quietly(&self.ring.origin.discovery.destination, result, began.elapsed());
            let before = self.ring.known();
            let good = fetched.is_ok();
            let mut now = Known { asked: before.asked + 1, last: Some(Instant::now()), failure: None, keys: None };
            match fetched {
                Ok(keys) => {
                    let same = before.keys.as_ref().filter(|known| known.same(&keys)).cloned();
                    if same.is_none() {
                        tracing::info!(issuer, "keys of the issuer fetched");
                    } else if before.failure.is_some() {
                        tracing::info!(issuer, "fetching the issuer's keys succeeds again");
                    }
                    now.keys = Some(same.unwrap_or_else(|| Arc::new(keys)));
                }
                Err(why) => {
                    if before.failure.as_ref() != Some(&why) {
                        let stay = if before.keys.is_some() { "; the last good keys stay in use" } else { "" };
                        tracing::error!(issuer, why, "fetching the issuer's keys failed{stay}");
                    }
                    now.keys = before.keys.clone();
                    now.failure = Some(why);
                }
            }
            self.publisher.publish(Arc::new(now));
            tokio::select! {
                () = drain.reached(Phase::Ending) => return,
                () = async {
                    tokio::time::sleep(PAUSE).await;
                    if good {
                        tokio::select! {
                            () = self.ring.wanted.notified() => {}
                            () = tokio::time::sleep(REFRESH) => {}
                        }
                    }
                } => {}
            }
        }
    }
}
