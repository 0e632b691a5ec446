//! Live state as immutable snapshots: one writer publishes, readers load without blocking.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

/// Reads the current snapshot; cheap to clone, usable from any thread.
pub struct Published<T> {
    value: Arc<ArcSwap<T>>,
    version: watch::Receiver<u64>,
    applied: AppliedVersion,
}

/// Version that the reader which acknowledges has applied; none if there is no such reader.
type AppliedVersion = Arc<watch::Sender<Option<u64>>>;

/// Publishes new snapshots; there is one writer.
pub struct Publisher<T> {
    value: Arc<ArcSwap<T>>,
    version: watch::Sender<u64>,
    applied: AppliedVersion,
}

impl<T> Published<T> {
    /// Creates both sides with `first` as the current value.
    pub fn new(first: T) -> (Publisher<T>, Published<T>) {
        let value = Arc::new(ArcSwap::from_pointee(first));
        let (sender, receiver) = watch::channel(0);
        let applied = Arc::new(watch::Sender::new(None));
        let publisher = Publisher { value: value.clone(), version: sender, applied: applied.clone() };
        (publisher, Published { value, version: receiver, applied })
    }

    /// Creates a snapshot that never changes.
    pub fn fixed(value: T) -> Published<T> {
        Published::new(value).1
    }

    /// The current value; do not hold it across an await.
    pub fn load(&self) -> arc_swap::Guard<Arc<T>> {
        self.value.load()
    }

    /// The current value as an owned reference.
    pub fn get(&self) -> Arc<T> {
        self.value.load_full()
    }

    /// Number of the current value; 0 for the first one. Read before the value, it is not newer.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Tells the writer that this reader has applied the value of a version. One reader does so.
    pub fn acknowledge(&self, version: u64) {
        self.applied.send_replace(Some(version));
    }

    /// Waits for the next value that this handle has not seen. Pends forever after the writer is dropped.
    pub async fn changed(&mut self) {
        if self.version.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Like [`Published::changed`]; pends forever for `None`.
pub async fn changed_or_pending<T>(published: &mut Option<Published<T>>) {
    match published {
        Some(published) => published.changed().await,
        None => std::future::pending().await,
    }
}

impl<T> Clone for Published<T> {
    fn clone(&self) -> Self {
        Published { value: self.value.clone(), version: self.version.clone(), applied: self.applied.clone() }
    }
}

/// Omits the value, which may be large or secret.
impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("version", &*self.version.borrow()).finish_non_exhaustive()
    }
}

impl<T> Publisher<T> {
    /// Replaces the value for all readers.
    pub fn publish(&self, value: Arc<T>) {
        self.value.store(value);
        self.version.send_modify(|version| *version += 1);
    }

    /// Creates another reader.
    pub fn reader(&self) -> Published<T> {
        Published { value: self.value.clone(), version: self.version.subscribe(), applied: self.applied.clone() }
    }

    /// Waits until the reader that acknowledges has applied the current value; not at all if there is none.
    pub async fn wait_until_applied(&self) {
        let current = *self.version.borrow();
        let mut applied = self.applied.subscribe();
        let _ = applied.wait_for(|applied| applied.is_none_or(|applied| applied >= current)).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn publisher_waits_for_the_reader_that_acknowledges() {
        let (publisher, published) = Published::new(1);
        publisher.publish(Arc::new(2));
        assert!(publisher.wait_until_applied().now_or_never().is_some(), "nobody acknowledges");
        published.acknowledge(0);
        assert!(publisher.wait_until_applied().now_or_never().is_none());
        published.acknowledge(published.version());
        assert!(publisher.wait_until_applied().now_or_never().is_some());
        publisher.publish(Arc::new(3));
        assert!(publisher.wait_until_applied().now_or_never().is_none());
    }
}
