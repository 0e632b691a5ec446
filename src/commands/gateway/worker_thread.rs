//! The thread of a worker: serves its connections, sweeps its caches, and drains.

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tower::service_fn;

use super::request;
use super::worker::{ConnectionTarget, GatewayWorkers};
use crate::listen::{Connections, IncomingConnection, RequestService, ResponseFuture, ServerLimits, serve};
use crate::process::ShutdownPhase;

/// Interval of sweeping connections, pools and caches, and of checking trust.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Time for handshakes to finish once the process drains.
const HANDSHAKE_GRACE: Duration = Duration::from_secs(2);

/// Serves the connections of `workers` until the process drains, then until all of them have ended.
pub(super) async fn serve_connections(
    workers: Rc<GatewayWorkers>,
    mut incoming: mpsc::UnboundedReceiver<IncomingConnection>,
    limits: ServerLimits,
    connections: Connections,
) {
    let limits = Rc::new(limits);
    let worker = &workers.gateway;
    let notifier = worker.notifier.clone();
    spawn_local(async move { notifier.run().await });
    let mut round = tokio::time::interval(SWEEP_INTERVAL);
    let [mut drain, mut end, mut over] = std::array::from_fn(|_| worker.shared.drain.clone());
    let (mut draining, mut ending, mut cut, mut open) = (None, false, false, true);
    loop {
        tokio::select! {
            arrived = incoming.recv(), if open => match arrived {
                Some(arrived) => {
                    let (tls, workers, shared) = (workers.tls(), workers.clone(), worker.shared.clone());
                    let make_service = service_fn(move |accepted| {
                        let target = ConnectionTarget::new(&workers, accepted);
                        ready(Ok::<_, Infallible>(request_service(target)))
                    });
                    let report_failure = move |remote, failure, error: &io::Error| {
                        shared.metrics.record_tls_handshake_failure(failure);
                        shared.handshake_log.log(remote, failure, error);
                    };
                    let (limits, connections) = (limits.clone(), connections.clone());
                    spawn_local(serve(arrived, tls, make_service, report_failure, limits, connections));
                }
                None => open = false,
            },
            _ = round.tick() => {
                connections.sweep(&limits);
                workers.sweep();
            }
            () = drain.wait_for(ShutdownPhase::Draining), if draining.is_none() => {
                draining = Some(Instant::now());
                connections.close_gracefully();
                workers.follow(ShutdownPhase::Draining);
            }
            () = end.wait_for(ShutdownPhase::Ending), if !ending => {
                ending = true;
                workers.follow(ShutdownPhase::Ending);
            }
            () = over.wait_for(ShutdownPhase::TimedOut), if !cut => {
                cut = true;
                workers.follow(ShutdownPhase::TimedOut);
                connections.close_now();
            }
        }
        // Handshakes begun before the port closed may finish, within `HANDSHAKE_GRACE`.
        let arrived =
            connections.pending_handshakes() == 0 || draining.is_some_and(|since| since.elapsed() > HANDSHAKE_GRACE);
        if !open && draining.is_some() && arrived && connections.is_empty() && workers.is_idle() {
            return;
        }
    }
}

/// The service of a connection's requests.
fn request_service(target: ConnectionTarget) -> impl RequestService {
    service_fn(move |request| -> ResponseFuture {
        // Allocated first: a future built on the stack would be moved to the heap with all its kilobytes.
        let (memory, mut request) = (Box::new_uninit(), Box::new(request));
        let (connection, refusal) = target.select(&mut request);
        let answering = Box::write(memory, request::handle(connection, request, refusal));
        Box::into_pin(answering)
    })
}
