//! Live state as immutable snapshots: one writer publishes, readers load without blocking.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

/// Reads the current snapshot; cheap to clone, usable from any thread.
pub struct Published<T> {
    value: Arc<ArcSwap<T>>,
    version: watch::Receiver<u64>,
}

/// Publishes new snapshots; there is one writer.
pub struct Publisher<T> {
    value: Arc<ArcSwap<T>>,
    version: watch::Sender<u64>,
}

impl<T> Published<T> {
    /// Creates both sides with `first` as the current value.
    pub fn new(first: T) -> (Publisher<T>, Published<T>) {
        let value = Arc::new(ArcSwap::from_pointee(first));
        let (sender, receiver) = watch::channel(0);
        (Publisher { value: value.clone(), version: sender }, Published { value, version: receiver })
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
        Published { value: self.value.clone(), version: self.version.clone() }
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
        Published { value: self.value.clone(), version: self.version.subscribe() }
    }
}
