//! The log of failed TLS handshakes of clients.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::decision_cache::LogThrottle;
use crate::observe::metrics::HandshakeFailure;

/// Interval at which each kind of failure is logged. `narthex_tls_handshake_failures_total` counts all.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Logs handshakes that fail because of a misconfiguration, rate limited.
pub(super) struct HandshakeLog {
    certificate_refused: LogThrottle,
    plain_http: LogThrottle,
}

impl Default for HandshakeLog {
    fn default() -> HandshakeLog {
        HandshakeLog {
            certificate_refused: LogThrottle::with_period(LOG_INTERVAL),
            plain_http: LogThrottle::with_period(LOG_INTERVAL),
        }
    }
}

impl HandshakeLog {
    /// Logs the failed handshake of a client.
    pub(super) fn log(&self, client: SocketAddr, failure: HandshakeFailure, error: &io::Error) {
        let reason = failure.as_str();
        match failure {
            HandshakeFailure::CertificateRefused if self.certificate_refused.is_due() => tracing::warn!(
                %client,
                reason,
                %error,
                "client rejected the serving certificate; check its CA bundle, and the names and dates of the \
                 certificate. Logged once a minute"
            ),
            HandshakeFailure::PlainHttp if self.plain_http.is_due() => tracing::warn!(
                %client,
                reason,
                "client sent an HTTP request to the HTTPS port; its URL must begin with https://. Logged once a minute"
            ),
            _ => tracing::debug!(%client, reason, %error, "TLS handshake failed"),
        }
    }
}
