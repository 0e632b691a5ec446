//! Shutdown as an argument: whoever runs long holds a [`Drain`] and looks at its phase.

use tokio::sync::watch;

/// How far the end of the process has come; phases only ever go forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// All is well.
    Serving,
    /// A signal came: readiness is off, requests are still taken (`--shutdown-delay-duration`).
    Leaving,
    /// No new connection or request is taken; what runs is finished.
    Draining,
    /// Watches and tunnels are ended too.
    Ending,
    /// The time is up: whatever still runs is cut.
    Over,
}

/// The reading side; cheap to clone.
#[derive(Clone)]
pub struct Drain(watch::Receiver<Phase>);

/// The one side that moves the phase on.
pub struct Drainer(watch::Sender<Phase>);

impl Drain {
    /// A process that serves, and the handle that will end it.
    pub fn new() -> (Drainer, Drain) {
        let (sender, receiver) = watch::channel(Phase::Serving);
        (Drainer(sender), Drain(receiver))
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    /// Waits until the phase is `phase` or later. A dropped [`Drainer`] counts as [`Phase::Ending`].
    pub async fn reached(&mut self, phase: Phase) {
        let _ = self.0.wait_for(|now| *now >= phase).await;
    }
}

impl Drainer {
    /// Moves on to `phase`; going back is ignored.
    pub fn advance(&self, phase: Phase) {
        self.0.send_if_modified(|now| {
            let forward = phase > *now;
            if forward {
                *now = phase;
            }
            forward
        });
    }
}
