//! Metrics of the controllers' work queues, under the names of client-go's
//! (`k8s.io/component-base/metrics/prometheus/workqueue`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::reviews::render_histogram;
use crate::observe::metrics::counters::{Histogram, WORK_QUEUE_SECONDS};
use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Metrics of all work queues.
#[derive(Default)]
pub struct WorkQueueRegistry(Mutex<Vec<Arc<WorkQueueMetrics>>>);

/// Metrics of one work queue.
pub struct WorkQueueMetrics {
    name: &'static str,
    counts: Mutex<WorkQueueCounts>,
}

struct WorkQueueCounts {
    stats: WorkQueueStats,
    waits: Histogram,
    work: Histogram,
    /// When the work in progress began.
    running: Vec<Instant>,
}

/// State of a work queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkQueueStats {
    /// Name of the controller.
    pub name: &'static str,
    /// Keys that are ready.
    pub queued: u64,
    /// Keys that are being reconciled.
    pub running: u64,
    /// Keys that failed and have not succeeded since. They are retried after a pause.
    pub failing: u64,
    /// Keys that were added.
    pub adds: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// The failure of the key that fails for the longest time.
    pub failure: Option<WorkQueueFailure>,
}

/// Why a key fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkQueueFailure {
    /// Time of its first failure.
    pub since: Instant,
    /// The key and its last error.
    pub text: String,
}

impl WorkQueueRegistry {
    /// Metrics of a new queue.
    pub fn register(&self, name: &'static str) -> Arc<WorkQueueMetrics> {
        let metrics = Arc::new(WorkQueueMetrics::new(name));
        self.0.lock().push(metrics.clone());
        metrics
    }

    /// The state of every queue, in the order in which they were added.
    pub fn stats(&self) -> Vec<WorkQueueStats> {
        self.0.lock().iter().map(|queue| queue.stats()).collect()
    }

    /// Families `workqueue_*`, if there are queues.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        let mut queues = self.0.lock().clone();
        if queues.is_empty() {
            return;
        }
        queues.sort_by_key(|queue| queue.name);
        let adds = "[ALPHA] Total number of adds handled by workqueue";
        render_numbers(&queues, text, ("workqueue_adds_total", MetricType::Counter, adds), |counts| counts.stats.adds);
        let depth = "[ALPHA] Current depth of workqueue";
        render_numbers(&queues, text, ("workqueue_depth", MetricType::Gauge, depth), |counts| counts.stats.queued);
        text.family(
            "workqueue_longest_running_processor_seconds",
            MetricType::Gauge,
            "[ALPHA] How many seconds has the longest running processor for workqueue been running.",
        );
        for queue in &queues {
            text.sample(&[("name", queue.name)], queue.running_seconds().fold(0.0, f64::max));
        }
        let waits = "[ALPHA] How long in seconds an item stays in workqueue before being requested.";
        render_durations(&queues, text, ("workqueue_queue_duration_seconds", waits), |counts| &counts.waits);
        let retries = "[ALPHA] Total number of retries handled by workqueue";
        render_numbers(&queues, text, ("workqueue_retries_total", MetricType::Counter, retries), |counts| {
            counts.stats.failures
        });
        text.family(
            "workqueue_unfinished_work_seconds",
            MetricType::Gauge,
            "[ALPHA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. \
             Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at \
             which this increases.",
        );
        for queue in &queues {
            text.sample(&[("name", queue.name)], queue.running_seconds().fold(0.0, |sum, seconds| sum + seconds));
        }
        let work = "[ALPHA] How long in seconds processing an item from workqueue takes.";
        render_durations(&queues, text, ("workqueue_work_duration_seconds", work), |counts| &counts.work);
    }
}

fn render_numbers(
    queues: &[Arc<WorkQueueMetrics>],
    text: &mut MetricsText,
    (family, metric_type, help): (&'static str, MetricType, &'static str),
    value: impl Fn(&WorkQueueCounts) -> u64,
) {
    text.family(family, metric_type, help);
    for queue in queues {
        text.sample(&[("name", queue.name)], value(&queue.counts.lock()));
    }
}

fn render_durations(
    queues: &[Arc<WorkQueueMetrics>],
    text: &mut MetricsText,
    (family, help): (&'static str, &'static str),
    durations: impl Fn(&WorkQueueCounts) -> &Histogram,
) {
    text.family(family, MetricType::Histogram, help);
    for queue in queues {
        render_histogram(text, &[("name", queue.name)], durations(&queue.counts.lock()), WORK_QUEUE_SECONDS.printed);
    }
}

impl WorkQueueMetrics {
    /// Metrics that are not rendered.
    pub fn new(name: &'static str) -> WorkQueueMetrics {
        let counts = WorkQueueCounts {
            stats: WorkQueueStats { name, ..WorkQueueStats::default() },
            waits: Histogram::new(&WORK_QUEUE_SECONDS),
            work: Histogram::new(&WORK_QUEUE_SECONDS),
            running: Vec::new(),
        };
        WorkQueueMetrics { name, counts: Mutex::new(counts) }
    }

    /// Name of the controller.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The state of the queue.
    pub fn stats(&self) -> WorkQueueStats {
        let counts = self.counts.lock();
        WorkQueueStats { running: counts.running.len() as u64, ..counts.stats.clone() }
    }

    /// Counts a key that was added.
    pub fn record_add(&self) {
        self.counts.lock().stats.adds += 1;
    }

    /// Sets how many keys are ready, how many fail, and the failure of the one that fails for the longest time.
    pub fn set_state(&self, queued: usize, failing: usize, failure: Option<WorkQueueFailure>) {
        let stats = &mut self.counts.lock().stats;
        (stats.queued, stats.failing, stats.failure) = (queued as u64, failing as u64, failure);
    }

    /// Records that work on a key begins, which waited for `wait`.
    pub fn record_start(&self, wait: Duration, now: Instant) {
        let mut counts = self.counts.lock();
        counts.waits.observe_duration(wait);
        counts.running.push(now);
    }

    /// Records the end of the work that began at `began`.
    pub fn record_end(&self, began: Instant, is_failure: bool) {
        let mut counts = self.counts.lock();
        counts.work.observe_duration(began.elapsed());
        if let Some(index) = counts.running.iter().position(|one| *one == began) {
            counts.running.swap_remove(index);
        }
        counts.stats.failures += u64::from(is_failure);
    }

    fn running_seconds(&self) -> impl Iterator<Item = f64> {
        let running = self.counts.lock().running.clone();
        running.into_iter().map(|began| began.elapsed().as_secs_f64())
    }
}
