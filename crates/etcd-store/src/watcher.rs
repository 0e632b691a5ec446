//! The watch of all keys, which begins again where it ended.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use store::{Error, Prefix, Revision};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tonic::Streaming;

use crate::LOG_TARGET;
use crate::client::{Client, EtcdCallError};
use crate::convert::{self, etcd_revision, header_revision, range_of_key, range_of_prefix};
use crate::feeds::Feeds;
use crate::messages::{
    RangeRequest, WatchAction, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};

/// How long a waiter waits for an event before etcd is asked for its progress, and the interval of further requests
/// (`storage/cacher/progress/watch_progress.go`). An event comes with a commit by itself.
const PROGRESS_DELAY: Duration = Duration::from_millis(10);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// How long a member may be behind without a response before another is asked.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a watch may be without a response before the member is asked for its progress: a silent peer is found.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);

/// Pauses after a watch that ended.
const WATCH_BACKOFF: Duration = Duration::from_millis(50);
const MAX_WATCH_BACKOFF: Duration = Duration::from_secs(2);

/// Why a watch ended.
enum EtcdWatchEnd {
    /// The connection, or the leader, is gone. The watch begins again after what it has delivered.
    Interrupted(String),
    /// The history up to this revision is discarded, and with it changes that were not delivered.
    Compacted(Revision),
    /// The history of the cluster is not the one that was delivered.
    WentBack(Revision),
}

/// Watches the keys below a prefix.
pub(crate) struct Watcher {
    pub(crate) client: Rc<Client>,
    pub(crate) root: Prefix,
    pub(crate) feeds: Arc<Feeds>,
}

impl Watcher {
    /// Watches until the task is aborted.
    pub(crate) async fn run(self) {
        let mut backoff = WATCH_BACKOFF;
        loop {
            let before = self.feeds.delivered();
            match self.watch().await {
                EtcdWatchEnd::Interrupted(reason) => {
                    if self.feeds.interruption().is_none() {
                        tracing::warn!(target: LOG_TARGET, revision = before, reason, "watch of etcd ended; it resumes");
                    }
                    self.feeds.set_interruption(Some(&reason));
                }
                EtcdWatchEnd::Compacted(compacted) => {
                    tracing::warn!(
                        target: LOG_TARGET,
                        delivered = before,
                        compacted,
                        "etcd discarded changes before they were delivered; collections are loaded again"
                    );
                    self.restart(&Error::Compacted(compacted)).await;
                }
                EtcdWatchEnd::WentBack(revision) => {
                    tracing::error!(
                        target: LOG_TARGET,
                        delivered = before,
                        revision,
                        "etcd has another history than before: was a member restored from a snapshot? Collections are loaded again"
                    );
                    self.restart(&Error::Compacted(before)).await;
                }
            }
            backoff =
                if self.feeds.delivered() == before { (2 * backoff).min(MAX_WATCH_BACKOFF) } else { WATCH_BACKOFF };
            tokio::time::sleep(backoff).await;
        }
    }

    /// Begins again at the current revision.
    async fn restart(&self, error: &Error) {
        if let Ok(revision) = current_revision(&self.client, &self.root).await {
            self.feeds.restart(revision, error);
        }
    }

    async fn watch(&self) -> EtcdWatchEnd {
        match self.has_other_history().await {
            Ok(None) => {}
            Ok(Some(revision)) => return EtcdWatchEnd::WentBack(revision),
            Err(error) => return EtcdWatchEnd::Interrupted(error.to_string()),
        }
        let (requests, receiver) = mpsc::unbounded_channel();
        let range = range_of_prefix(&self.root);
        let create = WatchCreateRequest {
            key: range.key,
            range_end: range.range_end,
            start_revision: etcd_revision(self.feeds.delivered() + 1),
            progress_notify: true,
            prev_kv: true,
        };
        let _ = requests.send(WatchRequest { action: Some(WatchAction::Create(create)) });
        let (connection, mut responses) = match self.client.watch(receiver).await {
            Ok(opened) => opened,
            Err(error) => return EtcdWatchEnd::Interrupted(error.to_string()),
        };
        let end = self.read_responses(&requests, &mut responses).await;
        if matches!(end, EtcdWatchEnd::Interrupted(_)) {
            self.client.fail_over_from(&connection).await;
        }
        end
    }

    /// The current revision, if the cluster is older than what was delivered, or has not the last change of it.
    async fn has_other_history(&self) -> Result<Option<Revision>, EtcdCallError> {
        let current = current_revision(&self.client, &self.root).await?;
        if current < self.feeds.delivered() {
            return Ok(Some(current));
        }
        let Some(change) = self.feeds.last_change() else { return Ok(None) };
        let request = RangeRequest { revision: etcd_revision(change.revision), ..range_of_key(&change.key) };
        let found = match self.client.range(&request).await {
            Ok(response) => response.kvs.first().and_then(convert::record),
            // The watch tells of it.
            Err(error) if error.is_compacted() => return Ok(None),
            Err(error) => return Err(error),
        };
        let state = |record: &Arc<store::KeyValue>| (record.revision, record.value.clone());
        Ok((found.as_ref().map(state) != change.new.as_ref().map(state)).then_some(current))
    }

