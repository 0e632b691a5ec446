//! Compute threads: work on large objects, which would hold up the other requests of a worker thread.
//!
//! The work of a request belongs to its user, so that slots are shared fairly, and to its deadline. Work that is no longer
//! wanted does not start; what can be long although its input is bounded asks [`WorkLimit::is_over`].

mod queue;
mod value_size;

use std::cell::{Cell, OnceCell};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

pub use self::queue::{ComputeQueue, WorkOwner};
pub use self::value_size::{map_size, value_size};

use kubeapi::schema::StepBudget;
use kubeapi::{RetryAfter, Status};

use self::queue::WorkRank;
use crate::observe::metrics::{ComputeMetrics, ComputeRefusal};

/// Size of the input in bytes up to which it is processed on the worker thread, in less than a millisecond.
pub const MAX_INLINE_BYTES: usize = 64 << 10;

/// CPU time on compute threads after which the work of one request gives up, where it can be long. Time in which the
/// machine runs something else does not count: a valid object is not refused because the machine is busy.
const MAX_WORK: Duration = Duration::from_secs(2);

/// Steps of 10 ns that work on small input takes on the worker thread before it starts again on a compute thread.
const MAX_INLINE_STEPS: usize = 1 << 17;

/// Steps of one piece of work at most, about a second at worst.
const MAX_STEPS: usize = 1 << 26;

/// Steps after which work asks whether it is over.
const STEPS_PER_CHECK: usize = 1 << 15;

/// Slots for work without a request: of controllers.
static SERVER_QUEUE: LazyLock<ComputeQueue> = LazyLock::new(ComputeQueue::default);

tokio::task_local! {
    /// The request whose work it is.
    static CONTEXT: ComputeContext;
}

/// Whose work it is, and until when. Cheap to clone.
#[derive(Clone)]
pub struct ComputeContext {
    queue: ComputeQueue,
    owner: WorkOwner,
    request: Arc<RequestWork>,
}

/// What the work of one request has in common.
#[derive(Default)]
struct RequestWork {
    deadline: Option<Instant>,
    /// Whether it is that of the body of a response.
    is_body: bool,
    is_canceled: AtomicBool,
    /// Whether work of the request was queued.
    has_begun: AtomicBool,
    /// Microseconds of CPU time on compute threads.
    spent: AtomicU64,
}

/// The limits of work that runs, on the thread that made it.
pub struct WorkLimit {
    request: Arc<RequestWork>,
    /// CPU time of the thread when it was first asked for: a system call, which most small work does not need.
    began: OnceCell<Duration>,
    /// Steps that are left.
    steps: Cell<usize>,
    is_exhausted: Cell<bool>,
}

/// Counts work that is given up while it waits.
struct WaitGuard<'m>(Option<&'m ComputeMetrics>);

/// Cancels the work of a request when dropped.
pub struct CancelOnDrop(Arc<RequestWork>);

impl ComputeContext {
    /// The work of a request of `owner` until `deadline`.
    pub fn new(queue: &ComputeQueue, owner: WorkOwner, deadline: Option<Instant>) -> ComputeContext {
        let request = RequestWork { deadline, ..RequestWork::default() };
        ComputeContext { queue: queue.clone(), owner, request: Arc::new(request) }
    }

    /// That of the request that is answered on this task; that of the server if there is none.
    pub fn current() -> ComputeContext {
        CONTEXT.try_with(ComputeContext::clone).unwrap_or_else(|_| ComputeContext::new(&SERVER_QUEUE, None, None))
    }

    /// That of the body of the response, which has no deadline and is never refused.
    pub fn for_body(&self) -> ComputeContext {
        let request = RequestWork { is_body: true, ..RequestWork::default() };
        ComputeContext { request: Arc::new(request), ..self.clone() }
    }

    /// Awaits `future`, whose work is that of this request.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> {
        CONTEXT.scope(self.clone(), future)
    }

    /// A guard that cancels the work when the request is given up.
    pub fn cancel_on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.request.clone())
    }

    /// Runs `work` on a compute thread when it is its turn.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce(&WorkLimit) -> T + Send + 'static) -> Result<T, Status> {
        let rank = match (self.request.is_body, self.request.has_begun.swap(true, Relaxed)) {
            (true, _) => WorkRank::Body,
            (false, true) => WorkRank::Continued,
            (false, false) => WorkRank::First,
        };
        let waiting = self.queue.acquire(self.owner, rank);
        let guard = WaitGuard(Some(self.queue.metrics()));
        let acquired = match self.request.deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), waiting).await,
            None => Ok(waiting.await),
        };
        guard.finish();
        let acquired = acquired.map_err(|_| self.timed_out())?;
        let slot = acquired.map_err(|_| {
            Status::too_many_requests("Too many requests, please try again later.", RetryAfter::Overloaded)
        })?;
        if self.request.is_unwanted() {
            return Err(self.timed_out());
        }
        let request = self.request.clone();
        let work = move || {
            let limit = WorkLimit::new(request, MAX_STEPS);
            limit.cpu_time();
            let result = work(&limit);
            limit.request.spent.fetch_add(micros(limit.cpu_time()), Relaxed);
            // Held by the thread: it runs to its end although the request may be given up.
            drop(slot);
            result
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| Status::internal_error("processing the request body failed unexpectedly"))
    }

    fn timed_out(&self) -> Status {
        self.queue.metrics().record_refusal(ComputeRefusal::TimedOut);
        out_of_time()
    }
}

