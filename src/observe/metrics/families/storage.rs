//! Metrics of the embedded API server's store and watch cache, under the names of kube-apiserver's etcd client and cacher
//! (`k8s.io/apiserver/pkg/storage/etcd3/metrics`, `pkg/storage/cacher/metrics`).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use store::watch_cache::{RequestRecorder, StoreOperation};

use super::reviews::render_histogram;
use crate::observe::metrics::counters::{Histogram, REQUEST_SECONDS};
use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Writes the samples of one operation with its labels.
type SampleWriter<'w> = &'w mut dyn FnMut(&[(&str, &str)], &OperationCounts);

/// Modulus of `apiserver_watch_cache_resource_version`: a float holds 15 digits.
const MAX_PRINTED_VERSION: u64 = 1_000_000_000_000_000;

/// Values of the label `operation`, in the order of [`StoreOperation`].
const OPERATIONS: [&str; 4] = ["create", "delete", "list", "update"];

/// State of the store, read when metrics are rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageStats {
    /// The file, or the addresses of etcd.
    pub location: String,
    /// Size of the file with its log, or of etcd's database, in bytes.
    pub size: u64,
    /// Revision of the last change.
    pub revision: u64,
    /// Revision up to which history was discarded.
    pub compacted: u64,
    /// Why the last write was refused; none after one that succeeded.
    pub refusal: Option<String>,
    /// CustomResourceDefinitions with rules, which are not enforced.
    pub unenforced_crds: Vec<String>,
    /// Kinds that are stored and not enforced, of which there are objects.
    pub unenforced_kinds: Vec<String>,
    /// The resources that are in the watch cache, by group and plural.
    pub resources: Vec<ResourceStats>,
}

/// State of one resource in the watch cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceStats {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural name.
    pub resource: String,
    /// Number of objects.
    pub objects: u64,
    /// Sum of their sizes in the store, in bytes.
    pub bytes: u64,
    /// Revision up to which the cache is complete.
    pub revision: u64,
    /// Changes in the history, which watches can start from.
    pub history: u64,
    /// Open watches.
    pub watches: u64,
}

impl ResourceStats {
    /// `configmaps`, or `leases.coordination.k8s.io` (`schema.GroupResource`).
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.resource.clone() } else { format!("{}.{}", self.resource, self.group) }
    }
}

/// Reads the state of the store.
type StatsSource = Box<dyn Fn() -> StorageStats + Send + Sync>;

/// Metrics of the store.
#[derive(Default)]
pub struct StorageMetrics {
    source: OnceLock<StatsSource>,
    requests: Mutex<Vec<Arc<StorageRequests>>>,
}

/// Requests to the store for one resource.
pub struct StorageRequests {
    group: String,
    resource: String,
    operations: [Mutex<OperationCounts>; OPERATIONS.len()],
}

struct OperationCounts {
    durations: Histogram,
    requests: u64,
    errors: u64,
}

impl StorageMetrics {
    /// Sets where the state of the store is read. Only the first call has an effect.
    pub fn set_source(&self, source: impl Fn() -> StorageStats + Send + Sync + 'static) {
        let _ = self.source.set(Box::new(source));
    }

    /// Metrics of the requests for a resource; called once for each.
    pub fn requests(&self, group: &str, resource: &str) -> Arc<StorageRequests> {
        let counts = || OperationCounts { durations: Histogram::new(&REQUEST_SECONDS), requests: 0, errors: 0 };
        let requests = Arc::new(StorageRequests {
            group: group.to_owned(),
            resource: resource.to_owned(),
            operations: std::array::from_fn(|_| Mutex::new(counts())),
        });
        self.requests.lock().push(requests.clone());
        requests
    }

    /// The state of the store now; none without a store.
    pub fn stats(&self) -> Option<StorageStats> {
        self.source.get().map(|source| source())
    }

    /// Families `apiserver_resource_*` of the objects.
    pub(in crate::observe::metrics) fn render_resources(&self, stats: &StorageStats, text: &mut MetricsText) {
        text.family(
            "apiserver_resource_objects",
            MetricType::Gauge,
            "[ALPHA] Number of stored objects at the time of last check split by kind. In case of a fetching error, the \
             value will be -1.",
        );
        by_resource(stats, text, |one| one.objects);
        text.family(
            "apiserver_resource_size_estimate_bytes",
            MetricType::Gauge,
            "[ALPHA] Estimated size of stored objects in database. Estimate is based on sum of last observed sizes of \
             serialized objects. In case of a fetching error, the value will be -1.",
        );
        by_resource(stats, text, |one| one.bytes);
    }

