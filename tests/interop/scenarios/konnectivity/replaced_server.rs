//! A server that is replaced while it drains. narthex's server tells its agents by a DRAIN packet, the reference's by GOAWAY.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::pairs::{OWN, OWN_AGENT, echo_back, open};
use super::run_local;
use super::target_server::{TargetBehavior, TargetServer};
use crate::environment::{Konnectivity, KonnectivityMode, TestEnvironment};

const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn run(environment: &TestEnvironment) {
    for (name, pair) in [("own", OWN), ("reference", OWN_AGENT)] {
        for mode in [KonnectivityMode::GrpcUnix, KonnectivityMode::ConnectUnix] {
            let directory = environment.scratch(&format!("konnectivity-replaced-{name}-{mode:?}"));
            let mut konnectivity = Konnectivity::with_pair(&directory, mode, pair);
            let target = TargetServer::start(TargetBehavior::Echo);
            run_local(async {
                let mut tunnel = open(&konnectivity, target.port).await;
                timeout(TIMEOUT, echo_back(&mut tunnel, b"before")).await.expect("an echo");
                konnectivity.server.signal(Signal::TERM);
                // Before its grace period of 30 s.
                let deadline = Instant::now() + Duration::from_secs(25);
                let mut draining = konnectivity.start_successor();
                konnectivity.wait_for_agents(1);
                let mut other = open(&konnectivity, target.port).await;
                timeout(TIMEOUT, echo_back(&mut other, b"successor")).await.expect("an echo");
                timeout(TIMEOUT, echo_back(&mut tunnel, b"meanwhile")).await.expect("the first tunnel to go on");
                drop(tunnel);
                // Without blocking: the client of the gRPC modes is on this thread.
                let exit = async {
                    loop {
                        match draining.exit_within(Duration::ZERO) {
                            Some(status) => return status,
                            None => sleep(Duration::from_millis(50)).await,
                        }
                    }
                };
                let status = timeout_at(deadline, exit).await;
                assert!(status.is_ok_and(|status| status.success()), "{name}, {mode:?}: {}", draining.log());
                timeout(TIMEOUT, echo_back(&mut other, b"after")).await.expect("the other tunnel to go on");
            });
        }
    }
}
