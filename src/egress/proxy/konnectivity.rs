//! Connects to Konnectivity servers in gRPC mode, and classifies the errors of their tunnels.

use std::rc::Rc;

use konnectivity_client::{KonnectivityClient, PoolDialError, TunnelError, TunnelFailure};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::egress::connection_activity::{ActivityStream, ConnectionActivity};
use crate::egress::dial_result::DialError;
use crate::egress::proxy_fault::ProxyFault;
use crate::tls::ConnectionFailure;

/// As [`KonnectivityClient::connect`]; tells a refused client certificate from other failures.
///
/// # Errors
/// The peer does not speak HTTP/2, or closed the connection.
pub(in crate::egress) async fn connect<T>(carrier: T, authority: &str) -> Result<KonnectivityClient, DialError>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let activity = Rc::new(ConnectionActivity::default());
    let carrier = ActivityStream { stream: carrier, activity: activity.clone() };
    KonnectivityClient::connect(carrier, authority).await.map_err(|error| match activity.failure.get() {
        // Under TLS 1.3 a server verifies the client certificate after the client's handshake is done.
        Some(ConnectionFailure::ClientCertificateRefused) => {
            let why = format!("it does not accept our client certificate: {}", error.cause);
            ProxyFault::Credentials.with_cause(why)
        }
        _ => error.into(),
    })
}

impl From<TunnelFailure> for ProxyFault {
    fn from(failure: TunnelFailure) -> ProxyFault {
        match failure {
            TunnelFailure::NoAgent => ProxyFault::NoAgent,
            TunnelFailure::Refused => ProxyFault::ConnectionRefused,
            TunnelFailure::DialTimeout | TunnelFailure::NoAnswer => ProxyFault::TimedOut,
            TunnelFailure::NoSuchHost => ProxyFault::NameNotResolved,
            TunnelFailure::NoNameServer => ProxyFault::NoNameServer,
            TunnelFailure::Unreachable => ProxyFault::HostUnreachable,
            TunnelFailure::NotStarted | TunnelFailure::Lost => ProxyFault::Unreachable,
            TunnelFailure::Protocol => ProxyFault::InvalidResponse,
            TunnelFailure::Exhausted
            | TunnelFailure::DialFailed
            | TunnelFailure::Rejected
            | TunnelFailure::SlowReader
            | TunnelFailure::CloseTimeout => ProxyFault::Failed,
        }
    }
}

impl From<TunnelError> for DialError {
    fn from(error: TunnelError) -> DialError {
        ProxyFault::from(error.failure).with_cause(error.cause)
    }
}

impl From<PoolDialError<DialError>> for DialError {
    fn from(error: PoolDialError<DialError>) -> DialError {
        match error {
            PoolDialError::Connect(error) => error,
            PoolDialError::NoConnection => ProxyFault::Unreachable.with_cause("no connection in time"),
            PoolDialError::Tunnel(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;
    use tokio::task::LocalSet;

    use super::*;
    use crate::egress::DialPhase;

    #[test]
    fn tunnel_failure_of_name_server_allows_another_proxy() {
        let fault = ProxyFault::from;
        assert!(fault(TunnelFailure::NoNameServer).is_proxy_specific());
        assert!(!fault(TunnelFailure::NoSuchHost).is_proxy_specific());
        assert!(!fault(TunnelFailure::Refused).is_proxy_specific());
        let words = |failure| (fault(failure).reason(), fault(failure).message());
        assert_eq!(words(TunnelFailure::NoNameServer), words(TunnelFailure::NoSuchHost));
    }

    #[test]
    fn tunnel_error_converts_to_dial_error() {
        let error = TunnelError { failure: TunnelFailure::NoSuchHost, cause: "dialing a:1: no such host".to_owned() };
        let dial = DialError::from(PoolDialError::Tunnel(error));
        let fault = ProxyFault::NameNotResolved;
        assert_eq!((dial.phase, dial.reason), (DialPhase::Proxy(fault), fault.reason()));
        assert!(dial.cause.contains("a:1"), "{}", dial.cause);
        let dial = DialError::from(PoolDialError::<DialError>::NoConnection);
        assert_eq!(dial.reason, "ProxyUnreachable");
    }

    /// A TLS session whose server refuses the client certificate after the client's handshake is done.
    struct ClientCertificateRefusingStream;

    impl AsyncRead for ClientCertificateRefusingStream {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
            Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, alert)))
        }
    }

    #[tokio::test]
    async fn konnectivity_connect_reports_refused_client_certificate() {
        let carrier = tokio::io::join(ClientCertificateRefusingStream, tokio::io::sink());
        let error = LocalSet::new().run_until(connect(carrier, "a:1")).await.err().expect("no connection");
        assert_eq!(error.reason, "ProxyCredentialsRefused", "{error:?}");
        assert!(error.cause.starts_with("it does not accept our client certificate"), "{}", error.cause);
    }
}
