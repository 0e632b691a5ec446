//! The keys of one issuer as they are known now, and the task that keeps them so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::fetch::Origin;
use super::keys::Keys;
use crate::egress::Dialler;
use crate::observe::metrics::CallHealth;
use crate::process::{Drain, Phase, Published, Publisher};

/// The least time between two fetches, whoever asks: tokens with made-up key names must not make us a weapon
/// against the issuer.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// Keys that nobody asked about are fetched anew after this time, so that one that was withdrawn loses its worth.
const REFRESH: Duration = Duration::from_secs(600);
/// How long a request waits for keys that may be newer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is known of an issuer's keys; shared by all threads.
#[derive(Debug)]
pub(super) struct Keyring {
    pub(super) origin: Origin,
    known: Published<Known>,
    wanted: Notify,
}

/// The last good keys, and when they were last asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) keys: Option<Arc<Keys>>,
    /// How often they were asked for.
    asked: u64,
    last: Option<Instant>,
    /// Why the last time brought nothing.
    pub(super) failure: Option<String>,
}

/// The one who may change a [`Keyring`].
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

    /// What is known after another fetch than that of `before`; the same again if it is too early for one, or if
    /// it takes too long.
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

    /// Fetches the keys now, when somebody wants newer ones, and every few minutes, until the process ends.
    pub(super) async fn keep(self, dialler: Dialler, health: Arc<CallHealth>, mut drain: Drain) {
        let issuer = self.ring.origin.issuer.clone();
        loop {
            let began = Instant::now();
            let fetched = tokio::select! {
                fetched = self.ring.origin.fetch(&dialler) => fetched,
                () = drain.reached(Phase::Ending) => return,
            };
            let result = fetched.as_ref().map(drop).map_err(String::as_str);
            // A change is told below.
            health.record_quietly(&self.ring.origin.discovery.destination, result, began.elapsed());
            let before = self.ring.known();
            let good = fetched.is_ok();
            let mut now = Known { asked: before.asked + 1, last: Some(Instant::now()), failure: None, keys: None };
            match fetched {
                Ok(keys) => {
                    let same = before.keys.as_ref().filter(|known| known.same(&keys)).cloned();
                    if same.is_none() {
                        tracing::info!(issuer, "keys of the issuer read");
                    } else if before.failure.is_some() {
                        tracing::info!(issuer, "the issuer's keys can be read again");
                    }
                    now.keys = Some(same.unwrap_or_else(|| Arc::new(keys)));
                }
                Err(why) => {
                    if before.failure.as_ref() != Some(&why) {
                        let stay = if before.keys.is_some() { "; the last good ones stay" } else { "" };
                        tracing::error!(issuer, why, "the issuer's keys cannot be read{stay}");
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
