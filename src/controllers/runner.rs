//! The runner of all controllers: it reconciles the keys of their queues, and feeds these from watches.

use std::fmt::Display;
use std::hash::Hash;
use std::time::Duration;

use futures_util::future::join_all;
use kubeapi::Status;
use store::watch_cache::{Error, Notifier, ResourceCollection, Selection, WatchEvent, WatchQuery, WatchStart};

use crate::work_queue::WorkQueue;

/// Pause after a collection could not be watched.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Brings the objects that a key stands for into the state that they should have.
pub(super) trait Controller {
    /// What is reconciled: mostly the name of an object.
    type Key: Clone + Ord + Hash + Display;

    /// Number of keys that are reconciled at a time.
    const CONCURRENCY: usize;

    /// The keys to reconcile.
    fn queue(&self) -> &WorkQueue<Self::Key>;

    /// Brings a key into the state that it should have. It reads the current state: several changes may have led to one
    /// call.
    ///
    /// # Errors
    /// Why that failed. The key is retried after a pause.
    async fn reconcile(&self, key: &Self::Key) -> Result<(), Status>;
}

/// Reconciles the keys of a controller. Does not end: dropping it ends the work at an await.
pub(super) async fn run<C: Controller>(controller: &C) {
    join_all((0..C::CONCURRENCY).map(|_| controller.queue().run(async |key| controller.reconcile(&key).await))).await;
}

/// What a controller learns of a collection.
pub(super) enum FeedEvent<'e> {
    /// The watch starts, for the first time or after a gap. A controller may queue keys whose objects do not exist: there
    /// is no event for them.
    Started,
    /// An object that exists when the watch starts, or a change.
    Object(&'e WatchEvent),
}

/// Calls `observe` with [`FeedEvent::Started`] whenever the watch of a collection starts, then with each object and event.
/// Does not end.
pub(super) async fn follow(
    collection: &ResourceCollection,
    notifier: &Notifier,
    mut observe: impl FnMut(&FeedEvent<'_>),
) {
    loop {
        match follow_once(collection, notifier, &mut observe).await {
            Ok(()) | Err(Error::Expired { .. }) => {}
            Err(error) => {
                let prefix = collection.prefix().as_str();
                tracing::warn!(prefix, "objects cannot be watched, tried again in {WATCH_PAUSE:?}: {error}");
                tokio::time::sleep(WATCH_PAUSE).await;
            }
        }
    }
}

async fn follow_once(
    collection: &ResourceCollection,
    notifier: &Notifier,
    observe: &mut impl FnMut(&FeedEvent<'_>),
) -> Result<(), Error> {
    let query = WatchQuery {
        namespace: None,
        selection: Selection::default(),
        start: WatchStart::Latest { marks_end: false },
        sends_bookmarks: false,
        timeout: None,
    };
    let mut cursor = collection.watch(query, notifier).await?;
    observe(&FeedEvent::Started);
    while let Some(event) = cursor.next().await? {
        observe(&FeedEvent::Object(&event));
    }
    Ok(())
}
