//! What carries a connection's bytes: a socket of ours, TLS to a proxy over one, or a tunnel.

use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::konnectivity::Tunnel;
use super::streams::streams;

/// A way that is open, as far as it goes.
pub(super) enum Carrier {
    /// To the backend itself, or to a proxy.
    Tcp(TcpStream),
    /// To a proxy on this machine.
    Unix(UnixStream),
    /// To a proxy that has a certificate.
    Tls(Box<TlsStream<Carrier>>),
    /// By a Konnectivity server and its agent, to the backend.
    Tunnel(Box<Tunnel>),
}

impl Carrier {
    /// When it is dropped, the other end hears that it broke off, where the kernel can tell it: as an end, what came
    /// before would pass for all there was.
    pub(super) fn break_off(&self) {
        match self {
            // A peer that is gone already needs to hear nothing.
            Carrier::Tcp(socket) => drop(SockRef::from(socket).set_linger(Some(Duration::ZERO))),
            Carrier::Tls(stream) => stream.get_ref().0.break_off(),
            Carrier::Unix(_) | Carrier::Tunnel(_) => {}
        }
    }
}

streams!(Carrier: Tcp, Unix, Tls, Tunnel);
