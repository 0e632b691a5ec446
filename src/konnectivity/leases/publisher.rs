//! Publishes the Lease of this server, and collects those that are no longer renewed.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{LeaseSettings, ObservedLeases, ServerLease};
use crate::kubeclient::{ApiResponse, CallPolicy, Client};
use crate::observe::metrics::KonnectivityServerMetrics;
use crate::process::{Drain, ShutdownPhase};

/// `LeaseDuration` of the reference, in seconds.
const LEASE_SECONDS: u64 = 30;
/// `LeaseRenewalInterval` and `LeaseGCInterval`.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(15);
/// Pause after a renewal that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Renews the Lease of the server until the process drains, then deletes it, so that agents look for one server less.
pub async fn publish_lease(
    client: Rc<Client>,
    settings: LeaseSettings,
    server_id: String,
    metrics: Arc<KonnectivityServerMetrics>,
    mut drain: Drain,
) {
    let name = format!("konnectivity-proxy-server-{server_id}");
    let observed = ObservedLeases::default();
    let mut publisher = LeasePublisher {
        client,
        settings,
        server_id,
        name,
        acquire_time: now(),
        is_acquired: false,
        metrics,
        observed,
    };
    let mut reported = None;
    loop {
        let result = publisher.renew_and_collect().await;
        let pause = if result.is_ok() { RENEWAL_INTERVAL.mul_f64(0.95 + 0.1 * fastrand::f64()) } else { RETRY_PAUSE };
        match result {
            Ok(()) => {
                if reported.take().is_some() {
                    tracing::info!(lease = publisher.name, "the Lease is renewed again");
                }
            }
            Err(why) if reported.as_ref() != Some(&why) => {
                tracing::warn!(lease = publisher.name, error = why, "cannot renew the Lease or collect expired ones");
                reported = Some(why);
            }
            Err(_) => {}
        }
        tokio::select! {
            biased;
            () = drain.wait_for(ShutdownPhase::Draining) => break,
            () = sleep(pause) => {}
        }
    }
    if let Err(why) = publisher.release().await {
        tracing::warn!(lease = publisher.name, error = why, "cannot delete the Lease; it expires");
    }
}

struct LeasePublisher {
    client: Rc<Client>,
    settings: LeaseSettings,
    server_id: String,
    name: String,
    /// `acquireTime` of the Lease, as long as no successor of the same id has acquired it.
    acquire_time: String,
    is_acquired: bool,
    metrics: Arc<KonnectivityServerMetrics>,
    observed: ObservedLeases,
}

#[derive(Deserialize)]
struct LeaseList {
    items: Vec<ServerLease>,
}

impl LeasePublisher {
    async fn renew_and_collect(&mut self) -> Result<(), String> {
        self.renew().await?;
        self.collect().await
    }

    /// Creates or renews the Lease.
    async fn renew(&mut self) -> Result<(), String> {
        let (list, path) = (self.settings.path(), format!("{}/{}", self.settings.path(), self.name));
        let current = self.call(Method::GET, &path, None).await?;
        let response = match current.status {
            404 => {
                let mut lease = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self.name, "namespace": self.settings.namespace},
                    "spec": {"acquireTime": self.acquire_time},
                });
                self.fill(&mut lease);
                self.call(Method::POST, &list, Some(&lease)).await?
            }
            _ => {
                let mut lease: Value = read_json(&succeeded(current)?)?;
                if !self.is_acquired {
                    lease["spec"]["acquireTime"] = json!(self.acquire_time);
                }
                self.fill(&mut lease);
                self.call(Method::PUT, &path, Some(&lease)).await?
            }
        };
        succeeded(response)?;
        self.is_acquired = true;
        Ok(())
    }

    /// Deletes the Lease of this process.
    async fn release(&self) -> Result<(), String> {
        let current = self.call(Method::GET, &format!("{}/{}", self.settings.path(), self.name), None).await?;
        if current.status == 404 {
            return Ok(());
        }
        let lease: ServerLease = read_json(&succeeded(current)?)?;
        if lease.spec.and_then(|spec| spec.acquire_time).as_ref() != Some(&self.acquire_time) {
            tracing::info!(lease = self.name, "the Lease stays: another server of this id has acquired it");
            return Ok(());
        }
        accept_deletion(self.delete(&self.name, &lease.metadata.resource_version).await?)
    }

    fn fill(&self, lease: &mut Value) {
        let labels = self.settings.labels.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str())));
        lease["metadata"]["labels"] = Value::Object(labels.collect());
        lease["spec"]["holderIdentity"] = json!(self.server_id);
        lease["spec"]["leaseDurationSeconds"] = json!(LEASE_SECONDS);
        lease["spec"]["renewTime"] = json!(now());
    }

    /// Deletes the Leases of servers that do not renew them.
    async fn collect(&mut self) -> Result<(), String> {
        let began = Instant::now();
        let response = self.call(Method::GET, &self.settings.list_path(), None).await?;
        self.metrics.lease_lists.record(response.status, began.elapsed());
        let list: LeaseList = read_json(&succeeded(response)?)?;
        self.observed.begin_list();
        list.items.into_iter().for_each(|lease| self.observed.observe(lease));
        self.observed.end_list();
        for (name, version) in self.observed.expired() {
            let began = Instant::now();
            let response = self.delete(&name, &version).await?;
            self.metrics.lease_deletions.record(response.status, began.elapsed());
            let is_deleted = response.is_success();
            accept_deletion(response)?;
            if !is_deleted {
                continue;
            }
            self.metrics.record_culled_lease();
            tracing::info!(lease = name, "the Lease of a server that no longer renews it was deleted");
        }
        Ok(())
    }

    /// Deletes a Lease if it was not renewed in the meantime.
    async fn delete(&self, name: &str, version: &str) -> Result<ApiResponse, String> {
        let options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": version}});
        let path = format!("{}/{name}", self.settings.path());
        self.call(Method::DELETE, &path, Some(&options)).await
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<ApiResponse, String> {
        let body = body.map(|body| Bytes::from(body.to_string()));
        let policy = CallPolicy::within(Duration::from_secs(5));
        self.client.call(method, path, body, policy, |_, _| {}).await.map_err(|error| error.to_string())
    }
}

/// Accepts that the Lease is gone, or was renewed meanwhile.
fn accept_deletion(response: ApiResponse) -> Result<(), String> {
    if matches!(response.status, 404 | 409) { Ok(()) } else { succeeded(response).map(drop) }
}

fn read_json<T: DeserializeOwned>(response: &ApiResponse) -> Result<T, String> {
    serde_json::from_slice(&response.body).map_err(|error| format!("the API server's response cannot be read: {error}"))
}

fn succeeded(response: ApiResponse) -> Result<ApiResponse, String> {
    if response.is_success() { Ok(response) } else { Err(response.describe()) }
}

/// The time as `metav1.MicroTime`.
fn now() -> String {
    crate::kubeclient::election::micro_time(SystemTime::now())
}
