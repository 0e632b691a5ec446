//! The store of the embedded API server in the status report.

use serde::{Deserialize, Serialize};

use crate::observe::metrics::{ResourceStats, StorageStats, WorkQueueStats};

/// The store of the embedded API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageReport {
    /// Its file, or the addresses of etcd.
    pub location: String,
    /// Size of the file with its log, or of etcd's database, in bytes.
    pub size_bytes: u64,
    /// Revision of the last change.
    pub revision: u64,
    /// Revision up to which history was discarded.
    pub compacted_revision: u64,
    /// Why the last write was refused; empty after one that succeeded.
    pub refusal: String,
    /// CustomResourceDefinitions with rules (`x-kubernetes-validations`), which are not enforced.
    pub unenforced_crds: Vec<String>,
    /// Kinds that are stored and not enforced, of which there are objects, as in `networkpolicies.networking.k8s.io`.
    pub unenforced_kinds: Vec<String>,
    /// The resources, by group and plural; without those that no request has read yet.
    pub resources: Vec<StoredResourceReport>,
    /// The controllers of the embedded API server.
    pub controllers: Vec<ControllerReport>,
    /// The keys of service account tokens.
    pub token_keys: Vec<TokenKeyReport>,
}

/// A key of service account tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenKeyReport {
    /// Its ID, as in the header `kid` of tokens.
    pub key_id: String,
    /// What it does, and for how long.
    pub state: String,
}

/// A controller and its work queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ControllerReport {
    /// Its name, as in the label `name` of its metrics.
    pub name: String,
    /// Objects that wait.
    pub queued: u64,
    /// Objects that are being reconciled.
    pub running: u64,
    /// Objects that failed and have not succeeded since. They are retried after a pause.
    pub failing: u64,
    /// Failed attempts since the start.
    pub failures: u64,
    /// Seconds for which the object of `error` has been failing.
    pub failing_seconds: u64,
    /// The object that fails for the longest time, and its last error; empty if none fails.
    pub error: String,
}

/// The stored objects of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StoredResourceReport {
    /// `configmaps`, or `leases.coordination.k8s.io`.
    pub resource: String,
    /// Number of objects.
    pub objects: u64,
    /// Sum of their sizes in bytes.
    pub bytes: u64,
    /// Open watches, those of controllers among them.
    pub watches: u64,
    /// Changes in memory that watches can start from.
    pub history: u64,
}

impl StorageReport {
    /// Number of objects of all resources.
    pub fn objects(&self) -> u64 {
        self.resources.iter().map(|one| one.objects).sum()
    }

    /// The resources that have or had objects. A controller watches each, also those that have none.
    pub fn resources_in_use(&self) -> impl Iterator<Item = &StoredResourceReport> {
        self.resources.iter().filter(|one| one.objects + one.history > 0)
    }

    /// The state of the store and of the controllers above it.
    pub fn new(stats: StorageStats, controllers: Vec<WorkQueueStats>) -> StorageReport {
        let controllers = controllers.into_iter().map(|of| ControllerReport {
            name: of.name.to_owned(),
            queued: of.queued,
            running: of.running,
            failing: of.failing,
            failures: of.failures,
            failing_seconds: of.failure.as_ref().map_or(0, |failure| failure.since.elapsed().as_secs()),
            error: of.failure.map(|failure| failure.text).unwrap_or_default(),
        });
        StorageReport { controllers: controllers.collect(), ..StorageReport::from(stats) }
    }

    /// Describes file, size and revisions in one line.
    pub fn describe(&self) -> String {
        let StorageReport { location, revision, compacted_revision, .. } = self;
        let refused = if self.refusal.is_empty() { "" } else { "; writes are refused: " };
        let size = format_bytes(self.size_bytes);
        format!(
            "store {location}: {size}, revision {revision}, compacted to {compacted_revision}{refused}{}",
            self.refusal
        )
    }
}

impl StoredResourceReport {
    /// Sum of the sizes as `12.3 KiB`.
    pub fn size(&self) -> String {
        format_bytes(self.bytes)
    }
}

impl From<StorageStats> for StorageReport {
    fn from(of: StorageStats) -> StorageReport {
        let resource = |one: &ResourceStats| StoredResourceReport {
            resource: one.group_resource(),
            objects: one.objects,
            bytes: one.bytes,
            watches: one.watches,
            history: one.history,
        };
        StorageReport {
            location: of.location,
            size_bytes: of.size,
            revision: of.revision,
            compacted_revision: of.compacted,
            refusal: of.refusal.unwrap_or_default(),
            unenforced_crds: of.unenforced_crds,
            unenforced_kinds: of.unenforced_kinds,
            resources: of.resources.iter().map(resource).collect(),
            controllers: Vec::new(),
            token_keys: Vec::new(),
        }
    }
}

/// Formats a size as `900 B`, `12.3 KiB` or `1.5 MiB`.
pub fn format_bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_report_describes_size_revision_and_refusal() {
        let mut report = StorageReport {
            location: "/data/store.db".to_owned(),
            size_bytes: 36_864,
            revision: 12,
            compacted_revision: 1,
            ..StorageReport::default()
        };
        assert_eq!(report.describe(), "store /data/store.db: 36.0 KiB, revision 12, compacted to 1");
        report.refusal = "no space left".to_owned();
        assert!(report.describe().ends_with("; writes are refused: no space left"));
        assert_eq!([0, 1023, 1024, 1 << 20].map(format_bytes), ["0 B", "1023 B", "1.0 KiB", "1.0 MiB"]);
    }
}
