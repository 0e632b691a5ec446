//! Networks that lose, delay or carry no packets.

use crate::echo_backend::{ExecutionLedger, start_echo_backend};
use crate::lossy_link::LossyLink;
use crate::report::FaultRow;
use crate::stage::Stage;
use crate::support::backend::BackendSettings;
use crate::support::fixtures::TestEnvironment;

/// A backend of each protocol behind the link, and with `with_near` one that needs no link.
async fn start_behind(link: &LossyLink, with_near: bool) -> Stage {
    let environment = TestEnvironment::new();
    let ledger = ExecutionLedger::default();
    let mut backends = Vec::new();
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let settings = settings.with_listener(link.listen(0));
        backends.push(start_echo_backend(&environment, settings, &ledger).await);
    }
    if with_near {
        backends.push(start_echo_backend(&environment, BackendSettings::default(), &ledger).await);
    }
    Stage::start_with(environment, ledger, backends, &[]).await
}

/// TCP repairs what is lost: nothing may fail.
pub(crate) async fn loss_and_delay() -> FaultRow {
    let link = LossyLink::start();
    let mut stage = start_behind(&link, false).await;
    let load = stage.start_load().await;
    for (loss, delay) in [(0, 50), (2, 20), (10, 5)] {
        link.set(loss, delay);
        load.go_on(20).await;
    }
    link.set(0, 0);
    stage.finish(load, &[]).await
}

/// A request with a body may have reached the endpoint, and is not sent again. One without a body is, but two endpoints that
/// do not answer can take all its time.
const MAY_BE_EXECUTED: &[&str] =
    &["POST 503 NoAnswer", "POST 503 ConnectionBroken", "GET 504 RequestTimeout", "POST 504 RequestTimeout"];

/// With no endpoint left, a GET has nowhere to go either.
const NOTHING_REACHABLE: &[&str] =
    &["GET 503", "GET 504", "POST 503", "POST 504", "GET response broken off", "POST response broken off"];

pub(crate) async fn partition_of_two() -> FaultRow {
    let link = LossyLink::start();
    let mut stage = start_behind(&link, true).await;
    let load = stage.start_load().await;
    for _ in 0..2 {
        link.set(100, 0);
        load.go_on(20).await;
        load.wait_for_answers(200).await;
        link.set(0, 0);
        load.go_on(10).await;
    }
    stage.finish(load, MAY_BE_EXECUTED).await
}

pub(crate) async fn partition_of_all() -> FaultRow {
    let link = LossyLink::start();
    let mut stage = start_behind(&link, false).await;
    let load = stage.start_load().await;
    link.set(100, 0);
    load.go_on(30).await;
    link.set(0, 0);
    stage.finish(load, NOTHING_REACHABLE).await
}

/// Endpoints whose machines restart: the gateway's connections stand, and nobody knows of them at the other side.
pub(crate) async fn half_open_endpoints() -> FaultRow {
    let link = LossyLink::start();
    let mut stage = start_behind(&link, false).await;
    let load = stage.start_load().await;
    let restarts = if crate::is_long() { 5 } else { 2 };
    for _ in 0..restarts {
        link.set(100, 0);
        let mut ports = Vec::new();
        for backend in stage.backends.drain(..) {
            // What it says at its end is lost.
            ports.push(backend.stop().await.port());
        }
        for (settings, port) in [BackendSettings::http1(), BackendSettings::http2()].into_iter().zip(ports) {
            let settings = settings.with_listener(link.listen(port));
            stage.backends.push(start_echo_backend(&stage.environment, settings, &stage.ledger).await);
        }
        link.set(0, 0);
        load.wait_for_answers(200).await;
    }
    stage.finish(load, NOTHING_REACHABLE).await
}
