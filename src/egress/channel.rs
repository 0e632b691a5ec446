//! What HTTP is spoken on: an open connection with TLS, or without.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::ReadAhead;
use super::allowance::Place;

/// An open connection to who will be spoken to. It is `Send`, because an upgrade wants that of what it holds.
pub(super) enum Channel {
    /// With TLS. Boxed: its state is ten times the other's.
    Tls(Box<TlsStream<ReadAhead>>),
    /// Without.
    Plain(ReadAhead),
}

impl Channel {
    /// It is counted as long as it lasts.
    pub(super) fn keep(&mut self, place: Place) {
        match self {
            Channel::Tls(stream) => stream.get_mut().0.keep(place),
            Channel::Plain(stream) => stream.keep(place),
        }
    }

    /// From now on reads ahead; for connections that many requests share.
    pub(super) fn read_ahead(&mut self) {
        match self {
            Channel::Tls(stream) => stream.get_mut().0.begin(),
            Channel::Plain(stream) => stream.begin(),
        }
    }
}

/// The same call on whatever it is.
macro_rules! on {
    ($self:ident, $it:ident => $call:expr) => {
        match $self.get_mut() {
            Channel::Tls($it) => $call,
            Channel::Plain($it) => $call,
        }
    };
}

impl AsyncRead for Channel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on!(self, it => Pin::new(it).poll_read(cx, out))
    }
}

impl AsyncWrite for Channel {
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
            Channel::Tls(it) => it.is_write_vectored(),
            Channel::Plain(it) => it.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(self, it => Pin::new(it).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(self, it => Pin::new(it).poll_shutdown(cx))
    }
}