    /// Families `apiserver_storage_*`.
    pub(in crate::observe::metrics) fn render_storage(&self, stats: &StorageStats, text: &mut MetricsText) {
        text.family(
            "apiserver_storage_objects",
            MetricType::Gauge,
            "[STABLE] [DEPRECATED, consider using apiserver_resource_objects instead] Number of stored objects at the \
             time of last check split by kind. In case of a fetching error, the value will be -1.",
        );
        for one in &stats.resources {
            text.sample(&[("resource", &one.group_resource())], one.objects);
        }
        text.family(
            "apiserver_storage_size_bytes",
            MetricType::Gauge,
            "[STABLE] Size of the storage database file physically allocated in bytes.",
        );
        if self.source.get().is_some() {
            text.sample(&[("storage_cluster_id", "etcd-0")], stats.size);
        }
    }

    /// Family `narthex_unenforced_crds`.
    pub(in crate::observe::metrics) fn render_unenforced(&self, stats: &StorageStats, text: &mut MetricsText) {
        text.family(
            "narthex_unenforced_crds",
            MetricType::Gauge,
            "CustomResourceDefinitions with validation rules (x-kubernetes-validations), which are not enforced.",
        );
        if self.source.get().is_some() {
            text.sample(&[], stats.unenforced_crds.len() as u64);
        }
    }

    /// Family `apiserver_watch_cache_resource_version`.
    pub(in crate::observe::metrics) fn render_watch_cache(&self, stats: &StorageStats, text: &mut MetricsText) {
        text.family(
            "apiserver_watch_cache_resource_version",
            MetricType::Gauge,
            "[ALPHA] Current resource version of watch cache broken by resource type. This is truncated to the 15 least \
             significant digits.",
        );
        by_resource(stats, text, |one| one.revision % MAX_PRINTED_VERSION);
    }

    /// Families `etcd_request*`.
    pub(in crate::observe::metrics) fn render_requests(&self, text: &mut MetricsText) {
        let mut requests = self.requests.lock().clone();
        requests.sort_by(|one, other| (&one.group, &one.resource).cmp(&(&other.group, &other.resource)));
        let each = |write: SampleWriter<'_>| {
            for (index, operation) in OPERATIONS.into_iter().enumerate() {
                for one in &requests {
                    let labels = [("group", &*one.group), ("operation", operation), ("resource", &one.resource)];
                    write(&labels, &one.operations[index].lock());
                }
            }
        };
        text.family(
            "etcd_request_duration_seconds",
            MetricType::Histogram,
            "[ALPHA] Etcd request latency in seconds for each operation and object type.",
        );
        each(&mut |labels, counts| {
            render_histogram(text, labels, &counts.durations, REQUEST_SECONDS.printed);
        });
        text.family(
            "etcd_request_errors_total",
            MetricType::Counter,
            "[ALPHA] Etcd failed request counts for each operation and object type.",
        );
        each(&mut |labels, counts| {
            if counts.errors > 0 {
                text.sample(labels, counts.errors);
            }
        });
        text.family(
            "etcd_requests_total",
            MetricType::Counter,
            "[ALPHA] Etcd request counts for each operation and object type.",
        );
        each(&mut |labels, counts| {
            if counts.requests > 0 {
                text.sample(labels, counts.requests);
            }
        });
    }

    /// Families `narthex_storage_*`.
    pub(in crate::observe::metrics) fn render_revisions(&self, stats: &StorageStats, text: &mut MetricsText) {
        if self.source.get().is_none() {
            return;
        }
        text.family(
            "narthex_storage_compacted_revision",
            MetricType::Gauge,
            "Revision of the store up to which history was discarded.",
        );
        text.sample(&[], stats.compacted);
        text.family("narthex_storage_revision", MetricType::Gauge, "Revision of the last change in the store.");
        text.sample(&[], stats.revision);
    }

    /// Family `narthex_watch_cache_history_changes`.
    pub(in crate::observe::metrics) fn render_history(&self, stats: &StorageStats, text: &mut MetricsText) {
        text.family(
            "narthex_watch_cache_history_changes",
            MetricType::Gauge,
            "Changes of a resource in memory. A watch that starts before them gets 410 Gone.",
        );
        by_resource(stats, text, |one| one.history);
    }
}

fn by_resource(stats: &StorageStats, text: &mut MetricsText, value: impl Fn(&ResourceStats) -> u64) {
    for one in &stats.resources {
        text.sample(&[("group", &one.group), ("resource", &one.resource)], value(one));
    }
}

impl RequestRecorder for StorageRequests {
    fn record(&self, operation: StoreOperation, duration: Duration, failed: bool) {
        let mut counts = self.operations[operation as usize].lock();
        counts.durations.observe_duration(duration);
        counts.requests += 1;
        counts.errors += u64::from(failed);
    }
}
