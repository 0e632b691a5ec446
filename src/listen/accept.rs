//! Accepts connections and dispatches each to the worker with the fewest.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::process::{self, Drain, ShutdownPhase};

/// Interval at which connections that have to wait are logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// An accepted connection, queued for a worker; dropping it releases its place in the counts.
pub struct IncomingConnection {
    /// The socket: non-blocking, TCP_NODELAY, with keep-alive.
    pub socket: std::net::TcpStream,
    /// The peer's address; an IPv4-mapped address is converted to IPv4.
    pub remote: SocketAddr,
    /// Keeps the connection counted; drop it when the connection ends.
    pub permit: ConnectionPermit,
}

/// RAII permit that counts a connection for its worker and for the total.
pub struct ConnectionPermit {
    worker: Arc<AtomicUsize>,
    total: Arc<AtomicUsize>,
    freed: Arc<tokio::sync::Notify>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.worker.fetch_sub(1, Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::Relaxed);
        self.freed.notify_one();
    }
}

/// The queues and connection counts of all workers.
#[derive(Default)]
pub struct Acceptor {
    workers: Vec<(mpsc::UnboundedSender<IncomingConnection>, Arc<AtomicUsize>)>,
    total: Arc<AtomicUsize>,
    freed: Arc<tokio::sync::Notify>,
}

impl Acceptor {
    /// Adds a worker and returns its queue of connections.
    pub fn add_worker(&mut self) -> mpsc::UnboundedReceiver<IncomingConnection> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.workers.push((sender, Arc::default()));
        receiver
    }

    /// The number of open connections of all workers.
    pub fn open_connections(&self) -> Arc<AtomicUsize> {
        self.total.clone()
    }

    fn dispatch(&self, socket: std::net::TcpStream, remote: SocketAddr) {
        // A dual-stack listener reports IPv4 clients as IPv4-mapped addresses.
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let Some((sender, count)) = self.workers.iter().min_by_key(|(_, count)| count.load(Ordering::Relaxed)) else {
            return;
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        let permit = ConnectionPermit { worker: count.clone(), total: self.total.clone(), freed: self.freed.clone() };
        // If the worker has ended, the connection is dropped with its permit.
        let _ = sender.send(IncomingConnection { socket, remote, permit });
    }
}

/// Accepts until `drain` reaches [`ShutdownPhase::Draining`], then accepts the connections that the kernel has already
/// completed, so that none is reset, and closes the port.
pub async fn accept(listener: TcpListener, acceptor: Acceptor, max_connections: usize, mut drain: Drain) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot accept connections");
            return;
        }
    };
    let mut last_logged: Option<Instant> = None;
    loop {
        while acceptor.total.load(Ordering::Relaxed) >= max_connections && drain.phase() < ShutdownPhase::Draining {
            if last_logged.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
                last_logged = Some(Instant::now());
                tracing::warn!(
                    address = ?listener.local_addr().ok(),
                    open = max_connections,
                    "further connections wait until one closes: the limit is reached; for clients, raise \
                     --max-connections or, without it, the limit of open files (ulimit -n, LimitNOFILE=). Logged once a \
                     minute"
                );
            }
            tokio::select! {
                () = acceptor.freed.notified() => {}
                () = drain.wait_for(ShutdownPhase::Draining) => {}
            }
        }
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = drain.wait_for(ShutdownPhase::Draining) => break,
        };
        match accepted {
            Ok((socket, remote)) => {
                if let Ok(socket) = configure_socket(socket) {
                    acceptor.dispatch(socket, remote);
                }
            }
            Err(error) => {
                // Retrying at once does not help against EMFILE; it does against ECONNABORTED.
                tracing::warn!(%error, "cannot accept a connection; if descriptors ran out, raise the limit (ulimit -n)");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    while let Some(Ok((socket, remote))) = futures_util::FutureExt::now_or_never(listener.accept()) {
        if let Ok(socket) = configure_socket(socket) {
            acceptor.dispatch(socket, remote);
        }
    }
}

fn configure_socket(socket: tokio::net::TcpStream) -> std::io::Result<std::net::TcpStream> {
    process::configure_socket(&socket)?;
    socket.into_std()
}
