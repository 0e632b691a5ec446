//! The transport of a connection: a TCP or Unix socket, TLS to a proxy, or a Konnectivity tunnel.

use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::konnectivity::Tunnel;
use super::streams::streams;

/// An open transport to a backend or to a proxy.
pub(super) enum Carrier {
    /// To the backend itself, or to a proxy.
    Tcp(TcpStream),
    /// Unix socket of a backend or proxy on this machine.
    Unix(UnixStream),
    /// TLS to a proxy.
    Tls(Box<TlsStream<Carrier>>),
    /// A tunnel through a Konnectivity server and agent to the backend.
    Tunnel(Box<Tunnel>),
}

impl Carrier {
    /// Has the kernel reset the connection (TCP only) instead of closing it in order when this is dropped: after an
    /// orderly close the peer would take what it got for complete.
    pub(super) fn break_off(&self) {
        match self {
            // Fails only if the peer has closed already.
            Carrier::Tcp(socket) => drop(SockRef::from(socket).set_linger(Some(Duration::ZERO))),
            Carrier::Tls(stream) => stream.get_ref().0.break_off(),
            Carrier::Unix(_) | Carrier::Tunnel(_) => {}
        }
    }
}

streams!(Carrier: Tcp, Unix, Tls, Tunnel);
