//! The thread that starts and ends control planes as their file changes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until};

use super::table::{ControlPlane, ControlPlaneInstance, ControlPlaneParts, ControlPlaneState, ControlPlaneTable};
use crate::commands::threads::spawn_thread;
use crate::config::GatewayConfig;
use crate::config::control_planes::{self, ControlPlaneConfig};
use crate::process::{
    Drain, FileWatcher, OnFailure, Problem, Problems, Published, Publisher, ReloadReporter, ShutdownPhase,
};

/// Longest wait of the start for control planes; those that take longer answer 503 until they serve.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Control planes that are started at the same time. One that waits for its kube-apiserver delays few others.
const MAX_STARTING: usize = 16;
/// Delays before a control plane that could not be started is tried again: the first, and the longest.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Starts a control plane of this name, which ends with the drain. The number distributes control planes over threads.
pub(in crate::commands::gateway) type StartControlPlane =
    Arc<dyn Fn(&ControlPlaneConfig, &Arc<str>, usize, Drain) -> Result<ControlPlaneParts, Problems> + Send + Sync>;

/// The thread of the control planes.
pub(in crate::commands::gateway) struct ControlPlanesThread {
    path: PathBuf,
    gateway: GatewayConfig,
    start: StartControlPlane,
    publisher: Publisher<ControlPlaneTable>,
    entries: HashMap<Arc<str>, ControlPlaneEntry>,
    /// Number of the next start.
    next_attempt: usize,
    permits: Arc<Semaphore>,
    results: mpsc::UnboundedSender<StartResult>,
    drain: Drain,
}

/// A control plane of the file.
struct ControlPlaneEntry {
    config: Arc<ControlPlaneConfig>,
    control_plane: Arc<ControlPlane>,
    /// The attempt to start it whose result counts.
    attempt: usize,
    failures: u32,
    retry_at: Option<Instant>,
}

/// The result of one attempt to start a control plane.
struct StartResult {
    name: Arc<str>,
    attempt: usize,
    result: Result<ControlPlaneInstance, Problems>,
}

