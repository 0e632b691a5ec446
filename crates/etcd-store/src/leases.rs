//! Leases for keys with a time to live, shared by keys that expire at nearly the same time
//! (`storage/etcd3/lease_manager.go`).

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::{Client, EtcdCallError};
use crate::messages::LeaseGrantRequest;

/// How much longer than asked for a key may live, so that others share its lease.
const LEASE_REUSE_WINDOW: Duration = Duration::from_secs(60);

/// Keys of one lease.
const MAX_LEASE_KEYS: usize = 1_000;

/// Longest time to live: a hundred years.
const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The lease that new keys get.
#[derive(Default)]
pub(crate) struct LeaseManager(Mutex<Option<EtcdLease>>);

struct EtcdLease {
    id: i64,
    expires: Instant,
    keys: usize,
}

impl LeaseManager {
    /// The lease of a key that is to live for `ttl`.
    pub(crate) async fn lease(&self, client: &Client, ttl: Duration) -> Result<i64, EtcdCallError> {
        let mut held = self.0.lock().await;
        let ttl = ttl.min(MAX_TTL);
        let reuse = LEASE_REUSE_WINDOW.min(ttl / 20);
        let earliest = Instant::now() + ttl;
        if let Some(lease) = held.as_mut()
            && (earliest..earliest + reuse).contains(&lease.expires)
            && lease.keys < MAX_LEASE_KEYS
        {
            lease.keys += 1;
            return Ok(lease.id);
        }
        let seconds = (ttl + reuse).as_millis().div_ceil(1_000).max(1);
        let request = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX) };
        let id = client.grant(&request).await?.id;
        *held = Some(EtcdLease { id, expires: earliest + reuse, keys: 1 });
        Ok(id)
    }

    /// Forgets a lease that etcd does not know any more.
    pub(crate) async fn forget(&self, id: i64) {
        self.0.lock().await.take_if(|lease| lease.id == id);
    }
}
