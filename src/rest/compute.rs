//! Compute threads: decoding and encoding that would hold up the other requests of a worker thread.

use std::sync::LazyLock;

use tokio::sync::Semaphore;

use crate::kubeapi::Status;

/// Size of the input in bytes up to which it is processed on the worker thread, in less than a millisecond.
pub(super) const MAX_INLINE_BYTES: usize = 64 << 10;

/// Half of the cores, so that worker threads keep the others.
static COMPUTE_SLOTS: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Semaphore::new((cores / 2).max(1))
});

/// Runs `work` on input of `bytes`: at once if it is small, else on a compute thread.
///
/// # Errors
/// 500 if the work ends without a result.
pub(super) async fn run_sized<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    if bytes <= MAX_INLINE_BYTES {
        return Ok(work());
    }
    let _slot = COMPUTE_SLOTS.acquire().await.map_err(Status::internal_error)?;
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| Status::internal_error("processing the request body failed unexpectedly"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn compute_thread_runs_large_input_only() {
        let here = std::thread::current().id();
        let thread = || std::thread::current().id();
        assert_eq!(run_sized(MAX_INLINE_BYTES, thread).await.unwrap(), here);
        assert_ne!(run_sized(MAX_INLINE_BYTES + 1, thread).await.unwrap(), here);
    }

    #[tokio::test]
    async fn compute_thread_panic_is_an_internal_error() {
        let status = run_sized(usize::MAX, || std::panic::panic_any("broken")).await.unwrap_err();
        assert_eq!(status.code, 500);
    }
}
