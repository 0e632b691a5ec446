//! What HTTP is spoken on: an open connection with TLS, or without.

use tokio_rustls::client::TlsStream;

use super::ReadAhead;
use super::allowance::Place;
use super::streams::streams;

/// An open connection to who will be spoken to.
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

streams!(Channel: Tls, Plain);
