//! Classification of failed connections to backends, with messages that may be shown to a client.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::io;

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

use super::certificate::format_date;
use super::path::{PathError, PathFault};

/// Go's "server gave HTTP response to HTTPS client".
const WITHOUT_TLS: &str = "it answered without TLS; is this a port for plain HTTP?";

/// The kinds of failure of a connection to a backend, up to the end of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConnectionFailure {
    /// The backend's certificate has expired.
    CertificateExpired,
    /// The backend's certificate is not valid yet.
    CertificateNotYetValid,
    /// No trusted authority signed the backend's certificate.
    UnknownIssuer,
    /// The backend's certificate is for other names.
    NameMismatch,
    /// The backend's certificate has no subject alternative name; a common name does not count.
    MissingSan,
    /// The backend's certificate is not for server authentication.
    WrongUsage,
    /// The backend's certificate is malformed or not supported.
    BadCertificate,
    /// The backend refused our client certificate, or requires one and got none.
    ClientCertificateRefused,
    /// Both sides have no protocol version, cipher suite or application protocol in common.
    NoCommonProtocol,
    /// The peer does not speak TLS.
    NotTls,
    /// Any other failure of the handshake.
    HandshakeFailed,
    /// The address refused the connection: nothing listens there.
    ConnectionRefused,
    /// The connection was closed or reset.
    ConnectionClosed,
    /// The connection or handshake timed out.
    Timeout,
    /// There is no route to the network.
    NetworkUnreachable,
    /// There is no route to the host.
    Unreachable,
    /// Any other failure.
    ConnectionFailed,
}

thread_local! {
    /// Why this thread last rejected a certificate. rustls' error, which determines the alert for the peer, cannot
    /// carry the text.
    static REFUSED: RefCell<Option<RefusedCertificate>> = const { RefCell::new(None) };
}

struct RefusedCertificate {
    error: CertificateError,
    text: String,
    leaf: CertificateDer<'static>,
}

/// Stores `text` and the certificate for the caller of the handshake, which gets `error` in the same poll.
pub(super) fn remember_explanation(error: &CertificateError, text: String, leaf: &CertificateDer<'_>) {
    REFUSED.set(Some(RefusedCertificate { error: error.clone(), text, leaf: leaf.clone().into_owned() }));
}

/// The rejected certificate, if it is why the handshake ended with `error` in this poll. Call it before
/// [`describe_error`].
pub fn refused_certificate(error: &io::Error) -> Option<CertificateDer<'static>> {
    let Some(Error::InvalidCertificate(refused)) = rustls_error(error) else { return None };
    REFUSED.with_borrow(|last| last.as_ref().filter(|last| last.error == *refused).map(|last| last.leaf.clone()))
}

/// The log message of a connection or handshake error. A rejected certificate is described with its subject, dates and
/// issuer, and the trusted authorities. It contains no current time, so that repeated messages are equal.
pub fn describe_error(error: &io::Error) -> String {
    let refused = match rustls_error(error) {
        Some(Error::InvalidCertificate(refused)) => refused,
        // The first byte is of no TLS record.
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => return WITHOUT_TLS.to_owned(),
        _ => return error.to_string(),
    };
    match REFUSED.take() {
        Some(last) if last.error == *refused => last.text,
        _ => match refused {
            CertificateError::ExpiredContext { not_after, .. } => {
                format!("the certificate expired on {}", format_date(*not_after))
            }
            CertificateError::NotValidYetContext { not_before, .. } => {
                format!("the certificate is not valid before {}", format_date(*not_before))
            }
            _ => error.to_string(),
        },
    }
}

/// The rustls error in `error`, if any.
pub fn rustls_error(error: &io::Error) -> Option<&Error> {
    let mut source: Option<&(dyn StdError + 'static)> = error.get_ref().map(|it| it as _);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<Error>() {
            return Some(error);
        }
        // An io::Error shows its inner error's sources, but not the inner error itself.
        source = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as _),
            None => error.source(),
        };
    }
    None
}

/// The reason of [`ConnectionFailure::from_io`], for causes and metric labels.
pub fn failure_reason(error: &io::Error) -> &'static str {
    ConnectionFailure::from_io(error).reason()
}

/// What a peer's alert says of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerAlert {
    /// The peer does not accept our certificate.
    CertificateRefused,
    /// The peer requires a client certificate and got none; only servers send this.
    CertificateRequired,
    /// Both sides have no protocol version, cipher suite or application protocol in common.
    NoCommonProtocol,
    /// The peer ends the session; nothing is wrong with the handshake.
    SessionEnded,
    /// Anything else.
    Other,
}

impl PeerAlert {
    pub(crate) fn of(alert: AlertDescription) -> PeerAlert {
        match alert {
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            // What a signature says that does not fit: an authority made anew under its old name.
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied => PeerAlert::CertificateRefused,
            AlertDescription::CertificateRequired => PeerAlert::CertificateRequired,
            AlertDescription::ProtocolVersion
            | AlertDescription::InsufficientSecurity
            | AlertDescription::HandshakeFailure
            | AlertDescription::NoApplicationProtocol => PeerAlert::NoCommonProtocol,
            AlertDescription::CloseNotify | AlertDescription::UserCanceled => PeerAlert::SessionEnded,
            _ => PeerAlert::Other,
        }
    }
}

