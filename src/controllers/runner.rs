//! The runner of all controllers: it works off their queues, with pauses after failures, and feeds them from watches.

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
    /// What is worked on at once: mostly the name of an object.
    type Key: Clone + Ord + Hash + Display;

    /// Number of keys that are worked on at a time.
    const CONCURRENCY: usize;

    /// The keys to be looked at.
    fn queue(&self) -> &WorkQueue<Self::Key>;

    /// Looks at a key. It reads the current state: several changes may have led to one call.
    ///
    /// # Errors
    /// Why it is not in the state that it should have. It is looked at again after a pause.
    async fn reconcile(&self, key: &Self::Key) -> Result<(), Status>;
}

/// Works off the queue of a controller. Does not end: whoever drops it ends the work between two steps.
pub(super) async fn run<C: Controller>(controller: &C) {
    join_all((0..C::CONCURRENCY).map(|_| controller.queue().run(async |key| controller.reconcile(&key).await))).await;
}

/// Calls `observe` with none, then with each object of a collection, then with each of its events. After an error or a gap
/// it begins again: whatever depends on objects that are absent is looked at when there is no event. Does not end.
pub(super) async fn follow(
    collection: &ResourceCollection,
    notifier: &Notifier,
    mut observe: impl FnMut(Option<&WatchEvent>),
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
    observe: &mut impl FnMut(Option<&WatchEvent>),
) -> Result<(), Error> {
    let query = WatchQuery {
        namespace: None,
        selection: Selection::default(),
        start: WatchStart::Latest { marks_end: false },
        sends_bookmarks: false,
        timeout: None,
    };
    let mut cursor = collection.watch(query, notifier).await?;
    observe(None);
    while let Some(event) = cursor.next().await? {
        observe(Some(&event));
    }
    Ok(())
}
