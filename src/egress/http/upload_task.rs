//! Task that uploads a request body.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use tokio::task::AbortHandle;

/// A running upload; dropping it aborts the upload.
#[derive(Default)]
pub(in crate::egress) struct UploadTask(Option<AbortHandle>);

impl UploadTask {
    /// Starts `pump`, within a `LocalSet`. A request that can be written at once, as nearly all, needs no task.
    pub(in crate::egress) fn start(mut pump: impl Future<Output = ()> + Unpin + 'static) -> UploadTask {
        // If pending, its task polls it again with its own waker.
        let mut cx = Context::from_waker(Waker::noop());
        if Pin::new(&mut pump).poll(&mut cx).is_ready() {
            return UploadTask(None);
        }
        UploadTask(Some(tokio::task::spawn_local(pump).abort_handle()))
    }

    /// Lets the upload continue after this is dropped.
    pub(in crate::egress) fn detach(&mut self) {
        self.0 = None;
    }
}

impl Drop for UploadTask {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}
