//! The cached keys of one issuer, and the task that refreshes them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::fetch::JwksSource;
use super::jwks::Jwks;
use crate::egress::Dialer;
use crate::observe::metrics::CallHealth;
use crate::process::{Drain, Published, Publisher, ShutdownPhase};

/// The minimum time between two fetches: tokens with made-up key IDs must not cause load on the issuer.
pub(super) const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(5);
/// Keys are fetched again after this time, so that tokens of a withdrawn key become invalid.
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);
/// How long a request waits for a refresh of the keys.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The cached keys of an issuer; shared by all threads.
#[derive(Debug)]
pub(super) struct JwksCache {
    pub(super) source: JwksSource,
    snapshot: Published<JwksSnapshot>,
    refresh_requested: Notify,
}

/// The last good keys, and the state of the last fetch.
#[derive(Clone, Debug, Default)]
pub(super) struct JwksSnapshot {
    pub(super) keys: Option<Arc<Jwks>>,
    /// The number of fetches.
    fetches: u64,
    last_fetch: Option<Instant>,
    /// The error of the last fetch.
    pub(super) failure: Option<String>,
}

/// Refreshes a [`JwksCache`]; its only writer.
pub(super) struct JwksRefresher {
    cache: Arc<JwksCache>,
    publisher: Publisher<JwksSnapshot>,
}

impl JwksCache {
    pub(super) fn new(origin: JwksSource) -> (Arc<JwksCache>, JwksRefresher) {
        let (publisher, known) = Published::new(JwksSnapshot::default());
        let ring = Arc::new(JwksCache { source: origin, snapshot: known, refresh_requested: Notify::new() });
        (ring.clone(), JwksRefresher { cache: ring, publisher })
    }

    pub(super) fn snapshot(&self) -> Arc<JwksSnapshot> {
        self.snapshot.get()
    }

    /// Waits for a fetch after that of `before`, and returns its result. Returns the current keys if a fetch is not
    /// allowed yet or takes too long.
    pub(super) async fn wait_for_newer(&self, before: &Arc<JwksSnapshot>) -> Arc<JwksSnapshot> {
        let now = self.snapshot.get();
        if now.fetches > before.fetches {
            return now;
        }
        if before.last_fetch.is_some_and(|last| last.elapsed() < MIN_FETCH_INTERVAL) {
            return now;
        }
        let mut changes = self.snapshot.clone();
        self.refresh_requested.notify_one();
        let waiting = async {
            loop {
                let now = changes.get();
                if now.fetches > before.fetches {
                    return now;
                }
                changes.changed().await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, waiting).await.unwrap_or(now)
    }
}

impl JwksRefresher {
    pub(super) fn source(&self) -> &JwksSource {
        &self.cache.source
    }

    /// Fetches the keys at once, on request and periodically, until the process ends.
    pub(super) async fn run(self, dialer: Dialer, health: Arc<CallHealth>, mut drain: Drain) {
        let issuer = self.cache.source.issuer.clone();
        loop {
            let began = Instant::now();
            let fetched = tokio::select! {
                fetched = self.cache.source.fetch(&dialer) => fetched,
                () = drain.wait_for(ShutdownPhase::Ending) => return,
            };
            let result = fetched.as_ref().map(drop).map_err(String::as_str);
            // Changes are logged below.
            health.record_quietly(&self.cache.source.discovery_url.destination, result, began.elapsed());
            let before = self.cache.snapshot();
            let good = fetched.is_ok();
            let mut now = JwksSnapshot {
                fetches: before.fetches + 1,
                last_fetch: Some(Instant::now()),
                failure: None,
                keys: None,
            };
            match fetched {
                Ok(keys) => {
                    let same = before.keys.as_ref().filter(|cached| cached.has_same_keys(&keys)).cloned();
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
                () = drain.wait_for(ShutdownPhase::Ending) => return,
                () = async {
                    tokio::time::sleep(MIN_FETCH_INTERVAL).await;
                    if good {
                        tokio::select! {
                            () = self.cache.refresh_requested.notified() => {}
                            () = tokio::time::sleep(REFRESH_INTERVAL) => {}
                        }
                    }
                } => {}
            }
        }
    }
}