    async fn read_responses(
        &self,
        requests: &mpsc::UnboundedSender<WatchRequest>,
        responses: &mut Streaming<WatchResponse>,
    ) -> EtcdWatchEnd {
        let mut requested = self.feeds.requested();
        let mut progress_at = Instant::now();
        let mut behind_since = None;
        let mut idle_at = Instant::now() + IDLE_INTERVAL;
        loop {
            let is_idle = Instant::now() >= idle_at;
            let is_behind = *requested.borrow_and_update() > self.feeds.delivered() || is_idle;
            if !is_behind {
                behind_since = None;
            } else if behind_since.is_none() {
                behind_since = Some(Instant::now());
                progress_at = Instant::now() + PROGRESS_DELAY;
            }
            tokio::select! {
                response = responses.message() => match response {
                    Ok(Some(response)) => {
                        behind_since = None;
                        idle_at = Instant::now() + IDLE_INTERVAL;
                        if self.feeds.interruption().is_some() {
                            tracing::info!(target: LOG_TARGET, "watch of etcd resumed");
                            self.feeds.set_interruption(None);
                        }
                        if let Err(end) = self.handle_response(&response) {
                            return end;
                        }
                    }
                    Ok(None) => return EtcdWatchEnd::Interrupted("the member ended the stream".to_owned()),
                    Err(status) => return EtcdWatchEnd::Interrupted(status.message().to_owned()),
                },
                _ = requested.changed() => {}
                () = tokio::time::sleep_until(idle_at), if !is_behind => {}
                () = tokio::time::sleep_until(progress_at), if is_behind => {
                    if behind_since.is_some_and(|since| since.elapsed() > SILENCE_TIMEOUT) {
                        return EtcdWatchEnd::Interrupted("the member does not respond".to_owned());
                    }
                    let _ = requests.send(progress_request());
                    progress_at = Instant::now() + PROGRESS_INTERVAL;
                }
            }
        }
    }

    fn handle_response(&self, response: &WatchResponse) -> Result<(), EtcdWatchEnd> {
        if response.canceled {
            return Err(match convert::revision(response.compact_revision) {
                0 => EtcdWatchEnd::Interrupted(response.cancel_reason.clone()),
                compacted => EtcdWatchEnd::Compacted(compacted),
            });
        }
        // The `created` response precedes the events, so its revision is no progress.
        if response.events.is_empty() && !response.created {
            self.feeds.progress(header_revision(response.header.as_ref()));
        }
        if let Some(event) = response.events.iter().find(|event| convert::lacks_previous(event)) {
            let revision = event.kv.as_ref().map_or(0, |kv| convert::revision(kv.mod_revision));
            return Err(EtcdWatchEnd::Compacted(revision.saturating_sub(1)));
        }
        self.feeds.deliver(response.events.iter().filter_map(convert::change).collect());
        Ok(())
    }
}

fn progress_request() -> WatchRequest {
    WatchRequest { action: Some(WatchAction::Progress(WatchProgressRequest {})) }
}

/// The current revision of the cluster, by a read that a majority confirms.
pub(crate) async fn current_revision(client: &Client, root: &Prefix) -> Result<Revision, EtcdCallError> {
    let key = convert::bytes(root.as_str());
    let request = RangeRequest { key, limit: 1, count_only: true, ..RangeRequest::default() };
    Ok(header_revision(client.range(&request).await?.header.as_ref()))
}

/// The revision up to which the history below a prefix is discarded, which only a watch tells. 0 if none is.
pub(crate) async fn compacted_revision(client: &Client, root: &Prefix) -> Result<Revision, EtcdCallError> {
    let (requests, receiver) = mpsc::unbounded_channel();
    let range = range_of_prefix(root);
    let create = WatchCreateRequest {
        key: range.key,
        range_end: range.range_end,
        start_revision: 1,
        ..WatchCreateRequest::default()
    };
    let _ = requests.send(WatchRequest { action: Some(WatchAction::Create(create)) });
    let (_, mut responses) = client.watch(receiver).await?;
    loop {
        // A watch that is not yet synchronized is not told the progress.
        let Ok(response) = timeout(PROGRESS_INTERVAL, responses.message()).await else {
            let _ = requests.send(progress_request());
            continue;
        };
        match response {
            Ok(Some(response)) if response.canceled => return Ok(convert::revision(response.compact_revision)),
            // It has a history, or is complete without one.
            Ok(Some(response)) if !response.created => return Ok(0),
            Ok(Some(_)) => {}
            Ok(None) => return Err(EtcdCallError::Unreachable("the member ended the stream".to_owned())),
            Err(status) => return Err(EtcdCallError::Refused(status)),
        }
    }
}