impl ConnectionFailure {
    /// Classifies an error of connecting, of the handshake, or of the first read after it.
    pub fn from_io(error: &io::Error) -> ConnectionFailure {
        if let Some(error) = rustls_error(error) {
            return ConnectionFailure::from_tls(error);
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => ConnectionFailure::ConnectionRefused,
            io::ErrorKind::TimedOut => ConnectionFailure::Timeout,
            io::ErrorKind::NetworkUnreachable => ConnectionFailure::NetworkUnreachable,
            io::ErrorKind::HostUnreachable | io::ErrorKind::AddrNotAvailable => ConnectionFailure::Unreachable,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => ConnectionFailure::ConnectionClosed,
            _ => ConnectionFailure::ConnectionFailed,
        }
    }

    /// Classifies an error of rustls' client side.
    pub fn from_tls(error: &Error) -> ConnectionFailure {
        match error {
            Error::InvalidCertificate(error) => match error {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    ConnectionFailure::CertificateExpired
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    ConnectionFailure::CertificateNotYetValid
                }
                CertificateError::UnknownIssuer => ConnectionFailure::UnknownIssuer,
                CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                    ConnectionFailure::MissingSan
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    ConnectionFailure::NameMismatch
                }
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                    ConnectionFailure::WrongUsage
                }
                _ => ConnectionFailure::BadCertificate,
            },
            Error::AlertReceived(alert) => match PeerAlert::of(*alert) {
                PeerAlert::CertificateRefused | PeerAlert::CertificateRequired => {
                    ConnectionFailure::ClientCertificateRefused
                }
                PeerAlert::NoCommonProtocol => ConnectionFailure::NoCommonProtocol,
                // A server that ends the session in the handshake has not said why.
                PeerAlert::SessionEnded | PeerAlert::Other => ConnectionFailure::HandshakeFailed,
            },
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => ConnectionFailure::NoCommonProtocol,
            Error::InvalidMessage(_) => ConnectionFailure::NotTls,
            _ => ConnectionFailure::HandshakeFailed,
        }
    }

    /// The reason: one stable word, for causes and metric labels.
    pub fn reason(self) -> &'static str {
        self.reason_and_message().0
    }

    /// The message for clients, without addresses and library texts.
    pub fn message(self) -> &'static str {
        self.reason_and_message().1
    }

    fn reason_and_message(self) -> (&'static str, &'static str) {
        match self {
            ConnectionFailure::CertificateExpired => ("CertificateExpired", "the backend's certificate has expired"),
            ConnectionFailure::CertificateNotYetValid => {
                ("CertificateNotYetValid", "the backend's certificate is not valid yet; a clock may be wrong")
            }
            ConnectionFailure::UnknownIssuer => {
                ("UnknownIssuer", "the backend's certificate is not signed by an authority that is trusted for it")
            }
            ConnectionFailure::NameMismatch => ("NameMismatch", "the backend's certificate is for another name"),
            ConnectionFailure::MissingSan => (
                "MissingSAN",
                "the backend's certificate has no subject alternative name, and its common name does not count",
            ),
            ConnectionFailure::WrongUsage => {
                ("WrongUsage", "the backend's certificate is not for server authentication")
            }
            ConnectionFailure::BadCertificate => {
                ("BadCertificate", "the backend's certificate is malformed or not supported")
            }
            ConnectionFailure::ClientCertificateRefused => {
                ("ClientCertificateRefused", "the backend does not accept the proxy's client certificate")
            }
            ConnectionFailure::NoCommonProtocol => {
                ("NoCommonProtocol", "the backend supports none of the offered TLS versions, ciphers or protocols")
            }
            ConnectionFailure::NotTls => ("NotTLS", "the backend does not speak TLS on this port"),
            ConnectionFailure::HandshakeFailed => ("HandshakeFailed", "the TLS handshake with the backend failed"),
            ConnectionFailure::ConnectionRefused => ("ConnectionRefused", "the backend refuses connections"),
            ConnectionFailure::ConnectionClosed => ("ConnectionClosed", "the backend closed the connection"),
            ConnectionFailure::Timeout => ("Timeout", "the backend did not answer in time"),
            ConnectionFailure::NetworkUnreachable => {
                ("NetworkUnreachable", "there is no route to the backend's network")
            }
            ConnectionFailure::Unreachable => ("Unreachable", "the backend cannot be reached"),
            ConnectionFailure::ConnectionFailed => ("ConnectionFailed", "the connection to the backend failed"),
        }
    }
}

/// Converts the error into rustls' error, so that the peer gets the matching alert.
pub(super) fn to_rustls_error(error: PathError, name: Option<&ServerName<'_>>, time: UnixTime) -> CertificateError {
    match error.fault {
        PathFault::Expired { not_after } => CertificateError::ExpiredContext { time, not_after },
        PathFault::NotYetValid { not_before } => CertificateError::NotValidYetContext { time, not_before },
        // An authority recreated under the same name causes a wrong signature.
        PathFault::UnknownIssuer
        | PathFault::WrongSignature
        | PathFault::NotAuthority
        | PathFault::MayNotSignCertificates
        | PathFault::PathTooLong { .. }
        | PathFault::NameNotPermitted(_)
        | PathFault::NoCommonPolicy
        | PathFault::TooManySignatures => CertificateError::UnknownIssuer,
        PathFault::WrongName { presented, .. } => match name {
            Some(name) => CertificateError::NotValidForNameContext { expected: name.to_owned(), presented },
            None => CertificateError::NotValidForName,
        },
        PathFault::WrongUsage => CertificateError::InvalidPurpose,
        PathFault::UnknownCriticalExtension(_) => CertificateError::UnhandledCriticalExtension,
        PathFault::Malformed(_) => CertificateError::BadEncoding,
        // Not `CertificateError::Other`, which equals nothing, not even itself.
        PathFault::UnsupportedSignature => CertificateError::ApplicationVerificationFailure,
    }
}
