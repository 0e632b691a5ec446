//! What carries a connection's bytes: a socket of ours, TLS to a proxy over one, or a tunnel.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::konnectivity::Tunnel;

/// A way that is open, as far as it goes. It is `Send`, because an upgrade wants that of what it holds.
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

/// The same call on whatever it is.
macro_rules! on {
    ($self:ident, $it:ident => $call:expr) => {
        match $self.get_mut() {
            Carrier::Tcp($it) => $call,
            Carrier::Unix($it) => $call,
            Carrier::Tls($it) => $call,
            Carrier::Tunnel($it) => $call,
        }
    };
}

impl AsyncRead for Carrier {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on!(self, it => Pin::new(it).poll_read(cx, out))
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on!(self, it => Pin::new(it).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on!(self, it => Pin::new(it).poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Carrier::Tcp(it) => it.is_write_vectored(),
            Carrier::Unix(it) => it.is_write_vectored(),
            Carrier::Tls(it) => it.is_write_vectored(),
            Carrier::Tunnel(it) => it.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(self, it => Pin::new(it).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(self, it => Pin::new(it).poll_shutdown(cx))
    }
}
