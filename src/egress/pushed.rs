//! What is on its way out: a request that is still being written.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use tokio::task::AbortHandle;

/// A pump that runs until it has moved everything; dropped, it stops.
#[derive(Default)]
pub(super) struct Pushed(Option<AbortHandle>);

impl Pushed {
    /// Runs `pump`. What can be moved at once, nearly every request, needs no task; inside a `LocalSet`.
    pub(super) fn begin(mut pump: impl Future<Output = ()> + Unpin + 'static) -> Pushed {
        // Its task asks once more, and is then woken.
        let mut cx = Context::from_waker(Waker::noop());
        if Pin::new(&mut pump).poll(&mut cx).is_ready() {
            return Pushed(None);
        }
        Pushed(Some(tokio::task::spawn_local(pump).abort_handle()))
    }

    /// Lets it go on by itself.
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
