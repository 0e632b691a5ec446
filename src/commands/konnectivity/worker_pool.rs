//! Threads that serve connections, and the listeners that hand connections to them.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::commands::threads::spawn_thread;
use crate::process::{Drain, Problem, ShutdownPhase};

/// A connection for a worker.
pub(super) enum AcceptedSocket {
    /// From an agent.
    Agent(std::net::TcpStream),
    /// From a client, with mutual TLS.
    ClientTcp(std::net::TcpStream),
    /// From a client.
    ClientUnix(std::os::unix::net::UnixStream),
}

/// The queues of all workers.
#[derive(Clone)]
pub(super) struct WorkerPool {
    workers: Vec<mpsc::UnboundedSender<AcceptedSocket>>,
    next: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl WorkerPool {
    /// Starts a worker thread for each CPU. `serve` makes the future of a connection. Connections end when the process
    /// times out its drain.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn spawn<S, F>(serve: S, drain: &Drain) -> Result<(WorkerPool, Vec<JoinHandle<()>>), Problem>
    where
        S: Fn(AcceptedSocket) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        for number in 0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
            let (sender, receiver) = mpsc::unbounded_channel();
            workers.push(sender);
            let (serve, drain) = (serve.clone(), drain.clone());
            let work = async move || serve_connections(Rc::new(serve), receiver, drain).await;
            threads.push(spawn_thread(&format!("worker-{number}"), work)?);
        }
        Ok((WorkerPool { workers, next: Default::default() }, threads))
    }

    fn dispatch(&self, socket: AcceptedSocket) {
        let turn = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if let Some(worker) = self.workers.get(turn % self.workers.len().max(1)) {
            // If the worker has ended, the process is ending.
            let _ = worker.send(socket);
        }
    }

    /// Hands over what `accept` accepts until the process drains.
    pub(super) async fn accept_all(
        &self,
        mut accept: impl AsyncFnMut() -> io::Result<AcceptedSocket>,
        mut drain: Drain,
    ) {
        loop {
            let accepted = tokio::select! {
                accepted = accept() => accepted,
                () = drain.wait_for(ShutdownPhase::Draining) => return,
            };
            match accepted {
                Ok(socket) => self.dispatch(socket),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; if descriptors ran out, raise the limit (ulimit -n)");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
}

async fn serve_connections<S, F>(serve: Rc<S>, mut incoming: mpsc::UnboundedReceiver<AcceptedSocket>, mut drain: Drain)
where
    S: Fn(AcceptedSocket) -> F + 'static,
    F: Future<Output = io::Result<()>> + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            socket = incoming.recv() => match socket {
                Some(socket) => {
                    let serving = serve(socket);
                    connections.spawn_local(async move {
                        if let Err(error) = serving.await {
                            tracing::debug!(%error, "connection refused");
                        }
                    });
                }
                None => std::future::pending().await,
            },
            Some(_) = connections.join_next() => {}
            () = drain.wait_for(ShutdownPhase::TimedOut) => return,
        }
    }
}
