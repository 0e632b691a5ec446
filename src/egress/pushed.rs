//! Task that uploads a request body.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use tokio::task::AbortHandle;

/// A running upload; dropping it aborts the upload.
#[derive(Default)]
pub(super) struct Pushed(Option<AbortHandle>);

impl Pushed {
    /// Starts `pump`, within a `LocalSet`. A request that can be written at once, as nearly all, needs no task.
    pub(super) fn begin(mut pump: impl Future<Output = ()> + Unpin + 'static) -> Pushed {
        // If pending, its task polls it again with its own waker.
        let mut cx = Context::from_waker(Waker::noop());
        if Pin::new(&mut pump).poll(&mut cx).is_ready() {
            return Pushed(None);
        }
        Pushed(Some(tokio::task::spawn_local(pump).abort_handle()))
    }

    /// Lets the upload continue after this is dropped.
    pub(super) fn let_go(&mut self) {
        self.0 = None;
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}
