//! The log of clients that never come to a request, because their handshake fails.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::observe::metrics::HandshakeFailure;
use crate::review::Complaint;

/// How often each kind of mistake is logged. `narthex_tls_handshake_failures_total` counts them all.
const PERIOD: Duration = Duration::from_secs(60);

/// Logs the handshakes that fail by somebody's mistake, and not each of them.
pub(super) struct HandshakeLog {
    refused: Complaint,
    plain: Complaint,
}

impl Default for HandshakeLog {
    fn default() -> HandshakeLog {
        HandshakeLog { refused: Complaint::every(PERIOD), plain: Complaint::every(PERIOD) }
    }
}

impl HandshakeLog {
    /// A client's handshake failed.
    pub(super) fn log(&self, client: SocketAddr, failure: HandshakeFailure, error: &io::Error) {
        let reason = failure.as_str();
        match failure {
            HandshakeFailure::CertificateRefused if self.refused.is_due() => tracing::warn!(
                %client,
                reason,
                %error,
                "a client does not trust our serving certificate; give it the authority that signed it, and look at the \
                 names and dates of the certificate. Logged once a minute"
            ),
            HandshakeFailure::PlainHttp if self.plain.is_due() => tracing::warn!(
                %client,
                reason,
                "a client sent an HTTP request to the HTTPS port; its URL must begin with https://. Logged once a minute"
            ),
            _ => tracing::debug!(%client, reason, %error, "TLS handshake failed"),
        }
    }
}
