//! The audit webhook: sends events in batches, a few at a time, with Kubernetes' retries.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::queue::LossReporter;
use super::queue::{AuditQueue, EventBatch};
use super::{MAX_BATCH_BYTES, MAX_WAITING_BYTES};
use crate::observe::metrics::{AuditLoss, Metrics};

/// Maximum attempts per batch (`DefaultRetryBackoffWithInitialDelay` in `k8s.io/apiserver/pkg/util/webhook`).
const MAX_ATTEMPTS: i32 = 5;
/// Maximum number of batches in flight. Kubernetes limits neither these nor their memory.
const MAX_BATCHES_IN_FLIGHT: usize = 4;

/// Settings of the audit webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditWebhookSettings {
    /// `--audit-webhook-config-file`: a kubeconfig with the server of the webhook.
    pub config_file: PathBuf,
    /// `--audit-webhook-batch-buffer-size`, in events.
    pub buffer: usize,
    /// `--audit-webhook-batch-max-size`, in events.
    pub batch: usize,
    /// Value of `--audit-webhook-batch-max-wait`.
    pub wait: Duration,
    /// `--audit-webhook-batch-throttle-qps` and `-burst`, unless `--audit-webhook-batch-throttle-enable=false`.
    pub throttle: Option<(f64, u64)>,
    /// Value of `--audit-webhook-initial-backoff`.
    pub backoff: Duration,
}

/// Transport to the webhook.
pub trait AuditEventSender {
    /// Sends one `EventList`, once.
    ///
    /// # Errors
    /// Why the delivery failed, for the log.
    fn deliver(&self, list: Bytes) -> impl Future<Output = Result<(), String>>;
}

/// The audit webhook; sends nothing before [`WebhookSink::run`].
pub struct WebhookSink {
    settings: AuditWebhookSettings,
    queue: Arc<AuditQueue>,
    wake: Arc<Notify>,
    end: Arc<watch::Sender<bool>>,
    metrics: Arc<Metrics>,
}

/// State shared by all batches.
struct BatchSender<D> {
    deliver: D,
    backoff: Duration,
    losses: RefCell<LossReporter>,
    metrics: Arc<Metrics>,
    ended: watch::Receiver<bool>,
}

impl WebhookSink {
    pub(super) fn new(settings: AuditWebhookSettings, metrics: &Arc<Metrics>) -> WebhookSink {
        let wake = Arc::new(Notify::new());
        let waking = wake.clone();
        let queue = AuditQueue::new(settings.buffer, MAX_WAITING_BYTES, settings.batch, move || waking.notify_one());
        WebhookSink { settings, queue, wake, end: Arc::new(watch::Sender::new(false)), metrics: metrics.clone() }
    }

    pub(super) fn queue(&self) -> &Arc<AuditQueue> {
        &self.queue
    }

    /// After `true` is sent, the webhook sends queued events without waiting.
    pub(super) fn end_signal(&self) -> Arc<watch::Sender<bool>> {
        self.end.clone()
    }

    /// Sends events until the process ends. Requires a `LocalSet`.
    pub async fn run(self, deliver: impl AuditEventSender + 'static) {
        let WebhookSink { settings, queue, wake, end, metrics } = self;
        let mut ended = end.subscribe();
        let sending = Rc::new(BatchSender {
            deliver,
            backoff: settings.backoff,
            losses: RefCell::new(LossReporter::new(settings.config_file.display().to_string())),
            metrics,
            ended: ended.clone(),
        });
        let under_way = Arc::new(Semaphore::new(MAX_BATCHES_IN_FLIGHT));
        let mut throttle = settings.throttle.map(|(qps, burst)| TokenBucket::new(qps, burst));
        loop {
            while queue.waiting() == 0 {
                wake.notified().await;
            }
            // Wait for more events to fill the batch.
            let until = Instant::now() + settings.wait;
            while queue.waiting() < settings.batch && Instant::now() < until && !*ended.borrow() {
                tokio::select! {
                    () = wake.notified() => {}
                    () = sleep_until(until) => {}
                    _ = ended.changed() => {}
                }
            }
            if let Some(throttle) = &mut throttle
                && !*ended.borrow()
            {
                tokio::select! {
                    () = throttle.wait_for_token() => {}
                    _ = ended.changed() => {}
                }
            }
            let Ok(place) = Arc::clone(&under_way).acquire_owned().await else { return };
            let taken = queue.take(settings.batch, MAX_BATCH_BYTES);
            sending.losses.borrow_mut().report(&queue);
            let (sending, queue) = (sending.clone(), queue.clone());
            tokio::task::spawn_local(async move {
                sending.send(&taken).await;
                sending.losses.borrow_mut().report(&queue);
                drop((taken, place));
            });
        }
    }
}

