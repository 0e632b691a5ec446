//! Graceful shutdown: long-running tasks hold a [`Drain`] and follow its phase.

use tokio::sync::watch;

/// Phase of the graceful shutdown; phases only advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShutdownPhase {
    /// Normal operation.
    Serving,
    /// A signal was received: readiness fails, requests are still accepted (`--shutdown-delay-duration`).
    Leaving,
    /// New connections and requests are refused; running requests finish.
    Draining,
    /// Watches and tunnels are terminated as well.
    Ending,
    /// The shutdown timeout has passed: remaining requests are aborted.
    TimedOut,
}

/// Observes the shutdown phase; cheap to clone.
#[derive(Clone)]
pub struct Drain(watch::Receiver<ShutdownPhase>);

/// Advances the shutdown phase; there is one for the process and one for each control plane.
pub struct Drainer(watch::Sender<ShutdownPhase>);

impl Drain {
    /// Creates both sides in phase [`ShutdownPhase::Serving`].
    pub fn new() -> (Drainer, Drain) {
        let (sender, receiver) = watch::channel(ShutdownPhase::Serving);
        (Drainer(sender), Drain(receiver))
    }

    /// The current phase.
    pub fn phase(&self) -> ShutdownPhase {
        *self.0.borrow()
    }

    /// Waits until the phase is `phase` or later. A dropped [`Drainer`] counts as [`ShutdownPhase::Ending`].
    pub async fn wait_for(&mut self, phase: ShutdownPhase) {
        let _ = self.0.wait_for(|now| *now >= phase).await;
    }
}

impl Drainer {
    /// Advances to `phase`; an earlier phase is ignored.
    pub fn advance(&self, phase: ShutdownPhase) {
        self.0.send_if_modified(|now| {
            let forward = phase > *now;
            if forward {
                *now = phase;
            }
            forward
        });
    }
}
