//! Reports the requests of a collection to its store, for metrics.

use std::time::Duration;

/// What a request to the store does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOperation {
    /// A new object.
    Create,
    /// A deletion.
    Delete,
    /// All objects of a resource.
    List,
    /// A change of an object.
    Update,
}

/// Receives the requests of a collection to its store. Called on the thread of the request, so it must not wait.
pub trait RequestRecorder: Send + Sync {
    /// Records a request that took `duration`.
    fn record(&self, operation: StoreOperation, duration: Duration, failed: bool);
}
