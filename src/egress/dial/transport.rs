//! The transport of a connection: a TCP or Unix socket, TLS to a proxy, or a Konnectivity tunnel.

use std::time::Duration;

use konnectivity_client::KonnectivityTunnel;
use socket2::SockRef;
use tokio::net::{TcpStream, UnixStream};

use crate::egress::dial::streams::streams;
use crate::tls::ClientTlsStream;

/// An open transport to a backend or to a proxy.
pub(in crate::egress) enum TransportStream {
    /// To the backend itself, or to a proxy.
    Tcp(TcpStream),
    /// Unix socket of a backend or proxy on this machine.
    Unix(UnixStream),
    /// TLS to a proxy.
    Tls(Box<ClientTlsStream<TransportStream>>),
    /// A tunnel through a Konnectivity server and agent to the backend.
    Tunnel(Box<KonnectivityTunnel>),
}

impl TransportStream {
    /// Has the kernel reset the connection (TCP only) instead of closing it in order when this is dropped: after an
    /// orderly close the peer would take what it got for complete.
    pub(in crate::egress) fn reset_on_drop(&self) {
        match self {
            // Fails only if the peer has closed already.
            TransportStream::Tcp(socket) => drop(SockRef::from(socket).set_linger(Some(Duration::ZERO))),
            TransportStream::Tls(stream) => stream.get_ref().reset_on_drop(),
            TransportStream::Unix(_) | TransportStream::Tunnel(_) => {}
        }
    }
}

streams!(TransportStream: Tcp, Unix, Tls, Tunnel);
