//! Accepting, and handing each connection to the worker that has the fewest.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::process::{self, Drain, Phase};

/// A connection on its way to a worker; dropping it gives its place back.
pub struct Incoming {
    /// The socket, non-blocking, without Nagle's delay, with keep-alive.
    pub socket: std::net::TcpStream,
    /// The other end, as the socket sees it; over IPv4 never in its IPv6 form.
    pub remote: SocketAddr,
    /// Holds the place of this connection in the counts; keep it as long as the connection lives.
    pub place: Place,
}

/// One connection's place in the count of its worker and of the whole.
pub struct Place {
    worker: Arc<AtomicUsize>,
    total: Arc<AtomicUsize>,
    freed: Arc<tokio::sync::Notify>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.worker.fetch_sub(1, Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::Relaxed);
        self.freed.notify_one();
    }
}

/// The sending ends of all workers.
#[derive(Default)]
pub struct Acceptor {
    workers: Vec<(mpsc::UnboundedSender<Incoming>, Arc<AtomicUsize>)>,
    total: Arc<AtomicUsize>,
    freed: Arc<tokio::sync::Notify>,
}

impl Acceptor {
    /// Adds a worker; it takes its connections from what is returned.
    pub fn worker(&mut self) -> mpsc::UnboundedReceiver<Incoming> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.workers.push((sender, Arc::default()));
        receiver
    }

    /// How many connections are open over all workers.
    pub fn open(&self) -> Arc<AtomicUsize> {
        self.total.clone()
    }

    fn hand_over(&self, socket: std::net::TcpStream, remote: SocketAddr) {
        // Of a client over IPv4 that came by a listener of both families, its own.
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let Some((sender, count)) = self.workers.iter().min_by_key(|(_, count)| count.load(Ordering::Relaxed)) else {
            return;
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        let place = Place { worker: count.clone(), total: self.total.clone(), freed: self.freed.clone() };
        // A worker that is gone drops the connection, and with it the place.
        let _ = sender.send(Incoming { socket, remote, place });
    }
}

/// Accepts until `drain` says [`Phase::Draining`], then takes what the kernel had already completed, so
/// that no client that was let in is reset, and closes the port.
pub async fn accept(listener: TcpListener, acceptor: Acceptor, max_connections: usize, mut drain: Drain) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot accept connections");
            return;
        }
    };
    loop {
        while acceptor.total.load(Ordering::Relaxed) >= max_connections && drain.phase() < Phase::Draining {
            tokio::select! {
                () = acceptor.freed.notified() => {}
                () = drain.reached(Phase::Draining) => {}
            }
        }
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = drain.reached(Phase::Draining) => break,
        };
        match accepted {
            Ok((socket, remote)) => {
                if let Ok(socket) = prepare(socket) {
                    acceptor.hand_over(socket, remote);
                }
            }
            Err(error) => {
                // EMFILE and its kind do not pass by being asked again at once; ECONNABORTED does.
                tracing::warn!(%error, "cannot accept a connection; if descriptors ran out, raise the limit (ulimit -n)");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    while let Some(Ok((socket, remote))) = futures_util::FutureExt::now_or_never(listener.accept()) {
        if let Ok(socket) = prepare(socket) {
            acceptor.hand_over(socket, remote);
        }
    }
}

fn prepare(socket: tokio::net::TcpStream) -> std::io::Result<std::net::TcpStream> {
    process::set_up(&socket)?;
    socket.into_std()
}