impl RequestWork {
    /// Whether nobody waits for the result any more.
    fn is_unwanted(&self) -> bool {
        self.is_canceled.load(Relaxed) || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

impl WorkLimit {
    fn new(request: Arc<RequestWork>, steps: usize) -> WorkLimit {
        WorkLimit { request, began: OnceCell::new(), steps: Cell::new(steps), is_exhausted: Cell::new(false) }
    }

    /// The limits of work without a request.
    pub fn for_server() -> WorkLimit {
        WorkLimit::new(Arc::default(), MAX_STEPS)
    }

    /// Whether steps were refused: the result of the work is none.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted.get()
    }

    /// Whether nobody waits for the result any more, or the request took too much time on compute threads.
    pub fn is_over(&self) -> bool {
        let spent = Duration::from_micros(self.request.spent.load(Relaxed)) + self.cpu_time();
        spent > MAX_WORK || self.request.is_unwanted()
    }

    /// CPU time since the first call.
    fn cpu_time(&self) -> Duration {
        let now = thread_cpu_time();
        now.saturating_sub(*self.began.get_or_init(|| now))
    }
}

impl StepBudget for WorkLimit {
    fn spend(&self, steps: usize) -> bool {
        if self.is_exhausted.get() {
            return false;
        }
        let before = self.steps.get();
        let left = before.saturating_sub(steps);
        self.steps.set(left);
        let asks = left / STEPS_PER_CHECK != before / STEPS_PER_CHECK;
        self.is_exhausted.set(steps > before || asks && self.is_over());
        !self.is_exhausted.get()
    }
}

impl WaitGuard<'_> {
    fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.0 {
            metrics.record_refusal(ComputeRefusal::Canceled);
        }
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.is_canceled.store(true, Relaxed);
    }
}

/// CPU time of the calling thread.
fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// 504 for a request whose work took too long.
pub fn out_of_time() -> Status {
    Status::timeout("request did not complete within the allotted timeout")
}

/// Runs `work` on input of `bytes`: at once if it is small, else on a compute thread.
///
/// # Errors
/// 429 if the user has too much work, 504 if the deadline passes before its turn, 500 if the work ends without a result.
pub async fn run_sized<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    run_limited(bytes, |_| work()).await
}

/// Runs `work` of the server itself on a compute thread: its result is for all requests.
///
/// # Errors
/// 500 if the work ends without a result.
pub async fn run_for_server<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    ComputeContext::new(&SERVER_QUEUE, None, None).run(|_| work()).await
}

/// As [`run_sized`], for work that can be long and asks whether it is over.
///
/// # Errors
/// As [`run_sized`].
pub async fn run_limited<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce(&WorkLimit) -> T + Send + 'static,
) -> Result<T, Status> {
    let context = ComputeContext::current();
    if bytes > MAX_INLINE_BYTES {
        return context.run(work).await;
    }
    Ok(work(&WorkLimit::new(context.request, MAX_STEPS)))
}

