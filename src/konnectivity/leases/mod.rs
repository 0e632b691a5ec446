//! Leases of Konnectivity servers: each server renews one, and agents count them to know how many servers there are
//! (`pkg/server/leases`, `pkg/agent/lease_counter.go` of the reference).
//!
//! Whether a Lease is valid is judged by when this process saw it renewed, not by its times: a wrong clock neither hides
//! nor collects the Leases of others.

mod counter;
mod publisher;

use std::collections::HashMap;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::Instant;

pub use counter::LeaseCounter;
pub use publisher::publish_lease;

/// Where Leases are, and which are those of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// `--lease-namespace`.
    pub namespace: String,
    /// `--lease-label`: labels that each Lease has.
    pub labels: Vec<(String, String)>,
}

impl LeaseSettings {
    /// Parses labels: `key=value`, separated by commas.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse_labels(text: &str) -> Result<Vec<(String, String)>, String> {
        let parse = |pair: &str| match pair.trim().split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.contains('=') => Ok((key.to_owned(), value.to_owned())),
            _ => Err(format!("{pair:?} is no label: use key=value")),
        };
        text.split(',').map(parse).collect()
    }

    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    /// Path of the list of the servers' Leases.
    fn list_path(&self) -> String {
        let labels: Vec<String> = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        format!("{}?labelSelector={}", self.path(), utf8_percent_encode(&labels.join(","), NON_ALPHANUMERIC))
    }
}

/// What is read of a Lease.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServerLease {
    metadata: LeaseMetadata,
    spec: Option<LeaseSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseMetadata {
    name: String,
    resource_version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseSpec {
    renew_time: Option<String>,
    acquire_time: Option<String>,
    lease_duration_seconds: Option<u64>,
}

/// The Leases that were seen.
#[derive(Debug, Default)]
struct ObservedLeases {
    by_name: HashMap<String, RenewedLease>,
}

#[derive(Debug)]
struct RenewedLease {
    /// As written by its holder.
    renewed: Option<String>,
    /// When this process first saw that.
    observed_at: Instant,
    duration: Duration,
    resource_version: String,
    is_listed: bool,
}

impl ObservedLeases {
    fn observe(&mut self, lease: ServerLease) {
        let LeaseMetadata { name, resource_version } = lease.metadata;
        let LeaseSpec { renew_time, acquire_time, lease_duration_seconds } = lease.spec.unwrap_or_default();
        let renewed = renew_time.or(acquire_time);
        let duration = Duration::from_secs(lease_duration_seconds.unwrap_or_default());
        let before = self.by_name.get(&name).filter(|before| before.renewed == renewed);
        let observed_at = before.map_or_else(Instant::now, |before| before.observed_at);
        self.by_name.insert(name, RenewedLease { renewed, observed_at, duration, resource_version, is_listed: true });
    }

    fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// A list begins.
    fn begin_list(&mut self) {
        self.by_name.values_mut().for_each(|lease| lease.is_listed = false);
    }

    /// Removes what the list did not have.
    fn end_list(&mut self) {
        self.by_name.retain(|_, lease| lease.is_listed);
    }

    fn count_valid(&self) -> usize {
        self.by_name.values().filter(|lease| lease.is_valid()).count()
    }

    /// Names and resourceVersions of those that were not renewed in time.
    fn expired(&self) -> Vec<(String, String)> {
        let expired = self.by_name.iter().filter(|(_, lease)| !lease.is_valid());
        expired.map(|(name, lease)| (name.clone(), lease.resource_version.clone())).collect()
    }
}

impl RenewedLease {
    fn is_valid(&self) -> bool {
        self.renewed.is_some() && self.observed_at.elapsed() < self.duration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(name: &str, renewed: Option<&str>) -> ServerLease {
        let spec = LeaseSpec {
            renew_time: renewed.map(str::to_owned),
            lease_duration_seconds: Some(30),
            ..Default::default()
        };
        let metadata = LeaseMetadata { name: name.to_owned(), resource_version: "7".to_owned() };
        ServerLease { metadata, spec: Some(spec) }
    }

    #[test]
    fn lease_labels_parsed() {
        let parsed = LeaseSettings::parse_labels("k8s-app=konnectivity-server,a=").unwrap();
        assert_eq!(parsed, [("k8s-app".into(), "konnectivity-server".into()), ("a".into(), String::new())]);
        for wrong in ["", "a", "=b", "a=b=c", "a=b,,c=d"] {
            assert!(LeaseSettings::parse_labels(wrong).is_err(), "{wrong:?}");
        }
        let settings = LeaseSettings { namespace: "kube-system".to_owned(), labels: parsed };
        let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=k8s%2Dapp%3Dkonnectivity%2Dserver%2Ca%3D";
        assert_eq!(settings.list_path(), path);
    }

    #[tokio::test(start_paused = true)]
    async fn lease_is_valid_while_it_is_seen_to_be_renewed() {
        let mut leases = ObservedLeases::default();
        // The holder's clock is wrong by years.
        leases.observe(lease("a", Some("1999-01-01T00:00:00.000000Z")));
        leases.observe(lease("b", Some("2099-01-01T00:00:00.000000Z")));
        leases.observe(lease("never", None));
        assert_eq!(leases.count_valid(), 2);
        tokio::time::sleep(Duration::from_secs(20)).await;
        leases.observe(lease("a", Some("1999-01-01T00:00:20.000000Z")));
        leases.observe(lease("b", Some("2099-01-01T00:00:00.000000Z")));
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(leases.count_valid(), 1);
        let mut expired = leases.expired();
        expired.sort();
        assert_eq!(expired, [("b".to_owned(), "7".to_owned()), ("never".to_owned(), "7".to_owned())]);
        leases.begin_list();
        leases.observe(lease("a", Some("1999-01-01T00:00:40.000000Z")));
        leases.end_list();
        assert_eq!((leases.count_valid(), leases.expired()), (1, vec![]));
        leases.remove("a");
        assert_eq!(leases.count_valid(), 0);
    }
}
