//! The signals that end a process.

use std::process::ExitCode;

/// Runs `wait` on this thread with the signals that end a process.
pub(super) fn with_signals(wait: impl AsyncFnOnce(&mut Signals) -> ExitCode) -> ExitCode {
    let waited = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .and_then(|runtime| runtime.block_on(async { Ok(wait(&mut Signals::new()?).await) }));
    waited.unwrap_or_else(|error| {
        tracing::error!(%error, "signals cannot be received");
        ExitCode::FAILURE
    })
}

/// Waits for a signal, says that this is now `ending`, and lets `end` bring it about; a second signal ends at once.
pub(super) fn end_in_order(ending: &str, end: impl Future<Output = ()>) -> ExitCode {
    with_signals(async |signals| {
        let name = signals.next().await;
        tracing::info!(signal = name, "ending: {ending}; a second signal ends at once");
        tokio::select! {
            biased;
            name = signals.next() => {
                tracing::warn!(signal = name, "ending at once; what ran is lost");
                // As k8s.io/apiserver's SetupSignalHandler: this is no clean end.
                ExitCode::FAILURE
            }
            () = end => ExitCode::SUCCESS,
        }
    })
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The name of the next one.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
