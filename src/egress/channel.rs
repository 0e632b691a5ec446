//! The stream that HTTP runs on, with or without TLS.

use tokio_rustls::client::TlsStream;

use super::ReadAhead;
use super::allowance::Place;
use super::streams::streams;

/// An open connection to a backend, before HTTP.
pub(super) enum Channel {
    /// TLS. Boxed: its state is ten times the size of the other variant.
    Tls(Box<TlsStream<ReadAhead>>),
    /// Without TLS.
    Plain(ReadAhead),
}

impl Channel {
    /// Holds `place` until the connection is dropped.
    pub(super) fn keep(&mut self, place: Place) {
        match self {
            Channel::Tls(stream) => stream.get_mut().0.keep(place),
            Channel::Plain(stream) => stream.keep(place),
        }
    }

    /// Enables read-ahead; for connections shared by many requests.
    pub(super) fn read_ahead(&mut self) {
        match self {
            Channel::Tls(stream) => stream.get_mut().0.begin(),
            Channel::Plain(stream) => stream.begin(),
        }
    }
}

streams!(Channel: Tls, Plain);
