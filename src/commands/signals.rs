//! The signals that end a process, and what the service manager is told meanwhile.

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::watchdog;
use crate::listen::unused_inherited_sockets;
use crate::process::SdNotify;

/// Time added to [`Shutdown::timeout`] for what ends afterwards: flushed logs, joined threads.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(10);

/// How a process ends.
pub(super) struct Shutdown<'t> {
    /// State of the process until a signal arrives.
    pub(super) serving: &'t str,
    /// State of the process after that.
    pub(super) ending: &'t str,
    /// How long the shutdown takes at most.
    pub(super) timeout: Duration,
}

thread_local! {
    /// The handlers, with the runtime that drives them, from [`install_handlers`] until they are waited for.
    static HANDLERS: RefCell<Option<(Runtime, Signals)>> = const { RefCell::new(None) };
}

/// Handles SIGTERM and SIGINT from now on, on this thread. Called before the process serves: a signal that comes between its
/// first request and [`shut_down_on_signal`] would end it without a drain.
pub(super) fn install_handlers() {
    // An error is reported where the handlers are waited for.
    HANDLERS.set(new_handlers().ok());
}

fn new_handlers() -> std::io::Result<(Runtime, Signals)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = runtime.block_on(async { Signals::new() })?;
    Ok((runtime, signals))
}

/// Runs `wait` on this thread with the handlers of SIGTERM and SIGINT.
pub(super) fn block_on_signals(wait: impl AsyncFnOnce(&mut Signals) -> ExitCode) -> ExitCode {
    match HANDLERS.take().map_or_else(new_handlers, Ok) {
        Ok((runtime, mut signals)) => runtime.block_on(wait(&mut signals)),
        Err(error) => {
            tracing::error!(%error, "cannot install signal handlers");
            ExitCode::FAILURE
        }
    }
}

/// Waits for a signal, logs it, and runs the shutdown `end`; a second signal ends the process at once. The service manager
/// learns that the process serves, that it lives, and that it ends.
pub(super) fn shut_down_on_signal(shutdown: &Shutdown<'_>, end: impl Future<Output = ()>) -> ExitCode {
    let Shutdown { serving, ending, timeout } = shutdown;
    let unused = unused_inherited_sockets();
    if !unused.is_empty() {
        let names = unused.join(", ");
        tracing::warn!(names, "inherited sockets are not used: the name of each must be the flag that it replaces");
    }
    block_on_signals(async |signals| {
        let notify = SdNotify::from_environment();
        let send = |fields: &[(&str, &str)]| notify.iter().for_each(|notify| notify.send(fields));
        send(&[("READY", "1"), ("STATUS", serving)]);
        let run = async {
            let name = signals.next().await;
            tracing::info!(signal = name, "shutting down: {ending}; a second signal ends the process at once");
            // So that its own limit need not follow the flags of this process.
            let extended = (*timeout + TIMEOUT_MARGIN).as_micros().to_string();
            let status = format!("Shutting down: {ending}");
            send(&[("STOPPING", "1"), ("STATUS", &status), ("EXTEND_TIMEOUT_USEC", &extended)]);
            tokio::select! {
                biased;
                name = signals.next() => {
                    tracing::warn!(signal = name, "second signal: ending at once; running requests are aborted");
                    // As k8s.io/apiserver's SetupSignalHandler: not a clean shutdown.
                    ExitCode::FAILURE
                }
                () = end => ExitCode::SUCCESS,
            }
        };
        tokio::select! {
            status = run => status,
            never = watchdog::feed(|| send(&[("WATCHDOG", "1")])) => match never {},
        }
    })
}

/// Handlers of SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal and returns its name.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