/// As [`run_limited`], for work that counts its steps: it is done again on a compute thread if small input takes many.
/// `work` is called with what the first attempt left of `state`.
///
/// # Errors
/// As [`run_sized`].
pub async fn run_counted<S: Send + 'static, T: Send + 'static>(
    bytes: usize,
    mut state: S,
    work: impl Fn(&mut S, &WorkLimit) -> T + Send + 'static,
) -> Result<T, Status> {
    let context = ComputeContext::current();
    if bytes <= MAX_INLINE_BYTES {
        let limit = WorkLimit::new(context.request.clone(), MAX_INLINE_STEPS);
        let result = work(&mut state, &limit);
        if !limit.is_exhausted() {
            return Ok(result);
        }
    }
    context.run(move |limit| work(&mut state, limit)).await
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn context(slots: usize, deadline: Option<Instant>) -> (ComputeContext, ComputeQueue) {
        let queue = ComputeQueue::with_slots(slots, Arc::new(ComputeMetrics::default()));
        (ComputeContext::new(&queue, Some(crate::route::Dealer::default().hand("eve")), deadline), queue)
    }

    #[tokio::test]
    async fn compute_thread_runs_large_input_only() {
        let here = std::thread::current().id();
        let thread = || std::thread::current().id();
        assert_eq!(run_sized(MAX_INLINE_BYTES, thread).await.unwrap(), here);
        assert_ne!(run_sized(MAX_INLINE_BYTES + 1, thread).await.unwrap(), here);
    }

    #[tokio::test]
    async fn compute_thread_runs_work_of_many_steps_again_and_bounds_it() {
        let here = std::thread::current().id();
        let spend = |steps: usize| {
            move |(): &mut (), limit: &WorkLimit| {
                ((0..steps).all(|_| limit.spend(1)), limit.is_exhausted(), std::thread::current().id())
            }
        };
        assert_eq!(run_counted(1, (), spend(MAX_INLINE_STEPS)).await.unwrap(), (true, false, here));
        let (is_done, is_exhausted, thread) = run_counted(1, (), spend(MAX_INLINE_STEPS + 1)).await.unwrap();
        assert_eq!((is_done, is_exhausted, thread != here), (true, false, true));
        let at_once = |(): &mut (), limit: &WorkLimit| (limit.spend(MAX_STEPS), limit.spend(1), limit.is_exhausted());
        assert_eq!(run_counted(1, (), at_once).await.unwrap(), (true, false, true));
        // The deadline acts within the work, too.
        let (context, _) = context(2, Some(Instant::now() + Duration::from_millis(50)));
        let endless = |(): &mut (), limit: &WorkLimit| {
            while limit.spend(STEPS_PER_CHECK) {
                limit.steps.set(limit.steps.get() + STEPS_PER_CHECK);
            }
            limit.is_exhausted()
        };
        assert!(context.scope(run_counted(usize::MAX, (), endless)).await.unwrap());
        assert_eq!(context.scope(run_counted(1, (), endless)).await.unwrap_err().code, 504, "it is not done again");
    }

    #[test]
    fn compute_time_in_which_the_thread_waits_does_not_count() {
        let (limit, began) = (WorkLimit::for_server(), Instant::now());
        limit.cpu_time();
        std::thread::sleep(Duration::from_millis(50));
        assert!(limit.cpu_time() < began.elapsed());
        let before = limit.cpu_time();
        assert!((0..).any(|_| limit.cpu_time() > before), "work counts");
    }

    #[tokio::test]
    async fn compute_thread_panic_is_an_internal_error() {
        let status = run_sized(usize::MAX, || std::panic::panic_any("broken")).await.unwrap_err();
        assert_eq!(status.code, 500);
    }

    #[tokio::test]
    async fn compute_work_past_deadline_is_not_done() {
        let (context, queue) = context(2, Some(Instant::now()));
        let status = context.scope(run_sized(usize::MAX, || unreachable!("it started"))).await.unwrap_err();
        assert_eq!((status.code, status.reason), (504, "Timeout"));
        assert_eq!(queue.metrics().refusals(ComputeRefusal::TimedOut), 1);
        let other = ComputeContext::new(&queue, None, None);
        assert_eq!(other.scope(run_sized(usize::MAX, || 1)).await.unwrap(), 1, "the slot was returned");
    }

    #[tokio::test]
    async fn compute_slot_is_held_by_work_of_request_that_was_given_up() {
        let (context, queue) = context(2, None);
        let (release, released) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        {
            let guard = context.cancel_on_drop();
            let work = run_limited(usize::MAX, move |limit| {
                let _ = released.recv();
                let _ = ended.send(limit.is_over());
            });
            let mut work = Box::pin(context.scope(work));
            assert!(futures_util::poll!(&mut work).is_pending());
            drop((guard, work));
        }
        let mut next = Box::pin(context.scope(run_sized(usize::MAX, || ())));
        assert!(futures_util::poll!(&mut next).is_pending(), "half of two slots is taken");
        release.send(()).unwrap();
        assert!(end.recv().unwrap(), "the work learns that it is not wanted");
        assert_eq!(next.await.unwrap_err().code, 504);
        let count = |why| queue.metrics().refusals(why);
        assert_eq!((count(ComputeRefusal::TimedOut), count(ComputeRefusal::Canceled)), (1, 0));
    }

    #[tokio::test]
    async fn compute_work_that_is_given_up_while_it_waits_is_counted() {
        let (context, queue) = context(2, None);
        let held = queue.acquire(context.owner, WorkRank::First).await.unwrap();
        let mut waiting = Box::pin(context.scope(run_sized(usize::MAX, || ())));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(waiting);
        assert_eq!(queue.metrics().refusals(ComputeRefusal::Canceled), 1);
        drop(held);
        assert!(context.scope(run_sized(usize::MAX, || ())).await.is_ok());
    }
}
