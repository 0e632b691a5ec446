//! Live state as an immutable snapshot: one writer publishes, every request reads without waiting.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

/// The reading side; cheap to clone, shared between threads.
pub struct Published<T> {
    value: Arc<ArcSwap<T>>,
    version: watch::Receiver<u64>,
}

/// The one writing side.
pub struct Publisher<T> {
    value: Arc<ArcSwap<T>>,
    version: watch::Sender<u64>,
}

impl<T> Published<T> {
    /// A snapshot that holds `first`, and the only handle that can replace it.
    pub fn new(first: T) -> (Publisher<T>, Published<T>) {
        let value = Arc::new(ArcSwap::from_pointee(first));
        let (sender, receiver) = watch::channel(0);
        (Publisher { value: value.clone(), version: sender }, Published { value, version: receiver })
    }

    /// A snapshot that nobody will ever replace.
    pub fn fixed(value: T) -> Published<T> {
        Published::new(value).1
    }

    /// The current value; do not hold it across an await.
    pub fn load(&self) -> arc_swap::Guard<Arc<T>> {
        self.value.load()
    }

    /// The current value, to keep.
    pub fn get(&self) -> Arc<T> {
        self.value.load_full()
    }

    /// Waits for a value this handle has not waited for yet. Pends for ever once the writer is gone.
    pub async fn changed(&mut self) {
        if self.version.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// As [`Published::changed`]; pends for ever if there is nothing to change.
pub async fn changed_if_any<T>(published: &mut Option<Published<T>>) {
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

/// Says nothing of the value, which may be large or secret.
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

    /// A reading side of this snapshot.
    pub fn reader(&self) -> Published<T> {
        Published { value: self.value.clone(), version: self.version.subscribe() }
    }
}
