//! The stream that HTTP runs on, with or without TLS.

use crate::egress::ReadAhead;
use crate::egress::dial::connection_limit::ConnectionSlot;
use crate::egress::dial::streams::streams;
use crate::tls::ClientTlsStream;

/// An open connection to a backend, before HTTP.
pub(in crate::egress) enum MaybeTlsStream {
    /// TLS. Boxed: its state is ten times the size of the other variant.
    Tls(Box<ClientTlsStream<ReadAhead>>),
    /// Without TLS.
    Plaintext(ReadAhead),
}

impl MaybeTlsStream {
    /// Holds `slot` until the connection is dropped.
    pub(in crate::egress) fn attach_slot(&mut self, slot: ConnectionSlot) {
        match self {
            MaybeTlsStream::Tls(stream) => stream.get_mut().attach_slot(slot),
            MaybeTlsStream::Plaintext(stream) => stream.attach_slot(slot),
        }
    }

    /// Enables read-ahead; for connections shared by many requests. TLS has buffers of its own.
    pub(in crate::egress) fn enable_read_ahead(&mut self) {
        match self {
            MaybeTlsStream::Tls(_) => {}
            MaybeTlsStream::Plaintext(stream) => stream.enable(),
        }
    }
}

streams!(MaybeTlsStream: Tls, Plaintext);
