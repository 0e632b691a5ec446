//! The signals that end a process.

use std::process::ExitCode;

/// Runs `wait` on this thread with the handlers of SIGTERM and SIGINT.
pub(super) fn block_on_signals(wait: impl AsyncFnOnce(&mut Signals) -> ExitCode) -> ExitCode {
    let waited = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .and_then(|runtime| runtime.block_on(async { Ok(wait(&mut Signals::new()?).await) }));
    waited.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot install signal handlers");
        ExitCode::FAILURE
    })
}

/// Waits for a signal, logs `ending`, and runs the shutdown `end`; a second signal ends the process at once.
pub(super) fn shut_down_on_signal(ending: &str, end: impl Future<Output = ()>) -> ExitCode {
    block_on_signals(async |signals| {
        let name = signals.next().await;
        tracing::info!(signal = name, "shutting down: {ending}; a second signal ends the process at once");
        tokio::select! {
            biased;
            name = signals.next() => {
                tracing::warn!(signal = name, "second signal: ending at once; running requests are aborted");
                // As k8s.io/apiserver's SetupSignalHandler: not a clean shutdown.
                ExitCode::FAILURE
            }
            () = end => ExitCode::SUCCESS,
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