impl ControlPlanesThread {
    /// Starts the thread with the control planes `first`, and waits until each was tried once, at most five seconds.
    ///
    /// # Errors
    /// The thread cannot be spawned.
    pub(in crate::commands::gateway) fn start(
        gateway: &GatewayConfig,
        first: (FileWatcher, Vec<ControlPlaneConfig>),
        start: StartControlPlane,
        on_failure: OnFailure,
        drain: Drain,
    ) -> Result<Published<ControlPlaneTable>, Problem> {
        let (publisher, table) = Published::new(ControlPlaneTable::default());
        let (results, started) = mpsc::unbounded_channel();
        let (watcher, configs) = first;
        let mut thread = ControlPlanesThread {
            path: gateway.control_planes.clone().unwrap_or_default(),
            gateway: gateway.clone(),
            start,
            publisher,
            entries: HashMap::new(),
            next_attempt: 0,
            permits: Arc::new(Semaphore::new(MAX_STARTING)),
            results,
            drain,
        };
        let (ready, is_ready) = channel();
        spawn_thread("control-planes", async move || {
            thread.apply(configs);
            thread.run(watcher, started, on_failure, ready).await;
        })?;
        match is_ready.recv_timeout(START_TIMEOUT) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => Ok(table),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Problem::new("--control-planes-config", "the thread of the control planes ended early"))
            }
        }
    }

    async fn run(
        mut self,
        mut watcher: FileWatcher,
        mut started: mpsc::UnboundedReceiver<StartResult>,
        on_failure: OnFailure,
        ready: std::sync::mpsc::Sender<()>,
    ) {
        const UNUSABLE: &str = "control planes changed and are invalid; the last valid file stays in use";
        let mut reporter = ReloadReporter::new(UNUSABLE, on_failure);
        let mut phase = ShutdownPhase::Serving;
        let mut waiting = self.entries.len();
        if waiting == 0 {
            let _ = ready.send(());
        }
        loop {
            let retry_at = self.entries.values().filter_map(|entry| entry.retry_at).min();
            let retry = async {
                match retry_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let next_phase = match phase {
                ShutdownPhase::Serving => ShutdownPhase::Leaving,
                ShutdownPhase::Leaving => ShutdownPhase::Draining,
                _ => ShutdownPhase::Ending,
            };
            let mut drain = self.drain.clone();
            tokio::select! {
                () = watcher.changed() => {
                    if let Some(configs) = reporter.report(control_planes::load(&self.path, &self.gateway)) {
                        self.apply(configs);
                    }
                }
                Some(result) = started.recv() => {
                    self.finish_start(result);
                    waiting = waiting.saturating_sub(1);
                    if waiting == 0 {
                        let _ = ready.send(());
                    }
                }
                () = retry => self.retry(),
                () = drain.wait_for(next_phase) => {
                    phase = self.drain.phase().max(next_phase);
                    for instance in self.entries.values().filter_map(|entry| entry.control_plane.instance()) {
                        instance.drainer.advance(phase);
                    }
                    if phase >= ShutdownPhase::Ending {
                        return;
                    }
                }
            }
        }
    }

    /// Starts what is new or changed in the file, and ends what is gone. The rest stays as it is.
    fn apply(&mut self, configs: Vec<ControlPlaneConfig>) {
        let mut before = std::mem::take(&mut self.entries);
        let mut all = Vec::new();
        let (mut added, mut changed) = (0, 0);
        for config in configs {
            let config = Arc::new(config);
            let previous = before.remove(config.name.as_str());
            let entry = match previous {
                Some(previous) if previous.config.is_same(&config) => ControlPlaneEntry { config, ..previous },
                previous => {
                    log_warnings(&config);
                    match &previous {
                        Some(_) => changed += 1,
                        None => added += 1,
                    }
                    let control_plane = match previous {
                        // It serves as before until its successor does.
                        Some(previous) if previous.config.selector == config.selector => previous.control_plane,
                        previous => {
                            previous.into_iter().for_each(|previous| self.end(&previous.control_plane));
                            let state = ArcSwap::from_pointee(ControlPlaneState::Starting);
                            let (name, selector) = (config.name.as_str().into(), config.selector.clone());
                            Arc::new(ControlPlane { name, selector, state })
                        }
                    };
                    let mut entry =
                        ControlPlaneEntry { config, control_plane, attempt: 0, failures: 0, retry_at: None };
                    self.begin_start(&mut entry);
                    entry
                }
            };
            all.push(entry.control_plane.clone());
            self.entries.insert(entry.control_plane.name.clone(), entry);
        }
        let (total, removed) = (all.len(), before.len());
        self.publisher.publish(Arc::new(ControlPlaneTable::new(all)));
        before.into_values().for_each(|gone| self.end(&gone.control_plane));
        tracing::info!(total, added, changed, removed, "control planes read");
    }

    /// Starts a control plane on a thread of its own, which ends when it serves.
    fn begin_start(&mut self, entry: &mut ControlPlaneEntry) {
        self.next_attempt += 1;
        entry.attempt = self.next_attempt;
        entry.retry_at = None;
        let (attempt, name) = (entry.attempt, entry.control_plane.name.clone());
        let (config, start) = (entry.config.clone(), self.start.clone());
        let (permits, results) = (self.permits.clone(), self.results.clone());
        spawn_local(async move {
            let _permit = permits.acquire_owned().await;
            let of_thread = name.clone();
            let started = tokio::task::spawn_blocking(move || {
                let (drainer, drain) = Drain::new();
                let parts = start(&config, &of_thread, attempt, drain)?;
                Ok(ControlPlaneInstance { name: of_thread, parts, drainer })
            });
            let result = started.await.unwrap_or_else(|error| Err(Problem::new(&name, error).into()));
            let _ = results.send(StartResult { name, attempt, result });
        });
    }

    fn finish_start(&mut self, StartResult { name, attempt, result }: StartResult) {
        let Some(entry) = self.entries.get_mut(&name).filter(|entry| entry.attempt == attempt) else {
            // Removed or changed meanwhile. The dropped instance ends.
            return;
        };
        let state = match result {
            Ok(instance) => {
                if entry.failures > 0 {
                    tracing::info!(control_plane = &*name, "control plane serves");
                }
                entry.failures = 0;
                ControlPlaneState::Serving(Arc::new(instance))
            }
            Err(problems) => {
                let delay = RETRY_DELAYS.0.saturating_mul(1 << entry.failures.min(8)).min(RETRY_DELAYS.1);
                entry.failures = entry.failures.saturating_add(1);
                entry.retry_at = Some(Instant::now() + delay);
                let state = ControlPlaneState::Failed(problems.to_string());
                if !matches!(&**entry.control_plane.state.load(), ControlPlaneState::Failed(_)) {
                    problems.log("control plane cannot be started; it answers 503");
                }
                state
            }
        };
        let before = entry.control_plane.state.swap(Arc::new(state));
        if let ControlPlaneState::Serving(before) = &*before {
            end(before.clone(), &self.gateway);
        }
    }

    fn retry(&mut self) {
        let now = Instant::now();
        let mut entries = std::mem::take(&mut self.entries);
        for entry in entries.values_mut().filter(|entry| entry.retry_at.is_some_and(|at| at <= now)) {
            self.begin_start(entry);
        }
        self.entries = entries;
    }

    /// Ends a control plane that gets no more requests.
    fn end(&self, control_plane: &ControlPlane) {
        if let Some(instance) = control_plane.instance() {
            tracing::info!(control_plane = &*control_plane.name, "control plane ends");
            end(instance, &self.gateway);
        }
    }
}

/// Drains an instance as the process is drained: watches end, other requests finish.
fn end(instance: Arc<ControlPlaneInstance>, gateway: &GatewayConfig) {
    instance.drainer.advance(ShutdownPhase::Draining);
    let (grace, timeout) = (gateway.shutdown.watch_grace, gateway.forwarding.request_timeout);
    spawn_local(async move {
        sleep(grace).await;
        instance.drainer.advance(ShutdownPhase::Ending);
        sleep(timeout).await;
        instance.drainer.advance(ShutdownPhase::TimedOut);
    });
}

fn log_warnings(config: &ControlPlaneConfig) {
    for warning in config.warnings() {
        tracing::warn!(control_plane = config.name, "control plane: {warning}");
    }
}

impl ControlPlane {
    /// The running instance, if there is one.
    pub(in crate::commands::gateway) fn instance(&self) -> Option<Arc<ControlPlaneInstance>> {
        match &**self.state.load() {
            ControlPlaneState::Serving(instance) => Some(instance.clone()),
            ControlPlaneState::Starting | ControlPlaneState::Failed(_) => None,
        }
    }
}