impl<D: AuditEventSender> BatchSender<D> {
    /// Sends a batch with retries, and drops it after the last attempt.
    async fn send(&self, taken: &EventBatch) {
        let list = event_list(taken);
        let mut ended = self.ended.clone();
        let mut attempt = 0;
        loop {
            let Err(why) = self.deliver.deliver(list.clone()).await else { return };
            attempt += 1;
            if attempt == MAX_ATTEMPTS {
                self.metrics.audit().record_lost(AuditLoss::Webhook, taken.events.len());
                self.losses.borrow_mut().record_failure(taken.events.len(), why);
                return;
            }
            tracing::debug!(error = why, attempt, "audit webhook failed to accept a batch");
            let grown = self.backoff.mul_f64(1.5_f64.powi(attempt - 1) * (1.0 + 0.2 * fastrand::f64()));
            let mut pause = std::pin::pin!(sleep(grown));
            tokio::select! {
                () = &mut pause => {}
                // At shutdown retry soon, but not immediately, so that the attempts are not used up at once.
                _ = ended.wait_for(|ended| *ended) => sleep(grown.min(Duration::from_millis(200))).await,
            }
        }
    }
}

/// An `EventList` of `audit.k8s.io/v1`.
fn event_list(taken: &EventBatch) -> Bytes {
    let mut list = Vec::with_capacity(1024 * taken.events.len());
    list.extend_from_slice(br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#);
    for (number, event) in taken.events.iter().enumerate() {
        if number > 0 {
            list.push(b',');
        }
        event.write_json(&mut list, false);
    }
    list.extend_from_slice(b"]}");
    list.into()
}

/// Token bucket: a rate of batches per second with bursts.
struct TokenBucket {
    interval: Duration,
    burst: u64,
    /// Time at which the bucket is full again.
    full: Instant,
}

impl TokenBucket {
    fn new(qps: f64, burst: u64) -> TokenBucket {
        TokenBucket { interval: Duration::from_secs_f64(1.0 / qps), burst, full: Instant::now() }
    }

    /// Waits for the next token.
    async fn wait_for_token(&mut self) {
        let burst_time = self.interval.saturating_mul(u32::try_from(self.burst.saturating_sub(1)).unwrap_or(u32::MAX));
        self.full = self.full.max(Instant::now()) + self.interval;
        if let Some(at) = self.full.checked_sub(burst_time + self.interval) {
            sleep_until(at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::task::LocalSet;

    use super::*;
    use crate::observe::audit::AuditLevel;
    use crate::observe::audit::event::AuditEvent;
    use crate::observe::metrics::ExpositionFormat;

    /// A webhook that accepts or refuses each list as instructed.
    struct FakeWebhook {
        lists: mpsc::UnboundedSender<(usize, Instant)>,
        answers: RefCell<mpsc::UnboundedReceiver<bool>>,
    }

    impl AuditEventSender for FakeWebhook {
        async fn deliver(&self, list: Bytes) -> Result<(), String> {
            let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
            assert_eq!((&list["kind"], &list["apiVersion"]), (&"EventList".into(), &"audit.k8s.io/v1".into()));
            let items = list["items"].as_array().unwrap();
            assert!(items.iter().all(|item| item["stage"] == "ResponseComplete" && item.get("kind").is_none()));
            self.lists.send((items.len(), Instant::now())).unwrap();
            let taken = std::future::poll_fn(|cx| self.answers.borrow_mut().poll_recv(cx)).await;
            if taken == Some(true) { Ok(()) } else { Err("no".to_owned()) }
        }
    }

    struct WebhookFixture {
        queue: Arc<AuditQueue>,
        end: Arc<watch::Sender<bool>>,
        metrics: Arc<Metrics>,
        lists: mpsc::UnboundedReceiver<(usize, Instant)>,
        answers: mpsc::UnboundedSender<bool>,
        _local: LocalSet,
    }

    fn settings() -> AuditWebhookSettings {
        AuditWebhookSettings {
            config_file: "audit.kubeconfig".into(),
            buffer: 20,
            batch: 4,
            wait: Duration::from_secs(30),
            throttle: None,
            backoff: Duration::from_secs(10),
        }
    }

    /// Runs `story` with a webhook, in paused time.
    async fn with_webhook(settings: AuditWebhookSettings, story: impl AsyncFnOnce(WebhookFixture)) {
        let metrics = Metrics::new();
        let webhook = WebhookSink::new(settings, &metrics);
        let ((send, lists), (answers, answering)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let (queue, end) = (webhook.queue().clone(), webhook.end_signal());
        let local = LocalSet::new();
        local.spawn_local(webhook.run(FakeWebhook { lists: send, answers: RefCell::new(answering) }));
        let world = WebhookFixture { queue, end, metrics, lists, answers, _local: LocalSet::new() };
        local.run_until(story(world)).await;
    }

    impl WebhookFixture {
        fn push(&self, events: usize) {
            let event = AuditEvent::for_test();
            (0..events).for_each(|_| {
                self.queue.push(&event);
            });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn audit_webhook_sends_full_or_aged_batches() {
        with_webhook(settings(), async |mut world| {
            let began = Instant::now();
            world.push(5);
            (0..3).for_each(|_| world.answers.send(true).unwrap());
            assert_eq!(world.lists.recv().await, Some((4, began)));
            let (events, at) = world.lists.recv().await.unwrap();
            assert_eq!((events, at - began), (1, Duration::from_secs(30)));
            world.push(1);
            world.end.send(true).unwrap();
            assert_eq!(world.lists.recv().await, Some((1, at)));
            while world.queue.pending() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn audit_webhook_retries_then_drops_batch() {
        with_webhook(settings(), async |mut world| {
            world.metrics.audit().record_level(AuditLevel::Metadata);
            world.push(4);
            (0..5).for_each(|_| world.answers.send(false).unwrap());
            let mut times = Vec::new();
            for _ in 0..5 {
                times.push(world.lists.recv().await.unwrap().1);
            }
            for (pause, least) in times.windows(2).map(|pair| pair[1] - pair[0]).zip([10.0, 15.0, 22.5, 33.75]) {
                let pause = pause.as_secs_f64();
                assert!(pause >= least && pause <= least * 1.2 + 0.01, "{pause} after {least}");
            }
            while world.queue.pending() > 0 {
                tokio::task::yield_now().await;
            }
            let text = world.metrics.render(ExpositionFormat::Classic);
            assert!(text.contains("apiserver_audit_error_total{plugin=\"webhook\"} 4\n"), "{text}");
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn audit_webhook_blocked_drops_events_beyond_buffer() {
        with_webhook(settings(), async |mut world| {
            for _ in 0..40 {
                world.push(1);
                tokio::task::yield_now().await;
            }
            for _ in 0..MAX_BATCHES_IN_FLIGHT {
                assert_eq!(world.lists.recv().await.unwrap().0, 4);
            }
            assert!(world.lists.try_recv().is_err());
            assert_eq!((world.queue.pending(), world.queue.dropped()), (20, 20));
            (0..5).for_each(|_| world.answers.send(true).unwrap());
            assert_eq!(world.lists.recv().await.unwrap().0, 4);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn audit_webhook_batches_are_throttled() {
        let settings = AuditWebhookSettings { throttle: Some((10.0, 2)), batch: 1, ..settings() };
        with_webhook(settings, async |mut world| {
            let began = Instant::now();
            (0..5).for_each(|_| world.answers.send(true).unwrap());
            world.push(5);
            let mut at = Vec::new();
            for _ in 0..5 {
                at.push((world.lists.recv().await.unwrap().1 - began).as_millis());
            }
            // The resolution of a sleep is a millisecond.
            assert_eq!(at.iter().map(|at| at / 10 * 10).collect::<Vec<_>>(), [0, 0, 100, 200, 300]);
        })
        .await;
    }
}
